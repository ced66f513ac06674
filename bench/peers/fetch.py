# The client of the scenario egress, the same on the host, in boxes and in containers.
import http.client, os, subprocess, sys, tempfile, time, urllib.parse


def connect(host, port, proxied):
    """Return a connection, and what its paths begin with."""
    if proxied:
        proxy = urllib.parse.urlsplit(os.environ["http_proxy"])
        return http.client.HTTPConnection(proxy.hostname, proxy.port, timeout=30), "http://" + host
    return http.client.HTTPConnection(host, port, timeout=30), ""


def requests(host, port, seconds, proxied):
    """Return requests a second, one after the other over one connection."""
    c, base = connect(host, port, proxied)

    def get():
        c.request("GET", base + "/small")
        if c.getresponse().read() != b"ok\n":
            raise OSError("another answer than that of the server")

    for _ in range(50):
        get()
    n, took, begun = 0, 0, time.perf_counter()
    while took < seconds:
        get()
        n, took = n + 1, time.perf_counter() - begun
    c.close()
    return n / took


def megabytes(host, port, seconds, proxied):
    """Return MB a second of one answer without an end."""
    c, base = connect(host, port, proxied)
    c.request("GET", base + "/endless")
    answer = c.getresponse()
    buffer = memoryview(bytearray(1 << 18))
    for _ in range(50):
        answer.readinto(buffer)
    n, took, begun = 0, 0, time.perf_counter()
    while took < seconds:
        got = answer.readinto(buffer)
        if got == 0:
            raise OSError("the answer ended")
        n, took = n + got, time.perf_counter() - begun
    c.close()
    return n / took / 1e6


def install(index, host):
    """Return the milliseconds of pip install, of a wheel of this index."""
    with tempfile.TemporaryDirectory() as target:
        begun = time.perf_counter()
        pip = subprocess.run(
            [sys.executable, "-m", "pip", "--isolated", "install", "-q", "--no-cache-dir", "--disable-pip-version-check",
             "--index-url", index, "--trusted-host", host, "--target", target, "benchwheel"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50)
        took = time.perf_counter() - begun
        if pip.returncode != 0 or not os.path.exists(os.path.join(target, "benchwheel", "m0.py")):
            raise OSError("pip install failed: " + " ".join(pip.stderr.split())[-300:])
        return took * 1e3


def gateway():
    """Return the gateway of a container, which leads to the host's loopback."""
    with open("/proc/net/route") as routes:
        for route in routes:
            fields = route.split()
            if fields[1] == "00000000":
                return ".".join(str(b) for b in reversed(bytes.fromhex(fields[2])))
    raise OSError("no default route")
