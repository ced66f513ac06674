// The JavaScript kernel: evaluates cells in the main context with V8's own REPL
// mode, which knows top-level await and lets later cells declare let, const and
// class anew, and says what came of them. Descriptors: 3 commands in, 4 control
// out, 5 events out, 6 and 7 the reading ends of the pipes behind 1 and 2.
(function (require, dynamicImport, source) {
'use strict';

// Names that user code may take away.
const { Atomics, BigInt, Buffer, Error, Int32Array, Map, Math, Number, Object, Promise, Reflect, Set, SharedArrayBuffer, String, Symbol, SyntaxError, Uint8Array, process } = globalThis;
const fs = require('fs');
const vm = require('vm');
const v8 = require('v8');
const util = require('util');
const net = require('net');
const path = require('path');
const { Writable } = require('stream');
const { Session } = require('inspector');
const Module = require('module');
const { pathToFileURL } = require('url');
const { HIDDEN, prepare } = source;

const { writeSync, readSync } = fs;
const { inspect } = util;
const { stringify } = JSON;
const later = setImmediate;
const CONTROL = 4, EVENTS = 5, RAW = [6, 7];

const MAX_HELD = 64 << 10;       // output between two runs
const MAX_EVENT = 1 << 20;       // one output message
const MAX_TEXT = 256 << 10;      // one text/plain
const MAX_TRACEBACK = 64 << 10;
const MAX_VALUE = 8 << 10;
const MAX_DISPLAYS = 20;         // per run
const MAX_DISPLAY = 8 << 20;     // its JSON
const MAX_SOURCES = 32 << 20;    // cells kept for error messages

let active = false;   // between R and D: events may be written
let held = [], heldSize = 0;
let number = 0;       // of the run
let cells = 0;
let displays = 0, dropped = 0;
let settle = null;    // ends the run under way
let broken = false;   // the run was ended by SIGINT
let program = false;  // the run is of a whole program
const sources = new Map();
let sourcesSize = 0;

// --- messages ---------------------------------------------------------------

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

// What children printed so far goes before what is printed now. An empty pipe
// is an exception and costs more than a line, hence the flag.
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

// What code writes to descriptors 1 and 2 itself, and waits for, is printed like
// all else: so it keeps its order. They are pipes unless the code closed them.
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
  // The bytes that are meant, or null: Node.js knows more ways to say it, and what
  // is wrong with one.
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

// Whoever asks with readline would wait for ever: standard input is empty. As with
// Python's input, the question is shown, and asking fails.
function refuseQuestions() {
  const readline = require('readline');
  const custom = util.promisify.custom;
  const refuse = (original, fail) => function question(query, ...rest) {
    if (this.input !== process.stdin) return Reflect.apply(original, this, [query, ...rest]);
    process.stdout.write(String(query));
    const error = new Error('end of input: nobody can answer here, write the value into the code instead of asking for it');
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

// An interrupt goes to the whole process group, and news of the child's death
// may be here before the thread that ends this cell has run: it gets time to.
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
  // User code that ends its standard output goes on printing later. What waits for
  // the end, as pipelines do, hears of it.
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

// --- what is shown ------------------------------------------------------------

const inspectOptions = { colors: false, showProxy: true };

function imageType(value) {
  if (!(value instanceof Uint8Array) || value.length < 8) return '';
  if (value[0] === 0x89 && value[1] === 0x50 && value[2] === 0x4e && value[3] === 0x47) return 'image/png';
  if (value[0] === 0xff && value[1] === 0xd8 && value[2] === 0xff) return 'image/jpeg';
  return '';
}

const METHODS = [
  ['_repr_html_', 'text/html'], ['_toHtml', 'text/html'], ['_repr_markdown_', 'text/markdown'],
  ['_repr_svg_', 'image/svg+xml'], ['_toSvg', 'image/svg+xml'], ['_repr_png_', 'image/png'], ['_toPng', 'image/png'],
  ['_repr_jpeg_', 'image/jpeg'], ['_toJpg', 'image/jpeg'], ['_repr_latex_', 'text/latex'], ['_repr_json_', 'application/json'],
];

function asText(value) {
  if (value == null) return undefined;
  if (typeof value === 'string') return value;
  if (value instanceof Uint8Array) return Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('base64');
  return stringify(value);
}

// The rich representations, by MIME type. What throws is left out.
async function representations(value) {
  const data = {};
  if (value === null || (typeof value !== 'object' && typeof value !== 'function')) return data;
  const image = imageType(value);
  if (image) {
    data[image] = asText(value);
    data['text/plain'] = `<${image}, ${value.length} bytes>`;
    return data;
  }
  for (const key of [Symbol.for('Jupyter.display'), '_repr_mimebundle_', '_toMime']) {
    try {
      if (typeof value[key] !== 'function') continue;
      const bundle = await value[key]();
      for (const mime of Object.keys(bundle)) {
        const text = asText(bundle[mime]);
        if (text !== undefined) data[mime] = text;
      }
    } catch {}
  }
  for (const [name, mime] of METHODS) {
    if (mime in data) continue;
    try {
      if (typeof value[name] !== 'function') continue;
      const text = asText(await value[name]());
      if (text !== undefined) data[mime] = text;
    } catch {}
  }
  return data;
}

function rich(value) {
  if (value === null || typeof value !== 'object') return false;
  try {
    return imageType(value) !== '' || [Symbol.for('Jupyter.display'), '_repr_mimebundle_', '_toMime'].some((k) => typeof value[k] === 'function') ||
      METHODS.some(([name]) => typeof value[name] === 'function');
  } catch {
    return false;
  }
}

function publish(data, result) {
  if (displays >= MAX_DISPLAYS) {
    dropped++;
    return;
  }
  data['text/plain'] = clip(data['text/plain'] || '', MAX_TEXT);
  let message;
  for (;;) {
    message = Buffer.from(stringify(result ? { result: true, data } : { data }));
    if (message.length <= MAX_DISPLAY) break;
    // The largest representation goes first; the plain text always fits.
    const largest = Object.keys(data).filter((m) => m !== 'text/plain').reduce((a, b) => (data[a].length >= data[b].length ? a : b));
    delete data[largest];
  }
  displays++;
  if (active) {
    takeRaw();
    send(EVENTS, 'd', message);
  }
}

function show(value, result) {
  if (displays >= MAX_DISPLAYS) {
    dropped++;
    return undefined;
  }
  if (!rich(value)) {
    publish({ 'text/plain': inspect(value, inspectOptions) }, result);
    return undefined;
  }
  return representations(value).then((data) => {
    if (!('text/plain' in data)) data['text/plain'] = inspect(value, inspectOptions);
    publish(data, result);
  });
}

const shows = new Set(); // displays under way

function display(...values) {
  for (const value of values) {
    const p = show(value, false);
    if (p) {
      shows.add(p);
      p.catch(() => {}).finally(() => shows.delete(p));
    }
  }
}

// --- errors -------------------------------------------------------------------

const CELL = /<cell-(\d+)>/g;

// Our own frames are there when user code took prepareStackTrace away.
const OURS = /\n +at Session\.post \(node:inspector[^\n]*(?:\n +at [^\n]*)*/g;

function readable(text) { return text.replace(OURS, '').replace(CELL, '<cell $1>'); }

// Stacks show the user's frames: none of this script, and nothing outside the
// outermost frame of a cell.
function prepareStackTrace(error, frames) {
  let text;
  try {
    text = Error.prototype.toString.call(error);
  } catch {
    text = '<error>';
  }
  const lines = [];
  let last = 0;
  for (let i = 0; i < frames.length; i++) {
    const line = String(frames[i]);
    if (line.includes('glovebox:')) continue;
    lines.push(readable(line));
    if (line.includes('<cell-')) last = lines.length;
  }
  if (last > 0) lines.length = last;
  return lines.length ? text + '\n    at ' + lines.join('\n    at ') : text;
}

function sourceLine(cell, line, column) {
  const source = sources.get(cell);
  if (source === undefined) return '';
  const text = source.split('\n', line)[line - 1];
  if (text === undefined || text.length > 400) return `<cell ${cell}>:${line}\n`;
  return `<cell ${cell}>:${line}\n${text}\n${text.slice(0, Math.max(column - 1, 0)).replace(/[^\t]/g, ' ')}^\n\n`;
}

// A RunError of what was thrown. details are the inspector's.
function describe(error, details) {
  let name = 'Uncaught', value = '', trace = '';
  try {
    const isError = util.types.isNativeError(error) || error instanceof Error;
    if (isError) {
      name = String(error.name || (error.constructor && error.constructor.name) || 'Error');
      value = String(error.message);
      const shown = readable(inspect(error, inspectOptions));
      const stack = String(error.stack);
      const at = /<cell (\d+)>:(\d+):(\d+)/.exec(readable(stack));
      if (at) {
        trace = sourceLine(+at[1], +at[2], +at[3]) + shown;
      } else if (error instanceof SyntaxError && details && typeof details.lineNumber === 'number') {
        trace = sourceLine(cells, details.lineNumber + 1, details.columnNumber + 1) + name + ': ' + value;
      } else {
        trace = shown;
      }
    } else {
      value = inspect(error, inspectOptions);
      trace = 'Uncaught ' + value;
    }
  } catch {
    value = value || '<error cannot be shown>';
    trace = trace || name + ': ' + value;
  }
  return { name: clip(name, 256), value: clip(value, MAX_VALUE), traceback: clip(trace, MAX_TRACEBACK) + '\n' };
}

class Interrupted extends Error {}
Object.defineProperty(Interrupted.prototype, 'name', { value: 'Interrupted' });

function interruption() {
  const text = 'the run was interrupted';
  return { name: 'Interrupted', value: text, traceback: 'Interrupted: ' + text + '\n' };
}

function report(what, error) {
  let text;
  try {
    text = describe(error).traceback;
  } catch {
    text = String(error) + '\n';
  }
  process.stderr.write(what + text);
}

// --- running --------------------------------------------------------------------

const session = new Session();
session.connect();
const holder = { take(v) { holder.value = v; }, value: undefined };
let holderId;

// The value behind one of the inspector's remote objects.
function local(remote) {
  if (remote.objectId !== undefined) {
    holder.value = undefined;
    session.post('Runtime.callFunctionOn', {
      functionDeclaration: 'function (v) { this.take(v); }', objectId: holderId,
      arguments: [{ objectId: remote.objectId }], silent: true,
    });
    const v = holder.value;
    holder.value = undefined;
    return v;
  }
  const u = remote.unserializableValue;
  if (u === undefined) return remote.type === 'undefined' ? undefined : remote.value;
  return u.endsWith('n') ? BigInt(u.slice(0, -1)) : Number(u);
}

const guard = new vm.Script(`${HIDDEN}.go()`, { filename: 'glovebox:kernel' });

// The thread that breaks endless loops on SIGINT is started once: with
// breakOnSigint alone every cell starts and joins one. It takes every SIGINT, so
// a cell that waits is interrupted by a command instead.
let watchdog = null, watching = false;
try {
  watchdog = process.binding('contextify');
  if (!['startSigintWatchdog', 'stopSigintWatchdog', 'watchdogHasPendingSigint'].every((name) => typeof watchdog[name] === 'function')) watchdog = null;
} catch {}
// Without a handler of anybody's, the signal would end the process.
if (!watchdog) process.on('SIGINT', () => {});

// A process group in which stopped children end is told to hang up.
process.on('SIGHUP', () => {});

// User code that listens to SIGINT takes the signal away, and leaves it without
// a handler when it stops listening.
let stolen = false;
process.on('newListener', (name) => {
  if (name === 'SIGINT') stolen = true;
});

function watchSigint() {
  if (!watchdog) return;
  const free = process.listenerCount('SIGINT') === 0;
  if (watching && (!free || stolen)) {
    watchdog.stopSigintWatchdog();
    watching = false;
  }
  if (!watching && free) {
    watchdog.startSigintWatchdog();
    watching = true;
    stolen = false;
  }
}
watchSigint();

let sigints = 0; // SIGINTs of this run that took effect: they ended code, or were taken here

// Takes back a SIGINT that found no code to end, and reports whether there was one.
// A second start is only counted, and its stop clears the signal.
function takeSigint() {
  watchdog.startSigintWatchdog();
  return watchdog.stopSigintWatchdog();
}

// Waits until all SIGINTs of this run have taken effect, so that none ends a later
// cell: the agent sends each before it announces it, but the thread that handles
// them may be late. Two that ended the same code count as one, hence the shorter
// wait after the first.
function absorbSigints(announced) {
  for (let ms = 0; watching && !stolen && sigints < announced && ms < (sigints ? 200 : 1000); ms++) {
    if (takeSigint()) sigints++;
    else Atomics.wait(nothing, 0, 0, 1);
  }
  sigints = Math.max(sigints, announced);
}

// Promises of cells that wait. V8 ends the process when the promise of a pending
// evaluation is collected.
const pending = new Set();

function evaluate(code, done) {
  let promise, stopHook = null;
  const unhook = () => {
    if (stopHook) stopHook();
    stopHook = null;
  };
  hidden.go = () => {
    if (/\bawait\b/.test(code)) {
      stopHook = v8.promiseHooks.onInit((p) => {
        if (promise === undefined) promise = p;
        unhook();
      });
    }
    session.post('Runtime.evaluate', {
      expression: code + `\n//# sourceURL=<cell-${cells}>`, replMode: true, objectGroup: 'cell', silent: true,
    }, (error, reply) => {
      pending.delete(promise);
      promise = null;
      done(error, reply);
    });
    if (promise) pending.add(promise);
  };
  watchSigint();
  try {
    guard.runInThisContext({ breakOnSigint: true, displayErrors: false });
  } catch (e) {
    done(e);
  } finally {
    unhook();
  }
}

// The end of a program is that of Node.js itself, which comes when nothing is left
// to wait for: listeners to beforeExit may find something to do, and those to exit
// say how it ends. The last of them has the last word, unless there is an exit code.
function windUp() {
  const over = () => {
    if (!process.exitCode) finish(null);
  };
  const last = () => {
    process.removeListener('exit', over);
    process.on('exit', over);
  };
  settle = () => {
    settle = null;
    process.removeListener('beforeExit', last);
    process.removeListener('exit', over);
    input.ref();
    finish(interruption());
  };
  process.on('beforeExit', last);
  process.on('exit', over);
  input.unref();
}

// Runs a cell or, if a file is named, be it '', a whole program.
function run(n, code, file) {
  const whole = file !== undefined;
  number = n;
  program = whole;
  if (file) place(file);
  displays = dropped = 0;
  broken = false;
  sigints = 0;
  if (watching && watchdog.watchdogHasPendingSigint()) takeSigint(); // the code's own
  // An empty cell proves that the kernel lives and leaves no trace in it.
  if (code.length === 0) return finish(null);
  cells++;
  active = true;
  for (const [type, data] of held) emit(type, data);
  held = [];
  heldSize = 0;
  let over = false;
  // What a program waits for at its top may never be: there is nothing to wait for.
  const stuck = () => {
    err.write('Warning: Detected unsettled top-level await\n');
    process.exit(13); // as Node.js does
  };
  if (whole) {
    process.argv[1] = main.filename;
    process.once('beforeExit', stuck);
    input.unref();
  }
  const end = (error) => {
    if (over) return;
    over = true;
    settle = null;
    if (whole) {
      process.removeListener('beforeExit', stuck);
      input.ref();
    }
    // What this turn of the loop still has to say belongs to the run.
    later(() => {
      const last = whole && !error ? windUp : () => finish(error);
      if (shows.size === 0) last();
      else Promise.allSettled([...shows]).then(last);
    });
  };
  settle = () => end(interruption());

  let source;
  try {
    source = new util.TextDecoder('utf-8', { fatal: true, ignoreBOM: false }).decode(code);
  } catch {
    end({ name: 'SyntaxError', value: 'the code is not valid UTF-8', traceback: 'SyntaxError: the code is not valid UTF-8\n' });
    return;
  }
  keepSource(source);
  evaluate(prepare(source), (error, reply) => {
    if (error && (error.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED' || /terminated/.test(error.message))) {
      broken = true;
      sigints = Math.max(sigints, 1);
    }
    if (over) return;
    if (error) {
      end(broken ? interruption() : describe(error));
      return;
    }
    try {
      if (reply.exceptionDetails) {
        const details = reply.exceptionDetails;
        const thrown = details.exception ? local(details.exception) : new Error(details.text);
        if (whole && (others('uncaughtException') || process.listenerCount('exit') > 0)) {
          process.nextTick(() => { throw thrown; }); // the program's listeners say what comes of it
          end(null);
        } else {
          end(describe(thrown, details));
        }
        return;
      }
      const value = local(reply.result);
      if (value === undefined || whole && util.types.isPromise(value)) {
        end(null); // a program's promise is waited for, and no news
        return;
      }
      last = value;
      const p = show(value, true);
      if (p) p.then(() => end(null), (e) => end(describe(e)));
      else end(null);
    } catch (e) {
      end(describe(e));
    } finally {
      session.post('Runtime.releaseObjectGroup', { objectGroup: 'cell' });
    }
  });
}

function finish(error) {
  if (active) takeRaw();
  active = false;
  const reply = { run: number, ok: !error, error: error || null };
  if (dropped) reply.dropped = dropped;
  send(CONTROL, 'D', Buffer.from(stringify(reply)));
}

function keepSource(source) {
  sources.set(cells, source);
  sourcesSize += source.length;
  for (const [cell, old] of sources) {
    if (sourcesSize <= MAX_SOURCES || sources.size < 2) break;
    sources.delete(cell);
    sourcesSize -= old.length;
  }
}

// _ is the last value, until user code takes the name.
let last;

// --- start ----------------------------------------------------------------------

const hidden = function (specifier, options) {
  return options === undefined ? dynamicImport(specifier) : dynamicImport(specifier, options);
};
const hide = (name, value) => Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
Object.defineProperty(globalThis, HIDDEN, { value: hidden, enumerable: false });
hide('display', display);
Object.defineProperty(globalThis, '_', {
  configurable: true, enumerable: false,
  get() { return last; },
  set(value) { hide('_', value); },
});
Object.defineProperty(Error, 'prepareStackTrace', { value: prepareStackTrace, writable: true, configurable: true, enumerable: false });

const out = stream('o', 1), err = stream('e', 2);
for (const [name, s] of [['stdout', out], ['stderr', err]]) {
  Object.defineProperty(process, name, { configurable: true, enumerable: true, get() { return s; }, set() {} });
}
watchChildren();
watchWrites();
refuseQuestions();
process.execArgv = [];
process.argv.length = 1;

// Listeners of the user's take the place of ours.
function others(event) { return process.listenerCount(event) > 1; }

function uncaught(what, error) {
  report(what, error);
  if (program) process.exit(process.exitCode || 1);
}
process.on('uncaughtException', (e) => {
  if (!others('uncaughtException')) uncaught('Uncaught exception: ', e);
});
process.on('unhandledRejection', (e) => {
  if (others('unhandledRejection')) return;
  if (others('uncaughtException')) throw e; // as Node.js does
  uncaught('Unhandled rejection: ', e);
});

const input = new net.Socket({ fd: 3, readable: true, writable: false });
let buffered = [], size = 0;
input.on('data', (chunk) => {
  buffered.push(chunk);
  size += chunk.length;
  for (;;) {
    if (size < 4) return;
    if (buffered[0].length < 4) buffered = [Buffer.concat(buffered)];
    const need = 4 + buffered[0].readUInt32BE(0);
    if (size < need) return;
    const all = buffered.length > 1 ? Buffer.concat(buffered) : buffered[0];
    buffered = all.length > need ? [all.subarray(need)] : [];
    size -= need;
    command(all.subarray(4, need));
  }
});
input.on('end', () => process.reallyExit(0));
input.on('error', () => process.reallyExit(0));

function command(message) {
  if (message[0] === 0x52) run(message.readUInt32BE(1), message.subarray(5));
  else if (message[0] === 0x50) {
    const end = message.indexOf(0, 5);
    run(message.readUInt32BE(1), message.subarray(end + 1), message.toString('utf8', 5, end));
  }
  else if (message[0] === 0x58) interrupted(message.readUInt32BE(1), message[5]);
  else if (message[0] === 0x45) reseed(message.subarray(1));
  else if (message[0] === 0x53) ready(message.subarray(1).toString());
}

function interrupted(n, announced) {
  if (n !== number) return;
  absorbSigints(announced);
  if (broken) return;
  broken = true;
  if (settle) settle();
}

// --- randomness ------------------------------------------------------------------

let replaced = false;     // the functions of crypto are
let random = Math.random; // ours or V8's, as opposed to one of the user's

// Draws new randomness: this process may be one of several that came out of one
// snapshot.
function reseed(entropy) {
  const fresh = (n) => {
    const b = Buffer.allocUnsafeSlow(n);
    const fd = fs.openSync('/dev/urandom', 'r');
    try {
      for (let at = 0; at < n;) at += readSync(fd, b, at, n - at, null);
    } finally {
      fs.closeSync(fd);
    }
    return b;
  };
  const crypto = require('crypto');
  try {
    if (Math.random === random) {
      random = generator(crypto.createHash('sha256').update(entropy).update(fresh(32)).digest());
      Object.defineProperty(random, 'name', { value: 'random' });
      Math.random = random;
    }
  } catch {}
  try {
    if (!replaced) replaceRandom(crypto, fresh);
    replaced = true;
  } catch (e) {
    report('reseed: ', e);
  }
}

// V8's generator cannot be seeded from here; this one (xoshiro128**) takes its
// place.
function generator(seed) {
  let a = seed.readInt32LE(0), b = seed.readInt32LE(4), c = seed.readInt32LE(8), d = seed.readInt32LE(12) | 1;
  const { imul } = Math;
  const next = () => {
    let r = imul(b, 5);
    r = imul((r << 7) | (r >>> 25), 9);
    const t = b << 9;
    c ^= a; d ^= b; b ^= c; a ^= d; c ^= t;
    d = (d << 11) | (d >>> 21);
    return r >>> 0;
  };
  return () => (next() * 0x200000 + (next() >>> 11)) / 0x20000000000000;
}

// Node.js has no way to reseed OpenSSL's generator, which goes on where the
// snapshot found it until it takes new entropy by itself, at the latest after an
// hour. The functions that return random values ask the system from now on; keys
// that OpenSSL itself makes (generateKeyPair, TLS) cannot be reached.
function replaceRandom(crypto, fresh) {
  const bytes = (view) => new Uint8Array(ArrayBuffer.isView(view) ? view.buffer : view, view.byteOffset || 0, view.byteLength);
  const { randomBytes, randomFillSync, randomFill, randomInt, randomUUID, webcrypto } = crypto;
  const done = (f, ...args) => process.nextTick(f, null, ...args);
  const hexUUID = () => {
    const b = fresh(16);
    b[6] = (b[6] & 15) | 64;
    b[8] = (b[8] & 63) | 128;
    return b.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
  };
  // The originals check the arguments, and what they return is written over.
  crypto.randomBytes = function (size, callback) {
    const b = randomBytes(size);
    b.set(fresh(b.length));
    return typeof callback === 'function' ? done(callback, b) : b;
  };
  crypto.randomFillSync = function (buf, ...where) {
    const before = Buffer.from(bytes(buf)), all = bytes(buf);
    randomFillSync(buf, ...where);
    const b = fresh(all.length);
    const scale = buf.BYTES_PER_ELEMENT || 1;
    const from = (where[0] || 0) * scale, size = where[1] === undefined ? all.length - from : where[1] * scale;
    all.set(before);
    all.set(b.subarray(0, size), from);
    return buf;
  };
  crypto.randomFill = function (buf, ...rest) {
    const callback = rest.pop();
    if (typeof callback !== 'function') return randomFill(buf, ...rest, callback);
    crypto.randomFillSync(buf, ...rest);
    return done(callback, buf);
  };
  crypto.randomInt = function (min, max, callback) {
    if (max === undefined || typeof max === 'function') [min, max, callback] = [0, min, max];
    randomInt(min, max);
    const range = max - min, limit = 2 ** 48 - (2 ** 48 % range);
    let n;
    do n = fresh(6).readUIntBE(0, 6); while (n >= limit);
    n = n % range + min;
    return typeof callback === 'function' ? done(callback, n) : n;
  };
  crypto.randomUUID = (options) => (randomUUID(options), hexUUID());
  const proto = Object.getPrototypeOf(webcrypto);
  const { getRandomValues } = proto;
  proto.getRandomValues = function (view) {
    Reflect.apply(getRandomValues, this, [view]);
    bytes(view).set(fresh(view.byteLength));
    return view;
  };
  proto.randomUUID = () => hexUUID();
  Module.syncBuiltinESMExports();
}

const main = new Module('<cell>');

// Says where the code lies, or would if it were a file.
function place(filename) {
  const dirname = path.dirname(filename);
  main.filename = filename;
  main.path = dirname;
  hidden.meta = { __proto__: null, dirname, filename, url: pathToFileURL(filename).href };
  hide('__filename', filename);
  hide('__dirname', dirname);
}

function ready(names) {
  place(process.cwd() + '/(cell)');
  main.paths = Module._nodeModulePaths(main.path);
  const home = Module.createRequire(main.filename);
  home.main = main; // scripts ask whether they are the program
  hide('module', main);
  hide('exports', main.exports);
  hide('require', home);
  const missing = [];
  for (const name of names.split('\n')) {
    if (!name) continue;
    try {
      home(name);
    } catch {
      missing.push(name);
    }
  }
  // What they printed is nobody's: it would be part of the first cell's output.
  held = [];
  heldSize = 0;
  globalThis[Symbol.for('glovebox.holder')] = holder;
  session.post('Runtime.evaluate', { expression: 'globalThis[Symbol.for("glovebox.holder")]' }, (e, r) => { holderId = r.result.objectId; });
  delete globalThis[Symbol.for('glovebox.holder')];
  send(CONTROL, 'I', Buffer.from(stringify({ version: process.versions.node, missing })));
}
})
