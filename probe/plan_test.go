package probe_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// Without --send, without an allow-list, or in production without the word for
// it, not one connection is made, no database is opened, no program is started,
// no reader reads and no hook is called.
func TestNothingIsSent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	count := &accepts{Listener: l}
	s := &http.Server{Handler: &counter{}}
	go func() { _ = s.Serve(count) }()
	defer s.Close()
	base := "http://" + l.Addr().String()
	var read, failed, opened atomic.Int64
	state := []probe.State{{Name: "go", Read: func(context.Context, probe.StateRequest) (int64, error) { return read.Add(1), nil }}}
	fail := func(context.Context, bool) error { failed.Add(1); return nil }

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	programs := []string{filepath.Join(dir, "reader"), filepath.Join(dir, "reset")}
	simple := func(base string) *plan.Plan {
		p := simple(base)
		op := &p.Operations[0]
		op.Readers = append(op.Readers,
			plan.Reader{Name: "program", Command: &plan.CommandReader{Argv: []string{self, "touch", programs[0]}}},
			plan.Reader{Name: "database", SQL: &plan.SQLReader{Driver: "sqlite", DSN: "x", Query: "SELECT 1"}})
		op.Audit = []plan.Audit{{Name: "trail", HTTP: &plan.AuditHTTP{URL: base + "/"}, Find: plan.Pairs{{Name: "key", Value: "{{.key}}"}}}}
		p.Reset = &plan.Hook{Command: []string{self, "touch", programs[1]}}
		p.Timing.SettleLimit = 50 * time.Millisecond
		return p
	}
	openSQL := func(context.Context, string, string) (*sql.DB, error) {
		opened.Add(1)
		return nil, errors.New("there is no database")
	}

	closed := simple(base)
	closed.Target.Allow = nil
	elsewhere := simple(base)
	elsewhere.Target.Allow = []string{"127.0.0.1:1"}
	reader := simple(base)
	reader.Operations[0].Readers[0].HTTP.URL = "http://127.0.0.2:1/"
	live := simple(base)
	live.Target.Production, live.Reset = new(true), nil // which production refuses
	reset := simple(base)
	reset.Reset = &plan.Hook{HTTP: &plan.HookRequest{Request: plan.Request{Method: "DELETE", URL: base + "/"}}}
	resetElsewhere := simple(base)
	resetElsewhere.Reset = &plan.Hook{HTTP: &plan.HookRequest{Request: plan.Request{Method: "DELETE", URL: "http://127.0.0.2:1/"}}}
	for name, c := range map[string]struct {
		p    *plan.Plan
		o    probe.Options
		want error
	}{
		"dry run":             {simple(base), probe.Options{Full: true}, nil},
		"dry run, allowed":    {closed, probe.Options{Full: true, Allow: []string{l.Addr().String()}}, nil},
		"no allow-list":       {closed, probe.Options{Send: true, Full: true}, probe.ErrNotAllowed},
		"another allow-list":  {elsewhere, probe.Options{Send: true}, probe.ErrNotAllowed},
		"a reader elsewhere":  {reader, probe.Options{Send: true}, probe.ErrNotAllowed},
		"dry run, a reset":    {reset, probe.Options{Full: true}, nil},
		"a reset elsewhere":   {resetElsewhere, probe.Options{Send: true}, probe.ErrNotAllowed},
		"production":          {live, probe.Options{Send: true}, probe.ErrProduction},
		"production, dry run": {live, probe.Options{}, nil},
	} {
		c.o.State, c.o.FailFirst, c.o.OpenSQL = state, fail, openSQL
		res, err := probe.Run(t.Context(), c.p, c.o)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && (res.Run.Sent != 0 || !res.Run.DryRun || len(res.Planned) == 0) {
			t.Errorf("%s: %d sent, %d planned", name, res.Run.Sent, len(res.Planned))
		}
	}
	started := func() (n int) {
		for _, file := range programs {
			if _, err := os.Stat(file); err == nil {
				n++
			}
		}
		return n
	}
	if count.n.Load() != 0 || read.Load() != 0 || failed.Load() != 0 || opened.Load() != 0 || started() != 0 {
		t.Errorf("%d connections, %d readings, %d calls of the hook, %d databases, %d programs",
			count.n.Load(), read.Load(), failed.Load(), opened.Load(), started())
	}

	// The counting works.
	res := mustRun(t, closed, probe.Options{
		Send: true, Allow: []string{l.Addr().String()}, State: state, FailFirst: fail, OpenSQL: openSQL,
		Only: []plan.Experiment{plan.Duplicate, plan.FailedFirst},
	})
	if count.n.Load() == 0 || int(count.n.Load()) != res.Run.Sent {
		t.Errorf("%d connections for %d sends", count.n.Load(), res.Run.Sent)
	}
	if read.Load() == 0 || failed.Load() == 0 || opened.Load() == 0 || started() != len(programs) {
		t.Errorf("%d readings, %d calls of the hook, %d databases, %d programs; the test sees nothing",
			read.Load(), failed.Load(), opened.Load(), started())
	}
}

