package engine

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func TestCheckID_AllowsOnlyWords(t *testing.T) {
	for id, ok := range map[string]bool{
		"a": true, "box-1": true, strings.Repeat("x", 64): true,
		"": false, strings.Repeat("x", 65): false, "A": false, "a/b": false, "..": false, "a\x00": false, "ä": false,
	} {
		if err := CheckID(id); (err == nil) != ok || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("CheckID(%q) = %v, want ok = %v", id, err, ok)
		}
	}
}

func TestSpecValidate_RejectsMalformedSpecs(t *testing.T) {
	valid := func() *Spec {
		return &Spec{
			Root:   Root{Key: "k", Tree: &Tree{Dir: "/", Binds: []Mount{{Host: "/usr", Guest: "/usr"}}}},
			Agent:  Program{Path: "/agent", Args: []string{"agent"}},
			Mounts: []Mount{{Host: "/srv", Guest: "/srv"}, {Volume: "claim-1", Guest: "/data"}},
		}
	}
	image := func() *Image {
		return &Image{Name: "registry.example/python", Digest: "sha256:" + strings.Repeat("0a", 32)}
	}
	pod := valid()
	pod.Root, pod.Agent.Image = Root{Key: "k", Image: image()}, image()
	for _, s := range []*Spec{valid(), pod} {
		if err := s.Validate(); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
	if err := (*Spec)(nil).Validate(); !errors.Is(err, ErrInvalid) {
		t.Errorf("no spec: got %v", err)
	}
	for name, spoil := range map[string]func(*Spec){
		"key":            func(s *Spec) { s.Root.Key = "../x" },
		"no root":        func(s *Spec) { s.Root.Tree = nil },
		"two roots":      func(s *Spec) { s.Root.Image = image() },
		"relative root":  func(s *Spec) { s.Root.Tree.Dir = "x" },
		"relative file":  func(s *Spec) { s.Root.Tree = &Tree{File: "x"} },
		"file and root":  func(s *Spec) { s.Root.Tree.File = "/x" },
		"bind over file": func(s *Spec) { s.Root.Tree = &Tree{File: "/x", Binds: []Mount{{Host: "/usr", Guest: "/usr"}}} },
		"bind of volume": func(s *Spec) { s.Root.Tree.Binds = []Mount{{Volume: "v", Guest: "/usr"}} },
		"no digest":      func(s *Spec) { s.Root = Root{Key: "k", Image: &Image{Name: "python"}} },
		"digest's case":  func(s *Spec) { s.Root = Root{Key: "k", Image: &Image{Digest: "sha256:" + strings.Repeat("0A", 32)}} },
		"agent's image":  func(s *Spec) { s.Agent.Image = &Image{Digest: "sha512:00"} },
		"no source":      func(s *Spec) { s.Mounts = []Mount{{Guest: "/srv"}} },
		"two sources":    func(s *Spec) { s.Mounts = []Mount{{Host: "/srv", Volume: "v", Guest: "/srv"}} },
		"volume's name":  func(s *Spec) { s.Mounts = []Mount{{Volume: "../v", Guest: "/srv"}} },
		"mount over all": func(s *Spec) { s.Mounts = []Mount{{Host: "/srv", Guest: "/"}} },
		"mount unclean":  func(s *Spec) { s.Root.Tree.Binds = []Mount{{Host: "/usr", Guest: "/usr/../etc"}} },
		"mount relative": func(s *Spec) { s.Mounts = []Mount{{Host: "srv", Guest: "/srv"}} },
		"agent":          func(s *Spec) { s.Agent.Path = "agent" },
		"agent's name":   func(s *Spec) { s.Agent.Args = nil },
		"hostname":       func(s *Spec) { s.Hostname = strings.Repeat("h", 65) },
		"no number":      func(s *Spec) { s.Limits.CPUs = math.NaN() },
		"infinite":       func(s *Spec) { s.Limits.CPUs = math.Inf(1) },
		"negative":       func(s *Spec) { s.Limits.MemoryMB = -1 },
	} {
		s := valid()
		spoil(s)
		if err := s.Validate(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
}
