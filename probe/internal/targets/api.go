package targets

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// rules are what an API promises and does. The zero value of a field is the
// right thing, or the usual one; every wrong target has one field more than a
// right one.
type rules struct {
	// The contract.
	keyHeader   string // empty: no header
	keyBody     string // member of the body
	bare        bool   // keys are not quoted
	repeatable  bool   // OASIS Repeatable Requests
	optional    bool   // requests without a key are executed
	mismatch    int    // status; default 422
	inFlight    inFlight
	replay      replay
	marker      string // header of a replay
	natural     bool   // a tenant has one order for each reference
	onlySuccess bool   // failures are not recorded
	global      bool   // everything runs one after the other
	late        bool   // a worker makes the order after the answer
	mails       bool   // an order is told to the outside
	specified   specified

	// takes is how long making an order takes. Default work.
	takes time.Duration

	// What is wrong.
	flow         flow
	keyless      bool // the key is not looked at
	scope        scope
	noCompare    noCompare
	leaks        bool // a mismatch quotes the record
	violates     bool // a duplicate hits the unique constraint
	stuck        bool // a failure leaves the key in progress
	forgets      bool // a failure is forgotten, though the contract says it is not
	effectFails  bool // the order is made, then the answer is an error and the record is dropped
	window       time.Duration
	malformedRun bool // a malformed key counts as none, and none is run
	again        bool // a replay makes the order again
	againLater   bool // a replay has the order made again by a worker
	newNames     bool // a replay names another id
	mailAgain    bool // a replay mails again

	// own answers a request that was read, in place of all that.
	own func(a *api, w http.ResponseWriter, r *http.Request, c *call)
}

// work is how long making an order takes, long enough for a duplicate to
// arrive meanwhile.
const work = 120 * time.Millisecond

// lateBy is when a worker makes an order.
const lateBy = 150 * time.Millisecond

type inFlight string

const (
	conflict inFlight = ""
	waits    inFlight = "waits"
	accepts  inFlight = "accepts"
	newKey   inFlight = "new key" // an error that reads as final
	limited  inFlight = "limited" // 429, to whatever comes while anything runs
	aborted  inFlight = "aborted" // no answer, to the same
)

type replay string

const (
	original  replay = ""
	current   replay = "current"
	reference replay = "reference"
)

type scope string

const (
	byActor  scope = ""
	byTenant scope = "tenant"
	byNobody scope = "nobody"
)

type noCompare string

const (
	compares noCompare = ""
	executes noCompare = "executes"
	replays  noCompare = "replays"
)

type specified string

const (
	inFull      specified = ""
	noRetention specified = "no retention"
	noKeys      specified = "no keys"
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
	// afterAnswer records when the answer has been written.
	afterAnswer flow = "after answer"
	// markFirst records success, then acts unless the client has gone.
	markFirst flow = "mark first"
	// stuckWhenCut leaves the key in progress if the client goes away.
	stuckWhenCut flow = "stuck when cut"
)

// result is an answer as recorded.
type result struct {
	status int
	header http.Header
	body   []byte
	order  order
}

type entry struct {
	print  [sha256.Size]byte
	order  order         // as asked for, without id
	done   chan struct{} // closed when result is set
	result result
}

func (e *entry) running() bool {
	select {
	case <-e.done:
		return false
	default:
		return true
	}
}

// recorded is the body on record, nil if there is none yet.
func (e *entry) recorded() json.RawMessage {
	if e.running() {
		return nil
	}
	return e.result.body
}

// api is an HTTP API that makes orders.
type api struct {
	shop
	rules

	claims  sync.Mutex
	entries map[string]*entry
	last    map[string]time.Time // when a body was last let through
	active  int                  // orders being made
	looked  map[string]chan struct{}
	turn    chan struct{} // of whoever waits in line
	posts   int           // so far
}

func newAPI(r rules) *api {
	if r.mismatch == 0 {
		r.mismatch = http.StatusUnprocessableEntity
	}
	if r.takes == 0 {
		r.takes = work
	}
	return &api{
		rules: r, entries: map[string]*entry{}, last: map[string]time.Time{},
		looked: map[string]chan struct{}{}, turn: make(chan struct{}, 1),
	}
}

func (a *api) handler() http.Handler {
	mux := http.NewServeMux()
	a.read(mux)
	mux.HandleFunc("POST /orders", a.post)
	mux.HandleFunc("GET /operations/{key}", a.operation)
	mux.HandleFunc("GET /jobs/{id}", a.job)
	mux.HandleFunc("GET /openapi.json", a.specification)
	return mux
}

// call is one request.
type call struct {
	who   caller
	key   string
	valid bool // the key is one
	order order
	print [sha256.Size]byte
}

