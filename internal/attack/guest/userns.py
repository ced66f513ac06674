# Attacks behind user namespaces: unshare gives user code every capability in a
# namespace of its own. The box's kernel is still not the host's, and every limit
# still holds.
import glob
import socket
import stat
import struct
import subprocess
import tempfile
import threading


def all_capabilities():
    if not entered(NEWNS | NEWNET | NEWIPC | NEWUTS | NEWPID):
        return
    for line in get("/proc/self/status").decode().splitlines():
        if line.startswith(("Cap", "NoNewPrivs")):
            value(line.split(":")[0], line.split(":")[1].strip())
    refused("read the host's secret", get, A["secret_file"])
    for path in ("/etc/shadow", "/root/.ssh/id_rsa", "/proc/kcore", "/dev/mem", "/dev/kmsg", "/proc/1/environ"):
        refused("read " + path, get, path)
    for directory in A["mark_dirs"]:
        tried("write in " + directory, lambda: open(os.path.join(directory, A["mark"]), "w").write(A["nonce"]))


def mount_over_proc():
    if not entered():
        return
    for kind, where in (("tmpfs", "/proc"), ("tmpfs", "/sys"), ("tmpfs", "/dev"), ("tmpfs", "/usr")):
        tried("mount %s over %s" % (kind, where), mount, "none", where, kind)


def remount_writable():
    """CVE-2026-46695: a read-only share is remounted writable."""
    if not entered():
        return
    where = tempfile.mkdtemp()
    for point in ("/", "/usr", "/etc"):
        tried("remount %s" % point, mount, None, point, None, MS_REMOUNT | MS_BIND)
        tried("bind %s" % point, mount, point, where, None, MS_BIND | MS_REC)
        tried("remount the bind of %s" % point, mount, None, where, None, MS_REMOUNT | MS_BIND)
        tried("write " + point, lambda: open(os.path.join(point, A["mark"]), "w").write(A["nonce"]))
        tried("write through the bind of " + point, lambda: open(os.path.join(where, A["mark"]), "w").write(A["nonce"]))
        attr = struct.pack("QQQQ", 0, 1, 0, 0)  # clear MOUNT_ATTR_RDONLY
        tried("mount_setattr %s" % point, syscall, "mount_setattr", -100, point.encode(), 0x8000, attr, 32)


def overlay():
    if not entered():
        return
    base = tempfile.mkdtemp()
    for name in ("upper", "work", "merged"):
        os.mkdir(os.path.join(base, name))
    options = "lowerdir=/usr,upperdir=%s/upper,workdir=%s/work" % (base, base)
    tried("mount overlay", mount, "overlay", base + "/merged", "overlay", 0, options)
    tried("write through the overlay", lambda: open(base + "/merged/" + A["mark"], "w").write(A["nonce"]))
    tried("set a trusted attribute", os.setxattr, base + "/upper", "trusted.overlay.opaque", b"y")
    tried("set a capability", os.setxattr, "/tmp", "security.capability", bytes(20))


def fuse():
    if not entered():
        return
    where = tempfile.mkdtemp()
    def attach():
        fd = os.open("/dev/fuse", os.O_RDWR)
        mount("fuse", where, "fuse", 0, "fd=%d,rootmode=40000,user_id=0,group_id=0" % fd)
        return fd
    if tried("mount fuse", attach) is not None:
        # Nothing serves it: a process that looks at it waits and must be killable.
        pid = os.fork()
        if pid == 0:
            os.listdir(where)
            os._exit(0)
        time.sleep(0.5)
        os.kill(pid, signal.SIGKILL)
        end = time.time() + 5
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.time() > end:
                broke("a process that waits for a FUSE server cannot be killed")
                return
            time.sleep(0.05)
    held("fuse")


def packet_sockets():
    if not entered(NEWNS | NEWNET):
        return
    def send():
        s = socket.socket(17, socket.SOCK_RAW, socket.htons(3))  # AF_PACKET
        try:
            s.bind(("lo", 0))
            s.send(bytes(12) + b"\x08\x00" + A["nonce"].encode())
            s.settimeout(0.5)
            look(s.recv(65536))
        finally:
            s.close()
    tried("packet socket", send)
    names = [n for _, n in socket.if_nameindex()]
    if [n for n in names if n not in ("lo", "tunl0", "sit0", "ip6tnl0")]:
        broke("interfaces in a new network namespace: %s" % names)
    for host in ("127.0.0.1", "1.1.1.1", "169.254.169.254"):
        def connect():
            s = socket.create_connection((host, A["port"]), 0.5)
            s.sendall(A["nonce"].encode())
            look(s.recv(100))
        refused("connect to " + host, connect)


