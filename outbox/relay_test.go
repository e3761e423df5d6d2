package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/memory"
)

// Everything here runs in virtual time: in a bubble that tells how long things
// took to the nanosecond.

// post is where deliveries arrive.
type post struct {
	mu      sync.Mutex
	arrived []outbox.Delivery
	at      []time.Duration
	start   time.Time
	counts  map[string]int // of what was observed
	errs    []error
	most    int // under way at once
	under   int
	// answer says what to do with a delivery that arrives; nil is to take it.
	answer func(context.Context, outbox.Delivery) error
}

func newPost() *post { return &post{start: time.Now(), counts: map[string]int{}} }

func (p *post) Deliver(ctx context.Context, d outbox.Delivery) error {
	p.mu.Lock()
	p.under++
	p.most = max(p.most, p.under)
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.under--
	}()
	if p.answer != nil {
		if err := p.answer(ctx, d); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrived = append(p.arrived, d)
	p.at = append(p.at, time.Since(p.start))
	return nil
}

func (p *post) ids() (ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.arrived {
		ids = append(ids, d.ID)
	}
	return ids
}

func (p *post) count(what string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[what]
}

func (p *post) observer() *outbox.Observer {
	on := func(what string) func(context.Context, outbox.Attempted) {
		return func(_ context.Context, a outbox.Attempted) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.counts[what]++
			if a.Err != nil {
				p.errs = append(p.errs, a.Err)
			}
		}
	}
	return &outbox.Observer{
		Delivered: on("delivered"), Retried: on("retried"), Dead: on("dead"), Unknown: on("unknown"), LeaseLost: on("lease lost"),
		StoreFailed: func(_ context.Context, call string, _ error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.counts["failed "+call]++
		},
	}
}

// start runs a relay until the returned function is called, which waits for it.
func start(t *testing.T, c outbox.Config, routes ...outbox.Route) (stop func() error) {
	t.Helper()
	c.Routes = routes
	r, err := outbox.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return sync.OnceValue(func() error {
		cancel()
		return <-done
	})
}

func stopped(t *testing.T, stop func() error) {
	t.Helper()
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func enqueue(t *testing.T, o *memory.Outbox, messages ...outbox.Message) {
	t.Helper()
	if err := o.Enqueue(t.Context(), messages...); err != nil {
		t.Fatal(err)
	}
}

// lane makes messages whose ids are the lane's name and a number.
func lane(topic, key string, n int) (all []outbox.Message) {
	for i := range n {
		all = append(all, outbox.Message{ID: fmt.Sprint(key, ".", i), Topic: topic, Key: key})
	}
	return all
}

func find(t *testing.T, o *memory.Outbox, id string) outbox.Entry {
	t.Helper()
	e, err := o.Find(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func want[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %v; want %v", what, got, want)
	}
}

func wantIDs(t *testing.T, got []string, ids ...string) {
	t.Helper()
	if !slices.Equal(got, ids) {
		t.Errorf("delivered %q; want %q", got, ids)
	}
}

// pass lets time go by until everybody waits for something.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func bubble(t *testing.T, fn func(t *testing.T, o *memory.Outbox, p *post)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { fn(t, memory.NewOutbox(), newPost()) })
}

// Four relays deliver what eight writers enqueue for few lanes, in opposite
// orders, to a sink that fails at random, panics and stalls for longer than a
// lease. Everything arrives once, and every lane in its order.
func TestRelaysDeliverEverythingInOrder(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		const writers, rounds, lanes = 8, 30, 5
		p.answer = func(ctx context.Context, d outbox.Delivery) error {
			switch rand.IntN(12) {
			case 0:
				return errors.New("no")
			case 1:
				panic("no")
			case 2:
				return outbox.RetryAfter(time.Duration(rand.IntN(5))*time.Second, errors.New("busy"))
			case 3:
				time.Sleep(20 * time.Second)
			default:
				time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
			}
			return ctx.Err()
		}
		var stops []func() error
		for range 4 {
			stops = append(stops, start(t, outbox.Config{Store: o, Observer: p.observer()},
				outbox.Route{Topic: "t", Sink: p, MaxAttempts: 1000, MaxBackoff: 10 * time.Second, MaxInFlight: 8}))
		}
		// The order of a lane is that of the enqueueing, which this lock tells.
		var (
			mu    sync.Mutex
			order = map[string][]string{}
			wg    sync.WaitGroup
		)
		for w := range writers {
			wg.Go(func() {
				for n := range rounds {
					var some []outbox.Message
					for l := range lanes {
						if w%2 == 1 {
							l = lanes - 1 - l
						}
						some = append(some, outbox.Message{ID: fmt.Sprint(w, "-", n, "-", l), Topic: "t", Key: fmt.Sprint("lane", l)})
					}
					mu.Lock()
					enqueue(t, o, some...)
					for _, m := range some {
						order[m.Key] = append(order[m.Key], m.ID)
					}
					mu.Unlock()
					time.Sleep(time.Duration(rand.IntN(1000)) * time.Millisecond)
				}
			})
		}
		wg.Wait()
		const all = writers * rounds * lanes
		for p.count("delivered") < all && time.Since(p.start) < 24*time.Hour {
			pass(time.Minute)
		}
		for _, stop := range stops {
			stopped(t, stop)
		}
		want(t, "number delivered", len(p.arrived), all)
		got := map[string][]string{}
		for _, d := range p.arrived {
			got[d.Key] = append(got[d.Key], d.ID)
		}
		for key, ids := range order {
			if !slices.Equal(got[key], ids) {
				t.Errorf("%s was delivered in another order than enqueued", key)
			}
		}
		want(t, "number of leases lost", p.count("lease lost"), 0)
		if p.count("retried") == 0 {
			t.Error("nothing failed")
		}
	})
}

