package conformance

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/internal/wire"
)

// Config says what to check, and what to expect.
type Config struct {
	// URL of the test endpoint. Required.
	URL string
	// Contract is ietf, stripe or oasis. Default: ietf.
	Contract string
	// Header goes with every request: the credentials of a caller.
	Header http.Header
	// Other, if not nil, are the credentials of another caller, whose keys are
	// its own.
	Other http.Header
	// InFlight is what the operation does with a duplicate in flight: reject,
	// wait or accept. Default: reject.
	InFlight string
	// KeyOptional says that the operation passes requests without a key.
	KeyOptional bool
	// Strict says that the operation accepts keys in double quotes only.
	Strict bool
	// Prefix is the path of the status resources; empty if there are none.
	Prefix string
	// MaxRequestBody is the operation's limit; zero leaves it unchecked.
	MaxRequestBody int
	// Outage, if not nil, stops and restarts the store. If it is nil, an outage is
	// not checked.
	Outage func(down bool)

	// Protocol is the version of HTTP to speak: auto, which lets the server
	// choose, http1 or http2. Default: auto.
	Protocol string
	// TLS is for https. Default: verified against the system's roots.
	TLS *tls.Config
	// Timeout bounds each exchange, and each wait for the endpoint to have
	// done something. Default 30 s.
	Timeout time.Duration
	// Checked, if not nil, is called with each result as it comes.
	Checked func(Result)
}

// Outcome of a case.
type Outcome string

// Outcomes.
const (
	Passed        Outcome = "passed"
	Failed        Outcome = "failed"
	NotApplicable Outcome = "not_applicable"
)

// Result is the result of a case.
type Result struct {
	Case string `json:"case"`
	// Expected says in a line what the contract requires.
	Expected string  `json:"expected"`
	Outcome  Outcome `json:"outcome"`
	// Detail says what was seen instead, or why the case does not apply.
	Detail string        `json:"detail,omitempty"`
	Took   time.Duration `json:"took_ns"`
}

// Report holds the results of all cases.
type Report struct {
	URL      string        `json:"url"`
	Contract string        `json:"contract"`
	Started  time.Time     `json:"started"`
	Took     time.Duration `json:"took_ns"`
	Sends    int           `json:"sends"`
	Results  []Result      `json:"results"`
}

// Failed counts the cases that failed.
func (r Report) Failed() (n int) {
	for _, c := range r.Results {
		if c.Outcome == Failed {
			n++
		}
	}
	return n
}

// maxSends bounds a run. Polling for a state counts too.
const maxSends = 5000

// ErrUnreachable reports that the endpoint cannot be reached, or does not
// respond as a test endpoint.
var ErrUnreachable = errors.New("conformance: the test endpoint cannot be reached")

// Run checks every case. The error says what is wrong with c, or matches
// ErrUnreachable, or is the context's cause. A case that fails is not an error.
func Run(ctx context.Context, c Config) (Report, error) {
	r, err := newRun(ctx, c)
	if err != nil {
		return Report{}, err
	}
	report := Report{URL: c.URL, Contract: r.Contract, Started: time.Now()}
	if _, err := r.counts("reachable"); err != nil {
		return report, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	for _, check := range cases {
		if ctx.Err() != nil {
			return report, context.Cause(ctx)
		}
		result := r.check(check)
		report.Results = append(report.Results, result)
		if c.Checked != nil {
			c.Checked(result)
		}
	}
	report.Took = time.Since(report.Started)
	report.Sends = maxSends - r.sender.Left()
	return report, nil
}

// run is the checking of one endpoint.
type run struct {
	Config
	ctx    context.Context
	sender *wire.Sender
	base   *url.URL
	id     string // keeps the cases of this run apart from those of others
	first  time.Time
}

func newRun(ctx context.Context, c Config) (*run, error) {
	var errs []error
	base, err := url.Parse(c.URL)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		errs = append(errs, fmt.Errorf("field URL is %q; use one such as http://127.0.0.1:8080/conformance", c.URL))
	} else if base.RawQuery != "" || base.Fragment != "" {
		errs = append(errs, errors.New("field URL has a query or a fragment"))
	}
	if c.Contract == "" {
		c.Contract = "ietf"
	}
	if !slices.Contains([]string{"ietf", "stripe", "oasis"}, c.Contract) {
		errs = append(errs, fmt.Errorf("field Contract is %q; use ietf, stripe or oasis", c.Contract))
	}
	if c.InFlight == "" {
		c.InFlight = "reject"
	}
	if !slices.Contains([]string{"reject", "wait", "accept"}, c.InFlight) {
		errs = append(errs, fmt.Errorf("field InFlight is %q; use reject, wait or accept", c.InFlight))
	}
	if c.InFlight == "accept" && c.Prefix == "" {
		errs = append(errs, errors.New("field InFlight is accept, but Prefix is empty"))
	}
	if _, ok := protocols[c.Protocol]; !ok {
		errs = append(errs, fmt.Errorf("field Protocol is %q; use auto, http1 or http2", c.Protocol))
	}
	if c.Timeout == 0 {
		c.Timeout = wire.DefaultTimeout
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("conformance: config: %w", err)
	}
	port := base.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[base.Scheme]
	}
	host := base.Hostname()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	sender, err := wire.New(wire.Config{Allow: []string{host + ":" + port}, MaxSends: maxSends, TLS: c.TLS, Timeout: c.Timeout})
	if err != nil {
		return nil, fmt.Errorf("conformance: %w", err)
	}
	return &run{Config: c, ctx: ctx, sender: sender, base: base, id: rand.Text()[:10], first: time.Now()}, nil
}

