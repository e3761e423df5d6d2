package semelhttp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
)

// DefaultPrefix is the default of ResourcesConfig.Prefix.
const DefaultPrefix = "/.well-known/idempotency"

// ResourcesConfig is the configuration of Resources.
type ResourcesConfig struct {
	// Guard is the guard whose records are shown. Its store must implement
	// semel.Lister. Required.
	Guard *semel.Guard
	// Scope returns the tenant and the actor of a request for a resource. The operation
	// is ignored. Errors are handled as those of Config.Scope. Required.
	Scope func(*http.Request) (semel.Scope, error)
	// Prefix is the path of the resources, without a slash at its end. Default
	// DefaultPrefix.
	Prefix string
	// Keys, if not nil, issues keys.
	Keys *KeyIssuer
	// Contract says how refusals look. Default IETF.
	Contract Contract
	// MaxWait limits how long a status request with Prefer: wait waits. Default
	// DefaultMaxWait.
	MaxWait time.Duration
	// Pace limits how slowly clients may read a recorded response.
	Pace Pace
}

// Resources is an http.Handler for what clients can find out about protected
// operations:
//
//	GET  <prefix>/operations/{id}         the status of an operation
//	GET  <prefix>/operations/{id}/result  its recorded response
//	POST <prefix>/keys                    a fresh key, if keys are issued
//	GET  <prefix>/specification           what is protected, and how
//
// Mount it at its prefix, behind the same authentication as the operations. An
// operation is shown to its own tenant and actor. For others it does not exist. Set it
// in the Config of each middleware whose responses are to refer to it.
//
// The configuration of Resources does not change. New adds the operation of a
// middleware to the specification.
type Resources struct {
	config ResourcesConfig // as NewResources completed it
	mux    *http.ServeMux

	mu         sync.Mutex
	operations []specifiedOperation
}

// NewResources returns the resources for c. The error names everything that is wrong
// with c.
func NewResources(c ResourcesConfig) (*Resources, error) {
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if c.MaxWait == 0 {
		c.MaxWait = DefaultMaxWait
	}
	c.Contract = c.Contract.withDefaults()
	c.Pace = c.Pace.withDefaults()
	var errs []error
	if c.Guard == nil {
		errs = append(errs, errors.New("field Guard is nil"))
	}
	if c.Scope == nil {
		errs = append(errs, errors.New("field Scope is nil"))
	}
	if !strings.HasPrefix(c.Prefix, "/") || strings.HasSuffix(c.Prefix, "/") || strings.ContainsAny(c.Prefix, "{}?#% ") {
		errs = append(errs, fmt.Errorf("field Prefix is %q; use a path such as %s", c.Prefix, DefaultPrefix))
	}
	if c.MaxWait < 0 {
		errs = append(errs, fmt.Errorf("field MaxWait is %v; it must not be negative", c.MaxWait))
	}
	if err := errors.Join(append(errs, c.Contract.validate())...); err != nil {
		return nil, fmt.Errorf("semelhttp: resources: %w", err)
	}
	r := &Resources{config: c, mux: http.NewServeMux()}
	r.mux.HandleFunc("GET "+c.Prefix+"/operations/{id}", r.status)
	r.mux.HandleFunc("GET "+c.Prefix+"/operations/{id}/result", r.result)
	r.mux.HandleFunc("GET "+c.Prefix+"/specification", r.specification)
	if c.Keys != nil {
		r.mux.HandleFunc("POST "+c.Prefix+"/keys", r.issue)
	}
	return r, nil
}

// ServeHTTP implements http.Handler.
func (r *Resources) ServeHTTP(w http.ResponseWriter, req *http.Request) { r.mux.ServeHTTP(w, req) }

// Serves reports whether the request is for one of the resources.
func (r *Resources) Serves(req *http.Request) bool {
	return strings.HasPrefix(req.URL.Path, r.config.Prefix+"/")
}

// StatusURL returns the path of the status of the operation with the given record ID,
// or "" if recordID is empty or r is nil.
func (r *Resources) StatusURL(recordID string) string {
	if r == nil || recordID == "" {
		return ""
	}
	return r.config.Prefix + "/operations/" + recordID
}

// operationStatus is the body of a response of the status resource.
type operationStatus struct {
	ID        string            `json:"id"`
	Operation string            `json:"operation"`
	State     string            `json:"state"`
	Retry     semel.RetryAdvice `json:"retry,omitempty"`
	BegunAt   time.Time         `json:"begun_at,omitzero"`
	SettledAt time.Time         `json:"settled_at,omitzero"`
	ExpiresAt time.Time         `json:"expires_at,omitzero"`
	Result    *resultStatus     `json:"result,omitempty"`
}

type resultStatus struct {
	Status    string `json:"status,omitempty"` // the label
	Retained  bool   `json:"retained"`
	URL       string `json:"url,omitempty"`
	Reference string `json:"reference,omitempty"`
}

// unreadableFor is when to ask again for a result that an operator has to make
// readable.
const unreadableFor = 30 * time.Second

