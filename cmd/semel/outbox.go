package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/semelhq/semel/jobs"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/postgres"
	"github.com/semelhq/semel/store/sqlite"
)

// outboxStore is what the commands need of an outbox.
type outboxStore interface {
	outbox.Store
	outbox.Admin
}

const outboxForms = "sqlite:app.db, sqlite:///var/lib/app/app.db or postgres://user@host/database"

// openOutbox opens the outbox in a store, which end closes.
func openOutbox(ctx context.Context, cmd *cobra.Command, url string, mustExist bool) (o outboxStore, end func(context.Context) error, err error) {
	u, err := parseStoreURL(url)
	switch {
	case err != nil:
		return nil, nil, usagef("%s: %w; use %s", named(cmd, "store"), err, outboxForms)
	case u.kind == "memory":
		return nil, nil, usagef("%s: a memory: store lives in its service's process; use %s", named(cmd, "store"), outboxForms)
	case u.kind == "postgres":
		// A relay hears of messages if its connections are sessions of the server.
		s, err := openPostgres(ctx, u.path, postgres.Config{NoMigrate: mustExist, Notify: !mustExist})
		if errors.Is(err, postgres.ErrPooler) {
			s, err = openPostgres(ctx, u.path, postgres.Config{NoMigrate: mustExist})
		}
		if err != nil {
			return nil, nil, err
		}
		return s.(*postgresStore).Outbox(), s.Close, nil
	}
	s, err := sqlite.Open(ctx, sqlite.Config{Path: u.path, NoMigrate: mustExist})
	if err != nil {
		if mustExist && notThere(u.path) {
			return nil, nil, &fault{
				code: exitFailed, err: fmt.Errorf("there is no store at %s", url),
				do: "Name the file that the service enqueues into, with --store or SEMEL_STORE. Nothing was created; a retry is safe.",
			}
		}
		return nil, nil, storeFault(url, err)
	}
	return s.Outbox(), s.Close, nil
}

// outboxAdmin adds --store to a command, which has fn look at the outbox in it.
func (p *program) outboxAdmin(cmd *cobra.Command, fn func(ctx context.Context, o outboxStore, args []string) error) {
	var url string
	cmd.Flags().StringVar(&url, "store", "", "store that the service enqueues into, such as sqlite:app.db or postgres://app@db/app")
	fromEnv(cmd, "store")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		o, end, err := openOutbox(cmd.Context(), cmd, url, true)
		if err != nil {
			return err
		}
		defer func() {
			if e := end(context.Background()); e != nil && err == nil {
				err = outboxFault("the store could not be closed", e)
			}
		}()
		return fn(cmd.Context(), o, args)
	}
}

func outboxFault(what string, err error) error {
	return &fault{
		code: exitFailed, err: fmt.Errorf("%s: %w", what, err),
		do: "The store did not respond as expected. Looking is always safe to repeat; before repeating a change, check whether it took effect: semel outbox show.",
	}
}

func (p *program) outboxCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "outbox",
		Short: "Show the messages of a service, and settle those that could not be delivered",
		Long: `Shows the messages that a service has enqueued in its own transactions, and what
became of them. A message is

  pending    due, under way, delayed after a failure, or behind others of its lane
  delivered  its receiver has accepted it
  dead       given up: refused for good, or tried too often
  unknown    nobody can know whether it has arrived: a mail whose server or relay
             failed at the mail's last line

Dead and unknown messages stay until somebody redrives or purges them. Until then
they hold up their lane, unless the relay was started with --on-dead skip.`,
	})
	cmd.AddCommand(p.outboxStatusCommand(), p.outboxListCommand(), p.outboxShowCommand(), p.outboxRedriveCommand(), p.outboxPurgeCommand())
	return cmd
}

// topicJSON is a topic's status as printed. The names are stable.
type topicJSON struct {
	Topic         string  `json:"topic"`
	OldestSeconds float64 `json:"oldest_seconds"`
	Pending       int     `json:"pending"`
	Blocked       int     `json:"blocked"`
	Dead          int     `json:"dead"`
	Unknown       int     `json:"unknown"`
}

