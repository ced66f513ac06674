// Values as text, HTML, images: display() and the value of a cell.

const inspectOptions = { colors: false, showProxy: true };

function imageType(value) {
  if (!(value instanceof Uint8Array) || value.length < 8) return '';
  if (value[0] === 0x89 && value[1] === 0x50 && value[2] === 0x4e && value[3] === 0x47) return 'image/png';
  if (value[0] === 0xff && value[1] === 0xd8 && value[2] === 0xff) return 'image/jpeg';
  return '';
}

const METHODS = [
  ['_repr_html_', 'text/html'], ['_toHtml', 'text/html'], ['_repr_markdown_', 'text/markdown'],
  ['_repr_svg_', 'image/svg+xml'], ['_toSvg', 'image/svg+xml'], ['_repr_png_', 'image/png'], ['_toPng', 'image/png'],
  ['_repr_jpeg_', 'image/jpeg'], ['_toJpg', 'image/jpeg'], ['_repr_latex_', 'text/latex'], ['_repr_json_', 'application/json'],
];

function asText(value) {
  if (value == null) return undefined;
  if (typeof value === 'string') return value;
  if (value instanceof Uint8Array) return Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('base64');
  return stringify(value);
}

// The rich representations by MIME type, without those that throw.
async function representations(value) {
  const data = {};
  if (value === null || (typeof value !== 'object' && typeof value !== 'function')) return data;
  const image = imageType(value);
  if (image) {
    data[image] = asText(value);
    data['text/plain'] = `<${image}, ${value.length} bytes>`;
    return data;
  }
  for (const key of [Symbol.for('Jupyter.display'), '_repr_mimebundle_', '_toMime']) {
    try {
      if (typeof value[key] !== 'function') continue;
      const bundle = await value[key]();
      for (const mime of Object.keys(bundle)) {
        const text = asText(bundle[mime]);
        if (text !== undefined) data[mime] = text;
      }
    } catch {}
  }
  for (const [name, mime] of METHODS) {
    if (mime in data) continue;
    try {
      if (typeof value[name] !== 'function') continue;
      const text = asText(await value[name]());
      if (text !== undefined) data[mime] = text;
    } catch {}
  }
  return data;
}

// The text of a value. A long string is not cut here: the server keeps the whole.
function plain(value) {
  return inspect(value, typeof value === 'string' ? { ...inspectOptions, maxStringLength: MAX_TEXT } : inspectOptions);
}

function rich(value) {
  if (value === null || (typeof value !== 'object' && typeof value !== 'function')) return false;
  try {
    return imageType(value) !== '' || [Symbol.for('Jupyter.display'), '_repr_mimebundle_', '_toMime'].some((k) => typeof value[k] === 'function') ||
      METHODS.some(([name]) => typeof value[name] === 'function');
  } catch {
    return false;
  }
}

function publish(data, result) {
  if (displays >= MAX_DISPLAYS) {
    dropped++;
    return;
  }
  const cut = (data['text/plain'] || '').length > MAX_TEXT;
  data['text/plain'] = clip(data['text/plain'] || '', MAX_TEXT);
  const types = Object.keys(data);
  if (types.length > MAX_REPRESENTATIONS) {
    const others = types.filter((m) => m !== 'text/plain');
    for (const m of others.slice(MAX_REPRESENTATIONS - 1)) delete data[m];
  }
  let message;
  for (;;) {
    message = Buffer.from(stringify({ ...(result && { result: true }), ...(cut && { cut }), data }));
    if (message.length <= MAX_DISPLAY) break;
    // Drop the largest representation first; the plain text always fits.
    const largest = Object.keys(data).filter((m) => m !== 'text/plain').reduce((a, b) => (data[a].length >= data[b].length ? a : b));
    delete data[largest];
  }
  displays++;
  if (active) {
    takeRaw();
    send(EVENTS, 'd', message);
  }
}

function show(value, result) {
  if (displays >= MAX_DISPLAYS) {
    dropped++;
    return undefined;
  }
  if (!rich(value)) {
    publish({ 'text/plain': plain(value) }, result);
    return undefined;
  }
  return representations(value).then((data) => {
    if (!('text/plain' in data)) data['text/plain'] = inspect(value, inspectOptions);
    publish(data, result);
  });
}

const shows = new Set(); // displays in progress

function display(...values) {
  for (const value of values) {
    const p = show(value, false);
    if (p) {
      shows.add(p);
      p.catch(() => {}).finally(() => shows.delete(p));
    }
  }
}
