package recorder

import (
	"context"
	"errors"
	"maps"
	"sync"
)

// Effects counts what has been committed, by name: for stores whose transactions call
// functions when they commit.
type Effects struct {
	// OnCommit has fn called with the commit of ctx's transaction, and reports whether
	// there is one.
	OnCommit func(ctx context.Context, fn func()) bool

	mu    sync.Mutex
	count map[string]int
}

// Effect counts name with the commit of ctx's transaction.
func (e *Effects) Effect(ctx context.Context, name string) error {
	ok := e.OnCommit(ctx, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.count == nil {
			e.count = map[string]int{}
		}
		e.count[name]++
	})
	if !ok {
		return errors.New("there is no transaction")
	}
	return nil
}

// Effects returns how often each effect has been committed.
func (e *Effects) Effects() map[string]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.count)
}
