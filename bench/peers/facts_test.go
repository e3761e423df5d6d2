package main

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// factLease is short, because facts about dead owners are known when it is over.
const factLease = time.Second

var (
	order = request{key: "8e03978e-40d5-43e8-bc93-6894a57f9324", caller: "Bearer alice", path: "/orders", body: `{"item":"book"}`}
	made  = reply{status: http.StatusCreated, header: [][2]string{{"Link", "<a>"}, {"Link", "<b>"}}}
)

// counted is an effect that answers with its number.
func counted(n *atomic.Int64) effect {
	return func([]byte) reply {
		a := made
		a.body = fmt.Appendf(nil, "order %d", n.Add(1))
		return a
	}
}

// became says what became of a request after another one, told from the
// answers and the number of executions since.
func became(first, second answer, executions int64) string {
	switch {
	case executions > 0:
		return executes
	case second.dropped:
		return drops
	case second.body == first.body && second.status == first.status:
		return replays
	case second.status == http.StatusConflict && strings.Contains(second.body, "unknown"):
		return inTheWay + " unknown"
	default:
		return strconv.Itoa(second.status)
	}
}

// again sends the order, changed, after it has been answered.
func again(change func(*request)) func(*testing.T, subject) string {
	return func(t *testing.T, s subject) string {
		var n atomic.Int64
		h := s.protect(t, counted(&n), options{})
		first := h.send(order)
		if n.Load() != 1 {
			t.Fatalf("the first request executed %d times", n.Load())
		}
		second := order
		change(&second)
		return became(first, h.send(second), n.Load()-1)
	}
}

// find says how to find out a fact about a subject.
var find = map[string]func(t *testing.T, s subject) string{
	"retry":  again(func(*request) {}),
	"body":   again(func(r *request) { r.body = `{"item":"pen"}` }),
	"caller": again(func(r *request) { r.caller = "Bearer bob" }),
	"path":   again(func(r *request) { r.path = "/refunds" }),

	"race": func(t *testing.T, s subject) string {
		var n atomic.Int64
		h := s.protect(t, counted(&n), options{})
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() { h.send(order) })
		}
		wg.Wait()
		return fmt.Sprint(n.Load())
	},

	"in-flight": func(t *testing.T, s subject) string { return duplicate(t, s, options{}) },
	"two": func(t *testing.T, s subject) string {
		return duplicate(t, s, options{store: t.TempDir()})
	},

	"500": func(t *testing.T, s subject) string {
		var n atomic.Int64
		h := s.protect(t, func([]byte) reply {
			return reply{status: http.StatusInternalServerError, body: fmt.Appendf(nil, "failed %d", n.Add(1))}
		}, options{})
		first := h.send(order)
		return became(first, h.send(order), n.Load()-1)
	},

	"error": func(t *testing.T, s subject) string {
		var n atomic.Int64
		h := s.protect(t, func(body []byte) reply {
			if n.Load() == 0 {
				n.Add(1)
				return reply{}
			}
			return counted(&n)(body)
		}, options{})
		first := h.send(order)
		return became(first, h.send(order), n.Load()-1)
	},

	"panic": func(t *testing.T, s subject) string {
		var n atomic.Int64
		h := s.protect(t, func(body []byte) reply {
			if n.Load() == 0 {
				n.Add(1)
				panic("after the effect")
			}
			return counted(&n)(body)
		}, options{})
		first := h.send(order)
		return became(first, h.send(order), n.Load()-1)
	},

	"died": func(t *testing.T, s subject) string {
		store := t.TempDir()
		if got := inChild(t, s, store, "dies"); got != "exit status 3" {
			t.Fatalf("the child: %s", got)
		}
		var n atomic.Int64
		h := s.protect(t, counted(&n), options{store: store, lease: factLease})
		// Until it says more than that the first is in progress, for some leases.
		for end := time.Now().Add(4 * factLease); ; time.Sleep(factLease / 10) {
			second := h.send(order)
			got := became(answer{}, second, n.Load())
			if got != inTheWay {
				return got
			}
			if time.Now().After(end) {
				return inTheWay + " for ever"
			}
		}
	},

	"restart": func(t *testing.T, s subject) string {
		store := t.TempDir()
		if got := inChild(t, s, store, "answers"); got != "order 1" {
			t.Fatalf("the child: %s", got)
		}
		var n atomic.Int64
		h := s.protect(t, counted(&n), options{store: store})
		return became(answer{status: made.status, body: "order 1"}, h.send(order), n.Load())
	},

	"unsaved": func(t *testing.T, s subject) string {
		var n atomic.Int64
		h := s.protect(t, counted(&n), options{broken: true, lease: factLease})
		first := h.send(order)
		if n.Load() != 1 {
			t.Fatalf("executed %d times", n.Load())
		}
		if first.status < 500 {
			t.Fatalf("answered %d though nothing is on record", first.status)
		}
		for end := time.Now().Add(4 * factLease); ; time.Sleep(factLease / 10) {
			got := became(first, h.send(order), n.Load()-1)
			if got != inTheWay || time.Now().After(end) {
				return got
			}
		}
	},

	"headers": func(t *testing.T, s subject) string {
		var n atomic.Int64
		h := s.protect(t, counted(&n), options{})
		h.send(order)
		if got := h.send(order).header["Link"]; n.Load() != 1 || !slices.Equal(got, []string{"<a>", "<b>"}) {
			return fmt.Sprint(got)
		}
		return "yes"
	},
}

