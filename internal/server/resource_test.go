package server

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// overStdio returns a session of the SDK's client over a pipe.
func overStdio(t *testing.T, s *Server, version string) *mcp.ClientSession {
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- s.ServeStdio(t.Context(), in, out) }()
	cs := connect(t, &mcp.IOTransport{Reader: fromServer, Writer: toServer}, version, nil)
	t.Cleanup(func() {
		_ = cs.Close()
		toServer.Close()
		if err := <-ended; err != nil {
			t.Errorf("serve stdio: %v", err)
		}
	})
	return cs
}

// linkOf returns the link in a result, nil if it has none.
func linkOf(t *testing.T, res *mcp.CallToolResult) *mcp.ResourceLink {
	t.Helper()
	if _, ok := res.Content[0].(*mcp.TextContent); !ok {
		t.Errorf("the first content is %T, want text", res.Content[0])
	}
	for _, c := range res.Content {
		if link, ok := c.(*mcp.ResourceLink); ok {
			return link
		}
	}
	return nil
}

// TestResourceLink_ClientReadsWholeFile: download_file of a file that it does not
// return whole links to it, and a client reads the link and gets every byte, over
// both transports and in every revision that has such links.
func TestResourceLink_ClientReadsWholeFile(t *testing.T) {
	s, endpoint := serve(t, withBoxes(t, nil))
	files := map[string][]byte{
		"rows of naïve data.csv": []byte(strings.Repeat("1,é,\"x\"\n", 20_000)),
		"weights#1?.bin":         bytes.Repeat([]byte{0, 1, 0xff, 0xfe}, 2000),
	}
	overHTTP := func(version string) *mcp.ClientSession {
		return connect(t, &mcp.StreamableClientTransport{Endpoint: endpoint}, version, nil)
	}
	setup := overHTTP("")
	for name, data := range files {
		must(t, setup, "upload_file", args{"session_id": "s1", "path": name, "content": base64.StdEncoding.EncodeToString(data), "encoding": "base64"})
	}
	must(t, setup, "upload_file", args{"session_id": "s1", "path": "short.txt", "content": "short"})
	for _, c := range []struct {
		version string
		links   bool
	}{
		{"2024-11-05", false}, {"2025-03-26", false}, {"2025-06-18", true}, {"2025-11-25", true}, {"2026-07-28", true},
	} {
		for transport, cs := range map[string]*mcp.ClientSession{"http": overHTTP(c.version), "stdio": overStdio(t, s, c.version)} {
			for name, data := range files {
				where := fmt.Sprintf("%s, %s, %s", c.version, transport, name)
				res, err := try(t, cs, "download_file", args{"session_id": "s1", "path": name})
				if err != nil || res.IsError {
					t.Fatalf("%s: %v %+v", where, err, res)
				}
				link := linkOf(t, res)
				if !c.links {
					if link != nil {
						t.Errorf("%s: a client of a revision without links got %+v", where, link)
					}
					continue
				}
				if link == nil || link.Name != name || link.Size == nil || *link.Size != int64(len(data)) || link.MIMEType == "" {
					t.Errorf("%s: got the link %+v", where, link)
					continue
				}
				if u, err := url.Parse(link.URI); err != nil || u.Scheme != "glovebox" || !strings.HasSuffix(u.Path, "/"+name) {
					t.Errorf("%s: the URI is %q, %v", where, link.URI, err)
				}
				read, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: link.URI})
				if err != nil || len(read.Contents) != 1 {
					t.Errorf("%s: read %s: %v %+v", where, link.URI, err, read)
					continue
				}
				got := read.Contents[0]
				if text := strings.HasSuffix(name, ".csv"); text && (got.Text != string(data) || got.MIMEType != "text/plain") ||
					!text && (!bytes.Equal(got.Blob, data) || got.MIMEType != "application/octet-stream") || got.URI != link.URI {
					t.Errorf("%s: read %s: got %d bytes of text and %d of a blob, %s", where, link.URI, len(got.Text), len(got.Blob), got.MIMEType)
				}
			}
			if res, err := try(t, cs, "download_file", args{"session_id": "s1", "path": "short.txt"}); err != nil || linkOf(t, res) != nil {
				t.Errorf("%s, %s: a file that is returned whole: got %v %+v, want no link", c.version, transport, err, res)
			}
			templates, err := cs.ListResourceTemplates(t.Context(), nil)
			if err != nil || len(templates.ResourceTemplates) != 1 || cs.InitializeResult().Capabilities.Resources == nil {
				t.Errorf("%s, %s: got the templates %+v, %v", c.version, transport, templates, err)
			}
		}
	}
	// Without a session the header tells the revision.
	for version, want := range map[string]bool{"": false, "2025-03-26": false, "2025-06-18": true, "2025-11-25": true} {
		h := header{"Accept": "application/json, text/event-stream", headerVersion: version}
		_, body := do(t, "POST", endpoint, h, toolCall(1, "download_file", `{"session_id":"s1","path":"weights#1?.bin"}`))
		if got := strings.Contains(body, `"resource_link"`); got != want || !strings.Contains(body, "is left out") {
			t.Errorf("a call of revision %q without a session: got %s", version, body)
		}
	}
}

