package mcpkit

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/visible"
	"github.com/glovebox-dev/glovebox/mcpkit/internal/redact"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// checkElicitation returns an elicitation in a form that is safe to show to the user. It
// refuses pages that the server may not send the user to: other than http and https,
// with credentials in the address (which can imitate a host) or characters that do not
// belong there; and those of an untrusted server that its outbound policy refuses, such
// as pages of this machine. It escapes hidden characters in the texts, and warns of
// forms that ask for a secret, which the protocol forbids.
func (s *Session) checkElicitation(trust Trust, params *mcp.ElicitParams) (*mcp.ElicitParams, error) {
	p := *params
	p.Message = visible.Text(p.Message)
	if p.Mode == "url" || p.URL != "" {
		if err := s.checkPage(trust, p.URL); err != nil {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
		}
	}
	if p.RequestedSchema != nil {
		schema, ok := visible.Schema(p.RequestedSchema)
		if !ok {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "the form has invisible or control characters"}
		}
		p.RequestedSchema = schema
		if secrets := secretFields(schema); len(secrets) > 0 {
			p.Message += fmt.Sprintf("\n\n(Warning: this asks for what may be a secret: %s. MCP servers must not ask for passwords or keys in a form.)", strings.Join(secrets, ", "))
		}
	}
	return &p, nil
}

func (s *Session) checkPage(trust Trust, page string) error {
	u, err := url.Parse(page)
	switch {
	case err != nil || strings.ContainsFunc(page, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Errorf("refusing to show a page of mcp server %q: the address is not a valid URL", s.def.Name)
	case u.User != nil:
		return &outbound.Refusal{Server: s.def.Name, Reason: outbound.Credentials, Target: u.Scheme + "://" + u.Host}
	}
	return s.policy(trust).Check(s.def.Name, u)
}

// secretFields returns the fields of a form whose names mark them as secret.
func secretFields(schema any) (names []string) {
	object, _ := schema.(map[string]any)
	fields, _ := object["properties"].(map[string]any)
	for name := range fields {
		if redact.NamesSecret(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
