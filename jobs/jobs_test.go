package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/recorder"
	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/jobs/jobstest"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/memory"
)

func harness(testing.TB) jobstest.Harness {
	o, in := memory.NewOutbox(), memory.NewInbox()
	e := &recorder.Effects{OnCommit: memory.OnCommit}
	return jobstest.Harness{
		Store: o, Inbox: in, Enqueue: o.Enqueue, Effect: e.Effect, Effects: e.Effects, Advance: time.Sleep,
		EnqueueInside: func(ctx context.Context, m ...outbox.Message) error {
			if !memory.OnCommit(ctx, func() { _ = o.Enqueue(context.WithoutCancel(ctx), m...) }) {
				return errors.New("no transaction")
			}
			return nil
		},
	}
}

func TestJobs(t *testing.T) {
	jobstest.Run(t, jobstest.Config{New: harness, Virtual: true})
}

// doubtful is an inbox whose first commit gets lost, or its answer does.
type doubtful struct {
	inbox.Store
	commits bool
	once    sync.Once
}

func (d *doubtful) Transact(ctx context.Context, consumer string, ids []string, work func(context.Context, []bool) error) (err error) {
	doubt := false
	d.once.Do(func() { doubt = true })
	err = d.Store.Transact(ctx, consumer, ids, func(ctx context.Context, first []bool) error {
		if err := work(ctx, first); err != nil || !doubt || d.commits {
			return err
		}
		return inbox.ErrUnknown
	})
	if doubt && err == nil {
		err = inbox.ErrUnknown
	}
	return err
}

// run runs jobs of queue q until every one of n is done, and returns the order in
// which handle was called.
func run(t *testing.T, h jobstest.Harness, n int, handle func(ctx context.Context, j jobs.Job) error) (ran []string) {
	t.Helper()
	var mu sync.Mutex
	ctx, stop := context.WithCancel(t.Context())
	w, err := jobs.New(jobs.Config{
		Store: h.Store, Inbox: h.Inbox, Authorize: jobs.Trusted,
		Queues: []jobs.QueueConfig{{Name: "q"}},
		Handlers: map[string]jobs.Handler{"work": {Handle: func(ctx context.Context, j jobs.Job) error {
			mu.Lock()
			ran = append(ran, j.ID)
			mu.Unlock()
			return handle(ctx, j)
		}}},
		Relay: outbox.Config{Observer: &outbox.Observer{Status: func(ctx context.Context, all []outbox.TopicStatus) {
			if done, err := h.Store.List(ctx, outbox.Filter{State: outbox.StateDelivered}); err != nil || len(done) == n {
				stop()
			}
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(ctx); err != nil {
		t.Error(err)
	}
	return ran
}

func enqueue(t *testing.T, h jobstest.Harness, all ...jobs.Job) {
	t.Helper()
	for _, j := range all {
		j.Queue, j.Kind = "q", "work"
		m, err := j.Message()
		if err == nil {
			err = h.Enqueue(t.Context(), m)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestCommitOfWhichNobodyKnows(t *testing.T) {
	for commits, runs := range map[bool]int{true: 1, false: 2} {
		synctest.Test(t, func(t *testing.T) {
			h := harness(t)
			h.Inbox = &doubtful{Store: h.Inbox, commits: commits}
			enqueue(t, h, jobs.Job{ID: "a"})
			ran := run(t, h, 1, func(ctx context.Context, j jobs.Job) error {
				if age := time.Since(j.EnqueuedAt); age > 5*time.Second {
					t.Errorf("attempt %d is %v after the first", j.Attempt, age) // and waited for the lease
				}
				return h.Effect(ctx, j.ID)
			})
			if len(ran) != runs || h.Effects()["a"] != 1 {
				t.Errorf("with a commit: %v: it ran %d times and had %d effects", commits, len(ran), h.Effects()["a"])
			}
		})
	}
}

func TestJobsWithAKeyKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := harness(t)
		for i := range 4 {
			enqueue(t, h, jobs.Job{ID: fmt.Sprint("k", i), Key: "k"})
		}
		ran := run(t, h, 4, func(_ context.Context, j jobs.Job) error {
			if j.ID == "k1" && j.Attempt < 4 {
				return errors.New("not yet")
			}
			return nil
		})
		if got := fmt.Sprint(ran); got != "[k0 k1 k1 k1 k1 k2 k3]" {
			t.Errorf("they ran in the order %s", got)
		}
	})
}

func TestJobsAreNotBeforeTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := harness(t)
		at := time.Now().Add(36 * time.Hour)
		enqueue(t, h, jobs.Job{ID: "a", NotBefore: at})
		run(t, h, 1, func(_ context.Context, j jobs.Job) error {
			if late := time.Since(at); late < 0 || late > 2*time.Second || !j.NotBefore.Equal(at) {
				t.Errorf("it ran %v after its time", late)
			}
			return nil
		})
	})
}

// A handler that takes no notice of its context ends with it all the same: what it did
// is rolled back.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := harness(t)
		enqueue(t, h, jobs.Job{ID: "a"})
		ran := run(t, h, 1, func(ctx context.Context, j jobs.Job) error {
			if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > time.Minute {
				t.Errorf("the deadline is %v", deadline)
			}
			if j.Attempt == 1 {
				time.Sleep(2 * time.Minute) // for longer than its lease too, which is renewed
			}
			return h.Effect(ctx, j.ID)
		})
		if len(ran) != 2 || h.Effects()["a"] != 1 {
			t.Errorf("it ran %d times and had %d effects", len(ran), h.Effects()["a"])
		}
	})
}