// A relay that only swept by age would keep a busy hour's messages; one that only swept
// by number, those of a quiet year.
func TestSettledMessagesAreBoundedByAgeAndByCount(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		stop := start(t, outbox.Config{Store: o, Retention: outbox.Retention{Delivered: time.Hour, MaxDelivered: 10}, SweepEvery: time.Minute}, outbox.Route{Topic: "t", Sink: p})
		kept := func() int {
			t.Helper()
			all, err := o.List(t.Context(), outbox.Filter{State: outbox.StateDelivered, Limit: 1000})
			if err != nil {
				t.Fatal(err)
			}
			return len(all)
		}
		enqueue(t, o, lane("t", "", 50)...)
		pass(5 * time.Minute)
		want(t, "messages delivered", len(p.ids()), 50)
		want(t, "messages kept by their number", kept(), 10)
		enqueue(t, o, outbox.Message{ID: "late", Topic: "t"})
		pass(58 * time.Minute)
		want(t, "messages kept by their age", kept(), 1)
		pass(5 * time.Minute)
		want(t, "messages kept in the end", kept(), 0)
		stopped(t, stop)
	})
}

// The lease of a delivery that takes many leases is renewed until it ends.
func TestSlowHandlerKeepsItsLease(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		p.answer = func(context.Context, outbox.Delivery) error { time.Sleep(10 * time.Minute); return nil }
		route := outbox.Route{Topic: "t", Sink: p, Timeout: time.Hour}
		a := start(t, outbox.Config{Store: o, Observer: p.observer()}, route)
		b := start(t, outbox.Config{Store: o, Observer: p.observer()}, route)
		enqueue(t, o, outbox.Message{ID: "m", Topic: "t"})
		pass(time.Hour)
		stopped(t, a)
		stopped(t, b)
		wantIDs(t, p.ids(), "m")
		want(t, "attempts", find(t, o, "m").Attempts, 1)
	})
}