// duplicate sends the order while it is being executed, by the same protection
// or, where o names a store, by another one on it.
func duplicate(t *testing.T, s subject, o options) string {
	var n atomic.Int64
	begun, end := make(chan struct{}), make(chan struct{})
	do := func(body []byte) reply {
		if n.Load() == 0 {
			n.Add(1)
			close(begun)
			<-end
			return made
		}
		return counted(&n)(body)
	}
	one := s.protect(t, do, o)
	two := one
	if o.store != "" {
		two = s.protect(t, do, o)
	}
	first := make(chan answer, 1)
	go func() { first <- one.send(order) }()
	<-begun
	second := make(chan answer, 1)
	go func() { second <- two.send(order) }()
	var got string
	select {
	case a := <-second:
		got = became(answer{status: -1}, a, n.Load()-1)
		close(end)
	case <-time.After(500 * time.Millisecond):
		close(end)
		if a := <-second; n.Load() != 1 || a.status != made.status {
			t.Errorf("the one that waited: %d, %d executions", a.status, n.Load())
		}
		got = "waits"
	}
	<-first
	return got
}

// TestFacts finds out whether the table is right.
func TestFacts(t *testing.T) {
	asked := map[string]bool{}
	for _, f := range facts {
		asked[f.id] = true
		if (find[f.id] == nil) != f.read {
			t.Errorf("%s: has to have a test or to be marked as read", f.id)
			continue
		}
		for _, s := range subjects {
			want, ok := f.says[s.name]
			if f.read || !ok || want == none {
				continue
			}
			t.Run(f.id+"/"+s.name, func(t *testing.T) {
				t.Parallel()
				if got := find[f.id](t, s); got != want {
					t.Errorf("%s: %s; the table says %s", f.asks, got, want)
				}
			})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(find)) {
		if !asked[id] {
			t.Errorf("no fact is named %s", id)
		}
	}
}

// Environment variables of a child process that sends the order.
const (
	childName  = "PEERS_CHILD"
	childStore = "PEERS_CHILD_STORE"
	childEnd   = "PEERS_CHILD_END"
)

// inChild sends the order in a process of its own, which dies in the handler
// or answers, and returns how it ended.
func inChild(t *testing.T, s subject, store, end string) string {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self, "-test.run=^TestChild$", "-test.v")
	c.Env = append(os.Environ(), childName+"="+s.name, childStore+"="+store, childEnd+"="+end)
	out, err := c.CombinedOutput()
	answered, _ := os.ReadFile(filepath.Join(store, "answered"))
	switch {
	case err != nil && end == "dies":
		return err.Error()
	case err != nil:
		return fmt.Sprintf("%v\n%s", err, out)
	}
	return string(answered)
}

// TestChild is the child process of other tests.
func TestChild(t *testing.T) {
	name, store := os.Getenv(childName), os.Getenv(childStore)
	if name == "" {
		return
	}
	i := slices.IndexFunc(subjects, func(s subject) bool { return s.name == name })
	if i < 0 {
		t.Fatalf("no subject %q", name)
	}
	var n atomic.Int64
	h := subjects[i].protect(t, func(body []byte) reply {
		if os.Getenv(childEnd) == "dies" {
			os.Exit(3)
		}
		return counted(&n)(body)
	}, options{store: store, lease: factLease})
	a := h.send(order)
	if err := os.WriteFile(filepath.Join(store, "answered"), []byte(a.body), 0o600); err != nil {
		t.Fatal(err)
	}
}
