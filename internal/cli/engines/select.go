package engines

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/kube"
	"github.com/glovebox-dev/glovebox/internal/engine/microsandbox"
	"github.com/glovebox-dev/glovebox/internal/fleet"
)

// enteredEnv names the engine whose Enter re-executed this program. In the new namespaces
// the probes might choose another one.
const enteredEnv = "GLOVEBOX_ENTERED_ENGINE"

// probeTimeout bounds the choice: Probe takes milliseconds.
const probeTimeout = 10 * time.Second

// Default returns the selected engine or, without one, the preferred engine of those
// that this host can run, always the same one. If the host can run none, it returns the
// preferred engine, whose errors give the reason. Preferred is the first of the list.
var Default = sync.OnceValue(func() engine.Factory {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	if selected != "" {
		return choose(ctx, all, selected)
	}
	return choose(ctx, local, os.Getenv(enteredEnv))
})

func choose(ctx context.Context, list []engine.Factory, named string) engine.Factory {
	for _, f := range list {
		if f.Name == named {
			return f
		}
	}
	if len(list) == 1 {
		return list[0] // a probe would change nothing
	}
	for _, f := range list {
		if supported(f.Probe(ctx)) {
			return f
		}
	}
	return list[0]
}

// supported reports whether a host with these findings can run the engine.
func supported(findings []engine.Finding) bool {
	for _, f := range findings {
		if f.Level == engine.LevelFail {
			return false
		}
	}
	return true
}

// Options are the operator's choices. An engine uses its own and ignores the others.
type Options struct {
	// Image is the container image of boxes.
	Image string

	KubeContext, KubeNamespace, KubeRuntimeClass string
	// KubeHelperImage is the image that brings the agent and what runs it into a Pod
	// (internal/guest/pod); "": Image.
	KubeHelperImage string
	// KubePeerAddress is where other servers reach this one; "": nowhere.
	KubePeerAddress string
	// KubeWarm is the number of Pods to keep ready.
	KubeWarm int
	// Version is the program's.
	Version string
}

// Elsewhere describes the boxes of an engine that does not run them on this machine: they
// see no files of it.
type Elsewhere struct {
	Root  engine.Root    // of boxes
	Agent engine.Program // without arguments
}

var (
	selected     string // name of the engine that Default returns; "": its own choice
	elsewhere    *Elsewhere
	kubeSettings kube.Settings
)

// Select makes Default return the engine with the name. Call it before Default, and not
// concurrently. The error is about the options.
func Select(name string, o Options) error {
	if !slices.Contains(Names(), name) {
		return fmt.Errorf("unknown engine %q; the engines are: %s", name, strings.Join(Names(), ", "))
	}
	if name == kube.Name {
		if err := selectKube(o); err != nil {
			return err
		}
	}
	selected = name
	return nil
}

func selectKube(o Options) error {
	s := kube.Settings{Context: o.KubeContext, Namespace: o.KubeNamespace, RuntimeClass: o.KubeRuntimeClass, Warm: o.KubeWarm, ProgramVersion: o.Version, Address: o.KubePeerAddress}
	if err := s.Check(); err != nil {
		return err
	}
	if o.Image == "" {
		return fmt.Errorf("the engine %s needs the image of boxes, which nodes pull: name one with --image, such as registry.example/team/python@sha256:…: %w", kube.Name, engine.ErrInvalid)
	}
	image, err := kube.ParseImage(o.Image)
	if err != nil {
		return fmt.Errorf("--image: %w", err)
	}
	s.HelperImage = image // the operator vouches for its agent and for what isolates the box
	if o.KubeHelperImage != "" {
		if s.HelperImage, err = kube.ParseImage(o.KubeHelperImage); err != nil {
			return fmt.Errorf("--kube-helper-image: %w", err)
		}
	}
	kubeSettings = s
	elsewhere = &Elsewhere{Root: kube.RootOf(image), Agent: engine.Program{Path: kube.AgentPath, Image: s.HelperImage}}
	return nil
}

// NoSnapshots reports whether the selected engine lacks snapshots.
func NoSnapshots() bool { return selected == kube.Name || selected == microsandbox.Name }

// BoxesElsewhere describes the boxes of the selected engine; nil if they run on this
// machine.
func BoxesElsewhere() *Elsewhere { return elsewhere }

// KeepWarm has an engine that can do so keep boxes of a spec ready, as its options say, until
// it is closed. The error is about the spec.
func KeepWarm(ctx context.Context, e engine.Engine, spec *engine.Spec) error {
	keeper, ok := engine.As[interface {
		KeepWarm(ctx context.Context, spec *engine.Spec) error
	}](e)
	if !ok {
		return nil
	}
	return keeper.KeepWarm(ctx, spec)
}

// Fleet returns the servers that share boxes with this one; nil if there are none.
func Fleet(e engine.Engine) fleet.Fleet {
	if of, ok := engine.As[interface{ Fleet() fleet.Fleet }](e); ok {
		return of.Fleet()
	}
	return nil
}

// Place identifies where the boxes of an engine run; "" for this machine.
func Place(e engine.Engine) string {
	if at, ok := engine.As[interface{ Place() string }](e); ok {
		return at.Place()
	}
	return ""
}

// OfCluster reports whether an error says that a cluster, or the connection to it, does not do what
// boxes need: an examination of the cluster tells more about it.
func OfCluster(err error) bool { return elsewhere != nil && kube.OfCluster(err) }
