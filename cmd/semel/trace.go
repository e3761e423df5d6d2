package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/steps"
	"github.com/semelhq/semel/store/sqlite"
)

// traceStore is what a trace looks into.
type traceStore struct {
	store
	outbox  outbox.Admin // nil where there is none
	journal steps.Store  // likewise
	name    string       // without secrets
}

// outboxOf returns the outbox in a store's database.
func outboxOf(s store) outbox.Admin {
	switch s := s.(type) {
	case *postgresStore:
		return s.Outbox()
	case *sqlite.Store:
		return s.Outbox()
	}
	return nil
}

// Bounds of a trace: of what is in it, of the entries of one record, and of what
// one thing leads to.
const (
	maxTraced  = 1000
	maxEntries = 1000
)

func (p *program) auditTraceCommand() *cobra.Command {
	var also []string
	var asJSON, mermaid bool
	cmd := &cobra.Command{
		Use:   "trace ID",
		Short: "Show what a request led to, and where it came from",
		Long: fmt.Sprintf(`Follows an id through the stores: a request id, key, event id, trace id, record id
or message id. It shows the records of protected requests with what became of each
attempt, including duplicates, the messages that were enqueued under them and what
became of those, and the records and messages that they led to elsewhere. A receiver
knows a message by its id, which is the key or the event id of its own record, and a
call made by a step by the step's child key. The cause of the id is followed as well,
except for such a call: its key does not reveal the cause.

Name the stores of other services with --also. Whatever has the same trace id is
shown, even if nothing else connects it. Records and messages that are past
their retention are gone; a record's entries in the trail are kept for longer. A trace
ends at %d records and messages, and says so.

With --json the output is one document, in which "cause" is the id of another item:

  {"id": ..., "items": [{"kind": "record", "id": ..., "store": ..., "cause": ...}], "more": false}

With --mermaid it is a flowchart to be pasted into Markdown.`, maxTraced),
		Example: `  semel audit trace --store sqlite:shop.db order-17
  semel audit trace --store sqlite:shop.db --also postgres://audit@db/mailer 4bf92f3577b34da6a3ce929d0e0e4736
  semel audit trace --store sqlite:shop.db --mermaid order-17 > order-17.mmd`,
		Args: cobra.ExactArgs(1),
	}
	p.admin(cmd, func(ctx context.Context, s store, args []string) (err error) {
		if asJSON && mermaid {
			return usagef("--json and --mermaid are two forms of the output: choose one")
		}
		if args[0] == "" {
			return usagef("the id is empty")
		}
		url, _ := cmd.Flags().GetString("store")
		stores := []traceStore{{s, outboxOf(s), journalOf(s), withoutSecrets(url)}}
		for _, url := range also {
			o, err := openAdmin(ctx, cmd, url)
			if err != nil {
				return err
			}
			defer func() { _ = o.Close(context.Background()) }()
			stores = append(stores, traceStore{o, outboxOf(o), journalOf(o), withoutSecrets(url)})
		}
		t := &trace{stores: stores, items: map[string]*traced{}, traces: map[string]bool{}, calls: map[string]string{}}
		if err := t.follow(ctx, args[0]); err != nil {
			return wrapCall("the stores could not be read", err)
		}
		if len(t.order) == 0 {
			return &fault{
				code: exitNotFound, err: fmt.Errorf("nothing is known by the id %s", printable(args[0])),
				do: "It may be past its retention, or in another store: name that with --also. Nothing was changed.",
			}
		}
		t.arrange()
		switch {
		case asJSON:
			return p.printJSON(struct {
				ID    string    `json:"id"`
				Items []*traced `json:"items"`
				More  bool      `json:"more"`
			}{args[0], t.order, t.more})
		case mermaid:
			t.mermaid(p.stdout)
		default:
			t.tree(p.stdout, t.roots, "", len(stores) > 1)
		}
		if t.more {
			_, _ = fmt.Fprintf(p.stderr, "There is more: the trace ends at %d records and messages.\n", maxTraced)
		}
		return nil
	})
	cmd.Flags().StringArrayVar(&also, "also", nil, "another store to search; may be repeated")
	cmd.Flags().BoolVar(&mermaid, "mermaid", false, "print a Mermaid flowchart")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// traced is a record or a message. The names are stable.
type traced struct {
	Kind  string `json:"kind"` // "record" or "message"
	ID    string `json:"id"`
	Store string `json:"store"`
	// Cause is the id of the record that it was enqueued under or, of a record, of the
	// message that it is of, or of the record in whose steps it was called.
	Cause string     `json:"cause,omitempty"`
	At    *time.Time `json:"at,omitempty"`
	State string     `json:"state"` // of a record, what its last entry says where it is gone

	Operation string `json:"operation,omitempty"`
	Tenant    string `json:"tenant,omitempty"`
	Key       string `json:"key,omitempty"`
	semel.Origin
	Entries []semel.TrailEntry `json:"entries,omitempty"`
	Steps   []tracedStep       `json:"steps,omitempty"`

	Topic     string         `json:"topic,omitempty"`
	Type      string         `json:"type,omitempty"`
	Attempts  int            `json:"attempts,omitempty"`
	Detail    string         `json:"detail,omitempty"`
	Decisions []decisionJSON `json:"decisions,omitempty"`

	children []*traced
}

type tracedStep struct {
	Name     string      `json:"name"`
	State    steps.State `json:"state"`
	ChildKey string      `json:"child_key"`
}

// trace is a walk from an id to all that is tied to it.
type trace struct {
	stores []traceStore
	items  map[string]*traced // by place, kind and id
	order  []*traced
	todo   []func(context.Context) error
	traces map[string]bool   // trace ids that were followed
	calls  map[string]string // from the key of a step's call to the record that it is of
	roots  []*traced
	more   bool
}

func (t *trace) follow(ctx context.Context, id string) error {
	for i := range t.stores {
		s := &t.stores[i]
		for _, f := range []semel.TrailFilter{{RecordID: id}, {Key: id}, {RequestID: id}, {EventID: id}, {TraceID: id}} {
			if err := t.entries(ctx, s, f); err != nil {
				return err
			}
		}
	}
	if err := t.message(ctx, id); err != nil {
		return err
	}
	if err := t.enqueuedUnder(ctx, id); err != nil {
		return err
	}
	for len(t.todo) > 0 && !t.more {
		next := t.todo[0]
		t.todo = t.todo[1:]
		if err := next(ctx); err != nil {
			return err
		}
	}
	t.more = t.more || len(t.todo) > 0
	return nil
}

// add returns the item, and whether it is new.
func (t *trace) add(s *traceStore, kind, id string) (item *traced, added bool) {
	place := s.name + "\x00" + kind + "\x00" + id
	if item := t.items[place]; item != nil || len(t.order) == maxTraced {
		t.more = t.more || item == nil
		return item, false
	}
	item = &traced{Kind: kind, ID: id, Store: s.name}
	t.items[place] = item
	t.order = append(t.order, item)
	return item, true
}

// entries adds the records that these entries of the trail are of.
func (t *trace) entries(ctx context.Context, s *traceStore, f semel.TrailFilter) error {
	f.Limit = maxEntries
	list, err := s.Trail(ctx, f)
	if err != nil {
		return err
	}
	t.more = t.more || len(list) == maxEntries
	for _, e := range list {
		if e.RecordID != "" {
			t.record(s, e.RecordID)
		}
	}
	return nil
}

// record adds a record and what is tied to it.
func (t *trace) record(s *traceStore, id string) {
	item, added := t.add(s, "record", id)
	if !added {
		return
	}
	t.todo = append(t.todo, func(ctx context.Context) error {
		list, err := s.Trail(ctx, semel.TrailFilter{RecordID: id, Limit: maxEntries})
		if err != nil {
			return err
		}
		t.more = t.more || len(list) == maxEntries
		for i, e := range list {
			e.At = e.At.UTC()
			list[i] = e
			item.Operation, item.Tenant, item.Key = cmp.Or(item.Operation, e.Operation), cmp.Or(item.Tenant, e.Tenant), cmp.Or(item.Key, e.Key)
			item.RequestID, item.EventID, item.TraceID = cmp.Or(item.RequestID, e.RequestID), cmp.Or(item.EventID, e.EventID), cmp.Or(item.TraceID, e.TraceID)
			if isOutcome(e.Kind) {
				item.State = string(e.Kind)
			}
		}
		identity := semel.Identity{}
		if item.Entries = list; len(list) > 0 {
			item.At = &list[0].At
			identity = semel.Identity{Scope: semel.Scope{Tenant: list[0].Tenant, Actor: list[0].Actor, Operation: list[0].Operation}, Key: list[0].Key}
		}
		found, err := s.List(ctx, semel.Filter{ID: id, Limit: 1})
		if err != nil {
			return err
		}
		for _, r := range found {
			item.State, item.Operation, item.Tenant, item.Key = r.State.String(), r.Identity.Operation, r.Identity.Tenant, r.Identity.Key
			begun := r.BegunAt.UTC()
			item.At, identity = &begun, r.Identity
		}
		if err := t.steps(ctx, item, identity); err != nil {
			return err
		}
		item.State = cmp.Or(item.State, "gone")
		// What it is of: its receiver has taken the message's id as key or event.
		for _, id := range []string{item.Key, item.EventID} {
			if err := t.message(ctx, id); err != nil {
				return err
			}
		}
		if err := t.enqueuedUnder(ctx, id); err != nil {
			return err
		}
		return t.sameTrace(ctx, item.TraceID)
	})
}

// steps adds how far the record's operation has come, what people have decided of it,
// and the records of the calls that it has made, wherever each is.
func (t *trace) steps(ctx context.Context, item *traced, id semel.Identity) error {
	for _, s := range t.stores {
		if s.journal == nil || id.Key == "" {
			continue
		}
		o, err := s.journal.Find(ctx, id)
		if errors.Is(err, steps.ErrNotFound) { // the trail may know for longer
			o.Decisions, err = steps.DecisionsIn(ctx, s, id)
		}
		if err != nil {
			return err
		}
		done := newOperationJSON(o)
		for _, d := range done.Decisions {
			item.Decisions = append(item.Decisions, decisionJSON{outbox.Verdict(d.Kind), d.By, d.What + ": " + d.Because, d.At})
		}
		for _, step := range done.Steps {
			item.Steps = append(item.Steps, tracedStep{step.Name, step.State, step.ChildKey})
			t.calls[step.ChildKey] = item.ID
			for i := range t.stores {
				if err := t.entries(ctx, &t.stores[i], semel.TrailFilter{Key: step.ChildKey}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// isOutcome reports whether entries of the kind tell of the record's own state.
func isOutcome(k semel.TrailKind) bool {
	switch k {
	case semel.TrailExecuted, semel.TrailReleased, semel.TrailHeld, semel.TrailTakeover, semel.TrailResolved:
		return true
	}
	return false
}

func (t *trace) sameTrace(ctx context.Context, id string) error {
	if id == "" || t.traces[id] {
		return nil
	}
	t.traces[id] = true
	for i := range t.stores {
		if err := t.entries(ctx, &t.stores[i], semel.TrailFilter{TraceID: id}); err != nil {
			return err
		}
	}
	return nil
}

// message adds the message with the id, in whichever store it is.
func (t *trace) message(ctx context.Context, id string) error {
	for i := range t.stores {
		s := &t.stores[i]
		if s.outbox == nil || id == "" {
			continue
		}
		e, err := s.outbox.Find(ctx, id)
		if errors.Is(err, outbox.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		t.found(s, e)
	}
	return nil
}

// enqueuedUnder adds the messages whose origin the id is.
func (t *trace) enqueuedUnder(ctx context.Context, id string) error {
	for i := range t.stores {
		s := &t.stores[i]
		if s.outbox == nil {
			continue
		}
		list, err := s.outbox.List(ctx, outbox.Filter{Origin: id, Limit: maxEntries})
		if err != nil {
			return err
		}
		t.more = t.more || len(list) == maxEntries
		for _, e := range list {
			t.found(s, e)
		}
	}
	return nil
}

// found adds a message and what is tied to it.
func (t *trace) found(s *traceStore, e outbox.Entry) {
	item, added := t.add(s, "message", e.ID)
	if !added {
		return
	}
	at := e.EnqueuedAt.UTC()
	item.Cause, item.At, item.State, item.Topic, item.Type, item.Attempts, item.Key, item.Detail = e.Origin, &at, string(e.State), e.Topic, e.Type, e.Attempts, e.Key, detail(e)
	t.todo = append(t.todo, func(ctx context.Context) error {
		decisions, err := outbox.DecisionsIn(ctx, s, e.ID)
		if err != nil {
			return err
		}
		for _, d := range decisions {
			item.Decisions = append(item.Decisions, decisionJSON{d.Verdict, d.By, d.Because, d.At.UTC()})
		}
		for i := range t.stores {
			s := &t.stores[i]
			for _, f := range []semel.TrailFilter{{Key: e.ID}, {EventID: e.ID}} {
				if err := t.entries(ctx, s, f); err != nil {
					return err
				}
			}
		}
		if e.Origin != "" {
			if err := t.entries(ctx, s, semel.TrailFilter{RecordID: e.Origin}); err != nil {
				return err
			}
			if err := t.message(ctx, e.Origin); err != nil {
				return err
			}
		}
		return t.enqueuedUnder(ctx, e.ID)
	})
}

// arrange puts each item under what caused it, and all in the order of their times.
func (t *trace) arrange() {
	slices.SortStableFunc(t.order, func(a, b *traced) int {
		switch {
		case a.At == nil || b.At == nil:
			return cmp.Compare(a.ID, b.ID)
		}
		return a.At.Compare(*b.At)
	})
	byID := map[string]*traced{}
	for _, item := range t.order {
		if item.Kind == "message" || byID[item.ID] == nil {
			byID[item.ID] = item
		}
	}
	for _, item := range t.order {
		if item.Kind == "record" {
			item.Cause = t.calls[item.Key]
			for _, id := range []string{item.EventID, item.Key} {
				if m := byID[id]; m != nil && m.Kind == "message" {
					item.Cause = id
				}
			}
		}
	}
	for _, item := range t.order {
		// Who writes the tables by hand may have made a circle.
		above := byID[item.Cause]
		for up, n := above, 0; up != nil; up, n = byID[up.Cause], n+1 {
			if up == item || n > maxTraced {
				above = nil
				break
			}
		}
		if above == nil {
			t.roots = append(t.roots, item)
		} else {
			above.children = append(above.children, item)
		}
	}
}

// title says what an item is, in a line.
func (item *traced) title() string {
	var b strings.Builder
	_, _ = fmt.Fprintf(&b, "%s %s", item.Kind, printable(item.ID))
	for _, part := range []struct{ name, value string }{
		{"", item.Operation},
		{"topic ", item.Topic},
		{"type ", item.Type},
		{"tenant ", item.Tenant},
		{"key ", item.Key},
		{"request ", item.RequestID},
		{"event ", item.EventID},
		{"trace ", item.TraceID},
	} {
		if part.value != "" {
			_, _ = fmt.Fprintf(&b, "  %s%s", part.name, printable(part.value))
		}
	}
	return b.String()
}

// state says what became of an item, with its duplicates.
func (item *traced) state() string {
	if item.Kind == "message" {
		parts := []string{item.State}
		if item.Detail != "" {
			parts = append(parts, item.Detail)
		}
		return strings.Join(append(parts, item.decided()...), "  ")
	}
	counts, kinds := map[semel.TrailKind]uint64{}, []semel.TrailKind(nil)
	for _, e := range item.Entries {
		if counts[e.Kind] == 0 {
			kinds = append(kinds, e.Kind)
		}
		counts[e.Kind] += max(e.Count, 1)
	}
	parts := []string{item.State + ":"}
	for _, k := range kinds {
		parts = append(parts, fmt.Sprintf("%s %d,", k, counts[k]))
	}
	parts = []string{strings.TrimRight(strings.Join(parts, " "), ":,")}
	for _, s := range item.Steps {
		parts = append(parts, fmt.Sprintf("step %s %s", printable(s.Name), s.State))
	}
	return strings.Join(append(parts, item.decided()...), "  ")
}

func (item *traced) decided() (all []string) {
	for _, d := range item.Decisions {
		all = append(all, fmt.Sprintf("%s by %s: %s", d.Verdict, printable(d.By), printable(d.Because)))
	}
	return all
}

func (t *trace) tree(w io.Writer, items []*traced, indent string, named bool) {
	for i, item := range items {
		branch, below := "├─ ", "│  "
		if i == len(items)-1 {
			branch, below = "└─ ", "   "
		}
		if len(items) == 1 && item == t.roots[0] {
			branch, below = "", ""
		}
		at := "-"
		if item.At != nil {
			at = stamp(*item.At)
		}
		more := "   "
		if len(item.children) > 0 {
			more = "│  "
		}
		_, _ = fmt.Fprintf(w, "%s%s%s\n", indent, branch, item.title())
		line := fmt.Sprintf("%s  %s", at, item.state())
		if named {
			line += "  in " + item.Store
		}
		_, _ = fmt.Fprintf(w, "%s%s%s\n", indent+below, more, line)
		t.tree(w, item.children, indent+below, named)
	}
}

// mermaid writes a flowchart. Whatever could end a label or begin markup is left
// out of it.
func (t *trace) mermaid(w io.Writer) {
	clean := func(s string) string {
		return strings.Map(func(r rune) rune {
			if strings.ContainsRune("\"<>&`#;[]{}|\\", r) {
				return '_'
			}
			return r
		}, printable(s))
	}
	number := map[*traced]int{}
	_, _ = fmt.Fprintln(w, "flowchart TD")
	for i, item := range t.order {
		number[item] = i
		left, right := "[", "]"
		if item.Kind == "message" {
			left, right = "([", "])"
		}
		_, _ = fmt.Fprintf(w, "  n%d%s\"%s<br/>%s\"%s\n", i, left, clean(item.title()), clean(item.state()), right)
	}
	for _, item := range t.order {
		for _, child := range item.children {
			_, _ = fmt.Fprintf(w, "  n%d --> n%d\n", number[item], number[child])
		}
	}
}
