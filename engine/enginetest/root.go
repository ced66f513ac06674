package enginetest

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/glovebox-dev/glovebox/engine"
)

// asImage replaces the tree of a spec's root by an image.
func asImage(t *tester, s *engine.Spec, unpack func(tree *engine.Tree) (*engine.Tree, error)) *engine.Spec {
	tree := s.Root.Tree
	if tree == nil {
		t.Skip("the root of the harness is an image already")
	}
	s.Root.Tree = nil
	s.Root.Image = &engine.Image{
		Digest: "sha256:" + strings.Repeat("e", 64),
		Unpack: func(context.Context) (*engine.Tree, error) { return unpack(tree) },
	}
	return s
}

func testImage(t *tester) {
	var calls atomic.Int32
	spec := asImage(t, t.probeSpec("echo"), func(tree *engine.Tree) (*engine.Tree, error) {
		calls.Add(1)
		return tree, nil
	})
	var g engine.Guest
	err := t.call("create", func(ctx context.Context) (err error) {
		g, err = t.e.Create(ctx, newID(), spec)
		return err
	})
	if errors.Is(err, engine.ErrUnsupported) {
		t.Skipf("the engine does not unpack images: %v", err)
	}
	t.must("create from an image", err)
	t.own(g).echoes()
	if calls.Load() == 0 {
		t.Error("the engine has booted a guest without unpacking its image")
	}
}

func testImageBroken(t *tester) {
	spec := asImage(t, t.probeSpec("echo"), func(*engine.Tree) (*engine.Tree, error) { return nil, errStop })
	id := newID()
	err := t.call("create", func(ctx context.Context) error {
		g, err := t.e.Create(ctx, id, spec)
		if err == nil {
			t.own(g)
		}
		return err
	})
	if !errors.Is(err, errStop) && !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("create from an image that fails to unpack: got error %v, want that of Unpack or ErrUnsupported", err)
	}
	t.createAs(id, t.probeSpec("echo"))
}

// testPlatformVolume asks for a volume that no platform has.
func testPlatformVolume(t *tester) {
	spec := t.probeSpec("echo")
	spec.Mounts = []engine.Mount{{Volume: "enginetest-missing", Guest: "/mnt/volume"}}
	err := t.call("create", func(ctx context.Context) error {
		g, err := t.e.Create(ctx, newID(), spec)
		if err == nil {
			t.own(g)
		}
		return err
	})
	if !errors.Is(err, engine.ErrUnsupported) && !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("create with a missing volume: got error %v, want ErrUnsupported or ErrInvalid", err)
	}
}
