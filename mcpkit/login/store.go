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

// A Store keeps logins: a file for each server and client below a directory, that
// nobody but the user may read. Other processes may use it at the same time.
type Store struct {
	dir string // "" for memory

	mu     sync.Mutex
	memory map[string]*inMemory // guarded by mu
}

// OpenStore returns the store in a directory, which need not exist.
func OpenStore(dir string) *Store { return &Store{dir: dir} }

// newMemoryStore returns a store in memory.
func newMemoryStore() *Store { return &Store{memory: make(map[string]*inMemory)} }

// State is what is known of the login to a server.
type State struct {
	LoggedIn bool      // there is a token that has not ended, or can be refreshed
	Issuer   string    // who gave the last token; "" if there has been none
	Scopes   []string  // that it is for
	Expires  time.Time // zero if it can be refreshed, or does not say
	// Redirect is where the client is registered to be sent back to, if a client
	// is registered: the best address to await the browser at.
	Redirect string
}

// State tells about a server without connecting to it.
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

// document is where the login to one server is kept.
type document interface {
	Read() (record, error)
	// Update changes what is kept, while nobody else does; an error of change
	// leaves it as it is.
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
		m = &inMemory{turn: make(chan struct{}, 1)}
		st.memory[key] = m
	}
	return m
}

// inMemory is a document of this process.
type inMemory struct {
	turn chan struct{} // holds a value while somebody updates

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
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
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

	Issuer     string    `json:"issuer,omitempty"` // of the token
	Resource   string    `json:"resource,omitempty"`
	Token      string    `json:"token_endpoint,omitempty"`
	Revocation string    `json:"revocation_endpoint,omitempty"`
	Method     string    `json:"method,omitempty"`  // of the client to say who it is
	Asked      []string  `json:"asked,omitempty"`   // scopes
	Granted    []string  `json:"granted,omitempty"` // scopes; nil for those asked for
	Wanted     []string  `json:"wanted,omitempty"`  // scopes that the server missed when nobody could be asked
	Access     string    `json:"access_token,omitempty"`
	Refresh    string    `json:"refresh_token,omitempty"`
	Begun      time.Time `json:"begun,omitzero"`
	Expiry     time.Time `json:"expiry,omitzero"` // of Access; zero if not known
}

// read returns what is kept of a server. What is not of it is not taken for it,
// also if somebody has copied files about.
func read(d document, s *Server) (record, error) {
	r, err := d.Read()
	if err != nil {
		return record{}, err
	}
	return r.of(s), nil
}

// of is what of the record can be used for the server.
func (r record) of(s *Server) record {
	if key := s.key(); r.Server != key {
		return record{Server: key}
	}
	if r.Issuer == "" || r.Resource == "" || r.Token == "" {
		r.forget()
	}
	return r
}

// forget drops the tokens.
func (r *record) forget() { *r = record{Server: r.Server, Client: r.Client, Wanted: r.Wanted} }

// scopes is what the token is for.
func (r *record) scopes() []string {
	if r.Granted != nil {
		return r.Granted
	}
	return r.Asked
}

func (r *record) alive(now time.Time) bool {
	return r.Access != "" && (r.Expiry.IsZero() || now.Before(r.Expiry))
}

// ahead is how long before its end a token is refreshed, so that none ends on its
// way; of a short life, it is a fifth.
const ahead = 5 * time.Minute

// fresh reports whether the token need not be refreshed yet.
func (r *record) fresh(now time.Time) bool {
	if r.Access == "" || r.Expiry.IsZero() {
		return r.Access != ""
	}
	return now.Before(r.Expiry.Add(-min(ahead, r.Expiry.Sub(r.Begun)/5)))
}

// take keeps an answer of the token endpoint.
func (r *record) take(t *oauth2.Token, now time.Time) {
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

// maxScopes bounds what is asked for, and kept: a server may want any number, and
// the address of a page has room for fewer.
const maxScopes = 200

// union is the scopes of all, in order.
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
