package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/evidence"
)

var began = time.Date(2026, 9, 21, 12, 0, 0, 0, time.UTC)

// runs are hand-made runs of each kind.
func runs() map[string]*evidence.Run {
	return map[string]*evidence.Run{
		"clean": cleanRun(), "race": raceRun(), "inconclusive": inconclusiveRun(), "interrupted": interruptedRun(), "hostile": hostileRun(),
		"dry": dryRun(),
	}
}

func newRun(id string) *evidence.Run {
	return &evidence.Run{
		Format: 1, ID: id, Version: "0.1.0", Plan: "orders.yaml", Started: began, Ended: began.Add(2345 * time.Millisecond),
		Targets: []string{"127.0.0.1:8080"}, Budget: 60,
	}
}

func newOperation() evidence.Operation {
	return evidence.Operation{
		Name: "orders.create", Method: "POST", URL: "http://127.0.0.1:8080/orders", Profile: "ietf",
		Source: "api/openapi.yaml", SourceLine: 42, Verdict: evidence.UnknownVerdict(),
	}
}

func count(n int64) *int64 { return &n }

func sent(n int, role evidence.Role, start, done int64, status int, resource string) evidence.Send {
	return evidence.Send{
		N: n, Role: role, Principal: "actor_a", Method: "POST", URL: "http://127.0.0.1:8080/orders", Protocol: "HTTP/2.0",
		Delivery: "answered", Acked: true, Status: status, Resource: resource,
		Body: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", Bytes: 27,
		StartUS: start, LastWriteUS: start + 60, FirstByteUS: done - 40, DoneUS: done,
	}
}

func readings(before, after int64) (b, a []evidence.Reading, c []evidence.Change) {
	return []evidence.Reading{{Reader: "orders", At: began, Count: count(before)}},
		[]evidence.Reading{{Reader: "orders", At: began.Add(time.Second), Count: count(after), Values: map[string]string{"ids": "ord_17, ord_18"}}},
		[]evidence.Change{{Reader: "orders", Name: "count", Before: fmt.Sprint(before), After: fmt.Sprint(after), Effects: after - before, Expected: 1}}
}

func find(id evidence.FindingID, experiment string, sends ...int) evidence.Finding {
	e, ok := evidence.Lookup(id)
	if !ok {
		panic(id)
	}
	return e.Finding(experiment, sends...)
}

func sequential(outcome evidence.Outcome, why string) evidence.Experiment {
	e := evidence.Experiment{
		Name: "duplicate", Step: "B", Title: "The same request again", Outcome: outcome, Why: why,
		Started: began, Ended: began.Add(300 * time.Millisecond), Settling: "stable for 400 ms, five times the control's effect latency",
		Second: &evidence.Second{Class: evidence.SameResult, Status: true, Body: true, Resource: true, FirstUS: 12100, SecondUS: 900, Timing: "fast-as-a-replay"},
		Audit:  []string{"12:00:00 executed key=k-… order=ord_17", "12:00:00 replayed key=k-… order=ord_17"},
	}
	second := sent(3, "duplicate", 14000, 14900, 201, "ord_17")
	second.Replayed = true
	e.Sends = []evidence.Send{sent(1, "read", 0, 800, 200, ""), sent(2, "first", 900, 13000, 201, "ord_17"), second, sent(4, "read", 20000, 20800, 200, "")}
	e.Before, e.After, e.Changes = readings(16, 17)
	return e
}

func race(first int, doubled bool) evidence.Experiment {
	e := evidence.Experiment{
		Name: "race", Step: "D", Title: "The same request several times at once", Outcome: evidence.Held,
		Why: "Five requests overlapped in each of 2 trials, and one took effect.", Started: began.Add(time.Second), Ended: began.Add(1600 * time.Millisecond),
		Race: &evidence.Race{Width: 5, Protocol: "HTTP/2.0", Trials: 2, Delivered: 10, Overlapped: 2, SpreadUS: 38, Bound: evidence.RateBound(0, 2)},
	}
	for trial := range int64(2) {
		for i := range int64(5) {
			at := trial*400_000 + 10_000 + i*7
			n := first + int(trial*5+i)
			s := sent(n, "duplicate", at, at+13_000+i*180, 201, "ord_18")
			if i == 0 {
				s.Role = "first"
			} else {
				s.Replayed = true
			}
			if doubled && i == 3 && trial == 0 {
				s.Resource, s.Replayed = "ord_19", false
			}
			e.Sends = append(e.Sends, s)
		}
	}
	e.Before, e.After, e.Changes = readings(17, 18)
	if doubled {
		e.Outcome, e.Why = evidence.Broken, "In 1 of 2 trials two of five overlapping requests took effect."
		e.Race.Doubled, e.Race.Bound = 1, evidence.RateBound(1, 2)
		e.Before, e.After, e.Changes = readings(17, 19)
	}
	return e
}