// decode reads a request; it has answered if it returns nil.
func (a *api) decode(w http.ResponseWriter, r *http.Request) *call {
	c := &call{who: caller{r.Header.Get("X-Tenant"), r.Header.Get("X-Actor")}}
	if c.who.tenant == "" || c.who.actor == "" {
		problem(w, http.StatusUnauthorized, "X-Tenant and X-Actor say who you are")
		return nil
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		problem(w, http.StatusBadRequest, "the body could not be read")
		return nil
	}
	var body struct {
		Reference string `json:"reference"`
		Item      string `json:"item"`
		Quantity  int    `json:"quantity"`
	}
	if err := json.Unmarshal(raw, &body); err != nil || body.Reference == "" || body.Quantity < 1 {
		a.audit(r, c.who, operationName, "", body.Reference, "refused")
		problem(w, http.StatusBadRequest, "reference and quantity are needed")
		return nil
	}
	c.print = sha256.Sum256(raw)
	c.order = order{Reference: body.Reference, Item: body.Item, Quantity: body.Quantity, Tenant: c.who.tenant, Actor: c.who.actor, Status: "created"}

	var given []string
	switch {
	case a.keyBody != "":
		members := map[string]any{}
		_ = json.Unmarshal(raw, &members)
		if v, ok := members[a.keyBody]; ok {
			s, _ := v.(string)
			given = []string{s}
		}
	case a.keyHeader != "":
		given = r.Header.Values(a.keyHeader)
	}
	if len(given) == 0 {
		if a.repeatable && r.Header.Get("Repeatability-First-Sent") != "" {
			a.refuse(w, r, c, http.StatusBadRequest, "one of two headers is missing")
			return nil
		}
		return c
	}
	c.key, c.valid = parseKey(given, a.bare)
	if !c.valid {
		c.key = "malformed"
	}
	if a.repeatable {
		at, err := http.ParseTime(r.Header.Get("Repeatability-First-Sent"))
		switch {
		case err != nil:
			c.valid = false
		case time.Since(at) > time.Hour:
			a.audit(r, c.who, operationName, c.key, body.Reference, "refused")
			w.Header().Set("Repeatability-Result", "rejected")
			problem(w, http.StatusPreconditionFailed, "Repeatability-First-Sent is too long ago")
			return nil
		}
	}
	return c
}

var (
	quoted = regexp.MustCompile(`^"([ !#-\[\]-~]{1,255})"$`)
	token  = regexp.MustCompile("^[!-~]{1,255}$")
)

