package probe

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/har"
	"github.com/semelhq/semel/probe/plan"
)

// Errors of Run, for errors.Is.
var (
	// ErrNotAllowed reports that the plan would contact an address that
	// neither it nor the options allow. Nothing was sent, read or started.
	ErrNotAllowed = errors.New("probe: target is not allowed")
	// ErrProduction reports that the target is production, and
	// Options.Production is not set. Nothing was sent, read or started.
	ErrProduction = errors.New("probe: the target is production")
	// ErrUnreachable reports that no request reached the target. There is evidence.
	ErrUnreachable = errors.New("probe: the target cannot be reached")
)

// Options say how to run a plan. The zero value makes a dry run.
type Options struct {
	// Send says that requests are sent. If it is false, nothing leaves this
	// process.
	Send bool
	// Allow lists further addresses that may be reached, as host:port.
	Allow []string
	// Production confirms a target that is marked as production.
	Production bool

	// Operations are the names of the operations to run. Default: all.
	Operations []string
	// Full runs every experiment for which the plan has what is needed,
	// instead of those it names. In production it adds none: the others are
	// listed as not run.
	Full bool
	// Only replaces the experiments of the plan; Skip leaves some out. Experiments
	// that are left out are not in the evidence.
	Only, Skip []plan.Experiment
	// Width and Trials replace those of the plan's races, and MaxSends its budget
	// of requests. Zero means the plan's.
	Width, Trials, MaxSends int

	// Source is where the plan's values come from. Default: this process.
	Source plan.Source
	// TLS is the base for https; the plan's ca_file and client certificates
	// are added to it. Default: verified against the system's roots.
	TLS *tls.Config
	// State are readers in Go, for every operation, in addition to those of the plan.
	State []State
	// OpenSQL opens a database for sql readers. Drivers are the caller's; with
	// nil, sql readers fail. The databases it returns are closed at the end of the
	// run.
	OpenSQL func(ctx context.Context, driver, dsn string) (*sql.DB, error)
	// Listen opens the listeners of sinks. Default net.Listen.
	Listen func(network, addr string) (net.Listener, error)
	// FailFirst makes the target fail while it is called with true, for the
	// experiment failed_first, and ends that when it is called with false.
	// Default: the first attempt is cut off before its last byte. If this is the
	// operation's only experiment, the request itself must fail at first.
	FailFirst func(ctx context.Context, fail bool) error

	// MaxKept is how many bytes of requests and responses are kept as evidence.
	// When there are more the run ends, as it does when its time is over. Default:
	// 128 MiB, which a report can hold.
	MaxKept int64

	// Progress, if not nil, is called with what happens, in the goroutine of Run.
	Progress func(Event)
	// Version of the program, for the evidence.
	Version string

	// dial opens the connections to targets. Default: those of the system.
	// Tests have others.
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// State reads a piece of the target's state, as a Go function.
type State struct {
	Name string
	// Read returns a number that each effect changes by Effect.
	Read func(ctx context.Context, r StateRequest) (int64, error)
	// Effect is the amount by which the operation, done once, changes the number.
	// Default: 1.
	Effect int64
	// Outside marks an effect outside the target's own state.
	Outside bool
}

// StateRequest says which request's effect to read. A reader may ignore it.
type StateRequest struct {
	Operation string
	Key       string // as it is without quotes
	Resource  string // as the first response called it; empty before
	// Variable returns the value of one of the plan's variables.
	Variable func(name string) (value string, ok bool)
}

// Event is passed to Progress. An experiment has one event with an empty
// outcome when it begins, and one with its outcome when it ends.
type Event struct {
	Operation  string
	Experiment plan.Experiment
	Outcome    evidence.Outcome
	Why        string
	Sent       int // requests so far, reads included
}

// Result is what a run leaves behind. No secret of the plan is in it.
type Result struct {
	Run *evidence.Run
	// Planned is what would be sent; in a dry run only. If an experiment has no
	// planned request, its Why in the evidence gives the reason.
	Planned []Planned
	// PlannedReads is how many requests readers and audits by http would send in
	// addition, if effects show at once; in a dry run only.
	PlannedReads int
	// MaxSends is the budget of requests, not counting those of readers.
	MaxSends int

	har har.Document
}

// WriteHAR writes the exchanges of the run as a HAR file. It has an entry for
// each send of the evidence, in their order. A reading of the state that was
// the same as the one before has none.
func (r *Result) WriteHAR(w io.Writer) error { return r.har.Write(w) }

// Planned is a request that would be sent.
type Planned struct {
	Operation  string
	Experiment plan.Experiment
	Role       evidence.Role
	Times      int    // how often, each with the same bytes or, in a further trial, with fresh values
	Bytes      []byte // as with HTTP/1.1
	Note       string
}

// PlannedSends returns how many of the planned requests count against MaxSends.
// Attempts that show nothing are repeated, so a run may send more.
func (r *Result) PlannedSends() (n int) {
	for _, q := range r.Planned {
		if q.Role != evidence.RoleRead {
			n += q.Times
		}
	}
	return n
}

// Run runs a plan. The error says what is wrong with plan or options, or
// matches one of the errors above. Except for ErrUnreachable, nothing was sent
// then. It is not an error if the run ends early, because of the context, the
// plan's limits or a target that went away: Interrupted says so in the
// evidence, which holds everything so far, and the remaining experiments count
// as not run. Nor is it an error if an operation is broken.
//
// A context that ends stops all sends and readers at once.
func Run(ctx context.Context, p *plan.Plan, o Options) (*Result, error) {
	if o.Width > 0 || o.Trials > 0 || o.MaxSends > 0 {
		c := *p
		if o.Width > 0 {
			c.Race.Width = o.Width
		}
		if o.Trials > 0 {
			c.Race.Trials = o.Trials
		}
		if o.MaxSends > 0 {
			if c.Budget.MaxReads == c.ReadsFor(c.Budget.MaxSends) {
				c.Budget.MaxReads = c.ReadsFor(o.MaxSends)
			}
			c.Budget.MaxSends = o.MaxSends
		}
		p = &c
	}
	r, err := newRunner(p, o)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if o.Send {
		if err := r.preflight(); err != nil {
			return nil, err
		}
	}
	unreachable := r.run(ctx)
	result := r.result()
	if unreachable != nil {
		return result, fmt.Errorf("%w: %s", ErrUnreachable, r.redactor().String(unreachable.Error()))
	}
	return result, nil
}

// validate reports all that is wrong with the options.
func (o Options) validate(p *plan.Plan) error {
	var errs []error
	for _, name := range o.Operations {
		if _, err := p.Operation(name); err != nil {
			errs = append(errs, fmt.Errorf("field Operations: %w", err))
		}
	}
	for field, list := range map[string][]plan.Experiment{"Only": o.Only, "Skip": o.Skip} {
		for _, e := range list {
			if !slices.Contains(plan.Experiments(), e) {
				errs = append(errs, fmt.Errorf("field %s: there is no experiment %q", field, e))
			}
		}
	}
	for i, s := range o.State {
		if s.Name == "" || s.Read == nil {
			errs = append(errs, fmt.Errorf("field State[%d] needs a name and a function", i))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("probe: invalid options: %w", err)
	}
	return nil
}

// experiments returns what to run for an operation, in order.
func (o Options) experiments(p *plan.Plan, op *plan.Operation) []plan.Experiment {
	list := p.ExperimentsFor(op)
	switch {
	case len(o.Only) > 0:
		list = slices.DeleteFunc(plan.Experiments(), func(e plan.Experiment) bool { return !slices.Contains(o.Only, e) })
	case o.Full:
		list = plan.Experiments()
	}
	return slices.DeleteFunc(list, func(e plan.Experiment) bool { return slices.Contains(o.Skip, e) })
}

// sleep waits, or returns why it need not.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
