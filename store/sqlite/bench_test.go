package sqlite_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
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
			if err := s.Close(context.Background()); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkReplay begins one completed identity; one op is one replay.
func BenchmarkReplay(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "semel.db")
			s, err := sqlite.Open(b.Context(), sqlite.Config{Path: path})
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
			// As a store finds its directory that has been open for some seconds.
			awaitTick(b, filepath.Dir(path))
			s.Settle()
			b.ReportAllocs()
			run(b, callers, func(ctx context.Context) error {
				if _, err := s.Begin(ctx, attempt(key)); err == nil {
					return fmt.Errorf("granted twice")
				}
				return nil
			})
			if err := s.Close(context.Background()); err != nil {
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

// BenchmarkPieces completes results of 32 MiB in pieces while another caller
// claims and completes small ones; one op is one large result. The metrics are
// the other's, in milliseconds.
func BenchmarkPieces(b *testing.B) {
	s, err := sqlite.Open(b.Context(), sqlite.Config{Path: filepath.Join(b.TempDir(), "semel.db")})
	if err != nil {
		b.Fatal(err)
	}
	piece := make([]byte, semel.PieceBytes)
	large := &semel.Pieces{Size: 32 << 20, Read: func(context.Context, int) ([]byte, error) { return piece, nil }}
	b.SetBytes(large.Size)
	stop, done := make(chan struct{}), make(chan []time.Duration)
	go func() {
		var took []time.Duration
		defer func() { done <- took }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			start := time.Now()
			c, err := s.Begin(b.Context(), attempt(semel.NewKey()))
			if err == nil {
				_, err = c.Complete(b.Context(), result)
			}
			if err != nil {
				b.Error(err)
				return
			}
			took = append(took, time.Since(start))
		}
	}()
	b.ResetTimer()
	for range b.N {
		c, err := s.Begin(b.Context(), attempt(semel.NewKey()))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := c.Complete(b.Context(), semel.Result{Codec: "http/1", Pieces: large}); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	close(stop)
	took := <-done
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	b.ReportMetric(ms(took[len(took)/2]), "other-p50-ms")
	b.ReportMetric(ms(took[len(took)*99/100]), "other-p99-ms")
	b.ReportMetric(ms(took[len(took)-1]), "other-max-ms")
	if err := s.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkSweep has 16 callers claim and complete, with and without a sweep of
// expired records beside them. The metrics are the callers', in milliseconds,
// and how many records a second the sweep removes.
func BenchmarkSweep(b *testing.B) {
	const callers, expired = 16, 40_000
	for _, sweeping := range []bool{false, true} {
		b.Run(fmt.Sprintf("sweeping=%v", sweeping), func(b *testing.B) {
			s, err := sqlite.Open(b.Context(), sqlite.Config{Path: filepath.Join(b.TempDir(), "semel.db")})
			if err != nil {
				b.Fatal(err)
			}
			pair := func(ctx context.Context, retention time.Duration) error {
				a := attempt(semel.NewKey())
				a.Retention = retention
				c, err := s.Begin(ctx, a)
				if err == nil {
					_, err = c.Complete(ctx, result)
				}
				return err
			}
			var filling sync.WaitGroup
			for range 256 {
				filling.Go(func() {
					for range expired / 256 {
						if err := pair(b.Context(), 0); err != nil {
							b.Error(err)
						}
					}
				})
			}
			filling.Wait()
			swept, took := 0, time.Duration(0)
			stop, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				for start := time.Now(); sweeping; took = time.Since(start) {
					n, err := s.Sweep(b.Context(), 1000)
					if swept += n; err != nil {
						b.Error(err)
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			}()
			var mu sync.Mutex
			var all []time.Duration
			b.ResetTimer()
			run(b, callers, func(ctx context.Context) error {
				start := time.Now()
				err := pair(ctx, time.Hour)
				mu.Lock()
				defer mu.Unlock()
				all = append(all, time.Since(start))
				return err
			})
			close(stop)
			<-done
			slices.Sort(all)
			ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
			b.ReportMetric(ms(all[len(all)/2]), "p50-ms")
			b.ReportMetric(ms(all[len(all)*99/100]), "p99-ms")
			if sweeping {
				b.ReportMetric(float64(swept)/took.Seconds(), "swept/s")
			}
			if err := s.Close(context.Background()); err != nil {
				b.Fatal(err)
			}
		})
	}
}
