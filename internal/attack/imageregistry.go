//go:build linux

package attack

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
)

// registry serves with h, and returns the name of an image in it.
func registry(h http.HandlerFunc) (name string, end func()) {
	url, end := listener(h)
	return strings.TrimPrefix(url, "http://") + "/attack/image", end
}

// turning serves a registry that answers with good, and with bad after turn was called.
func turning(good, bad http.HandlerFunc) (name string, turn, end func()) {
	var turned atomic.Bool
	name, end = registry(func(w http.ResponseWriter, r *http.Request) {
		if turned.Load() {
			bad(w, r)
			return
		}
		good(w, r)
	})
	return name, func() { turned.Store(true) }, end
}

func imageOtherManifest(ctx context.Context, t *trial) error {
	o, done, err := t.operator()
	if err != nil {
		return err
	}
	defer done()
	good, err := honest.pack()
	if err != nil {
		return err
	}
	bad, err := evil.pack()
	if err != nil {
		return err
	}
	name, turn, end := turning(good.serve, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Docker-Content-Digest", good.manifest)
		bad.serve(w, r)
	})
	defer end()
	if err := o.takes(ctx, name+"@"+good.manifest); err != nil {
		return err
	}
	turn()
	_, err = o.pull(ctx, "state-other", name+"@"+good.manifest, "")
	t.check(err != nil, "another image than that of the digest was accepted")
	return nil
}

// imageLargeManifest has a manifest of 12 MB, with a note that says nothing.
func imageLargeManifest(ctx context.Context, t *trial) error {
	o, done, err := t.operator()
	if err != nil {
		return err
	}
	defer done()
	good, err := honest.pack()
	if err != nil {
		return err
	}
	d := honest
	d.manifest = func(m object) { m["annotations"] = object{"note": strings.Repeat("x", 12<<20)} }
	large, err := d.pack()
	if err != nil {
		return err
	}
	name, turn, end := turning(good.serve, large.serve)
	defer end()
	if err := o.takes(ctx, name+":1"); err != nil {
		return err
	}
	turn()
	_, err = o.pull(ctx, "state-large", name+":1", "")
	t.check(err != nil, "a manifest of 12 MB was accepted")
	return nil
}

// spied checks that a pull from a registry that answers with serve, after an honest pull
// from it, has sent no request to another server, which stands for a metadata service.
func spied(ctx context.Context, t *trial, d draft, serve func(spy string, p *packed, w http.ResponseWriter, r *http.Request)) error {
	o, done, err := t.operator()
	if err != nil {
		return err
	}
	defer done()
	var asked atomic.Int32
	spy, closeSpy := listener(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte(`{"token":"x"}`)) // the client may have left
	})
	defer closeSpy()
	good, err := honest.pack()
	if err != nil {
		return err
	}
	change := d.manifest
	d.manifest = func(m object) {
		m["annotations"] = object{"spy": spy}
		if change != nil {
			change(m)
		}
	}
	bad, err := d.pack()
	if err != nil {
		return err
	}
	name, turn, end := turning(good.serve, func(w http.ResponseWriter, r *http.Request) { serve(spy, bad, w, r) })
	defer end()
	if err := o.takes(ctx, name+":1"); err != nil {
		return err
	}
	turn()
	_, err = o.pull(ctx, "state-spied", name+":1", "")
	t.check(err != nil, "the pull succeeded without the answer that it needs")
	t.check(asked.Load() == 0, "the other server got %d requests", asked.Load())
	return nil
}

func imageForeignLayer(ctx context.Context, t *trial) error {
	d := honest
	d.manifest = func(m object) {
		layer := m["layers"].([]any)[0].(object)
		layer["urls"] = []any{m["annotations"].(object)["spy"].(string) + "/layer"}
	}
	return spied(ctx, t, d, func(_ string, p *packed, w http.ResponseWriter, r *http.Request) {
		if m, err := p.parts(); err != nil || strings.HasSuffix(r.URL.Path, m.Layers[0].Digest) {
			http.NotFound(w, r)
			return
		}
		p.serve(w, r)
	})
}

func imageRedirect(ctx context.Context, t *trial) error {
	for _, part := range []string{"/blobs/", "/manifests/"} {
		if err := spied(ctx, t, honest, func(spy string, p *packed, w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, part) {
				http.Redirect(w, r, spy+"/latest/meta-data/", http.StatusTemporaryRedirect)
				return
			}
			p.serve(w, r)
		}); err != nil {
			return err
		}
	}
	return nil
}

func imageToken(ctx context.Context, t *trial) error {
	return spied(ctx, t, honest, func(spy string, _ *packed, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/latest/meta-data/",service="x"`, spy))
		w.WriteHeader(http.StatusUnauthorized)
	})
}

// imageCredentials asks for credentials at two registries on this machine, of which the
// operator has those for one.
func imageCredentials(ctx context.Context, t *trial) error {
	if t.cfg.Program == "" && t.cfg.images.pull == nil {
		return skip("the run has no program to start")
	}
	o, done, err := t.operator()
	if err != nil {
		return err
	}
	defer done()
	good, err := honest.pack()
	if err != nil {
		return err
	}
	var told [2]atomic.Int32 // requests with credentials, by registry
	var names [2]string
	for i := range names {
		name, end := registry(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "" {
				w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			told[i].Add(1)
			good.serve(w, r)
		})
		defer end()
		names[i] = name
	}
	host, _, _ := strings.Cut(names[0], "/")
	config, err := json.Marshal(object{"auths": object{host: object{"auth": base64.StdEncoding.EncodeToString([]byte("operator:" + o.secret))}}})
	if err != nil {
		return err
	}
	if err := os.Mkdir(o.path("docker"), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(o.path("docker/config.json"), config, 0o600); err != nil {
		return err
	}
	if _, err := o.pull(ctx, "state-own", names[0]+":1", o.path("docker")); err != nil {
		return fmt.Errorf("pull with credentials: %w", err)
	}
	_, err = o.pull(ctx, "state-other", names[1]+":1", o.path("docker"))
	t.check(err != nil && told[0].Load() > 0, "the pull from the other registry succeeded")
	t.check(told[1].Load() == 0, "the other registry got credentials, %d times", told[1].Load())
	return nil
}
