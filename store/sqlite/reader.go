package sqlite

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
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

// usable says why the store is not to be asked, if so.
func (s *Store) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-s.stop:
		return ErrClosed
	default:
		return nil
	}
}

// read runs fn with a connection of the pool. fn may run more than once.
func (s *Store) read(ctx context.Context, fn func(*conn) error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	var c *conn
	select {
	case c = <-s.readers.free:
	case <-s.stop:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	err := s.files.look()
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

// known remembers which identities have had a record: the latest half a million,
// more or less, in 2 MiB. It only says where to look first.
type known struct {
	buckets []atomic.Uint64 // each of four tags of 16 bits, the latest lowest; 0 is none
	repeats atomic.Int64    // of forgotten identities, how many had a record: a mean of late, in 65,536ths
}

const (
	knownBuckets = 1 << 18
	// A look is a fraction of what a claim costs, so it pays where one in so many
	// finds something.
	oftenRepeats = 1 << 16 / 16
)

func (k *known) init() { k.buckets = make([]atomic.Uint64, knownBuckets) }

func (k *known) find(d digest) (bucket *atomic.Uint64, tag uint64) {
	h := binary.LittleEndian.Uint64(d[:])
	return &k.buckets[h%knownBuckets], max(h>>48, 1)
}

func holds(bucket, tag uint64) bool {
	for ; bucket != 0; bucket >>= 16 {
		if bucket&0xffff == tag {
			return true
		}
	}
	return false
}

func (k *known) has(d digest) bool {
	bucket, tag := k.find(d)
	return holds(bucket.Load(), tag)
}

func (k *known) add(d digest) {
	bucket, tag := k.find(d)
	for {
		was := bucket.Load()
		if holds(was, tag) || bucket.CompareAndSwap(was, was<<16|tag) { // without the oldest
			return
		}
	}
}

// often reports whether an identity that is not known is likely to have a record
// all the same: one from before this process, of another, or forgotten.
func (k *known) often() bool { return k.repeats.Load() > oftenRepeats }

// learn adds an identity that was not known, and whether it had a record.
func (k *known) learn(d digest, repeated bool) {
	k.add(d)
	now := int64(0)
	if repeated {
		now = 1 << 16
	}
	k.repeats.Add((now - k.repeats.Load()) / 64) // what is lost where two add at once does not matter
}
