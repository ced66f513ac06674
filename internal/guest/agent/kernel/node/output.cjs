// Output of the code and its children, and input, which does not exist.

function watchChildren() {
  const cp = require('child_process');
  const watch = (object, name, around) => {
    const original = object[name];
    object[name] = function (...args) {
      children = true;
      return around(original, this, args);
    };
    Object.defineProperty(object[name], 'name', { value: name });
  };
  watch(cp.ChildProcess.prototype, 'spawn', Reflect.apply);
  for (const name of ['spawnSync', 'execSync', 'execFileSync']) watch(cp, name, interruptible);
}

// Synchronous writes of user code to descriptors 1 and 2 are sent as events, to keep
// their order. The descriptors are pipes unless the code closed them.
function watchWrites() {
  const { writeSync: original, fstatSync } = fs;
  const inodes = [0, fstatSync(1).ino, fstatSync(2).ino];
  const ours = (fd) => {
    try {
      return (fd === 1 || fd === 2) && fstatSync(fd).ino === inodes[fd];
    } catch {
      return false; // closed
    }
  };
  const part = (n, max) => Number.isInteger(n) && n >= 0 && n <= max;
  // The bytes to write, or null: Node.js handles the other forms of arguments, and the
  // errors in them.
  const meant = (data, from, size, position) => {
    if (typeof data === 'string') return from == null && (size == null || Buffer.isEncoding(size)) ? Buffer.from(data, size ?? 'utf8') : null;
    if (!(data instanceof Uint8Array) || position != null) return null;
    from ??= 0;
    if (!part(from, data.length)) return null;
    size ??= data.length - from;
    return part(size, data.length - from) ? Buffer.from(data.subarray(from, from + size)) : null;
  };
  fs.writeSync = function (fd, data, from, size, position) {
    const bytes = ours(fd) ? meant(data, from, size, position) : null;
    if (!bytes) return Reflect.apply(original, this, arguments);
    emit(fd === 1 ? 'o' : 'e', bytes);
    return bytes.length;
  };
  Object.defineProperty(fs.writeSync, 'name', { value: 'writeSync' });
}

// Reading a line would wait forever, since standard input is empty. Like Python's
// input(), this prints the question and fails.
function refuseQuestions() {
  const readline = require('readline');
  const custom = util.promisify.custom;
  const refuse = (original, fail) => function question(query, ...rest) {
    if (this.input !== process.stdin) return Reflect.apply(original, this, [query, ...rest]);
    process.stdout.write(String(query));
    const error = new Error('end of input: there is no terminal, write the value into the code instead of asking for it');
    error.code = 'EOF';
    return fail(error);
  };
  const raise = (error) => { throw error; };
  const reject = (error) => Promise.reject(error);
  const { prototype } = readline.Interface;
  const { question } = prototype;
  prototype.question = refuse(question, raise);
  if (typeof question[custom] === 'function') prototype.question[custom] = refuse(question[custom], reject);
  const promises = readline.promises && readline.promises.Interface.prototype;
  if (promises) promises.question = refuse(promises.question, reject);
}

// An interrupt goes to the whole process group, and the child's death may be reported
// before the thread that ends this cell has run: give it time.
const nothing = new Int32Array(new SharedArrayBuffer(4));

function interruptible(call, object, args) {
  let signal = null;
  try {
    const result = Reflect.apply(call, object, args);
    signal = result && result.signal;
    return result;
  } catch (e) {
    signal = e && e.signal;
    throw e;
  } finally {
    if (signal === 'SIGINT') Atomics.wait(nothing, 0, 0, 1000);
  }
}

function emit(type, data) {
  if (!active) {
    if (heldSize + data.length <= MAX_HELD) {
      held.push([type, data]);
      heldSize += data.length;
    }
    return;
  }
  takeRaw();
  for (let i = 0; i < data.length; i += MAX_EVENT) send(EVENTS, type, data.subarray(i, i + MAX_EVENT));
}

function stream(type, fd) {
  const s = new Writable({
    decodeStrings: false,
    emitClose: false,
    write(chunk, encoding, done) {
      emit(type, typeof chunk === 'string' ? Buffer.from(chunk, encoding) : chunk);
      done();
    },
  });
  s.fd = fd;
  s._type = 'pipe';
  s._isStdio = true;
  // User code that ends its standard output may print later. Streams that wait for the
  // end, such as pipelines, are notified.
  s.end = function (chunk, encoding, done) {
    if (typeof chunk !== 'function' && chunk != null) s.write(chunk, typeof encoding === 'string' ? encoding : undefined);
    const f = [chunk, encoding, done].find((x) => typeof x === 'function');
    if (f) s.once('finish', f);
    process.nextTick(() => s.emit('finish'));
    return s;
  };
  s.destroy = s.destroySoon = () => s;
  return s;
}

function clip(text, limit) {
  if (text.length <= limit) return text;
  const head = Math.floor(limit * 3 / 4), tail = limit - head;
  return text.slice(0, head) + `\n... ${text.length - limit} characters left out ...\n` + text.slice(text.length - tail);
}
