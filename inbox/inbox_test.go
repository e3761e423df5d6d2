package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/store/memory"
)

const day = 24 * time.Hour

// table is a store whose transactions can be made to fail, and the inbox on it.
type table struct {
	*memory.Inbox
	t testing.TB
	b *inbox.Inbox

	mu      sync.Mutex
	effects []string // in the order of their commits
	began   int      // transactions
	looked  int      // ids

	refuse func(ids []string) error // instead of a commit
	lose   func(ids []string) error // behind one
	down   error                    // instead of a beginning
	blind  error                    // instead of a look
}

func newTable(t testing.TB, c inbox.Config) *table {
	t.Helper()
	x := &table{Inbox: memory.NewInbox(), t: t}
	c.Store, c.Consumer = x, "billing"
	if c.RetrySpan == 0 {
		c.RetrySpan = day
	}
	b, err := inbox.New(c)
	if err != nil {
		t.Fatal(err)
	}
	x.b = b
	return x
}

func (x *table) Transact(ctx context.Context, consumer string, ids []string, work func(context.Context, []bool) error) error {
	x.began++
	if x.down != nil {
		return x.down
	}
	err := x.Inbox.Transact(ctx, consumer, ids, func(ctx context.Context, first []bool) error {
		if err := work(ctx, first); err != nil {
			return err
		}
		if x.refuse != nil {
			return x.refuse(ids)
		}
		return nil
	})
	if err == nil && x.lose != nil {
		err = x.lose(ids)
	}
	return err
}

func (x *table) Seen(ctx context.Context, consumer string, ids []string) ([]bool, error) {
	x.looked += len(ids)
	if x.blind != nil {
		return nil, x.blind
	}
	return x.Inbox.Seen(ctx, consumer, ids)
}

// effect makes an effect in the transaction of ctx.
func (x *table) effect(ctx context.Context, name string) error {
	if !memory.OnCommit(ctx, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.effects = append(x.effects, name)
	}) {
		return errors.New("there is no transaction")
	}
	return nil
}

func (x *table) want(effects ...string) {
	x.t.Helper()
	if !slices.Equal(x.effects, effects) {
		x.t.Errorf("effects %q; want %q", x.effects, effects)
	}
}

// process handles one message, whose effect has its id.
func (x *table) process(id string) (inbox.Outcome, error) {
	return x.b.Process(x.t.Context(), id, func(ctx context.Context) error { return x.effect(ctx, id) })
}

func (x *table) wantOutcome(id string, want inbox.Outcome) {
	x.t.Helper()
	if got, err := x.process(id); got != want || err != nil {
		x.t.Errorf("%s: %v, %v; want %v", id, got, err, want)
	}
}

// batch handles messages written as "lane/id" or "id". Those whose ids are in bad
// fail, those in bad with a "!" panic. It returns their results in a word each.
func (x *table) batch(messages, bad string) string {
	var all []inbox.Message
	for _, m := range strings.Fields(messages) {
		lane, id, ok := strings.Cut(m, "/")
		if !ok {
			lane, id = "", m
		}
		all = append(all, inbox.Message{ID: id, Lane: lane})
	}
	fails := strings.Fields(bad)
	var words []string
	for _, r := range x.b.ProcessBatch(x.t.Context(), all, func(ctx context.Context, i int) error {
		id := all[i].ID
		if err := x.effect(ctx, id); err != nil {
			return err
		}
		switch {
		case slices.Contains(fails, id):
			return errBad
		case slices.Contains(fails, id+"!"):
			panic("on purpose")
		}
		return nil
	}) {
		words = append(words, word(r))
	}
	return strings.Join(words, " ")
}

var errBad = errors.New("a bad message")

