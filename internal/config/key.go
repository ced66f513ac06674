package config

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
)

// Key describes a setting, as declared by the tags of its field.
type Key struct {
	Group   string
	Name    string
	Env     []string
	Default string
	Kind    string
	Max     int // 0 for the limit of the kind
	Choices []string
	Live    bool   // SIGHUP applies it
	Short   string // one line, for --help
	Help    string // full, for the documentation

	field int
}

// Keys returns all settings in the order of the struct. The caller may reorder the result,
// but must not change the settings' own lists.
func Keys() []Key { return slices.Clone(parsedKeys()) }

// parsedKeys parses the tags once: each command of the program asks for the settings
// several times, also in processes that only become a sandbox.
var parsedKeys = sync.OnceValue(func() []Key {
	t := reflect.TypeFor[Config]()
	keys := make([]Key, 0, t.NumField())
	for i := range t.NumField() {
		tag := t.Field(i).Tag
		if tag.Get("key") == "" {
			continue
		}
		limit, _ := strconv.Atoi(tag.Get("max")) // no tag, no limit
		keys = append(keys, Key{
			Group:   tag.Get("group"),
			Name:    tag.Get("key"),
			Env:     strings.Fields(tag.Get("env")),
			Default: tag.Get("default"),
			Kind:    tag.Get("kind"),
			Max:     limit,
			Choices: strings.Fields(tag.Get("choices")),
			Live:    tag.Get("live") == "true",
			Short:   tag.Get("short"),
			Help:    tag.Get("help"),
			field:   i,
		})
	}
	return keys
})

// HasFlag reports whether a flag may set the key. Secrets have none: other users of the
// machine see command lines.
func (k Key) HasFlag() bool { return k.Kind != "secret" }

// Bind adds the flags of the groups, and --config, to fs. Load reads their values.
func Bind(fs *pflag.FlagSet, groups ...string) {
	keys := Keys()
	order := func(k Key) int {
		return slices.IndexFunc(groupTitles, func(g groupTitle) bool { return g.group == k.Group })
	}
	slices.SortStableFunc(keys, func(a, b Key) int { return order(a) - order(b) })
	for _, k := range keys {
		if !slices.Contains(groups, k.Group) || !k.HasFlag() {
			continue
		}
		f := fs.VarPF(&flagText{kind: k.Kind, choices: k.Choices, text: k.Default}, k.Name, "", k.Short)
		f.DefValue = k.shownDefault()
		if k.Kind == "bool" {
			f.NoOptDefVal = "true"
		}
	}
	fs.String("config", "", "read settings from this JSON `file`")
}

// GroupTitles returns the headings of the setting groups in the order of the
// documentation, and the names of the settings below each. The caller must not change them.
func GroupTitles() (titles []string, names map[string][]string) { return groups() }

// groups runs once: each command of the program asks for the groups.
var groups = sync.OnceValues(func() (titles []string, names map[string][]string) {
	names = map[string][]string{}
	for _, g := range groupTitles {
		titles = append(titles, g.title)
		for _, k := range parsedKeys() {
			if k.Group == g.group {
				names[g.title] = append(names[g.title], k.Name)
			}
		}
	}
	return titles, names
})

// shownDefault returns the default for the help: durations have a unit.
func (k Key) shownDefault() string {
	unit := time.Second
	switch k.Kind {
	case "milliseconds":
		unit = time.Millisecond
	case "seconds", "seconds-or-never":
	default:
		return k.Default
	}
	n, err := strconv.Atoi(k.Default)
	if err != nil {
		return k.Default
	}
	text := (time.Duration(n) * unit).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// flagText keeps the text of a flag. Load parses it like values from other sources,
// with the same rules and messages. A list flag may be repeated.
type flagText struct {
	kind    string
	choices []string
	text    string
	set     bool
}

func (f *flagText) String() string { return f.text }

func (f *flagText) Set(text string) error {
	list := slices.Contains([]string{"volumes", "choices", "dirs", "list", "modules", "origins", "hosts", "network", "pins"}, f.kind)
	if list && f.set {
		text = f.text + "," + text
	}
	f.text, f.set = text, true
	return nil
}

// Type returns the placeholder of the value in the help.
func (f *flagText) Type() string {
	switch f.kind {
	case "choice", "level":
		return strings.Join(f.choices, "|")
	case "choices", "list", "modules", "network":
		return "list"
	case "pins":
		return "name=address"
	case "positive", "port", "count", "amount":
		return "n"
	case "seconds", "seconds-or-never", "milliseconds":
		return "time"
	case "urlpath":
		return "path"
	case "weburl", "proxyurl":
		return "url"
	case "string":
		return "text"
	case "volumes":
		return "host:box[:opt]"
	}
	return f.kind
}