func (p *program) outboxStatusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what waits, topic by topic",
		Long: fmt.Sprintf(`Prints for each topic how long the oldest message that could have been delivered has
waited, which is the figure to watch, and how many messages are pending, block their
lane, are dead or unknown. Counting stops at %d. With --json the output is one
document:

  {"oldest_seconds": ..., "topics": [{"topic": ..., "oldest_seconds": ..., ...}]}`, outbox.CountLimit),
		Example: `  semel outbox status --store sqlite:app.db
  semel outbox status --store sqlite:app.db --json | jq .oldest_seconds`,
		Args: cobra.NoArgs,
	}
	p.outboxAdmin(cmd, func(ctx context.Context, o outboxStore, _ []string) error {
		all, err := o.Status(ctx)
		if err != nil {
			return outboxFault("the status could not be read", err)
		}
		return p.printStatus(all, "TOPIC", asJSON)
	})
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (p *program) printStatus(all []outbox.TopicStatus, column string, asJSON bool) error {
	oldest := time.Duration(0)
	topics := []topicJSON{}
	for _, s := range all {
		oldest = max(oldest, s.OldestAge)
		topics = append(topics, topicJSON{s.Topic, s.OldestAge.Seconds(), s.Pending, s.Blocked, s.Dead, s.Unknown})
	}
	if asJSON {
		return p.printJSON(struct {
			OldestSeconds float64     `json:"oldest_seconds"`
			Topics        []topicJSON `json:"topics"`
		}{oldest.Seconds(), topics})
	}
	if len(all) == 0 {
		_, _ = fmt.Fprintln(p.stderr, "Nothing waits.")
		return nil
	}
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, column+"\tOLDEST\tPENDING\tBLOCKED\tDEAD\tUNKNOWN")
	for _, s := range all {
		_, _ = fmt.Fprintf(w, "%s\t%v\t%s\t%s\t%s\t%s\n", dash(s.Topic), s.OldestAge.Round(time.Millisecond),
			counted(s.Pending), counted(s.Blocked), counted(s.Dead), counted(s.Unknown))
	}
	return w.Flush()
}

// counted is a count that may have stopped.
func counted(n int) string {
	if n >= outbox.CountLimit {
		return fmt.Sprint(n, " or more")
	}
	return fmt.Sprint(n)
}

// messageJSON is a message as printed, without its payload. The names are stable.
type messageJSON struct {
	ID           string            `json:"id"`
	Position     uint64            `json:"position"`
	State        outbox.State      `json:"state"`
	Detail       string            `json:"detail"`
	Topic        string            `json:"topic"`
	Key          string            `json:"key,omitempty"`
	Type         string            `json:"type,omitempty"`
	Headers      map[string]string `json:"headers,omitempty"`
	Origin       string            `json:"origin,omitempty"`
	Bytes        int               `json:"bytes"`
	EnqueuedAt   *time.Time        `json:"enqueued_at,omitempty"`
	NotBefore    *time.Time        `json:"not_before,omitempty"`
	DueAt        *time.Time        `json:"due_at,omitempty"`
	SettledAt    *time.Time        `json:"settled_at,omitempty"`
	LeaseSeconds float64           `json:"lease_seconds,omitempty"`
	Attempts     int               `json:"attempts"`
	Redriven     int               `json:"redriven"`
	Blocks       bool              `json:"blocks"`
	Unsure       bool              `json:"unsure"`
	Cause        string            `json:"cause,omitempty"`
	Decisions    []decisionJSON    `json:"decisions,omitempty"` // of show
}

// decisionJSON is a decision of a person as printed. The names are stable.
type decisionJSON struct {
	Verdict outbox.Verdict `json:"verdict"`
	By      string         `json:"by"`
	Because string         `json:"because"`
	At      time.Time      `json:"at"`
}

