package login

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"

	"github.com/glovebox-dev/glovebox/internal/statefile"
)

const version = 1

// A Store stores logins, in one file for each server and client below a directory. Only
// the user can read them. Several processes may use a store concurrently.
type Store struct {
	dir string // "" for memory

	mu     sync.Mutex
	memory map[string]*inMemory // guarded by mu
}

// OpenStore returns the store in a directory, which is created with the first login.
func OpenStore(dir string) *Store { return &Store{dir: dir} }

// newMemoryStore returns a store in memory.
func newMemoryStore() *Store { return &Store{memory: make(map[string]*inMemory)} }

// State describes the login to a server.
type State struct {
	LoggedIn bool      // there is a token that is valid or can be refreshed
	Issuer   string    // that issued the last token; empty if none did
	Scopes   []string  // that issued the token
	Expires  time.Time // zero if the token can be refreshed, or its expiry is unknown
	// Redirect is the redirect address of the registered client, if there is one:
	// listen there for the browser.
	Redirect string
}

// State returns the state of a login without connecting to the server.
func (st *Store) State(s Server) (State, error) {
	r, err := read(st.document(&s), &s)
	if err != nil {
		return State{}, err
	}
	state := State{Issuer: r.Issuer, Scopes: r.scopes(), Redirect: r.Client.Redirect}
	if state.LoggedIn = r.Refresh != "" || r.alive(time.Now()); r.Refresh == "" {
		state.Expires = r.Expiry
	}
	return state, nil
}

// document is the storage of one login.
type document interface {
	Read() (record, error)
	// Update changes the login, exclusively. If change returns an error, the login
	// stays unchanged and Update returns that error.
	Update(ctx context.Context, change func(*record) error) error
}

func (st *Store) document(s *Server) document {
	key := s.key()
	if st.dir != "" {
		return &statefile.File[record]{Path: filepath.Join(st.dir, key+".json"), Version: version}
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	m := st.memory[key]
	if m == nil {
		m = &inMemory{updating: make(chan struct{}, 1)}
		st.memory[key] = m
	}
	return m
}

// inMemory is a document in the memory of this process.
type inMemory struct {
	updating chan struct{} // holds a value during an update

	mu   sync.Mutex
	data record // guarded by mu
}

func (m *inMemory) Read() (record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.data, nil
}

func (m *inMemory) Update(ctx context.Context, change func(*record) error) error {
	select {
	case m.updating <- struct{}{}:
		defer func() { <-m.updating }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	data, _ := m.Read() // cannot fail
	if err := change(&data); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.data = data
	return nil
}

// A record is the login to one server.
type record struct {
	Server string `json:"server"` // its key
	Client client `json:"client,omitzero"`

	Issuer     string    `json:"issuer,omitempty"` // that issued the token
	Resource   string    `json:"resource,omitempty"`
	Token      string    `json:"token_endpoint,omitempty"`
	Revocation string    `json:"revocation_endpoint,omitempty"`
	Method     string    `json:"method,omitempty"`  // of client authentication
	Asked      []string  `json:"asked,omitempty"`   // scopes
	Granted    []string  `json:"granted,omitempty"` // scopes; nil if the same as Asked
	Wanted     []string  `json:"wanted,omitempty"`  // scopes that the server required when no user could be asked
	Access     string    `json:"access_token,omitempty"`
	Refresh    string    `json:"refresh_token,omitempty"`
	Begun      time.Time `json:"begun,omitzero"`
	Expiry     time.Time `json:"expiry,omitzero"` // of Access; zero if not known
}

// read returns the stored record of a server.
func read(d document, s *Server) (record, error) {
	r, err := d.Read()
	if err != nil {
		return record{}, err
	}
	return r.of(s), nil
}

// of returns the parts of the record that are valid for the server. A record of another
// server, such as a copied file, counts as empty.
func (r record) of(s *Server) record {
	if key := s.key(); r.Server != key {
		return record{Server: key}
	}
	if r.Issuer == "" || r.Resource == "" || r.Token == "" {
		r.forget()
	}
	return r
}

// forget deletes the tokens.
func (r *record) forget() { *r = record{Server: r.Server, Client: r.Client, Wanted: r.Wanted} }

// scopes returns the scopes of the token.
func (r *record) scopes() []string {
	if r.Granted != nil {
		return r.Granted
	}
	return r.Asked
}

func (r *record) alive(now time.Time) bool {
	return r.Access != "" && (r.Expiry.IsZero() || now.Before(r.Expiry))
}

// refreshAhead is how long before its expiry a token is refreshed, so that it does not
// expire in transit; at most a fifth of its lifetime.
const refreshAhead = 5 * time.Minute

// fresh reports whether the token is valid and not yet due for a refresh.
func (r *record) fresh(now time.Time) bool {
	if r.Access == "" || r.Expiry.IsZero() {
		return r.Access != ""
	}
	return now.Before(r.Expiry.Add(-min(refreshAhead, r.Expiry.Sub(r.Begun)/5)))
}

// setToken stores a token response.
func (r *record) setToken(t *oauth2.Token, now time.Time) {
	r.Access, r.Begun, r.Expiry = t.AccessToken, now.UTC(), t.Expiry.UTC()
	if t.Expiry.IsZero() {
		r.Expiry = time.Time{}
	}
	if t.RefreshToken != "" {
		r.Refresh = t.RefreshToken
	}
	if scopes, ok := t.Extra("scope").(string); ok {
		r.Granted = strings.Fields(scopes)
	}
}

// maxScopes bounds the scopes that are requested and stored. The address of an
// authorization page has room for fewer.
const maxScopes = 200

// union returns the distinct scopes of all lists, in order.
func union(lists ...[]string) []string {
	var all []string
	for _, list := range lists {
		for _, s := range list {
			if len(all) < maxScopes && !slices.Contains(all, s) {
				all = append(all, s)
			}
		}
	}
	return all
}
