package semelhttp

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/semelhq/semel/semelhttp/internal/canonjson"
)

// JSONPointer is a JSON pointer (RFC 6901) to a value in a request body, such as a key
// or the name of an operation. The zero value is not valid; use ParseJSONPointer.
type JSONPointer struct {
	text    string
	pointer canonjson.Pointer
}

// ParseJSONPointer parses a pointer such as /order/id.
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

// String returns the text that was parsed.
func (p JSONPointer) String() string { return p.text }

// Text returns the string, or the number as it is written, that p points to in body,
// the body of r. The error is a *ScopeError with status 400 if there is no such value,
// if it is empty or of another kind, or if the body is not well-formed JSON without
// repeated member names. It does not quote the body.
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
