package targets

import (
	"context"
	"maps"
	"net/http"
	"strconv"
	"time"
)

// flow is how looking, acting and recording follow each other.
type flow string

const (
	// The zero value claims first, which is right.

	// checkThenAct looks, meets another request that has looked, acts, records.
	checkThenAct flow = "check then act"
	// checkThenQueue looks, waits for its turn, acts, records.
	checkThenQueue flow = "check then queue"
	// untilCut drops the record if the client goes away.
	untilCut flow = "until cut"
	// afterResponse records when the response has been written.
	afterResponse flow = "after response"
	// markFirst records success, then acts unless the client has gone.
	markFirst flow = "mark first"
	// stuckWhenCut leaves the key in progress if the client goes away.
	stuckWhenCut flow = "stuck when cut"
)

// duplicate answers a request whose key is known.
func (a *api) duplicate(w http.ResponseWriter, r *http.Request, c *call, id string, e *entry) {
	if e.print != c.print && a.noCompare != replays {
		if a.leaks {
			a.refuse(w, r, c, a.rules.mismatch, "the key was used for another request", "stored_request", e.order, "stored_result", e.recorded())
			return
		}
		a.refuse(w, r, c, a.rules.mismatch, "the key was used for another request", "retry", "no")
		return
	}
	if e.running() && !a.hold(w, r, c, id, e) {
		return
	}
	if a.violates {
		a.refuse(w, r, c, http.StatusInternalServerError, "ERROR: duplicate key value violates unique constraint")
		return
	}
	res := e.result
	if res.status < 400 {
		switch {
		case a.again:
			again := c.order
			again.ID = a.mint()
			a.add(again)
		case a.againLater:
			again := c.order
			again.ID = a.mint()
			a.later(func() {
				pause(context.Background(), lateBy)
				a.add(again)
			})
		case a.newNames:
			renamed := res.order
			renamed.ID = a.mint()
			res = created(renamed)
		case a.mailAgain:
			a.mail(res.order)
		}
		switch a.rules.replay {
		case current:
			now, _ := a.find(func(o order) bool { return o.ID == res.order.ID })
			res = created(now)
			res.status = http.StatusOK
		case reference:
			res = referenceResult(res.order)
		}
	}
	a.audit(r, c.who, operationName, c.key, c.order.Reference, "replayed")
	a.send(w, res, true)
}

// hold answers a duplicate of a running request, or waits and returns true.
func (a *api) hold(w http.ResponseWriter, r *http.Request, c *call, id string, e *entry) bool {
	switch a.inFlight {
	case waits:
		select {
		case <-e.done:
			return true
		case <-r.Context().Done():
		}
	case accepts:
		a.audit(r, c.who, operationName, c.key, c.order.Reference, "in_progress")
		w.Header().Set("Location", "/operations/"+c.key)
		w.Header().Set("Retry-After", "1")
		writeJSON(w, http.StatusAccepted, map[string]string{"status": "in progress", "status_url": "/operations/" + c.key})
	case newKey:
		a.refuse(w, r, c, http.StatusConflict, "This key cannot be used. Create a new key and send the request again.", "retry", "new-key")
	case limited, aborted:
		a.shed(w, r, c)
	default:
		w.Header().Set("Retry-After", "1")
		a.refuse(w, r, c, http.StatusConflict, "a request with this key is in progress", "retry", "same-key", "status_url", "/operations/"+c.key)
	}
	return false
}

