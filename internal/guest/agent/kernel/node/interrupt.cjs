// Interrupts. The thread that ends endless loops on SIGINT is started once: with
// breakOnSigint alone, every cell would start and join one. It receives every SIGINT,
// so a command interrupts a cell that waits.
let watchdog = null, watching = false;
try {
  watchdog = process.binding('contextify');
  if (!['startSigintWatchdog', 'stopSigintWatchdog', 'watchdogHasPendingSigint'].every((name) => typeof watchdog[name] === 'function')) watchdog = null;
} catch {}
// Without any handler, the signal would end the process.
if (!watchdog) process.on('SIGINT', () => {});

// A process group with stopped children gets SIGHUP when it is orphaned.
process.on('SIGHUP', () => {});

// User code that listens to SIGINT replaces the handler, and leaves none when it stops
// listening.
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

let sigints = 0; // SIGINTs of this run that had their effect: ended code, or were taken here

// Takes a pending SIGINT, which found no code to end, and reports whether there was
// one. The nested start only counts, and its stop clears the signal.
function takeSigint() {
  watchdog.startSigintWatchdog();
  return watchdog.stopSigintWatchdog();
}

// Waits until all SIGINTs of this run have had their effect, so that none ends a later
// cell: the agent sends each before it announces it, but the thread that handles them
// may be late. Two that ended the same code count as one, hence the shorter wait after
// the first.
function absorbSigints(announced) {
  for (let ms = 0; watching && !stolen && sigints < announced && ms < (sigints ? 200 : 1000); ms++) {
    if (takeSigint()) sigints++;
    else Atomics.wait(nothing, 0, 0, 1);
  }
  sigints = Math.max(sigints, announced);
}
