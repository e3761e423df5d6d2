package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// values are the figures of one round: a benchmark's name and a unit, with a
// space between them.
type values map[string]float64

// figure finds one figure in a round.
type figure func(values) (v float64, ok bool)

func value(bench, unit string) figure {
	return func(m values) (float64, bool) {
		v, ok := m[bench+" "+unit]
		return v, ok
	}
}

// added is what a protection adds to the bare handler of its own framework.
func added(subject, kind, unit string) figure {
	with, without := value("BenchmarkProtection/"+subject+"/"+kind, unit), value("BenchmarkProtection/"+subject+"/bare", unit)
	return func(m values) (float64, bool) {
		a, ok1 := with(m)
		b, ok2 := without(m)
		return a - b, ok1 && ok2
	}
}

// aim is what a comparison should come to; the zero value asks for nothing.
type aim struct {
	limit   float64
	atLeast bool
	own     bool // asked of our figure, not of the ratio
}

func atMost(ratio float64) aim  { return aim{limit: ratio} }
func atLeast(ratio float64) aim { return aim{limit: ratio, atLeast: true} }
func ownAtMost(v float64) aim   { return aim{limit: v, own: true} }

func (a aim) String() string {
	switch {
	case a.limit == 0:
		return ""
	case a.own:
		return fmt.Sprintf("semel <= %g", a.limit)
	case a.atLeast:
		return fmt.Sprintf(">= %g", a.limit)
	default:
		return fmt.Sprintf("<= %g", a.limit)
	}
}

func (a aim) met(own, ratio float64) string {
	v := ratio
	if a.own {
		v = own
	}
	switch {
	case a.limit == 0:
		return ""
	case a.atLeast == (v >= a.limit), v == a.limit:
		return "met"
	default:
		return "not met"
	}
}

// comparison is a row of the table.
type comparison struct {
	path, unit   string
	peer         string
	ours, theirs figure
	aim          aim
}

// comparisons is the table, without its figures.
func comparisons() []comparison {
	var all []comparison
	add := func(path, unit, peer string, ours, theirs figure, a aim) {
		all = append(all, comparison{path, unit, peer, ours, theirs, a})
	}
	protection := func(path, subject, kind, peer, peerName string, ns, allocs aim) {
		for _, u := range []struct {
			unit string
			aim  aim
		}{{"ns/op", ns}, {"cpu-ns/op", ns}, {"allocs/op", allocs}} {
			add(path, u.unit+" added", peerName, added(subject, kind, u.unit), added(peer, kind, u.unit), u.aim)
		}
	}
	protection("middleware, memory, first", semelMemory, "first", fiberThree, "fiber v3", atMost(2), ownAtMost(25))
	protection("middleware, memory, replay", semelMemory, "replay", fiberThree, "fiber v3", atMost(1), ownAtMost(8))
	protection("middleware, SQLite, first", semelSQLite, "first", byHand, "by hand", aim{}, aim{})
	protection("middleware, SQLite, replay", semelSQLite, "replay", byHand, "by hand", aim{}, aim{})
	protection("function, memory, first", semelFunction, "first", watermill, "watermill", aim{}, aim{})
	protection("function, memory, replay", semelFunction, "replay", watermill, "watermill", aim{}, aim{})

	for _, callers := range []int{1, 64, 256} {
		a := aim{}
		if callers == 256 {
			a = atLeast(0.7)
		}
		add(fmt.Sprintf("SQLite claim+complete, %d callers", callers), "pairs/s", "two grouped inserts",
			value(fmt.Sprintf("BenchmarkSQLite/store/callers=%d", callers), "pairs/s"),
			value(fmt.Sprintf("BenchmarkSQLite/plain/grouped=true/callers=%d", callers), "pairs/s"), a)
	}
	for unit, a := range map[string]aim{"ns/op": atMost(1.5), "allocs/op": ownAtMost(20)} {
		add("SQLite store replay, 1 caller", unit, "select by key",
			value("BenchmarkSQLiteReplay/store", unit), value("BenchmarkSQLiteReplay/plain", unit), a)
	}
	slices.SortStableFunc(all[len(all)-2:], func(a, b comparison) int { return strings.Compare(b.unit, a.unit) })

	for _, callers := range []int{1, 16, 64} {
		name := fmt.Sprintf("BenchmarkPayment/away=0s/callers=%d", callers)
		for _, p := range []struct {
			metric, peer string
			aim          aim
		}{{"five/s", "5 trips, minimal table", atLeast(1.1)}, {"five-same/s", "5 trips, same facts", aim{}}, {"bare/s", "begin, insert, commit", atLeast(0.5)}} {
			if callers != 16 {
				p.aim = aim{}
			}
			add(fmt.Sprintf("PostgreSQL transactional, %d callers", callers), "payments/s", p.peer, value(name, "store/s"), value(name, p.metric), p.aim)
		}
	}

	box := func(path, bench, unit, way, peer string, a aim) {
		add("outbox on PostgreSQL, "+path, unit, peer, value("BenchmarkOutbox/"+bench+"/semel", unit), value("BenchmarkOutbox/"+bench+"/"+way, unit), a)
	}
	box("enqueue, 16 callers", "enqueue", "tx/s", "none", "the transaction alone", aim{})
	box("enqueue, 16 callers", "enqueue", "tx/s", "loop", "insert", aim{})
	box("enqueue, 16 callers", "enqueue", "tx/s", "river", "River", atLeast(1))
	box("deliver", "work", "msg/s", "loop", "SKIP LOCKED loop", atLeast(0.8))
	box("deliver", "work", "msg/s", "river", "River", atLeast(1))

	for _, g := range []struct {
		name string
		aim  float64
	}{{"memory/first", 0.95}, {"memory/replay", 4}, {"sqlite/first", 0.7}, {"sqlite/replay", 3}} {
		add("gateway, in process, "+strings.ReplaceAll(g.name, "/", " "), "req/s", "ReverseProxy",
			value("BenchmarkGateway/"+g.name, "req/s"), value("BenchmarkGateway/bare", "req/s"), atLeast(g.aim))
	}
	for _, store := range []string{"memory", "sqlite"} {
		add("gateway, wrk, "+store+" first", "req/s", "ReverseProxy", value(procs+"semel-"+store+"/first", "req/s"), value(procs+"proxy", "req/s"), atLeast(0.9))
		add("gateway, wrk, "+store+" replay", "req/s", "nginx", value(procs+"semel-"+store+"/replay", "req/s"), value(procs+"nginx", "req/s"), atLeast(1.2))
	}
	add("gateway, wrk, memory first", "req/s", "nginx", value(procs+"semel-memory/first", "req/s"), value(procs+"nginx", "req/s"), aim{})
	add("ReverseProxy, wrk", "req/s", "nginx", value(procs+"proxy", "req/s"), value(procs+"nginx", "req/s"), aim{})
	add("no proxy at all, wrk", "req/s", "nginx", value(procs+"upstream", "req/s"), value(procs+"nginx", "req/s"), aim{})
	return all
}

