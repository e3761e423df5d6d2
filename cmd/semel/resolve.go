package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/cmd/semel/internal/settle"
)

// bulk are the flags of semel keys resolve that settle many records.
type bulk struct {
	where []string
	asOf  string
	apply bool
	limit int
}

func (b *bulk) add(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&b.where, "where", nil, "settle all unknown records that match, instead of one: NAME=VALUE; may be repeated to narrow it down; see above")
	cmd.Flags().BoolVar(&b.apply, "apply", false, "with --where: settle; without it nothing is changed, and the command says what would be")
	cmd.Flags().StringVar(&b.asOf, "as-of", "", "with --where: only records that were unknown at this time, which the dry run prints")
	cmd.Flags().IntVar(&b.limit, "limit", 0, "with --where and --apply: settle at most this many records (default all)")
}

// args reports whether one record is named or many are selected.
func (b *bulk) args(cmd *cobra.Command, args []string) error {
	if cmd.Flags().Changed("where") {
		if len(args) > 0 {
			return usagef("name one record by its id, or select many with --where, not both")
		}
		return nil
	}
	for _, name := range []string{"apply", "as-of", "limit"} {
		if cmd.Flags().Changed(name) {
			return usagef("--%s goes with --where only", name)
		}
	}
	return oneID(cmd, args)
}

const whereNames = "operation, tenant, actor, cause, answered, since or until"

// filter is what --where selects. Times are made absolute, so that the command
// means the same when it is run again.
func (b *bulk) filter() (f semel.Filter, canonical []string, err error) {
	seen := map[string]bool{}
	for _, condition := range b.where {
		name, value, ok := strings.Cut(condition, "=")
		if name = strings.TrimSpace(name); !ok || value == "" {
			return f, nil, usagef("--where is %q; write NAME=VALUE, where NAME is %s", condition, whereNames)
		}
		if name == "answered" {
			name, value = "cause", "the handler answered "+value
		}
		if seen[name] {
			return f, nil, usagef("--where names %s twice; a record has one (answered is short for a cause)", name)
		}
		seen[name] = true
		switch name {
		case "operation":
			f.Operation = value
		case "tenant":
			f.Tenant = value
		case "actor":
			f.Actor = value
		case "cause":
			f.Cause = value
		case "since", "until":
			t, err := pointInTime("where "+name, value)
			if err != nil {
				return f, nil, err
			}
			if _, err := time.ParseDuration(value); err == nil {
				t = t.Truncate(time.Second)
			}
			value = t.UTC().Format(time.RFC3339Nano)
			if name == "since" {
				f.BegunSince = t
			} else {
				f.BegunUntil = t
			}
		default:
			return f, nil, usagef("--where names %q; it must be %s", name, whereNames)
		}
		canonical = append(canonical, name+"="+value)
	}
	return f, canonical, nil
}

// bulkJSON is what was done, or would be. The names are stable.
type bulkJSON struct {
	DryRun   bool       `json:"dry_run"`
	Decision string     `json:"decision,omitempty"`
	AsOf     *time.Time `json:"as_of,omitempty"`
	Selected int        `json:"selected"`
	Settled  int        `json:"settled"`
	Moved    int        `json:"moved_on"`
	Left     int        `json:"left"`
	InDoubt  int        `json:"in_doubt"`
	Newer    int        `json:"newer"`
	Lapsed   int        `json:"lapsed"`
	Marked   int        `json:"marked"`
	More     bool       `json:"more"`
	// Of a dry run.
	Groups  []settle.Group `json:"groups,omitempty"`
	Others  int            `json:"others,omitempty"` // records of groups that are not listed
	Sample  []recordJSON   `json:"sample,omitempty"`
	Command []string       `json:"command,omitempty"`
}

func newBulkJSON(r semel.BulkReport) bulkJSON {
	return bulkJSON{
		AsOf: optionalTime(r.AsOf), Selected: r.Selected, Settled: r.Settled, Moved: r.Moved, Left: r.Left, InDoubt: r.InDoubt,
		Newer: r.Newer, Lapsed: r.Lapsed, Marked: r.Marked, More: r.More,
	}
}

// sampled is how many records a dry run shows.
const sampled = 5

// bulkSettlement is what semel keys resolve --where was asked to do.
type bulkSettlement struct {
	bulk
	decided
	as       string
	decision semel.Decision
	result   func(semel.Record) (semel.Result, error) // for DecideResult
	// repeat are the arguments that say how to settle, for the command that
	// the dry run prints.
	repeat []string
}

