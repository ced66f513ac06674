# Messages to the agent: framing, and the order of events.


def pump(fd, tx):
    """Writes the rest of tx = (bytes, [lengths written so far]). The length is
    appended inside one C call, so it is recorded whatever is raised afterwards."""
    data, done = tx
    while True:
        n = sum(done)
        if n >= len(data):
            return
        done.extend(map(write, (fd,), (memoryview(data)[n:n + MAX_EVENT] if n else data[:MAX_EVENT],)))


def frame(kind, data):
    return (len(data) + 1).to_bytes(4, "big") + kind + data


def frames(chunks):
    """Joins adjacent chunks of one type and frames them."""
    if len(chunks) == 1 and len(chunks[0][1]) <= MAX_EVENT:
        return frame(*chunks[0])
    out = []
    i = 0
    while i < len(chunks):
        kind, data = chunks[i]
        i += 1
        if kind != b"d" and i < len(chunks) and chunks[i][0] == kind:
            run = [data]
            size = len(data)
            while i < len(chunks) and chunks[i][0] == kind and size < MAX_EVENT:
                run.append(chunks[i][1])
                size += len(chunks[i][1])
                i += 1
            data = b"".join(run)
        if kind == b"d":
            out.append(frame(kind, data))
        else:
            for j in range(0, len(data), MAX_EVENT):
                out.append(frame(kind, data[j:j + MAX_EVENT]))
    return b"".join(out)


def mark():
    """A mark: how much children and C code have written to descriptors 1 and 2 so far,
    if it is more than in the last mark. The kernel's next output comes after that.
    Only the agent reads these pipes; it publishes in the event buffer how much it has
    read, doubled, and one more while it reads."""
    if positions is None:
        return b"", S.marked
    try:
        # In this order: bytes no longer in the pipes are in the positions.
        if not poller.poll(0) and positions.tolist() == S.marked:
            return b"", S.marked
        now = [position(0, RAWOUT), position(1, RAWERR)]
    except (OSError, RuntimeError):  # closed by user code; in use by a thread of it
        return b"", S.marked
    return frame(b"m", b"".join([n.to_bytes(4, "big") for n in now])), now


def position(i, fd):
    """How much was written to a pipe so far, doubled, modulo 2^32."""
    for tries in range(MAX_TRIES):
        at = positions[i]
        waiting = int.from_bytes(ioctl(fd, FIONREAD, bytes(4)), ORDER)
        if not at & 1 and at == positions[i]:
            break
        # The agent's read is short, but on a busy machine the agent may have to wait
        # for its turn.
        sleep(0 if tries < 50 else 0.001)
    return at + 2 * waiting & 0xfffffffe


def flush():
    """Sends pending events."""
    if S.child or S.busy or not S.active:
        return
    with lock:
        if S.busy or not S.active:
            return
        S.busy = True
        try:
            if S.tx is not None:
                pump(EVENTS, S.tx)
                S.tx = None
            # Once, not until nothing is pending: a trace function of user code may
            # print at every step of this function.
            chunks = S.pending
            if chunks:
                data, marked = mark()
                data += frames(chunks)
                n = len(chunks)
                end = S.at + len(data)
                if end <= BUFFER:
                    # No call from here on, so nothing can be raised in between.
                    buffer[S.at:end] = data
                    buffer_end[0] = S.at = end; S.pending = S.pending[n:]; S.size = 0; S.marked = marked
                else:
                    S.at = BUFFER  # from now on everything uses the pipe, to keep the order
                    S.tx = (data, []); S.pending = S.pending[n:]; S.size = 0; S.marked = marked
                    pump(EVENTS, S.tx)
                    S.tx = None
            S.flushed = monotonic()
        finally:
            S.busy = False


def emit(kind, data):
    with lock:
        if not S.active and S.size + len(data) > MAX_HELD:
            return
        S.pending.append((kind, data))
        S.size += len(data)
