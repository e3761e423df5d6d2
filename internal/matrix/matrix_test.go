package matrix

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/semelhq/semel/internal/quick"
)

// cells are those of a kind that can be, and how many cannot for which reason.
//
// Fully crossed are shapes, endings and clients, with a duplicate and without a
// fault; and shapes, endings and faults, with a client that stays; and shapes,
// endings and rivals. Clients and faults, clients and rivals are crossed by
// pairs: of each pair every ending is there, with shapes in turn. Only the memory
// store has all of that. Databases have the first product whole, and faults and
// rivals by pairs with shapes as well as with endings: what a store answers does
// not depend on the body that it is given, and what becomes of the body does not
// depend on which store it is.
func cells(k kind, whole bool) (can []cell, cannot map[string]int) {
	cannot = map[string]int{}
	add := func(c cell) {
		if why := c.cannot(k); why != "" {
			cannot[why]++
			return
		}
		can = append(can, c)
	}
	for s := range shapes {
		for e := range endings {
			for cl := range clients {
				add(cell{shape: s, ending: e, client: cl})
			}
		}
	}
	turn := 0
	for f := range faults() {
		turn++
		for e := range endings {
			for s := range shapes {
				here := (int(e)+turn)%int(shapes) == int(s)
				if here || whole {
					add(cell{shape: s, ending: e, fault: f})
				}
				if cl := 1 + client(turn+int(e))%(clients-1); here && whole {
					add(cell{shape: s, ending: e, fault: f, client: cl})
				}
			}
		}
	}
	for rv := marks; rv < rivals; rv++ {
		for e := range endings {
			for s := range shapes {
				here := (int(e)+int(rv))%int(shapes) == int(s)
				if here || whole {
					add(cell{shape: s, ending: e, rival: rv})
				}
				if here {
					add(cell{shape: s, ending: e, rival: rv, client: leavesDuring})
				}
			}
		}
	}
	return can, cannot
}

func report(t *testing.T, k kind, whole bool) []cell {
	can, cannot := cells(k, whole)
	for _, why := range slices.Sorted(maps.Keys(cannot)) {
		t.Logf("%4d cells cannot be: %s", cannot[why], why)
	}
	t.Logf("%4d cells are", len(can))
	return can
}

// inBubbles plays cells in virtual time, those of a shape one after the other
// over one store. What is left of a goroutine at the end fails the test.
func inBubbles(t *testing.T, can []cell, fresh func(testing.TB) *subject) {
	byShape := map[shape][]cell{}
	for _, c := range can {
		byShape[c.shape] = append(byShape[c.shape], c)
	}
	for s := range shapes {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				subject := fresh(t)
				for i, c := range byShape[s] {
					if quick.Skips(i, 5) {
						continue
					}
					failures(t, c, play(t.Context(), pipes{}, subject, c, fmt.Sprintf("key-%d", i), dir))
					synctest.Wait()
				}
			})
		})
	}
}

func failures(t *testing.T, c cell, wrong []string) {
	if len(wrong) > 0 {
		t.Errorf("%v:\n\t%s", c, strings.Join(wrong, "\n\t"))
	}
}

// inRealTime plays cells, many at a time.
func inRealTime(t *testing.T, can []cell, s *subject) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range 16 {
		wg.Go(func() {
			for i := range next {
				dir := t.TempDir()
				failures(t, can[i], play(context.WithoutCancel(t.Context()), loopback{}, s, can[i], fmt.Sprintf("key-%d", i), dir))
			}
		})
	}
	for i := range can {
		next <- i
	}
	close(next)
	wg.Wait()
	if err := s.idle(); err != nil {
		t.Error(err)
	}
}

func TestMemory(t *testing.T) {
	t.Parallel()
	inBubbles(t, report(t, kind{virtual: true}, true), newMemory)
}

func TestMemoryHTTP2(t *testing.T) {
	t.Parallel()
	can := report(t, kind{virtual: true}, true)
	can = slices.DeleteFunc(can, func(c cell) bool { return c.fault.call != none && c.fault.how != down })
	for i := range can {
		can[i].http2 = true
	}
	inBubbles(t, can, newMemory)
}

func TestSQLiteLeased(t *testing.T) {
	t.Parallel()
	inBubbles(t, report(t, kind{virtual: true}, false), newSQLite)
}

func TestSQLiteTransactional(t *testing.T) {
	t.Parallel()
	inBubbles(t, report(t, kind{transactional: true, virtual: true}, false), newSQLiteTx)
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	for name, k := range map[string]kind{
		"leased":        {},
		"transactional": {transactional: true, sessions: true},
		"joined":        {transactional: true, sessions: true, joined: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inRealTime(t, report(t, k, false), newPostgres(t, k))
		})
	}
}
