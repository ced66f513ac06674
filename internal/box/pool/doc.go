// Package pool keeps a few machines ready ahead of the calls that want one.
//
//	p := pool.New(pool.Config{Size: 3, Make: make})
//	p.Start([]pool.Class{{Template: "python", Flavor: "small"}})
//	err := p.Ready(ctx)          // every member has been proven
//	m := p.Take(ctx, class)      // nil: none is ready, make one yourself
//	err = p.Close(ctx)
//
// A machine that was handed out never comes back: what a box did can be seen by
// no later one. The pool makes one member at a time and asks before each whether
// it may, so that it does not take from running boxes what they need. A member
// that ends while it waits is replaced; what fails again and again is tried ever
// less often.
package pool
