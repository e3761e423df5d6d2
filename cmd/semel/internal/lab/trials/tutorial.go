package trials

import (
	"bytes"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/sqlite"
)

// tutorial is the version that is in every tutorial: a lock, a map, and the
// response under its key.
type tutorial struct {
	charge http.Handler
	now    func() time.Time
	lock   sync.Mutex
	seen   *sync.Map // from key to kept
}

type kept struct {
	status int
	answer []byte
	until  time.Time
}

func (t *tutorial) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t.lock.Lock()
	defer t.lock.Unlock()
	key := r.Header.Get("Idempotency-Key")
	if v, ok := t.seen.Load(key); ok && t.now().Before(v.(kept).until) {
		k := v.(kept)
		w.WriteHeader(k.status)
		_, _ = w.Write(k.answer)
		return
	}
	c := &response{header: http.Header{}, status: http.StatusOK}
	t.charge.ServeHTTP(c, r)
	t.seen.Store(key, kept{c.status, c.body.Bytes(), t.now().Add(24 * time.Hour)})
	c.send(w)
}

// response holds a response back.
type response struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *response) Header() http.Header         { return a.header }
func (a *response) WriteHeader(status int)      { a.status = status }
func (a *response) Write(p []byte) (int, error) { return a.body.Write(p) }

func (a *response) send(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes())
}

// inItsPlace is the same with semel: what charge writes and the record of it are
// one transaction.
func inItsPlace(store *sqlite.Store, charge http.Handler) (http.Handler, error) {
	guard, err := semel.New(semel.Config{Store: store})
	if err != nil {
		return nil, err
	}
	protect, err := semelhttp.New(semelhttp.Config{
		Guard: guard, RequireKey: true,
		Scope: func(r *http.Request) (semel.Scope, error) {
			user, tenant, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), "@")
			return semel.Scope{Tenant: tenant, Actor: user, Operation: "charge"}, nil
		},
	})
	if err != nil {
		return nil, err
	}
	return protect(charge), nil
}
