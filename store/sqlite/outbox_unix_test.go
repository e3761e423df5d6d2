//go:build linux || darwin

package sqlite_test

import (
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/semelhq/semel/store/sqlite"
)

// Relay processes are killed and paused for longer than their leases, again and
// again, while eight writers commit. Nothing is lost, every lane is delivered in
// order, and what comes twice is what was under way at a kill or a pause.
func TestRelaysKilledAndPaused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	open(t, sqlite.Config{Path: path})
	r, url := newReceiver(t)
	r.cutting = true
	const lease = 1500 * time.Millisecond
	relays := make([]*child, 4)
	for i := range relays {
		relays[i] = relayProcess(t, path, url, lease)
	}
	kills, pauses := 0, 0
	kill := func(i int) {
		kills++
		_ = relays[i].cmd.Process.Kill()
		_ = relays[i].cmd.Wait()
		relays[i] = relayProcess(t, path, url, lease)
	}
	var done atomic.Bool
	nemesis := make(chan struct{})
	go func() {
		defer close(nemesis)
		defer done.Store(true)
		for range 5 {
			for range 2 {
				time.Sleep(time.Duration(50+rand.IntN(200)) * time.Millisecond)
				kill(rand.IntN(len(relays)))
			}
			i := rand.IntN(len(relays))
			pauses++
			_ = relays[i].cmd.Process.Signal(syscall.SIGSTOP)
			time.Sleep(lease / 2)
			kill((i + 1) % len(relays))
			time.Sleep(lease/2 + time.Duration(rand.IntN(300))*time.Millisecond)
			_ = relays[i].cmd.Process.Signal(syscall.SIGCONT)
		}
	}()
	committed := writeMessages(t, path, 8, func(int) bool {
		time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond)
		return !done.Load()
	})
	<-nemesis
	allDelivered(t, path)
	for _, c := range relays {
		c.leave(t)
	}
	wantAllInOrder(t, r, path, committed)
	if most := r.cut + (kills+pauses)*relayInFlight; r.repeated > most || r.repeated < r.cut {
		t.Errorf("%d repetitions after %d cuts, %d kills and %d pauses of relays with %d under way", r.repeated, r.cut, kills, pauses, relayInFlight)
	}
	t.Logf("%d messages, %d kills, %d pauses, %d cuts, %d refusals, %d repetitions", committed, kills, pauses, r.cut, r.refused, r.repeated)
}
