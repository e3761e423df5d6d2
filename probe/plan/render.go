package plan

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semelhq/semel/internal/strict"
	"github.com/semelhq/semel/probe/internal/wire"
)

// MinSecretBytes is the minimum length of a secret. A shorter one could not be
// distinguished from other text, and so not be kept out of evidence.
const MinSecretBytes = 6

// Source is where values come from. The zero value means this process: its
// environment, files, clock and random numbers.
type Source struct {
	// Env looks up an environment variable. Default os.LookupEnv. For a dry run
	// without secrets it can return a stand-in for each.
	Env func(name string) (value string, ok bool)
	// ReadFile reads a file that the plan names, with a limit on its size.
	// The name is already relative to the plan's folder.
	ReadFile func(name string, limit int64) ([]byte, error)
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Random is where fresh values come from. Default crypto/rand. It is read
	// by one goroutine at a time.
	Random io.Reader
	// Run is {{.run}}, the same in all of a run. Default: 8 random hex digits.
	Run string
}

// Secret is a text that must not be in evidence, and its source, such as env
// ORDERS_TOKEN.
type Secret struct{ From, Value string }

// Renderer makes requests of a plan. It may be used by several goroutines. It serves
// package probe and what shows a plan's requests without sending them.
type Renderer struct {
	plan    Plan
	src     Source
	env     map[string]text // by function and argument
	files   map[string][]byte
	seq     atomic.Uint64
	drawing sync.Mutex // around Random

	mu       sync.Mutex
	derived  map[Secret]bool
	sessions map[*Principal]map[string]text // what steps took for each principal, by name
	renewed  []renewal
	pretend  bool
}

// NewRenderer validates the plan and reads everything it takes from outside:
// secrets and bodies in files. One error names all that is missing; it holds no
// secret. The plan must not be changed afterwards.
func NewRenderer(p *Plan, src Source) (*Renderer, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if src.Env == nil {
		src.Env = os.LookupEnv
	}
	if src.ReadFile == nil {
		src.ReadFile = readFile
	}
	if src.Now == nil {
		src.Now = time.Now
	}
	if src.Random == nil {
		src.Random = rand.Reader
	}
	if src.Run == "" {
		var b [4]byte
		if _, err := io.ReadFull(src.Random, b[:]); err != nil {
			return nil, fmt.Errorf("plan: %w", err)
		}
		src.Run = hex.EncodeToString(b[:])
	}
	r := &Renderer{plan: p.WithDefaults(), src: src, env: map[string]text{}, files: map[string][]byte{}, derived: map[Secret]bool{}, sessions: map[*Principal]map[string]text{}}

	ps := problems{Source: p.source}
	r.plan.eachSite(func(s site) {
		t, _ := parseTemplate(s.text)
		for _, part := range t {
			if part.call.secret() {
				r.loadSecret(&ps, part.call, s.path)
			}
		}
	})
	r.loadSteps(&ps, r.plan.Steps, "steps")
	for i := range r.plan.Operations {
		op, at := &r.plan.Operations[i], strict.Index("operations", i)
		r.loadBody(&ps, op.Request.Body, at+".request.body.file")
		for _, a := range op.alterations(at) {
			r.loadBody(&ps, a.Body, a.path+".body.file")
		}
		if op.Preview != nil {
			r.loadBody(&ps, op.Preview.Body, at+".preview.body.file")
		}
		r.loadSteps(&ps, op.Steps, at+".steps")
		for i, rd := range op.Readers {
			if rd.HTTP != nil {
				r.loadBody(&ps, rd.HTTP.Post, strict.Index(at+".readers", i)+".http.post.file")
			}
		}
	}
	if h := r.plan.Reset; h != nil && h.HTTP != nil {
		r.loadBody(&ps, h.HTTP.Request.Body, "reset.http.request.body.file")
	}
	if err := ps.Err(); err != nil {
		return nil, err
	}
	return r, nil
}

func readFile(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// Plan returns the plan, with its defaults.
func (r *Renderer) Plan() *Plan { return &r.plan }

// Path returns the name by which this process can open a file of the plan:
// names in a plan are relative to its folder.
func (r *Renderer) Path(name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(r.plan.Dir(), name)
}

func (r *Renderer) read(name string, limit int64) ([]byte, error) {
	data, err := r.src.ReadFile(r.Path(name), limit+1)
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s is larger than %d KiB", name, limit>>10)
	}
	return data, err
}

