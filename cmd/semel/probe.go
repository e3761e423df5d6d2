package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib" // sql readers of plans
	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	_ "modernc.org/sqlite" // sql readers of plans

	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
	"github.com/semelhq/semel/probe/report"
)

// Exit codes of semel probe. They are its own, so that a pipeline can tell a
// finding from a target that was not there.
const (
	probeHeld         = 0
	probeFindings     = 1
	probeInconclusive = 2
	probeUsage        = 3
	probeUnreachable  = 4
	probeFailed       = 5
)

func probeFault(code int, do string, format string, args ...any) error {
	return &fault{code: code, err: fmt.Errorf(format, args...), do: do, own: true}
}

func probeUsagef(format string, args ...any) error {
	return probeFault(probeUsage, "Correct it and run the command again. Nothing was sent.", format, args...)
}

func (p *program) probeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Judge from outside whether an operation survives duplicates, races and lost responses",
		Long: `Sends one operation twice, raced, altered, cut off and late, and judges it by its
effects: by the target's state first, the ids in the responses second, their statuses
last. It says what was established, what is inferred, and what cannot be known from
outside.

It has its own exit codes:

  0  held: no finding at or above --fail-on
  1  findings at or above --fail-on
  2  inconclusive: a precondition failed, the run was interrupted, or a dry run
     cannot make a request
  3  wrong usage, or a plan that is not valid; nothing was sent
  4  the target could not be reached
  5  failed: evidence could not be written or read`,
	}
	group(cmd)
	cmd.AddCommand(p.probeRunCommand(), p.probeInitCommand(), p.probeReportCommand(), p.probeDiffCommand(), p.probeSchemaCommand())
	return cmd
}

// probeRunSettings are the flags of semel probe run.
type probeRunSettings struct {
	send, production, full        bool
	allow, operations, only, skip []string
	width, trials, maxSends       int
	out, junit, sarif, markdown   string
	failOn, colour                choice
	json, quiet                   bool
}

func (p *program) probeRunCommand() *cobra.Command {
	s := probeRunSettings{
		failOn: choice{value: "P1", of: []string{"P0", "P1", "P2", "none"}},
		colour: choice{value: "auto", of: []string{"auto", "always", "never"}},
	}
	cmd := &cobra.Command{
		Use:   "run PLAN",
		Short: "Run a plan; without --send, show what it would send",
		Long: `Runs the experiments of a plan. Without --send nothing leaves this machine: every
request is rendered and printed, secrets replaced. With it, only hosts of the
plan's allow list, or named by --allow, are reached, redirects are not followed,
and neither more requests are sent nor more readings of the state made than the
plan's budget says. A target that the plan marks as production needs --production, and is
never raced, cut off or made to fail; --full adds no experiment there.

The evidence is written to a new folder: the plan, the exact bytes of every exchange
(HAR; of the readings of the state those before and after), the reports, and for each
finding a script that shows it again. Ctrl-C stops the run at once; the evidence is
still written. Secrets are replaced by placeholders.

` + "See semel probe --help for the exit codes.",
		Example: `  semel probe run orders.yaml
  semel probe run orders.yaml --send --allow 127.0.0.1:9000
  semel probe run orders.yaml --send --full --trials 60 --fail-on P0 --junit probe.xml --sarif probe.sarif`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return p.probeRun(cmd.Context(), args[0], s) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&s.send, "send", false, "send; without this it is a dry run")
	f.StringArrayVar(&s.allow, "allow", nil, "host:port that may be reached, in addition to those of the plan; may be repeated")
	f.BoolVar(&s.production, "production", false, "send even if the plan marks the target as production")
	f.StringArrayVar(&s.operations, "operation", nil, "run this operation only; may be repeated")
	f.BoolVar(&s.full, "full", false, "run every experiment that the plan has the settings for")
	f.StringSliceVar(&s.only, "only", nil, "run these experiments only")
	f.StringSliceVar(&s.skip, "skip", nil, "leave these experiments out")
	f.IntVar(&s.width, "width", 0, "requests in a race (default the plan's)")
	f.IntVar(&s.trials, "trials", 0, "trials of a race; more of them bound the rate of double effects more tightly (default the plan's)")
	f.IntVar(&s.maxSends, "max-sends", 0, "most requests to send, not counting those of readers (default the plan's)")
	choiceFlag(cmd, &s.failOn, "fail-on", "lowest priority of a finding that makes the exit code 1")
	f.StringVar(&s.out, "out", "", "folder for the evidence, which must not exist (default probe-RUN in the working directory)")
	f.StringVar(&s.junit, "junit", "", "also write the results to this file, in the form of JUnit")
	f.StringVar(&s.sarif, "sarif", "", "also write the findings to this file, in the form of SARIF 2.1.0")
	f.StringVar(&s.markdown, "markdown", "", "also write a summary to this file, in Markdown")
	choiceFlag(cmd, &s.colour, "colour", "colour on the terminal")
	f.BoolVar(&s.quiet, "quiet", false, "print nothing on standard error while it runs")
	jsonFlag(cmd, &s.json)
	return cmd
}

