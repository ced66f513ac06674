// Start: names that user code sees, listeners, and the loop of commands.

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

// Listeners of user code replace the kernel's.
function others(event) { return process.listenerCount(event) > 1; }

function uncaught(what, error) {
  report(what, error);
  if (program) process.exit(process.exitCode || 1);
}
process.on('uncaughtException', (e) => {
  if (!others('uncaughtException')) uncaught('Uncaught exception: ', e);
});
process.on('unhandledRejection', (e) => {
  if (others('unhandledRejection') || callWasCancelled(e)) return;
  if (others('uncaughtException')) throw e; // like Node.js
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
  else if (message[0] === 0x4e) network(JSON.parse(message.toString('utf8', 1)));
  else if (message[0] === 0x54) allowTools(message);
  else if (message[0] === 0x53) ready(message.subarray(1).toString());
}

let hostTools = null; // given by the script of the first run that may call the host

function allowTools(message) {
  const end = message.indexOf(0);
  const script = message.toString('utf8', end + 1);
  if (script) hostTools = vm.runInThisContext(`(function (require, hide) {\n${script}})`, { filename: 'glovebox:tools' })(require, hide);
  hostTools.offer(message.toString('utf8', 1, end));
  if (script) uncoverGlobals(); // cells may have failed before the tools were there
}

// callWasCancelled reports whether e is the error of a call that the end of its run
// cancelled. The run has printed a note about the call.
function callWasCancelled(e) { return hostTools !== null && e !== null && typeof e === 'object' && hostTools.wasCancelled(e); }

// conclude ends the run and its tool calls.
function conclude(error) {
  if (error) uncoverGlobals();
  const note = hostTools ? hostTools.endRun(broken) : '';
  if (!note) return finish(error);
  err.write(note);
  later(() => finish(error)); // after the user's handlers of the cancelled calls
}

function interrupted(n, announced) {
  if (n !== number) return;
  absorbSigints(announced);
  if (broken) return;
  broken = true;
  if (settle) settle();
}
