package lab

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/cmd/semel/internal/words"
)

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

//go:embed page.js
var pageJS string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"t":     func(string) string { return "" }, // that of the language, see show
	"keys":  func() []Requirement { return []Requirement{KeyRequired, KeyOptional, KeyIgnored} },
	"pct":   func(f float64) string { return fmt.Sprintf("%.2f%%", f) },
	"money": func(cents int64) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) },
	"ms":    func(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond)) },
	"clock": func(t time.Time) string { return t.Format("15:04:05.000") },
	"learn": func(name string) string { return lessonOf[name] },
}).Parse(pageHTML))

// Handler answers for the page, the app's API and the lab's own.
func (l *Lab) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, o := range Operations {
		for _, way := range []string{"POST /v1/", "POST /page/", "POST /hooks/", "POST /jobs/"} {
			mux.HandleFunc(way+o.Name, l.process.forward)
		}
		mux.HandleFunc("GET /jobs/"+o.Name+"/{id}", l.process.forward)
		mux.HandleFunc("POST /lab/deliver/"+o.Name, func(w http.ResponseWriter, r *http.Request) { l.deliver(w, r, o) })
		mux.HandleFunc("POST /lab/probe/"+o.Name, func(w http.ResponseWriter, r *http.Request) { l.startProbe(w, r, o) })
		mux.HandleFunc("GET /lab/plan/"+o.Name, func(w http.ResponseWriter, r *http.Request) {
			way := cmp.Or(r.FormValue("way"), Ways[0])
			if !slices.Contains(Ways, way) {
				problem(w, http.StatusBadRequest, "There is no such way: ?way= is one of "+strings.Join(Ways, ", ")+".")
				return
			}
			w.Header().Set("Content-Type", "application/yaml")
			_, _ = w.Write(Plan(r.Host, way, o, l.Switches(o.Name)))
		})
		mux.HandleFunc("GET /v1/"+o.Name, func(w http.ResponseWriter, r *http.Request) { l.listEffects(w, r, o) })
		mux.HandleFunc("GET /v1/"+o.Name+"/{id}", func(w http.ResponseWriter, r *http.Request) { l.oneEffect(w, r, o) })
	}
	mux.HandleFunc("POST /graphql", l.process.forward)
	mux.HandleFunc("POST /lab/crash", func(w http.ResponseWriter, _ *http.Request) {
		if !l.process.crash() {
			problem(w, http.StatusConflict, "The app is down already, or is no process of its own.")
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /lab/mails", func(w http.ResponseWriter, r *http.Request) {
		list := l.world.list(r.FormValue("operation"), r.FormValue("reference"), mostMails)
		writeJSON(w, http.StatusOK, map[string]any{"count": len(list), "items": list})
	})
	mux.HandleFunc("GET /lab/hooks", func(w http.ResponseWriter, r *http.Request) {
		list := l.world.hooks(r.FormValue("operation"), r.FormValue("reference"), mostMails)
		writeJSON(w, http.StatusOK, map[string]any{"count": len(list), "items": list})
	})
	mux.HandleFunc("GET /lab/audit", l.audit)
	mux.HandleFunc("GET /lab/trace/{id}", l.trace)
	mux.HandleFunc("GET /lab/trail", func(w http.ResponseWriter, r *http.Request) {
		reference, trace := r.FormValue("reference"), r.FormValue("trace")
		list, _ := l.trail.find(func(a *Attempt) bool {
			return (reference == "" || a.Reference == reference) && (trace == "" || a.Trace == trace)
		}, mostAttempts)
		writeJSON(w, http.StatusOK, map[string]any{"count": len(list), "items": list})
	})
	mux.HandleFunc("GET /lab/switches", func(w http.ResponseWriter, _ *http.Request) {
		all := map[string]Switches{}
		for _, o := range Operations {
			all[o.Name] = l.Switches(o.Name)
		}
		writeJSON(w, http.StatusOK, all)
	})
	mux.HandleFunc("PATCH /lab/switches/{operation}", l.patchSwitches)
	mux.HandleFunc("POST /lab/presets/{name}", l.choosePreset)
	mux.HandleFunc("POST /lab/reset", func(w http.ResponseWriter, r *http.Request) {
		if err := l.Reset(r.Context()); err != nil {
			problem(w, http.StatusInternalServerError, err.Error())
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /lab/report", l.showReport)
	l.addLessons(mux)
	mux.HandleFunc("GET /lab/events", l.events)
	mux.HandleFunc("GET /lab/now", func(w http.ResponseWriter, r *http.Request) { l.show(w, r, "now") })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { l.show(w, r, "page") })
	for name, text := range map[string][2]string{"page.css": {"text/css", pageCSS}, "page.js": {"text/javascript", pageJS}} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", text[0]+"; charset=utf-8")
			_, _ = io.WriteString(w, text[1])
		})
	}
	safe := http.NewCrossOriginProtection().Handler(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		safe.ServeHTTP(w, r)
	})
}