// readPlan reads and checks a plan. Its errors name file and line.
func readPlan(file string) (*plan.Plan, error) {
	pl, err := plan.ParseFile(file)
	if err == nil {
		err = pl.Validate()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, probeUsagef("the plan %s does not exist; semel probe init makes one", file)
	case err != nil:
		return nil, probeUsagef("the plan is not valid:\n%w", err)
	}
	return pl, nil
}

func experiments(flag string, names []string) (list []plan.Experiment, err error) {
	for _, n := range names {
		e := plan.Experiment(strings.TrimSpace(n))
		if !slices.Contains(plan.Experiments(), e) {
			return nil, probeUsagef("--%s: there is no experiment %q; there are %v", flag, n, plan.Experiments())
		}
		list = append(list, e)
	}
	return list, nil
}

func (p *program) probeRun(ctx context.Context, file string, s probeRunSettings) error {
	pl, err := readPlan(file)
	if err != nil {
		return err
	}
	o := probe.Options{
		Send: s.send, Allow: s.allow, Production: s.production, Operations: s.operations, Full: s.full,
		Width: s.width, Trials: s.trials, MaxSends: s.maxSends, Version: readVersion().Version, OpenSQL: openSQL,
	}
	if o.Only, err = experiments("only", s.only); err != nil {
		return err
	}
	if o.Skip, err = experiments("skip", s.skip); err != nil {
		return err
	}
	if s.width < 0 || s.trials < 0 || s.maxSends < 0 {
		return probeUsagef("--width, --trials and --max-sends must not be negative")
	}
	if s.out != "" {
		if _, err := os.Lstat(s.out); err == nil {
			return probeUsagef("--out: %s exists already, and a run is never overwritten", s.out)
		}
	}
	if s.send && !s.quiet {
		o.Progress = func(e probe.Event) {
			if e.Outcome == "" {
				_, _ = fmt.Fprintf(p.stderr, "%s: %s ... (%d requests so far)\n", printable(e.Operation), e.Experiment, e.Sent)
				return
			}
			_, _ = fmt.Fprintf(p.stderr, "%s: %s: %s: %s\n", printable(e.Operation), e.Experiment, e.Outcome, printable(e.Why))
		}
	}
	o.Source.Env = func(name string) (string, bool) {
		value, ok := p.env[name]
		if !ok && !s.send {
			return standIn(name), true // nothing is sent
		}
		return value, ok
	}
	result, err := probe.Run(ctx, pl, o)
	switch {
	case errors.Is(err, probe.ErrUnreachable):
	case errors.Is(err, probe.ErrNotAllowed):
		return probeFault(probeUsage, "Name the target in the plan's allow list, or with --allow host:port. Nothing was sent.", "%w", err)
	case errors.Is(err, probe.ErrProduction):
		return probeFault(probeUsage, "If it is meant, say so with --production. Nothing was sent.", "%w", err)
	case err != nil:
		return probeUsagef("%w", err)
	}
	if !s.send {
		return p.planned(result, s.json)
	}
	unreachable := err
	text, err := os.ReadFile(file)
	if err != nil {
		return probeFault(probeFailed, "A retry sends everything again.", "the plan cannot be read again: %w", err)
	}
	dir := s.out
	if dir == "" {
		dir = "probe-" + result.Run.ID
	}
	run := result.Run
	if err := report.Write(dir, run, report.Files{Plan: text, HAR: result.WriteHAR}); err != nil {
		return probeFault(probeFailed, "The run is lost; a retry sends everything again.", "the evidence cannot be written: %w", err)
	}
	for path, write := range map[string]func(io.Writer) error{
		s.junit:    func(w io.Writer) error { return report.JUnit(w, run) },
		s.sarif:    func(w io.Writer) error { return report.SARIF(w, run) },
		s.markdown: func(w io.Writer) error { return report.Markdown(w, run) },
	} {
		if path != "" {
			err = errors.Join(err, report.WriteFile(path, write))
		}
	}
	if err != nil {
		return probeFault(probeFailed, "The evidence is in "+dir+", and semel probe report prints it in any form. A retry sends everything again.", "a report cannot be written: %w", err)
	}
	if s.json {
		err = report.JSON(p.stdout, run)
	} else {
		err = report.Terminal(p.stdout, run, report.TerminalOptions{Colour: p.colour(s.colour.value), Evidence: dir})
	}
	if err != nil {
		return probeFault(probeFailed, "The evidence is in "+dir+".", "the report cannot be printed: %w", err)
	}
	if unreachable != nil {
		return probeFault(probeUnreachable, "Start the target or correct the plan. What was tried is in "+dir+"; a retry is safe.", "%w", unreachable)
	}
	return p.judged(run, s.failOn.value, dir)
}

