package probe

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/har"
	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

// runner is one run. It belongs to one goroutine, except where noted.
type runner struct {
	o Options
	r *plan.Renderer
	p *plan.Plan
	// Sends and reads have budgets of their own, so that waiting for a slow
	// effect cannot use up what the experiments need.
	send, read *sender

	ev        evidence.Run
	exchanges []wire.Exchange // as the evidence numbers them
	red       *har.Redactor   // see redactor
	learnt    int             // of exchanges
	kept      int64           // bytes of them
	planned   []Planned
	// plannedReads are the requests of readers that a dry run counts.
	plannedReads int
	dbs          map[string]*sql.DB
	sinks        map[string]*sink
	sessions     map[session]time.Time // until when what a step took can be used; zero for always
	now          *exp                  // the experiment under way
	answered     bool                  // the target did, once
	dead         error                 // why it did not, if it never did
}

func newRunner(p *plan.Plan, o Options) (*runner, error) {
	renderer, err := plan.NewRenderer(p, o.Source)
	if err != nil {
		return nil, err
	}
	r := &runner{o: o, r: renderer, p: renderer.Plan(), dbs: map[string]*sql.DB{}, sinks: map[string]*sink{}, sessions: map[session]time.Time{}}
	if err := o.validate(r.p); err != nil {
		return nil, err
	}
	if r.production() && o.Send && !o.Production {
		return nil, fmt.Errorf("%w: say so explicitly if you mean it", ErrProduction)
	}
	allow := append(slices.Clone(r.p.Target.Allow), o.Allow...)
	c := wire.Config{Allow: allow, MaxSends: r.p.Budget.MaxSends, Timeout: r.p.Timing.Timeout, Dial: o.dial}
	if c.TLS, err = r.tls(); err != nil {
		return nil, err
	}
	r.send, r.read = &sender{r: r}, &sender{r: r}
	if r.send.Sender, err = wire.New(c); err != nil {
		return nil, fmt.Errorf("probe: invalid options: %w", err)
	}
	c.MaxSends = r.p.Budget.MaxReads
	if r.read.Sender, err = wire.New(c); err != nil {
		return nil, fmt.Errorf("probe: invalid options: %w", err)
	}
	r.r.Pretend(!o.Send)
	var id [6]byte
	_, _ = rand.Read(id[:]) // it never fails
	r.ev = evidence.Run{
		Format: evidence.Format, ID: hex.EncodeToString(id[:]), Version: o.Version, Plan: r.p.Name,
		DryRun: !o.Send, Targets: allow, Budget: r.p.Budget.MaxSends + r.p.Budget.MaxReads,
	}
	return r, nil
}

func (r *runner) production() bool { return *r.p.Target.Production }

// principalKey is the context key of the principal that connects.
type principalKey struct{}

// tls returns the configuration for https: who connects is in the context, for
// the budget is one and client certificates are several.
func (r *runner) tls() (*tls.Config, error) {
	c := r.o.TLS.Clone()
	if c == nil {
		c = &tls.Config{}
	}
	if name := r.p.Target.CAFile; name != "" {
		pem, err := os.ReadFile(r.r.Path(name))
		if err != nil {
			return nil, fmt.Errorf("probe: target.ca_file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("probe: target.ca_file holds no certificate")
		}
	}
	certs := map[plan.PrincipalName]*tls.Certificate{}
	for _, name := range []plan.PrincipalName{plan.ActorA, plan.ActorB, plan.TenantB} {
		pr := r.p.Principals.Get(name)
		if pr == nil || pr.ClientCert == nil {
			continue
		}
		cert, err := tls.LoadX509KeyPair(r.r.Path(pr.ClientCert.CertFile), r.r.Path(pr.ClientCert.KeyFile))
		if err != nil {
			return nil, fmt.Errorf("probe: client certificate of %s: %w", name, err)
		}
		certs[name] = &cert
	}
	if len(certs) > 0 {
		c.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			who, _ := info.Context().Value(principalKey{}).(plan.PrincipalName)
			if cert := certs[who]; cert != nil {
				return cert, nil
			}
			return &tls.Certificate{}, nil
		}
	}
	return c, nil
}

