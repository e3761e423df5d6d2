//go:build unix

package jobstest

import (
	"context"
	"fmt"
	"testing"

	"github.com/semelhq/semel/internal/recorder"
	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
)

// Benchmark measures jobs of one effect each, in queues with different numbers of
// workers, from the claim to the settlement.
func Benchmark(b *testing.B, h Harness) {
	x := &bench{TB: b, Harness: h}
	round := 0
	for _, workers := range []int{1, 4, 16} {
		b.Run(fmt.Sprint(workers, " workers"), func(b *testing.B) {
			b.ReportAllocs()
			round++
			var batch []outbox.Message
			for i := range b.N {
				m, err := jobs.Job{ID: fmt.Sprintf("%d.%d.%d", round, b.N, i), Queue: "q", Kind: "work", Args: make([]byte, 300)}.Message()
				if err != nil {
					b.Fatal(err)
				}
				if batch = append(batch, m); len(batch) == 500 || i == b.N-1 {
					if err := h.Enqueue(b.Context(), batch...); err != nil {
						b.Fatal(err)
					}
					batch = nil
				}
			}
			done := make(chan struct{}, b.N)
			w := x.worker(func(ctx context.Context, j jobs.Job) error { return h.Effect(ctx, "a business row of some length") })
			w.config.Store = h.Store
			w.config.Queues = []jobs.QueueConfig{{Name: "q", Workers: workers}}
			w.config.Relay = outbox.Config{Observer: &outbox.Observer{
				Delivered: func(context.Context, outbox.Attempted) { done <- struct{}{} },
				Retried:   func(_ context.Context, a outbox.Attempted) { b.Error(a.Err) },
			}}
			end := recorder.CPU(b)
			b.ResetTimer()
			w.start()
			for range b.N {
				<-done
			}
			b.StopTimer()
			end()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
			w.stop()
		})
	}
}