// judged is the exit code of a run.
func (p *program) judged(run *evidence.Run, failOn, dir string) error {
	if worst := run.Worst(); worst != "" && failOn != "none" && string(worst) <= failOn {
		n := 0
		for _, o := range run.Operations {
			for _, f := range o.Findings {
				if string(f.Priority) <= failOn {
					n++
				}
			}
		}
		return probeFault(probeFindings, "The evidence is in "+dir+".", "findings at or above %s: %d", failOn, n)
	}
	if run.Interrupted != "" {
		return probeFault(probeInconclusive, "What was done is in "+dir+".", "interrupted: %s", run.Interrupted)
	}
	if !run.Conclusive() {
		return probeFault(probeInconclusive, "The reason is beside each experiment; the evidence is in "+dir+".", "inconclusive: not everything could be shown")
	}
	return nil
}

// standIn takes the place of a variable that is not set, in a dry run. It is
// base64 of at least 24 bytes, which some secrets have to be.
func standIn(name string) string {
	s := "unset" + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, strings.ToLower(name))
	return s + strings.Repeat("0", max(32-len(s), (4-len(s)%4)%4))
}

// planned prints what a dry run would send, and why not of the rest.
func (p *program) planned(r *probe.Result, asJSON bool) error {
	type gap struct {
		operation string
		evidence.Experiment
	}
	var gaps []gap
	var failed error
	for _, o := range r.Run.Operations {
		for _, e := range o.Experiments {
			if e.Outcome == evidence.NotRun && e.Why == probe.DryRun {
				continue
			}
			gaps = append(gaps, gap{o.Name, e})
			if e.Outcome == evidence.Inconclusive {
				failed = probeFault(probeInconclusive, "The reason is beside each experiment. Nothing was sent.", "not everything could be planned")
			}
		}
	}
	reads := r.PlannedReads
	for _, q := range r.Planned {
		if q.Role == evidence.RoleRead {
			reads += q.Times
		}
	}
	warning := ""
	if n := r.PlannedSends(); n > r.MaxSends {
		warning = fmt.Sprintf("%d requests are planned and max_sends is %d: the run would end before all is done; raise it in the plan's budget, or with --max-sends", n, r.MaxSends)
	}
	if asJSON {
		type planned struct {
			Operation  string `json:"operation"`
			Experiment string `json:"experiment"`
			Role       string `json:"role"`
			Times      int    `json:"times"`
			Note       string `json:"note,omitempty"`
			Request    string `json:"request"`
		}
		type unplanned struct {
			Operation  string `json:"operation"`
			Experiment string `json:"experiment"`
			Outcome    string `json:"outcome"`
			Why        string `json:"why"`
		}
		list, not := []planned{}, []unplanned{}
		for _, q := range r.Planned {
			list = append(list, planned{q.Operation, string(q.Experiment), string(q.Role), q.Times, q.Note, string(q.Bytes)})
		}
		for _, e := range gaps {
			not = append(not, unplanned{e.operation, e.Name, string(e.Outcome), e.Why})
		}
		out := map[string]any{
			"dry_run": true, "budget": r.Run.Budget, "max_sends": r.MaxSends, "planned_sends": r.PlannedSends(), "planned_reads": reads,
			"targets": r.Run.Targets, "requests": list, "not_planned": not,
		}
		if warning != "" {
			out["warning"] = warning
		}
		if err := p.printJSON(out); err != nil {
			return err
		}
		return failed
	}
	for _, q := range r.Planned {
		times := "once"
		if q.Times != 1 {
			times = fmt.Sprintf("%d times", q.Times)
		}
		_, _ = fmt.Fprintf(p.stdout, "# %s, %s: %s, %s", printable(q.Operation), q.Experiment, printable(string(q.Role)), times)
		if q.Note != "" {
			_, _ = fmt.Fprintf(p.stdout, "; %s", printable(q.Note))
		}
		_, _ = fmt.Fprintln(p.stdout)
		for line := range strings.SplitSeq(strings.ReplaceAll(string(q.Bytes), "\r\n", "\n"), "\n") {
			_, _ = fmt.Fprintf(p.stdout, "    %s\n", printable(line))
		}
	}
	for _, e := range gaps {
		what := "nothing is planned"
		if slices.ContainsFunc(r.Planned, func(q probe.Planned) bool {
			return q.Operation == e.operation && string(q.Experiment) == e.Name
		}) {
			what = "not all is planned"
		}
		_, _ = fmt.Fprintf(p.stdout, "# %s, %s: %s: %s\n", printable(e.operation), e.Name, what, printable(e.Why))
	}
	apart := ""
	if slices.ContainsFunc(r.Run.Operations, func(o evidence.Operation) bool {
		return slices.ContainsFunc(o.Readers, func(rd evidence.Reader) bool { return rd.Uncounted })
	}) {
		apart = "; what readers by a command send is not counted"
	}
	_, err := fmt.Fprintf(p.stdout, "# dry run: nothing was sent. With --send it would be about %d requests and %d to read the state, and never more than %d and %d, to %s%s\n",
		r.PlannedSends(), reads, r.MaxSends, r.Run.Budget-r.MaxSends, strings.Join(r.Run.Targets, ", "), apart)
	if warning != "" {
		_, err = fmt.Fprintf(p.stdout, "# warning: %s\n", warning)
	}
	if err != nil {
		return err
	}
	return failed
}