func (p *program) settleMany(ctx context.Context, s store, b bulkSettlement) error {
	filter, where, err := b.filter()
	if err != nil {
		return err
	}
	asOf := time.Time{}
	if b.asOf != "" {
		if asOf, err = time.Parse(time.RFC3339Nano, b.asOf); err != nil {
			return usagef("--as-of is %q; use the time that the dry run prints, as in 2026-11-21T09:00:00.123456Z", b.asOf)
		}
	}
	if b.limit < 0 {
		return usagef("--limit is %d; it must not be negative", b.limit)
	}
	if b.apply {
		switch {
		case b.as == "":
			return usagef("--as is missing: say result, no-effect or execute-again")
		case b.asOf == "":
			return usagef("--as-of is missing: run the command without --apply first, find out what became of the effects, then run the command it prints. What you found out does not hold for a record that became unknown later")
		}
		if err := b.check(p); err != nil {
			return err
		}
	}
	guard, err := semel.New(semel.Config{Store: s, Cipher: b.cipher})
	if err != nil {
		return err
	}
	show := p.newProgress()
	defer show.end()
	resolution := semel.BulkResolution{Where: filter, AsOf: asOf, Limit: b.limit, Parallel: settle.AtOnce, Origin: settle.Origin(b.by)}
	if b.apply {
		resolution.Progress = func(r semel.BulkReport) { show.say("%d settled", r.Settled) }
		return p.settleSelected(ctx, guard, b, resolution, show)
	}
	resolution.Progress = func(r semel.BulkReport) { show.say("%d records looked at", r.Selected+r.Lapsed) }
	return p.dryRun(ctx, guard, b, resolution, where, show)
}

// settleSelected settles.
func (p *program) settleSelected(ctx context.Context, guard *semel.Guard, b bulkSettlement, resolution semel.BulkResolution, show *progress) error {
	resolution.Decide = settle.By{Decision: b.decision, Because: b.because, Who: b.by, Answer: b.result}.Decide
	r, err := guard.ResolveWhere(ctx, resolution)
	show.end()
	if printErr := p.printSettled(b, r, err); err == nil {
		err = printErr
	}
	if f := asFault(err); err == nil || f != nil {
		return err
	}
	again := fmt.Sprintf("%d records are settled, each for good. Run the same command again to go on with the rest; none is settled twice.", r.Settled)
	if ctx.Err() != nil {
		return &fault{code: exitFailed, err: errors.New("interrupted"), do: again}
	}
	return &fault{code: exitFailed, err: fmt.Errorf("the run stopped early: %w", err), do: again}
}

func (p *program) printSettled(b bulkSettlement, r semel.BulkReport, err error) error {
	if b.json {
		out := newBulkJSON(r)
		out.Decision = b.decision.String()
		return p.printJSON(out)
	}
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(w, "settled\t%d\tas %s\n", r.Settled, b.as)
	for _, line := range []struct {
		name string
		n    int
		what string
	}{
		{"moved on", r.Moved, "settled, or taken over, by somebody else; left alone"},
		{"left", r.Left, "not records of HTTP requests, which a response could be given to"},
		{"in doubt", r.InDoubt, "the store did not answer; the next run finds those that were not settled"},
		{"newer", r.Newer, "unknown since after " + timestamp(r.AsOf) + "; look at them with another dry run"},
		{"marked", r.Marked, "were in progress with a lapsed lease, and are unknown now: begin with the dry run again, then look, then settle"},
	} {
		if line.n > 0 {
			_, _ = fmt.Fprintf(w, "%s\t%d\t%s\n", line.name, line.n, line.what)
		}
	}
	if e := w.Flush(); e != nil {
		return e
	}
	if r.More && err == nil {
		_, _ = fmt.Fprintln(p.stderr, "There is more: run the same command again to go on.")
	}
	return nil
}

// dryRun says what would be settled, and how to go on.
func (p *program) dryRun(ctx context.Context, guard *semel.Guard, b bulkSettlement, resolution semel.BulkResolution, where []string, show *progress) error {
	found := settle.Groups{}
	var sample []recordJSON
	resolution.Seen = func(r semel.Record) {
		found.Add(r)
		if len(sample) < sampled {
			sample = append(sample, newRecordJSON(r))
		}
	}
	r, err := guard.ResolveWhere(ctx, resolution)
	show.end()
	if err != nil {
		return callFault("the records could not be listed", err)
	}
	out := newBulkJSON(r)
	out.DryRun, out.Sample = true, sample
	out.Groups, out.Others = found.Largest()
	if b.as != "" {
		out.Decision = b.decision.String()
	}
	if r.Selected+r.Lapsed > 0 {
		out.Command = b.command(where, r.AsOf)
	}
	if b.json {
		return p.printJSON(out)
	}
	if len(out.Command) == 0 {
		_, _ = fmt.Fprintln(p.stderr, "There are no such records.")
		return nil
	}
	return p.printDryRun(out)
}

