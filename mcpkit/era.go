package mcpkit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/internal/statefile"
)

// Era is a generation of the protocol. The set is closed.
type Era string

// The eras.
const (
	Auto   Era = ""       // detected for each server
	Legacy Era = "legacy" // revisions with the initialize handshake, up to 2025-11-25
	Modern Era = "modern" // revisions without it, from 2026-07-28 on
)

const (
	// probeTimeout bounds the wait for a server's answer to the probe. Most servers
	// that do not know the request refuse it at once; the others never answer.
	probeTimeout = 2 * time.Second
	// eraMaxAge is how long a remembered era is used: the server may be upgraded.
	eraMaxAge = 7 * 24 * time.Hour
	// maxEras bounds the number of remembered eras.
	maxEras = 1000
	// maxEarly bounds the messages of a server before its answer to the probe.
	maxEarly = 100
)

// Eras remembers the eras of servers by the hashes of their definitions, so that only
// the first connection probes. Its methods may be called concurrently, also by several
// processes. A nil *Eras remembers nothing.
type Eras struct {
	file statefile.File[map[string]eraRecord]
	now  func() time.Time
}

type eraRecord struct {
	Era Era       `json:"era"`
	At  time.Time `json:"at"`
}

// OpenEras returns the Eras stored in the file at path, which is created when needed.
func OpenEras(path string) *Eras {
	return &Eras{file: statefile.File[map[string]eraRecord]{Path: path, Version: 1}, now: time.Now}
}

// lookup returns the era of a definition, or Auto if it is unknown or the file is
// unreadable.
func (e *Eras) lookup(hash string) Era {
	if e == nil {
		return Auto
	}
	all, err := e.file.Read()
	if err != nil {
		return Auto
	}
	if s := all[hash]; e.now().Sub(s.At) < eraMaxAge {
		return s.Era
	}
	return Auto
}

// remember stores an era. An error only means that the next connection probes.
func (e *Eras) remember(ctx context.Context, hash string, era Era) error {
	if e == nil || e.lookup(hash) == era {
		return nil
	}
	return e.file.Update(ctx, func(all *map[string]eraRecord) error {
		if *all == nil {
			*all = make(map[string]eraRecord)
		}
		now := e.now()
		for h, s := range *all {
			if now.Sub(s.At) >= eraMaxAge {
				delete(*all, h)
			}
		}
		if len(*all) >= maxEras {
			clear(*all)
		}
		if era == Auto {
			delete(*all, hash)
		} else {
			(*all)[hash] = eraRecord{era, now.UTC().Truncate(time.Second)}
		}
		return nil
	})
}

// probeID is an id that the SDK does not use, so that it ignores a late answer.
const probeID = "era"

// probe determines the era of a server on a stream, and returns a connection to
// continue with. A server that does not answer in time is considered legacy; the next
// request waits in the same stream.
func probe(ctx context.Context, conn mcp.Connection, client *mcp.Implementation, wait time.Duration) (Era, mcp.Connection, error) {
	params, err := json.Marshal(map[string]any{"_meta": map[string]any{
		mcp.MetaKeyProtocolVersion: revision.Modern, mcp.MetaKeyClientInfo: client, mcp.MetaKeyClientCapabilities: struct{}{},
	}})
	if err != nil {
		return Auto, nil, err
	}
	id, err := jsonrpc.MakeID(probeID)
	if err != nil {
		return Auto, nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errSilent)
	defer cancel()
	if err := conn.Write(ctx, &jsonrpc.Request{ID: id, Method: "server/discover", Params: params}); err != nil {
		return Auto, nil, err
	}
	p := &probedConn{Connection: conn, reads: make(chan read, 1)}
	for {
		p.start()
		select {
		case r := <-p.reads:
			p.reading = false
			if r.err != nil {
				return Auto, nil, r.err
			}
			if answer, ok := r.m.(*jsonrpc.Response); ok && answer.ID == id {
				if answer.Error != nil {
					return Legacy, p, nil
				}
				return Modern, p, nil
			}
			if p.early = append(p.early, r.m); len(p.early) > maxEarly {
				return Auto, nil, fmt.Errorf("the server sent %d messages before any request", maxEarly)
			}
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, errSilent) {
				return Auto, nil, cause
			}
			return Legacy, p, nil
		}
	}
}

var errSilent = errors.New("no answer in time")

// probedConn is a connection from which the probe has read. A read that the probe has
// started and abandoned serves the next caller of Read.
type probedConn struct {
	mcp.Connection
	modern  atomic.Bool // the server answered successfully after the probe's time-out
	early   []jsonrpc.Message
	reading bool
	reads   chan read
}

type read struct {
	m   jsonrpc.Message
	err error
}

// start starts a read, unless one is running. The read ends with the connection.
func (p *probedConn) start() {
	if p.reading {
		return
	}
	p.reading = true
	go func() {
		m, err := p.Connection.Read(context.Background())
		p.reads <- read{m, err}
	}()
}

// Read implements [mcp.Connection], for one goroutine.
func (p *probedConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	if len(p.early) > 0 {
		m := p.early[0]
		p.early = p.early[1:]
		return m, nil
	}
	if !p.reading {
		m, err := p.Connection.Read(ctx)
		return p.noteAnswer(m), err
	}
	select {
	case r := <-p.reads:
		p.reading = false
		return p.noteAnswer(r.m), r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// noteAnswer records a late answer to the probe.
func (p *probedConn) noteAnswer(m jsonrpc.Message) jsonrpc.Message {
	if answer, ok := m.(*jsonrpc.Response); ok && answer.ID.Raw() == probeID && answer.Error == nil {
		p.modern.Store(true)
	}
	return m
}

// ready is a transport with an existing connection.
type ready struct{ conn mcp.Connection }

func (r ready) Connect(context.Context) (mcp.Connection, error) { return r.conn, nil }
