package console

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/cmd/semel/internal/settle"
)

// form is what an operator has filled in, to settle records.
type form struct {
	Records []string // tickets, or none: then those that Where selects
	Where   filter
	AsOf    time.Time // what was unknown by then; of the preview

	Way           string
	Because, Who  string
	Status        string
	Headers, Body string // of the response

	Nonce string // of the preview: what is sent twice is done once
}

func (c *Console) formFor(s *session) form {
	c.mu.Lock()
	defer c.mu.Unlock()
	return form{Who: s.who, Status: "200"}
}

const maxTicked = 1000

func formOf(v url.Values) (f form, err error) {
	f = form{
		Records: v["record"], Where: filterOf(v), Way: v.Get("way"),
		Because: strings.TrimSpace(v.Get("because")), Who: strings.TrimSpace(v.Get("who")),
		Status: strings.TrimSpace(v.Get("status")), Headers: v.Get("headers"), Body: v.Get("body"), Nonce: v.Get("nonce"),
	}
	if v.Get("all") != "" {
		f.Records = nil
	}
	if text := v.Get("as_of"); text != "" {
		f.AsOf, err = time.Parse(time.RFC3339Nano, text)
	}
	return f, err
}

// digest tells forms apart.
func (f form) digest() [sha256.Size]byte { return sha256.Sum256(fmt.Appendf(nil, "%q", f)) }

// check says what is wrong with a form, in a few words that are translated, and
// more on that.
func (f form) check() (wrong, why string) {
	if f.Way == "result" {
		if _, err := f.answer(); err != nil {
			return "This response cannot be recorded.", err.Error()
		}
	}
	switch {
	case settle.Decision(f.Way) == 0:
		return "Say what became of the effects.", ""
	case f.Because == "":
		return "Say how you know, for whoever reads the audit trail.", ""
	case f.Who == "":
		return "Say who decides, for whoever reads the audit trail.", ""
	}
	return "", ""
}

// answer makes what replays are answered with, if that is how the form settles.
func (f form) answer() (func(semel.Record) (semel.Result, error), error) {
	var lines []string
	for line := range strings.Lines(f.Headers) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	header, err := settle.Headers(lines)
	if err != nil {
		return nil, err
	}
	status, err := strconv.Atoi(f.Status)
	if err != nil {
		return nil, fmt.Errorf("status is %q; write a number such as 201", f.Status)
	}
	body := []byte(strings.ReplaceAll(f.Body, "\r\n", "\n")) // as forms send lines
	if err := settle.CheckAnswer(status, header, body); err != nil {
		return nil, err
	}
	return func(r semel.Record) (semel.Result, error) { return settle.Answer(r, status, header.Clone(), body) }, nil
}

var (
	errTicket = errors.New("records are named otherwise; go back to the list")
	errTicked = fmt.Errorf("at most %d records can be ticked; use the filter for more", maxTicked)
)

// tickets returns the fences at which the named records were seen.
func (f form) tickets() (map[string]uint64, error) {
	if len(f.Records) > maxTicked {
		return nil, errTicked
	}
	seen := map[string]uint64{}
	for _, t := range f.Records {
		id, text, ok := strings.Cut(t, "@")
		fence, err := strconv.ParseUint(text, 10, 64)
		if !ok || err != nil || id == "" {
			return nil, errTicket
		}
		seen[id] = fence
	}
	return seen, nil
}

// each calls resolve for what the form selects: once for a filter, or for each of
// the records that were ticked.
func (f form) each(b semel.BulkResolution, resolve func(semel.BulkResolution) error) error {
	seen, err := f.tickets()
	if err != nil {
		return err
	}
	if len(seen) == 0 {
		where := f.Where
		where.State = ""
		if b.Where, err = where.parse(); err != nil {
			return err
		}
		return resolve(b)
	}
	if decide := b.Decide; decide != nil {
		b.Decide = func(ctx context.Context, r semel.Record) (semel.Resolution, error) {
			if r.Fence != seen[r.ID] { // it is not what was looked at
				return semel.Resolution{}, nil
			}
			return decide(ctx, r)
		}
	}
	done := map[string]bool{}
	for _, t := range f.Records {
		id, _, _ := strings.Cut(t, "@")
		if done[id] {
			continue
		}
		done[id] = true
		b.Where = semel.Filter{ID: id}
		if err := resolve(b); err != nil {
			return err
		}
	}
	return nil
}

// sum adds up the reports of several resolutions.
func sum(a, b semel.BulkReport) semel.BulkReport {
	if b.AsOf.After(a.AsOf) {
		a.AsOf = b.AsOf
	}
	a.Selected, a.Settled, a.Left, a.Moved = a.Selected+b.Selected, a.Settled+b.Settled, a.Left+b.Left, a.Moved+b.Moved
	a.InDoubt, a.Newer, a.Lapsed, a.Marked = a.InDoubt+b.InDoubt, a.Newer+b.Newer, a.Lapsed+b.Lapsed, a.Marked+b.Marked
	a.More = a.More || b.More
	return a
}

