package semelhttp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
)

// DefaultPrefix is where Resources are found unless their config says
// otherwise.
const DefaultPrefix = "/.well-known/idempotency"

// ResourcesConfig makes Resources.
type ResourcesConfig struct {
	// Guard is the one whose records are shown. Its store must be a
	// semel.Lister. Required.
	Guard *semel.Guard
	// Scope says who asks. Only tenant and actor count; of a status request no
	// operation is known. Errors are answered as by Config.Scope. Required.
	Scope func(*http.Request) (semel.Scope, error)
	// Prefix is the path below which the resources are: without a slash at its
	// end. Default DefaultPrefix.
	Prefix string
	// Keys issues keys; nil for no two-step keys.
	Keys *KeyIssuer
	// Contract is how refusals are told. Default: IETF.
	Contract Contract
	// MaxWait bounds how long a status request with Prefer: wait is held.
	// Default DefaultMaxWait.
	MaxWait time.Duration
	// Pace is how slowly clients may read a recorded answer.
	Pace Pace
}

// Resources are what clients can ask about protected operations, besides the
// operations themselves:
//
//	GET  <prefix>/operations/{id}         how an operation stands
//	GET  <prefix>/operations/{id}/result  its recorded answer
//	POST <prefix>/keys                    a fresh key, where keys are issued
//	GET  <prefix>/specification           what is protected, and how
//
// Mount them below their prefix, behind the same authentication as the
// operations: an operation is shown to the tenant and actor that it belongs to,
// and to everybody else it does not exist. Give them to the Config of each
// middleware whose answers shall point to them.
type Resources struct {
	ResourcesConfig
	mux *http.ServeMux

	mu         sync.Mutex
	operations []specifiedOperation
}

// NewResources returns the resources, or one error that names everything wrong
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
	r := &Resources{ResourcesConfig: c, mux: http.NewServeMux()}
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
	return strings.HasPrefix(req.URL.Path, r.Prefix+"/")
}

// StatusURL is where the operation with this record id is shown; empty if the
// id is.
func (r *Resources) StatusURL(recordID string) string {
	if r == nil || recordID == "" {
		return ""
	}
	return r.Prefix + "/operations/" + recordID
}

// operationStatus is the answer of the status resource.
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

// find looks the operation of the request up, and answers if there is none.
func (r *Resources) find(w http.ResponseWriter, req *http.Request) (semel.Record, bool) {
	scope, ok := r.scope(w, req)
	if !ok {
		return semel.Record{}, false
	}
	ctx := req.Context()
	rec, err := r.Guard.FindID(ctx, scope, req.PathValue("id"))
	if err == nil && rec.State == semel.StateInProgress {
		if p := parsePrefer(req.Header[headerPrefer]); p.hasWait && r.MaxWait > 0 {
			wait := min(p.wait, r.MaxWait)
			w.Header().Set(headerPreferenceApplied, waitApplied(wait))
			rec, err = r.Guard.Await(ctx, rec.Identity, wait)
		}
	}
	switch {
	case err == nil:
		return rec, true
	case errors.Is(err, semel.ErrNotFound):
		r.Contract.WriteProblem(w, ProblemNotFound.Problem())
	default:
		p := ProblemStoreUnavailable.Problem()
		p.Detail, p.RetryAfter = "The operation could not be looked up.", time.Second
		r.Contract.WriteProblem(w, p)
	}
	return semel.Record{}, false
}

func (r *Resources) scope(w http.ResponseWriter, req *http.Request) (semel.Scope, bool) {
	scope, err := r.Scope(req)
	if err != nil {
		r.Contract.WriteProblem(w, scopeProblem(w, err, "The request was refused before anything was looked up."))
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
		s.State, s.Retry = semel.StateUnknown.String(), r.retry()
	default:
		s.Retry = semel.RetrySameKey
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, status, s)
}

