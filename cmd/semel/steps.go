package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/steps"
	"github.com/semelhq/semel/store/sqlite"
)

// journalOf returns the journal of operations in a store's database.
func journalOf(s store) steps.Store {
	switch s := s.(type) {
	case *postgresStore:
		return s.Steps()
	case *sqlite.Store:
		return s.Steps()
	}
	return nil
}

func (p *program) stepsCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "steps",
		Short: "Show operations in steps, and settle those that cannot continue",
		Long: `Shows the operations of a service that are done in steps, and how far each has come.
An operation is

  open      being executed, or waiting for a completer of the service to continue it
  held      waiting for a person: a step is unknown, its steps differ from those of
            the present program, or it failed too often
  finished  its record is complete

A step is started, done, failed for good, free or unknown. Free means that its call
certainly had no effect and will be made again. Unknown means that a person must find
out whether its call had an effect, by the key that it was made under.

Journals are in the database of the service: PostgreSQL or a SQLite file. The journal
of a memory: store is in the service's process, and only Journal.List and Resolve
reach it.

Each decision made here is recorded, with who decided and why: semel steps show prints
it, and so do semel audit search --key KEY and semel audit trace KEY.`,
	})
	cmd.AddCommand(p.stepsListCommand(), p.stepsShowCommand(), p.stepsResolveCommand(), p.stepsRetryCommand())
	return cmd
}

// stepsAdmin adds --store to a command, which has fn look at the journal in it.
func (p *program) stepsAdmin(cmd *cobra.Command, fn func(ctx context.Context, j steps.Store, args []string) error) {
	var url string
	cmd.Flags().StringVar(&url, "store", "", "store with the service's journal, such as sqlite:app.db or postgres://app@db/app")
	fromEnv(cmd, "store")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if u, err := parseStoreURL(url); err == nil && u.kind == "memory" {
			return usagef("%s: the journal of a memory: store lives in its service's process and cannot be looked at from outside; use %s", named(cmd, "store"), outboxForms)
		}
		s, err := openAdmin(cmd.Context(), cmd, url)
		if err != nil {
			return err
		}
		defer func() {
			if e := s.Close(context.Background()); e != nil && err == nil {
				err = stepsFault("the store could not be closed", e)
			}
		}()
		return fn(cmd.Context(), journalOf(s), args)
	}
}

func stepsFault(what string, err error) error {
	return &fault{
		code: exitFailed, err: fmt.Errorf("%s: %w", what, err),
		do: "The store did not respond as expected. Looking is always safe to repeat; before repeating a change, check whether it took effect: semel steps show.",
	}
}

// operationJSON is an operation as printed. The names are stable.
type operationJSON struct {
	Number     uint64      `json:"number"`
	Phase      steps.Phase `json:"phase"`
	Tenant     string      `json:"tenant,omitempty"`
	Actor      string      `json:"actor,omitempty"`
	Operation  string      `json:"operation"`
	Key        string      `json:"key"`
	Fence      uint64      `json:"fence"`
	Attempts   int         `json:"attempts"`
	Cause      string      `json:"cause,omitempty"`
	Changed    time.Time   `json:"changed_at"`
	InputBytes int         `json:"input_bytes"`
	// Of show.
	Steps     []stepJSON         `json:"steps,omitempty"`
	Decisions []stepDecisionJSON `json:"decisions,omitempty"`
}

type stepJSON struct {
	Position    int         `json:"position"`
	Name        string      `json:"name"`
	State       steps.State `json:"state"`
	ChildKey    string      `json:"child_key"` // what calls of it are made under
	At          time.Time   `json:"at"`
	AgeSeconds  float64     `json:"age_seconds"` // since it was last started
	InputBytes  int         `json:"input_bytes"`
	ResultBytes int         `json:"result_bytes"`
	Cause       string      `json:"cause,omitempty"`
}

type stepDecisionJSON struct {
	Kind    semel.TrailKind `json:"kind"`
	What    string          `json:"what"`
	By      string          `json:"by"`
	Because string          `json:"because"`
	At      time.Time       `json:"at"`
}