// preview is what would be settled.
type preview struct {
	Report semel.BulkReport
	Groups []settle.Group
	Others int
	Sample []semel.Record
	Ready  bool // the form can be carried out
	More   bool // there was no time to look at all
	Gone   int  // of those that were ticked
}

const sampled = 10

// preview shows what a form would do. It changes nothing.
func (c *Console) preview(w http.ResponseWriter, r *http.Request, s *session) {
	f, err := c.readForm(r)
	if err != nil {
		c.failed(w, r, http.StatusBadRequest, "This form cannot be read.", err)
		return
	}
	c.showPreview(w, r, f, "", "")
}

func (c *Console) readForm(r *http.Request) (form, error) {
	if err := r.ParseForm(); err != nil {
		return form{}, err
	}
	return formOf(r.PostForm)
}

func (c *Console) showPreview(w http.ResponseWriter, r *http.Request, f form, wrong, why string) {
	p := preview{}
	groups := settle.Groups{}
	ctx, cancel := context.WithTimeout(r.Context(), c.lookTime)
	defer cancel()
	seen, _ := f.tickets() // each tells what is wrong with them
	moved := semel.BulkReport{}
	err := f.each(semel.BulkResolution{Seen: func(rec semel.Record) {
		if len(seen) > 0 && rec.Fence != seen[rec.ID] { // it is not what was looked at
			if rec.State == semel.StateUnknown {
				moved.Selected++
			} else {
				moved.Lapsed++
			}
			return
		}
		groups.Add(rec)
		if len(p.Sample) < sampled {
			p.Sample = append(p.Sample, rec)
		}
	}}, func(b semel.BulkResolution) error {
		report, err := c.Guard.ResolveWhere(ctx, b)
		p.Report = sum(p.Report, report)
		return err
	})
	if p.More = err != nil && ctx.Err() != nil && p.Report.Selected > 0; p.More {
		err = nil
	}
	switch {
	case errors.Is(err, errTime) || errors.Is(err, errTicked) || errors.Is(err, errTicket):
		c.failed(w, r, http.StatusBadRequest, "This form cannot be read.", err)
		return
	case err != nil:
		c.failed(w, r, statusOf(err), "The records could not be read in time. Nothing was changed; narrow the filter, or use semel keys resolve.", err)
		return
	}
	p.Report.Selected -= moved.Selected
	p.Report.Lapsed -= moved.Lapsed
	p.Groups, p.Others = groups.Largest()
	if len(f.Records) > 0 {
		p.Gone = len(f.Records) - p.Report.Selected - p.Report.Lapsed
	}
	if wrong == "" {
		wrong, why = f.check()
	}
	p.Ready = wrong == "" && p.Report.Selected+p.Report.Lapsed > 0
	f.AsOf, f.Nonce = p.Report.AsOf, rand.Text()
	status := http.StatusOK
	if wrong != "" {
		status = http.StatusUnprocessableEntity
	}
	c.show(w, r, status, "settle", view{Title: "Settle", Wrong: wrong, Why: why, Form: f, Preview: &p, Filter: f.Where})
}

// run is a form that is being carried out, or was.
type run struct {
	id     string
	digest [sha256.Size]byte
	form   form // without the response
	total  int
	begun  time.Time
	stop   context.CancelFunc

	mu     sync.Mutex
	report semel.BulkReport
	ended  time.Time
	err    error
	asked  bool // to end
}

// runView is a run as it is shown.
type runView struct {
	ID      string
	Form    form
	Total   int
	Begun   time.Time
	Ended   time.Time
	Report  semel.BulkReport
	Err     error
	Asked   bool
	Percent int
}

func (r *run) view() runView {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := runView{ID: r.id, Form: r.form, Total: r.total, Begun: r.begun, Ended: r.ended, Report: r.report, Err: r.err, Asked: r.asked, Percent: 100}
	if v.Ended.IsZero() && r.total > 0 {
		v.Percent = min(100*(v.Report.Selected+v.Report.Lapsed)/r.total, 100)
	}
	return v
}

const maxRuns = 50 // that are remembered

var (
	errBusy   = errors.New("another run is under way")
	errOther  = errors.New("this form was sent before, with other content")
	errEnding = errors.New("the gateway is stopping")
)

