package gatewayfile

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/internal/strict"
)

// kind is which of the layers a setting comes from.
type kind uint8

const (
	fromBuiltin kind = iota
	fromDefaults
	fromRoute
)

// origin is where a setting comes from.
type origin struct {
	kind kind
	strict.Place
}

// leaf is one setting of a struct that holds others.
type leaf struct {
	name  string // as key.required
	index []int
	strict.Field
}

// leaves returns the settings in a struct type, without lists of structs.
func leaves(t reflect.Type) (list []leaf) {
	fields, _, _ := strict.FieldsOf(t)
	for _, f := range fields {
		if f.Type.Kind() == reflect.Struct {
			for _, inner := range leaves(f.Type) {
				inner.name = f.Key + "." + inner.name
				inner.index = append(slices.Clone(f.Index), inner.index...)
				list = append(list, inner)
			}
			continue
		}
		list = append(list, leaf{f.Key, f.Index, f})
	}
	return list
}

var settingLeaves = leaves(reflect.TypeFor[Settings]())

// resolve returns the settings of a route, and where each comes from. Those of no
// route, -1, are the defaults.
func (c *Config) resolve(route int) (Settings, map[string]origin) {
	s := builtin()
	from := map[string]origin{}
	at, own := strict.Index("routes", route), &Settings{}
	if route >= 0 {
		own = &c.Routes[route].Settings
	}
	out := reflect.ValueOf(&s).Elem()
	for _, l := range settingLeaves {
		from[l.name] = origin{}
		for _, layer := range []struct {
			kind kind
			path string
			of   *Settings
		}{{fromDefaults, "defaults", &c.Defaults}, {fromRoute, at, own}} {
			if place, ok := c.source.Written(layer.path + "." + l.name); ok {
				out.FieldByIndex(l.index).Set(reflect.ValueOf(layer.of).Elem().FieldByIndex(l.index))
				from[l.name] = origin{layer.kind, place}
			}
		}
	}
	// What depends on others.
	if s.Upstream == "" && len(c.Upstreams) == 1 {
		s.Upstream = c.Upstreams[0].Name
	}
	or(&s.Heartbeat, s.Lease/3)
	or(&s.Deadline, min(10*time.Minute, s.Retention))
	or(&s.StoreTimeout, min(5*time.Second, s.Lease))
	or(&s.Reconcile.Timeout, min(gateway.DefaultReconcileTimeout, s.Lease))
	or(&s.MaxInline, min(256<<10, s.MaxResult))
	if s.Wait == 0 {
		s.Wait = 10 * time.Second
		if s.MaxWait > 0 {
			s.Wait = min(s.Wait, s.MaxWait)
		}
	}
	if from["key.required"].kind == fromBuiltin && (len(s.Key.From) > 1 || len(s.Key.From) == 1 && strings.HasPrefix(s.Key.From[0], "body ") || s.Key.IssuedOnly) {
		s.Key.Required = true
	}
	return s, from
}

// operation is the name of a route's operation; empty if each request has its own.
func (r *Route) operation() string {
	if r.Operation != "" || r.OperationFrom != "" || len(r.Match) == 0 {
		return r.Operation
	}
	return gateway.OperationOfPattern(r.Match[0])
}

// Setting is one setting of a gateway or a route, and where it comes from.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	// From is default, the line of the file, with "defaults" or "route" before it
	// for a route's, and the environment variables that it is made of.
	From string `json:"from"`
}

// Explanation is all of a configuration.
type Explanation struct {
	File   string           `json:"file"`
	Server []Setting        `json:"server"`
	Routes []ExplainedRoute `json:"routes"`
}

// ExplainedRoute are the settings of a route.
type ExplainedRoute struct {
	Match     []string  `json:"match"`
	Line      int       `json:"line"`
	Protected bool      `json:"protected"`
	Settings  []Setting `json:"settings"`
}

