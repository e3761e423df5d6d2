package lab

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/sqlite"
	"github.com/semelhq/semel/webhook"
)

// Config is what a lab is made of.
type Config struct {
	// Path is the SQLite file. Required. It is made if there is none.
	Path string
	// Preset names the setting that all operations begin with. Default: the first
	// of Presets.
	Preset string
}

// Lab is the app with its switches.
type Lab struct {
	store  *sqlite.Store
	db     *sql.DB
	guard  *semel.Guard
	outbox *sqlite.Outbox
	relay  *outbox.Relay
	scheme *webhook.Standard // of the provider's webhooks
	world  *world
	trail  trail

	probingMu sync.Mutex
	probing   probing
	classroom classroom

	mu       sync.Mutex
	switches map[string]Switches              // by operation
	handlers map[string]map[bool]http.Handler // protected by the switches as they are; for events, and otherwise
	firsts   map[string]bool                  // for which the first answer is gone
	sends    map[caller][]time.Time           // of the last second
}

// Open opens the lab's file. Whoever calls it calls Run, then Close.
func Open(ctx context.Context, c Config) (l *Lab, err error) {
	l = &Lab{switches: map[string]Switches{}}
	l.trail.init()
	l.world = &world{change: func() { l.trail.change(func() {}) }}
	preset := Presets[0]
	if c.Preset != "" {
		if preset, err = FindPreset(c.Preset); err != nil {
			return nil, err
		}
	}
	if l.store, err = sqlite.Open(ctx, sqlite.Config{Path: c.Path}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	abs, err := filepath.Abs(c.Path)
	if err != nil {
		return nil, err
	}
	file := url.URL{Scheme: "file", Path: "/" + strings.TrimPrefix(filepath.ToSlash(abs), "/"), RawQuery: "_pragma=busy_timeout(10000)&_txlock=immediate"}
	if l.db, err = sql.Open("sqlite", file.String()); err != nil {
		return nil, err
	}
	if _, err := l.db.ExecContext(ctx, tables); err != nil {
		return nil, fmt.Errorf("%s is not a lab's: %w", c.Path, err)
	}
	if l.guard, err = semel.New(semel.Config{Store: l.store}); err != nil {
		return nil, err
	}
	if l.scheme, err = webhook.NewStandard(webhook.StandardConfig{Secrets: []string{WebhookSecret}}); err != nil {
		return nil, err
	}
	l.outbox = l.store.Outbox()
	l.relay, err = outbox.New(outbox.Config{
		Store: l.outbox, Routes: []outbox.Route{{Topic: mailTopic, Sink: l.world}},
		Observer: &outbox.Observer{Delivered: func(context.Context, outbox.Attempted) { l.trail.change(func() {}) }},
	})
	if err != nil {
		return nil, err
	}
	for _, o := range Operations {
		l.switches[o.Name] = preset.Switches
	}
	return l, l.rewire()
}

// Run delivers mails and removes what has expired, until ctx ends.
func (l *Lab) Run(ctx context.Context) error {
	swept := make(chan error, 1)
	go func() { swept <- l.store.Run(ctx) }()
	return errors.Join(l.relay.Run(ctx), <-swept)
}

// Close closes the file. Run has returned by then.
func (l *Lab) Close() error {
	l.endProbe()
	var err error
	if l.db != nil {
		err = l.db.Close()
	}
	return errors.Join(err, l.store.Close())
}

// Reset forgets everything but the switches.
func (l *Lab) Reset(ctx context.Context) error {
	for _, table := range []string{"effects", "accounts", "documents", "used_keys"} {
		if _, err := l.db.ExecContext(ctx, "DELETE FROM "+table); err != nil {
			return err
		}
	}
	l.mu.Lock()
	clear(l.firsts)
	clear(l.sends)
	l.mu.Unlock()
	l.classroom.clear()
	l.world.clear()
	l.trail.clear()
	return nil
}

// Switches returns those of an operation.
func (l *Lab) Switches(operation string) Switches {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.switches[operation]
}

// Set changes those of an operation, or of all if it is empty.
func (l *Lab) Set(operation string, s Switches) error {
	if err := s.validate(); err != nil {
		return err
	}
	l.mu.Lock()
	for _, o := range Operations {
		if operation == "" || operation == o.Name {
			l.switches[o.Name] = s
		}
	}
	l.mu.Unlock()
	err := l.rewire()
	l.trail.change(func() {})
	return err
}

// rewire puts the handlers together as the switches say. Requests that are under
// way go on as they have begun.
func (l *Lab) rewire() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	handlers := make(map[string]map[bool]http.Handler, len(Operations))
	for _, o := range Operations {
		s := l.switches[o.Name]
		work := l.work(o, s)
		handlers[o.Name] = map[bool]http.Handler{}
		for _, events := range []bool{false, true} {
			h := work
			switch {
			case s.semels():
				wire := l.guarded
				if events {
					wire = l.guardedEvents
				}
				var err error
				if h, err = wire(o.Name, s, h); err != nil {
					return err
				}
			case s.Key != KeyIgnored:
				h = l.homemade(s, h)
			}
			handlers[o.Name][events] = h
		}
	}
	l.handlers = handlers
	if l.firsts == nil || len(l.firsts) > 10*mostAttempts {
		l.firsts = map[string]bool{}
	}
	if l.sends == nil || len(l.sends) > mostAttempts {
		l.sends = map[caller][]time.Time{}
	}
	return nil
}

