package principal

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"

	"github.com/semelhq/semel/gateway/internal/spelling"
)

// Proxies are the proxies that are trusted to say who a client is and what its
// address is. The zero value trusts none. Trust depends on where the connection
// comes from, not on any header, so r.RemoteAddr must be what the server set.
type Proxies struct {
	// From lists the networks of the proxies, as in 10.1.2.0/24. A network
	// of all addresses is refused.
	From []netip.Prefix
	// Unix trusts everyone who connects over a unix socket, which has no
	// address. The socket's permissions then decide who may.
	Unix bool
}

func (p Proxies) none() bool { return len(p.From) == 0 && !p.Unix }

// checked returns a copy, and why p is wrong.
func (p Proxies) checked(errs *[]error) Proxies {
	from := make([]netip.Prefix, 0, len(p.From))
	for _, prefix := range p.From {
		switch {
		case !prefix.IsValid():
			*errs = append(*errs, errors.New("field Proxies.From holds an invalid network; write it as 10.1.2.0/24 or 10.1.2.3/32"))
		case prefix.Bits() == 0:
			*errs = append(*errs, fmt.Errorf("field Proxies.From holds %v, which trusts everybody; name the proxies' own addresses", prefix))
		case prefix.Addr().Is4In6():
			*errs = append(*errs, fmt.Errorf("field Proxies.From holds %v; write it as an IPv4 network", prefix))
		case prefix.Masked() != prefix:
			*errs = append(*errs, fmt.Errorf("field Proxies.From holds %v, which is an address in %v; write one or the other", prefix, prefix.Masked()))
		}
		from = append(from, prefix)
	}
	p.From = from
	return p
}

// Check says what is wrong with the networks: none at all, one that holds all
// addresses, or one that is not written as a network.
func (p Proxies) Check() error {
	var errs []error
	if p.checked(&errs); p.none() {
		errs = append(errs, errors.New("field Proxies names no proxy; name their networks"))
	}
	return errors.Join(errs...)
}

// Holds reports whether all that q trusts is trusted.
func (p Proxies) Holds(q Proxies) bool {
	return (p.Unix || !q.Unix) && !slices.ContainsFunc(q.From, func(n netip.Prefix) bool {
		return !slices.ContainsFunc(p.From, func(m netip.Prefix) bool { return m.Bits() <= n.Bits() && m.Contains(n.Addr()) })
	})
}

// Trusts reports whether the request comes from a trusted proxy.
func (p Proxies) Trusts(r *http.Request) bool {
	if p.none() {
		return false
	}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && local.Network() == "unix" {
		return p.Unix
	}
	return p.holds(peer(r))
}

func (p Proxies) holds(a netip.Addr) bool {
	return a.IsValid() && slices.ContainsFunc(p.From, func(n netip.Prefix) bool { return n.Contains(a) })
}

// peer is the address at the other end of the connection, or none.
func peer(r *http.Request) netip.Addr {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap()
}

// Client returns the address of the client that the request came from: that of
// the connection, or what trusted proxies say in X-Forwarded-For. Each proxy
// appends the address that it got the request from; the client is the last
// address that is not a trusted proxy. Earlier ones may be invented by the
// client. If a proxy does not give an address, the client is that proxy. The
// address is not valid if there is none, as over a unix socket.
func (p Proxies) Client(r *http.Request) netip.Addr {
	client := peer(r)
	if !p.Trusts(r) {
		return client
	}
	lines := r.Header["X-Forwarded-For"]
	for i := len(lines) - 1; i >= 0; i-- {
		for rest, more := lines[i], true; more; {
			var hop string
			if comma := strings.LastIndexByte(rest, ','); comma >= 0 {
				rest, hop = rest[:comma], rest[comma+1:]
			} else {
				hop, more = rest, false
			}
			at, ok := address(strings.Trim(hop, " \t"))
			if !ok {
				return client
			}
			client = at
			if !p.holds(client) {
				return client
			}
		}
	}
	return client
}

// address reads an address, with or without a port.
func address(s string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")); err == nil {
		return a.Unmap(), true
	}
	at, err := netip.ParseAddrPort(s)
	return at.Addr().Unmap(), err == nil
}

// identified is implemented by sources that read headers by which proxies, or an
// endpoint, say who somebody is.
type identified interface {
	identityHeaders() (names []string, from Proxies)
}

func identityHeaders(s Source) ([]string, Proxies) {
	if i, ok := s.(identified); ok {
		return i.identityHeaders()
	}
	return nil, Proxies{}
}

// Clean returns a handler that removes headers by which a request could forge
// its caller, and then calls next: the headers that s reads, unless a trusted
// proxy sent them, and in any other spelling even then, such as _ for -, which
// many servers treat as the same. For an Endpoint these are the headers of its
// response, which no request may have. Upstreams that read such a header need
// this around all requests, protected or not.
func Clean(s Source, next http.Handler) http.Handler {
	names, from := identityHeaders(s)
	if len(names) == 0 {
		return next
	}
	return from.clean(names, next)
}

// Clean returns a handler that removes Forwarded and X-Forwarded-For, -Host and
// -Proto, in any spelling, unless a request comes from the proxies, and then
// calls next. Around a gateway with TrustForwarded, the upstream sees what
// trusted proxies say, and for other requests what the gateway says.
func (p Proxies) Clean(next http.Handler) http.Handler {
	return p.clean(spelling.Forwarded, next)
}

// clean takes the named headers away from requests that do not come from p.
func (p Proxies) clean(names []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		trusted := p.Trusts(r)
		for name := range r.Trailer { // in which no proxy says such a thing
			if spelling.OneOf(name, names) {
				delete(r.Trailer, name)
			}
		}
		var dirty []string
		for name := range r.Header {
			if spelling.OneOf(name, names) && (!trusted || !slices.Contains(names, name)) {
				dirty = append(dirty, name)
			}
		}
		// What Connection names is taken away on the way to the upstream, and
		// what a proxy says is not its client's to have taken away.
		kept, listed := unlisted(r.Header["Connection"], names)
		if len(dirty) > 0 || listed {
			cleaned := *r
			cleaned.Header = r.Header.Clone()
			for _, name := range dirty {
				delete(cleaned.Header, name)
			}
			if listed {
				cleaned.Header["Connection"] = kept
			}
			r = &cleaned
		}
		next.ServeHTTP(w, r)
	})
}

// unlisted returns the options of Connection lines but for the names, and whether
// those were among them.
func unlisted(lines, names []string) (kept []string, listed bool) {
	for _, line := range lines {
		for option := range strings.SplitSeq(line, ",") {
			if option = textproto.TrimString(option); spelling.OneOf(option, names) {
				listed = true
			} else {
				kept = append(kept, option)
			}
		}
	}
	return kept, listed
}

// only returns the value of the header if there is one line of it.
func only(h http.Header, name string) (value string, lines int) {
	values := h[name]
	if len(values) != 1 {
		return "", len(values)
	}
	return textproto.TrimString(values[0]), 1
}
