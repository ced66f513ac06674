package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
)

// Step returns the directory of the snapshot of a machine after a step, which stays until
// release is called. The error is ErrNotFound if the step is not cached.
func (c *Catalog) Step(key string) (dir string, release func(), err error) {
	found, err := c.steps.List(func(m *snapshot.Meta) bool { return m.Name == key && !m.Written.IsZero() })
	if err != nil {
		return "", nil, fmt.Errorf("find step: %w", err)
	}
	for _, r := range found {
		c.touch(r.ID)
		dir, _, release, err := c.steps.Read(r.ID)
		if err == nil {
			return dir, release, nil
		}
	}
	return "", nil, fmt.Errorf("find step: %w", ErrNotFound)
}

// touch records the use of a step. If another process uses it, that records the use.
func (c *Catalog) touch(id string) {
	lease, err := c.steps.Acquire(id)
	if err != nil {
		return
	}
	m := lease.Meta()
	m.Used = time.Time{} // now
	_ = lease.Update(m)  // if it fails, the step may be evicted too early
	_ = lease.Release()
}

// PutStep caches the snapshot of a machine after a step. write is as for Put. Less used
// steps are evicted for it.
func (c *Catalog) PutStep(ctx context.Context, key string, estimate int64, write func(ctx context.Context, dir string) error) error {
	lease, err := c.steps.Create(snapshot.Meta{Purpose: snapshot.Box, Kind: "step", Name: key})
	if err != nil {
		return fmt.Errorf("cache step: %w", err)
	}
	if err := lease.Write(ctx, lease.Meta(), estimate, write); err != nil {
		return fmt.Errorf("cache step: %w", errors.Join(err, lease.Remove()))
	}
	return lease.Release()
}
