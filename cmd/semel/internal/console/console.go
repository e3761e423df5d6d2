package console

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/cmd/semel/internal/gatewayfile"
	"github.com/semelhq/semel/cmd/semel/internal/settle"
	"github.com/semelhq/semel/cmd/semel/internal/words"
)

// Prefix is the path of the page. Cookies know no ports, so with a path of its own
// its cookie is not sent to what else this host serves.
const Prefix = "/console/"

// Store is what the page needs of one.
type Store interface {
	semel.Store
	semel.Lister
	semel.Trail
}

// Config is what the page is made of. All fields are required.
type Config struct {
	// Gate has the token that opens the page. Without one the page only says so.
	Gate  *Gate
	Store Store
	// Guard settles. Its store is Store.
	Guard *semel.Guard
	// Metrics are the gateway's.
	Metrics prometheus.Gatherer
	// Configuration is the one in force, without secrets.
	Configuration func() gatewayfile.Explanation
	// Ready says what the gateway is not ready for; "" if it is ready.
	Ready func() string
}

// Console is the page. New makes one.
type Console struct {
	Config
	ctx      context.Context // of runs
	stop     context.CancelFunc
	lookTime time.Duration

	mu       sync.Mutex
	sessions map[[sha256.Size]byte]*session
	runs     []*run // the oldest first
	closed   bool
	running  sync.WaitGroup

	history history
	counted counted
}

type session struct {
	ends time.Time
	who  string // as the operator last named himself
}

const (
	sessionLife = 8 * time.Hour
	maxSessions = 64
	maxForm     = 1 << 20
	pageRows    = 50
	trailRows   = 200
	callTime    = 20 * time.Second // for what one page asks of the store
	lookTime    = 12 * time.Second // of that, for a preview
	cookieName  = "semel-console"
)

// New returns a page. Run has to be called for it, and Close at its end.
func New(c Config) *Console {
	ctx, stop := context.WithCancel(context.Background())
	return &Console{Config: c, ctx: ctx, stop: stop, lookTime: lookTime, sessions: map[[sha256.Size]byte]*session{}}
}

// Run remembers how the metrics go, until ctx ends.
func (c *Console) Run(ctx context.Context) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if families, err := c.Metrics.Gather(); err == nil {
			c.history.add(sampleOf(time.Now(), families))
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// Close ends what is being settled as soon as the records under way are, and
// returns then. No other run is begun.
func (c *Console) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stop()
	c.running.Wait()
}

//go:embed console.html
var pageHTML string

//go:embed console.css
var pageCSS string

//go:embed console.js
var pageJS string

//go:embed ja.json
var jaJSON []byte

var japanese = words.Load(jaJSON)

var pages = template.Must(template.New("console").Funcs(template.FuncMap{
	"t":      func(string) string { return "" }, // that of the language
	"p":      printable,
	"digest": func(s string) string { return semel.Digest(s) },
	"stamp":  stamp,
	"ago":    func(t time.Time) string { return span(time.Since(t)) },
	"span":   span,
	"rate":   func(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) },
	"count":  group,
	"states": func() []string { return []string{"in_progress", "lapsed", "unknown", "completed"} },
	"state":  stateOf,
	"open":   settleable,
	"dict":   func(a, b any) map[string]any { return map[string]any{"A": a, "B": b} },
	"query":  func(v url.Values) template.URL { return template.URL(v.Encode()) },
}).Parse(pageHTML))