func (r *Renderer) loadSecret(ps *problems, c *call, path string) {
	id := c.fn + " " + c.arg
	if _, ok := r.env[id]; ok {
		return
	}
	var value string
	if c.fn == "env" {
		v, ok := r.src.Env(c.arg)
		if !ok {
			ps.Add(path, "the environment has no %s", c.arg)
			return
		}
		value = v
	} else {
		data, err := r.read(c.arg, MaxValueBytes)
		if err != nil {
			ps.Add(path, "%v", err)
			return
		}
		value = strings.TrimRight(string(data), "\r\n")
	}
	switch {
	case len(value) < MinSecretBytes:
		ps.Add(path, "%s is shorter than %d bytes, too short to be kept out of evidence", id, MinSecretBytes)
	case len(value) > MaxValueBytes:
		ps.Add(path, "%s is larger than %d KiB", id, MaxValueBytes>>10)
	default:
		r.env[id] = text{s: value, secret: id}
	}
}

func (r *Renderer) loadBody(ps *problems, b *Body, path string) {
	if b == nil || b.File == "" || r.files[b.File] != nil {
		return
	}
	data, err := r.read(b.File, MaxBodyBytes)
	if err != nil {
		ps.Add(path, "%v", err)
		return
	}
	r.files[b.File] = append([]byte{}, data...)
}

func (r *Renderer) loadSteps(ps *problems, steps []Step, path string) {
	for i, st := range steps {
		r.loadBody(ps, st.Request.Body, strict.Index(path, i)+".request.body.file")
		if st.Refresh != nil {
			r.loadBody(ps, st.Refresh.Body, strict.Index(path, i)+".refresh.body.file")
		}
	}
}

// Secrets returns every text that must not be in evidence, longest first, so
// that they can be replaced in this order. Besides the values that were read it
// lists the forms in which they can appear: escaped in JSON or in a URL, in
// base64, and as the filters in the requests rendered so far have transformed
// them.
func (r *Renderer) Secrets() []Secret {
	set := map[Secret]bool{}
	add := func(from, value string) {
		for _, v := range []string{
			value, filter("json", value), filter("url", value), url.QueryEscape(value), url.PathEscape(value),
			base64.StdEncoding.EncodeToString([]byte(value)), base64.RawURLEncoding.EncodeToString([]byte(value)),
		} {
			set[Secret{from, v}] = true
		}
	}
	for _, t := range r.env {
		add(t.secret, t.s)
	}
	r.mu.Lock()
	for s := range r.derived {
		add(s.From, s.Value)
	}
	r.mu.Unlock()
	return slices.SortedFunc(maps.Keys(set), func(a, b Secret) int {
		return cmp.Or(cmp.Compare(len(b.Value), len(a.Value)), cmp.Compare(a.Value, b.Value), cmp.Compare(a.From, b.From))
	})
}

// ErrNoResource reports that a template needs {{.resource_id}}, which no
// response has named yet.
var ErrNoResource = errors.New("the id of the resource is not known")

func (r *Renderer) render(sc scope, path, s string, limit int) (text, error) {
	t, err := parseTemplate(s)
	if err != nil {
		return text{}, err
	}
	out, err := t.render(sc, path, nil)
	if err == nil && len(out.s) > limit {
		err = fmt.Errorf("it is larger than %d KiB", limit>>10)
	}
	return out, err
}

// Change is what one send does differently from the plan. The zero value is the
// request as planned, sent by actor A.
type Change struct {
	// As is who sends. Empty: actor A, or nobody if the plan has none.
	As PrincipalName
	// NoKey leaves the key out.
	NoKey bool
	// RawKey, unless empty, replaces the key exactly as it is: without quotes, but
	// escaped in a URL or in JSON.
	RawKey string
	// Altered applies the plan's alteration, Invalid the one that makes the
	// request invalid.
	Altered, Invalid bool
	// Rewritten writes the JSON body in other bytes of the same meaning: its
	// members in reverse order, with white space between them.
	Rewritten bool
	// Preview sends the plan's preview instead of the request.
	Preview bool
	// Instance sends to the plan's other instance.
	Instance bool
	// SignedAt is the time that a delivery is signed with. Zero means the time at
	// which the values were drawn.
	SignedAt time.Time
}

// Request renders a request. The result depends only on the plan, the values
// and the change: the same ones give the same bytes.
func (r *Renderer) Request(v *Values, c Change) (wire.Request, error) {
	req, err := r.request(v, c)
	if err != nil {
		return wire.Request{}, fmt.Errorf("plan: %s: %w", v.op.Name, err)
	}
	return req, nil
}

