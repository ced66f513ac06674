# The Python kernel: runs cells in __main__ and says what came of them.
#
# It is executed with globals of its own (a copy of the builtins among them), so
# that nothing the user's code does to its namespace or to the builtins reaches
# it; what it needs at run time it holds in names of its own. Descriptors: 3
# commands in, 4 control out, 5 events out, 6 and 7 the reading ends of the
# pipes behind 1 and 2 (the agent reads them, we only look how much there is), 9
# the board: memory that we share with the agent, for the first events of a run
# and for how much of these pipes was read.
#
# Any statement of the user's may install a signal handler that raises, and the
# interrupt raises too, so every function here may be left at any call. What
# must not be lost between two statements (how much of a message is written) is
# therefore recorded inside one call of C code; see pump.
import sys, io, builtins, time, posix, _ast, _thread, _signal, fcntl, select
from _json import encode_basestring as quote

monotonic = time.monotonic
write, read, getpid, hard_exit = posix.write, posix.read, posix.getpid, posix._exit
dup2, fstat, sleep, ioctl = posix.dup2, posix.fstat, time.sleep, fcntl.ioctl

FILE = "<glovebox>"
MAX_HELD = 64 << 10          # output of threads between two runs
MAX_EVENT = 1 << 20          # one output message
MAX_TEXT = 256 << 10         # one text/plain
MAX_TRACEBACK = 64 << 10
MAX_VALUE = 8 << 10
MAX_DISPLAYS = 20            # per run
MAX_DISPLAY = 8 << 20        # its JSON
MAX_FRAMES = 2000            # of one traceback
MAX_SOURCES = 32 << 20       # cells kept for tracebacks
MAX_PIXELS = 4000000
MAX_TRIES = 1000             # a second, to see a pipe while the agent does not read it
FIONREAD = 0x541b
ORDER = sys.byteorder

main = sys.modules["__main__"]
ns = main.__dict__
saved_builtins = dict(builtins.__dict__)
mtext = io.TextIOWrapper


def high(fd):
    """Moves a descriptor out of the way of user code; closed on exec."""
    for low in (900, 200, 50, 10):
        try:
            new = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, low)
        except (OSError, ValueError):
            continue
        posix.close(fd)
        return new
    return fd


class State:
    pass


S = State()
S.child = False        # this is a fork made by user code
S.running = False      # user code runs: an interrupt is its KeyboardInterrupt
S.active = False       # between R and D: events may be written
S.busy = False         # inside flush; it is not to be entered again
S.pending = []         # (type, bytes) to be framed
S.size = 0
S.flushed = 0.0        # when
S.tx = None            # frames under way to EVENTS
S.reply = None         # message under way to CONTROL
S.at = 0               # end of this run's events on the board
S.marked = [0, 0]      # positions of the last mark
S.run = 0
S.cell = 0
S.displays = 0
S.captured = None      # a list takes what is displayed
S.dropped = 0
S.loop = None
S.task = None
S.task_cancelled = False
S.trace = S.profile = None
S.flags = 0            # of __future__ statements so far
S.last = None          # what we put into builtins._
S.ipython = None
sources = {}           # file name → lines of the cell
sources_size = 0


# --- messages ---------------------------------------------------------------

def pump(fd, tx):
    """Writes the rest of tx = (bytes, [lengths written so far]). The length is
    appended inside one C call: whatever is raised afterwards, it is known."""
    data, done = tx
    while True:
        n = sum(done)
        if n >= len(data):
            return
        done.extend(map(write, (fd,), (memoryview(data)[n:n + MAX_EVENT] if n else data[:MAX_EVENT],)))


def frame(kind, data):
    return (len(data) + 1).to_bytes(4, "big") + kind + data


def frames(chunks):
    """Joins neighbours of one type and frames them."""
    if len(chunks) == 1 and len(chunks[0][1]) <= MAX_EVENT:
        return frame(*chunks[0])
    out = []
    i = 0
    while i < len(chunks):
        kind, data = chunks[i]
        i += 1
        if kind != b"d" and i < len(chunks) and chunks[i][0] == kind:
            run = [data]
            size = len(data)
            while i < len(chunks) and chunks[i][0] == kind and size < MAX_EVENT:
                run.append(chunks[i][1])
                size += len(chunks[i][1])
                i += 1
            data = b"".join(run)
        if kind == b"d":
            out.append(frame(kind, data))
        else:
            for j in range(0, len(data), MAX_EVENT):
                out.append(frame(kind, data[j:j + MAX_EVENT]))
    return b"".join(out)