// retry is the advice about an unknown outcome.
func (r *Resources) retry() semel.RetryAdvice {
	if r.Guard.Policy().OnCrash == semel.CrashHold {
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

// result answers with a recorded answer.
func (r *Resources) result(w http.ResponseWriter, req *http.Request) {
	rec, ok := r.find(w, req)
	if !ok {
		return
	}
	var p Problem
	switch {
	case rec.State == semel.StateCompleted:
		a := replay{
			contract: &r.Contract, status: r.StatusURL(rec.ID), shared: rec.Identity.Actor == "",
			head: req.Method == http.MethodHead, timeout: r.Guard.Policy().StoreTimeout, pace: r.Pace,
		}
		a.write(req.Context(), w, semel.Outcome{Answer: semel.AnswerReplayed, Result: rec.Result, Record: rec}, nil)
		return
	case rec.State == semel.StateUnknown, rec.Lapsed():
		p = ProblemOutcomeUnknown.Problem()
		p.Retry = r.retry()
	default:
		p = ProblemInProgress.Problem()
		p.RetryAfter = time.Second
	}
	p.StatusURL = r.StatusURL(rec.ID)
	r.Contract.WriteProblem(w, p)
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
	key, expires := r.Keys.Issue(scope)
	value, err := FormatKey(key)
	if err != nil {
		panic(err) // issued keys are of letters, digits and _
	}
	writeJSON(w, http.StatusCreated, struct {
		Key       string    `json:"key"`
		Header    string    `json:"header"`
		Value     string    `json:"value"`
		ExpiresAt time.Time `json:"expires_at"`
	}{key, r.Contract.KeyHeader, value, expires.UTC()})
}

// OperationSpec describes a protected operation to clients, in the
// specification.
type OperationSpec struct {
	// Name is the operation's, as in its scope; empty if it is method and path.
	Name string `json:"operation,omitempty"`
	// Methods and Path say which requests are meant, for example POST and
	// /orders/{id}/payments.
	Methods []string `json:"methods,omitempty"`
	Path    string   `json:"path,omitempty"`
	// Summary says in a sentence what it does.
	Summary string `json:"summary,omitempty"`
	// KeyFrom says where the key is if Config.KeyOf takes it from there.
	KeyFrom string `json:"key_from,omitempty"`
}

// specifiedOperation is an operation in the specification.
type specifiedOperation struct {
	OperationSpec
	Contract         string        `json:"contract"`
	KeyHeader        string        `json:"key_header,omitempty"`
	FirstSentHeader  string        `json:"first_sent_header,omitempty"`
	Key              string        `json:"key"` // required, optional or issued-only
	KeySyntax        string        `json:"key_syntax"`
	KeyRules         []string      `json:"key_rules,omitempty"`
	RetentionSeconds int64         `json:"retention_seconds"`
	InFlight         string        `json:"in_flight"`
	MaxWaitSeconds   int64         `json:"max_wait_seconds"`
	OnCrash          string        `json:"outcome_unknown"`
	MaxRequestBytes  int64         `json:"max_request_bytes"`
	MaxResultBytes   int64         `json:"max_result_bytes"`
	Fingerprint      []string      `json:"fingerprint"`
	Problems         []specProblem `json:"problems"`
}

type specProblem struct {
	Type   string            `json:"type"`
	Title  string            `json:"title"`
	Status int               `json:"status"`
	Retry  semel.RetryAdvice `json:"retry"`
}

// add puts an operation into the specification.
func (r *Resources) add(c Config) {
	policy := c.Guard.Policy()
	o := specifiedOperation{
		OperationSpec: c.Operation,
		Contract:      c.Contract.Name, KeyHeader: c.Contract.KeyHeader, FirstSentHeader: c.Contract.FirstSentHeader,
		Key:              "optional",
		KeySyntax:        "a Structured Field String, or 1 to 255 visible ASCII characters without quotes, comma, semicolon and backslash",
		KeyRules:         describeRules(c.KeyRules),
		RetentionSeconds: int64(policy.Retention / time.Second),
		InFlight:         c.InFlight.String(), MaxWaitSeconds: int64(max(c.MaxWait, 0) / time.Second),
		OnCrash:         policy.OnCrash.String(),
		MaxRequestBytes: c.MaxRequestBody, MaxResultBytes: c.MaxResult,
		Fingerprint: c.Fingerprint.describe(),
	}
	switch {
	case c.IssuedOnly:
		o.Key = "issued-only"
	case c.RequireKey:
		o.Key = "required"
	}
	switch {
	case c.KeyOf != nil:
		o.Key, o.KeyHeader, o.KeySyntax = "required", "", "taken from what the request says"
		if c.Operation.KeyFrom != "" {
			o.KeySyntax = "taken from " + c.Operation.KeyFrom
		}
	case c.StrictKey:
		o.KeySyntax = "a Structured Field String of 1 to 255 printable ASCII characters"
	}
	for _, kind := range slices.Sorted(maps.Keys(problemCases)) {
		p := kind.Problem()
		if status, ok := c.Contract.Status[kind]; ok {
			p.Status = status
		}
		o.Problems = append(o.Problems, specProblem{p.Type, p.Title, p.Status, p.Retry})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.operations = append(r.operations, o)
	slices.SortStableFunc(r.operations, func(a, b specifiedOperation) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Path, b.Path))
	})
}

