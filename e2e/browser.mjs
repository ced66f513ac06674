// Drives pages in a real browser that use Glovebox with fetch. Usage:
//
//   node browser.mjs URL STEP PAGE [STEP PAGE…]
//
// URL is the endpoint, and PAGE is where page.html is served, of which the names
// *.example lead to this machine. The steps, one after the other in one browser:
//
//   use      the page works in both eras. Prints the line "restart" when the server
//            is to be restarted, and waits for a line that says that this is done.
//   refused  the page may do nothing.
//   rebound  PAGE is the endpoint by another name. A page of that origin is refused in every
//            way.
//   attack   the page sends calls to every name of this machine, in every way that pages
//            have, and can read nothing.
//
// CHROMIUM in the environment is the browser's path. Exits 3 with the outcomes, each after
// its PAGE, if attacks succeeded, and 1 with the reason on the first thing else that is not as
// expected.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const [url, ...steps] = process.argv.slice(2);
const profile = await mkdtemp(join(tmpdir(), 'chromium-'));
const browser = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.CHROMIUM,
  headless: true,
  args: [
    '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
    '--disable-background-networking', '--disable-component-update', '--disable-sync',
    // Nothing but this machine can be reached, by whatever name.
    '--host-resolver-rules=MAP *.example 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost, EXCLUDE 0.0.0.0, EXCLUDE [::1]',
  ],
});

async function open(where) {
  const page = await browser.newPage();
  const response = await page.goto(where);
  return { page, status: response.status() };
}

// use has a page of each era work on one server, which is restarted once.
async function use(address) {
  const users = [];
  for (const era of ['legacy', 'modern']) {
    const { page } = await open(address);
    const context = await page.evaluate(([u, e]) => work(u, e), [url, era]);
    // A page that is closed in the middle of a call hurts no other.
    const { page: victim } = await open(address);
    await victim.evaluate(([u, e, c]) => hang(u, e, c), [url, era, context]);
    await victim.close();
    // Waits in the legacy era, where the call of a client that is gone goes on.
    const end = await page.evaluate(() => client.run('print(end)'));
    assert.equal(end, era === 'modern' ? 'interrupted' : 'finished', `${era}: the call of a page that was closed`);
    users.push({ page, era });
  }
  console.log('restart');
  await once(process.stdin, 'data');
  process.stdin.unref();
  for (const { page, era } of users) {
    await page.evaluate(([u, e]) => again(u, e), [url, era]);
  }
}

// refused has a page try whose origin is not allowed.
async function refused(address) {
  const { page } = await open(address);
  assert.deepEqual(await page.evaluate((u) => attempt(u), url), {
    read: 'TypeError', call: 'TypeError', blind: 'opaque 0', beacon: true,
  });
}

// rebound goes to the server by a name that somebody else had resolved to this
// machine. To the browser page and server are of one origin then.
async function rebound(address) {
  const { page, status } = await open(address);
  // /health answers to every name and restricts no content.
  await page.goto(new URL('/health', address).href);
  await page.setContent(await readFile('page.html', 'utf8'));
  const { open: found } = await page.evaluate((urls) => window.attack(urls), [address]);
  // The page may read why it is refused.
  if (succeeded(address, found.filter((outcome) => !outcome.endsWith(': read 403')))) return;
  assert.equal(status, 403);
  const got = await page.evaluate(async (u) => {
    const r = await fetch(u, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', Accept: 'application/json, text/event-stream' },
      body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/list' }),
    });
    return [r.status, (await r.json()).error.message];
  }, address);
  assert.equal(got[0], 403);
  assert.match(got[1], /Host/);
}

// succeeded reports the outcomes that attacks of a page had, and whether there were any.
function succeeded(address, outcomes) {
  if (outcomes.length === 0) return false;
  console.error(outcomes.map((outcome) => `${address} ${outcome}`).join('\n'));
  process.exitCode = 3;
  return true;
}

// names returns the endpoint by every name that leads to this machine.
function names() {
  const { port, pathname } = new URL(url);
  return ['127.0.0.1', 'localhost', '0.0.0.0', '[::1]', 'rebound.example', '127.0.0.1.rebound.example', '2130706433'].map((n) => `http://${n}:${port}${pathname}`);
}

// attack has a page attack the server by all of its names.
async function attack(address) {
  const { page } = await open(address);
  const { open: found, tried } = await page.evaluate((urls) => window.attack(urls), names());
  succeeded(address, found);
  assert.ok(tried > 100);
}

try {
  for (let i = 0; i < steps.length; i += 2) {
    await { use, refused, rebound, attack }[steps[i]](steps[i + 1]);
  }
} finally {
  await browser.close();
  await rm(profile, { recursive: true, force: true });
}
