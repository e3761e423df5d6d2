package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/cmd/semel/internal/settle"
)

func (p *program) keysCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "keys",
		Short: "Show what is recorded for a key, settle what is unknown, and erase results",
		Long: `Looks into a gateway's store, settles records whose outcome is unknown, and erases
results. It works while the gateway runs, and each change is in the audit trail. A
gateway with an admin token also has a page for this: /console/ of --admin.

A record is in_progress while its request executes, completed once its result is
recorded, and unknown when nobody can say whether it took effect: the gateway
died, or the connection to the upstream broke. In_progress and lapsed means that
the owner has not renewed its lease: the record is about to become unknown.`,
	})
	cmd.AddCommand(p.keysListCommand(), p.keysShowCommand(), p.keysReleaseCommand(), p.keysResolveCommand(), p.keysEraseCommand())
	return cmd
}

// admin adds the flag for the store and runs fn with it open.
func (p *program) admin(cmd *cobra.Command, fn func(ctx context.Context, s store, args []string) error) {
	var url string
	cmd.Flags().StringVar(&url, "store", "", "store of the gateway, such as sqlite:semel.db")
	fromEnv(cmd, "store")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		s, err := openAdmin(cmd.Context(), cmd, url)
		if err != nil {
			return err
		}
		defer func() {
			if e := s.Close(context.Background()); e != nil && err == nil {
				err = callFault("the store could not be closed", e)
			}
		}()
		return fn(cmd.Context(), s, args)
	}
}

func (p *program) keysListCommand() *cobra.Command {
	var page pageFlags
	var f semel.Filter
	var since, until string
	state := choice{of: []string{"in_progress", "completed", "unknown"}}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List records",
		Long: `Lists records in the order of their fences, oldest claim first. With --json the
output is one document:

  {"records": [{"id": ..., "state": ..., "key": ..., ...}], "next": 123}

"next" is there if there may be more; it is the value for --after.`,
		Example: `  semel keys list --store sqlite:semel.db --state unknown
  semel keys list --store sqlite:semel.db --key order-17 --json
  semel keys list --store sqlite:semel.db --all --json | jq -r '.records[].id'`,
		Args: cobra.NoArgs,
	}
	p.admin(cmd, func(ctx context.Context, s store, _ []string) error {
		if err := page.check(); err != nil {
			return err
		}
		var err error
		if f.BegunSince, err = pointInTime("since", since); err != nil {
			return err
		}
		if f.BegunUntil, err = pointInTime("until", until); err != nil {
			return err
		}
		if state.value != "" {
			if err := f.State.UnmarshalText([]byte(state.value)); err != nil {
				return err
			}
		}
		return listing[semel.Record]{
			p: p, name: "records", none: "There are no such records.",
			header: "ID\tSTATE\tFENCE\tBEGUN\tOPERATION\tACTOR\tKEY",
			row: func(r semel.Record) []string {
				return []string{r.ID, stateText(r), fmt.Sprint(r.Fence), stamp(r.BegunAt), dash(r.Identity.Operation), dash(r.Identity.Actor), dash(r.Identity.Key)}
			},
			json: func(r semel.Record) any { return newRecordJSON(r) },
		}.print(page.json, page.all, page.after, page.limit, func(after uint64) ([]semel.Record, uint64, error) {
			f.After, f.Limit = after, page.limit
			list, err := s.List(ctx, f)
			if err != nil || len(list) == 0 {
				return nil, 0, wrapCall("the records could not be listed", err)
			}
			return list, list[len(list)-1].Fence, nil
		})
	})
	choiceFlag(cmd, &state, "state", "only records in this state")
	cmd.Flags().BoolVar(&f.Lapsed, "lapsed", false, "only records in progress whose lease is over")
	cmd.Flags().StringVar(&f.Tenant, "tenant", "", "only this tenant's")
	cmd.Flags().StringVar(&f.Actor, "actor", "", "only this actor's; a gateway records a digest of the credential, unless its configuration names a principal")
	cmd.Flags().StringVar(&f.Operation, "operation", "", `only this operation's, such as "POST /orders"`)
	cmd.Flags().StringVar(&f.Key, "key", "", "only with this key, in any scope")
	cmd.Flags().StringVar(&f.Cause, "cause", "", "only unknown ones with this cause; TEXT* matches how it begins")
	cmd.Flags().StringVar(&since, "since", "", "begun from this time on: 2026-11-21T09:00:00Z, or 90m for 90 minutes ago")
	cmd.Flags().StringVar(&until, "until", "", "begun before this time, in the same forms")
	page.add(cmd, "fence")
	return cmd
}