// openSQL opens databases for the sql readers of plans.
func openSQL(_ context.Context, driver, dsn string) (*sql.DB, error) {
	switch driver {
	case "postgres":
		return sql.Open("pgx", dsn)
	case "sqlite":
		return sql.Open("sqlite", dsn)
	}
	return nil, fmt.Errorf("the driver %s is not built in; use postgres or sqlite, or a command reader", driver)
}

// colour reports whether to colour standard output.
func (p *program) colour(when string) bool {
	if when != "auto" {
		return when == "always"
	}
	f, ok := p.stdout.(*os.File)
	return ok && p.env["NO_COLOR"] == "" && p.env["TERM"] != "dumb" && isatty.IsTerminal(f.Fd())
}

func (p *program) probeReportCommand() *cobra.Command {
	format := choice{value: "terminal", of: []string{"terminal", "html", "json", "record", "junit", "sarif", "markdown"}}
	colour := choice{value: "auto", of: []string{"auto", "always", "never"}}
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "report DIR",
		Short:   "Show a run again, in another form",
		Long:    "Reads the folder of a run and prints a report of it. Nothing is sent and nothing is changed.",
		Example: "  semel probe report probe-20261121T101500Z-3f2a\n  semel probe report DIR --format html > report.html\n  semel probe report DIR --format sarif > probe.sarif",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			folder, err := openRun(args[0])
			if err != nil {
				return err
			}
			if asJSON {
				format.value = "json"
			}
			switch run := folder.Run; format.value {
			case "html":
				err = report.HTML(p.stdout, run, folder.Extra)
			case "json":
				err = report.JSON(p.stdout, run)
			case "record":
				err = report.Record(p.stdout, run)
			case "junit":
				err = report.JUnit(p.stdout, run)
			case "sarif":
				err = report.SARIF(p.stdout, run)
			case "markdown":
				err = report.Markdown(p.stdout, run)
			default:
				err = report.Terminal(p.stdout, run, report.TerminalOptions{Colour: p.colour(colour.value), Evidence: args[0]})
			}
			for _, m := range folder.Missing {
				_, _ = fmt.Fprintf(p.stderr, "missing in the folder: %s\n", printable(m))
			}
			return err
		},
	}
	choiceFlag(cmd, &format, "format", "form of the report")
	choiceFlag(cmd, &colour, "colour", "colour on the terminal")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func openRun(dir string) (*report.Folder, error) {
	folder, err := report.Open(filepath.Clean(dir))
	if err != nil {
		return nil, probeFault(probeFailed, "Name the folder that semel probe run has written. Nothing was changed.", "%w", err)
	}
	return folder, nil
}

