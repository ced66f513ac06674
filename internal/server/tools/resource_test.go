package tools

import (
	"path"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box"
)

// TestResourceURI_RoundTrip: the URI of a file names that file, whatever bytes its
// name has.
func TestResourceURI_RoundTrip(t *testing.T) {
	for _, file := range []string{
		"/home/user/data.csv", "/home/user/a b#c?d%e&f;g=h+i:j@k", "/home/user/naïve \u202e\n\xff\xfe", "/x/..a/b..", "/tmp/'\"<>\\^`{|}",
	} {
		for _, of := range []boxRef{{box.KindSession, "s1"}, {box.KindContext, "my context"}} {
			uri := resourceURI(of, file)
			kind, id, got, err := parseResource(uri)
			if err != nil || kind != of.kind || id != of.id || got != file {
				t.Errorf("%q in %v: the URI %q is of %q in %v %v, %v", file, of, uri, got, kind, id, err)
			}
		}
	}
}

func FuzzParseResource(f *testing.F) {
	for _, uri := range []string{
		"glovebox://session/s1/home/user/a%20b.csv", "glovebox://context/ctx-1/x/../y", "glovebox://session/s1/%2e%2e/x",
		"glovebox://session//x", "glovebox://session/s1/a%2fb", "glovebox://session/s1/a%00", "file:///etc/passwd", "glovebox:/x",
	} {
		f.Add(uri)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		kind, id, file, err := parseResource(uri)
		if err != nil {
			return
		}
		if kind != box.KindSession && kind != box.KindContext || !plainID(id) || file[0] != '/' || path.Clean(file) != file || strings.ContainsRune(file, 0) {
			t.Errorf("%q: accepted as %q in %s %q", uri, file, kind, id)
		}
		if k, i, again, err := parseResource(resourceURI(boxRef{kind, id}, file)); err != nil || k != kind || i != id || again != file {
			t.Errorf("%q: %q in %s %q has a URI of %q in %s %q, %v", uri, file, kind, id, again, k, i, err)
		}
	})
}
