package targets

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel/probe/plan"
)

// Reach returns targets that take more than a request to reach: a session, a
// cart, GraphQL, a status elsewhere, readers of other forms. Behind that they are as those of All.
func Reach() []Target {
	list := append(reached("", rules{}), reached("-ignores-key", rules{keyless: true, optional: true})...)
	list = append(append(list, accepting()...), putters()...)
	for i := range list {
		if list[i].Experiments == nil {
			list[i].Experiments = all
		}
	}
	return list
}

// reached are the targets of Reach with the rules of an API by the draft.
func reached(suffix string, r rules) []Target {
	r.keyHeader, r.marker = "Idempotency-Key", Marker
	r.takes = 20 * time.Millisecond
	front := func(name, about string, wrap func(*api, http.Handler) http.Handler, adapt func(*plan.Plan, *Server)) Target {
		t := draft(name+suffix, about, r)
		t.make = func() *Service {
			a := newAPI(r)
			return newService(&a.shop, wrap(a, a.handler()))
		}
		t.adapt = adapt
		t.Experiments = all
		if r.keyless {
			return t.finds("double-effect-sequential", "double-effect-race").may(unprotected...).
				outcome(outcomes{plan.Duplicate: broken, plan.RaceSame: broken})
		}
		t.Expect.Outcomes = allHeld()
		t.Expect.Verdict = rightVerdict()
		return t
	}
	return []Target{
		front("signs-in", "wants a token that lasts two seconds, and a cart for each order", newSessions, signsIn),
		front("graphql", "speaks GraphQL: the status is 200, whatever happened", newGraphQL, speaksGraphQL),
		front("searched", "has its state read by POST, in pages of XML", newSearch, searched),
		front("listed", "has its state read in pages of plain text", newListing, listed),
	}
}

// sessions is a front that wants tokens and carts.
type sessions struct {
	next http.Handler

	mu     sync.Mutex
	n      int
	tokens map[string]grant
	carts  map[string]string // the reference of the order that used it up
}

type grant struct {
	who   caller
	until time.Time
	again bool // it is good for another token, and for nothing else
}

// tokensLast is how long a token can be used, in virtual time.
const tokensLast = 2 * time.Second

// Passwords of the users of signs-in.
var users = map[string]caller{"alice": {"acme", "alice"}, "bob": {"acme", "bob"}, "carol": {"globex", "carol"}}

func newSessions(_ *api, next http.Handler) http.Handler {
	return &sessions{next: next, tokens: map[string]grant{}, carts: map[string]string{}}
}

