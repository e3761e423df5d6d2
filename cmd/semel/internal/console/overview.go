package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/semelhq/semel"
)

const (
	sampleEvery = 5 * time.Second
	samplesKept = 121 // ten minutes
)

// sample is what the metrics said at a time.
type sample struct {
	at        time.Time
	outcomes  map[string]float64
	totals    map[string]float64 // of what should stay at zero
	upstreams map[string]upstreamCounts
	gauges    map[string]float64
}

// upstreamCounts are requests of the gateway to one upstream.
type upstreamCounts struct {
	requests, seconds float64
	failing           float64            // responses of 5xx
	noResponse        map[string]float64 // by error.type
}

// troubles are counters that stay at zero while all is well, and what they count.
var troubles = []struct{ name, text string }{
	{"semel_unprotected_total", "requests passed without protection"},
	{"semel_store_failures_total", "calls of the store failed"},
	{"semel_lease_losses_total", "executions lost their lease"},
	{"semel_handler_panics_total", "responses were cut off, or a handler panicked"},
	{"semel_upstream_failures_total", "requests got no whole response from the upstream"},
	{"semel_spool_failures_total", "large bodies could not be held"},
	{"semel_sweep_failures_total", "sweeps ended early"},
}

func sampleOf(at time.Time, families []*dto.MetricFamily) sample {
	s := sample{at: at, outcomes: map[string]float64{}, totals: map[string]float64{}, upstreams: map[string]upstreamCounts{}, gauges: map[string]float64{}}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			label := map[string]string{}
			for _, l := range m.GetLabel() {
				label[l.GetName()] = l.GetValue()
			}
			switch name := f.GetName(); {
			case name == "semel_decisions_total":
				s.outcomes[label["semel_outcome"]] += m.GetCounter().GetValue()
			case name == "http_client_request_duration_seconds":
				where := label["server_address"] + ":" + label["server_port"]
				u := s.upstreams[where]
				n := float64(m.GetHistogram().GetSampleCount())
				u.requests += n
				u.seconds += m.GetHistogram().GetSampleSum()
				switch status, answered := strconv.Atoi(label["http_response_status_code"]); {
				case answered != nil || status == 0:
					if u.noResponse == nil {
						u.noResponse = map[string]float64{}
					}
					u.noResponse[label["error_type"]] += n
				case status >= 500:
					u.failing += n
				}
				s.upstreams[where] = u
			case m.GetCounter() != nil && strings.HasPrefix(name, "semel_"):
				s.totals[name] += m.GetCounter().GetValue()
			case m.GetGauge() != nil && strings.HasPrefix(name, "semel_") && len(label) == 0:
				s.gauges[name] = m.GetGauge().GetValue()
			}
		}
	}
	return s
}

// history are the last samples, the oldest first.
type history struct {
	mu  sync.Mutex
	all []sample
}

func (h *history) add(s sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, s)
	if len(h.all) > samplesKept {
		h.all = slices.Clone(h.all[len(h.all)-samplesKept:])
	}
}

func (h *history) list() []sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.all)
}

// now is what the overview shows.
type now struct {
	At       time.Time
	NotReady string
	Over     time.Duration // that the rates are of
	Outcomes []outcomeRow
	Chart    chart
	Counts   counts
	CountErr bool
	Troubles []troubleRow
	Upstream []upstreamRow
	Load     []loadRow
}

type outcomeRow struct {
	Name  string
	Total float64
	Rate  float64 // in a second
}

type troubleRow struct {
	Text          string
	Total, Recent float64
}

type loadRow struct {
	Name       string
	Now, Limit float64
}

// upstreamRow is an upstream as the requests of the last minute found it.
type upstreamRow struct {
	Where, State    string
	Rate            float64
	Mean            time.Duration
	Failing, Silent float64 // percent
	Why             []string
}

// outcomeNames are all outcomes, in the order of the page.
var outcomeNames = func() (names []string) {
	for a := semel.AnswerExecuted; a <= semel.AnswerUnavailable; a++ {
		names = append(names, a.String())
	}
	return names
}()

func (c *Console) look(ctx context.Context) *now {
	n := &now{At: time.Now(), NotReady: c.Ready()}
	families, err := c.Metrics.Gather()
	if err != nil {
		families = nil
	}
	is, all := sampleOf(n.At, families), c.history.list()
	was := is // where there is none yet, nothing has happened
	for _, s := range all {
		if is.at.Sub(s.at) <= time.Minute+sampleEvery {
			was = s
			break
		}
	}
	n.Over = is.at.Sub(was.at)
	seconds := max(n.Over.Seconds(), 1)
	for _, name := range outcomeNames {
		n.Outcomes = append(n.Outcomes, outcomeRow{name, is.outcomes[name], (is.outcomes[name] - was.outcomes[name]) / seconds})
	}
	for _, t := range troubles {
		if is.totals[t.name] > 0 {
			n.Troubles = append(n.Troubles, troubleRow{t.text, is.totals[t.name], is.totals[t.name] - was.totals[t.name]})
		}
	}
	for _, where := range slices.Sorted(maps.Keys(is.upstreams)) {
		n.Upstream = append(n.Upstream, upstreamOf(where, is.upstreams[where], was.upstreams[where], seconds))
	}
	for _, l := range []struct{ text, name string }{
		{"executions", "semel_executions"}, {"waiters", "semel_waiters"}, {"spooled bytes", "semel_spool_usage_bytes"},
	} {
		limit := is.gauges[l.name+"_limit"]
		if l.name == "semel_spool_usage_bytes" {
			limit = is.gauges["semel_spool_limit_bytes"]
		}
		n.Load = append(n.Load, loadRow{l.text, is.gauges[l.name], limit})
	}
	n.Chart = chartOf(append(all, is))
	n.Counts, err = c.counted.get(ctx, c.Store)
	n.CountErr = err != nil
	return n
}

