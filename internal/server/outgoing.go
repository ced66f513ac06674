package server

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// maxHead is where the kind of a message is looked for: it comes after an id, and a
// longer one has to do without what is done for others.
const maxHead = 4 << 10

// The members that say what kind a message is.
var (
	isResult  = []byte(`"result":`)
	isError   = []byte(`"error":`)
	isRequest = []byte(`"method":`)
	uncoded   = []byte(`"error":{"code":0,`)

	// messageBegin is how a message with an id begins; the id follows.
	messageBegin = []byte(`{"jsonrpc":"2.0","id":`)
)

// kindOf finds, in bytes that the SDK writes, the member that says what kind of
// message it is: a message with an id, alone or as the data of an event. It
// returns -1 for anything else.
func kindOf(b []byte) (at int) {
	head := b[:min(len(b), maxHead)]
	at = bytes.Index(head, messageBegin)
	if at < 0 {
		return -1
	}
	for at += len(messageBegin); ; {
		comma := bytes.IndexByte(head[at:], ',')
		if comma < 0 {
			return -1
		}
		at += comma + 1
		for _, member := range [][]byte{isResult, isError, isRequest} {
			if bytes.HasPrefix(head[at:], member) {
				return at
			}
		}
	}
}

// isAnswer reports whether the SDK writes a response, and neither a notification
// nor a request of ours.
func isAnswer(b []byte) bool {
	at := kindOf(b)
	return at >= 0 && !bytes.HasPrefix(b[at:], isRequest)
}

// withCode gives an error a code that the SDK has none for: it refuses some requests
// before they reach our handlers.
func withCode(b []byte) []byte {
	if !bytes.Contains(b[:min(len(b), maxHead)], uncoded) {
		return b
	}
	at := kindOf(b)
	if at < 0 || !bytes.HasPrefix(b[at:], uncoded) {
		return b
	}
	code := strconv.AppendInt([]byte(`"error":{"code":`), jsonrpc.CodeInternalError, 10)
	return slices.Concat(b[:at], code, b[at+len(uncoded)-1:])
}
