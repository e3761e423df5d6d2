package bench

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// scopeSamples is how many answers are timed of each kind.
const scopeSamples = 2000

// BenchmarkScopeTiming asks whether the time of an answer tells that another
// scope has the same key. One caller executes under keys of its own. Another
// then sends its first requests: with keys that the first has used, with keys
// that nobody has, and again with keys that nobody has, in random order. The
// answers must be equal but for their times.
//
// The statistic is the two-sample Kolmogorov-Smirnov distance D: the largest
// difference between two distribution functions. D-taken compares used with
// unused keys, D-same unused with unused, and p is the share of 1,000 random
// splits of the samples whose D is at least D-taken: small if the difference
// is more than noise. At 2,000 samples a side D is 0.043 or more by chance once
// in twenty.
func BenchmarkScopeTiming(b *testing.B) {
	for _, name := range []string{"memory", "sqlite"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				store := openStore(b, name)
				guard, err := semel.New(semel.Config{Store: store})
				if err != nil {
					b.Fatal(err)
				}
				middleware, err := semelhttp.New(semelhttp.Config{Guard: guard, Scope: func(r *http.Request) (semel.Scope, error) {
					return semel.Scope{Actor: r.Header.Get("Actor")}, nil
				}})
				if err != nil {
					b.Fatal(err)
				}
				h := middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusCreated) }))
				send := func(actor, key string) (*httptest.ResponseRecorder, time.Duration) {
					r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader("{}"))
					r.Header.Set("Actor", actor)
					r.Header.Set("Idempotency-Key", key)
					w := httptest.NewRecorder()
					start := time.Now()
					h.ServeHTTP(w, r)
					return w, time.Since(start)
				}

				type try struct {
					kind int
					key  string
				}
				var tries []try
				for i := range scopeSamples {
					for kind := range 3 {
						tries = append(tries, try{kind, fmt.Sprintf("%d-%06d", kind, i)})
					}
					send("alice", fmt.Sprintf("0-%06d", i))
				}
				rand.Shuffle(len(tries), func(i, j int) { tries[i], tries[j] = tries[j], tries[i] })
				for i := range 500 { // warm
					send("carol", fmt.Sprint(i))
				}
				var took [3][]float64
				for _, t := range tries {
					w, d := send("bob", t.key)
					header := w.Header()
					header.Del("Idempotency-Expires")
					if got := fmt.Sprint(w.Code, header, w.Body); got != "201 map[Content-Length:[0]] " && got != "201 map[Content-Length:[0] Content-Type:[]] " {
						b.Fatalf("kind %d is answered with %s", t.kind, got)
					}
					took[t.kind] = append(took[t.kind], float64(d))
				}
				taken := distance(took[0], took[1])
				both := slices.Concat(took[0], took[1])
				atLeast := 0
				for range 1000 {
					rand.Shuffle(len(both), func(i, j int) { both[i], both[j] = both[j], both[i] })
					if distance(both[:scopeSamples], both[scopeSamples:]) >= taken {
						atLeast++
					}
				}
				b.ReportMetric(taken, "D-taken")
				b.ReportMetric(distance(took[1], took[2]), "D-same")
				b.ReportMetric(float64(atLeast)/1000, "p")
				b.ReportMetric(median(took[0])-median(took[1]), "ns-taken-later")
			}
		})
	}
}

// distance is the two-sample Kolmogorov-Smirnov statistic.
func distance(a, b []float64) (d float64) {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	i, j := 0, 0
	for i < len(a) && j < len(b) {
		x := min(a[i], b[j])
		for i < len(a) && a[i] == x {
			i++
		}
		for j < len(b) && b[j] == x {
			j++
		}
		d = max(d, abs(float64(i)/float64(len(a))-float64(j)/float64(len(b))))
	}
	return d
}

func abs(x float64) float64 { return max(x, -x) }

func median(x []float64) float64 { return slices.Sorted(slices.Values(x))[len(x)/2] }
