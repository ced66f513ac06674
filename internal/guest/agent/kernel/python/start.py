# Start: descriptors, signals, names that user code sees, modules to preload.


builtin_input = builtins.input


def no_input(prompt="", /):
    if sys.stdin is not sys.__stdin__:
        return builtin_input(prompt)
    if prompt:
        print(prompt, end="")
    raise EOFError("there is no terminal: write the value into the code instead of asking with input(), or set sys.stdin = io.StringIO('value\\n')")


no_input.__name__ = no_input.__qualname__ = "input"


def get_ipython():
    """The kernel's replacement for IPython's shell."""
    extras()
    return Shell()


def extras():
    """Compiles the files of magics at their first use."""
    global magics
    if magics is not None:
        exec(compile(magics, FILE, "exec"), globals())
        magics = None  # only now: an interrupt may have come in between
    builtins.__glovebox__ = replaced_line


def open_buffer():
    """(size, memory for events, one number: where they end, positions in the
    pipes behind 1 and 2)."""
    try:
        import mmap
        copy = posix.dup(9)
        posix.close(copy)
        memory = memoryview(mmap.mmap(9, 0))
    except (OSError, ImportError, ValueError):
        return 0, None, None, None
    for fd in (9, copy):  # mmap keeps a duplicate that it does not need
        try:
            posix.close(fd)
        except OSError:
            pass
    size = memory[12:16].cast("I")[0]
    return size, memory[64:64 + size], memory[:4].cast("I"), memory[4:12].cast("I")


COMMANDS, CONTROL, EVENTS, RAWOUT, RAWERR = map(high, (3, 4, 5, 6, 7))
BUFFER, buffer, buffer_end, positions = open_buffer()
PLAIN = tuple((fd, high(posix.dup(fd)), fstat(fd).st_ino) for fd in (1, 2))
PID = getpid()
lock = _thread.RLock()
poller = select.poll()
poller.register(RAWOUT, select.POLLIN)
poller.register(RAWERR, select.POLLIN)

_signal.signal(2, on_sigint)
# A process group with stopped children gets SIGHUP when it is orphaned. A handler,
# unlike an ignored signal, is not inherited by programs.
_signal.signal(1, lambda number, frame: None)
posix.register_at_fork(before=flush, after_in_child=after_fork)
sys.stdout = sys.__stdout__ = text_stream(b"o", 1, "<stdout>")
sys.stderr = sys.__stderr__ = text_stream(b"e", 2, "<stderr>")
sys.argv = [""]
sys.meta_path.insert(0, Finder)
sys.meta_path.append(LateSite)
import os
os.environ.setdefault("MPLBACKEND", "agg")
builtins.display = display
builtins.input = no_input
builtins.get_ipython = get_ipython


def preload(names):
    """Imports modules and returns the names of those that cannot be imported. Their
    output is discarded: it would become part of the first cell's."""
    missing = [name for name in names if guarded(__import__, name) is not None]
    if "matplotlib" in sys.modules:
        # matplotlib searches for fonts when pyplot is imported, for half a second or
        # more.
        guarded(__import__, "matplotlib.font_manager")
    flush_streams()
    S.pending, S.size = [], 0
    if len(missing) < len(names):
        guarded(trim_memory)
    return missing


def trim_memory():
    """Excludes the imported objects from garbage collections during user code, and
    returns the memory that the imports freed."""
    import gc
    gc.collect()
    gc.freeze()
    ctypes = sys.modules.get("ctypes")  # numpy has imported it
    if ctypes is not None:
        ctypes.CDLL(None).malloc_trim(0)


first = read_command()
if first is None:
    hard_exit(0)
names, _, magics = first[1:].partition(b"\0")
missing = preload([n for n in names.decode().split("\n") if n])
del first, names
saved_builtins = dict(builtins.__dict__)
saved_modules = dict(sys.modules)
pump(CONTROL, (frame(b"I", encode(to_json({"version": "%d.%d.%d" % sys.version_info[:3], "missing": missing}))), []))
serve()
