package engines

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/kube"
	"github.com/glovebox-dev/glovebox/internal/engine/microsandbox"
)

// Options are the operator's choices. An engine uses its own and ignores the others.
type Options struct {
	// Image is the container image of boxes.
	Image string

	KubeContext, KubeNamespace, KubeRuntimeClass, KubeHelperImage string
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
	s := kube.Settings{Context: o.KubeContext, Namespace: o.KubeNamespace, RuntimeClass: o.KubeRuntimeClass, Warm: o.KubeWarm, Program: o.Version}
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
	s.HelperImage = image // the operator vouches for its helper, which isolates the box
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

// Place identifies where the boxes of an engine run; "" for this machine.
func Place(e engine.Engine) string {
	if at, ok := engine.As[interface{ Place() string }](e); ok {
		return at.Place()
	}
	return ""
}

// OfCluster reports whether an error says that a cluster, or the way to it, does not do what
// boxes need: an examination of the cluster tells more about it.
func OfCluster(err error) bool { return elsewhere != nil && kube.OfCluster(err) }
