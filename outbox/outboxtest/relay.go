package outboxtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/semelhq/semel/outbox"
)

// Arrivals is a sink that sends the ids of the messages it gets to the channel.
type Arrivals chan string

// Deliver implements outbox.Sink.
func (a Arrivals) Deliver(_ context.Context, d outbox.Delivery) error {
	a <- d.ID
	return nil
}

// Hear waits for n arrivals.
func (a Arrivals) Hear(t testing.TB, n int) (ids []string) {
	t.Helper()
	for range n {
		select {
		case id := <-a:
			ids = append(ids, id)
		case <-time.After(30 * time.Second):
			t.Fatalf("%q arrived; want %d", ids, n)
		}
	}
	return ids
}

// Relay runs a relay on s until the returned function is called, which waits for
// it, or the test ends.
func Relay(t testing.TB, s outbox.Store, c outbox.Config) (stop func()) {
	t.Helper()
	c.Store = s
	r, err := outbox.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// AllDelivered waits until left returns 0.
func AllDelivered(t testing.TB, left func() int) {
	t.Helper()
	late := time.After(2 * time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for left() > 0 {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%d messages are not delivered", left())
		}
	}
}
