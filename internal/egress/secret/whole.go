package secret

import (
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/egress"
)

// formError means that the host answers in a form in which values cannot be found. It is one of a
// closed set of texts.
type formError string

func (e formError) Error() string { return string(e) }

const (
	errPart    = formError("a part of a resource, which was not asked for")
	errCharset = formError("a charset that is unknown or no superset of ASCII")
	errCoding  = formError("a content coding, although the server of this box asks for none")
	errMessage = formError("messages in a coding")
	errUpgrade = formError("another protocol than WebSocket, or an extension of it that was not asked for")
)

// charsets are the beginnings of the names of charsets that are supersets of ASCII, in lower case.
var charsets = []string{
	"utf-8", "utf8", "us-ascii", "ascii", "ansi_x3.4", "binary", "iso-8859-", "iso8859", "iso_8859-", "latin", "windows-125", "windows-874", "cp125", "koi8-", "macintosh", "x-mac-",
	"gb2312", "gbk", "gb18030", "big5", "shift_jis", "shift-jis", "sjis", "windows-31j", "euc-", "tis-620", "ibm437", "ibm85", "ibm86",
}

// checkWhole returns an error for a response in which values cannot be found. Decoding it does not
// help: a program that chooses the coding and its beginning could have the decoder encode a value, and
// one that has its own text compressed beside a value learns by the length how far they agree.
func checkWhole(res *http.Response) error {
	h := res.Header
	kind, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	switch {
	case strings.HasPrefix(strings.ToLower(h.Get("Content-Range")), "bytes") && res.StatusCode != http.StatusRequestedRangeNotSatisfiable,
		strings.HasPrefix(kind, "multipart/") && strings.HasSuffix(kind, "byteranges"):
		return errPart
	case coded(h, "Content-Encoding"):
		return errCoding
	case coded(h, "Grpc-Encoding"), coded(h, "Connect-Content-Encoding"):
		return errMessage
	}
	charset := strings.ToLower(params["charset"])
	if err != nil { // as clients read it that are less strict
		_, charset, _ = strings.Cut(strings.ToLower(h.Get("Content-Type")), "charset=")
	}
	charset = strings.Trim(charset, "\"' ")
	if charset != "" && !slices.ContainsFunc(charsets, func(known string) bool { return strings.HasPrefix(charset, known) }) {
		return errCharset
	}
	return nil
}

// asksForPart reports whether a request is for less than the whole resource. Some clients ask for all
// of it as a range.
func asksForPart(r *http.Request) bool {
	ranges := strings.ReplaceAll(r.Header.Get("Range"), " ", "")
	return r.Method == http.MethodGet && ranges != "" && !strings.EqualFold(ranges, "bytes=0-")
}

// noteRanges notes once that the program gets the whole resource in place of a part: it may add it to
// what it has, or read a large file many times.
func (s *session) noteRanges(res *http.Response) {
	if res.StatusCode != http.StatusOK || !exchangeOf(res.Request.Context()).parts || s.rangesNoted.Swap(true) {
		return
	}
	s.note(egress.Ranges, fmt.Sprintf("Glovebox left the range out of a request to %s: hosts with a secret give no parts, so the whole answer came. Do not append it to what is there.", s.authority()))
}

// checkUpgrade returns an error for an upgrade to a protocol in which values cannot be found.
func checkUpgrade(res *http.Response) error {
	if !strings.EqualFold(res.Header.Get("Upgrade"), "websocket") || res.Header.Get("Sec-Websocket-Extensions") != "" {
		return errUpgrade
	}
	return nil
}

// coded reports whether a header names another coding than identity.
func coded(h http.Header, name string) bool {
	value := strings.ToLower(strings.TrimSpace(strings.Join(h.Values(name), ",")))
	return value != "" && value != "identity"
}

// withoutCharset removes the parameter charset of the types that a request accepts: a program could
// ask for a charset that hides the value.
func withoutCharset(h http.Header) {
	for i, accept := range h.Values("Accept") {
		if !strings.Contains(strings.ToLower(accept), "charset") {
			continue
		}
		var types []string
		for _, one := range strings.Split(accept, ",") {
			var kept []string
			for _, part := range strings.Split(one, ";") {
				if !strings.Contains(strings.ToLower(part), "charset") {
					kept = append(kept, part)
				}
			}
			types = append(types, strings.Join(kept, ";"))
		}
		h["Accept"][i] = strings.Join(types, ",")
	}
}
