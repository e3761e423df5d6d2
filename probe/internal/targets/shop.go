package targets

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// order is an effect.
type order struct {
	ID        string `json:"id"`
	Reference string `json:"reference"`
	Item      string `json:"item"`
	Quantity  int    `json:"quantity"`
	Tenant    string `json:"tenant"`
	Actor     string `json:"actor"`
	Status    string `json:"status"`
}

// caller is who sends a request.
type caller struct{ tenant, actor string }

// shop is the honest state of a target: whatever a target answers, what it did
// is here.
type shop struct {
	mu     sync.Mutex
	lastID int
	orders []order
	mails  []string // the reference of each
	lines  []string // the audit log

	sink   string // URL, empty for none
	client *http.Client
	silent bool // writes no audit

	failing atomic.Bool // making orders fails

	busy    int        // requests and background work under way
	changed *sync.Cond // orders, or busy down to none
}

func (s *shop) begin() {
	s.mu.Lock()
	s.busy++
	s.mu.Unlock()
}

func (s *shop) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy--; s.busy == 0 {
		s.tell()
	}
}

// tell wakes who waits. It needs mu.
func (s *shop) tell() {
	if s.changed != nil {
		s.changed.Broadcast()
	}
}

// await returns when f, called under mu, is true.
func (s *shop) await(f func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = sync.NewCond(&s.mu)
	}
	for !f() {
		s.changed.Wait()
	}
}

// mint returns a new id of an order, which does not exist yet.
func (s *shop) mint() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastID++
	return "ord_" + strconv.Itoa(s.lastID)
}

// add makes the order. This is the effect.
func (s *shop) add(o order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.orders = append(s.orders, o)
	s.tell()
}

// find returns the first order that f accepts.
func (s *shop) find(f func(order) bool) (order, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.orders, f); i >= 0 {
		return s.orders[i], true
	}
	return order{}, false
}

func (s *shop) list(ref string) []order {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []order{}
	for _, o := range s.orders {
		if o.Reference == ref {
			list = append(list, o)
		}
	}
	return list
}

// mail tells the outside world of an order.
func (s *shop) mail(o order) {
	s.mu.Lock()
	s.mails = append(s.mails, o.Reference)
	sink := s.sink
	s.mu.Unlock()
	if sink == "" {
		return
	}
	body, _ := json.Marshal(map[string]string{"event": "order.created", "reference": o.Reference, "order": o.ID})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, sink, bytes.NewReader(body))
	if err != nil {
		return
	}
	req.Header.Set("Content-Type", "application/json")
	if resp, err := s.client.Do(req); err == nil {
		_ = resp.Body.Close()
	}
}

func (s *shop) mailed(ref string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []string{}
	for _, m := range s.mails {
		if m == ref {
			list = append(list, m)
		}
	}
	return list
}

// audit writes a line. An empty value is written as a dash.
func (s *shop) audit(r *http.Request, who caller, operation, key, ref, outcome string) {
	dash := func(v string) string {
		if v == "" {
			return "-"
		}
		return strings.ReplaceAll(v, " ", "_")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.silent {
		return
	}
	s.lines = append(s.lines, fmt.Sprintf("operation=%s tenant=%s actor=%s key=%s request_id=%s reference=%s outcome=%s",
		operation, dash(who.tenant), dash(who.actor), dash(key), dash(r.Header.Get("X-Request-Id")), dash(ref), outcome))
}

func (s *shop) auditLines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.lines...)
}

// later runs f in the background; wait waits for it.
func (s *shop) later(f func()) {
	s.begin()
	go func() {
		defer s.end()
		f()
	}()
}

// pause waits, until the context ends at the latest, and reports whether it
// waited in full.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// read answers what does not change anything.
func (s *shop) read(mux *http.ServeMux) {
	mux.HandleFunc("GET /orders", func(w http.ResponseWriter, r *http.Request) {
		list := s.list(r.URL.Query().Get("ref"))
		writeJSON(w, http.StatusOK, map[string]any{"count": len(list), "orders": list})
	})
	mux.HandleFunc("GET /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		o, ok := s.find(func(o order) bool { return o.ID == r.PathValue("id") })
		if !ok {
			problem(w, http.StatusNotFound, "no such order")
			return
		}
		writeJSON(w, http.StatusOK, o)
	})
	mux.HandleFunc("GET /mails", func(w http.ResponseWriter, r *http.Request) {
		list := s.mailed(r.URL.Query().Get("ref"))
		writeJSON(w, http.StatusOK, map[string]any{"count": len(list), "mails": list})
	})
	mux.HandleFunc("GET /audit", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, s.auditLines())
	})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // not with what is given here
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// problem answers with problem details (RFC 9457). More members come as pairs.
func problem(w http.ResponseWriter, status int, title string, members ...any) {
	p := map[string]any{"type": "about:blank", "title": title, "status": status}
	for i := 0; i+1 < len(members); i += 2 {
		p[members[i].(string)] = members[i+1]
	}
	w.Header().Set("Content-Type", "application/problem+json")
	body, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
