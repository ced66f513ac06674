# Attacks that look for data, processes and listeners of the host.
import glob
import re
import socket
import subprocess


def secret_file():
    paths = [A["secret_file"], "/proc/1/root" + A["secret_file"], "/proc/self/root/../.." + A["secret_file"],
             "/proc/self/cwd/../../../../../.." + A["secret_file"]]
    for path in paths:
        try:
            look(get(path))
        except OSError as e:
            held("%s: %s" % (path, e))
        else:
            broke("%s was read" % path)


def environment():
    look("\n".join("%s=%s" % kv for kv in os.environ.items()))
    found = False
    for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
        try:
            look(get(path))
            found = True
        except OSError as e:
            held("%s: %s" % (path, e))
    if found:
        held("no process of the host is listed")


def host_processes():
    pids = [int(p) for p in os.listdir("/proc") if p.isdigit()]
    for pid in {A["host_pid"], A["secret_pid"]}:
        for name in ("environ", "cmdline", "maps", "root", "cwd", "exe", "fd"):
            path = "/proc/%d/%s" % (pid, name)
            try:
                look(os.readlink(path) if name in ("root", "cwd", "exe") else " ".join(os.listdir(path)) if name == "fd" else get(path))
            except OSError as e:
                held("%s: %s" % (path, e))
    if len(pids) > A["pids"] + 128:
        broke("%d processes are visible" % len(pids))
    held("%d processes are visible" % len(pids))


def signal_host():
    for pid in {A["host_pid"], A["secret_pid"]}:
        if pid < 1000:
            held("process %d may be one of the box" % pid)
            continue
        try:
            os.kill(pid, 0)
        except ProcessLookupError as e:
            held("signal to the host's process: %s" % e)
        except PermissionError as e:
            broke("the host's process %d exists for the box: %s" % (pid, e))
        else:
            broke("the host's process %d can be signalled" % pid)


def kernel_files():
    for path in ("/proc/kcore", "/proc/kallsyms", "/proc/kmsg", "/dev/kmsg", "/dev/mem", "/dev/kmem", "/dev/port",
                 "/proc/sched_debug", "/proc/timer_list", "/proc/slabinfo", "/proc/iomem", "/proc/ioports",
                 "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/firmware",
                 "/proc/sysrq-trigger", "/proc/bus/pci", "/proc/acpi", "/proc/keys", "/proc/key-users"):
        try:
            data = os.listdir(path) if os.path.isdir(path) else get(path, 256)
        except OSError as e:
            held("%s: %s" % (path, e))
            continue
        if data and path not in ("/proc/key-users",):
            broke("%s is readable: %r" % (path, data[:8]))
        else:
            held("%s is empty" % path)


def kernel_log():
    buffer = ctypes.create_string_buffer(1 << 16)
    for action in (3, 4, 10):
        try:
            n = syscall("syslog", action, buffer, len(buffer))
        except OSError as e:
            held("syslog(%d): %s" % (action, e))
            continue
        text = buffer.raw[:max(n, 0)]
        # gVisor answers with jokes of its own; the host's log has time stamps of hardware.
        for word in (b"BIOS", b"ACPI", b"Command line", b"e820", b"systemd", b"audit"):
            if word in text:
                broke("the host's kernel log is readable: it contains %r" % word)
        held("syslog(%d) returns %d bytes, none of the host" % (action, n))


def hardware():
    for path in glob.glob("/sys/class/dmi/id/*") + glob.glob("/sys/devices/virtual/dmi/id/*") + ["/etc/machine-id", "/var/lib/dbus/machine-id"]:
        if os.path.basename(path) not in ("product_serial", "product_uuid", "board_serial", "machine-id", "chassis_serial", "bios_version", "sys_vendor", "board_name"):
            continue
        try:
            data = get(path).strip()
        except OSError as e:
            held("%s: %s" % (path, e))
            continue
        value("hardware" + path.replace("/", "."), data.decode("utf-8", "replace"))
        held("%s: %r" % (path, data))
    for path in ("/sys/block", "/sys/bus/pci/devices", "/sys/class/net", "/sys/class/block"):
        try:
            names = [n for n in os.listdir(path) if n != "lo"]
        except OSError as e:
            held("%s: %s" % (path, e))
            continue
        if names:
            broke("%s lists hardware: %s" % (path, names[:8]))
        held("%s lists nothing of the host" % path)


def kernel_identity():
    for path in ("/proc/version", "/proc/sys/kernel/random/boot_id", "/proc/cmdline", "/proc/sys/kernel/hostname"):
        try:
            value("identity" + path.replace("/", "."), get(path).decode("utf-8", "replace").strip())
        except OSError as e:
            held("%s: %s" % (path, e))
    held("the judge compares")


def home_directories():
    for path in ("/root", "/home", A["home"], "/var/lib", "/var/log", "/var/spool", "/boot", "/srv", "/opt", "/media", "/run/user"):
        try:
            names = os.listdir(path)
        except OSError as e:
            held("%s: %s" % (path, e))
            continue
        # In parts, since a value is short.
        for i in range(0, max(len(names), 1), 20):
            value("listing" + path.replace("/", ".") + "/%d" % i, json.dumps(sorted(names)[i:i + 20]))
        held("%s lists %d names" % (path, len(names)))


def credentials():
    for path in ("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh/ssh_host_rsa_key", "/etc/ssh/ssh_host_ed25519_key",
                 "/root/.ssh/id_rsa", "/root/.ssh/id_ed25519", "/root/.aws/credentials", "/root/.netrc", "/root/.bash_history",
                 "/var/run/secrets/kubernetes.io/serviceaccount/token", A["home"] + "/.ssh/id_rsa", A["home"] + "/.netrc",
                 A["home"] + "/.config/gcloud/application_default_credentials.json", A["home"] + "/.docker/config.json",
                 A["home"] + "/.claude.json", A["home"] + "/.cursor/mcp.json"):
        refused("read " + path, get, path)


