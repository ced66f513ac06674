# Attacks that make the box's kernel, and through it the host, keep more memory than
# the box may have. The judge measures the memory that the host has available. Each
# attack ends by itself after a few seconds or when it has done enough.
import fcntl
import mmap
import resource
import select
import socket
import struct
import subprocess
import tempfile
import threading

SECONDS = A.get("seconds", 4)
CEILING = A.get("ceiling_mb", 1024)
BLOCK = os.urandom(4096) * 256


def spend(what, step, count=1 << 62, seconds=SECONDS):
    """Calls step until it is refused, was called often enough, or the time is over."""
    def stop(*_):
        raise TimeoutError("a call did not return")
    end = time.time() + seconds
    n = 0
    why = "enough"
    signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds + 1)
        while n < count:
            step(n)
            n += 1
            if n % 64 == 0 and time.time() > end:
                why = "time"
                break
    except (OSError, MemoryError, ValueError, OverflowError, RuntimeError, BufferError) as e:
        why = "%s: %s" % (type(e).__name__, e)
    signal.setitimer(signal.ITIMER_REAL, 0)
    held("%s: %d, then %s" % (what, n, why))
    time.sleep(0.2)  # for the judge to measure
    return n


def processes(n, f, seconds=SECONDS + 3):
    """Runs f in n processes and keeps them until all are done."""
    r, w = os.pipe()
    ready, done = os.pipe()
    pids = []
    for _ in range(n):
        try:
            pid = os.fork()
        except OSError as e:
            held("fork: %s" % e)
            break
        if pid == 0:
            os.close(w)
            try:
                f()
            except (OSError, MemoryError) as e:
                held("%s" % e)
            os.write(done, b"x")
            os.read(r, 1)
            os._exit(0)
        pids.append(pid)
    end = time.time() + seconds
    got = 0
    while got < len(pids) and time.time() < end:
        if select.select([ready], [], [], 0.2)[0]:
            got += len(os.read(ready, 100))
    time.sleep(0.3)  # for the judge to measure
    held("%d of %d processes came to the end" % (got, len(pids)))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)


def anonymous():
    keep = []
    def step(n):
        m = mmap.mmap(-1, MB)
        m.write(BLOCK)
        keep.append(m)
    spend("MiB", step, CEILING)


