// Package jobstest is the contract of a store's outbox and inbox for jobs in
// executable form.
//
//	func TestJobs(t *testing.T) {
//		jobstest.Run(t, jobstest.Config{New: newHarness})
//	}
package jobstest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
)

// Store is what the suite needs of an outbox.
type Store interface {
	jobs.Store
	outbox.Admin
}

// Harness is a database set up for one rule.
type Harness struct {
	// Store and Inbox are fresh, empty, and in one database.
	Store Store
	Inbox inbox.Store
	// Enqueue adds messages in a transaction of their own, and EnqueueInside in the
	// one that ctx carries.
	Enqueue, EnqueueInside func(ctx context.Context, messages ...outbox.Message) error
	// Effect counts an effect of that name in the transaction that ctx carries.
	Effect func(ctx context.Context, name string) error
	// Effects returns how often each effect has been committed.
	Effects func() map[string]int
	// Advance moves the store's time forward.
	Advance func(d time.Duration)
	// Exclusive says that a transaction keeps all others from writing, renewals of
	// leases too, until it ends.
	Exclusive bool
	// Snapshot says that a transaction in whose time the lease was renewed cannot
	// settle its job, and is rolled back; nor can one whose job has a key.
	Snapshot bool
}

// Config says how to test a store.
type Config struct {
	// New returns a harness; it registers its clean-up with t.
	New func(t testing.TB) Harness
	// Virtual runs each rule in a bubble of package testing/synctest: for stores
	// whose clock is time.Now and that do no I/O.
	Virtual bool
}

// Run tests a store against every rule, each as a subtest.
func Run(t *testing.T, c Config) {
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			check := func(t *testing.T) { r.check(&bench{TB: t, Harness: c.New(t)}) }
			if c.Virtual {
				synctest.Test(t, check)
			} else {
				check(t)
			}
		})
	}
}

var rules = []struct {
	name  string
	check func(*bench)
}{
	{"a-settlement-inside-is-its-transactions", settledInside},
	{"a-stale-claim-settles-nothing-inside", staleInside},
	{"nobody-claims-what-is-being-settled", settlingIsHeld},
	{"of-a-rescue-and-a-completion-one-takes-place", rescueOrComplete},
	{"a-job-is-done-with-its-effect", doneWithEffect},
	{"a-failure-or-panic-leaves-nothing-and-is-tried-again", failures},
	{"a-job-longer-than-its-lease-runs-once", longerThanLease},
	{"a-lease-renewed-inside-leaves-one-effect", renewedInside},
	{"a-paused-worker-cannot-commit-before-the-next-or-after", pausedWorker},
	{"who-lost-a-job-is-told-and-commits-nothing", cancelledByPerson},
	{"revoked-authority-is-refused-and-a-silent-judge-is-asked-again", authority},
	{"a-job-is-given-up-with-the-reason", givenUp},
	{"a-job-runs-again-by-decision-and-a-done-one-does-nothing", runAgain},
	{"an-id-is-done-once", idDoneOnce},
	{"a-queue-has-so-many-workers-and-holds-up-no-other", bounded},
	{"a-worker-that-is-stopped-finishes-or-gives-back", drained},
}

type bench struct {
	testing.TB
	Harness
}

const (
	lease    = 300 * time.Millisecond // of what is to lapse
	patience = time.Minute
)

