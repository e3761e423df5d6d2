package torture

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Report is the result of a run.
type Report struct {
	Subject string  `json:"subject"`
	Seed    uint64  `json:"seed"`
	OnCrash string  `json:"on_crash"`
	Seconds float64 `json:"seconds"`
	Dir     string  `json:"dir"`
	Figures Figures `json:"figures"`
	// Violations are the promises that were broken.
	Violations []Violation `json:"violations"`
	// Inconclusive says why the run proves too little; empty if it does not.
	Inconclusive []string `json:"inconclusive"`
}

// Figures count what happened in a run.
type Figures struct {
	Keys int `json:"keys"`
	// Acknowledged counts keys that a response said had completed, even if it also
	// said that the result was not retained. Unknown counts keys with a response
	// that said so.
	Acknowledged int `json:"acknowledged"`
	Unknown      int `json:"unknown"`
	Effects      int `json:"effects"`
	Attempts     int `json:"attempts"`
	// Retries are attempts after the first of a key.
	Retries  int `json:"retries"`
	Replays  int `json:"replays"`
	Refusals int `json:"refusals"`
	Broken   int `json:"broken"` // attempts without a whole response

	// Forms has the figures of each form of response.
	Forms map[string]*FormFigures `json:"forms"`

	// FailedStarts counts processes that ended before they listened: gateways, or
	// what is tortured instead.
	FailedStarts  int `json:"failed_starts"`
	GatewayKills  int `json:"gateway_kills"`
	GatewayPauses int `json:"gateway_pauses"`
	LedgerKills   int `json:"ledger_kills"`
	LedgerPauses  int `json:"ledger_pauses"`
	DatabaseKills int `json:"database_kills"`
	// Cuts are by side and point.
	Cuts map[string]int `json:"cuts"`
	// Holds counts times in which nothing passed, by side.
	Holds  map[string]int `json:"holds"`
	Stalls int            `json:"stalls"`
	// Shop is nil for other subjects.
	Shop *ShopFigures `json:"shop,omitempty"`
}

// FormFigures count what happened to the keys of one form of response.
type FormFigures struct {
	Keys int `json:"keys"`
	// Whole, NotRetained and Unknown count keys with at least one such response,
	// and Completed those with either of the first two.
	Completed   int `json:"completed"`
	Whole       int `json:"whole"`
	NotRetained int `json:"not_retained"`
	Unknown     int `json:"unknown"`
	Effects     int `json:"effects"`
	Replays     int `json:"replays"`
	// Broken counts acknowledgements that broke off.
	Broken int `json:"broken"`
}

func (f *Figures) kills() int  { return f.GatewayKills + f.LedgerKills + f.DatabaseKills }
func (f *Figures) pauses() int { return f.GatewayPauses + f.LedgerPauses }

func (f *Figures) cuts() (n int) {
	for _, c := range f.Cuts {
		n += c
	}
	return n
}

