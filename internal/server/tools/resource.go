package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/revision"
)

// DownloadFile is the name of the tool whose results link to resources.
const DownloadFile = "download_file"

const (
	// resourceScheme is the scheme of the URIs of files in boxes:
	// glovebox://session/ID/home/user/data.csv, or context in place of session.
	resourceScheme = "glovebox"

	// maxResource bounds the file that one resources/read returns. Base64 in JSON
	// stays below the 16 MiB that the Go SDK's client reads as one message.
	maxResource = 4 << 20
)

// FileResources returns the resource template for files of boxes and the handler that
// reads them. The handler applies the rules of download_file. It finds boxes of the
// caller only: the URI does not name an owner.
func FileResources(d Deps) (*mcp.ResourceTemplate, mcp.ResourceHandler) {
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	template := &mcp.ResourceTemplate{
		URITemplate: resourceScheme + "://{kind}/{id}/{+path}", Name: "file", Title: "File in a sandbox",
		Description: "A file of at most 4 MiB in the sandbox of a session or context, by its absolute path.",
	}
	return template, func(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		contents, err := d.readResource(ctx, req)
		if err != nil {
			return nil, d.resourceError(req.Params.URI, err)
		}
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{contents}}, nil
	}
}

func (d *Deps) readResource(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ResourceContents, error) {
	kind, id, file, err := parseResource(req.Params.URI)
	if err != nil {
		return nil, err
	}
	if rec, _ := ctx.Value(recordKey{}).(*Record); rec != nil {
		rec.set(id)
	}
	boxes, err := d.manager(ctx)
	if err != nil {
		return nil, err
	}
	c := &Call{Boxes: boxes, Owner: ownerOf(req.Extra)}
	defer c.release(false) // contents of a file have no place for notes
	if found, err := boxes.Find(c.Owner, id); err != nil {
		return nil, err
	} else if found != kind {
		return nil, c.noSession(id)
	}
	r, err := c.openFiles(ctx, id)
	if err != nil {
		return nil, err
	}
	defer r.close()
	var buf bytes.Buffer
	info, err := r.ReadFile(ctx, box.ReadRequest{Path: file, Limit: maxResource}, &buf)
	if err != nil {
		return nil, explainPath(readPath, err)
	}
	if info.Size > maxResource {
		return nil, &box.Error{
			Code: box.CodeFileTooLarge, Op: "read resource",
			Msg:  fmt.Sprintf("%s has %d bytes, and a resource at most %d", clip(file), info.Size, maxResource),
			Hint: "Read it in parts: call download_file with offset and max_bytes.",
		}
	}
	return resourceContents(req.Params.URI, buf.Bytes()), nil
}

// resourceContents returns text as text and other bytes as a blob. An empty file is
// an empty blob: the SDK leaves an empty text out, and contents have one of the two.
func resourceContents(uri string, data []byte) *mcp.ResourceContents {
	c := &mcp.ResourceContents{URI: uri, MIMEType: contentType(data)}
	if c.MIMEType == textType && len(data) > 0 {
		c.Text = string(data)
	} else {
		c.Blob = append([]byte{}, data...)
	}
	return c
}

const textType = "text/plain"

// contentType returns the MIME type of a whole file.
func contentType(data []byte) string {
	switch kind := imageType(data); {
	case kind != "":
		return kind
	case utf8.Valid(data) && !bytes.ContainsRune(data, 0):
		return textType
	}
	return "application/octet-stream"
}

// resourceURI returns the URI of a file; file is an absolute path in the box.
func resourceURI(of boxRef, file string) string {
	var b strings.Builder
	b.WriteString(resourceScheme + "://" + string(of.kind) + "/" + url.PathEscape(of.id))
	for part := range strings.SplitSeq(strings.TrimPrefix(file, "/"), "/") {
		b.WriteString("/" + url.PathEscape(part))
	}
	return b.String()
}

// ResourceBox returns the box that the URI of a file names; "" if it is no such URI.
func ResourceBox(uri string) string {
	_, id, _, err := parseResource(uri)
	if err != nil {
		return ""
	}
	return id
}

// parseResource parses a URI that a client sends. file is absolute and clean; err
// is a *box.Error with CodeInvalid.
func parseResource(uri string) (kind box.Kind, id, file string, err error) {
	bad := func(why string) (box.Kind, string, string, error) {
		return "", "", "", &box.Error{
			Code: box.CodeInvalid, Op: "read resource", Msg: "Invalid URI of a file: " + why,
			Hint: "The form is " + resourceScheme + "://session/ID/home/user/FILE.",
		}
	}
	u, err := url.Parse(uri)
	switch {
	case err != nil:
		return bad("it cannot be parsed")
	case u.Scheme != resourceScheme:
		return bad("the scheme is not " + resourceScheme)
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return bad("it has a user, a query or a fragment")
	}
	switch kind = box.Kind(u.Host); kind {
	case box.KindSession, box.KindContext:
	default:
		return bad("the host is neither session nor context")
	}
	escaped, rest, _ := strings.Cut(strings.TrimPrefix(u.EscapedPath(), "/"), "/")
	if id, err = url.PathUnescape(escaped); err != nil || !plainID(id) {
		return bad("it has no id of a session or context")
	}
	if file, err = url.PathUnescape("/" + rest); err != nil || strings.ContainsRune(file, 0) {
		return bad("the path is not properly escaped")
	}
	if file == "/" || path.Clean(file) != file || strings.Count(file, "/") != strings.Count("/"+rest, "/") {
		return bad("the path is not absolute and in its shortest form")
	}
	return kind, id, file, nil
}

// resourceError converts err to a JSON-RPC error. A box of another owner is reported
// as one that does not exist.
func (d *Deps) resourceError(uri string, err error) error {
	e := describe(d.Log, "resources/read", err)
	m := errorSpecOf(e)
	switch e.Code {
	case box.CodeNotFound, box.CodeFileNotFound:
		body, _ := json.Marshal(map[string]string{"uri": uri}) // strings only
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Resource not found: " + text(e, ""), Data: body}
	}
	suggestions := m.suggest
	if e.Hint != "" {
		suggestions = append([]string{e.Hint}, suggestions...)
	}
	return rpcError(m, text(e, m.prefix), suggestions, map[string]string{"uri": clip(uri)})
}

// understandsLinks reports whether the protocol revision of a call has content of
// type resource_link.
func understandsLinks(req *mcp.CallToolRequest) bool {
	if version, ok := req.Params.Meta[mcp.MetaKeyProtocolVersion].(string); ok {
		return version >= revision.ResourceLinks
	}
	if req.Session != nil {
		if p := req.Session.InitializeParams(); p != nil {
			return p.ProtocolVersion >= revision.ResourceLinks
		}
	}
	return req.Extra != nil && req.Extra.Header.Get("Mcp-Protocol-Version") >= revision.ResourceLinks
}

// fileLink returns a link to a file for resources/read. Its audience is the user: the
// model has download_file.
func fileLink(of boxRef, file, mime string, size int64) mcp.Content {
	return &mcp.ResourceLink{
		URI: resourceURI(of, file), Name: quoteName(path.Base(file)), MIMEType: mime, Size: &size,
		Annotations: &mcp.Annotations{Audience: []mcp.Role{"user"}},
	}
}
