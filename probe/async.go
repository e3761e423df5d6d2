package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

// follow asks for the status of a request that was accepted with 202, until it
// is over or the plan's limit is reached. It sets the request's fate, and the
// resource that the status names. Without an address, or with one that is not
// allowed, the fate stays unknown.
func (x *exp) follow(ctx context.Context, w *watch, s *sent) error {
	at, err := x.statusOf(w, &s.x)
	if err != nil {
		s.untold = err.Error()
	}
	if s.statusAt = at; at == "" {
		return nil
	}
	req := asked(&s.x, at, x.o.op.Key)
	p, t := x.o.op.Poll, x.o.r.p.Timing
	pause, most := t.Poll, 10*t.Poll
	if p.Interval > 0 {
		pause, most = p.Interval, p.Interval
	}
	for start := s.over(); ; {
		got, err := x.o.r.read.Send(as(ctx, ""), req)
		if errors.Is(err, wire.ErrNotAllowed) {
			s.untold = "the address of its status is in no allow-list"
			return nil
		}
		if err != nil {
			return err
		}
		x.book(got, evidence.RoleRead, "")
		if err := ctxErr(ctx); err != nil {
			return err
		}
		w.told = time.Now()
		s.fate, s.untold = fateOf(&got, p)
		// What the status itself is called is not what was created.
		if id := x.o.resource(&got); id != "" && s.resource == "" && s.fate != fateRunning && (x.o.op.Resource != nil || got.Response.Header.Get("Location") != "") {
			s.resource = id
		}
		// A state that the plan names no word for may be one on the way.
		again := s.fate == fateRunning || got.Response == nil || s.fate == fateUntold && p.State != nil && got.Response.Status/100 == 2
		left := p.Limit - time.Since(start)
		if !again || left <= 0 {
			return nil
		}
		if err := sleep(ctx, max(pause, min(retryAfter(&got), left))); err != nil {
			return err
		}
		pause = min(2*pause, most)
	}
}

// asked returns a GET of an address, sent by the principal of a request.
func asked(x *wire.Exchange, at string, key *plan.Key) wire.Request {
	req := wire.Request{Method: http.MethodGet, URL: at}
	for _, f := range x.Request.Header {
		switch name := strings.ToLower(f.Name); {
		case strings.HasPrefix(name, "content-"), strings.HasPrefix(name, "if-"), name == "host", name == "transfer-encoding", key != nil && strings.EqualFold(name, key.Header):
		default:
			req.Header = append(req.Header, f)
		}
	}
	return req
}

// statusOf returns the address to ask what became of a request that was
// accepted; empty if neither the plan nor the response names one.
func (x *exp) statusOf(w *watch, got *wire.Exchange) (string, error) {
	p := x.o.op.Poll
	if p.URL == "" {
		return statusAddress(got), nil
	}
	values := make([]string, len(p.Take))
	for i, t := range p.Take {
		if values[i] = extract(got.Response, t.Header, t.Cookie, t.Pointer, t.Pattern); values[i] == "" {
			return "", fmt.Errorf("the response lacks %s, which poll.url needs", t.Name)
		}
	}
	return x.o.r.r.StatusURL(w.v, values, cmp.Or(w.resource, x.o.resource(got)))
}

// statusAddress returns the address of the status that the response to an
// accepted request names; empty if it names none.
func statusAddress(x *wire.Exchange) string {
	at := ""
	for _, name := range []string{"Location", "Operation-Location", "Azure-Asyncoperation", "Content-Location"} {
		if at = x.Response.Header.Get(name); at != "" {
			break
		}
	}
	if doc, err := decodeJSON(x.Response.Body); at == "" && err == nil {
		for _, p := range []plan.Pointer{"/status_url", "/statusUrl", "/links/status", "/links/self", "/_links/status/href", "/_links/self/href", "/href"} {
			if v, ok := lookup(doc, p); ok {
				if at, _ = v.(string); at != "" {
					break
				}
			}
		}
	}
	base, err := url.Parse(x.Request.URL)
	if err != nil || at == "" {
		return ""
	}
	ref, err := base.Parse(at)
	if err != nil || ref.User != nil {
		return ""
	}
	ref.Fragment = ""
	return ref.String()
}

// fateOf returns what a status says about a request, and, if it says nothing,
// why.
func fateOf(x *wire.Exchange, p *plan.Poll) (f fate, untold string) {
	r := x.Response
	switch {
	case r == nil:
		return fateUntold, "its status cannot be read: there is no response"
	case r.Truncated:
		return fateUntold, "its status is cut off"
	case r.Status == http.StatusAccepted, r.Status == http.StatusNotFound, r.Status == http.StatusTooManyRequests, r.Status == http.StatusServiceUnavailable:
		return fateRunning, "" // or it is not there yet
	case r.Status == http.StatusSeeOther, r.Status == http.StatusFound:
		return fateDone, ""
	case r.Status/100 != 2:
		return fateUntold, fmt.Sprintf("its status cannot be read: the response is %d", r.Status)
	}
	doc, err := decodeJSON(r.Body)
	if err != nil && p.State == nil {
		return fateDone, "" // the resource is there
	}
	places := []plan.Pointer{"/status", "/state", "/phase", "/data/status", "/data/state"}
	if p.State != nil {
		places = []plan.Pointer{*p.State}
	}
	for _, at := range places {
		v, _ := lookup(doc, at)
		if _, text := v.(string); p.State == nil && !text {
			continue
		}
		said := scalar(v)
		if v == nil || said == "" {
			return fateUntold, fmt.Sprintf("its status has no %s", at)
		}
		is := func(words []string) bool {
			return slices.ContainsFunc(words, func(w string) bool { return plan.Word(w) == plan.Word(said) })
		}
		switch {
		case is(p.Pending):
			return fateRunning, ""
		case is(p.Done):
			return fateDone, ""
		case is(p.Failed):
			return fateFailed, ""
		case plainWord.MatchString(said):
			return fateUntold, fmt.Sprintf("its status is %q, which poll does not list as pending, done or failed", said)
		}
		return fateUntold, "poll does not list its status as pending, done or failed"
	}
	return fateDone, ""
}

// plainWord matches states that may be quoted.
var plainWord = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_. -]{0,39}$`)
