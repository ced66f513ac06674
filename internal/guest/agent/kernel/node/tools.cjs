// Calls of the host's tools: tools.server.tool({...}) and callTool(...). The kernel gets
// this file with the first run that may call, as the body of a function
// (require, hide).
'use strict';
const inspector = require('inspector');
const net = require('net');

// Any process of the box may send SIGUSR1, on which Node.js would let all of them debug
// this one, and so call as the run.
process.on('SIGUSR1', () => {});
if (inspector.url()) inspector.close();

let bridge = null; // how the current run calls; null after the run
let off = false; // the last run may not call
const MAX_WAITING = 64; // calls at the same time; the agent takes 256 of a box
const MAX_NAMED = 5; // calls named in a note
const REFUSAL_DELAY = 20; // milliseconds; a loop that calls again leaves the event loop time
let active = 0;
const waiting = [];
const calls = new Set(); // the run's calls that have not ended
const cancelled = new WeakSet(); // errors of the calls that the end of their run cancelled

class ToolError extends Error {
  constructor(message, { code = 'tool_error', server, tool, signature } = {}) {
    const where = [server, tool].filter(Boolean).join('.');
    const text = (where ? where + ': ' : '') + message + ` [${code}]` + (signature ? '\n  ' + signature : '');
    super(text);
    // util.inspect shows the stack, whose text contains these fields.
    for (const [key, value] of Object.entries({ text, reason: message, code, server, tool, signature })) {
      Object.defineProperty(this, key, { value, writable: true, configurable: true });
    }
  }

  toString() { return `${this.name}: ${this.text}`; }

  toJSON() {
    const { name, reason, code, server, tool, signature } = this;
    return { name, message: reason, code, server, tool, signature };
  }
}
Object.defineProperty(ToolError.prototype, 'name', { value: 'ToolError', writable: true, configurable: true });

// setOrigin replaces the stack of a ToolError, which the connection's event handler
// created, with that of the call.
function setOrigin(error, origin) {
  const trace = String(origin.stack);
  const frames = trace.indexOf('\n    at ');
  Object.defineProperty(error, 'stack', { value: String(error) + (frames < 0 ? '' : trace.slice(frames)), writable: true, configurable: true });
}

const LINK_CODES = { lost: 'interrupted', cancelled: 'interrupted', too_large: 'invalid_arguments', invalid: 'invalid_arguments', not_allowed: 'denied' };

function decode(data) {
  const end = data.indexOf(10);
  const header = end < 0 ? {} : JSON.parse(data.toString('utf8', 0, end));
  if (header.error) throw new ToolError(header.error.message, { code: LINK_CODES[header.error.code] || header.error.code });
  if (end < 0 || data.length - end - 1 !== header.length) {
    throw new ToolError('the connection to the host ended during the call; whether the tool ran is unknown', { code: 'interrupted' });
  }
  const answer = JSON.parse(data.toString('utf8', end + 1));
  if (answer.error) throw new ToolError(answer.error.message, answer.error);
  return answer.value;
}

function exchange(path, data, call) {
  return new Promise((resolve, reject) => {
    const chunks = [];
    const socket = net.connect({ path });
    call.cancel = (error) => {
      reject(error);
      socket.destroy();
    };
    socket.on('data', (chunk) => chunks.push(chunk));
    let failure = null;
    socket.on('error', (e) => { failure = e; });
    socket.on('close', () => {
      try {
        if (failure && chunks.length === 0) throw new ToolError('connect to the host: ' + failure.message, { code: 'unavailable' });
        resolve(decode(Buffer.concat(chunks)));
      } catch (e) {
        reject(e);
      }
    });
    socket.write(data);
  });
}

const LONE_SURROGATE = /\p{Surrogate}/u; // isWellFormed of strings needs Node.js 20

