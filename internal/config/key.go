package config

import (
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Key is one setting, as its field's tags describe it.
type Key struct {
	Group   string
	Name    string
	Env     []string
	Default string
	Kind    string
	Max     int // 0: the kind's
	Choices []string
	Live    bool // it can change while the server runs
	Help    string

	field int
}

// Keys returns all settings in the order of the struct.
func Keys() []Key {
	t := reflect.TypeFor[Config]()
	keys := make([]Key, 0, t.NumField())
	for i := range t.NumField() {
		tag := t.Field(i).Tag
		limit, _ := strconv.Atoi(tag.Get("max")) // no number is no limit
		keys = append(keys, Key{
			Group:   tag.Get("group"),
			Name:    tag.Get("key"),
			Env:     strings.Fields(tag.Get("env")),
			Default: tag.Get("default"),
			Kind:    tag.Get("kind"),
			Max:     limit,
			Choices: strings.Fields(tag.Get("choices")),
			Live:    tag.Get("live") == "true",
			Help:    tag.Get("help"),
			field:   i,
		})
	}
	return keys
}

// Bind adds the flags of the groups to fs, and --config. Load reads them.
func Bind(fs *pflag.FlagSet, groups ...string) {
	want := map[string]bool{}
	for _, g := range groups {
		want[g] = true
	}
	for _, k := range Keys() {
		if !want[k.Group] {
			continue
		}
		fs.Var(&flagText{kind: k.Kind, text: k.Default}, k.Name, k.usage())
		if k.Kind == "bool" {
			fs.Lookup(k.Name).NoOptDefVal = "true"
		}
	}
	fs.String("config", "", "Read settings from this JSON file; comments are allowed. ["+FileEnv+"]")
}

// usage is the flag's help.
func (k Key) usage() string {
	text := k.Help
	if len(k.Choices) > 0 {
		text += " One of: " + strings.Join(k.Choices, ", ") + "."
		if k.Kind == "choices" {
			text = strings.Replace(text, "One of", "Of", 1)
		}
	}
	if len(k.Env) > 0 {
		text += " [" + strings.Join(k.Env, ", ") + "]"
	}
	return text
}

// flagText keeps what was typed; Load reads it like a value from elsewhere, so
// that messages and rules are the same. A list flag may be repeated.
type flagText struct {
	kind, text string
	set        bool
}

func (f *flagText) String() string { return f.text }

func (f *flagText) Set(text string) error {
	list := slices.Contains([]string{"volumes", "choices", "dirs", "list", "modules", "origins", "hosts"}, f.kind)
	if list && f.set {
		text = f.text + "," + text
	}
	f.text, f.set = text, true
	return nil
}

// Type is what help shows in place of the value.
func (f *flagText) Type() string {
	switch f.kind {
	case "choice", "level":
		return "word"
	case "choices", "list", "modules":
		return "words"
	case "positive", "port", "count":
		return "number"
	case "seconds-or-never":
		return "seconds"
	case "urlpath":
		return "path"
	case "volumes":
		return "host:container[:ro]"
	}
	return f.kind
}
