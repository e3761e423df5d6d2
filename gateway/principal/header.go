package principal

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"

	"github.com/semelhq/semel/gateway/internal/credential"
)

// HeaderConfig configures a Header.
type HeaderConfig struct {
	// Subject is the header in which a proxy names the caller. Required.
	Subject string
	// Tenant is the header in which it names the caller's tenant, which is then
	// required. Default: there is none.
	Tenant string
	// Proxies are the trusted proxies. Required. They must set the headers, not
	// add to them, and drop what the client sent in any spelling.
	Proxies Proxies
}

// Header is the Source that trusts a header set by trusted proxies. Use it
// with Clean.
type Header struct{ config HeaderConfig }

// NewHeader returns a source, or one error that names everything wrong with c.
func NewHeader(c HeaderConfig) (*Header, error) {
	var errs []error
	c.Proxies = c.Proxies.checked(&errs)
	if c.Proxies.none() {
		errs = append(errs, errors.New("field Proxies is empty; name the proxies' networks, or anybody could be anybody"))
	}
	c.Subject = headerName(&errs, "Subject", c.Subject, true)
	c.Tenant = headerName(&errs, "Tenant", c.Tenant, false)
	if c.Subject != "" && c.Subject == c.Tenant {
		errs = append(errs, errors.New("fields Subject and Tenant are the same header"))
	}
	return made("Header", &Header{c}, errs)
}

// headerName checks the name of a header and returns it as package http has it.
func headerName(errs *[]error, field, name string, required bool) string {
	if name == "" {
		if required {
			*errs = append(*errs, fmt.Errorf("field %s is empty", field))
		}
		return ""
	}
	if why := credential.WhyNot(name); why != "" {
		*errs = append(*errs, fmt.Errorf("field %s names %q, which %s", field, name, why))
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}

// Identify implements Source.
func (h *Header) Identify(r *http.Request) (Principal, error) {
	if !h.config.Proxies.Trusts(r) {
		return Principal{}, refuse(http.StatusForbidden,
			"Callers are identified by a proxy, and the request did not come through it. Send it through the proxy.", nil)
	}
	subject, err := h.value(r, h.config.Subject, "The proxy did not say who the caller is. Authenticate and send the request again with the same key.")
	if err != nil {
		return Principal{}, err
	}
	return named("user", subject, func() (string, error) {
		return h.value(r, h.config.Tenant, "The proxy did not say which tenant the caller belongs to.")
	}, h.config.Tenant != "")
}

func (h *Header) value(r *http.Request, name, missing string) (string, error) {
	switch v, lines := only(r.Header, name); {
	case lines > 1:
		return "", refuse(http.StatusForbidden, "The request says more than once who the caller is.",
			fmt.Errorf("%d lines of the header %s; the proxy must set it, not add to it", lines, name))
	case v == "":
		return "", unauthenticated(missing, nil)
	default:
		return v, nil
	}
}

// named makes a principal of what somebody else said.
func named(kind, subject string, ofTenant func() (string, error), hasTenant bool) (p Principal, err error) {
	if p.Actor, err = actor(kind, subject); err != nil {
		return Principal{}, err
	}
	if hasTenant {
		if p.Tenant, err = ofTenant(); err == nil {
			p.Tenant, err = tenant(p.Tenant)
		}
		if err != nil {
			return Principal{}, err
		}
	}
	return p, nil
}

func (h *Header) identityHeaders() ([]string, Proxies) {
	names := []string{h.config.Subject}
	if h.config.Tenant != "" {
		names = append(names, h.config.Tenant)
	}
	return names, h.config.Proxies
}