// encode returns a request as JSON. JSON has no NaN, no infinity and no lone surrogates:
// JSON.stringify and the host would replace them, and the tool would do something else than
// what the code says.
function encode(payload) {
  const paths = new Map(); // of objects, below the arguments
  return JSON.stringify(payload, function (key, value) {
    if (typeof value === 'bigint') value = Number(value);
    const number = typeof value === 'number' || value instanceof Number;
    const { server, tool, name } = payload;
    const invalid = (text) => new ToolError('invalid arguments: ' + text, { code: 'invalid_arguments', server, tool: String(tool || name).slice(0, 200) });
    if (typeof value === 'string' && LONE_SURROGATE.test(value)) {
      throw invalid("a string has a lone surrogate, which no tool can receive; pass text.replace(/\\p{Surrogate}/gu, '?')");
    }
    if (!number && (value === null || typeof value !== 'object')) return value;
    const holder = paths.get(this) || '';
    const part = Array.isArray(this) ? `[${key}]` : /^[A-Za-z_$][\w$]*$/.test(key) ? `.${key}` : `[${JSON.stringify(key)}]`;
    const path = this === payload || key === '' ? '' : holder + part;
    if (number && !Number.isFinite(Number(value))) {
      throw invalid(`${path.replace(/^\./, '').slice(0, 200)}: JSON has no number ${value}; pass null or leave it out`);
    }
    if (!number) paths.set(value, path);
    return value;
  });
}

// refusal is the error of a call in a run that may not call.
function refusal({ server, tool, name }) {
  const called = [server, tool || name].filter(Boolean).map((part) => String(part).slice(0, 200)).join('.') || 'the tools of your servers';
  return new ToolError(`code mode is off for this connection: code cannot call tools, and nothing was called. Call ${called} directly instead, without code. `
    + 'To switch code mode on, connect without ?codemode=false to a Glovebox that was started with --tools', { code: 'denied', server, tool: tool || name });
}

// ask sends a request to the host and returns its answer. name is the called function in
// messages, and caller the function whose callers the stack of an error shows.
function ask(method, payload, name, caller) {
  const call = { name, cancel: null, answer: null };
  const origin = {};
  Error.captureStackTrace(origin, caller);
  call.answer = perform(method, payload, call, origin);
  return call.answer;
}

async function perform(method, payload, call, origin) {
  try {
    if (!bridge) {
      await new Promise((resolve) => setTimeout(resolve, REFUSAL_DELAY));
      if (off) throw refusal(payload);
      throw new ToolError(`${call.name} was called after its run had ended and did not run; use top-level await`, { code: 'interrupted' });
    }
    const { socket, token } = bridge;
    const body = Buffer.from(encode(payload));
    const header = { token, method, length: body.length };
    const data = Buffer.concat([Buffer.from(JSON.stringify(header) + '\n'), body]);
    calls.add(call);
    if (active >= MAX_WAITING) {
      await new Promise((resolve, reject) => {
        call.cancel = reject;
        waiting.push(resolve);
      });
    }
    active++;
    try {
      return await exchange(socket, data, call);
    } finally {
      active--;
      const next = waiting.shift();
      if (next) next();
    }
  } catch (e) {
    if (e instanceof ToolError) setOrigin(e, origin);
    throw e;
  } finally {
    calls.delete(call);
  }
}

// ADVICE fits a call that nothing awaits, and one whose Promise.all another call has failed.
const ADVICE = '. Await each call; Promise.all waits only until one fails, Promise.allSettled for all';

// endRun cancels the run's calls in progress and refuses further ones. It returns a note
// about the cancelled calls, or '' if there are none.
function endRun(interrupted) {
  bridge = null;
  const open = [...calls];
  calls.clear();
  waiting.length = 0;
  for (const { name, cancel, answer } of open) {
    const error = new ToolError(`${name} was still in progress and was cancelled when the run ended; the tool may have run`, { code: 'interrupted' });
    cancelled.add(error);
    answer.catch(() => {}); // a later cell may await it
    cancel(error);
  }
  if (open.length === 0) return '';
  const names = [...new Set(open.slice(0, MAX_NAMED).map((call) => call.name))].join(', ') + (open.length > MAX_NAMED ? ', ...' : '');
  const were = open.length === 1 ? '1 tool call was' : `${open.length} tool calls were`;
  const ran = open.length === 1 ? 'was cancelled when the run ended; the tool' : 'were cancelled when the run ended; the tools';
  return `Note: ${were} still in progress and ${ran} may have run, unless a note says otherwise: ${names}${interrupted ? '' : ADVICE}\n`;
}

