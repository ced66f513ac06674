// One run: a cell or a whole program, from the command to its result.

// Promises of waiting cells. V8 ends the process when it collects the promise of a
// pending evaluation.
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

// A program ends as in Node.js, when nothing is left to wait for: listeners to
// beforeExit may add work, and those to exit may set the exit code. The last of them
// replies, unless there is an exit code.
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
    conclude(interruption());
  };
  process.on('beforeExit', last);
  process.on('exit', over);
  input.unref();
}

// showSettled waits for the promise that is the value of a cell, such as that of an async
// main(), and shows it unless its value is undefined.
async function showSettled(promise) {
  if (await promise !== undefined) await show(promise, true);
}

// Runs a cell, or a whole program if file is not undefined (it may be '').
function run(n, code, file) {
  const whole = file !== undefined;
  number = n;
  program = whole;
  if (file) place(file);
  displays = dropped = 0;
  broken = false;
  sigints = 0;
  if (watching && watchdog.watchdogHasPendingSigint()) takeSigint(); // sent by user code
  // An empty cell only checks that the kernel responds.
  if (code.length === 0) return finish(null);
  cells++;
  active = true;
  for (const [type, data] of held) emit(type, data);
  held = [];
  heldSize = 0;
  let over = false;
  // A top-level await that never settles: nothing else is left to wait for.
  const stuck = () => {
    err.write('Warning: Detected unsettled top-level await\n');
    process.exit(13); // like Node.js
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
    // Output of this turn of the event loop belongs to the run.
    later(() => {
      const last = whole && !error ? windUp : () => conclude(error);
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
  const failed = (e) => {
    if (!over) end(describe(e));
    else if (!callWasCancelled(e)) report('Unhandled rejection: ', e);
  };
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
          process.nextTick(() => { throw thrown; }); // { throw thrown; }); => the program's listeners handle it
          end(null);
        } else {
          end(describe(thrown, details));
        }
        return;
      }
      const value = local(reply.result);
      if (value === undefined || whole && util.types.isPromise(value)) {
        end(null); // a program's promise is awaited and not displayed
        return;
      }
      last = value;
      if (util.types.isPromise(value)) showSettled(value).then(() => end(null), failed);
      else {
        const p = show(value, true);
        if (p) p.then(() => end(null), failed);
        else end(null);
      }
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