func as(ctx context.Context, who plan.PrincipalName) context.Context {
	if who == "" {
		who = plan.ActorA
	}
	return context.WithValue(ctx, principalKey{}, who)
}

// preflight refuses in advance what would be refused later. The senders still
// check every address.
func (r *runner) preflight() error {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	r.r.Pretend(true) // no step was sent yet
	defer r.r.Pretend(false)
	// With a context that is over, a Sender checks the target and sends nothing.
	check := func(what string, req wire.Request) error {
		if _, err := r.send.Send(over, req); !errors.Is(err, context.Canceled) {
			if errors.Is(err, wire.ErrNotAllowed) {
				err = fmt.Errorf("%w: %s is sent to %s, which is in no allow-list", ErrNotAllowed, what, host(req.URL))
			}
			return err
		}
		return nil
	}
	ops := r.operations()
	for _, op := range ops {
		// What is sent under another operation's key need not be run itself.
		if other, err := r.p.Operation(op.OtherOperation); err == nil && !slices.Contains(ops, other) {
			ops = append(ops, other)
		}
	}
	for _, op := range ops {
		v, err := r.r.Draw(op.Name)
		if err != nil {
			return err
		}
		for what, c := range map[string]plan.Change{
			"operation " + op.Name:                              {},
			"the preview of " + op.Name:                         {Preview: true},
			"operation " + op.Name + ", to the other instance,": {Instance: r.p.Target.Instance != ""},
		} {
			req, err := r.r.Request(v, c)
			if err == nil {
				err = check(what, req)
			}
			if err != nil {
				return err
			}
		}
		for _, st := range append(r.r.Steps(op, "principal"), r.r.Steps(op, "request")...) {
			for _, refresh := range []bool{false, true} {
				req, err := r.r.StepRequest(v, st, plan.ActorA, refresh)
				if err == nil {
					err = check("step "+st.Name, req)
				}
				if err != nil {
					return err
				}
			}
		}
		if op.Poll.URL != "" {
			// One that is all the response's is checked when there is one.
			if at, err := r.r.StatusURL(v, standIns(op.Poll.Take), "taken-id"); err == nil {
				if err := check("where poll asks about operation "+op.Name+",", wire.Request{Method: "GET", URL: at}); err != nil {
					return err
				}
			}
		}
		for i := range op.Readers {
			reading, err := r.r.Reading(v, &op.Readers[i], "")
			if errors.Is(err, plan.ErrNoResource) {
				continue
			}
			if err != nil {
				return err
			}
			if reading.Reader.HTTP != nil {
				if err := check("reader "+reading.Reader.Name, reading.Request); err != nil {
					return err
				}
			}
		}
	}
	if reset, err := r.r.Reset(); err != nil {
		return err
	} else if reset != nil && reset.Argv == nil {
		return check("reset", reset.Request)
	}
	return nil
}

// standIns are values to be taken from responses, for a look at the request.
func standIns(take []plan.Taking) (list []string) {
	for _, t := range take {
		list = append(list, "taken-"+t.Name)
	}
	return list
}

func host(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return "an address"
	}
	return u.Host
}

func (r *runner) operations() (list []*plan.Operation) {
	for i := range r.p.Operations {
		if op := &r.p.Operations[i]; len(r.o.Operations) == 0 || slices.Contains(r.o.Operations, op.Name) {
			list = append(list, op)
		}
	}
	return list
}

// errMaxTime ends a run that takes too long.
var errMaxTime = errors.New("the plan's time is over (budget.max_time)")

// run runs all operations, and returns why the target could not be reached.
func (r *runner) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.p.Budget.MaxTime, errMaxTime)
	defer cancel()
	r.ev.Started = time.Now()
	defer func() { r.ev.Ended = time.Now() }()

	var over error // ends the run; what is left is not run
	if r.o.Send {
		over = r.openSinks()
	}
	for _, op := range r.operations() {
		o := r.newOperation(op)
		err := o.run(ctx, over)
		if over == nil && err != nil {
			over = err
		}
		r.ev.Operations = append(r.ev.Operations, o.ev)
	}
	if over != nil {
		r.ev.Interrupted = over.Error()
	}
	r.ev.Sent = r.p.Budget.MaxSends - r.send.Left() + r.p.Budget.MaxReads - r.read.Left()
	if r.o.Send && !r.answered && r.dead != nil {
		return r.dead
	}
	return nil
}

