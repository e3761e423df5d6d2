package plan

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/semelhq/semel/internal/strict"
)

// Limits of a plan.
const (
	MaxBytes      = 1 << 20  // of the file
	MaxDepth      = 64       // of nested values
	MaxBodyBytes  = 32 << 20 // of a request body, rendered
	MaxValueBytes = 64 << 10 // of a variable, a header value, a secret
	MaxTakenBytes = 16 << 10 // of what a step takes from a response
)

// Plan is a whole plan. Zero fields have the documented defaults, which
// WithDefaults fills in.
type Plan struct {
	// Version of this format: 1.
	Version int `yaml:"version" rule:"required,min=1,max=1"`
	// Name of the plan, for reports.
	Name string `yaml:"name" rule:"required,names=label,max=100"`
	// Target says what may be contacted, and how carefully.
	Target Target `yaml:"target" rule:"required"`
	// Variables are templates, drawn once for each logical request, in this order. A variable may use those above it.
	Variables Pairs `yaml:"variables" rule:"names=variable,items=100"`
	// Principals are the parties that send requests.
	Principals Principals `yaml:"principals"`
	// Steps are sent before the requests of every operation, in this order, for example to sign in.
	Steps []Step `yaml:"steps" rule:"items=20"`
	// Operations are tested one after the other.
	Operations []Operation `yaml:"operations" rule:"required,items=50"`
	// Experiments to run, for operations that name none. Default: specification and duplicate, which makes
	// two sends, and before them preview for operations that have one.
	Experiments []Experiment `yaml:"experiments" rule:"items=30"`
	// Contract is what the target promises, for operations that name none.
	Contract *Contract `yaml:"contract"`
	// Reset is done before each experiment.
	Reset *Hook `yaml:"reset"`
	// Timing says how long to wait for what.
	Timing Timing `yaml:"timing"`
	// Race says how raced requests are sent.
	Race Race `yaml:"race"`
	// Budget bounds the run, whatever happens in it.
	Budget Budget `yaml:"budget"`

	source *strict.Source
	// assumed: Contract is that of WithDefaults.
	assumed bool
}

// Target is what the plan is about.
type Target struct {
	// Allow lists the only addresses that may be contacted, as host:port. If it is empty, nothing may be
	// sent, and the plan is only good for a dry run.
	Allow []string `yaml:"allow" rule:"items=50,names=address"`
	// Production says whether real business depends on the target. In production, experiments that race, cut
	// off or provoke failures, and resets, are refused; experiments other than specification and duplicate
	// must be named, in the plan or for the run.
	Production *bool `yaml:"production" rule:"required"`
	// CAFile is a PEM file with the certificates to trust instead of the system's. Relative to the plan's folder.
	CAFile string `yaml:"ca_file"`
	// Specification is where the operation is described: the URL or file of an OpenAPI document, or a page. A file is relative to the plan's folder.
	Specification string `yaml:"specification"`
	// Retention is how long the target says it keeps keys. The retention-edge experiment needs it.
	Retention time.Duration `yaml:"retention"`
	// RetentionSearch is how long the experiment retention_search may look for the time after which a key is forgotten. Default: it is not run.
	RetentionSearch time.Duration `yaml:"retention_search"`
	// Instance is the host:port of another instance of the same service. The experiment other_instance sends duplicates there, with the rest of the URL as it is.
	Instance string `yaml:"instance" rule:"names=address"`
}

// Principals are up to three parties: two actors of one tenant, and an actor of
// another.
type Principals struct {
	// ActorA sends every request for which no other principal is named.
	ActorA *Principal `yaml:"actor_a"`
	// ActorB is another actor of A's tenant.
	ActorB *Principal `yaml:"actor_b"`
	// TenantB is an actor of another tenant.
	TenantB *Principal `yaml:"tenant_b"`
}

// PrincipalName names one of the three principals.
type PrincipalName string

