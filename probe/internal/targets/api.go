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
	late        bool   // a worker makes the order after the response
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
	effectFails  bool // the order is made, then the response is an error and the record is dropped
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
	aborted  inFlight = "aborted" // no response, to the same
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

// result is a response as recorded.
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
	case afterResponse:
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
	a.ended() // before the response: whoever has it may send the next one
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
			made.Status = "confirmed" // a moment after the response was made
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
