// The module that cells belong to, and the set-up that ends the start.

const main = new Module('<cell>');

// Sets the path of the code, or the one that it would have as a file.
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
  home.main = main; // scripts check whether they are the program
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
  // Their output is discarded: it would become part of the first cell's.
  held = [];
  heldSize = 0;
  globalThis[Symbol.for('glovebox.holder')] = holder;
  session.post('Runtime.evaluate', { expression: 'globalThis[Symbol.for("glovebox.holder")]' }, (e, r) => { holderId = r.result.objectId; });
  delete globalThis[Symbol.for('glovebox.holder')];
  send(CONTROL, 'I', Buffer.from(stringify({ version: process.versions.node, missing })));
}
