package semelcaddy

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/semelhq/semel/internal/testenv"
)

// TestOneDatabase sends a thousand requests, four of each, to two Caddys and a
// gateway behind a plain Caddy, which share a database, and kills one of the three
// halfway.
func TestOneDatabase(t *testing.T) {
	for _, killed := range []string{"a Caddy", "the gateway"} {
		t.Run(killed, func(t *testing.T) { together(t, killed == "the gateway") })
	}
}

func together(t *testing.T, killGateway bool) {
	const (
		lease   = "2s"
		keys    = 250
		copies  = 4
		cut     = 20 // are being executed by the one that is killed
		workers = 16
	)
	s := newService(t)
	database := testenv.Postgres(t)
	site := s.protect("store "+database, "credentials Authorization", "lease "+lease)
	caddys := []*server{startCaddy(t, site), startCaddy(t, site)}
	gateway := start(t, "gateway", s.URL, database, lease)
	gatewayURL := strings.TrimPrefix(gateway.await("listening on"), "listening on ")
	front := startCaddy(t, "reverse_proxy "+strings.TrimPrefix(gatewayURL, "http://"))
	urls := []string{front.url, caddys[0].url, caddys[1].url}
	victim, victimURL := caddys[0].process, caddys[0].url
	if killGateway {
		victim, victimURL = gateway, front.url
	}

	// What is cut off by the kill, whatever else happens.
	var releases []func()
	for i := range cut {
		name := fmt.Sprintf("cut-%d", i)
		releases = append(releases, s.holds(name))
		go post(t, victimURL, name, name, "Authorization: a")
	}
	for range cut {
		<-s.arrived
	}

	var mu sync.Mutex
	acknowledged := map[string]answer{}
	unknowns := map[string]bool{}
	// ask sends one copy until its answer is final.
	ask := func(key string, at int) {
		for t.Context().Err() == nil {
			a := post(t, urls[at%len(urls)]+"/orders", key, key, "Authorization: a", "Prefer: wait=10")
			at++
			switch {
			case a.err != nil, a.problem() == "in-progress",
				a.status == http.StatusBadGateway && a.problem() == "": // of the Caddy in front of a dead gateway
				continue // the same key again, elsewhere
			case a.problem() == unknown:
				mu.Lock()
				unknowns[key] = true
				mu.Unlock()
				return
			case a.status != http.StatusCreated:
				t.Errorf("%s: %v", key, a)
				return
			}
			mu.Lock()
			if first, ok := acknowledged[key]; ok && first.body != a.body {
				t.Errorf("%s: acknowledged as %v and as %v", key, first, a)
			}
			acknowledged[key] = a
			mu.Unlock()
			return
		}
	}
	work := make(chan int)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for i := range work {
				ask(fmt.Sprintf("key-%d", i%keys), i)
			}
		})
	}
	for n, i := range rand.Perm(keys * copies) {
		if n == keys*copies/2 {
			victim.kill()
		}
		work <- i
	}
	close(work)
	group.Wait()
	for i := range cut {
		key := fmt.Sprintf("cut-%d", i)
		// Nothing is in progress for longer than the lease.
		a := post(t, urls[2], key, key, "Authorization: a", "Prefer: wait=10")
		want(t, key, a.problem(), unknown)
		releases[i]()
		want(t, key+": effects", s.effectsOf(key), 1)
	}
	doubled := 0
	for i := range keys {
		key := fmt.Sprintf("key-%d", i)
		first, ok := acknowledged[key]
		if n := s.effectsOf(key); n > 1 || ok && n != 1 {
			doubled++
			t.Errorf("%s: %d effects", key, n)
		}
		if !ok && !unknowns[key] {
			t.Errorf("%s has no outcome", key)
		}
		if ok && unknowns[key] {
			t.Errorf("%s: acknowledged, and unknown", key)
		}
		if ok {
			for _, url := range []string{urls[2], caddys[0].url, front.url} {
				if url != victimURL {
					a := post(t, url+"/orders", key, key, "Authorization: a")
					wantReplay(t, key+" in the end", first, a)
				}
			}
		}
	}
	t.Logf("%d requests of %d keys: %d acknowledged, %d unknown, %d doubled; all of %d that were cut off are unknown",
		keys*copies, keys, len(acknowledged), len(unknowns), doubled, cut)
	if len(acknowledged) < keys*9/10 {
		t.Errorf("only %d of %d keys were acknowledged", len(acknowledged), keys)
	}
}
