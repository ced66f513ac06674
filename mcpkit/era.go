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
	Auto   Era = ""       // found out
	Legacy Era = "legacy" // with the handshake initialize; up to 2025-11-25
	Modern Era = "modern" // without one; from 2026-07-28 on
)

const (
	// probeWait is what a server on a stream has to answer to a question of the
	// modern era. Most that do not know it say so at once; the others would leave
	// us waiting for ever.
	probeWait = 2 * time.Second
	// eraAge is how long a server's era is believed: it may be upgraded.
	eraAge = 7 * 24 * time.Hour
	// maxEras bounds what is remembered.
	maxEras = 1000
	// maxEarly bounds what a server may say before it answers the question.
	maxEarly = 100
)

// Eras remembers which era servers speak, by the hash of their definitions, so that
// only the first connection has to find out. Its methods may be called concurrently,
// also by other processes. A nil *Eras remembers nothing.
type Eras struct {
	file statefile.File[map[string]eraRecord]
	now  func() time.Time
}

type eraRecord struct {
	Era Era       `json:"era"`
	At  time.Time `json:"at"`
}

// OpenEras returns what is remembered in the file at path, which need not exist.
func OpenEras(path string) *Eras {
	return &Eras{file: statefile.File[map[string]eraRecord]{Path: path, Version: 1}, now: time.Now}
}

// of returns the era of a definition, or Auto. What cannot be read is found out.
func (e *Eras) lookup(hash string) Era {
	if e == nil {
		return Auto
	}
	all, err := e.file.Read()
	if err != nil {
		return Auto
	}
	if s := all[hash]; e.now().Sub(s.At) < eraAge {
		return s.Era
	}
	return Auto
}

// remember keeps an era. The error costs no more than finding out again.
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
			if now.Sub(s.At) >= eraAge {
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

// probeID is nothing that the SDK uses: an answer that comes after all is ignored.
const probeID = "era"

// probe asks a server over a stream for its era, and returns a connection that
// goes on from there. A server that says nothing for a while is legacy: nothing is
// lost, since what it is asked next waits in the same stream.
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
				return Auto, nil, fmt.Errorf("the server sent %d messages before it was asked for any", maxEarly)
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

// probed is a connection of which something has been read already. A read that was
// under way when the probe gave up goes on for the next who reads.
type probedConn struct {
	mcp.Connection
	modern  atomic.Bool // the answer came after the probe gave up, and was no error
	early   []jsonrpc.Message
	reading bool
	reads   chan read
}

type read struct {
	m   jsonrpc.Message
	err error
}

// start begins a read, unless one is under way. It ends with the connection.
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

// look notes the answer that the probe did not wait for.
func (p *probedConn) noteAnswer(m jsonrpc.Message) jsonrpc.Message {
	if answer, ok := m.(*jsonrpc.Response); ok && answer.ID.Raw() == probeID && answer.Error == nil {
		p.modern.Store(true)
	}
	return m
}

// ready is a transport of a connection that is there already.
type ready struct{ conn mcp.Connection }

func (r ready) Connect(context.Context) (mcp.Connection, error) { return r.conn, nil }
