# The scripts of attacks begin with this. A script runs as user code in a box. It reports
# each attempt on a line of its own, which the judge outside reads: held() if the
# attempt was refused or contained, broke() if it succeeded and should not have.
import ctypes
import errno
import json
import os
import platform
import signal
import sys
import threading
import time

A = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
MB = 1 << 20
NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18

_report = os.dup(1)
os.set_inheritable(_report, False)


def _say(kind, text, limit=300):
    line = "@%s %s\n" % (kind, " ".join(str(text).split())[:limit] or "-")
    os.write(_report, line.encode("utf-8", "replace"))


def held(text):
    _say("held", text)


def broke(text):
    _say("broke", text)


def value(name, text):
    _say("value", "%s %s" % (name, text), 32768)


# The errors with which a kernel refuses a call.
REFUSALS = (OSError, ValueError, OverflowError, MemoryError)


def refused(what, f, *args):
    """Calls f, which the box must refuse."""
    try:
        result = f(*args)
    except REFUSALS as e:
        held("%s: %s" % (what, e))
        return True
    broke("%s succeeded: %r" % (what, result))
    return False


def tried(what, f, *args):
    """Calls f, which the box may allow as long as the host does not notice."""
    try:
        result = f(*args)
    except REFUSALS as e:
        held("%s: %s" % (what, e))
        return None
    held("%s: %r, inside the box" % (what, result))
    return result


libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
# Numbers of system calls on x86-64 and arm64.
_NR = {
    "unshare": (272, 97), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "setns": (308, 268),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "keyctl": (250, 219), "add_key": (248, 217), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "memfd_create": (319, 279), "mknodat": (259, 33), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "move_mount": (429, 429), "open_tree": (428, 428),
    "mount_setattr": (442, 442), "fanotify_init": (300, 262), "swapon": (167, 224), "reboot": (169, 142),
    "syslog": (103, 116), "settimeofday": (164, 170), "clock_settime": (227, 112), "acct": (163, 89),
    "chroot": (161, 51), "sethostname": (170, 161), "mremap": (25, 216), "shmget": (29, 194), "shmat": (30, 196),
    "msgget": (68, 186), "msgsnd": (69, 189), "semget": (64, 190), "timer_create": (222, 107),
    "timerfd_create": (283, 85), "vmsplice": (278, 75), "epoll_create1": (291, 20), "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27), "eventfd2": (290, 19), "futex": (202, 98), "tgkill": (234, 131),
    "quotactl": (179, 60), "setdomainname": (171, 162), "mlockall": (151, 230), "iopl": (172, None),
    "memfd_secret": (447, 447), "landlock_create_ruleset": (444, 444), "fallocate": (285, 47),
    "setresuid": (117, 147), "clone3": (435, 435), "request_key": (249, 218), "socket": (41, 198),
}


def syscall(name, *args):
    number = _NR[name][1 if platform.machine() == "aarch64" else 0]
    if number is None:
        raise OSError(errno.ENOSYS, name)
    wide = []
    for a in args:
        if isinstance(a, int):
            a = ctypes.c_long(a if a < 1 << 63 else a - (1 << 64))
        elif isinstance(a, str):
            a = ctypes.c_char_p(a.encode())
        elif isinstance(a, bytes):
            a = ctypes.c_char_p(a)
        wide.append(a)
    ctypes.set_errno(0)
    r = libc.syscall(ctypes.c_long(number), *wide)
    if r == -1 and ctypes.get_errno():
        raise OSError(ctypes.get_errno(), "%s: %s" % (name, os.strerror(ctypes.get_errno())))
    return r


def mount(source, target, kind, flags=0, data=None):
    return syscall("mount", source or "none", target, kind or "none", flags, data if data else 0)


def put(path, text):
    """Writes to an existing file."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        return os.write(fd, text.encode() if isinstance(text, str) else text)
    finally:
        os.close(fd)


def openable(path, flags=os.O_WRONLY):
    """Opens a file and changes nothing."""
    os.close(os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY))
    return "opened"


def get(path, limit=1 << 16):
    with open(path, "rb") as f:
        return f.read(limit)


def enter(extra=NEWNS):
    """Enters a user namespace as its root, with every capability in it."""
    uid, gid = os.getuid(), os.getgid()
    syscall("unshare", NEWUSER | extra)
    try:
        put("/proc/self/setgroups", "deny")
    except OSError:
        pass
    put("/proc/self/uid_map", "0 %d 1" % uid)
    put("/proc/self/gid_map", "0 %d 1" % gid)


def entered(extra=NEWNS):
    """Enters a user namespace; a box that refuses it has held the attack."""
    try:
        enter(extra)
    except OSError as e:
        held("user namespace: %s" % e)
        return False
    return True


def child(f, *args):
    """Runs f in a child process and returns its exit code, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            f(*args)
            code = 0
        except (OSError, MemoryError) as e:
            held("%s: %s" % (getattr(f, "__name__", "child"), e))
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def race(seconds, swap, use):
    """Calls swap and use repeatedly and concurrently, and returns how often use succeeded.

    OSErrors end one call only; use returns True to end the race.
    """
    stop = time.time() + seconds

    def repeat():
        while time.time() < stop:
            try:
                swap()
            except OSError:
                pass
    thread = threading.Thread(target=repeat)
    thread.start()
    uses = 0
    ended = False
    while not ended and time.time() < stop:
        try:
            ended = use()
            uses += 1
        except OSError:
            pass
    thread.join()
    return uses


def look(text):
    """Prints what was read, for the judge to search for what it planted."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    sys.stdout.write(text.replace("@", "(at)")[:1 << 16] + "\n")
    sys.stdout.flush()


def main():
    f = globals().get(sys.argv[1])
    if f is None:
        sys.exit("no such attack: " + sys.argv[1])
    f()
    _say("done", sys.argv[1])
