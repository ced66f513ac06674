package mcpkit

import (
	"errors"
	"net/url"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
)

// Many servers take a key in the path or the query of their URL. net/http quotes the whole
// URL in each error, and the SDK formats some of these errors as text, so that they cannot
// be unwrapped.

var (
	// quotedURL matches a URL that an error quotes with %q.
	quotedURL = lazyregexp.New(`(?i)"https?://(?:[^"\\]|\\.)*"`)
	// plainURL matches a URL in text.
	plainURL = lazyregexp.New(`(?i)https?://[^\s"]+`)
)

// withoutURLs returns err with a text that has only the scheme and the host of each quoted
// URL, and of each other URL whose origin is one of origins. The message of the server's
// own error response stays as it is.
func withoutURLs(err error, origins []string) error {
	if err == nil {
		return nil
	}
	whole := err.Error()
	before, message, after := whole, "", ""
	if answer, ok := errors.AsType[*jsonrpc.Error](err); ok {
		if b, a, found := strings.Cut(whole, answer.Message); found {
			before, message, after = b, answer.Message, a
		}
	}
	text := hideURLs(before, origins) + message + hideURLs(after, origins)
	if text == whole {
		return err
	}
	return &withoutURLsError{err, text}
}

func hideURLs(text string, origins []string) string {
	text = quotedURL().ReplaceAllStringFunc(text, func(quoted string) string {
		return `"` + originOf(strings.Trim(quoted, `"`)) + `"`
	})
	return plainURL().ReplaceAllStringFunc(text, func(plain string) string {
		short := originOf(plain)
		if !slices.Contains(origins, short) {
			return plain
		}
		if end := plain[len(plain)-1]; strings.IndexByte(":;,.)", end) >= 0 {
			return short + string(end)
		}
		return short
	})
}

// originOf returns the scheme and the host of a URL, without a user.
func originOf(text string) string {
	scheme, rest, _ := strings.Cut(text, "://")
	if end := strings.IndexAny(rest, `/?#\`); end >= 0 {
		rest = rest[:end]
	}
	return strings.ToLower(scheme + "://" + rest[strings.LastIndexByte(rest, '@')+1:])
}

// withoutURLsError is an error whose text has no URLs with a path or query.
type withoutURLsError struct {
	err  error
	text string
}

func (e *withoutURLsError) Error() string { return e.text }
func (e *withoutURLsError) Unwrap() error { return e.err }

// originsOf returns the origins of the URLs that are not empty.
func originsOf(urls ...string) (origins []string) {
	for _, text := range urls {
		if u, err := url.Parse(text); err == nil && text != "" {
			origins = append(origins, origin(u))
		}
	}
	return origins
}
