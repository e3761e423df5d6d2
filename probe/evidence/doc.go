// Package evidence holds what a run of the probe leaves behind: what was sent
// and came back, the state around it, the judgement, and what each part of the
// judgement rests on. It is plain data with a stable JSON form; reports are made
// of nothing else.
//
// It holds no secrets: whoever fills it in must replace them first.
package evidence

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Format is the version of the JSON form. Readers refuse a higher one.
const Format = 1

// Run is one run of the probe.
type Run struct {
	Format  int       `json:"format"`
	ID      string    `json:"id"`
	Version string    `json:"version"` // of the program
	Plan    string    `json:"plan"`    // the plan's file name or title
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	// DryRun: nothing was sent.
	DryRun bool `json:"dry_run,omitempty"`
	// Interrupted says why the run ended early: a signal, the budget, a dead
	// target. Experiments that were under way are inconclusive; those that had not
	// begun were not run.
	Interrupted string `json:"interrupted,omitempty"`
	// Targets are the hosts and ports that could be sent to.
	Targets []string `json:"targets"`
	// Budget is the most requests that could be sent; Sent is how many were,
	// state readers included.
	Budget int `json:"budget"`
	Sent   int `json:"sent"`
	// Secrets are the placeholders of secrets that the plan names.
	Secrets    []SecretName `json:"secrets,omitempty"`
	Operations []Operation  `json:"operations"`
}

// SecretName says where the secret behind a placeholder in the evidence came
// from.
type SecretName struct {
	Placeholder string `json:"placeholder"` // such as redacted-1
	From        string `json:"from"`        // such as env TOKEN_A
}

// Operation is what was found out about one operation.
type Operation struct {
	Name   string `json:"name"`
	Method string `json:"method"`
	URL    string `json:"url"`
	// Profile is the expected contract: ietf, stripe, oasis or custom; none if
	// there is no key and the plan names no contract. Assumed reports whether the
	// plan did not name it.
	Profile string `json:"profile"`
	Assumed bool   `json:"profile_assumed,omitempty"`
	// KeyIn says where the key is, such as "header Idempotency-Key", or is NoKey.
	// It is empty in runs of earlier versions.
	KeyIn string `json:"key_in,omitempty"`
	// Source is where the operation is described, for reports that link to it:
	// an OpenAPI file, with its line, or the plan.
	Source     string `json:"source,omitempty"`
	SourceLine int    `json:"source_line,omitempty"`
	// Signed reports whether each delivery is signed separately, so that its bytes
	// cannot be sent again under another key.
	Signed bool `json:"signed,omitempty"`

	// Readers are the state readers. Witnesses name their effects by them.
	Readers     []Reader     `json:"readers,omitempty"`
	Experiments []Experiment `json:"experiments"`
	Verdict     Verdict      `json:"verdict"`
	Findings    []Finding    `json:"findings"`
	Statements  []Statement  `json:"statements"`
	Hypotheses  []Hypothesis `json:"hypotheses,omitempty"`
	Untried     []Untried    `json:"untried,omitempty"`
}

// NoKey is the KeyIn of operations without a key.
const NoKey = "none"

// Outcome is the outcome of an experiment.
type Outcome string

const (
	// Held means that the target was shown to be right.
	Held Outcome = "held"
	// Broken means that the target was shown to be wrong.
	Broken Outcome = "broken"
	// Inconclusive means that a precondition failed, so nothing was shown.
	Inconclusive Outcome = "inconclusive"
	// NotApplicable means that the operation has nothing to which it applies.
	NotApplicable Outcome = "not_applicable"
	// NotRun means that it was switched off, or the run ended before it.
	NotRun Outcome = "not_run"
)

// Experiment is one experiment on an operation.
type Experiment struct {
	// Name is stable, such as sequential-duplicate.
	Name string `json:"name"`
	// Step is the step of the method, A to F.
	Step    string  `json:"step"`
	Title   string  `json:"title"`
	Outcome Outcome `json:"outcome"`
	// Why gives the reason for the outcome in one sentence.
	Why      string    `json:"why"`
	Sends    []Send    `json:"sends,omitempty"`
	Before   []Reading `json:"before,omitempty"`
	After    []Reading `json:"after,omitempty"`
	Changes  []Change  `json:"changes,omitempty"`
	Second   *Second   `json:"second,omitempty"`
	Race     *Race     `json:"race,omitempty"`
	Audit    []string  `json:"audit,omitempty"` // matched lines, redacted
	Started  time.Time `json:"started,omitzero"`
	Ended    time.Time `json:"ended,omitzero"`
	Settling string    `json:"settling,omitempty"` // how it was seen that the state was stable
	// Drawn are the values that were drawn for the requests, including keys.
	// Sending the requests again needs new ones. Of many requests, these are
	// the values of the first ones.
	Drawn []string `json:"drawn,omitempty"`
}

