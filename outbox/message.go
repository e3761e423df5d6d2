package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/semelhq/semel"
)

// Limits of a message. Store larger contents elsewhere and refer to them.
const (
	MaxPayload = 1 << 20  // bytes of Payload
	MaxHeaders = 16 << 10 // bytes of the names and values of Headers together
	MaxName    = 255      // bytes of ID, Topic, Key and Type each
)

// Message is a message to be sent.
type Message struct {
	// ID identifies the message, so that receivers can recognise repetitions.
	// It is unique among the messages in the store and consists of letters,
	// digits, '.', '_', ':' and '-'. If it is empty, enqueueing generates one.
	ID string
	// Topic says where the message goes. Relays have a sink for each topic.
	// Required.
	Topic string
	// Key names a lane within Topic, whose messages are delivered in order.
	// Messages without a key are in no order.
	Key string
	// Type is the type of the payload, such as "order.paid".
	Type string
	// Origin is the id of the record of the request, or of the message, under which
	// the message was enqueued. It is for tracing a request through the system. If
	// it is empty, enqueueing sets it to OriginOf. Sinks do not see it.
	Origin string
	// Headers accompany the payload. Their meaning is up to the sink.
	Headers map[string]string
	Payload []byte
	// NotBefore delays the first attempt, by the store's clock. Zero means no
	// delay. Later messages of the lane wait as well.
	NotBefore time.Time
}

type originKey struct{}

// WithOrigin returns a context under which enqueued messages have the Origin id,
// such as the id of a message being handled.
func WithOrigin(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, originKey{}, id)
}

// OriginOf returns the Origin of messages that are enqueued under ctx: the id set by
// WithOrigin, or else the id of the record being executed, or else the empty string.
func OriginOf(ctx context.Context) string {
	if id, ok := ctx.Value(originKey{}).(string); ok {
		return id
	}
	if x, ok := semel.CurrentExecution(ctx); ok {
		return x.RecordID()
	}
	return ""
}

// Validate reports what is wrong with m. An empty ID is valid.
func (m Message) Validate() error {
	var errs []error
	for _, f := range [...]struct{ name, text string }{{"Topic", m.Topic}, {"Key", m.Key}, {"Type", m.Type}, {"Origin", m.Origin}} {
		if f.text == "" {
			continue
		}
		if err := checkName(f.name, f.text); err != nil {
			errs = append(errs, err)
		}
	}
	if m.Topic == "" {
		errs = append(errs, errors.New("field Topic is empty"))
	}
	if len(m.ID) > MaxName || !isID(m.ID) {
		errs = append(errs, fmt.Errorf("field ID may hold %d letters, digits, '.', '_', ':' and '-'", MaxName))
	}
	size := 0
	for name, value := range m.Headers {
		size += len(name) + len(value)
		if name == "" || !utf8.ValidString(name) || !utf8.ValidString(value) || strings.ContainsRune(name+value, 0) {
			errs = append(errs, errors.New("field Headers has an empty name, or text that is not UTF-8 or holds a zero byte"))
		}
	}
	if size > MaxHeaders {
		errs = append(errs, fmt.Errorf("field Headers holds %d bytes; at most %d are allowed", size, MaxHeaders))
	}
	if len(m.Payload) > MaxPayload {
		errs = append(errs, fmt.Errorf("field Payload holds %d bytes; at most %d are allowed: keep larger ones elsewhere and send a reference", len(m.Payload), MaxPayload))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("outbox: message: %w", err)
	}
	return nil
}

func checkName(field, s string) error {
	if len(s) > MaxName || !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		return fmt.Errorf("field %s must be UTF-8 without zero bytes, of at most %d bytes", field, MaxName)
	}
	return nil
}

// isID reports whether s is made of letters, digits, '.', '_', ':' and '-'.
func isID(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= ':', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
