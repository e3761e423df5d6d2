package targets

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// Behaviours as they are met in the world. Each is a function of its own: they
// do not have one structure. What a run has to come to is written down by hand,
// from what the function does.

type doing = func(a *api, w http.ResponseWriter, r *http.Request, c *call)

// begin takes the identity of a call. known says that somebody had it before.
func (a *api) begin(c *call) (e *entry, known bool) {
	a.claims.Lock()
	defer a.claims.Unlock()
	id := a.identity(c)
	if a.keyHeader == "" {
		id = c.who.tenant + "\x00" + c.order.Reference
	}
	if e := a.entries[id]; e != nil {
		return e, true
	}
	e = &entry{print: c.print, order: c.order, done: make(chan struct{})}
	a.entries[id] = e
	return e, false
}

func (e *entry) finish(res result) {
	e.result = res
	close(e.done)
}

// guarded does the usual checks before f: a key, and the same request under it.
func guarded(f doing) doing {
	return func(a *api, w http.ResponseWriter, r *http.Request, c *call) {
		switch {
		case a.keyHeader == "":
		case c.key == "":
			a.refuse(w, r, c, http.StatusBadRequest, "a key is required", "retry", "no")
			return
		case !c.valid:
			a.refuse(w, r, c, http.StatusBadRequest, "this is no key", "retry", "no")
			return
		}
		a.claims.Lock()
		e := a.entries[a.identity(c)]
		a.claims.Unlock()
		if a.keyHeader != "" && e != nil && e.print != c.print {
			a.refuse(w, r, c, http.StatusUnprocessableEntity, "the key was used for another request", "retry", "no")
			return
		}
		a.audit(r, c.who, operationName, c.key, c.order.Reference, "received")
		f(a, w, r, c)
	}
}

// progress refuses a duplicate of a running request.
func (a *api) progress(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	problem(w, http.StatusConflict, "a request with this key is in progress", "retry", "same-key")
}

// async accepts, and a worker makes the order after a while.
func async(after time.Duration, never bool) doing {
	return guarded(func(a *api, w http.ResponseWriter, _ *http.Request, c *call) {
		e, known := a.begin(c)
		if !known && !never {
			a.later(func() {
				pause(context.Background(), after)
				if a.failing.Load() {
					e.finish(problemResult(http.StatusInternalServerError, "the order could not be made"))
					return
				}
				o := a.named(c)
				a.add(o)
				e.finish(created(o))
			})
		}
		w.Header().Set("Location", "/jobs/"+c.key)
		if known && a.marker != "" {
			w.Header().Set(a.marker, "true")
		}
		writeJSON(w, http.StatusAccepted, map[string]string{"status": "accepted", "status_url": "/jobs/" + c.key})
	})
}

// job is the status of an order that was accepted.
func (a *api) job(w http.ResponseWriter, r *http.Request) {
	a.claims.Lock()
	e := a.entries[a.identity(&call{who: caller{r.Header.Get("X-Tenant"), r.Header.Get("X-Actor")}, key: r.PathValue("id")})]
	a.claims.Unlock()
	switch {
	case e == nil:
		problem(w, http.StatusNotFound, "no such job")
	case e.running():
		writeJSON(w, http.StatusOK, map[string]string{"status": "processing"})
	case e.result.status >= 400:
		writeJSON(w, http.StatusOK, map[string]string{"status": "failed"})
	default:
		writeJSON(w, http.StatusOK, map[string]string{"status": "done", "id": e.result.order.ID})
	}
}

// firstFails answers the first attempt with 500, or not at all, with its effect
// or without, and the second as told.
func firstFails(effect, abort bool, second func(a *api, c *call, e *entry) result) doing {
	return guarded(func(a *api, w http.ResponseWriter, _ *http.Request, c *call) {
		e, known := a.begin(c)
		if !known {
			pause(context.Background(), a.takes)
			if effect {
				e.result.order = a.named(c)
				a.add(e.result.order)
			}
			e.finish(result{order: e.result.order})
			if abort {
				panic(http.ErrAbortHandler)
			}
			problem(w, http.StatusInternalServerError, "something went wrong")
			return
		}
		if e.running() {
			a.progress(w)
			return
		}
		a.claims.Lock()
		again := e.result.status != 0
		if !again {
			e.result = second(a, c, e)
		}
		res := e.result
		a.claims.Unlock()
		a.send(w, res, again)
	})
}

