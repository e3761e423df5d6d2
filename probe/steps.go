package probe

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

// session is what a step has taken for a principal.
type session struct {
	of  *plan.Step
	who plan.PrincipalName
}

// sender sends as the principal in the context, and sees to it that what steps
// took for that principal has not expired.
type sender struct {
	*wire.Sender
	r *runner
}

// Send sends a request with what steps took last, and again if the response is
// that this has expired.
func (s *sender) Send(ctx context.Context, req wire.Request) (wire.Exchange, error) {
	who, err := s.ready(ctx)
	if err != nil {
		return wire.Exchange{}, err
	}
	got, err := s.Sender.Send(ctx, s.r.r.Renew(req, who))
	if err != nil || !s.r.expired(&got, who) {
		return got, err
	}
	s.r.now.book(got, "expired", who)
	if _, err := s.ready(ctx); err != nil {
		return wire.Exchange{}, err
	}
	return s.Sender.Send(ctx, s.r.r.Renew(req, who))
}

// only sends a request with what steps took last, whether or not that has expired.
// Unlike Send it may be called while another one is under way.
func (s *sender) only(ctx context.Context, req wire.Request) (wire.Exchange, error) {
	who, _ := ctx.Value(principalKey{}).(plan.PrincipalName)
	return s.Sender.Send(ctx, s.r.r.Renew(req, who))
}

func (s *sender) SendCut(ctx context.Context, req wire.Request, cut wire.Cut) (wire.Exchange, error) {
	who, err := s.ready(ctx)
	if err != nil {
		return wire.Exchange{}, err
	}
	return s.Sender.SendCut(ctx, s.r.r.Renew(req, who), cut)
}

func (s *sender) SendRace(ctx context.Context, all []wire.Request, warmUp *wire.Request) (wire.Race, error) {
	who, err := s.ready(ctx)
	if err != nil {
		return wire.Race{}, err
	}
	all = slices.Clone(all)
	for i := range all {
		all[i] = s.r.r.Renew(all[i], who)
	}
	return s.Sender.SendRace(ctx, all, warmUp)
}

// ready sends the steps of the principal in the context that are due.
func (s *sender) ready(ctx context.Context) (plan.PrincipalName, error) {
	who, _ := ctx.Value(principalKey{}).(plan.PrincipalName)
	if s.r.now == nil || ctx.Err() != nil {
		return who, nil // it is only asked whether the target is allowed
	}
	if err := s.r.room(); err != nil {
		return who, err
	}
	return who, s.r.now.signIn(ctx, cmp.Or(who, plan.ActorA))
}

// expired reports whether a response says that what steps took for a principal
// has expired, and has it taken anew.
func (r *runner) expired(x *wire.Exchange, who plan.PrincipalName) (any bool) {
	if r.now == nil || x.Response == nil {
		return false
	}
	for _, st := range r.r.Steps(r.now.o.op, "principal") {
		if slices.Contains(st.Expired, x.Response.Status) {
			r.sessions[session{st, cmp.Or(who, plan.ActorA)}] = time.Unix(0, 0)
			any = true
		}
	}
	return any
}

