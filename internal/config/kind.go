package config

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"
)

// A parser returns the value of a setting that is written as text, of the type of the key's
// field or one that converts to it. Messages of errors call the setting name.
type parser func(k Key, name, text string) (any, error)

// simple is a parser of values that depend on the text alone.
func simple[T any](parse func(name, text string) (T, error)) parser {
	return func(_ Key, name, text string) (any, error) { return parse(name, text) }
}

// parsers has the parser of each kind of setting.
var parsers = map[string]parser{
	"string":           simple(filled),
	"secret":           simple(verbatim), // the user of the secret checks it; a message here would show it
	"urlpath":          simple(urlPath),
	"proxyurl":         simple(proxyURL),
	"weburl":           simple(webURL),
	"image":            simple(inHome), // a path, or a name of a registry: which of them shows when it is opened
	"path":             simple(absolute),
	"choice":           choice,
	"level":            level,
	"choices":          choices,
	"list":             simple(list),
	"network":          simple(destinations),
	"pins":             simple(pins),
	"modules":          simple(modules),
	"dirs":             simple(roots),
	"origins":          simple(origins),
	"hosts":            simple(hosts),
	"bool":             simple(boolean),
	"positive":         atMost(false),
	"count":            simple(count),
	"amount":           atMost(true),
	"port":             simple(port),
	"milliseconds":     inUnits(time.Millisecond),
	"seconds":          inUnits(time.Second),
	"seconds-or-never": simple(secondsOrNever),
	"volumes":          simple(parseVolumes),
}

// set parses text into the key's field. Messages call the setting name.
func (c *Config) set(k Key, name, text string) error {
	if text == "" && k.Default == "" {
		return nil // unset: the zero value
	}
	parse := parsers[k.Kind]
	if parse == nil {
		return fmt.Errorf("config: key %s has the unknown kind %q", k.Name, k.Kind)
	}
	value, err := parse(k, name, text)
	if err != nil {
		return err
	}
	field := reflect.ValueOf(c).Elem().Field(k.field)
	field.Set(reflect.ValueOf(value).Convert(field.Type()))
	return nil
}

func verbatim(_, text string) (string, error) { return text, nil }

func filled(name, text string) (string, error) {
	if text == "" {
		return "", invalid("%s must not be empty", name)
	}
	return text, nil
}

func urlPath(name, text string) (string, error) {
	if !strings.HasPrefix(text, "/") || strings.ContainsAny(text, "?#{} \t\n") {
		return "", invalid("%s must be a path that begins with /, got '%s'", name, text)
	}
	if text == "/health" || text == "/ready" || text == "/metrics" {
		return "", invalid("%s must be another path than /health, /ready and /metrics, got '%s'", name, text)
	}
	return text, nil
}

func proxyURL(name, text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || !overHTTP(u) || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return "", invalid("%s must be the http or https URL of a proxy without path, query and fragment, got '%s'", name, redacted(text))
	}
	return text, nil
}

func webURL(name, text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || !overHTTP(u) || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", invalid("%s must be an http or https URL without credentials, query and fragment, got '%s'", name, redacted(text))
	}
	return strings.TrimSuffix(text, "/"), nil
}

func overHTTP(u *url.URL) bool {
	return (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

// inHome replaces a ~ at the beginning: no shell expands it in environment files and settings
// of clients.
func inHome(name, text string) (string, error) {
	rest, ok := strings.CutPrefix(text, "~/")
	if !ok {
		return text, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", invalid("%s: %v", name, err)
	}
	return filepath.Join(home, rest), nil
}

func absolute(name, text string) (string, error) {
	text, err := inHome(name, text)
	if err != nil {
		return "", err
	}
	abs, err := filepath.Abs(text)
	if err != nil {
		return "", invalid("%s: %v", name, err)
	}
	return abs, nil
}

func choice(k Key, name, text string) (any, error) {
	word := strings.ToLower(text)
	if !slices.Contains(k.Choices, word) {
		return nil, invalid("%s must be one of: %s, got '%s'", name, strings.Join(k.Choices, ", "), text)
	}
	return word, nil
}

// level is a choice for which Python has other words.
func level(k Key, name, text string) (any, error) {
	switch strings.ToLower(text) {
	case "warning":
		text = "warn"
	case "critical":
		text = "error"
	}
	return choice(k, name, text)
}

func choices(k Key, name, text string) (any, error) {
	words, err := list(name, text)
	if err != nil {
		return nil, err
	}
	for _, w := range words {
		if !slices.Contains(k.Choices, w) {
			return nil, invalid("%s must be of: %s, got '%s'", name, strings.Join(k.Choices, ", "), w)
		}
	}
	slices.Sort(words)
	return slices.Compact(words), nil
}

// atMost is a parser of positive numbers that the key bounds, and of 0 if zero is set.
func atMost(zero bool) parser {
	return func(k Key, name, text string) (any, error) {
		if zero && text == "0" {
			return 0, nil
		}
		n, err := positive(name, text)
		if err != nil {
			return nil, err
		}
		if k.Max > 0 && n > k.Max {
			return nil, invalid("%s must be at most %d, got %d", name, k.Max, n)
		}
		return n, nil
	}
}

// inUnits is a parser of durations. A bare number counts units.
func inUnits(unit time.Duration) parser {
	return func(_ Key, name, text string) (any, error) { return duration(name, text, unit) }
}

func secondsOrNever(name, text string) (time.Duration, error) {
	if text == "0" || strings.EqualFold(text, "never") {
		return 0, nil
	}
	d, err := duration(name, text, time.Second)
	if err != nil {
		return 0, invalid("%v, or never", err)
	}
	return d, nil
}