// Of what is claimed together everything begins at once, and is settled when it has
// ended, whatever others of it take.
func TestDeliveriesWaitForNoOther(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, _ *post) {
		const n = 100
		for i := range n {
			enqueue(t, o, outbox.Message{ID: fmt.Sprint(i), Topic: "t"})
		}
		var began, settled atomic.Int64
		release := []chan struct{}{1: make(chan struct{}), 2: make(chan struct{})}
		stop := start(t, outbox.Config{Store: o, Observer: &outbox.Observer{Delivered: func(context.Context, outbox.Attempted) { settled.Add(1) }}}, outbox.Route{
			MaxInFlight: n, Sink: outbox.SinkFunc(func(_ context.Context, d outbox.Delivery) error {
				if i, _ := strconv.Atoi(d.ID); began.Add(1) > 0 && i%3 != 0 {
					<-release[i%3]
				}
				return nil
			}),
		})
		pass(10 * time.Millisecond) // less than PollMin
		want(t, "begun", began.Load(), n)
		want(t, "settled", settled.Load(), (n+2)/3)
		close(release[1])
		pass(10 * time.Millisecond)
		want(t, "settled while others go on", settled.Load(), (n+2)/3+n/3)
		close(release[2])
		pass(time.Second)
		want(t, "settled in the end", settled.Load(), n)
		stopped(t, stop)
	})
}

// A message whose every attempt fails, one whose sink panics and one that is
// refused for good hold up their own lanes and nothing else.
func TestPoisonHoldsUpItsOwnLaneOnly(t *testing.T) {
	for _, policy := range []outbox.DeadPolicy{outbox.DeadBlock, outbox.DeadSkip} {
		t.Run(fmt.Sprint(policy), func(t *testing.T) {
			bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
				p.answer = func(_ context.Context, d outbox.Delivery) error {
					switch d.ID {
					case "fails.0":
						return errors.New("no")
					case "panics.0":
						panic("no")
					case "refused.0":
						return outbox.Permanent(errors.New("gone"))
					}
					return nil
				}
				stop := start(t, outbox.Config{Store: o, Observer: p.observer()}, outbox.Route{Topic: "t", Sink: p, MaxAttempts: 5, OnDead: policy})
				enqueue(t, o, slices.Concat(lane("t", "fails", 3), lane("t", "panics", 3), lane("t", "refused", 3), lane("t", "good", 3), lane("t", "", 3))...)
				synctest.Wait()
				pass(900 * time.Millisecond) // before the first failure is tried again
				ids := p.ids()
				slices.Sort(ids)
				early := []string{".0", ".1", ".2", "good.0", "good.1", "good.2"}
				if policy == outbox.DeadSkip {
					early = append(early, "refused.1", "refused.2")
				}
				wantIDs(t, ids, early...)
				pass(time.Hour)
				stopped(t, stop)
				for _, key := range []string{"fails", "panics", "refused"} {
					e := find(t, o, key+".0")
					want(t, "state", e.State, outbox.StateDead)
					want(t, "whether it blocks", e.Blocks, policy == outbox.DeadBlock)
					want(t, "whether the next was delivered", slices.Contains(p.ids(), key+".1"), policy == outbox.DeadSkip)
				}
				want(t, "attempts", find(t, o, "fails.0").Attempts, 5)
				want(t, "attempts", find(t, o, "refused.0").Attempts, 1)
				if cause := find(t, o, "panics.0").Cause; !strings.Contains(cause, "panicked: no") {
					t.Errorf("the cause of a panic is %q", cause)
				}
				// A redrive of what blocks goes on in order.
				p.answer = nil
				done, err := o.Redrive(t.Context(), outbox.Filter{ID: "fails.0"})
				if err != nil || len(done) != 1 || done[0].OutOfOrder != (policy == outbox.DeadSkip) {
					t.Errorf("redriven: %+v, %v", done, err)
				}
				p.arrived = nil
				stop = start(t, outbox.Config{Store: o}, outbox.Route{Topic: "t", Sink: p})
				pass(time.Minute)
				stopped(t, stop)
				if policy == outbox.DeadBlock {
					wantIDs(t, p.ids(), "fails.0", "fails.1", "fails.2")
				} else {
					wantIDs(t, p.ids(), "fails.0")
				}
			})
		})
	}
}

