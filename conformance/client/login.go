package main

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"github.com/glovebox-dev/glovebox/internal/logintest"
	"github.com/glovebox-dev/glovebox/mcpkit/login"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

const (
	// metadataURL is the client id that the suite expects of clients with a metadata
	// document. The document does not exist.
	metadataURL = "https://conformance-test.local/client-metadata.json"
	// redirectURL has no listener: visit reads the redirect.
	redirectURL = "http://localhost:3000/callback"
)

// logins logs in as the client of the suite's facts, or as a registered one.
func logins(scenario string, told *facts) func(*mcpjson.Resolved, *outbound.Policy) (auth.OAuthHandler, error) {
	l := login.New(login.Options{Authorize: visit, RedirectURL: redirectURL, ClientName: clientName, ClientMetadataURL: metadataURL})
	return func(r *mcpjson.Resolved, p *outbound.Policy) (auth.OAuthHandler, error) {
		s := login.ServerFor(r)
		s.ClientID, s.ClientSecret, s.Issuer = told.ClientID, told.ClientSecret, told.Issuer
		s.ClientCredentials = strings.HasPrefix(scenario, "auth/client-credentials-")
		if told.PrivateKey != "" {
			var err error
			if s.Key, err = parseKey(told.PrivateKey); err != nil {
				return nil, fmt.Errorf("read private_key_pem: %w", err)
			}
		}
		return l.Handler(s, p)
	}
}

func parseKey(text string) (crypto.Signer, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("it is no PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a %T signs nothing", key)
	}
	return signer, nil
}

// visit is a browser whose user consents at once.
func visit(ctx context.Context, _, page string) (login.AuthorizationResponse, error) {
	back, err := logintest.Approve(ctx, page)
	if err != nil {
		return login.AuthorizationResponse{}, err
	}
	return login.ParseAuthorizationResponse(back)
}