// parseKey reads a key: a Structured Field String, or a bare value that is not
// one by mistake.
func parseKey(given []string, bare bool) (key string, ok bool) {
	if len(given) != 1 {
		return "", false
	}
	if !bare {
		if m := quoted.FindStringSubmatch(given[0]); m != nil {
			return m[1], true
		}
		if strings.ContainsAny(given[0], `",;\`) {
			return "", false
		}
	}
	return given[0], token.MatchString(given[0])
}

const operationName = "orders.create"

func (a *api) post(w http.ResponseWriter, r *http.Request) {
	c := a.decode(w, r)
	if c == nil {
		return
	}
	w.Header().Set("X-Served-By", strconv.FormatInt(time.Now().UnixNano(), 36)) // never the same twice
	if a.own != nil {
		a.own(a, w, r, c)
		return
	}
	if a.natural && a.taken(w, r, c) {
		return
	}
	if a.window > 0 && a.tooSoon(w, r, c) {
		return
	}
	hasKeys := a.keyHeader != "" || a.keyBody != ""
	switch {
	case c.key == "" && hasKeys && !a.optional:
		a.refuse(w, r, c, http.StatusBadRequest, "a key is required", "retry", "no")
		return
	case c.key != "" && !c.valid && !a.malformedRun && !a.keyless:
		a.refuse(w, r, c, http.StatusBadRequest, "this is no key", "retry", "no")
		return
	case c.key == "", a.keyless, !c.valid:
		res := a.make(context.WithoutCancel(r.Context()), c)
		a.audit(r, c.who, operationName, c.key, c.order.Reference, map[bool]string{true: "executed", false: "refused"}[res.status < 400])
		a.send(w, res, false)
		return
	}
	if a.global {
		a.turn <- struct{}{}
		defer func() { <-a.turn }()
	}
	switch a.flow {
	case checkThenAct, checkThenQueue:
		a.unclaimed(w, r, c)
	default:
		a.claimed(w, r, c)
	}
}

func (a *api) identity(c *call) string {
	switch a.rules.scope {
	case byTenant:
		return c.who.tenant + "\x00" + c.key
	case byNobody:
		return c.key
	}
	return c.who.tenant + "\x00" + c.who.actor + "\x00" + c.key
}

// claimed takes the key before the work.
func (a *api) claimed(w http.ResponseWriter, r *http.Request, c *call) {
	id := a.identity(c)
	a.claims.Lock()
	e, known := a.entries[id]
	if known && a.noCompare == executes && e.print != c.print {
		id += "\x00" + string(c.print[:])
		e, known = a.entries[id]
	}
	if !known && (a.inFlight == limited || a.inFlight == aborted) && a.active > 0 {
		a.claims.Unlock()
		a.shed(w, r, c)
		return
	}
	if !known {
		e = &entry{print: c.print, order: c.order, done: make(chan struct{})}
		a.entries[id] = e
		a.active++
	}
	a.claims.Unlock()
	if known {
		a.duplicate(w, r, c, id, e)
		return
	}
	a.audit(r, c.who, operationName, c.key, c.order.Reference, "executed")
	switch a.flow {
	case untilCut:
		a.tiedToClient(w, r, c, id, e)
	case afterAnswer:
		a.recordedLast(w, r, c, id, e)
	case markFirst:
		a.markedFirst(w, r, c, e)
	case stuckWhenCut:
		a.heldWhenCut(w, r, c, e)
	default:
		a.later(func() { a.run(c, id, e) })
		<-e.done
		a.send(w, e.result, false)
	}
}

// drop frees a key.
func (a *api) drop(id string) {
	a.claims.Lock()
	delete(a.entries, id)
	a.claims.Unlock()
}

func (a *api) ended() {
	a.claims.Lock()
	a.active--
	a.claims.Unlock()
}

// run makes the order and records the result. It does not depend on the client.
func (a *api) run(c *call, id string, e *entry) {
	e.result = a.make(context.Background(), c)
	failed := e.result.status >= 400
	switch {
	case failed && a.stuck:
		// Whoever comes is told that it is still running. The first is
		// answered all the same.
		stuck := &entry{print: e.print, order: e.order, done: make(chan struct{})}
		a.claims.Lock()
		a.entries[id] = stuck
		a.claims.Unlock()
	case failed && (a.onlySuccess || a.forgets || a.effectFails):
		a.drop(id)
	}
	a.ended() // before the answer: whoever has it may send the next one
	close(e.done)
}

// make makes the order of a call.
func (a *api) make(ctx context.Context, c *call) result {
	o := c.order
	pause(ctx, a.takes)
	if a.failing.Load() {
		if a.effectFails {
			o.ID = a.mint()
			a.add(o)
		}
		return problemResult(http.StatusInternalServerError, "the order could not be made")
	}
	if a.natural {
		// The unique constraint: looking and adding under one lock.
		a.mu.Lock()
		for _, have := range a.orders {
			if have.Tenant == o.Tenant && have.Reference == o.Reference {
				a.mu.Unlock()
				return referenceResult(have)
			}
		}
		a.lastID++
		o.ID = "ord_" + strconv.Itoa(a.lastID)
		a.orders = append(a.orders, o)
		a.tell()
		a.mu.Unlock()
		return created(o)
	}
	o.ID = a.mint()
	if a.late {
		a.later(func() {
			pause(context.Background(), lateBy)
			a.add(o)
		})
	} else {
		made := o
		if a.rules.replay == current {
			made.Status = "confirmed" // a moment after the answer was made
		}
		a.add(made)
	}
	if a.rules.mails {
		a.mail(o)
	}
	return created(o)
}

func created(o order) result {
	body, _ := json.Marshal(o)
	return result{
		status: http.StatusCreated, order: o, body: body,
		header: http.Header{"Content-Type": {"application/json"}, "Location": {"/orders/" + o.ID}},
	}
}

func problemResult(status int, title string) result {
	body, _ := json.Marshal(map[string]any{"type": "about:blank", "title": title, "status": status})
	return result{status: status, body: body, header: http.Header{"Content-Type": {"application/problem+json"}}}
}

// referenceResult refuses with a reference to the order that there is.
func referenceResult(o order) result {
	body, _ := json.Marshal(map[string]any{
		"type": "about:blank", "title": "this order exists already", "status": http.StatusConflict, "id": o.ID,
		"links": map[string]string{"conflicting_resource_id": o.ID},
	})
	return result{status: http.StatusConflict, order: o, body: body, header: http.Header{
		"Content-Type": {"application/problem+json"}, "Location": {"/orders/" + o.ID},
	}}
}

func (a *api) send(w http.ResponseWriter, res result, replayed bool) {
	maps.Copy(w.Header(), res.header)
	if replayed && a.marker != "" {
		w.Header().Set(a.marker, "true")
	}
	if a.repeatable {
		w.Header().Set("Repeatability-Result", "accepted")
	}
	w.WriteHeader(res.status)
	_, _ = w.Write(res.body)
}

func (a *api) refuse(w http.ResponseWriter, r *http.Request, c *call, status int, title string, members ...any) {
	a.audit(r, c.who, operationName, c.key, c.order.Reference, "refused")
	if a.repeatable {
		w.Header().Set("Repeatability-Result", "rejected")
	}
	problem(w, status, title, members...)
}

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

// recordedLast makes the order, answers, and records when all of the answer has
// been taken.
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