// Role is the purpose of a send.
type Role string

// The roles of sends.
const (
	RoleControl        Role = "control"   // a request by itself, for comparison
	RoleFirst          Role = "first"     // the request that is duplicated
	RoleDuplicate      Role = "duplicate" // the same request again
	RoleGround         Role = "ground"    // shows, before the experiment itself, that a valid key protects
	RoleAltered        Role = "altered"
	RoleRewritten      Role = "rewritten"
	RoleCorrected      Role = "corrected"
	RoleOtherActor     Role = "other-actor"
	RoleOtherTenant    Role = "other-tenant"
	RoleOtherInstance  Role = "other-instance"
	RoleOtherOperation Role = "other-operation"
	RoleWithoutKey     Role = "without-key"
	RoleMalformedKey   Role = "malformed-key"
	RoleExpired        Role = "expired"
	RoleStale          Role = "stale"
	RoleForged         Role = "forged"
	RoleRace           Role = "race" // one of several at once
	RolePreview        Role = "preview"
	RoleRead           Role = "read" // reads the state
	RoleReset          Role = "reset"
	RoleStep           Role = "step"
	RoleWarmUp         Role = "warm-up"
)

// Send is one request on the wire. Times are microseconds since the start of
// the experiment; -1 for what did not happen.
type Send struct {
	// N counts the sends of the whole run, from 1. It is also the number of the
	// entry in the HAR.
	N         int    `json:"n"`
	Role      Role   `json:"role"`
	Principal string `json:"principal,omitempty"`
	Method    string `json:"method"`
	URL       string `json:"url"`
	Protocol  string `json:"protocol,omitempty"`
	// Delivery is not-sent, partial, refused, unanswered or answered.
	Delivery string `json:"delivery"`
	Acked    bool   `json:"acked,omitempty"`
	Cut      string `json:"cut,omitempty"` // where the probe cut it
	Status   int    `json:"status,omitempty"`
	// SaysError reports whether the body names an error although the status is one
	// of success.
	SaysError bool `json:"says_error,omitempty"`
	Replayed  bool `json:"replayed,omitempty"`
	// Resource is the id that the response names.
	Resource string `json:"resource,omitempty"`
	Body     string `json:"body_sha256,omitempty"`
	Bytes    int    `json:"body_bytes,omitempty"`
	Err      string `json:"error,omitempty"`

	StartUS     int64 `json:"start_us"`
	LastWriteUS int64 `json:"last_write_us"`
	FirstByteUS int64 `json:"first_byte_us"`
	DoneUS      int64 `json:"done_us"`
}

// Reading is what a state reader saw.
type Reading struct {
	Reader string    `json:"reader"`
	At     time.Time `json:"at"`
	// Count is the number of effects, for readers that count.
	Count *int64 `json:"count,omitempty"`
	// Values are what it read, by name, for readers that compare.
	Values map[string]string `json:"values,omitempty"`
	Err    string            `json:"error,omitempty"`
}

// Change is a difference between two readings of one reader.
type Change struct {
	Reader string `json:"reader"`
	Name   string `json:"name"`
	Before string `json:"before"`
	After  string `json:"after"`
	// Effects is the increase in the number of effects; 0 for values.
	Effects int64 `json:"effects,omitempty"`
	// Expected is the number that is right, given what was sent and how it was
	// answered; -1 if that is what the experiment asks.
	Expected int64 `json:"expected,omitempty"`
}

// SecondClass is how the second attempt at a request was answered.
type SecondClass string

const (
	SameResult           SecondClass = "same_result"
	RefusedWithReference SecondClass = "refused_with_reference"
	Refused              SecondClass = "refused"
	ErrorOrTimeout       SecondClass = "error_or_timeout"
	DifferentResult      SecondClass = "different_result"
)

