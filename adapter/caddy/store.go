package semelcaddy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/store/sqlite"
)

// maxResult leaves room for the head of an answer within what stores take.
const maxResult = 63 << 20

// openTimeout is how long a database may take to answer when it is opened, and
// reopenAfter how long it is left alone after a failure.
const (
	openTimeout = 2 * time.Second
	reopenAfter = time.Second
)

// stores are the open stores of this process. Each handler of a configuration in
// use has a reference to its own, and so has each request that is being served.
var stores = caddy.NewUsagePool()

// closing are the stores without a reference whose last executions, which no
// client waits for, are coming to their ends.
var closing sync.WaitGroup

// exitPatience is how long the process waits for those, when it ends. What it
// does not wait for becomes unknown.
const exitPatience = 30 * time.Second

func init() {
	caddy.OnExit(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, exitPatience)
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			closing.Wait()
		}()
		select {
		case <-done:
		case <-ctx.Done():
		}
	})
}

// storeKey says which store is meant. Equal keys are one store, with one guard.
type storeKey struct {
	kind, at                                       string
	maxExecutions, maxTenantExecutions, maxWaiters int
}

const storeForms = "sqlite:/var/lib/caddy/semel.db or postgres://user@host/database"

// storeKey returns the key that the settings stand for. The error never holds
// what may be a password.
func (h *Handler) storeKey() (storeKey, error) {
	k := storeKey{maxExecutions: h.MaxExecutions, maxTenantExecutions: h.MaxTenantExecutions, maxWaiters: h.MaxWaiters}
	if h.Store == "" {
		return k, errors.New("is not set; use " + storeForms)
	}
	s, err := caddy.NewReplacer().ReplaceOrErr(h.Store, true, true)
	if err != nil {
		return k, fmt.Errorf("cannot be used: %w", err)
	}
	scheme, rest, _ := strings.Cut(strings.TrimSpace(s), ":")
	switch scheme {
	case "postgres", "postgresql":
		k.kind, k.at = "postgres", strings.TrimSpace(s)
		if _, err := pgxpool.ParseConfig(k.at); err != nil {
			return k, errors.New("is not the URL of a PostgreSQL database; write it as postgres://user@host/database")
		}
		return k, nil
	case "sqlite":
		if after, ok := strings.CutPrefix(rest, "//"); ok {
			if !strings.HasPrefix(after, "/") {
				return k, errors.New("has two slashes in front of a relative path; write it as sqlite:semel.db or sqlite:///var/lib/caddy/semel.db")
			}
			rest = after
		}
		if rest == "" {
			return k, errors.New("has no path; write it as sqlite:/var/lib/caddy/semel.db")
		}
		k.kind = "sqlite"
		k.at, err = filepath.Abs(rest)
		return k, err
	}
	return k, errors.New("does not name a store; use " + storeForms)
}

// hold returns the store with a reference for the caller, and opens it if need be.
func (k storeKey) hold() (*sharedStore, error) {
	s, _, err := stores.LoadOrNew(k, func() (caddy.Destructor, error) { return k.open() })
	if err != nil {
		return nil, err
	}
	return s.(*sharedStore), nil
}

// leave gives a reference back.
func (k storeKey) leave() error {
	_, err := stores.Delete(k)
	return err
}

// open opens the store. It belongs to no configuration, and so does the context.
func (k storeKey) open() (*sharedStore, error) {
	s := &sharedStore{ended: make(chan struct{})}
	store, run, err := k.connect(s)
	if err != nil {
		return nil, err
	}
	if s.spools, err = semelhttp.NewSpools(semelhttp.SpoolsConfig{Failed: func(_ context.Context, err error) {
		s.warn("a large body could not be spooled: a request is refused with 503, an answer passes but cannot be replayed", zap.Error(err))
	}}); err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.guard = k.guardOf(store, s.observer())
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	go func() {
		defer close(s.ended)
		_ = run(ctx) // its failures are told as they come
	}()
	return s, nil
}