// A dry run lists what a run sends: the same requests but for their fresh values.
func TestDryRunListsWhatIsSent(t *testing.T) {
	c := &counter{}
	s := c.serve(t)
	list := []plan.Experiment{plan.Duplicate, plan.FreshKey, plan.Altered, plan.MissingKey, plan.RaceSame, plan.LostBegun}
	roles := func(res *probe.Result) (out []string) {
		for _, e := range res.Run.Operations[0].Experiments {
			n := map[string]int{}
			for _, s := range e.Sends {
				if s.Role != "read" {
					n[string(s.Role)]++
				}
			}
			if len(n) > 0 {
				delete(n, "race") // a dry run lists it once, with a number
				out = append(out, fmt.Sprint(e.Name, n))
			}
		}
		return out
	}
	dry := mustRun(t, simple(s.URL, list...), probe.Options{})
	wet := mustRun(t, simple(s.URL, list...), probe.Options{Send: true})
	if a, b := roles(dry), roles(wet); !slices.Equal(a, b) {
		t.Errorf("a dry run says\n%q, a run sends\n%q", a, b)
	}
	i := slices.IndexFunc(dry.Planned, func(p probe.Planned) bool { return p.Experiment == plan.RaceSame })
	if i < 0 || dry.Planned[i].Times != 4 {
		t.Errorf("the race is planned as %+v", dry.Planned)
	}
	if b := string(dry.Planned[0].Bytes); !strings.HasPrefix(b, "POST / HTTP/1.1\r\nHost: "+s.Listener.Addr().String()+"\r\n") || !strings.Contains(b, "Idempotency-Key: \"") {
		t.Errorf("%q", b)
	}
}

// By default a run is two requests, and readings.
func TestDefaultIsTwoSends(t *testing.T) {
	c := &counter{}
	s := c.serve(t)
	res := mustRun(t, simple(s.URL), probe.Options{Send: true})
	if n := c.effects.Load(); n != 2 {
		t.Errorf("%d requests", n)
	}
	op := res.Run.Operations[0]
	if outcome(t, op, plan.Duplicate).Outcome != evidence.Broken || finding(op, "double-effect-sequential") == nil {
		t.Error(describe(op))
	}
	if int64(res.Run.Sent) != c.hits.Load() {
		t.Errorf("%d sent by the evidence, %d arrived", res.Run.Sent, c.hits.Load())
	}
}

// The budget is never exceeded, and experiments that were not run are not
// passed.
func TestBudget(t *testing.T) {
	for _, budget := range []int{1, 3, 7} {
		c := &counter{}
		s := c.serve(t)
		p := simple(s.URL, plan.Duplicate, plan.FreshKey, plan.RaceSame, plan.LostUnread)
		p.Budget.MaxSends = budget
		p.Race.Width = min(4, budget+1)
		if p.Race.Width > budget {
			p.Experiments = []plan.Experiment{plan.Duplicate, plan.FreshKey}
		}
		res := mustRun(t, p, probe.Options{Send: true})
		if n := c.effects.Load(); n > int64(budget) {
			t.Errorf("%d requests with a budget of %d", n, budget)
		}
		if res.Run.Conclusive() {
			t.Errorf("budget %d: it passes for conclusive", budget)
		}
	}
	c := &counter{}
	s := c.serve(t)
	p := simple(s.URL, plan.Duplicate)
	p.Budget.MaxReads = 3
	res := mustRun(t, p, probe.Options{Send: true})
	if reads := c.hits.Load() - c.effects.Load(); reads != 3 || res.Run.Interrupted == "" {
		t.Errorf("%d readings with a budget of 3: %q", reads, res.Run.Interrupted)
	}
}

// A run that is interrupted ends at once, and leaves the evidence so far.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("somebody pressed a key")
	c := &counter{}
	c.before = func(w http.ResponseWriter, r *http.Request) bool {
		if c.effects.Load() == 1 { // the duplicate is never answered
			c.effects.Add(1)
			cancel(why)
			<-r.Context().Done()
			return true
		}
		return false
	}
	s := c.serve(t)
	res, err := probe.Run(ctx, simple(s.URL, plan.Duplicate, plan.FreshKey, plan.RaceSame), probe.Options{Send: true})
	if err != nil {
		t.Fatal(err)
	}
	op := res.Run.Operations[0]
	if res.Run.Interrupted != why.Error() || res.Run.Conclusive() {
		t.Errorf("interrupted: %q", res.Run.Interrupted)
	}
	d := outcome(t, op, plan.Duplicate)
	posts := slices.DeleteFunc(slices.Clone(d.Sends), func(s evidence.Send) bool { return s.Role == "read" })
	if d.Outcome != evidence.Inconclusive || len(posts) != 2 || posts[1].Delivery != "unanswered" {
		t.Errorf("%s: %+v", d.Outcome, posts)
	}
	for _, name := range []plan.Experiment{plan.FreshKey, plan.RaceSame} {
		if e := outcome(t, op, name); e.Outcome != evidence.NotRun || !strings.Contains(e.Why, why.Error()) {
			t.Errorf("%s is %s: %s", name, e.Outcome, e.Why)
		}
	}
	if len(op.Findings) != 0 {
		t.Errorf("%+v", op.Findings)
	}
}

