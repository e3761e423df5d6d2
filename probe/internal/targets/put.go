package targets

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// putting makes the order of an address, or changes the one that is there. With
// again each request is mailed, with drops a change is answered and not made.
func putting(again, drops bool) doing {
	return guarded(func(a *api, w http.ResponseWriter, _ *http.Request, c *call) {
		e, known := a.begin(c)
		if !known {
			pause(context.Background(), a.takes)
			if a.failing.Load() {
				e.finish(problemResult(http.StatusInternalServerError, "the order could not be made"))
			} else {
				o := a.named(c)
				a.add(o)
				if a.rules.mails {
					a.mail(o)
				}
				e.finish(created(o))
			}
			a.send(w, e.result, false)
			return
		}
		<-e.done
		if e.result.status >= 400 {
			a.send(w, e.result, false)
			return
		}
		o := e.result.order
		if !drops {
			o = a.change(o.ID, c.order)
		}
		if again {
			a.mail(o)
		}
		writeJSON(w, http.StatusOK, o)
	})
}

// checksKeys checks keys before a handler of PUT, and remembers what it answered.
// Another request under a used key is refused, or with replays answered with the
// first one's result.
func checksKeys(next http.Handler, replays bool) http.Handler {
	var mu sync.Mutex
	entries := map[string]*entry{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut {
			next.ServeHTTP(w, r)
			return
		}
		key, ok := parseKey(r.Header.Values("Idempotency-Key"), false)
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if !ok || err != nil {
			problem(w, http.StatusBadRequest, "a key is required", "retry", "no")
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		print := sha256.Sum256(append([]byte(r.URL.Path+"\x00"), body...))
		id := r.Header.Get("X-Tenant") + "\x00" + r.Header.Get("X-Actor") + "\x00" + key
		mu.Lock()
		e := entries[id]
		if e == nil {
			e = &entry{print: print, done: make(chan struct{})}
			entries[id] = e
			mu.Unlock()
			got := httptest.NewRecorder()
			next.ServeHTTP(got, r)
			e.finish(result{status: got.Code, header: got.Header(), body: got.Body.Bytes()})
			(&api{}).send(w, e.result, false)
			return
		}
		mu.Unlock()
		switch {
		case e.print != print && !replays:
			problem(w, http.StatusUnprocessableEntity, "the key was used for another request", "retry", "no")
		case e.running():
			(&api{}).progress(w)
		default:
			(&api{rules: rules{marker: Marker}}).send(w, e.result, true)
		}
	})
}

// change gives an order what another one asks for.
func (s *shop) change(id string, to order) order {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.orders, func(o order) bool { return o.ID == id })
	s.orders[i].Item, s.orders[i].Quantity = to.Item, to.Quantity
	return s.orders[i]
}

// puts is a target whose orders have their addresses from the client. Without
// gets, an order cannot be read at its address.
func puts(name, about string, r rules, own doing, gets bool) Target {
	r.own = own
	t := keyless(name, about, own)
	t.mails = r.mails
	t.make = func() *Service {
		a := newAPI(r)
		h := a.handler()
		return newService(&a.shop, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ref := r.URL.Path[min(len("/orders/"), len(r.URL.Path)):]
			switch {
			case r.Method == http.MethodPut:
				r = r.Clone(r.Context())
				r.Method, r.URL.Path = http.MethodPost, "/orders"
				h.ServeHTTP(w, r)
			case r.Method == http.MethodGet && gets && r.URL.Path == "/orders/"+ref:
				o, ok := a.find(func(o order) bool { return o.Reference == ref && o.Tenant == r.Header.Get("X-Tenant") })
				if !ok {
					problem(w, http.StatusNotFound, "no such order")
					return
				}
				writeJSON(w, http.StatusOK, o)
			default:
				h.ServeHTTP(w, r)
			}
		}))
	}
	t.adapt = func(p *plan.Plan, s *Server) {
		op := &p.Operations[0]
		op.Request.Method, op.Request.URL = "PUT", s.URL+"/orders/{{.ref | url}}"
	}
	t.Experiments = append(slices.Clone(forNatural), plan.Altered)
	t.Expect.May = []evidence.FindingID{"no-specification"}
	return t
}

