package principal

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/semelhq/semel/gateway/internal/credential"
	"github.com/semelhq/semel/internal/httpfield"
	"github.com/semelhq/semel/semelhttp"
)

// DigestConfig configures a Digest. One of Headers and Cookie is required.
type DigestConfig struct {
	// Headers names the headers whose values together are the credential, for
	// example Authorization.
	Headers []string
	// Cookie names the cookie that is the credential: an opaque session id
	// that does not change. If a cookie is re-encrypted with each response,
	// each retry is another caller.
	Cookie string
	// Challenge is the WWW-Authenticate of a 401, for example Bearer.
	// Default: there is none.
	Challenge string
}

// Digest is the Source that distinguishes callers by a digest of their
// credential and verifies nothing. A refreshed credential is another caller,
// whose retry executes again; a revoked one still gets its recorded responses.
// A request without one is refused.
type Digest struct {
	config DigestConfig
	actor  func(http.Header) string // by Headers
}

// NewDigest returns a source, or one error that names everything wrong with c.
func NewDigest(c DigestConfig) (*Digest, error) {
	var errs []error
	if (len(c.Headers) == 0) == (c.Cookie == "") {
		errs = append(errs, errors.New("exactly one of the fields Headers and Cookie is needed"))
	}
	actor, err := semelhttp.CredentialActor(c.Headers...)
	if err != nil {
		errs = append(errs, fmt.Errorf("field Headers names %w", err))
	}
	if c.Cookie != "" && !httpfield.IsToken(c.Cookie) {
		errs = append(errs, fmt.Errorf("field Cookie is %q, which is not the name of a cookie", c.Cookie))
	}
	if whyNoText(c.Challenge) != "" {
		errs = append(errs, fmt.Errorf("field Challenge is %q, which is not a valid header value", c.Challenge))
	}
	return made("Digest", &Digest{c, actor}, errs)
}

// Identify implements Source.
func (d *Digest) Identify(r *http.Request) (Principal, error) {
	var id string
	if d.config.Cookie == "" {
		id = d.actor(r.Header)
	} else {
		switch cookies := r.CookiesNamed(d.config.Cookie); {
		case len(cookies) > 1: // which one the upstream takes is not known
			return Principal{}, unauthenticated("The request has the session's cookie more than once. Send one.", nil, d.challenges()...)
		case len(cookies) == 1 && cookies[0].Value != "":
			id = credential.Digest("cookie", d.config.Cookie, cookies[0].Value)
		}
	}
	if id == "" {
		return Principal{}, unauthenticated("The request has no credential. Send it again with one and the same key.", nil, d.challenges()...)
	}
	return Principal{Actor: id}, nil
}

func (d *Digest) challenges() []string {
	if d.config.Challenge == "" {
		return nil
	}
	return []string{d.config.Challenge}
}
