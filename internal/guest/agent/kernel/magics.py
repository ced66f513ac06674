# Lines for the shell and magics, as in IPython. It is executed in the globals of
# kernel.py when a cell is not Python, after transform.py, and takes from there what
# it needs.
import re, os


def replaced_line(kind, text, *more):
    """What replaced lines call."""
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


class Shell:
    """What get_ipython() returns: enough for notebooks that were exported as programs.
    The rest is IPython's, where it is installed."""

    user_ns = property(lambda self: ns)

    def run_line_magic(self, name, line="", _stack_depth=1):
        return line_magic(name, line.strip(), sys._getframe(1))

    def run_cell_magic(self, name, line, cell):
        return cell_magic(name + " " + line, cell, 1)

    def magic(self, text):
        name, _, rest = text.lstrip("%").partition(" ")
        return line_magic(name, rest.strip(), sys._getframe(1))

    def system(self, command):
        shell(expand(command, sys._getframe(1)))

    def getoutput(self, command):
        return shell_output(expand(command, sys._getframe(1)))

    def __getattr__(self, name):
        # Libraries look for Jupyter's kernel, and for representations, without
        # having a use for IPython, which takes long to start.
        if name == "kernel" or name.startswith("_"):
            raise AttributeError(name)
        ipython = interactive_shell()
        if ipython is None:
            raise AttributeError("%s: IPython is not installed here" % name)
        return getattr(ipython, name)


def unknown(name, known):
    mark = "%%" if name.startswith("%%") else "%"
    return SyntaxError("%s is not a magic of this kernel; it has %s" % (name, ", ".join(mark + n for n in sorted(known))))


EXPANDED = re.compile(r"[${}]")
WORD = re.compile(r"[A-Za-z_]\w*")


def expand(text, frame):
    """{expression} and $name with the values of the calling frame. What is no
    expression, or no name there, is left for the shell."""
    scope = dict(frame.f_globals)
    scope.update(frame.f_locals)
    out, done, k = [], 0, 0
    last = text.rfind("}")

    def put(start, end, value):
        nonlocal done
        out.append(text[done:start])
        out.append(value)
        done = end

    while True:
        found = EXPANDED.search(text, k)
        if found is None:
            break
        start = found.start()
        c, pair = text[start], text[start:start + 2]
        k = start + 1
        if pair in ("{{", "}}", "$$"):
            k = start + 2
            put(start, k, c)
        elif pair == "${":
            k = text.index("}", start) + 1 if start < last else start + 2  # the shell's
        elif c == "$":
            word = WORD.match(text, start + 1)
            if word is not None:
                k = word.end()
                if word.group() in scope:
                    put(start, k, str(scope[word.group()]))
        elif c == "{":
            end = EXPANDED.search(text, start + 1)
            while end is not None and end.group() == "$":
                end = EXPANDED.search(text, end.end())
            expression = text[start + 1:end.start()] if end is not None and end.group() == "}" else ""
            if expression and "\n" not in expression:
                k = end.end()
                try:
                    put(start, k, str(eval(expression, scope)))
                except Exception:
                    pass
    out.append(text[done:])
    return "".join(out)


def shell_program():
    for program in ("/bin/bash", "/usr/bin/bash", "/bin/sh"):
        if os.access(program, os.X_OK):
            return program
    return "sh"


def wait(process):
    try:
        return process.wait()
    except BaseException:
        # The interrupt went to the child too.
        try:
            process.wait(1)
        except BaseException:
            process.kill()
            process.wait()
        raise


def exit_code(code):
    ns["_exit_code"] = code if code >= 0 else 128 - code


def shell(command):
    import subprocess
    flush_streams()
    flush()
    process = subprocess.Popen([shell_program(), "-c", command], stdin=subprocess.DEVNULL)
    exit_code(wait(process))


class Lines(list):
    """The lines that a command printed: x = !command."""

    @property
    def n(self):
        return "\n".join(self)

    @property
    def s(self):
        return " ".join(self)

    @property
    def l(self):
        return list(self)

    nlstr, spstr, list = n, s, l

    def grep(self, pattern, prune=False, field=None):
        matches = pattern if callable(pattern) else lambda line: re.search(pattern, line, re.I)
        return Lines(line for line in self if bool(matches(line)) != prune)

    def fields(self, *numbers):
        rows = [line.split() for line in self]
        if not numbers:
            return rows
        return Lines(" ".join(row[n] for n in numbers if -len(row) <= n < len(row)) for row in rows)


