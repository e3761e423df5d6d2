package probe

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

// success reports whether a response says that it was done.
func success(x *wire.Exchange) bool {
	return x.Response != nil && (x.Response.Status/100 == 2 || x.Response.Status == http.StatusSeeOther || x.Response.Status == http.StatusFound) && !saysError(x.Response)
}

// failedPart is a part of a 207 that failed (RFC 4918).
var failedPart = regexp.MustCompile(`HTTP/[0-9.]+ [45][0-9][0-9]`)

// saysError reports whether a response of 2xx tells of an error in its body.
func saysError(r *wire.Response) bool {
	if r.Status/100 != 2 || len(r.Body) == 0 || r.Proto == graphQL {
		return false // of GraphQL it is read already: data may come beside errors
	}
	if r.Status == http.StatusMultiStatus {
		return failedPart.Match(r.Body)
	}
	doc, err := decodeJSON(r.Body)
	if err != nil {
		return false
	}
	for _, p := range []plan.Pointer{"/error", "/errors", "/fault"} {
		switch v, _ := lookup(doc, p); v := v.(type) {
		case map[string]any:
			if len(v) > 0 {
				return true
			}
		case []any:
			if len(v) > 0 {
				return true
			}
		case string:
			if v != "" {
				return true
			}
		case bool:
			if v {
				return true
			}
		}
	}
	return false
}

// accepted reports whether a response is the promise of one.
func accepted(x *wire.Exchange) bool {
	return x.Response != nil && x.Response.Status == http.StatusAccepted
}

// turnedAway reports whether a request was not processed: it did not arrive, or
// its status means that nothing was done. That is not a refusal of a duplicate.
func turnedAway(x *wire.Exchange) bool {
	switch x.Delivery {
	case wire.NotSent, wire.Partial, wire.Refused:
		return true
	case wire.Answered:
		return x.Response.Status == http.StatusTooManyRequests || x.Response.Status == http.StatusServiceUnavailable
	}
	return false
}

// tooMany reports whether a request was refused for its rate.
func tooMany(s *sent) bool { return s.status() == http.StatusTooManyRequests }

// progressWords are words by which responses say that a request is being
// processed.
var progressWords = regexp.MustCompile(`(?i)in[ _-]?progress|in[ _-]?flight|being processed|still (processing|running)|currently (processing|running|being)|concurren(t|cy)|(key|id)[ _-]?in[ _-]?use`)

// saysInProgress reports whether a refusal says that the request is still being
// processed, and not that there is one like it.
func saysInProgress(s *sent) bool {
	if s.x.Response == nil || s.status() < 400 || s.status() >= 500 || advice(&s.x) == "after-resolution" {
		return false
	}
	return retryAfter(&s.x) > 0 || advice(&s.x) == "same-key" || s.status() == http.StatusTooEarly ||
		s.status() != http.StatusUnprocessableEntity && progressWords.Match(s.x.Response.Body)
}

// toldToWait reports whether a response says that the request is still being
// processed.
func (o *operation) toldToWait(s *sent) bool {
	switch {
	case s.x.Response == nil || advice(&s.x) == "new-key" || advice(&s.x) == "no":
		return false
	case accepted(&s.x):
		return !o.facts.async
	}
	return saysInProgress(s)
}

// inProgress reports whether a response says that the request is still being
// processed, and that asking again makes sense.
func (o *operation) inProgress(s *sent) bool {
	if s.resource != "" && !accepted(&s.x) {
		return false
	}
	return o.toldToWait(s)
}

// resource returns the id that a response names.
func (o *operation) resource(x *wire.Exchange) string {
	if x.Response == nil || x.Response.Truncated {
		return ""
	}
	if r := o.op.Resource; r != nil {
		return extract(x.Response, r.Header, "", r.Pointer, r.Pattern)
	}
	if at := x.Response.Header.Get("Location"); at != "" && success(x) && !accepted(x) {
		return at
	}
	if x.Response.Proto == graphQL {
		return graphQLResource(x.Response.Body)
	}
	if doc, err := decodeJSON(x.Response.Body); err == nil && success(x) && !accepted(x) {
		if id, ok := lookup(doc, "/id"); ok && id != nil {
			return scalar(id)
		}
	}
	return ""
}

// replayed reports whether a response is marked as a replay.
func (o *operation) replayed(x *wire.Exchange) bool {
	if x.Response == nil {
		return false
	}
	for _, name := range []string{o.contract.ReplayHeader, "Idempotency-Replayed", "Idempotent-Replayed"} {
		if name != "" && strings.EqualFold(strings.Trim(x.Response.Header.Get(name), `"? `), "true") {
			return true
		}
	}
	return false
}

