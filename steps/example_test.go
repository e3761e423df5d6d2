package steps_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/steps"
	"github.com/semelhq/semel/store/memory"
)

// A call whose answer is lost is made again by the completer, under the same key; what
// was done before is not.
func Example() {
	ctx := context.Background()
	records, err := memory.New(memory.Config{})
	if err != nil {
		panic(err)
	}
	guard, err := semel.New(semel.Config{Store: records, Policy: semel.Policy{OnCrash: semel.CrashRetry}})
	if err != nil {
		panic(err)
	}
	journal, err := steps.New(steps.Config{Store: memory.NewSteps(), LookAfter: time.Nanosecond})
	if err != nil {
		panic(err)
	}

	answers := []error{errors.New("connection reset"), nil}
	order := func(ctx context.Context, item string) (string, error) {
		number, err := steps.Local(ctx, "reserve", item, func(ctx context.Context, item string) (int, error) {
			fmt.Println("reserving", item) // in a transaction: sqlite.Tx(ctx), postgres.Tx(ctx)
			return 17, nil
		})
		if err != nil {
			return "", err
		}
		return steps.Remote(ctx, "charge", steps.Policy{OnCrash: semel.CrashRetry}, number, func(ctx context.Context, number int) (string, error) {
			fmt.Println("charging under", semel.CurrentStep(ctx).Key[:8]) // semelclient.Transport sends it by itself
			err := answers[0]
			answers = answers[1:]
			return fmt.Sprint("paid for ", number), err
		})
	}

	id := semel.Identity{Scope: semel.Scope{Tenant: "acme", Operation: "orders.create"}, Key: "k1"}
	place := func() {
		receipt, answer, err := semel.Call(ctx, guard, semel.Submit{Identity: id}, func(ctx context.Context) (string, error) {
			return steps.Run(ctx, journal, "a lamp", order)
		})
		fmt.Printf("%v: %q, error: %t\n", answer, receipt, err != nil)
	}
	place()
	completer, err := steps.NewCompleter(steps.CompleterConfig{
		Journal: journal, Guard: guard,
		Operations: map[string]steps.Handler{"orders.create": steps.Handle(journal, order, nil)},
	})
	if err != nil {
		panic(err)
	}
	fmt.Println("finished:", completer.Round(ctx).Finished) // in a service, Run it
	place()
	// Output:
	// reserving a lamp
	// charging under ck_4ezvb
	// unknown: "", error: true
	// charging under ck_4ezvb
	// finished: 1
	// replayed: "paid for 17", error: false
}
