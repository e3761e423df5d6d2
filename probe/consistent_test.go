package probe_test

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/semelhq/semel/internal/quick"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/targets"
	"github.com/semelhq/semel/probe/plan"
	"github.com/semelhq/semel/probe/report"
)

// What a report says of a run is compared with what the run has seen: each
// sentence that holds a number, a status, a reader, or speaks of state or of keys,
// each cell of the witnesses, each hypothesis and each field of the verdict. It
// derives the expected words in another way than the code that writes them.

var (
	aboutState   = regexp.MustCompile(`\b([0-9]+|no) effects?\b|took effect|no other effect|had its effect`)
	hedged       = regexp.MustCompile(`no reader|none has seen|inferred|no effect was seen|no effect seen|no effect could|neither response|without an effect`)
	statusInWhy  = regexp.MustCompile(`(?:with|got|response,|was|then|and|is|again with|:) ([1-5][0-9][0-9])\b(?: with an error in its body)?(?:[,;: ).]|$)`)
	errorInBody  = regexp.MustCompile(`\b([1-5][0-9][0-9]) with an error in its body`)
	refusedWith  = regexp.MustCompile(`refused with [123][0-9][0-9]`)
	ofContract   = regexp.MustCompile(`; the contract.*$|which is not the contract's response.*$|, with 401, 403 or 407`)
	byReader     = regexp.MustCompile(`\b([0-9]+) effects? (?:outside )?by reader ([a-z]+)\b|\b([a-z]+): ([0-9]+) effects?\b`)
	raceHeld     = regexp.MustCompile(`^1 effect in (?:each of|the) ([0-9]+|one) trials? of ([0-9]+) requests at once in which they overlapped; that leaves open a rate of doubles of up to ([0-9.]+ %)$`)
	raceDoubled  = regexp.MustCompile(`more than one effect in ([0-9]+) of ([0-9]+) trials?`)
	raceTold     = regexp.MustCompile(`^Not seen to double in ([0-9]+) overlapping trials? of ([0-9]+) requests\. That leaves open a rate of up to ([0-9.]+ %)`)
	heldList     = regexp.MustCompile(`(Held|effects that were due): (.*?)\.(?: Not| Broken|$)`)
	listed       = regexp.MustCompile(`([a-z_]+)(?: \([^)]*\))?(?:, |$)`)
	missingList  = regexp.MustCompile(`([a-z_]+) (was not tried|does not apply|showed nothing of it \(([a-z ]+)\))`)
	supportedBy  = regexp.MustCompile(`([a-z0-9-]+) \((established|inferred), ([a-z_]+)\)`)
	spoilt       = regexp.MustCompile(`%!|<nil>|map\[|\beach of 1 |\b1 (effects|trials|overlapping trials|requests|responses|findings|lines|experiments)\b|\.\.[^.]|;;| ,| ;|,,|\(\)|: *\.|\ba unknown|\bno reader sees the state and had`)
	keyWords     = regexp.MustCompile(`(?i)\bthe (same |used )?key\b|\ba (fresh|used|malformed|good) key\b|\bkeys of\b|Idempotency-Key`)
	stateFinding = regexp.MustCompile(`readers saw|took effect|had no effect|no effect of`)
)

func number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

