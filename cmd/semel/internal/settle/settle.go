// Package settle is what the command and the page for operators have in common:
// how records whose outcome is unknown are settled by people.
package settle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/httpfield"
	"github.com/semelhq/semel/semelhttp"
)

// Ways are how a record can be settled, as people name them.
var Ways = []string{"result", "no-effect", "execute-again"}

// Decision returns the decision that a way is, or 0.
func Decision(way string) semel.Decision {
	return map[string]semel.Decision{
		"result": semel.DecideResult, "no-effect": semel.DecideNoEffect, "execute-again": semel.DecideExecuteAgain,
	}[way]
}

// AtOnce is how many records are settled at the same time: a store that commits
// in groups has many in one.
const AtOnce = 64

// By is a decision and who takes it.
type By struct {
	Decision     semel.Decision
	Because, Who string
	// Answer makes what replays of a record are answered with; for DecideResult.
	Answer func(semel.Record) (semel.Result, error)
}

// Origin is who decides, as the trail has it.
func Origin(who string) semel.Origin { return semel.Origin{RequestID: "operator:" + who} }

// Cause is why, as the trail has it.
func Cause(because, who string) string { return fmt.Sprintf("%s (by %s)", because, who) }

// Decide is for semel.BulkResolution: it leaves records that a response cannot
// be given to.
func (b By) Decide(_ context.Context, r semel.Record) (semel.Resolution, error) {
	d := semel.Resolution{Decision: b.Decision, Cause: Cause(b.Because, b.Who)}
	if b.Decision != semel.DecideResult {
		return d, nil
	}
	var err error
	d.Result, err = b.Answer(r)
	if errors.Is(err, ErrNotHTTP) {
		return semel.Resolution{}, nil
	}
	return d, err
}

// PointInTime parses a time of RFC 3339, or a duration such as 90m for that long ago.
func PointInTime(s string) (time.Time, bool) {
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, true
	}
	d, err := time.ParseDuration(s)
	return time.Now().Add(-d), err == nil && d >= 0
}

// ErrNotHTTP: the record is not of an HTTP request, so an HTTP response cannot be its
// result. Nothing was changed.
var ErrNotHTTP = errors.New("it is not of an HTTP request, so an HTTP response cannot be its result")

// Answer makes a result that package semelhttp can replay.
func Answer(r semel.Record, status int, header http.Header, body []byte) (semel.Result, error) {
	// Of any version, and of any configuration.
	kind, _, _ := strings.Cut(semelhttp.SchemeHTTP, "/")
	if !strings.HasPrefix(r.Fingerprint.Scheme, kind+"/") {
		return semel.Result{}, ErrNotHTTP
	}
	if len(body) > 0 && header.Get("Content-Type") == "" {
		if json.Valid(body) {
			header.Set("Content-Type", "application/json")
		} else {
			header.Set("Content-Type", http.DetectContentType(body))
		}
	}
	method, _, _ := strings.Cut(r.Identity.Operation, " ")
	res, err := semelhttp.EncodeResult(method, status, header, nil, body)
	if err != nil {
		return semel.Result{}, fmt.Errorf("the response cannot be recorded: %w", err)
	}
	return res, nil
}

// CheckAnswer says what is wrong with a response for whatever record.
func CheckAnswer(status int, header http.Header, body []byte) error {
	_, err := Answer(semel.Record{Fingerprint: semel.Fingerprint{Scheme: semelhttp.SchemeHTTP}}, status, header.Clone(), body)
	return err
}

// Headers parses lines of the form "Name: value".
func Headers(lines []string) (http.Header, error) {
	h := http.Header{}
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok || !httpfield.IsToken(name) || strings.ContainsFunc(value, isControl) {
			return nil, fmt.Errorf("header is %q; write it as 'Name: value'", line)
		}
		h.Add(textproto.CanonicalMIMEHeaderKey(name), value)
	}
	return h, nil
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// Group is how many records have an operation and a cause. The names are stable.
type Group struct {
	Records   int    `json:"records"`
	Operation string `json:"operation"`
	Cause     string `json:"cause,omitempty"`
	Lapsed    bool   `json:"lapsed"`
}

// Groups counts records by operation and cause.
type Groups map[Group]int // whose Records is 0

const (
	maxGroups    = 10_000 // that are counted apart
	largestShown = 20
)

// Add counts a record.
func (g Groups) Add(r semel.Record) {
	key := Group{Operation: r.Identity.Operation, Cause: r.Cause, Lapsed: r.Lapsed()}
	if _, ok := g[key]; !ok && len(g) >= maxGroups {
		key = Group{}
	}
	g[key]++
}

// Largest returns the 20 groups with the most records, and how many records the
// others have.
func (g Groups) Largest() (list []Group, others int) {
	for key, n := range g {
		if key.Records = n; key.Operation == "" {
			others += n // an operation is never empty
			continue
		}
		list = append(list, key)
	}
	slices.SortFunc(list, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Records, a.Records), cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Cause, b.Cause))
	})
	for _, rest := range list[min(largestShown, len(list)):] {
		others += rest.Records
	}
	return list[:min(largestShown, len(list))], others
}