def network_devices():
    if not entered(NEWNS | NEWNET):
        return
    s = socket.socket(16, socket.SOCK_RAW, 0)  # NETLINK_ROUTE
    def link(kind):
        info = struct.pack("HH", 4 + len(kind), 1) + kind.encode() + bytes(-len(kind) % 4)
        attrs = struct.pack("HH", 4 + len(info), 18) + info
        message = struct.pack("BxHiII", 0, 0, 0, 0, 0) + attrs
        s.sendto(struct.pack("IHHII", 16 + len(message), 16, 0x605, 1, 0) + message, (0, 0))
        return struct.unpack_from("i", s.recv(4096), 16)[0]
    for kind in ("veth", "bridge", "macvlan", "vxlan", "wireguard", "dummy", "ipvlan"):
        tried("make %s" % kind, link, kind)
    for path in ("/dev/net/tun", "/dev/tun"):
        def tun():
            import fcntl
            fd = os.open(path, os.O_RDWR)
            return fcntl.ioctl(fd, 0x400454CA, struct.pack("16sH14x", b"attack0", 0x1002))
        tried("tun " + path, tun)


def nftables():
    if not entered(NEWNS | NEWNET):
        return
    def netfilter(kind):
        s = socket.socket(16, socket.SOCK_RAW, 12)
        try:
            s.settimeout(0.5)
            body = struct.pack("BBH", 1, 0, 0) + struct.pack("HH", 12, 1) + b"attack\0\0"
            begin = struct.pack("IHHIIBBH", 20, 16, 1, 1, 0, 0, 0, socket.htons(10))
            table = struct.pack("IHHII", 16 + len(body), (10 << 8) | kind, 0x405, 2, 0) + body
            s.sendto(begin + table, (0, 0))
            return len(s.recv(4096))
        finally:
            s.close()
    for kind in range(0, 25):
        tried("nftables message %d" % kind, netfilter, kind)
    def iptables():
        s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 255)
        return s.setsockopt(0, 64, bytes(1 << 12))
    tried("replace iptables", iptables)


def cgroups():
    if not entered(NEWNS | NEWCGROUP):
        return
    where = tempfile.mkdtemp()
    for kind, options in (("cgroup2", None), ("cgroup", "memory"), ("cgroup", "pids"), ("cgroup", "rdma"), ("cgroup", "name=attack,none")):
        if tried("mount %s %s" % (kind, options), mount, kind, where, kind, 0, options) is None:
            continue
        tried("release_agent", lambda: put(where + "/release_agent", "/tmp/attack"))
        group = os.path.join(where, "attack")
        tried("make a group", os.mkdir, group)
        for name in ("notify_on_release", "memory.limit_in_bytes", "memory.max", "pids.max", "cgroup.procs", "devices.allow"):
            tried("write " + name, lambda: put(os.path.join(group, name), "1"))
        look(" ".join(os.listdir(where)))
        if [n for n in os.listdir(where) if n.startswith(("docker", "system.slice", "kubepods", "glovebox"))]:
            broke("groups of the host are visible: %s" % os.listdir(where)[:8])
        syscall("umount2", where.encode(), 2)


def ptrace_agent():
    if not entered():
        return
    for pid in (1, os.getppid()):
        refused("ptrace %d" % pid, syscall, "ptrace", 16, pid, 0, 0)
        refused("open mem of %d" % pid, openable, "/proc/%d/mem" % pid, os.O_RDWR)
        refused("kill %d" % pid, os.kill, pid, signal.SIGKILL)
        refused("take a descriptor of %d" % pid, lambda: syscall("pidfd_getfd", syscall("pidfd_open", pid, 0), 0, 0))
    for kind in ("mnt", "pid", "net", "user"):
        def join():
            fd = os.open("/proc/1/ns/" + kind, os.O_RDONLY)
            try:
                return syscall("setns", fd, 0)
            finally:
                os.close(fd)
        refused("setns %s of the agent" % kind, join)


def nested():
    depth = 0
    try:
        for depth in range(64):
            enter(NEWNS | NEWNET | NEWUTS | NEWIPC)
    except OSError as e:
        held("level %d: %s" % (depth, e))
    else:
        broke("64 nested user namespaces")
    refused("read the host's secret", get, A["secret_file"])


def many_namespaces():
    r, w = os.pipe()
    made = 0
    for _ in range(A["pids"] * 2):
        try:
            pid = os.fork()
        except OSError as e:
            held("fork: %s" % e)
            break
        if pid == 0:
            os.close(w)
            try:
                enter(NEWNS | NEWNET | NEWUTS | NEWIPC | NEWPID)
            except OSError:
                pass
            os.read(r, 1)
            os._exit(0)
        made += 1
    time.sleep(1)
    held("%d namespaces of each kind" % made)


def new_proc():
    if not entered(NEWNS | NEWPID):
        return
    def inner():
        where = tempfile.mkdtemp()
        tried("mount proc", mount, "proc", where, "proc")
        for path in glob.glob(where + "/[0-9]*/cmdline") + glob.glob(where + "/[0-9]*/environ") + [where + "/version", where + "/cmdline", where + "/self/mountinfo"]:
            try:
                look(get(path))
            except OSError as e:
                held("%s: %s" % (path, e))
        refused("core_pattern", openable, where + "/sys/kernel/core_pattern")
        refused("sysrq", openable, where + "/sysrq-trigger")
    child(inner)
    held("a new proc")