// inconsistent compares what a report of a run says with what was seen.
func inconsistent(run *evidence.Run) (wrong []string) {
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for i := range run.Operations {
		op := &run.Operations[i]
		for _, e := range op.Experiments {
			wrong = append(wrong, ofExperiment(op, &e)...)
		}
		wrong = append(wrong, ofFindings(op)...)
		wrong = append(wrong, ofWitnesses(op)...)
		wrong = append(wrong, ofStandings(op)...)
		wrong = append(wrong, ofVerdict(op)...)
		if (op.Profile == "none" || op.Assumed) && (op.Profile == "none") != (op.KeyIn == evidence.NoKey) {
			say("by the contract %s, with the key in %s", op.Profile, op.KeyIn)
		}
		if op.KeyIn == evidence.NoKey {
			list := said(*op)
			for _, s := range op.Standings() {
				list = append(list, s.Text, s.Because, s.Next)
			}
			for _, s := range list {
				if keyWords.MatchString(s) && !strings.Contains(s, "give the operation a key") && !strings.Contains(s, "no key") {
					say("there is no key: %s", s)
				}
			}
		}
	}
	var page, short bytes.Buffer
	if err := report.Terminal(&page, run, report.TerminalOptions{Width: 4000}); err != nil {
		say("%v", err)
	}
	if err := report.Markdown(&short, run); err != nil {
		say("%v", err)
	}
	for line := range strings.SplitSeq(page.String(), "\n") {
		if strings.HasPrefix(line, "  #") || strings.Contains(line, "µs") && !strings.Contains(line, "then") {
			continue // the picture
		}
		line = strings.TrimPrefix(strings.TrimSpace(line), "... ") // and so many more
		if at := spoilt.FindString(strings.TrimSpace(line)); at != "" {
			say("%q in: %s", at, strings.TrimSpace(line))
		}
	}
	first := strings.Split(page.String(), "\n")[3]
	wrong = append(wrong, ofHeadline(run, first)...)
	if !strings.Contains(strings.ReplaceAll(short.String(), `\`, ""), strings.TrimSuffix(first, ".")) {
		say("Markdown does not open with: %s", first)
	}
	return wrong
}

// sees reports whether a reader of the operation can tell effects.
func sees(op *evidence.Operation) bool {
	return slices.ContainsFunc(op.Readers, func(r evidence.Reader) bool { return r.Seen })
}

// counted are the effects that a reader of an experiment saw, change by change,
// and in all.
func counted(op *evidence.Operation, e *evidence.Experiment) map[string][]int64 {
	by := map[string][]int64{}
	for _, c := range e.Changes {
		if slices.ContainsFunc(op.Readers, func(r evidence.Reader) bool { return r.Name == c.Reader && !r.Seen }) {
			continue
		}
		by[c.Reader] = append(by[c.Reader], c.Effects)
	}
	return by
}

func ofExperiment(op *evidence.Operation, e *evidence.Experiment) (wrong []string) {
	say := func(format string, args ...any) {
		wrong = append(wrong, e.Name+" ("+string(e.Outcome)+"): "+fmt.Sprintf(format, args...)+": "+e.Why)
	}
	if e.Outcome == evidence.NotRun {
		return nil
	}
	by := counted(op, e)
	for _, c := range e.Changes {
		before, err := strconv.ParseInt(c.Before, 10, 64)
		after, err2 := strconv.ParseInt(c.After, 10, 64)
		if err == nil && err2 == nil && c.Name == "effects" && after-before != c.Effects && (after-before)%max(c.Effects, 1) != 0 {
			say("%d effects between %d and %d", c.Effects, before, after)
		}
		if _, ok := by[c.Reader]; ok && e.Outcome == evidence.Held && c.Expected >= 0 && c.Effects != c.Expected {
			say("%s saw %d, %d were due", c.Reader, c.Effects, c.Expected)
		}
	}
	// State is spoken of only where a reader looked that can tell.
	for part := range strings.SplitSeq(e.Why, "; ") {
		if aboutState.MatchString(part) && !hedged.MatchString(e.Why) && !sees(op) && e.Name != "preview_first" {
			say("no reader can tell")
		}
		if strings.HasPrefix(part, "1 effect") && e.Race == nil && !strings.Contains(e.Why, "two instances") {
			some := false
			for _, list := range by {
				some = some || slices.Contains(list, 1) || slices.Contains(list, 0) && e.Name == "reordered"
			}
			if !some {
				say("no reader counted 1: %v", by)
			}
		}
	}
	for _, m := range byReader.FindAllStringSubmatch(e.Why, -1) {
		name, n := m[2], m[1]
		if name == "" {
			name, n = m[3], m[4]
		}
		list, ok := by[name]
		if !ok || strings.Contains(e.Why, "not shown that a good key protects") { // that is of another request
			continue
		}
		total, most := int64(0), int64(0)
		for _, x := range list {
			total, most = total+x, max(most, x)
		}
		if number(n) > max(total, most) {
			say("%s counted %v", name, list)
		}
	}
	// A status that is named was answered.
	for _, m := range statusInWhy.FindAllStringSubmatch(ofContract.ReplaceAllString(e.Why, ""), -1) {
		if !slices.ContainsFunc(e.Sends, func(s evidence.Send) bool { return s.Status == int(number(m[1])) }) {
			say("no response has the status %s", m[1])
		}
	}
	for _, m := range errorInBody.FindAllStringSubmatch(e.Why, -1) {
		if !slices.ContainsFunc(e.Sends, func(s evidence.Send) bool { return s.SaysError && s.Status == int(number(m[1])) }) {
			say("no response of %s tells of an error", m[1])
		}
	}
	if m := refusedWith.FindString(e.Why); m != "" && !strings.Contains(e.Why, m+" with ") {
		say("%s is no refusal", m)
	}
	if strings.HasPrefix(e.Name, "lost_") && e.Outcome == evidence.Held && !strings.Contains(e.Why, "none was lost") &&
		!slices.ContainsFunc(e.Sends, func(s evidence.Send) bool { return s.Role == "first" && s.Cut != "" }) {
		say("no response was lost")
	}
	if m := raceHeld.FindStringSubmatch(e.Why); m != nil {
		if e.Race == nil || number(strings.Replace(m[1], "one", "1", 1)) != int64(e.Race.Overlapped) || number(m[2]) != int64(e.Race.Width) || m[3] != evidence.Percent(evidence.RateBound(0, e.Race.Overlapped)) {
			say("the race is %+v", e.Race)
		}
	} else if e.Race != nil && e.Outcome == evidence.Held {
		say("a race that held says something else")
	}
	if m := raceDoubled.FindStringSubmatch(e.Why); m != nil && e.Name == "race" && (e.Race == nil || number(m[1]) != int64(e.Race.Doubled) || number(m[2]) != int64(e.Race.Trials)) {
		say("the race is %+v", e.Race)
	}
	// What the second response is said to be like.
	if s := e.Second; s != nil {
		says, first, second := e.Compared()
		switch {
		case len(s.Of) != 2 || first.N != s.Of[0] || second.N != s.Of[1]:
			say("the sends that are compared are not there: %v", s.Of)
		case says == "the same result" && (first.Resource == "" || first.Resource != second.Resource) && !second.Replayed && first.Status != 202,
			says == "another result" && (first.Resource == "" || second.Resource == "" || first.Resource == second.Resource),
			says == "refused" && second.Status < 400 && !second.SaysError,
			says == "a server error" && second.Status < 500,
			strings.Contains(says, "no body") && (first.Bytes != 0 || second.Bytes != 0):
			say("%q of %+v and %+v", says, first, second)
		}
		if first.Role == "ground" || second.Role == "ground" {
			say("what it rests on is compared, and not what it asks")
		}
	}
	if slices.Contains([]string{"missing_key", "malformed_key"}, e.Name) && slices.ContainsFunc(e.Sends, func(s evidence.Send) bool { return s.Role == "duplicate" }) {
		say("what it rests on stands beside what it asks")
	}
	return wrong
}

func ofFindings(op *evidence.Operation) (wrong []string) {
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	at := map[int]string{}
	for _, e := range op.Experiments {
		for _, s := range e.Sends {
			at[s.N] = e.Name
		}
	}
	type found struct {
		id, experiment string
		basis          evidence.Basis
		priority       evidence.Priority
		sends          []int
	}
	var all []found
	for _, f := range op.Findings {
		all = append(all, found{string(f.ID), f.Experiment, f.Basis, f.Priority, f.Sends})
		for _, s := range f.Symptoms {
			e, _ := evidence.Lookup(s.ID)
			all = append(all, found{string(s.ID), s.Experiment, s.Basis, e.Priority, s.Sends})
		}
		entry, _ := evidence.Lookup(f.ID)
		words := f.Title + " " + f.Explanation
		if f.Basis == evidence.Established && stateFinding.MatchString(entry.Explanation) && !sees(op) && f.ID != "preview-executed" {
			say("%s is established, and no reader can tell: %s", f.ID, words)
		}
		if f.Basis == evidence.Inferred && strings.Contains(words, "readers saw more than") {
			say("%s is inferred, and says that readers saw it: %s", f.ID, words)
		}
	}
	for _, f := range all {
		if len(f.sends) > 0 && !slices.ContainsFunc(f.sends, func(n int) bool { return at[n] == f.experiment }) {
			say("%s of %s rests on no send of it: %v", f.id, f.experiment, f.sends)
		}
		for _, e := range op.Experiments {
			if e.Name == f.experiment && e.Outcome == evidence.Held && f.priority != evidence.P2 && f.id != "audit-missing" { // which is no part of its question
				say("%s is found in %s, which held", f.id, e.Name)
			}
		}
	}
	for _, e := range op.Experiments {
		if e.Outcome == evidence.Broken && !slices.ContainsFunc(all, func(f found) bool {
			return f.experiment == e.Name || slices.ContainsFunc(f.sends, func(n int) bool { return at[n] == e.Name })
		}) {
			say("%s is broken, and nothing was found in it: %s", e.Name, e.Why)
		}
	}
	for _, f := range op.Findings {
		for _, c := range f.Causes {
			know := recognised(op)
			switch {
			case c.State == evidence.Supported && (c.Name == "check-then-act" || c.Name == "forgotten" || c.Name == "tied-to-client") && !know && c.For != "An effect was lost, or a request stayed blocked.":
				say("the cause %s is supported, and no duplicate was recognised: %s", c.Name, c.For)
			case c.State != evidence.Refuted && c.Name == "no-key-read" && know:
				say("the cause %s is %s, and a duplicate was recognised", c.Name, c.State)
			}
		}
	}
	return wrong
}

// recognised reports whether some duplicate had no effect of its own, by a reader.
func recognised(op *evidence.Operation) bool {
	return slices.ContainsFunc(op.Experiments, func(e evidence.Experiment) bool {
		of := slices.Contains([]string{"duplicate", "late_retry", "redelivery", "reordered", "missing_key", "malformed_key", "other_instance", "retention_search"}, e.Name)
		if !of || !sees(op) {
			return false
		}
		if e.Outcome == evidence.Held || strings.Contains(e.Why, "had no effect of its own") {
			return true
		}
		return e.Outcome == evidence.Broken && e.Second != nil && !slices.ContainsFunc(e.Changes, func(c evidence.Change) bool { return c.Effects != c.Expected })
	})
}

func ofWitnesses(op *evidence.Operation) (wrong []string) {
	for _, w := range op.Witnesses() {
		say := func(format string, args ...any) {
			wrong = append(wrong, "witnesses of "+w.Experiment+": "+fmt.Sprintf(format, args...))
		}
		var e evidence.Experiment
		for _, x := range op.Experiments {
			if x.Name == w.Experiment {
				e = x
			}
		}
		by := counted(op, &e)
		told := map[string]bool{}
		for _, f := range slices.Concat(w.State, w.Outside) {
			told[f.Reader] = true
			total := int64(0)
			for _, n := range by[f.Reader] {
				total += n
			}
			if _, ok := by[f.Reader]; !ok || f.Effects != total {
				say("%+v; the reader counted %v", f, by[f.Reader])
			}
			if f.Wrong() && e.Outcome == evidence.Held {
				say("%s held, beside %+v", e.Name, f)
			}
		}
		for _, r := range op.Readers {
			if _, ok := by[r.Name]; ok && r.Seen && !told[r.Name] {
				say("nothing of %s, which counted %v", r.Name, by[r.Name])
			}
			// A reader that could be read before and after is a witness.
			read := 0
			for _, x := range slices.Concat(e.Before, e.After) {
				if x.Reader == r.Name && x.Err == "" {
					read++
				}
			}
			if r.Seen && read > 1 && len(e.After) > 0 && !told[r.Name] && !slices.ContainsFunc(e.After, func(x evidence.Reading) bool { return x.Reader == r.Name && x.Err != "" }) && !slices.ContainsFunc(e.Before, func(x evidence.Reading) bool { return x.Reader == r.Name && x.Err != "" }) {
				say("%s was read, and nothing is told of it", r.Name)
			}
		}
		if w.Second != nil && w.Second.Timing != "" && len(told) > 0 {
			say("a hint of time, %s, beside %v", w.Second.Timing, by)
		}
		for _, a := range []*evidence.Answer{w.First, w.Second} {
			if a != nil && !slices.ContainsFunc(e.Sends, func(s evidence.Send) bool { return s.Status == a.Status && s.Role != "read" && s.Role != "ground" }) {
				say("no response is %d", a.Status)
			}
		}
		// The first of two is the one that succeeded, if one did.
		if w.First != nil && w.Second != nil && e.Name == "in_flight" && w.First.Status >= 400 && slices.ContainsFunc(e.Sends, func(s evidence.Send) bool { return s.Role == "first" && s.Status/100 == 2 }) {
			say("the first response, which succeeded, is not the first: %d, then %d", w.First.Status, w.Second.Status)
		}
	}
	return wrong
}

func ofStandings(op *evidence.Operation) (wrong []string) {
	ids := op.All()
	outcomes := map[string]evidence.Outcome{}
	for _, e := range op.Experiments {
		outcomes[e.Name] = e.Outcome
	}
	failures := []string{"lost_unread", "lost_begun", "failed_first", "corrected"}
	classes := map[string]func(id, experiment string) bool{
		"A": func(id, experiment string) bool {
			return !slices.Contains(failures, experiment) && experiment != "race"
		},
		"B": func(id, experiment string) bool {
			return strings.Contains(id, "race") || strings.HasPrefix(id, "in-flight") || strings.HasPrefix(experiment, "race") || experiment == "in_flight"
		},
		"C": func(id, experiment string) bool {
			return slices.Contains(failures, experiment) || strings.HasPrefix(id, "failure-") || id == "double-effect-lost-response" || id == "lost-effect" || id == "double-effect-sequential"
		},
		"D": func(id, experiment string) bool {
			return !slices.Contains(failures, experiment) && experiment != "race"
		},
	}
	for _, s := range op.Standings() {
		say := func(format string, args ...any) {
			wrong = append(wrong, "hypothesis "+s.Name+" is "+string(s.State)+": "+fmt.Sprintf(format, args...)+": "+s.Because)
		}
		// What would decide it better has not been done yet.
		if list, ok := strings.CutPrefix(s.Next, "--only "); ok && s.State == evidence.RuledOut && s.Name != "B" {
			list, _, _ = strings.Cut(list, " ")
			if !slices.ContainsFunc(strings.Split(list, ","), func(name string) bool {
				return !slices.Contains([]evidence.Outcome{evidence.Held, evidence.Broken, evidence.NotApplicable}, outcomes[name])
			}) {
				say("it has been tried: %s", s.Next)
			}
		}
		switch s.State {
		case evidence.Supported:
			for _, m := range supportedBy.FindAllStringSubmatch(s.Because, -1) {
				if !slices.Contains(ids, evidence.FindingID(m[1])) || !classes[s.Name](m[1], m[3]) {
					say("by %s of %s", m[1], m[3])
				}
			}
			if !supportedBy.MatchString(s.Because) {
				say("by nothing")
			}
			if s.Name == "A" && recognised(op) && !slices.ContainsFunc(ids, func(id evidence.FindingID) bool {
				return id == "outside-effect-doubled" || id == "effects-disagree" || id == "rate-limit-is-not-idempotency" || id == "key-ignored"
			}) && outcomes["duplicate"] == evidence.Held {
				say("a duplicate was recognised")
			}
		case evidence.RuledOut:
			if !sees(op) {
				say("no reader can tell")
			}
		}
		lists := heldList.FindAllStringSubmatch(s.Because, -1)
		for _, m := range lists {
			for _, x := range listed.FindAllStringSubmatch(m[2], -1) {
				if want := map[bool]evidence.Outcome{true: evidence.Held, false: evidence.Broken}[m[1] == "Held"]; outcomes[x[1]] != want {
					say("%s is %s", x[1], outcomes[x[1]])
				}
			}
		}
		if len(lists) == 0 && s.State == evidence.RuledOut {
			say("by nothing")
		}
		for _, m := range missingList.FindAllStringSubmatch(s.Because, -1) {
			o, tried := outcomes[m[1]]
			switch {
			case m[2] == "was not tried" && tried && o != evidence.NotRun,
				m[2] == "does not apply" && o != evidence.NotApplicable,
				m[3] != "" && strings.ReplaceAll(string(o), "_", " ") != m[3]:
				say("%s is %s", m[1], o)
			}
		}
	}
	return wrong
}

func ofVerdict(op *evidence.Operation) (wrong []string) {
	never := func(when bool, what string) {
		if when {
			wrong = append(wrong, what+": "+op.Verdict.Key())
		}
	}
	outcomes := map[string]evidence.Experiment{}
	classes := map[evidence.SecondClass]bool{}
	var effects, audit bool
	for _, e := range op.Experiments {
		outcomes[e.Name] = e
		if e.Second != nil {
			classes[e.Second.Class] = true
		}
		if slices.ContainsFunc(e.Sends, func(s evidence.Send) bool { return s.Role == "ground" }) {
			classes[evidence.SameResult], classes[evidence.RefusedWithReference] = true, true // of it no comparison is kept
		}
		audit = audit || len(e.Audit) > 0
		for _, c := range e.Changes {
			effects = effects || c.Effects > 0
		}
	}
	// What a field says that is not known, and what its confidence rests on, is
	// so of this run.
	second := func(name string) evidence.SecondClass {
		if s := outcomes[name].Second; s != nil && outcomes[name].Outcome == evidence.Held {
			return s.Class
		}
		return ""
	}
	for _, f := range op.Verdict.Fields() {
		only := func(what string) bool { return f.Value == "unknown" && f.Says == what }
		switch f.Name {
		case "result_replay":
			never(only("It was not shown.") && second("duplicate") == evidence.Refused, "a duplicate was refused, and "+f.Says)
		case "in_progress_handling":
			never(only("It was not tried, or the first was not seen running when the second came.") && outcomes["in_flight"].Outcome == evidence.Held, "it was seen, and "+f.Says)
		case "key_scope_binding":
			never(only("It was not shown.") && op.KeyIn == evidence.NoKey, "there is no key, and "+f.Says)
		}
	}
	for _, term := range op.Verdict.ConfidenceFrom {
		never(strings.HasPrefix(term, "other_actor: ") && op.KeyIn == evidence.NoKey, "no key to be another actor's, and "+term)
	}
	tried := func(names ...string) bool {
		return slices.ContainsFunc(names, func(n string) bool { o := outcomes[n].Outcome; return o == evidence.Held || o == evidence.Broken })
	}
	state := slices.ContainsFunc(op.Readers, func(r evidence.Reader) bool { return r.Seen && !r.Outside })
	outside := slices.ContainsFunc(op.Readers, func(r evidence.Reader) bool { return r.Seen && r.Outside })
	race := outcomes["race"].Race
	v := op.Verdict
	never(v.Confidence > 0 && !state, "confidence without a reader of the state")
	never(v.IdempotencySupport != "unknown" && !effects, "support without an effect")
	never(v.ResultReplay == "same_response" && !classes[evidence.SameResult], "same_response without one")
	never(v.ResultReplay == "conflict_with_reference" && !classes[evidence.RefusedWithReference], "conflict_with_reference without one")
	never(v.InProgressHandling != "unknown" && !tried("in_flight", "race"), "in_progress_handling, and it was not tried")
	never(v.RaceBehavior == "safe_converge" && (race == nil || race.Doubled > 0 || race.Overlapped == 0), "safe_converge")
	never(v.RaceBehavior == "double_apply" && (race == nil || race.Doubled == 0), "double_apply")
	never(v.OutboxPattern == "yes" && !outside, "outbox without a reader outside")
	never(v.AuditStrength == "strong" && !audit, "strong audit without a line")
	never(v.KeyScopeBinding == "tenant+actor+operation" && (outcomes["other_tenant"].Outcome != evidence.Held || outcomes["other_actor"].Outcome != evidence.Held), "scope that was not shown")
	never(v.KeyScopeBinding != "unknown" && !tried("other_tenant", "other_actor"), "scope that was not tried")
	for _, s := range op.Statements {
		if m := raceTold.FindStringSubmatch(s.Text); m != nil {
			never(race == nil || number(m[1]) != int64(race.Overlapped) || number(m[2]) != int64(race.Width) || m[3] != evidence.Percent(race.Bound), s.Text)
		}
		never(s.Basis == evidence.Established && strings.Contains(s.Text, "was seen") && !sees(op), s.Text)
	}
	for _, u := range op.Untried {
		for what, roles := range map[string]map[string][]evidence.Role{
			"requests at the same time": {"race": {"race"}, "in_flight": {"first"}}, "another instance": {"other_instance": {"other-instance"}},
			"another operation": {"other_operation": {"other-operation"}}, "another request": {"altered": {"altered"}},
			"another tenant": {"other_tenant": {"other-tenant"}}, "another actor": {"other_actor": {"other-actor"}},
			"requests without a key": {"missing_key": {"without-key"}}, "malformed keys": {"malformed_key": {"malformed-key"}},
			"an older request": {"reordered": nil}, "a duplicate after": {"late_retry": nil}, "lost responses": {"lost_unread": nil, "lost_begun": nil},
		} {
			if !strings.HasPrefix(u.What, what) {
				continue
			}
			for name, of := range roles {
				e := outcomes[name]
				sent := slices.ContainsFunc(e.Sends, func(s evidence.Send) bool {
					return slices.Contains(of, s.Role) || what == "lost responses" && s.Cut != ""
				})
				never(sent, "said not to be tried: "+u.What)
				never(of == nil && what != "lost responses" && tried(name) && e.Second != nil, "said not to be tried: "+u.What)
				began := e.Outcome != "" && e.Outcome != evidence.NotRun && e.Outcome != evidence.NotApplicable
				never(began && strings.Contains(u.How, "--full"), "it was begun: "+u.What+": "+u.How)
			}
		}
	}
	return wrong
}

func ofHeadline(run *evidence.Run, line string) (wrong []string) {
	never := func(when bool, what string) {
		if when {
			wrong = append(wrong, what+": "+line)
		}
	}
	op := &run.Operations[0]
	states := map[string]evidence.CauseState{}
	for _, s := range op.Standings() {
		states[s.Name] = s.State
	}
	worst := run.Worst()
	repeats := slices.ContainsFunc(op.Findings, func(f evidence.Finding) bool {
		return f.Priority == evidence.P0 && regexp.MustCompile(`double|executed|disagree|forgotten`).MatchString(string(f.ID))
	})
	never(strings.Contains(line, "not safe to repeat:") && !repeats, "no repeat took effect again")
	never(strings.Contains(line, " is not safe") && worst != evidence.P0, "nothing is P0")
	never(strings.Contains(line, "took effect once") && (worst == evidence.P0 || worst == evidence.P1), "there are findings")
	for name, words := range map[string]string{"A": "when it was repeated", "B": "several times at once", "C": "after lost responses", "D": "kept apart"} {
		never(strings.Contains(line, words) && states[name] != evidence.RuledOut, "hypothesis "+name+" is "+string(states[name]))
	}
	never(strings.Contains(line, "after lost responses and failures") && !op.Failed(), "no attempt failed")
	never(strings.Contains(line, "not known") && sees(op), "an effect was seen")
	never(op.KeyIn == evidence.NoKey && strings.Contains(line, "its keys"), "there is no key")
	return wrong
}

// No sentence, cell or hypothesis of a report contradicts what was seen, however
// much of it was: with the plan as it is, by a default run, without a contract,
// without readers, and with one that sees nothing.
func TestReportsAreConsistent(t *testing.T) {
	changes := map[string]func(*plan.Plan){
		"default":     func(p *plan.Plan) { p.Experiments, p.Operations[0].Experiments = nil, nil },
		"no contract": func(p *plan.Plan) { p.Contract = nil },
		"no readers":  func(p *plan.Plan) { p.Operations[0].Readers = nil },
		"two of many": func(p *plan.Plan) { p.Race.Width, p.Race.Trials = 2, 3 },
		"outside alone": func(p *plan.Plan) {
			for i := range p.Operations[0].Readers {
				p.Operations[0].Readers[i].Outside = new(true)
			}
		},
		"one reader beside it": func(p *plan.Plan) {
			if r := p.Operations[0].Readers; len(r) > 0 {
				other := r[0]
				other.Name, other.Outside = "besides", new(true)
				p.Operations[0].Readers = append(r[:len(r):len(r)], other)
			}
		},
		"little budget": func(p *plan.Plan) { p.Budget.MaxSends = 17 },
		"blind": func(p *plan.Plan) {
			if r := p.Operations[0].Readers; len(r) > 0 && r[0].HTTP != nil {
				h := *r[0].HTTP
				h.URL = strings.Replace(h.URL, "ref=", "ref=none-", 1)
				p.Operations[0].Readers = append([]plan.Reader{{Name: r[0].Name, HTTP: &h}}, r[1:]...)
			}
		},
	}
	for j, name := range slices.Sorted(maps.Keys(changes)) {
		change := changes[name]
		for i, target := range append(targets.All(), targets.Reach()...) {
			// make probe-truth has them all; they take minutes under the race detector.
			if *only != "" && target.Name != *only || *only == "" && *seeds == 1 && ((i+j)%4 != 0 || quick.Skips((i+j)/4, 4)) {
				continue
			}
			t.Run(target.Name+", "+name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					n := targets.NewNetwork()
					run := judged(t, target, 2, n.Listen, n.Dial, change)
					for _, why := range inconsistent(run) {
						t.Error(why)
					}
				})
			})
		}
	}
}
