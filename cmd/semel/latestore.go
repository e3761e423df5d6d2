package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semelhq/semel"
)

// lateStore is a gateway's store that may not be there yet. Until it is, its
// calls fail at once and nothing executes; Run opens it.
type lateStore struct {
	open func(context.Context) (store, error)
	log  *logger

	opened atomic.Pointer[store]
	first  chan struct{} // closed when the first attempt has ended

	mu    sync.Mutex
	err   error // of the latest attempt
	notes []semel.TrailEntry
	lost  int
}

func newLateStore(log *logger, open func(context.Context) (store, error)) *lateStore {
	return &lateStore{open: open, log: log, first: make(chan struct{})}
}

var errNotTried = errors.New("the store is being opened")

// get returns the store, or why it is not there.
func (s *lateStore) get() (store, error) {
	if opened := s.opened.Load(); opened != nil {
		return *opened, nil
	}
	return nil, errors.New("the store is not open yet: " + troubleOf(s.failure()).class)
}

// failure is what became of the latest attempt to open the store: nil if it is
// open.
func (s *lateStore) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && s.opened.Load() == nil {
		return errNotTried
	}
	return s.err
}

// How long to wait between two attempts: at first, and at most.
const (
	firstReopen = 100 * time.Millisecond
	lastReopen  = 5 * time.Second
)

// Run opens the store, trying again for as long as that may help, and runs it
// until ctx ends. The error is that of an attempt after which it does not help.
func (s *lateStore) Run(ctx context.Context) error {
	start, said, saidAt := time.Now(), "", time.Time{}
	for wait := firstReopen; ; wait = min(wait*2, lastReopen) {
		opened, err := s.open(ctx)
		if err == nil {
			s.enter(opened)
			if said != "" || time.Since(start) > time.Second {
				s.log.Info("the store is open: protected requests are served")
			}
			_ = opened.Run(ctx) // its failures are told as they come
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
		why := troubleOf(err)
		if why.permanent {
			s.tried()
			return err
		}
		if why.class != said || time.Since(saidAt) >= time.Minute {
			s.log.Warn("the store cannot be opened: protected requests are answered with 503; trying on", "cause", why.class, "err", err)
			said, saidAt = why.class, time.Now()
		}
		s.tried()
		timer := time.NewTimer(wait/2 + rand.N(wait/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// tried says that there was an attempt. Only Run calls it.
func (s *lateStore) tried() {
	select {
	case <-s.first:
	default:
		close(s.first)
	}
}

// enter has the store used from now on, and gives it the notes that came before.
func (s *lateStore) enter(opened store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.notes {
		opened.Note(e)
	}
	if s.lost > 0 {
		s.log.Warn("audit entries from before the store was open are lost", "entries", s.lost)
	}
	s.err, s.notes = nil, nil
	s.opened.Store(&opened)
	s.tried()
}

// Begin implements semel.Store.
func (s *lateStore) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	opened, err := s.get()
	if err != nil {
		return nil, err
	}
	return opened.Begin(ctx, a)
}

// Find implements semel.Store.
func (s *lateStore) Find(ctx context.Context, id semel.Identity) (semel.Record, error) {
	opened, err := s.get()
	if err != nil {
		return semel.Record{}, err
	}
	return opened.Find(ctx, id)
}

// Resolve implements semel.Resolver.
func (s *lateStore) Resolve(ctx context.Context, r semel.Resolution) (semel.Record, error) {
	opened, err := s.get()
	if err != nil {
		return semel.Record{}, err
	}
	return opened.Resolve(ctx, r)
}

// List implements semel.Lister.
func (s *lateStore) List(ctx context.Context, f semel.Filter) ([]semel.Record, error) {
	opened, err := s.get()
	if err != nil {
		return nil, err
	}
	return opened.List(ctx, f)
}

// Trail implements semel.Trail.
func (s *lateStore) Trail(ctx context.Context, f semel.TrailFilter) ([]semel.TrailEntry, error) {
	opened, err := s.get()
	if err != nil {
		return nil, err
	}
	return opened.Trail(ctx, f)
}

// maxEarlyNotes is how many audit entries wait for the store.
const maxEarlyNotes = 8192

// Note implements semel.Trail. What comes before the store is open, which is
// that requests failed open, is written then, with its time.
func (s *lateStore) Note(e semel.TrailEntry) {
	if opened := s.opened.Load(); opened != nil {
		(*opened).Note(e)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch opened := s.opened.Load(); {
	case opened != nil:
		(*opened).Note(e)
	case len(s.notes) == maxEarlyNotes:
		s.lost++
	default:
		e.Cause += " at " + timestamp(time.Now()) + ", by this host's clock; the store was not open yet"
		s.notes = append(s.notes, e)
	}
}

// Watch implements semel.Watcher where the store does.
func (s *lateStore) Watch(id semel.Identity) (changed <-chan struct{}, stop func()) {
	if opened := s.opened.Load(); opened != nil {
		if w, ok := (*opened).(semel.Watcher); ok {
			return w.Watch(id)
		}
	}
	return nil, func() {}
}

// Close implements store. Run must have ended.
func (s *lateStore) Close(ctx context.Context) error {
	if opened := s.opened.Load(); opened != nil {
		return (*opened).Close(ctx)
	}
	return nil
}

// readyPath is below the prefix of the gateway's own resources.
const readyPath = "/ready"

// withReady answers whether the store has been opened, at path. Everyone may
// ask, so of what is wrong only the class is told.
func (s *lateStore) withReady(path string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path || r.Method != http.MethodGet && r.Method != http.MethodHead {
			next.ServeHTTP(w, r)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Cache-Control", "no-store")
		err := s.failure()
		if err == nil {
			_, _ = fmt.Fprintln(w, `{"ready":true,"store":"open"}`)
			return
		}
		h.Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintf(w, "{\"ready\":false,\"store\":%q}\n", troubleOf(err).class)
	})
}
