// Package targets holds servers whose behaviour under duplicates is known: the
// ground truth for the probe. Some are wrong, each in one way; some are right,
// each by another contract. What every one of them did can be seen from outside
// and from Go, whatever it answered.
//
// All of them make orders: POST /orders (deliveries of events: POST /hooks)
// with a reference. GET /orders?ref=... lists what was made, GET /mails?ref=...
// what the outside was told, GET /audit the audit log and GET /openapi.json what
// is promised. X-Tenant and X-Actor say who asks.
package targets

import (
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// Target is a server and what there is to find out about it.
type Target struct {
	// Name is unique.
	Name string
	// About says in a sentence what is wrong, or which contract it follows.
	About string
	// Wrong targets have findings that must be made.
	Wrong bool
	// Key says where the key goes; nil if there is none.
	Key *plan.Key
	// Contract is what the target promises.
	Contract plan.Contract
	// Experiments that mean something here.
	Experiments []plan.Experiment
	// Protocol to speak, as in a plan.
	Protocol string
	// NeedsFail: what is wrong shows only if Service.Fail makes the first
	// attempt fail.
	NeedsFail bool
	Expect    Expectation

	webhook   bool
	mails     bool
	inside    bool        // mails count as the target's own state
	headers   plan.Header // of requests, beside the usual ones
	lateAfter time.Duration
	adapt     func(*plan.Plan, *Server) // nil, or what else the plan needs
	make      func() *Service
}

// Expectation is what a run with all of a target's experiments has to come to.
type Expectation struct {
	// Must are the ids of findings that have to be made, and May of those that
	// can be: they follow from what is wrong, or are matters of taste. Any
	// other finding is a false accusation.
	Must, May []evidence.FindingID
	// Outcomes are those of experiments that matter here. Others are open.
	Outcomes map[plan.Experiment]evidence.Outcome
	// Verdict has the accepted values of fields, by the field's name. Other
	// fields are open.
	Verdict map[string][]string
	// Basis is how well findings are known, where that matters, and Causes what
	// has to be said of causes, by their name.
	Basis  map[evidence.FindingID]evidence.Basis
	Causes map[string]evidence.CauseState
	// Says are parts of sentences that some experiment has to say, and SaysNot
	// parts that no sentence of the evidence may hold.
	Says, SaysNot []string
}

// MustNot lists the ids of all findings that would be false accusations.
func (e Expectation) MustNot() []evidence.FindingID {
	var list []evidence.FindingID
	for _, f := range evidence.Catalogue() {
		if !slices.Contains(e.Must, f.ID) && !slices.Contains(e.May, f.ID) {
			list = append(list, f.ID)
		}
	}
	return list
}

// Delivers reports whether it sends mails where Service.SendMailsTo says.
func (t Target) Delivers() bool { return t.mails && !t.inside }

// New returns the target at work, with nothing done yet.
func (t Target) New() *Service { return t.make() }

// SecretEnv is the environment variable that plans of deliveries take their
// secret from; Env has it.
const SecretEnv = "SEMEL_TARGET_WEBHOOK_SECRET"

// Env is the environment that the plans need.
func Env(name string) (value string, ok bool) {
	if user, is := strings.CutPrefix(name, "PASSWORD_OF_"); is {
		return "the password of " + user, true
	}
	return WebhookSecret, name == SecretEnv
}

// Plan describes a server of the target to the probe. With a sink, as
// host:port, the probe listens there; the Service has to be told with
// SendMailsTo.
func (t Target) Plan(s *Server, sink string) *plan.Plan {
	p := &plan.Plan{
		Version: 1,
		Name:    t.Name,
		Target: plan.Target{
			Allow: []string{s.Addr}, Production: new(false), Specification: s.URL + "/openapi.json",
		},
		Variables: plan.Pairs{
			{Name: "ref", Value: "ref-{{.run}}-{{hex 16}}"},
			{Name: "item", Value: "green tea {{hex 8}}"},
			{Name: "request_id", Value: "{{uuid7}}"},
		},
		Experiments: t.Experiments,
		Contract:    &t.Contract,
		Timing: plan.Timing{
			Timeout: 10 * time.Second, Settle: 300 * time.Millisecond, StableFor: 2, SettleLimit: 1500 * time.Millisecond,
			Poll: 50 * time.Millisecond, LateAfter: 300 * time.Millisecond,
		},
		Race:   plan.Race{Width: 5, Trials: 1},
		Budget: plan.Budget{MaxSends: 500, MaxReads: 20_000, MaxTime: 2 * time.Minute},
	}
	if t.lateAfter > 0 {
		p.Timing.LateAfter = t.lateAfter
	}
	op := plan.Operation{
		Name: operationName,
		Request: plan.Request{
			Method: "POST", URL: s.URL + "/orders", Protocol: t.Protocol,
			Headers: plan.Header{{Name: "X-Request-Id", Value: "{{.request_id}}"}},
			Body:    &plan.Body{JSON: plan.JSON(`{"reference":"{{.ref}}","item":"{{.item}}","quantity":1}`)},
		},
		Key: t.Key,
		Altered: &plan.Alteration{Edits: []plan.Edit{
			{Pointer: new(plan.Pointer("/quantity")), Value: plan.JSON("3")},
			{Pointer: new(plan.Pointer("/item")), Value: plan.JSON(`"black tea"`)},
		}},
		Readers: []plan.Reader{{Name: "orders", HTTP: &plan.HTTPReader{
			URL: s.URL + "/orders?ref={{.ref | url}}", Count: new(plan.Pointer("/orders")), ID: new(plan.Pointer("/id")),
		}}},
		Resource: &plan.Resource{Pointer: new(plan.Pointer("/id"))},
		Audit: []plan.Audit{{
			Name: "log", HTTP: &plan.AuditHTTP{URL: s.URL + "/audit"},
			Find: plan.Pairs{{Name: "request_id", Value: "request_id={{.request_id}} "}, {Name: "actor", Value: "actor=[a-z]+"}, {Name: "outcome", Value: "outcome=[a-z_]+"}},
		}},
	}
	op.Request.Headers = append(op.Request.Headers, t.headers...)
	if t.Key != nil {
		op.Audit[0].Find = append(op.Audit[0].Find, plan.Pair{Name: "key", Value: "key={{.key}} "})
	}
	if t.Contract.Profile == "oasis" {
		op.Request.Headers = append(op.Request.Headers, plan.Pair{Name: "Repeatability-First-Sent", Value: `{{now "http"}}`})
	}
	if t.mails {
		op.Readers = append(op.Readers, plan.Reader{Name: "mails", Outside: new(!t.inside), HTTP: &plan.HTTPReader{
			URL: s.URL + "/mails?ref={{.ref | url}}", Count: new(plan.Pointer("/mails")),
		}})
		if sink != "" && !t.inside {
			op.Readers = append(op.Readers, plan.Reader{Name: "sink", Webhook: &plan.Sink{Listen: sink, Match: "{{.ref}}"}})
		}
	}
	if t.webhook {
		op.Name = "hooks.receive"
		op.Request.URL = s.URL + "/hooks"
		op.Request.Body = &plan.Body{JSON: plan.JSON(`{"type":"order.paid","reference":"{{.ref}}","quantity":1}`)}
		op.Altered.Edits = op.Altered.Edits[:1]
		op.Resource = nil
		op.Signature = &plan.Signature{Scheme: "standard-webhooks", Secret: `{{env "` + SecretEnv + `"}}`}
	} else {
		principal := func(tenant, actor string) *plan.Principal {
			return &plan.Principal{Headers: plan.Header{{Name: "X-Tenant", Value: tenant}, {Name: "X-Actor", Value: actor}}}
		}
		p.Principals = plan.Principals{
			ActorA: principal("acme", "alice"), ActorB: principal("acme", "bob"), TenantB: principal("globex", "carol"),
		}
	}
	p.Operations = []plan.Operation{op}
	if t.adapt != nil {
		t.adapt(p, s)
	}
	return p
}
