# Magics, as in IPython. This and the other files of magics are executed in the
# globals of the kernel when a cell is not Python, after transform.py.
import os, re


def replaced_line(kind, text, *more):
    """Called by the lines that transform replaced."""
    frame = sys._getframe(1)
    if kind == "!":
        shell(expand(text, frame))
        return None
    if kind in ("=!", "!!"):
        return shell_output(expand(text, frame))
    if kind == "?":
        return explain(text, frame)
    if kind == "%%":
        return cell_magic(text, more[0], more[1])
    if text.startswith("%"):
        raise SyntaxError("%%%s must be the first line of its cell" % text.split(None, 1)[0])
    name, _, rest = text.partition(" ")
    return line_magic(name, rest.strip().replace("\\\n", " "), frame)


def line_magic(name, rest, frame):
    magic = LINE_MAGICS.get(name)
    if magic is not None:
        if name not in ("time", "timeit", "prun"):
            rest = expand(rest, frame)
        return magic(rest)
    if name in IGNORED:
        return None
    ipython = interactive_shell()
    if ipython is not None and name in ipython.magics_manager.magics["line"]:
        return ipython.run_line_magic(name, rest)
    raise unknown("%" + name, LINE_MAGICS)
def unknown(name, known):
    mark = "%%" if name.startswith("%%") else "%"
    return SyntaxError("%s is not a magic of this kernel; it has %s" % (name, ", ".join(mark + n for n in sorted(known))))
def explain(name, frame):
    if name.startswith("%"):
        known = CELL_MAGICS if name.startswith("%%") else LINE_MAGICS
        if name.lstrip("%") not in known:
            raise unknown(name, known)
        print("%s is a magic of this kernel." % name)
        return
    import inspect
    scope = dict(builtins.__dict__)
    scope.update(frame.f_globals)
    scope.update(frame.f_locals)
    try:
        obj = eval(name, scope)
    except Exception:
        print("Object `%s` not found." % name)
        return
    try:
        print("Signature: %s%s" % (name, inspect.signature(obj)))
    except (TypeError, ValueError):
        print("Type: %s" % type(obj).__name__)
    print("Docstring:\n%s" % (inspect.getdoc(obj) or "<no docstring>"))


def magic_pip(rest):
    import shlex
    shell(shlex.quote(sys.executable) + " -m pip " + rest)
    if "importlib" in sys.modules:
        import importlib
        importlib.invalidate_caches()


def magic_cd(rest):
    quiet = rest == "-q" or rest.startswith("-q ")
    where = (rest[2:] if quiet else rest).strip("'\" ") or "~"
    before = os.getcwd()
    os.chdir(getattr(S, "previous", before) if where == "-" else os.path.expanduser(where))
    S.previous = before
    if not quiet:
        print(os.getcwd())


def magic_env(rest):
    name, equals, value = rest.partition("=")
    if not equals:
        name, _, value = rest.partition(" ")
        if not name:
            return dict(os.environ)
        if not value:
            return os.environ.get(name)
    os.environ[name.strip()] = value.strip()
    print("env: %s=%s" % (name.strip(), value.strip()))


