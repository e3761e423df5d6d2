package main

import (
	_ "embed"
	"html/template"
	"net/http"
	"strconv"

	"github.com/semelhq/semel/outbox"
)

//go:embed page.html
var pageHTML string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"money": func(cents int64) string { return strconv.FormatFloat(float64(cents)/100, 'f', 2, 64) },
}).Parse(pageHTML))

// page shows what happened, and takes what the customer and the operator do.
type page struct {
	shop  *shop
	world *world // nil if it is elsewhere
}

// line is an order on the page.
type line struct {
	order
	tally
	Asked bool // by this world
}

func (p *page) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /checkout", p.shop.checkout)
	mux.Handle("POST /webhooks/payments", p.webhooks())
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { p.show(w, r, "page") })
	mux.HandleFunc("GET /now", func(w http.ResponseWriter, r *http.Request) { p.show(w, r, "now") })
	mux.HandleFunc("POST /mails/{id}/{decision}", p.decide)
	return http.NewCrossOriginProtection().Handler(mux)
}

// webhooks loses some of the shop's own answers too.
func (p *page) webhooks() http.Handler {
	if p.world == nil {
		return p.shop.payments
	}
	return p.world.losing("the provider", p.shop.payments)
}

// show writes the whole page, or what changes of it.
func (p *page) show(w http.ResponseWriter, r *http.Request, what string) {
	var data struct {
		Orders  []line
		InDoubt []outbox.Entry
		Log     []string
	}
	orders, err := p.shop.latest(r.Context(), 20)
	if err == nil {
		data.InDoubt, err = p.shop.inDoubt(r.Context())
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	tallies := map[int64]tally{}
	if p.world != nil {
		tallies, data.Log, _ = p.world.look()
	}
	for _, o := range orders {
		t, asked := tallies[o.ID]
		data.Orders = append(data.Orders, line{o, t, asked})
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = pageTemplate.ExecuteTemplate(w, what, data) // who has gone does not read it
}

func (p *page) decide(w http.ResponseWriter, r *http.Request) {
	if err := p.shop.decide(r.Context(), r.PathValue("id"), r.PathValue("decision") == "sent"); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	http.Redirect(w, r, "/", http.StatusSeeOther)
}
