# The loop of the kernel: commands in, replies out.


def settled_reply():
    """Sends all pending events, then the reply; afterwards output is held until the
    next run."""
    with lock:
        while S.active and (S.tx is not None or S.pending):
            flush()
        S.active = False
        pump(CONTROL, S.reply)
        S.reply = None
    take_descriptors()  # while nobody waits


def wait_command():
    """Waits for the next command while tasks of the event loop continue."""
    loop = S.loop
    if loop is None or loop.is_closed() or loop.is_running():
        return
    import asyncio
    if not asyncio.all_tasks(loop):
        return
    loop.add_reader(COMMANDS, loop.stop)
    try:
        loop.run_forever()
    finally:
        loop.remove_reader(COMMANDS)
    take_descriptors()


incoming = []


def read_command():
    """Reads one message, None at the end of the pipe. Bytes already read survive an
    exception raised here."""
    while True:
        have = sum(map(len, incoming))
        need = 4
        if have >= 4:
            if len(incoming[0]) < 4:
                incoming[:] = [b"".join(incoming)]
            need = 4 + int.from_bytes(incoming[0][:4], "big")
        if have >= 4 and have >= need:
            message = b"".join(incoming)
            incoming[:] = [message[need:]] if have > need else []
            return message[4:need]
        n = len(incoming)
        incoming.extend(map(read, (COMMANDS,), (min(need - have, 1 << 20) if have >= 4 else 65536,)))
        if len(incoming) > n and not incoming[-1]:
            return None


def reseed(entropy):
    """Reseeds random generators: this process may be one of several restored from
    one snapshot. Functions that ask the system each time (os.urandom, secrets,
    uuid4) need nothing. Generators made by user code stay unchanged."""
    new = lambda n: entropy + posix.urandom(n)
    for name, step in (
        ("random", lambda m: m.seed(new(32))),
        ("numpy.random", lambda m: m.seed(list(memoryview(new(64)).cast("I")))),
        ("_ssl", lambda m: m.RAND_add(new(32), 32.0)),  # TLS, and all else in OpenSSL
    ):
        module = sys.modules.get(name)
        if module is not None:
            guarded(step, module)


def network(settings):
    """Applies settings of the network. TLS libraries read certificates from the file
    that SSL_CERT_FILE names, which the agent replaces, so only variables change."""
    import json
    settings = json.loads(settings)
    for name in settings["unset"] or ():
        os.environ.pop(name, None)
    os.environ.update(settings["env"] or {})


def serve():
    """The kernel's main loop. It ends with the command pipe."""
    task = None
    while True:
        try:
            if S.reply is not None:
                settled_reply()
            if task is None:
                if not incoming:
                    wait_command()
                task = read_command()
                if task is None:
                    hard_exit(0)
            now, task = task, None
            kind = now[:1]
            if kind == b"R" and len(now) == 5:
                # An empty cell only checks that the kernel responds.
                S.reply = (frame(b"D", encode(to_json({"run": int.from_bytes(now[1:5], "big"), "ok": True, "error": None}))), [])
            elif kind == b"R":
                S.reply = (run(int.from_bytes(now[1:5], "big"), now[5:]), [])
            elif kind == b"P":
                file, _, code = now[5:].partition(b"\0")
                S.reply = (run(int.from_bytes(now[1:5], "big"), code, file.decode("utf-8", "surrogateescape")), [])
            elif kind == b"E":
                reseed(now[1:])
            elif kind == b"N":
                guarded(network, now[1:])
            elif kind == b"T":
                setup, _, script = now[1:].partition(b"\0")
                if script:
                    exec(compile(script, FILE, "exec"), globals())
                offer_tools(setup)
        except BaseException:
            if S.child or getpid() != PID:
                hard_exit(1)