def mark():
    """Says how much was written to descriptors 1 and 2 so far, by children and C
    code, if it is more than was said last: what we print next comes after that.
    Only the agent reads these pipes; it says on the board how much it has read,
    doubled, and one more while it reads."""
    if positions is None:
        return b"", S.marked
    try:
        # In this order: what is no longer in the pipes is in the positions.
        if not poller.poll(0) and positions.tolist() == S.marked:
            return b"", S.marked
        now = [position(0, RAWOUT), position(1, RAWERR)]
    except (OSError, RuntimeError):  # closed by user code; in use by a thread of it
        return b"", S.marked
    return frame(b"m", b"".join([n.to_bytes(4, "big") for n in now])), now


def position(i, fd):
    """How much was written to a pipe so far, doubled, modulo 2^32."""
    for tries in range(MAX_TRIES):
        at = positions[i]
        waiting = int.from_bytes(ioctl(fd, FIONREAD, bytes(4)), ORDER)
        if not at & 1 and at == positions[i]:
            break
        # Its read is short, but on a busy machine it may have to wait for its turn.
        sleep(0 if tries < 50 else 0.001)
    return at + 2 * waiting & 0xfffffffe


def flush():
    """Sends what is pending."""
    if S.child or S.busy or not S.active:
        return
    with lock:
        if S.busy or not S.active:
            return
        S.busy = True
        try:
            if S.tx is not None:
                pump(EVENTS, S.tx)
                S.tx = None
            # Once, not until nothing is pending: a trace function of the user's
            # may print at every step of this one.
            chunks = S.pending
            if chunks:
                data, marked = mark()
                data += frames(chunks)
                n = len(chunks)
                end = S.at + len(data)
                if end <= BOARD:
                    # No call from here on: nothing is raised in between.
                    board[S.at:end] = data
                    board_end[0] = S.at = end; S.pending = S.pending[n:]; S.size = 0; S.marked = marked
                else:
                    S.at = BOARD  # order: from now on everything goes through the pipe
                    S.tx = (data, []); S.pending = S.pending[n:]; S.size = 0; S.marked = marked
                    pump(EVENTS, S.tx)
                    S.tx = None
            S.flushed = monotonic()
        finally:
            S.busy = False


def emit(kind, data):
    with lock:
        if not S.active and S.size + len(data) > MAX_HELD:
            return
        S.pending.append((kind, data))
        S.size += len(data)


class Stream(io.BufferedIOBase):
    """The binary side of sys.stdout and sys.stderr."""

    def __init__(self, kind, fd, name):
        self._kind, self._fd, self.name, self.mode = kind, fd, name, "wb"

    def writable(self):
        return True

    def fileno(self):
        return self._fd

    def isatty(self):
        return False

    def close(self):
        # User code that closes its standard output goes on printing later.
        self.flush()

    def flush(self):
        if S.pending or S.tx:
            flush()

    @property
    def raw(self):
        return self

    def write(self, data):
        if type(data) is not bytes:
            data = bytes(memoryview(data))
        n = len(data)
        if not n:
            return 0
        if S.child:
            done = []
            pump(self._fd, (data, done))
            return n
        emit(self._kind, data)
        if S.active and (b"\n" in data or S.size > 8192 or monotonic() - S.flushed > 0.05):
            flush()
        return n


def text_stream(kind, fd, name):
    return mtext(Stream(kind, fd, name), encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True)


def usable(stream, method="write"):
    try:
        return stream is not None and not getattr(stream, "closed", False) and hasattr(stream, method)
    except ValueError:  # detached
        return False


def take_streams():
    if not usable(sys.stdout):
        sys.stdout = text_stream(b"o", 1, "<stdout>")
    if not usable(sys.stderr):
        sys.stderr = text_stream(b"e", 2, "<stderr>")


