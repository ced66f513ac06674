# Attacks through a volume: a directory of the host that the box sees at /v, and one
# that it sees read-only at /ro.
import stat
import subprocess


def read_only():
    for path in ("/ro/file", "/ro/new", "/ro/../ro/file"):
        refused("write " + path, lambda: open(path, "w"))
    refused("remove", os.remove, "/ro/file")
    refused("rename", os.rename, "/ro/file", "/ro/other")
    refused("link", os.link, "/ro/file", "/ro/link")
    refused("change the mode", os.chmod, "/ro/file", 0o777)
    refused("change the times", os.utime, "/ro/file", (1, 1))
    refused("truncate", os.truncate, "/ro/file", 0)
    refused("set an attribute", os.setxattr, "/ro/file", "user.x", b"y")


def read_only_in_namespace():
    if not entered():
        return
    tried("remount", mount, None, "/ro", None, MS_REMOUNT | MS_BIND)
    os.mkdir("/tmp/b")
    tried("bind", mount, "/ro", "/tmp/b", None, MS_BIND)
    tried("remount the bind", mount, None, "/tmp/b", None, MS_REMOUNT | MS_BIND)
    for path in ("/ro/file", "/ro/new", "/tmp/b/file", "/tmp/b/new"):
        refused("write " + path, lambda: open(path, "w"))


def parents():
    for up in ("/v/..", "/v/../..", "/v/sub/../../.."):
        try:
            look(" ".join(os.listdir(up)))
        except OSError as e:
            held("%s: %s" % (up, e))
    for path in ("/v/../outside/secret", "/v/..%s" % A["secret_file"], "/v/../../outside/secret"):
        refused("read " + path, get, path)


def links():
    os.symlink(A["secret_file"], "/v/link")
    os.symlink("../outside/secret", "/v/relative")
    os.symlink("/proc/self/root" + A["secret_file"], "/v/magic")
    os.symlink("..", "/v/up")
    for path in ("/v/link", "/v/relative", "/v/magic", "/v/up/outside/secret"):
        refused("read " + path, get, path)
    os.makedirs("/v/d", exist_ok=True)
    refused("link a file of the image", os.link, "/etc/passwd", "/v/d/passwd")


def setuid():
    subprocess.run(["cp", "/bin/sh", "/v/sh"], check=True)
    tried("set the setuid bit", os.chmod, "/v/sh", 0o6755)
    tried("set a capability", os.setxattr, "/v/sh", "security.capability", bytes.fromhex("0100000202000000000000000000000000000000"))
    tried("give it to root", os.chown, "/v/sh", 0, 0)


def owner_mode():
    subprocess.run(["cp", "/bin/sh", "/v/sh"], check=True)
    tried("set the setuid bit", os.chmod, "/v/sh", 0o6755)
    for path in ("/v", "/v/.", "/v/..", "/v/../../attacker"):
        tried("open " + path, os.chmod, path, 0o777)


def chunk(path, mb=1):
    """Writes what no file system compresses; a volume that is frozen meanwhile refuses it."""
    try:
        with open(path, "wb") as f:
            for _ in range(mb):
                f.write(os.urandom(MB))
    except OSError as e:
        held("%s: %s" % (path, e))
        return False
    return True


def quota_fill():
    """Fills the volume beside another box. Holes take no space, and reserved blocks do."""
    own = os.path.join(A["at"], "of-%s" % os.urandom(4).hex())
    with open(own + "-sparse", "wb") as f:
        tried("make a hole", f.truncate, 1 << 40)
        tried("reserve blocks", os.posix_fallocate, f.fileno(), 0, MB)
    for i in range(A["mb"]):
        if not chunk("%s-%d" % (own, i)):
            break
    held("filled")
    outward(own + "-0")


def outward(path):
    """Tries to move a file, and the volume itself, out of what is scanned."""
    at = A["at"]
    refused("move a file above", os.rename, path, os.path.join(at, "..", "stolen"))
    refused("move the volume", os.rename, at, at + "-moved")
    refused("remove the volume", os.rmdir, at)