def shell_output(command):
    import subprocess
    flush_streams()
    flush()
    process = subprocess.Popen([shell_program(), "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        text = process.communicate()[0]
    except BaseException:
        process.kill()
        raise
    exit_code(process.returncode)
    return Lines(text.decode("utf-8", "replace").splitlines())


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


# --- line magics ----------------------------------------------------------------

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
    """What %timeit -o returns."""

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
        raise SyntaxError("%run wants the name of a file")
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

# They set up what is not there, and do no harm when passed over.
IGNORED = frozenset(("matplotlib", "pylab", "config", "load_ext", "reload_ext", "autoreload", "automagic", "colors", "precision", "xmode", "autosave", "logstop", "pdb"))


# --- cell magics ------------------------------------------------------------------

def cell_script(program):
    def magic(rest, body, line):
        import subprocess, shlex
        flush_streams()
        flush()
        argv = [program] if isinstance(program, str) else program()
        words, kept, failing = shlex.split(rest), {}, True
        while words and words[0].startswith("--"):
            option, equals, name = words.pop(0).partition("=")
            if option in ("--out", "--err"):
                kept[option] = name if equals else words.pop(0) if words else ""
            elif option == "--no-raise-error":
                failing = False
            elif option != "--raise-error":
                raise SyntaxError("%s is not an option of this magic; it has --out, --err, --no-raise-error" % option)
        if program is SCRIPT:
            argv = words
        elif argv[0].endswith("sh"):
            argv = argv + ["-s", "--"] + words
        pipes = {option: subprocess.PIPE for option in kept}
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=pipes.get("--out"), stderr=pipes.get("--err"))
        try:
            texts = process.communicate(body.encode("utf-8", "surrogateescape"))
        except BaseException:
            wait_or_kill(process)
            raise
        exit_code(process.returncode)
        for option, text in zip(("--out", "--err"), texts):
            if option in kept:
                ns[kept[option]] = text.decode("utf-8", "replace")
        if process.returncode and failing:
            raise subprocess.CalledProcessError(process.returncode, argv[0])
    return magic


def wait_or_kill(process):
    try:
        process.wait(1)
    except BaseException:
        process.kill()
        process.wait()


def SCRIPT():
    return ["sh"]


def cell_time(rest, body, line):
    timed(lambda: execute("\n" * line + body, "<cell %d>" % S.cell))


def cell_timeit(rest, body, line):
    options, at = timeit_options(rest)
    return measure(body, rest[at:].strip() or "pass", *options)


def cell_writefile(rest, body, line):
    mode = "w"
    if rest.startswith("-a "):
        mode, rest = "a", rest[3:]
    path = os.path.expanduser(rest.strip().strip("'\""))
    print(("Appending to " if mode == "a" else "Overwriting " if os.path.exists(path) else "Writing ") + path)
    with open(path, mode, encoding="utf-8") as f:
        f.write(body if body.endswith("\n") or not body else body + "\n")


class Captured:
    def __init__(self):
        self.stdout, self.stderr, self.outputs = "", "", []

    def show(self):
        sys.stdout.write(self.stdout)
        sys.stderr.write(self.stderr)
        for output in self.outputs:
            display(output)

    __call__ = show

    def __str__(self):
        return self.stdout


class CapturedOutput:
    def __init__(self, data):
        self.data, self.metadata = data, {}

    def __repr__(self):
        return self.data.get("text/plain", "")

    def _repr_mimebundle_(self, include=None, exclude=None):
        return self.data


def cell_capture(rest, body, line):
    import contextlib
    out, err, captured, shows = io.StringIO(), io.StringIO(), Captured(), []
    options = rest.split()
    try:
        with contextlib.ExitStack() as stack:
            if "--no-stdout" not in options:
                stack.enter_context(contextlib.redirect_stdout(out))
            if "--no-stderr" not in options:
                stack.enter_context(contextlib.redirect_stderr(err))
            if "--no-display" not in options:
                S.captured = shows
            execute("\n" * line + body, "<cell %d>" % S.cell)
            if "matplotlib.pyplot" in sys.modules:
                show_figures()
    finally:
        S.captured = None
        captured.outputs = [CapturedOutput(data) for data in shows]
        captured.stdout, captured.stderr = out.getvalue(), err.getvalue()
        names = [p for p in options if not p.startswith("-")]
        if names:
            ns[names[0]] = captured


def cell_markup(mime):
    return lambda rest, body, line: publish({mime: body, "text/plain": body})


CELL_MAGICS = {
    "bash": cell_script(lambda: [shell_program()]), "sh": cell_script("/bin/sh"), "script": cell_script(SCRIPT), "!": cell_script(lambda: [shell_program()]),
    "python": cell_script(lambda: [sys.executable, "-"]), "python3": cell_script(lambda: [sys.executable, "-"]),
    "time": cell_time, "timeit": cell_timeit, "writefile": cell_writefile, "file": cell_writefile, "capture": cell_capture,
    "html": cell_markup("text/html"), "HTML": cell_markup("text/html"), "markdown": cell_markup("text/markdown"),
    "latex": cell_markup("text/latex"), "svg": cell_markup("image/svg+xml"), "SVG": cell_markup("image/svg+xml"),
}


def cell_magic(head, body, line):
    name, _, rest = head.partition(" ")
    magic = CELL_MAGICS.get(name)
    if magic is not None:
        return magic(rest.strip(), body, line)
    ipython = interactive_shell()
    if ipython is not None and name in ipython.magics_manager.magics["cell"]:
        return ipython.run_cell_magic(name, rest, body)
    raise unknown("%%" + name, CELL_MAGICS)


def interactive_shell():
    """IPython's shell where it is installed, for the magics that it alone has."""
    if S.ipython is None:
        S.ipython = False
        try:
            from IPython.core.interactiveshell import InteractiveShell
            from traitlets.config import Config
        except ImportError:
            return None
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "NoColor"
        hook, users = sys.excepthook, dict(ns)
        S.ipython = InteractiveShell.instance(config=config, user_module=main, user_ns=ns)
        sys.excepthook = hook
        # IPython puts names of its own among the user's. Its empty _ would hide the
        # last value, and its exit() ends nothing here; its magics need only _dh and
        # the like.
        for name in ("_", "__", "___", "In", "Out", "exit", "quit", "open", "get_ipython"):
            ns.pop(name, None)
            if name in users:
                ns[name] = users[name]
        S.ipython.display_pub.publish = lambda data, *args, **more: publish({m: as_text(m, v) for m, v in data.items()})
    return S.ipython or None


# --- IPython.display without IPython ------------------------------------------------

def display_module(module):
    """Fills a module with what notebooks import from IPython.display."""

    def kind(name, mime, method):
        class Shown:
            def __init__(self, data=None, url=None, filename=None, **more):
                if filename is None and isinstance(data, (str, os.PathLike)) and name in ("Image", "SVG") and len(str(data)) < 4096 and os.path.exists(data):
                    filename, data = data, None
                if filename is not None:
                    with open(filename, "rb") as f:
                        data = f.read()
                    if name != "Image":
                        data = data.decode("utf-8")
                if url is None and name == "Image" and isinstance(data, str):
                    url, data = data, None
                if url is not None:
                    import urllib.request
                    with urllib.request.urlopen(url) as f:
                        data = f.read()
                self.data, self.metadata = data, more

            def __repr__(self):
                return "<IPython.core.display.%s object>" % name

            def _repr_mimebundle_(self, include=None, exclude=None):
                if name == "Image":
                    return {"image/jpeg" if self.data[:2] == b"\xff\xd8" else "image/png": self.data}
                return {mime: self.data}
        Shown.__name__ = Shown.__qualname__ = name
        setattr(module, name, Shown)

    for name, mime in (("HTML", "text/html"), ("Markdown", "text/markdown"), ("SVG", "image/svg+xml"), ("Latex", "text/latex"),
                       ("JSON", "application/json"), ("Image", "image/png"), ("Pretty", "text/plain"), ("Javascript", "application/javascript"), ("Code", "text/plain")):
        kind(name, mime, None)

    class Math(module.Latex):
        def _repr_mimebundle_(self, include=None, exclude=None):
            return {"text/latex": "$\\displaystyle %s$" % str(self.data).strip("$")}
    module.Math = Math
    module.display = display
    module.display_html = lambda *objs, **more: display(*[module.HTML(o) if isinstance(o, str) else o for o in objs])
    module.display_markdown = lambda *objs, **more: display(*[module.Markdown(o) if isinstance(o, str) else o for o in objs])
    module.clear_output = lambda wait=False: None
    module.update_display = lambda obj, **more: display(obj)