// Handler answers for everything under Prefix.
func (c *Console) Handler() http.Handler {
	inside := http.NewServeMux()
	for pattern, h := range map[string]func(http.ResponseWriter, *http.Request, *session){
		"GET /console/{$}":            c.overview,
		"GET /console/now":            c.now,
		"GET /console/records":        c.records,
		"POST /console/find":          c.find,
		"GET /console/records/{id}":   c.record,
		"POST /console/settle":        c.preview,
		"GET /console/runs":           c.listRuns,
		"POST /console/runs":          c.start,
		"GET /console/runs/{id}":      c.showRun,
		"POST /console/runs/{id}/end": c.endRun,
		"GET /console/configuration":  c.configuration,
		"POST /console/logout":        c.logout,
	} {
		inside.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			s, wait := c.session(r)
			if s == nil {
				c.showLogin(w, r, wait, "")
				return
			}
			h(w, r, s)
		})
	}
	inside.HandleFunc("POST /console/login", c.login)
	for name, text := range map[string][2]string{"console.css": {"text/css", pageCSS}, "console.js": {"text/javascript", pageJS}} {
		inside.HandleFunc("GET "+Prefix+name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", text[0]+"; charset=utf-8")
			_, _ = io.WriteString(w, text[1])
		})
	}
	safe := http.NewCrossOriginProtection().Handler(inside)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		ctx, cancel := context.WithTimeout(r.Context(), callTime)
		defer cancel()
		safe.ServeHTTP(w, r.WithContext(ctx))
	})
}

// session returns that of the request, or nil. A program may send the token with
// each request instead; wait is then for how long not to.
func (c *Console) session(r *http.Request) (s *session, wait time.Duration) {
	if token, given := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); given {
		ok, wait := c.Gate.Admit(r, token)
		if ok {
			return &session{}, 0
		}
		return nil, wait
	}
	cookie, err := r.Cookie(cookieName)
	if err != nil {
		return nil, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s = c.sessions[sha256.Sum256([]byte(cookie.Value))]
	if s == nil || time.Now().After(s.ends) {
		return nil, 0
	}
	return s, 0
}

func (c *Console) login(w http.ResponseWriter, r *http.Request) {
	if ok, wait := c.Gate.Admit(r, strings.TrimSpace(r.PostFormValue("token"))); !ok {
		c.showLogin(w, r, wait, "This is not the admin token.")
		return
	}
	value := rand.Text()
	now := time.Now()
	c.mu.Lock()
	for id, s := range c.sessions {
		if now.After(s.ends) {
			delete(c.sessions, id)
		}
	}
	if len(c.sessions) >= maxSessions {
		var oldest [sha256.Size]byte
		for id, s := range c.sessions {
			if first := c.sessions[oldest]; first == nil || s.ends.Before(first.ends) {
				oldest = id
			}
		}
		delete(c.sessions, oldest)
	}
	c.sessions[sha256.Sum256([]byte(value))] = &session{ends: now.Add(sessionLife)}
	c.mu.Unlock()
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: value, Path: Prefix, MaxAge: int(sessionLife.Seconds()), HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
	http.Redirect(w, r, Prefix, http.StatusSeeOther)
}

