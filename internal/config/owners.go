package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tailscale/hujson"

	"github.com/glovebox-dev/glovebox/internal/owned"
)

// OwnerTools says which tools the code of an owner may call.
type OwnerTools struct {
	Tools string   `json:"tools"` // absolute path of an mcp.json
	Rules []string `json:"rules"` // as in Config.ToolRules, before those
}

// maxOwners bounds the owners of a file.
const maxOwners = 10_000

// ReadOwners reads the file of Config.ToolsOwners: an object with a member "owners",
// which has an [OwnerTools] for each owner. Relative paths in it are relative to its
// directory. Owners are named as in the audit log: "token NAME" for a token of the
// tokens file, "ISSUER SUBJECT" for a signed one. Only this user and root may be able to
// write or replace the file, which can allow every call. Errors are *Error.
func ReadOwners(path string) (map[string]OwnerTools, error) {
	switch err := owned.File(path); {
	case errors.Is(err, owned.ErrUnsafe):
		return nil, invalid("tools-owners: %s: other users could change which tools code may call: %v", path, err)
	case err != nil:
		return nil, invalid("tools-owners: %v", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, invalid("tools-owners: %v", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, invalid("tools-owners: read %s: %v", path, err)
	case len(data) > maxFile:
		return nil, invalid("tools-owners: %s: larger than %d bytes", path, maxFile)
	}
	parsed, err := hujson.Parse(data)
	if err != nil {
		return nil, invalid("tools-owners: %s: invalid JSON at %s", path, cmp.Or(position().FindString(err.Error()), "an unknown position"))
	}
	if name := duplicate(parsed, 0); name != "" {
		return nil, invalid("tools-owners: %s: the key %q occurs twice in an object: merge the two", path, name)
	}
	parsed.Standardize()
	data = parsed.Pack()
	var doc struct {
		Owners map[string]OwnerTools `json:"owners"`
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&doc); err != nil {
		return nil, invalid(`tools-owners: %s: %v: write {"owners": {"token NAME": {"tools": "mcp.json", "rules": ["allow memory"]}}}`, path, err)
	}
	if len(doc.Owners) == 0 || len(doc.Owners) > maxOwners {
		return nil, invalid(`tools-owners: %s has %d owners, want 1 to %d: write {"owners": {"token NAME": {"tools": "mcp.json"}}}`, path, len(doc.Owners), maxOwners)
	}
	for _, owner := range slices.Sorted(maps.Keys(doc.Owners)) {
		t := doc.Owners[owner]
		if err := checkOwner(owner); err != nil {
			return nil, invalid("tools-owners: %s: %v", path, err)
		}
		if t.Tools == "" {
			return nil, invalid(`tools-owners: %s: the owner %q has no "tools", the path of an mcp.json`, path, owner)
		}
		if !filepath.IsAbs(t.Tools) {
			t.Tools = filepath.Join(filepath.Dir(path), t.Tools)
		}
		doc.Owners[owner] = t
	}
	return doc.Owners, nil
}

// ownersDepth is the depth of the object whose keys are owners. The decoder ignores case in
// the keys of the other objects.
const ownersDepth = 1

// duplicate returns a key that an object in v has twice; "" if there is none. The decoder
// would drop the first one, which may have the rules that deny calls.
func duplicate(v hujson.Value, depth int) string {
	switch v := v.Value.(type) {
	case *hujson.Object:
		seen := make(map[string]bool, len(v.Members))
		for _, m := range v.Members {
			name := m.Name.Value.(hujson.Literal).String()
			key := name
			if depth != ownersDepth {
				key = strings.ToLower(strings.ToUpper(name))
			}
			if seen[key] {
				return name
			}
			seen[key] = true
			if inner := duplicate(m.Value, depth+1); inner != "" {
				return inner
			}
		}
	case *hujson.Array:
		for _, e := range v.Elements {
			if inner := duplicate(e, depth+1); inner != "" {
				return inner
			}
		}
	}
	return ""
}

// checkOwner returns an error for a text that is no owner's.
func checkOwner(owner string) error {
	if name, ok := strings.CutPrefix(owner, "token "); ok && name != "" {
		return nil
	}
	if issuer, subject, ok := strings.Cut(owner, " "); ok && subject != "" && strings.Contains(issuer, "://") || strings.HasPrefix(owner, "sha256:") {
		return nil
	}
	return fmt.Errorf(`%q is no owner: write "token NAME" for a token of the tokens file, or "ISSUER SUBJECT" for a signed token`, owner)
}
