package probe

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/plan"
	"github.com/semelhq/semel/probe/wire"
)

// follow asks for the status of a request that was accepted with 202, until it
// is over or the plan's limit of settling is reached. It sets the request's
// fate, and the resource that the status names. Where the answer names no
// address, or one that is not allowed, the fate stays untold.
func (x *exp) follow(ctx context.Context, s *sent) error {
	at := statusAddress(&s.x)
	if at == "" {
		return nil
	}
	req := wire.Request{Method: http.MethodGet, URL: at}
	for _, f := range s.x.Request.Header {
		// Who asks is the same; what is asked is not.
		switch name := strings.ToLower(f.Name); {
		case strings.HasPrefix(name, "content-"), name == "host", name == "transfer-encoding", x.o.op.Key != nil && strings.EqualFold(name, x.o.op.Key.Header):
		default:
			req.Header = append(req.Header, f)
		}
	}
	t := x.o.r.p.Timing
	pause, start := t.Poll, s.over()
	for {
		got, err := x.o.r.read.Send(as(ctx, ""), req)
		if errors.Is(err, wire.ErrNotAllowed) {
			return nil
		}
		if err != nil {
			return err
		}
		x.book(got, "read", "")
		if err := ctxErr(ctx); err != nil {
			return err
		}
		s.fate = fateOf(&got)
		if id := x.o.resource(&got); id != "" && s.resource == "" && s.fate != fateRunning {
			s.resource = id
		}
		if s.fate != fateRunning && got.Response != nil || time.Since(start) >= t.SettleLimit {
			return nil
		}
		if err := sleep(ctx, max(pause, min(retryAfter(&got), t.SettleLimit-time.Since(start)))); err != nil {
			return err
		}
		pause = min(2*pause, 10*t.Poll)
	}
}

// statusAddress is where the answer of a request that was accepted says that
// its status is; empty if it does not say.
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

var (
	runningWords = []string{"accepted", "pending", "queued", "scheduled", "started", "processing", "in_progress", "running", "submitted", "working"}
	doneWords    = []string{"done", "completed", "complete", "succeeded", "success", "successful", "finished", "executed", "confirmed", "paid", "ok"}
	failedWords  = []string{"failed", "failure", "error", "errored", "canceled", "cancelled", "rejected", "aborted", "expired", "timed_out"}
)

// fateOf is what a status says of a request.
func fateOf(x *wire.Exchange) fate {
	r := x.Response
	switch {
	case r == nil || r.Truncated:
		return fateUntold
	case r.Status == http.StatusAccepted, r.Status == http.StatusNotFound, r.Status == http.StatusTooManyRequests, r.Status == http.StatusServiceUnavailable:
		return fateRunning // or it is not there yet
	case r.Status == http.StatusSeeOther, r.Status == http.StatusFound:
		return fateDone
	case r.Status/100 != 2:
		return fateUntold
	}
	doc, err := decodeJSON(r.Body)
	if err != nil {
		return fateDone // the resource is there
	}
	for _, p := range []plan.Pointer{"/status", "/state", "/phase", "/data/status", "/data/state"} {
		v, _ := lookup(doc, p)
		word, ok := v.(string)
		if !ok {
			continue
		}
		word = strings.ReplaceAll(strings.ReplaceAll(strings.ToLower(strings.TrimSpace(word)), " ", "_"), "-", "_")
		switch {
		case slices.Contains(runningWords, word):
			return fateRunning
		case slices.Contains(doneWords, word):
			return fateDone
		case slices.Contains(failedWords, word):
			return fateFailed
		}
		return fateUntold // a word that is not known here
	}
	return fateDone
}
