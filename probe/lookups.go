package probe

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
	"github.com/semelhq/semel/probe/wire"
)

// specification is what the target's own description says.
type specification struct {
	from      string
	keys      bool
	retention bool
}

const maxSpecification = 8 << 20

var (
	aboutKeys      = regexp.MustCompile(`(?i)idempoten|repeatability-request|deduplicat`)
	aboutRetention = regexp.MustCompile(`(?i)\bretention\b|\bretain|\bexpir|\b(kept|stored|remembered|valid|forgotten)\b.{0,60}\b(hour|day|week|minute|second|month|year)s?\b|never (forgotten|expire)|idempotency-expires`)
)

// specification reads where the operation is described. Whether answers tell
// how long keys are kept is known when all experiments are over: the outcome is
// set then.
func (x *exp) specification(ctx context.Context) error {
	at := x.o.r.p.Target.Specification
	var doc []byte
	if strings.HasPrefix(at, "http://") || strings.HasPrefix(at, "https://") {
		req := wire.Request{Method: http.MethodGet, URL: at, Header: []wire.Field{{Name: "Accept", Value: "*/*"}}}
		if x.o.r.dry() {
			x.plan("read", req, "", 1, "")
			return nil
		}
		got, err := x.o.r.read.Send(as(ctx, ""), req)
		if err != nil {
			if errors.Is(err, wire.ErrNotAllowed) {
				x.unclear("the specification is not at an allowed address")
				return nil
			}
			return err
		}
		x.sent(got, "read", "")
		if got.Response == nil || got.Response.Status != http.StatusOK {
			x.unclear("the specification cannot be read: %s", answer(&sent{x: got}))
			return ctxErr(ctx)
		}
		doc = got.Response.Body
	} else {
		if x.o.r.dry() {
			return nil
		}
		f, err := os.Open(x.o.r.r.Path(at))
		if err == nil {
			doc, err = io.ReadAll(io.LimitReader(f, maxSpecification))
			_ = f.Close()
		}
		if err != nil {
			x.unclear("the specification cannot be read: %v", err)
			return nil
		}
	}
	s := &specification{from: at, keys: aboutKeys.Match(doc), retention: aboutRetention.Match(doc)}
	if k := x.o.op.Key; k != nil && k.Header != "" && bytes.Contains(bytes.ToLower(doc), []byte(strings.ToLower(k.Header))) {
		s.keys = true
	}
	x.o.facts.specified = s
	x.holds("the specification was read")
	return nil
}

// concludeSpecification sets the outcome of the experiment specification.
func (o *operation) concludeSpecification() {
	s := o.facts.specified
	if s == nil {
		return
	}
	for i := range o.ev.Experiments {
		if o.ev.Experiments[i].Name != string(plan.Specification) {
			continue
		}
		x := &exp{o: o, e: o.ev.Experiments[i]}
		var ns []*sent
		for _, e := range x.e.Sends {
			ns = append(ns, &sent{n: e.N})
		}
		e := &o.ev.Experiments[i]
		switch {
		case !s.keys:
			e.Outcome, e.Why = evidence.Broken, "the specification says nothing of keys"
			x.find("no-specification", "", evidence.Established, ns...)
		case o.op.Key == nil:
			e.Why = "the specification tells how duplicates are recognised"
		case !s.retention && !o.facts.expires:
			e.Outcome, e.Why = evidence.Broken, "neither the specification nor an answer says how long keys are kept"
			x.find("retention-not-published", "", evidence.Established, ns...)
		case !s.retention:
			e.Why = "the specification tells of keys, and answers say until when they are kept"
		default:
			e.Why = "the specification tells of keys and how long they are kept"
		}
	}
}

// maxAuditLines bounds the lines kept of each source.
const maxAuditLines = 50

// audit searches the plan's audit sources for traces of the attempts, which are
// of one request.
func (x *exp) audit(ctx context.Context, v *plan.Values, resource string, attempts ...*sent) error {
	if x.o.r.dry() {
		for i := range x.o.op.Audit {
			if x.o.op.Audit[i].HTTP != nil {
				x.o.r.plannedReads++
			}
		}
	}
	if x.o.r.dry() || len(x.o.op.Audit) == 0 {
		return nil
	}
	best, read := "", false
	for i := range x.o.op.Audit {
		a := &x.o.op.Audit[i]
		q, err := x.o.r.r.Search(v, a, resource)
		if err != nil {
			x.unclear("audit %s: %v", a.Name, err)
			continue
		}
		lines, err := x.auditLines(ctx, q)
		if over(ctx, err) {
			return err
		}
		if err != nil {
			x.unclear("audit %s cannot be read: %v", a.Name, err)
			continue
		}
		read = true
		best = max(best, x.strength(q, lines, len(attempts))) // weak is none: see rank
	}
	if !read {
		return nil
	}
	x.o.facts.audit = cmp.Or(map[string]string{rankStrong: "strong", rankPartial: "partial"}[best], "weak")
	if best == "" {
		x.find("audit-missing", "", evidence.Established, attempts...)
	}
	return nil
}

// Ranks of what an audit source had, in their order.
const (
	rankPartial = "1"
	rankStrong  = "2"
)

// strength says what the lines of one source tell of the request.
func (x *exp) strength(q *plan.Search, lines []string, attempts int) string {
	found := map[string]bool{}
	n := 0
	for _, line := range lines {
		linked := false
		for _, f := range q.Find {
			switch f.Name {
			case "key", "request_id", "event_id", "trace_id":
				linked = linked || f.Pattern.MatchString(line)
			}
		}
		if !linked {
			continue
		}
		if n++; n <= maxAuditLines {
			x.e.Audit = append(x.e.Audit, line)
		}
		for _, f := range q.Find {
			if f.Pattern.MatchString(line) {
				found[f.Name] = true
			}
		}
	}
	switch {
	case n == 0:
		return ""
	case n >= attempts && found["actor"] && found["outcome"] && (found["key"] || found["event_id"] || x.o.op.Key == nil):
		return rankStrong
	}
	return rankPartial
}

func (x *exp) auditLines(ctx context.Context, q *plan.Search) (lines []string, err error) {
	keep := func(line []byte) { lines = append(lines, string(line)) }
	switch {
	case q.Audit.HTTP != nil:
		got, err := x.o.r.read.Send(as(ctx, q.Audit.HTTP.As), q.Request)
		if err != nil {
			return nil, err
		}
		x.book(got, "read", q.Audit.HTTP.As)
		if got.Response == nil || got.Response.Status != http.StatusOK {
			return nil, fmt.Errorf("the answer is %s", answer(&sent{x: got}))
		}
		if doc, err := decodeJSON(got.Response.Body); err == nil {
			if list, ok := doc.([]any); ok {
				for _, e := range list {
					if s, ok := e.(string); ok {
						lines = append(lines, s)
					} else if b, err := json.Marshal(e); err == nil {
						lines = append(lines, string(b))
					}
				}
				return lines, nil
			}
		}
		return lines, eachLineOf(got.Response.Body, &lines)
	case q.File != "":
		f, err := os.Open(q.File)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		err = eachLine(f, keep)
		return lines, err
	}
	out, err := x.o.r.command(ctx, q.Argv, x.o.r.p.Timing.Timeout)
	if err != nil {
		return nil, err
	}
	return lines, eachLineOf(out, &lines)
}

func eachLineOf(b []byte, lines *[]string) error {
	return eachLine(bytes.NewReader(b), func(line []byte) { *lines = append(*lines, string(line)) })
}