// TestResource_EmptyAndLargeFiles: an empty file is an empty blob, and one that is
// too large is an error that says how to get it.
func TestResource_EmptyAndLargeFiles(t *testing.T) {
	_, endpoint := serve(t, withBoxes(t, nil))
	cs := connect(t, &mcp.StreamableClientTransport{Endpoint: endpoint}, "", nil)
	m, _ := must(t, cs, "execute_code", args{"session_id": "s1", "code": "import os\nopen('empty','w').close()\n" +
		"for n in 0, 1: open(f'large{n}', 'w').write('x' * ((4 << 20) + n))\nprint(os.getcwd())"})
	home := "glovebox://session/s1" + strings.TrimSpace(m["stdout"].(string))
	read, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: home + "/empty"})
	if err != nil || read.Contents[0].Blob == nil || len(read.Contents[0].Blob) != 0 {
		t.Errorf("an empty file: %v %+v", err, read)
	}
	read, err = cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: home + "/large0"})
	if err != nil || len(read.Contents[0].Text) != 4<<20 {
		t.Errorf("the largest resource: %v", err)
	}
	_, err = cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: home + "/large1"})
	if err == nil || !strings.Contains(err.Error(), "4194305 bytes") || !strings.Contains(err.Error(), "download_file with offset") {
		t.Errorf("a file above the limit: got %v, want the way to get it", err)
	}
	_, err = cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: home})
	if err == nil || !strings.Contains(err.Error(), "is a directory. Only regular files can be read: list_files lists a directory.") {
		t.Errorf("a directory: got %v, want what lists it", err)
	}
	if res, err := try(t, cs, "download_file", args{"session_id": "s1", "path": "large1"}); err != nil || linkOf(t, res) != nil {
		t.Errorf("a link that cannot be read: %v", err)
	}
}

