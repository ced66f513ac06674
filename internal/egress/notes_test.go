package egress

import (
	"net/http"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/egress/policy"
)

// plainInterceptor finds the placeholder of a secret in every request of plain HTTP.
type plainInterceptor struct{ fakeInterceptor }

func (plainInterceptor) Plain(Box, string, *http.Request) []string { return []string{"api"} }

// TestNotePlain_NamesWhereHTTPSIsAllowed: the remedy for a placeholder that went out over plain
// HTTP asks the operator for an entry only if the policy allows no https to the host.
func TestNotePlain_NamesWhereHTTPSIsAllowed(t *testing.T) {
	const host = "api.example.org"
	for name, c := range map[string]struct {
		allow []string
		port  uint16
		want  string
	}{
		"port of https":        {[]string{host}, 80, " Use https://" + host + "."},
		"port of the request":  {[]string{host + ":19443"}, 19443, " Use https://" + host + ":19443."},
		"port of https first":  {[]string{host, host + ":19443"}, 19443, " Use https://" + host + "."},
		"another port":         {[]string{"http://" + host, host + ":8443"}, 80, " Use https://" + host + ":8443."},
		"plain only":           {[]string{"http://" + host}, 80, " The operator can allow it with the entry https://" + host + "."},
		"plain and a database": {[]string{"http://" + host, "tcp://" + host + ":5432"}, 80, " The operator can allow it with the entry https://" + host + "."},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{Intercept: plainInterceptor{}}, c.allow)
			w.n.notePlain(target{host: host, port: c.port}, policy.Verdict{OK: true}, &http.Request{Header: http.Header{}})
			if notes := w.n.Take(); len(notes) != 1 || !strings.HasSuffix(notes[0].Text, "over https only."+c.want) {
				t.Errorf("notes %+v, want one that ends with %q", notes, c.want)
			}
		})
	}

	// Where only some requests are allowed, connections that the server cannot read are refused.
	w := newWorld(t, Options{Intercept: plainInterceptor{}}, nil)
	w.rule(host+":8080", http.MethodGet, "/")
	if got := w.n.secureAt(target{host: host, port: 8080}); got != "" {
		t.Errorf("with an entry for GET only, https is at %s", got)
	}
}
