package auth

import "slices"

// Scope is a permission.
type Scope string

// The closed set of scopes.
const (
	// Read allows read-only tools: lists, the state of boxes, downloads.
	Read Scope = "read"
	// Use allows all tools. It includes Read.
	Use Scope = "use"
	// Metrics allows the status page and the metrics, which count the boxes of all
	// owners and reveal no content.
	Metrics Scope = "metrics"
)

// AllScopes returns all scopes, in the order of the documentation.
func AllScopes() []Scope { return []Scope{Read, Use, Metrics} }

// prefix distinguishes our scopes from those of other services in an issuer's tokens.
const prefix = "glovebox:"

// Public returns the name of the scope in an issuer's tokens.
func (s Scope) Public() string { return prefix + string(s) }

// Scopes are the permissions of a bearer.
type Scopes []Scope

// Has reports whether the scopes include want.
func (s Scopes) Has(want Scope) bool {
	return slices.Contains(s, want) || want == Read && slices.Contains(s, Use)
}
