package e2e

import (
	"strings"
	"testing"
)

// TestSSE_ClientNamesRemedy checks that a stock client of the HTTP+SSE transport, which is not
// supported, shows the user what to use instead.
func TestSSE_ClientNamesRemedy(t *testing.T) {
	t.Parallel()
	clients(t)
	dir := state(t)
	p := launch(t, dir)
	const script = `
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
const url = new URL(process.argv[1]);
const seen = [];
const look = async (...args) => {
  const response = await fetch(...args);
  seen.push(response.status, await response.clone().text());
  return response;
};
const client = new Client({ name: 'e2e', version: '1' });
await client.connect(new SSEClientTransport(url, { eventSourceInit: { fetch: look } })).then(() => seen.push('connected'), () => {});
console.log(JSON.stringify(seen));
process.exit(0);
`
	out := string(node(t, environment(t, dir), "--input-type=module", "--eval", script, p.url))
	if !strings.Contains(out, "405") || !strings.Contains(out, "use Streamable HTTP") || strings.Contains(out, "connected") {
		t.Errorf("the client saw %s", out)
	}
	p.stop(t)
}