func count(events []event) (f Figures) {
	f.Cuts, f.Holds = map[string]int{}, map[string]int{}
	f.Forms = map[string]*FormFigures{}
	for _, form := range forms {
		f.Forms[string(form)] = &FormFigures{}
	}
	sent, told := map[string]bool{}, map[string]map[class]bool{}
	for _, e := range events {
		inGateway := strings.HasPrefix(e.who, "gateway") || strings.HasPrefix(e.who, "payments") || strings.HasPrefix(e.who, "service") || strings.HasPrefix(e.who, "shop")
		switch {
		case e.kind == kindAttempt:
			f.Attempts++
			if sent[e.key] {
				f.Retries++
			}
			sent[e.key] = true
		case e.kind == kindBroken:
			f.Broken++
			if e.begun {
				f.Forms[string(formOf(e.key))].Broken++
			}
		case e.kind == kindResponse:
			if told[e.key] == nil {
				told[e.key] = map[class]bool{}
			}
			told[e.key][e.response.class] = true
			switch {
			case e.response.class == acknowledged && e.response.replayed:
				f.Replays++
				f.Forms[string(formOf(e.key))].Replays++
			case e.response.class == noEffect, e.response.class == turnedAway:
				f.Refusals++
			}
		case e.kind == kindCut:
			f.Cuts[string(e.side)+" "+e.text]++
		case e.kind == kindStall:
			f.Stalls++
		case e.kind == kindHold:
			f.Holds[string(e.side)]++
		case e.kind == kindLog && inGateway && strings.HasPrefix(e.text, didNotStart):
			f.FailedStarts++
		case e.kind == kindKill && inGateway:
			f.GatewayKills++
		case e.kind == kindKill && e.who == "database":
			f.DatabaseKills++
		case e.kind == kindKill:
			f.LedgerKills++
		case e.kind == kindPause && inGateway:
			f.GatewayPauses++
		case e.kind == kindPause:
			f.LedgerPauses++
		}
	}
	for key := range sent {
		of, told := f.Forms[string(formOf(key))], told[key]
		of.Keys++
		add := func(to *int, yes bool) {
			if yes {
				*to++
			}
		}
		add(&of.Whole, told[acknowledged])
		add(&of.NotRetained, told[notRetained])
		add(&of.Completed, told[acknowledged] || told[notRetained])
		add(&of.Unknown, told[unknown])
	}
	for _, of := range f.Forms {
		f.Keys += of.Keys
		f.Acknowledged += of.Completed
		f.Unknown += of.Unknown
	}
	return f
}

func (r *run) report(stuck []string) (*Report, error) {
	e, err := r.evidence(!r.failed.Load())
	if err != nil {
		return nil, err
	}
	e.stuck = stuck
	subject := "gateway-sqlite"
	switch {
	case r.config.Shop:
		subject = "shop"
	case r.config.Payments != "":
		subject = "payments"
	case r.config.Postgres != "":
		subject = "gateway-postgres"
	}
	report := &Report{
		Subject: subject, Seed: r.config.Seed, OnCrash: r.config.OnCrash,
		Seconds: time.Since(r.history.start).Seconds(), Dir: r.config.Dir,
		Figures: count(e.events),
	}
	if e.shop != nil {
		for _, o := range e.shop.orders {
			report.Figures.Effects += len(o.charges)
		}
	}
	report.Figures.Effects += len(e.effects)
	for _, f := range e.effects {
		report.Figures.Forms[string(formOf(f.Key))].Effects++
	}
	if e.shop != nil {
		e.shop.stuck = stuck
		report.Figures.Shop = e.shopFigures()
	}
	if report.Violations = r.found; len(r.found) == 0 {
		report.Violations = e.check()
	}
	report.Inconclusive = enough(r.config, report.Figures)
	return report, nil
}

// sawTooLittle reports whether the run so far proves too little.
func (r *run) sawTooLittle() bool {
	f := count(r.history.snapshot())
	if r.shop != nil {
		e, err := r.evidence(false)
		if err != nil {
			return true
		}
		f.Shop = e.shopFigures()
	}
	return len(enough(r.config, f)) > 0
}