func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + l.Addr().String()
	_ = l.Close()
	res, err := probe.Run(t.Context(), simple(base), probe.Options{Send: true})
	if !errors.Is(err, probe.ErrUnreachable) || res == nil || res.Run.Conclusive() {
		t.Error(err)
	}
}

// Only and Skip choose, Full takes all that the plan has what it takes for, and
// names that are none are refused.
func TestChoice(t *testing.T) {
	names := func(o probe.Options) (out []string) {
		res := mustRun(t, simple("http://127.0.0.1:9", plan.Duplicate, plan.RaceSame), o)
		for _, e := range res.Run.Operations[0].Experiments {
			if e.Outcome != evidence.NotApplicable {
				out = append(out, e.Name)
			}
		}
		return out
	}
	for _, c := range []struct {
		o    probe.Options
		want string
	}{
		{probe.Options{}, "[duplicate race]"},
		{probe.Options{Skip: []plan.Experiment{plan.RaceSame}}, "[duplicate]"},
		{probe.Options{Only: []plan.Experiment{plan.Altered, plan.Duplicate}}, "[duplicate altered]"},
		{probe.Options{Full: true}, "[duplicate fresh_key late_retry same_meaning altered missing_key malformed_key in_flight race race_altered lost_unread lost_begun failed_first reordered]"},
	} {
		if got := fmt.Sprint(names(c.o)); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
	_, err := probe.Run(t.Context(), simple("http://127.0.0.1:9"), probe.Options{
		Only: []plan.Experiment{"dance"}, Operations: []string{"nothing"}, State: []probe.State{{}},
	})
	for _, want := range []string{"dance", "nothing", "State[0]"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not tell of %s", err, want)
		}
	}
}

// In production nothing is raced, cut off or made to fail, whatever is asked
// for and whatever hook is there: the target sees it.
func TestProduction(t *testing.T) {
	never := map[plan.Experiment]func(w *watchful) bool{
		plan.RaceSame:    func(w *watchful) bool { return w.most.Load() > 1 },
		plan.RaceAltered: func(w *watchful) bool { return w.most.Load() > 1 },
		plan.InFlight:    func(w *watchful) bool { return w.most.Load() > 1 },
		plan.LostUnread:  func(w *watchful) bool { return w.cut.Load() > 0 },
		plan.LostBegun:   func(w *watchful) bool { return w.cut.Load() > 0 },
		plan.FailedFirst: func(w *watchful) bool { return w.hooked.Load() > 0 },
		plan.Reordered:   func(w *watchful) bool { return w.effects.Load() > 0 },
	}
	run := func(t *testing.T, production bool, only ...plan.Experiment) (*watchful, evidence.Operation) {
		w := &watchful{}
		o := probe.Options{Send: true, Production: production, Full: true, Only: only, FailFirst: func(context.Context, bool) error {
			w.hooked.Add(1)
			return nil
		}}
		p := simple(serveVirtually(t, w, &o))
		p.Target.Production = &production
		p.Timing.SettleLimit = time.Second
		return w, mustRun(t, p, o).Run.Operations[0]
	}
	for name, seen := range never {
		synctest.Test(t, func(t *testing.T) {
			if w, op := run(t, false, name); !seen(w) {
				t.Errorf("%s: the target sees nothing: %s", name, describe(op))
			}
			w, op := run(t, true, name)
			if e := outcome(t, op, name); e.Outcome != evidence.NotRun || !strings.Contains(e.Why, "production") {
				t.Errorf("%s is %s in production: %s", name, e.Outcome, e.Why)
			}
			if w.hits.Load() > 0 || w.hooked.Load() > 0 {
				t.Errorf("%s: %d requests and %d calls of the hook in production", name, w.hits.Load(), w.hooked.Load())
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w, op := run(t, true, plan.Experiments()...)
		if w.most.Load() != 1 || w.cut.Load() > 0 || w.hooked.Load() > 0 {
			t.Errorf("%d at once, %d cut off, %d calls of the hook", w.most.Load(), w.cut.Load(), w.hooked.Load())
		}
		for _, e := range op.Experiments {
			if _, ok := never[plan.Experiment(e.Name)]; ok != (e.Outcome == evidence.NotRun) {
				t.Errorf("%s is %s: %s", e.Name, e.Outcome, e.Why)
			}
			for _, s := range e.Sends {
				if s.Cut != "" || s.Role == "race" {
					t.Errorf("%s: %+v", e.Name, s)
				}
			}
		}
	})
}
