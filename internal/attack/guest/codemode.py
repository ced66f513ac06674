# Attacks on the calls of code to tools. The scripts speak the protocol of the agent's
# socket themselves.
import socket
import struct
import subprocess


def exchange(path, token, method, payload):
    """Makes a call and returns the answer as it is, or raises OSError."""
    body = json.dumps(payload).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.settimeout(15)
        s.connect(path)
        s.sendall(json.dumps({"token": token, "method": method, "length": len(body)}).encode() + b"\n" + body)
        answer = b""
        while chunk := s.recv(1 << 18):
            answer += chunk
    line, _, rest = answer.partition(b"\n")
    head = json.loads(line or b"{}")
    return {"error": head["error"]} if head.get("error") else json.loads(rest)


def ask(method, payload):
    return exchange(os.environ["GLOVEBOX_TOOLS"], os.environ["GLOVEBOX_TOOLS_TOKEN"], method, payload)


def tool(name, **arguments):
    return ask("tool", {"name": name, "arguments": arguments})


def leave():
    """Leaves a process that waits for the next run."""
    if os.fork() == 0:
        os.setsid()
        for fd in (0, 1, 2, _report):
            os.close(fd)
        try:
            lurk(15)
        finally:
            os._exit(0)
    held("left a process")


def lurk(seconds):
    """Waits for a run with a secret and attacks it; writes how it went."""
    end = time.time() + seconds
    while time.time() < end:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if int(pid) in (1, os.getpid()):
                continue
            try:
                env = dict(v.split("=", 1) for v in get("/proc/%s/environ" % pid).decode().split("\0") if "=" in v)
            except (OSError, ValueError):
                continue
            if env.get("ATTACK_NONCE") == A["nonce"] and "GLOVEBOX_TOOLS_TOKEN" in env:
                with open(outcome() + ".new", "w") as f:
                    f.write("\n".join(steal(env) if A["how"] == "steal" else trace(int(pid))) or "nothing was tried")
                os.rename(outcome() + ".new", outcome())
                return
        time.sleep(0.02)


def outcome():
    return "/tmp/outcome-" + A["nonce"]


def steal(env):
    """Calls with the secret of another process, also from new processes."""
    path, token = env["GLOVEBOX_TOOLS"], env["GLOVEBOX_TOOLS_TOKEN"]
    payload = {"name": "good.spend"}
    said = []
    for depth in range(3):
        try:
            answer = exchange(path, token, "tool", payload)
            said.append("%s a call: %s" % ("refused" if answer.get("error") else "BROKE", answer))
        except OSError as e:
            said.append("refused a call: %s" % e)
        if depth < 2:
            r, w = os.pipe()
            if os.fork() == 0:  # an orphan, once its parent has ended
                if os.fork() > 0:
                    os._exit(0)
                time.sleep(0.1)
                try:
                    answer = exchange(path, token, "tool", payload)
                    os.write(w, ("%s an orphan: %s" % ("refused" if answer.get("error") else "BROKE", answer)).encode()[:4000])
                except OSError as e:
                    os.write(w, ("refused an orphan: %s" % e).encode())
                os._exit(0)
            os.close(w)
            os.wait()
            said.append(os.read(r, 4096).decode())
            os.close(r)
    return said


def trace(pid):
    """Tries to control the process that may call."""
    said = []

    def one(what, f, *args):
        try:
            f(*args)
            said.append("BROKE " + what)
        except REFUSALS as e:
            said.append("refused %s: %s" % (what, e))
    one("to trace it", lambda: syscall("ptrace", 16, pid, 0, 0))
    one("to seize it", lambda: syscall("ptrace", 0x4206, pid, 0, 0))
    one("to write its memory", openable, "/proc/%d/mem" % pid, os.O_RDWR)
    target = ctypes.create_string_buffer(8)
    local, remote = (ctypes.c_uint64 * 2)(ctypes.addressof(target), 8), (ctypes.c_uint64 * 2)(stack(pid), 8)
    one("to write its stack", lambda: syscall("process_vm_writev", pid, ctypes.addressof(local), 1, ctypes.addressof(remote), 1, 0))

    def take():
        handle = syscall("pidfd_open", pid, 0)
        return syscall("pidfd_getfd", handle, 3, 0)
    one("to take its descriptor", take)
    return said