func cleanRun() *evidence.Run {
	r := newRun("20260921T120000-clean")
	r.Sent = 24
	o := newOperation()
	o.Experiments = []evidence.Experiment{
		{Name: "specification", Step: "A", Title: "What the target's own document says", Outcome: evidence.Held, Why: "The specification names the key, its scope and 24 h of retention."},
		sequential(evidence.Held, "Two requests, one effect, and the second response is the first one's."),
		race(5, false),
		{Name: "other_tenant", Step: "C", Title: "The same key, sent by another tenant", Outcome: evidence.Held, Why: "Tenant B's request took effect of its own."},
		{Name: "redelivery", Step: "F", Title: "A redelivered event", Outcome: evidence.NotApplicable, Why: "The operation is no delivery."},
	}
	o.Verdict = evidence.Verdict{
		IdempotencySupport: "header_key", KeyScopeBinding: "tenant+actor+operation", ResultReplay: "same_response", InProgressHandling: "unknown",
		Atomicity: "unknown", RaceBehavior: "safe_converge", OutboxPattern: "unknown", RetryBehavior: "safe_stop", AuditStrength: "strong", Confidence: 0.82,
		ConfidenceFrom: []string{"0.40 state delta read and stable", "0.25 overlap shown in 2 of 2 trials", "0.17 replay shown by state"},
	}
	o.Statements = []evidence.Statement{
		{Basis: evidence.Established, Text: "The same request sent again had no second effect.", Field: "result_replay"},
		{Basis: evidence.Established, Text: "In 2 overlapping trials nothing doubled.", Field: "race_behavior"},
		{Basis: evidence.Inferred, Text: "Keys belong to a tenant, assuming that the readers show all effects.", Field: "key_scope_binding"},
		{Basis: evidence.Unknowable, Text: "How record and effect are made one.", Field: "atomicity"},
	}
	r.Operations = []evidence.Operation{o}
	return r
}

func raceRun() *evidence.Run {
	r := newRun("20260921T120500-race")
	r.Sent = 22
	o := newOperation()
	o.Experiments = []evidence.Experiment{
		{Name: "specification", Step: "A", Title: "What the target's own document says", Outcome: evidence.Held, Why: "The document says nothing of retention."},
		sequential(evidence.Held, "Two requests, one effect, and the second response is the first one's."),
		race(5, true),
		{
			Name: "lost_unread", Step: "F", Title: "Cut off after the last byte of the request, then again", Outcome: evidence.Inconclusive, Why: "The first request's delivery could not be proven.",
			Sends: []evidence.Send{
				{N: 15, Role: "first", Principal: "actor_a", Method: "POST", URL: "http://127.0.0.1:8080/orders", Protocol: "HTTP/1.1", Delivery: "unanswered", Cut: "after the last byte", Err: "cut by the probe", StartUS: 100, LastWriteUS: 220, FirstByteUS: -1, DoneUS: 260},
				sent(16, "duplicate", 60_000, 74_000, 503, ""),
				{N: 17, Role: "duplicate", Method: "POST", URL: "http://127.0.0.1:8080/orders", Delivery: "not-sent", Err: "the budget is used up", StartUS: -1, LastWriteUS: -1, FirstByteUS: -1, DoneUS: -1},
			},
		},
		{Name: "redelivery", Step: "F", Title: "A redelivered event", Outcome: evidence.NotApplicable, Why: "The operation is no delivery."},
	}
	o.Findings = []evidence.Finding{find("retention-not-published", "specification"), find("double-effect-race", "race", 5, 6, 7, 8, 9), find("in-flight-error-invites-new-key", "race", 8)}
	o.Verdict.IdempotencySupport, o.Verdict.ResultReplay, o.Verdict.RaceBehavior, o.Verdict.Confidence = "header_key", "same_response", "double_apply", 0.91
	o.Verdict.ConfidenceFrom = []string{"0.50 state delta read and stable", "0.41 overlap shown in 2 of 2 trials"}
	o.Statements = []evidence.Statement{
		{Basis: evidence.Established, Text: "Requests 5 and 8 with one key made ord_18 and ord_19.", Field: "race_behavior"},
		{Basis: evidence.Inferred, Text: "The key is looked up before the work and written after it.", Field: "atomicity"},
		{Basis: evidence.Unknowable, Text: "Whether outgoing messages follow the commit: the plan has no sink.", Field: "outbox_pattern"},
	}
	o.Hypotheses = []evidence.Hypothesis{
		{Name: "A", Text: "The key is checked and stored in separate statements.", For: "Sequential duplicates hold, raced ones do not.", Check: "Look for a unique constraint on (tenant, key) in the orders database."},
		{Name: "B", Text: "The record lives in a cache of each instance.", For: "Doubles came in one trial of two.", Check: "Run again with one instance, and see if doubles go away."},
	}
	r.Operations = []evidence.Operation{o}
	return r
}

func inconclusiveRun() *evidence.Run {
	r := newRun("20260921T121000-inconclusive")
	r.Sent = 6
	o := newOperation()
	o.Source, o.SourceLine = "", 0
	e := sequential(evidence.Inconclusive, "The negative control failed: a fresh key created nothing that the reader saw.")
	e.Before, e.After, e.Changes = readings(16, 16)
	e.After[0].Err = "GET /orders: 500"
	o.Experiments = []evidence.Experiment{e}
	o.Statements = []evidence.Statement{{Basis: evidence.Unknowable, Text: "Whether anything took effect: the state reader does not show effects."}}
	r.Operations = []evidence.Operation{o}
	return r
}