// TestResource_BelongsToOwner: the URI names a box of the caller, never somebody
// else's, and a read is in the audit log.
func TestResource_BelongsToOwner(t *testing.T) {
	p := newPeople(t)
	_, endpoint := serve(t, p.options(withBoxes(t, nil)))
	for _, version := range []string{"2025-06-18", "2026-07-28"} {
		id := "s-" + version
		alice, bob := connect(t, p.transport("alice", endpoint), version, nil), connect(t, p.transport("bob", endpoint), version, nil)
		must(t, alice, "upload_file", args{"session_id": id, "path": "secret.csv", "content": strings.Repeat("secret\n", 10_000)})
		res, err := try(t, alice, "download_file", args{"session_id": id, "path": "secret.csv"})
		if err != nil {
			t.Fatal(err)
		}
		link := linkOf(t, res)
		if link == nil {
			t.Fatalf("no link: %+v", res)
		}
		if _, err := connect(t, p.transport("reader", endpoint), version, nil).ReadResource(t.Context(), &mcp.ReadResourceParams{URI: link.URI}); err != nil {
			t.Errorf("%s: another token of the owner: %v", version, err)
		}
		read := func(uri string) string {
			res, err := bob.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
			e, ok := errors.AsType[*jsonrpc.Error](err)
			if !ok || e.Code != jsonrpc.CodeInvalidParams || !strings.Contains(string(e.Data), `"uri"`) {
				t.Fatalf("%s: bob reads %s: got %+v, %v", version, uri, res, err)
			}
			return e.Error()
		}
		of, never := read(link.URI), read(strings.Replace(link.URI, id, "s-none", 1))
		if strings.ReplaceAll(of, id, "s-none") != never || !strings.Contains(of, "not found") {
			t.Errorf("%s: a file of another owner: got %q, want the error for an unknown session: %q", version, of, never)
		}
		// Bob's own box of the same id is his, with his files.
		must(t, bob, "upload_file", args{"session_id": id, "path": "other", "content": "x"})
		var seen string
		for _, line := range p.lines(t) {
			if line["tool"] == "resources/read" && line["box"] == id {
				seen += fmt.Sprintf("%v %v;", line["who"], line["outcome"])
			}
		}
		if want := "token alice ok;token bob refused;"; seen != want {
			t.Errorf("%s: the audit log has %q, want %q", version, seen, want)
		}
	}
}

// TestResource_ForgedURI: a URI that is not of the form of a link is refused, and a
// path is allowed or not as for download_file.
func TestResource_ForgedURI(t *testing.T) {
	s, endpoint := serve(t, withBoxes(t, nil))
	clients := map[string]*mcp.ClientSession{
		"http":   connect(t, &mcp.StreamableClientTransport{Endpoint: endpoint}, "2025-11-25", nil),
		"modern": connect(t, &mcp.StreamableClientTransport{Endpoint: endpoint}, "2026-07-28", nil),
		"stdio":  overStdio(t, s, "2025-11-25"),
	}
	setup := clients["http"]
	m, _ := must(t, setup, "execute_code", args{"session_id": "s1", "code": "import os\nopen('a.txt', 'w').write('x')\nos.mkdir('d')\nos.symlink('/etc/hostname', 'out')\nprint(os.getcwd())"})
	home := strings.TrimSpace(m["stdout"].(string))
	base := "glovebox://session/s1"
	for name, cs := range clients {
		read, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: base + home + "/a.txt"})
		if err != nil || read.Contents[0].Text != "x" {
			t.Fatalf("%s: got %+v, %v", name, read, err)
		}
		for _, uri := range []string{
			base + home + "/../../etc/hostname", base + home + "/%2e%2e/%2e%2e/etc/hostname", base + home + "/x/..%2fa.txt",
			base + home + "/./a.txt", base + "/" + home + "/a.txt", base + home + "/a.txt/", base + home + "/a.txt%00", base + home + "//a.txt",
			base + home + "/%zz", base + home + "/a.txt?x=1", base + home + "/a.txt#x", base, base + "/", base + "//",
			base + home + "/none.txt", base + home + "/d", base + home,
			"glovebox://context/s1" + home + "/a.txt", "glovebox://SESSION/s1" + home + "/a.txt", "glovebox://session@host/s1" + home + "/a.txt",
			"glovebox://box/s1" + home + "/a.txt", "glovebox://session/../s1" + home + "/a.txt", "glovebox://session/s%31%2f..%2fs1" + home + "/a.txt",
			"file://" + home + "/a.txt", "http://session/s1" + home + "/a.txt", home + "/a.txt", "", ":", "\x00", "\x01\u202e\U000e0001", "glovebox:session/s1" + home + "/a.txt",
			base + "/" + strings.Repeat("a/", 3000),
		} {
			if name == "modern" && (uri == "" || uri[0] < ' ') {
				continue // the client cannot send it in a header
			}
			read, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
			if e, ok := errors.AsType[*jsonrpc.Error](err); !ok || e.Code != jsonrpc.CodeInvalidParams || len(e.Message) > 1000 {
				t.Errorf("%s: %.80q: got %+v, %.300v; want an error of invalid parameters", name, uri, read, err)
			}
		}
		for _, path := range []string{"/etc/hostname", home + "/out", "/proc/self/environ", "/root/.none"} {
			res, err := try(t, cs, "download_file", args{"session_id": "s1", "path": path})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: base + path}); (err != nil) != res.IsError {
				t.Errorf("%s: %s: download_file is an error: %v; resources/read: %v", name, path, res.IsError, err)
			}
		}
	}
}

