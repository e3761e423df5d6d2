package conditional_test

import (
	"context"
	"fmt"
	"log"

	"github.com/semelhq/semel/conditional"
)

// An order in a map stands for a row. Where it says UPDATE there would be the
// statement of Subject.Move's documentation.
func ExampleTable_Apply() {
	table, err := conditional.NewTable(
		conditional.Transition{Event: "pay", From: []string{"created"}, To: "paid"},
		conditional.Transition{Event: "ship", From: []string{"paid"}, To: "shipped"},
		conditional.Transition{Event: "cancel", From: []string{"created", "paid"}, To: "cancelled"},
	)
	if err != nil {
		log.Fatal(err)
	}
	order := conditional.Position{State: "created", Version: 1}
	subject := conditional.Subject{
		Current: func(context.Context) (conditional.Position, error) { return order, nil },
		Move: func(_ context.Context, m conditional.Move) (int64, error) { // UPDATE
			if order.State != m.From || order.Version != m.Found {
				return 0, nil
			}
			order = conditional.Position{State: m.To, Event: m.Event, Version: m.Next}
			return 1, nil
		},
	}
	for _, event := range []string{"ship", "pay", "pay", "ship", "cancel"} {
		moved, err := table.Apply(context.Background(), event, subject)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(event, "leads to", moved.State, "version", moved.Version, "repeated:", moved.Repeated)
	}
	// Output:
	// conditional: ship is not allowed in state created
	// pay leads to paid version 2 repeated: false
	// pay leads to paid version 2 repeated: true
	// ship leads to shipped version 3 repeated: false
	// conditional: cancel is not allowed in state shipped
}
