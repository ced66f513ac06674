package kube_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/enginetest"
	"github.com/glovebox-dev/glovebox/internal/engine/kube"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeconfig"
	"github.com/glovebox-dev/glovebox/internal/proctest"
)

// cluster is the cluster of these tests, with images on its node.
type cluster struct {
	options kubeconfig.Options
	image   *engine.Image // a small system with the three programs
	probe   string        // path of the probe on this machine
	api     *kubeapi.Client
}

const (
	helperPath = "/glovebox/pod"
	agentPath  = "/glovebox/agent"
	probePath  = "/glovebox/probe"
)

// namespace has the Pods of the tests.
var namespace = cmp.Or(os.Getenv("GLOVEBOX_TEST_NAMESPACE"), "default")

var shared struct {
	sync.Mutex
	*cluster
	dir string // of TestMain, for programs
}

// TestMain checks that the tests leave no process, except where one of them restarts the
// API server: it belongs to the cluster and outlives them.
func TestMain(m *testing.M) {
	run := proctest.Main
	if os.Getenv("GLOVEBOX_TEST_RESTART_APISERVER") != "" {
		run = (*testing.M).Run
	}
	var err error
	if shared.dir, err = os.MkdirTemp("", "kube-test-"); err != nil {
		fmt.Fprintln(os.Stderr, "make a directory for programs:", err)
		os.Exit(1)
	}
	code := run(m)
	if err := os.RemoveAll(shared.dir); err != nil {
		fmt.Fprintln(os.Stderr, "remove the programs:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// onCluster returns the cluster, or skips the test without one.
func onCluster(t testing.TB) *cluster {
	t.Helper()
	path := os.Getenv("GLOVEBOX_TEST_KUBECONFIG")
	if path == "" {
		t.Skip("GLOVEBOX_TEST_KUBECONFIG names no cluster; run make test-kube")
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster != nil {
		return shared.cluster
	}
	dir, err := os.MkdirTemp(shared.dir, "")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{options: kubeconfig.Options{Path: path}, probe: filepath.Join(dir, "probe")}
	target, err := kubeconfig.Load(c.options)
	if err != nil {
		t.Fatal(err)
	}
	c.api = kubeapi.New(target)
	for path, pkg := range map[string]string{c.probe: "engine/enginetest/probe", filepath.Join(dir, "pod"): "cmd/glovebox-pod"} {
		if built := os.Getenv("GLOVEBOX_TEST_" + strings.ToUpper(filepath.Base(path))); built != "" {
			if err := os.Symlink(built, path); err != nil {
				t.Fatal(err)
			}
			continue
		}
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "github.com/glovebox-dev/glovebox/"+pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", pkg, err, out)
		}
	}
	loadImage(t, "pause", busybox(t, nil))
	c.image = loadImage(t, "enginetest", busybox(t, map[string]string{
		helperPath: filepath.Join(dir, "pod"), agentPath: enginetest.Agent(t).Path, probePath: c.probe,
	}))
	shared.cluster = c
	return c
}

func (c *cluster) config() kube.Config {
	return kube.Config{Cluster: c.options, Namespace: namespace, Helper: engine.Program{Path: helperPath, Image: c.image}, Log: testLog()}
}

// testLog writes to standard error if GLOVEBOX_TEST_LOG is set.
func testLog() *slog.Logger {
	if os.Getenv("GLOVEBOX_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (c *cluster) open(t testing.TB) *kube.Engine {
	t.Helper()
	e, err := kube.Open(t.Context(), c.config())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (c *cluster) spec() *engine.Spec {
	return &engine.Spec{
		Root:  engine.Root{Key: "enginetest", Image: c.image},
		Agent: engine.Program{Path: agentPath, Args: []string{"glovebox-guest"}, Image: c.image},
	}
}

// program puts a program into an image of its own, unless the image of the root has it.
func (c *cluster) program(t testing.TB, path string, args []string) engine.Program {
	t.Helper()
	if path == c.probe {
		return engine.Program{Path: probePath, Args: args, Image: c.image}
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	image := loadImage(t, "program-"+hex.EncodeToString(sum[:8]), []entry{{name: "program", mode: 0o755, content: content}})
	return engine.Program{Path: "/program", Args: args, Image: image}
}

// held lists the Pods of the cluster, and the goroutines of the engine.
func (c *cluster) held(t testing.TB) []string {
	t.Helper()
	var held []string
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := c.api.ListPods(ctx, namespace, "", func(p *kubeapi.Pod) {
		held = append(held, fmt.Sprintf("pod %s %s", p.Metadata.Name, p.Metadata.UID))
	}); err != nil {
		t.Fatalf("list Pods: %v", err)
	}
	b := make([]byte, 1<<20)
	for _, stack := range strings.Split(string(b[:runtime.Stack(b, true)]), "\n\n") {
		_, by, ok := strings.Cut(stack, "created by ")
		by, _, _ = strings.Cut(by, "\n")
		by, _, _ = strings.Cut(by, " in goroutine")
		switch {
		case ok && strings.Contains(by, "/internal/engine/kube."):
			held = append(held, "goroutine of "+by)
		case strings.Contains(stack, "/internal/engine/kube.(*guest).run("):
			held = append(held, "goroutine of a guest")
		}
	}
	return held
}

func TestConformance(t *testing.T) {
	c := onCluster(t)
	t.Setenv("GLOVEBOX_TEST_PROBE", c.probe)
	enginetest.Run(t, enginetest.Harness{
		Open:    func(t testing.TB) engine.Engine { return c.open(t) },
		Spec:    func(testing.TB) *engine.Spec { return c.spec() },
		Program: c.program,
		Held:    c.held,
		Timeout: time.Minute,
		Many:    4,
	})
}
