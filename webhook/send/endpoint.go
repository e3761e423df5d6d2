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

// Endpoint is a destination for a customer's events.
type Endpoint struct {
	// ID identifies the endpoint: 1 to MaxEndpointID letters, digits, '_' and
	// '-'.
	ID string
	// URL is the destination. Its path and query may contain secrets.
	URL string
	// Secrets are used, all of them, to sign each delivery, so that a secret
	// can be replaced while the customer knows only one of them. There are 1 to
	// webhook.MaxSignatures.
	Secrets []string
	// Types are the types of events that the endpoint wants, such as
	// "invoice.paid", or "invoice.*" for all that begin with "invoice.". If
	// there are none, it wants all events.
	Types []string
	State
}

// State is the state of an endpoint. The zero value means that it works.
type State struct {
	// FailingSince is the time of the first failure since the last delivery, or
	// zero if the last attempt was a delivery. It and DisabledAt are rounded to
	// microseconds and in UTC.
	FailingSince time.Time
	// DisabledAt is when the endpoint was disabled, or zero if it is enabled.
	DisabledAt time.Time
	// Cause says why the endpoint is disabled. The sink writes CauseGone and
	// CauseFailing; services may write other texts. The first 64 bytes are
	// repeated in the causes of messages.
	Cause string
}

// Causes of a State.
const (
	CauseGone    = "gone"    // the endpoint answered 410
	CauseFailing = "failing" // for longer than Config.DisableAfter
)

// Disabled reports whether the endpoint is disabled.
func (s State) Disabled() bool { return !s.DisabledAt.IsZero() }

func (s State) equal(o State) bool {
	return s.FailingSince.Equal(o.FailingSince) && s.DisabledAt.Equal(o.DisabledAt) && s.Cause == o.Cause
}

// Limits of the parts of a message's id.
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

// String returns the endpoint's name and state. It contains neither URL nor
// secrets. The packages fmt and log/slog print endpoints in the same way.
func (e Endpoint) String() string {
	s := "endpoint " + e.ID
	if e.Disabled() {
		s += " (disabled: " + e.Cause + ")"
	}
	return s
}

// GoString returns the same as String, so that %#v prints no secrets.
func (e Endpoint) GoString() string { return e.String() }

// LogValue implements slog.LogValuer.
func (e Endpoint) LogValue() slog.Value { return slog.StringValue(e.String()) }

// ErrNoEndpoint reports that the endpoint does not exist.
var ErrNoEndpoint = errors.New("webhook: no such endpoint")

// Endpoints stores the endpoints of a service, usually in a table beside its
// customers. Its methods are called concurrently by many relays.
type Endpoints interface {
	// Endpoint returns the current endpoint, or ErrNoEndpoint if it does not
	// exist. After any other error the message is postponed, without counting an
	// attempt.
	Endpoint(ctx context.Context, id string) (Endpoint, error)
	// Update sets the State of the endpoint to to, if it still has the URL and
	// the State of was, and reports whether it did. So a late response does not
	// disable an endpoint that has been repaired in the meantime, and only one
	// of many relays disables it. In SQL:
	//
	//	UPDATE endpoints SET failing_since = ?, disabled_at = ?, cause = ?
	//	WHERE id = ? AND url = ? AND failing_since IS ? AND disabled_at IS ?
	Update(ctx context.Context, was Endpoint, to State) (bool, error)
}

// Memory implements Endpoints in the memory of a process, for tests and for a
// fixed set of endpoints. The zero value is empty. It is safe for concurrent use.
type Memory struct {
	mu  sync.Mutex
	all map[string]Endpoint
}

// Put adds endpoints, or replaces those with the same id, including their State.
// An endpoint with an empty ID gets all messages that name no endpoint.
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

// Event is an event of a service.
type Event struct {
	// ID identifies repetitions for customers. It is the webhook-id at all
	// endpoints and has up to MaxEventID letters, digits, '_' and '-'. If it is
	// empty, Messages generates one.
	ID string
	// Type says what happened, such as "invoice.paid". Endpoints select events by
	// it. It is not sent, so include it in the payload.
	Type string
	// Payload is sent and signed as it is. Customers expect it to be small,
	// about 20 kB.
	Payload []byte
	// ContentType is that of the payload. Default application/json.
	ContentType string
	// Ordered delivers an endpoint's events in the order in which they were
	// enqueued, one at a time. An event that fails then delays the following
	// ones, perhaps for days, if the endpoint is down. For customers who need
	// order, a version in the payload is usually better.
	Ordered bool
	// NotBefore delays the first attempt, by the store's clock.
	NotBefore time.Time
}

// Messages returns a message for each of the endpoints that want the event.
// Enqueue them in the transaction of the change that the event announces:
//
//	messages, err := send.Event{Type: "invoice.paid", Payload: body}.Messages("webhooks", endpoints...)
//	err = sqlite.Enqueue(ctx, messages...)
//
// It uses only the ID and Types of an endpoint. A message's id consists of the ids
// of the event and the endpoint, separated by a colon, as in "evt_1:ep_7". So
// enqueueing an event again for the same endpoint fails with outbox.ErrDuplicate
// while the outbox holds the message. Programs in other languages must make their
// rows in the same way.
//
// A message for a disabled endpoint is dead when its turn comes, and can be
// redriven later. Omit such endpoints if their messages need not be kept.
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
