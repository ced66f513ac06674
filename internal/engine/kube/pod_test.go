package kube

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
)

func image(name string) *engine.Image {
	return &engine.Image{Name: "registry.example/" + name, Digest: "sha256:" + strings.Repeat("a", 64)}
}

func specOf(root, agent *engine.Image) *engine.Spec {
	return &engine.Spec{
		Root:   engine.Root{Key: "k", Image: root},
		Agent:  engine.Program{Path: "/agent", Args: []string{"agent", "$(HOME)"}, Image: agent},
		Limits: engine.Limits{CPUs: 0.25, MemoryMB: 256, DiskMB: 100},
	}
}

func testEngine() *Engine {
	return &Engine{class: "gvisor", holder: &holder{name: "glovebox-test"}, helper: engine.Program{Path: "/pod", Image: image("box")}}
}

func TestPod_HasFewRights(t *testing.T) {
	p, err := testEngine().pod(t.Context(), "b-1", specOf(image("box"), image("box")))
	if err != nil {
		t.Fatal(err)
	}
	s, box := p.Spec, p.Spec.Containers[0]
	if s.RuntimeClassName != "gvisor" || *s.AutomountServiceAccountToken || *s.EnableServiceLinks || s.SecurityContext.SeccompProfile.Type != "RuntimeDefault" || s.RestartPolicy != "Never" {
		t.Errorf("the Pod is %+v", s)
	}
	c := box.SecurityContext
	if *c.AllowPrivilegeEscalation || *c.Privileged || !slices.Equal(c.Capabilities.Drop, []string{"ALL"}) || !slices.Equal(c.Capabilities.Add, []string{"SETUID", "SETGID", "SETFCAP"}) {
		t.Errorf("the container may %+v", c.Capabilities)
	}
	if r := box.Resources; r.Limits["cpu"] != "250m" || r.Limits["memory"] != "256Mi" || r.Limits["ephemeral-storage"] != "100Mi" || r.Requests["memory"] != "256Mi" {
		t.Errorf("the resources are %+v", r)
	}
	if want := []string{"/pod", "run", "b-1", "/agent", "agent", "$$(HOME)"}; !slices.Equal(box.Command, want) {
		t.Errorf("the command is %q, want %q", box.Command, want)
	}
	if len(s.InitContainers) != 0 {
		t.Errorf("programs of the box's own image need no init containers: %+v", s.InitContainers)
	}
	if id, helper, ok := parsePod(p); !ok || id != "b-1" || helper != "/pod" {
		t.Errorf("the Pod is parsed as %q, %q, %t", id, helper, ok)
	}
}

func TestPod_ProgramsOfOtherImages(t *testing.T) {
	p, err := testEngine().pod(t.Context(), "b", specOf(image("python"), image("agent")))
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	for _, c := range p.Spec.InitContainers {
		commands = append(commands, strings.Join(c.Command, " "))
		if len(c.SecurityContext.Capabilities.Add) != 0 {
			t.Errorf("%s has capabilities %q", c.Name, c.SecurityContext.Capabilities.Add)
		}
	}
	want := []string{"/pod install /pod /.glovebox/pod", "/.glovebox/pod install /agent /.glovebox/agent"}
	if !slices.Equal(commands, want) {
		t.Errorf("the init containers run %q, want %q", commands, want)
	}
	if m := p.Spec.Containers[0].VolumeMounts; len(m) != 1 || !m[0].ReadOnly {
		t.Errorf("the box mounts %+v", m)
	}
}

func TestPod_RefusesWhatNodesLack(t *testing.T) {
	nameless := &engine.Image{Digest: image("x").Digest}
	for name, spoil := range map[string]func(s *engine.Spec){
		"tree":            func(s *engine.Spec) { s.Root.Image, s.Root.Tree = nil, &engine.Tree{Dir: "/"} },
		"image by digest": func(s *engine.Spec) { s.Root.Image = nameless },
		"agent of host":   func(s *engine.Spec) { s.Agent.Image = nil },
		"frozen volume":   func(s *engine.Spec) { s.Mounts = []engine.Mount{{Volume: "v", Guest: "/v", Frozen: true}} },
		"host volume":     func(s *engine.Spec) { s.Mounts = []engine.Mount{{Host: "/srv", Guest: "/srv"}} },
	} {
		s := specOf(image("box"), image("box"))
		spoil(s)
		if _, err := testEngine().pod(t.Context(), "b", s); !errors.Is(err, engine.ErrUnsupported) {
			t.Errorf("%s: got %v, want ErrUnsupported", name, err)
		}
	}
}