function callTool(name, args = {}) {
  return ask('tool', { name, arguments: args, language: 'javascript' }, `tools.${String(name).slice(0, 200)}`, callTool);
}

// Lines is an array of lines that is shown as text. notes are not among them, and shown
// as well.
class Lines extends Array {
  static get [Symbol.species]() { return Array; }
  toString() { return [...this, ...this.notes].join('\n'); }
  [Symbol.for('nodejs.util.inspect.custom')]() { return this.toString(); }
}

// optionsOf removes the last argument and returns it if it is an object of options.
function optionsOf(args) {
  const last = args.at(-1);
  return last && Object.getPrototypeOf(last) === Object.prototype ? args.pop() : {};
}

const methods = {
  // A line for each of the tools that match words, the best first.
  async search(query = '', limit = 10) {
    if (typeof query === 'object') ({ query = '', limit = 10 } = query || {});
    if (typeof limit === 'object') ({ limit = 10 } = limit || {});
    if (!Number.isInteger(limit)) throw new TypeError(`tools.search takes words and a number: search("issue", 5), not ${limit}`);
    const found = await ask('search', { query: String(query), limit, language: 'javascript' }, 'tools.search', methods.search);
    const lines = Lines.from(found.filter((t) => t.name), (t) => t.line);
    Object.defineProperty(lines, 'notes', { value: found.filter((t) => !t.name).map((t) => t.line) });
    return lines;
  },
  // The signatures and documentation of tools ("server.tool") or of all tools of a
  // server; a last argument {detail: "schema"} returns their JSON schemas.
  async describe(...names) {
    const { detail = 'full' } = optionsOf(names);
    if (names.some(Array.isArray)) throw new TypeError('tools.describe takes each name as an argument: describe(...names), not an array of them');
    const described = await ask('describe', { names: names.map((n) => (typeof n === 'string' ? n : String(n).replace(/^tools\./, ''))), detail, language: 'javascript' }, 'tools.describe', methods.describe);
    return described.map((t) => t.text).join('\n\n');
  },
};

// Names that a promise, a printer or a loader looks for are no tools. The host calls such
// a tool t_then.
const MEMBERS = new Set(['then', 'catch', 'finally', 'constructor', 'prototype', 'toJSON', 'toString', 'valueOf']);
const isName = (key) => typeof key === 'string' && !MEMBERS.has(key) && !key.startsWith('_');

// Names that libraries ask any value for, to see what it is.
const ASKED = new Set(['$$typeof', 'asymmetricMatch', 'nodeType', 'inspect', 'listener', 'message', 'stack', 'cause']);

function functionOf(server, tool, called = { server, tool }) {
  const f = (args = {}) => {
    if (args === null || typeof args !== 'object' || Array.isArray(args)) {
      return Promise.reject(new TypeError(`${toolPath(server, tool)} takes one object: {name: value}`));
    }
    return ask('tool', { ...called, arguments: args, language: 'javascript' }, toolPath(server, tool), f);
  };
  Object.defineProperty(f, 'name', { value: tool });
  Object.defineProperty(f, 'toString', { value: () => `${server}.${tool}` });
  Object.defineProperty(f, DISPLAY, { value: async () => ({ 'text/plain': toolPath(server, tool) }) });
  return f;
}

function toolOf(server, tool) {
  const f = functionOf(server, tool);
  return new Proxy(f, {
    get(_, key) {
      if (!isName(key) || key in f || ASKED.has(key)) return f[key];
      const path = toolPath(server, tool);
      throw new TypeError(`the tool ${server}.${tool} has no property ${key}: call it first, as in r = await ${path}({name: value}); r[${JSON.stringify(key)}]. ` +
        `If there is a tool "${tool}.${key}", it is ${toolPath(server, `${tool}.${key}`)}`);
    },
  });
}

// toolPath returns the expression for a tool, as in tools.files["read.me"].
function toolPath(...names) {
  return 'tools' + names.map((n) => (/^[A-Za-z_$][\w$]*$/.test(n) ? `.${n}` : `[${JSON.stringify(n)}]`)).join('');
}

// dotted returns what tools['a.b'] means: the tool b of the server a, or the server a.b.
function dotted(name) {
  const dot = name.indexOf('.');
  const f = functionOf(name.slice(0, dot), name.slice(dot + 1), { name }); // the host knows the servers
  return new Proxy(f, {
    get: (_, key) => (isName(key) && !(key in f) ? toolOf(name, key) : f[key]),
  });
}