// putters are the targets whose operation is a PUT.
func putters() []Target {
	right := func(t Target, says string) Target {
		return t.outcome(outcomes{plan.Duplicate: held, plan.LateRetry: held, plan.OtherTenant: held, plan.RaceSame: held, plan.LostUnread: held, plan.Altered: held}).
			says(says).
			verdict("idempotency_support", "natural_key", "retry_behavior", "safe_stop", "result_replay", "same_response", "in_progress_handling", "yes|unknown", "race_behavior", "safe_converge")
	}
	// under gives the operation a key, which front looks at.
	under := func(t Target, front func(http.Handler) http.Handler) Target {
		t.Key, t.Contract, t.Expect.SaysNot = &plan.Key{Header: "Idempotency-Key"}, plan.Contract{Profile: "ietf"}, nil
		make, adapt := t.make, t.adapt
		t.make = func() *Service {
			s := make()
			s.Handler = front(s.Handler)
			return s
		}
		t.adapt = func(p *plan.Plan, s *Server) {
			adapt(p, s)
			p.Operations[0].Audit = nil // the trail is of the orders, and knows no keys
		}
		t.Experiments = []plan.Experiment{plan.Duplicate, plan.FreshKey, plan.Altered, plan.RaceAltered}
		return t
	}
	looks := func(replays bool) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler { return checksKeys(next, replays) }
	}
	ignores := func(next http.Handler) http.Handler { return next }
	return []Target{
		under(puts("put-keyed", "makes or changes the order of an address, and refuses another request under a used key", rules{}, putting(false, false), true), looks(false)).
			outcome(outcomes{plan.Duplicate: held, plan.Altered: held, plan.RaceAltered: held}).
			says("the altered request was refused with 422"),
		under(puts("put-keyed-replays", "answers another request under a used key with the first one's result, and does not make the change", rules{}, putting(false, false), true), looks(true)).
			finds("mismatch-replayed-as-same").
			outcome(outcomes{plan.Duplicate: held, plan.Altered: broken}).
			says("what it asks for was not done").
			basis(map[evidence.FindingID]evidence.Basis{"mismatch-replayed-as-same": evidence.Established}),
		under(puts("put-key-unread", "does not look at the key, and takes another request for a change", rules{}, putting(false, false), true), ignores).
			finds("mismatch-executed").
			outcome(outcomes{plan.Duplicate: held, plan.Altered: broken, plan.RaceAltered: inconclusive}).
			says("changed the resource, under a used key").
			saysNot("did not happen", "is not there"),
		under(puts("put-key-unread-blind", "does the same, and its orders cannot be read at their addresses", rules{}, putting(false, false), false), ignores).
			outcome(outcomes{plan.Duplicate: held, plan.Altered: inconclusive, plan.RaceAltered: inconclusive}).
			says("no reader tells whether what it asks for was done").
			saysNot("did not happen", "is not there"),
		right(puts("put", "makes or changes the order of an address", rules{mails: true}, putting(false, false), true),
			"the altered request was treated as a change of the same resource"),
		right(puts("put-unread", "makes or changes the order of an address, at which it cannot be read", rules{}, putting(false, false), false),
			"no reader tells whether what it asks for was done"),
		puts("put-mails-again", "makes or changes the order of an address, and mails each time", rules{mails: true}, putting(true, false), true).
			finds("outside-effect-doubled").
			outcome(outcomes{plan.Duplicate: broken, plan.RaceSame: broken}).
			verdict("idempotency_support", "natural_key|unknown", "outbox_pattern", "no", "retry_behavior", "unsafe_retry"),
		puts("put-drops-change", "makes the order of an address, and answers a change with success and the order as it was", rules{}, putting(false, true), true).
			finds("change-not-made").
			outcome(outcomes{plan.Duplicate: held, plan.Altered: broken, plan.RaceSame: held}).
			says("what it asks for was not done").
			verdict("idempotency_support", "natural_key", "race_behavior", "safe_converge"),
	}
}
