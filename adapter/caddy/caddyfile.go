package semelcaddy

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/dustin/go-humanize"
)

// UnmarshalCaddyfile implements caddyfile.Unmarshaler. The settings are those of
// Handler, one in a line; store and one of actor, credentials and shared are
// required:
//
//	semel [<matcher>] {
//		store                 sqlite:<path> | postgres://...
//		tenant                <text>
//		actor                 <text...>
//		credentials           <header...>
//		shared
//		operation             <name>
//		key                   optional | required
//		strict_keys
//		methods               <method...>
//		lease                 <duration>
//		deadline              <duration>
//		retention             <duration>
//		in_flight             reject | wait | accept
//		wait                  <duration>
//		max_wait              <duration>
//		contract              ietf | stripe | oasis
//		prefix                <path> | off
//		unreached             hold | release
//		max_request_body      <size>
//		max_result            <size>
//		max_executions        <number>
//		max_tenant_executions <number>
//		max_waiters           <number>
//	}
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	settings := map[string]func(args []string) error{
		"store": text(&h.Store), "tenant": text(&h.Tenant), "actor": texts(&h.Actor), "credentials": texts(&h.Credentials),
		"shared": flag(&h.Shared), "operation": text(&h.Operation),
		"key": text(&h.Key), "strict_keys": flag(&h.StrictKeys), "methods": texts(&h.Methods),
		"lease": duration(&h.Lease), "deadline": duration(&h.Deadline), "retention": duration(&h.Retention),
		"in_flight": text(&h.InFlight), "wait": duration(&h.Wait), "max_wait": duration(&h.MaxWait),
		"contract": text(&h.Contract), "prefix": text(&h.Prefix), "unreached": text(&h.Unreached),
		"max_request_body": size(&h.MaxRequestBody), "max_result": size(&h.MaxResult),
		"max_executions": count(&h.MaxExecutions), "max_tenant_executions": count(&h.MaxTenantExecutions), "max_waiters": count(&h.MaxWaiters),
	}
	d.Next() // the directive
	if d.NextArg() {
		return d.Errf("semel takes a matcher and a block, not %q", d.Val())
	}
	seen := map[string]bool{}
	for d.NextBlock(0) {
		name := d.Val()
		set, ok := settings[name]
		switch {
		case !ok:
			return d.Errf("semel has no setting %q; it has %s", name, strings.Join(slices.Sorted(maps.Keys(settings)), ", "))
		case seen[name]:
			return d.Errf("semel: %s is there twice", name)
		}
		seen[name] = true
		if err := set(d.RemainingArgs()); err != nil {
			return d.Errf("semel: %s %v", name, err)
		}
		if d.NextBlock(1) {
			return d.Errf("semel: %s takes no block", name)
		}
	}
	return nil
}

func text(to *string) func([]string) error {
	return func(args []string) error {
		if len(args) != 1 || args[0] == "" {
			return fmt.Errorf("takes one argument, not %d", len(args))
		}
		*to = args[0]
		return nil
	}
}

func texts(to *[]string) func([]string) error {
	return func(args []string) error {
		if len(args) == 0 || slices.Contains(args, "") {
			return errors.New("takes arguments that are not empty")
		}
		*to = args
		return nil
	}
}

func flag(to *bool) func([]string) error {
	return func(args []string) error {
		if len(args) > 0 {
			return errors.New("takes no argument")
		}
		*to = true
		return nil
	}
}

// parsed is for a setting of one argument that has to be more than zero, which in
// JSON would stand for the default.
func parsed[T caddy.Duration | int | int64](to *T, example string, parse func(string) (T, error)) func([]string) error {
	return func(args []string) error {
		if len(args) == 1 {
			if v, err := parse(args[0]); err == nil && v > 0 {
				*to = v
				return nil
			}
		}
		return fmt.Errorf("takes one argument such as %s", example)
	}
}

func duration(to *caddy.Duration) func([]string) error {
	return parsed(to, "15s, 10m or 1d", func(s string) (caddy.Duration, error) {
		d, err := caddy.ParseDuration(s)
		return caddy.Duration(d), err
	})
}

func count(to *int) func([]string) error { return parsed(to, "1000", strconv.Atoi) }

func size(to *int64) func([]string) error {
	return parsed(to, "32MiB", func(s string) (int64, error) {
		n, err := humanize.ParseBytes(s)
		return int64(min(n, math.MaxInt64)), err
	})
}
