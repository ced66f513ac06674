package auth

import "slices"

// Scope is something that a bearer may do.
type Scope string

// The closed set of scopes.
const (
	// Read is to look: lists, the state of boxes, downloads.
	Read Scope = "read"
	// Use is everything that tools do; it includes Read.
	Use Scope = "use"
	// Metrics is to watch the server: its status page and metrics, which count the
	// boxes of all owners and show nothing of what is in them.
	Metrics Scope = "metrics"
)

// AllScopes returns all scopes, in the order of the documentation.
func AllScopes() []Scope { return []Scope{Read, Use, Metrics} }

// prefix is before the name of a scope in tokens of issuers, who know the scopes
// of other services as well.
const prefix = "glovebox:"

// Public is the scope as issuers and clients call it.
func (s Scope) Public() string { return prefix + string(s) }

// Scopes is what a bearer may.
type Scopes []Scope

// Has reports whether the scopes allow what want is about.
func (s Scopes) Has(want Scope) bool {
	return slices.Contains(s, want) || want == Read && slices.Contains(s, Use)
}
