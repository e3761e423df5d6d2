//go:build unix

package stepstest

import (
	"context"
	"fmt"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/recorder"
	"github.com/semelhq/semel/steps"
)

// Benchmark compares an operation of three local steps with one effect each, under a
// guard over records, with three transactions by hand that have the same effects, and
// that nothing goes on from after a crash: each made by bare.
func Benchmark(b *testing.B, h Harness, records semel.Store, bare func() error) {
	const effect = "a business row of some length"
	measure := func(b *testing.B, one func(i int) error) {
		b.ReportAllocs()
		end := recorder.CPU(b, func() int { return b.N })
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
