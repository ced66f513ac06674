// Command tool renders and lints a chart as helm template and helm lint do, with the
// packages of Helm, and decodes the rendered objects strictly.
//
// usage: tool template CHART [-f FILE]... [--set NAME=VALUE]... [--namespace NAME] [--name NAME] [--notes]
//
//	tool lint CHART [the same flags]
//
// template writes YAML documents, or with --notes the text that helm install prints.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/strvals"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		os.Exit(1)
	}
}

// options are those of helm that the tool knows.
type options struct {
	files, set      list
	name, namespace string
	notes           bool
}

// list is a flag that may be given many times.
type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

func run(args []string, out io.Writer) error {
	if len(args) < 2 {
		return errors.New("usage: tool template|lint CHART [-f FILE]... [--set NAME=VALUE]...")
	}
	var o options
	f := flag.NewFlagSet("tool", flag.ContinueOnError)
	f.Var(&o.files, "f", "file with values")
	f.Var(&o.set, "set", "value")
	f.StringVar(&o.name, "name", "glovebox", "name of the release")
	f.StringVar(&o.namespace, "namespace", "glovebox", "namespace of the release")
	f.BoolVar(&o.notes, "notes", false, "write the notes instead of the objects")
	if err := f.Parse(args[2:]); err != nil {
		return err
	}
	values, err := o.values()
	if err != nil {
		return err
	}
	switch args[0] {
	case "template":
		return render(args[1], values, &o, out)
	case "lint":
		return check(args[1], values, o.namespace, out)
	}
	return fmt.Errorf("unknown command %q, want template or lint", args[0])
}

// values merges the files and settings as helm does: later ones win.
func (o *options) values() (map[string]any, error) {
	all := map[string]any{}
	for _, name := range o.files {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var v map[string]any
		if err := yaml.UnmarshalStrict(b, &v); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = chartutil.MergeTables(v, all)
	}
	for _, s := range o.set {
		if err := strvals.ParseInto(s, all); err != nil {
			return nil, fmt.Errorf("--set %s: %w", s, err)
		}
	}
	return all, nil
}

func render(dir string, values map[string]any, o *options, out io.Writer) error {
	c, err := loader.Load(dir)
	if err != nil {
		return err
	}
	texts, err := execute(c, values, o)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		isNotes := path.Base(name) == "NOTES.txt"
		switch {
		case isNotes != o.notes || strings.HasPrefix(path.Base(name), "_"):
		case isNotes:
			fmt.Fprint(out, texts[name])
		default:
			if err := documents(name, texts[name], out); err != nil {
				return err
			}
		}
	}
	return nil
}

func execute(c *chart.Chart, values map[string]any, o *options) (map[string]string, error) {
	release := chartutil.ReleaseOptions{Name: o.name, Namespace: o.namespace, Revision: 1, IsInstall: true}
	capabilities := chartutil.DefaultCapabilities.Copy()
	all, err := chartutil.ToRenderValues(c, values, release, capabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, all)
}

// documents writes the objects of a rendered file, each of which must be of a known kind
// and have known fields only.
func documents(name, text string, out io.Writer) error {
	for _, doc := range strings.Split("\n"+text, "\n---") {
		if len(bytes.TrimSpace([]byte(doc))) == 0 {
			continue
		}
		var of struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal([]byte(doc), &of); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		// The kinds of the Prometheus operator are no part of Kubernetes.
		if of.APIVersion != "monitoring.coreos.com/v1" {
			if err := decode([]byte(doc)); err != nil {
				return fmt.Errorf("%s: %s: %w", name, of.Kind, err)
			}
		}
		fmt.Fprintf(out, "---\n# Source: %s\n%s\n", name, strings.TrimSpace(doc))
	}
	return nil
}

func decode(doc []byte) error {
	s := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	_, _, err := s.Decode(doc, nil, nil)
	if runtime.IsNotRegisteredError(err) {
		return fmt.Errorf("the kind is unknown: %w", err)
	}
	return err
}

// check prints what the linter finds, and fails from warnings on.
func check(dir string, values map[string]any, namespace string, out io.Writer) error {
	found := lint.AllWithKubeVersion(dir, values, namespace, nil)
	for _, m := range found.Messages {
		fmt.Fprintln(out, m)
	}
	if found.HighestSeverity >= support.WarningSev {
		return errors.New("the linter has found something")
	}
	return nil
}