def _connect(kind, address, wait=0.5):
    s = socket.socket(*kind)
    try:
        s.settimeout(wait)
        s.connect(address)
        s.sendall(A["nonce"].encode())
        if kind[1] == socket.SOCK_STREAM:
            look(s.recv(4096))
        elif kind[0] != socket.AF_UNIX:
            look(s.recv(4096))
        return "answered"
    finally:
        s.close()


def host_loopback():
    for host in ("127.0.0.1", "localhost", "0.0.0.0", "127.1.2.3"):
        refused("connect to %s" % host, _connect, (socket.AF_INET, socket.SOCK_STREAM), (host, A["port"]))
        refused("datagram to %s" % host, _connect, (socket.AF_INET, socket.SOCK_DGRAM), (host, A["udp"]), 0.2)
    for host in ("::1", "::ffff:127.0.0.1", "::"):
        refused("connect to %s" % host, _connect, (socket.AF_INET6, socket.SOCK_STREAM), (host, A["port"]))


def host_unix_sockets():
    for address in (A["socket"], "\0" + A["abstract"], "/proc/1/root" + A["socket"], "/run/docker.sock", "/var/run/docker.sock",
                    "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock",
                    "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/notify", "/run/user/1000/bus", "/tmp/.X11-unix/X0"):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            refused("connect to %r" % address, _connect, (socket.AF_UNIX, kind), address)


def metadata_service():
    spellings = ["169.254.169.254", "2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "169.254.43518", "168.63.129.16",
                 "100.100.100.200", "169.254.170.2", "192.0.0.192", "metadata.google.internal"]
    for host in spellings:
        refused("connect to %s" % host, _connect, (socket.AF_INET, socket.SOCK_STREAM), (host, 80))
    for host in ("fd00:ec2::254", "::ffff:169.254.169.254", "fe80::a9fe:a9fe"):
        refused("connect to %s" % host, _connect, (socket.AF_INET6, socket.SOCK_STREAM), (host, 80))


def network():
    for host, port in (("1.1.1.1", 443), ("8.8.8.8", 53), ("10.0.0.1", 80), ("172.17.0.1", 2375), ("192.168.1.1", 80), ("100.64.0.1", 80)):
        refused("connect to %s" % host, _connect, (socket.AF_INET, socket.SOCK_STREAM), (host, port))
    for host in ("1.1.1.1", "8.8.8.8", "224.0.0.251", "255.255.255.255"):
        refused("datagram to %s" % host, _connect, (socket.AF_INET, socket.SOCK_DGRAM), (host, 53), 0.2)
    names = [name for _, name in socket.if_nameindex()]
    if [n for n in names if n != "lo"]:
        broke("there are network interfaces: %s" % names)
    held("interfaces: %s" % names)


def name_lookup():
    for name in ("example.com", A["nonce"] + ".example.com", "localhost.localdomain", "host.docker.internal", "gateway.docker.internal"):
        try:
            found = sorted({a[4][0] for a in socket.getaddrinfo(name, 80)})
        except OSError as e:
            held("look up %s: %s" % (name, e))
            continue
        if any(not a.startswith("127.") and a != "::1" for a in found):
            broke("%s was looked up: %s" % (name, found))
        held("%s is %s" % (name, found))


def raw_sockets():
    for name, family, kind, proto in (
            ("raw ICMP", socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP), ("raw IP", socket.AF_INET, socket.SOCK_RAW, 255),
            ("packet", getattr(socket, "AF_PACKET", 17), socket.SOCK_RAW, 0x300), ("vsock", 40, socket.SOCK_STREAM, 0),
            ("algorithm", 38, socket.SOCK_SEQPACKET, 0), ("bluetooth", 31, socket.SOCK_RAW, 1), ("CAN", 29, socket.SOCK_RAW, 1),
            ("TIPC", 30, socket.SOCK_SEQPACKET, 0), ("XDP", 44, socket.SOCK_RAW, 0), ("SMC", 43, socket.SOCK_STREAM, 0),
            ("kernel connection", 41, socket.SOCK_DGRAM, 0), ("SCTP", socket.AF_INET, socket.SOCK_SEQPACKET, 132)):
        def make():
            socket.socket(family, kind, proto).close()
            return "made"
        refused("%s socket" % name, make)


def volumes_of_others():
    seen = set()
    for line in get("/proc/self/mountinfo").decode().splitlines():
        fields = line.split()
        seen.add((fields[4], fields[fields.index("-") + 1]))
        look(line)
    strange = [m for m in seen if m[1] in ("ext4", "xfs", "btrfs", "zfs", "nfs", "cifs", "virtiofs", "9p-host", "fuse")]
    if strange:
        broke("file systems of the host are mounted: %s" % strange)
    held("%d mounts, none of a host file system" % len(seen))


def write_everywhere():
    for directory in A["mark_dirs"]:
        path = os.path.join(directory, A["mark"])
        tried("write " + path, lambda: open(path, "w").write(A["nonce"]))


def touch_programs():
    for path in ("/usr/bin/env", "/bin/sh", sys.executable, "/etc/passwd", "/etc/hosts", "/usr/lib/os-release"):
        try:
            value("stat" + path.replace("/", "."), os.stat(path).st_mtime_ns)
        except OSError:
            continue
        tried("touch " + path, os.utime, path, (1, 1))
        tried("append to " + path, openable, path, os.O_WRONLY | os.O_APPEND)