def take_descriptors():
    """Puts back descriptors 1 and 2 for the children of the next cell, if this
    one closed them or laid another file over them."""
    for fd, kept, inode in PLAIN:
        try:
            if fstat(fd).st_ino == inode:
                continue
        except OSError:
            pass  # closed
        dup2(kept, fd)


def flush_streams():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


def after_fork():
    """In a fork made by user code: it prints to the plain descriptors and never
    touches the pipes of its parent."""
    global lock
    S.child = True
    lock = _thread.RLock()
    S.pending, S.size, S.tx, S.busy, S.reply = [], 0, None, False, None
    for fd in (COMMANDS, CONTROL, EVENTS, RAWOUT, RAWERR):
        try:
            posix.close(fd)
        except OSError:
            pass


# --- what is shown ------------------------------------------------------------

def clip(text, limit):
    if len(text) <= limit:
        return text
    head = limit * 3 // 4
    tail = limit - head
    return text[:head] + "\n... %d characters left out ...\n" % (len(text) - limit) + text[len(text) - tail:]


def to_json(value):
    """JSON of strings, ints, bools, None, lists and dicts of them."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return quote(str(value))
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, dict):
        return "{" + ",".join(quote(k) + ":" + to_json(v) for k, v in value.items()) + "}"
    return "[" + ",".join(map(to_json, value)) + "]"


def encode(text):
    return text.encode("utf-8", "replace")


REPRS = (
    ("_repr_html_", "text/html"), ("_repr_markdown_", "text/markdown"), ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"), ("_repr_jpeg_", "image/jpeg"), ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
)


def as_text(mime, value):
    """The representation as a string, or None."""
    if isinstance(value, tuple) and value:
        value = value[0]  # (data, metadata)
    if value is None:
        return None
    if isinstance(value, (bytes, bytearray, memoryview)):
        import binascii
        return binascii.b2a_base64(value, newline=False).decode()
    if isinstance(value, str):
        return value
    import json
    return json.dumps(value, default=str)


def representations(obj):
    """The rich ones, by MIME type. What raises is left out."""
    data = {}
    kind = type(obj)
    if kind in SIMPLE or isinstance(obj, type):
        return data
    png = figure_png(obj)
    if png is not None:
        data["image/png"] = as_text("image/png", png)
        return data
    try:
        bundle = getattr(obj, "_repr_mimebundle_", None)
        if bundle is not None and callable(bundle):
            found = bundle(include=None, exclude=None)
            if isinstance(found, tuple):
                found = found[0]
            for mime, value in dict(found).items():
                text = as_text(mime, value)
                if text is not None:
                    data[str(mime)] = text
    except Exception:
        pass
    for name, mime in REPRS:
        if mime in data:
            continue
        try:
            method = getattr(obj, name, None)
            if method is None or not callable(method):
                continue
            text = as_text(mime, method())
            if text is not None:
                data[mime] = text
        except Exception:
            pass
    return data


SIMPLE = frozenset((int, float, complex, bool, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, type(len), type(clip)))


def show(obj, result=False):
    """Displays one object. Errors of its repr are the caller's."""
    if S.child:
        print(repr(obj))
        return
    if S.displays >= MAX_DISPLAYS:
        S.dropped += 1
        return
    rich = representations(obj)
    if "text/plain" not in rich:
        rich["text/plain"] = repr(obj)
    publish(rich, result)


def publish(data, result=False):
    """Sends one display with the given representations."""
    if S.displays >= MAX_DISPLAYS:
        S.dropped += 1
        return
    data["text/plain"] = clip(data.get("text/plain", ""), MAX_TEXT)
    if S.captured is not None:
        if len(S.captured) < MAX_DISPLAYS:
            S.captured.append(data)
        return
    while True:
        fields = {"result": True, "data": data} if result else {"data": data}
        message = encode(to_json(fields))
        if len(message) <= MAX_DISPLAY:
            break
        # The largest representation goes first; the plain text always fits.
        largest = max((m for m in data if m != "text/plain"), key=lambda m: len(data[m]))
        del data[largest]
    S.displays += 1
    emit(b"d", message)
    flush()


