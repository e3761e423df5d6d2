package semeltest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/semelhq/semel"
)

// process is a semel.Store as one process has it: it can be made to die, and it
// tells what goes on.
type process struct {
	store semel.Store

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change
	dead    bool
	die     int      // the point at which to die; 0 for never
	points  []string // that were passed
	open    int      // claims granted and not settled
	granted int
	begun   map[int]bool // requests that have reached Begin
	// executing, if not nil, is called when a claim is about to be executed.
	executing func()
}

func newProcess() *process { return &process{changed: make(chan struct{}), begun: make(map[int]bool)} }

// wrap returns p as a view on store, with what else store can do.
func (p *process) wrap(store semel.Store) semel.Store {
	p.store = store
	r, isResolver := store.(semel.Resolver)
	t, isTrail := store.(semel.Trail)
	switch {
	case isResolver && isTrail:
		return struct {
			*process
			resolver
			trail
		}{p, resolver{p, r}, trail{p, t}}
	case isResolver:
		return struct {
			*process
			resolver
		}{p, resolver{p, r}}
	case isTrail:
		return struct {
			*process
			trail
		}{p, trail{p, t}}
	}
	return p
}

// set changes p under its lock and wakes those who wait.
func (p *process) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

// await waits until cond, which is called under the lock.
func (p *process) await(ctx context.Context, cond func() bool) error {
	for {
		p.mu.Lock()
		ok, changed := cond(), p.changed
		p.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// point is a place where the process may die. In a dead process no goroutine
// gets any further.
func (p *process) point(name string) {
	gone := false
	p.set(func() {
		if !p.dead {
			p.points = append(p.points, name)
			p.dead = len(p.points) == p.die
		}
		gone = p.dead
	})
	if gone {
		runtime.Goexit()
	}
}

// alive ends the goroutine in a dead process.
func (p *process) alive() {
	p.mu.Lock()
	dead := p.dead
	p.mu.Unlock()
	if dead {
		runtime.Goexit()
	}
}

func (p *process) around(call string, do func() error) error {
	p.point("before " + call)
	err := do()
	if err != nil {
		call += " (" + kind(err) + ")"
	}
	p.point("after " + call)
	return err
}

func kind(err error) string {
	if _, ok := errors.AsType[*semel.ConflictError](err); ok {
		return "conflict"
	}
	return "failed"
}

type requestKey struct{}

func (p *process) Begin(ctx context.Context, a semel.Attempt) (c semel.Claim, err error) {
	p.alive()
	if n, ok := ctx.Value(requestKey{}).(int); ok {
		p.set(func() { p.begun[n] = true })
	}
	err = p.around("begin", func() error {
		c, err = p.store.Begin(ctx, a)
		if err == nil {
			p.set(func() { p.open++; p.granted++ })
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &processClaim{Claim: c, process: p}, nil
}

func (p *process) Find(ctx context.Context, id semel.Identity) (r semel.Record, err error) {
	err = p.around("find", func() error { r, err = p.store.Find(ctx, id); return err })
	return r, err
}

type resolver struct {
	p *process
	r semel.Resolver
}

func (r resolver) Resolve(ctx context.Context, d semel.Resolution) (rec semel.Record, err error) {
	err = r.p.around("resolve", func() error { rec, err = r.r.Resolve(ctx, d); return err })
	return rec, err
}

type trail struct {
	p *process
	t semel.Trail
}

func (t trail) Note(e semel.TrailEntry) {
	t.p.alive()
	t.t.Note(e)
}

func (t trail) Trail(ctx context.Context, f semel.TrailFilter) ([]semel.TrailEntry, error) {
	t.p.alive()
	return t.t.Trail(ctx, f)
}

// processClaim counts as open until its settlement has been answered.
type processClaim struct {
	semel.Claim
	process *process
	once    sync.Once
}

// Context is what an execution begins with.
func (c *processClaim) Context(ctx context.Context) context.Context {
	c.process.mu.Lock()
	executing := c.process.executing
	c.process.mu.Unlock()
	if executing != nil {
		executing()
	}
	return c.Claim.Context(ctx)
}

func (c *processClaim) settle(call string, do func() error) error {
	err := c.process.around(call, do)
	if err == nil || errors.Is(err, semel.ErrLostClaim) || errors.Is(err, semel.ErrRolledBack) {
		c.once.Do(func() { c.process.set(func() { c.process.open-- }) })
	}
	return err
}

func (c *processClaim) Complete(ctx context.Context, r semel.Result) (expires time.Time, err error) {
	err = c.settle("complete", func() error { expires, err = c.Claim.Complete(ctx, r); return err })
	return expires, err
}

func (c *processClaim) Release(ctx context.Context) error {
	return c.settle("release", func() error { return c.Claim.Release(ctx) })
}

func (c *processClaim) Hold(ctx context.Context, cause string) error {
	return c.settle("hold", func() error { return c.Claim.Hold(ctx, cause) })
}

// Renew is no point to die at: the handler would live on, and in a dead
// process it does not.
func (c *processClaim) Renew(ctx context.Context) error {
	c.process.alive()
	return c.Claim.Renew(ctx)
}

func (p *process) String() string { return fmt.Sprintf("a view on %T", p.store) }