// find looks the operation of the request up, and answers if there is none.
func (r *Resources) find(w http.ResponseWriter, req *http.Request) (semel.Record, bool) {
	scope, ok := r.scope(w, req)
	if !ok {
		return semel.Record{}, false
	}
	ctx := req.Context()
	rec, err := r.config.Guard.FindID(ctx, scope, req.PathValue("id"))
	if err == nil && rec.State == semel.StateInProgress {
		if p := parsePrefer(req.Header[headerPrefer]); p.hasWait && r.config.MaxWait > 0 {
			wait := min(p.wait, r.config.MaxWait)
			w.Header().Set(headerPreferenceApplied, waitApplied(wait))
			rec, err = r.config.Guard.Await(ctx, rec.Identity, wait)
		}
	}
	switch {
	case err == nil:
		return rec, true
	case errors.Is(err, semel.ErrNotFound):
		r.config.Contract.WriteProblem(w, ProblemNotFound.Problem())
	case errors.Is(err, semel.ErrUnreadable):
		p := ProblemResultUnreadable.Problem()
		p.RetryAfter = unreadableFor
		r.config.Contract.WriteProblem(w, p)
	default:
		p := ProblemStoreUnavailable.Problem()
		p.Detail, p.RetryAfter = "The operation could not be looked up.", time.Second
		r.config.Contract.WriteProblem(w, p)
	}
	return semel.Record{}, false
}

func (r *Resources) scope(w http.ResponseWriter, req *http.Request) (semel.Scope, bool) {
	scope, err := r.config.Scope(req)
	if err != nil {
		r.config.Contract.WriteProblem(w, scopeProblem(w, err, "The request was refused before anything was looked up."))
		return scope, false
	}
	return scope, true
}

func (r *Resources) status(w http.ResponseWriter, req *http.Request) {
	if rec, ok := r.find(w, req); ok {
		r.writeStatus(w, http.StatusOK, rec)
	}
}

// writeStatus tells how an operation stands.
func (r *Resources) writeStatus(w http.ResponseWriter, status int, rec semel.Record) {
	s := operationStatus{
		ID: rec.ID, Operation: rec.Identity.Operation, State: rec.State.String(),
		BegunAt: rec.BegunAt.UTC(), SettledAt: rec.SettledAt.UTC(), ExpiresAt: rec.ExpiresAt.UTC(),
	}
	switch {
	case rec.State == semel.StateCompleted:
		retained := !rec.Result.Tombstone && rec.Result.Codec == CodecHTTP
		s.Result = &resultStatus{Status: rec.Result.Label, Retained: retained, Reference: rec.Result.Reference}
		if retained {
			s.Result.URL = r.StatusURL(rec.ID) + "/result"
		}
	case rec.State == semel.StateUnknown, rec.Lapsed():
		s.State, s.Retry = semel.StateUnknown.String(), r.retry(rec)
	default:
		s.Retry = semel.RetrySameKey
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, status, s)
}

// retry is the advice about an unknown outcome, by the policy of the operation.
func (r *Resources) retry(rec semel.Record) semel.RetryAdvice {
	crash := r.config.Guard.Policy().OnCrash.String()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.operations {
		if o.Name == rec.Identity.Operation {
			crash = o.OnCrash
		}
	}
	if crash == semel.CrashHold.String() {
		return semel.RetryAfterResolution
	}
	return semel.RetrySameKey
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // nothing here cannot be encoded
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

// result answers with a recorded response.
func (r *Resources) result(w http.ResponseWriter, req *http.Request) {
	rec, ok := r.find(w, req)
	if !ok {
		return
	}
	var p Problem
	switch {
	case rec.State == semel.StateCompleted:
		a := replay{
			contract: &r.config.Contract, resources: r, shared: rec.Identity.Actor == "",
			head: req.Method == http.MethodHead, timeout: r.config.Guard.Policy().StoreTimeout, pace: r.config.Pace,
		}
		a.write(req.Context(), w, semel.Outcome{Answer: semel.AnswerReplayed, Result: rec.Result, Record: rec}, nil)
		return
	case rec.State == semel.StateUnknown, rec.Lapsed():
		p = ProblemOutcomeUnknown.Problem()
		p.Retry = r.retry(rec)
	default:
		p = ProblemInProgress.Problem()
		p.RetryAfter = time.Second
	}
	p.StatusURL = r.StatusURL(rec.ID)
	r.config.Contract.WriteProblem(w, p)
}

// maxIssueBody is as much as a request for a key may say.
const maxIssueBody = 4 << 10

// issue answers with a fresh key.
func (r *Resources) issue(w http.ResponseWriter, req *http.Request) {
	scope, ok := r.scope(w, req)
	if !ok {
		return
	}
	var ask struct {
		Operation string `json:"operation"`
	}
	d := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxIssueBody))
	d.DisallowUnknownFields()
	if err := d.Decode(&ask); err != nil && err != io.EOF {
		Problem{
			Status: http.StatusBadRequest, Title: "The request for a key is malformed", Retry: semel.RetryNewKey,
			Detail: `Send an empty body, or a JSON object such as {"operation": "orders.create"}. No key was issued.`,
		}.Write(w)
		return
	}
	scope.Operation = ask.Operation
	key, expires := r.config.Keys.Issue(scope)
	value, err := FormatKey(key)
	if err != nil {
		panic(err) // issued keys are of letters, digits and _
	}
	writeJSON(w, http.StatusCreated, struct {
		Key       string    `json:"key"`
		Header    string    `json:"header"`
		Value     string    `json:"value"`
		ExpiresAt time.Time `json:"expires_at"`
	}{key, r.config.Contract.KeyHeader, value, expires.UTC()})
}

func waitApplied(d time.Duration) string {
	return fmt.Sprintf("wait=%d", int64(d/time.Second))
}

// visible returns the record as it is now. The error is semel.ErrNotFound where it
// cannot be shown, as while its transaction has not been committed.
func (r *Resources) visible(ctx context.Context, rec semel.Record) (semel.Record, error) {
	if r == nil || rec.ID == "" {
		return semel.Record{}, semel.ErrNotFound
	}
	found, err := r.config.Guard.Find(ctx, rec.Identity)
	if err == nil && found.ID != rec.ID {
		err = semel.ErrNotFound
	}
	return found, err
}