const INSPECT = Symbol.for('nodejs.util.inspect.custom');
const DISPLAY = Symbol.for('Jupyter.display');

// namesOf returns what the host's catalog has under a key, sorted and without repetition.
async function namesOf(key, payload, name) {
  const found = await ask('catalog', payload, name, namesOf);
  return [...new Set(found.map((t) => t[key]))].sort().join(', ');
}

// target is the object behind a proxy: methods by name, and how the proxy is shown. brief
// is its text in console.log, which cannot wait for the host; full returns that of a
// cell's value.
function target(members, name, brief, full) {
  const object = Object.assign(Object.create(null), members);
  const hidden = {
    [Symbol.toPrimitive]: () => name,
    [INSPECT]: () => brief,
    [DISPLAY]: async () => ({ 'text/plain': await full().catch(() => brief) }),
  };
  for (const key of Object.getOwnPropertySymbols(hidden)) Object.defineProperty(object, key, { value: hidden[key] });
  return object;
}

function serverOf(server) {
  const name = `tools.${server}`;
  const object = target({}, name, `${name}: await tools.describe('${server}') lists its tools`,
    async () => `${name}: ${(await namesOf('identifier', { server }, name)) || (await methods.describe(server, { detail: 'names' }).catch((e) => e.reason))}`);
  // No tool is called: the host's error names the servers that have a tool of this name. The
  // function is shown as the object is, also in JSON.
  const f = () => ask('tool', { server, tool: '', language: 'javascript' }, name, f);
  for (const key of Object.getOwnPropertySymbols(object)) Object.defineProperty(f, key, { value: object[key] });
  Object.defineProperty(f, 'toJSON', { value: () => ({}) });
  return new Proxy(Object.setPrototypeOf(f, null), {
    get: (_, key) => (isName(key) ? toolOf(server, key) : key === 'toJSON' ? f.toJSON : object[key]),
  });
}

// Members that a program expects of any function, rather than tools of that name.
const OF_FUNCTION = new Set(['call', 'apply', 'bind']);

// alsoServer returns a function of tools that has the tools of the server of its name, if there is
// one: tools.search('words') is the function, tools.search.web({q: 'words'}) calls a tool.
function alsoServer([name, f]) {
  return [name, new Proxy(f, {
    get: (_, key) => {
      if (key === Symbol.toPrimitive) return () => `tools.${name}`; // describe takes it as a server
      return isName(key) && !OF_FUNCTION.has(key) ? toolOf(name, key) : f[key];
    },
  })];
}

const servers = target(Object.fromEntries(Object.entries(methods).map(alsoServer)), 'tools',
  "tools of the user's servers: await tools.search('words') finds tools, await tools.describe('server') lists those of a server, await tools.server.tool({name: value}) calls one",
  async () => `tools of the servers ${await namesOf('server_identifier', {}, 'tools')}`);
Object.freeze(servers); // by the name of a method, a program calls the method
const tools = new Proxy(servers, {
  get: (_, key) => {
    if (!isName(key) || Object.hasOwn(methods, key)) return servers[key];
    return key.includes('.') ? dotted(key) : serverOf(key);
  },
});

// offer lets the run that follows call, or for null refuses its calls.
function offer(setup) {
  bridge = JSON.parse(setup);
  off = !bridge;
  if (off) {
    delete process.env.GLOVEBOX_TOOLS;
    delete process.env.GLOVEBOX_TOOLS_TOKEN;
    return;
  }
  process.env.GLOVEBOX_TOOLS = bridge.socket;
  process.env.GLOVEBOX_TOOLS_TOKEN = bridge.token;
  const path = (process.env.PATH || '/usr/local/bin:/usr/bin:/bin').split(':');
  if (!path.includes(bridge.bin)) process.env.PATH = [...path, bridge.bin].join(':');
  for (const [name, value] of Object.entries({ tools, callTool, call_tool: callTool, ToolError })) {
    if (!Object.hasOwn(globalThis, name)) hide(name, value);
  }
}

return { offer, endRun, wasCancelled: (error) => cancelled.has(error) };
