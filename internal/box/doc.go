// Package box manages boxes, isolated computers of the clients of tools: their owners, life
// cycle, limits and eviction, and the results of calls. Each box runs as one guest of the engine.
// A client names its box by the argument session_id or context_id of a tool: a session is a box that
// the first call makes, a context is one that the tool create_context makes. Neither is a session of
// MCP or a context.Context. Both are views of one Manager, whose comment (manager.go) lists its
// parts and their files, such as evict.go, which chooses the box to evict. A box is hibernated when
// it is written to disk and leaves memory; the next call wakes it.
//
//	m := box.New(cfg, parts)
//	err := m.Start(ctx)                                  // boots nothing yet
//	b, hold, err := m.Session(ctx, owner, box.SessionOptions{ID: id})
//	defer hold.Release()                                 // until then the box is not evicted
//	res, err := b.Run(ctx, box.RunRequest{Code: code})
//	err = m.Close(ctx)                                   // drains, then hibernates (or ends) every box
//
// It knows neither MCP nor any concrete engine. Every error that leaves the
// package is an *Error; callers switch on its Code and never on its text.
package box
