package send

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/webhook"
)

// Endpoint is where a customer wants events.
type Endpoint struct {
	// ID names the endpoint: 1 to MaxEndpointID letters, digits, '_' and '-'.
	ID string
	// URL is posted to. It may hold secrets, in its path and query.
	URL string
	// Secrets sign, all of them each delivery, so that one can be changed while
	// the customer knows only the other. 1 to webhook.MaxSignatures.
	Secrets []string
	// Types are those of the events that it wants: "invoice.paid", or
	// "invoice.*" for all that begin with "invoice.". None stands for all.
	Types []string
	State
}

// State is the health of an endpoint. The zero value is healthy.
type State struct {
	// FailingSince is the time of the first failure since the last delivery;
	// zero if the last attempt was a delivery. It and DisabledAt are whole
	// microseconds, in UTC.
	FailingSince time.Time
	// DisabledAt is when the endpoint was disabled; zero if it is enabled.
	DisabledAt time.Time
	// Cause says why it is disabled. The sink writes CauseGone and CauseFailing;
	// services may write other causes. Its first 64 bytes are repeated in the
	// causes of messages.
	Cause string
}

// Causes of a State.
const (
	CauseGone    = "gone"    // the endpoint answered 410
	CauseFailing = "failing" // for longer than Config.DisableAfter
)

// Disabled reports whether nothing is sent to the endpoint.
func (s State) Disabled() bool { return !s.DisabledAt.IsZero() }

func (s State) equal(o State) bool {
	return s.FailingSince.Equal(o.FailingSince) && s.DisabledAt.Equal(o.DisabledAt) && s.Cause == o.Cause
}

// Bounds of what a message's id is made of.
const (
	MaxEndpointID = 64
	MaxEventID    = webhook.MaxIDBytes
)

// Wants reports whether the endpoint wants events of the type.
func (e Endpoint) Wants(eventType string) bool {
	return len(e.Types) == 0 || slices.ContainsFunc(e.Types, func(want string) bool {
		prefix, all := strings.CutSuffix(want, "*")
		return want == eventType || all && strings.HasPrefix(eventType, prefix)
	})
}

// String returns the endpoint's name and state. It holds neither URL nor secrets,
// and so do all ways of package fmt and log/slog to print an endpoint.
func (e Endpoint) String() string {
	s := "endpoint " + e.ID
	if e.Disabled() {
		s += " (disabled: " + e.Cause + ")"
	}
	return s
}

// GoString is String, so that %#v prints no secrets.
func (e Endpoint) GoString() string { return e.String() }

// LogValue implements slog.LogValuer.
func (e Endpoint) LogValue() slog.Value { return slog.StringValue(e.String()) }

// ErrNoEndpoint reports that there is no such endpoint.
var ErrNoEndpoint = errors.New("webhook: no such endpoint")

// Endpoints is where a service keeps its endpoints, usually a table of its own.
// Its methods are called at the same time from many relays.
type Endpoints interface {
	// Endpoint returns the endpoint as it is now, or ErrNoEndpoint if it is gone.
	// With any other error the message is postponed, without counting an attempt.
	Endpoint(ctx context.Context, id string) (Endpoint, error)
	// Update replaces the endpoint's State with to, if it still has the URL and the
	// State of was, and reports whether it did. So a late response does not
	// disable an endpoint that was repaired in the meantime, and of many relays
	// only one learns that it has disabled the endpoint. In SQL:
	//
	//	UPDATE endpoints SET failing_since = ?, disabled_at = ?, cause = ?
	//	WHERE id = ? AND url = ? AND failing_since IS ? AND disabled_at IS ?
	Update(ctx context.Context, was Endpoint, to State) (bool, error)
}

// Memory is Endpoints in the memory of a process, for tests, and for a fixed set.
// The zero value holds none. Safe for concurrent use.
type Memory struct {
	mu  sync.Mutex
	all map[string]Endpoint
}

