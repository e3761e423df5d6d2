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

// Bounds of a message. What is larger is kept elsewhere and referred to.
const (
	MaxPayload = 1 << 20  // bytes of Payload
	MaxHeaders = 16 << 10 // bytes of the names and values of Headers together
	MaxName    = 255      // bytes of ID, Topic, Key and Type each
)

// Message is what is to be sent.
type Message struct {
	// ID is what receivers know repetitions by. It is unique among the messages
	// that the store holds, and made of letters, digits, '.', '_', ':' and '-'.
	// Enqueueing makes one where it is empty.
	ID string
	// Topic says where the message goes: relays have a sink for each. Required.
	Topic string
	// Key names the lane within Topic whose messages are delivered in order.
	// Messages without a key are in no order.
	Key string
	// Type says what the payload is, such as "order.paid".
	Type string
	// Origin names what the message was enqueued under, for those who follow a
	// request through the system: the id of the record of a protected request, or
	// of another message. Where it is empty, enqueueing takes OriginOf. It does not
	// go with the message: sinks do not see it.
	Origin string
	// Headers go with the payload; what they mean is the sink's matter.
	Headers map[string]string
	Payload []byte
	// NotBefore delays the first attempt, by the store's clock. Zero is at
	// once. It holds up what is behind it in the lane.
	NotBefore time.Time
}

type originKey struct{}

// WithOrigin returns a context under which what is enqueued has the Origin id, such
// as that of a message that is being worked on.
func WithOrigin(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, originKey{}, id)
}

// OriginOf returns the Origin of what is enqueued under ctx: what WithOrigin says, or
// the id of the record that is executed, or nothing.
func OriginOf(ctx context.Context) string {
	if id, ok := ctx.Value(originKey{}).(string); ok {
		return id
	}
	if x, ok := semel.CurrentExecution(ctx); ok {
		return x.RecordID()
	}
	return ""
}

// Validate reports what is wrong with m, but for an empty ID.
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
