package memory

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/semelhq/semel/inbox"
)

// Inbox implements inbox.Store in the memory of one process. It is meant for
// tests and as a reference. Its transactions consist of the functions passed to
// OnCommit. Its clock is time.Now. A transaction waits for another one with the
// same id until its context ends.
type Inbox struct {
	mu    sync.Mutex
	rows  map[delivered]time.Time
	taken map[delivered]chan struct{} // by open transactions; closed at their end
}

type delivered struct{ consumer, id string }

var _ inbox.Store = (*Inbox)(nil)

// NewInbox returns an empty inbox.
func NewInbox() *Inbox {
	return &Inbox{rows: map[delivered]time.Time{}, taken: map[delivered]chan struct{}{}}
}

type inboxTx struct {
	mu     sync.Mutex
	done   []func()
	undone []func()
}

type inboxTxKey struct{}

// OnCommit calls fn when the transaction in ctx commits, before others can see
// its changes. If the transaction does not commit, fn is never called. OnCommit
// reports whether ctx carries a transaction.
func OnCommit(ctx context.Context, fn func()) bool {
	tx, ok := ctx.Value(inboxTxKey{}).(*inboxTx)
	if ok {
		tx.mu.Lock()
		defer tx.mu.Unlock()
		tx.done = append(tx.done, fn)
	}
	return ok
}

// Transact implements inbox.Store. See OnCommit.
func (b *Inbox) Transact(ctx context.Context, consumer string, ids []string, work func(context.Context, []bool) error) error {
	ended := make(chan struct{})
	var mine []delivered
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, d := range mine {
			delete(b.taken, d)
		}
		close(ended)
	}()
	first := make([]bool, len(ids))
	order := make([]int, len(ids))
	for i := range ids {
		order[i] = i
	}
	slices.SortFunc(order, func(x, y int) int { return cmp.Compare(ids[x], ids[y]) })
	for _, i := range order {
		d := delivered{consumer, ids[i]}
		var err error
		if first[i], err = b.take(ctx, d, ended); err != nil {
			return err
		}
		if first[i] {
			mine = append(mine, d)
		}
	}
	if len(mine) == 0 {
		return nil
	}
	tx := &inboxTx{}
	committed := false
	defer func() {
		tx.mu.Lock()
		defer tx.mu.Unlock()
		for _, fn := range tx.undone {
			if !committed { // also where work panics
				fn()
			}
		}
	}()
	if err := work(context.WithValue(ctx, inboxTxKey{}, tx), first); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range mine {
		b.rows[d] = time.Now()
	}
	tx.mu.Lock()
	defer tx.mu.Unlock()
	for _, fn := range tx.done {
		fn()
	}
	committed = true
	return nil
}

// take reports whether d is not on record, and then takes it.
func (b *Inbox) take(ctx context.Context, d delivered, ended chan struct{}) (first bool, err error) {
	for {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		b.mu.Lock()
		other := b.taken[d]
		_, seen := b.rows[d]
		if other == nil && !seen {
			b.taken[d] = ended
		}
		b.mu.Unlock()
		if other == nil {
			return !seen, nil
		}
		select {
		case <-other:
		case <-ctx.Done():
			return false, inbox.ErrInProgress
		}
	}
}

// Seen implements inbox.Store.
func (b *Inbox) Seen(ctx context.Context, consumer string, ids []string) ([]bool, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := make([]bool, len(ids))
	for i, id := range ids {
		_, seen[i] = b.rows[delivered{consumer, id}]
	}
	return seen, nil
}

// Sweep implements inbox.Store.
func (b *Inbox) Sweep(ctx context.Context, consumer string, retention time.Duration, limit int) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var old []delivered
	for d, at := range b.rows {
		if d.consumer == consumer && time.Since(at) > retention {
			old = append(old, d)
		}
	}
	slices.SortFunc(old, func(x, y delivered) int { return b.rows[x].Compare(b.rows[y]) })
	old = old[:min(len(old), limit)]
	for _, d := range old {
		delete(b.rows, d)
	}
	return len(old), nil
}

// Count implements inbox.Store.
func (b *Inbox) Count(ctx context.Context, consumer string, limit int) (n int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for d := range b.rows {
		if d.consumer == consumer {
			n++
		}
	}
	return min(n, limit), nil
}