func newStepDecision(e semel.TrailEntry) stepDecisionJSON {
	return stepDecisionJSON{e.Kind, e.Label, strings.TrimPrefix(e.RequestID, "operator:"), e.Cause, e.At.UTC()}
}

func newOperationJSON(o steps.Operation) operationJSON {
	j := operationJSON{
		Number: o.Number, Phase: o.Phase, Tenant: o.Identity.Tenant, Actor: o.Identity.Actor, Operation: o.Identity.Operation, Key: o.Identity.Key,
		Fence: o.Fence, Attempts: o.Attempts, Cause: o.Cause, Changed: o.Changed.UTC(), InputBytes: len(o.Input),
	}
	for _, s := range o.Steps {
		key, _ := o.Identity.ChildKey(s.Name) // what is malformed can be looked at all the same
		j.Steps = append(j.Steps, stepJSON{s.Position, s.Name, s.State, key, s.At.UTC(), s.Age.Seconds(), len(s.Input), len(s.Result), s.Cause})
	}
	for _, e := range o.Decisions {
		j.Decisions = append(j.Decisions, newStepDecision(e))
	}
	return j
}

func (p *program) stepsListCommand() *cobra.Command {
	var (
		page      pageFlags
		f         steps.Filter
		operation string
		phase     = choice{of: []string{string(steps.PhaseOpen), string(steps.PhaseHeld), string(steps.PhaseFinished)}}
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List operations that are not finished",
		Long: `Lists operations in the order in which they were begun, without their steps and
inputs: those that are open or held, unless --phase says otherwise. With --json the
output is one document:

  {"operations": [{"number": ..., "phase": ..., "operation": ..., "key": ..., ...}], "next": 123}

"next" is there if there may be more; it is the value for --after.`,
		Example: `  semel steps list --store sqlite:app.db --phase held
  semel steps list --store sqlite:app.db --key order-17
  semel steps list --store postgres://app@db/app --all --json | jq '.operations[].number'`,
		Args: cobra.NoArgs,
	}
	p.stepsAdmin(cmd, func(ctx context.Context, j steps.Store, _ []string) error {
		if err := page.check(); err != nil {
			return err
		}
		f.Phases = []steps.Phase{steps.PhaseOpen, steps.PhaseHeld}
		if phase.value != "" {
			f.Phases = []steps.Phase{steps.Phase(phase.value)}
		}
		if operation != "" {
			f.Operations = []string{operation}
		}
		return listing[steps.Operation]{
			p: p, name: "operations", none: "There are no such operations.",
			header: "NUMBER\tPHASE\tOPERATION\tTENANT\tKEY\tCHANGED\tATTEMPTS\tCAUSE",
			row: func(o steps.Operation) []string {
				return []string{
					fmt.Sprint(o.Number), string(o.Phase), dash(o.Identity.Operation), dash(o.Identity.Tenant), dash(o.Identity.Key),
					stamp(o.Changed), fmt.Sprint(o.Attempts), dash(o.Cause),
				}
			},
			json: func(o steps.Operation) any { return newOperationJSON(o) },
		}.print(page.json, page.all, page.after, page.limit, func(after uint64) ([]steps.Operation, uint64, error) {
			f.After, f.Limit = after, page.limit
			list, err := j.List(ctx, f)
			if err != nil {
				return nil, 0, stepsFault("the operations could not be listed", err)
			}
			if len(list) == 0 {
				return nil, 0, nil
			}
			return list, list[len(list)-1].Number, nil
		})
	})
	choiceFlag(cmd, &phase, "phase", "only operations in this phase")
	cmd.Flags().StringVar(&operation, "operation", "", `only this operation's, such as "POST /orders"`)
	cmd.Flags().StringVar(&f.Key, "key", "", "only with this key, in any scope")
	page.add(cmd, "number")
	return cmd
}

func oneOperation(_ *cobra.Command, args []string) error {
	if len(args) == 1 {
		if n, err := strconv.ParseUint(args[0], 10, 63); err == nil && n > 0 {
			return nil
		}
	}
	return usagef("name one operation by its number, which semel steps list prints")
}

