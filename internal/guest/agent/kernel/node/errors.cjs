// Errors and their stacks, as the user reads them.

const CELL = /<cell-(\d+)>/g;

// The kernel's frames appear when user code removed prepareStackTrace.
const OURS = /\n +at Session\.post \(node:inspector[^\n]*(?:\n +at [^\n]*)*/g;

function readable(text) { return text.replace(OURS, '').replace(CELL, '<cell $1>'); }

// Stacks contain the user's frames: none of this script, and none outside the outermost
// frame of a cell.
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

// Converts a thrown value to a RunError. details are the inspector's.
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
