// Package semeltest tests that each request to an HTTP service takes effect
// once. It is for the tests of services that use package semelhttp.
//
//	func TestPaymentsTakeEffectOnce(t *testing.T) {
//		semeltest.Run(t, semeltest.Config{New: newService})
//	}
//
// The checks send one request again, ten times at once, altered, and with its
// response lost, and let the process die at each of its store calls. They
// judge by effects in the service's state first, and by responses second. A
// check that cannot see what it needs fails as inconclusive.
package semeltest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
)

// Config says how to test a service. Only New is required.
type Config struct {
	// New sets up the service for one check. It registers its cleanup with t.
	New func(t testing.TB) Service
	// Virtual runs each check in a bubble of package testing/synctest, where
	// waiting takes no time: for services that do no I/O, on store/memory.
	Virtual bool
	// Patience is how long to wait for one response. Default 30 s.
	Patience time.Duration
}

// Service is what a check works with: one operation, the processes that serve
// it, and the state it has its effects in, which all processes share. Only
// Advance, Altered, Lease and Transactional are optional.
type Service struct {
	// Start starts the service as one process would: it opens the records,
	// gives wrap's result to a guard of its own, and returns the protected
	// handler. It is called again after a crash. kill does what the
	// operating system does when a process dies: it closes the connections.
	// It may be nil.
	Start func(wrap func(semel.Store) semel.Store) (h http.Handler, kill func(), err error)

	// Request returns a request for a new operation with the given key, usually
	// in its Idempotency-Key header. It is called once for each key; the same
	// bytes are sent each time.
	Request func(key string) (*http.Request, error)
	// Altered returns a request that asks for something else under the same
	// key. By default it is the request with a member added to its JSON object,
	// a byte to any other body, or a parameter to the URL where there is none.
	Altered func(key string) (*http.Request, error)

	// Effects returns the number of effects in the service's state. A new
	// operation must raise it by one. A response is not an effect.
	Effects func() (int, error)

	// Advance advances the time of the records. It may be nil if the service
	// is Virtual or Transactional.
	Advance func(d time.Duration) error
	// Lease is the policy's lease. Default 15 s, like the policy's.
	Lease time.Duration
	// Transactional says that claims live in a transaction with the effects:
	// an outcome must never be unknown.
	Transactional bool
}

type check struct {
	name string
	run  func(context.Context, *subject) error
}

// checks in the order in which they run.
var checks = []check{
	{"repeat", repeat},
	{"parallel", parallel},
	{"altered", altered},
	{"lost-answer", lostAnswer},
	{"crash", crash},
}

// Run runs every check, each as a subtest with a Service of its own.
func Run(t *testing.T, c Config) {
	t.Helper()
	for _, k := range checks {
		t.Run(k.name, func(t *testing.T) {
			if err := c.check(t, k); err != nil {
				t.Error(err)
			}
		})
	}
}

// ErrInconclusive reports that a check could not see what it needs.
var ErrInconclusive = errors.New("semeltest: inconclusive")

func inconclusive(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInconclusive, fmt.Errorf(format, args...))
}

func (c Config) check(t *testing.T, k check) (err error) {
	if c.New == nil {
		return errors.New("semeltest: config: field New is nil")
	}
	if c.Patience == 0 {
		c.Patience = 30 * time.Second
	}
	run := func(t *testing.T) {
		s := &subject{Service: c.New(t), virtual: c.Virtual, patience: c.Patience}
		if err = s.validate(); err != nil {
			return
		}
		defer s.stop()
		// Whatever the check finds, it is worth nothing if effects cannot be seen.
		if err = s.control(t.Context()); err != nil {
			return
		}
		if err = k.run(t.Context(), s); err != nil {
			return
		}
		err = s.control(t.Context())
	}
	if c.Virtual {
		synctest.Test(t, run)
	} else {
		run(t)
	}
	return err
}

func (s *subject) validate() error {
	var errs []error
	missing := func(name string, is bool) {
		if is {
			errs = append(errs, fmt.Errorf("field %s is nil", name))
		}
	}
	missing("Start", s.Start == nil)
	missing("Request", s.Request == nil)
	missing("Effects", s.Effects == nil)
	if s.Advance == nil && s.virtual {
		s.Advance = func(d time.Duration) error { time.Sleep(d); return nil }
	}
	missing("Advance", s.Advance == nil && !s.Transactional)
	if s.Advance == nil {
		s.Advance = func(time.Duration) error { return nil }
	}
	if s.Lease == 0 {
		s.Lease = 15 * time.Second
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("semeltest: service: %w", err)
	}
	return nil
}