class Handle:
    """What display(…, display_id=…) returns. Nothing that was shown can be replaced:
    an update is shown as well."""

    def __init__(self, display_id):
        self.display_id = display_id

    def __repr__(self):
        return "<DisplayHandle display_id=%s>" % self.display_id

    def display(self, obj, **more):
        display(obj, **more)

    update = display


def display(*objects, include=None, exclude=None, metadata=None, display_id=None, raw=False, clear=False, **more):
    """Shows objects in their richest form, like the value of a cell's last line."""
    for obj in objects:
        if raw and isinstance(obj, dict):
            data = {}
            for mime, value in obj.items():
                text = as_text(mime, value)
                if text is not None:
                    data[str(mime)] = text
            publish(data)
        else:
            show(obj)
    if display_id is not None:
        return Handle(display_id)


# --- figures ------------------------------------------------------------------

shown = []  # ids of figures that were displayed as values in this cell


def is_figure(obj):
    figure = sys.modules.get("matplotlib.figure")
    try:
        return figure is not None and isinstance(obj, figure.Figure)
    except Exception:
        return False


def figure_png(obj):
    """PNG of a matplotlib figure, None for anything else."""
    if not is_figure(obj):
        return None
    png = render(obj)
    shown.append(obj)
    return png


def render(fig):
    dpi = fig.dpi
    width, height = fig.get_size_inches()
    box = "tight"
    try:
        # A label far outside the axes makes the tight box huge.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        canvas = fig.canvas if hasattr(fig.canvas, "get_renderer") else FigureCanvasAgg(fig)
        tight = fig.get_tightbbox(canvas.get_renderer())
        if tight.width > 4 * width + 10 or tight.height > 4 * height + 10:
            box = None
        else:
            width, height = max(width, tight.width + 0.2), max(height, tight.height + 0.2)
    except Exception:
        pass
    if width * height * dpi * dpi > MAX_PIXELS:
        dpi = (MAX_PIXELS / (width * height)) ** 0.5
    for _ in range(6):
        buf = io.BytesIO()
        fig.canvas.print_figure(buf, format="png", dpi=dpi, bbox_inches=box)
        if buf.tell() <= MAX_DISPLAY // 2:
            break
        dpi = dpi / 1.6
    return buf.getvalue()


def show_figures(*args, **kwargs):
    """Displays and closes all open figures: plt.show, and the end of a cell."""
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is None or not hasattr(plt, "get_fignums"):
        return
    try:
        for number in plt.get_fignums():
            fig = plt.figure(number)
            if any(fig is f for f in shown):
                continue
            if not fig.get_axes() and not fig.texts and not fig.images and not fig.lines and not fig.patches:
                continue  # plt.figure() and nothing drawn
            if S.displays >= MAX_DISPLAYS:
                S.dropped += 1
                continue
            png = render(fig)
            publish({"image/png": as_text("image/png", png), "text/plain": repr(fig)})
    finally:
        del shown[:]
        plt.close("all")


# --- hooks at import -----------------------------------------------------------

def hook_linecache(module):
    for name in sources:
        remember(name, module)


def hook_pyplot(module):
    show_figures.__name__ = show_figures.__qualname__ = "show"
    module.show = show_figures


def hook_display(module):
    """IPython's display without IPython's shell would print instead."""
    if hasattr(module, "display"):
        module.display = display
    if hasattr(module, "clear_output"):
        module.clear_output = lambda wait=False: None


HOOKS = {
    "linecache": hook_linecache, "matplotlib.pyplot": hook_pyplot,
    "IPython.core.display_functions": hook_display, "IPython.core.display": hook_display,
}
STUBS = ("IPython", "IPython.display")  # notebooks import the latter


class StubLoader:
    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        if module.__name__ == "IPython":
            module.get_ipython = lambda: None
            module.version_info, module.__version__ = (8, 0, 0, ""), "8.0.0"
        else:
            extras()
            display_module(module)