// The principals of a plan.
const (
	ActorA  PrincipalName = "actor_a"
	ActorB  PrincipalName = "actor_b"
	TenantB PrincipalName = "tenant_b"
)

// Get returns a principal, nil if the plan has none of that name. The empty
// name is actor A.
func (p Principals) Get(name PrincipalName) *Principal {
	switch name {
	case ActorA, "":
		return p.ActorA
	case ActorB:
		return p.ActorB
	case TenantB:
		return p.TenantB
	}
	return nil
}

// Principal is how a party proves who it is.
type Principal struct {
	// Headers are templates. They replace those of the request with the same name. Those that need what a step takes are left out of the requests of steps until it is taken; so are cookies.
	Headers Header `yaml:"headers" rule:"names=header,items=50"`
	// Cookies are templates, appended to the Cookie header of the request.
	Cookies Pairs `yaml:"cookies" rule:"names=cookie,items=50"`
	// Attributes are templates without fresh values, for {{.principal.NAME}} in URLs and bodies. All
	// principals must have the same attributes.
	Attributes Pairs `yaml:"attributes" rule:"names=variable,items=50"`
	// ClientCert is what to present for mutual TLS.
	ClientCert *ClientCert `yaml:"client_cert"`
}

// ClientCert names two PEM files, relative to the plan's folder.
type ClientCert struct {
	CertFile string `yaml:"cert_file" rule:"required"`
	KeyFile  string `yaml:"key_file" rule:"required"`
}

// Step is a request that must be sent before the operation's, and what is
// taken from its response. It counts against the budget of sends.
type Step struct {
	// Name is unique among the steps of the plan and the operation.
	Name string `yaml:"name" rule:"required,names=operation,max=100"`
	// Each says how often it is sent. principal: once for each principal, before its first request, and again
	// when what was taken has expired. request: for each logical request, and so for each trial of a race, by
	// actor_a; for a cart, say, that an order uses up.
	Each string `yaml:"each" rule:"required,enum=principal|request"`
	// Request to send. If the response is not 2xx, 302 or 303, or lacks what is to be taken, the experiment
	// is inconclusive.
	Request Request `yaml:"request" rule:"required"`
	// Take says what to take from the response. Templates refer to it by its name, as to a variable: those of
	// requests, readers and audits, and with each: principal those of headers and cookies of principals.
	Take []Taking `yaml:"take" rule:"items=20"`
	// Valid is how long what was taken can be used. Default: until the run is over.
	Valid time.Duration `yaml:"valid"`
	// ExpiresIn is a JSON pointer to the number of seconds for which the response says that it can be used.
	ExpiresIn *Pointer `yaml:"expires_in" rule:"names=pointer"`
	// Expired lists the statuses that mean that what was taken has expired. A request that gets one is sent
	// once more, with a new value. Default: none.
	Expired []int `yaml:"expired" rule:"items=20,min=400,max=499"`
	// Refresh is sent instead of request when what was taken has expired, and may refer to that. What its
	// response lacks keeps its value; if it fails, request is sent. Default: request.
	Refresh *Request `yaml:"refresh"`
}

// Taking is a value that is taken from a response: from the header or cookie if
// one is named, else from the body.
type Taking struct {
	_ struct{} `any:"header,pointer,cookie,pattern"`

	// Name for templates; unique among variables and what other steps take.
	Name string `yaml:"name" rule:"required,names=variable,max=100"`
	// Header such as Location.
	Header string `yaml:"header" rule:"names=header"`
	// Pointer into the JSON body, to a string, a number or a truth value.
	Pointer *Pointer `yaml:"pointer" rule:"names=pointer"`
	// Cookie that the response sets, by its name.
	Cookie string `yaml:"cookie" rule:"names=cookie"`
	// Pattern is a regular expression (RE2) whose first group is the value.
	Pattern string `yaml:"pattern" rule:"max=4096"`
	// Secret says that it must not be in evidence. Default: true with each: principal.
	Secret *bool `yaml:"secret"`
}

