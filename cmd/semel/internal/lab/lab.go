package lab

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/webhook"
)

// Config is what a lab is made of.
type Config struct {
	// Path is the SQLite file. It is made if there is none. Required, unless Postgres
	// is set.
	Path string
	// Postgres is the URL of a PostgreSQL database to use instead. Everything is in
	// the schema semel_lab of it, which is made if there is none.
	Postgres string
	// Preset names the setting that all operations begin with. Default: the first
	// of Presets.
	Preset string
	// Command is a program, with its arguments, that calls RunApp. The app runs in a
	// process of its own then, which can be crashed and is started again. Default:
	// it runs in this one.
	Command []string
	// Stderr is where that process writes what it has to say, before it can say it
	// otherwise. Default: nowhere.
	Stderr io.Writer
}

// Lab is the app with its switches, and what is around it: it keeps the trail, takes
// mails and webhooks, and shows the page.
type Lab struct {
	config Config
	ledger
	app     *app // if it runs in this process
	process process
	scheme  *webhook.Standard // of the provider's webhooks
	world   *world
	trail   trail

	probingMu sync.Mutex
	probing   probing
	classroom classroom

	mu       sync.Mutex
	switches map[string]Switches // by operation
	firsts   map[string]bool     // what happens once for each reference, and has happened
}

// Open opens the lab's database. Whoever calls it calls Run, then Close.
func Open(ctx context.Context, c Config) (l *Lab, err error) {
	l = &Lab{config: c, switches: map[string]Switches{}, firsts: map[string]bool{}}
	l.trail.init()
	l.process.init()
	l.world = &world{change: l.Settled}
	preset := Presets[0]
	if c.Preset != "" {
		if preset, err = FindPreset(c.Preset); err != nil {
			return nil, err
		}
	}
	for _, o := range Operations {
		l.switches[o.Name] = preset.Switches
	}
	if l.scheme, err = newScheme(); err != nil {
		return nil, err
	}
	if len(c.Command) == 0 {
		if l.app, err = openApp(ctx, c, l); err != nil {
			return nil, err
		}
		l.process.is(l.app.handler())
	} else {
		// What the process will open is opened once before, so that what is wrong with
		// it is told at once; and semel makes its tables before there are others.
		s, err := openStorage(ctx, c)
		if err != nil {
			return nil, err
		}
		if err := s.Close(); err != nil {
			return nil, err
		}
	}
	if l.ledger.db, err = openDatabase(ctx, c); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Run runs the app, or the process that it is, until ctx ends.
func (l *Lab) Run(ctx context.Context) error {
	if l.app != nil {
		return l.app.run(ctx)
	}
	return l.supervise(ctx)
}

// Close closes the database. Run has returned by then.
func (l *Lab) Close() error {
	l.endProbe()
	var errs []error
	if l.ledger.db != nil {
		errs = append(errs, l.ledger.db.Close())
	}
	if l.app != nil {
		errs = append(errs, l.app.Close())
	}
	return errors.Join(errs...)
}

// Reset forgets everything but the switches.
func (l *Lab) Reset(ctx context.Context) error {
	if err := l.ledger.clear(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	clear(l.firsts)
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

// Set changes those of an operation, or of all if it is empty. Requests that are
// under way go on as they have begun.
func (l *Lab) Set(operation string, s Switches) error {
	if err := s.validate(); err != nil {
		return err
	}
	if s.Crash && l.app != nil {
		return errors.New("crash: the app is no process of its own here, and cannot be crashed")
	}
	l.mu.Lock()
	for _, o := range Operations {
		if operation == "" || operation == o.Name {
			l.switches[o.Name] = s
		}
	}
	l.mu.Unlock()
	l.Settled()
	return nil
}

// What follows is what the app is connected with.

// First reports whether something is asked for the first time for the reference of an
// attempt.
func (l *Lab) First(what string, a Attempt) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.firsts) > 10*mostAttempts {
		clear(l.firsts)
	}
	name := strings.Join([]string{what, a.Operation, a.Tenant, a.Reference}, "\x1f")
	first := !l.firsts[name]
	l.firsts[name] = true
	return first
}

// Tell writes an attempt down.
func (l *Lab) Tell(a Attempt) {
	l.trail.put(a)
	if s := l.Switches(a.Operation); a.Midway && s.Crash && l.First("crash", a) {
		if a.Path == "worker" && !s.Queue {
			l.process.answered() // who asked for the job is told that it was accepted
		}
		l.process.crash()
	}
}

// Arrive takes a mail or a webhook that the app has sent.
func (l *Lab) Arrive(m Mail) { l.world.arrive(m) }

// Settled has those look again who wait for something to change.
func (l *Lab) Settled() { l.trail.change(func() {}) }

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
