package lab

import (
	"testing"
	"testing/synctest"
)

// TestTrials holds what the lessons on code of one's own are about. The two with
// leases need no real time.
func TestTrials(t *testing.T) {
	for name, want := range map[string][2]string{
		"repeat": {"1", "1"}, "restart": {"2", "1"}, "two-processes": {"2", "1"}, "shared-race": {"2", "1"}, "shared-crash": {"2", "1"},
		"clock": {"2", "2"}, "tenant": {"1", "2"}, "slow-worker": {"2", "1"}, "paused-worker": {"2", "1"}, "lost-update": {"9", "8"},
	} {
		t.Run(name, func(t *testing.T) {
			check := func(t *testing.T) {
				hand, err := trials[name].hand(t.Context())
				if err != nil {
					t.Error(err)
				}
				semel, err := trials[name].semel(t.Context())
				if err != nil {
					t.Error(err)
				}
				if got := [2]string{hand, semel}; got != want {
					t.Errorf("by hand %s, with semel %s; want %q", hand, semel, want)
				}
			}
			if name == "slow-worker" || name == "paused-worker" {
				synctest.Test(t, check)
			} else {
				t.Parallel()
				check(t)
			}
		})
	}
	for name := range trials {
		if len(trials) != 10 {
			t.Fatalf("%s is not tried", name)
		}
	}
}
