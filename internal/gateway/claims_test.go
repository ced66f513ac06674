package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway/listing"
	"github.com/glovebox-dev/glovebox/mcpkit"
)

// A request with many resources is refused before they are compared with the templates,
// and a canceled one ends.
func TestListen_ManyResources(t *testing.T) {
	g, _ := register(t, options(t.TempDir(), mcpkit.Trusted))
	g.publish("a", listing.Entry{Templates: []*mcp.ResourceTemplate{{Name: "a", URITemplate: "x://t/{id}"}}}, true)
	passed := false
	listen := g.Middleware(func(context.Context, string, mcp.Request) (mcp.Result, error) {
		passed = true
		return nil, nil
	})
	request := func(n int) mcp.Request {
		return &mcp.SubscriptionsListenRequest{Params: &mcp.SubscriptionsListenParams{
			Notifications: &mcp.NotificationSubscriptions{ResourceSubscriptions: slices.Repeat([]string{"x://t/1"}, n)},
		}}
	}
	if _, err := listen(t.Context(), "subscriptions/listen", request(maxSubscriptions)); err != nil || !passed {
		t.Errorf("%d resources: %v, passed on: %v", maxSubscriptions, err, passed)
	}
	passed = false
	if _, err := listen(t.Context(), "subscriptions/listen", request(maxSubscriptions+1)); err == nil || !strings.Contains(err.Error(), fmt.Sprint("the limit is ", maxSubscriptions)) || passed {
		t.Errorf("%d resources: %v, passed on: %v", maxSubscriptions+1, err, passed)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	passed = false
	if _, err := listen(ctx, "subscriptions/listen", request(maxSubscriptions)); !errors.Is(err, context.Canceled) || passed {
		t.Errorf("canceled: %v, passed on: %v", err, passed)
	}
	if n := testing.AllocsPerRun(10, func() { g.resourceServers("x://t/1") }); n > 20 {
		t.Errorf("finding the servers of a resource allocates %v times: it compiles the template", n)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// A list of which clients get nothing is one warning, not one for each item.
func TestPublish_OneWarningForItemsLeftOut(t *testing.T) {
	var text bytes.Buffer
	o := options(t.TempDir(), mcpkit.Trusted)
	o.Log = slog.New(slog.NewTextHandler(&text, nil))
	g, _ := register(t, o)
	var all []*mcp.Resource
	for i := range 500 {
		all = append(all, &mcp.Resource{Name: "r", URI: fmt.Sprint("x://r/", i)})
	}
	g.publish("a", listing.Entry{Resources: all}, true)
	g.publish("b", listing.Entry{Resources: all}, true)
	var invalid []*mcp.ResourceTemplate
	for i := range 400 {
		invalid = append(invalid, &mcp.ResourceTemplate{Name: "t", URITemplate: fmt.Sprint("{", i)})
	}
	g.publish("c", listing.Entry{Templates: invalid}, true)
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(text.String(), "level=WARN"); n != 2 || !strings.Contains(text.String(), "server=b count=500") || !strings.Contains(text.String(), "server=c count=400") {
		t.Errorf("%d warnings, want one of each server with the number of its items:\n%s", n, text.String()[:min(text.Len(), 2000)])
	}
}
