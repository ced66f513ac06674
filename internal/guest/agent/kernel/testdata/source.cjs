// Runs source.cjs for tests: argv is its path. Line by line, JSON in and out.
'use strict';
const vm = require('vm');
const fs = require('fs');
const { prepare } = vm.runInThisContext(fs.readFileSync(process.argv[2], 'utf8'))(require);

const cpu = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
};

const tasks = {
  // As in transform.py.
  grow(unit, n) {
    const [before, repeated, after] = unit;
    const least = (text) => {
      let best = Infinity;
      for (let i = 0; i < 2; i++) {
        const start = cpu();
        prepare(text);
        best = Math.min(best, cpu() - start);
      }
      return best;
    };
    least(before + repeated.repeat(n) + after); // compiles
    let small;
    for (;; n *= 2) {
      small = least(before + repeated.repeat(n) + after);
      if (small > 0.002) break;
      if (n > 1 << 18) return 0;
    }
    return least(before + repeated.repeat(16 * n) + after) / small;
  },
  // A script without import and export stays as it is.
  check(text) {
    const found = prepare(text);
    if (found === text || /^\s*\{/.test(text) || /import|export/.test(text)) return '';
    return `changed: ${JSON.stringify(found)}`;
  },
  prepare,
};

let rest = '';
process.stdin.setEncoding('utf8').on('data', (chunk) => {
  rest += chunk;
  const lines = rest.split('\n');
  rest = lines.pop();
  for (const line of lines) {
    const [name, ...args] = JSON.parse(line);
    fs.writeSync(1, JSON.stringify(tasks[name](...args)) + '\n');
  }
});
