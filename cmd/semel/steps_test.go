package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/steps"
)

// A person looks at operations in steps, finds the unknown one, and says what became of
// it; the completer goes on. Inputs and results are told on demand only, and what was
// decided is on record, where the operation is looked at and in the trail.
func TestStepsCommands(t *testing.T) {
	for name, url := range map[string]func(testing.TB) string{
		"sqlite": func(testing.TB) string { return newStore(t) }, "postgres": func(t testing.TB) string { return testenv.Postgres(t) },
	} {
		t.Run(name, func(t *testing.T) { testStepsCommands(t, url(t), "") })
	}
	t.Run("encrypted", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "keys")
		noError(t, os.WriteFile(file, []byte("a: YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=\n"), 0o600))
		testStepsCommands(t, newStore(t), file)
	})
}

func testStepsCommands(t *testing.T, url, encryptionKeys string) {
	s, err := openStore(t.Context(), nil, url, 0, func(int, error) {})
	noError(t, err)
	defer func() { noError(t, s.Close(context.Background())) }()
	cipher, err := (&encryptionFlag{encryptionKeys}).cipher(nil)
	noError(t, err)
	j, err := steps.New(steps.Config{Store: journalOf(s), LookAfter: time.Millisecond, Cipher: cipher})
	noError(t, err)
	guard, err := semel.New(semel.Config{Store: s, Cipher: cipher, Policy: semel.Policy{OnCrash: semel.CrashRetry}})
	noError(t, err)
	identity := func(key string) semel.Identity {
		return semel.Identity{Scope: semel.Scope{Tenant: "acme", Operation: "orders.create"}, Key: key}
	}
	var fails error
	charge := func(ctx context.Context, card string) (string, error) {
		// The service that is called keeps a record of its own under the child key.
		_, err := guard.Do(ctx, semel.Submit{Identity: semel.Identity{Scope: semel.Scope{Operation: "charges.create"}, Key: semel.CurrentStep(ctx).Key}}, func(context.Context) (semel.Result, error) {
			return semel.Result{Label: "201"}, nil
		})
		return "charged " + card, errors.Join(err, fails)
	}
	order := func(ctx context.Context, card string) (string, error) {
		if _, err := steps.Local(ctx, "reserve", 1, func(context.Context, int) (int, error) { return 1, nil }); err != nil {
			return "", err
		}
		return steps.Remote(ctx, "charge", steps.Policy{}, card, charge)
	}
	place := func(key string) {
		t.Helper()
		_, _, err := semel.Call(t.Context(), guard, semel.Submit{Identity: identity(key), Fingerprint: semel.FingerprintOf([]byte(key))}, func(ctx context.Context) (string, error) {
			return steps.Run(ctx, j, "card 4111 of "+key, order)
		})
		if (err == nil) != (fails == nil) {
			t.Fatal(err)
		}
	}
	completer, err := steps.NewCompleter(steps.CompleterConfig{
		Journal: j, Guard: guard, Operations: map[string]steps.Handler{"orders.create": steps.Handle(j, order, nil)}, MaxAttempts: 1, MinBackoff: time.Millisecond,
	})
	noError(t, err)
	until := func(phase steps.Phase, keys ...string) {
		t.Helper()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for late := time.Now().Add(time.Minute); len(keys) > 0; <-tick.C { // they are to be due first
			noError(t, completer.Round(t.Context()).Err)
			o, err := j.Find(t.Context(), identity(keys[0]))
			noError(t, err)
			if o.Phase == phase {
				keys = keys[1:]
			} else if time.Now().After(late) {
				t.Fatalf("%s is %s", keys[0], o.Phase)
			}
		}
	}
	place("well")
	until(steps.PhaseFinished, "well")
	fails = errors.New("the line broke")
	for _, key := range []string{"done", "free", "failed", "retried"} {
		place(key)
	}
	until(steps.PhaseHeld, "done", "free", "failed", "retried")
	fails = nil

	run := func(code int, args ...string) string {
		t.Helper()
		out := semelWith([]string{"USER=ada", "SEMEL_ENCRYPTION_KEYS=" + encryptionKeys}, `"charged"`, append(append([]string{"steps"}, args...), "--store", url)...)
		if out.code != code {
			t.Fatalf("%v: exit %d: %s%s", args, out.code, out.stdout, out.stderr)
		}
		if strings.Contains(out.stdout+out.stderr, "4111") && !strings.Contains(strings.Join(args, " "), "--input") {
			t.Errorf("%v tells an input: %s", args, out.stdout)
		}
		return out.stdout + out.stderr
	}
	contains := func(got string, all ...string) {
		t.Helper()
		for _, w := range all {
			if !strings.Contains(got, w) {
				t.Errorf("%q is not in\n%s", w, got)
			}
		}
	}
	var doc struct {
		Operations []struct {
			Number                uint64
			Phase, Key, Operation string
		}
		Next uint64
	}
	noError(t, json.Unmarshal([]byte(run(exitOK, "list", "--limit", "2", "--json")), &doc))
	if len(doc.Operations) != 2 || doc.Next != doc.Operations[1].Number || doc.Operations[0].Key != "done" || doc.Operations[0].Phase != "held" {
		t.Errorf("listed: %+v", doc)
	}
	noError(t, json.Unmarshal([]byte(run(exitOK, "list", "--all", "--json")), &doc))
	number := map[string]string{}
	for _, o := range doc.Operations {
		number[o.Key] = fmt.Sprint(o.Number)
	}
	if len(number) != 4 {
		t.Errorf("not finished are %v", number)
	}
	if encryptionKeys != "" {
		out := semelWith(nil, "", "steps", "show", "--store", url, number["done"], "--input")
		if out.code != exitRefused || out.stdout != "" || !strings.Contains(out.stderr, "--encryption-keys") {
			t.Errorf("without its key: %+v", out)
		}
	}
	if all := run(exitOK, "list", "--key", "free", "--operation", "orders.create", "--phase", "held"); strings.Count(all, "\n") != 2 {
		t.Errorf("with the key:\n%s", all)
	}
	contains(run(exitOK, "list", "--operation", "other"), "There are no such operations.")
	contains(run(exitOK, "list", "--phase", "finished"), "well")
	contains(run(exitNotFound, "show", "999"), "no operation with the number 999")

	key, err := identity("done").ChildKey("charge")
	noError(t, err)
	contains(run(exitOK, "show", number["done"]), "held", "reserve", "done", "charge", "unknown", key, "Find out")
	contains(run(exitOK, "show", number["done"], "--json"), `"child_key": "`+key+`"`, `"state": "unknown"`)
	want(t, "the input", run(exitOK, "show", number["done"], "--input"), `"card 4111 of done"`)
	want(t, "the input of a step", run(exitOK, "show", number["done"], "--step", "charge", "--input"), `"card 4111 of done"`)
	want(t, "the result of a step", run(exitOK, "show", number["done"], "--step", "reserve", "--result"), `1`)
	contains(run(exitNotFound, "show", number["done"], "--step", "x", "--result"), "no step")
	run(exitUsage, "show", number["done"], "--step", "charge")
	run(exitUsage, "show", number["done"], "--input", "--json")

	resolve := func(code int, key string, args ...string) string {
		t.Helper()
		return run(code, append([]string{"resolve", number[key]}, args...)...)
	}
	for _, wrong := range [][]string{
		{},
		{"--step", "charge"},
		{"--step", "charge", "--as", "done", "--because", "x"},
		{"--step", "charge", "--as", "free", "--result", "1", "--because", "x"},
		{"--step", "charge", "--as", "free"},
		{"--step", "charge", "--as", "done", "--result", "{", "--because", "x"},
		{"--step", "charge", "--as", "done", "--result", "@missing", "--because", "x"},
		{"--step", "charge", "--as", "free", "--because", strings.Repeat("x", 501)},
	} {
		resolve(exitUsage, "done", wrong...)
	}
	resolve(exitNotFound, "done", "--step", "other", "--as", "free", "--because", "x")
	contains(resolve(exitRefused, "done", "--step", "reserve", "--as", "free", "--because", "x"), "is done", "Nothing was changed")
	if d := run(exitOK, "show", number["done"]); strings.Contains(d, "decided") {
		t.Errorf("what was refused is on record: %s", d)
	}
	contains(resolve(exitOK, "done", "--step", "charge", "--as", "done", "--result", "-", "--because", "the bank has it"), "charge: unknown to done", "A completer")
	contains(resolve(exitRefused, "done", "--step", "charge", "--as", "free", "--because", "x"), "is done")
	contains(resolve(exitOK, "free", "--step", "charge", "--as", "free", "--because", "not there", "--by", "bob", "--json"), `"by": "bob"`, `"what": "charge: unknown to free"`)
	resolve(exitOK, "failed", "--step", "charge", "--as", "failed", "--result", "declined", "--because", "the bank says so")
	contains(run(exitOK, "retry", number["retried"], "--because", "try"), "held to open")
	contains(run(exitRefused, "retry", number["retried"], "--because", "try"), "it is open")
	until(steps.PhaseHeld, "retried") // again: nobody has said what became of its step
	until(steps.PhaseFinished, "done", "free", "failed")
	contains(run(exitOK, "show", number["retried"]), "held", "retried (held to open) by ada: try")
	contains(run(exitOK, "show", number["free"]), "finished", "step_resolved (charge: unknown to free) by bob: not there")
	want(t, "the result that was told", run(exitOK, "show", number["done"], "--step", "charge", "--result"), `"charged"`)

	contains(ok(t, "audit", "search", "--store", url, "--key", "done"), "step_resolved", "operator:ada", "the bank has it", "charge: unknown to done")
	contains(ok(t, "audit", "search", "--store", url, "--kind", "retried"), "held to open")
	tree := ok(t, "audit", "trace", "--store", url, "done")
	contains(tree, "step reserve done  step charge done", "step_resolved by ada: charge: unknown to done: the bank has it", "└─ record", "charges.create")
	contains(ok(t, "audit", "trace", "--store", url, "--json", "done"), `"child_key": "`+key+`"`, `"verdict": "step_resolved"`)
	contains(ok(t, "audit", "trace", "--store", url, "--mermaid", "done"), "n1 --> n0", "step_resolved by ada")
	if strings.Contains(tree, "4111") {
		t.Errorf("the trace tells an input:\n%s", tree)
	}
	if encryptionKeys != "" { // neither inputs nor results, whoever has written them
		files, err := filepath.Glob(strings.TrimPrefix(url, "sqlite:") + "*")
		noError(t, err)
		for _, file := range files {
			b, err := os.ReadFile(file)
			noError(t, err)
			if bytes.Contains(b, []byte("4111")) || bytes.Contains(b, []byte("charged")) || bytes.Contains(b, []byte("declined")) {
				t.Errorf("%s has what should be encrypted", file)
			}
		}
		if len(files) == 0 {
			t.Error("there are no files")
		}
	}
}