def duration(seconds):
    for unit, size in (("s", 1), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if seconds >= size or unit == "ns":
            return "%.3g %s" % (seconds / size, unit)


def timed(step):
    before, start = os.times(), monotonic()
    try:
        return step()
    finally:
        wall, after = monotonic() - start, os.times()
        user, system = after[0] - before[0], after[1] - before[1]
        print("CPU times: user %s, sys: %s, total: %s" % (duration(user), duration(system), duration(user + system)))
        print("Wall time: %s" % duration(wall))


def magic_time(rest):
    name = "<time>"
    try:
        code = compile(rest, name, "eval", TOP_LEVEL_AWAIT | S.flags, True)
    except SyntaxError:
        code = compile(rest, name, "exec", TOP_LEVEL_AWAIT | S.flags, True)
    return timed(lambda: evaluate(code))


TIMEIT_OPTION = re.compile(r"[ \t]*-([nrp])[ \t]*(\d+)(?!\S)|[ \t]*-([oqtcgv])(?!\S)")


def timeit_options(text):
    """(what measure takes, where the statement begins)."""
    given, at = {}, 0
    while True:
        m = TIMEIT_OPTION.match(text, at)
        if m is None:
            return (given.get("n", 0), max(given.get("r", 7), 1), "o" in given, "q" in given), at
        if m.group(1):
            given[m.group(1)] = int(m.group(2)[:9])
        else:
            given[m.group(3)] = True
        at = m.end()


def magic_timeit(rest):
    options, at = timeit_options(rest)
    return measure(rest[at:].strip(), "pass", *options)


class TimeitResult:
    """Result of %timeit -o."""

    def __init__(self, text, **figures):
        self.text = text
        self.__dict__.update(figures)

    def __repr__(self):
        return "<TimeitResult : %s>" % self.text


def measure(statement, setup, number, repeat, returned, quiet):
    import timeit
    timer = timeit.Timer(statement, setup, globals=ns)
    if not number:
        number = 1
        while timer.timeit(number) < 0.2 and number < 10 ** 9:
            number *= 10
    times = [t / number for t in timer.repeat(repeat, number)]
    mean = sum(times) / len(times)
    deviation = (sum((t - mean) ** 2 for t in times) / len(times)) ** 0.5
    text = "%s +- %s per loop (mean +- std. dev. of %d run%s, %s loop%s each)" % (
        duration(mean), duration(deviation), repeat, "s"[:repeat != 1], format(number, ","), "s"[:number != 1])
    if not quiet:
        print(text)
    if returned:
        return TimeitResult(text, average=mean, stdev=deviation, best=min(times), worst=max(times), timings=times,
                            all_runs=[t * number for t in times], loops=number, repeat=repeat)


def magic_run(rest):
    import shlex, runpy
    parts = shlex.split(rest)
    options = set()
    while parts and len(parts[0]) == 2 and parts[0][0] == "-":
        options.add(parts.pop(0))
    if not parts:
        raise SyntaxError("%run needs a file name")
    if "-m" not in options:
        parts[0] = os.path.expanduser(parts[0])
        if not os.path.exists(parts[0]) and os.path.exists(parts[0] + ".py"):
            parts[0] += ".py"
    argv, sys.argv = sys.argv, parts
    run, given = runpy.run_module if "-m" in options else runpy.run_path, dict(ns) if "-i" in options else None
    try:
        found = run(parts[0], given, "__main__")
    finally:
        sys.argv = argv
        sys.modules["__main__"] = main
    ns.update((k, v) for k, v in found.items() if not k.startswith("__"))


def user_names():
    return sorted(n for n in ns if not n.startswith("_"))


def magic_reset(rest):
    for name in user_names():
        del ns[name]


def magic_whos(rest):
    for name in user_names():
        print("%-20s %-20s %s" % (name, type(ns[name]).__name__, clip(repr(ns[name]), 60).split("\n")[0]))


def magic_lsmagic(rest):
    print(" ".join("%" + n for n in sorted(LINE_MAGICS)))
    print(" ".join("%%" + n for n in sorted(CELL_MAGICS)))


LINE_MAGICS = {
    "pip": magic_pip, "pip3": magic_pip, "cd": magic_cd, "env": magic_env, "set_env": magic_env,
    "pwd": lambda rest: os.getcwd(), "time": magic_time, "timeit": magic_timeit, "run": magic_run,
    "who": lambda rest: print(" ".join(n for n in user_names() if not rest or type(ns[n]).__name__ in rest.split()) or "Interactive namespace is empty."),
    "whos": magic_whos, "reset": magic_reset, "lsmagic": magic_lsmagic,
    "sx": shell_output, "system": shell_output,
    "conda": lambda rest: shell("conda " + rest), "mamba": lambda rest: shell("mamba " + rest), "uv": lambda rest: shell("uv " + rest),
}
for command in ("ls", "ll", "cat", "mkdir", "rmdir", "rm", "cp", "mv", "head", "tail", "less", "more", "man"):
    LINE_MAGICS[command] = lambda rest, command=command: shell(({"ll": "ls -l", "less": "cat", "more": "cat"}.get(command, command)) + " " + rest)

# They configure features that do not exist here, and are safe to ignore.
IGNORED = frozenset(("matplotlib", "pylab", "config", "load_ext", "reload_ext", "autoreload", "automagic", "colors", "precision", "xmode", "autosave", "logstop", "pdb"))
