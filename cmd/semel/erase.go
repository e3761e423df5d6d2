package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/cmd/semel/internal/settle"
)

// erasureJSON is what was erased, or would be. The names are stable.
type erasureJSON struct {
	DryRun    bool           `json:"dry_run"`
	Completed int            `json:"completed"`
	Erased    int            `json:"erased"`
	Bare      int            `json:"bare"`
	Moved     int            `json:"moved_on"`
	InDoubt   int            `json:"in_doubt"`
	Open      int            `json:"open"`
	Groups    []settle.Group `json:"groups,omitempty"` // of a dry run, by operation
	Others    int            `json:"others,omitempty"` // records of groups that are not listed
	Command   []string       `json:"command,omitempty"`
}

func (p *program) keysEraseCommand() *cobra.Command {
	var (
		d            decided
		where        semel.Filter
		since, until string
		apply        bool
	)
	cmd := &cobra.Command{
		Use:   "erase --tenant TENANT | --actor ACTOR",
		Short: "Erase the recorded results of a tenant or an actor",
		Long: `Erases the recorded results of a tenant's or an actor's requests: status, headers,
body, the reference to what was created, and the digest of the request. What is done
stays done: the key is taken until the retention is over, and a retry learns that the
result is not retained. Nothing executes again.

Tenant and actor, operation, key, times and label, such as 201, stay until the
retention is over; so that a retry has no second effect. The audit trail keeps the
same, with the ids of request, event and trace, for as long as the trail is kept (90
days), so that a sealed trail can still be verified.

Requests that are in progress or unknown have no result yet. They are counted: erase
again once they are settled. A gateway records as actor its principal, or a digest of
the credential: see semel keys list.

Without --apply nothing is changed: the command prints how much there is, and the
command that erases it. Each erased record has its own entry in the audit trail. The
run can be interrupted at any time; the same command continues with what is left.

A SQLite file is overwritten where the results were. PostgreSQL keeps dead rows until
it vacuums the table. Backups, and the logs of databases, keep what they have.`,
		Example: `  semel keys erase --store sqlite:semel.db --tenant acme
  semel keys erase --store sqlite:semel.db --tenant acme --actor alice --because "ticket 4711" --by bob --apply`,
		Args: cobra.NoArgs,
	}
	p.admin(cmd, func(ctx context.Context, s store, _ []string) (err error) {
		if where.Tenant == "" && where.Actor == "" {
			return usagef("--tenant or --actor is missing: say whose results to erase")
		}
		if where.BegunSince, err = pointInTime("since", since); err != nil {
			return err
		}
		if where.BegunUntil, err = pointInTime("until", until); err != nil {
			return err
		}
		if apply {
			if err := d.check(p); err != nil {
				return err
			}
		}
		guard, err := semel.New(semel.Config{Store: s})
		if err != nil {
			return err
		}
		show := p.newProgress()
		defer show.end()
		found := settle.Groups{}
		r, err := guard.EraseWhere(ctx, semel.BulkErasure{
			Where: where, DryRun: !apply, Parallel: settle.AtOnce,
			Cause: settle.Cause(d.because, d.by), Origin: settle.Origin(d.by),
			Seen: func(r semel.Record) {
				if r.State == semel.StateCompleted {
					found.Add(semel.Record{Identity: r.Identity, State: r.State})
				}
			},
			Progress: func(r semel.ErasureReport) { show.say("%d records looked at", r.Completed+r.Open) },
		})
		show.end()
		out := erasureJSON{DryRun: !apply, Completed: r.Completed, Erased: r.Erased, Bare: r.Bare, Moved: r.Moved, InDoubt: r.InDoubt, Open: r.Open}
		if out.Groups, out.Others = found.Largest(); !apply && r.Completed > 0 {
			out.Command = append(append([]string{"semel", "keys", "erase"}, p.repeatable(cmd, "tenant", "actor", "operation", "since", "until")...), "--apply")
		}
		if e := p.printErasure(out, d.json); err == nil {
			err = e
		}
		if err != nil && ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		if err != nil {
			return &fault{
				code: exitFailed, err: fmt.Errorf("the run stopped early: %w", err),
				do: fmt.Sprintf("%d results are erased, each for good. Run the same command again to continue with the rest; a retry is safe.", r.Erased),
			}
		}
		return nil
	})
	f := cmd.Flags()
	f.StringVar(&where.Tenant, "tenant", "", "whose results")
	f.StringVar(&where.Actor, "actor", "", "whose results; with --tenant, of that tenant only")
	f.StringVar(&where.Operation, "operation", "", "only this operation's")
	f.StringVar(&since, "since", "", "only of requests that began from this time on: 2026-11-21T09:00:00Z, or 90m for 90 minutes ago")
	f.StringVar(&until, "until", "", "only of those that began before this time, in the same forms")
	f.BoolVar(&apply, "apply", false, "erase; without it nothing is changed, and the command says what would be")
	d.add(cmd)
	return cmd
}

func (p *program) printErasure(out erasureJSON, asJSON bool) error {
	if asJSON {
		return p.printJSON(out)
	}
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	line := func(n int, name, what string) {
		if n > 0 || name == "erased" {
			_, _ = fmt.Fprintf(w, "%s\t%d\t%s\n", name, n, what)
		}
	}
	if out.DryRun {
		_, _ = fmt.Fprintf(w, "DRY RUN: %d records are completed, %d are open. Nothing was changed.\n", out.Completed, out.Open)
		if len(out.Groups) > 0 {
			_, _ = fmt.Fprint(w, "\nRECORDS\tOPERATION\n")
		}
		for _, g := range out.Groups {
			_, _ = fmt.Fprintf(w, "%d\t%s\n", g.Records, dash(g.Operation))
		}
		if out.Others > 0 {
			_, _ = fmt.Fprintf(w, "%d\t(other operations)\n", out.Others)
		}
		if len(out.Command) > 0 {
			_, _ = fmt.Fprintf(w, "\nThis erases their results:\n\n  %s\n", shellWords(out.Command))
		}
		return w.Flush()
	}
	line(out.Erased, "erased", "")
	line(out.Bare, "bare", "had no result to erase")
	line(out.Moved, "moved on", "expired or were replaced meanwhile")
	line(out.InDoubt, "in doubt", "the store did not respond; the next run finds those that were not erased")
	line(out.Open, "open", "in progress or unknown: they have no result yet; erase again once they are settled")
	return w.Flush()
}
