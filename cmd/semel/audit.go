package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/cmd/semel/internal/settle"
)

var trailKinds = []string{
	string(semel.TrailExecuted), string(semel.TrailReleased), string(semel.TrailHeld), string(semel.TrailTakeover), string(semel.TrailResolved), string(semel.TrailErased),
	string(semel.TrailRedriven), string(semel.TrailCancelled), string(semel.TrailStepResolved), string(semel.TrailRetried),
	string(semel.TrailReplayed), string(semel.TrailInProgress), string(semel.TrailMismatch), string(semel.TrailUnknown), string(semel.TrailUnavailable), string(semel.TrailFailedOpen),
	string(semel.TrailLost),
}

func (p *program) auditCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "audit",
		Short: "Search and trace the audit trail, seal it, and verify that it is unaltered",
		Long: `Searches the audit trail in a gateway's store: every execution, release, hold,
takeover and resolution, written in one commit with the change it tells of, and
every replay and refusal, written within 100 ms after the response.`,
	})
	cmd.AddCommand(p.auditSearchCommand(), p.auditTraceCommand(), p.auditKeyCommand(), p.auditSealCommand(), p.auditVerifyCommand())
	return cmd
}

func (p *program) auditSearchCommand() *cobra.Command {
	var (
		page         pageFlags
		f            semel.TrailFilter
		kind         = choice{of: trailKinds}
		since, until string
	)
	cmd := &cobra.Command{
		Use:   "search",
		Short: "Print audit entries that match all given filters",
		Long: `Prints audit entries in the order in which they were written, oldest first.
With --json the output is one document:

  {"entries": [{"position": ..., "kind": ..., "record_id": ..., ...}], "next": 123}

"next" is present if there may be more; it is the value for --after. "count" is how
many responses an entry stands for, if more than one; in an entry of kind lost, how
many entries could not be written before it.`,
		Example: `  semel audit search --store sqlite:semel.db --key order-17
  semel audit search --store sqlite:semel.db --since 1h --kind mismatch
  semel audit search --store sqlite:semel.db --trace-id 4bf92f3577b34da6a3ce929d0e0e4736 --json`,
		Args: cobra.NoArgs,
	}
	p.admin(cmd, func(ctx context.Context, s store, _ []string) (err error) {
		if err := page.check(); err != nil {
			return err
		}
		f.Kind = semel.TrailKind(kind.value)
		if f.Since, err = pointInTime("since", since); err != nil {
			return err
		}
		if f.Until, err = pointInTime("until", until); err != nil {
			return err
		}
		return listing[semel.TrailEntry]{
			p: p, name: "entries", none: "There are no such entries.",
			header: "POSITION\tAT\tKIND\tRECORD\tOPERATION\tKEY\tLABEL\tREQUEST\tCAUSE",
			row: func(e semel.TrailEntry) []string {
				cause := e.Cause
				switch {
				case e.Kind == semel.TrailLost:
					cause = fmt.Sprintf("%d entries lost", e.Count)
				case e.Count > 1:
					cause = strings.TrimPrefix(fmt.Sprintf("%s; %d times", cause, e.Count), "; ")
				}
				return []string{
					fmt.Sprint(e.Position), stamp(e.At), string(e.Kind), dash(e.RecordID), dash(e.Operation), dash(e.Key),
					dash(e.Label), dash(e.RequestID), dash(cause),
				}
			},
			json: func(e semel.TrailEntry) any {
				e.At = e.At.UTC()
				return e
			},
		}.print(page.json, page.all, page.after, page.limit, func(after uint64) ([]semel.TrailEntry, uint64, error) {
			f.After, f.Limit = after, page.limit
			list, err := s.Trail(ctx, f)
			if err != nil || len(list) == 0 {
				return nil, 0, wrapCall("the trail could not be read", err)
			}
			return list, list[len(list)-1].Position, nil
		})
	})
	flags := cmd.Flags()
	flags.StringVar(&f.RecordID, "record", "", "only of the record with this id")
	flags.StringVar(&f.Tenant, "tenant", "", "only this tenant's")
	flags.StringVar(&f.Actor, "actor", "", "only this actor's; a gateway records a digest of the credential, unless its configuration names a principal")
	flags.StringVar(&f.Operation, "operation", "", `only this operation's, such as "POST /orders"`)
	flags.StringVar(&f.Key, "key", "", "only with this key, in any scope")
	flags.StringVar(&f.RequestID, "request-id", "", "only of this request; a decision of an operator has operator:NAME")
	flags.StringVar(&f.EventID, "event-id", "", "only of this event")
	flags.StringVar(&f.TraceID, "trace-id", "", "only of this trace")
	choiceFlag(cmd, &kind, "kind", "only of this kind: "+strings.Join(trailKinds, ", "))
	flags.StringVar(&since, "since", "", "from this time on: 2026-11-21T09:00:00Z, or 90m for 90 minutes ago")
	flags.StringVar(&until, "until", "", "before this time, in the same forms")
	page.add(cmd, "position")
	return cmd
}

func pointInTime(flag, s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if t, ok := settle.PointInTime(s); ok {
		return t, nil
	}
	return time.Time{}, usagef("--%s is %q; write a time such as 2026-11-21T09:00:00Z, or a duration such as 90m for that long ago", flag, s)
}