class Finder:
    """Calls a hook after one of HOOKS was imported."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in HOOKS and name not in STUBS:
            return None
        if name == "IPython.display" and getattr(sys.modules.get("IPython"), "__loader__", None) is not StubLoader:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is Finder or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                break
        else:
            if name not in STUBS:
                return None
            return type(sys.__spec__)(name, StubLoader, origin=FILE, is_package=name == "IPython")
        if name in STUBS:
            return spec
        loader, hook = spec.loader, HOOKS[name]
        execute = loader.exec_module

        def exec_module(module):
            execute(module)
            hook(module)
        try:
            loader.exec_module = exec_module
        except AttributeError:
            pass
        return spec


class LateSite:
    """The last to be asked for a module: adds the user's own directory of packages,
    which Python passes over if it is made after the start, as pip does."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        site = sys.modules.get("site")
        if path is not None or site is None or not site.ENABLE_USER_SITE:
            return None
        where = site.getusersitepackages()
        if where in sys.path or not os.path.isdir(where):
            return None
        site.addsitedir(where)
        from importlib.machinery import PathFinder
        PathFinder.invalidate_caches()
        return PathFinder.find_spec(name, None, target)


def remember(name, linecache=None):
    """Lets tracebacks, warnings and inspect find the cell's source."""
    linecache = linecache or sys.modules.get("linecache")
    try:
        lines = sources[name]
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    except Exception:
        pass


def split(source):
    """Lines as Python counts them; splitlines knows more ends of lines."""
    return [line + "\n" for line in source.split("\n")]


def keep_source(name, source):
    global sources_size
    sources[name] = split(source)
    sources_size += len(source)
    while sources_size > MAX_SOURCES and len(sources) > 1:
        old = next(iter(sources))
        sources_size -= sum(map(len, sources.pop(old)))
        cache = getattr(sys.modules.get("linecache"), "cache", None)
        if cache:
            cache.pop(old, None)
    if "linecache" in sys.modules:
        remember(name)


# --- errors -------------------------------------------------------------------