func word(r inbox.Result) string {
	var p *inbox.PanicError
	switch {
	case r.Err == nil:
		return r.Outcome.String()
	case r.Outcome != 0:
		return "both"
	case errors.As(r.Err, &p):
		return "panic"
	}
	for err, w := range map[error]string{
		errBad: "bad", inbox.ErrLaneFailed: "lane", inbox.ErrInProgress: "busy", inbox.ErrRolledBack: "rolled",
		inbox.ErrUnknown: "unknown", inbox.ErrFull: "full", context.Canceled: "left",
	} {
		if errors.Is(r.Err, err) {
			return w
		}
	}
	return r.Err.Error()
}

func (x *table) wantBatch(messages, bad, want string) {
	x.t.Helper()
	if got := x.batch(messages, bad); got != want {
		x.t.Errorf("%q with bad %q: %s; want %s", messages, bad, got, want)
	}
}

// Watermill lost what came again after a failure; Wolverine took a requeued failure
// for its own duplicate.
func TestFailedMessageIsHandledAgain(t *testing.T) {
	x := newTable(t, inbox.Config{Remember: 10})
	for range 3 {
		x.wantBatch("a", "a", "bad")
		x.wantBatch("a", "a!", "panic")
	}
	x.want()
	x.wantOutcome("a", inbox.OutcomeDone)
	x.wantOutcome("a", inbox.OutcomeDuplicate)
	x.want("a")
}

func TestPanicInHandler(t *testing.T) {
	x := newTable(t, inbox.Config{})
	_, err := x.b.Process(t.Context(), "a", func(ctx context.Context) error {
		_ = x.effect(ctx, "a")
		panic("on purpose")
	})
	var p *inbox.PanicError
	if !errors.As(err, &p) || p.Value != "on purpose" || !strings.Contains(string(p.Stack), "TestPanicInHandler") {
		t.Errorf("Process tells %v", err)
	}
	x.want()
	x.wantOutcome("a", inbox.OutcomeDone)
}

// Wolverine 5411: one duplicate, or one failure, took its whole batch with it.
func TestOneBadMessageDoesNotTakeItsBatchWithIt(t *testing.T) {
	for _, c := range []struct {
		messages, bad, want, effects string
		transactions                 int
	}{
		{"a b c d e f", "", "done done done done done done", "a b c d e f", 1},
		{"a b c d e f", "c", "done done bad done done done", "a b d e f", 4},
		{"a b c d e f", "a", "bad done done done done done", "b c d e f", 3},
		{"a b c d e f", "f!", "done done done done done panic", "a b c d e", 3},
		{"a b c d e f", "b e", "done bad done done bad done", "a c d f", 7},
		{"a b c", "a b c", "bad bad bad", "", 5},
		{"a", "a", "bad", "", 1},
		{"", "", "", "", 0},
	} {
		x := newTable(t, inbox.Config{})
		x.wantBatch(c.messages, c.bad, c.want)
		x.want(strings.Fields(c.effects)...)
		if x.began != c.transactions {
			t.Errorf("%q with bad %q: %d transactions; want %d", c.messages, c.bad, x.began, c.transactions)
		}
		// The next delivery finishes what was left, and nothing else.
		x.wantBatch(c.bad, "", strings.TrimSpace(strings.Repeat("done ", len(strings.Fields(strings.ReplaceAll(c.bad, "!", ""))))))
	}
	x := newTable(t, inbox.Config{})
	x.wantOutcome("b", inbox.OutcomeDone)
	x.wantBatch("a b c", "", "done duplicate done")
	x.want("b", "a", "c")
}