func (r *Renderer) request(v *Values, c Change) (wire.Request, error) {
	pr, err := r.principal(c.As)
	if err != nil {
		return wire.Request{}, err
	}
	sc := r.scope(v, pr, "")
	q, path := &v.op.Request, v.path+".request"
	if c.Preview && v.op.Preview != nil {
		q, path = v.op.Preview, v.path+".preview"
	}
	req, err := r.base(sc, q, pr, path)
	if err != nil {
		return wire.Request{}, err
	}
	if c.Instance {
		u, err := url.Parse(req.URL)
		if err != nil {
			return wire.Request{}, errors.New("the URL cannot be read")
		}
		u.Host = r.plan.Target.Instance
		req.URL = u.String()
	}
	for _, a := range v.op.alterations(v.path) {
		if a.Alteration == v.op.Altered && !c.Altered || a.Alteration == v.op.Invalid && !c.Invalid {
			continue
		}
		before := req.Body
		if req.Body, err = r.alter(sc, a, req.Body); err != nil {
			return wire.Request{}, fmt.Errorf("altered: %w", err)
		}
		if bytes.Equal(before, req.Body) {
			return wire.Request{}, errors.New("altered: it is the same request")
		}
	}
	if c.Altered && v.op.Altered == nil || c.Invalid && v.op.Invalid == nil {
		return wire.Request{}, errors.New("altered: the plan does not say how")
	}
	key := cmp.Or(c.RawKey, v.key.s)
	if v.op.Key != nil && !c.NoKey {
		if err := placeKey(v.op.Key, &req, key, c.RawKey != ""); err != nil {
			return wire.Request{}, fmt.Errorf("key: %w", err)
		}
	}
	if c.Rewritten {
		if req.Body, err = rewriteJSON(req.Body); err != nil {
			return wire.Request{}, fmt.Errorf("in another form: the body %w", err)
		}
	}
	if s := v.op.Signature; s != nil {
		secret, err := r.render(sc, v.path+".signature.secret", s.Secret, MaxValueBytes)
		if err != nil {
			return wire.Request{}, fmt.Errorf("signature: %w", err)
		}
		at := v.at
		if !c.SignedAt.IsZero() {
			at = c.SignedAt
		}
		id := key
		if c.NoKey {
			id = ""
		}
		fields, err := sign(s.Scheme, secret.s, id, at, req.Body)
		if err != nil {
			return wire.Request{}, fmt.Errorf("signature: %w", err)
		}
		req.Header = append(req.Header, fields...)
	}
	return req, req.Validate()
}

func (r *Renderer) principal(name PrincipalName) (*Principal, error) {
	pr := r.plan.Principals.Get(name)
	if pr == nil && name != "" && name != ActorA {
		return nil, fmt.Errorf("the plan has no principal %s", name)
	}
	return pr, nil
}

var protocols = map[string]wire.Protocol{"auto": wire.Auto, "http1": wire.HTTP1, "http2": wire.HTTP2}

// base renders a request of the plan, without key and signature.
func (r *Renderer) base(sc scope, q *Request, pr *Principal, path string) (wire.Request, error) {
	u, err := r.render(sc.in(inURL), path+".url", q.URL, MaxValueBytes)
	if err != nil {
		return wire.Request{}, fmt.Errorf("url: %w", err)
	}
	req := wire.Request{Method: q.Method, URL: u.s, Protocol: protocols[q.Protocol]}
	if req.Header, err = r.header(sc, q.Headers, path+".headers", pr); err != nil {
		return wire.Request{}, err
	}
	if req.Body, err = r.body(sc, q.Body, path+".body"); err != nil {
		return wire.Request{}, fmt.Errorf("body: %w", err)
	}
	return req, nil
}

// header renders header fields, with those of the principal over them.
func (r *Renderer) header(sc scope, h Header, path string, pr *Principal) ([]wire.Field, error) {
	fields, err := r.fields(sc, h, path, false)
	if err != nil || pr == nil {
		return fields, err
	}
	own, err := r.fields(sc, pr.Headers, "principals.headers", sc.step)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(own); {
		// All of the principal's values of a name go where the first of the
		// request's was.
		name, end := own[i].Name, i
		for end < len(own) && strings.EqualFold(own[end].Name, name) {
			end++
		}
		same := func(f wire.Field) bool { return strings.EqualFold(f.Name, name) }
		at := slices.IndexFunc(fields, same)
		fields = slices.DeleteFunc(fields, same)
		if at < 0 {
			at = len(fields)
		}
		fields = slices.Insert(fields, at, own[i:end]...)
		i = end
	}
	var cookies []string
	for _, m := range pr.Cookies {
		t, err := r.render(sc, "principals.cookies."+m.Name, m.Value, MaxValueBytes)
		if sc.step && errors.Is(err, errNotTaken) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cookie %s: %w", m.Name, err)
		}
		if strings.ContainsAny(t.s, ";,\"\\ \t\r\n") {
			return nil, fmt.Errorf("cookie %s: the value has a character that cookies cannot have", m.Name)
		}
		cookies = append(cookies, m.Name+"="+t.s)
	}
	if len(cookies) > 0 {
		text := strings.Join(cookies, "; ")
		if i := slices.IndexFunc(fields, func(f wire.Field) bool { return strings.EqualFold(f.Name, "Cookie") }); i >= 0 {
			fields[i].Value += "; " + text
		} else {
			fields = append(fields, wire.Field{Name: "Cookie", Value: text})
		}
	}
	return fields, nil
}

