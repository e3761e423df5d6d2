package probe

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

// specification is what the target's own description says.
type specification struct {
	send *sent // nil for a file
	why  string
	said
}

// said is what a description says about an operation.
type said struct {
	keys, retention bool
	// general: it speaks of keys, and whether of this operation is not clear.
	general bool
	// absent: it describes operations, and not this one.
	absent bool
	// preview is what looks like a dry run of the operation; empty for nothing.
	preview string
}

const maxSpecification = 8 << 20

var (
	aboutKeys      = regexp.MustCompile(`(?i)idempoten|repeatability-request|deduplicat`)
	aboutRetention = regexp.MustCompile(`(?i)\bretention\b|\bretain|\bexpir|\b(kept|stored|remembered|valid|forgotten)\b.{0,60}\b(hour|day|week|minute|second|month|year)s?\b|never (forgotten|expire)|idempotency-expires`)
)

// specification reads where the operation is described. Whether responses tell
// how long keys are kept is known when all experiments are over: the outcome is
// set then.
func (x *exp) specification(ctx context.Context) (shown, error) {
	at := x.o.r.p.Target.Specification
	s := &specification{}
	var doc []byte
	if strings.HasPrefix(at, "http://") || strings.HasPrefix(at, "https://") {
		req := wire.Request{Method: http.MethodGet, URL: at, Header: []wire.Field{{Name: "Accept", Value: "*/*"}}}
		if x.o.r.dry() {
			x.plan(evidence.RoleRead, req, "", 1, "")
			return s, nil
		}
		got, err := x.o.r.read.Send(as(ctx, ""), req)
		if err != nil {
			if errors.Is(err, wire.ErrNotAllowed) {
				return unable("the specification is not at an allowed address"), nil
			}
			return nil, err
		}
		s.send = x.sent(got, evidence.RoleRead, "")
		if got.Response == nil || got.Response.Status != http.StatusOK {
			s.why = "the specification cannot be read: " + response(s.send)
			return s, ctxErr(ctx)
		}
		doc = got.Response.Body
	} else {
		if x.o.r.dry() {
			return s, nil
		}
		f, err := os.Open(x.o.r.r.Path(at))
		if err == nil {
			doc, err = io.ReadAll(io.LimitReader(f, maxSpecification))
			_ = f.Close()
		}
		if err != nil {
			s.why = "the specification cannot be read: " + err.Error()
			return s, nil
		}
	}
	s.said = read(doc, x.o.op, x.o.ev.URL)
	return s, nil
}

func (s *specification) judge(j *judgement) {
	if s.why != "" {
		j.unclear("%s", s.why)
		return
	}
	j.o.facts.specified = s
	j.holds("the specification was read")
}

// read finds what a description says of an operation. Of an OpenAPI document
// only what stands at the operation counts, and what that refers to.
func read(doc []byte, op *plan.Operation, at string) said {
	tell := func(text string) (s said) {
		s.keys, s.retention = aboutKeys.MatchString(text), aboutRetention.MatchString(text)
		if k := op.Key; k != nil && k.Header != "" && strings.Contains(strings.ToLower(text), strings.ToLower(k.Header)) {
			s.keys = true
		}
		return s
	}
	var root map[string]any
	if yaml.Unmarshal(doc, &root) == nil && (root["openapi"] != nil || root["swagger"] != nil) {
		own := describes(root, op.Request.Method, at)
		if own == nil {
			s := tell(string(doc))
			return said{absent: true, general: s.keys}
		}
		s := tell(textOf(root, own, map[string]bool{}))
		s.preview = previewOf(root, own, at)
		if !s.keys {
			// What the document says at its head may be meant for all.
			info, _ := root["info"].(map[string]any)
			s.general = tell(textOf(root, info, map[string]bool{})).keys
		}
		return s
	}
	// A page: a part of it that names the operation speaks of it.
	whole := tell(string(doc))
	for part := range strings.SplitSeq(string(doc), "\n\n") {
		if whole.keys && tell(part).keys && mentions(part, op, at) {
			return whole
		}
	}
	return said{general: whole.keys, retention: whole.retention}
}