// Second compares a second response with the first.
type Second struct {
	// Of are the numbers of the two sends. It is empty in runs of earlier versions.
	Of          []int       `json:"of,omitempty"`
	Class       SecondClass `json:"class"`
	Status      bool        `json:"same_status"`
	Body        bool        `json:"same_body"`
	Resource    bool        `json:"same_resource"`
	Differences []string    `json:"differences,omitempty"`
	FirstUS     int64       `json:"first_us"`
	SecondUS    int64       `json:"second_us"`
	// Timing is fast-as-a-replay, slow-as-an-execution or undecided. It is only a
	// hint.
	Timing string `json:"timing"`
}

// Race is what is known about requests that were released together.
type Race struct {
	Width      int    `json:"width"`
	Protocol   string `json:"protocol"`
	Trials     int    `json:"trials"`
	Delivered  int    `json:"delivered"`  // requests, in all trials
	Overlapped int    `json:"overlapped"` // trials in which at least two were under way at the same time
	Doubled    int    `json:"doubled"`    // trials with more than one effect
	Lost       int    `json:"lost"`       // trials with a success and no effect
	SpreadUS   int64  `json:"release_spread_us"`
	// Bound is the highest rate of double effects that the trials leave open,
	// with 95 % confidence.
	Bound float64 `json:"bound"`
}

// RateBound is the upper end of the one-sided 95 % Clopper-Pearson interval for
// doubled out of trials: 1 if there was no trial.
func RateBound(doubled, trials int) float64 {
	if trials <= 0 || doubled >= trials {
		return 1
	}
	if doubled == 0 {
		return 1 - math.Pow(0.05, 1/float64(trials))
	}
	// The bound is the p at which so few doubles have a probability of 5 %.
	low, high := 0.0, 1.0
	for range 60 {
		p := (low + high) / 2
		if binomialCDF(doubled, trials, p) > 0.05 {
			low = p
		} else {
			high = p
		}
	}
	return high
}

// Percent writes a rate that is an upper bound, rounded up, so that it does not
// look lower than it is: with one decimal, or two below 10 %.
func Percent(rate float64) string {
	p, unit := rate*100, 10.0
	if p < 10 {
		unit = 100
	}
	return strconv.FormatFloat(math.Ceil(p*unit-1e-9)/unit, 'f', -1, 64) + " %"
}

// binomialCDF is the probability of at most k successes in n trials.
func binomialCDF(k, n int, p float64) (sum float64) {
	lnFactorial := func(n int) float64 { v, _ := math.Lgamma(float64(n) + 1); return v }
	for i := range k + 1 {
		sum += math.Exp(lnFactorial(n) - lnFactorial(i) - lnFactorial(n-i) + float64(i)*math.Log(p) + float64(n-i)*math.Log1p(-p))
	}
	return sum
}

// Verdict is the ten fields of the normalised key. A program that reads a Verdict
// should treat values it does not know as unknown.
type Verdict struct {
	IdempotencySupport string  `json:"idempotency_support"`
	KeyScopeBinding    string  `json:"key_scope_binding"`
	ResultReplay       string  `json:"result_replay"`
	InProgressHandling string  `json:"in_progress_handling"`
	Atomicity          string  `json:"atomicity"`
	RaceBehavior       string  `json:"race_behavior"`
	OutboxPattern      string  `json:"outbox_pattern"`
	RetryBehavior      string  `json:"retry_behavior"`
	AuditStrength      string  `json:"audit_strength"`
	Confidence         float64 `json:"confidence"`
	// ConfidenceFrom says how Confidence was computed, term by term.
	ConfidenceFrom []string `json:"confidence_from,omitempty"`
}

var verdictFields = []struct {
	name   string
	get    func(*Verdict) *string
	values []string
}{
	{"idempotency_support", func(v *Verdict) *string { return &v.IdempotencySupport }, []string{"header_key", "natural_key", "event_id", "none", "unknown"}},
	{"key_scope_binding", func(v *Verdict) *string { return &v.KeyScopeBinding }, []string{"tenant+actor+operation", "partial", "weak", "unknown"}},
	{"result_replay", func(v *Verdict) *string { return &v.ResultReplay }, []string{"same_response", "conflict_with_reference", "unstable", "unknown"}},
	{"in_progress_handling", func(v *Verdict) *string { return &v.InProgressHandling }, []string{"yes", "no", "unknown"}},
	{"atomicity", func(v *Verdict) *string { return &v.Atomicity }, []string{"db_unique", "tx_lock", "optimistic", "none", "unknown"}},
	{"race_behavior", func(v *Verdict) *string { return &v.RaceBehavior }, []string{"safe_converge", "double_apply", "unknown"}},
	{"outbox_pattern", func(v *Verdict) *string { return &v.OutboxPattern }, []string{"yes", "no", "unknown"}},
	{"retry_behavior", func(v *Verdict) *string { return &v.RetryBehavior }, []string{"safe_stop", "unsafe_retry", "unknown"}},
	{"audit_strength", func(v *Verdict) *string { return &v.AuditStrength }, []string{"strong", "partial", "weak", "unknown"}},
}

