package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/glovebox-dev/glovebox/internal/egress/floor"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	resolver "github.com/glovebox-dev/glovebox/internal/egress/resolve"
	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
	"github.com/glovebox-dev/glovebox/internal/owned"
)

// NetworkOff is the value of the setting network for no network, which is also the default.
const NetworkOff = "off"

// A Network has the network policies of all owners, from the settings network and
// network-file. It does not change and may be used concurrently.
type Network struct {
	setting  *policy.Policy            // nil: not set
	fallback *policy.Policy            // of the file, for owners without a section; nil: none
	owners   map[string]*policy.Policy // of the file
	secrets  []Secret                  // of the file
}

// Of returns the policy of an owner, "" for the local user; nil if boxes of that owner have
// no network. The section of the owner in the file comes first, then the section default,
// then the setting network. For the local user the setting comes first.
func (n *Network) Of(owner string) *policy.Policy {
	candidates := []*policy.Policy{n.owners[owner], n.fallback, n.setting}
	if owner == "" {
		candidates = []*policy.Policy{n.setting, n.fallback}
	}
	for _, p := range candidates {
		if p != nil {
			return p
		}
	}
	return nil
}

// Where returns where the operator allows a host to the boxes of an owner, for people: the
// setting network, or the section of network-file that Of chooses.
func (n *Network) Where(owner string) string {
	p := n.Of(owner)
	switch {
	case n.owners == nil || p != nil && p == n.setting:
		return "--network"
	case owner != "" && p != nil && p == n.owners[owner]:
		return "the section of this owner in --network-file"
	}
	return "the section [default] in --network-file"
}

// Set returns the policies that decide on the connections of an owner's boxes.
func (n *Network) Set(owner string) policy.Set { return policy.Set{Owner: n.Of(owner)} }

// Owners lists the owners with a section of their own, sorted.
func (n *Network) Owners() []string { return slices.Sorted(maps.Keys(n.owners)) }

// networkFile is the document of network-file.
type networkFile struct {
	Default *networkSection            `toml:"default"`
	Owner   map[string]*networkSection `toml:"owner"`
	Secret  map[string]*Secret         `toml:"secret"`
}

// networkSection is the policy of one owner, or of all others.
type networkSection struct {
	Allow []allowedEntry `toml:"allow"`
	Deny  []networkEntry `toml:"deny"`
	Rule  []networkRule  `toml:"rule"`
}

// networkRule allows some requests to hosts.
type networkRule struct {
	Hosts   []allowedEntry `toml:"hosts"`
	Methods []string       `toml:"methods"`
	Paths   []string       `toml:"paths"`
}

// networkEntry is an entry of a list of destinations. It checks itself when it is decoded,
// so that the error has its position. It is a struct because the decoder calls no methods
// of strings.
type networkEntry struct{ text string }

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *networkEntry) UnmarshalText(text []byte) error {
	if _, err := policy.ParseRule(string(text)); err != nil {
		return err
	}
	e.text = string(text)
	return nil
}

// allowedEntry is a networkEntry that allows something. One that cannot, since boxes never
// reach its addresses, is an error: its author believes that it works.
type allowedEntry struct{ networkEntry }

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *allowedEntry) UnmarshalText(text []byte) error {
	if err := e.networkEntry.UnmarshalText(text); err != nil {
		return err
	}
	return checkReach(e.text)
}

// checkReach returns an error for an entry, which is valid, all of whose addresses are below
// the floor.
func checkReach(entry string) error {
	rule, err := policy.ParseRule(entry)
	if err != nil {
		return err
	}
	for _, h := range rule.Hosts {
		network, ok := h.Prefix()
		if !ok {
			continue
		}
		switch reason := floor.NeverAny(network); {
		case reason == "":
		case floor.RefusesPinned(network.Addr()) != "":
			return fmt.Errorf("network entry %q: boxes never reach %s; no setting allows it", entry, reason)
		default:
			return fmt.Errorf("network entry %q: boxes never reach %s; allow a name, and pin it to the address with --egress-pin NAME=ADDRESS", entry, reason)
		}
	}
	return nil
}

func (e networkEntry) String() string { return e.text }

func entryTexts[E fmt.Stringer](entries []E) []string {
	texts := make([]string, len(entries))
	for i, e := range entries {
		texts[i] = e.String()
	}
	return texts
}

// policy returns the policy of a section.
func (s *networkSection) policy() (*policy.Policy, error) {
	p, err := policy.Parse(entryTexts(s.Allow), entryTexts(s.Deny))
	if err != nil || len(s.Rule) == 0 {
		return p, err
	}
	allow := p.Allow
	for _, r := range s.Rule {
		rule, err := policy.NewRule(entryTexts(r.Hosts), r.Methods, r.Paths)
		if err != nil {
			return nil, err
		}
		allow = append(allow, rule)
	}
	return policy.New(allow, p.Deny)
}