func wrapCall(what string, err error) error {
	if err == nil {
		return nil
	}
	return callFault(what, err)
}

func stateText(r semel.Record) string {
	switch {
	case r.Reopened:
		return "reopened"
	case r.Lapsed():
		return r.State.String() + ", lapsed"
	}
	return r.State.String()
}

func (p *program) keysShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show one record",
		Long: `Shows a record by its id, which semel keys list prints. Of a recorded result it
prints the size, not the content.`,
		Example: "  semel keys show --store sqlite:semel.db 2b7e151628aed2a6abf7158809",
		Args:    oneID,
	}
	p.admin(cmd, func(ctx context.Context, s store, args []string) error {
		r, err := findRecord(ctx, s, args[0])
		if err != nil {
			return err
		}
		if asJSON {
			return p.printJSON(newRecordJSON(r))
		}
		return p.printRecord(r)
	})
	jsonFlag(cmd, &asJSON)
	return cmd
}

func oneID(_ *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return usagef("name one record by its id, which semel keys list prints")
	}
	return nil
}

func (p *program) printRecord(r semel.Record) error {
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" {
			_, _ = fmt.Fprintf(w, "%s\t%s\n", name, printable(value))
		}
	}
	line("id", r.ID)
	line("state", stateText(r))
	line("operation", r.Identity.Operation)
	line("tenant", r.Identity.Tenant)
	line("actor", r.Identity.Actor)
	line("key", r.Identity.Key)
	line("fence", fmt.Sprint(r.Fence))
	line("begun", stamp(r.BegunAt))
	if r.State == semel.StateInProgress && !r.Reopened {
		if r.Lapsed() {
			line("lease", fmt.Sprintf("lapsed %v ago", (-r.Lease).Round(time.Millisecond)))
		} else {
			line("lease", fmt.Sprintf("%v left; renewed while the owner lives", r.Lease.Round(time.Millisecond)))
		}
	}
	if !r.SettledAt.IsZero() {
		line("settled", stamp(r.SettledAt))
	}
	if !r.ExpiresAt.IsZero() {
		line("expires", stamp(r.ExpiresAt))
	}
	line("cause", r.Cause)
	line("request id", r.Origin.RequestID)
	line("event id", r.Origin.EventID)
	line("trace id", r.Origin.TraceID)
	if r.State == semel.StateCompleted {
		if r.Result.Tombstone {
			line("result", r.Result.Label+", not retained")
		} else {
			line("result", fmt.Sprintf("%s, %d bytes", r.Result.Label, r.Result.Size()))
		}
		line("reference", r.Result.Reference)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if r.State == semel.StateUnknown || r.Lapsed() && !r.Reopened {
		_, _ = fmt.Fprintln(p.stderr, "Find out whether the effect happened, then settle it: semel keys resolve --help")
	}
	return nil
}

// findRecord returns the record with the id, and its result.
func findRecord(ctx context.Context, s store, id string) (semel.Record, error) {
	list, err := s.List(ctx, semel.Filter{ID: id, Limit: 1})
	if err != nil {
		return semel.Record{}, callFault("the record could not be read", err)
	}
	if len(list) == 1 {
		r, err := s.Find(ctx, list[0].Identity)
		switch {
		case err == nil && r.ID == id:
			return r, nil
		case err != nil && !errors.Is(err, semel.ErrNotFound):
			return semel.Record{}, callFault("the record could not be read", err)
		}
	}
	return semel.Record{}, noRecord(id)
}

