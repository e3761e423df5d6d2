package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
)

// maxAuditLines bounds the lines kept of each source.
const maxAuditLines = 50

// trail holds what the audit sources of a plan contain about a request.
type trail struct {
	read     bool // one of them could be read
	rank     rank // of the best
	attempts []*sent
	why      []string // others could not be
}

// rank orders audit sources by how much they contain about a request.
type rank uint8

const (
	rankWeak rank = iota
	rankPartial
	rankStrong
)

// audit searches the plan's audit sources for traces of the attempts, which are
// of one request.
func (x *exp) audit(ctx context.Context, v *plan.Values, resource string, attempts ...*sent) (*trail, error) {
	if x.o.r.dry() {
		for i := range x.o.op.Audit {
			if x.o.op.Audit[i].HTTP != nil {
				x.o.r.plannedReads++
			}
		}
	}
	if x.o.r.dry() || len(x.o.op.Audit) == 0 {
		return nil, nil
	}
	t := &trail{attempts: attempts}
	for i := range x.o.op.Audit {
		a := &x.o.op.Audit[i]
		q, err := x.o.r.r.Search(v, a, resource)
		if err != nil {
			t.why = append(t.why, fmt.Sprintf("audit %s: %v", a.Name, err))
			continue
		}
		lines, err := x.auditLines(ctx, q)
		if over(ctx, err) {
			return t, err
		}
		if err != nil {
			t.why = append(t.why, fmt.Sprintf("audit %s cannot be read: %v", a.Name, err))
			continue
		}
		t.read = true
		t.rank = max(t.rank, x.strength(q, lines, len(attempts)))
	}
	return t, nil
}

func (t *trail) judge(j *judgement) {
	if t == nil {
		return
	}
	for _, why := range t.why {
		j.unclear("%s", why)
	}
	if !t.read {
		return
	}
	j.o.facts.audit = [...]string{rankWeak: "weak", rankPartial: "partial", rankStrong: "strong"}[t.rank]
	if t.rank == rankWeak {
		j.find(evidence.FindingAuditMissing, "", evidence.Established, t.attempts...)
	}
}

// strength says what the lines of one source tell of the request.
func (x *exp) strength(q *plan.Search, lines []string, attempts int) rank {
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
		return rankWeak
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
		x.book(got, evidence.RoleRead, q.Audit.HTTP.As)
		if got.Response == nil || got.Response.Status != http.StatusOK {
			return nil, fmt.Errorf("the response is %s", response(&sent{x: got}))
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
