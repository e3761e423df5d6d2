package outboxtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/outbox/httpsink"
)

// RelayInFlight is the maximum number of messages that a relay of RunRelay has
// under way.
const RelayInFlight = 8

// RunHTTPRelay is the main function of a relay process in tests that kill and pause
// it. It reads a URL and a lease from the first line of in, and delivers to that URL
// until in ends.
func RunHTTPRelay(in *bufio.Scanner, s outbox.Store) error {
	in.Scan()
	url, lease, _ := strings.Cut(in.Text(), " ")
	d, err := time.ParseDuration(lease)
	if err != nil {
		return err
	}
	sink, err := httpsink.New(httpsink.Config{URL: url, AllowPrivate: true})
	if err != nil {
		return err
	}
	return RunRelay(in, s, d, outbox.Route{Sink: sink})
}

// RunRelay prints "ready" on standard output and runs a relay until in ends.
func RunRelay(in *bufio.Scanner, s outbox.Store, lease time.Duration, route outbox.Route) error {
	route.MaxInFlight, route.MaxAttempts = RelayInFlight, 1<<20
	route.Backoff, route.MaxBackoff = 10*time.Millisecond, 50*time.Millisecond
	r, err := outbox.New(outbox.Config{
		Store: s, Lease: lease, PollMin: 5 * time.Millisecond, PollMax: 50 * time.Millisecond, StoreTimeout: time.Minute,
		Routes: []outbox.Route{route},
		Observer: &outbox.Observer{
			StoreFailed: func(_ context.Context, call string, err error) { fmt.Fprintln(os.Stderr, "store failed:", call, err) },
			Dead:        func(_ context.Context, a outbox.Attempted) { fmt.Fprintln(os.Stderr, "dead:", a.Err) },
		},
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		in.Scan()
		cancel()
	}()
	return r.Run(ctx)
}

// Keys returns the keys that a writer uses in one transaction: those of three
// lanes and empty ones in between, in reverse order for odd writers.
func Keys(writer int) []string {
	keys := []string{"a", "", "b", "", "c", ""}
	if writer%2 == 1 {
		slices.Reverse(keys)
	}
	return keys
}

// NumberHeader is the header with the number of a message, which rises in its
// lane. A [Receiver] checks it.
const NumberHeader = "X-Number"

// Receiver receives messages by HTTP. It drops repetitions by their ids, as
// receivers must, counts them, and refuses one message of ten.
type Receiver struct {
	URL string

	mu       sync.Mutex
	first    map[string]bool
	lanes    map[string][]int64 // of each key, the numbers of first arrivals
	change   chan struct{}      // closed with the next request
	cutting  bool
	repeated int
	refused  int
	cut      int
}

// NewReceiver returns a receiver that ends with the test. If cutting is set, it
// cuts some connections before it responds.
func NewReceiver(t *testing.T, cutting bool) *Receiver {
	r := &Receiver{first: map[string]bool{}, lanes: map[string][]int64{}, change: make(chan struct{}), cutting: cutting}
	s := httptest.NewUnstartedServer(r)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	t.Cleanup(s.Close)
	r.URL = s.URL
	return r
}

// Await waits for n more requests, but no longer than most.
func (r *Receiver) Await(n int, most time.Duration) {
	late := time.After(most)
	for range n {
		r.mu.Lock()
		change := r.change
		r.mu.Unlock()
		select {
		case <-change:
		case <-late:
			return
		}
	}
}

// Torment kills relays and pauses them for longer than their lease, at moments that
// depend on what arrives. kill must start another relay in place of the one that it
// kills; between, if not nil, is called before each pause.
func (r *Receiver) Torment(rounds, relays int, lease time.Duration, kill func(i int), pause func(i int, on bool), between func()) {
	for range rounds {
		for range 2 {
			r.Await(1+rand.IntN(40), time.Second)
			kill(rand.IntN(relays))
		}
		if between != nil {
			between()
		}
		i := rand.IntN(relays)
		pause(i, true)
		over := time.After(lease + time.Duration(rand.IntN(500))*time.Millisecond)
		r.Await(1+rand.IntN(40), lease/2)
		kill((i + 1) % relays)
		<-over // its messages have been claimed by others
		pause(i, false)
	}
}

func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	close(r.change)
	r.change = make(chan struct{})
	r.mu.Unlock()
	if rand.IntN(10) == 0 {
		r.mu.Lock()
		r.refused++
		r.mu.Unlock()
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	n, err := strconv.ParseInt(req.Header.Get(NumberHeader), 10, 64)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	id, key := req.Header.Get("Idempotency-Key"), req.Header.Get("Semel-Lane")
	r.mu.Lock()
	if r.first[id] {
		r.repeated++
	} else {
		r.first[id] = true
		if key != "" {
			r.lanes[key] = append(r.lanes[key], n)
		}
	}
	cut := r.cutting && rand.IntN(50) == 0
	if cut {
		r.cut++
	}
	r.mu.Unlock()
	time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond) // before the answer: who dies here repeats
	if cut {
		panic(http.ErrAbortHandler)
	}
}

// WantAllInOrder checks what arrived: everything committed, nothing else, and every
// lane of Keys in order. Of messages that were under way when relays died or lost
// their leases so many may have come twice at most.
func (r *Receiver) WantAllInOrder(t *testing.T, committed, interrupted int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.first) != committed {
		t.Errorf("%d different messages arrived; %d were committed", len(r.first), committed)
	}
	for key, numbers := range r.lanes {
		for i := 1; i < len(numbers); i++ {
			if numbers[i] <= numbers[i-1] {
				t.Errorf("in lane %s message %d came first after %d", key, numbers[i], numbers[i-1])
			}
		}
	}
	if len(r.lanes) != 3 {
		t.Errorf("messages of %d lanes arrived", len(r.lanes))
	}
	if most := r.cut + interrupted; r.repeated > most || r.repeated < r.cut {
		t.Errorf("%d repetitions after %d cuts; at most %d others were interrupted", r.repeated, r.cut, interrupted)
	}
	if r.refused == 0 {
		t.Error("the receiver refused nothing")
	}
	t.Logf("%d messages, %d cuts, %d refusals, %d repetitions", committed, r.cut, r.refused, r.repeated)
}
