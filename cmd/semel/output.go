package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/probe/report"
)

func jsonFlag(cmd *cobra.Command, v *bool) {
	cmd.Flags().BoolVar(v, "json", false, "print one JSON document; the names of its members are stable")
}

// printJSON prints a value without what a terminal might obey.
func (p *program) printJSON(v any) error {
	e := json.NewEncoder(report.SafeJSON(p.stdout))
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// printable is s without what a terminal might obey.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// dash stands for nothing in a table.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return printable(s)
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

// listing prints pages as they come: as one table, or as one JSON document
// whose member "next" is there if there may be more.
type listing[T any] struct {
	p      *program
	name   string // of the JSON member
	header string // of the table, its cells parted by tabs
	row    func(T) []string
	json   func(T) any
	none   string // what to say of nothing
}

// print asks for pages until one is the last, or for one page unless all is set.
// page returns the items behind after, and after for the next.
func (l listing[T]) print(asJSON, all bool, after uint64, limit int, page func(after uint64) ([]T, uint64, error)) error {
	table := tabwriter.NewWriter(l.p.stdout, 0, 0, 2, ' ', 0)
	n := 0
	next := uint64(0)
	for {
		items, last, err := page(after)
		if err != nil {
			return err
		}
		for _, item := range items {
			if err := l.item(table, asJSON, n, item); err != nil {
				return err
			}
			n++
		}
		if next = 0; len(items) >= limit {
			next = last
		}
		if next == 0 || !all {
			break
		}
		after = next
	}
	if asJSON {
		open := ""
		if n == 0 {
			open = fmt.Sprintf("{%q: [", l.name)
		}
		more := ""
		if next != 0 {
			more = fmt.Sprintf(", \"next\": %d", next)
		}
		_, err := fmt.Fprintf(l.p.stdout, "%s]%s}\n", open, more)
		return err
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if n == 0 {
		_, _ = fmt.Fprintln(l.p.stderr, l.none)
	}
	if next != 0 {
		_, _ = fmt.Fprintf(l.p.stderr, "There may be more: go on with --after %d, or use --all.\n", next)
	}
	return nil
}

func (l listing[T]) item(table io.Writer, asJSON bool, n int, item T) error {
	if !asJSON {
		if n == 0 {
			if _, err := fmt.Fprintln(table, l.header); err != nil {
				return err
			}
		}
		_, err := fmt.Fprintln(table, strings.Join(l.row(item), "\t"))
		return err
	}
	lead := ",\n  "
	if n == 0 {
		lead = fmt.Sprintf("{%q: [\n  ", l.name)
	}
	b, err := json.Marshal(l.json(item))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(report.SafeJSON(l.p.stdout), "%s%s", lead, b)
	return err
}

// pageFlags are those of every listing.
type pageFlags struct {
	after uint64
	limit int
	all   bool
	json  bool
}

const maxPage = 1000

func (f *pageFlags) add(cmd *cobra.Command, what string) {
	cmd.Flags().Uint64Var(&f.after, "after", 0, "continue after this "+what+": the member \"next\" of the page before")
	cmd.Flags().IntVar(&f.limit, "limit", 100, "length of a page, at most 1000")
	cmd.Flags().BoolVar(&f.all, "all", false, "continue until there are no more")
	jsonFlag(cmd, &f.json)
}

func (f *pageFlags) check() error {
	if f.limit < 1 || f.limit > maxPage {
		return usagef("--limit is %d; it must be from 1 to %d, and --all prints everything", f.limit, maxPage)
	}
	if f.all {
		f.limit = maxPage
	}
	return nil
}

// recordJSON is a record as printed. The names are stable.
type recordJSON struct {
	ID        string      `json:"id"`
	State     semel.State `json:"state"`
	Lapsed    bool        `json:"lapsed"`
	Reopened  bool        `json:"reopened"`
	Tenant    string      `json:"tenant"`
	Actor     string      `json:"actor"`
	Operation string      `json:"operation"`
	Key       string      `json:"key"`
	Fence     uint64      `json:"fence"`
	// LeaseSeconds is what was left of the lease; only while in progress.
	LeaseSeconds      *float64     `json:"lease_seconds,omitempty"`
	RetentionSeconds  float64      `json:"retention_seconds"`
	BegunAt           *time.Time   `json:"begun_at,omitempty"`
	SettledAt         *time.Time   `json:"settled_at,omitempty"`
	ExpiresAt         *time.Time   `json:"expires_at,omitempty"`
	FingerprintScheme string       `json:"fingerprint_scheme,omitempty"`
	Origin            semel.Origin `json:"origin"`
	Cause             string       `json:"cause,omitempty"`
	Result            *resultJSON  `json:"result,omitempty"`
}

// resultJSON is what is said of a result. Its payload is the clients' alone.
type resultJSON struct {
	Label     string `json:"label"`
	Codec     string `json:"codec,omitempty"`
	Bytes     int    `json:"bytes"`
	Tombstone bool   `json:"tombstone"`
	Reference string `json:"reference,omitempty"`
}

func newRecordJSON(r semel.Record) recordJSON {
	j := recordJSON{
		ID: r.ID, State: r.State, Lapsed: r.Lapsed(), Reopened: r.Reopened,
		Tenant: r.Identity.Tenant, Actor: r.Identity.Actor, Operation: r.Identity.Operation, Key: r.Identity.Key,
		Fence: r.Fence, RetentionSeconds: r.Retention.Seconds(),
		BegunAt: optionalTime(r.BegunAt), SettledAt: optionalTime(r.SettledAt), ExpiresAt: optionalTime(r.ExpiresAt),
		FingerprintScheme: r.Fingerprint.Scheme, Origin: r.Origin, Cause: r.Cause,
	}
	if r.State == semel.StateInProgress {
		lease := r.Lease.Seconds()
		j.LeaseSeconds = &lease
	}
	if r.Result.Codec != "" || r.Result.Label != "" {
		j.Result = &resultJSON{r.Result.Label, r.Result.Codec, int(r.Result.Size()), r.Result.Tombstone, r.Result.Reference}
	}
	return j
}

func optionalTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