// start carries a form out. Sent again, by a double click or a reload, it is the
// same run.
func (c *Console) start(w http.ResponseWriter, r *http.Request, s *session) {
	f, err := c.readForm(r)
	if err != nil || f.AsOf.IsZero() || !isNonce(f.Nonce) {
		c.failed(w, r, http.StatusBadRequest, "This form cannot be read.", err)
		return
	}
	if wrong, why := f.check(); wrong != "" {
		c.showPreview(w, r, f, wrong, why)
		return
	}
	total, _ := strconv.Atoi(r.PostFormValue("total"))
	one, err := c.begin(f, total)
	switch {
	case errors.Is(err, errBusy):
		c.failed(w, r, http.StatusConflict, "Another run is under way. This form changed nothing; wait for that run to end, or stop it, and send this again.", nil)
		return
	case errors.Is(err, errOther):
		c.failed(w, r, http.StatusUnprocessableEntity, "This form was sent before with other content. That was carried out; this was not.", nil)
		return
	case err != nil:
		c.failed(w, r, http.StatusServiceUnavailable, "The gateway is stopping. Nothing was changed.", err)
		return
	}
	c.mu.Lock()
	s.who = f.Who
	c.mu.Unlock()
	http.Redirect(w, r, Prefix+"runs/"+one.id, http.StatusSeeOther)
}

// isNonce reports whether a preview could have made it: it becomes part of a path.
func isNonce(s string) bool {
	return len(s) >= 16 && len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool { return !(r >= 'A' && r <= 'Z' || r >= '2' && r <= '7') })
}

func (c *Console) begin(f form, total int) (*run, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, known := range c.runs {
		if known.id == f.Nonce {
			if known.digest != f.digest() {
				return nil, errOther
			}
			return known, nil
		}
	}
	switch {
	case c.closed:
		return nil, errEnding
	case slices.ContainsFunc(c.runs, func(r *run) bool { return r.view().Ended.IsZero() }):
		return nil, errBusy
	}
	if len(c.runs) >= maxRuns {
		c.runs = slices.Delete(c.runs, 0, 1)
	}
	ctx, stop := context.WithCancel(c.ctx)
	one := &run{id: f.Nonce, digest: f.digest(), form: f, total: total, begun: time.Now(), stop: stop}
	one.form.Headers, one.form.Body = "", ""
	c.runs = append(c.runs, one)
	c.running.Go(func() {
		defer stop()
		report, err := c.carryOut(ctx, f, func(so semel.BulkReport) {
			one.mu.Lock()
			defer one.mu.Unlock()
			one.report = so
		})
		one.mu.Lock()
		defer one.mu.Unlock()
		one.report, one.err, one.ended = report, err, time.Now()
	})
	return one, nil
}

// carryOut settles what a form selects, as of the time of its preview, each record
// at its fence: whoever comes second changes nothing.
func (c *Console) carryOut(ctx context.Context, f form, progress func(semel.BulkReport)) (total semel.BulkReport, err error) {
	by := settle.By{Decision: settle.Decision(f.Way), Because: f.Because, Who: f.Who}
	if f.Way == "result" {
		if by.Answer, err = f.answer(); err != nil {
			return total, err
		}
	}
	total.AsOf = f.AsOf
	err = f.each(semel.BulkResolution{
		AsOf: f.AsOf, Decide: by.Decide, Origin: settle.Origin(f.Who), Parallel: settle.AtOnce,
		Progress: func(so semel.BulkReport) { progress(sum(total, so)) },
	}, func(b semel.BulkResolution) error {
		report, err := c.Guard.ResolveWhere(ctx, b)
		total = sum(total, report)
		progress(total)
		return err
	})
	return total, err
}

// find returns a run, or nil.
func (c *Console) findRun(id string) *run {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.runs {
		if r.id == id {
			return r
		}
	}
	return nil
}

func (c *Console) showRun(w http.ResponseWriter, r *http.Request, _ *session) {
	one := c.findRun(r.PathValue("id"))
	if one == nil {
		c.failed(w, r, http.StatusNotFound, "This gateway knows no such run: it has restarted since, or the run is another gateway's. What was settled is in the trail.", nil)
		return
	}
	v := one.view()
	name := "run"
	if r.URL.Query().Has("part") {
		name = "run-now"
	}
	c.show(w, r, http.StatusOK, name, view{Title: "Run", Run: &v})
}

// endRun has a run end as soon as the records under way are settled.
func (c *Console) endRun(w http.ResponseWriter, r *http.Request, _ *session) {
	if one := c.findRun(r.PathValue("id")); one != nil {
		one.mu.Lock()
		one.asked = true
		one.mu.Unlock()
		one.stop()
	}
	http.Redirect(w, r, Prefix+"runs/"+url.PathEscape(r.PathValue("id")), http.StatusSeeOther)
}

func (c *Console) listRuns(w http.ResponseWriter, r *http.Request, _ *session) {
	c.mu.Lock()
	runs := slices.Clone(c.runs)
	c.mu.Unlock()
	v := view{Title: "Runs"}
	for _, one := range runs {
		v.Runs = append(v.Runs, one.view())
	}
	slices.SortFunc(v.Runs, byAge)
	c.show(w, r, http.StatusOK, "runs", v)
}
