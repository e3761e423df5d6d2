package semelhttp_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// keeper is what a handler was given and still uses after its end.
type keeper struct {
	name string // of its request; its body is nothing else, again and again
	w    http.ResponseWriter
	r    *http.Request
}

// own fails unless b is a part of the keeper's body.
func (k *keeper) own(t *testing.T, b []byte) {
	if len(b) > 0 && !strings.Contains(strings.Repeat(k.name, len(b)/len(k.name)+2), string(b)) {
		t.Errorf("%s has %.40q of another request", k.name, b)
	}
}

// use uses everything.
func (k *keeper) use(t *testing.T) {
	b := make([]byte, 64)
	n, err := k.r.Body.Read(b)
	if k.own(t, b[:n]); err == nil {
		t.Errorf("%s can still read its body", k.name)
	}
	if n, err := k.w.Write([]byte(k.name)); err == nil || n != 0 {
		t.Errorf("%s can still write", k.name)
	}
	k.w.WriteHeader(http.StatusTeapot)
	k.w.Header().Set("Keeper", k.name)
	if f := k.w.(http.Flusher); f != nil {
		f.Flush()
	}
	ctx := k.r.Context()
	if x, ok := semel.CurrentExecution(ctx); !ok || x.Identity().Key != k.name {
		t.Errorf("the context of %s is of another execution", k.name)
	}
	if ctx.Err() == nil || context.Cause(ctx) == nil {
		t.Errorf("the context of %s goes on", k.name)
	}
	semelhttp.DeclareNoEffect(ctx, nil)
	if semelhttp.DeclareIndeterminate(ctx, k.name) {
		t.Errorf("%s can still declare", k.name)
	}
	if got := k.r.Header.Get(semelhttp.HeaderKey); got != k.name {
		t.Errorf("the request of %s is that of %s", k.name, got)
	}
}

// holder is a Writer that does not return, and goes on reading what it is to
// write.
type holder struct {
	*keeper
	t       *testing.T
	begun   chan<- struct{}
	stopped <-chan struct{}
}

func (h *holder) Write(b []byte) (int, error) {
	h.begun <- struct{}{}
	for {
		h.own(h.t, b)
		select {
		case <-h.stopped:
			return len(b), nil
		default:
			runtime.Gosched()
		}
	}
}

// What a handler keeps after its end is never another request's, and what it does
// with it is nothing to others.
func TestKeptWriterBodyAndContextAreTheirOwn(t *testing.T) {
	var keepers sync.WaitGroup
	stop, begun := make(chan struct{}), make(chan struct{})
	kept := make(chan *keeper, 1)
	h := newFixture(t).protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.Header.Get(semelhttp.HeaderKey)
		k := &keeper{name: name, w: w, r: r}
		if strings.HasPrefix(name, "holder") {
			keepers.Go(func() { _, _ = io.Copy(&holder{k, t, begun, stop}, r.Body) })
			<-begun
			return
		}
		var b bytes.Buffer
		if strings.HasPrefix(name, "keeper") {
			_, _ = io.CopyN(&b, r.Body, int64(10*len(name))) // and there is more
		} else {
			_, _ = io.Copy(&b, r.Body)
		}
		w.Header().Set("Name", name)
		_, _ = w.Write(b.Bytes())
		if strings.HasPrefix(name, "keeper") {
			kept <- k
		}
	}))
	do := func(name string) {
		for range 2 { // the second time it is replayed
			r := newRequest(t, http.MethodPost, "http://shop.example/orders", name, strings.Repeat(name, 50))
			r.Header[semelhttp.HeaderKey] = []string{name}
			a := directRequest(h, r)
			want := strings.Repeat(name, 50)
			switch name[:6] {
			case "holder":
				continue
			case "keeper":
				want = want[:10*len(name)]
			}
			if a.status != http.StatusOK || a.body != want || a.header.Get("Name") != name || a.header.Get("Keeper") != "" {
				t.Errorf("%s was answered %d %v %.40q", name, a.status, a.header, a.body)
			}
		}
	}
	for i := range 3 {
		do(fmt.Sprint("holder-", i))
		do(fmt.Sprint("keeper-", i))
		k := <-kept // and its request is over
		keepers.Go(func() {
			for {
				k.use(t)
				select {
				case <-stop:
					return
				default:
					runtime.Gosched()
				}
			}
		})
	}
	var others sync.WaitGroup
	for n := range 8 {
		others.Go(func() {
			for i := range 125 {
				do(fmt.Sprintf("other-%d-%d", n, i))
			}
		})
	}
	others.Wait()
	close(stop)
	keepers.Wait()
}