func noRecord(id string) error {
	return &fault{
		code: exitNotFound, err: fmt.Errorf("there is no record with the id %q", id),
		do: "It has expired, was released, or is in another store. Nothing was changed; semel keys list shows what there is.",
	}
}

// decided is who settles a record, and why.
type decided struct {
	because, by string
	json        bool
	cipher      *semel.Cipher // of results that go with decisions
}

func (d *decided) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&d.because, "because", "", "how you know; goes into the audit trail (required)")
	cmd.Flags().StringVar(&d.by, "by", "", "who decides; goes into the audit trail (default the environment's USER or USERNAME)")
	jsonFlag(cmd, &d.json)
}

func (d *decided) check(p *program) error {
	if strings.TrimSpace(d.because) == "" {
		return usagef("--because is missing: say how you know, for whoever reads the audit trail")
	}
	for _, name := range []string{"USER", "USERNAME"} {
		if d.by == "" {
			d.by = p.env[name]
		}
	}
	if strings.TrimSpace(d.by) == "" {
		return usagef("--by is missing: say who decides, for whoever reads the audit trail")
	}
	return nil
}

// settle applies a decision to the record with the id. result is asked for the
// result that goes with DecideResult.
func (p *program) settle(ctx context.Context, s store, id string, d decided, decision semel.Decision, result func(semel.Record) (semel.Result, error)) error {
	r, err := findRecord(ctx, s, id)
	if err != nil {
		return err
	}
	if err := settleable(r); err != nil {
		return err
	}
	resolution := semel.Resolution{
		Identity: r.Identity, Fence: r.Fence, Decision: decision,
		Cause: settle.Cause(d.because, d.by), Origin: settle.Origin(d.by),
	}
	if r.State == semel.StateInProgress {
		return p.markUnknown(ctx, s, r, resolution)
	}
	if result != nil {
		if resolution.Result, err = result(r); errors.Is(err, settle.ErrNotHTTP) {
			return &fault{
				code: exitRefused, err: fmt.Errorf("the record %s: %w", r.ID, err),
				do: "Settle it from the program that it belongs to, with Guard.Resolve. Nothing was changed.",
			}
		} else if err != nil {
			return usagef("%w", err)
		}
	}
	guard, err := semel.New(semel.Config{Store: s, Cipher: d.cipher})
	if err != nil {
		return err
	}
	after, err := guard.Resolve(ctx, resolution)
	switch {
	case errors.Is(err, semel.ErrNotFound):
		return noRecord(id)
	case errors.Is(err, semel.ErrStaleFence):
		return &fault{
			code: exitRefused, err: fmt.Errorf("the record %s has moved on since it was read", id),
			do: "Someone else has settled it, or its owner has. Nothing was changed by this command; look again: semel keys show " + id,
		}
	case err != nil:
		return callFault("the record could not be settled", err)
	}

	done := settledJSON{Decision: decision.String(), Was: stateText(r), Record: newRecordJSON(after)}
	switch decision {
	case semel.DecideResult:
		done.Now = fmt.Sprintf("completed: replays answer %s until %s", after.Result.Label, stamp(after.ExpiresAt))
	case semel.DecideNoEffect:
		done.Now = "gone: the key is free, and the next request with it executes"
	case semel.DecideExecuteAgain:
		done.Now = "open: the next same request with this key executes; any other is still a mismatch"
	}
	if d.json {
		return p.printJSON(done)
	}
	_, err = fmt.Fprintf(p.stdout, "record %s (%s, key %s)\nwas    %s\nnow    %s\n",
		id, printable(r.Identity.Operation), printable(r.Identity.Key), done.Was, done.Now)
	return err
}

