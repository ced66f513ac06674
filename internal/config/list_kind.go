package config

import (
	"slices"

	"github.com/pelletier/go-toml/v2/unstable"
)

// otherKinds are the kinds of values, other than texts, that the decoder passes to a method
// UnmarshalText, and what inWords calls them. The decoder does not say where they are.
var otherKinds = map[unstable.Kind]string{
	unstable.Bool: "boolean", unstable.Integer: "integer", unstable.Float: "float",
}

// A misplaced value is an element of a list of texts that is no text.
type misplaced struct {
	key    []string // of the list
	kind   string
	offset int
}

// findMisplaced returns the first element of a list in TOML that has one of otherKinds, or
// nil: no list of network-file has such elements.
func findMisplaced(data []byte) *misplaced {
	var table []string
	var p unstable.Parser
	p.Reset(data)
	for p.NextExpression() {
		switch x := p.Expression(); x.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = appendKey(nil, x)
		case unstable.KeyValue:
			if m := misplacedIn(&p, appendKey(table, x), x.Value()); m != nil {
				return m
			}
		}
	}
	return nil
}

// misplacedIn is findMisplaced for the value of a key. The parser bounds the depth of values.
func misplacedIn(p *unstable.Parser, key []string, v *unstable.Node) *misplaced {
	if v.Kind != unstable.Array && v.Kind != unstable.InlineTable {
		return nil
	}
	for it := v.Children(); it.Next(); {
		n, at := it.Node(), key
		if n.Kind == unstable.KeyValue {
			n, at = n.Value(), appendKey(key, n)
		} else if kind := otherKinds[n.Kind]; kind != "" {
			raw := n.Raw
			if raw.Length == 0 { // as of booleans, whose Data is in the document
				raw = p.Range(n.Data)
			}
			return &misplaced{key: key, kind: kind, offset: int(raw.Offset)}
		}
		if m := misplacedIn(p, at, n); m != nil {
			return m
		}
	}
	return nil
}

// appendKey returns a key with the parts of the key of x after it.
func appendKey(key []string, x *unstable.Node) []string {
	key = slices.Clone(key)
	for it := x.Key(); it.Next(); {
		key = append(key, string(it.Node().Data))
	}
	return key
}