func TestPodName_DiffersByID(t *testing.T) {
	seen := make(map[string]string)
	for _, id := range []string{"a", "-", "--", "a-", "-a", "id-a", strings.Repeat("a", 52), strings.Repeat("a", 53), strings.Repeat("a", 64)} {
		name := podName(id)
		if len(name) > 63 || !word().MatchString(strings.TrimPrefix(strings.TrimPrefix(name, "boxid-"), "box-")) {
			t.Errorf("%q gets the name %q", id, name)
		}
		if other, ok := seen[name]; ok {
			t.Errorf("%q and %q get the name %q", id, other, name)
		}
		seen[name] = id
	}
}

func TestParsePod_IgnoresForeignPods(t *testing.T) {
	ours, err := testEngine().pod(t.Context(), "b", specOf(image("box"), image("box")))
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(p *kubeapi.Pod){
		"no id":         func(p *kubeapi.Pod) { p.Metadata.Annotations = nil },
		"hostile id":    func(p *kubeapi.Pod) { p.Metadata.Annotations[idAnnotation] = "../x" },
		"another's id":  func(p *kubeapi.Pod) { p.Metadata.Annotations[idAnnotation] = "c" },
		"no container":  func(p *kubeapi.Pod) { p.Spec.Containers = nil },
		"no command":    func(p *kubeapi.Pod) { p.Spec.Containers[0].Command = nil },
		"no box inside": func(p *kubeapi.Pod) { p.Spec.Containers[0].Name = "other" },
	} {
		b, err := json.Marshal(ours)
		if err != nil {
			t.Fatal(err)
		}
		p := new(kubeapi.Pod)
		if err := json.Unmarshal(b, p); err != nil {
			t.Fatal(err)
		}
		spoil(p)
		if _, _, ok := parsePod(p); ok {
			t.Errorf("%s: the Pod counts as a guest's", name)
		}
	}
}