// connect returns the store and what has to run beside it, and sets s.close.
func (k storeKey) connect(s *sharedStore) (store semel.Store, run func(context.Context) error, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	swept := func(err error) {
		if err != nil {
			s.warn("a sweep failed; the next one goes on", zap.Error(err))
		}
	}
	if k.kind == "sqlite" {
		file, err := sqlite.Open(ctx, sqlite.Config{Path: k.at, BusyTimeout: openTimeout, OnSweep: func(did sqlite.Swept) { swept(did.Err) }})
		if err != nil {
			return nil, nil, err
		}
		s.close = func() error { return file.Close(context.Background()) }
		return file, file.Run, nil
	}
	pool, err := pgxpool.New(ctx, k.at)
	if err != nil {
		return nil, nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, nil, err
	}
	// It answers, so to bring the tables up to date may take its time.
	database, err := postgres.New(context.WithoutCancel(ctx), pool, postgres.Config{OnSweep: func(did postgres.Swept) { swept(did.Err) }})
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	s.close = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err := database.Close(ctx)
		pool.Close()
		return err
	}
	return database, database.Run, nil
}

// guardOf returns the guard of a store.
func (k storeKey) guardOf(store semel.Store, o *semel.Observer) *semel.Guard {
	guard, err := semel.New(semel.Config{
		Store: store, Observer: o,
		MaxExecutions: k.maxExecutions, MaxTenantExecutions: k.maxTenantExecutions, MaxWaiters: k.maxWaiters,
	})
	if err != nil {
		panic(err) // the settings have been checked
	}
	return guard
}

// lasting reports whether a store will not open until somebody sees to it.
func lasting(err error) bool {
	for _, reason := range []error{sqlite.ErrNewerSchema, sqlite.ErrForeign, sqlite.ErrPath, postgres.ErrNewerSchema, postgres.ErrOlderSchema, postgres.ErrUnfit} {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}

// sharedStore is an open store with what is one for all handlers that use it.
type sharedStore struct {
	guard  *semel.Guard
	spools *semelhttp.Spools
	close  func() error
	stop   context.CancelFunc
	ended  chan struct{}              // what runs beside the store
	log    atomic.Pointer[zap.Logger] // of the latest configuration
}

// Destruct implements caddy.Destructor: nobody has a reference any more. It does
// not wait, as a reload would for it.
func (s *sharedStore) Destruct() error {
	closing.Go(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := s.guard.Drain(ctx); err != nil {
			s.warn("the store is closed when what executes for clients that do not wait has ended", zap.Error(err))
			_ = s.guard.Drain(context.Background()) // their deadlines bound it
		}
		s.stop()
		<-s.ended
		if err := s.close(); err != nil {
			s.warn("the store could not be closed in order; records are durable, entries of the audit trail may be missing", zap.Error(err))
		}
	})
	return nil
}

func (s *sharedStore) warn(message string, fields ...zap.Field) {
	log := s.log.Load()
	if log == nil {
		log = caddy.Log().Named("http.handlers.semel")
	}
	log.Warn(message, fields...)
}

// observer logs what operators must know. It is never given keys, credentials or
// payload.
func (s *sharedStore) observer() *semel.Observer {
	return &semel.Observer{
		Answered: func(ctx context.Context, a semel.Answered) {
			if fields, ok := ctx.Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok { // of the access log
				fields.Set(zap.String("semel_answer", a.Answer.String()))
				fields.Set(zap.String("semel_record", a.RecordID))
			}
		},
		StoreFailed: func(_ context.Context, f semel.StoreFailed) {
			s.warn("the store failed", zap.String("call", f.Call), zap.String("operation", f.Scope.Operation), zap.String("record", f.RecordID), zap.Error(f.Err))
		},
		LeaseLost: func(_ context.Context, f semel.LeaseLost) {
			s.warn("lease lost: the record's new owner settles the outcome", zap.String("operation", f.Scope.Operation), zap.String("record", f.RecordID), zap.Uint64("fence", f.Fence), zap.Error(f.Cause))
		},
		Panicked: func(_ context.Context, f semel.Panicked) {
			if f.Err.Value != http.ErrAbortHandler { // how an answer is cut off on purpose
				s.warn("panic: the outcome is unknown", zap.String("operation", f.Scope.Operation), zap.String("record", f.RecordID), zap.Error(f.Err), zap.ByteString("stack", f.Err.Stack))
			}
		},
	}
}

// noStore stands for a store that is not open.
type noStore struct{}

// Begin implements semel.Store.
func (noStore) Begin(context.Context, semel.Attempt) (semel.Claim, error) {
	return nil, semel.ErrNotOpen
}

// Find implements semel.Store.
func (noStore) Find(context.Context, semel.Identity) (semel.Record, error) {
	return semel.Record{}, semel.ErrNotOpen
}

// List implements semel.Lister.
func (noStore) List(context.Context, semel.Filter) ([]semel.Record, error) {
	return nil, semel.ErrNotOpen
}
