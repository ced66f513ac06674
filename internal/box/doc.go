// Package box manages boxes, one isolated guest for each session or context: their
// owners, life cycle, limits and eviction, and the results of calls. Sessions and
// contexts are two views of one Manager, whose comment (manager.go) lists its parts and their
// files, such as evict.go, which chooses the box to evict.
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