// Dekaf 3054: of the messages of a key 1, 2 and 3, 2 failed and 3 went on.
func TestPartialBatchFailureKeepsLaneOrder(t *testing.T) {
	x := newTable(t, inbox.Config{})
	x.wantBatch("k/1 l/1' k/2 l/2' k/3 free k/4", "2", "done done bad done lane done lane")
	x.want("1", "1'", "2'", "free")
	x.wantBatch("k/2 k/3 k/4", "", "done done done")
	x.want("1", "1'", "2'", "free", "2", "3", "4")

	// Also over the bound of a transaction, and where an id is no id.
	x = newTable(t, inbox.Config{MaxBatch: 2})
	x.wantBatch("k/1 k/2 k/3 l/1' k/4", "1", "bad lane lane done lane")
	r := x.b.ProcessBatch(t.Context(), []inbox.Message{{Lane: "m"}, {ID: "5", Lane: "m"}, {ID: "6"}}, func(context.Context, int) error { return nil })
	if r[0].Err == nil || !errors.Is(r[1].Err, inbox.ErrLaneFailed) || r[2].Err != nil {
		t.Errorf("results %v", r)
	}
}

func TestSameIDTwiceInABatch(t *testing.T) {
	x := newTable(t, inbox.Config{})
	x.wantBatch("a b a a", "b", "done bad duplicate duplicate")
	x.wantBatch("b c b", "b", "bad done bad")
	x.wantBatch("b b a c", "", "done duplicate duplicate duplicate")
	x.want("a", "c", "b")
	x.wantBatch("k/d k/e k/d k/f", "d", "bad lane bad lane")
}

// The commit is refused, or another has a message: of which, nobody says.
func TestBatchIsDividedWhereNobodySaysWhichMessageItWas(t *testing.T) {
	for _, cause := range []error{inbox.ErrRolledBack, inbox.ErrInProgress} {
		x := newTable(t, inbox.Config{})
		x.refuse = func(ids []string) error {
			if slices.Contains(ids, "bad") {
				return fmt.Errorf("wrapped: %w", cause)
			}
			return nil
		}
		w := word(inbox.Result{Err: cause})
		x.wantBatch("a b c bad k/d e f", "", "done done done "+w+" done done done")
		if x.began > 2*3+1 {
			t.Errorf("%d transactions", x.began)
		}
		x.wantBatch("k/bad k/g", "", w+" lane")
		x.refuse = nil
		x.wantBatch("a b c bad d e f g", "", "duplicate duplicate duplicate done duplicate duplicate duplicate done")
	}
}

// A store that cannot be reached is not called once for each message.
func TestUnreachableStoreFailsTheBatchAtOnce(t *testing.T) {
	x := newTable(t, inbox.Config{})
	x.down = errors.New("down")
	x.wantBatch("a b c d", "", "down down down down")
	if x.began != 1 {
		t.Errorf("%d transactions were tried", x.began)
	}
	x.down = nil
	x.wantBatch("a b c d", "", "done done done done")
}

// An answer to COMMIT is lost. The redelivery settles what it came to.
func TestAmbiguousCommitIsSettledByTheRedelivery(t *testing.T) {
	for _, remember := range []int{0, 10} {
		x := newTable(t, inbox.Config{Remember: remember})
		lost := func([]string) error { return fmt.Errorf("%w: the connection was cut", inbox.ErrUnknown) }
		x.lose = lost // it took effect
		x.wantBatch("a b", "", "unknown unknown")
		x.lose, x.refuse = nil, lost // it did not
		x.wantBatch("c d", "", "unknown unknown")
		if x.began != 2 {
			t.Errorf("%d transactions: a batch in doubt was done over", x.began)
		}
		x.refuse = nil
		x.wantBatch("a b c d", "", "duplicate duplicate done done")
		x.want("a", "b", "c", "d")
	}
}

// NServiceBus lost messages where two endpoints shared a table and a name.
func TestTwoConsumersOfOneMessageAreIndependent(t *testing.T) {
	x := newTable(t, inbox.Config{})
	other, err := inbox.New(inbox.Config{Store: x, Consumer: "shipping", RetrySpan: day})
	if err != nil {
		t.Fatal(err)
	}
	for want := inbox.OutcomeDone; want <= inbox.OutcomeDuplicate; want++ {
		x.wantOutcome("m", want)
		if got, err := other.Process(t.Context(), "m", func(ctx context.Context) error { return x.effect(ctx, "shipped") }); got != want || err != nil {
			t.Errorf("shipping: %v, %v; want %v", got, err, want)
		}
	}
	x.want("m", "shipped")
}

