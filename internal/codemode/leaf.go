package codemode

import (
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// isLeaf reports whether the type of a schema has no parts, as that of a string, or of an object
// without declared members: it is short, so that a signature shows it however deep it is nested.
func isLeaf(s *jsonschema.Schema) bool {
	if s.Ref != "" || len(s.AllOf)+len(s.AnyOf)+len(s.OneOf) > 0 {
		return false
	}
	types := s.Types
	if s.Type != "" {
		types = []string{s.Type}
	}
	if len(types) > len(typeNames) || !isShort(s) {
		return false
	}
	if len(types) == 0 {
		return len(s.Enum) > 0 || s.Const != nil
	}
	return !slices.ContainsFunc(types, func(t string) bool {
		return t == "object" && len(s.Properties) > 0 || t == "array" && (s.Items != nil || len(s.PrefixItems) > 0)
	})
}

// isShort reports whether the values that a schema allows, if a signature shows them, fit into a
// type. Each reference to a leaf costs as much as the leaf.
func isShort(s *jsonschema.Schema) bool {
	values := s.Enum
	if len(values) > maxEnum {
		return true // the signature shows none
	}
	if s.Const != nil {
		values = append(slices.Clone(values), *s.Const)
	}
	left := maxType
	for _, v := range values {
		switch v := v.(type) {
		case string:
			left -= len(v)
		case map[string]any, []any:
			return false
		}
	}
	return left >= 0
}

// isWhole reports whether a signature shows the type of a leaf in full.
func (s signatureWriter) isWhole(schema *jsonschema.Schema) bool {
	if !isLeaf(schema) || len(schema.Enum) > maxEnum {
		return false
	}
	name := s.exactType(schema, 0)
	return name != "" && len(name) <= maxType
}

// withLeaves returns a schema for signatures, in which references to definitions of leaves
// are replaced by these: generators of schemas define each enumeration. Other references stay. A
// schema without definitions is returned as it is.
func withLeaves(root *jsonschema.Schema) *jsonschema.Schema {
	if root == nil || len(root.Defs)+len(root.Definitions) == 0 {
		return root
	}
	shown := root.CloneSchemas()
	var walk func(s *jsonschema.Schema) *jsonschema.Schema
	walkAll := func(all []*jsonschema.Schema) {
		for i := range all {
			all[i] = walk(all[i])
		}
	}
	walk = func(s *jsonschema.Schema) *jsonschema.Schema {
		if s == nil {
			return nil
		}
		if p := leafMeant(root, s); p != nil {
			return p
		}
		s.Items = walk(s.Items)
		walkAll(s.AnyOf)
		walkAll(s.OneOf)
		for name, p := range s.Properties {
			s.Properties[name] = walk(p)
		}
		return s
	}
	return walk(shown)
}

// leafMeant returns the leaf that a schema refers to, by itself or as its only part, with
// the description and the default of the schema; nil if it refers to none, or says more than that.
func leafMeant(root, s *jsonschema.Schema) *jsonschema.Schema {
	ref := s.Ref
	if ref == "" && len(s.AllOf) == 1 && s.AllOf[0] != nil {
		ref = s.AllOf[0].Ref
	}
	target := definition(root, ref)
	if target == nil || !isLeaf(target) || s.Type != "" || len(s.Types)+len(s.Enum)+len(s.AnyOf)+len(s.OneOf)+len(s.Properties) > 0 || constraints(s) != "" {
		return nil
	}
	p := *target
	if s.Description != "" {
		p.Description = s.Description
	}
	if len(s.Default) > 0 {
		p.Default = s.Default
	}
	return &p
}

// definition returns the definition that a reference names; nil if there is none.
func definition(root *jsonschema.Schema, ref string) *jsonschema.Schema {
	if n, ok := strings.CutPrefix(ref, "#/$defs/"); ok {
		return root.Defs[n]
	}
	if n, ok := strings.CutPrefix(ref, "#/definitions/"); ok {
		return root.Definitions[n]
	}
	return nil
}
