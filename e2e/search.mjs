// Drives the server of web search with a stock client of the official TypeScript SDK:
// calls every tool, sees progress, a cached answer and a failure, and cancels a call.
// Usage:
//
//   node search.mjs v1|v2 legacy|modern stdio PROGRAM [ARG…]
//
// In the end it prints the names of the tools as JSON. Exits 1 with the reason on the
// first answer that is not as expected.
import assert from 'node:assert/strict';
import { connect } from './connect.mjs';

const { client, call } = await connect(...process.argv.slice(2));
const listed = (await client.listTools()).tools;
const ask = (content) => ({ messages: [{ role: 'user', content }] });
const text = (r) => r.content.map((c) => c.text).join('');

const args = {
  perplexity_search: { query: 'q', max_results: 3, search_recency_filter: 'week' },
  perplexity_ask: { ...ask('q'), search_domain_filter: ['a.example'], search_context_size: 'low' },
  perplexity_research: ask('q'),
  perplexity_reason: ask('q'),
  perplexity_search_web: { query: 'q', options: { search_recency: 'day' } },
  perplexity_pro_search: { query: 'q' },
  perplexity_deep_research: { topic: 'q', focus_areas: ['x'] },
  perplexity_reasoning: { query: 'q', context: 'c' },
};
assert.deepEqual(listed.map((t) => t.name).sort(), Object.keys(args).sort());
for (const [name, a] of Object.entries(args)) {
  const r = await call(name, a);
  assert.ok(!r.isError, `${name}: ${text(r)}`);
  if (name === 'perplexity_search') {
    assert.match(text(r), /^Found 3 search results:\n\n1\. \*\*Title of site1\.example\*\*/);
    assert.equal(r.structuredContent.results, text(r));
  } else {
    assert.match(text(r), /^The answer \[1\]\[2\]\./);
  }
  const again = await call(name, a);
  assert.match(text(again), /from the cache|此結果來自快取/, name);
}

let r = await call('perplexity_ask', ask('scenario:limit'));
assert.ok(r.isError);
assert.match(text(r), /429 Too Many Requests.*The limit resets in 17s/);
r = await call('perplexity_search', { query: 'q', max_result: 3 });
assert.ok(r.isError);
assert.match(text(r), /Did you mean 'max_results'\?/);

// The SDK drops progress that arrives with the answer, so this call has none yet.
const abort = new AbortController();
const progress = [];
await assert.rejects(call('perplexity_research', ask('scenario:silent'), {
  signal: abort.signal,
  onprogress: (p) => { progress.push(p.message); abort.abort(new Error('enough')); },
}));
assert.deepEqual(progress, ['Searching: last words']);
assert.match(text(await call('perplexity_ask', ask('after it'))), /^The answer/);
await client.close();
console.log(JSON.stringify(listed.map((t) => t.name)));
