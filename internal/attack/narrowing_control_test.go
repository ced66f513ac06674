//go:build linux

package attack

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// wideOpen is a server whose boxes reach every host, whatever limit they were made with.
func wideOpen(w http.ResponseWriter, r *http.Request) {
	var call struct {
		Params struct {
			Arguments struct{ Command string }
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&call); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	words := strings.Fields(call.Params.Arguments.Command)
	if n := len(words); n > 3 { // the host, the port and the path are the last ones
		res, err := http.Get("http://127.0.0.1:" + words[n-2] + "/" + words[n-1])
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		res.Body.Close()
	}
	w.Write([]byte(`{"result":{"structuredContent":{"snapshot_id":"any"}}}`)) // the client may have left
}

// Attacks on narrowed boxes succeed against a server and a gate that know no limits, and the
// judge notices.
func TestControl_Narrowing(t *testing.T) {
	for id, want := range map[string]string{
		"narrowing/every-door":      "a server on loopback was reached",
		"narrowing/another-network": "widens the box",
		"narrowing/fork":            "took the place of a narrowed one",
		"narrowing/restore":         "a box from a snapshot: a program reached",
		"narrowing/rollback":        "rolled back to a wide snapshot: a program reached",
		"narrowing/template":        "a box of a narrow template: a program reached",
		"narrowing/killed-server":   "after the server was killed: a program reached",
	} {
		t.Run(strings.ReplaceAll(id, "/", "-"), func(t *testing.T) {
			naive := httptest.NewServer(http.HandlerFunc(wideOpen))
			defer naive.Close()
			cfg := unisolated(t, nil)
			if cfg.target = naive.Listener.Addr().String(); id == "narrowing/every-door" {
				cfg.egress.network = func(r *netRig) network { return &openProxy{r} }
			}
			expectBroken(t, run(t, cfg, id), want)
		})
	}
}
