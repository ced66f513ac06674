package mcpcli

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/mcpkit/login"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

func (a *app) logoutCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "logout SERVER",
		Short: "Log out of a server",
		Long: `Logout revokes the tokens at the authorization server, if it supports that, and
deletes them and the registered client.`,
		Args:              exactly(1),
		ValidArgsFunction: a.completeServers,
		RunE:              a.run(func(ctx context.Context, args []string) error { return a.logout(ctx, args[0]) }),
	}
}

func (a *app) logout(ctx context.Context, name string) error {
	store, err := a.logins()
	if err != nil {
		return err
	}
	return a.withLogin(ctx, name, func(r *mcpjson.Resolved, p *outbound.Policy) (auth.OAuthHandler, error) {
		return login.New(login.Options{Store: store}).OAuth(r, p)
	}, func(h *login.Handler) error {
		was, err := h.Logout(ctx)
		switch {
		case err != nil && !was:
			return err
		case err != nil:
			a.note("glovebox: warning: deleted the login, but the server may still accept it: %v", err)
		case !was:
			a.note("glovebox: note: you were not logged in to %s", name)
		}
		return nil
	})
}

// loginState describes the login to a server; "" if nothing is known. It connects to no
// server.
func (a *app) loginState(ctx context.Context, s *mcpjson.Server, trusted bool) (string, error) {
	if s.Transport != mcpjson.TransportHTTP && s.Transport != mcpjson.TransportSSE || s.OAuth != nil && s.OAuth.Disabled {
		return "", nil
	}
	var resolver mcpjson.Resolver
	if trusted {
		resolver.Env, resolver.Root = a.Lookup, s.Dir
	}
	r, err := s.Resolve(ctx, resolver)
	if err != nil {
		return "", nil // unknown
	}
	store, err := a.logins()
	if err != nil {
		return "", err
	}
	state, err := store.State(login.ServerFor(r))
	switch {
	case err != nil:
		return "", err
	case state.LoggedIn:
		return "logged in", nil
	case state.Issuer != "":
		return "login expired", nil
	}
	return "", nil
}
