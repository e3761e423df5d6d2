package semelhttp

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/semelhq/semel/semelhttp/internal/canonjson"
)

// JSONPointer names one value in JSON bodies (RFC 6901): a key, or the name of
// an operation. The zero value is of no use; ParseJSONPointer makes one.
type JSONPointer struct {
	text    string
	pointer canonjson.Pointer
}

// ParseJSONPointer returns the pointer that s, such as /order/id, is.
func ParseJSONPointer(s string) (JSONPointer, error) {
	p, err := canonjson.ParsePointer(s)
	if err != nil {
		return JSONPointer{}, fmt.Errorf("%q %w", s, err)
	}
	if s == "" {
		return JSONPointer{}, errors.New(`"" points to the whole body; name a value in it, such as /order/id`)
	}
	return JSONPointer{s, p}, nil
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
	switch text, ok, err := p.pointer.Text(body); {
	case err != nil:
		return refuse("is not JSON that can be read in one way only")
	case !ok || text == "":
		return refuse("has no string or number at " + p.text + ", which this operation is told by")
	default:
		return text, nil
	}
}