// fields renders header fields; with early, those are left out that need what no
// step has taken yet.
func (r *Renderer) fields(sc scope, h Header, path string, early bool) ([]wire.Field, error) {
	var fields []wire.Field
	for i, m := range h {
		t, err := r.render(sc, headerSite(path, i, m.Name), m.Value, MaxValueBytes)
		if early && errors.Is(err, errNotTaken) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("header %s: %w", m.Name, err)
		}
		fields = append(fields, wire.Field{Name: m.Name, Value: t.s})
	}
	return fields, nil
}

func (r *Renderer) body(sc scope, b *Body, path string) ([]byte, error) {
	switch {
	case b == nil:
		return nil, nil
	case b.Text != nil:
		t, err := r.render(sc.in(inText(*b.Text)), path+".text", *b.Text, MaxBodyBytes)
		return []byte(t.s), err
	case b.JSON != nil:
		return r.json(sc, b.JSON, path+".json")
	case b.GraphQL != nil:
		variables, err := r.json(sc, b.GraphQL.Variables, path+".graphql.variables")
		return b.GraphQL.with(variables), err
	case b.Base64 != nil:
		return decodeBase64(*b.Base64)
	}
	data, ok := r.files[b.File]
	if !ok {
		return nil, fmt.Errorf("%s was not read", b.File)
	}
	return bytes.Clone(data), nil
}

func (r *Renderer) json(sc scope, text JSON, path string) ([]byte, error) {
	n, size := 0, 0
	return mapStrings(text, func(s string) (string, error) {
		t, err := r.render(sc, jsonSite(path, n), s, MaxBodyBytes)
		n++
		if size += len(t.s); size > MaxBodyBytes && err == nil {
			err = errors.New("it is too large")
		}
		return t.s, err
	})
}

func (r *Renderer) alter(sc scope, a alterationAt, body []byte) ([]byte, error) {
	if a.Body != nil {
		return r.body(sc, a.Body, a.path+".body")
	}
	for i, e := range a.Edits {
		value, err := r.json(sc, e.Value, strict.Index(a.path+".edits", i)+".value")
		if err != nil {
			return nil, err
		}
		if body, err = replaceJSON(body, *e.Pointer, value); err != nil {
			return nil, fmt.Errorf("%s: %w", *e.Pointer, err)
		}
	}
	return body, nil
}

// placeKey puts the key where it goes.
func placeKey(k *Key, req *wire.Request, key string, raw bool) error {
	switch {
	case k.Header != "":
		if k.Syntax == "sf-string" && !raw {
			for _, c := range []byte(key) {
				if c < 0x20 || c > 0x7e {
					return errors.New("a Structured Field String is visible ASCII")
				}
			}
			key = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		}
		req.Header = append(req.Header, wire.Field{Name: k.Header, Value: key})
	case k.Query != "":
		mark := "?"
		if strings.Contains(req.URL, "?") {
			mark = "&"
		}
		req.URL += mark + filter("url", k.Query) + "=" + filter("url", key)
	default:
		body, err := insertJSON(req.Body, k.Body, quoteJSON(key))
		if err != nil {
			return err
		}
		req.Body = body
	}
	return nil
}

// Sign is a mechanism with all its templates rendered.
type Sign struct {
	Is      string
	Answer  *regexp.Regexp // nil if the sign is not in a response
	Reading *Reading       // nil if it is
}

// Signs renders the mechanisms of the values' operation, as Reading does readers.
func (r *Renderer) Signs(v *Values, resourceID string) (list []Sign, err error) {
	for i := range v.op.Atomicity {
		m := &v.op.Atomicity[i]
		s := Sign{Is: m.Is}
		if m.Answer != "" {
			pr, err := r.principal(ActorA)
			if err != nil {
				return nil, err
			}
			if s.Answer, err = r.pattern(r.scope(v, pr, resourceID), m.Answer, "atomicity"); err != nil {
				return nil, fmt.Errorf("plan: atomicity: %w", err)
			}
		} else if s.Reading, err = r.Reading(v, &Reader{Name: "atomicity", Log: m.Log, SQL: m.SQL}, resourceID); err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}
