package stepstest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelclient"
	"github.com/semelhq/semel/steps"
)

// Shop takes orders in three steps: it reserves stock in its own database, charges by
// a call to another service, and has a third notify.
type Shop struct {
	Records semel.Store
	Journal steps.Store
	// Reserve inserts a reservation in the transaction of ctx.
	Reserve func(ctx context.Context, order string) error
	// URL is the URL of a World, and Base the transport that reaches it.
	URL  string
	Base http.RoundTripper
	// Point, if not nil, is called between and within the steps.
	Point func(name string)
	// Policy is the policy of the guard, and Charge that of the call that charges.
	Policy semel.Policy
	Charge steps.Policy
}

// Receipt is the result of an order.
type Receipt struct{ Reservation, Charge, Notice string }

// OrderIdentity returns the identity of an order.
func OrderIdentity(order string) semel.Identity { return identity(order) }

// At calls Point, if it is not nil.
func (s *Shop) At(name string) {
	if s.Point != nil {
		s.Point(name)
	}
}

// Order performs the operation.
func (s *Shop) Order(ctx context.Context, order string) (r Receipt, err error) {
	s.At("before the first step")
	r.Reservation, err = steps.Local(ctx, "reserve", order, func(ctx context.Context, order string) (string, error) {
		s.At("reserve begins")
		err := s.Reserve(ctx, order)
		s.At("reserve has its effect")
		return "reserved " + order, err
	})
	if err != nil {
		return r, err
	}
	s.At("between reserve and charge")
	if r.Charge, err = steps.Remote(ctx, "charge", s.Charge, order, s.call("charge")); err != nil {
		return r, err
	}
	s.At("between charge and notify")
	if r.Notice, err = steps.Remote(ctx, "notify", steps.Policy{OnCrash: semel.CrashRetry}, order, s.call("notify")); err != nil {
		return r, err
	}
	s.At("behind the last step")
	return r, nil
}

