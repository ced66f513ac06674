# Attacks by an agent that has been compromised: code that is root in the box writes
# to the agent's own streams, stops it or ends it.


def stream():
    """The agent's standard output is the stream to the host."""
    return os.open("/proc/1/fd/1", os.O_WRONLY)


def flood(data, seconds=2.0):
    fd = stream()
    held("write to the stream")
    end = time.time() + seconds
    total = 0
    while time.time() < end and total < 256 * MB:
        try:
            total += os.write(fd, data)
        except OSError as e:
            held("%d bytes: %s" % (total, e))
            return


def garbage():
    flood(os.urandom(65536))


def zeros():
    flood(bytes(65536))


def huge_frames():
    flood(b"\xff" * 65536)


def half_frame():
    os.write(stream(), b"\x01")
    held("half of a header")


def json_lines():
    flood(b'{"jsonrpc":"2.0","id":1,"result":{}}\r\n\r\n' * 1000)


def nested():
    flood(b"[" * 65536)


def drip():
    fd = stream()
    held("single bytes")
    end = time.time() + 2
    while time.time() < end:
        os.write(fd, b"\x02")
        time.sleep(0.001)


def stop():
    held("stop the agent")
    os.kill(1, signal.SIGSTOP)
    time.sleep(1)


def end():
    held("end the agent")
    os.kill(1, signal.SIGKILL)
    time.sleep(1)


def close_streams():
    """Takes the agent's descriptors away by tracing it."""
    held("trace the agent")
    tried("attach", syscall, "ptrace", 16, 1, 0, 0)
    tried("write its memory", openable, "/proc/1/mem", os.O_RDWR)
    time.sleep(0.5)