func TestJobAsMessage(t *testing.T) {
	want := jobs.Job{
		ID: "a", Queue: "q", Kind: "k", Args: []byte("args"), Key: "lane", NotBefore: time.Unix(1, 0),
		Authority: jobs.Authority{Tenant: "t", Actor: "a", Permissions: []string{"p", "q,r"}},
	}
	m, err := want.Message()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := jobs.FromMessage(m); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("there and back it is %+v, %v", got, err)
	}
	if m, err := (jobs.Job{Queue: "q", Kind: "k"}).Message(); err != nil || m.ID == "" || len(m.Headers) != 0 {
		t.Errorf("the least job is %+v, %v", m, err)
	}
	for _, wrong := range []jobs.Job{{Queue: "q"}, {Kind: "k"}, {Queue: "q", Kind: "k", ID: "no id"}, {Queue: "q", Kind: "k", Args: make([]byte, outbox.MaxPayload+1)}} {
		if _, err := wrong.Message(); err == nil {
			t.Errorf("%.20v is a message", wrong)
		}
	}
	for _, wrong := range []outbox.Message{{Topic: "q", Type: "k"}, {Topic: "job:q"}, {Topic: "job:q", Type: "k", Headers: map[string]string{"job-authority": "mine"}}} {
		if _, err := jobs.FromMessage(wrong); err == nil {
			t.Errorf("%v is a job", wrong)
		}
	}
}

func TestConfig(t *testing.T) {
	h := harness(t)
	nothing := func(context.Context, jobs.Job) error { return nil }
	good := func() jobs.Config {
		return jobs.Config{
			Store: h.Store, Inbox: h.Inbox, Authorize: jobs.Trusted, Queues: []jobs.QueueConfig{{Name: "q"}},
			Handlers: map[string]jobs.Handler{"work": {Handle: nothing}},
		}
	}
	if _, err := jobs.New(good()); err != nil {
		t.Error(err)
	}
	for want, edit := range map[string]func(*jobs.Config){
		"Authorize":               func(c *jobs.Config) { c.Authorize = nil },
		"Handlers is empty":       func(c *jobs.Config) { c.Handlers = nil },
		"does nothing":            func(c *jobs.Config) { c.Handlers = map[string]jobs.Handler{"work": {}} },
		"Store is nil":            func(c *jobs.Config) { c.Store = nil },
		"field Inbox":             func(c *jobs.Config) { c.Inbox = nil },
		"Routes is empty":         func(c *jobs.Config) { c.Queues = nil },
		"without a name":          func(c *jobs.Config) { c.Queues[0].Name = "" },
		"two routes":              func(c *jobs.Config) { c.Queues = append(c.Queues, c.Queues[0]) },
		"MaxInFlight":             func(c *jobs.Config) { c.Queues[0].Workers = -1 },
		"must be empty":           func(c *jobs.Config) { c.Relay.Store = h.Store },
		"less than the RetrySpan": func(c *jobs.Config) { c.Retention = 24 * time.Hour },
		"must be negative":        func(c *jobs.Config) { c.Relay.Retention.Delivered = -1 },
	} {
		c := good()
		edit(&c)
		if _, err := jobs.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
	c := good()
	c.Relay.Retention.Delivered, c.Retention = -1, -1
	if _, err := jobs.New(c); err != nil {
		t.Errorf("for ever: %v", err)
	}
}