// failsAlways makes the order and answers with an error, once and for all.
func failsAlways(status int) doing {
	return guarded(func(a *api, w http.ResponseWriter, _ *http.Request, c *call) {
		e, known := a.begin(c)
		if !known {
			pause(context.Background(), a.takes)
			a.add(a.named(c))
			e.finish(problemResult(status, "something went wrong"))
		}
		<-e.done
		a.send(w, e.result, known)
	})
}

// executed makes the order of a second attempt.
func executed(a *api, c *call, _ *entry) result {
	o := a.named(c)
	a.add(o)
	return created(o)
}

// refused makes the order, and refuses a duplicate as told.
func refused(how func(w http.ResponseWriter, o order)) doing {
	return guarded(func(a *api, w http.ResponseWriter, _ *http.Request, c *call) {
		e, known := a.begin(c)
		if known {
			<-e.done
			if e.result.status >= 400 {
				a.send(w, e.result, false)
				return
			}
			how(w, e.result.order)
			return
		}
		pause(context.Background(), a.takes)
		if a.failing.Load() {
			e.finish(problemResult(http.StatusInternalServerError, "the order could not be made"))
		} else {
			o := a.named(c)
			a.add(o)
			e.finish(created(o))
		}
		a.send(w, e.result, false)
	})
}

// leased claims for so long, and executes whatever comes after that.
func leased(lease time.Duration) doing {
	return guarded(func(a *api, w http.ResponseWriter, _ *http.Request, c *call) {
		id := a.identity(c)
		a.claims.Lock()
		e, at := a.entries[id], a.last[id]
		switch {
		case e != nil && !e.running():
			a.claims.Unlock()
			a.send(w, e.result, true)
			return
		case e != nil && time.Since(at) < lease:
			a.claims.Unlock()
			a.progress(w)
			return
		}
		e = &entry{print: c.print, order: c.order, done: make(chan struct{})}
		a.entries[id], a.last[id] = e, time.Now()
		a.claims.Unlock()
		e.finish(a.make(context.Background(), c))
		a.send(w, e.result, false)
	})
}

// forgetting knows a key for so long after its request was done.
func forgetting(after time.Duration) doing {
	return guarded(func(a *api, w http.ResponseWriter, r *http.Request, c *call) {
		id := a.identity(c)
		a.claims.Lock()
		if at, ok := a.last[id]; ok && time.Since(at) > after {
			delete(a.entries, id)
			delete(a.last, id)
		}
		a.claims.Unlock()
		e, known := a.begin(c)
		if known {
			if e.running() {
				a.progress(w)
				return
			}
			a.send(w, e.result, true)
			return
		}
		res := a.make(context.Background(), c)
		a.claims.Lock()
		a.last[id] = time.Now()
		a.claims.Unlock()
		e.finish(res)
		a.send(w, res, false)
	})
}

// instances are two that take turns, each with a record of its own.
func instances(a *api, w http.ResponseWriter, r *http.Request, c *call) {
	a.audit(r, c.who, operationName, c.key, c.order.Reference, "received")
	a.claims.Lock()
	a.posts++
	c.key += "\x00" + string(rune('A'+a.posts%2))
	a.claims.Unlock()
	e, known := a.begin(c)
	if known {
		<-e.done
		a.send(w, e.result, true)
		return
	}
	e.finish(a.make(context.Background(), c))
	a.send(w, e.result, false)
}

// shedding answers with a status whatever comes while a request runs.
func shedding(status int) doing {
	return guarded(func(a *api, w http.ResponseWriter, _ *http.Request, c *call) {
		a.claims.Lock()
		busy := a.active > 0
		if !busy {
			a.active++
		}
		a.claims.Unlock()
		if busy {
			problem(w, status, "not now")
			return
		}
		defer a.ended()
		e, known := a.begin(c)
		if !known {
			e.finish(a.make(context.Background(), c))
		}
		a.send(w, e.result, known)
	})
}

