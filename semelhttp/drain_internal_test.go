package semelhttp

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
)

// TestGuardOutlivesMiddleware configures a server anew over a guard that stays:
// what belonged to the middleware before must not stay with it.
func TestGuardOutlivesMiddleware(t *testing.T) {
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	bodies := &uploads{}
	drainWith(guard, bodies)
	gone := weak.Make(bodies)
	runtime.KeepAlive(bodies)
	bodies = nil
	for end := time.Now().Add(10 * time.Second); gone.Value() != nil; runtime.GC() {
		if time.Now().After(end) {
			t.Fatal("the guard holds on to a middleware that is not in use")
		}
	}
}
