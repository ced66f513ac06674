// Rewrites import and export declarations, import() and import.meta, which a script may
// not contain, for V8's REPL mode. Text in, text out.
//
// A cell may be any text, so everything here takes time linear in its length:
// declarations are read token by token, and an unexpected token ends them.
(function (require) {
'use strict';

const { Set } = globalThis;
const { stringify } = JSON;
const vm = require('vm');

const HIDDEN = 'imp0rt'; // as long as "import", so that columns stay correct
const WORD = /[\p{ID_Start}$_][\p{ID_Continue}$\u200c\u200d]*|\d[\w.]*/uy;
const SPACE = /\s*/y;
const BEFORE_REGEX = new Set(['return', 'typeof', 'case', 'in', 'of', 'delete', 'void', 'throw', 'new', 'instanceof', 'await', 'yield', 'else', 'do', '']);
const DECLARED = new Set(['function', 'class', 'const', 'let', 'var']);

// Reads tokens. Each method except space returns the token, or '' without reading if
// the next token is another one.
class Reader {
  constructor(code, at) {
    this.code = code;
    this.at = at;
  }

  // Skips white space and comments.
  space() {
    const { code } = this;
    for (;;) {
      SPACE.lastIndex = this.at;
      SPACE.exec(code);
      this.at = SPACE.lastIndex;
      const block = code.startsWith('/*', this.at);
      if (!block && !code.startsWith('//', this.at)) return this;
      const end = code.indexOf(block ? '*/' : '\n', this.at + 2);
      this.at = end < 0 ? code.length : end + (block ? 2 : 1);
    }
  }

  mark(c) {
    this.space();
    if (this.code[this.at] !== c) return '';
    this.at++;
    return c;
  }

  word(wanted) {
    this.space();
    WORD.lastIndex = this.at;
    const m = WORD.exec(this.code);
    if (!m || (wanted ? m[0] !== wanted : /\d/.test(m[0][0]))) return '';
    this.at += m[0].length;
    return m[0];
  }

  // A string with its quotes.
  string() {
    this.space();
    const c = this.code[this.at];
    if (c !== "'" && c !== '"') return '';
    let i = this.at + 1;
    for (; i < this.code.length && this.code[i] !== c && this.code[i] !== '\n'; i++) if (this.code[i] === '\\') i++;
    if (this.code[i] !== c) return '';
    const text = this.code.slice(this.at, i + 1);
    this.at = i + 1;
    return text;
  }

  // The content of braces, each element one or two names (a, a as b; a: b), as pairs;
  // null if it is something else.
  braces(between) {
    const pairs = [];
    if (!this.mark('{')) return null;
    while (!this.mark('}')) {
      const first = this.string() || this.word();
      if (!first) return null;
      const second = between(this) ? this.string() || this.word() : first;
      if (!second) return null;
      pairs.push([first, second]);
      if (this.mark(',')) continue;
      return this.mark('}') ? pairs : null;
    }
    return pairs;
  }
}

const as = (reader) => reader.word('as');
const colon = (reader) => reader.mark(':');

// Evaluated code has no module loader, so import() becomes a call of the kernel, and so
// do import declarations, which scripts may not contain; import.meta becomes a property
// of it. Exports have no importer.
function rewriteImports(code) {
  const edits = [];
  const braces = []; // of templates: depth at ${
  let i = 0, depth = 0, prev = '', prevWord = false;
  const n = code.length;
  const template = () => { // from i behind ` or }
    for (; i < n; i++) {
      const c = code[i];
      if (c === '\\') i++;
      else if (c === '`') { i++; return; }
      else if (c === '$' && code[i + 1] === '{') { i += 2; braces.push(depth); depth++; return; }
    }
  };
  while (i < n) {
    const c = code[i];
    if (c === '/' && code[i + 1] === '/') {
      while (i < n && code[i] !== '\n') i++;
      continue;
    }
    if (c === '/' && code[i + 1] === '*') {
      const end = code.indexOf('*/', i + 2);
      i = end < 0 ? n : end + 2;
      continue;
    }
    if (c === ' ' || c === '\t' || c === '\r' || c === '\n') { i++; continue; }
    if (c === '"' || c === "'") {
      for (i++; i < n && code[i] !== c && code[i] !== '\n'; i++) if (code[i] === '\\') i++;
      i++; prev = '"'; prevWord = false;
      continue;
    }
    if (c === '`') { i++; prev = '"'; prevWord = false; template(); continue; }
    if (c === '/' && (prevWord ? BEFORE_REGEX.has(prev) : !')]}"'.includes(prev || '('))) {
      let set = false;
      for (i++; i < n && code[i] !== '\n'; i++) {
        if (code[i] === '\\') i++;
        else if (code[i] === '[') set = true;
        else if (code[i] === ']') set = false;
        else if (code[i] === '/' && !set) break;
      }
      i++; prev = '"'; prevWord = false;
      continue;
    }
    WORD.lastIndex = i;
    const word = WORD.exec(code);
    if (word) {
      if (word[0] === 'import' && prev !== '.') {
        let j = i + 6;
        while (j < n && /\s/.test(code[j])) j++;
        if (code[j] === '(' || code.startsWith('.meta', j)) {
          edits.push([i, i + 6, HIDDEN]);
        } else if (code[j] !== '.' && depth === 0) {
          const found = importDeclaration(code, i);
          if (found) {
            edits.push([i, found.end, found.text]);
            i = found.end; prev = ';'; prevWord = false;
            continue;
          }
        }
      }
      if (word[0] === 'export' && prev !== '.' && depth === 0) {
        const found = exportDeclaration(code, i);
        if (found) {
          edits.push([i, found.end, found.text]);
          i = found.end; prev = ';'; prevWord = false;
          continue;
        }
      }
      i += word[0].length; prev = word[0]; prevWord = true;
      continue;
    }
    if (c === '(' || c === '[' || c === '{') depth++;
    if (c === ')' || c === ']' || c === '}') {
      depth--;
      if (c === '}' && braces.length && braces[braces.length - 1] === depth) {
        braces.pop(); i++; prev = '"'; prevWord = false; template();
        continue;
      }
    }
    prev = c; prevWord = false; i++;
  }
  let out = '', at = 0;
  for (const [from, to, text] of edits) {
    out += code.slice(at, from) + text;
    at = to;
  }
  return out + code.slice(at);
}

// The import declaration at i as calls of the kernel: its end and the replacement; null
// if there is none.
function importDeclaration(code, i) {
  const reader = new Reader(code, i + 6);
  const parts = [];
  let star = '', byDefault = '', named = false;
  if (!reader.string()) {
    byDefault = reader.word();
    if (byDefault) parts.push(`default: ${byDefault}`);
    if (!byDefault || reader.mark(',')) {
      if (reader.mark('*')) {
        star = reader.word('as') && reader.word();
        if (!star) return null;
      } else {
        const pairs = reader.braces(as);
        if (!pairs) return null;
        named = true;
        for (const [name, local] of pairs) parts.push(name === local ? name : `${name}: ${local}`);
      }
    }
    if (!reader.word('from')) return null;
  } else {
    reader.at = i + 6;
  }
  const from = reader.string();
  if (!from) return null;
  let end = reader.at, options = '';
  if (reader.word('with') || reader.word('assert')) {
    const pairs = reader.braces(colon);
    if (pairs) {
      options = `, {with: {${pairs.map(([name, value]) => `${name}: ${value}`).join(', ')}}}`;
      end = reader.at;
    }
  }
  reader.at = end;
  while (code[reader.at] === ' ' || code[reader.at] === '\t') reader.at++;
  if (code[reader.at] === ';') end = reader.at + 1;
  const call = `await ${HIDDEN}(${from}${options})`;
  const lines = '\n'.repeat(code.slice(i, end).split('\n').length - 1);
  if (star) return { end, text: `const ${star} = ${call}${byDefault ? `, ${byDefault} = ${star}.default` : ''};${lines}` };
  return { end, text: (parts.length || named ? `const {${parts.join(', ')}} = ${call};` : `${call};`) + lines };
}

// Blanks out the parts of the export declaration at i that are not a declaration. A
// default without a name is an expression.
function exportDeclaration(code, i) {
  const reader = new Reader(code, i + 6);
  const blank = (end, first = '  ') => ({ end, text: code.slice(i, end).replace(/[^\n]/g, ' ').replace('  ', first) });
  if (reader.braces(as)) {
    const { at } = reader;
    return reader.word('from') ? null : blank(at);
  }
  reader.at = i + 6;
  const { at: start } = reader.space();
  const word = reader.word();
  if (word !== 'default') {
    return DECLARED.has(word) || word === 'async' && reader.word('function') ? blank(start) : null;
  }
  const end = reader.at, { at: next } = reader.space();
  reader.word('async');
  let name = '';
  if (reader.word('function')) {
    reader.mark('*');
    name = reader.word();
  } else if (reader.at === next && reader.word('class')) {
    name = reader.word();
    if (name === 'extends') name = '';
  }
  return name ? blank(next) : blank(end, '0,');
}

function compiles(code) {
  try {
    new vm.Script('(async () => {' + code + '\n})');
    return true;
  } catch {
    return false;
  }
}

function prepare(source) {
  let code = source;
  if (/\b(?:im|ex)port\b/.test(code)) code = rewriteImports(code);
  // As in Node's REPL, {a: 1} is an object, not a block.
  if (/^\s*\{/.test(code) && !/;\s*$/.test(code) && compiles('return (' + code.trim() + '\n)')) {
    const lead = /^\s*/.exec(code)[0];
    code = lead + '(' + code.trim() + '\n)';
  }
  return code;
}

return { HIDDEN, prepare };
})