// enough returns what a run saw too little of. A tenth of the usual is enough, so
// that a slow machine alone does not make a run inconclusive.
func enough(c Config, f Figures) (lacks []string) {
	seconds := int(c.Duration / time.Second)
	need := func(what string, got, want int) {
		if want = max(want, 1); got < want {
			lacks = append(lacks, fmt.Sprintf("%s: %d, at least %d are needed", what, got, want))
		}
	}
	n := *c.Nemesis
	if c.Payments != "" {
		n.KillLedger, n.CutBack = 0, 0 // no ledger
	}
	struck := int(c.Duration / n.Every)
	if c.Shop {
		struck /= 2 // more targets, so each is struck less often
	}
	if n.KillGateway > 0 {
		need("kills of gateways", f.GatewayKills, struck/10)
	}
	if n.PauseGateway > 0 {
		need("pauses of gateways", f.GatewayPauses, struck/20)
	}
	if n.KillLedger > 0 {
		need("kills of the ledger", f.LedgerKills, struck/20)
	}
	for _, s := range []struct {
		side side
		odds float64
	}{{front, n.CutFront}, {back, n.CutBack}} {
		for _, c := range cuts {
			if s.odds > 0 {
				name := string(s.side) + " " + string(c)
				need("cuts, "+name, f.Cuts[name], seconds/10)
			}
		}
	}
	if c.Postgres != "" && n.CutDatabase > 0 {
		name := string(database) + " " + string(cutAll)
		need("cuts, "+name, f.Cuts[name], struck/20)
	}
	if c.RestartDatabase != nil && n.RestartDatabase > 0 {
		need("kills of the database", f.DatabaseKills, struck/40)
	}
	for _, s := range []struct {
		side  side
		holds int
	}{{database, n.HoldDatabase}, {back, n.HoldBack}} {
		if s.holds > 0 {
			need("holds, "+string(s.side), f.Holds[string(s.side)], struck/40)
		}
	}
	if c.Shop {
		return append(lacks, enoughOfShop(seconds, f)...)
	}
	need("acknowledged keys", f.Acknowledged, 5*seconds)
	for _, form := range forms {
		if form != formSmall && c.LargeEvery < 0 {
			continue
		}
		of := f.Forms[string(form)]
		need("whole responses, "+string(form), of.Whole, seconds/5)
		if form != formSmall && n.CutFront > 0 && seconds >= 60 { // these are few; a shorter run may see none
			need("responses that broke off, "+string(form), of.Broken, seconds/20)
		}
		if form.retained() {
			need("replays, "+string(form), of.Replays, seconds/20)
		} else {
			need("responses that say not retained, "+string(form), of.NotRetained, seconds/20)
		}
	}
	need("retries", f.Retries, 2*seconds)
	need("replays", f.Replays, 2*seconds)
	return lacks
}

// Write writes the report as text.
func (r *Report) Write(w io.Writer) {
	f := r.Figures
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	for i, v := range r.Violations {
		if i == maxViolationsPrinted {
			say("... and %d more violations.\n", len(r.Violations)-i)
			break
		}
		say("VIOLATION  %s  %s", v.Check, v.Key)
		say("  %s", v.Detail)
		say("  faults: %s", strings.Join(v.Faults, ", "))
		for _, line := range v.Timeline {
			say("  %s", line)
		}
		say("")
	}
	say("seed        %d, %s, on-crash %s, %.1f s", r.Seed, r.Subject, r.OnCrash, r.Seconds)
	if f.Shop != nil {
		f.Shop.write(say)
	}
	say("keys        %d: %d acknowledged, %d unknown; %d effects", f.Keys, f.Acknowledged, f.Unknown, f.Effects)
	for _, form := range forms {
		if of := f.Forms[string(form)]; of.Keys > 0 && f.Shop == nil {
			say("  %-9s %d: %d completed (%d whole, %d not retained), %d unknown; %d effects, %d replays, %d broke off",
				form, of.Keys, of.Completed, of.Whole, of.NotRetained, of.Unknown, of.Effects, of.Replays, of.Broken)
		}
	}
	say("attempts    %d: %d retries, %d replays, %d refusals, %d without a whole response", f.Attempts, f.Retries, f.Replays, f.Refusals, f.Broken)
	say("kills       %d gateway, %d ledger, %d database", f.GatewayKills, f.LedgerKills, f.DatabaseKills)
	say("starts      %d failed", f.FailedStarts)
	say("pauses      %d gateway, %d ledger", f.GatewayPauses, f.LedgerPauses)
	say("cuts        %d", f.cuts())
	for _, name := range slices.Sorted(maps.Keys(f.Cuts)) {
		say("  %-27s %d", name, f.Cuts[name])
	}
	for _, name := range slices.Sorted(maps.Keys(f.Holds)) {
		say("holds       %d %s", f.Holds[name], name)
	}
	say("stalls      %d", f.Stalls)
	say("violations  %d", len(r.Violations))
	for _, why := range r.Inconclusive {
		say("too few     %s", why)
	}
}