// ReadNetwork returns the network policies of the settings, and reads the file of
// NetworkFile. Only this user and root may be able to write or replace the file. Errors
// are *Error and name the position in the file.
func (c *Config) ReadNetwork() (*Network, error) {
	n := &Network{}
	if len(c.Network) > 0 {
		p, err := policy.Parse(c.Network, nil)
		if err != nil {
			return nil, invalid("network: %v", err)
		}
		n.setting = p
	}
	if c.NetworkFile == "" {
		return n, nil
	}
	doc, err := readNetworkFile(c.NetworkFile)
	if err != nil {
		return nil, err
	}
	n.secrets = readSecrets(c.NetworkFile, doc.Secret)
	if doc.Default != nil {
		if n.fallback, err = doc.Default.policy(); err != nil {
			return nil, invalid("network-file: %s: [default]: %v", c.NetworkFile, err)
		}
	}
	n.owners = make(map[string]*policy.Policy, len(doc.Owner))
	for _, owner := range slices.Sorted(maps.Keys(doc.Owner)) {
		if err := checkOwner(owner); err != nil {
			return nil, invalid("network-file: %s: [owner.%q]: %v", c.NetworkFile, owner, err)
		}
		if n.owners[owner], err = doc.Owner[owner].policy(); err != nil {
			return nil, invalid("network-file: %s: [owner.%q]: %v", c.NetworkFile, owner, err)
		}
	}
	return n, nil
}

func readNetworkFile(path string) (*networkFile, error) {
	switch err := owned.File(path); {
	case errors.Is(err, owned.ErrUnsafe):
		return nil, invalid("network-file: %s: other users could change what boxes reach: %v", path, err)
	case err != nil:
		return nil, invalid("network-file: %v", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, invalid("network-file: %v", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, invalid("network-file: read %s: %v", path, err)
	case len(data) > maxFile:
		return nil, invalid("network-file: %s: larger than %d bytes", path, maxFile)
	}
	doc := &networkFile{}
	if err := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(doc); err != nil {
		return nil, invalid("network-file: %s", tomlError(path, data, err))
	}
	if doc.Default == nil && len(doc.Owner) == 0 && len(doc.Secret) == 0 {
		return nil, invalid(`network-file: %s has no section: write [default] or [owner."token NAME"], and below it allow = ["pypi"]`, path)
	}
	if len(doc.Owner) > maxOwners {
		return nil, invalid("network-file: %s has %d owners, more than %d", path, len(doc.Owner), maxOwners)
	}
	return doc, nil
}

// tomlError describes an error of a TOML file with its position.
func tomlError(path string, data []byte, err error) string {
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) && len(unknown.Errors) > 0 {
		first := unknown.Errors[0]
		row, column := first.Position()
		return fmt.Sprintf("%s:%d:%d: unknown key %q", path, row, column, strings.Join(first.Key(), "."))
	}
	var at *toml.DecodeError
	if errors.As(err, &at) {
		row, column := at.Position()
		return fmt.Sprintf("%s:%d:%d: %s", path, row, column, inWords(at))
	}
	if m := findMisplaced(data); m != nil {
		before := data[:m.offset]
		row, column := bytes.Count(before, []byte("\n"))+1, m.offset-bytes.LastIndexByte(before, '\n')
		return fmt.Sprintf("%s:%d:%d: %s", path, row, column, wrongKind(m.key, m.kind))
	}
	return fmt.Sprintf("%s: %v", path, err)
}

// mistyped matches the texts of the decoder about a value of another type than that of the
// variable in Go, which it names.
var mistyped = lazyregexp.New(`^cannot (?:decode TOML|store an?) ([a-z ]+) (?:in|into) `)

// wanted are the values of network-file by key.
var wanted = map[string]string{
	"allow": listOfHosts, "deny": listOfHosts, "hosts": listOfHosts,
	"methods": `a list such as ["GET"]`, "paths": `a list such as ["/v1/"]`, "headers": `a list such as ["Authorization"]`,
	"owners": `a list such as ["token alice"]`, "as": "a text in quotes", "like": "a text in quotes", "file": "a text in quotes", "env": "a text in quotes",
	"rule": "sections [[default.rule]]", "default": "a section [default]", "owner": `sections [owner."token NAME"]`, "secret": "sections [secret.NAME]",
}

const listOfHosts = `a list such as ["pypi", "example.org"]`

// inWords returns the text of an error without the types of Go.
func inWords(err *toml.DecodeError) string {
	text := strings.TrimPrefix(err.Error(), "toml: ")
	m := mistyped().FindStringSubmatch(text)
	if m == nil {
		return text
	}
	return wrongKind(err.Key(), m[1])
}

// wrongKind says that a value, or an element of a list, has the wrong kind.
func wrongKind(key []string, kind string) string {
	for i := len(key) - 1; i >= 0; i-- {
		if want := wanted[key[i]]; want != "" {
			return fmt.Sprintf("%s: got a value of the kind %s, want %s", strings.Join(key, "."), kind, want)
		}
	}
	return fmt.Sprintf("%s: a value of the kind %s does not belong here", strings.Join(key, "."), kind)
}

// destinations parses the setting network.
func destinations(name, text string) ([]string, error) {
	if strings.EqualFold(text, NetworkOff) || strings.EqualFold(text, "none") {
		return nil, nil
	}
	entries, err := list(name, text)
	if err != nil {
		return nil, err
	}
	if _, err := policy.Parse(entries, nil); err != nil {
		return nil, invalid("%s: %v", name, err)
	}
	for _, e := range entries {
		if err := checkReach(e); err != nil {
			return nil, invalid("%s: %v", name, err)
		}
	}
	return entries, nil
}

// pins parses the setting egress-pin.
func pins(name, text string) ([]string, error) {
	entries, err := list(name, text)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if _, err := resolver.ParsePin(e); err != nil {
			return nil, invalid("%s: %v", name, err)
		}
	}
	return entries, nil
}

// Pins returns the parsed entries of EgressPins.
func (c *Config) Pins() []resolver.Pin {
	var parsed []resolver.Pin
	for _, e := range c.EgressPins {
		if p, err := resolver.ParsePin(e); err == nil { // Load has checked it
			parsed = append(parsed, p)
		}
	}
	return parsed
}