func (b *bench) enqueue(all ...jobs.Job) {
	b.Helper()
	for _, j := range all {
		if j.Kind == "" {
			j.Kind = "work"
		}
		if j.Queue == "" {
			j.Queue = "q"
		}
		m, err := j.Message()
		if err == nil {
			err = b.Enqueue(b.Context(), m)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

func (b *bench) find(id string) outbox.Entry {
	b.Helper()
	e, err := b.Store.Find(b.Context(), id)
	if err != nil {
		b.Fatal(err)
	}
	return e
}

func (b *bench) wantEffects(name string, n int) {
	b.Helper()
	if got := b.Effects()[name]; got != n {
		b.Errorf("effect %s was committed %d times; want %d", name, got, n)
	}
}

func hear[T any](b *bench, what string, c <-chan T) (v T) {
	b.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		b.Fatalf("waited in vain for %s", what)
	}
	return v
}

// worker is a worker and what it tells.
type worker struct {
	b         *bench
	config    jobs.Config
	delivered chan string
	retried   chan error
	dead      chan error
	lost      chan error
	renewed   chan struct{}
	stop      func()
}

// watched tells of renewals, and can be kept from them.
type watched struct {
	Store
	w   *worker
	cut atomic.Bool
}

func (s *watched) Renew(ctx context.Context, lease time.Duration, refs []outbox.Ref) ([]outbox.Ref, error) {
	if s.cut.Load() {
		return nil, errors.New("cut off")
	}
	lost, err := s.Store.Renew(ctx, lease, refs)
	if err == nil && len(refs) > 0 {
		select {
		case s.w.renewed <- struct{}{}:
		default:
		}
	}
	return lost, err
}

// worker makes a worker of two queues, q and other, that runs when start is called.
func (b *bench) worker(handle func(ctx context.Context, j jobs.Job) error) *worker {
	w := &worker{
		b: b, delivered: make(chan string, 1000), retried: make(chan error, 1000), dead: make(chan error, 1000),
		lost: make(chan error, 1000), renewed: make(chan struct{}, 1000),
	}
	queue := jobs.QueueConfig{Name: "q", Backoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond}
	other := queue
	other.Name = "other"
	w.config = jobs.Config{
		Store: &watched{Store: b.Store, w: w}, Inbox: b.Inbox, Authorize: jobs.Trusted, Queues: []jobs.QueueConfig{queue, other},
		Handlers: map[string]jobs.Handler{"work": {Handle: handle}},
		Relay: outbox.Config{
			Lease: 3 * time.Second, PollMin: time.Millisecond, PollMax: 20 * time.Millisecond,
			Observer: &outbox.Observer{
				Delivered: func(_ context.Context, a outbox.Attempted) { w.delivered <- a.ID },
				Retried:   func(_ context.Context, a outbox.Attempted) { w.retried <- a.Err },
				Dead:      func(_ context.Context, a outbox.Attempted) { w.dead <- a.Err },
				LeaseLost: func(_ context.Context, a outbox.Attempted) { w.lost <- a.Err },
			},
		},
	}
	return w
}

func (w *worker) start() *worker {
	w.b.Helper()
	worker, err := jobs.New(w.config)
	if err != nil {
		w.b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.b.Context())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.b.Error(err)
		}
	})
	w.b.Cleanup(w.stop)
	return w
}

func (b *bench) claim(lease time.Duration) outbox.Claimed {
	b.Helper()
	claimed, _, err := b.Store.Exchange(b.Context(), nil, outbox.Claim{Max: 1, Lease: lease, Suspect: true})
	if err != nil || len(claimed) != 1 {
		b.Fatalf("claimed %+v, %v", claimed, err)
	}
	return claimed[0]
}

var errFailed = errors.New("failed on purpose")

// settle settles a claim in a transaction with an effect, which fails if fail is set.
func (b *bench) settle(m outbox.Claimed, id string, fail error) error {
	return b.Inbox.Transact(b.Context(), "c", []string{id}, func(ctx context.Context, _ []bool) error {
		if err := b.Effect(ctx, m.ID); err != nil {
			return err
		}
		if err := b.Store.SettleTx(ctx, m.Ref); err != nil {
			return err
		}
		return fail
	})
}

func settledInside(b *bench) {
	key := "k"
	if b.Snapshot {
		key = ""
	}
	b.enqueue(jobs.Job{ID: "a", Key: key}, jobs.Job{ID: "next", Key: key})
	m := b.claim(time.Minute)
	if err := b.settle(m, "a1", errFailed); !errors.Is(err, errFailed) {
		b.Error(err)
	}
	if e := b.find("a"); e.State != outbox.StatePending || e.LeaseLeft == 0 {
		b.Errorf("after a rollback it is %+v", e)
	}
	b.wantEffects("a", 0)
	if err := b.settle(m, "a2", nil); err != nil {
		b.Error(err)
	}
	if e := b.find("a"); e.State != outbox.StateDelivered || e.SettledAt.IsZero() || e.Attempts != 1 {
		b.Errorf("after a commit it is %+v", e)
	}
	b.wantEffects("a", 1)
	if err := b.settle(m, "a3", nil); !errors.Is(err, outbox.ErrLeaseLost) {
		b.Errorf("settled twice: %v", err)
	}
	if err := b.Store.SettleTx(b.Context(), m.Ref); err == nil {
		b.Error("settled without a transaction")
	}
	b.wantEffects("a", 1)
	if next := b.claim(time.Minute); next.ID != "next" {
		b.Errorf("the lane goes on with %s", next.ID)
	}
}

func staleInside(b *bench) {
	b.enqueue(jobs.Job{ID: "a"})
	stale := b.claim(lease)
	b.Advance(2 * lease)
	taken := b.claim(time.Minute)
	// The one that took over has not committed yet.
	if err := b.settle(stale, "1", nil); !errors.Is(err, outbox.ErrLeaseLost) {
		b.Errorf("a stale claim: %v", err)
	}
	b.wantEffects("a", 0)
	if err := b.settle(taken, "2", nil); err != nil {
		b.Error(err)
	}
	if err := b.settle(stale, "3", nil); !errors.Is(err, outbox.ErrLeaseLost) {
		b.Errorf("a stale claim after the end: %v", err)
	}
	b.wantEffects("a", 1)
}

