package codemode

import (
	"encoding/json"
	"net/url"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Bounds of schemas. A schema that exceeds them is not checked here: the server checks
// the arguments itself.
const (
	// maxSchema bounds a schema, in bytes, and maxSchemaValues the values in it, which take
	// 10 µs each to decode.
	maxSchema       = 256 << 10
	maxSchemaValues = 5000
	// maxSchemaSteps bounds the values in a schema with each reference replaced by what it
	// refers to, and with the instructions of its patterns.
	maxSchemaSteps = 20_000
	// maxSchemaDepth bounds the nesting of the same.
	maxSchemaDepth = 100
	// maxCheck bounds the work of checking arguments: their bytes times steps times depth.
	// The validator may visit each value in each step, and quote it in an error, which each
	// level around it copies.
	maxCheck = 64 << 20
	// maxUnique bounds the values of arguments if a list in them must have no equal
	// elements: lists that are hard to tell apart are compared in pairs.
	maxUnique = 1000
)

// declaration is the parsed declaration of a tool.
type declaration struct {
	input, output *jsonschema.Schema // nil: none, or too large; output is for signatures
	parameters    []parameter        // of input, for signatures
	names         map[string]bool    // of the arguments that input declares anywhere; nil: none
	unknown       bool               // input is too large

	validator    *jsonschema.Resolved // of input; nil: the server checks
	steps, depth int                  // of input
	unique       bool                 // input forbids equal elements of a list
}

// checkable reports whether the validator checks the arguments in little time.
func (d *declaration) checkable(arguments []byte) bool {
	return d.validator != nil && len(arguments)*d.steps*d.depth <= maxCheck && (!d.unique || countValues(arguments) <= maxUnique)
}

// declarations caches the declarations of tools. Its methods may be called concurrently.
type declarations struct {
	parsing sync.Mutex // held while a declaration is parsed: servers get no more than one processor

	mu    sync.Mutex
	known map[*mcp.Tool]*declaration // guarded by mu
	steps int                        // guarded by mu; of known
}

// maxKeptSteps bounds the cache, which is emptied when it is full: lists of tools are
// replaced as a whole. A step takes a few hundred bytes.
const maxKeptSteps = 100_000

// of returns the declaration of a tool, which must not be modified.
func (c *declarations) of(t *mcp.Tool) *declaration {
	if d := c.cached(t); d != nil {
		return d
	}
	c.parsing.Lock()
	defer c.parsing.Unlock()
	if d := c.cached(t); d != nil { // another call was faster
		return d
	}
	d, size := parseDeclaration(t)
	if size > maxKeptSteps {
		return d
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || c.steps+size > maxKeptSteps {
		c.known, c.steps = make(map[*mcp.Tool]*declaration), 0
	}
	c.known[t] = d
	c.steps += size
	return d
}

func (c *declarations) cached(t *mcp.Tool) *declaration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[t]
}

// parseDeclaration also returns the size of the declaration in steps.
func parseDeclaration(t *mcp.Tool) (d *declaration, size int) {
	d = &declaration{}
	var in, out int
	d.output, _, out = parseSchema(t.OutputSchema)
	d.output = withLeaves(d.output)
	var m measure
	d.input, m, in = parseSchema(t.InputSchema)
	d.parameters = parameters(withLeaves(d.input))
	d.names = declaredNames(d.input)
	d.unknown = d.input == nil && t.InputSchema != nil
	d.steps, d.depth, d.unique = m.steps, m.depth, m.unique
	if d.input != nil && m.bounded() {
		d.validator = resolve(d.input)
	}
	return d, in + out + m.steps + 10
}

// declaredNames returns the names of the arguments that a schema declares, also in alternatives,
// conditions and definitions that it refers to; nil if there are none. Where the schema declares
// names only for some arguments, they count for all.
func declaredNames(schema *jsonschema.Schema) map[string]bool {
	var names map[string]bool
	seen := make(map[*jsonschema.Schema]bool)
	var add func(all ...*jsonschema.Schema)
	add = func(all ...*jsonschema.Schema) {
		for _, s := range all {
			if s == nil || seen[s] {
				continue
			}
			seen[s] = true
			for n := range s.Properties {
				if names == nil {
					names = make(map[string]bool)
				}
				names[n] = true
			}
			add(s.AllOf...)
			add(s.AnyOf...)
			add(s.OneOf...)
			add(s.If, s.Then, s.Else)
			for _, d := range s.DependentSchemas {
				add(d)
			}
			add(definition(schema, s.Ref))
		}
	}
	add(schema)
	return names
}

// resolve returns a validator, nil for a schema that is not valid. It loads nothing.
func resolve(schema *jsonschema.Schema) (r *jsonschema.Resolved) {
	r, err := schema.Resolve(nil)
	if err != nil {
		return nil
	}
	return r
}

// parseSchema decodes a schema of a server; nil if it is none, or too large to decode.
// values is the number of values in it.
func parseSchema(v any) (s *jsonschema.Schema, m measure, values int) {
	if v == nil {
		return nil, m, 0
	}
	b, err := json.Marshal(v)
	if err != nil || len(b) > maxSchema || countValues(b) > maxSchemaValues {
		return nil, m, 0
	}
	var document any
	if json.Unmarshal(b, &document) != nil || depthOf(document, maxSchemaDepth) > maxSchemaDepth {
		return nil, m, 0
	}
	s = new(jsonschema.Schema)
	if json.Unmarshal(b, s) != nil {
		return nil, m, 0
	}
	return s, measureSchema(document), countValues(b)
}

// depthOf returns the nesting of a decoded JSON value, or more than limit.
func depthOf(v any, limit int) (depth int) {
	if limit < 0 {
		return 1
	}
	switch v := v.(type) {
	case []any:
		for _, one := range v {
			depth = max(depth, depthOf(one, limit-1))
		}
	case map[string]any:
		for _, one := range v {
			depth = max(depth, depthOf(one, limit-1))
		}
	}
	return depth + 1
}

// measure is the size of a schema with each reference replaced by what it refers to.
type measure struct {
	steps, depth int
	unique       bool // it has uniqueItems
	unbounded    bool // a reference leads to itself, or cannot be followed here
}

func (m measure) bounded() bool {
	return !m.unbounded && m.steps <= maxSchemaSteps && m.depth <= maxSchemaDepth
}

// add adds the measure of a part.
func (m *measure) add(part measure) {
	m.steps = min(m.steps+part.steps, maxSchemaSteps+1)
	m.depth = max(m.depth, part.depth+1)
	m.unique = m.unique || part.unique
	m.unbounded = m.unbounded || part.unbounded
}

// measurer measures the parts of a schema. It treats all values alike, whether they are
// schemas, lists of names or examples, and ignores the case of keywords, as the decoder
// of schemas does. So it never measures too little.
type measurer struct {
	root any
	refs map[string]*measure // of what each reference refers to; nil: in progress
}

func measureSchema(root any) measure {
	r := measurer{root, make(map[string]*measure)}
	return r.of("", root)
}

// of measures the value of a name.
func (r *measurer) of(name string, v any) (m measure) {
	m = measure{steps: 1, depth: 1}
	switch v := v.(type) {
	case []any:
		for _, one := range v {
			if m.add(r.of("", one)); !m.bounded() {
				return m
			}
		}
	case map[string]any:
		patterns := strings.EqualFold(name, "patternProperties")
		for key, one := range v {
			if patterns {
				m.steps += patternSteps(key)
			}
			if m.add(r.of(key, one)); !m.bounded() {
				return m
			}
		}
	case string:
		switch {
		case strings.EqualFold(name, "$ref"):
			m.add(r.reference(v))
		case strings.EqualFold(name, "pattern"):
			m.steps += patternSteps(v)
		case slices.ContainsFunc(anchors, func(a string) bool { return strings.EqualFold(name, a) }):
			m.unbounded = true
		}
	case bool:
		m.unique = v && strings.EqualFold(name, "uniqueItems")
	}
	return m
}

// anchors are the keywords that change what references refer to.
var anchors = []string{"$id", "$anchor", "$dynamicAnchor", "$dynamicRef"}

// reference measures what a reference refers to.
func (r *measurer) reference(ref string) measure {
	known, begun := r.refs[ref]
	switch {
	case begun && known == nil:
		return measure{unbounded: true}
	case begun:
		return *known
	}
	target, ok := r.find(ref)
	if !ok {
		return measure{unbounded: true}
	}
	r.refs[ref] = nil
	m := r.of("", target)
	r.refs[ref] = &m
	return m
}

// find returns the value that a reference refers to, if that is a JSON pointer into the
// document.
func (r *measurer) find(ref string) (v any, ok bool) {
	pointer, local := strings.CutPrefix(ref, "#")
	pointer, err := url.PathUnescape(pointer)
	if !local || err != nil || pointer != "" && pointer[0] != '/' {
		return nil, false // also another document: nothing is loaded
	}
	v = r.root
	for _, name := range strings.Split(pointer, "/")[1:] {
		switch at := v.(type) {
		case map[string]any:
			name = pointerEscapes.Replace(name)
			for key, one := range at {
				if key == name {
					v, ok = one, true
				} else if strings.EqualFold(key, name) {
					return nil, false // the decoder may take one for the other
				}
			}
		case []any:
			if i, err := strconv.Atoi(name); err == nil && 0 <= i && i < len(at) {
				v, ok = at[i], true
			}
		}
		if !ok {
			return nil, false
		}
		ok = false
	}
	return v, true
}

// pointerEscapes are those of JSON pointers (RFC 6901).
var pointerEscapes = strings.NewReplacer("~1", "/", "~0", "~")

// patternSteps returns about how many instructions a regular expression takes, at most
// maxSchemaSteps+1. It does not compile the expression, which takes as much memory.
func patternSteps(pattern string) int {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 1 // nor does the validator take it
	}
	return min(instructions(re), maxSchemaSteps+1)
}

func instructions(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)
	for _, sub := range re.Sub {
		n = min(n+instructions(sub), maxSchemaSteps+1)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1) + 1
	}
	return min(n, maxSchemaSteps+1)
}