// listEffects answers what was done for the caller's tenant.
func (l *Lab) listEffects(w http.ResponseWriter, r *http.Request, o *Operation) {
	who, ok := callerOf(r)
	if !ok {
		problem(w, http.StatusUnauthorized, "Send Authorization: Bearer alice@acme.")
		return
	}
	list, err := l.Effects(r.Context(), o, who.Tenant, r.FormValue("reference"), mostAttempts)
	if err != nil {
		problem(w, http.StatusInternalServerError, err.Error())
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"count": len(list), "items": list})
}

func (l *Lab) oneEffect(w http.ResponseWriter, r *http.Request, o *Operation) {
	who, ok := callerOf(r)
	if !ok {
		problem(w, http.StatusUnauthorized, "Send Authorization: Bearer alice@acme.")
		return
	}
	list, err := l.Effects(r.Context(), o, who.Tenant, "", mostAttempts)
	if err != nil {
		problem(w, http.StatusInternalServerError, err.Error())
		return
	}
	for _, e := range list {
		if e.ID == r.PathValue("id") {
			writeJSON(w, http.StatusOK, e)
			return
		}
	}
	problem(w, http.StatusNotFound, "There is no such thing, or it is another tenant's.")
}

// patchSwitches changes what the body names. The operation "all" stands for each.
func (l *Lab) patchSwitches(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		problem(w, http.StatusBadRequest, "The body cannot be read.")
		return
	}
	name, found := r.PathValue("operation"), false
	for _, o := range Operations {
		if name != "all" && name != o.Name {
			continue
		}
		found = true
		s, err := l.Switches(o.Name).change(text)
		if err == nil {
			err = l.Set(o.Name, s)
		}
		if err != nil {
			problem(w, http.StatusBadRequest, err.Error())
			return
		}
	}
	if !found {
		problem(w, http.StatusNotFound, "There is no such operation.")
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// choosePreset sets the switches of ?operation=, or of all.
func (l *Lab) choosePreset(w http.ResponseWriter, r *http.Request) {
	p, err := FindPreset(r.PathValue("name"))
	if err == nil {
		err = l.Set(r.FormValue("operation"), p.Switches)
	}
	if err != nil {
		problem(w, http.StatusNotFound, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// events tells by server-sent events that there is something new, at most ten
// times a second, until the client goes.
func (l *Lab) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	response, was, known := http.NewResponseController(w), false, -1
	for {
		_, changed := l.trail.list("", 0)
		if up, starts := l.process.up(); up != was || starts != known {
			// That the app died and came back is told by name.
			was, known = up, starts
			if _, err := fmt.Fprintf(w, "event: app\ndata: {\"up\": %v, \"starts\": %d}\n\n", up, starts); err != nil {
				return
			}
		}
		if _, err := io.WriteString(w, "data: changed\n\n"); err != nil || response.Flush() != nil {
			return
		}
		if wait(r.Context(), 100*time.Millisecond) != nil {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// view is what the page shows.
type view struct {
	Lang       string
	Operations []*Operation
	Operation  *Operation
	Presets    []Preset
	Preset     string // the one that the switches are of, if any
	Switches   Switches
	Toggles    []Toggle
	Who        string

	Reference string
	Attempts  []lane // with Reference, the first one first
	Effects   []Effect
	Drafts    []Effect
	Mails     []Mail
	Hooks     []Mail
	Incidents []Incident
	Balance   int64
	Latest    []Attempt // of all references
	Probing   probing
	Audit     Audit
	Up        bool // the app answers
	Starts    int  // of the app
}

// lane is an attempt in the drawing of the time: where it lies, in percent.
type lane struct {
	Attempt
	Left, Width float64
	Marks       []mark
}

type mark struct {
	Left float64
	What string
}

// whole or part of the page: for ?operation=, ?reference= and ?lang=.
func (l *Lab) show(w http.ResponseWriter, r *http.Request, what string) {
	v := view{
		Lang: words.Language(r), Operations: Operations, Operation: Operations[0], Presets: Presets, Toggles: Toggles,
		Who: "alice@acme", Reference: r.FormValue("reference"),
	}
	for _, o := range Operations {
		if o.Name == r.FormValue("operation") {
			v.Operation = o
		}
	}
	v.Switches = l.Switches(v.Operation.Name)
	for _, p := range Presets {
		if p.Switches == v.Switches {
			v.Preset = p.Name
		}
	}
	l.probingMu.Lock()
	v.Probing = l.probing
	l.probingMu.Unlock()
	v.Up, v.Starts = l.process.up()
	v.Latest, _ = l.trail.list("", 12)
	all, _ := l.trail.list("", mostAttempts)
	v.Audit = auditOf(v.Operation.Name, all)
	var err error
	if v.Reference != "" {
		attempts, _ := l.trail.list(v.Reference, 50)
		v.Attempts = lanes(attempts)
		v.Mails, v.Hooks = l.world.list(v.Operation.Name, v.Reference, 50), l.world.hooks(v.Operation.Name, v.Reference, 50)
		if v.Effects, err = l.Effects(r.Context(), v.Operation, "acme", v.Reference, 50); err == nil {
			v.Incidents = explain(v.Operation, v.Switches, attempts, len(v.Effects), len(v.Mails))
			v.Drafts, err = l.Drafts(r.Context(), v.Operation, "acme", v.Reference, 50)
			v.Incidents = append(v.Incidents, leftBehind(v.Operation, v.Switches, attempts, len(v.Effects), len(v.Drafts))...)
		}
	}
	if err == nil {
		v.Balance, err = l.balance(r.Context(), caller{"acme", "alice"})
	}
	if err != nil {
		problem(w, http.StatusInternalServerError, err.Error())
		return
	}
	page, err := pageTemplate.Clone()
	if err != nil {
		problem(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = page.Funcs(template.FuncMap{"t": japanese.In(v.Lang)}).ExecuteTemplate(w, what, v) // who has gone does not read it
}

// lanes places attempts, which come the latest first, in the time that they took
// together.
func lanes(attempts []Attempt) (list []lane) {
	if len(attempts) == 0 {
		return nil
	}
	begin, end := attempts[len(attempts)-1].Begun, attempts[0].Begun
	for _, a := range attempts {
		done := a.Begun.Add(a.Took)
		if a.Status == 0 && !a.Died {
			done = time.Now()
		}
		if done.After(end) {
			end = done
		}
	}
	span := max(float64(end.Sub(begin)), 1)
	at := func(t time.Time) float64 { return min(max(float64(t.Sub(begin))/span*100, 0), 100) }
	for i := len(attempts) - 1; i >= 0; i-- {
		a := attempts[i]
		n := lane{Attempt: a, Left: at(a.Begun), Width: 100 - at(a.Begun)}
		if a.Status != 0 || a.Died {
			n.Width = at(a.Begun.Add(a.Took)) - n.Left
		}
		for _, s := range a.Steps {
			n.Marks = append(n.Marks, mark{at(a.Begun.Add(s.After)), s.What})
		}
		list = append(list, n)
	}
	return list
}

//go:embed ja.json
var jaJSON []byte

var japanese = words.Load(jaJSON)
