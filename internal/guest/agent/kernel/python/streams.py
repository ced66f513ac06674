# sys.stdout and sys.stderr, and the descriptors behind them.


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
        # User code that closes its standard output may print later.
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
    """Restores descriptors 1 and 2 for the children of the next cell, if this
    one closed or replaced them."""
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
    """Runs in forks made by user code: they print to the plain descriptors and never
    touch the pipes of their parent."""
    global lock
    S.child = True
    lock = _thread.RLock()
    S.pending, S.size, S.tx, S.busy, S.reply = [], 0, None, False, None
    for fd in (COMMANDS, CONTROL, EVENTS, RAWOUT, RAWERR):
        try:
            posix.close(fd)
        except OSError:
            pass