// response is a response as far as cases look at it.
type response struct {
	status int
	header http.Header
	body   string
	err    error
}

func (a response) String() string {
	if a.err != nil {
		return "no response: " + a.err.Error()
	}
	return fmt.Sprintf("%d", a.status)
}

// request makes a POST to the endpoint. key is the whole value of the key
// header; "-" leaves it out.
func (r *run) request(key string, do instruction, edit ...wire.Field) wire.Request {
	body, err := json.Marshal(do)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	req := wire.Request{Method: "POST", URL: r.URL, Body: body, Protocol: protocols[r.Protocol]}
	req.Header = append(req.Header, wire.Field{Name: "Content-Type", Value: "application/json"})
	if key != "-" {
		req.Header = append(req.Header, wire.Field{Name: r.keyHeader(), Value: key})
		if r.Contract == "oasis" {
			req.Header = append(req.Header, wire.Field{Name: "Repeatability-First-Sent", Value: r.first.UTC().Format(http.TimeFormat)})
		}
	}
	req.Header = append(req.Header, edit...)
	if !slices.ContainsFunc(edit, func(f wire.Field) bool { return f.Name == asOther }) {
		req.Header = append(req.Header, fields(r.Header)...)
	} else {
		req.Header = slices.DeleteFunc(req.Header, func(f wire.Field) bool { return f.Name == asOther })
		req.Header = append(req.Header, fields(r.Other)...)
	}
	return req
}

var protocols = map[string]wire.Protocol{"": wire.Auto, "auto": wire.Auto, "http1": wire.HTTP1, "http2": wire.HTTP2}

// fields returns the lines of a header, the same way each time.
func fields(h http.Header) (list []wire.Field) {
	for _, name := range slices.Sorted(maps.Keys(h)) {
		for _, value := range h[name] {
			list = append(list, wire.Field{Name: name, Value: value})
		}
	}
	return list
}

// asOther marks a request of the other caller. It is not a header name, so it
// cannot be one by accident.
const asOther = "as other"

func (r *run) keyHeader() string {
	if r.Contract == "oasis" {
		return "Repeatability-Request-ID"
	}
	return "Idempotency-Key"
}

func (r *run) send(req wire.Request) response {
	x, err := r.sender.Send(r.ctx, req)
	return toResponse(x, err)
}

func toResponse(x wire.Exchange, err error) response {
	switch {
	case err != nil:
		return response{err: err}
	case x.Response == nil:
		return response{err: fmt.Errorf("%v: %w", x.Delivery, x.Err)}
	}
	return response{status: x.Response.Status, header: x.Response.Header, body: string(x.Response.Body), err: x.Err}
}

func (r *run) post(key string, do instruction, edit ...wire.Field) response {
	return r.send(r.request(key, do, edit...))
}

// get asks for a path or for a query of the endpoint.
func (r *run) get(where string, edit ...wire.Field) response {
	target := r.URL + where
	if strings.HasPrefix(where, "/") {
		target = r.base.Scheme + "://" + r.base.Host + where
	}
	req := r.request("-", instruction{}, edit...)
	req.Method, req.URL, req.Body = "GET", target, nil
	req.Header = slices.DeleteFunc(req.Header, func(f wire.Field) bool { return f.Name == "Content-Type" })
	return r.send(req)
}

// counts asks the endpoint about a case.
func (r *run) counts(name string) (counts, error) {
	a := r.get("?case=" + name)
	var c counts
	if a.err != nil {
		return c, a.err
	}
	if err := json.Unmarshal([]byte(a.body), &c); err != nil || a.status != http.StatusOK {
		return c, fmt.Errorf("GET %s?case=... is answered with %d and no counts", r.URL, a.status)
	}
	return c, nil
}