func TestWhoHasLeftIsNotServed(t *testing.T) {
	x := newTable(t, inbox.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	r := x.b.ProcessBatch(ctx, []inbox.Message{{ID: "a"}, {ID: "b"}, {ID: "c"}}, func(ctx context.Context, i int) error {
		if i == 1 {
			cancel()
		}
		return errors.Join(ctx.Err(), x.effect(ctx, "e"))
	})
	for i, r := range r {
		if word(r) != "left" {
			t.Errorf("message %d: %v", i, r)
		}
	}
	if x.began != 1 {
		t.Errorf("%d transactions", x.began)
	}
	x.want()
	x.wantBatch("a b c", "", "done done done")
}

func TestSlowHandlerIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable(t, inbox.Config{Timeout: time.Minute})
		start := time.Now()
		_, err := x.b.Process(t.Context(), "a", func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Minute {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		x.wantOutcome("a", inbox.OutcomeDone)
	})
}

// The filter spares transactions, and decides nothing: what it does not know, or
// takes for known, or cannot look up, comes out the same.
func TestFilterOnlySkipsAPreRead(t *testing.T) {
	x := newTable(t, inbox.Config{Remember: 100})
	other := newTable(t, inbox.Config{})
	x.wantOutcome("a", inbox.OutcomeDone)
	if x.began != 1 || x.looked != 0 {
		t.Errorf("for a new message %d transactions, %d looks", x.began, x.looked)
	}
	x.wantOutcome("a", inbox.OutcomeDuplicate)
	if x.began != 1 || x.looked != 1 {
		t.Errorf("for a duplicate that is remembered %d transactions, %d looks", x.began, x.looked)
	}
	// Another process has handled it: the filter knows nothing of that.
	other.Inbox = x.Inbox
	other.wantOutcome("b", inbox.OutcomeDone)
	x.wantOutcome("b", inbox.OutcomeDuplicate)
	// The filter says yes, the store no: it was swept.
	if _, err := x.Sweep(t.Context(), "billing", -time.Hour, 10); err != nil {
		t.Fatal(err)
	}
	x.wantOutcome("a", inbox.OutcomeDone)
	x.wantBatch("a c b a", "", "duplicate done done duplicate")
	x.blind = errors.New("blind")
	x.wantBatch("a d", "", "duplicate done")
	x.want("a", "a", "c", "b", "d")
}

func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		swept := make(chan inbox.Swept)
		x := newTable(t, inbox.Config{MaxRows: 3, RetrySpan: time.Hour, OnSweep: func(s inbox.Swept) { swept <- s }})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { x.b.Run(ctx) })
		want := func(removed, rows int, full bool) {
			t.Helper()
			if s := <-swept; s.Removed != removed || s.Rows != rows || s.Full != full || s.Err != nil {
				t.Errorf("swept %+v; want %d removed, %d left, full %v", s, removed, rows, full)
			}
		}
		want(0, 0, false)
		x.wantBatch("a b c d", "", "done done done done")
		want(0, 3, true)
		x.wantBatch("a e k/f k/b k/g", "", "duplicate full full duplicate full")
		x.blind = errors.New("blind")
		x.wantBatch("a e", "", "full full")
		x.blind = nil
		for done := false; !done; { // each round takes what is past its retention
			s := <-swept
			done = !s.Full
		}
		x.wantBatch("a e", "", "done done")
		cancel()
		wg.Wait()
	})
}

// failing is a store whose sweeps and counts fail at times.
type failing struct {
	*memory.Inbox
	sweeps, counts error
}

func (f *failing) Sweep(ctx context.Context, consumer string, retention time.Duration, limit int) (int, error) {
	n, err := f.Inbox.Sweep(ctx, consumer, retention, limit)
	return n, errors.Join(err, f.sweeps)
}

