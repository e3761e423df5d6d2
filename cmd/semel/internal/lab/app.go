package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/webhook"
)

// outside is what the app is connected with and does not own. Where the app is a
// process of its own, it is at the other end of a pipe.
type outside interface {
	// Switches returns those of an operation, as they are now.
	Switches(operation string) Switches
	// Tell writes an attempt down, as it is now.
	Tell(a Attempt)
	// First reports whether something is asked for the first time for the reference
	// of an attempt.
	First(what string, a Attempt) bool
	// Arrive takes a mail or a webhook.
	Arrive(m Mail)
	// Settled: a message of the outbox is done with.
	Settled()
}

// app is the payments app: what a crash ends.
type app struct {
	*storage
	outside outside
	guard   *semel.Guard // of operations
	accepts *semel.Guard // of jobs that are accepted
	relay   *outbox.Relay
	worker  *jobs.Worker
	memory  memoryQueue
	scheme  *webhook.Standard // of the provider's webhooks

	mu       sync.Mutex
	handlers map[wiring]http.Handler
	sends    map[caller][]time.Time // of the last second
}

// wiring is what the protection of an operation depends on.
type wiring struct {
	operation string
	events    bool // keys are ids of events
	job       bool // it is accepted, and done later
	switches  Switches
}

// openApp opens the app. Whoever calls it calls run, then Close.
func openApp(ctx context.Context, c Config, o outside) (p *app, err error) {
	p = &app{outside: o, memory: newMemoryQueue()}
	if p.storage, err = openStorage(ctx, c); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if p.guard, p.accepts, err = p.guards(); err != nil {
		return nil, err
	}
	if p.scheme, err = newScheme(); err != nil {
		return nil, err
	}
	p.relay, err = outbox.New(outbox.Config{
		Store: p.outbox, Lease: lease, PollMax: 200 * time.Millisecond,
		Routes:   []outbox.Route{{Topic: mailTopic, Sink: outbox.SinkFunc(p.deliver)}, {Topic: hookTopic, Sink: outbox.SinkFunc(p.deliver)}},
		Observer: &outbox.Observer{Delivered: func(context.Context, outbox.Attempted) { o.Settled() }},
	})
	if err != nil {
		return nil, err
	}
	p.worker, err = p.newWorker()
	return p, err
}

// deliver takes mails and webhooks out of the outbox.
func (p *app) deliver(_ context.Context, d outbox.Delivery) error {
	p.outside.Arrive(sending(d.Message))
	return nil
}

// run delivers what waits, works on jobs and removes what has expired, until ctx ends.
func (p *app) run(ctx context.Context) error {
	var all sync.WaitGroup
	errs := make([]error, 3)
	for i, f := range []func(context.Context) error{p.sweep, p.relay.Run, p.worker.Run} {
		all.Go(func() { errs[i] = f(ctx) })
	}
	all.Go(func() { p.workFromMemory(ctx) })
	all.Wait()
	return errors.Join(errs...)
}

// handler answers for the ways to reach the operations.
func (p *app) handler() http.Handler {
	mux := http.NewServeMux()
	for _, o := range Operations {
		mux.Handle("POST /v1/"+o.Name, p.operate(o, path{name: "rest", identify: bearer}))
		mux.Handle("POST /page/"+o.Name, p.operate(o, path{name: "page", identify: bearer}))
		mux.Handle("POST /hooks/"+o.Name, p.operate(o, path{name: "webhook", identify: p.provider, events: true}))
		mux.Handle("POST /jobs/"+o.Name, p.operate(o, path{name: "job", identify: bearer, job: true}))
		mux.HandleFunc("GET /jobs/"+o.Name+"/{id}", func(w http.ResponseWriter, r *http.Request) { p.showJob(w, r, o) })
	}
	mux.HandleFunc("POST /graphql", p.graphql)
	return mux
}

// protected returns what stands in front of an operation, put together as its
// switches say.
func (p *app) protected(k wiring, o *Operation) (http.Handler, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.handlers[k]; h != nil {
		return h, nil
	}
	s, h := k.switches, p.work(o, k.switches)
	if k.job {
		h = p.accept(o, s)
	}
	var err error
	switch {
	case s.semels() && k.events:
		h, err = p.guardedEvents(o.Name, h)
	case s.semels():
		h, err = p.guarded(k, h)
	case s.Key != KeyIgnored:
		h = p.homemade(s, h)
	}
	if len(p.handlers) > 100 || p.handlers == nil {
		p.handlers = map[wiring]http.Handler{}
	}
	p.handlers[k] = h
	return h, err
}

// Rate limit: so many requests in a second.
const most = 5

// tooFast reports whether who has sent too much of late.
func (p *app) tooFast(who caller) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.sends == nil || len(p.sends) > mostAttempts {
		p.sends = map[caller][]time.Time{}
	}
	recent := p.sends[who]
	for len(recent) > 0 && now.Sub(recent[0]) > time.Second {
		recent = recent[1:]
	}
	if len(recent) >= most {
		p.sends[who] = recent
		return true
	}
	p.sends[who] = append(recent, now)
	return false
}

// maxBody bounds the body of a request, in bytes.
const maxBody = 64 << 10

// readBody reads the body, and has it read again.
func readBody(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body, err
}

// path is a way to reach an operation.
type path struct {
	name string
	// identify says who sends a request, and under which key.
	identify func(r *http.Request, body []byte) (a Attempt, status int, wrong string)
	// events says that keys are ids of events.
	events bool
	// job says that what is asked for is done later.
	job bool
}

