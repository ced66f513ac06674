// Interrupts.

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