// findOperation returns the operation with this number, and its steps.
func findOperation(ctx context.Context, j steps.Store, number string) (o steps.Operation, err error) {
	n, _ := strconv.ParseUint(number, 10, 63) // oneOperation has looked
	list, err := j.List(ctx, steps.Filter{After: n - 1, Limit: 1})
	if err == nil && len(list) == 1 && list[0].Number == n {
		o, err = j.Find(ctx, list[0].Identity)
	} else if err == nil {
		err = steps.ErrNotFound
	}
	switch {
	case errors.Is(err, steps.ErrNotFound):
		return o, &fault{
			code: exitNotFound, err: fmt.Errorf("there is no operation with the number %s", number),
			do: "It was finished and swept, or is in another store. Nothing was changed; semel steps list shows what there is.",
		}
	case err != nil:
		return o, stepsFault("the operation could not be read", err)
	}
	return o, nil
}

func findStep(o steps.Operation, name string) (steps.Step, error) {
	for _, s := range o.Steps {
		if s.Name == name {
			return s, nil
		}
	}
	return steps.Step{}, &fault{
		code: exitNotFound, err: fmt.Errorf("the operation %d has no step %q on record", o.Number, name),
		do: fmt.Sprintf("semel steps show %d prints its steps. Nothing was changed.", o.Number),
	}
}

func (p *program) stepsShowCommand() *cobra.Command {
	var (
		asJSON, input, result bool
		step                  string
		keys                  encryptionFlag
	)
	cmd := &cobra.Command{
		Use:   "show NUMBER",
		Short: "Show one operation and its steps",
		Long: `Shows an operation by its number, which semel steps list prints: its steps, with the
keys that their calls were made under, and who decided what about it. Of inputs and
results it prints the size. --input prints the input of the operation, or with --step
that of the step, as it is, and nothing else; --result prints the result of the step.`,
		Example: `  semel steps show --store sqlite:app.db 17
  semel steps show --store sqlite:app.db 17 --json | jq -r '.steps[] | select(.state == "unknown").child_key'
  semel steps show --store sqlite:app.db 17 --step charge --input`,
		Args: oneOperation,
	}
	p.stepsAdmin(cmd, func(ctx context.Context, j steps.Store, args []string) error {
		switch {
		case asJSON && (input || result), input && result:
			return usagef("--json, --input and --result do not go together")
		case result && step == "", step != "" && !input && !result:
			return usagef("--step goes with --input or --result, and --result needs it")
		}
		o, err := findOperation(ctx, j, args[0])
		if err != nil {
			return err
		}
		if input || result {
			if o, err = keys.decrypted(ctx, cmd, j, o); err != nil {
				return err
			}
		}
		bytes := o.Input
		if step != "" {
			s, err := findStep(o, step)
			if err != nil {
				return err
			}
			if bytes = s.Input; result {
				bytes = s.Result
			}
		}
		switch {
		case input || result:
			_, err := p.stdout.Write(bytes)
			return err
		case asJSON:
			return p.printJSON(newOperationJSON(o))
		}
		return p.printOperation(newOperationJSON(o))
	})
	jsonFlag(cmd, &asJSON)
	cmd.Flags().StringVar(&step, "step", "", "with --input or --result: name of the step")
	keys.add(cmd, "the service's file of encryption keys, for --input and --result, if its journal is encrypted")
	fromEnv(cmd, encryptionFlagName)
	cmd.Flags().BoolVar(&input, "input", false, "print the input, as it is")
	cmd.Flags().BoolVar(&result, "result", false, "print the result of a step, as it is; of one that failed, the text of its error")
	return cmd
}

// decrypted returns an operation with its inputs and results decrypted.
func (e *encryptionFlag) decrypted(ctx context.Context, cmd *cobra.Command, store steps.Store, o steps.Operation) (steps.Operation, error) {
	cipher, err := e.cipher(cmd)
	if err != nil {
		return o, err
	}
	j, err := steps.New(steps.Config{Store: store, Cipher: cipher})
	if err != nil {
		return o, err
	}
	o, err = j.Find(ctx, o.Identity)
	switch {
	case errors.Is(err, semel.ErrUnreadable):
		return o, &fault{
			code: exitRefused, err: err,
			do: fmt.Sprintf("Name the service's file of keys with --%s, with the key in it. Nothing was changed.", encryptionFlagName),
		}
	case err != nil:
		return o, stepsFault("the operation could not be read", err)
	}
	return o, nil
}

