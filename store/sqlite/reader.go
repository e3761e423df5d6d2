package sqlite

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync/atomic"

	"github.com/semelhq/semel"
)

// readers is a pool of connections that cannot write. They see what is
// committed, and neither wait for the writer nor hold it up.
type readers struct {
	free chan *conn // nil stands for a connection not opened yet
}

func (r *readers) init(c Config) {
	r.free = make(chan *conn, c.Readers)
	for range c.Readers {
		r.free <- nil
	}
}

func (r *readers) close() error {
	var errs []error
	for range cap(r.free) {
		if c := <-r.free; c != nil {
			errs = append(errs, c.close())
		}
	}
	return errors.Join(errs...)
}

// read runs fn with a connection of the pool. fn may run more than once.
func (s *Store) read(ctx context.Context, fn func(*conn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-s.stop:
		return ErrClosed
	default:
	}
	var c *conn
	select {
	case c = <-s.readers.free:
	case <-s.stop:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	err := s.files.check()
	if err == nil {
		err = patient(ctx, s.config.BusyTimeout, func() (err error) {
			if c == nil {
				if c, err = s.dial(ctx, s.files.path, "PRAGMA query_only = 1;", false); err != nil {
					return err
				}
			}
			return fn(c)
		})
	}
	if err != nil && c != nil && ctx.Err() == nil {
		_ = c.close() // the next one begins afresh; err says why
		c = nil
	}
	s.readers.free <- c
	if err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	return nil
}

// known remembers, of the latest identities, that they have a record. It only
// says where to look first.
type known struct {
	seed  maphash.Seed
	slots [1 << 15]atomic.Uint64
}

// ways is how many slots an identity may be in.
const ways = 4

func (k *known) find(id semel.Identity) (slots []atomic.Uint64, h uint64) {
	h = maphash.Comparable(k.seed, id) | 1 // 0 is an empty slot
	first := h >> 1 % uint64(len(k.slots)/ways) * ways
	return k.slots[first : first+ways], h
}

func (k *known) add(id semel.Identity) {
	slots, h := k.find(id)
	for i := range slots {
		if was := slots[i].Load(); was == h || was == 0 && slots[i].CompareAndSwap(0, h) {
			return
		}
	}
	slots[h>>62].Store(h)
}

func (k *known) has(id semel.Identity) bool {
	slots, h := k.find(id)
	for i := range slots {
		if slots[i].Load() == h {
			return true
		}
	}
	return false
}
