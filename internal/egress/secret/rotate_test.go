package secret

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress/redact"
)

const rotatedValue = "ghp_rotatedROTATEDrotatedROTATED76543210"

// rotate writes the values of the secrets api and git as the operator does, reads them, and lets
// the Interceptor use them. An empty value leaves its secret as it is.
func (w *world) rotate(values ...string) {
	w.t.Helper()
	prev := w.i.Secrets()
	var definitions []Definition
	for i, s := range prev.all {
		definitions = append(definitions, s.Definition)
		if i < len(values) && values[i] != "" {
			if err := os.WriteFile(s.File, []byte(values[i]), 0o600); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	s, _, kept, err := Reload(definitions, prev)
	if err != nil || len(kept) > 0 {
		w.t.Fatalf("Reload: %v, kept %v", err, kept)
	}
	w.i.Replace(s)
}

// TestReplace_EndsStreamsOfARotatedSecret: a stream from before the rotation does not know the
// new value, so it must not bring it to the program.
func TestReplace_EndsStreamsOfARotatedSecret(t *testing.T) {
	rotated := make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "first\n")
		w.(http.Flusher).Flush()
		select {
		case <-rotated:
			io.WriteString(w, rotatedValue+"\n")
		case <-time.After(20 * time.Second): // the test has failed
		}
	})
	bothVersions(t, h, func(t *testing.T, w *world, c *http.Client) {
		res, err := c.Get("https://" + apiHost + "/")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body := bufio.NewReader(res.Body)
		if line, err := body.ReadString('\n'); err != nil || line != "first\n" {
			t.Fatalf("the first line is %q, %v", line, err)
		}
		w.rotate(rotatedValue)
		rotated <- struct{}{}
		rest, err := io.ReadAll(body)
		if err == nil || strings.Contains(string(rest), "ROTATED") {
			t.Errorf("after the rotation the stream brings %q, %v; want its end", rest, err)
		}
	})
}

// TestReplace_WithdrawnSecretIsNotSent: a request that is still on its way to the host when its
// secret is withdrawn does not bring it there.
func TestReplace_WithdrawnSecretIsNotSent(t *testing.T) {
	var mu sync.Mutex
	var got []string
	w := newWorld(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r.Header.Get("Authorization"))
	}))
	dials, release := make(chan struct{}), make(chan struct{})
	w.dialing = func() {
		dials <- struct{}{}
		<-release
	}
	c := w.client(box, apiHost, false)
	auth := "Bearer " + w.placeholder(box, "API_TOKEN")
	failed := make(chan error, 1)
	go func() {
		req, err := http.NewRequest(http.MethodGet, "https://"+apiHost+"/", nil)
		if err == nil {
			req.Header.Set("Authorization", auth)
			var res *http.Response
			if res, err = c.Do(req); err == nil {
				res.Body.Close()
			}
		}
		failed <- err
	}()
	<-dials
	none, err := Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	w.i.Replace(none)
	close(release)
	if err := <-failed; err == nil {
		t.Error("the request succeeds, want the end of its connection")
	}
	mu.Lock()
	defer mu.Unlock()
	if len(got) > 0 {
		t.Errorf("the host got %q after the secret was withdrawn", got)
	}
}

// TestReplace_KeepsConnectionsOfOtherSecrets: a rotation ends connections to the hosts of that
// secret alone, idle ones too.
func TestReplace_KeepsConnectionsOfOtherSecrets(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	idle := func(host string) (ended func() error) {
		c := w.client(box, host, false)
		var conn net.Conn
		tr := c.Transport.(*http.Transport)
		dial := tr.DialContext
		tr.DialContext = func(ctx context.Context, network, addr string) (_ net.Conn, err error) {
			conn, err = dial(ctx, network, addr)
			return conn, err
		}
		get(t, c, "https://"+host+"/", "")
		first := conn
		return func() error {
			get(t, c, "https://"+host+"/", "")
			if conn != first {
				return io.EOF
			}
			return nil
		}
	}
	api, git := idle(apiHost), idle(gitHost)
	w.rotate(rotatedValue)
	if api() == nil {
		t.Error("the connection to the host of the rotated secret goes on")
	}
	if err := git(); err != nil {
		t.Errorf("the connection to the host of another secret: %v, want that it goes on", err)
	}
	w.rotate() // nothing differs
	if err := git(); err != nil {
		t.Errorf("after a reload without a change: %v, want that the connection goes on", err)
	}
}

