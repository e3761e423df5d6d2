package inboxtest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/semelhq/semel/inbox"
)

// turns has contestants take turns, so that all meet the same machine, and reports
// the median time of each for one of the n messages of a turn.
func turns(b *testing.B, n int, contestants map[string]func() error) map[string]float64 {
	took := map[string][]time.Duration{}
	for b.Loop() {
		for name, turn := range contestants { // in any order
			start := time.Now()
			if err := turn(); err != nil {
				b.Fatal(err)
			}
			took[name] = append(took[name], time.Since(start))
		}
	}
	b.ReportMetric(0, "ns/op") // of all together it says nothing
	result := map[string]float64{}
	for name, all := range took {
		slices.Sort(all)
		result[name] = float64(all[len(all)/2].Microseconds()) / float64(n)
		b.ReportMetric(result[name], name+"-µs")
	}
	return result
}

var benchIDs int

func benchID() string {
	benchIDs++
	return "0198c2a4-8f7e-7d7e-9b57-" + fmt.Sprintf("%012d", benchIDs) // as long as most are, and rising as most do
}

// Benchmark compares the effect of a message in a transaction of the inbox with the
// same effect in a plain transaction, which bare commits with n effects: one alone,
// and 64 together.
func Benchmark(b *testing.B, s inbox.Store, effect func(ctx context.Context) error, bare func(n int) error) {
	in, err := inbox.New(inbox.Config{Store: s, Consumer: consumer, RetrySpan: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{1, 64} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			messages := make([]inbox.Message, n)
			r := turns(b, n, map[string]func() error{
				"bare": func() error { return bare(n) },
				"inbox": func() error {
					for i := range messages {
						messages[i].ID = benchID()
					}
					for _, r := range in.ProcessBatch(b.Context(), messages, func(ctx context.Context, _ int) error { return effect(ctx) }) {
						if r.Err != nil {
							return r.Err
						}
					}
					return nil
				},
			})
			b.ReportMetric(r["inbox"]/r["bare"], "inbox/bare")
		})
	}
}

// BenchmarkLookUp compares the cost of a new message and of a duplicate of a
// recent one: with no look-up before the transaction, with one before each, and
// with one if the filter says so. It also reports the share of duplicates from
// which a look-up before each pays.
func BenchmarkLookUp(b *testing.B, s inbox.Store, effect func(ctx context.Context) error) {
	contestants := map[string]func() error{}
	for _, mode := range []string{"none", "all", "filter"} {
		c := inbox.Config{Store: s, Consumer: mode, RetrySpan: time.Hour}
		if mode == "filter" {
			c.Remember = 1 << 16
		}
		in, err := inbox.New(c)
		if err != nil {
			b.Fatal(err)
		}
		process := func(id string) error {
			if mode == "all" {
				if seen, err := s.Seen(b.Context(), mode, []string{id}); err != nil || seen[0] {
					return err
				}
			}
			_, err := in.Process(b.Context(), id, effect)
			return err
		}
		latest := benchID()
		if err := process(latest); err != nil {
			b.Fatal(err)
		}
		contestants["new-"+mode] = func() error {
			latest = benchID()
			return process(latest)
		}
		contestants["dup-"+mode] = func() error { return process(latest) }
	}
	r := turns(b, 1, contestants)
	cost, gain := max(r["new-all"]-r["new-none"], 0), max(r["dup-none"]-r["dup-all"], 0)
	b.ReportMetric(100*cost/(cost+gain), "%-pays")
}