// maxKept is the default of what is kept of exchanges: in a HAR file it takes
// some three times as much, and a report reads no larger one than 512 MiB.
const maxKept = 128 << 20

// errKept ends a run whose evidence has become too large.
var errKept = errors.New("no more responses are kept as evidence")

// room returns why nothing more may be sent or read, or nil.
func (r *runner) room() error {
	limit := cmp.Or(r.o.MaxKept, maxKept)
	if r.kept < limit {
		return nil
	}
	return fmt.Errorf("%w: %d exchanges have %d KiB, and %d KiB is the limit. Have readers ask for less, by a filter or a count, or run fewer experiments at once", errKept, len(r.exchanges), r.kept>>10, limit>>10)
}

// book writes an exchange down and returns its number. x has to be over.
func (r *runner) book(x wire.Exchange) int {
	r.kept += int64(len(x.Sent) + len(x.Received))
	if a := x.Response; a != nil {
		// As a rule the body is the end of what was received: it is kept once.
		if at := len(x.Received) - len(a.Body); at >= 0 && bytes.Equal(x.Received[at:], a.Body) {
			one := *a
			one.Body = x.Received[at:]
			x.Response = &one
		} else {
			r.kept += int64(len(a.Body))
		}
	}
	r.exchanges = append(r.exchanges, x)
	if x.Delivery == wire.Answered {
		r.answered = true
	} else if x.Err != nil && x.Delivery == wire.NotSent {
		r.dead = x.Err
	}
	return len(r.exchanges)
}

// redactor knows all secrets so far.
func (r *runner) redactor() *har.Redactor {
	if r.red == nil {
		r.red = har.NewRedactor()
	}
	var secrets []string
	for _, s := range r.r.Secrets() {
		secrets = append(secrets, s.Value)
	}
	r.red.Give(secrets...)
	r.red.Learn(r.exchanges[r.learnt:]...)
	r.learnt = len(r.exchanges)
	return r.red
}

// result makes the evidence of the run, without secrets.
func (r *runner) result() *Result {
	red := r.redactor()
	res := &Result{Run: &r.ev, Planned: r.planned, PlannedReads: r.plannedReads, MaxSends: r.p.Budget.MaxSends}
	res.har = har.New(har.Creator{Name: "semel probe", Version: r.o.Version}, red, r.exchanges...)
	redact(reflect.ValueOf(&r.ev).Elem(), red)
	r.nameSecrets(red)
	for i := range res.Planned {
		p := &res.Planned[i]
		p.Bytes = red.Message(p.Bytes)
	}
	return res
}

// redact replaces secrets in every string of v.
func redact(v reflect.Value, red *har.Redactor) {
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() {
			v.SetString(red.String(v.String()))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			redact(v.Elem(), red)
		}
	case reflect.Slice:
		for i := range v.Len() {
			redact(v.Index(i), red)
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			if e := v.MapIndex(k); e.Kind() == reflect.String {
				v.SetMapIndex(k, reflect.ValueOf(red.String(e.String())).Convert(e.Type()))
			}
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range v.NumField() {
			redact(v.Field(i), red)
		}
	}
}

func (r *runner) progress(e Event) {
	if r.o.Progress == nil {
		return
	}
	e.Sent = r.p.Budget.MaxSends - r.send.Left() + r.p.Budget.MaxReads - r.read.Left()
	e.Why = r.redactor().String(e.Why)
	r.o.Progress(e)
}

func (r *runner) close() {
	for _, db := range r.dbs {
		_ = db.Close()
	}
	for _, s := range r.sinks {
		s.close()
	}
}

// over reports whether an error ends the whole run: there is nothing left to
// send, or no time, or nobody who waits for it.
func over(ctx context.Context, err error) bool {
	return err != nil && (errors.Is(err, wire.ErrBudget) || errors.Is(err, errKept) || ctx.Err() != nil)
}