// TestDownload_LargeContentIsSentOnce: content that no model reads is in the structured
// content only.
func TestDownload_LargeContentIsSentOnce(t *testing.T) {
	_, endpoint := serve(t, withBoxes(t, nil))
	cs := connect(t, &mcp.StreamableClientTransport{Endpoint: endpoint}, "", nil)
	must(t, cs, "execute_code", args{"session_id": "s1", "code": "open('large', 'w').write('y' * (1 << 20)); open('small', 'w').write('y' * (1 << 17))"})
	for name, size := range map[string]int{"large": 1 << 20, "small": 1 << 17} {
		m, said := must(t, cs, "download_file", args{"session_id": "s1", "path": name, "max_bytes": 16 << 20})
		if content, _ := m["content"].(string); content != strings.Repeat("y", size) {
			t.Errorf("%s: the structured content has %d bytes, want %d", name, len(content), size)
		}
		if inText := strings.Count(said, "y") >= size; inText != (name == "small") || !inText && !strings.Contains(said, "of the structured content") {
			t.Errorf("%s: the text has %d bytes", name, len(said))
		}
	}
	m, _ := must(t, cs, "download_file", args{"session_id": "s1", "path": "large", "max_bytes": 512 << 10, "offset": 100, "encoding": "base64"})
	if content, _ := m["content"].(string); len(content) != (512<<10+2)/3*4 || m["next_offset"] != float64(100+512<<10) {
		t.Errorf("a part: %d bytes, next %v", len(content), m["next_offset"])
	}
}

// TestDownload_LargeAnswersOfOneOwnerAreBounded: memory for a large download is charged before
// the file is read.
func TestDownload_LargeAnswersOfOneOwnerAreBounded(t *testing.T) {
	s, endpoint := serve(t, func(o *Options) {
		withBoxes(t, nil)(o)
		o.Limits.Answers = 1 << 20
	})
	cs := connect(t, &mcp.StreamableClientTransport{Endpoint: endpoint}, "2025-11-25", nil)
	must(t, cs, "execute_code", args{"session_id": "s1", "code": "open('large', 'w').write('y' * (1 << 20))"})
	held := int64(600 << 10)
	s.answers.take(account{}, held) // by answers that their clients do not read
	res, err := try(t, cs, "download_file", args{"session_id": "s1", "path": "large", "max_bytes": 1 << 19})
	if err != nil || !res.IsError || !strings.Contains(text(t, res), "pass a smaller max_bytes") {
		t.Errorf("a download without room: %+v, %v", res, err)
	}
	must(t, cs, "download_file", args{"session_id": "s1", "path": "large", "max_bytes": 1 << 17})
	s.answers.give(account{}, held)
	must(t, cs, "download_file", args{"session_id": "s1", "path": "large", "max_bytes": 1 << 19})
	eventually(t, "nothing is charged", func() bool { return s.answers.value() == 0 })
}

