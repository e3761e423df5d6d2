package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
)

func (p *program) jobsCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "jobs",
		Short: "Show the jobs of a service, and rerun or cancel them",
		Long: `Shows the jobs that a service has enqueued, and what became of them. They are
messages of its outbox, in topics that begin with "job:". A job is

  pending    due, under way, delayed after a failure, or behind others of its lane
  delivered  done, in one commit with its effect
  dead       given up: tried too often, refused its permission, or cancelled

Each decision made here is recorded, with who decided and why: semel jobs show prints
it, and so does semel audit search --event-id ID.`,
	})
	cmd.AddCommand(p.jobsStatusCommand(), p.jobsListCommand(), p.jobsShowCommand(),
		p.jobsDecideCommand(outbox.VerdictAgain, []outbox.State{outbox.StateDead, outbox.StateUnknown}, &cobra.Command{
			Use:   "rerun ID | --state dead|unknown [filters] --apply",
			Short: "Run dead jobs again",
			Long: `Makes dead jobs pending again. Their attempts count anew. They keep their ids and
the authority that they were enqueued with, which is checked again. Whatever they did
in their transactions before was rolled back.

A job that is done is never run again, even if it is enqueued again under its id. To
have its work done once more, enqueue another job from the service.`,
			Example: `  semel jobs rerun --store sqlite:app.db welcome-17 --because 'the mail server is back'
  semel jobs rerun --store sqlite:app.db --state dead --queue mail --cause 'dial tcp*'
  semel jobs rerun --store sqlite:app.db --state dead --queue mail --cause 'dial tcp*' --because 'the mail server is back' --apply`,
		}),
		p.jobsDecideCommand(outbox.VerdictCancel, []outbox.State{outbox.StatePending}, &cobra.Command{
			Use:   "cancel ID | --state pending [filters] --apply",
			Short: "Cancel pending jobs",
			Long: `Makes pending jobs dead, with who decided that and why as the reason. A job that is
running cannot commit any more; its context is cancelled when its worker next renews
the lease. What it has done outside its transaction stays done.`,
			Example: `  semel jobs cancel --store sqlite:app.db welcome-17 --because 'the customer has left'
  semel jobs cancel --store sqlite:app.db --state pending --queue mail --because 'sent by hand' --apply`,
		}))
	return cmd
}

func (p *program) jobsStatusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what waits, queue by queue",
		Long: `Prints for each queue how long the oldest job that could have run has waited, which
is the figure to watch, and how many jobs are pending, block their lane, or are dead.
With --json the output is that of semel outbox status, where a topic is a queue.`,
		Example: `  semel jobs status --store sqlite:app.db
  semel jobs status --store sqlite:app.db --json | jq .oldest_seconds`,
		Args: cobra.NoArgs,
	}
	p.outboxAdmin(cmd, func(ctx context.Context, o outboxStore, _ []string) error {
		all, err := o.Status(ctx)
		if err != nil {
			return outboxFault("the status could not be read", err)
		}
		var queues []outbox.TopicStatus
		for _, s := range all {
			if queue, ok := jobs.Queue(s.Topic); ok {
				s.Topic = queue
				queues = append(queues, s)
			}
		}
		return p.printStatus(queues, "QUEUE", asJSON)
	})
	jsonFlag(cmd, &asJSON)
	return cmd
}

// jobJSON is a job as printed. The names are stable.
type jobJSON struct {
	Queue     string         `json:"queue"`
	Kind      string         `json:"kind"`
	Authority jobs.Authority `json:"authority"`
	messageJSON
}

func newJobJSON(e outbox.Entry) jobJSON {
	j, _ := jobs.FromMessage(e.Message) // what is malformed can be looked at all the same
	return jobJSON{j.Queue, j.Kind, j.Authority, newMessageJSON(e)}
}

func (p *program) jobsListCommand() *cobra.Command {
	var (
		page pageFlags
		m    = messageFlags{jobs: true}
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List jobs",
		Long: `Lists jobs in the order in which they were enqueued, without their arguments.
With --json the output is one document:

  {"jobs": [{"id": ..., "state": ..., "queue": ..., "kind": ..., ...}], "next": 123}

"next" is there if there may be more; it is the value for --after.`,
		Example: `  semel jobs list --store sqlite:app.db --state dead
  semel jobs list --store sqlite:app.db --queue mail --json`,
		Args: cobra.NoArgs,
	}
	p.outboxAdmin(cmd, func(ctx context.Context, o outboxStore, _ []string) error {
		if err := page.check(); err != nil {
			return err
		}
		f := m.filter()
		return listing[outbox.Entry]{
			p: p, name: "jobs", none: "There are no such jobs.",
			header: "ID\tSTATE\tQUEUE\tKIND\tACTOR\tENQUEUED\tATTEMPTS\tDETAIL\tCAUSE",
			row: func(e outbox.Entry) []string {
				j := newJobJSON(e)
				return []string{e.ID, string(e.State), dash(j.Queue), dash(j.Kind), dash(j.Authority.Actor), stamp(e.EnqueuedAt), fmt.Sprint(e.Attempts), dash(detail(e)), dash(e.Cause)}
			},
			json: func(e outbox.Entry) any { return newJobJSON(e) },
		}.print(page.json, page.all, page.after, page.limit, func(after uint64) ([]outbox.Entry, uint64, error) {
			f.After, f.Limit = after, page.limit
			list, err := o.List(ctx, f)
			if err != nil || len(list) == 0 {
				return nil, 0, wrapOutbox("the jobs could not be listed", err)
			}
			return list, list[len(list)-1].Position, nil
		})
	})
	m.add(cmd, outbox.StatePending, outbox.StateDelivered, outbox.StateDead, outbox.StateUnknown)
	page.add(cmd, "position")
	return cmd
}