// first reports whether this is asked for the first time.
func (l *Lab) first(what string, a *Attempt) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := strings.Join([]string{what, a.Operation, a.Tenant, a.Reference}, "\x1f")
	if l.firsts[name] || len(l.firsts) > 10*mostAttempts {
		return false
	}
	l.firsts[name] = true
	return true
}

// Rate limit: so many requests in a second.
const most = 5

// tooFast reports whether who has sent too much of late.
func (l *Lab) tooFast(who caller) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	recent := l.sends[who]
	for len(recent) > 0 && now.Sub(recent[0]) > time.Second {
		recent = recent[1:]
	}
	if len(recent) >= most {
		l.sends[who] = recent
		return true
	}
	l.sends[who] = append(recent, now)
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
// operation; and whether its answer gets through.
func (l *Lab) operate(o *Operation, p path) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		body, err := readBody(r)
		if err != nil {
			problem(w, http.StatusRequestEntityTooLarge, "The body is too large or was cut off; nothing was done.")
			return
		}
		a, status, wrong := p.identify(r, body)
		if wrong != "" {
			problem(w, status, wrong)
			return
		}
		var named struct {
			Reference string `json:"reference"`
		}
		_ = json.Unmarshal(body, &named) // work says what is wrong with it
		a.Path, a.Operation, a.Reference, a.Trace = p.name, o.Name, named.Reference, traceOf(r.Header.Get("Traceparent"))
		l.attempt(w, r, o, p, &a)
	})
}

func (l *Lab) attempt(w http.ResponseWriter, r *http.Request, o *Operation, p path, a *Attempt) {
	r = r.WithContext(l.trail.begin(r.Context(), a))
	l.mu.Lock()
	s, protected := l.switches[o.Name], l.handlers[o.Name][p.events]
	l.mu.Unlock()

	c := &capture{header: http.Header{}, status: http.StatusOK}
	if s.RateLimit && l.tooFast(caller{a.Tenant, a.Actor}) {
		c.header.Set("Retry-After", "1")
		problem(c, http.StatusTooManyRequests, "Too many requests; nothing was done.")
	} else {
		protected.ServeHTTP(c, r)
	}
	lost := s.LoseAnswer && l.first("answer", a)
	l.trail.change(func() {
		a.Took, a.Status, a.Lost = time.Since(a.Begun), c.status, lost
		a.Replayed = c.header.Get("Idempotency-Replayed") != ""
	})
	if lost {
		panic(http.ErrAbortHandler) // the connection ends here
	}
	c.header.Set("X-Request-Id", a.Request)
	c.send(w)
}

// work does what is asked for. It is what the defences stand in front of.
func (l *Lab) work(o *Operation, s Switches) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := attemptOf(r.Context())
		c := call{who: caller{a.Tenant, a.Actor}, operation: o, switches: s}
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&c); err != nil || c.Reference == "" || len(c.Reference) > 200 {
			problem(w, http.StatusBadRequest, "Send JSON such as "+strings.ReplaceAll(o.Example, "REF", "ref-1")+".")
			return
		}
		// A client that goes away does not stop the work.
		ctx := context.WithoutCancel(r.Context())
		_ = wait(ctx, s.Before.duration())
		e, err := l.perform(ctx, c)
		switch {
		case errors.Is(err, errInvalid):
			problem(w, http.StatusUnprocessableEntity, err.Error()+".")
			return
		case errors.Is(err, errAgain):
			a.note("the database refuses it: it was done before")
			l.refer(ctx, w, o, c)
			return
		case err != nil:
			problem(w, http.StatusInternalServerError, "It was not done. Try again with the same key.")
			return
		}
		l.trail.change(func() {
			a.Effect = e.ID
			a.Steps = append(a.Steps, Step{time.Since(a.Begun), "done: " + e.ID})
		})
		_ = wait(ctx, s.After.duration())
		if s.FailAfter && l.first("failure", a) {
			problem(w, http.StatusInternalServerError, "Something went wrong.")
			return
		}
		w.Header().Set("Location", "/v1/"+o.Name+"/"+e.ID)
		writeJSON(w, http.StatusCreated, e)
	})
}

// refer answers that it was done before, and as what.
func (l *Lab) refer(ctx context.Context, w http.ResponseWriter, o *Operation, c call) {
	done, err := l.Effects(ctx, o, c.who.Tenant, c.Reference, 1)
	if err != nil || len(done) == 0 {
		problem(w, http.StatusConflict, "It was done before.")
		return
	}
	w.Header().Set("Location", "/v1/"+o.Name+"/"+done[0].ID)
	problem(w, http.StatusConflict, "It was done before, as "+done[0].ID+".")
}

// callerOf returns who sends a request: the lab believes everybody, so that one
// can be somebody else at any time.
func callerOf(r *http.Request) (caller, bool) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if plain := r.Header.Get("Lab-Caller"); plain != "" { // for plans, which hold no credentials
		token, ok = plain, true
	}
	actor, tenant, named := strings.Cut(token, "@")
	ok = ok && named && actor != "" && tenant != "" && len(token) <= 100
	return caller{tenant, actor}, ok
}

// problem answers with problem details (RFC 9457).
func problem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", semelhttp.ContentTypeProblem)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"status": status, "title": http.StatusText(status), "detail": detail})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // who has gone does not read it
}
