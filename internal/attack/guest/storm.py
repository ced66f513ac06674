# Attacks on the time of the sentry and the host: each computes or provokes work for a
# few seconds while the judge outside pauses, stores and destroys the box.
import fcntl
import mmap
import resource
import select
import socket
import struct
import threading

END = time.time() + A.get("seconds", 4)


def storm(n, f, *args):
    """Runs f over and over in n processes until the end."""
    pids = []
    for i in range(n):
        try:
            pid = os.fork()
        except OSError as e:
            held("fork: %s" % e)
            break
        if pid == 0:
            try:
                while time.time() < END:
                    f(*args)
            finally:
                os._exit(0)
        pids.append(pid)
    held("%d processes" % len(pids))
    for pid in pids:
        try:
            os.waitpid(pid, 0)
        except OSError:
            pass


def spin():
    def count():
        x = 0
        for i in range(100000):
            x += i
    try:
        os.nice(-20)
    except OSError as e:
        held("nice: %s" % e)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    except OSError as e:
        held("real-time scheduling: %s" % e)
    storm(16, count)


def yields():
    storm(16, lambda: [os.sched_yield() for _ in range(1000)])


def signals():
    other = os.fork()
    if other == 0:
        signal.signal(signal.SIGUSR1, lambda *_: None)
        while time.time() < END:
            pass
        os._exit(0)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    storm(8, lambda: [os.kill(other, signal.SIGUSR1) for _ in range(1000)])
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)


def futexes():
    word = ctypes.c_int(0)
    def wake():
        for _ in range(1000):
            libc.syscall(_NR["futex"][platform.machine() == "aarch64"], ctypes.byref(word), 1, 1000, None, None, 0)
    def wait():
        spec = struct.pack("qq", 0, 1000)
        while time.time() < END:
            libc.syscall(_NR["futex"][platform.machine() == "aarch64"], ctypes.byref(word), 0, 0, spec, None, 0)
    threads = [threading.Thread(target=wait) for _ in range(8)] + [threading.Thread(target=lambda: [wake() for _ in iter(lambda: time.time() < END, False)]) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    held("8 waiting and 4 waking threads")


def ptrace():
    def trace():
        pid = os.fork()
        if pid == 0:
            syscall("ptrace", 0, 0, 0, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            while True:
                os.getppid()
        os.waitpid(pid, 0)
        for _ in range(500):
            libc.syscall(_NR["ptrace"][platform.machine() == "aarch64"], 9, pid, 0, 0)  # single step
            os.waitpid(pid, 0)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    storm(4, trace)


def mremaps():
    def move():
        m = mmap.mmap(-1, 1 << 20)
        for i in range(200):
            m.resize(((i % 16) + 1) << 20)
            m[0] = 1
        m.close()
    storm(8, move)


def unmaps():
    def cycle():
        for _ in range(200):
            m = mmap.mmap(-1, 256 << 10)
            m[4096] = 1
            m.close()
    storm(8, cycle)


def forks():
    def once():
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
    storm(8, once)


def fork_bomb():
    """Every process forks two, until no more can start."""
    def bomb():
        while time.time() < END:
            try:
                if os.fork() == 0:
                    continue
                if os.fork() == 0:
                    continue
            except OSError:
                time.sleep(0.001)
    pid = os.fork()
    if pid == 0:
        bomb()
        os._exit(0)
    held("started")
    time.sleep(max(0, END - time.time()))


def execs():
    def once():
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                os.execv("/bin/true", ["true"])
            os.waitpid(pid, 0)
    storm(8, once)


def thread_storm():
    def once():
        threads = [threading.Thread(target=lambda: None) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    storm(3, once)


def faults():
    """Invalid memory accesses with a handler, over and over."""
    def fault():
        import faulthandler
        pid = os.fork()
        if pid == 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            ctypes.memset(8, 1, 1)
        os.waitpid(pid, 0)
    storm(8, fault)


def alarms():
    signal.signal(signal.SIGALRM, lambda *_: None)
    def tick():
        signal.setitimer(signal.ITIMER_REAL, 0.00001, 0.00001)
        for _ in range(1000):
            os.getppid()
        signal.setitimer(signal.ITIMER_REAL, 0)
    storm(8, tick)


def ping_pong():
    def once():
        a, b = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            while b.recv(1):
                b.send(b"x")
            os._exit(0)
        b.close()
        for _ in range(500):
            a.send(b"x")
            a.recv(1)
        a.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    storm(6, once)


def proc_reads():
    def read():
        for name in os.listdir("/proc"):
            for file in ("status", "maps", "smaps", "stat", "fd"):
                path = "/proc/%s/%s" % (name, file)
                try:
                    os.listdir(path) if file == "fd" else get(path, 1 << 20)
                except OSError:
                    pass
    storm(8, read)


def file_churn():
    def churn():
        base = "churn-%d" % os.getpid()
        for i in range(50):
            with open(base, "wb") as f:
                f.write(bytes(4096))
                os.fsync(f.fileno())
            os.rename(base, base + "x")
            os.remove(base + "x")
    storm(8, churn)


def stopped():
    """Processes that stop themselves, ignore signals or wait for a child of vfork."""
    for i in range(4):
        if os.fork() == 0:
            for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
                signal.signal(s, signal.SIG_IGN)
            if i % 2:
                os.kill(os.getpid(), signal.SIGSTOP)
            while True:
                time.sleep(100)
    held("4 processes that do not end")
    time.sleep(0.5)


def daemons():
    """Processes that leave their session and keep the output open."""
    for i in range(10):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while True:
                    time.sleep(100)
            os._exit(0)
    held("10 daemons hold the output open")


def zombies():
    for i in range(A["pids"] - 10):
        try:
            if os.fork() == 0:
                os._exit(0)
        except OSError as e:
            held("fork: %s" % e)
            break
    held("zombies")
    time.sleep(1)


def output_flood():
    block = b"y" * 65536
    held("flood without a newline")
    while time.time() < END:
        os.write(1, block)


def output_drip():
    held("flood of single bytes")
    while time.time() < END:
        os.write(2, b"y")


def busy_directory():
    base = "busy"
    os.mkdir(base)
    for i in range(5000):
        os.close(os.open("%s/%d" % (base, i), os.O_CREAT))
    storm(4, lambda: len(os.listdir(base)))


def deep_tree():
    depth = 0
    try:
        for depth in range(4000):
            os.mkdir("d")
            os.chdir("d")
    except OSError as e:
        held("level %d: %s" % (depth, e))
    held("%d levels" % depth)


def poll_storm():
    fds = [os.eventfd(1) for _ in range(500)]
    def once():
        p = select.poll()
        for fd in fds:
            p.register(fd, select.POLLIN | select.POLLOUT)
        for _ in range(50):
            p.poll(0)
    storm(6, once)
