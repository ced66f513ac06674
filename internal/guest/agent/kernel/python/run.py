# One run: a cell or a whole program, from the command to its result.


def ended_well(error):
    """sys.exit() and sys.exit(0) end a cell like its last line."""
    return error is None or isinstance(error, SystemExit) and (error.code is None or error.code is False or error.code == 0)


def guarded(step, *args):
    """Returns the exception of step(*args), or None: code after a handler has no
    exception context."""
    try:
        step(*args)
    except BaseException as e:
        return e


def prepare():
    """Repairs what an earlier cell may have broken."""
    if sys.modules.get("__main__") is not main or "sys" not in sys.modules or "builtins" not in sys.modules:
        sys.modules.setdefault("sys", sys)
        for name in saved_modules:
            sys.modules.setdefault(name, saved_modules[name])
        sys.modules["__main__"] = main
    take_streams()
    if not usable(sys.stdin, "read"):
        sys.stdin = sys.__stdin__ = open("/dev/null")  # exit() closes it
    if not callable(builtins.__dict__.get("__import__")):
        builtins.__import__ = saved_builtins["__import__"]
    if _signal.getsignal(2) is not on_sigint:
        _signal.signal(2, on_sigint)
    if Finder not in sys.meta_path:
        sys.meta_path.insert(0, Finder)
    if S.loop is not None:
        event_loop()
    elif "asyncio" in sys.modules:
        event_loop()


def settle():
    S.trace, S.profile = sys.gettrace(), sys.getprofile()
    if S.trace is not None or S.profile is not None:
        sys.settrace(None)
        sys.setprofile(None)


def wind_up():
    """Ends a program as Python does: waits for its threads, calls its exit handlers,
    and drops its names, which closes its files."""
    import atexit, gc
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    atexit._run_exitfuncs()
    for name in [n for n in ns if not n.startswith("__")]:
        ns.pop(name, None)
    for name in ("_", "__", "___"):
        builtins.__dict__.pop(name, None)
    S.last = None
    gc.collect()


def exit_code(code):
    """Python's exit code after sys.exit(code); other values than numbers are printed."""
    if isinstance(code, int):
        return str(int(code) & 255 if -2 ** 63 <= code < 2 ** 63 else 255)
    print(code, file=sys.stderr, flush=True)
    return "1"


def run(number, code, file=None):
    """Runs a cell, or a whole program if file is not None (it may be "")."""
    S.run, S.displays, S.dropped, S.at, S.captured = number, 0, 0, 0, None
    S.cell += 1
    S.flushed = monotonic()
    S.active = True
    name = file or "<cell %d>" % S.cell
    if file:
        ns["__file__"], sys.argv[:] = file, [file]
    error = described = None
    try:
        prepare()
        S.running = True
        error = guarded(cell, code, name)
        if S.child or getpid() != PID:
            leave_child(error)
        settle()
        if "report_calls" in globals():  # the run may call tools
            note = report_calls()
            if note:
                guarded(sys.stderr.write, note + "\n")
        if "matplotlib.pyplot" in sys.modules and not file:
            # A program in a file shows its figures itself, as under Python.
            late = guarded(show_figures)
            if error is None:
                error = late
        flush_streams()
        if not ended_well(error):
            described = format_error(error)
            remember_error(error)
        if file is not None:
            if isinstance(error, SystemExit) and described is not None:
                described = "SystemExit", exit_code(error.code), described[2]
            if error is not None:  # its frames have names, too
                error.__traceback__ = error.__context__ = error.__cause__ = None
                sys.last_traceback = None
            late = guarded(wind_up)
            if error is None:
                error = late
            flush_streams()
    except BaseException as e:
        if error is None:
            error = e
    S.running = False
    if ended_well(error):
        if not S.dropped:
            return frame(b"D", b'{"run":%d,"ok":true,"error":null}' % number)
        fields = {"run": number, "ok": True, "error": None}
    else:
        if described is None:
            described = format_error(error)
        fields = {"run": number, "ok": False, "error": {"name": described[0], "value": described[1], "traceback": described[2]}}
    if S.dropped:
        fields["dropped"] = S.dropped
    error = described = None
    return frame(b"D", encode(to_json(fields)))


def remember_error(error):
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    sys.last_exc = error


def leave_child(error):
    """Ends a fork made by user code that reached the end of the cell."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    elif error is not None:
        code = 1
        try:
            sys.stderr.write(format_error(error)[2])
        except BaseException:
            pass
    try:
        flush_streams()
    finally:
        hard_exit(code & 255)