func (p *program) printDryRun(out bulkJSON) error {
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
	say("DRY RUN: %d records are unknown", out.Selected)
	if out.Lapsed > 0 {
		say(", %d are in progress with a lapsed lease", out.Lapsed)
	}
	say(". Nothing was changed.\n\nRECORDS\tOPERATION\tCAUSE\n")
	for _, g := range out.Groups {
		why := dash(g.Cause)
		if g.Lapsed {
			why = "(in progress, lapsed)"
		}
		say("%d\t%s\t%s\n", g.Records, dash(g.Operation), why)
	}
	if out.Others > 0 {
		say("%d\t(other operations and causes)\t\n", out.Others)
	}
	say("\nSOME OF THEM\tBEGUN\tOPERATION\tACTOR\tKEY\n")
	for _, r := range out.Sample {
		begun := time.Time{}
		if r.BegunAt != nil {
			begun = *r.BegunAt
		}
		say("%s\t%s\t%s\t%s\t%s\n", r.ID, stamp(begun), dash(r.Operation), dash(r.Actor), dash(r.Key))
	}
	if out.Lapsed > 0 {
		say("\nThose that have lapsed will only be marked unknown, so that their owners cannot come back.\nThey need a dry run and a look of their own after that.\n")
	}
	say("\nFind out now what became of the effects. Then settle what was unknown as of now:\n\n  %s\n", shellWords(out.Command))
	return w.Flush()
}

// command settles what the dry run saw.
func (b *bulkSettlement) command(where []string, asOf time.Time) []string {
	words := append([]string{"semel", "keys", "resolve"}, b.repeat...)
	for _, w := range where {
		words = append(words, "--where", w)
	}
	return append(words, "--as-of", timestamp(asOf), "--apply")
}

// repeatable are the arguments of the command line that go into the command of
// a dry run, those named first, with what is missing to be filled in. The URL of a store that
// holds a secret, or comes from the environment, is not among them.
func (p *program) repeatable(cmd *cobra.Command, first ...string) (words []string) {
	url, _ := cmd.Flags().GetString("store")
	switch {
	case url == p.env["SEMEL_STORE"]:
	case withoutSecrets(url) != url:
		words = append(words, "--store", "$SEMEL_STORE")
	default:
		words = append(words, "--store", url)
	}
	for _, name := range first {
		if f := cmd.Flags().Lookup(name); f.Changed {
			words = append(words, "--"+name, f.Value.String())
		}
	}
	by := ""
	if p.env["USER"] == "" && p.env["USERNAME"] == "" {
		by = "WHO DECIDES"
	}
	for _, flag := range []struct{ name, missing string }{
		{"as", "no-effect|execute-again|result"},
		{"status", ""},
		{"header", ""},
		{"body", ""},
		{"because", "HOW YOU KNOW"},
		{"by", by},
		{"limit", ""},
		{"json", ""},
	} {
		f := cmd.Flags().Lookup(flag.name)
		switch {
		case f == nil: // the command has none
		case flag.name == "json" && f.Changed:
			words = append(words, "--json")
		case flag.name == "header" && f.Changed:
			headers, _ := cmd.Flags().GetStringArray(flag.name)
			for _, h := range headers {
				words = append(words, "--header", h)
			}
		case f.Changed:
			words = append(words, "--"+flag.name, f.Value.String())
		case flag.missing != "":
			words = append(words, "--"+flag.name, flag.missing)
		}
	}
	return words
}

// shellWords is a command as a shell takes it.
func shellWords(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		switch {
		case w == "$SEMEL_STORE":
			quoted[i] = `"$SEMEL_STORE"`
		case w != "" && !strings.ContainsFunc(w, notPlain):
			quoted[i] = w
		default:
			quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

func notPlain(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=@%+,", r))
}

// timestamp is a time of the store's clock, whole.
func timestamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// progress says on a terminal how far a command has come, once that takes time.
type progress struct {
	w     io.Writer // nil if nobody looks
	since time.Time
	last  time.Time
	wide  int
}

const progressAfter, progressEvery = 2 * time.Second, 500 * time.Millisecond

func (p *program) newProgress() *progress {
	f, ok := p.stderr.(*os.File)
	if !ok || p.env["TERM"] == "dumb" || !isatty.IsTerminal(f.Fd()) {
		return &progress{}
	}
	return &progress{w: f, since: time.Now()}
}

func (s *progress) say(format string, args ...any) {
	now := time.Now()
	if s.w == nil || now.Sub(s.since) < progressAfter || now.Sub(s.last) < progressEvery {
		return
	}
	text := fmt.Sprintf(format, args...)
	_, _ = fmt.Fprintf(s.w, "\r%-*s", s.wide, text)
	s.last, s.wide = now, len(text)
}

// end leaves nothing behind.
func (s *progress) end() {
	if s.wide > 0 {
		_, _ = fmt.Fprintf(s.w, "\r%*s\r", s.wide, "")
		s.wide = 0
	}
}