def quota_hidden():
    """Moves the files out of the way of scans, with links to them."""
    own = os.path.join(A["at"], "of-%s" % os.urandom(4).hex())
    dirs = ["%s-%d" % (own, i) for i in range(8)]
    for d in dirs:
        os.mkdir(d)
    names = [str(i) for i in range(4)]
    for name in names:
        chunk(os.path.join(dirs[0], name), A["mb"] // len(names))
    moves, end, here = 0, time.time() + A["seconds"], 0
    while time.time() < end:
        there = (here + 1) % len(dirs)
        for name in names:
            try:
                old, new = os.path.join(dirs[here], name), os.path.join(dirs[there], name)
                if moves % 2:
                    os.link(old, new)
                    os.unlink(old)
                else:
                    os.rename(old, new)
                moves += 1
            except OSError:
                pass
        here = there
    held("%d moves" % moves)


def quota_deep():
    path = A["at"]
    for i in range(120):
        path = os.path.join(path, "d%s" % os.urandom(4).hex() if i == 0 else "d")
        os.mkdir(path)
    chunk(os.path.join(path, "file"), A["mb"])
    held("written")


def quota_frozen():
    """The volume is over its quota: nothing in it can be changed, also not removed."""
    at = A["at"]
    names = os.listdir(at)
    held("%d names" % len(names))
    one = os.path.join(at, names[0])
    refused("create", open, os.path.join(at, "new"), "w")
    refused("make a directory", os.mkdir, os.path.join(at, "new-dir"))
    refused("make a link", os.symlink, "/etc", os.path.join(at, "new-link"))
    refused("rename", os.rename, one, one + "-renamed")
    tried("change the mode", os.chmod, one, 0o700)  # gVisor may report success without effect
    refused("set an attribute", os.setxattr, one, "user.x", b"y")
    for top, _, files in os.walk(at):
        for name in files[:3]:
            path = os.path.join(top, name)
            refused("append", lambda: open(path, "ab"))
            refused("overwrite", open, path, "wb")
            tried("truncate", os.truncate, path, 0)
            refused("link", os.link, path, os.path.join(at, "again"))
            refused("remove", os.remove, path)
    if entered():
        tried("remount", mount, None, at, None, MS_REMOUNT | MS_BIND)
        refused("create after a remount", open, os.path.join(at, "new"), "w")


def devices():
    for kind, major, minor, name in ((stat.S_IFBLK, 8, 0, "sda"), (stat.S_IFCHR, 1, 1, "mem"), (stat.S_IFCHR, 1, 3, "null")):
        tried("make " + name, os.mknod, "/v/" + name, 0o666 | kind, os.makedev(major, minor))


def moved():
    """The judge moves the directory out of the volume while the box is in it."""
    os.makedirs("/v/move/a/b", exist_ok=True)
    os.chdir("/v/move/a/b")
    held("inside")
    value("ready", "1")
    open("/v/ready", "w").close()
    end = time.time() + 5
    while not os.path.exists("/v/moved") and time.time() < end:
        time.sleep(0.05)
    for up in ("..", "../..", "../../..", "../../../..", "../../../../.."):
        try:
            names = os.listdir(up)
            look(" ".join(names))
            if os.path.exists(up + "/outside/secret") or os.path.exists(up + A["secret_file"]):
                broke("the host's files are reachable by %s" % up)
            look(get(up + "/outside/secret"))
        except OSError as e:
            held("%s: %s" % (up, e))


def swapped():
    """The box swaps a directory of the volume for a link while it is used."""
    os.makedirs("/v/dir", exist_ok=True)
    open("/v/dir/secret", "w").write("box\n")

    def swap():
        os.rename("/v/dir", "/v/old")
        os.symlink("../outside", "/v/dir")
        os.remove("/v/dir")
        os.symlink(os.path.dirname(A["secret_file"]), "/v/dir")
        os.remove("/v/dir")
        os.rename("/v/old", "/v/dir")

    def use():
        data = get("/v/dir/secret")
        if data != b"box\n":
            look(data)
        with open("/v/dir/" + A["mark"], "w") as f:
            f.write("x")
    held("%d reads" % race(2, swap, use))
