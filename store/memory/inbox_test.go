package memory_test

import (
	"testing"
	"time"

	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/inbox/inboxtest"
	"github.com/semelhq/semel/internal/recorder"
	"github.com/semelhq/semel/store/memory"
)

func TestInbox(t *testing.T) {
	inboxtest.Run(t, inboxtest.Config{Virtual: true, New: func(testing.TB) inboxtest.Harness {
		b := memory.NewInbox()
		e := &recorder.Effects{OnCommit: memory.OnCommit}
		return inboxtest.Harness{Store: b, Open: func() inbox.Store { return b }, Advance: time.Sleep, Effect: e.Effect, Effects: e.Effects}
	}})
}