// A batch whose first message fails does not deliver what is behind it in its lane
// first: not in this attempt, nor in a later one.
func TestPartialBatchFailureKeepsLaneOrder(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		p.answer = func(_ context.Context, d outbox.Delivery) error {
			if d.ID == "x.0" && d.Attempt < 3 {
				return errors.New("too large")
			}
			return nil
		}
		enqueue(t, o, slices.Concat(lane("t", "x", 3), lane("t", "y", 1))...)
		stop := start(t, outbox.Config{Store: o}, outbox.Route{Sink: p})
		pass(time.Hour)
		stopped(t, stop)
		wantIDs(t, p.ids(), "y.0", "x.0", "x.1", "x.2")
	})
}

// A delivery that failed comes again under its id, and so does one that is redriven:
// it is neither lost nor taken for its own duplicate, which another of its id is.
func TestFailedDeliveryIsNotItsOwnDuplicate(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		var seen []string
		fails := 3
		p.answer = func(_ context.Context, d outbox.Delivery) error {
			seen = append(seen, fmt.Sprint(d.ID, " ", d.Attempt))
			if len(seen) <= fails {
				return errors.New("no")
			}
			return nil
		}
		enqueue(t, o, outbox.Message{ID: "m", Topic: "t"})
		stop := start(t, outbox.Config{Store: o}, outbox.Route{Sink: p, MaxAttempts: 3})
		pass(time.Hour)
		want(t, "state", find(t, o, "m").State, outbox.StateDead)
		if err := o.Enqueue(t.Context(), outbox.Message{ID: "m", Topic: "t"}); !errors.Is(err, outbox.ErrDuplicate) {
			t.Errorf("another message of the id: %v", err)
		}
		if done, err := o.Redrive(t.Context(), outbox.Filter{ID: "m"}); err != nil || len(done) != 1 {
			t.Error(done, err)
		}
		pass(time.Hour)
		stopped(t, stop)
		wantIDs(t, seen, "m 1", "m 2", "m 3", "m 1")
		want(t, "state", find(t, o, "m").State, outbox.StateDelivered)
	})
}

// While messages wait, every settlement is in one call with a claim of as many, and as
// large: one commit, not two.
func TestSettlementsComeWithClaims(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		alone := 0
		f := &faulty{Outbox: o}
		f.fail = func(call string) (bool, bool) {
			page, err := o.List(t.Context(), outbox.Filter{State: outbox.StatePending})
			if call == "settle" && (err != nil || slices.ContainsFunc(page, func(e outbox.Entry) bool { return e.LeaseLeft == 0 })) {
				alone++
			}
			return false, false
		}
		p.answer = func(context.Context, outbox.Delivery) error { time.Sleep(time.Second); return nil }
		for range 40 {
			enqueue(t, o, outbox.Message{Topic: "t", Payload: make([]byte, outbox.MaxPayload)})
		}
		stop := start(t, outbox.Config{Store: f}, outbox.Route{Sink: p, MaxInFlight: 4, MaxBytesInFlight: 4 * outbox.MaxPayload})
		pass(time.Minute)
		stopped(t, stop)
		want(t, "number delivered", len(p.ids()), 40)
		want(t, "number of settlements without a claim", alone, 0)
		want(t, "number under way", p.most, 4)
	})
}

// The next of a lane is claimed in the call that settles the one before, by a relay
// that would not look for an hour.
func TestLaneGoesOnWithoutPolling(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		enqueue(t, o, lane("t", "x", 20)...)
		stop := start(t, outbox.Config{Store: struct{ outbox.Store }{o}, PollMin: time.Hour, PollMax: time.Hour}, outbox.Route{Sink: p})
		synctest.Wait()
		want(t, "number delivered at once", len(p.ids()), 20)
		stopped(t, stop)
	})
}

