// The JavaScript kernel: evaluates cells in the main context with V8's own REPL
// mode, which supports top-level await and lets later cells declare let, const and
// class again, and reports the results.
//
// The files of the kernel are joined in the order of scripts.go, in one function
// (require, dynamicImport, source), and share its scope. Descriptors: 3 commands in,
// 4 control out, 5 events out, 6 and 7 the read ends of the pipes behind 1 and 2.

// Names that user code may overwrite.
const { Atomics, BigInt, Buffer, Error, Int32Array, Map, Math, Number, Object, Promise, Reflect, Set, SharedArrayBuffer, String, Symbol, SyntaxError, Uint8Array, process } = globalThis;
const fs = require('fs');
const vm = require('vm');
const v8 = require('v8');
const util = require('util');
const net = require('net');
const path = require('path');
const { Writable } = require('stream');
const { Session } = require('inspector');
const Module = require('module');
const { pathToFileURL } = require('url');
const { HIDDEN, prepare } = source;

const { writeSync, readSync } = fs;
const { inspect } = util;
const { stringify } = JSON;
const { hasOwn } = Object;
const global = globalThis;
const later = setImmediate;
const CONTROL = 4, EVENTS = 5, RAW = [6, 7];

const MAX_HELD = 64 << 10;       // output between two runs
const MAX_EVENT = 1 << 20;       // one output message
const MAX_TEXT = 256 << 10;      // one text/plain
const MAX_TRACEBACK = 64 << 10;
const MAX_VALUE = 8 << 10;
const MAX_DISPLAYS = 40;         // per run
const MAX_DISPLAY = 8 << 20;     // its JSON
const MAX_REPRESENTATIONS = 64;  // of one display
const MAX_SOURCES = 32 << 20;    // cells kept for error messages

let active = false;   // between R and D: events may be sent
let held = [], heldSize = 0;
let number = 0;       // of the run
let cells = 0;
let displays = 0, dropped = 0;
let settle = null;    // ends the current run
let broken = false;   // the run was ended by SIGINT
let program = false;  // the run is a whole program
const sources = new Map();
let sourcesSize = 0;
