package kube

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// manifest is an object of packaging/kube/rbac.yaml.
type manifest struct {
	Kind  string `yaml:"kind"`
	Rules []struct {
		Groups    []string `yaml:"apiGroups"`
		Resources []string `yaml:"resources"`
		Verbs     []string `yaml:"verbs"`
	} `yaml:"rules"`
}

// TestRights_AreThoseOfTheManifest: doctor asks for what packaging/kube/rbac.yaml grants.
func TestRights_AreThoseOfTheManifest(t *testing.T) {
	f, err := os.Open(filepath.Join("..", "..", "..", "packaging", "kube", "rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var granted []string
	for d := yaml.NewDecoder(f); ; {
		var m manifest
		if err := d.Decode(&m); err != nil {
			break
		}
		for _, r := range m.Rules {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					name, sub, _ := strings.Cut(resource, "/")
					a := right{clusterWide: m.Kind == "ClusterRole"}
					a.Group, a.Resource, a.Subresource, a.Verb = r.Groups[0], name, sub, verb
					granted = append(granted, describe(a))
				}
			}
		}
	}
	var asked []string
	for _, r := range rights() {
		asked = append(asked, describe(r))
	}
	slices.Sort(granted)
	slices.Sort(asked)
	if !slices.Equal(granted, asked) || len(asked) < 10 {
		t.Errorf("the manifest grants %q, the engine needs %q", granted, asked)
	}
}

func describe(r right) string {
	if r.clusterWide {
		return r.String() + " in the cluster"
	}
	return r.String()
}