// TestReload_MasksFormerValues: what a host returns is masked from the values that a secret had
// before, also if the definition names another file meanwhile.
func TestReload_MasksFormerValues(t *testing.T) {
	values := []string{apiValue, rotatedValue, "ghp_thirdTHIRDthirdTHIRD"}
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s\n%s\n", strings.Join(values, "\n"), r.Header.Get("Authorization"))
	}))
	w.rotate(values[1])
	moved := w.i.Secrets().all[0].Definition
	moved.File = writeSecret(t, values[2])
	s, changed, _, err := Reload([]Definition{moved}, w.i.Secrets())
	if err != nil || !slices.Equal(changed, []string{"api"}) {
		t.Fatalf("Reload of a definition with another file: changed %q, %v", changed, err)
	}
	w.i.Replace(s)
	_, body := get(t, w.client(box, apiHost, true), "https://"+apiHost+"/", "Bearer "+w.placeholder(box, "API_TOKEN"))
	for _, v := range values {
		if strings.Contains(body, v) {
			t.Errorf("the program reads the value %q of a rotated secret: %q", v, body)
		}
	}
	// A value that comes back is no former one.
	w.rotate(apiValue)
	if got := w.i.Secrets().all[0].former; !slices.Equal(got, []string{values[2], values[1]}) {
		t.Errorf("the former values are %q", got)
	}
}

// TestReload_FormerValuesAreBounded: as many secrets as there may be for one host rotate many
// times, and the current values are masked in any case.
func TestReload_FormerValuesAreBounded(t *testing.T) {
	var definitions []Definition
	for i := range MaxSecrets {
		definitions = append(definitions, Definition{Name: fmt.Sprintf("s%d", i), Hosts: []string{apiHost}, Env: fmt.Sprintf("S%d", i)})
	}
	at := 0
	env := func(name string) (string, bool) { return fmt.Sprintf("value-%s-%d", name, at), true }
	s, err := load(definitions, env)
	for at = 1; at < 2*maxFormer && err == nil; at++ {
		s, _, _, err = reload(definitions, s, env)
	}
	if err != nil {
		t.Fatal(err)
	}
	at--
	h := s.of("").hosts[apiHost]
	masked := h.masked()
	if len(masked) != redact.MaxValues {
		t.Errorf("%d values are masked, want %d", len(masked), redact.MaxValues)
	}
	for i, s := range h.secrets {
		now := fmt.Sprintf("value-S%d-%d", i, at)
		before := fmt.Sprintf("value-S%d-%d", i, at-1)
		if s.value != now || !slices.Contains(masked, now) || !slices.Contains(masked, before) || len(s.former) > maxFormer {
			t.Fatalf("secret %d has the value %q and %d former ones; want %q, and it and the one before masked", i, s.value, len(s.former), now)
		}
	}
}

// TestLoad_EqualMasksAreShared: hosts and owners with equal values have one automaton, which
// takes much more memory than the values.
func TestLoad_EqualMasksAreShared(t *testing.T) {
	definitions := []Definition{
		{Name: "one", Hosts: []string{apiHost, "other.example"}, Env: "ONE", Owners: []string{Everyone}},
		{Name: "two", Hosts: []string{"third.example"}, Env: "TWO", Owners: []string{"alice", Everyone}},
	}
	s, err := load(definitions, func(name string) (string, bool) { return "value-" + name, true })
	if err != nil {
		t.Fatal(err)
	}
	rest, alice := s.of("").hosts, s.of("alice").hosts
	if rest[apiHost].mask != rest["other.example"].mask || rest[apiHost].mask != alice[apiHost].mask {
		t.Error("hosts with equal values have masks of their own")
	}
	if rest[apiHost].mask == rest["third.example"].mask {
		t.Error("hosts with other values have the same mask")
	}
}