func (f *failing) Count(ctx context.Context, consumer string, limit int) (int, error) {
	time.Sleep(time.Hour) // so it is not asked all the time
	n, err := f.Inbox.Count(ctx, consumer, limit)
	return n, errors.Join(err, f.counts)
}

func TestRunGoesOnAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{Inbox: memory.NewInbox(), sweeps: errors.New("sweep"), counts: errors.New("count")}
		var rounds []inbox.Swept
		ctx, cancel := context.WithCancel(t.Context())
		b, err := inbox.New(inbox.Config{Store: f, Consumer: "c", RetrySpan: day, OnSweep: func(s inbox.Swept) {
			rounds = append(rounds, s)
			f.sweeps, f.counts = nil, nil
			if len(rounds) == 4 {
				cancel()
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2500 {
			if _, err := b.Process(ctx, fmt.Sprint(i), func(context.Context) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		time.Sleep(2*day - 5*time.Hour)
		b.Run(ctx)
		if r := rounds[0]; r.Err == nil || !strings.Contains(r.Err.Error(), "sweep") || !strings.Contains(r.Err.Error(), "count") {
			t.Errorf("first round: %+v", r)
		}
		// An hour for each count, and nine until the next.
		if r := rounds[1]; r.Err != nil || r.Removed != 2500 || r.Rows != 0 || time.Since(start) < 2*day+25*time.Hour {
			t.Errorf("second round: %+v; four took %v", r, time.Since(start))
		}
	})
}

func TestConfig(t *testing.T) {
	_, err := inbox.New(inbox.Config{
		Consumer: strings.Repeat("x", 256), Retention: -1, MaxBatch: -1, Remember: -1,
	})
	for _, field := range []string{"consumer", "Store", "RetrySpan", "MaxBatch", "Remember"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("nothing about %s in %v", field, err)
		}
	}
	good := inbox.Config{Store: memory.NewInbox(), Consumer: "c", RetrySpan: day}
	for _, c := range []struct {
		change func(*inbox.Config)
		ok     bool
	}{
		{func(*inbox.Config) {}, true},
		{func(c *inbox.Config) { c.Retention = day }, true},
		{func(c *inbox.Config) { c.Retention = day - 1 }, false}, // shorter than the sender tries
		{func(c *inbox.Config) { c.RetrySpan = 1<<63 - 1 }, false},
		{func(c *inbox.Config) { c.RetrySpan = 1 << 62 }, true},
		{func(c *inbox.Config) { c.Consumer = "a\x00b" }, false},
		{func(c *inbox.Config) { c.Consumer = "\xff" }, false},
	} {
		x := good
		c.change(&x)
		if _, err := inbox.New(x); (err == nil) != c.ok {
			t.Errorf("%+v: %v", x, err)
		}
	}
}

func TestIDs(t *testing.T) {
	x := newTable(t, inbox.Config{})
	for _, id := range []string{"", strings.Repeat("x", 256), "a\x00", "\xff", "secret" + strings.Repeat("x", 300)} {
		_, err := x.process(id)
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%.20q: %v", id, err)
		}
	}
	if x.began != 0 {
		t.Error("a transaction was begun")
	}
	x.wantOutcome(strings.Repeat("x", 255), inbox.OutcomeDone)
}

func TestSchedule(t *testing.T) {
	minute := time.Minute
	for _, c := range []struct {
		s    inbox.Schedule
		want time.Duration // 0 is an error
	}{
		{inbox.Schedule{}, 0},
		{inbox.Schedule{MaxDeliver: 5}, 0},
		{inbox.Schedule{AckWait: minute}, 0},
		{inbox.Schedule{MaxDeliver: -1, AckWait: minute, KeptFor: day}, 0},
		{inbox.Schedule{MaxDeliver: 5, Backoff: []time.Duration{-1}}, 0},
		{inbox.Schedule{MaxDeliver: 1, AckWait: minute}, minute},
		{inbox.Schedule{MaxDeliver: 5, AckWait: minute}, 5 * minute},
		{inbox.Schedule{MaxDeliver: 2, AckWait: minute, Backoff: []time.Duration{minute, day}}, 3 * minute},
		{inbox.Schedule{MaxDeliver: 4, AckWait: minute, Backoff: []time.Duration{minute, 2 * minute}}, (2 + 3 + 3 + 1) * minute},
		{inbox.Schedule{AckWait: minute, KeptFor: day}, day},
		{inbox.Schedule{MaxDeliver: 5, AckWait: minute, KeptFor: day}, 5 * minute},
		{inbox.Schedule{MaxDeliver: 5, AckWait: minute, KeptFor: day, ReadAgain: true}, day},
		{inbox.Schedule{MaxDeliver: 5, AckWait: minute, ReadAgain: true}, 0},
		{inbox.Schedule{MaxDeliver: 5000, AckWait: minute, KeptFor: day}, day},
		{inbox.Schedule{MaxDeliver: 1 << 60, AckWait: 8}, 0},
		{inbox.Schedule{MaxDeliver: 1 << 60, AckWait: minute, KeptFor: day}, day},
		{inbox.Schedule{MaxDeliver: 3, AckWait: 1 << 62}, 0},
	} {
		if got, err := c.s.Span(); got != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%+v: %v, %v; want %v", c.s, got, err, c.want)
		}
	}
}