func (p *program) probeDiffCommand() *cobra.Command {
	var asJSON, asMarkdown, exitCode bool
	cmd := &cobra.Command{
		Use:   "diff RUN1 RUN2",
		Short: "Show what changed between two runs, the older first",
		Long: `Compares the folders of two runs: fields of the verdicts, findings that are new,
fixed or unproven, and experiments with another outcome. With --exit-code
the exit code is 1 if there are findings that the first run did not have.`,
		Example: "  semel probe diff probe-before probe-after --exit-code",
		Args:    cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			before, err := openRun(args[0])
			if err != nil {
				return err
			}
			after, err := openRun(args[1])
			if err != nil {
				return err
			}
			d := report.Compare(before.Run, after.Run)
			switch {
			case asJSON:
				err = d.JSON(p.stdout)
			case asMarkdown:
				err = d.Markdown(p.stdout)
			default:
				err = d.Text(p.stdout)
			}
			if err != nil || !exitCode {
				return err
			}
			for _, o := range d.Operations {
				if len(o.New) > 0 {
					return probeFault(probeFindings, "They are listed above.", "the second run has new findings")
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asMarkdown, "markdown", false, "print Markdown")
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 1 if there are new findings")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (p *program) probeSchemaCommand() *cobra.Command {
	var record bool
	cmd := &cobra.Command{
		Use:     "schema",
		Short:   "Print the JSON Schema of plans",
		Long:    "Prints the JSON Schema (draft 2020-12) of plans, for editors and checks; with\n--record that of record.json, the least that a run leaves.",
		Example: "  semel probe schema > plan.schema.json\n  semel probe schema --record > record.schema.json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			schema := plan.Schema()
			if record {
				schema = evidence.RecordJSONSchema()
			}
			_, err := p.stdout.Write(schema)
			return err
		},
	}
	cmd.Flags().BoolVar(&record, "record", false, "the schema of record.json instead")
	return cmd
}
