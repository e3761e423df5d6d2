package jobstest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
)

const processLease = time.Second

// Work is the main function of the process that Paused pauses. It runs the jobs of a
// queue until in ends. It writes a line that says where it is, and continues when it
// reads one.
func Work(s jobs.Store, b inbox.Store, effect func(ctx context.Context, name string) error, in io.Reader, out io.Writer) error {
	lines := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer cancel()
		defer close(lines)
		for scanner := bufio.NewScanner(in); scanner.Scan(); {
			lines <- struct{}{}
		}
	}()
	say := func(text string) { _, _ = fmt.Fprintln(out, text) }
	w, err := jobs.New(jobs.Config{
		Store: s, Inbox: b, Authorize: jobs.Trusted, Queues: []jobs.QueueConfig{{Name: "q", Timeout: time.Hour}},
		Handlers: map[string]jobs.Handler{"work": {
			Prepare: func(context.Context, jobs.Job) (any, error) {
				say("prepare")
				<-lines
				return nil, nil
			},
			Handle: func(ctx context.Context, j jobs.Job) error {
				if err := effect(context.WithoutCancel(ctx), j.ID+" by the process"); err != nil {
					return err
				}
				say("inside")
				<-lines
				return nil
			},
		}},
		Relay: outbox.Config{
			Lease: processLease, StoreTimeout: time.Minute,
			Observer: &outbox.Observer{
				Delivered: func(context.Context, outbox.Attempted) { say("done") },
				LeaseLost: func(_ context.Context, a outbox.Attempted) { say("lost") },
				Retried:   func(_ context.Context, a outbox.Attempted) { say("failed: " + a.Err.Error()) },
			},
		},
	})
	if err != nil {
		return err
	}
	say("ready")
	return w.Run(ctx)
}
