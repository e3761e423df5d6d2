package semelhttp

import (
	"cmp"
	"fmt"
	"html/template"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel"
)

// OperationSpec describes a protected operation in the specification.
type OperationSpec struct {
	// Name is the Operation of its scope. It is empty if that is the method and the
	// path.
	Name string `json:"operation,omitempty"`
	// Methods and Path describe its requests, such as POST and /orders/{id}/payments.
	Methods []string `json:"methods,omitempty"`
	Path    string   `json:"path,omitempty"`
	// Summary says in a sentence what the operation does.
	Summary string `json:"summary,omitempty"`
	// KeyFrom says where Config.KeyOf takes the key from.
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
		StatusURL:     r.config.Prefix + "/operations/{id}",
		Released:      "responses that mean by definition that nothing was processed, such as 401, 407, 425, 429, and 503 with Retry-After; the key is then free again",
		Operations:    operations,
	}
	if r.config.Keys != nil {
		spec.KeysURL, spec.KeyLife = r.config.Prefix+"/keys", int64(r.config.Keys.config.Life/time.Second)
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
<p>Send every attempt of one request with the same key. It is executed once; later attempts get the first response.
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
<tr><th>limits</th><td>request body {{.MaxRequestBytes}} bytes, recorded response {{.MaxResultBytes}} bytes</td></tr>
</table>
<table><tr><th>refusal</th><th>status</th><th>retry</th></tr>
{{range .Problems}}<tr><td><a href="{{.Type}}">{{.Title}}</a></td><td>{{.Status}}</td><td>{{.Retry}}</td></tr>
{{end}}</table>
{{end}}</body></html>
`))