// swallowing takes the lack of a key for a key.
func swallowing(a *api, w http.ResponseWriter, r *http.Request, c *call) {
	a.audit(r, c.who, operationName, c.key, c.order.Reference, "received")
	if c.key != "" && !c.valid {
		a.refuse(w, r, c, http.StatusBadRequest, "this is no key", "retry", "no")
		return
	}
	e, known := a.begin(c)
	if known && c.key != "" && e.print != c.print {
		a.refuse(w, r, c, http.StatusUnprocessableEntity, "the key was used for another request", "retry", "no")
		return
	}
	if !known {
		e.finish(a.make(context.Background(), c))
	}
	<-e.done
	a.send(w, e.result, known)
}

// unmarked makes an order of whatever comes.
func unmarked(a *api, w http.ResponseWriter, r *http.Request, c *call) {
	a.audit(r, c.who, operationName, "", c.order.Reference, "executed")
	a.send(w, a.make(context.Background(), c), false)
}

// keyed is a target with a key in a header, by a contract that leaves open what
// it does not name.
func keyed(name, about string, own doing, c plan.Contract) Target {
	c.Profile = "custom"
	c.Missing, c.Malformed, c.Mismatch = []int{400}, []int{400}, []int{422}
	return orders(name, about, &plan.Key{Header: "Idempotency-Key", Syntax: "sf-string"}, c, rules{keyHeader: "Idempotency-Key", marker: Marker, own: own})
}

// keyless is a target without a key.
func keyless(name, about string, own doing) Target {
	t := orders(name, about, nil, plan.Contract{Profile: "ietf"}, rules{own: own})
	t.Experiments = forNatural
	t.Expect.SaysNot = []string{"the key", "same key", "used key", "Idempotency-Key"}
	return t
}

func (t Target) says(parts ...string) Target {
	t.Expect.Says = parts
	return t
}

func (t Target) saysNot(parts ...string) Target {
	t.Expect.SaysNot = parts
	return t
}

func (t Target) causes(pairs map[string]evidence.CauseState) Target {
	t.Expect.Causes = pairs
	return t
}

func (t Target) basis(pairs map[evidence.FindingID]evidence.Basis) Target {
	t.Expect.Basis = pairs
	return t
}

const (
	supported = evidence.Supported
	refuted   = evidence.Refuted
)