// call calls a service of the World.
func (s *Shop) call(service string) func(ctx context.Context, order string) (string, error) {
	return func(ctx context.Context, order string) (string, error) {
		s.At(service + " is called")
		transport, err := semelclient.New(semelclient.Config{Base: s.Base, MaxTries: 1})
		if err != nil {
			return "", err
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/"+service, strings.NewReader(order))
		if err != nil {
			return "", err
		}
		answer, err := transport.RoundTrip(r)
		if err != nil {
			return "", err
		}
		body, err := io.ReadAll(answer.Body)
		if err = errors.Join(err, answer.Body.Close()); err != nil || answer.StatusCode != http.StatusOK {
			return "", fmt.Errorf("%s: %w", answer.Status, err)
		}
		s.At(service + " has answered")
		return string(body), nil
	}
}

func (s *Shop) service() (*semel.Guard, *steps.Journal, error) {
	g, gerr := semel.New(semel.Config{Store: s.Records, Policy: s.Policy})
	j, err := steps.New(steps.Config{Store: s.Journal, LookAfter: time.Millisecond})
	return g, j, errors.Join(gerr, err)
}

// Place places an order, as the handler of a request would.
func (s *Shop) Place(ctx context.Context, order string) (Receipt, semel.Answer, error) {
	g, j, err := s.service()
	if err != nil {
		return Receipt{}, 0, err
	}
	return semel.Call(ctx, g, semel.Submit{Identity: identity(order), Fingerprint: semel.FingerprintOf([]byte(order))}, func(ctx context.Context) (Receipt, error) {
		return steps.Run(ctx, j, order, s.Order)
	})
}

// Completer returns a completer for orders.
func (s *Shop) Completer() (*steps.Completer, error) {
	g, j, err := s.service()
	if err != nil {
		return nil, err
	}
	return steps.NewCompleter(steps.CompleterConfig{
		Journal: j, Guard: g, Operations: map[string]steps.Handler{"orders.create": steps.Handle(j, s.Order, nil)},
		MinBackoff: time.Millisecond, MaxBackoff: 50 * time.Millisecond, MaxAttempts: 1000,
	})
}

// World is the services that the shop calls. Each recognises a repetition only
// by its Idempotency-Key.
type World struct {
	mu      sync.Mutex
	effects map[string][]string // from service and order to the keys that had one
	calls   map[string]int
}

// ServeHTTP implements http.Handler.
func (w *World) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	order, err := io.ReadAll(r.Body)
	key := r.Header.Get("Idempotency-Key")
	if err != nil || key == "" {
		http.Error(rw, "no key", http.StatusBadRequest)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.effects == nil {
		w.effects, w.calls = map[string][]string{}, map[string]int{}
	}
	at := r.URL.Path + " " + string(order)
	w.calls[at]++
	if !slices.Contains(w.effects[at], key) {
		w.effects[at] = append(w.effects[at], key)
	}
	_, _ = fmt.Fprintf(rw, "%s for %s", r.URL.Path, order)
}

// Seen returns how many effects a service has had for an order, which is how many keys
// it has seen, and how often it was called.
func (w *World) Seen(service, order string) (effects, calls int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := "/" + service + " " + order
	return len(w.effects[at]), w.calls[at]
}

// WantOnce wants one effect of each step of an order.
func (w *World) WantOnce(t testing.TB, order string, reservations int) {
	t.Helper()
	if reservations != 1 {
		t.Errorf("order %s: %d reservations", order, reservations)
	}
	for _, service := range []string{"charge", "notify"} {
		if effects, calls := w.Seen(service, order); effects != 1 {
			t.Errorf("order %s: %d effects of %s, in %d calls", order, effects, service, calls)
		}
	}
}

const childVariable = "SEMEL_STEPSTEST_CHILD" // "ORDER POINT place|complete URL"

// Child is a process that Killed has started.
type Child struct {
	Order, Role, URL string

	mu   sync.Mutex
	left int // points to come to; below zero, one of named
}

// decide resolves the step that KilledDeciding has left unknown.
func decide(ctx context.Context, s *Shop, order string) error {
	_, j, err := s.service()
	if err != nil {
		return err
	}
	return j.Resolve(ctx, identity(order), steps.Resolution{Step: "charge", To: steps.StateDone, Result: []byte(`"found"`), By: "ada", Because: "looked it up"})
}

// KilledDeciding starts processes that resolve a step of an order, and kills each at
// another point. The resolution and its entry in the trail must both be there, once,
// or neither, and then somebody else can decide.
func KilledDeciding(t *testing.T, v Victim) {
	s := v.Shop
	decided := map[bool]int{}
	for n := 1; ; n++ {
		order := fmt.Sprintf("d%d", n)
		o, err := s.Journal.Open(t.Context(), steps.Opening{Identity: identity(order), Fence: 1})
		if err == nil {
			err = s.Journal.Put(t.Context(), o.Number, 1, steps.Step{Name: "charge", State: steps.StateUnknown})
		}
		if err == nil {
			err = s.Journal.Mark(t.Context(), steps.Mark{Number: o.Number, Fence: 1, Phase: steps.PhaseHeld, Cause: "unknown"})
		}
		if err != nil {
			t.Fatal(err)
		}
		c := v.Command()
		c.Env = append(c.Env, fmt.Sprintf("%s=%s %d decide %s", childVariable, order, n, s.URL))
		c.Stderr = os.Stderr
		point, ended := c.Output()
		if ended != nil && (c.ProcessState == nil || c.ProcessState.Exited() || len(point) == 0) {
			t.Fatalf("point %d: %v", n, ended)
		}
		done := false
		for try := range 2 {
			o, err = s.Journal.Find(t.Context(), identity(order))
			if err != nil || len(o.Steps) != 1 {
				t.Fatalf("killed at %d, %s: %+v, %v", n, point, o, err)
			}
			done = o.Steps[0].State == steps.StateDone
			if held := o.Phase == steps.PhaseHeld; held == done || len(o.Decisions) > 1 || (len(o.Decisions) == 1) != done {
				t.Fatalf("killed at %d, %s: step %s, operation %s, %d entries", n, point, o.Steps[0].State, o.Phase, len(o.Decisions))
			}
			if try > 0 {
				break
			}
			decided[done]++
			if err := decide(t.Context(), s, order); done != errors.Is(err, steps.ErrNotUnknown) || !done && err != nil {
				t.Fatalf("killed at %d, %s, decided before: %v: %v", n, point, done, err)
			}
		}
		if !done {
			t.Fatalf("killed at %d, %s: the step cannot be decided any more", n, point)
		}
		if ended == nil {
			break
		}
	}
	if decided[false] < 3 || decided[true] == 0 {
		t.Errorf("only so many points: %v", decided)
	}
	t.Logf("%d points before the commit", decided[false])
}

// named are the points of an order that have a name. The others are statements, of
// which there may be more or fewer, as claims are renewed.
var named = []string{
	"before the first step", "reserve begins", "reserve has its effect", "between reserve and charge", "charge is called", "charge has answered",
	"between charge and notify", "notify is called", "notify has answered", "behind the last step", "behind the answer",
}

// CurrentChild returns the role of this process if Killed has started it, and
// nil otherwise.
func CurrentChild() *Child {
	f := strings.Fields(os.Getenv(childVariable))
	if len(f) != 4 {
		return nil
	}
	left, err := strconv.Atoi(f[1])
	if err != nil {
		panic(err)
	}
	return &Child{Order: f[0], left: left, Role: f[2], URL: f[3]}
}

// Point kills the process if name is the point to die at. Call it as Shop.Point,
// and for each statement that a store and its handlers send.
func (c *Child) Point(name string) {
	c.mu.Lock()
	defer c.mu.Unlock() // so nobody goes on meanwhile
	if c.left >= 0 {
		c.left--
	}
	if c.left != 0 && (c.left > 0 || c.left < -len(named) || named[-c.left-1] != name) {
		return
	}
	fmt.Println(name)
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err == nil {
		select {} // until it is dead
	}
	panic(err)
}

// Main is the main function of the child.
func (c *Child) Main(s *Shop) error {
	s.URL, s.Point, s.Policy, s.Charge = c.URL, c.Point, quick, steps.Policy{OnCrash: semel.CrashRetry}
	switch c.Role {
	case "complete":
		return complete(context.Background(), s, c.Order)
	case "decide":
		return decide(context.Background(), s, c.Order)
	}
	_, answer, err := s.Place(context.Background(), c.Order)
	if err == nil && answer != semel.AnswerExecuted {
		err = fmt.Errorf("the answer is %v", answer)
	}
	s.At("behind the answer")
	return err
}

// quick is a policy whose claims lapse soon, and are held then.
var quick = semel.Policy{Lease: time.Second, Heartbeat: 250 * time.Millisecond}

// complete does rounds until the order has a complete record, or is not on record, or
// not in the journal: then no step was begun, and it is the client's to come back.
func complete(ctx context.Context, s *Shop, order string) error {
	k, err := s.Completer()
	if err != nil {
		return err
	}
	for end := time.Now().Add(time.Minute); ; {
		r := k.Round(ctx)
		_, jerr := s.Journal.Find(ctx, identity(order))
		rec, err := s.Records.Find(ctx, identity(order))
		switch {
		case errors.Is(err, semel.ErrNotFound), errors.Is(jerr, steps.ErrNotFound), err == nil && rec.State == semel.StateCompleted:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("order %s is still %v; the last round: %+v, %w", order, rec.State, r, err)
		}
		// Another process's lease has to lapse.
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Victim is a shop whose processes Killed kills.
type Victim struct {
	Shop         *Shop
	World        *World
	Reservations func(order string) int
	// Command makes a process that calls Child.Main.
	Command func() *exec.Cmd
}

// Killed starts, for each point of an order, a process that places an order and is
// killed at that point. Then it completes the order; if twice is set, in competition
// with another process, which is killed at some point too. Then the client comes back.
// The order must have had one effect of each step, and the services must have seen one
// key. Each time the lease of the killed process has to end, so six shops of victim's,
// which share nothing, run side by side, each with one point in six.
func Killed(t *testing.T, twice bool, victim func(t *testing.T) Victim) {
	const shops = 6
	var points, repeated atomic.Int64 // repeated calls
	t.Run("points", func(t *testing.T) {
		var all sync.WaitGroup
		defer all.Wait()
		for i := range shops {
			all.Go(func() {
				t.Run(fmt.Sprint("shop ", i), func(t *testing.T) {
					v := victim(t)
					for n := i - len(named); v.killedAt(t, n, twice, &repeated); n += shops {
						points.Add(1)
					}
				})
			})
		}
	})
	if repeated.Load() == 0 {
		t.Error("no call was ever repeated")
	}
	t.Logf("%d points; %d calls were repeated", points.Load(), repeated.Load())
}

// killedAt does what Killed does for the point n, and reports whether there is one.
func (v Victim) killedAt(t *testing.T, n int, twice bool, repeated *atomic.Int64) bool {
	s, w := v.Shop, v.World
	s.Policy, s.Charge = quick, steps.Policy{OnCrash: semel.CrashRetry}
	s.Policy.OnCrash = semel.CrashRetry
	run := func(order, role string, at int) (point string) {
		c := v.Command()
		c.Env = append(c.Env, fmt.Sprintf("%s=%s %d %s %s", childVariable, order, at, role, s.URL))
		c.Stderr = os.Stderr
		out, err := c.Output()
		if err != nil && (c.ProcessState == nil || c.ProcessState.Exited() || len(out) == 0) {
			t.Errorf("order %s, %s until point %d: %v", order, role, at, err)
		}
		if err == nil {
			return "" // it came to its end
		}
		return strings.TrimSpace(string(out))
	}
	if n >= 0 {
		n++ // zero is no point
	}
	order := fmt.Sprintf("o%d", n)
	if twice {
		order = fmt.Sprintf("t%d", n)
	}
	point := run(order, "place", n)
	if n < 0 && point != named[-n-1] {
		t.Fatalf("no process died %q", named[-n-1])
	}
	var second string
	var rival sync.WaitGroup
	if twice && point != "" {
		rival.Go(func() { second = run(order, "complete", 1+(n+len(named))*5%23) })
	}
	if err := complete(t.Context(), s, order); err != nil {
		t.Errorf("killed at %d, %s: %v", n, point, err)
	}
	rival.Wait()
	got, answer, err := s.Place(t.Context(), order)                                                       // the client comes back
	for end := time.Now().Add(time.Minute); answer == semel.AnswerInProgress && time.Now().Before(end); { // until the lease has lapsed
		got, answer, err = s.Place(t.Context(), order)
	}
	if want := (Receipt{"reserved " + order, "/charge for " + order, "/notify for " + order}); err != nil || got != want {
		t.Errorf("the client has %+v, %v", got, err)
	}
	w.WantOnce(t, order, v.Reservations(order))
	if t.Failed() {
		t.Fatalf("killed at %d, %s; %s", n, point, second)
	}
	_, charges := w.Seen("charge", order)
	_, notices := w.Seen("notify", order)
	repeated.Add(int64(charges + notices - 2))
	return point != ""
}