// TestDownload_ControlCharacters: text that JSON makes several times as large is charged as
// such or sent as base64.
func TestDownload_ControlCharacters(t *testing.T) {
	s, endpoint := serve(t, func(o *Options) {
		withBoxes(t, nil)(o)
		o.Limits.Answers = 2 << 20
	})
	cs := connect(t, &mcp.StreamableClientTransport{Endpoint: endpoint}, "2025-11-25", nil)
	const size = 300 << 10
	must(t, cs, "execute_code", args{"session_id": "s1", "code": "open('controls', 'w').write('\\x1b' * (300 << 10)); open('some', 'w').write('yyyyyyy\\x1b\\n' * (40 << 10))"})
	m, said := must(t, cs, "download_file", args{"session_id": "s1", "path": "controls", "max_bytes": 16 << 20})
	content, _ := m["content"].(string)
	if data, err := base64.StdEncoding.DecodeString(content); m["encoding"] != "base64" || err != nil || string(data) != strings.Repeat("\x1b", size) || !strings.Contains(said, "control characters") {
		t.Errorf("control characters: encoding %v, %d bytes, %v; %s", m["encoding"], len(content), err, said)
	}
	if m, _ := must(t, cs, "download_file", args{"session_id": "s1", "path": "some", "max_bytes": 16 << 20}); m["encoding"] != "utf-8" {
		t.Errorf("some control characters: encoding %v", m["encoding"])
	}
	held := int64(1 << 20) // by answers that their clients do not read
	s.answers.take(account{}, held)
	res, err := try(t, cs, "download_file", args{"session_id": "s1", "path": "controls", "max_bytes": 16 << 20, "encoding": "utf-8"})
	if err != nil || !res.IsError || !strings.Contains(text(t, res), "pass a smaller max_bytes") {
		t.Errorf("six bytes for each do not fit: %v, %.300s", err, text(t, res))
	}
	s.answers.give(account{}, held)
	if m, _ := must(t, cs, "download_file", args{"session_id": "s1", "path": "controls", "max_bytes": 16 << 20, "encoding": "utf-8"}); m["encoding"] != "utf-8" {
		t.Errorf("with room: encoding %v", m["encoding"])
	}
	eventually(t, "nothing is charged", func() bool { return s.answers.value() == 0 })
}

// TestDownload_LargeContentAsText: a client that knows only text gets a large file as the
// note says.
func TestDownload_LargeContentAsText(t *testing.T) {
	_, endpoint := serve(t, withBoxes(t, nil))
	cs := connect(t, &mcp.StreamableClientTransport{Endpoint: endpoint}, "", nil)
	must(t, cs, "execute_code", args{"session_id": "s1", "code": "open('large', 'w').write('y' * (300 << 10) + 'THE END')"})
	for _, encoding := range []string{"utf-8", "base64"} {
		_, said := must(t, cs, "download_file", args{"session_id": "s1", "path": "large", "max_bytes": 1 << 20, "offset": 7, "encoding": encoding})
		found := regexp.MustCompile(`pass max_bytes (\d+) .*and offset (\d+)`).FindStringSubmatch(said)
		if found == nil {
			t.Fatalf("%s: the text does not say how to get the content: %s", encoding, said)
		}
		most, _ := strconv.Atoi(found[1])
		offset, _ := strconv.Atoi(found[2])
		var whole strings.Builder
		for offset > 0 {
			m, said := must(t, cs, "download_file", args{"session_id": "s1", "path": "large", "max_bytes": most, "offset": offset, "encoding": encoding})
			content, _ := m["content"].(string)
			if !strings.HasPrefix(said, content) {
				t.Fatalf("%s: a part at %d is not in the text: %.200s", encoding, offset, said)
			}
			whole.WriteString(content)
			next, _ := m["next_offset"].(float64)
			offset = int(next)
		}
		got := whole.String()
		if encoding == "base64" {
			data, err := base64.StdEncoding.DecodeString(got) // parts are multiples of three bytes
			if err != nil {
				t.Fatal(err)
			}
			got = string(data)
		}
		if got != strings.Repeat("y", 300<<10-7)+"THE END" {
			t.Errorf("%s: the parts have %d bytes", encoding, len(got))
		}
	}
}