// upstreamOf says how an upstream is doing, by what became of requests to it.
func upstreamOf(where string, is, was upstreamCounts, seconds float64) upstreamRow {
	row := upstreamRow{Where: where, State: "no requests"}
	requests := is.requests - was.requests
	if requests == 0 {
		return row
	}
	silent := 0.0
	for _, why := range slices.Sorted(maps.Keys(is.noResponse)) {
		if n := is.noResponse[why] - was.noResponse[why]; n > 0 {
			silent += n
			row.Why = append(row.Why, fmt.Sprintf("%s %.0f", why, n))
		}
	}
	failing := is.failing - was.failing
	row.Rate, row.Mean = requests/seconds, time.Duration((is.seconds-was.seconds)/requests*float64(time.Second))
	row.Failing, row.Silent = 100*failing/requests, 100*silent/requests
	switch {
	case failing+silent == 0:
		row.State = "answers"
	case failing+silent < requests/2:
		row.State = "fails sometimes"
	default:
		row.State = "fails"
	}
	return row
}

// chart is two lines over the time that is remembered: decisions a second, and of
// them those that were no response for the client.
type chart struct {
	All, Bad string // points in a picture of 600 by 80
	Most     float64
	Over     time.Duration
}

func chartOf(all []sample) (c chart) {
	type point struct{ at, all, bad float64 }
	var points []point
	for i := 1; i < len(all); i++ {
		seconds := all[i].at.Sub(all[i-1].at).Seconds()
		if seconds < 1 {
			continue // too short for a rate
		}
		p := point{at: all[i].at.Sub(all[0].at).Seconds()}
		for name, n := range all[i].outcomes {
			rate := max(n-all[i-1].outcomes[name], 0) / seconds
			p.all += rate
			switch name {
			case semel.AnswerUnknown.String(), semel.AnswerUnavailable.String(), semel.AnswerMismatch.String(), semel.AnswerRejected.String():
				p.bad += rate
			}
		}
		c.Most = max(c.Most, p.all)
		points = append(points, p)
	}
	if len(points) < 2 {
		return chart{}
	}
	c.Over = all[len(all)-1].at.Sub(all[0].at)
	width, most := points[len(points)-1].at, max(c.Most, 1)
	var lines [2]strings.Builder
	for _, p := range points {
		_, _ = fmt.Fprintf(&lines[0], "%.1f,%.1f ", p.at/width*600, 78-p.all/most*76)
		_, _ = fmt.Fprintf(&lines[1], "%.1f,%.1f ", p.at/width*600, 78-p.bad/most*76)
	}
	c.All, c.Bad = lines[0].String(), lines[1].String()
	return c
}

// counts are how many records are in a state.
type counts []countRow

type countRow struct {
	State string
	N     int
	More  bool // there are more, that were not counted
}

// counted keeps counts for a few seconds, and has one count at a time.
type counted struct {
	mu   sync.Mutex
	at   time.Time
	last counts
}

const (
	countLife = 5 * time.Second
	// How many are counted: of those that an index finds, and of the others.
	mostOpen, mostCompleted = 10_000, 1000
)

func (c *counted) get(ctx context.Context, store semel.Lister) (counts, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) < countLife {
		return c.last, nil
	}
	var all counts
	for _, of := range []struct {
		state  string
		filter semel.Filter
		most   int
	}{
		{"in_progress", semel.Filter{State: semel.StateInProgress}, mostOpen},
		{"lapsed", semel.Filter{Lapsed: true}, mostOpen},
		{"unknown", semel.Filter{State: semel.StateUnknown}, mostOpen},
		{"completed", semel.Filter{State: semel.StateCompleted}, mostCompleted},
	} {
		row := countRow{State: of.state}
		for of.filter.Limit = 1000; ; {
			page, err := store.List(ctx, of.filter)
			if err != nil {
				return nil, err
			}
			row.N += len(page)
			if len(page) < of.filter.Limit {
				break
			}
			if row.N >= of.most {
				row.More = true
				break
			}
			of.filter.After = page[len(page)-1].Fence
		}
		all = append(all, row)
	}
	c.last, c.at = all, time.Now()
	return all, nil
}

// statusOf is the status for an error of the store, or of the time being over.
func statusOf(err error) int {
	if errors.Is(err, context.DeadlineExceeded) {
		return http.StatusGatewayTimeout
	}
	return http.StatusServiceUnavailable
}

// byAge sorts runs, the youngest first.
func byAge(a, b runView) int { return cmp.Compare(b.Begun.UnixNano(), a.Begun.UnixNano()) }