// result is a row with the figures of all rounds. The ratios are those within a
// round.
type result struct {
	Path   string    `json:"path"`
	Unit   string    `json:"unit"`
	Peer   string    `json:"peer"`
	Semel  []float64 `json:"semel"`
	Theirs []float64 `json:"theirs"`
	Ratios []float64 `json:"ratios"`
	Median float64   `json:"median_ratio"`
	Aim    string    `json:"aim,omitempty"`
	Met    string    `json:"met,omitempty"`
}

// compare fills the table in. A row that no round has figures for has none.
func compare(rounds []values) []result {
	var all []result
	for _, c := range comparisons() {
		r := result{Path: c.path, Unit: c.unit, Peer: c.peer, Aim: c.aim.String()}
		for _, m := range rounds {
			ours, ok1 := c.ours(m)
			theirs, ok2 := c.theirs(m)
			if !ok1 || !ok2 || theirs == 0 {
				continue
			}
			r.Semel, r.Theirs, r.Ratios = append(r.Semel, ours), append(r.Theirs, theirs), append(r.Ratios, ours/theirs)
		}
		if len(r.Ratios) > 0 {
			r.Median = median(r.Ratios)
			r.Met = c.aim.met(median(r.Semel), r.Median)
		}
		all = append(all, r)
	}
	return all
}

func median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	if n := len(sorted); n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[len(sorted)/2]
}

// short writes a figure with three digits.
func short(v float64) string {
	switch {
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10 || v <= -10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// printTable writes a table that is Markdown, too.
func printTable(w io.Writer, results []result) error {
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(t, "|\t| semel\t| beside\t|\t| ratio\t| aim\t|")
	fmt.Fprintln(t, "|---\t|---\t|---\t|---\t|---\t|---\t|")
	for _, r := range results {
		own, theirs, ratio := "not measured", "", ""
		if len(r.Ratios) > 0 {
			own, theirs = short(median(r.Semel)), short(median(r.Theirs))
			ratio = fmt.Sprintf("%s (%s to %s)", short(r.Median), short(slices.Min(r.Ratios)), short(slices.Max(r.Ratios)))
		}
		aim := r.Aim
		if r.Met != "" {
			aim += ", " + r.Met
		}
		fmt.Fprintf(t, "| %s, %s\t| %s\t| %s\t| %s\t| %s\t| %s\t|\n", r.Path, r.Unit, own, r.Peer, theirs, ratio, aim)
	}
	return t.Flush()
}