func describeRules(r semel.KeyRules) (rules []string) {
	if r.MinLength > 1 {
		rules = append(rules, fmt.Sprintf("at least %d characters", r.MinLength))
	}
	if r.MaxLength > 0 {
		rules = append(rules, fmt.Sprintf("at most %d characters", r.MaxLength))
	}
	if r.MinEntropyBits > 0 {
		rules = append(rules, fmt.Sprintf("at least %.0f bits of entropy", r.MinEntropyBits))
	}
	if r.RequireUUID {
		rules = append(rules, "a UUID of version 4 or 7")
	}
	if r.RefuseTimestamps {
		rules = append(rules, "no point in time")
	}
	if r.RefuseSerials {
		rules = append(rules, "no serial number")
	}
	if r.MaxUUIDAge > 0 {
		rules = append(rules, fmt.Sprintf("no UUID of version 7 that is older than %v", r.MaxUUIDAge))
	}
	return rules
}

// describe says what takes part in a fingerprint.
func (c FingerprintConfig) describe() []string {
	d := []string{"method", "path", "query"}
	switch {
	case c.Mode == FingerprintRaw:
		d = append(d, "body, byte by byte")
	case len(c.Include) > 0:
		d = append(d, "of a JSON body: "+strings.Join(c.Include, " "))
	default:
		d = append(d, fmt.Sprintf("body, in canonical form; JSON and forms over %d bytes byte by byte", cmp.Or(c.MaxCanonical, DefaultMaxCanonical)))
	}
	if len(c.Exclude) > 0 {
		d = append(d, "without: "+strings.Join(c.Exclude, " "))
	}
	if len(c.Headers) > 0 {
		d = append(d, "headers: "+strings.Join(c.Headers, ", "))
	}
	return d
}

