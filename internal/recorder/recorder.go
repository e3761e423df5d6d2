// Package recorder finds out whether a test would fail: for tests of suites that
// must fail on what is wrong on purpose.
package recorder

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
)

// Recorder is a testing.TB that keeps failures to itself.
type Recorder struct {
	testing.TB
	mu      sync.Mutex
	message string
}

// Run calls fn with the recorder, which is t in all that is no failure, and
// returns when fn has, or has given up. A panic is a failure.
func (r *Recorder) Run(t testing.TB, fn func(testing.TB)) {
	r.TB = t
	done := make(chan struct{})
	go func() { // FailNow ends the goroutine it is called in
		defer close(done)
		defer func() {
			if v := recover(); v != nil {
				r.Errorf("panic: %v", v)
			}
		}()
		fn(r)
	}()
	<-done
}

// Message returns the first failure, or "".
func (r *Recorder) Message() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.message
}

func (r *Recorder) fail(message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.message == "" {
		r.message = message
	}
}

// Failed and what follows implement testing.TB.
func (r *Recorder) Failed() bool                      { return r.Message() != "" }
func (r *Recorder) Error(args ...any)                 { r.fail(fmt.Sprintln(args...)) }
func (r *Recorder) Errorf(format string, args ...any) { r.fail(fmt.Sprintf(format, args...)) }
func (r *Recorder) Fail()                             { r.fail("failed") }
func (r *Recorder) FailNow()                          { r.fail("failed"); runtime.Goexit() }
func (r *Recorder) Fatal(args ...any)                 { r.Error(args...); runtime.Goexit() }
func (r *Recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); runtime.Goexit() }
func (r *Recorder) Log(...any)                        {}
func (r *Recorder) Logf(string, ...any)               {}
