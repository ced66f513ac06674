package secret

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/egress/webserve"
)

// newProofs returns those of a request.
func newProofs() *proofs {
	left := proofs(maxProofs)
	return &left
}

// hostOf returns the secrets of the local user for apiHost.
func hostOf(t *testing.T, definitions ...Definition) *hostSecrets {
	t.Helper()
	s, err := load(definitions, func(string) (string, bool) { return strings.Repeat("v", 4096), true })
	if err != nil {
		t.Fatal(err)
	}
	return s.of("").hosts[apiHost]
}

// TestSwap_ProofsAreBounded fills a header with texts that look like placeholders. The server
// stops proving them, and passes on what follows as it is.
func TestSwap_ProofsAreBounded(t *testing.T) {
	h := hostOf(t, Definition{Name: "api", Hosts: []string{apiHost}, Env: "T"})
	s := h.secrets[0]
	p := s.placeholder(masterKey, "", "box1")
	fake := s.prefix() + strings.Repeat("a", boxSize+proofSize) + " "
	few := http.Header{"Authorization": {strings.Repeat(fake, maxProofs-1) + p}}
	if used := h.swap(few, masterKey, ""); !slices.Equal(used, []string{"api"}) {
		t.Errorf("a placeholder after %d false ones is not replaced", maxProofs-1)
	}
	many := strings.Repeat(fake, webserve.MaxHeader/len(fake)-1) + p
	for what, value := range map[string][]string{"one value": {many}, "two values": {many[:len(many)/2], many[len(many)/2:], p}} {
		got := slices.Clone(value)
		if used := h.swap(http.Header{"Authorization": got}, masterKey, ""); len(used) > 0 || !slices.Equal(got, value) {
			t.Errorf("%s full of false placeholders: %q was used, want that the server stops looking", what, used)
		}
	}
}

// TestSwap_CopiesAreBounded fills a header with true placeholders, whose values would be a
// hundred times as long.
func TestSwap_CopiesAreBounded(t *testing.T) {
	s := hostOf(t, Definition{Name: "api", Hosts: []string{apiHost}, Env: "T"}).secrets[0]
	p := s.placeholder(masterKey, "", "box1") + " "
	value := strings.Repeat(p, webserve.MaxHeader/len(p))
	built, _ := s.replace(value, masterKey, "", newProofs())
	if most := len(value) + (maxReplaced+1)*len(s.value); len(built) > most {
		t.Errorf("the server builds a text of %d bytes from %d, want at most %d", len(built), len(value), most)
	}
	if _, ok := s.swap(value, masterKey, "", newProofs()); ok {
		t.Error("a value with more placeholders than anything needs is replaced")
	}
}

// TestSwap_ManySecretsWithOnePrefix: the bound leaves room for as many secrets as there may be,
// whose placeholders begin alike, so that each is proved for all of them.
func TestSwap_ManySecretsWithOnePrefix(t *testing.T) {
	var definitions []Definition
	for i := range MaxSecrets {
		definitions = append(definitions, Definition{Name: fmt.Sprintf("s%d", i), Hosts: []string{apiHost}, Env: "T", Like: "ghp_"})
	}
	h := hostOf(t, definitions...)
	var values []string
	for _, s := range h.secrets[MaxSecrets-maxSwapped:] {
		values = append(values, s.placeholder(masterKey, "", "box1"))
	}
	if used := h.swap(http.Header{"Authorization": values}, masterKey, ""); len(used) != maxSwapped {
		t.Errorf("%d of %d secrets were used", len(used), maxSwapped)
	}
}