func (p *program) printOperation(o operationJSON) error {
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" {
			_, _ = fmt.Fprintf(w, "%s\t%s\n", name, printable(value))
		}
	}
	line("number", fmt.Sprint(o.Number))
	line("phase", string(o.Phase))
	line("operation", o.Operation)
	line("tenant", o.Tenant)
	line("actor", o.Actor)
	line("key", o.Key)
	line("fence", fmt.Sprint(o.Fence))
	line("input", fmt.Sprintf("%d bytes", o.InputBytes))
	line("changed", stamp(o.Changed))
	line("attempts", fmt.Sprintf("%d of completers that failed", o.Attempts))
	line("cause", o.Cause)
	for _, d := range o.Decisions {
		line("decided", fmt.Sprintf("%s %s (%s) by %s: %s", stamp(d.At), d.Kind, d.What, d.By, d.Because))
	}
	if err := w.Flush(); err != nil || len(o.Steps) == 0 {
		return err
	}
	unknown := ""
	_, _ = fmt.Fprint(w, "\nSTEP\tSTATE\tRECORDED\tAGE\tINPUT\tRESULT\tCHILD KEY\tCAUSE\n")
	for _, s := range o.Steps {
		if s.State == steps.StateUnknown {
			unknown = s.Name
		}
		age := time.Duration(s.AgeSeconds * float64(time.Second)).Round(time.Second)
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%v\t%d bytes\t%d bytes\t%s\t%s\n", dash(s.Name), s.State, stamp(s.At), age, s.InputBytes, s.ResultBytes, dash(s.ChildKey), dash(s.Cause))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	switch {
	case unknown != "":
		_, _ = fmt.Fprintf(p.stderr, "Find out, with the child key, what became of the call of %s, once it cannot be under way any more. Then: semel steps resolve.\n", printable(unknown))
	case o.Phase == steps.PhaseHeld:
		_, _ = fmt.Fprintln(p.stderr, "Once its cause is mended: semel steps retry.")
	}
	return nil
}

// stepsDecide is what commands that decide on one operation do: by is told to decide,
// and what it comes to is printed.
func (p *program) stepsDecide(ctx context.Context, store steps.Store, number string, d *decided, decide func(o steps.Operation, j *steps.Journal) error) error {
	if err := d.check(p); err != nil {
		return err
	}
	// What the service's own journal bounds is bounded by the database here.
	j, err := steps.New(steps.Config{Store: store, MaxResult: 1 << 20, Cipher: d.cipher})
	if err != nil {
		return err
	}
	o, err := findOperation(ctx, store, number)
	if err != nil {
		return err
	}
	err = decide(o, j)
	switch {
	case err == nil:
	case asFault(err) != nil:
		return err
	case errors.Is(err, steps.ErrStale):
		return &fault{
			code: exitRefused, err: fmt.Errorf("the operation %s has moved on since it was read", number),
			do: "A completer, or another person, has continued it. Nothing was changed by this command; look again: semel steps show " + number,
		}
	case errors.Is(err, steps.ErrNotUnknown), errors.Is(err, steps.ErrNotHeld), errors.Is(err, steps.ErrCorrupt):
		return &fault{code: exitRefused, err: err, do: "Nothing was changed. Look again: semel steps show " + number}
	default:
		return stepsFault("the decision could not be written", err)
	}
	if o, err = findOperation(ctx, store, number); err != nil {
		return err
	}
	if d.json {
		return p.printJSON(newOperationJSON(o))
	}
	what := "-"
	if n := len(o.Decisions); n > 0 {
		what = o.Decisions[n-1].Label
	}
	_, err = fmt.Fprintf(p.stdout, "operation %s (%s, key %s): %s\nA completer of the service goes on with it.\n", number, printable(o.Identity.Operation), printable(o.Identity.Key), printable(what))
	return err
}