func newMessageJSON(e outbox.Entry) messageJSON {
	var decisions []decisionJSON
	for _, d := range e.Decisions {
		decisions = append(decisions, decisionJSON{d.Verdict, d.By, d.Because, d.At.UTC()})
	}
	return messageJSON{
		Decisions: decisions,
		ID:        e.ID, Position: e.Position, State: e.State, Detail: detail(e), Topic: e.Topic, Key: e.Key, Type: e.Type, Headers: e.Headers, Origin: e.Origin, Bytes: e.Size,
		EnqueuedAt: optionalTime(e.EnqueuedAt), NotBefore: optionalTime(e.NotBefore), DueAt: optionalTime(e.DueAt), SettledAt: optionalTime(e.SettledAt),
		LeaseSeconds: e.LeaseLeft.Seconds(), Attempts: e.Attempts, Redriven: e.Redriven, Blocks: e.Blocks, Unsure: e.Unsure, Cause: e.Cause,
	}
}

// detail says more of a state.
func detail(e outbox.Entry) string {
	switch {
	case e.Blocks:
		return "blocks its lane"
	case e.State != outbox.StatePending:
		return ""
	case e.Waiting:
		return "behind others of its lane"
	case e.LeaseLeft > 0:
		return "under way"
	case !e.DueAt.IsZero():
		return "delayed"
	}
	return "due"
}

// messageFlags select messages.
type messageFlags struct {
	state choice
	f     outbox.Filter
	jobs  bool // and no other messages
	queue string
}

func (m *messageFlags) add(cmd *cobra.Command, states ...outbox.State) {
	for _, s := range states {
		m.state.of = append(m.state.of, string(s))
	}
	choiceFlag(cmd, &m.state, "state", "only "+m.noun()+" in this state")
	if m.jobs {
		cmd.Flags().StringVar(&m.queue, "queue", "", "only of this queue")
		cmd.Flags().StringVar(&m.f.Key, "key", "", "only with this key, in any queue")
	} else {
		cmd.Flags().StringVar(&m.f.Topic, "topic", "", "only of this topic")
		cmd.Flags().StringVar(&m.f.Key, "key", "", "only with this key, in any topic")
	}
	cmd.Flags().StringVar(&m.f.Cause, "cause", "", "only with this cause; TEXT* matches how it begins")
}

func (m *messageFlags) noun() string {
	if m.jobs {
		return "jobs"
	}
	return "messages"
}

func (m *messageFlags) filter() outbox.Filter {
	m.f.State = outbox.State(m.state.value)
	if m.jobs {
		m.f.TopicPrefix = jobs.TopicPrefix
	}
	if m.queue != "" {
		m.f.Topic = jobs.Topic(m.queue)
	}
	return m.f
}

func (p *program) outboxListCommand() *cobra.Command {
	var (
		page pageFlags
		m    messageFlags
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List messages",
		Long: `Lists messages in the order in which they were enqueued, without their payloads.
With --json the output is one document:

  {"messages": [{"id": ..., "state": ..., "topic": ..., ...}], "next": 123}

"next" is there if there may be more; it is the value for --after.`,
		Example: `  semel outbox list --store sqlite:app.db --state dead
  semel outbox list --store sqlite:app.db --topic mail --state unknown --json
  semel outbox list --store sqlite:app.db --cause 'httpsink: the receiver answered 404*' --all`,
		Args: cobra.NoArgs,
	}
	p.outboxAdmin(cmd, func(ctx context.Context, o outboxStore, _ []string) error {
		if err := page.check(); err != nil {
			return err
		}
		f := m.filter()
		return listing[outbox.Entry]{
			p: p, name: "messages", none: "There are no such messages.",
			header: "ID\tSTATE\tTOPIC\tKEY\tENQUEUED\tATTEMPTS\tDETAIL\tCAUSE",
			row: func(e outbox.Entry) []string {
				return []string{e.ID, string(e.State), dash(e.Topic), dash(e.Key), stamp(e.EnqueuedAt), fmt.Sprint(e.Attempts), dash(detail(e)), dash(e.Cause)}
			},
			json: func(e outbox.Entry) any { return newMessageJSON(e) },
		}.print(page.json, page.all, page.after, page.limit, func(after uint64) ([]outbox.Entry, uint64, error) {
			f.After, f.Limit = after, page.limit
			list, err := o.List(ctx, f)
			if err != nil {
				return nil, 0, outboxFault("the messages could not be listed", err)
			}
			if len(list) == 0 {
				return nil, 0, nil
			}
			return list, list[len(list)-1].Position, nil
		})
	})
	m.add(cmd, outbox.StatePending, outbox.StateDelivered, outbox.StateDead, outbox.StateUnknown)
	page.add(cmd, "position")
	return cmd
}

