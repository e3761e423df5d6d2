package targets

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// working is how a service does what it has accepted. Where it tells what became
// of it is in its response, in a member that no other service has.
type working struct {
	takes  time.Duration
	never  bool             // it is never over
	anew   bool             // a duplicate is work of its own
	fails  func(n int) bool // the n-th attempt at a request ends badly
	effect bool             // one that fails has its effect all the same
}

// workItem is what was accepted.
type workItem struct {
	*entry
	failed bool
}

// accepting are the targets whose status is not where it is usually looked for.
func accepting() []Target {
	target := func(name, about string, how working) Target {
		t := keyed(name, about, nil, plan.Contract{Replay: "original"})
		t.make = func() *Service {
			items, attempts, latest := map[string]*workItem{}, map[string]int{}, map[string]string{}
			r := rules{keyHeader: "Idempotency-Key", marker: Marker}
			r.own = guarded(func(a *api, w http.ResponseWriter, _ *http.Request, c *call) {
				a.claims.Lock()
				defer a.claims.Unlock()
				id := a.identity(c)
				item := items[latest[id]]
				known := item != nil && !how.anew && !(item.failed && !item.running())
				if !known {
					attempts[id]++
					n := attempts[id]
					item = &workItem{entry: &entry{print: c.print, order: c.order, done: make(chan struct{})}}
					latest[id] = "w" + strconv.Itoa(len(items)+1)
					items[latest[id]] = item
					a.entries[id] = item.entry // what another request is compared with
					a.later(func() {
						if how.never {
							return
						}
						pause(context.Background(), how.takes)
						failed := how.fails != nil && how.fails(n) || a.failing.Load()
						res := problemResult(http.StatusInternalServerError, "the order could not be made")
						if !failed || how.effect {
							o := a.named(c)
							a.add(o)
							res.order = o
						}
						a.claims.Lock()
						item.failed = failed
						a.claims.Unlock()
						item.finish(res)
					})
				} else {
					w.Header().Set(Marker, "true")
				}
				writeJSON(w, http.StatusAccepted, map[string]any{"ticket": map[string]string{"no": latest[id]}})
			})
			a := newAPI(r)
			return newService(&a.shop, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/tickets" {
					a.handler().ServeHTTP(w, r)
					return
				}
				a.claims.Lock()
				item := items[r.FormValue("no")]
				a.claims.Unlock()
				switch {
				case item == nil:
					problem(w, http.StatusNotFound, "no such ticket")
				case item.running():
					writeJSON(w, http.StatusOK, map[string]any{"ticket": map[string]string{"progress": "In the oven"}})
				case item.failed:
					writeJSON(w, http.StatusOK, map[string]any{"ticket": map[string]string{"progress": "burnt"}})
				default:
					writeJSON(w, http.StatusOK, map[string]any{"ticket": map[string]string{"progress": "served"}, "order": item.result.order.ID})
				}
			}))
		}
		t.adapt = asksAt
		return t
	}
	inDoubt := func(t Target, says string) Target {
		t.Experiments = []plan.Experiment{plan.Duplicate, plan.Altered, plan.RaceSame, plan.LostUnread, plan.FailedFirst}
		return t.outcome(outcomes{plan.Duplicate: inconclusive, plan.RaceSame: inconclusive}).says(says).
			verdict("idempotency_support", "unknown", "race_behavior", "unknown", "retry_behavior", "unknown", "in_progress_handling", "unknown", "result_replay", "unknown")
	}
	right := func(t Target) Target {
		t.Expect.Outcomes, t.Expect.Verdict = allHeld(), rightVerdict()
		t.Expect.Verdict["in_progress_handling"] = []string{"yes", "unknown"}
		return t
	}
	long := right(target("tickets-long", "accepts, and works for longer than the state is waited for", working{takes: 4 * time.Second}))
	long.adapt = func(p *plan.Plan, s *Server) {
		asksAt(p, s)
		p.Operations[0].Poll.Limit = 10 * time.Second
	}
	// One that does not say when it is asked is believed to have had its effect
	// only by a reader.
	strange := inDoubt(target("tickets-strange", "accepts, and tells its state in words that the plan does not have", working{never: true}),
		`its status is "In the oven", which poll does not list as pending, done or failed`)
	strange.adapt = func(p *plan.Plan, s *Server) {
		asksAt(p, s)
		p.Operations[0].Poll.Pending = []string{"waiting"}
	}
	always := func(int) bool { return true }
	return []Target{
		right(target("tickets", "accepts, with a ticket whose state is told elsewhere", working{takes: lateBy})),
		long, strange,
		inDoubt(target("tickets-never", "accepts, and is never done", working{never: true}), "its status still says that it is running"),
		inDoubt(target("tickets-fail", "accepts, and always fails", working{takes: lateBy, fails: always}), "202, and failed by its status"),
		target("tickets-fail-with-effect", "accepts, makes the order and fails, and makes it again when it is asked again",
			working{takes: lateBy, fails: func(n int) bool { return n == 1 }, effect: true}).
			finds("double-effect-sequential").may("double-effect-race", "double-effect-lost-response", "in-flight-executed").
			outcome(outcomes{plan.Duplicate: broken}).
			basis(map[evidence.FindingID]evidence.Basis{"double-effect-sequential": evidence.Established}).
			says("the first request was answered with 202, and failed by its status (orders: 1 effect)").
			verdict("retry_behavior", "unsafe_retry"),
		target("tickets-anew", "accepts each duplicate as work of its own", working{takes: lateBy, anew: true}).
			finds("double-effect-sequential").may(unprotected...).
			outcome(outcomes{plan.Duplicate: broken, plan.RaceSame: broken, plan.LostUnread: broken}).
			verdict("idempotency_support", "none", "race_behavior", "double_apply", "retry_behavior", "unsafe_retry"),
	}
}

// asksAt says where the tickets are.
func asksAt(p *plan.Plan, s *Server) {
	op := &p.Operations[0]
	op.Poll = &plan.Poll{
		URL: s.URL + "/tickets?no={{.ticket}}", Take: []plan.Taking{{Name: "ticket", Pointer: new(plan.Pointer("/ticket/no"))}},
		State: new(plan.Pointer("/ticket/progress")), Pending: []string{"in the oven"}, Done: []string{"served"}, Failed: []string{"burnt"},
		Interval: 100 * time.Millisecond,
	}
	op.Resource = &plan.Resource{Pointer: new(plan.Pointer("/order"))}
}
