package memory_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/outbox/outboxtest"
	"github.com/semelhq/semel/store/memory"
)

func TestOutbox(t *testing.T) {
	outboxtest.Run(t, outboxtest.Config{Virtual: true, New: func(*testing.T) outboxtest.Harness {
		o := memory.NewOutbox()
		return outboxtest.Harness{
			Store: o, Enqueue: o.Enqueue, Advance: time.Sleep,
			Open: func() outboxtest.Store { return o },
		}
	}})
}

// Beyond the bound nothing is enqueued; deliveries make room.
func TestOutboxThatIsFull(t *testing.T) {
	o := memory.NewOutbox()
	o.MaxPending = 2
	add := func(n int) error { return o.Enqueue(t.Context(), slices.Repeat([]outbox.Message{{Topic: "t"}}, n)...) }
	if err := add(3); !errors.Is(err, outbox.ErrFull) {
		t.Errorf("three of two: %v", err)
	}
	if err := add(2); err != nil {
		t.Errorf("two of two: %v", err)
	}
	if err := add(1); !errors.Is(err, outbox.ErrFull) {
		t.Errorf("a third: %v", err)
	}
	got, _, err := o.Exchange(t.Context(), nil, outbox.Claim{Max: 1, Lease: time.Minute})
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	if _, _, err := o.Exchange(t.Context(), []outbox.Settlement{{Ref: got[0].Ref, Outcome: outbox.OutcomeDelivered}}, outbox.Claim{}); err != nil {
		t.Fatal(err)
	}
	if err := add(1); err != nil {
		t.Errorf("with room again: %v", err)
	}
}