func interruptedRun() *evidence.Run {
	r := newRun("20260921T121500-interrupted")
	r.Sent, r.Interrupted = 3, "a signal (interrupt)"
	o := newOperation()
	o.Experiments = []evidence.Experiment{
		sequential(evidence.Held, "Two requests, one effect."),
		{Name: "race", Step: "D", Title: "The same request several times at once", Outcome: evidence.NotRun, Why: "The run ended before."},
	}
	r.Operations = []evidence.Operation{o}
	return r
}

func dryRun() *evidence.Run {
	r := newRun("20260921T122000-dry")
	r.DryRun = true
	o := newOperation()
	o.Experiments = []evidence.Experiment{{Name: "duplicate", Step: "B", Title: "The same request again", Outcome: evidence.NotRun, Why: "Nothing is sent in a dry run."}}
	r.Operations = []evidence.Operation{o}
	return r
}

// Texts of a target that wants to get out of the report.
const (
	script   = `<script>alert(1)</script><img src=x onerror=alert(2)><svg onload=alert(3)>"'--></style></title>`
	escapes  = "\x1b[2J\x1b]0;owned\x07\x9b31m\u009b31m\x00\b\x7f"
	breaks   = "one\r\ntwo\n# three\n- four\u2028five"
	marks    = "\u202egpj.exe\u202c \u200fשלום\u200f \u2066x\u2069 \u200bzero\ufeff"
	markdown = "[click](https://evil.example/) ![x](http://evil.example/p.png) **bold** `code` @everyone #1 www.evil.example <details> | a | b |\n|---|---|"
	broken   = "bad \xff\xfe utf \xed\xa0\x80 \ufffe\uffff"
	closing  = "]]></failure></testsuite><!-- -- &amp; %s {{.}} ${x}"
)

func hostileRun() *evidence.Run {
	long := strings.Repeat("long ", 500)
	all := script + escapes + breaks + marks + markdown + broken + closing
	r := newRun("run " + all)
	r.Version, r.Plan, r.Interrupted = escapes+"1", script+marks, all+long
	r.Sent, r.Targets = 9, []string{all}
	o := evidence.Operation{
		Name: "name " + script + escapes, Method: "P" + breaks, URL: "http://x/" + all + long, Profile: marks,
		Source: `..\` + script + " a:b%zz\n?#" + marks, SourceLine: 7, Verdict: evidence.UnknownVerdict(),
	}
	o.Verdict.Atomicity, o.Verdict.ConfidenceFrom = script+escapes, []string{all}
	e := evidence.Experiment{
		Name: "race " + markdown, Step: escapes + "D", Title: all, Outcome: evidence.Broken, Why: all + long, Settling: all, Audit: []string{all, long},
		Race:    &evidence.Race{Width: 2, Protocol: all, Trials: 3},
		Second:  &evidence.Second{Class: evidence.SecondClass(all), Differences: []string{all}, Timing: all, FirstUS: 1 << 62, SecondUS: 1},
		Before:  []evidence.Reading{{Reader: all, Values: map[string]string{all: long}, Err: all}},
		After:   []evidence.Reading{{Reader: all, Values: map[string]string{all: all}, Err: all}},
		Changes: []evidence.Change{{Reader: all, Name: all, Before: all, After: long, Effects: -1 << 63, Expected: 1<<63 - 1}},
		Sends: []evidence.Send{
			{N: 1, Role: evidence.Role(all), Principal: all, Method: all, URL: all, Protocol: all, Delivery: all, Cut: all, Resource: all, Body: all, Err: all, StartUS: 1<<63 - 1, LastWriteUS: -1 << 63, FirstByteUS: 5, DoneUS: 1},
			{N: 1, Role: evidence.Role(long), Method: all, URL: all, Delivery: "answered", Status: -7, StartUS: 0, LastWriteUS: 1<<63 - 1, FirstByteUS: 3, DoneUS: 2},
			{N: -4, StartUS: -9, DoneUS: 1 << 40},
		},
	}
	o.Experiments = []evidence.Experiment{e, {Outcome: evidence.Outcome(all)}, {Outcome: evidence.Inconclusive, Why: all}}
	o.Findings = []evidence.Finding{
		{ID: evidence.FindingID("id " + all), Priority: evidence.P0, Basis: evidence.Basis(all), Title: all, Explanation: all + long, Remedy: all, Experiment: e.Name, Sends: []int{1, 1, 999, -4}, References: []string{"javascript:alert(1)", all}},
		{ID: "", Priority: evidence.Priority(all), Title: closing, Experiment: "nowhere"},
		find("key-not-scoped-tenant", ""),
	}
	o.Statements = []evidence.Statement{{Basis: evidence.Basis(all), Text: all}, {Basis: evidence.Inferred, Text: all, Field: "atomicity"}}
	o.Hypotheses = []evidence.Hypothesis{{Name: all, Text: all, For: all, Check: all}}
	r.Operations = []evidence.Operation{o, newOperation()}
	return r
}