// Operation is a side-effecting action.
type Operation struct {
	// Name is unique in the plan, such as orders.create.
	Name string `yaml:"name" rule:"required,names=operation,max=100"`
	// Request as it is sent, without its key.
	Request Request `yaml:"request" rule:"required"`
	// Steps are sent before the requests of this operation, after those of the plan.
	Steps []Step `yaml:"steps" rule:"items=20"`
	// Key is where the idempotency key goes, or the event id of a delivery. None: the operation has no such key.
	Key *Key `yaml:"key"`
	// Signature makes the operation the delivery of a webhook or a job, signed for each sending.
	Signature *Signature `yaml:"signature"`
	// Variables of this operation alone, drawn after those of the plan.
	Variables Pairs `yaml:"variables" rule:"names=variable,items=100"`
	// Altered is the request with another business meaning.
	Altered *Alteration `yaml:"altered"`
	// Invalid is the request changed so that the target refuses it with a 4xx status, for the experiment
	// corrected.
	Invalid *Alteration `yaml:"invalid"`
	// Preview is a request that only checks, or shows, what the operation would do: a dry run. The experiment preview sends it before anything that has effects; the key goes where it goes in the operation.
	Preview *Request `yaml:"preview"`
	// OtherOperation is the name of an operation of the plan that the experiment other_operation sends under this one's key.
	OtherOperation string `yaml:"other_operation" rule:"names=operation,max=100"`
	// Atomicity lists signs of what makes effect and record atomic. What is found is inferred, never
	// established.
	Atomicity []Mechanism `yaml:"atomicity" rule:"items=10"`
	// Readers look at the state that the operation changes. Without one, the probe cannot tell whether an
	// effect happened once.
	Readers []Reader `yaml:"readers" rule:"items=20"`
	// Resource is where the response names what was created.
	Resource *Resource `yaml:"resource"`
	// Poll says how to find out what became of a request that was accepted with 202. Default: a GET of the
	// URL that the response names.
	Poll *Poll `yaml:"poll"`
	// Audit says where to look for traces of the request.
	Audit []Audit `yaml:"audit" rule:"items=20"`
	// Experiments to run. Default: those of the plan.
	Experiments []Experiment `yaml:"experiments" rule:"items=30"`
	// Contract is what this operation promises. Default: the plan's.
	Contract *Contract `yaml:"contract"`
}

// Request is an HTTP request.
type Request struct {
	// Method, in capitals.
	Method string `yaml:"method" rule:"required,names=method,max=20"`
	// URL is a template: absolute, http or https.
	URL string `yaml:"url" rule:"required,max=16384"`
	// Headers are templates, sent in this order and spelling. Default with a json body: Content-Type: application/json.
	Headers Header `yaml:"headers" rule:"names=header,items=100"`
	// Body is sent as it is. Default: none.
	Body *Body `yaml:"body"`
	// Protocol to speak. Default: auto.
	Protocol string `yaml:"protocol" rule:"enum=auto|http1|http2"`
}

// Body is a request body, given in one of several ways.
type Body struct {
	_ struct{} `one:"text,json,graphql,base64,file"`

	// Text is a template.
	Text *string `yaml:"text" rule:"empty"`
	// JSON is any value; its strings are templates. It is sent without white space, members in order and numbers as written.
	JSON JSON `yaml:"json"`
	// GraphQL is a request as defined by GraphQL over HTTP. Its responses are
	// judged by their data and errors, not by a status of 200.
	GraphQL *GraphQL `yaml:"graphql"`
	// Base64 is bytes, in standard base64.
	Base64 *string `yaml:"base64" rule:"empty,names=base64"`
	// File is sent as it is. Relative to the plan's folder.
	File string `yaml:"file"`
}