def strip(tb):
    """The traceback without our own frames and what lies between them and the
    cell, and not deeper than MAX_FRAMES."""
    entries = []
    while tb is not None:
        entries.append(tb)
        tb = tb.tb_next
    for i, entry in enumerate(entries):
        name = entry.tb_frame.f_code.co_filename
        if name.startswith("<cell ") or name in sources:
            entries = entries[i:]
            break
    entries = [e for e in entries if e.tb_frame.f_code.co_filename != FILE]
    if len(entries) > MAX_FRAMES:
        entries = entries[:MAX_FRAMES // 2] + entries[-MAX_FRAMES // 2:]
    after = None
    for entry in reversed(entries):
        entry.tb_next = after
        after = entry
    return after


def strip_all(error):
    seen = []
    todo = [error]
    while todo and len(seen) < 1000:
        e = todo.pop()
        if e is None or any(e is s for s in seen):
            continue
        seen.append(e)
        e.__traceback__ = strip(e.__traceback__)
        todo.extend((e.__cause__, e.__context__))
        todo.extend(getattr(e, "exceptions", None) or () if hasattr(saved_builtins.get("BaseExceptionGroup"), "split") else ())


def format_error(error):
    """(name, value, traceback) of an exception, without fail."""
    name = type(error).__name__
    try:
        value = str(error)
    except BaseException:
        value = "<exception str() failed>"
    text = None
    for attempt in range(2):
        try:
            strip_all(error)
            import traceback, linecache
            for file in sources:
                if file not in linecache.cache:
                    remember(file, linecache)
            if isinstance(error, SystemExit):
                text = "SystemExit: " + value + "\n"
                break
            parts = list(traceback.TracebackException(type(error), error, error.__traceback__).format())
            text = "".join(parts)
            break
        except BaseException:
            repair()
    if text is None:
        text = "%s: %s\n" % (name, value)
    return clip(name, 256), clip(value, MAX_VALUE), clip(text, MAX_TRACEBACK)


def repair():
    """Puts back builtins and modules that user code took away."""
    have = builtins.__dict__
    for name in saved_builtins:
        if name not in have or (have[name] is not saved_builtins[name] and name not in ("_", "input", "__import__", "open", "print")):
            have[name] = saved_builtins[name]
    for name in saved_modules:
        if name not in sys.modules:
            sys.modules[name] = saved_modules[name]


# --- running --------------------------------------------------------------------

def on_sigint(number, frame):
    if not S.running:
        return
    task, loop = S.task, S.loop
    if task is not None and not task.done():
        asyncio = sys.modules.get("asyncio")
        if asyncio is not None and asyncio.current_task(loop) is None:
            # The loop sleeps: end the cell where it awaits.
            S.task_cancelled = True
            task.cancel()
            loop.call_soon_threadsafe(int)
            return
    raise KeyboardInterrupt


def event_loop():
    import asyncio
    loop = S.loop
    if loop is None or loop.is_closed():
        loop = S.loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def run_async(coro):
    import asyncio
    loop = event_loop()
    tb = None

    async def body():
        nonlocal tb
        try:
            return await coro
        except asyncio.CancelledError as e:
            tb = e.__traceback__  # the task's own error does not have it in all versions
            raise
    task = S.task = loop.create_task(body())
    S.task_cancelled = False
    try:
        return loop.run_until_complete(task)
    except asyncio.CancelledError as e:
        if not S.task_cancelled:
            raise
    except BaseException:
        # Raised in the loop itself: the cell's own task is still to be ended.
        if not task.done():
            task.cancel()
            loop.run_until_complete(asyncio.wait([task], timeout=1))
            if task.done() and not task.cancelled():
                task.exception()
        raise
    finally:
        S.task = None
    interrupt = KeyboardInterrupt()
    interrupt.__traceback__ = tb
    raise interrupt


CO_COROUTINE = 0x80
TOP_LEVEL_AWAIT = 0x2000
ONLY_AST = 0x400
FUTURES = 0x1fe0000  # every flag of the __future__ module, in all versions
LOOP_WORDS = ("create_task", "ensure_future", "get_running_loop")


def evaluate(code):
    """Runs a code object in the user's namespace."""
    if S.trace is not None or S.profile is not None:
        sys.settrace(S.trace)
        sys.setprofile(S.profile)
    S.flags |= code.co_flags & FUTURES
    if code.co_flags & CO_COROUTINE:
        return run_async(eval(code, ns))
    if any(word in code.co_names for word in LOOP_WORDS):
        async def inside():
            return eval(code, ns)
        return run_async(inside())
    return eval(code, ns)


def parse(source, name):
    return compile(source, name, "exec", ONLY_AST | TOP_LEVEL_AWAIT | S.flags, True)


def quiet(source, node):
    """Whether a semicolon follows the last expression."""
    lines = split(source)
    try:
        rest = lines[node.end_lineno - 1].encode()[node.end_col_offset:].decode() + "".join(lines[node.end_lineno:])
    except (IndexError, AttributeError):
        return False
    return rest.lstrip(" \t\r\n)\\").startswith(";")


def decode(code, name):
    try:
        source = code.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise SyntaxError("(unicode error) %s" % e, (name, 1 + code.count(b"\n", 0, e.start), 1, None)) from None
    if "\0" in source:
        at = source.index("\0")
        raise SyntaxError("source code cannot contain null bytes", (name, 1 + source.count("\n", 0, at), at - source.rfind("\n", 0, at), None))
    return source.replace("\r\n", "\n").replace("\r", "\n") if "\r" in source else source


def cell(code, name):
    source = decode(code, name)
    keep_source(name, source)
    execute(source, name)


def expression(source, name):
    """The code of a source that is one expression on one line, None for others:
    half the work of the general way. A backslash may cause a warning, which
    would come twice."""
    if "\n" not in source and "\\" not in source:
        try:
            return compile(source, name, "eval", TOP_LEVEL_AWAIT | S.flags, True)
        except SyntaxError:
            pass


def execute(source, name, showing=True):
    """Runs the source of a cell and shows its value."""
    code = expression(source, name)
    if code is not None:
        finish_with(code, showing)
        return
    tree = None
    try:
        tree = parse(source, name)
        failure = None
    except SyntaxError as e:
        failure = e
    if failure is not None:
        # Not Python: perhaps a line for the shell or a magic.
        extras()
        source = transform(source)
        if source is None:
            failure.__traceback__ = None
            raise failure
        tree = parse(source, name)
    body = tree.body
    last = None
    if body and isinstance(body[-1], _ast.Expr) and not quiet(source, body[-1]):
        last = body.pop()
    flags = TOP_LEVEL_AWAIT | S.flags
    if body:
        code = compile(tree, name, "exec", flags, True)
        # A future statement of this cell holds for its last expression too.
        flags |= code.co_flags & FUTURES
        evaluate(code)
    if last is not None:
        code = compile(_ast.Expression(body=last.value), name, "eval", flags, True)
        tree = body = None
        finish_with(code, showing)


def finish_with(code, showing):
    """Evaluates the last expression of a cell and shows its value."""
    value = evaluate(code)
    if value is not None and not S.child:
        remember_value(value)
        if showing:
            flush_streams()
            show(value, True)


def remember_value(value):
    have = builtins.__dict__
    if have.get("_", S.last) is not S.last:
        return  # gettext, or the user's own
    for new, old in (("___", "__"), ("__", "_")):
        if old in have:
            have[new] = have[old]
    have["_"] = S.last = value


def ended_well(error):
    """sys.exit() and sys.exit(0) end a cell like its last line."""
    return error is None or isinstance(error, SystemExit) and (error.code is None or error.code is False or error.code == 0)


def guarded(step, *args):
    """The exception of step(*args), or None. A value, not a handler: what runs
    later has no context."""
    try:
        step(*args)
    except BaseException as e:
        return e


def prepare():
    """Sets right what an earlier cell may have broken."""
    if sys.modules.get("__main__") is not main or "sys" not in sys.modules or "builtins" not in sys.modules:
        sys.modules.setdefault("sys", sys)
        for name in saved_modules:
            sys.modules.setdefault(name, saved_modules[name])
        sys.modules["__main__"] = main
    take_streams()
    if not usable(sys.stdin, "read"):
        sys.stdin = open("/dev/null")  # exit() closes it
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
    """What Python does at the end of a program: waits for its threads, calls what
    is registered for the end, and drops its names, which closes its files."""
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
    """What Python ends with at sys.exit(code); what is no number it prints."""
    if isinstance(code, int):
        return str(int(code) & 255 if -2 ** 63 <= code < 2 ** 63 else 255)
    print(code, file=sys.stderr, flush=True)
    return "1"


def run(number, code, file=None):
    """Runs a cell or, if a file is named, be it "", a whole program."""
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
        if "matplotlib.pyplot" in sys.modules:
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
    """A fork made by user code came to the end of the cell."""
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


def settled_reply():
    """Everything that was written is sent, then the reply; afterwards output is
    held until the next run."""
    with lock:
        while S.active and (S.tx is not None or S.pending):
            flush()
        S.active = False
        pump(CONTROL, S.reply)
        S.reply = None
    take_descriptors()  # now that nobody waits


def wait_command():
    """Waits for the next command; tasks of the event loop go on meanwhile."""
    loop = S.loop
    if loop is None or loop.is_closed() or loop.is_running():
        return
    import asyncio
    if not asyncio.all_tasks(loop):
        return
    loop.add_reader(COMMANDS, loop.stop)
    try:
        loop.run_forever()
    finally:
        loop.remove_reader(COMMANDS)
    take_descriptors()


incoming = []


def read_command():
    """One whole message, None at the end of the pipe. What was read survives an
    exception raised here."""
    while True:
        have = sum(map(len, incoming))
        need = 4
        if have >= 4:
            if len(incoming[0]) < 4:
                incoming[:] = [b"".join(incoming)]
            need = 4 + int.from_bytes(incoming[0][:4], "big")
        if have >= 4 and have >= need:
            message = b"".join(incoming)
            incoming[:] = [message[need:]] if have > need else []
            return message[4:need]
        n = len(incoming)
        incoming.extend(map(read, (COMMANDS,), (min(need - have, 1 << 20) if have >= 4 else 65536,)))
        if len(incoming) > n and not incoming[-1]:
            return None


def reseed(entropy):
    """Draws new randomness: this process may be one of several that came out of
    one snapshot. What asks the system each time (os.urandom, secrets, uuid4)
    needs nothing. Generators that user code made stay as they are."""
    new = lambda n: entropy + posix.urandom(n)
    for name, step in (
        ("random", lambda m: m.seed(new(32))),
        ("numpy.random", lambda m: m.seed(list(memoryview(new(64)).cast("I")))),
        ("_ssl", lambda m: m.RAND_add(new(32), 32.0)),  # TLS, and all else in OpenSSL
    ):
        module = sys.modules.get(name)
        if module is not None:
            guarded(step, module)


def serve():
    """The loop of the kernel. It ends with the pipe of commands."""
    task = None
    while True:
        try:
            if S.reply is not None:
                settled_reply()
            if task is None:
                if not incoming:
                    wait_command()
                task = read_command()
                if task is None:
                    hard_exit(0)
            now, task = task, None
            kind = now[:1]
            if kind == b"R" and len(now) == 5:
                # An empty cell proves that the kernel lives and leaves no trace in it.
                S.reply = (frame(b"D", encode(to_json({"run": int.from_bytes(now[1:5], "big"), "ok": True, "error": None}))), [])
            elif kind == b"R":
                S.reply = (run(int.from_bytes(now[1:5], "big"), now[5:]), [])
            elif kind == b"P":
                file, _, code = now[5:].partition(b"\0")
                S.reply = (run(int.from_bytes(now[1:5], "big"), code, file.decode("utf-8", "surrogateescape")), [])
            elif kind == b"E":
                reseed(now[1:])
        except BaseException:
            if S.child or getpid() != PID:
                hard_exit(1)


# --- start ----------------------------------------------------------------------

def no_input(prompt="", /):
    if prompt:
        print(prompt, end="")
    raise EOFError("nobody can answer here: write the value into the code instead of asking with input()")


no_input.__name__ = no_input.__qualname__ = "input"


def get_ipython():
    """IPython's shell, as far as this kernel has one."""
    extras()
    return Shell()


def extras():
    """Compiles transform.py and magics.py at their first use."""
    global magics
    if magics is not None:
        exec(compile(magics, FILE, "exec"), globals())
        magics = None  # only now: an interrupt may have come in between
    builtins.__glovebox__ = replaced_line


def open_board():
    """(size, memory for events, one number: where they end, positions in the
    pipes behind 1 and 2)."""
    try:
        import mmap
        copy = posix.dup(9)
        posix.close(copy)
        memory = memoryview(mmap.mmap(9, 0))
    except (OSError, ImportError, ValueError):
        return 0, None, None, None
    for fd in (9, copy):  # mmap keeps one that it has no use for
        try:
            posix.close(fd)
        except OSError:
            pass
    size = memory[12:16].cast("I")[0]
    return size, memory[64:64 + size], memory[:4].cast("I"), memory[4:12].cast("I")


COMMANDS, CONTROL, EVENTS, RAWOUT, RAWERR = map(high, (3, 4, 5, 6, 7))
BOARD, board, board_end, positions = open_board()
PLAIN = tuple((fd, high(posix.dup(fd)), fstat(fd).st_ino) for fd in (1, 2))
PID = getpid()
lock = _thread.RLock()
poller = select.poll()
poller.register(RAWOUT, select.POLLIN)
poller.register(RAWERR, select.POLLIN)

_signal.signal(2, on_sigint)
# A process group in which stopped children end is told to hang up. A handler,
# unlike a signal that is ignored, does not pass on to programs that are run.
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
    """Imports modules and returns the names of those that cannot be. What they
    print is nobody's: it would be part of the first cell's output."""
    missing = [name for name in names if guarded(__import__, name) is not None]
    if "matplotlib" in sys.modules:
        # It looks for fonts only when pyplot is imported, for half a second or more.
        guarded(__import__, "matplotlib.font_manager")
    flush_streams()
    S.pending, S.size = [], 0
    if len(missing) < len(names):
        guarded(tidy)
    return missing


def tidy():
    """Keeps what the imports made out of the garbage collections of user code, and
    gives back the memory that they have used and freed."""
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
