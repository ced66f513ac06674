package oci

import (
	"errors"
	"net"
	"net/http"

	protocol "github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/glovebox-dev/glovebox/engine"
)

// A Problem tells the remedies of errors of registries apart.
type Problem int

// The problems of registries.
const (
	Other       Problem = iota
	Denied              // the registry wants credentials, or others
	Missing             // the registry has no such image
	Unreachable         // there was no connection
)

// A RegistryError is an error of looking up an image in a registry, or of fetching its parts.
type RegistryError struct {
	Registry string // host, with a port if it is not that of HTTPS
	Problem  Problem
	Err      error
}

func (e *RegistryError) Error() string { return e.Err.Error() }
func (e *RegistryError) Unwrap() error { return e.Err }

// problemOf classifies an error of a registry.
func problemOf(err error) Problem {
	if answer, ok := errors.AsType[*protocol.Error](err); ok {
		switch answer.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden:
			return Denied
		case http.StatusNotFound:
			return Missing
		}
		return Other
	}
	if dial, ok := errors.AsType[*net.OpError](err); ok && (dial.Op == "dial" || dial.Op == "proxyconnect") {
		return Unreachable
	}
	return Other
}

// problemOfPart classifies an error of the config or of a layer of an image that the registry
// has. That the part is missing, or that another server refuses it to which the registry
// sent the request, has no remedy here.
func problemOfPart(err error, registry string) Problem {
	problem := problemOf(err)
	answer, ok := errors.AsType[*protocol.Error](err)
	if problem == Missing || problem == Denied && ok && answer.Request != nil && answer.Request.URL.Host != registry {
		return Other
	}
	return problem
}

// invalidRef is an error in a reference to an image.
type invalidRef struct{ error }

func (invalidRef) Unwrap() error { return engine.ErrInvalid }
