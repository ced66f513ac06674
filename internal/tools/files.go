package tools

import (
	"context"
	"io"
	"slices"
	"strconv"

	"github.com/glovebox-dev/glovebox/internal/sandbox"
)

// maxUpload is what fits a request of the HTTP transport as base64, whose
// default limit is 32 MiB.
const maxUpload = 23 << 20

// fileErrors are those of the contexts tools.
var fileErrors = runErrors

// box finds the box that a file tool works in: a context or a session, one of
// the two. Only a tool that writes may make a session.
func (c *Call) box(ctx context.Context, contextID, sessionID string, create bool) (*sandbox.Sandbox, sandbox.Acquired, error) {
	switch {
	case contextID != "" && sessionID != "":
		return nil, sandbox.Acquired{}, invalid("session_id", "Pass either context_id or session_id, not both")
	case contextID == "" && sessionID == "":
		return nil, sandbox.Acquired{}, invalid("context_id", "Missing required parameter: context_id (or session_id)")
	case contextID != "":
		s, acq, _, err := c.context(ctx, contextID)
		return s, acq, err
	}
	if !create && !slices.ContainsFunc(c.Sandboxes.Sandboxes(c.Owner, sandbox.KindSession), func(b sandbox.Info) bool { return b.ID == sessionID }) {
		return nil, sandbox.Acquired{}, &sandbox.Error{
			Code: sandbox.CodeNotFound, Op: "find session", Msg: "Session not found: " + clip(sessionID),
			Context: map[string]string{"session_id": clip(sessionID)},
		}
	}
	return c.Sandboxes.Session(ctx, c.Owner, sandbox.SessionWant{ID: sessionID})
}

// reader is where list_files and download_file read: a living box, or what is on
// disk of a hibernated one whose memory cannot be restored.
type reader interface {
	List(context.Context, sandbox.ListRequest) (sandbox.ListResult, error)
	ReadFile(context.Context, sandbox.ReadRequest, io.Writer) (sandbox.FileInfo, error)
}

// reader finds what a file tool reads, and says what there is to know about it. The
// caller calls done.
func (c *Call) reader(ctx context.Context, contextID, sessionID string) (r reader, notes []string, done func(), err error) {
	if (contextID == "") != (sessionID == "") { // box refuses all else
		kind, id := sandbox.KindSession, sessionID
		if contextID != "" {
			kind, id = sandbox.KindContext, contextID
		}
		st, err := c.Sandboxes.Stored(c.Owner, kind, id)
		if err != nil {
			return nil, nil, nil, err
		}
		if st != nil {
			return st, []string{st.Explain()}, st.Close, nil
		}
	}
	s, acq, err := c.box(ctx, contextID, sessionID, false)
	if err != nil {
		return nil, nil, nil, err
	}
	_, notes = lostState(acq, "box")
	return s, notes, acq.Release, nil
}

func octal(mode uint32) string {
	s := strconv.FormatUint(uint64(mode), 8)
	for len(s) < 4 {
		s = "0" + s
	}
	return s
}

// imageType returns the MIME type of a picture that clients can show, by its
// first bytes; "" for anything else.
func imageType(b []byte) string {
	has := func(at int, magic string) bool {
		return len(b) >= at+len(magic) && string(b[at:at+len(magic)]) == magic
	}
	switch {
	case has(0, "\x89PNG\r\n\x1a\n"):
		return "image/png"
	case has(0, "\xff\xd8\xff"):
		return "image/jpeg"
	case has(0, "GIF87a"), has(0, "GIF89a"):
		return "image/gif"
	case has(0, "RIFF") && has(8, "WEBP"):
		return "image/webp"
	}
	return ""
}
