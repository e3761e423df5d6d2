package memory

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
	"github.com/semelhq/semel/outbox"
)

// Outbox implements outbox.Store, Watcher and Admin in the memory of one
// process. It is meant for tests and as a reference. Messages are not part of
// any transaction. A claim looks at every message. Its clock is time.Now.
type Outbox struct {
	// MaxPending is the maximum number of pending messages. Beyond it Enqueue
	// fails with outbox.ErrFull. 0 means no limit. Set it before use.
	MaxPending int

	mu       sync.Mutex
	rows     []*letter // in the order of their positions
	ids      map[string]*letter
	position uint64
	hints    storekit.Hints
}

// letter is a message in an outbox.
type letter struct {
	outbox.Entry // its LeaseLeft and Waiting are not kept up
	fence        uint64
	leased       bool
	settling     bool      // by a transaction that has not ended
	inLane       bool      // it keeps its place in its lane
	due          time.Time // of a delay or a lease; zero is at once
}

var (
	_ outbox.Store   = (*Outbox)(nil)
	_ outbox.Watcher = (*Outbox)(nil)
	_ outbox.Admin   = (*Outbox)(nil)
	_ outbox.Settler = (*Outbox)(nil)
)

// NewOutbox returns an empty outbox.
func NewOutbox() *Outbox {
	return &Outbox{ids: map[string]*letter{}}
}

// Enqueue adds either all of the messages or none. It fails with
// outbox.ErrDuplicate if the outbox holds a message with the same id, and with
// outbox.ErrFull beyond MaxPending.
func (o *Outbox) Enqueue(ctx context.Context, messages ...outbox.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	var added []*letter
	seen := map[string]bool{}
	for _, m := range messages {
		m.Origin = cmp.Or(m.Origin, outbox.OriginOf(ctx))
		if err := m.Validate(); err != nil {
			return err
		}
		if m.ID == "" {
			m.ID = semel.NewKey()
		}
		if o.ids[m.ID] != nil || seen[m.ID] {
			return fmt.Errorf("%w: %s", outbox.ErrDuplicate, m.ID)
		}
		seen[m.ID] = true
		m.Headers, m.Payload = maps.Clone(m.Headers), slices.Clone(m.Payload)
		added = append(added, &letter{
			Entry:  outbox.Entry{Message: m, State: outbox.StatePending, EnqueuedAt: time.Now(), Size: len(m.Payload)},
			inLane: m.Key != "", due: m.NotBefore,
		})
	}
	if o.MaxPending > 0 {
		pending := len(added)
		for _, l := range o.rows {
			if l.State == outbox.StatePending {
				pending++
			}
		}
		if pending > o.MaxPending {
			return outbox.ErrFull
		}
	}
	for _, l := range added {
		o.position++
		l.Position = o.position
		o.ids[l.ID] = l
		o.rows = append(o.rows, l)
	}
	o.hints.Send()
	return nil
}

// Watch implements outbox.Watcher.
func (o *Outbox) Watch() (hints <-chan struct{}, stop func()) { return o.hints.Watch() }

type laneName struct{ topic, key string }

// first calls fn with each pending message that nothing of its lane is before.
func (o *Outbox) first(fn func(*letter)) {
	taken := map[laneName]bool{}
	for _, l := range o.rows {
		if l.inLane {
			lane := laneName{l.Topic, l.Key}
			if taken[lane] {
				continue
			}
			taken[lane] = true
		}
		if l.State == outbox.StatePending {
			fn(l)
		}
	}
}