func wrongInTheWorld() []Target {
	hangs := keyed("duplicate-hangs", "never answers a duplicate of a request that was done",
		guarded(func(a *api, w http.ResponseWriter, r *http.Request, c *call) {
			e, known := a.begin(c)
			if known {
				pause(r.Context(), time.Hour)
				problem(w, http.StatusGatewayTimeout, "it took too long")
				return
			}
			e.finish(a.make(context.Background(), c))
			a.send(w, e.result, false)
		}), plan.Contract{}).
		finds("duplicate-not-answered").
		outcome(outcomes{plan.Duplicate: broken}).
		verdict("retry_behavior", "unknown|unsafe_retry", "race_behavior", "unknown|safe_converge")
	hangs.Experiments = []plan.Experiment{plan.Duplicate, plan.RaceSame}

	noted := keyed("two-effects-one-doubled", "makes one order, and a second note of it with each replay",
		nil, plan.Contract{}).
		finds("effects-disagree").
		outcome(outcomes{plan.Duplicate: broken}).
		verdict("idempotency_support", "unknown", "retry_behavior", "unsafe_retry")
	noted.mails, noted.inside = true, true
	noted.make = func() *Service {
		a := newAPI(rules{keyHeader: "Idempotency-Key", marker: Marker, mails: true, mailAgain: true})
		return newService(&a.shop, a.handler())
	}
	noted.Expect.SaysNot = []string{"The same request sent again took effect again"}

	expires := keyed("key-expires", "forgets a key a second and a half after its request",
		forgetting(1500*time.Millisecond), plan.Contract{Replay: "original"}).
		finds("double-effect-sequential").
		outcome(outcomes{plan.Duplicate: held, plan.LateRetry: broken, plan.RaceSame: held}).
		causes(map[string]evidence.CauseState{"forgotten": supported, "no-key-read": refuted}).
		verdict("retry_behavior", "unsafe_retry", "idempotency_support", "header_key")
	expires.lateAfter = 3 * time.Second

	content := orders("content-not-compared", "its contract knows requests by their content, and only the key is looked at", &plan.Key{Header: "Idempotency-Key", Syntax: "sf-string"},
		plan.Contract{Profile: "custom", Missing: []int{400}, Malformed: []int{400}, Mismatch: []int{422}, FreshKey: "refused"},
		rules{keyHeader: "Idempotency-Key", marker: Marker}).
		finds("content-not-recognised").
		outcome(outcomes{plan.Duplicate: held, plan.FreshKey: broken})
	content.Experiments = []plan.Experiment{plan.Duplicate, plan.FreshKey, plan.Altered, plan.RaceSame}

	return []Target{
		keyed("first-500-with-effect", "makes the order and answers 500, and makes it again when it is asked again",
			firstFails(true, false, executed), plan.Contract{}).
			finds("double-effect-sequential").may("double-effect-lost-response").
			outcome(outcomes{plan.Duplicate: broken, plan.FreshKey: inconclusive, plan.MissingKey: inconclusive}).
			basis(map[evidence.FindingID]evidence.Basis{"double-effect-sequential": evidence.Established}).
			says("the first request was answered with 500 (orders: 1 effect), and the same request again was answered with 201").
			verdict("retry_behavior", "unsafe_retry", "idempotency_support", "unknown|none"),
		keyed("first-cut-with-effect", "makes the order and breaks off without a response, and makes it again when it is asked again",
			firstFails(true, true, executed), plan.Contract{}).
			finds("double-effect-lost-response").
			outcome(outcomes{plan.Duplicate: broken}).
			basis(map[evidence.FindingID]evidence.Basis{"double-effect-lost-response": evidence.Established}).
			verdict("retry_behavior", "unsafe_retry"),
		keyed("first-400-for-good", "makes the order and answers 400, also when it is asked again",
			failsAlways(http.StatusBadRequest), plan.Contract{}).
			finds("refusal-executed").
			basis(map[evidence.FindingID]evidence.Basis{"refusal-executed": evidence.Established}).
			outcome(outcomes{plan.Duplicate: broken, plan.FreshKey: inconclusive, plan.LateRetry: broken, plan.Altered: inconclusive, plan.InFlight: inconclusive, plan.RaceSame: inconclusive, plan.LostUnread: inconclusive, plan.FailedFirst: inconclusive}).
			verdict("retry_behavior", "unknown", "race_behavior", "unknown", "in_progress_handling", "unknown"),
		keyed("burnt-key", "answers 500 and makes nothing, and answers 201 from the record when it is asked again",
			firstFails(false, false, func(a *api, c *call, _ *entry) result { return created(a.named(c)) }), plan.Contract{}).
			finds("lost-effect").
			saysNot("no reader sees the state").
			basis(map[evidence.FindingID]evidence.Basis{"lost-effect": evidence.Inferred}).
			outcome(outcomes{plan.Duplicate: broken}).
			verdict("retry_behavior", "unsafe_retry", "race_behavior", "unknown"),
		keyed("accepted-and-dropped", "accepts with 202, and drops the work if the client goes away, with the status running for ever",
			guarded(func(a *api, w http.ResponseWriter, r *http.Request, c *call) {
				e, known := a.begin(c)
				if !known && pause(r.Context(), a.takes) {
					if a.failing.Load() {
						e.finish(problemResult(http.StatusInternalServerError, "the order could not be made"))
					} else {
						o := a.named(c)
						a.add(o)
						e.finish(created(o))
					}
				}
				w.Header().Set("Location", "/jobs/"+c.key)
				writeJSON(w, http.StatusAccepted, map[string]string{"status": "accepted"})
			}), plan.Contract{}).
			finds("failure-blocks-key").
			outcome(outcomes{plan.Duplicate: held, plan.LostUnread: broken}).
			verdict("retry_behavior", "unsafe_retry"),
		keyed("lease-shorter-than-work", "holds a claim for half as long as the work takes",
			leased(work/2), plan.Contract{Replay: "original"}).
			finds("in-flight-executed").may("double-effect-lost-response").
			outcome(outcomes{plan.Duplicate: held, plan.RaceSame: held, plan.InFlight: broken}).
			causes(map[string]evidence.CauseState{"lease-too-short": supported, "check-then-act": refuted}).
			verdict("retry_behavior", "unsafe_retry", "race_behavior", "safe_converge"),
		keyed("record-of-each-instance", "two instances take turns, each with a record of its own", instances, plan.Contract{}).
			finds("double-effect-sequential").may(unprotected...).may("lost-effect").
			outcome(outcomes{plan.Duplicate: broken, plan.LateRetry: broken}).
			causes(map[string]evidence.CauseState{"per-instance": supported, "no-key-read": refuted}).
			verdict("retry_behavior", "unsafe_retry", "idempotency_support", "unknown"),
		keyed("duplicate-refused", "refuses duplicates with the 409 of a unique constraint, although its contract promises the result",
			refused(func(w http.ResponseWriter, _ order) { problem(w, http.StatusConflict, "there is such an order") }), plan.Contract{Replay: "original"}).
			finds("replay-refused").
			outcome(outcomes{plan.Duplicate: held, plan.RaceSame: held, plan.LostUnread: held}).
			verdict("in_progress_handling", "unknown", "retry_behavior", "safe_stop", "result_replay", "unknown"),
		keyed("bad-key-500", "answers a malformed key with 500",
			func(a *api, w http.ResponseWriter, r *http.Request, c *call) {
				if c.key != "" && !c.valid {
					problem(w, http.StatusInternalServerError, "panic: invalid key")
					return
				}
				refused(func(w http.ResponseWriter, o order) { a.send(w, created(o), true) })(a, w, r, c)
			}, plan.Contract{}).
			finds("bad-key-server-error").
			outcome(outcomes{plan.Duplicate: held, plan.MissingKey: held, plan.MalformedKey: broken}),
		keyed("no-key-is-a-key", "keys are optional, and all requests without one count as the same", swallowing, plan.Contract{}).
			finds("keyless-requests-confused").may("missing-key-accepted").
			outcome(outcomes{plan.Duplicate: held, plan.MissingKey: broken}).
			causes(map[string]evidence.CauseState{"keyless-as-one": supported}),
		keyless("no-key-doubles", "has no key, and makes an order each time", unmarked).
			finds("double-effect-sequential").
			may("double-effect-race", "in-flight-executed", "double-effect-lost-response", "no-specification").
			outcome(outcomes{plan.Duplicate: broken, plan.RaceSame: broken}).
			verdict("idempotency_support", "none", "retry_behavior", "unsafe_retry"),
		hangs, noted, expires, content,
	}
}

