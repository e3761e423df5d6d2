package storekit

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/outbox"
)

// Stored returns m as a row holds it: with an id, with origin unless it names
// another, with a payload that is not NULL, and with its headers as JSON, or NULL
// where it has none.
func Stored(m outbox.Message, origin string) (_ outbox.Message, headers any, err error) {
	if m.ID == "" {
		m.ID = semel.NewKey()
	}
	m.Origin, m.Payload = cmp.Or(m.Origin, origin), Blob(m.Payload)
	if len(m.Headers) > 0 {
		b, err := json.Marshal(m.Headers)
		if err != nil {
			return m, nil, fmt.Errorf("headers: %w", err)
		}
		headers = string(b)
	}
	return m, headers, nil
}

// Headers reads what Stored has made of a message's headers. Rows may be another
// program's.
func Headers(b []byte) (h map[string]string, err error) {
	if len(b) > 0 {
		if err := json.Unmarshal(b, &h); err != nil {
			return nil, errors.New("the headers are not a JSON object of texts")
		}
	}
	return h, nil
}
