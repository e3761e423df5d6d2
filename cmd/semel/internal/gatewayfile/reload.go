package gatewayfile

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/semelhq/semel/semelhttp"
)

// Kind names the kind of principals.
func (p *Principal) Kind() string {
	switch {
	case p.JWT != nil:
		return "jwt"
	case p.MTLS != nil:
		return "mtls"
	case p.Endpoint != nil:
		return "endpoint"
	case p.Header != nil:
		return "header"
	case p.Digest != nil:
		return "digest"
	}
	return "shared"
}

// MaxResult is the largest result that any route records.
func (c *Config) MaxResult() int64 {
	most := Size(0)
	for i := range c.Routes {
		s, _ := c.resolve(i)
		most = max(most, s.MaxResult)
	}
	return int64(most)
}

// storeHolds is how large a result may be without the store being told when it is
// opened.
const storeHolds = 63 << 20

// NeedsRestart names what b has otherwise than a that cannot be changed while the
// gateway runs.
func NeedsRestart(a, b *Config) (keys []string) {
	for _, f := range []struct {
		key  string
		a, b any
	}{
		{"listen", a.Listen, b.Listen},
		{"tls", a.TLS, b.TLS},
		{"h2c", a.H2C, b.H2C},
		{"admin", a.Admin, b.Admin},
		{"access_log", a.AccessLog, b.AccessLog},
		{"drain_delay", a.DrainDelay, b.DrainDelay},
		{"dry_run", a.DryRun, b.DryRun},
		{"store", a.Store, b.Store},
		{"encryption (on or off)", a.encrypts(), b.encrypts()},
		{"spool", a.Spool, b.Spool},
		{"bounds", a.Bounds, b.Bounds},
		{"log_format", a.LogFormat, b.LogFormat},
	} {
		if f.a != f.b {
			keys = append(keys, f.key)
		}
	}
	if b.MaxResult() > max(a.MaxResult(), storeHolds) {
		keys = append(keys, "max_result (to more than the store was opened for)")
	}
	return keys
}

func (c *Config) encrypts() bool {
	_, on := c.source.Written("encryption")
	return on
}

// Cut is what a change of the configuration does to keys that were used before.
type Cut struct {
	Pattern string `json:"pattern"`
	Change  string `json:"change"`
	Means   string `json:"means"`
}

const (
	executesAgain = "a request that is repeated with its key executes again"
	notCompared   = "another request with a key from before is not noticed, and gets the recorded response"
)

// CutOff says which keys a gateway that goes from a to b does not find any more, or
// cannot compare.
func CutOff(a, b *Config) (cuts []Cut) {
	if a.Principal.Kind() != b.Principal.Kind() || encoded(a.Principal.names()) != encoded(b.Principal.names()) {
		cuts = append(cuts, Cut{"all routes", "callers are named otherwise", executesAgain})
	}
	if a.PreserveHost != b.PreserveHost {
		cuts = append(cuts, Cut{"all routes", "the host is a part of the caller, or is no more", executesAgain})
	}
	was, is := a.identities(), b.identities()
	for _, pattern := range sortedKeys(was, is) {
		old, had := was[pattern]
		now, has := is[pattern]
		switch {
		case had && !has:
			cuts = append(cuts, Cut{pattern, "it is no pattern of a protected route any more", "what becomes of such requests another route says; " + executesAgain + " unless that names the operation alike"})
			continue
		case !had:
			cuts = append(cuts, Cut{pattern, "it is a new pattern", "where another route had such requests before, " + executesAgain + " unless that named the operation alike"})
			continue
		}
		if old.operation != now.operation {
			cuts = append(cuts, Cut{pattern, fmt.Sprintf("the operation was %s and is %s", old.operation, now.operation), executesAgain})
		}
		if old.key != now.key {
			cuts = append(cuts, Cut{pattern, fmt.Sprintf("the key was taken from %s and is from %s", old.key, now.key), executesAgain})
		}
		if old.fingerprint != now.fingerprint {
			cuts = append(cuts, Cut{pattern, "the fingerprint is made otherwise", notCompared})
		}
	}
	return cuts
}

// names is what of a principal's configuration decides how callers are named.
func (p *Principal) names() any {
	switch {
	case p.JWT != nil:
		return []any{p.JWT.Issuer, p.JWT.Tenant}
	case p.MTLS != nil:
		return p.MTLS.Name
	case p.Endpoint != nil:
		return []any{p.Endpoint.Subject, p.Endpoint.Tenant}
	case p.Header != nil:
		return []any{p.Header.Subject, p.Header.Tenant}
	case p.Digest != nil:
		return []any{p.Digest.Headers, p.Digest.Cookie}
	}
	return nil
}

// identity is what tells a route's requests apart.
type identity struct{ operation, key, fingerprint string }

// identities returns those of the protected routes, by pattern.
func (c *Config) identities() map[string]identity {
	all := map[string]identity{}
	for i := range c.Routes {
		r := &c.Routes[i]
		s, _ := c.resolve(i)
		if !s.Protect && r.Webhook == nil {
			continue
		}
		id := identity{operation: fmt.Sprintf("%q", r.operation()), key: strings.Join(s.Key.From, " and "), fingerprint: encoded(s.Fingerprint)}
		if contract, err := semelhttp.ContractNamed(s.Contract); err == nil && len(s.Key.From) == 0 {
			id.key = "header " + contract.KeyHeader
		}
		switch {
		case r.OperationFrom != "":
			id.operation = "what the body says at " + r.OperationFrom
		case r.operation() == "":
			id.operation = "method and path of each request"
		}
		if w := r.Webhook; w != nil {
			id.key, id.fingerprint = "the event of the sender "+w.Sender+", "+w.Scheme, ""
		}
		for _, p := range r.Match {
			all[p] = id
		}
	}
	return all
}

func sortedKeys(a, b map[string]identity) []string {
	var keys []string
	for _, m := range []map[string]identity{a, b} {
		for k := range m {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func encoded(v any) string {
	if reflect.ValueOf(v).Kind() == reflect.Slice && reflect.ValueOf(v).Len() == 0 {
		return ""
	}
	text, _ := json.Marshal(v) // of strings, numbers and lists
	return string(text)
}