func wrapOutbox(what string, err error) error {
	if err == nil {
		return nil
	}
	return outboxFault(what, err)
}

// findJob returns the job with this id.
func findJob(ctx context.Context, o outboxStore, id string) (outbox.Entry, error) {
	e, err := findMessage(ctx, o, id)
	if _, ok := jobs.Queue(e.Topic); err == nil && !ok {
		return e, &fault{
			code: exitNotFound, err: fmt.Errorf("the message %s is not a job", id),
			do: "Its topic is " + printable(e.Topic) + ": see semel outbox show. Nothing was changed.",
		}
	}
	return e, err
}

func (p *program) jobsShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show one job, its authority, and the decisions on it",
		Long: `Shows a job by its id, which semel jobs list prints: its state, the authority that it
was enqueued with, and who decided what about it, and why. semel outbox show --payload
prints its arguments.`,
		Example: `  semel jobs show --store sqlite:app.db welcome-17`,
		Args:    oneMessage,
	}
	p.outboxAdmin(cmd, func(ctx context.Context, o outboxStore, args []string) error {
		e, err := findJob(ctx, o, args[0])
		switch {
		case err != nil:
			return err
		case asJSON:
			return p.printJSON(newJobJSON(e))
		}
		return p.printMessage(e)
	})
	jsonFlag(cmd, &asJSON)
	return cmd
}

func errDoneJob(id string) error {
	return &fault{
		code: exitRefused, err: fmt.Errorf("the job %s is done", id),
		do: "A job that is done is never run again. To have its work done once more, enqueue another job from the service. Nothing was changed.",
	}
}

// jobsDecideCommand makes the command for a decision on jobs in these states.
func (p *program) jobsDecideCommand(verdict outbox.Verdict, states []outbox.State, cmd *cobra.Command) *cobra.Command {
	s := someMessages{messageFlags: messageFlags{jobs: true}}
	var d decided
	p.outboxAdmin(cmd, func(ctx context.Context, o outboxStore, args []string) error {
		f := s.filter()
		if len(args) == 1 {
			e, err := findJob(ctx, o, args[0])
			if err != nil {
				return err
			}
			allowed := false
			for _, state := range states {
				allowed = allowed || e.State == state
			}
			switch {
			case e.State == outbox.StateDelivered:
				return errDoneJob(e.ID)
			case !allowed:
				return &fault{
					code: exitRefused, err: fmt.Errorf("the job %s is %s", e.ID, e.State),
					do: "Dead jobs are run again, and pending ones are cancelled. Nothing was changed.",
				}
			}
			f.ID = args[0]
		} else if !s.apply {
			return p.countOnly(ctx, o, &s, string(verdict))
		}
		if err := d.check(p); err != nil {
			return err
		}
		done := changedJSON{}
		err := pages(f, string(verdict), &done, func(f outbox.Filter) ([]outbox.Redriven, error) {
			return o.Decide(ctx, f, outbox.Decision{Verdict: verdict, By: d.by, Because: d.because})
		}, func(m outbox.Redriven) uint64 {
			if m.OutOfOrder {
				done.OutOfOrder++
			}
			return m.Position
		})
		switch {
		case err != nil:
			return err
		case f.ID != "" && done.Changed == 0:
			return &fault{
				code: exitRefused, err: fmt.Errorf("the job %s has moved on since it was read", f.ID),
				do: "Look again: semel jobs show. Nothing was changed by this command.",
			}
		case s.json:
			return p.printJSON(done)
		}
		_, err = fmt.Fprintf(p.stdout, "%d jobs %s\n", done.Changed, verdict)
		if done.OutOfOrder > 0 {
			_, _ = fmt.Fprintf(p.stderr, "%d of them are out of order: their lanes have gone on without them.\n", done.OutOfOrder)
		}
		return err
	})
	s.add(cmd, cmd.Name(), states...)
	cmd.Flags().StringVar(&d.because, "because", "", "why; goes into the audit trail (required)")
	cmd.Flags().StringVar(&d.by, "by", "", "who decides; goes into the audit trail (default the environment's USER or USERNAME)")
	return cmd
}
