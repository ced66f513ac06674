package engine

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func TestCheckID(t *testing.T) {
	for id, ok := range map[string]bool{
		"a": true, "box-1": true, strings.Repeat("x", 64): true,
		"": false, strings.Repeat("x", 65): false, "A": false, "a/b": false, "..": false, "a\x00": false, "ä": false,
	} {
		if err := CheckID(id); (err == nil) != ok || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("CheckID(%q) = %v, want ok = %v", id, err, ok)
		}
	}
}

func TestValidate(t *testing.T) {
	valid := func() *Spec {
		return &Spec{Root: Root{Key: "k", Dir: "/"}, Agent: Program{Path: "/agent", Args: []string{"agent"}}}
	}
	if err := valid().Validate(); err != nil {
		t.Fatal(err)
	}
	if err := (*Spec)(nil).Validate(); !errors.Is(err, ErrInvalid) {
		t.Errorf("no spec: got %v", err)
	}
	for name, spoil := range map[string]func(*Spec){
		"key":            func(s *Spec) { s.Root.Key = "../x" },
		"relative root":  func(s *Spec) { s.Root.Dir = "x" },
		"mount over all": func(s *Spec) { s.Mounts = []Mount{{Host: "/srv", Guest: "/"}} },
		"mount unclean":  func(s *Spec) { s.Root.Binds = []Mount{{Host: "/usr", Guest: "/usr/../etc"}} },
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
