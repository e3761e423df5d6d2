package memory_test

import (
	"testing"
	"time"

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