// markUnknown marks a lapsed record unknown, and asks for the command again: its
// owner could have come back since the operator looked, and no longer can.
func (p *program) markUnknown(ctx context.Context, s store, r semel.Record, d semel.Resolution) error {
	d.Decision, d.Cause = semel.DecideUnknown, "the lease had lapsed when an operator came to settle the record"
	_, err := s.Resolve(ctx, d)
	if err != nil && !errors.Is(err, semel.ErrStaleFence) && !errors.Is(err, semel.ErrNotFound) {
		return callFault("the record could not be marked unknown", err)
	}
	return &fault{
		code: exitRefused, err: fmt.Errorf("the record %s was still in progress, although its owner's lease had lapsed", r.ID),
		do: "It is now marked unknown, so its owner cannot complete it any more. Check again whether the effect happened, then run this command again.",
	}
}

// settledJSON is what was done. The names are stable.
type settledJSON struct {
	Decision string `json:"decision"`
	Was      string `json:"was"`
	Now      string `json:"now"`
	// Record is the record as it is now or, if it is gone, as it was.
	Record recordJSON `json:"record"`
}

func settleable(r semel.Record) error {
	refused := func(what, do string) error {
		return &fault{code: exitRefused, err: fmt.Errorf("the record %s %s", r.ID, what), do: do + " Nothing was changed."}
	}
	switch {
	case r.State == semel.StateCompleted:
		return refused("is completed: its effect has happened and its key answers replays until "+stamp(r.ExpiresAt),
			"It cannot be settled again. A new operation needs a new key.")
	case r.State == semel.StateInProgress && !r.Lapsed():
		return refused("is in progress under a lease: its request may be executing now",
			fmt.Sprintf("Settling it could repeat the effect. Look again in %v or later; the lease lapses if the owner is dead.", r.Lease.Round(time.Millisecond)))
	}
	return nil
}

func (p *program) keysReleaseCommand() *cobra.Command {
	var d decided
	cmd := &cobra.Command{
		Use:   "release ID",
		Short: "Free a key whose request certainly had no effect",
		Long: `Removes an unknown record whose request, you are certain, had no effect: the next
request with the key executes. It is short for semel keys resolve ID --as no-effect.
A record that is completed, or in progress under a lease, is refused. A record whose
lease has lapsed is first marked unknown: look again, then repeat the command.`,
		Example: `  semel keys release --store sqlite:semel.db 2b7e151628aed2a6abf7158809 --because "not in the bank's list" --by alice`,
		Args:    oneID,
	}
	p.admin(cmd, func(ctx context.Context, s store, args []string) error {
		if err := d.check(p); err != nil {
			return err
		}
		return p.settle(ctx, s, args[0], d, semel.DecideNoEffect, nil)
	})
	d.add(cmd)
	return cmd
}