// Random batches of several consumers in several goroutines, whose handlers and
// transactions fail at random, until all is settled: every message has one effect,
// and a lane's effects are in order.
func TestRandomBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTable(t, inbox.Config{})
		fail := func(kind error) error {
			if rand.IntN(8) == 0 {
				return kind
			}
			return nil
		}
		x.refuse = func([]string) error { return fail(inbox.ErrRolledBack) }
		var (
			wg sync.WaitGroup
			mu sync.Mutex // for settled
		)
		const messages = 400
		settled := make([]bool, messages) // as told to one of them
		for range 4 {
			b, err := inbox.New(inbox.Config{Store: uncounted{x}, Consumer: "billing", RetrySpan: day, Remember: 64, MaxBatch: 7})
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				queue := make([]int, messages)
				for i := range queue {
					queue[i] = i
				}
				for len(queue) > 0 {
					n := min(len(queue), 1+rand.IntN(20))
					batch := make([]inbox.Message, n)
					for i, m := range queue[:n] {
						batch[i] = inbox.Message{ID: fmt.Sprint(m), Lane: "lane"}
					}
					rest := []int{}
					for i, r := range b.ProcessBatch(t.Context(), batch, func(ctx context.Context, i int) error {
						if err := x.effect(ctx, batch[i].ID); err != nil {
							return err
						}
						time.Sleep(time.Millisecond)
						return fail(errBad)
					}) {
						if r.Err != nil {
							rest = append(rest, queue[i])
							continue
						}
						mu.Lock()
						settled[queue[i]] = true
						mu.Unlock()
					}
					queue = append(rest, queue[n:]...)
				}
			})
		}
		wg.Wait()
		for i, e := range x.effects {
			if e != fmt.Sprint(i) {
				t.Fatalf("effect %d is %s", i, e)
			}
		}
		if len(x.effects) != messages || slices.Contains(settled, false) {
			t.Errorf("%d effects of %d messages", len(x.effects), messages)
		}
	})
}

// uncounted is a table for several goroutines.
type uncounted struct{ *table }

func (u uncounted) Transact(ctx context.Context, consumer string, ids []string, work func(context.Context, []bool) error) error {
	return u.Inbox.Transact(ctx, consumer, ids, func(ctx context.Context, first []bool) error {
		if err := work(ctx, first); err != nil {
			return err
		}
		return u.refuse(ids)
	})
}

func (u uncounted) Seen(ctx context.Context, consumer string, ids []string) ([]bool, error) {
	return u.Inbox.Seen(ctx, consumer, ids)
}