func settlingIsHeld(b *bench) {
	b.enqueue(jobs.Job{ID: "a"})
	m := b.claim(lease)
	b.Advance(2 * lease)
	err := b.Inbox.Transact(b.Context(), "c", []string{"1"}, func(ctx context.Context, _ []bool) error {
		if err := b.Store.SettleTx(ctx, m.Ref); err != nil {
			return err
		}
		short, cancel := context.WithTimeout(b.Context(), lease) // which ends the wait for a store that is Exclusive
		defer cancel()
		if claimed, _, _ := b.Store.Exchange(short, nil, outbox.Claim{Max: 1, Lease: time.Minute, Suspect: true}); len(claimed) > 0 {
			b.Error("it was claimed while it was being settled")
		}
		return b.Effect(ctx, "a")
	})
	if err != nil {
		b.Error(err)
	}
	b.wantEffects("a", 1)
	if e := b.find("a"); e.State != outbox.StateDelivered {
		b.Errorf("it is %+v", e)
	}
}

// rescueOrComplete has many complete what many rescue. Each attempt has an id of its
// own, so that nothing but the claim decides.
func rescueOrComplete(b *bench) {
	const n, rescuers = 30, 6
	for i := range n {
		b.enqueue(jobs.Job{ID: fmt.Sprint("m", i)})
	}
	var done, attempts, stale atomic.Int64
	var wg sync.WaitGroup
	moving := make(chan struct{}, 1) // one moves the time on; in a bubble, nobody could while others wait for a mutex
	advance := func() {
		moving <- struct{}{}
		b.Advance(2 * lease)
		<-moving
	}
	for range rescuers {
		wg.Go(func() {
			for done.Load() < n && b.Context().Err() == nil {
				claimed, _, err := b.Store.Exchange(b.Context(), nil, outbox.Claim{Max: 4, Lease: lease, Suspect: true})
				if err != nil {
					b.Error(err)
					return
				}
				if len(claimed) == 0 {
					advance()
				}
				var under sync.WaitGroup
				for _, m := range claimed {
					late := rand.IntN(2) == 0
					under.Go(func() {
						if late { // then others rescue it, while it is being settled
							advance()
						}
						switch err := b.settle(m, fmt.Sprint("attempt", attempts.Add(1)), nil); {
						case err == nil:
							done.Add(1)
						case errors.Is(err, outbox.ErrLeaseLost):
							stale.Add(1)
						default:
							b.Log(err) // busy
						}
					})
				}
				under.Wait()
			}
		})
	}
	wg.Wait()
	for i := range n {
		b.wantEffects(fmt.Sprint("m", i), 1)
	}
	b.Logf("%d attempts, %d stale", attempts.Load(), stale.Load())
}

func doneWithEffect(b *bench) {
	b.enqueue(jobs.Job{ID: "a", Args: []byte("args"), Authority: jobs.Authority{Tenant: "t", Actor: "ada", Permissions: []string{"read", "pay"}}})
	w := b.worker(nil)
	w.config.Handlers["work"] = jobs.Handler{
		Prepare: func(_ context.Context, j jobs.Job) (any, error) { return "prepared " + string(j.Args), nil },
		Handle: func(ctx context.Context, j jobs.Job) error {
			if j.Prepared != "prepared args" || j.Attempt != 1 || j.EnqueuedAt.IsZero() || j.Authority.Actor != "ada" || len(j.Authority.Permissions) != 2 {
				b.Errorf("the job is %+v", j)
			}
			m, err := jobs.Job{ID: "next", Queue: "other", Kind: "work"}.Message()
			if j.Queue == "q" {
				err = errors.Join(err, b.EnqueueInside(ctx, m))
			}
			return errors.Join(err, b.Effect(ctx, j.ID))
		},
	}
	w.config.Handlers["more"] = w.config.Handlers["work"]
	w.config.Queues = w.config.Queues[:1]
	w.start()
	if id := hear(b, "the job", w.delivered); id != "a" {
		b.Errorf("%s is done", id)
	}
	if e := b.find("a"); e.State != outbox.StateDelivered {
		b.Errorf("it is %+v", e)
	}
	b.wantEffects("a", 1)
	if e := b.find("next"); e.Origin != "a" {
		b.Errorf("what was enqueued for it is %+v", e)
	}
}

