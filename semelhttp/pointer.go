package semelhttp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"
)

// JSONPointer names one value in JSON bodies (RFC 6901): a key, or the name of
// an operation. The zero value is of no use; ParseJSONPointer makes one.
type JSONPointer struct {
	text   string
	tokens []pointerToken
}

// ParseJSONPointer returns the pointer that s, such as /order/id, is.
func ParseJSONPointer(s string) (JSONPointer, error) {
	if err := checkPointer(s); err != nil {
		return JSONPointer{}, fmt.Errorf("%q %w", s, err)
	}
	if s == "" {
		return JSONPointer{}, errors.New(`"" points to the whole body; name a value in it, such as /order/id`)
	}
	return JSONPointer{s, pointerTokens(s)}, nil
}

// String returns the pointer as it was written.
func (p JSONPointer) String() string { return p.text }

// Text returns the string or the number that p points at in the body of r; a
// number as it is written. The error is a *ScopeError of 400: there is no such
// value, or it is empty or of another kind, or the body is not well-formed JSON
// that everybody would read alike, without member names that repeat. It quotes
// nothing of the body.
func (p JSONPointer) Text(r *http.Request, body []byte) (string, error) {
	refuse := func(why string) (string, error) {
		return "", &ScopeError{Status: http.StatusBadRequest, Detail: "The request body " + why + ". Nothing was executed."}
	}
	if codingOf(r.Header) != "" {
		return refuse("has a Content-Encoding; this operation is told by what is in it, so send it as it is")
	}
	d := jsontext.NewDecoder(bytes.NewReader(body))
	var found jsontext.Value
	err := p.find(d, p.tokens, &found)
	if err == nil {
		_, err = d.ReadToken() // there must be no more
		if err == nil {
			err = errors.New("a second value")
		}
	}
	if err != io.EOF {
		return refuse("is not JSON that can be read in one way only")
	}
	switch found.Kind() {
	case '"':
		text, err := jsontext.AppendUnquote(nil, found)
		if err == nil && len(text) > 0 {
			return string(text), nil
		}
	case '0':
		return string(found), nil
	}
	return refuse("has no string or number at " + p.text + ", which this operation is told by")
}

// find reads the next value, and sets found to what the tokens lead to in it. The
// decoder sees to it that all of it is well-formed and no name repeats.
func (p JSONPointer) find(d *jsontext.Decoder, tokens []pointerToken, found *jsontext.Value) error {
	if len(tokens) == 0 {
		v, err := d.ReadValue()
		*found = v.Clone()
		return err
	}
	kind := d.PeekKind()
	if kind != '{' && kind != '[' {
		return d.SkipValue()
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for i := 0; d.PeekKind() != '}' && d.PeekKind() != ']'; i++ {
		hit := kind == '[' && i == tokens[0].index
		if kind == '{' {
			name, err := d.ReadToken()
			if err != nil {
				return err
			}
			hit = name.Kind() == '"' && tokens[0].is(name.String())
		}
		var err error
		if hit {
			err = p.find(d, tokens[1:], found)
		} else {
			err = d.SkipValue()
		}
		if err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return err
}

// is reports whether the token is this member name.
func (t pointerToken) is(name string) bool {
	quoted, err := jsontext.AppendQuote(nil, name)
	return err == nil && bytes.Equal(quoted, t.name)
}
