package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
)

// someMessages are the messages that a command is to change: one by its id, or
// those that filters select.
type someMessages struct {
	messageFlags
	apply, json bool
}

func (s *someMessages) add(cmd *cobra.Command, verb string, states ...outbox.State) {
	s.messageFlags.add(cmd, states...)
	cmd.Flags().BoolVar(&s.apply, "apply", false, "with filters: "+verb+"; without it nothing is changed, and the command says how many there are")
	jsonFlag(cmd, &s.json)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		filtered := false
		for _, name := range []string{"state", "topic", "queue", "key", "cause"} {
			filtered = filtered || cmd.Flags().Changed(name)
		}
		switch {
		case filtered && len(args) > 0, !filtered && s.apply:
			return usagef("name one message by its id, or select many with --state and other filters, and --apply")
		case filtered && s.state.value == "":
			return usagef("--state is missing: say which messages are meant")
		case !filtered:
			return oneMessage(cmd, args)
		}
		return nil
	}
}

// count counts the messages that a filter selects.
func count(ctx context.Context, o outboxStore, f outbox.Filter) (n int, err error) {
	for f.Limit = maxPage; n < outbox.CountLimit; {
		page, err := o.List(ctx, f)
		if err != nil {
			return 0, outboxFault("the messages could not be counted", err)
		}
		if n += len(page); len(page) < maxPage {
			break
		}
		f.After = page[len(page)-1].Position
	}
	return n, nil
}

// changedJSON is what was done. The names are stable.
type changedJSON struct {
	DryRun   bool `json:"dry_run"`
	Selected int  `json:"selected,omitempty"` // by a dry run
	Changed  int  `json:"changed"`
	// OutOfOrder is how many of them their lane has gone on without.
	OutOfOrder int `json:"out_of_order,omitempty"`
}

// countOnly says what a command would do.
func (p *program) countOnly(ctx context.Context, o outboxStore, s *someMessages, verb string) error {
	n, err := count(ctx, o, s.filter())
	if err != nil {
		return err
	}
	if s.json {
		return p.printJSON(changedJSON{DryRun: true, Selected: n})
	}
	_, err = fmt.Fprintf(p.stdout, "%s %s would be %s. Nothing was changed; add --apply to do it.\n", counted(n), s.noun(), verb)
	return err
}

// pages changes all messages that a filter selects, page by page. position is told
// of each that was changed.
func pages[T any](f outbox.Filter, verb string, done *changedJSON, change func(outbox.Filter) ([]T, error), position func(T) uint64) error {
	for f.Limit = maxPage; ; {
		some, err := change(f)
		if err != nil {
			return outboxFault(fmt.Sprintf("after %d messages, the next could not be %s", done.Changed, verb), err)
		}
		for _, m := range some {
			done.Changed++
			f.After = position(m)
		}
		if len(some) < maxPage {
			return nil
		}
	}
}

