// Package box keeps the boxes: one isolated guest per session or context,
// who owns it, how long it lives, what it may take, and what a call into it
// gives back. Sessions and contexts are two views of one Manager.
//
//	m := box.New(cfg, parts)
//	err := m.Start(ctx)                                  // nothing is booted yet
//	s, acq, err := m.Session(ctx, owner, box.SessionOptions{ID: id})
//	defer acq.Release()                                  // until then the box is not evicted
//	res, err := s.Run(ctx, box.RunRequest{Code: code})
//	err = m.Close(ctx)                                   // drains, then ends every box
//
// It knows neither MCP nor any concrete engine. Every error that leaves the
// package is an *Error; callers switch on its Code and never on its text.
package box