func (p *program) keysResolveCommand() *cobra.Command {
	var (
		d       decided
		many    bulk
		as      = choice{of: settle.Ways}
		status  int
		headers []string
		body    string
		keys    encryptionFlag
	)
	cmd := &cobra.Command{
		Use:   "resolve ID | --where NAME=VALUE...",
		Short: "Settle a record whose outcome is unknown, or many",
		Long: `Settles an unknown record according to what you have found out about its effect:

  --as result         It happened. Replays get the response that you give with
                      --status, --header and --body.
  --as no-effect      It certainly did not. The key is free again.
  --as execute-again  Let the next such request execute once more. If the effect may have
                      happened, use this only if repeating it does no harm.

A record in progress whose lease has lapsed is first marked unknown, so that its
owner cannot complete it: look again, then repeat the command. An owner that is still
alive has then lost its claim, and its result is not recorded; wait until the
operation's deadline has passed, because it may still have its effect. A body without a
Content-Type is application/json if it is JSON, else what its first bytes look like.

After an outage there are many. --where selects them by what is on record:

  operation=POST /orders        as the gateway names it: method and path
  tenant=T  actor=A             whose they are
  cause=TEXT                    why they are unknown; TEXT* matches how it begins
  answered=502                  short for 'cause=the handler answered 502'
  since=TIME  until=TIME        when the request began, by the store's clock:
                                2026-11-21T09:00:00Z, or 90m for 90 minutes ago

All conditions given must hold; 'cause=*' selects whatever is unknown. Without
--apply nothing is changed: the command prints how many records of which operations
and causes there are, and the command that settles them. Before you run that, find out
what became of their effects. It settles what was unknown at the dry run, and nothing
that became unknown since. It marks records with a lapsed lease as unknown, and leaves
them for another dry run. Records of living owners are never touched. With --as result
all get the same response.

The run can be interrupted at any time: the same command continues with what is left.
No record is settled twice, and each has its own entry in the audit trail.

It exits with 0 when it has finished, even at its --limit, and after a dry run; with 1
if it was interrupted or the store failed; and with 2 for wrong usage.`,
		Example: `  semel keys resolve --store sqlite:semel.db ID --as result --status 201 \
      --header 'Location: /orders/17' --body @order.json --because "order 17 exists" --by alice
  semel keys resolve --store sqlite:semel.db ID --as no-effect --because "no such order" --by alice
  semel keys resolve --store sqlite:semel.db ID --as execute-again --because "upstream deduplicates" --by alice
  semel keys resolve --store sqlite:semel.db --where answered=502 --where since=2h --as no-effect --because "not in the ledger"`,
		Args: many.args,
	}
	p.admin(cmd, func(ctx context.Context, s store, args []string) error {
		if len(many.where) == 0 {
			if as.value == "" {
				return usagef("--as is missing: say result, no-effect or execute-again")
			}
			if err := d.check(p); err != nil {
				return err
			}
		}
		if as.value != "result" {
			for _, name := range []string{"status", "header", "body"} {
				if cmd.Flags().Changed(name) {
					return usagef("--%s goes with --as result only", name)
				}
			}
		}
		var err error
		if d.cipher, err = keys.cipher(cmd); err != nil {
			return err
		}
		decision := settle.Decision(as.value)
		var result func(semel.Record) (semel.Result, error)
		if decision == semel.DecideResult {
			content, err := p.readBody(body)
			if err != nil {
				return err
			}
			header, err := settle.Headers(headers)
			if err != nil {
				return usagef("--%w", err)
			}
			if err := settle.CheckAnswer(status, header, content); err != nil {
				return usagef("%w", err)
			}
			result = func(r semel.Record) (semel.Result, error) { return settle.Answer(r, status, header.Clone(), content) }
		}
		if len(many.where) > 0 {
			return p.settleMany(ctx, s, bulkSettlement{
				bulk: many, decided: d, as: as.value, decision: decision, result: result, repeat: p.repeatable(cmd, encryptionFlagName),
			})
		}
		return p.settle(ctx, s, args[0], d, decision, result)
	})
	choiceFlag(cmd, &as, "as", "what became of the effect (required)")
	cmd.Flags().IntVar(&status, "status", http.StatusOK, "with --as result: status of the response")
	cmd.Flags().StringArrayVar(&headers, "header", nil, "with --as result: a header of the response, as 'Name: value'; may be repeated")
	keys.add(cmd, "with --as result: the gateway's file of encryption keys; the response is encrypted as the gateway's are")
	fromEnv(cmd, encryptionFlagName)
	cmd.Flags().StringVar(&body, "body", "", "with --as result: body of the response: the text itself, @file, or - for standard input")
	d.add(cmd)
	many.add(cmd)
	return cmd
}

func (p *program) readBody(arg string) ([]byte, error) {
	switch {
	case arg == "-" || arg == "@-":
		b, err := io.ReadAll(p.stdin)
		if err != nil {
			return nil, usagef("--body: standard input cannot be read: %w", err)
		}
		return b, nil
	case strings.HasPrefix(arg, "@"):
		b, err := os.ReadFile(arg[1:])
		if err != nil {
			return nil, usagef("--body: %w", err)
		}
		return b, nil
	}
	return []byte(arg), nil
}
