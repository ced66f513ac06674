# Magics for whole cells: %%bash, %%time.


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
        keep_exit_code(process.returncode)
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