// GraphQL is a GraphQL request. It is sent as JSON with the members
// operationName, query and variables.
type GraphQL struct {
	// Operation is the operationName.
	Operation string `yaml:"operation" rule:"required,names=graphql,max=100"`
	// Query is the document. It is sent as it is: what differs goes into variables.
	Query string `yaml:"query" rule:"required,max=65536"`
	// Variables are a JSON object; its strings are templates.
	Variables JSON `yaml:"variables"`
}

// JSON is a JSON text. In a plan it is written as YAML or as JSON.
type JSON json.RawMessage

// Key says where the key goes and what it looks like.
type Key struct {
	_ struct{} `one:"header,query,body"`

	// Header that carries the key.
	Header string `yaml:"header" rule:"names=header"`
	// Query parameter that carries the key.
	Query string `yaml:"query"`
	// Body is a JSON pointer to the string member that carries the key. The member must not be in the body,
	// but the object that holds it must.
	Body Pointer `yaml:"body" rule:"names=member"`
	// Syntax in a header: sf-string puts it in quotes (RFC 9651), bare does not. Default: sf-string for Idempotency-Key, unless the contract is stripe; bare otherwise.
	Syntax string `yaml:"syntax" rule:"enum=sf-string|bare"`
	// Value is a template. Default: {{uuid}}.
	Value string `yaml:"value" rule:"max=1000"`
}

// Signature is how a delivery is signed.
type Signature struct {
	// Scheme: standard-webhooks and stripe sign the time as well; github does not.
	Scheme string `yaml:"scheme" rule:"required,enum=standard-webhooks|stripe|github"`
	// Secret is a template, of env or file. For standard-webhooks it is base64, with or without whsec_.
	Secret string `yaml:"secret" rule:"required,max=1000"`
	// StaleBy is how old the time of a stale delivery is. Default: 1h.
	StaleBy time.Duration `yaml:"stale_by"`
}

// Alteration turns a request into another one.
type Alteration struct {
	_ struct{} `one:"edits,body"`

	// Edits are made to the rendered JSON body; the rest stays the same, byte for byte.
	Edits []Edit `yaml:"edits" rule:"items=50"`
	// Body replaces the body.
	Body *Body `yaml:"body"`
}

// Edit replaces one value of a JSON body.
type Edit struct {
	// Pointer to a value that the body has (RFC 6901).
	Pointer *Pointer `yaml:"pointer" rule:"required,names=pointer"`
	// Value to put there; its strings are templates.
	Value JSON `yaml:"value" rule:"required"`
}

// Pointer is a JSON pointer (RFC 6901); empty for the whole document.
type Pointer string

// Hook is something to do.
type Hook struct {
	_ struct{} `one:"http,command"`

	// HTTP is a request to send. It counts against the budget.
	HTTP *HookRequest `yaml:"http"`
	// Command is a program and its arguments, templates, run without a shell.
	Command []string `yaml:"command" rule:"items=100,empty"`
}

// HookRequest is a request and who sends it.
type HookRequest struct {
	// Request to send; its templates have no fresh values.
	Request Request `yaml:"request" rule:"required"`
	// As is who sends. Default: actor_a.
	As PrincipalName `yaml:"as" rule:"enum=actor_a|actor_b|tenant_b"`
}

// Timing says how long to wait. The clock is the probe's.
type Timing struct {
	// Timeout for each response. Default: 30s.
	Timeout time.Duration `yaml:"timeout"`
	// Settle is how long state has to stay the same before it is believed, at least. Default: 500ms.
	Settle time.Duration `yaml:"settle"`
	// StableFor is how many times the effect latency of the control the state has to stay the same. Default: 5.
	StableFor int `yaml:"stable_for" rule:"min=1,max=100"`
	// SettleLimit is how long to wait for it. Default: 30s.
	SettleLimit time.Duration `yaml:"settle_limit"`
	// Poll is the pause between two readings. Default: 100ms.
	Poll time.Duration `yaml:"poll"`
	// LateAfter is the pause before a late retry. Default: 5s.
	LateAfter time.Duration `yaml:"late_after"`
}