func (p *program) stepsResolveCommand() *cobra.Command {
	var (
		step, result string
		d            decided
		keys         encryptionFlag
		as           = choice{of: []string{string(steps.StateDone), string(steps.StateFailed), string(steps.StateFree)}}
	)
	cmd := &cobra.Command{
		Use:   "resolve NUMBER --step NAME --as done|failed|free",
		Short: "Say what became of the call of an unknown step",
		Long: `Settles a step whose state is unknown according to what you have found out. A
completer of the service then continues the operation:

  done    it took effect; --result is the result of the call, in JSON, as the step
          records it: the steps after it get that
  failed  it failed for good, with the text in --result: the operation goes on as it
          does after such an error
  free    it had no effect: it is called again, under the same key

A call may still be under way when its step becomes unknown. So look for its effect
only after the longest time that the call can take; semel steps show prints its age.`,
		Example: `  semel steps resolve --store sqlite:app.db 17 --step charge --as free --because 'not in the ledger of the bank'
  semel steps resolve --store sqlite:app.db 17 --step charge --as done --result '{"id": "ch_1"}' --because 'the bank has ch_1'
  semel steps resolve --store sqlite:app.db 17 --step charge --as done --result @charge.json --because 'the bank has it'`,
		Args: oneOperation,
	}
	p.stepsAdmin(cmd, func(ctx context.Context, s steps.Store, args []string) error {
		given := cmd.Flags().Changed("result")
		switch {
		case step == "":
			return usagef("--step is missing: name the unknown step, which semel steps show prints")
		case as.value == "":
			return usagef("--as is missing: say done, failed or free")
		case given != (as.value != string(steps.StateFree)):
			return usagef("--result goes with --as done and --as failed, which need it")
		}
		var b []byte
		if given {
			var err error
			if b, err = p.readBody(result); err != nil {
				return err
			}
		}
		var err error
		if d.cipher, err = keys.cipher(cmd); err != nil {
			return err
		}
		r := steps.Resolution{Step: step, To: steps.State(as.value), Result: b, Because: d.because}
		return p.stepsDecide(ctx, s, args[0], &d, func(o steps.Operation, j *steps.Journal) error {
			if _, err := findStep(o, step); err != nil {
				return err
			}
			r.By = d.by
			err := j.Resolve(ctx, o.Identity, r)
			if errors.Is(err, steps.ErrInvalid) || errors.Is(err, steps.ErrTooLarge) {
				return usagef("%w", err)
			}
			return err
		})
	})
	cmd.Flags().StringVar(&step, "step", "", "name of the unknown step (required)")
	choiceFlag(cmd, &as, "as", "what became of its call (required)")
	keys.add(cmd, "the service's file of encryption keys: the result is encrypted as those of its journal are")
	fromEnv(cmd, encryptionFlagName)
	cmd.Flags().StringVar(&result, "result", "", "what the call answered, in JSON, or the text of its error: the text itself, @file, or - for standard input")
	d.add(cmd)
	return cmd
}

func (p *program) stepsRetryCommand() *cobra.Command {
	var d decided
	cmd := &cobra.Command{
		Use:   "retry NUMBER",
		Short: "Continue a held operation, after its cause was mended",
		Long: `Makes a held operation open again. Its attempts count anew. A completer of the service
continues it after the last step that was done. It is held again if its cause is still
there; settle an unknown step with semel steps resolve.`,
		Example: `  semel steps retry --store sqlite:app.db 17 --because 'the bank answers again'`,
		Args:    oneOperation,
	}
	p.stepsAdmin(cmd, func(ctx context.Context, s steps.Store, args []string) error {
		return p.stepsDecide(ctx, s, args[0], &d, func(o steps.Operation, j *steps.Journal) error {
			err := j.Retry(ctx, o.Identity, d.by, d.because)
			if errors.Is(err, steps.ErrInvalid) {
				return usagef("%w", err)
			}
			return err
		})
	})
	d.add(cmd)
	cmd.Flags().Lookup("because").Usage = "why; goes into the audit trail (required)"
	return cmd
}
