package outbox_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel/outbox"
)

// bottomless is a store in which messages never end.
type bottomless struct {
	outbox.Store
	left atomic.Int64
}

func (e *bottomless) Exchange(_ context.Context, _ []outbox.Settlement, c outbox.Claim) (claimed []outbox.Claimed, lost []outbox.Ref, err error) {
	n := min(int64(c.Max), e.left.Load())
	at := e.left.Add(-n)
	claimed = make([]outbox.Claimed, n)
	for i := range claimed {
		claimed[i] = outbox.Claimed{
			Ref:     outbox.Ref{Position: uint64(at + int64(i)), Fence: 7},
			Message: outbox.Message{ID: "01890a5d-ac96-774b-bcce-b302099a8057", Topic: "t"}, Attempts: 1,
		}
	}
	return claimed, nil, nil
}

// BenchmarkRelay is what a relay itself takes for a message, with a store and a sink
// that do nothing.
func BenchmarkRelay(b *testing.B) {
	s := &bottomless{}
	s.left.Store(int64(b.N))
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var done atomic.Int64
	r, err := outbox.New(outbox.Config{Store: s, SweepEvery: -1, PollMin: time.Millisecond, Routes: []outbox.Route{{MaxInFlight: 512, Sink: outbox.SinkFunc(func(context.Context, outbox.Delivery) error {
		if done.Add(1) == int64(b.N) {
			cancel()
		}
		return nil
	})}}})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	if err := r.Run(ctx); err != nil {
		b.Fatal(err)
	}
}
