package mcpjson

import (
	"maps"
	"slices"
	"strings"
)

// oauthMember describes a member of an OAuth object, under any key.
type oauthMember struct {
	read  func(r *reader, o *OAuth, field, at string, v *node)
	write func(w *writer, o *OAuth, field string) *node // nil if it is not set
}

var oauthMembers = map[string]oauthMember{
	"clientId":     oauthText(func(o *OAuth) *Text { return &o.ClientID }),
	"clientSecret": oauthText(func(o *OAuth) *Text { return &o.ClientSecret }),
	"scopes": {
		read: func(r *reader, o *OAuth, field, at string, v *node) { o.Scopes = r.scopes(v, field, at) },
		write: func(w *writer, o *OAuth, _ string) *node {
			switch {
			case w.spec.scopeText:
				return newText(strings.Join(o.Scopes, " "))
			case o.Scopes == nil:
				return nil
			}
			return newStrings(o.Scopes)
		},
	},
	"redirectUri": oauthPlain(func(o *OAuth) *string { return &o.RedirectURL }),
	"callbackPort": {
		read: func(r *reader, o *OAuth, _, at string, v *node) { o.CallbackPort = int(r.int(v, at, 1, 65535)) },
		write: func(_ *writer, o *OAuth, _ string) *node {
			if o.CallbackPort == 0 {
				return nil
			}
			return newInt(int64(o.CallbackPort))
		},
	},
	"metadataUrl":       oauthPlain(func(o *OAuth) *string { return &o.MetadataURL }),
	"clientMetadataUrl": oauthPlain(func(o *OAuth) *string { return &o.ClientMetadataURL }),
	"resource":          oauthPlain(func(o *OAuth) *string { return &o.Resource }),
	"grantType": {
		read: func(r *reader, o *OAuth, _, at string, v *node) {
			switch r.string(v, at) {
			case grantClient:
				o.ClientCredentials = true
			case grantCode:
			default:
				r.fail(v, at, "want one of %s, %s", grantCode, grantClient)
			}
		},
		write: func(_ *writer, o *OAuth, _ string) *node {
			if !o.ClientCredentials {
				return nil
			}
			return newString(grantClient)
		},
	},
	"enabled": {
		read: func(r *reader, o *OAuth, _, at string, v *node) { o.Disabled = !r.bool(v, at) },
		write: func(_ *writer, o *OAuth, _ string) *node {
			if !o.Disabled {
				return nil
			}
			return newBool(false)
		},
	},
}

func oauthText(at func(*OAuth) *Text) oauthMember {
	return oauthMember{
		read:  func(r *reader, o *OAuth, field, key string, v *node) { *at(o) = r.text(v, field, key) },
		write: func(w *writer, o *OAuth, field string) *node { return newText(w.format(field, *at(o))) },
	}
}

func oauthPlain(at func(*OAuth) *string) oauthMember {
	return oauthMember{
		read:  func(r *reader, o *OAuth, _, key string, v *node) { *at(o) = r.string(v, key) },
		write: func(_ *writer, o *OAuth, _ string) *node { return newText(*at(o)) },
	}
}

// newText returns a string node, nil if it is empty.
func newText(s string) *node {
	if s == "" {
		return nil
	}
	return newString(s)
}

// oauth reads a member of OAuth.
func (r *reader) oauth(what, at string, v *node) {
	field := "oauth." + what
	r.origin(field, at, v)
	oauthMembers[what].read(r, r.login(), field, at, v)
}

// oauthWords are the names of OAuth members in all dialects.
var oauthWords = map[string]string{
	"clientId": "clientId", "client_id": "clientId", "CLIENT_ID": "clientId",
	"clientSecret": "clientSecret", "client_secret": "clientSecret", "CLIENT_SECRET": "clientSecret",
	"scopes": "scopes", "scope": "scopes",
	"redirectUri": "redirectUri", "redirectUrl": "redirectUri", "redirect_uri": "redirectUri",
	"callbackPort":          "callbackPort",
	"authServerMetadataUrl": "metadataUrl",
	"clientMetadataUrl":     "clientMetadataUrl",
	"resource":              "resource", "oauth_resource": "resource",
	"grantType": "grantType", "grant_type": "grantType",
	"enabled": "enabled",
}

// The values of grantType.
const (
	grantCode   = "authorization_code"
	grantClient = "client_credentials"
)

// login returns the OAuth of the server, creating it if needed.
func (r *reader) login() *OAuth {
	if r.s.OAuth == nil {
		r.s.OAuth = &OAuth{}
	}
	return r.s.OAuth
}

// readOAuth reads an object of oauthWords, or a boolean.
func readOAuth(r *reader, key string, n *node) {
	if !r.once(n, "oauth", key) {
		return
	}
	if n.kind == boolean {
		r.origin("oauth.disabled", key, n)
		r.login().Disabled = n.text == "false"
		return
	}
	r.login()
	r.members(n, key, slices.Sorted(maps.Keys(oauthWords)), func(name string, v *node) bool {
		what, ok := oauthWords[name]
		if ok && !r.absent(v) {
			r.oauth(what, key+"."+name, v)
		}
		if !ok {
			r.s.OAuth.Extra = extra(r.s.OAuth.Extra, name, v)
		}
		return ok
	})
}

// scopes reads a list, or a string separated by spaces.
func (r *reader) scopes(v *node, field, at string) []string {
	if v.kind == text && !r.spec.strict {
		return strings.Fields(v.text)
	}
	if list := r.strings(v, field, at); len(list) > 0 {
		return list
	}
	return nil
}

// oauthOutside reads an OAuth member that a dialect has outside of the object.
func oauthOutside(what string) *fieldSpec {
	return &fieldSpec{
		read: func(r *reader, key string, n *node) {
			if r.once(n, "oauth."+what, key) {
				r.oauth(what, key, n)
			}
		},
		write: func(w *writer, key string) {
			if v := oauthMembers[what].write(w, w.s.OAuth, "oauth."+what); v != nil {
				w.out.put(key, v)
			}
		},
	}
}

// readAuth reads Cursor's object for a registered client. A string, as in other
// clients, is kept.
func readAuth(r *reader, key string, n *node) {
	if n.kind != object {
		keep(r, key, n)
		return
	}
	readOAuth(r, key, n)
}

// oauth writes an object of the named OAuth members, with the names in oauthWords.
func (w *writer) oauth(key string, words ...string) {
	o := w.s.OAuth
	if o == nil {
		return
	}
	if o.Disabled {
		const off = "enabled"
		if !slices.Contains(words, off) {
			return
		}
		words = []string{off} // nothing else matters
	}
	n := newObject()
	for _, word := range words {
		what := oauthWords[word]
		if v := oauthMembers[what].write(w, o, "oauth."+what); v != nil {
			n.put(word, v)
		}
	}
	if w.s.Dialect == w.spec.dialect {
		addExtra(n, o.Extra)
	}
	w.out.put(key, n)
}
