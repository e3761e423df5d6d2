// Package storekit holds what the stores of this tree do alike whatever their
// database: limits and checks of what is stored, the queue of audit entries, the
// rhythm of sweeps, hints to relays. Statements and transactions are each store's own.
//
// Errors do not name the store. It puts its name before them.
package storekit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/semelhq/semel"
)

const (
	// MaxNameBytes bounds names that are compared, such as codecs.
	MaxNameBytes = 255
	// MaxTextBytes is where texts for people are cut.
	MaxTextBytes = 1024
)

// CheckName refuses a name that is too long, or empty where it may not be.
func CheckName(what, s string, mayBeEmpty bool) error {
	switch {
	case s == "" && !mayBeEmpty:
		return fmt.Errorf("%s is empty", what)
	case len(s) > MaxNameBytes:
		return fmt.Errorf("%s is %d bytes long; at most %d are allowed", what, len(s), MaxNameBytes)
	}
	return nil
}

// CheckSize refuses a result whose parts are more than most bytes together, and
// pieces that cannot be a body. Its errors are semel.ErrTooLarge, so that the guard
// records the operation all the same.
func CheckSize(r semel.Result, most int) error {
	if p := r.Pieces; p != nil {
		switch {
		case p.Size <= 0:
			return fmt.Errorf("%w: its pieces are %d bytes long; that must be more than zero", semel.ErrTooLarge, p.Size)
		case p.Read == nil:
			return fmt.Errorf("%w: its pieces cannot be read", semel.ErrTooLarge)
		case len(r.Body) > 0:
			return fmt.Errorf("%w: it has a body and pieces", semel.ErrTooLarge)
		}
	}
	// Two comparisons, because a size that somebody made up may be any.
	rest, most64 := int64(len(r.Head)+len(r.Reference)), int64(most)
	if n := r.Size(); n > most64 || n+rest > most64 {
		return fmt.Errorf("%w: a body of %d bytes, and %d with it; at most %d are allowed", semel.ErrTooLarge, n, rest, most)
	}
	return nil
}

// Unreadable is the answer where a piece of a result could not be read. That the
// caller's time was over says nothing about the body.
func Unreadable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("nothing was recorded: %w", ctx.Err())
	}
	return fmt.Errorf("%w: %v", semel.ErrTooLarge, err) // not wrapped: it may be another store's
}

// Cut shortens a text to MaxTextBytes, between two characters.
func Cut(s string) string {
	if len(s) <= MaxTextBytes {
		return s
	}
	end := MaxTextBytes
	for end > MaxTextBytes-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// Texts returns e with its texts as a column can hold them.
func Texts(e semel.TrailEntry, text func(string) string) semel.TrailEntry {
	if e.Kind = semel.TrailKind(text(string(e.Kind))); e.Kind == semel.TrailLost {
		e.Count = 0
	}
	e.Origin, e.Label, e.Cause = Origin(e.Origin, text), text(e.Label), text(e.Cause)
	e.RecordID, e.Tenant, e.Actor, e.Operation, e.Key = text(e.RecordID), text(e.Tenant), text(e.Actor), text(e.Operation), text(e.Key)
	return e
}

// Origin returns o with its texts as a column can hold them.
func Origin(o semel.Origin, text func(string) string) semel.Origin {
	return semel.Origin{RequestID: text(o.RequestID), EventID: text(o.EventID), TraceID: text(o.TraceID)}
}

// PageSize is how many rows a listing with that limit returns at most.
func PageSize(limit int) int {
	if limit <= 0 {
		return 100
	}
	return min(limit, 1000)
}

// Blob is b where a column is NOT NULL.
func Blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// TxError is why the transaction of a handler was not committed, or not for certain.
// A nil *TxError is none.
type TxError struct {
	Class TxClass
	Err   error
}

// TxClass is what a TxError says of the transaction.
type TxClass uint8

const (
	TxFailed  TxClass = iota // the handler failed, or the transaction was not begun
	TxRefused                // COMMIT failed, or the handler has ended the transaction
	TxInDoubt                // it may have been committed
)

// As returns the error in the words of the package that the handler is of.
func (e *TxError) As(rolledBack, inDoubt error) error {
	switch {
	case e == nil:
		return nil
	case e.Class == TxRefused:
		return fmt.Errorf("%w: %w", rolledBack, e.Err)
	case e.Class == TxInDoubt:
		return fmt.Errorf("%w: %w", inDoubt, e.Err)
	}
	return e.Err
}

// Swept is what a sweep did.
type Swept struct {
	Records, Entries int
	Took             time.Duration
	Err              error
}

// Sweeps says how a store is swept.
type Sweeps struct {
	Every time.Duration
	Batch int           // rows of a kind in a call of Sweep; fewer mean that no more are left
	Rest  time.Duration // at most between two batches, each as long as the batch before
	// Sweep sweeps at most limit rows of a kind.
	Sweep func(ctx context.Context, limit int) (records, entries int, err error)
	Told  func(Swept)     // of each sweep, until the store is closed
	Done  <-chan struct{} // closed when the store is
}

// Run sweeps at once, and again whenever it is time. It reports whether it was the
// store that was closed, and not ctx that ended.
func (s Sweeps) Run(ctx context.Context) (closed bool) {
	ticker := time.NewTicker(s.Every)
	defer ticker.Stop()
	for {
		start := time.Now()
		var did Swept
		for more := true; more; {
			batch := time.Now()
			records, entries, err := s.Sweep(ctx, s.Batch)
			did.Records += records
			did.Entries += entries
			did.Err = err
			more = err == nil && (records >= s.Batch || entries >= s.Batch) && Rest(ctx, s.Done, min(time.Since(batch), s.Rest))
		}
		did.Took = time.Since(start)
		if ctx.Err() != nil {
			return false
		}
		if errors.Is(did.Err, semel.ErrNotOpen) {
			return true
		}
		s.Told(did)
		select {
		case <-ticker.C:
		case <-s.Done:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// Rest waits for d, and reports whether neither ctx nor done ended that.
func Rest(ctx context.Context, done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-done:
	case <-ctx.Done():
	}
	return false
}

// Hints wakes those in this process who wait for something. The zero value wakes
// nobody.
type Hints struct {
	mu sync.Mutex
	to map[chan struct{}]struct{}
}

// Send leaves a value for everyone who has none yet. It never blocks.
func (h *Hints) Send() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.to {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Add has c woken until stop is called.
func (h *Hints) Add(c chan struct{}) (stop func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.to == nil {
		h.to = make(map[chan struct{}]struct{})
	}
	h.to[c] = struct{}{}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.to, c)
	}
}

// Watch is Add for a channel of its own.
func (h *Hints) Watch() (changed <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	return c, h.Add(c)
}
