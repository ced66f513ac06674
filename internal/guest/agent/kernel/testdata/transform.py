# Runs transform.py for tests: argv are the scripts to load. Line by line, JSON in and
# out.
import sys, json, time, signal

space = {"sys": sys, "builtins": __import__("builtins"), "__name__": "glovebox"}
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as f:
        exec(compile(f.read(), path, "exec"), space)
transform = space["transform"]
TOP_LEVEL_AWAIT = 0x2000


def limit(seconds):
    """Ends the process after so much of its own time, whatever runs."""
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)


def too_long(number, frame):
    raise SystemExit("no end after its time: %r" % (current[:500],))


signal.signal(signal.SIGVTALRM, too_long)
current = ""


def sources():
    """The text of every module of the standard library but its tests."""
    import os, sysconfig
    for folder, folders, files in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = sorted(d for d in folders if d not in ("site-packages", "dist-packages", "test", "tests", "__pycache__"))
        for name in sorted(files):
            if name.endswith(".py"):
                with open(os.path.join(folder, name), "rb") as f:
                    text = f.read()
                try:
                    yield os.path.join(folder, name), text.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
                except UnicodeDecodeError:
                    pass


def library():
    """Puts a magic above each file, and above each line of it. Tells the processor
    time of both, and what of valid Python was changed."""
    global current
    wrong, seen = [], set()
    size = files = 0
    whole = single = parsing = 0.0
    for path, text in sources():
        files += 1
        size += len(text)
        current = path
        limit(60)
        start = time.process_time()
        lines = transform("%matplotlib inline\n" + text).split("\n")[1:]
        whole += time.process_time() - start
        start = time.process_time()
        try:
            compile(text, path, "exec", 0x400)
            valid = True
        except (SyntaxError, ValueError):
            valid = False
        parsing += time.process_time() - start
        if valid:
            wrong += [(path, was, now) for was, now in zip(text.split("\n"), lines) if was != now][:3]
        start = time.process_time()
        for line in text.split("\n"):
            if line not in seen:
                seen.add(line)
                current = line
                limit(10)
                transform("%matplotlib inline\n" + line)
                transform("!ls\n" + line + " (")
        single += time.process_time() - start
    limit(0)
    return {"files": files, "lines": len(seen), "size": size, "wrong": wrong[:10], "whole": whole, "single": single, "parsing": parsing}


class Frame:
    f_globals, f_locals = {"x": 1}, {}


def grow(kind, unit, n):
    """The processor time of work on n and on 16n times the unit, as a ratio: 16 of
    linear work, 256 of quadratic. 0 if a long text takes no time."""
    global current
    before, repeated, after = unit
    work = {"transform": transform, "expand": lambda text: space["expand"](text, Frame), "timeit": space["timeit_options"]}[kind]

    def least(text):
        times = []
        for _ in range(2):
            start = time.process_time()
            work(text)
            times.append(time.process_time() - start)
        return min(times)
    current = unit
    limit(120)
    # Work that is done once must not count.
    while True:
        small = least(before + repeated * n + after)
        if small > 0.002:
            break
        if n > 1 << 18:
            return 0
        n *= 2
    ratio = least(before + repeated * 16 * n + after) / small
    limit(0)
    return ratio


def check(text):
    """What is wrong with the transformation of a text, or ""."""
    global current
    current = text
    steps = 0

    def trace(frame, event, arg):
        nonlocal steps
        if frame.f_code.co_filename == sys.argv[1]:
            if event == "line":
                steps += 1
            return trace
    limit(20)
    sys.settrace(trace)
    try:
        found = transform(text)
    finally:
        sys.settrace(None)
        limit(0)
    allowed = 100 + 40 * len(text)
    if steps > allowed:
        return "%d steps for %d characters" % (steps, len(text))
    if found is None:
        return ""
    if found.count("\n") > text.count("\n"):
        return "more lines: %r" % found
    if text.lstrip("\n")[:1] in (" ", "\t"):
        return ""  # it loses its indentation
    if text.lstrip().startswith("In ["):
        return ""  # a prompt, or an annotation, which is run as it is and does not get here
    try:
        compile(text, "text", "exec", 0x400 | TOP_LEVEL_AWAIT, True)
    except Exception:
        return ""
    return "valid Python was changed: %r" % found


import warnings
warnings.simplefilter("ignore")
tasks = {"library": library, "grow": grow, "check": check}
for line in sys.stdin:
    name, *args = json.loads(line)
    print(json.dumps(tasks[name](*args)), flush=True)
