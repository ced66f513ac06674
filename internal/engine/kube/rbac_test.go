package kube_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/glovebox-dev/glovebox/internal/engine/kube"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeconfig"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// refusals is a log that keeps what the cluster has refused.
type refusals struct {
	mu   sync.Mutex
	list []string
	some chan struct{} // closed by the first
}

func (r *refusals) Enabled(context.Context, slog.Level) bool { return true }
func (r *refusals) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *refusals) WithGroup(string) slog.Handler            { return r }
func (r *refusals) Handle(_ context.Context, record slog.Record) error {
	record.Attrs(func(a slog.Attr) bool {
		if text := a.Value.String(); strings.Contains(text, "answers 403") {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.list = append(r.list, record.Message+": "+text); len(r.list) == 1 {
				close(r.some)
			}
		}
		return true
	})
	return nil
}

func (r *refusals) err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) == 0 {
		return nil
	}
	return errors.New(strings.Join(r.list, "\n"))
}

// use does with a guest and two engines what servers do, for as long as a Lease needs to be
// renewed, and returns the first refusal of the cluster or another error.
func (c *cluster) use(ctx context.Context, options kubeconfig.Options, namespace string) (err error) {
	refused := &refusals{some: make(chan struct{})}
	defer func() { err = errors.Join(err, refused.err()) }()
	cfg := c.config()
	cfg.Cluster, cfg.Namespace, cfg.Log, cfg.Warm = options, namespace, slog.New(refused), 1
	first, err := kube.Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer first.Close()
	if err := refused.err(); err != nil {
		return err
	}
	if err := first.KeepWarm(ctx, c.warm()); err != nil {
		return err
	}
	if !polltest.Soon(time.Minute, func() bool { return first.WarmKnown() > 0 || refused.err() != nil }) || refused.err() != nil {
		return fmt.Errorf("no Pod is warm: %w", refused.err())
	}
	g, err := first.Create(ctx, "rights", c.warm())
	if err != nil {
		return err
	}
	if st, err := first.State(ctx, "rights"); err != nil || !strings.Contains(string(st.Data), `"pod":"warm-`) {
		return fmt.Errorf("the guest is in the Pod %s, not in the warm one: %w", st.Data, err)
	}
	conn, err := g.Dial(ctx)
	if err != nil {
		return err
	}
	if _, err := conn.Write([]byte("x")); err != nil {
		return err
	}
	if n, err := conn.Read(make([]byte, 1)); err != nil || n != 1 {
		return fmt.Errorf("read from the guest: %d bytes, %w", n, err)
	}
	cfg.SweepEvery = time.Second // it reads the Lease of the other
	second, err := kube.Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer second.Close()
	select {
	case <-time.After(17 * time.Second): // Leases are renewed every 15 s
	case <-refused.some:
		return nil
	}
	states, err := second.List(ctx)
	if err != nil || len(states) != 1 {
		return fmt.Errorf("list %d guests: %w", len(states), err)
	}
	theirs, err := second.Recover(ctx, states[0])
	if err != nil {
		return err
	}
	ending, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err = theirs.Destroy(ending); err == nil {
		return nil
	}
	// Without the right, the engines would try for minutes until they close.
	for _, p := range c.pods(ctx, namespace) {
		err = errors.Join(err, c.api.DeletePod(ctx, namespace, p.Metadata.Name, p.Metadata.UID, 1))
	}
	return err
}

// role returns packaging/kube/rbac.yaml for a namespace, without one verb of one rule, and
// the number of verbs that there are. A negative without leaves nothing out.
func role(t *testing.T, namespace string, without int) (text, left string, verbs int) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "packaging", "kube", "rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	// All objects, and the namespace, have the same name there; some are of the cluster.
	d := yaml.NewDecoder(strings.NewReader(strings.ReplaceAll(string(b), "glovebox", namespace)))
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	for {
		var object map[string]any
		if err := d.Decode(&object); err != nil {
			break
		}
		rules, _ := object["rules"].([]any)
		for i, r := range rules {
			rule := r.(map[string]any)
			list := rule["verbs"].([]any)
			if at := without - verbs; at >= 0 && at < len(list) {
				left = fmt.Sprint(list[at], " ", rule["resources"])
				rule["verbs"] = slices.Delete(slices.Clone(list), at, at+1)
				if len(list) == 1 { // a rule needs a verb
					object["rules"] = slices.Delete(slices.Clone(rules), i, i+1)
				}
			}
			verbs += len(list)
		}
		if err := e.Encode(object); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String(), left, verbs
}

// as returns the kubeconfig of a service account with the role, in a namespace of its own.
func (c *cluster) as(t *testing.T, namespace, role string) kubeconfig.Options {
	t.Helper()
	kubectl := func(stdin string, args ...string) string {
		cmd := exec.Command(os.Getenv("GLOVEBOX_TEST_KUBECTL"), append([]string{"--kubeconfig", c.options.Path}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	kubectl("", "create", "namespace", namespace)
	t.Cleanup(func() {
		kubectl("", "delete", "namespace", namespace, "--wait=false")
		kubectl("", "delete", "clusterrole,clusterrolebinding", namespace)
	})
	kubectl(role, "apply", "-f", "-")
	token := kubectl("", "create", "token", namespace, "-n", namespace)
	admin, err := os.ReadFile(c.options.Path)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "config")
	text := regexp.MustCompile(`token: "[^"]*"`).ReplaceAllString(string(admin), `token: "`+token+`"`)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig.Options{Path: path}
}

// TestRBAC_IsAsSmallAsItCanBe: all works with the role of packaging/kube/rbac.yaml, and
// without any of its verbs the cluster refuses something.
func TestRBAC_IsAsSmallAsItCanBe(t *testing.T) {
	c := onCluster(t)
	if os.Getenv("GLOVEBOX_TEST_KUBECTL") == "" {
		t.Skip("GLOVEBOX_TEST_KUBECTL names no kubectl; run make test-kube")
	}
	_, _, verbs := role(t, "glovebox", -1)
	if verbs < 10 {
		t.Fatalf("the manifest has %d verbs", verbs)
	}
	// Few Pods at a time: the node has two processors.
	places := make(chan struct{}, 4)
	for i := -1; i < verbs; i++ {
		namespace := fmt.Sprintf("rights-%s-%d", strings.ToLower(rand.Text()[:8]), i+1) // a cluster may be used again
		text, left, _ := role(t, namespace, i)
		t.Run(map[bool]string{true: "all", false: "without " + left}[i < 0], func(t *testing.T) {
			t.Parallel()
			places <- struct{}{}
			defer func() { <-places }()
			options := c.as(t, namespace, text)
			ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
			defer cancel()
			err := c.use(ctx, options, namespace)
			if i < 0 && err != nil {
				t.Errorf("with the whole role: %v", err)
			}
			if i >= 0 && (err == nil || !strings.Contains(err.Error(), "answers 403")) {
				t.Errorf("without %s: got %v, want a refusal of the cluster", left, err)
			}
		})
	}
}
