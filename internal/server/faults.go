package server

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/server/statuspage"
)

// faults counts protocol errors by code, for the status page.
type faults struct {
	mu     sync.Mutex
	counts map[int64]statuspage.Error // guarded by mu
}

// meanings has the codes that are counted separately; all others count as 0.
var meanings = map[int64]string{
	jsonrpc.CodeParseError:     "not JSON",
	jsonrpc.CodeInvalidRequest: "invalid request, or a limit was reached",
	jsonrpc.CodeMethodNotFound: "unknown method or tool",
	jsonrpc.CodeInvalidParams:  "invalid arguments",
	jsonrpc.CodeInternalError:  "internal error",
	codeRefused:                "refused",
	0:                          "other errors",
}

func (f *faults) add(code int64, at time.Time) {
	if _, known := meanings[code]; !known {
		code = 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.counts == nil {
		f.counts = make(map[int64]statuspage.Error)
	}
	f.counts[code] = statuspage.Error{Code: code, Meaning: meanings[code], Count: f.counts[code].Count + 1, Last: at}
}

// list returns the errors, the most recent first.
func (f *faults) list() []statuspage.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.SortedFunc(maps.Values(f.counts), func(a, b statuspage.Error) int { return b.Last.Compare(a.Last) })
}
