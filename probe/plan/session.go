package plan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel/internal/strict"
)

// Values are the values of one logical request. They are drawn once, and never
// changed.
type Values struct {
	op        *Operation
	path      string // of op in the plan
	at        time.Time
	seq       uint64
	variables map[string]text
	fresh     map[string]string // by site
	taken     map[string]text   // by steps of this request
	key       text
}

// Operation returns the operation that the values are for.
func (v *Values) Operation() *Operation { return v.op }

// Key returns the key, as it is without quotes; empty if the operation has none.
func (v *Values) Key() string { return v.key.s }

// At returns when the values were drawn, which is when a delivery is signed.
func (v *Values) At() time.Time { return v.at }

// Variable returns the value of a variable.
func (v *Values) Variable(name string) (value string, ok bool) {
	t, ok := v.variables[name]
	return t.s, ok
}

// Draw draws the values of one logical request: its variables, its key and every
// fresh value in it.
func (r *Renderer) Draw(operation string) (*Values, error) {
	i := slices.IndexFunc(r.plan.Operations, func(op Operation) bool { return op.Name == operation })
	if i < 0 {
		return nil, fmt.Errorf("plan: no operation is named %q", operation)
	}
	r.drawing.Lock()
	defer r.drawing.Unlock()
	v := &Values{
		op: &r.plan.Operations[i], path: strict.Index("operations", i), at: r.src.Now(), seq: r.seq.Add(1),
		variables: map[string]text{}, fresh: map[string]string{}, taken: map[string]text{},
	}
	var failed error
	draw := func(s site) {
		if failed == nil && s.fresh {
			failed = r.drawSite(v, s)
		}
	}
	for i, m := range r.plan.Variables {
		draw(site{path: strict.Join("variables", m.Name), text: m.Value, variables: r.plan.Variables[:i], fresh: true})
		failed = cmp.Or(failed, r.setVariable(v, m, strict.Join("variables", m.Name)))
	}
	stepSites(r.plan.Steps, "steps", nil, nil, draw)
	r.plan.eachSiteOf(v.op, v.path, func(s site) {
		draw(s)
		if name, ok := strings.CutPrefix(s.path, v.path+".variables."); ok {
			failed = cmp.Or(failed, r.setVariable(v, Pair{name, s.text}, s.path))
		}
	})
	if failed == nil {
		failed = r.setKey(v)
	}
	if failed != nil {
		return nil, fmt.Errorf("plan: %s: %w", operation, failed)
	}
	return v, nil
}

func (r *Renderer) drawSite(v *Values, s site) error {
	t, err := parseTemplate(s.text)
	if err != nil {
		return err
	}
	for i, part := range t {
		if part.call.fresh() {
			value, err := part.call.draw(r.src.Random, v.at, v.seq)
			if err != nil {
				return err
			}
			v.fresh[strict.Index(s.path, i)] = value
		}
	}
	return nil
}

func (r *Renderer) setVariable(v *Values, m Pair, path string) error {
	t, err := r.render(r.scope(v, nil, ""), path, m.Value, MaxValueBytes)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	v.variables[m.Name] = t
	return nil
}

func (r *Renderer) setKey(v *Values) error {
	if v.op.Key == nil {
		return nil
	}
	t, err := r.render(r.scope(v, nil, ""), v.path+".key.value", v.op.Key.Value, MaxValueBytes)
	if err != nil {
		return fmt.Errorf("key: %w", err)
	}
	if t.s == "" {
		return errors.New("key: it is empty")
	}
	v.key = t
	return nil
}

// ErrDerivedKey reports that the key is made of variables alone, so the same
// request cannot have another one.
var ErrDerivedKey = errors.New("plan: the key is derived from the request, and cannot be fresh for the same request")

// FreshKey returns the same values with another key.
func (r *Renderer) FreshKey(v *Values) (*Values, error) {
	if v.op.Key == nil {
		return nil, errors.New("plan: the operation has no key")
	}
	r.drawing.Lock()
	defer r.drawing.Unlock()
	c := *v
	c.fresh = maps.Clone(v.fresh)
	seq, now := c.seq, c.at
	// The number and the time are the request's, but a key may be made of them.
	c.seq, c.at = r.seq.Add(1), r.src.Now()
	s := site{path: v.path + ".key.value", text: v.op.Key.Value}
	err := r.drawSite(&c, s)
	c.seq, c.at = seq, now
	if err == nil {
		err = r.setKey(&c)
	}
	if err != nil {
		return nil, fmt.Errorf("plan: %s: %w", v.op.Name, err)
	}
	if c.key == v.key {
		return nil, ErrDerivedKey
	}
	return &c, nil
}

// WithKey returns the values of a request under the key of another one, which
// may be of another operation.
func (r *Renderer) WithKey(v, of *Values) *Values {
	c := *v
	c.key = of.key
	return &c
}

// scope is what templates see. pr may be nil.
func (r *Renderer) scope(v *Values, pr *Principal, resourceID string) scope {
	return scope{
		lookup: func(ref string) (text, error) {
			attribute, isAttribute := strings.CutPrefix(ref, "principal.")
			switch {
			case ref == "run":
				return text{s: r.src.Run}, nil
			case isAttribute && pr != nil:
				value, ok := pr.Attributes.Get(attribute)
				if !ok {
					break
				}
				return r.render(r.scope(nil, nil, ""), "principals.attributes."+attribute, value, MaxValueBytes)
			case v == nil:
			case ref == "key":
				return v.key, nil
			case ref == "resource_id":
				if resourceID == "" {
					return text{}, ErrNoResource
				}
				err := checkForeign("the id of the resource", resourceID, MaxResourceID)
				return text{s: resourceID, foreign: true}, err
			default:
				if t, ok := v.variables[ref]; ok {
					return t, nil
				}
				if t, ok := v.taken[ref]; ok {
					return t, nil
				}
			}
			return r.session(pr, ref)
		},
		fresh: func(site string) (string, bool) {
			if v == nil {
				return "", false
			}
			s, ok := v.fresh[site]
			return s, ok
		},
		secret: func(c *call) (text, error) {
			t, ok := r.env[c.fn+" "+c.arg]
			if !ok {
				return text{}, fmt.Errorf("%s %s was not read", c.fn, c.arg)
			}
			return t, nil
		},
		derived: func(t text) { r.derive(t) },
	}
}

func (r *Renderer) derive(t text) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.derived[Secret{t.secret, t.s}] = true
}

// session returns what a step took for a principal.
func (r *Renderer) session(pr *Principal, name string) (text, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t, ok := r.sessions[pr][name]; ok {
		return t, nil
	}
	if r.pretend {
		return text{s: "taken-" + name, foreign: true}, nil
	}
	return text{}, fmt.Errorf("{{.%s}} %w", name, errNotTaken)
}
