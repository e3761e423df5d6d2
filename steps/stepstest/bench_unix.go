//go:build unix

package stepstest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/recorder"
	"github.com/semelhq/semel/steps"
)

// Benchmark compares an operation of three local steps with one effect each, under a
// guard over records, with three plain transactions that have the same effects and
// cannot be continued after a crash. Each is made by bare.
func Benchmark(b *testing.B, h Harness, records semel.Store, bare func() error) {
	const effect = "a business row of some length"
	measure := func(b *testing.B, one func(i int) error) {
		b.ReportAllocs()
		end := recorder.CPU(b)
		for i := 0; b.Loop(); i++ {
			if err := one(i); err != nil {
				b.Fatal(err)
			}
		}
		end()
	}
	b.Run("by hand", func(b *testing.B) {
		measure(b, func(int) error {
			for range 3 {
				if err := bare(); err != nil {
					return err
				}
			}
			return nil
		})
	})
	round := 0
	b.Run("steps", func(b *testing.B) {
		g, err := semel.New(semel.Config{Store: records})
		if err != nil {
			b.Fatal(err)
		}
		j, err := steps.New(steps.Config{Store: h.Store})
		if err != nil {
			b.Fatal(err)
		}
		round++
		measure(b, func(i int) error {
			key := fmt.Sprintf("%d/%d/%d", round, b.N, i)
			_, _, err := semel.Call(b.Context(), g, semel.Submit{Identity: identity(key)}, func(ctx context.Context) (int, error) {
				return steps.Run(ctx, j, key, func(ctx context.Context, _ string) (n int, err error) {
					for _, name := range []string{"one", "two", "three"} {
						if n, err = steps.Local(ctx, name, n, func(ctx context.Context, n int) (int, error) { return n + 1, h.Effect(ctx, effect) }); err != nil {
							return n, err
						}
					}
					return n, nil
				})
			})
			return err
		})
	})
}

// BenchmarkCompleter measures a round over 1,000 open operations whose records are
// complete, as a completer finds them that keeps up with its service, and reports how much
// of it is spent looking up their records.
func BenchmarkCompleter(b *testing.B, h Harness, records semel.Store) {
	const n = 1000
	g, gerr := semel.New(semel.Config{Store: records})
	j, jerr := steps.New(steps.Config{Store: h.Store, LookAfter: time.Microsecond})
	if err := errors.Join(gerr, jerr); err != nil {
		b.Fatal(err)
	}
	c, err := steps.NewCompleter(steps.CompleterConfig{
		Journal: j, Guard: g,
		Operations: map[string]steps.Handler{"orders.create": func(context.Context, []byte) (semel.Result, error) { return semel.Result{}, errors.New("not wanted") }},
	})
	if err != nil {
		b.Fatal(err)
	}
	var looks, rounds time.Duration
	turns := 0
	for b.Loop() {
		b.StopTimer()
		turns++
		for i := range n {
			_, _, err := semel.Call(b.Context(), g, semel.Submit{Identity: identity(fmt.Sprint(turns, ".", i))}, func(ctx context.Context) (int, error) {
				return steps.Run(ctx, j, 1, func(context.Context, int) (int, error) { return 1, nil })
			})
			if err != nil {
				b.Fatal(err)
			}
		}
		start := time.Now()
		for i := range n {
			if _, err := g.Find(b.Context(), identity(fmt.Sprint(turns, ".", i))); err != nil {
				b.Fatal(err)
			}
		}
		looks += time.Since(start)
		b.StartTimer()
		start = time.Now()
		if r := c.Round(b.Context()); r.Finished != n || r.Err != nil {
			b.Fatalf("%+v", r)
		}
		rounds += time.Since(start)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(rounds.Microseconds())/float64(turns*n), "µs/operation")
	b.ReportMetric(float64(looks.Microseconds())/float64(turns*n), "µs/look") // one after the other, not four at a time
}