func (s *sessions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/openapi.json" {
		s.next.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	s.mu.Lock()
	if r.URL.Path == "/token" {
		defer s.mu.Unlock()
		s.grant(w, r)
		return
	}
	t, ok := s.tokens[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	switch {
	case !ok, t.again, time.Now().After(t.until):
		s.mu.Unlock()
		problem(w, http.StatusUnauthorized, "the token is missing or has expired")
		return
	case r.URL.Path == "/carts":
		s.n++
		id := "cart_" + strconv.Itoa(s.n)
		s.carts[id] = ""
		s.mu.Unlock()
		w.Header().Set("Location", "/carts/"+id)
		w.WriteHeader(http.StatusCreated)
		return
	case r.Method == http.MethodPost:
		// A cart is for one order: whoever has its reference may repeat it.
		var order struct{ Cart, Reference string }
		_ = json.Unmarshal(body, &order)
		used, known := s.carts[order.Cart]
		if !known || used != "" && used != order.Reference {
			s.mu.Unlock()
			problem(w, http.StatusGone, "there is no such cart")
			return
		}
		s.carts[order.Cart] = order.Reference
	}
	s.mu.Unlock()
	r.Header.Set("X-Tenant", t.who.tenant)
	r.Header.Set("X-Actor", t.who.actor)
	s.next.ServeHTTP(w, r)
}

func (s *sessions) grant(w http.ResponseWriter, r *http.Request) {
	who, ok := users[r.FormValue("user")]
	ok = ok && r.FormValue("password") == "the password of "+r.FormValue("user")
	if old, is := s.tokens[r.FormValue("refresh_token")]; is && old.again {
		who, ok = old.who, true
	}
	if !ok {
		problem(w, http.StatusUnauthorized, "user or password are wrong")
		return
	}
	s.n++
	access, again := fmt.Sprintf("access token %d of %s", s.n, who.actor), fmt.Sprintf("refresh token %d of %s", s.n, who.actor)
	s.tokens[access] = grant{who: who, until: time.Now().Add(tokensLast)}
	s.tokens[again] = grant{who: who, again: true}
	writeJSON(w, http.StatusOK, map[string]any{
		"access_token": access, "refresh_token": again, "expires_in": int(tokensLast / time.Second),
		// What is secret need not be called so.
		"seat": fmt.Sprintf("a seat %d of %s", s.n, who.actor),
	})
}

func signsIn(p *plan.Plan, s *Server) {
	for name, user := range map[plan.PrincipalName]string{plan.ActorA: "alice", plan.ActorB: "bob", plan.TenantB: "carol"} {
		pr := p.Principals.Get(name)
		pr.Headers = plan.Header{{Name: "Authorization", Value: "Bearer {{.token}}"}}
		pr.Attributes = plan.Pairs{{Name: "user", Value: user}, {Name: "password", Value: `{{env "PASSWORD_OF_` + user + `"}}`}}
	}
	form := plan.Header{{Name: "Content-Type", Value: "application/x-www-form-urlencoded"}}
	p.Steps = []plan.Step{{
		Name: "sign-in", Each: "principal",
		Request: plan.Request{Method: "POST", URL: s.URL + "/token", Headers: form, Body: &plan.Body{Text: new("user={{.principal.user}}&password={{.principal.password | url}}")}},
		Take:    []plan.Taking{{Name: "token", Pointer: new(plan.Pointer("/access_token"))}, {Name: "again", Pointer: new(plan.Pointer("/refresh_token"))}, {Name: "seat", Pointer: new(plan.Pointer("/seat"))}},
		// Whatever the response says, it can come too late.
		ExpiresIn: new(plan.Pointer("/expires_in")), Expired: []int{http.StatusUnauthorized},
		Refresh: &plan.Request{Method: "POST", URL: s.URL + "/token", Headers: form, Body: &plan.Body{Text: new("refresh_token={{.again | url}}")}},
	}}
	op := &p.Operations[0]
	op.Steps = []plan.Step{{
		Name: "cart", Each: "request", Request: plan.Request{Method: "POST", URL: s.URL + "/carts"},
		Take: []plan.Taking{{Name: "cart", Header: "Location", Pattern: "/carts/(.+)"}},
	}}
	op.Request.Body = &plan.Body{JSON: plan.JSON(`{"cart":"{{.cart}}","reference":"{{.ref}}","item":"{{.item}}","quantity":1}`)}
}

// newGraphQL is a front with one mutation. What the API behind it says with a
// status it says with data and errors.
func newGraphQL(_ *api, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/graphql" {
			next.ServeHTTP(w, r)
			return
		}
		var q struct {
			OperationName, Query string
			Variables            struct{ Order json.RawMessage }
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&q); err != nil || q.OperationName != "createOrder" || q.Query == "" {
			writeJSON(w, http.StatusOK, map[string]any{"errors": []any{map[string]any{"message": "there is no such operation"}}})
			return
		}
		inner := r.Clone(r.Context())
		inner.URL.Path = "/orders"
		inner.Body = io.NopCloser(bytes.NewReader(q.Variables.Order))
		got := httptest.NewRecorder()
		next.ServeHTTP(got, inner)
		for _, name := range []string{"Retry-After", Marker} {
			if v := got.Header().Get(name); v != "" {
				w.Header().Set(name, v)
			}
		}
		if got.Code < 400 {
			writeJSON(w, http.StatusOK, map[string]any{"data": map[string]any{"createOrder": json.RawMessage(got.Body.Bytes())}})
			return
		}
		code := map[int]string{
			http.StatusConflict: "REQUEST_IN_PROGRESS", http.StatusUnprocessableEntity: "KEY_REUSED", http.StatusInternalServerError: "INTERNAL_SERVER_ERROR",
		}[got.Code]
		writeJSON(w, http.StatusOK, map[string]any{
			"data": map[string]any{"createOrder": nil},
			"errors": []any{map[string]any{
				"message": "the order was not made", "path": []string{"createOrder"}, "extensions": map[string]any{"code": code, "retry": "same-key"},
			}},
		})
	})
}