// Messages that may have killed their relays are under way one at a time, even where
// one is claimed in the call that settles another.
func TestSuspectsAreUnderWayAlone(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		for range 5 {
			enqueue(t, o, outbox.Message{Topic: "t"})
		}
		for range outbox.SuspectLapses {
			if got, _, err := o.Exchange(t.Context(), nil, outbox.Claim{Max: 5, Lease: time.Second}); err != nil || len(got) != 5 {
				t.Fatal(got, err)
			}
			time.Sleep(time.Second)
		}
		var under, most atomic.Int64
		p.answer = func(_ context.Context, d outbox.Delivery) error {
			if d.Attempt == 1 {
				time.Sleep(100 * time.Millisecond)
				return nil
			}
			most.Store(max(most.Load(), under.Add(1)))
			time.Sleep(time.Second)
			under.Add(-1)
			return nil
		}
		enqueue(t, o, lane("t", "x", 20)...) // beside them, a settlement with a claim now and then
		stop := start(t, outbox.Config{Store: o}, outbox.Route{Sink: p})
		pass(time.Minute)
		stopped(t, stop)
		want(t, "number delivered", len(p.ids()), 25)
		want(t, "number of suspects under way", most.Load(), 1)
	})
}

// What is under way is finished when a relay is stopped, and what cannot be
// finished is given back at once, without counting as an attempt.
func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		p.answer = func(ctx context.Context, d outbox.Delivery) error {
			if d.ID == "slow" {
				<-ctx.Done()
				return ctx.Err()
			}
			time.Sleep(5 * time.Second)
			return nil
		}
		stop := start(t, outbox.Config{Store: o, Drain: 8 * time.Second, Observer: p.observer()}, outbox.Route{Topic: "t", Sink: p, Timeout: time.Hour})
		enqueue(t, o, outbox.Message{ID: "quick", Topic: "t"}, outbox.Message{ID: "slow", Topic: "t"})
		pass(time.Second)
		began := time.Now()
		stopped(t, stop)
		want(t, "time to stop", time.Since(began), 8*time.Second)
		wantIDs(t, p.ids(), "quick")
		want(t, "state", find(t, o, "quick").State, outbox.StateDelivered)
		e := find(t, o, "slow")
		if e.State != outbox.StatePending || e.Attempts != 0 || e.LeaseLeft != 0 || !e.DueAt.IsZero() {
			t.Errorf("what was not finished is %+v", e)
		}
	})
}

// A slow sink holds up its own route, and no more is under way than allowed.
func TestRoutesDoNotShareTheirBounds(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		stuck := newPost()
		stuck.answer = func(ctx context.Context, _ outbox.Delivery) error { <-ctx.Done(); return ctx.Err() }
		p.answer = func(context.Context, outbox.Delivery) error { time.Sleep(time.Second); return nil }
		stop := start(t, outbox.Config{Store: o},
			outbox.Route{Topic: "stuck", Sink: stuck, MaxInFlight: 3, Timeout: 20 * time.Minute}, outbox.Route{Topic: "good", Sink: p, MaxInFlight: 2})
		for range 10 {
			enqueue(t, o, outbox.Message{Topic: "stuck"}, outbox.Message{Topic: "good"})
		}
		pass(time.Minute)
		want(t, "number delivered", len(p.ids()), 10)
		want(t, "number under way", p.most, 2)
		want(t, "number under way of the stuck", stuck.most, 3)
		stopped(t, stop)
	})
}

// Bytes under way have a bound of their own.
func TestBytesInFlight(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		p.answer = func(context.Context, outbox.Delivery) error { time.Sleep(time.Second); return nil }
		for range 12 {
			enqueue(t, o, outbox.Message{Topic: "t", Payload: make([]byte, outbox.MaxPayload)})
		}
		stop := start(t, outbox.Config{Store: o}, outbox.Route{Topic: "t", Sink: p, MaxBytesInFlight: 3*outbox.MaxPayload + 100})
		pass(time.Minute)
		stopped(t, stop)
		want(t, "number delivered", len(p.ids()), 12)
		want(t, "number under way", p.most, 3)
	})
}