func (p *program) outboxRedriveCommand() *cobra.Command {
	var (
		s     someMessages
		again bool
	)
	cmd := &cobra.Command{
		Use:   "redrive ID [--delivered] | --state dead|unknown [filters] --apply",
		Short: "Deliver dead or unknown messages again",
		Long: `Makes dead or unknown messages pending again. Their attempts count anew, and they
keep their ids. A message that blocks its lane is delivered before the rest of the
lane, in order. A message whose lane has gone on, under --on-dead skip, is delivered
out of order; the command says how many are.

An unknown message may have arrived before: redrive it only if you have found out that
it has not, or if a second copy does no harm.

With --delivered and an id, a message that was delivered is sent once more, for a
receiver that has lost it. It has the same id, so a receiver that still has it drops
it as a repetition.`,
		Example: `  semel outbox redrive --store sqlite:app.db 0198c2a4-8f7e-7d7e-9b57-0f6f3b1f2a10
  semel outbox redrive --store sqlite:app.db --state dead --topic hooks --cause 'httpsink: the receiver answered 404*'
  semel outbox redrive --store sqlite:app.db --state dead --topic hooks --apply
  semel outbox redrive --store sqlite:app.db --delivered evt_17:customer_3`,
	}
	p.outboxAdmin(cmd, func(ctx context.Context, o outboxStore, args []string) error {
		f := s.filter()
		if len(args) == 1 {
			e, err := findMessage(ctx, o, args[0])
			if err != nil {
				return err
			}
			if e.State != outbox.StateDead && e.State != outbox.StateUnknown && !(again && e.State == outbox.StateDelivered) {
				return &fault{
					code: exitRefused, err: fmt.Errorf("the message %s is %s", e.ID, e.State),
					do: "Only dead and unknown messages are redriven, and delivered ones with --delivered; a pending one is delivered in its turn. Nothing was changed.",
				}
			}
			if _, job := jobs.Queue(e.Topic); job && e.State == outbox.StateDelivered {
				return errDoneJob(e.ID)
			}
			f.ID = args[0]
			if again {
				f.State = e.State
			}
		} else if again {
			return usagef("--delivered needs the id of one message: delivered messages are sent again one at a time only")
		} else if !s.apply {
			return p.countOnly(ctx, o, &s, "redriven")
		}
		done := changedJSON{}
		err := pages(f, "redriven", &done, func(f outbox.Filter) ([]outbox.Redriven, error) { return o.Redrive(ctx, f) }, func(m outbox.Redriven) uint64 {
			if m.OutOfOrder {
				done.OutOfOrder++
			}
			return m.Position
		})
		if err != nil {
			return err
		}
		if s.json {
			return p.printJSON(done)
		}
		_, err = fmt.Fprintf(p.stdout, "%d messages redriven\n", done.Changed)
		if done.OutOfOrder > 0 {
			_, _ = fmt.Fprintf(p.stderr, "%d of them are out of order: their lanes have gone on without them.\n", done.OutOfOrder)
		}
		return err
	})
	s.add(cmd, "redrive", outbox.StateDead, outbox.StateUnknown)
	cmd.Flags().BoolVar(&again, "delivered", false, "with an id: send the message once more even if it has been delivered")
	return cmd
}

func (p *program) outboxPurgeCommand() *cobra.Command {
	var s someMessages
	cmd := &cobra.Command{
		Use:   "purge ID | --state STATE [filters] --apply",
		Short: "Remove messages for good",
		Long: `Removes messages, and unblocks their lanes. Use it to settle an unknown message that
has arrived, and to give up a dead one. A message that is under way is left alone. A
pending message that is purged is never delivered.`,
		Example: `  semel outbox purge --store sqlite:app.db 0198c2a4-8f7e-7d7e-9b57-0f6f3b1f2a10
  semel outbox purge --store sqlite:app.db --state dead --topic hooks
  semel outbox purge --store sqlite:app.db --state dead --topic hooks --apply`,
	}
	p.outboxAdmin(cmd, func(ctx context.Context, o outboxStore, args []string) error {
		f := s.filter()
		if len(args) == 1 {
			if _, err := findMessage(ctx, o, args[0]); err != nil {
				return err
			}
			f.ID = args[0]
		} else if !s.apply {
			return p.countOnly(ctx, o, &s, "removed")
		}
		done := changedJSON{}
		err := pages(f, "removed", &done, func(f outbox.Filter) ([]outbox.Entry, error) { return o.Purge(ctx, f) }, func(e outbox.Entry) uint64 { return e.Position })
		if err != nil {
			return err
		}
		if f.ID != "" && done.Changed == 0 {
			return &fault{
				code: exitRefused, err: fmt.Errorf("the message %s is under way", f.ID),
				do: "A relay is delivering it now. Look again: semel outbox show. Nothing was changed.",
			}
		}
		if s.json {
			return p.printJSON(done)
		}
		_, err = fmt.Fprintf(p.stdout, "%d messages removed\n", done.Changed)
		return err
	})
	s.add(cmd, "remove", outbox.StatePending, outbox.StateDelivered, outbox.StateDead, outbox.StateUnknown)
	return cmd
}