def stack(pid):
    for line in get("/proc/%d/maps" % pid, 1 << 20).decode().splitlines():
        if "[stack]" in line:
            return int(line.split("-")[1].split()[0], 16) - 4096
    return 0


def current():
    """The run that has the secret. A child holds a connection, too."""
    os.environ["ATTACK_NONCE"] = A["nonce"]
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.connect(os.environ["GLOVEBOX_TOOLS"])
    victim = subprocess.Popen(["sleep", "20"], pass_fds=[s.fileno()])
    if A["together"]:
        lurk(10)
    end = time.time() + 12
    while time.time() < end and not os.path.exists(outcome()):
        time.sleep(0.05)
    try:
        for line in get(outcome()).decode().splitlines():
            (broke if line.startswith("BROKE") else held)(line)
    except FileNotFoundError:
        sys.exit("the process of the earlier run did nothing")
    finally:
        victim.kill()


def frame(kind, channel, op, payload=b""):
    return struct.pack(">BBBBII", 0x47, kind, channel, 0, op, len(payload)) + payload


def open_call(op, run):
    return frame(1, 0, op, json.dumps({"op": "call", "args": {"run": run, "method": "tool"}}).encode())


def forge():
    fd = os.open("/proc/1/fd/1", os.O_WRONLY)
    held("forge calls")
    os.write(fd, b"".join(open_call(2 * i, 2 * i - 1) for i in range(1, 8)))
    time.sleep(1)


def flood_calls():
    """Opens calls, at first as many as are allowed and with arguments, then more."""
    fd = os.open("/proc/1/fd/1", os.O_WRONLY)
    held("open calls without end")
    for op in range(2, 34, 2):
        os.write(fd, open_call(op, A["run"]) + frame(2, 5, op, bytes(100 << 10)) + frame(3, 5, op))
    time.sleep(1)
    end = time.time() + 2
    while time.time() < end:
        op += 2
        os.write(fd, open_call(op, A["run"]) + frame(2, 5, op, bytes(200 << 10)))


def loop():
    """Asks for what is refused, or costs no call, until the budget ends."""
    answered = 0
    while answered < A["bound"]:
        for method, payload in (("tool", {"name": "good.reed"}), ("tool", {"name": "good.read", "arguments": {}}), ("search", {}), ("stubs", {}), ("catalog", {}), ("x", {})):
            failure = ask(method, payload).get("error") or {}
            if failure.get("code") == "budget":
                held("after %d answers: %s" % (answered, failure.get("message")))
                value("answered", answered)
                return
            answered += 1
    broke("%d requests were answered" % answered)
    value("answered", answered)


def race_calls():
    done = []

    def call():
        try:
            done.append(tool("good.spend"))
        except OSError as e:
            done.append({"error": str(e)})
    threads = [threading.Thread(target=call) for _ in range(30)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    held("%d of 30 parallel calls were made" % sum("error" not in d for d in done))


def names():
    for name, want in A["want"].items():
        answer = tool(name)
        got = answer.get("value", "")
        if got == want:
            held("%s: %s" % (name, answer))
        else:
            broke("a call of %s went to %r, not %r" % (name, got, want))


def schemas():
    for i in range(A["tools"]):
        start = time.time()
        deep = {}
        for _ in range(60):
            deep = {"a": deep}
        tool("evil.t%d" % i, **deep)
        ask("describe", {"names": ["evil.t%d" % i]})
        took = time.time() - start
        if took > 5:
            broke("a call took %.1f s" % took)
        else:
            held("answered in %.1f s" % took)


def huge():
    answer = tool("evil.read")
    if "error" in answer:
        held(answer["error"])
    else:
        broke("the call returned %d bytes" % len(str(answer.get("value"))))


def errors():
    failure = tool("evil.fail").get("error") or {}
    text = failure.get("message", "")
    if "transfer" not in text:
        sys.exit("the error of the tool is missing: %r" % failure)
    if any(c in text for c in "\x1b\u202e\U000e0049\u200b\u009b"):
        broke("an error has hidden characters: %r" % text)
    else:
        held(text)


def images():
    for i in range(A["tools"]):
        held(tool("evil.t%d" % i))


def survive():
    for _ in range(2):
        failure = tool("evil.read").get("error")
        if failure:
            held(failure)
        else:
            broke("the call of a server that died succeeded")
        answer = tool("evil.live")
        if answer.get("value") == "evil":
            held("the server is back")
        else:
            broke("the server is gone for good: %s" % answer)