func speaksGraphQL(p *plan.Plan, s *Server) {
	op := &p.Operations[0]
	op.Request.URL = s.URL + "/graphql"
	op.Request.Body = &plan.Body{GraphQL: &plan.GraphQL{
		Operation: "createOrder", Query: "mutation createOrder($order: Order!) { createOrder(order: $order) { id } }",
		Variables: plan.JSON(`{"order":{"reference":"{{.ref}}","item":"{{.item}}","quantity":1}}`),
	}}
	for i := range op.Altered.Edits {
		e := &op.Altered.Edits[i]
		*e.Pointer = "/variables/order" + *e.Pointer
	}
	op.Resource.Pointer = new(plan.Pointer("/data/createOrder/id"))
}

// pageSize is how many orders are on a page; orders of others come first.
const pageSize = 2

// page returns a page of all orders, and the number of the next one, 0 for none.
func (s *shop) page(n int) (list []order, next int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := min(max(n-1, 0)*pageSize, len(s.orders))
	to := min(from+pageSize, len(s.orders))
	if to < len(s.orders) {
		next = n + 1
	}
	return s.orders[from:to:to], next
}

type xmlOrder struct {
	ID        string `xml:"id,attr"`
	Reference string `xml:"reference"`
}

func newSearch(a *api, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/search" || r.Method != http.MethodPost {
			next.ServeHTTP(w, r)
			return
		}
		var q struct{ Cursor string }
		_ = json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&q)
		n, _ := strconv.Atoi(q.Cursor)
		var page struct {
			XMLName xml.Name   `xml:"urn:orders result"`
			Next    string     `xml:"next,omitempty"`
			Orders  []xmlOrder `xml:"orders>order"`
		}
		list, more := a.page(max(n, 1))
		for _, o := range list {
			page.Orders = append(page.Orders, xmlOrder{o.ID, o.Reference})
		}
		if more > 0 {
			page.Next = strconv.Itoa(more)
		}
		body, err := xml.Marshal(page)
		if err != nil {
			panic(err)
		}
		w.Header().Set("Content-Type", "application/xml")
		_, _ = w.Write(append([]byte(xml.Header), body...))
	})
}

func searched(p *plan.Plan, s *Server) {
	p.Operations[0].Readers[0].HTTP = &plan.HTTPReader{
		URL: s.URL + "/search", Post: &plan.Body{JSON: plan.JSON(`{"cursor":""}`)}, Format: "xml",
		Count: new(plan.Pointer("/result/orders/order")), Where: plan.Pairs{{Name: "/reference", Value: "{{.ref}}"}}, ID: new(plan.Pointer("/@id")),
		Pages: &plan.Pages{Next: new(plan.Pointer("/result/next")), Member: "/cursor", Max: 500},
	}
}

func newListing(a *api, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/orders.txt" {
			next.ServeHTTP(w, r)
			return
		}
		n, _ := strconv.Atoi(r.FormValue("page"))
		list, more := a.page(max(n, 1))
		if more > 0 {
			w.Header().Set("Link", fmt.Sprintf(`</orders.txt?page=1>; rel="first", <?page=%d>; title="a, b"; rel="next"`, more))
		}
		for _, o := range list {
			fmt.Fprintf(w, "order %s of %s\n", o.ID, o.Reference)
		}
	})
}

func listed(p *plan.Plan, s *Server) {
	p.Operations[0].Readers[0].HTTP = &plan.HTTPReader{
		URL: s.URL + "/orders.txt", Lines: "^order .* of {{.ref}}$", Pages: &plan.Pages{Header: "Link", Max: 500},
	}
}
