package lab

import (
	"cmp"
	"embed"
	"net/http"
	"slices"
	"strings"
)

//go:embed homemade.go guarded.go operations.go jobs.go
var sources embed.FS

// Place is where code is wrong on purpose.
type Place struct {
	File string
	Line int // of the comment
	Code string
}

// defects are the places by switch, found by their comments.
var defects = func() map[string][]Place {
	found := map[string][]Place{}
	for _, file := range []string{"homemade.go", "guarded.go", "operations.go", "jobs.go"} {
		text, err := sources.ReadFile(file)
		if err != nil {
			panic(err) // it is part of the program
		}
		lines := strings.Split(string(text), "\n")
		for i, line := range lines {
			_, marked, ok := strings.Cut(line, "// DEFECT(")
			name, _, closed := strings.Cut(marked, ")")
			if ok && closed {
				found[name] = append(found[name], Place{file, i + 1, excerpt(lines[max(i-4, 0):min(i+6, len(lines))])})
			}
		}
	}
	return found
}()

// excerpt joins lines without the indentation that they share.
func excerpt(lines []string) string {
	indent := -1
	for _, line := range lines {
		if rest := strings.TrimLeft(line, "\t "); rest != "" {
			if n := len(line) - len(rest); indent < 0 || n < indent {
				indent = n
			}
		}
	}
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i] = strings.ReplaceAll(line[min(max(indent, 0), len(line)):], "\t", "    ")
	}
	return strings.Trim(strings.Join(out, "\n"), "\n")
}

// Incident is something that should not have happened to a reference.
type Incident struct {
	What   string
	Times  int // of which What tells, if it does
	Causes []Cause
}

// Cause is a switch that, if it were on, would have prevented an incident.
type Cause struct {
	Toggle
	Places []Place
}

// explain says what went wrong with one reference of one caller, and what would
// have prevented it. attempts are the latest first.
func explain(o *Operation, s Switches, attempts []Attempt, effects, mails int) []Incident {
	var list []Incident
	keys, crossed, failed, died := map[string]int{}, false, false, false
	for i, a := range attempts {
		died = died || a.Died
		if a.Effect == "" {
			continue
		}
		keys[cmp.Or(a.Key, a.Job)]++
		failed = failed || a.Status >= 500
		for _, b := range attempts[i+1:] {
			if b.Effect != "" && b.Key == a.Key && a.Begun.Before(b.Begun.Add(b.Took)) {
				crossed = true
			}
		}
	}
	if effects > 1 {
		names := []string{"unique"}
		switch {
		case s.Key == KeyIgnored || keys[""] > 1 || len(keys) == effects:
			// No key tied them together.
		case !s.InProgress && (crossed || died):
			names = append(names, "in_progress")
		case crossed || died || s.ClockSkew:
			names = append(names, "lease")
		case failed:
			names = append(names, "failures")
		}
		if slices.ContainsFunc(attempts, func(a Attempt) bool { return a.Path == "worker" && a.Effect != "" && a.Status >= 500 }) {
			names = append(names, "queue")
		}
		list = append(list, Incident{"It was done more than once:", effects, because(o, s, names...)})
	}
	if mails > max(effects, 1) || mails > 0 && effects == 0 {
		list = append(list, Incident{"A mail reports something that did not happen.", 0, because(o, s, "outbox")})
	} else if mails > 1 {
		list = append(list, Incident{"More than one mail was sent:", mails, because(o, s, "unique", "outbox")})
	}
	for _, a := range attempts {
		if a.Status == 409 && a.Effect == "" && effects > 0 && !a.Replayed && slices.ContainsFunc(attempts, func(b Attempt) bool { return b.Lost && b.Key == a.Key }) {
			if causes := because(o, s, "replay"); len(causes) > 0 {
				list = append(list, Incident{"The client lost the response, and cannot get it again.", 0, causes})
				break
			}
		}
	}
	return list
}

// because lists those of the named switches that are off.
func because(o *Operation, s Switches, names ...string) (causes []Cause) {
	if s.Key == KeyIgnored && slices.Contains(names, "unique") {
		causes = append(causes, Cause{Toggle: Toggle{
			Name: "key", Defence: "An Idempotency-Key connects a retry with the request that it repeats.",
			Without: "Nothing distinguishes a retry from a new request that asks for the same thing.",
		}})
	}
	for _, t := range Toggles {
		if !t.Fault && !t.On(s) && slices.Contains(names, t.Name) {
			places := defects[t.Name]
			if t.Name == "unique" && o.transition {
				places = defects["transition"]
			}
			causes = append(causes, Cause{t, places})
		}
	}
	return causes
}

// What a crash leaves behind.
const (
	leftDraft = "Half of it was done, and nobody finishes it."
	lostJob   = "It was accepted and never done."
	stuckKey  = "The key is held by a request that has died."
)

// leftBehind says what is left of a reference's attempts that were not brought to their
// end. attempts are the latest first.
func leftBehind(o *Operation, s Switches, attempts []Attempt, effects, drafts int) (list []Incident) {
	if drafts > 0 {
		list = append(list, Incident{leftDraft, drafts, because(o, s, "transaction")})
	}
	died := slices.ContainsFunc(attempts, func(a Attempt) bool { return a.Died })
	if !died || len(attempts) == 0 {
		return list
	}
	if effects == 0 && !s.Queue && slices.ContainsFunc(attempts, func(a Attempt) bool { return a.Path == "job" && a.Status == http.StatusAccepted }) {
		list = append(list, Incident{lostJob, 0, because(o, s, "queue")})
	}
	if last := attempts[0]; !s.semels() && last.Decision == decidedInProgress {
		list = append(list, Incident{stuckKey, 0, because(o, s, "lease", "failures", "replay")})
	}
	return list
}