// specification is what the draft calls the resource's idempotency
// specification (draft-ietf-httpapi-idempotency-key-header-07, 2.5).
func (r *Resources) specification(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	operations := slices.Clone(r.operations)
	r.mu.Unlock()
	spec := struct {
		Specification string               `json:"specification"`
		StatusURL     string               `json:"status_url"`
		KeysURL       string               `json:"keys_url,omitempty"`
		KeyLife       int64                `json:"issued_key_seconds,omitempty"`
		Released      string               `json:"not_recorded"`
		Operations    []specifiedOperation `json:"operations"`
	}{
		Specification: "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/",
		StatusURL:     r.Prefix + "/operations/{id}",
		Released:      "answers that mean by definition that nothing was processed, such as 401, 407, 425, 429, and 503 with Retry-After; the key is then free again",
		Operations:    operations,
	}
	if r.Keys != nil {
		spec.KeysURL, spec.KeyLife = r.Prefix+"/keys", int64(r.Keys.config.Life/time.Second)
	}
	w.Header().Set("Vary", "Accept")
	if !prefersHTML(req.Header.Get("Accept")) {
		writeJSON(w, http.StatusOK, spec)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	_ = specPage.Execute(w, spec) // the client is gone, or has it
}

// prefersHTML reports whether an Accept header names text/html before JSON.
func prefersHTML(accept string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		switch mediaType, _, _ := mime.ParseMediaType(part); mediaType {
		case "text/html", "application/xhtml+xml":
			return true
		case "application/json", "application/*", "*/*":
			return false
		}
	}
	return false
}

var specPage = template.Must(template.New("specification").Funcs(template.FuncMap{
	"seconds": func(n int64) string { return (time.Duration(n) * time.Second).String() },
}).Parse(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Idempotency specification</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.25rem .75rem .25rem 0;border-bottom:1px solid #ddd}th{width:14rem;font-weight:600}code{background:#f4f4f4}</style></head>
<body><h1>Idempotency specification</h1>
<p>Send every try of one request with the same key. It is executed once; later tries get the first answer.
This follows <a href="{{.Specification}}">draft-ietf-httpapi-idempotency-key-header</a>.</p>
<p>An operation can be watched at <code>{{.StatusURL}}</code>.{{with .KeysURL}} Keys are issued by a POST to <code>{{.}}</code>.{{end}}
Not recorded are {{.Released}}.</p>
{{range .Operations}}<h2>{{if .Name}}{{.Name}}{{else}}Each method and path{{end}}</h2>
{{with .Summary}}<p>{{.}}</p>{{end}}
<table>
{{if .Path}}<tr><th>requests</th><td><code>{{range .Methods}}{{.}} {{end}}{{.Path}}</code></td></tr>{{end}}
<tr><th>key</th><td>{{with .KeyHeader}}<code>{{.}}</code>, {{end}}{{.Key}}: {{.KeySyntax}}{{with .FirstSentHeader}}; together with <code>{{.}}</code>{{end}}{{range .KeyRules}}; {{.}}{{end}}</td></tr>
<tr><th>kept after completion</th><td>{{seconds .RetentionSeconds}}</td></tr>
<tr><th>while it is running</th><td>{{.InFlight}}; Prefer: wait is honoured up to {{seconds .MaxWaitSeconds}}</td></tr>
<tr><th>when the outcome is unknown</th><td>{{.OnCrash}}</td></tr>
<tr><th>the same request means</th><td>{{range $i, $f := .Fingerprint}}{{if $i}}, {{end}}{{$f}}{{end}}</td></tr>
<tr><th>limits</th><td>request body {{.MaxRequestBytes}} bytes, recorded answer {{.MaxResultBytes}} bytes</td></tr>
</table>
<table><tr><th>refusal</th><th>status</th><th>retry</th></tr>
{{range .Problems}}<tr><td><a href="{{.Type}}">{{.Title}}</a></td><td>{{.Status}}</td><td>{{.Retry}}</td></tr>
{{end}}</table>
{{end}}</body></html>
`))

func waitApplied(d time.Duration) string {
	return fmt.Sprintf("wait=%d", int64(d/time.Second))
}

// visible returns the record as it is now. The error is semel.ErrNotFound where it
// cannot be shown, as while its transaction has not been committed.
func (r *Resources) visible(ctx context.Context, rec semel.Record) (semel.Record, error) {
	if r == nil || rec.ID == "" {
		return semel.Record{}, semel.ErrNotFound
	}
	found, err := r.Guard.Find(ctx, rec.Identity)
	if err == nil && found.ID != rec.ID {
		err = semel.ErrNotFound
	}
	return found, err
}