// parse returns the Pod of a status as the cluster sends it.
func parse(t *testing.T, status string) *kubeapi.Pod {
	t.Helper()
	p := new(kubeapi.Pod)
	if err := json.Unmarshal([]byte(`{"status":`+status+`}`), p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestExitOf_Pods(t *testing.T) {
	box := func(state string) string { return `{"containerStatuses":[{"name":"box","state":` + state + `}]}` }
	for name, c := range map[string]struct {
		status string
		want   engine.Exit
		over   bool
	}{
		"running":         {box(`{"running":{}}`), engine.Exit{}, false},
		"other container": {`{"containerStatuses":[{"name":"x","state":{"terminated":{}}}]}`, engine.Exit{}, false},
		"exited":          {box(`{"terminated":{"exitCode":7,"reason":"Error","message":"{\"exited\":7}"}}`), engine.Exit{Reason: engine.ExitExited, Code: 7}, true},
		"exited with 0":   {box(`{"terminated":{"exitCode":0,"reason":"Completed","message":"{\"exited\":0}"}}`), engine.Exit{Reason: engine.ExitExited}, true},
		"memory":          {box(`{"terminated":{"exitCode":137,"reason":"OOMKilled"}}`), engine.Exit{Reason: engine.ExitOOM}, true},
		"told to end":     {box(`{"terminated":{"message":"{\"stopped\":true}"}}`), engine.Exit{Reason: engine.ExitDestroyed, Detail: "the Pod was told to end"}, true},
		"helper failed":   {box(`{"terminated":{"exitCode":1,"message":"{\"error\":\"no\\u001b\"}"}}`), engine.Exit{Reason: engine.ExitCrashed, Code: 1, Detail: `no\x1b`}, true},
		"sandbox ended":   {box(`{"terminated":{"exitCode":255,"reason":"Unknown"}}`), engine.Exit{Reason: engine.ExitCrashed, Detail: "the cluster gives the reason Unknown"}, true},
		"forged code":     {box(`{"terminated":{"message":"{\"exited\":-7}"}}`), engine.Exit{Reason: engine.ExitCrashed, Detail: ""}, true},
		"evicted":         {`{"phase":"Failed","reason":"Evicted","message":"disk\n"}`, engine.Exit{Reason: engine.ExitCrashed, Detail: whyEnded("Evicted")}, true},
	} {
		if got, over := exitOf(parse(t, c.status)); got != c.want || over != c.over {
			t.Errorf("%s: got %+v, %t; want %+v, %t", name, got, over, c.want, c.over)
		}
	}
}

func TestFailureOf_Pods(t *testing.T) {
	waiting := func(reason string) string {
		return `{"containerStatuses":[{"name":"box","state":{"waiting":{"reason":"` + reason + `","message":"why\u001b"}}}]}`
	}
	unscheduled := func(message string) string {
		return `{"conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"` + message + `"}]}`
	}
	for name, c := range map[string]struct {
		status string
		want   error
	}{
		"new":             {`{}`, nil},
		"creating":        {waiting("ContainerCreating"), nil},
		"image":           {waiting("ImagePullBackOff"), engine.ErrUnavailable},
		"program":         {waiting("CreateContainerError"), engine.ErrInvalid},
		"full":            {unscheduled("0/3 nodes: 3 Insufficient memory."), engine.ErrExhausted},
		"no such node":    {unscheduled("0/3 nodes: node selector"), engine.ErrUnavailable},
		"init has failed": {`{"initContainerStatuses":[{"name":"install-agent","state":{"terminated":{"exitCode":1}}}]}`, engine.ErrUnavailable},
		"init has ended":  {`{"initContainerStatuses":[{"name":"install-agent","state":{"terminated":{"exitCode":0}}}]}`, nil},
	} {
		err := failureOf(parse(t, c.status))
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || err != nil && strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}

func TestDecode_RejectsMalformedStates(t *testing.T) {
	good := encode("b", state{Pod: "box-b", UID: "u", Helper: "/pod"})
	if _, err := decode(good); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(s *engine.GuestState){
		"version":   func(s *engine.GuestState) { s.Version++ },
		"truncated": func(s *engine.GuestState) { s.Data = s.Data[:len(s.Data)/2] },
		"empty":     func(s *engine.GuestState) { s.Data = nil },
		"other id":  func(s *engine.GuestState) { s.ID = "c" },
		"no UID":    func(s *engine.GuestState) { s.Data = []byte(`{"pod":"box-b"}`) },
		"more":      func(s *engine.GuestState) { s.Data = []byte(`{"pod":"box-b","uid":"u","x":1}`) },
	} {
		s := engine.GuestState{ID: good.ID, Version: good.Version, Data: slices.Clone(good.Data)}
		spoil(&s)
		if _, err := decode(s); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
}

// TestExitOf_TellsNothingOfTheCluster: clients see the text of an exit, and messages of a
// kubelet name nodes and what runs beside the box.
func TestExitOf_TellsNothingOfTheCluster(t *testing.T) {
	const said = "node-7 of 10.0.0.7 was low on memory; container box of box-of-alice used 2Gi"
	for name, status := range map[string]string{
		"evicted":       `{"phase":"Failed","reason":"Evicted","message":"` + said + `"}`,
		"of the Pod":    `{"phase":"Failed","reason":"` + said + `"}`,
		"container":     `{"containerStatuses":[{"name":"box","state":{"terminated":{"exitCode":128,"reason":"StartError","message":"` + said + `"}}}]}`,
		"of its reason": `{"containerStatuses":[{"name":"box","state":{"terminated":{"exitCode":128,"reason":"` + said + `"}}}]}`,
		"with both":     `{"reason":"Evicted","message":"` + said + `","containerStatuses":[{"name":"box","state":{"terminated":{"reason":"Error","message":"` + said + `"}}}]}`,
	} {
		p := parse(t, status)
		if exit, over := exitOf(p); !over || strings.Contains(exit.Detail, "alice") || strings.Contains(exit.Detail, "node-7") {
			t.Errorf("%s: the exit is %+v, %t", name, exit, over)
		}
		if !strings.Contains(endedAs(p), "node-7") {
			t.Errorf("%s: the operator learns %q", name, endedAs(p))
		}
	}
}