// bearer identifies by what callers send themselves.
func bearer(r *http.Request, _ []byte) (a Attempt, status int, wrong string) {
	who, ok := callerOf(r)
	if !ok {
		return a, http.StatusUnauthorized, "Send Authorization: Bearer alice@acme, or another name and tenant."
	}
	key, err := semelhttp.ParseKey(r.Header[semelhttp.HeaderKey], false)
	if err != nil {
		key = strings.Join(r.Header[semelhttp.HeaderKey], ",") // whoever is strict says so
	}
	return Attempt{Key: key, Tenant: who.Tenant, Actor: who.Actor}, 0, ""
}

// operate is the way of each request: who sends it, how fast, what protects the
// operation; and whether its response gets through.
func (p *app) operate(o *Operation, way path) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		body, err := readBody(r)
		if err != nil {
			problem(w, http.StatusRequestEntityTooLarge, "The body is too large or was cut off; nothing was done.")
			return
		}
		a, status, wrong := way.identify(r, body)
		if wrong != "" {
			problem(w, status, wrong)
			return
		}
		var named struct {
			Reference string `json:"reference"`
		}
		_ = json.Unmarshal(body, &named) // work says what is wrong with it
		a.Path, a.Operation, a.Reference, a.Trace = way.name, o.Name, named.Reference, traceOf(r.Header.Get("Traceparent"))
		p.attempt(w, r, o, way, &a)
	})
}

func (p *app) attempt(w http.ResponseWriter, r *http.Request, o *Operation, way path, a *Attempt) {
	r = r.WithContext(a.begin(r.Context(), p.outside))
	s := p.outside.Switches(o.Name)
	protected, err := p.protected(wiring{o.Name, way.events, way.job, s}, o)

	c := &capture{header: http.Header{}, status: http.StatusOK}
	switch {
	case err != nil:
		problem(c, http.StatusInternalServerError, "The app cannot be put together as its switches say; nothing was done.")
	case s.RateLimit && p.tooFast(caller{a.Tenant, a.Actor}):
		a.Decision = decidedLimit
		c.header.Set("Retry-After", "1")
		problem(c, http.StatusTooManyRequests, "Too many requests; nothing was done.")
	default:
		protected.ServeHTTP(c, r)
	}
	a.Lost = s.LoseResponse && p.outside.First("answer", *a)
	a.Replayed = c.header.Get(semelhttp.HeaderReplayed) != ""
	a.end(c.status)
	if a.Lost {
		panic(http.ErrAbortHandler) // the connection ends here
	}
	c.header.Set("X-Request-Id", a.Request)
	c.send(w)
}

// understand reads what is asked for. It answers what it does not understand.
func understand(w http.ResponseWriter, r *http.Request, o *Operation, s Switches) (c call, ok bool) {
	a := attemptOf(r.Context())
	c = call{who: caller{a.Tenant, a.Actor}, operation: o, switches: s, trace: a.Trace}
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil || c.Reference == "" || len(c.Reference) > 200 {
		problem(w, http.StatusBadRequest, "Send JSON such as "+strings.ReplaceAll(o.Example, "REF", "ref-1")+".")
		return c, false
	}
	return c, true
}

// work does what is asked for. It is what the defences stand in front of.
func (p *app) work(o *Operation, s Switches) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := attemptOf(r.Context())
		c, ok := understand(w, r, o, s)
		if !ok {
			return
		}
		if x, ok := semel.CurrentExecution(r.Context()); ok {
			var err error
			if c.madeBy, err = x.ChildKey("effect"); err != nil {
				problem(w, http.StatusInternalServerError, "It was not done. Try again with the same key.")
				return
			}
		}
		// A client that goes away does not stop the work.
		ctx := context.WithoutCancel(r.Context())
		_ = wait(ctx, s.Before.duration())
		e, err := p.perform(ctx, c, func(step string) {
			if id, ok := strings.CutPrefix(step, "done: "); ok {
				a.Effect = id
			}
			a.midway(step)
		})
		switch {
		case errors.Is(err, errInvalid):
			problem(w, http.StatusUnprocessableEntity, err.Error()+".")
			return
		case errors.Is(err, errAgain):
			a.Decision = decidedCollision
			a.note("the database refuses it: it was done before")
			p.refer(ctx, w, o, c)
			return
		case err != nil:
			problem(w, http.StatusInternalServerError, "It was not done. Try again with the same key.")
			return
		}
		_ = wait(ctx, s.After.duration())
		if s.FailAfter && p.outside.First("failure", *a) {
			problem(w, http.StatusInternalServerError, "Something went wrong.")
			return
		}
		created(w, o, e)
	})
}

// created answers that an effect was made.
func created(w http.ResponseWriter, o *Operation, e Effect) {
	w.Header().Set("Location", "/v1/"+o.Name+"/"+e.ID)
	writeJSON(w, http.StatusCreated, e)
}

// refer answers that it was done before, and as what.
func (p *app) refer(ctx context.Context, w http.ResponseWriter, o *Operation, c call) {
	done, err := p.Effects(ctx, o, c.who.Tenant, c.Reference, 1)
	if err != nil || len(done) == 0 {
		problem(w, http.StatusConflict, "It was done before.")
		return
	}
	w.Header().Set("Location", "/v1/"+o.Name+"/"+done[0].ID)
	problem(w, http.StatusConflict, "It was done before, as "+done[0].ID+".")
}