// UnknownVerdict returns a verdict with unknown in every field and a confidence of
// zero.
func UnknownVerdict() Verdict {
	var v Verdict
	for _, f := range verdictFields {
		*f.get(&v) = "unknown"
	}
	return v
}

// Validate returns an error that names each field whose value is not allowed.
func (v Verdict) Validate() error {
	for _, f := range verdictFields {
		if got := *f.get(&v); !slices.Contains(f.values, got) {
			return fmt.Errorf("evidence: verdict: %s is %q; it must be one of %s", f.name, got, strings.Join(f.values, ", "))
		}
	}
	if !(v.Confidence >= 0 && v.Confidence <= 1) {
		return fmt.Errorf("evidence: verdict: confidence is %v; it must be from 0 to 1", v.Confidence)
	}
	return nil
}

// Key returns the normalised verdict key, idempotency_race_doubleexec_boundary_key:
// the ten fields in their order, each as field(value).
func (v Verdict) Key() string {
	parts := make([]string, 0, len(verdictFields)+1)
	for _, f := range verdictFields {
		parts = append(parts, f.name+"("+*f.get(&v)+")")
	}
	return strings.Join(append(parts, fmt.Sprintf("confidence(%.2f)", v.Confidence)), " + ")
}

// Priority says how bad a finding is. P0: an effect was doubled, lost, forged,
// or crossed a tenant's border. P1: that can happen, or a client is led to it.
// P2: a contract is unclear.
type Priority string

const (
	P0 Priority = "P0"
	P1 Priority = "P1"
	P2 Priority = "P2"
)

// Basis says how well something is known.
type Basis string

const (
	Established Basis = "established" // seen, and the evidence is in the run
	Inferred    Basis = "inferred"    // follows from what was seen, under a named assumption
	Unknowable  Basis = "unknowable"  // cannot be known from outside
)

// Finding is something that is wrong.
type Finding struct {
	// ID is stable, such as double-effect-race.
	ID          FindingID `json:"id"`
	Priority    Priority  `json:"priority"`
	Basis       Basis     `json:"basis"`
	Title       string    `json:"title"`
	Explanation string    `json:"explanation"`
	Remedy      string    `json:"remedy"`
	Experiment  string    `json:"experiment"`
	Sends       []int     `json:"sends,omitempty"` // the evidence
	References  []string  `json:"references,omitempty"`
	// Guidelines are its ids in common guidelines.
	Guidelines Guidelines `json:"guidelines,omitzero"`
	// Symptoms are findings with the same cause. Causes are the possible causes.
	Symptoms []Symptom `json:"symptoms,omitempty"`
	Causes   []Cause   `json:"causes,omitempty"`
}

// Statement is something that is known, or known not to be knowable.
type Statement struct {
	Basis Basis  `json:"basis"`
	Text  string `json:"text"`
	// Field is the field of the verdict that the statement is about, if any.
	Field string `json:"field,omitempty"`
}

// Hypothesis is a possible cause of what was found, and the check that would
// decide it.
type Hypothesis struct {
	Name  string `json:"name"` // A to D
	Text  string `json:"text"`
	For   string `json:"for"` // the evidence for it
	Check string `json:"check"`
}

// Worst is the highest priority among the findings; empty if there are none.
func (r *Run) Worst() Priority {
	worst := Priority("")
	for _, o := range r.Operations {
		for _, f := range o.Findings {
			if worst == "" || f.Priority < worst {
				worst = f.Priority
			}
		}
	}
	return worst
}

// Conclusive reports whether every experiment that was to be run has an outcome
// that shows something.
func (r *Run) Conclusive() bool {
	if r.Interrupted != "" || r.DryRun || len(r.Operations) == 0 {
		return false
	}
	for _, o := range r.Operations {
		shown := false
		for _, e := range o.Experiments {
			switch e.Outcome {
			case Inconclusive:
				return false
			case Held, Broken:
				shown = true
			}
		}
		if !shown {
			return false
		}
	}
	return true
}