// The observer is called once for each event.
func TestObserver(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		var (
			mu    sync.Mutex
			seen  []outbox.TopicStatus
			swept int
			fill  []string
		)
		obs := p.observer()
		obs.Status = func(_ context.Context, s []outbox.TopicStatus) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, s...)
		}
		obs.Swept = func(_ context.Context, n int) { swept += n }
		obs.Claimed = func(_ context.Context, f outbox.Fetched) {
			if f.Got > 0 {
				fill = append(fill, fmt.Sprint(f.Got, " of ", f.Asked))
			}
		}
		p.answer = func(_ context.Context, d outbox.Delivery) error {
			if d.Attempt < 3 && d.Key == "x" {
				return errors.New("no")
			}
			return nil
		}
		enqueue(t, o, lane("t", "x", 1)...)
		enqueue(t, o, make([]outbox.Message, 0)...)
		for range 9 {
			enqueue(t, o, outbox.Message{Topic: "t"})
		}
		pass(time.Minute)
		stop := start(t, outbox.Config{Store: o, Observer: obs, PollMax: time.Minute}, outbox.Route{Sink: p, MaxInFlight: 8})
		pass(25 * time.Hour)
		stopped(t, stop)
		if len(seen) == 0 || seen[0].OldestAge < time.Minute || seen[0].Topic != "t" {
			t.Errorf("of what waited was told %+v", seen)
		}
		want(t, "number delivered", p.count("delivered"), 10)
		want(t, "number retried", p.count("retried"), 2)
		want(t, "number swept", swept, 10)
		want(t, "first claim", fill[0], "8 of 8")
	})
}

func TestConfig(t *testing.T) {
	sink := outbox.SinkFunc(func(context.Context, outbox.Delivery) error { return nil })
	for _, tt := range []struct {
		c    outbox.Config
		want []string
	}{
		{outbox.Config{}, []string{"Store is nil", "Routes is empty"}},
		{outbox.Config{Store: memory.NewOutbox(), Routes: []outbox.Route{{}, {Topic: "t", Sink: sink}, {Topic: "t", Sink: sink}}}, []string{"Sink is nil", "all topics beside others", `two routes for the topic "t"`}},
		{outbox.Config{Lease: -1, PollMin: time.Minute, PollMax: time.Second, Drain: -1, StoreTimeout: -1, StatusEvery: -1}, []string{"Lease", "PollMax", "Drain", "StoreTimeout", "StatusEvery"}},
		{outbox.Config{Routes: []outbox.Route{{MaxAttempts: -1, Backoff: -1, MaxBackoff: -2, Timeout: -1, MaxInFlight: -1, MaxBytesInFlight: 1, OnDead: 7}}}, []string{"MaxAttempts", "Backoff", "MaxBackoff", "Timeout", "MaxInFlight", "MaxBytesInFlight", "OnDead"}},
	} {
		_, err := outbox.New(tt.c)
		for _, w := range tt.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%q is not in: %v", w, err)
			}
		}
	}
}

// endless is a context without a Done channel, as context.Background is.
type endless struct {
	context.Context
	over atomic.Bool
}

func (*endless) Done() <-chan struct{} { return nil }

func (e *endless) Err() error {
	if e.over.Load() {
		return context.Canceled
	}
	return nil
}

func TestContextWithoutEnd(t *testing.T) {
	bubble(t, func(t *testing.T, o *memory.Outbox, p *post) {
		r, err := outbox.New(outbox.Config{
			Store:      struct{ outbox.Store }{o}, // whose hints would be waited for
			SweepEvery: -1, Observer: p.observer(), Routes: []outbox.Route{{Topic: "t", Sink: p}},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx := &endless{Context: t.Context()}
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		enqueue(t, o, outbox.Message{Topic: "t"})
		pass(time.Minute)
		want(t, "delivered", p.count("delivered"), 1)
		ctx.over.Store(true) // for the test's sake: it is looked at between polls
		pass(time.Minute)
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("it goes on")
		}
	})
}
