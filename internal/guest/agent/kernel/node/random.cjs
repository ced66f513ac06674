// Randomness after a restore.

let replaced = false;     // the functions of crypto are replaced
let random = Math.random; // the kernel's or V8's, as opposed to user code's

// Reseeds random generators: this process may be one of several restored from one
// snapshot.
function reseed(entropy) {
  const fresh = (n) => {
    const b = Buffer.allocUnsafeSlow(n);
    const fd = fs.openSync('/dev/urandom', 'r');
    try {
      for (let at = 0; at < n;) at += readSync(fd, b, at, n - at, null);
    } finally {
      fs.closeSync(fd);
    }
    return b;
  };
  const crypto = require('crypto');
  try {
    if (Math.random === random) {
      random = generator(crypto.createHash('sha256').update(entropy).update(fresh(32)).digest());
      Object.defineProperty(random, 'name', { value: 'random' });
      Math.random = random;
    }
  } catch {}
  try {
    if (!replaced) replaceRandom(crypto, fresh);
    replaced = true;
  } catch (e) {
    report('reseed: ', e);
  }
}

// V8's generator cannot be seeded from here; this one (xoshiro128**) replaces it.
function generator(seed) {
  let a = seed.readInt32LE(0), b = seed.readInt32LE(4), c = seed.readInt32LE(8), d = seed.readInt32LE(12) | 1;
  const { imul } = Math;
  const next = () => {
    let r = imul(b, 5);
    r = imul((r << 7) | (r >>> 25), 9);
    const t = b << 9;
    c ^= a; d ^= b; b ^= c; a ^= d; c ^= t;
    d = (d << 11) | (d >>> 21);
    return r >>> 0;
  };
  return () => (next() * 0x200000 + (next() >>> 11)) / 0x20000000000000;
}

// Node.js cannot reseed OpenSSL's generator, which continues from the snapshot until it
// takes new entropy by itself, at the latest after an hour. The functions that return
// random values ask the system from now on; keys that OpenSSL generates itself
// (generateKeyPair, TLS) cannot be changed.
function replaceRandom(crypto, fresh) {
  const bytes = (view) => new Uint8Array(ArrayBuffer.isView(view) ? view.buffer : view, view.byteOffset || 0, view.byteLength);
  const { randomBytes, randomFillSync, randomFill, randomInt, randomUUID, webcrypto } = crypto;
  const done = (f, ...args) => process.nextTick(f, null, ...args);
  const hexUUID = () => {
    const b = fresh(16);
    b[6] = (b[6] & 15) | 64;
    b[8] = (b[8] & 63) | 128;
    return b.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
  };
  // The original functions validate the arguments; their results are overwritten.
  crypto.randomBytes = function (size, callback) {
    const b = randomBytes(size);
    b.set(fresh(b.length));
    return typeof callback === 'function' ? done(callback, b) : b;
  };
  crypto.randomFillSync = function (buf, ...where) {
    const before = Buffer.from(bytes(buf)), all = bytes(buf);
    randomFillSync(buf, ...where);
    const b = fresh(all.length);
    const scale = buf.BYTES_PER_ELEMENT || 1;
    const from = (where[0] || 0) * scale, size = where[1] === undefined ? all.length - from : where[1] * scale;
    all.set(before);
    all.set(b.subarray(0, size), from);
    return buf;
  };
  crypto.randomFill = function (buf, ...rest) {
    const callback = rest.pop();
    if (typeof callback !== 'function') return randomFill(buf, ...rest, callback);
    crypto.randomFillSync(buf, ...rest);
    return done(callback, buf);
  };
  crypto.randomInt = function (min, max, callback) {
    if (max === undefined || typeof max === 'function') [min, max, callback] = [0, min, max];
    randomInt(min, max);
    const range = max - min, limit = 2 ** 48 - (2 ** 48 % range);
    let n;
    do n = fresh(6).readUIntBE(0, 6); while (n >= limit);
    n = n % range + min;
    return typeof callback === 'function' ? done(callback, n) : n;
  };
  crypto.randomUUID = (options) => (randomUUID(options), hexUUID());
  const proto = Object.getPrototypeOf(webcrypto);
  const { getRandomValues } = proto;
  proto.getRandomValues = function (view) {
    Reflect.apply(getRandomValues, this, [view]);
    bytes(view).set(fresh(view.byteLength));
    return view;
  };
  proto.randomUUID = () => hexUUID();
  Module.syncBuiltinESMExports();
}