func rightInTheWorld() []Target {
	open := plan.Contract{}
	conditional := keyless("conditional", "makes what is not there, by If-None-Match; a repetition gets 412",
		refused(func(w http.ResponseWriter, _ order) {
			problem(w, http.StatusPreconditionFailed, "it is there")
		})).
		verdict("idempotency_support", "natural_key", "retry_behavior", "safe_stop", "result_replay", "unknown", "in_progress_handling", "unknown")
	conditional.headers = plan.Header{{Name: "If-None-Match", Value: "*"}}

	used := keyed("quota-used-up", "refuses everything with 400 after two requests",
		guarded(func(a *api, w http.ResponseWriter, _ *http.Request, c *call) {
			a.claims.Lock()
			a.posts++
			over := a.posts > 2
			a.claims.Unlock()
			if over {
				problem(w, http.StatusBadRequest, "the quota is used up; try again later")
				return
			}
			e, known := a.begin(c)
			if !known {
				e.finish(a.make(context.Background(), c))
			}
			<-e.done
			a.send(w, e.result, known)
		}), open).
		outcome(outcomes{plan.Duplicate: held, plan.LostUnread: inconclusive, plan.RaceSame: inconclusive}).
		says("and so was a fresh request: 400").
		verdict("race_behavior", "unknown", "in_progress_handling", "unknown", "retry_behavior", "unknown")
	used.Experiments = []plan.Experiment{plan.Duplicate, plan.RaceSame, plan.LostUnread, plan.LostBegun, plan.FailedFirst}

	inDoubt := outcomes{plan.Duplicate: inconclusive, plan.RaceSame: inconclusive}
	doubt := []string{"idempotency_support", "unknown", "race_behavior", "unknown", "retry_behavior", "unknown", "in_progress_handling", "unknown", "result_replay", "unknown"}
	list := []Target{
		keyed("async", "accepts with 202 and a status resource, and makes the order a while later", async(lateBy, false), plan.Contract{Replay: "original"}).
			verdict("in_progress_handling", "yes|unknown"),
		keyed("async-slow", "accepts, and makes the order when the probe has given up waiting", async(4*time.Second, false), open).
			outcome(inDoubt).says("it is slower than that, or never ends").verdict(doubt...),
		keyed("async-never", "accepts, and never makes the order", async(0, true), open).
			outcome(inDoubt).says("it is slower than that, or never ends").verdict(doubt...),
		keyed("first-500-clean", "answers the first attempt with 500 and makes nothing, and makes the order when it is asked again",
			firstFails(false, false, executed), open).
			outcome(outcomes{plan.Duplicate: held, plan.FreshKey: inconclusive, plan.Altered: held, plan.RaceSame: inconclusive}).
			verdict("race_behavior", "unknown", "in_progress_handling", "unknown", "retry_behavior", "safe_stop|unknown"),
		keyed("first-500-recorded", "makes the order and answers 500, and gives the result when it is asked again",
			firstFails(true, false, func(_ *api, _ *call, e *entry) result { return created(e.result.order) }), open).
			outcome(outcomes{plan.Duplicate: held, plan.FreshKey: held, plan.Altered: held}).
			verdict("race_behavior", "unknown|safe_converge", "in_progress_handling", "unknown|yes", "retry_behavior", "safe_stop|unknown"),
		keyed("first-500-for-good", "makes the order and answers 500, also when it is asked again",
			failsAlways(http.StatusInternalServerError), open).
			outcome(outcomes{plan.Duplicate: held, plan.FreshKey: inconclusive, plan.LateRetry: inconclusive, plan.Altered: inconclusive, plan.InFlight: inconclusive, plan.RaceSame: inconclusive, plan.LostUnread: inconclusive, plan.FailedFirst: inconclusive}).
			verdict("race_behavior", "unknown", "in_progress_handling", "unknown", "retry_behavior", "safe_stop"),
		keyed("refused-with-reference", "refuses duplicates with the 409 of a unique constraint, which names the order",
			refused(func(w http.ResponseWriter, o order) {
				problem(w, http.StatusConflict, "there is such an order", "order", o.ID)
			}), plan.Contract{Replay: "reference"}).
			verdict("result_replay", "conflict_with_reference", "in_progress_handling", "yes|unknown", "idempotency_support", "header_key"),
		keyless("unique-content", "has no key; a second order with the same reference gets the 409 of a unique constraint",
			refused(func(w http.ResponseWriter, _ order) { problem(w, http.StatusConflict, "duplicate key value") })).
			verdict("idempotency_support", "natural_key", "retry_behavior", "safe_stop", "result_replay", "unknown", "in_progress_handling", "unknown"),
		keyless("upsert", "has no key; the same order again is there already: 201, then 204",
			refused(func(w http.ResponseWriter, _ order) { w.WriteHeader(http.StatusNoContent) })).
			verdict("idempotency_support", "natural_key", "retry_behavior", "safe_stop", "result_replay", "unknown", "in_progress_handling", "unknown"),
		keyless("error-in-200", "has no key; a duplicate is answered with 200 and an error in the body",
			refused(func(w http.ResponseWriter, _ order) {
				writeJSON(w, http.StatusOK, map[string]any{"error": map[string]string{"code": "exists"}})
			})).
			verdict("idempotency_support", "natural_key", "retry_behavior", "safe_stop", "result_replay", "unknown", "in_progress_handling", "unknown"),
		keyed("sheds-401", "answers with 401 whatever comes while a request runs", shedding(http.StatusUnauthorized), open).
			outcome(outcomes{plan.Duplicate: held, plan.RaceSame: inconclusive}).
			verdict("race_behavior", "unknown", "in_progress_handling", "unknown|no", "retry_behavior", "safe_stop|unknown|unsafe_retry"),
		conditional, used,
	}
	for i := range list {
		t := &list[i]
		if strings.HasPrefix(t.Name, "async-") {
			t.Experiments = []plan.Experiment{plan.Duplicate, plan.Altered, plan.RaceSame, plan.LostUnread, plan.FailedFirst}
		}
		if t.Expect.Outcomes == nil {
			t.Expect.Outcomes = allHeld()
			if t.Key == nil {
				t.Expect.Outcomes = outcomes{plan.Duplicate: held, plan.LateRetry: held, plan.OtherTenant: held, plan.RaceSame: held, plan.LostUnread: held}
			}
		}
		if t.Key == nil {
			t.Expect.May = append(t.Expect.May, "no-specification") // its document is about keys, or nothing
		}
	}
	return list
}