func failures(b *bench) {
	b.enqueue(jobs.Job{ID: "a"})
	w := b.worker(func(ctx context.Context, j jobs.Job) error {
		if err := b.Effect(ctx, "a"); err != nil {
			return err
		}
		switch j.Attempt {
		case 1:
			return errFailed
		case 2:
			panic("on purpose")
		}
		return nil
	}).start()
	if err := hear(b, "a failure", w.retried); !errors.Is(err, errFailed) {
		b.Error(err)
	}
	if _, ok := errors.AsType[*jobs.PanicError](hear(b, "a panic", w.retried)); !ok {
		b.Error("no panic was told")
	}
	hear(b, "the job", w.delivered)
	b.wantEffects("a", 1)
}

func longerThanLease(b *bench) {
	b.enqueue(jobs.Job{ID: "a"})
	var runs atomic.Int64
	workers := make([]*worker, 3)
	long := func(w **worker) error {
		runs.Add(1)
		for range 6 { // twice the lease
			hear(b, "a renewal", (*w).renewed)
		}
		return nil
	}
	for i := range workers {
		w := &workers[i]
		*w = b.worker(func(ctx context.Context, j jobs.Job) error {
			if b.Exclusive || b.Snapshot {
				return b.Effect(ctx, j.ID)
			}
			return errors.Join(long(w), b.Effect(ctx, j.ID))
		})
		if b.Exclusive || b.Snapshot { // what takes long is not for the transaction
			h := (*w).config.Handlers["work"]
			h.Prepare = func(context.Context, jobs.Job) (any, error) { return nil, long(w) }
			(*w).config.Handlers["work"] = h
		}
		(*w).config.Relay.Lease = lease
	}
	for _, w := range workers {
		w.start()
	}
	select {
	case <-workers[0].delivered:
	case <-workers[1].delivered:
	case <-workers[2].delivered:
	case <-time.After(patience):
		b.Fatal("waited in vain for the job")
	}
	b.wantEffects("a", 1)
	if n := runs.Load(); n != 1 {
		b.Errorf("it ran %d times", n)
	}
}

// renewedInside has the lease renewed in the time of the transaction, which fails
// where that is what a snapshot says.
func renewedInside(b *bench) {
	if b.Exclusive {
		return // nobody renews
	}
	b.enqueue(jobs.Job{ID: "a"})
	var w *worker
	w = b.worker(func(ctx context.Context, j jobs.Job) error {
		if err := b.Effect(ctx, "a"); err != nil {
			return err
		}
		if j.Attempt == 1 {
			for len(w.renewed) > 0 { // before
				<-w.renewed
			}
			for range 2 { // of which one begins now, at the earliest
				hear(b, "a renewal", w.renewed)
			}
		}
		return nil
	})
	w.config.Relay.Lease = lease
	w.start()
	if b.Snapshot {
		if err := hear(b, "a failure", w.retried); err == nil {
			b.Error("no error is told")
		}
	}
	hear(b, "the job", w.delivered)
	b.wantEffects("a", 1)
	if e := b.find("a"); e.State != outbox.StateDelivered || b.Snapshot != (e.Attempts > 1) {
		b.Errorf("it is %+v", e)
	}
}

// pausedWorker has a worker that hears of nothing, and whose handler goes on whatever
// its context says, for as long as the next one needs to take over and to commit.
func pausedWorker(b *bench) {
	for _, when := range []string{"before", "after", "inside"} {
		if when == "inside" && b.Exclusive {
			continue // nobody could take over
		}
		b.enqueue(jobs.Job{ID: when})
		paused, resumed, taken, finish := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
		first := b.worker(nil)
		first.config.Relay.Lease = lease
		first.config.Handlers["work"] = jobs.Handler{
			Prepare: func(context.Context, jobs.Job) (any, error) {
				first.config.Store.(*watched).cut.Store(true)
				if when != "inside" {
					close(paused)
					<-resumed
				}
				return nil, nil
			},
			Handle: func(ctx context.Context, j jobs.Job) error {
				err := b.Effect(context.WithoutCancel(ctx), j.ID+" by the first")
				if when == "inside" {
					close(paused)
					<-resumed
				}
				return err
			},
		}
		first.start()
		hear(b, "the first", paused)
		second := b.worker(nil)
		second.config.Handlers["work"] = jobs.Handler{
			Prepare: func(context.Context, jobs.Job) (any, error) {
				close(taken)
				<-finish
				return nil, nil
			},
			Handle: func(ctx context.Context, j jobs.Job) error { return b.Effect(ctx, j.ID) },
		}
		second.start()
		hear(b, "the second", taken)
		if when == "after" {
			close(finish)
			hear(b, "the job", second.delivered)
		}
		close(resumed)
		hear(b, "the loss", first.lost)
		first.stop()
		if when != "after" {
			b.wantEffects(when, 0)
			close(finish)
			hear(b, "the job", second.delivered)
		}
		second.stop()
		b.wantEffects(when, 1)
		b.wantEffects(when+" by the first", 0)
	}
}