// Put adds endpoints, or replaces those of the same id, with their State. The one
// whose ID is empty is that of all messages which name none.
func (m *Memory) Put(endpoints ...Endpoint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[string]Endpoint{}
	}
	for _, e := range endpoints {
		e.Secrets, e.Types = slices.Clone(e.Secrets), slices.Clone(e.Types)
		m.all[e.ID] = e
	}
}

// Endpoint implements Endpoints.
func (m *Memory) Endpoint(_ context.Context, id string) (Endpoint, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.all[id]
	if !ok {
		return Endpoint{}, ErrNoEndpoint
	}
	e.Secrets, e.Types = slices.Clone(e.Secrets), slices.Clone(e.Types)
	return e, nil
}

// Update implements Endpoints.
func (m *Memory) Update(_ context.Context, was Endpoint, to State) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.all[was.ID]
	if !ok || e.URL != was.URL || !e.State.equal(was.State) {
		return false, nil
	}
	e.State = to
	m.all[was.ID] = e
	return true, nil
}

// Event is an event that a service sends to its customers.
type Event struct {
	// ID is the webhook-id at all endpoints, by which customers recognise
	// repetitions. Up to MaxEventID letters, digits, '_' and '-'. Messages makes
	// one where it is empty.
	ID string
	// Type says what happened, such as "invoice.paid". Endpoints choose by it. It
	// is not sent: put it into the payload.
	Type string
	// Payload is sent and signed as it is. Customers expect it to be small, some
	// 20 kB.
	Payload []byte
	// ContentType is that of the payload. Default application/json.
	ContentType string
	// Ordered delivers an endpoint's events in the order in which they were
	// enqueued, one at a time. Then one that fails holds up those behind it, for
	// days, if the endpoint is down for as long. For customers who need order, a
	// version in the payload is usually better.
	Ordered bool
	// NotBefore delays the first attempt, by the store's clock.
	NotBefore time.Time
}

// Messages makes a message for each of the endpoints that want the event, to be
// enqueued in the transaction of the change that the event tells of:
//
//	messages, err := send.Event{Type: "invoice.paid", Payload: body}.Messages("webhooks", endpoints...)
//	err = sqlite.Enqueue(ctx, messages...)
//
// Of an endpoint it needs ID and Types. A message's id is that of the event, a
// colon and that of the endpoint, as in "evt_1:ep_7", so enqueueing an event again
// for the same endpoint is an outbox.ErrDuplicate for as long as the outbox holds
// the message. Programs in other languages make their rows such.
//
// A message for a disabled endpoint is dead when its turn comes, and can be
// redriven later. Leave out such endpoints if the messages they miss should not
// be kept.
func (e Event) Messages(topic string, to ...Endpoint) ([]outbox.Message, error) {
	if e.ID == "" {
		e.ID = semel.NewKey()
	}
	if e.ContentType == "" {
		e.ContentType = "application/json"
	}
	errs := []error{checkID("event", e.ID, MaxEventID)}
	var messages []outbox.Message
	for _, ep := range to {
		if !ep.Wants(e.Type) {
			continue
		}
		m := outbox.Message{
			ID: e.ID + ":" + ep.ID, Topic: topic, Type: e.Type, Payload: e.Payload, NotBefore: e.NotBefore,
			Headers: map[string]string{"Content-Type": e.ContentType},
		}
		if e.Ordered {
			m.Key = ep.ID
		}
		messages = append(messages, m)
		errs = append(errs, checkID("endpoint", ep.ID, MaxEndpointID))
	}
	if len(messages) > 0 {
		errs = append(errs, messages[0].Validate())
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("webhook: event: %w", err)
	}
	return messages, nil
}

// checkID reports what is wrong with an id. Without colons it is clear where that
// of the event ends, and without dots, what was signed.
func checkID(what, id string, most int) error {
	if id == "" || len(id) > most || strings.ContainsFunc(id, func(r rune) bool {
		return r != '_' && r != '-' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) {
		return fmt.Errorf("the id of the %s must be 1 to %d letters, digits, '_' and '-'", what, most)
	}
	return nil
}