def anonymous_in_processes():
    def take():
        keep = []
        def step(n):
            m = mmap.mmap(-1, MB)
            m.write(BLOCK)
            keep.append(m)
        spend("MiB", step, CEILING // 8)
    processes(8, take)


def fork_copies():
    size = min(100, A["memory_mb"] // 2) * MB
    m = mmap.mmap(-1, size)
    m.write(bytes(size))
    def touch():
        spend("pages", lambda n: m.__setitem__(n * 4096, 2), size // 4096)
    processes(8, touch)


def shared_anonymous():
    keep = []
    def step(n):
        m = mmap.mmap(-1, MB, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        m.write(os.urandom(4096) * 256)
        keep.append(m)
    spend("MiB", step, CEILING)


_mmap = libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def page_tables():
    """One page mapped at many addresses: each costs the host a page of page tables."""
    fd = os.memfd_create("page")
    os.ftruncate(fd, 4096)
    os.write(fd, b"x" * 4096)
    def take():
        def step(n):
            at = 0x100000000000 + n * (2 << 20)
            got = _mmap(at, 4096, 3, 0x11, fd, 0)  # shared, at this address
            if got in (None, ctypes.c_void_p(-1).value):
                raise OSError(ctypes.get_errno(), "mmap")
            ctypes.memset(got, 1, 1)
        spend("mappings", step, CEILING * 1024 // 6 // 6, 12)
    processes(6, take, 14)


def mappings():
    """Every second page has other permissions, so that each is a mapping of its own."""
    def take():
        pages = 60000
        at = _mmap(None, pages * 4096, 0, 0x22, -1, 0)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        def step(n):
            if libc.mprotect(at + n * 8192, 4096, 1):
                raise OSError(ctypes.get_errno(), "mprotect")
        spend("mappings", step, pages // 2)
    processes(8, take)


def descriptors():
    def take():
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        spend("descriptors", lambda n: os.open("/dev/null", os.O_RDONLY), 200000)
    processes(8, take)


def eventfds():
    def take():
        spend("eventfds", lambda n: syscall("eventfd2", 0, 0), 100000)
    processes(4, take)


def epoll():
    def take():
        sets = []
        def step(n):
            e = select.epoll()
            for other in sets[-40:]:
                e.register(other.fileno(), select.EPOLLIN)
            sets.append(e)
        spend("epoll sets", step, 5000)
    processes(4, take)


def inotify():
    def take():
        fd = syscall("inotify_init1", 0x800)
        base = tempfile.mkdtemp()
        def step(n):
            path = "%s/%d" % (base, n)
            os.mkdir(path)
            syscall("inotify_add_watch", fd, path.encode(), 0xFFF)
            open(path + "/x", "w").close()
        spend("watches", step, 50000)
    processes(3, take)


def timers():
    def take():
        event = struct.pack("QIi", 0, 0, 1) + bytes(56)
        spend("timers", lambda n: syscall("timer_create", 1, event, ctypes.byref(ctypes.c_int())), 200000)
        spend("timerfds", lambda n: syscall("timerfd_create", 1, 0), 50000, 2)
    processes(4, take)


def unix_sockets():
    def take():
        keep = []
        def step(n):
            a, b = socket.socketpair()
            a.setblocking(False)
            a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MB)
            try:
                while True:
                    a.send(bytes(65536))
            except BlockingIOError:
                pass
            keep.append((a, b))
        spend("full socket pairs", step, 2000)
    processes(4, take)


def tcp_sockets():
    keep = []
    listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
    def step(n):
        c = socket.create_connection(listener.getsockname(), 1)
        s, _ = listener.accept()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * MB)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * MB)
        c.setblocking(False)
        try:
            while True:
                c.send(bytes(262144))
        except BlockingIOError:
            pass
        keep.append((c, s))
    spend("full connections", step, 400)


def rights_in_flight():
    """Descriptors in messages that nobody receives, in a chain."""
    def take():
        last = os.open("/dev/null", os.O_RDONLY)
        def step(n):
            nonlocal last
            a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            for _ in range(8):
                socket.send_fds(a, [b"x" * 1000], [last] * 50)
            socket.send_fds(a, [b"x"], [b.fileno()])
            os.close(last)
            last = b.detach()
            a.close()
        spend("chained sockets", step, 20000)
    processes(4, take)


def extended_attributes():
    base = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    def step(n):
        path = "%s/%d" % (base, n)
        open(path, "w").close()
        for i in range(16):
            os.setxattr(path, "user.a%d" % i, bytes(60000))
    spend("files with 1 MB of attributes", step, CEILING)


def pipes():
    def take():
        def step(n):
            r, w = os.pipe()
            try:
                fcntl.fcntl(w, 1031, MB)  # F_SETPIPE_SZ
            except OSError:
                pass
            os.set_blocking(w, False)
            try:
                while True:
                    os.write(w, bytes(65536))
            except BlockingIOError:
                pass
        spend("full pipes", step, 2000)
    processes(4, take)


def system_v_shared_memory():
    def step(n):
        segment = syscall("shmget", 0, 16 * MB, 0o1600)
        libc.shmat.restype = ctypes.c_void_p
        at = libc.shmat(ctypes.c_int(segment), None, 0)
        if at in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "shmat")
        ctypes.memset(at, n + 1, 16 * MB)
    spend("segments of 16 MiB", step, CEILING // 16)


def message_queues():
    message = struct.pack("l", 1) + bytes(8192)
    def step(n):
        queue = syscall("msgget", 0, 0o1600)
        try:
            while True:
                syscall("msgsnd", queue, message, 8000, 0o4000)
        except OSError:
            pass
    spend("full queues", step, 32000)


def dev_shm():
    chunk = bytes(range(256)) * 4096
    def step(n):
        with open("/dev/shm/%d" % n, "wb") as f:
            f.write(chunk)
    spend("MiB in /dev/shm", step, CEILING)


def memfds():
    chunk = bytes(range(256)) * 4096
    def step(n):
        os.write(os.memfd_create("m"), chunk)
    spend("MiB in memfds", step, CEILING)


def files_in_memory():
    """Many small files: what the kernel keeps for each is more than the file."""
    base = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    def step(n):
        os.close(os.open("%s/%s%d" % (base, "n" * 200, n), os.O_CREAT | os.O_WRONLY))
    spend("empty files", step, 400000)


def links_in_memory():
    base = tempfile.mkdtemp()
    def step(n):
        os.symlink("/" + "t" * 4000, "%s/%d" % (base, n))
    spend("long links", step, 300000)


def negative_entries():
    """Names that do not exist are remembered."""
    def step(n):
        os.path.exists("/usr/lib/%s%d" % ("m" * 200, n))
        os.path.exists("/tmp/%s%d" % ("m" * 200, n))
    spend("missing names", step, 400000)


def file_locks():
    f = open("locks", "wb+")
    def step(n):
        fcntl.lockf(f, fcntl.LOCK_EX if n % 4 else fcntl.LOCK_SH, 1, n * 2)
    spend("locks", step, 500000)


def queued_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(34, 64))
    me = os.getpid()
    libc.sigqueue.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    def step(n):
        if libc.sigqueue(me, 34 + n % 30, n):
            raise OSError(ctypes.get_errno(), "sigqueue")
    spend("queued signals", step, 1000000)


def long_arguments():
    def take():
        argument = "a" * 120000
        os.execve("/bin/sh", ["sh", "-c", "read x"] + [argument] * 12, {"E%d" % i: argument for i in range(4)})
    r, w = os.pipe()
    pids = []
    for _ in range(A["pids"]):
        try:
            pid = os.fork()
        except OSError as e:
            held("fork: %s" % e)
            break
        if pid == 0:
            os.dup2(r, 0)
            try:
                take()
            except OSError:
                os._exit(1)
        pids.append(pid)
    time.sleep(1)
    held("%d processes with 2 MB of arguments" % len(pids))
    os.close(w)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def terminals():
    def step(n):
        master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
        os.set_blocking(master, False)
        try:
            while True:
                os.write(master, b"x" * 4096)
        except OSError:
            pass
    spend("terminals", step, 5000)


def threads():
    threading.stack_size(64 << 10)
    wait = threading.Event()
    started = []
    def step(n):
        t = threading.Thread(target=wait.wait, daemon=True)
        t.start()
        started.append(t)
    n = spend("threads", step, A["pids"] * 4 + 64)
    if n > A["pids"] * 2 + 32:
        broke("%d threads in a box for %d" % (n, A["pids"]))
    wait.set()
    for t in started:
        t.join()


def remapping():
    """mremap in a loop, with a growing mapping."""
    size = MB
    m = mmap.mmap(-1, size)
    def step(n):
        nonlocal size
        size += MB
        m.resize(size)
        m[size - MB:size] = bytes(MB)
    spend("MiB by mremap", step, CEILING)


def sparse_files():
    """Holes that are mapped and read take no memory, or are counted."""
    f = open("sparse", "wb+")
    f.truncate(64 << 30)
    m = mmap.mmap(f.fileno(), 1 << 30, mmap.MAP_SHARED, mmap.PROT_READ)
    def step(n):
        return m[n * 4096]
    spend("pages of holes", step, (1 << 30) // 4096)