// prepare sends the steps of everybody who is to send or read in an experiment.
func (x *exp) prepare(ctx context.Context) error {
	x.o.r.now = x
	who := []plan.PrincipalName{plan.ActorA}
	switch x.kind {
	case plan.OtherActor:
		who = append(who, plan.ActorB)
	case plan.OtherTenant:
		who = append(who, plan.TenantB)
	}
	for _, rd := range x.o.op.Readers {
		if rd.HTTP != nil {
			who = append(who, rd.HTTP.As)
		}
	}
	for _, a := range x.o.op.Audit {
		if a.HTTP != nil {
			who = append(who, a.HTTP.As)
		}
	}
	if h := x.o.r.p.Reset; h != nil && h.HTTP != nil {
		who = append(who, h.HTTP.As)
	}
	for _, w := range who {
		if err := x.signIn(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// signIn sends the steps of a principal that were not sent yet, or whose result
// has expired.
func (x *exp) signIn(ctx context.Context, who plan.PrincipalName) error {
	for _, st := range x.o.r.r.Steps(x.o.op, "principal") {
		s := session{st, who}
		until, had := x.o.r.sessions[s]
		if had && (until.IsZero() || time.Now().Before(until)) {
			continue
		}
		// For as long as this takes, the step itself is not due.
		x.o.r.sessions[s] = time.Time{}
		until, err := x.step(ctx, nil, st, who, 1, had)
		if err != nil {
			delete(x.o.r.sessions, s)
			return err
		}
		x.o.r.sessions[s] = until
		x.o.facts.renewed = x.o.facts.renewed || had
	}
	return nil
}

// draw draws the values of a logical request and sends the steps that it needs.
func (x *exp) draw(ctx context.Context) (*plan.Values, error) { return x.drawTimes(ctx, 1) }

// drawTimes draws for n requests of which a dry run lists one.
func (x *exp) drawTimes(ctx context.Context, n int) (*plan.Values, error) {
	v, err := x.o.r.r.Draw(x.o.op.Name)
	if err != nil {
		return nil, err
	}
	for _, st := range x.o.r.r.Steps(x.o.op, "request") {
		if _, err := x.step(ctx, v, st, plan.ActorA, n, false); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// stepsEach is how many requests have to be sent before each of the operation's.
func (o *operation) stepsEach() int { return len(o.r.r.Steps(o.op, "request")) }

// step sends a step, or lists it n times in a dry run, and keeps what it takes.
// v is nil for a step of a principal. It returns until when that can be used;
// zero for always.
func (x *exp) step(ctx context.Context, v *plan.Values, st *plan.Step, who plan.PrincipalName, n int, refresh bool) (until time.Time, err error) {
	r := x.o.r
	refresh = refresh && st.Refresh != nil
	req, err := r.r.StepRequest(v, st, who, refresh)
	if err != nil {
		return until, err
	}
	if r.dry() {
		x.plan(evidence.RoleStep, req, who, n, "step "+st.Name)
		return until, nil
	}
	var got wire.Exchange
	for tries := 0; ; tries++ {
		if got, err = r.send.Sender.Send(as(ctx, who), req); err != nil {
			return until, err
		}
		x.book(got, evidence.RoleStep, who)
		if err := ctxErr(ctx); err != nil {
			return until, err
		}
		if !turnedAway(&got) || got.Delivery != wire.Answered || tries == maxWaits {
			break
		}
		if err := sleep(ctx, min(cmp.Or(retryAfter(&got), r.p.Timing.LateAfter), r.p.Timing.SettleLimit)); err != nil {
			return until, err
		}
	}
	values, err := take(st, &got, refresh)
	if err == nil {
		err = r.r.Took(v, st, who, values)
	}
	switch {
	case err != nil && refresh:
		return x.step(ctx, v, st, who, n, false)
	case err != nil:
		return until, fmt.Errorf("the step %s of %s came to nothing: %w", st.Name, who, err)
	}
	return expires(st, &got), nil
}

// take takes from a response what a step is to take. Of a refresh, what is not
// there is empty.
func take(st *plan.Step, x *wire.Exchange, refresh bool) ([]string, error) {
	if !success(x) || x.Response.Truncated {
		return nil, fmt.Errorf("it was answered with %s", response(&sent{x: *x}))
	}
	values := make([]string, len(st.Take))
	for i, t := range st.Take {
		value := extract(x.Response, t.Header, t.Cookie, t.Pointer, t.Pattern)
		switch {
		case value == "" && !refresh:
			return nil, fmt.Errorf("its response, %d, lacks %s", x.Response.Status, t.Name)
		case len(value) > plan.MaxTakenBytes:
			return nil, fmt.Errorf("%s is larger than %d KiB", t.Name, plan.MaxTakenBytes>>10)
		case strings.ContainsAny(value, "\r\n\x00"):
			return nil, fmt.Errorf("%s contains a line break", t.Name)
		}
		values[i] = value
	}
	return values, nil
}

// expires is until when what a step took can be used.
func expires(st *plan.Step, x *wire.Exchange) (until time.Time) {
	valid := st.Valid
	if st.ExpiresIn != nil {
		// The response was under way, and the clocks are two: a tenth less.
		n, err := number(extract(x.Response, "", "", st.ExpiresIn, ""))
		if err == nil && n.Sign() > 0 {
			seconds, _ := n.Float64()
			told := time.Duration(min(seconds, 1e8) * 0.9 * float64(time.Second))
			if valid == 0 || told < valid {
				valid = told
			}
		}
	}
	if valid == 0 {
		return until
	}
	return x.Timing.Done.Add(valid)
}

// extract takes a value out of a response: of the body, or of a header or
// cookie. It is empty if the response has none.
func extract(r *wire.Response, header, cookie string, pointer *plan.Pointer, pattern string) string {
	in := string(r.Body)
	switch {
	case header != "":
		in = r.Header.Get(header)
	case cookie != "":
		in = ""
		for _, c := range (&http.Response{Header: r.Header}).Cookies() {
			if c.Name == cookie {
				in = c.Value
			}
		}
	case pointer != nil:
		doc, err := decodeJSON(r.Body)
		if err != nil {
			return ""
		}
		v, ok := lookup(doc, *pointer)
		if !ok || v == nil {
			return ""
		}
		in = scalar(v)
	}
	if pattern == "" {
		return in
	}
	if m := regexp.MustCompile(pattern).FindStringSubmatch(in); m != nil { // validated
		return m[1]
	}
	return ""
}