func oneMessage(_ *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return usagef("name one message by its id, which semel outbox list prints")
	}
	return nil
}

func findMessage(ctx context.Context, o outboxStore, id string) (outbox.Entry, error) {
	e, err := o.Find(ctx, id)
	switch {
	case errors.Is(err, outbox.ErrNotFound):
		return e, &fault{
			code: exitNotFound, err: fmt.Errorf("there is no message with the id %q", id),
			do: "It was delivered and swept, was purged, or is in another store. Nothing was changed; semel outbox list shows what there is.",
		}
	case err != nil:
		return e, outboxFault("the message could not be read", err)
	}
	return e, nil
}

func (p *program) outboxShowCommand() *cobra.Command {
	var asJSON, payload bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show one message",
		Long: `Shows a message by its id, which semel outbox list prints. Of its payload it prints
the size; --payload prints the payload as it is, and nothing else.`,
		Example: `  semel outbox show --store sqlite:app.db 0198c2a4-8f7e-7d7e-9b57-0f6f3b1f2a10
  semel outbox show --store sqlite:app.db 0198c2a4-8f7e-7d7e-9b57-0f6f3b1f2a10 --payload > payload`,
		Args: oneMessage,
	}
	p.outboxAdmin(cmd, func(ctx context.Context, o outboxStore, args []string) error {
		if asJSON && payload {
			return usagef("--json and --payload do not go together")
		}
		e, err := findMessage(ctx, o, args[0])
		switch {
		case err != nil:
			return err
		case payload:
			_, err := p.stdout.Write(e.Payload)
			return err
		case asJSON:
			return p.printJSON(newMessageJSON(e))
		}
		return p.printMessage(e)
	})
	jsonFlag(cmd, &asJSON)
	cmd.Flags().BoolVar(&payload, "payload", false, "print the payload, as it is")
	return cmd
}

func (p *program) printMessage(e outbox.Entry) error {
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" {
			_, _ = fmt.Fprintf(w, "%s\t%s\n", name, printable(value))
		}
	}
	line("id", e.ID)
	line("state", strings.TrimSuffix(string(e.State)+", "+detail(e), ", "))
	line("topic", e.Topic)
	line("key", e.Key)
	line("type", e.Type)
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		line("header", name+": "+e.Headers[name])
	}
	line("payload", fmt.Sprintf("%d bytes", e.Size))
	line("enqueued", stamp(e.EnqueuedAt))
	for _, at := range []struct {
		name string
		time time.Time
	}{{"not before", e.NotBefore}, {"due", e.DueAt}, {"settled", e.SettledAt}} {
		if !at.time.IsZero() {
			line(at.name, stamp(at.time))
		}
	}
	if e.LeaseLeft > 0 {
		line("lease", fmt.Sprintf("%v left; renewed while the relay lives", e.LeaseLeft.Round(time.Millisecond)))
	}
	line("attempts", fmt.Sprint(e.Attempts))
	if e.Redriven > 0 {
		line("redriven", fmt.Sprint(e.Redriven, " times; attempts are those since"))
	}
	line("cause", e.Cause)
	if e.Unsure {
		line("unsure", "it may have arrived")
	}
	for _, d := range e.Decisions {
		line("decided", stamp(d.At)+" "+d.Cause())
	}
	if err := w.Flush(); err != nil {
		return err
	}
	switch e.State {
	case outbox.StateDead:
		_, _ = fmt.Fprintln(p.stderr, "Once its cause is mended: semel outbox redrive. To give it up: semel outbox purge.")
	case outbox.StateUnknown:
		_, _ = fmt.Fprintln(p.stderr, "Find out whether it has arrived. If so: semel outbox purge. If not: semel outbox redrive.")
	}
	return nil
}