func (c *Console) logout(w http.ResponseWriter, r *http.Request, _ *session) {
	if cookie, err := r.Cookie(cookieName); err == nil {
		c.mu.Lock()
		delete(c.sessions, sha256.Sum256([]byte(cookie.Value)))
		c.mu.Unlock()
	}
	http.SetCookie(w, &http.Cookie{Name: cookieName, Path: Prefix, MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, Prefix, http.StatusSeeOther)
}

// showLogin asks for the token. wait is for how long not to try again.
func (c *Console) showLogin(w http.ResponseWriter, r *http.Request, wait time.Duration, wrong string) {
	status, v := http.StatusUnauthorized, view{Title: "Log in", Wrong: wrong, NoToken: !c.Gate.open}
	if wait > 0 {
		w.Header().Set("Retry-After", RetryAfter(wait))
		status, v = http.StatusTooManyRequests, view{Title: "Log in", Wrong: "Too many wrong tokens were given. Wait a minute and try again."}
	}
	c.show(w, r, status, "login", v)
}

// view is what a page shows.
type view struct {
	Lang, Path, Title string
	Query             url.Values // of the page, for the other language
	Wrong             string     // in a few words, that are translated
	Why               string     // more on that, which is not
	NoToken, Out      bool

	Now     *now
	Filter  filter
	Found   bool // by key
	List    []semel.Record
	Next    url.Values
	Record  *semel.Record
	Trail   []semel.TrailEntry
	More    bool
	Known   known
	Form    form
	Preview *preview
	Run     *runView
	Runs    []runView
	Config  *gatewayfile.Explanation
}

// show writes a page.
func (c *Console) show(w http.ResponseWriter, r *http.Request, status int, name string, v view) {
	v.Lang, v.Path, v.Out = words.Language(r), r.URL.Path, name == "login"
	if lang := r.URL.Query().Get("lang"); lang == v.Lang {
		http.SetCookie(w, &http.Cookie{Name: "lang", Value: lang, Path: Prefix, MaxAge: 365 * 24 * 3600, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	}
	v.Query = r.URL.Query()
	if r.Method == http.MethodPost {
		v.Path, v.Query = Prefix, url.Values{}
	}
	v.Query.Del("lang")
	page, err := pages.Clone()
	var out bytes.Buffer
	if err == nil {
		err = page.Funcs(template.FuncMap{"t": japanese.In(v.Lang)}).ExecuteTemplate(&out, name, v)
	}
	if err != nil {
		http.Error(w, "The page cannot be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = out.WriteTo(w)
}

// failed shows that something could not be done.
func (c *Console) failed(w http.ResponseWriter, r *http.Request, status int, wrong string, err error) {
	v := view{Title: "That did not work", Wrong: wrong}
	if err != nil {
		v.Why = err.Error()
	}
	c.show(w, r, status, "failed", v)
}

const storeFailed = "The store does not respond correctly. Nothing was changed; a retry is safe."

func (c *Console) overview(w http.ResponseWriter, r *http.Request, _ *session) {
	c.show(w, r, http.StatusOK, "overview", view{Title: "Overview", Now: c.look(r.Context())})
}

// now is the part of the overview that changes.
func (c *Console) now(w http.ResponseWriter, r *http.Request, _ *session) {
	c.show(w, r, http.StatusOK, "now", view{Now: c.look(r.Context())})
}

func (c *Console) configuration(w http.ResponseWriter, r *http.Request, _ *session) {
	c.show(w, r, http.StatusOK, "configuration", view{Title: "Configuration", Config: new(c.Configuration())})
}

// filter is which records are listed, as it was written.
type filter struct {
	State, Operation, Tenant, Actor, Cause, Since, Until string
}

func filterOf(v url.Values) filter {
	get := func(name string) string { return strings.TrimSpace(v.Get(name)) }
	return filter{get("state"), get("operation"), get("tenant"), get("actor"), get("cause"), get("since"), get("until")}
}

// values are those of the filter that are set.
func (f filter) values() url.Values {
	v := url.Values{}
	for name, value := range map[string]string{
		"state": f.State, "operation": f.Operation, "tenant": f.Tenant, "actor": f.Actor, "cause": f.Cause, "since": f.Since, "until": f.Until,
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return v
}

var errTime = errors.New("write a time as 2026-11-21T09:00:00Z, or a duration such as 90m for that long ago")

// parse returns what the store is asked.
func (f filter) parse() (out semel.Filter, err error) {
	out = semel.Filter{Operation: f.Operation, Tenant: f.Tenant, Actor: f.Actor, Cause: f.Cause}
	switch f.State {
	case "":
	case "lapsed":
		out.Lapsed = true
	default:
		err = out.State.UnmarshalText([]byte(f.State))
	}
	for text, into := range map[string]*time.Time{f.Since: &out.BegunSince, f.Until: &out.BegunUntil} {
		if text == "" || err != nil {
			continue
		}
		ok := false
		if *into, ok = settle.PointInTime(text); !ok {
			err = errTime
		}
	}
	return out, err
}

func (c *Console) records(w http.ResponseWriter, r *http.Request, s *session) {
	v := view{Title: "Records", Filter: filterOf(r.URL.Query()), Form: c.formFor(s)}
	f, err := v.Filter.parse()
	if err != nil {
		v.Wrong, v.Why = "This filter cannot be read.", err.Error()
		c.show(w, r, http.StatusBadRequest, "records", v)
		return
	}
	f.After, _ = strconv.ParseUint(r.URL.Query().Get("after"), 10, 64)
	f.Limit = pageRows
	if v.List, err = c.Store.List(r.Context(), f); err != nil {
		c.failed(w, r, http.StatusServiceUnavailable, storeFailed, err)
		return
	}
	if len(v.List) == pageRows {
		v.Next = v.Filter.values()
		v.Next.Set("after", strconv.FormatUint(v.List[pageRows-1].Fence, 10))
	}
	c.show(w, r, http.StatusOK, "records", v)
}

// find lists the records with a key. It is a POST, so that no key is in a URL.
func (c *Console) find(w http.ResponseWriter, r *http.Request, s *session) {
	v := view{Title: "Records", Found: true, Form: c.formFor(s)}
	if key := strings.TrimSpace(r.PostFormValue("key")); key != "" {
		var err error
		if v.List, err = c.Store.List(r.Context(), semel.Filter{Key: key, Limit: pageRows}); err != nil {
			c.failed(w, r, http.StatusServiceUnavailable, storeFailed, err)
			return
		}
	}
	c.show(w, r, http.StatusOK, "records", v)
}

// known is what the trail tells of an unknown outcome.
type known struct {
	Attempts int    // claims: the first, and takeovers
	Asked    uint64 // later requests with the key that were answered
	Last     time.Time
}

func (c *Console) record(w http.ResponseWriter, r *http.Request, s *session) {
	id := r.PathValue("id")
	list, err := c.Store.List(r.Context(), semel.Filter{ID: id, Limit: 1})
	var trail []semel.TrailEntry
	if err == nil {
		trail, err = c.Store.Trail(r.Context(), semel.TrailFilter{RecordID: id, Limit: trailRows})
	}
	if err == nil && len(list) == 1 && list[0].State == semel.StateCompleted {
		// A listing comes without the result; what is shown of it is its label and size.
		rec, e := c.Store.Find(r.Context(), list[0].Identity)
		if e == nil && rec.ID == id {
			list[0] = rec
		}
	}
	switch {
	case err != nil:
		c.failed(w, r, http.StatusServiceUnavailable, storeFailed, err)
		return
	case len(list) == 0 && len(trail) == 0:
		c.failed(w, r, http.StatusNotFound, "There is no such record: it has expired, was released, or is in another store.", nil)
		return
	}
	v := view{Title: "Record", Trail: trail, More: len(trail) == trailRows, Form: c.formFor(s), Known: known{Attempts: 1}}
	for _, e := range trail {
		switch e.Kind {
		case semel.TrailTakeover:
			v.Known.Attempts++
		case semel.TrailReplayed, semel.TrailInProgress, semel.TrailMismatch, semel.TrailUnknown:
			v.Known.Asked += max(e.Count, 1)
			v.Known.Last = e.At
		}
	}
	if len(list) == 1 {
		v.Record = &list[0]
		v.Form.Records = []string{ticket(list[0])}
	}
	c.show(w, r, http.StatusOK, "record", v)
}

// ticket names a record as it was seen.
func ticket(r semel.Record) string { return r.ID + "@" + strconv.FormatUint(r.Fence, 10) }

func settleable(r semel.Record) bool {
	return r.State == semel.StateUnknown || r.Lapsed() && !r.Reopened
}

func stateOf(r semel.Record) string {
	switch {
	case r.Reopened:
		return "reopened"
	case r.Lapsed():
		return "lapsed"
	}
	return r.State.String()
}

// printable is s without what a browser might obey, such as marks that turn the
// direction of the text around.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05.000Z")
}

// span is a duration in one or two units.
func span(d time.Duration) string {
	d = d.Abs()
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// group writes a number with its thousands apart.
func group(n any) string {
	digits := []byte(fmt.Sprint(n))
	for i := len(digits) - 3; i > 0 && digits[i-1] >= '0' && digits[i-1] <= '9'; i -= 3 {
		digits = slices.Insert(digits, i, ',')
	}
	return string(digits)
}