def new_sysfs():
    if not entered(NEWNS | NEWNET):
        return
    where = tempfile.mkdtemp()
    tried("mount sysfs", mount, "sysfs", where, "sysfs")
    for path in ("/class/dmi/id/product_serial", "/class/dmi/id/product_uuid", "/firmware/dmi/tables/DMI", "/firmware/efi/efivars", "/kernel/uevent_helper", "/kernel/debug", "/block/sda", "/bus/pci/devices/0000:00:00.0"):
        refused("open " + path, openable, where + path, os.O_RDONLY)


def device_nodes():
    if not entered():
        return
    where = tempfile.mkdtemp()
    tried("mount devtmpfs", mount, "devtmpfs", where, "devtmpfs")
    tried("mount tmpfs", mount, "tmpfs", where, "tmpfs")
    for kind, major, minor, name in ((stat.S_IFCHR, 1, 1, "mem"), (stat.S_IFCHR, 1, 11, "kmsg"), (stat.S_IFBLK, 8, 0, "sda"), (stat.S_IFBLK, 254, 0, "vda"), (stat.S_IFCHR, 10, 232, "kvm")):
        def read():
            path = os.path.join(where, name)
            os.mknod(path, 0o600 | kind, os.makedev(major, minor))
            return get(path, 512)
        refused("read " + name, read)


def file_systems():
    if not entered():
        return
    where = tempfile.mkdtemp()
    image = os.path.join(where, "image")
    with open(image, "wb") as f:
        f.truncate(8 * MB)
        f.seek(1080)
        f.write(b"\x53\xef")
    point = os.path.join(where, "m")
    os.mkdir(point)
    for kind in ("ext4", "xfs", "btrfs", "vfat", "iso9660", "squashfs", "erofs", "nfs", "cifs", "9p", "virtiofs", "debugfs", "tracefs", "securityfs", "bpf", "configfs", "efivarfs", "binfmt_misc", "pstore", "hugetlbfs"):
        refused("mount " + kind, mount, image, point, kind)


def host_name():
    if not entered(NEWNS | NEWUTS):
        return
    tried("sethostname", syscall, "sethostname", A["nonce"].encode(), len(A["nonce"]))


def clock():
    if not entered():
        return
    spec = struct.pack("qq", int(time.time()) - 86400 * 365, 0)
    refused("clock_settime", syscall, "clock_settime", 0, spec)
    refused("settimeofday", syscall, "settimeofday", spec, 0)


def kernel_code():
    if not entered():
        return
    attr = ctypes.create_string_buffer(128)
    refused("init_module", syscall, "init_module", b"\x7fELF" + bytes(60), 64, b"")
    refused("kexec_load", syscall, "kexec_load", 0, 0, 0, 0)
    refused("bpf", syscall, "bpf", 5, ctypes.byref(attr), 128)
    refused("perf_event_open", syscall, "perf_event_open", ctypes.byref(attr), 0, -1, -1, 0)
    refused("open_by_handle_at", syscall, "open_by_handle_at", -100, ctypes.byref(attr), 0)
    refused("swapon", syscall, "swapon", b"/tmp/swap", 0)
    refused("quotactl", syscall, "quotactl", 0x800002, b"/dev/sda", 0, 0)


def raise_limits():
    """Every limit of processes after the namespace gave every capability."""
    import resource
    if not entered():
        return
    for name in ("RLIMIT_NPROC", "RLIMIT_AS", "RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_MEMLOCK"):
        tried("raise " + name, resource.setrlimit, getattr(resource, name), (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    fork_until_refused()


def fork_until_refused():
    pids = []
    try:
        for _ in range(A["pids"] * 2 + 64):
            pids.append(os.posix_spawn("/bin/sleep", ["sleep", "100"], {}))
    except OSError as e:
        held("process %d: %s" % (len(pids), e))
    else:
        broke("%d processes in a box for %d" % (len(pids), A["pids"]))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)


def fill_tmpfs():
    if not entered():
        return
    where = tempfile.mkdtemp()
    tried("mount a large tmpfs", mount, "tmpfs", where, "tmpfs", 0, "size=100g,nr_inodes=0")
    chunk = bytes(range(256)) * 4096
    written = 0
    with open(os.path.join(where, "f"), "wb", buffering=0) as f:
        try:
            while written < A["ceiling_mb"]:
                f.write(chunk)
                written += 1
        except OSError as e:
            held("after %d MiB: %s" % (written, e))
            return
    held("%d MiB were written; the judge measures the host" % written)


def fill_disk():
    if not entered():
        return
    chunk = os.urandom(1 << 20)
    written = 0
    with open("fill", "wb", buffering=0) as f:
        try:
            while written < A["disk_mb"] * 2 + 64:
                f.write(chunk)
                written += 1
        except OSError as e:
            held("after %d MiB: %s" % (written, e))
        else:
            broke("%d MiB were written in a box of %d MiB" % (written, A["disk_mb"]))
    os.remove("fill")
