package kube_test

import (
	"crypto/rand"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/kube"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// finding returns what Probe says about a subject.
func finding(t *testing.T, s kube.Settings, name string) engine.Finding {
	t.Helper()
	list := kube.Probe(t.Context(), s)
	i := slices.IndexFunc(list, func(f engine.Finding) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("there is no finding on %s: %+v", name, list)
	}
	return list[i]
}

// TestProbe_NamesTheMissingRight looks with the role of the manifest, and without a verb.
func TestProbe_NamesTheMissingRight(t *testing.T) {
	c := onCluster(t)
	if os.Getenv("GLOVEBOX_TEST_KUBECTL") == "" {
		t.Skip("GLOVEBOX_TEST_KUBECTL names no kubectl; run make test-kube")
	}
	for without, want := range map[int]string{-1: "", 6: "create pods/exec"} {
		namespace := "probe-" + strings.ToLower(rand.Text()[:8])
		text, _, _ := role(t, namespace, without)
		t.Setenv("KUBECONFIG", c.as(t, namespace, text).Path)
		f := finding(t, kube.Settings{Namespace: namespace}, "permissions")
		if want == "" && f.Level != engine.LevelOK {
			t.Errorf("with the whole role: %+v", f)
		}
		if want != "" && (f.Level != engine.LevelFail || !strings.HasSuffix(f.Detail, "may not "+want) || !strings.Contains(f.Fix, "packaging/kube/rbac.yaml")) {
			t.Errorf("without %s: %+v", want, f)
		}
	}
}

// TestProbe_FullQuota makes a quota that leaves room for no Pod.
func TestProbe_FullQuota(t *testing.T) {
	c := onCluster(t)
	kubectl := os.Getenv("GLOVEBOX_TEST_KUBECTL")
	if kubectl == "" {
		t.Skip("GLOVEBOX_TEST_KUBECTL names no kubectl; run make test-kube")
	}
	namespace := "quota-" + strings.ToLower(rand.Text()[:8])
	text, _, _ := role(t, namespace, -1)
	c.as(t, namespace, text)
	t.Setenv("KUBECONFIG", c.options.Path)
	s := kube.Settings{Namespace: namespace}
	if f := finding(t, s, "quota"); f.Level != engine.LevelWarn || !strings.Contains(f.Fix, "kubectl create quota") {
		t.Errorf("without a quota: %+v", f)
	}
	if out, err := exec.Command(kubectl, "create", "quota", "full", "-n", namespace, "--hard=pods=0").CombinedOutput(); err != nil {
		t.Fatalf("create a quota: %v\n%s", err, out)
	}
	polltest.Until(t, time.Minute, "the quota leaves no room", func() bool { // a controller fills in what is used
		f := finding(t, s, "quota")
		return f.Level == engine.LevelWarn && strings.Contains(f.Detail, "pods 0 of 0") && strings.HasPrefix(f.Fix, "raise the quota")
	})
}