// compare says how a second response relates to the first.
func (o *operation) compare(first, second *sent) *evidence.Second {
	a, b := &first.x, &second.x
	s := &evidence.Second{Of: []int{first.n, second.n}, FirstUS: waited(a), SecondUS: waited(b), Timing: "undecided"}
	// Times near the resolution of a network say nothing.
	switch {
	case s.FirstUS < 2000 || s.SecondUS < 0:
	case s.SecondUS*3 < s.FirstUS:
		s.Timing = "fast-as-a-replay"
	case s.SecondUS*10 >= s.FirstUS*7:
		s.Timing = "slow-as-an-execution"
	}
	if a.Response == nil || b.Response == nil || b.Response.Truncated {
		s.Class = evidence.ErrorOrTimeout
		return s
	}
	s.Status = a.Response.Status == b.Response.Status
	s.Body = bytes.Equal(a.Response.Body, b.Response.Body)
	s.Resource = first.resource != "" && first.resource == second.resource
	if !s.Status {
		s.Differences = append(s.Differences, fmt.Sprintf("status: %s, then %s", status(a.Response), status(b.Response)))
	}
	if !s.Body {
		s.Differences = append(s.Differences, differences(a.Response.Body, b.Response.Body)...)
	}
	for _, name := range []string{"Location", "Content-Type", "Etag"} {
		if a.Response.Header.Get(name) != b.Response.Header.Get(name) {
			s.Differences = append(s.Differences, "header "+name)
		}
	}
	switch {
	case b.Response.Status >= 500 && a.Response.Status < 500:
		s.Class = evidence.ErrorOrTimeout
	case s.Status && s.Body && !otherResource(first, second),
		success(a) && success(b) && s.Resource,
		accepted(a) && accepted(b) && o.statusAt(first) != "" && o.statusAt(first) == o.statusAt(second):
		s.Class = evidence.SameResult
	case (b.Response.Status >= 400 || saysError(b.Response)) && first.resource != "" && names(b.Response, first.resource):
		s.Class = evidence.RefusedWithReference
	case b.Response.Status >= 400 || saysError(b.Response):
		s.Class = evidence.Refused
	default:
		s.Class = evidence.DifferentResult
	}
	return s
}

// statusAt returns the address that says what became of an accepted request;
// empty if it is not known.
func (o *operation) statusAt(s *sent) string {
	if s.statusAt == "" && o.op.Poll.URL == "" {
		return statusAddress(&s.x)
	}
	return s.statusAt
}

// names reports whether a response holds an id, as a word of its own.
func names(r *wire.Response, id string) bool {
	word := regexp.MustCompile(`(^|[^A-Za-z0-9_-])` + regexp.QuoteMeta(id) + `($|[^A-Za-z0-9_-])`)
	for _, name := range []string{"Location", "Content-Location", "Link"} {
		for _, v := range r.Header.Values(name) {
			if word.MatchString(v) {
				return true
			}
		}
	}
	return word.Match(r.Body)
}

// differences names the members in which two bodies differ, never their values.
func differences(a, b []byte) (list []string) {
	x, errA := decodeJSON(a)
	y, errB := decodeJSON(b)
	if errA != nil || errB != nil {
		return []string{"body"}
	}
	var walk func(at string, x, y any)
	walk = func(at string, x, y any) {
		if len(list) >= 20 || reflect.DeepEqual(x, y) {
			return
		}
		xm, okX := x.(map[string]any)
		ym, okY := y.(map[string]any)
		if !okX || !okY {
			list = append(list, "body "+cmp.Or(at, "as a whole"))
			return
		}
		var all []string
		for k := range xm {
			all = append(all, k)
		}
		for k := range ym {
			if _, ok := xm[k]; !ok {
				all = append(all, k)
			}
		}
		slices.Sort(all)
		for _, k := range all {
			walk(at+"/"+k, xm[k], ym[k])
		}
	}
	if walk("", x, y); len(list) == 0 {
		list = []string{"body: white space or order"}
	}
	return list
}

// waited is how long a response took, in microseconds; -1 if none came.
func waited(x *wire.Exchange) int64 {
	if x.Timing.LastWrite.IsZero() || x.Timing.FirstByte.IsZero() {
		return -1
	}
	return x.Timing.FirstByte.Sub(x.Timing.LastWrite).Microseconds()
}

// retryAfter is what a response asks to wait, in seconds or until a date; zero
// if it does not.
func retryAfter(x *wire.Exchange) time.Duration {
	if x.Response == nil {
		return 0
	}
	v := x.Response.Header.Get("Retry-After")
	if n, err := number(v); err == nil && n.IsInt() && n.Num().IsInt64() && n.Sign() > 0 {
		return time.Duration(min(n.Num().Int64(), 3600)) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

// advice is what a problem says about a retry: the member retry, as in RFC 9457
// problems of some implementations; empty for none.
func advice(x *wire.Exchange) string {
	if x.Response == nil {
		return ""
	}
	doc, err := decodeJSON(x.Response.Body)
	if err != nil {
		return ""
	}
	v, _ := lookup(doc, plan.Pointer("/retry"))
	s, _ := v.(string)
	return s
}
