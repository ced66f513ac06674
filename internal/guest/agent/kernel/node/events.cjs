// Messages to the agent: framing, and the order of events.

function writeAll(fd, data) {
  for (let n = 0; n < data.length;) {
    try {
      n += writeSync(fd, data, n, data.length - n);
    } catch (e) {
      if (e.code !== 'EAGAIN' && e.code !== 'EINTR') throw e;
    }
  }
}

function send(fd, type, payload) {
  const head = Buffer.allocUnsafe(5 + payload.length);
  head.writeUInt32BE(1 + payload.length, 0);
  head[4] = type.charCodeAt(0);
  head.set(payload, 5);
  writeAll(fd, head);
}

// Output of children so far precedes what is printed now. Reading an empty pipe throws
// and costs more than a line, hence the flag.
let children = false;
const scratch = Buffer.allocUnsafeSlow(65536);

function takeRaw() {
  if (!children) return;
  const limit = Error.stackTraceLimit;
  Error.stackTraceLimit = 0;
  for (let i = 0; i < 2; i++) {
    try {
      const n = readSync(RAW[i], scratch, 0, scratch.length, null);
      if (n > 0) send(EVENTS, 'oe'[i], scratch.subarray(0, n));
    } catch {}
  }
  Error.stackTraceLimit = limit;
}
