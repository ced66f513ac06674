package kube_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/kube"
)

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

var created atomic.Int64

func (c *cluster) create(t *testing.T, e *kube.Engine, spec *engine.Spec) engine.Guest {
	t.Helper()
	g, err := e.Create(within(t), fmt.Sprintf("of-test-%d", created.Add(1)), spec)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func (c *cluster) echo() *engine.Spec {
	s := c.spec()
	s.Agent = engine.Program{Path: probePath, Args: []string{"probe", "agent", "echo"}, Image: c.image}
	return s
}

func roundTrip(t *testing.T, conn io.ReadWriter, text string) {
	t.Helper()
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len(text))
	if _, err := io.ReadFull(conn, b); err != nil || string(b) != text {
		t.Fatalf("the agent returned %q, %v; want %q", b, err, text)
	}
}

// TestStream_SurvivesTheAPIServer restarts the API server while a stream is open.
func TestStream_SurvivesTheAPIServer(t *testing.T) {
	c := onCluster(t)
	restart := os.Getenv("GLOVEBOX_TEST_RESTART_APISERVER")
	if restart == "" {
		t.Skip("GLOVEBOX_TEST_RESTART_APISERVER names no command; run make test-kube")
	}
	e := c.open(t)
	defer e.Close()
	g := c.create(t, e, c.echo())
	conn, err := g.Dial(within(t))
	if err != nil {
		t.Fatal(err)
	}
	roundTrip(t, conn, "before")
	if out, err := exec.Command("sh", "-c", restart).CombinedOutput(); err != nil {
		t.Fatalf("restart the API server: %v\n%s", err, out)
	}
	roundTrip(t, conn, "after")
	if err := g.Destroy(within(t)); err != nil {
		t.Fatal(err)
	}
}

// TestCreate_ProgramsOfOtherImages has the agent and the helper brought by init containers.
func TestCreate_ProgramsOfOtherImages(t *testing.T) {
	c := onCluster(t)
	e := c.open(t)
	defer e.Close()
	spec := c.echo()
	spec.Root.Image = loadImage(t, "bare", busybox(t, nil))
	conn, err := c.create(t, e, spec).Dial(within(t))
	if err != nil {
		t.Fatal(err)
	}
	roundTrip(t, conn, "hello")
}

func TestCreate_MissingImage(t *testing.T) {
	c := onCluster(t)
	e := c.open(t)
	defer e.Close()
	spec := c.echo()
	spec.Root.Image = &engine.Image{Name: "localhost/no-such-image", Digest: "sha256:" + strings.Repeat("0", 64)}
	_, err := e.Create(within(t), "missing-image", spec)
	if !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "cannot get an image") {
		t.Errorf("got %v, want ErrUnavailable about the image", err)
	}
}

func TestCreate_MoreThanAnyNodeHas(t *testing.T) {
	c := onCluster(t)
	e := c.open(t)
	defer e.Close()
	spec := c.echo()
	spec.Limits.MemoryMB = 100 << 20
	if _, err := e.Create(within(t), "too-large", spec); !errors.Is(err, engine.ErrExhausted) {
		t.Errorf("got %v, want ErrExhausted", err)
	}
}

func TestOpen_WithoutTheRuntimeClass(t *testing.T) {
	c := onCluster(t)
	cfg := c.config()
	cfg.RuntimeClass = "no-such-class"
	e, err := kube.Open(t.Context(), cfg)
	if err == nil {
		e.Close()
	}
	if !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), `no runtime class "no-such-class"`) {
		t.Errorf("got %v, want ErrUnavailable about the class", err)
	}
}

// TestReplicas_ShareGuests has a second engine use and end a guest of the first.
func TestReplicas_ShareGuests(t *testing.T) {
	c := onCluster(t)
	first, second := c.open(t), c.open(t)
	defer first.Close()
	defer second.Close()
	ours := c.create(t, first, c.echo())
	states, err := second.List(within(t))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(states, func(s engine.GuestState) bool { return s.ID == ours.ID() })
	if i < 0 {
		t.Fatalf("the other replica lists %+v", states)
	}
	theirs, err := second.Recover(within(t), states[i])
	if err != nil {
		t.Fatal(err)
	}
	conn, err := theirs.Dial(within(t))
	if err != nil {
		t.Fatal(err)
	}
	roundTrip(t, conn, "of the second replica")
	if err := theirs.Destroy(within(t)); err != nil {
		t.Fatal(err)
	}
	if exit, err := ours.Wait(within(t)); err != nil || exit.Reason != engine.ExitDestroyed {
		t.Errorf("the first replica sees %+v, %v; want that the guest was destroyed", exit, err)
	}
}

func BenchmarkEngine(b *testing.B) {
	c := onCluster(b)
	e := c.open(b)
	defer e.Close()
	b.Run("create-and-destroy", func(b *testing.B) {
		for b.Loop() {
			start := time.Now()
			g, err := e.Create(b.Context(), "bench", c.echo())
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms/create")
			if err := g.Destroy(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	g, err := e.Create(b.Context(), "bench", c.echo())
	if err != nil {
		b.Fatal(err)
	}
	b.Run("dial", func(b *testing.B) {
		for b.Loop() {
			conn, err := g.Dial(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			conn.Close()
		}
	})
	conn, err := g.Dial(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{64, 32 << 20} {
		b.Run("echo-"+map[bool]string{true: "64B", false: "32MiB"}[size == 64], func(b *testing.B) {
			out, in := make([]byte, size), make([]byte, size)
			for b.Loop() {
				go conn.Write(out)
				if _, err := io.ReadFull(conn, in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
