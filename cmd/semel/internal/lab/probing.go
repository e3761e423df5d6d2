package lab

import (
	"bytes"
	"context"
	"net/http"
	"time"

	"github.com/semelhq/semel/probe"
	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/plan"
	"github.com/semelhq/semel/probe/report"
)

// probing is a run of the probe against the lab itself, from the page. There is one
// at a time, and the latest is kept.
type probing struct {
	Operation string // of the latest; empty for none
	Running   string // the experiment that is under way
	Sent      int
	Err       string
	Verdict   []evidence.Field
	Findings  []evidence.Finding
	report    []byte
	stop      context.CancelFunc
	ended     chan struct{}
}

// changeProbing changes the run, and tells those who look.
func (l *Lab) changeProbing(f func(p *probing)) {
	l.probingMu.Lock()
	f(&l.probing)
	l.probingMu.Unlock()
	l.trail.change(func() {})
}

// startProbe has the probe judge an operation, as its switches are now.
func (l *Lab) startProbe(w http.ResponseWriter, r *http.Request, o *Operation) {
	to, ok := r.Context().Value(http.LocalAddrContextKey).(interface{ String() string })
	if !ok {
		problem(w, http.StatusInternalServerError, "The lab does not know where it listens.")
		return
	}
	text := Plan(to.String(), "rest", o, l.Switches(o.Name))
	p, err := plan.Parse("lab.yaml", text)
	if err != nil {
		problem(w, http.StatusInternalServerError, err.Error())
		return
	}
	busy, ended := false, make(chan struct{})
	ctx, stop := context.WithCancel(context.Background())
	l.changeProbing(func(q *probing) {
		if busy = q.Running != "" || q.ended == closedLab; busy {
			return
		}
		q.Operation, q.Running, q.Sent, q.Err, q.Verdict, q.Findings, q.report = o.Name, "…", 0, "", nil, nil, nil
		q.stop, q.ended = stop, ended
	})
	if busy {
		stop()
		w.Header().Set("Retry-After", "5")
		problem(w, http.StatusConflict, "The probe is running.")
		return
	}
	go func() {
		defer close(ended)
		defer stop()
		result, err := probe.Run(ctx, p, probe.Options{
			Send: true, Full: true, Skip: []plan.Experiment{plan.LateRetry, plan.RetentionEdge},
			Progress: func(e probe.Event) {
				l.changeProbing(func(q *probing) { q.Running, q.Sent = string(e.Experiment), e.Sent })
			},
		})
		var page bytes.Buffer
		if result != nil && result.Run != nil {
			_ = report.HTML(&page, result.Run, report.Extra{Plan: string(text)}) // to memory
		}
		l.changeProbing(func(q *probing) {
			q.Running = ""
			if err != nil {
				q.Err = err.Error()
			}
			if page.Len() > 0 {
				q.report = page.Bytes()
				q.Verdict, q.Findings = result.Run.Operations[0].Verdict.Fields(), result.Run.Operations[0].Findings
			}
		})
	}()
	w.WriteHeader(http.StatusAccepted)
}

// closedLab stands for a lab in which nothing is started any more.
var closedLab = make(chan struct{})

// endProbe stops the run, if there is one, and waits for its end.
func (l *Lab) endProbe() {
	l.probingMu.Lock()
	stop, ended := l.probing.stop, l.probing.ended
	l.probing.ended = closedLab
	l.probingMu.Unlock()
	if stop != nil {
		stop()
		<-ended
	}
}

func (l *Lab) showReport(w http.ResponseWriter, r *http.Request) {
	l.probingMu.Lock()
	page := l.probing.report
	l.probingMu.Unlock()
	if page == nil {
		problem(w, http.StatusNotFound, "The probe has not judged anything yet.")
		return
	}
	w.Header().Del("Content-Security-Policy") // the report has its own
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(page))
}