// Race says how to race.
type Race struct {
	// Width is how many requests are sent at once. Default: 10.
	Width int `yaml:"width" rule:"min=2,max=250"`
	// Trials is how many races are run, each with a fresh key. Default: 1.
	Trials int `yaml:"trials" rule:"min=1,max=10000"`
}

// Budget bounds a run.
type Budget struct {
	// MaxSends is how many requests may be put on the wire, readers' excluded. Default: 50.
	MaxSends int `yaml:"max_sends" rule:"min=1,max=100000"`
	// MaxReads is how many requests readers, audits and the specification may send. Default: 10 for each of max_sends and each reader by http of an operation.
	MaxReads int `yaml:"max_reads" rule:"min=1,max=1000000"`
	// MaxTime is how long the run may take. Default: 5m.
	MaxTime time.Duration `yaml:"max_time"`
}

// Contract is what a target promises. Fields that are set replace those of the
// profile; a custom profile starts from nothing, and what it does not say is not judged.
type Contract struct {
	// Profile: ietf, stripe, oasis or custom. Default: ietf.
	Profile string `yaml:"profile" rule:"enum=ietf|stripe|oasis|custom"`
	// Missing lists the statuses for a request without a key. Empty: the key is optional.
	Missing []int `yaml:"missing" rule:"items=20,min=100,max=599"`
	// Malformed lists the statuses for a malformed key.
	Malformed []int `yaml:"malformed" rule:"items=20,min=100,max=599"`
	// Mismatch lists the statuses for a key that was used for another request.
	Mismatch []int `yaml:"mismatch" rule:"items=20,min=100,max=599"`
	// InFlight lists the statuses for a duplicate of a request that is still running.
	InFlight []int `yaml:"in_flight" rule:"items=20,min=100,max=599"`
	// InFlightWaits says that such a duplicate may instead wait for the result.
	InFlightWaits *bool `yaml:"in_flight_waits"`
	// Replay says what a duplicate of a completed request gets: the original response, the current state of
	// the resource, or a conflict that names it.
	Replay string `yaml:"replay" rule:"enum=original|current|reference"`
	// ReplayHeader is the header that marks replays.
	ReplayHeader string `yaml:"replay_header" rule:"names=header"`
	// FreshKey says what the same body with a fresh key does: it creates another resource, or is refused
	// because of a natural key. Default: creates.
	FreshKey string `yaml:"fresh_key" rule:"enum=creates|refused"`
	// RecordsErrors says that a failed first attempt is replayed as failed.
	RecordsErrors *bool `yaml:"records_errors"`
}

// Pair is one member of a mapping.
type Pair struct{ Name, Value string }

// Pairs is a mapping in the order in which it was written.
type Pairs []Pair

// Get returns the value of a name.
func (p Pairs) Get(name string) (value string, ok bool) {
	for _, m := range p {
		if m.Name == name {
			return m.Value, true
		}
	}
	return "", false
}

// Header is a mapping in which a name may have several values, in the order in
// which it was written.
type Header []Pair

// Operation returns the operation of a name.
func (p *Plan) Operation(name string) (*Operation, error) {
	for i := range p.Operations {
		if p.Operations[i].Name == name {
			return &p.Operations[i], nil
		}
	}
	return nil, fmt.Errorf("plan: no operation is named %q", name)
}

// Set replaces the value of one of the plan's variables, for example a base URL
// on another port. The value is literal text, not a template.
func (p *Plan) Set(name, value string) error {
	for i := range p.Variables {
		if p.Variables[i].Name == name {
			vars := append(Pairs(nil), p.Variables...)
			vars[i].Value = strings.ReplaceAll(value, "{{", `{{"{{"}}`)
			p.Variables = vars
			return nil
		}
	}
	return fmt.Errorf("plan: no variable is named %q", name)
}
