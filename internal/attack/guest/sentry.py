# Work of boxes whose processes the judge examines from outside.
import resource
import threading


def work():
    for _ in range(3):
        child(os.listdir, "/")
    held("some processes and files")


def threads():
    threading.stack_size(64 << 10)
    go = threading.Event()
    started = []
    try:
        for _ in range(A["pids"] * 8):
            t = threading.Thread(target=go.wait, daemon=True)
            t.start()
            started.append(t)
    except (RuntimeError, OSError) as e:
        held("%d threads: %s" % (len(started), e))
    held("%d threads" % len(started))
    time.sleep(1)
    go.set()


def files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    opened = []
    names = []
    for top, _, found in os.walk("/usr/lib"):
        names += [os.path.join(top, f) for f in found[:200]]
        if len(names) >= 2000:
            break
    try:
        for name in names[:2000]:
            try:
                opened.append(os.open(name, os.O_RDONLY))
            except (PermissionError, FileNotFoundError):
                continue
    except OSError as e:
        held("%d files: %s" % (len(opened), e))
    held("%d files are open" % len(opened))
    time.sleep(1)