// shed turns a request away before it was processed.
func (a *api) shed(w http.ResponseWriter, r *http.Request, c *call) {
	a.audit(r, c.who, operationName, c.key, c.order.Reference, "turned_away")
	if a.inFlight == aborted {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Retry-After", "1")
	problem(w, http.StatusTooManyRequests, "too many requests at a time", "retry", "same-key")
}

// tooSoon refuses a body that was let through less than a window ago.
func (a *api) tooSoon(w http.ResponseWriter, r *http.Request, c *call) bool {
	id := c.who.tenant + "\x00" + c.who.actor + "\x00" + string(c.print[:])
	a.claims.Lock()
	last, ok := a.last[id]
	soon := ok && time.Since(last) < a.window
	if !soon {
		a.last[id] = time.Now()
	}
	a.claims.Unlock()
	if soon {
		w.Header().Set("Retry-After", "1")
		a.refuse(w, r, c, http.StatusTooManyRequests, "too many requests")
	}
	return soon
}

// taken refuses a reference that has an order, by the natural key.
func (a *api) taken(w http.ResponseWriter, r *http.Request, c *call) bool {
	if c.key != "" {
		// A key that is known is answered from its record.
		a.claims.Lock()
		_, known := a.entries[a.identity(c)]
		a.claims.Unlock()
		if known {
			return false
		}
	}
	o, ok := a.find(func(o order) bool { return o.Tenant == c.who.tenant && o.Reference == c.order.Reference })
	if ok {
		a.audit(r, c.who, operationName, c.key, c.order.Reference, "refused")
		a.send(w, referenceResult(o), false)
	}
	return ok
}

// operation is the status of a request that was accepted.
func (a *api) operation(w http.ResponseWriter, r *http.Request) {
	c := &call{who: caller{r.Header.Get("X-Tenant"), r.Header.Get("X-Actor")}, key: r.PathValue("key")}
	a.claims.Lock()
	e := a.entries[a.identity(c)]
	a.claims.Unlock()
	switch {
	case e == nil:
		problem(w, http.StatusNotFound, "no such operation")
	case e.running():
		writeJSON(w, http.StatusAccepted, map[string]string{"status": "in progress"})
	default:
		a.send(w, e.result, true)
	}
}

// unclaimed looks at the key, and takes it when the work is done.
func (a *api) unclaimed(w http.ResponseWriter, r *http.Request, c *call) {
	id := a.identity(c)
	a.claims.Lock()
	e := a.entries[id]
	a.claims.Unlock()
	if e != nil {
		a.duplicate(w, r, c, id, e)
		return
	}
	a.audit(r, c.who, operationName, c.key, c.order.Reference, "executed")
	if a.flow == checkThenAct {
		a.meet(id)
	} else {
		a.turn <- struct{}{}
		defer func() { <-a.turn }()
	}
	e = &entry{print: c.print, order: c.order, done: make(chan struct{})}
	e.result = a.make(context.WithoutCancel(r.Context()), c)
	close(e.done)
	a.claims.Lock()
	a.entries[id] = e
	a.claims.Unlock()
	a.send(w, e.result, false)
}

// meet waits for another request of the same identity that has looked as well,
// for as long as a lookup can take.
func (a *api) meet(id string) {
	a.claims.Lock()
	met, other := a.looked[id]
	if other {
		select {
		case <-met:
		default:
			close(met)
		}
		a.claims.Unlock()
		return
	}
	met = make(chan struct{})
	a.looked[id] = met
	a.claims.Unlock()

	t := time.NewTimer(work)
	defer t.Stop()
	select {
	case <-met:
	case <-t.C:
	}
	a.claims.Lock()
	delete(a.looked, id)
	a.claims.Unlock()
}

// tiedToClient makes the order, and keeps the record only while the client is
// there.
func (a *api) tiedToClient(w http.ResponseWriter, r *http.Request, c *call, id string, e *entry) {
	defer a.ended()
	o := a.named(c)
	a.add(o)
	if !pause(r.Context(), a.takes) {
		a.drop(id)
		e.result = problemResult(http.StatusInternalServerError, "the client has gone")
		close(e.done)
		return
	}
	e.result = created(o)
	close(e.done)
	a.send(w, e.result, false)
}

// recordedLast makes the order, answers, and records when all of the response
// has been taken.
func (a *api) recordedLast(w http.ResponseWriter, r *http.Request, c *call, id string, e *entry) {
	defer a.ended()
	o := a.named(c)
	a.add(o)
	res := created(o)
	maps.Copy(w.Header(), res.header)
	w.Header().Set("Content-Length", strconv.Itoa(len(res.body)))
	w.WriteHeader(res.status)
	_, _ = w.Write(res.body[:1])
	_ = http.NewResponseController(w).Flush()
	if !pause(r.Context(), a.takes) {
		a.drop(id)
		e.result = problemResult(http.StatusInternalServerError, "the client has gone")
		close(e.done)
		return
	}
	_, _ = w.Write(res.body[1:])
	e.result = res
	close(e.done)
}

// markedFirst records success, and makes the order unless the client goes
// away.
func (a *api) markedFirst(w http.ResponseWriter, r *http.Request, c *call, e *entry) {
	defer a.ended()
	o := a.named(c)
	e.result = created(o)
	close(e.done)
	if !pause(r.Context(), a.takes) {
		return
	}
	a.add(o)
	a.send(w, e.result, false)
}

// heldWhenCut makes the order unless the client goes away: then the key stays
// as it is, in progress.
func (a *api) heldWhenCut(w http.ResponseWriter, r *http.Request, c *call, e *entry) {
	defer a.ended()
	if !pause(r.Context(), a.takes) {
		return
	}
	o := a.named(c)
	a.add(o)
	e.result = created(o)
	close(e.done)
	a.send(w, e.result, false)
}

// named is the order of a call with an id.
func (a *api) named(c *call) order {
	o := c.order
	o.ID = a.mint()
	return o
}