// Explain says of every setting what it is and where it comes from. Secrets are
// left out. show makes a store's URL fit to be shown.
func (c *Config) Explain(show func(storeURL string) string) Explanation {
	e := Explanation{File: c.source.File}
	var server func(v reflect.Value, path string)
	server = func(v reflect.Value, path string) {
		fields, _, _ := strict.FieldsOf(v.Type())
		for _, f := range fields {
			at, fv := strict.Join(path, f.Key), v.FieldByIndex(f.Index)
			if at == "defaults" || at == "routes" {
				continue
			}
			if fv.Kind() == reflect.Pointer {
				if fv.IsNil() {
					continue
				}
				if fv = fv.Elem(); fv.NumField() == 0 {
					e.Server = append(e.Server, Setting{at, "{}", c.where(at, "")})
					continue
				}
			}
			switch {
			case fv.Kind() == reflect.Struct:
				server(fv, at)
			case fv.Kind() == reflect.Slice && fv.Type().Elem().Kind() == reflect.Struct:
				for i := range fv.Len() {
					server(fv.Index(i), strict.Index(at, i))
				}
			default:
				s := Setting{at, text(fv, f.Rule.Secret), c.where(at, "")}
				if at == "store.url" {
					s.Value = show(fv.String())
				}
				e.Server = append(e.Server, s)
			}
		}
	}
	server(reflect.ValueOf(c).Elem(), "")
	for i := range c.Routes {
		e.Routes = append(e.Routes, c.explainRoute(i))
	}
	return e
}

// where says where what is there once comes from.
func (c *Config) where(path, layer string) string {
	place, ok := c.source.Written(path)
	if !ok {
		return "default"
	}
	return c.say(place, layer)
}

func (c *Config) say(place strict.Place, layer string) string {
	s := fmt.Sprintf("%s:%d", c.source.File, place.Line)
	if layer != "" {
		s = layer + " " + s
	}
	for i, name := range place.Env {
		if i == 0 {
			s += ", environment"
		}
		s += " " + name
	}
	return s
}

func (c *Config) explainRoute(i int) ExplainedRoute {
	r := &c.Routes[i]
	at := strict.Index("routes", i)
	s, from := c.resolve(i)
	e := ExplainedRoute{Match: r.Match, Line: c.source.Find(at).Line, Protected: s.Protect}
	operation := Setting{Name: "operation", Value: r.operation(), From: c.where(at+".operation", "route")}
	switch {
	case r.OperationFrom != "":
		operation = Setting{"operation", "what the body says at " + r.OperationFrom, c.where(at+".operation_from", "route")}
	case operation.Value == "":
		operation.Value = "method and path of each request"
	}
	e.Settings = append(e.Settings, operation)
	if w := r.Webhook; w != nil {
		fields, _, _ := strict.FieldsOf(reflect.TypeFor[Webhook]())
		for _, f := range fields {
			name := "webhook." + f.Key
			e.Settings = append(e.Settings, Setting{name, text(reflect.ValueOf(w).Elem().FieldByIndex(f.Index), f.Rule.Secret), c.where(at+"."+name, "route")})
		}
	}
	v := reflect.ValueOf(&s).Elem()
	for _, l := range settingLeaves {
		told := "default"
		switch o := from[l.name]; o.kind {
		case fromDefaults:
			told = c.say(o.Place, "defaults")
		case fromRoute:
			told = c.say(o.Place, "route")
		}
		e.Settings = append(e.Settings, Setting{l.name, text(v.FieldByIndex(l.index), l.Rule.Secret), told})
	}
	return e
}

// text is a value as it is shown.
func text(v reflect.Value, secret bool) string {
	if secret {
		if v.Kind() == reflect.Slice {
			return fmt.Sprintf("(%d secrets)", v.Len())
		}
		return "(secret)"
	}
	switch value := v.Interface().(type) {
	case time.Duration:
		return duration(value)
	case Size:
		if value == 0 {
			return "-"
		}
		return value.String()
	case bool:
		return strconv.FormatBool(value)
	case int:
		if value == 0 {
			return "-"
		}
		return strconv.Itoa(value)
	case string:
		if value == "" {
			return "-"
		}
		return value
	}
	var parts []string
	for i := range v.Len() {
		parts = append(parts, fmt.Sprint(v.Index(i).Interface()))
	}
	if parts == nil {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// duration is d without what is zero at its end.
func duration(d time.Duration) string {
	s := d.String()
	if d == 0 {
		return "0"
	}
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}
