// Global names that a failed cell hides.

// The names of let, const and class declarations that were not reached and so hide a global.
function hiddenGlobals() {
  let names = [];
  session.post('Runtime.globalLexicalScopeNames', {}, (error, reply) => { if (!error) names = reply.names; });
  const found = [];
  for (const name of new Set(names)) {
    if (!hasOwn(global, name)) continue;
    session.post('Runtime.evaluate', { expression: `void ${name}`, silent: true, objectGroup: 'cell' }, (error, reply) => {
      if (!error && reply.exceptionDetails) found.push(name);
    });
  }
  return found;
}

// V8 keeps a name that a failed cell declared, without a value: reading it throws, and if
// the name is that of a global, the global is lost. No means deletes such a name, but REPL
// mode declares it again, by the keyword of its first declaration alone, hence both.
// A name that hides nothing stays as it is: that it is not defined is the right error.
function uncoverGlobals() {
  hidden.go = () => {
    for (const keyword of ['let', 'const']) {
      for (const name of hiddenGlobals()) {
        session.post('Runtime.evaluate', { expression: `${keyword} ${name} = this.${name}`, replMode: true, silent: true, objectGroup: 'cell' }, () => {});
      }
    }
  };
  try {
    guard.runInThisContext({ breakOnSigint: true, displayErrors: false }); // a getter may loop
  } catch {}
}