// previewOf finds what a description calls a dry run of an operation: one of its
// parameters, or a path below its own. It is only reported: nothing is sent that
// the plan does not name.
func previewOf(root map[string]any, own any, at string) string {
	var params []any
	for _, place := range []plan.Pointer{"/0/parameters", "/1"} { // as describes has them
		list, _ := lookup(own, place)
		more, _ := list.([]any)
		params = append(params, more...)
	}
	for _, p := range params {
		if ref, ok := lookup(p, "/$ref"); ok {
			if s := scalar(ref); strings.HasPrefix(s, "#/") {
				p, _ = lookup(root, plan.Pointer(s[1:]))
			}
		}
		if v, ok := lookup(p, "/name"); ok && plan.NamesPreview(scalar(v)) {
			in, _ := lookup(p, "/in")
			return "the parameter " + scalar(v) + " (" + scalar(in) + ")"
		}
	}
	u, err := url.Parse(at)
	if err != nil || len(u.Path) < 2 {
		return ""
	}
	paths, _ := root["paths"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(paths)) {
		if base, ok := plan.PreviewOf(name); ok && strings.HasSuffix(strings.TrimSuffix(u.Path, "/"), base) {
			return "the path " + name
		}
	}
	return ""
}

// mentions reports whether a text names an operation: by its path or its name.
func mentions(text string, op *plan.Operation, at string) bool {
	u, err := url.Parse(at)
	return err == nil && len(u.Path) > 1 && strings.Contains(text, strings.TrimSuffix(u.Path, "/")) || strings.Contains(text, op.Name)
}

// describes finds an operation in an OpenAPI document; nil if it is not there.
// The path that is longest and has the fewest parameters wins.
func describes(root map[string]any, method, at string) any {
	u, err := url.Parse(at)
	if err != nil {
		return nil
	}
	paths, _ := root["paths"].(map[string]any)
	asked := strings.Split(strings.Trim(u.Path, "/"), "/")
	var best any
	score := -1
	for path, item := range paths {
		members, _ := item.(map[string]any)
		own, ok := members[strings.ToLower(method)]
		if !ok {
			continue
		}
		parts := strings.Split(strings.Trim(path, "/"), "/")
		// The address may have a prefix, of the document's servers.
		if len(parts) > len(asked) {
			continue
		}
		n := 2 * len(parts)
		for i, part := range parts {
			if strings.Contains(part, "{") {
				n--
			} else if part != asked[len(asked)-len(parts)+i] {
				n = -1
				break
			}
		}
		if n > score {
			score = n
			best = []any{own, members["parameters"], members["description"], members["summary"]}
		}
	}
	return best
}

// textOf is all text of a part of a document, with what it refers to in it, each
// once.
func textOf(root map[string]any, v any, seen map[string]bool) string {
	var b strings.Builder
	switch v := v.(type) {
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok && strings.HasPrefix(ref, "#/") && !seen[ref] {
			seen[ref] = true
			if to, ok := lookup(root, plan.Pointer(ref[1:])); ok {
				return textOf(root, to, seen)
			}
		}
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			b.WriteString(name + "\n" + textOf(root, v[name], seen) + "\n")
		}
	case []any:
		for _, e := range v {
			b.WriteString(textOf(root, e, seen) + "\n")
		}
	case string:
		b.WriteString(v)
	}
	return b.String()
}

// concludeSpecification sets the outcome of the experiment specification.
func (o *operation) concludeSpecification() {
	s := o.facts.specified
	if s == nil {
		return
	}
	for i := range o.ev.Experiments {
		e := &o.ev.Experiments[i]
		if e.Name != string(plan.Specification) {
			continue
		}
		j := &judgement{o: o, e: e}
		switch {
		case s.general && s.absent:
			j.unclear("the document speaks of keys, and does not describe this operation: a person has to decide whether it means this operation too")
		case s.general:
			j.unclear("the document speaks of keys, and not where it describes this operation: a person has to decide whether it means this operation too")
		case s.absent:
			j.broken("the document does not describe this operation, and has none of the words that were searched for: idempotency, deduplication, or a key's name")
			j.find(evidence.FindingNoSpecification, "", evidence.Established, s.send)
		case !s.keys:
			j.broken("where it describes this operation, the specification has none of the words that were searched for: idempotency, deduplication, or a key's name")
			j.find(evidence.FindingNoSpecification, "", evidence.Established, s.send)
		case o.op.Key == nil:
			j.holds("where it describes this operation, the specification speaks of idempotency, deduplication or keys; what it says was not compared with what was seen")
		case !s.retention && !o.facts.expires:
			j.broken("neither the specification, in the words that were searched for, nor a response says how long keys are kept")
			j.find(evidence.FindingRetentionNotPublished, "", evidence.Established, s.send)
		case !s.retention:
			j.holds("the specification speaks of keys, and responses say until when they are kept")
		default:
			j.holds("the specification speaks of keys and of how long they are kept; what it says was not compared with what was seen")
		}
		e.Outcome, e.Why = j.outcome()
		o.facts.outcomes[plan.Specification] = e.Outcome
	}
}
