package sqlite_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/sqlite"
)

var body = make([]byte, 256)

// BenchmarkPair claims and completes fresh identities; one op is one pair.
func BenchmarkPair(b *testing.B) {
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			s, err := sqlite.Open(b.Context(), sqlite.Config{Path: filepath.Join(b.TempDir(), "semel.db")})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			run(b, callers, func(ctx context.Context) error {
				c, err := s.Begin(ctx, attempt(semel.NewKey()))
				if err != nil {
					return err
				}
				_, err = c.Complete(ctx, result)
				return err
			})
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkReplay begins one completed identity; one op is one replay.
func BenchmarkReplay(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			s, err := sqlite.Open(b.Context(), sqlite.Config{Path: filepath.Join(b.TempDir(), "semel.db")})
			if err != nil {
				b.Fatal(err)
			}
			key := semel.NewKey()
			c, err := s.Begin(b.Context(), attempt(key))
			if err != nil {
				b.Fatal(err)
			}
			if _, err = c.Complete(b.Context(), result); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			run(b, callers, func(ctx context.Context) error {
				if _, err := s.Begin(ctx, attempt(key)); err == nil {
					return fmt.Errorf("granted twice")
				}
				return nil
			})
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

var result = semel.Result{Codec: "http/1", Head: body[:64], Body: body, Label: "201"}

func run(b *testing.B, callers int, one func(context.Context) error) {
	ctx := b.Context()
	var left atomic.Int64
	left.Store(int64(b.N))
	errs := make(chan error, callers)
	b.ResetTimer()
	for range callers {
		go func() {
			for left.Add(-1) >= 0 {
				cctx, cancel := context.WithTimeout(ctx, 5*time.Second)
				err := one(cctx)
				cancel()
				if err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range callers {
		if err := <-errs; err != nil {
			b.Error(err)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
}
