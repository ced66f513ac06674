// Package pool keeps a few machines ready ahead of the calls that need one. A machine is a guest of
// the engine with the agent in it that serves calls; a box is what an owner has, and gets a machine.
//
//	p := pool.New(pool.Config{Size: 3, Make: make})
//	p.Start([]pool.Class{{Interpreter: "python", Flavor: "small"}})
//	err := p.Ready(ctx)          // all instances are verified
//	m := p.Take(ctx, class)      // nil: none is ready, create one
//	err = p.Close(ctx)
//
// A machine that was taken never returns, so that no box sees traces of an earlier one.
// The pool creates one instance at a time and asks Config.Yield before each, so that it
// does not starve running boxes. It replaces an instance that ends while it waits, and
// retries failures with a growing backoff.
package pool
