package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/testenv"
)

// 1,000 requests under 100 keys come mixed to two gateways on one PostgreSQL: at
// once, one after the other, willing to wait, and with another body. One gateway is
// killed when half of them have been sent, while it has requests under way, and its
// clients turn to the other.
func TestThousandDuplicatesOverTwoGateways(t *testing.T) {
	const keys, each, kept, clients = 100, 10, 12, 50
	var mu sync.Mutex
	effects := map[string][]string{} // by key: the bodies
	killed := make(chan struct{})
	under := make(chan struct{}, keys*each)
	var entered atomic.Int64
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		key := r.Header.Get("Idempotency-Key")
		mu.Lock()
		effects[key] = append(effects[key], string(body))
		n := len(effects)
		mu.Unlock()
		// Some are under way when the gateway dies, half of them through it.
		if order := entered.Add(1); order > keys/2-kept && order <= keys/2 {
			under <- struct{}{}
			<-killed
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"order":%d,"key":%q,"body":%q}`, n, key, body)
	}))
	t.Cleanup(upstream.Close)
	once := sync.OnceFunc(func() { close(killed) })
	t.Cleanup(once)

	store := testenv.Postgres(t)
	var gateways [2]*process
	for i := range gateways {
		gateways[i] = startGateway(t, "--upstream", upstream.URL, "--store", store, "--lease", "2s", "--heartbeat", "500ms", "--idle-timeout", "1s")
	}

	var sent atomic.Int64
	half := make(chan struct{})
	send := func(gateway int, key, body string, wait bool) (answer, error) {
		req, err := http.NewRequest(http.MethodPost, gateways[gateway].url+"/orders", strings.NewReader(body))
		noError(t, err)
		req.Header.Set("Idempotency-Key", key)
		if wait {
			req.Header.Set("Prefer", "wait=1")
		}
		if sent.Add(1) == keys*each/2 {
			close(half)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return answer{}, err
		}
		defer func() { _ = res.Body.Close() }()
		text, err := io.ReadAll(res.Body)
		return answer{res.StatusCode, res.Header, string(text)}, err
	}

	acknowledged := map[string]map[string]bool{} // by key: the bodies of 201
	note := func(key string, a answer) {
		mu.Lock()
		defer mu.Unlock()
		if acknowledged[key] == nil {
			acknowledged[key] = map[string]bool{}
		}
		acknowledged[key][a.body] = true
	}
	bodies := [2]string{`{"item":"book"}`, `{"item":"film"}`}
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			for i := range keys * each / clients {
				n := client*keys*each/clients + i
				key := fmt.Sprintf("key-%03d", n*37%keys) // its ten go to different clients
				body := bodies[0]
				if n%7 == 0 {
					body = bodies[1]
				}
				g := n % 2
				for {
					a, err := send(g, key, body, n%3 == 0)
					switch {
					case err != nil:
						g = 1 // the other is dead
						continue
					case a.status == http.StatusCreated:
						note(key, a)
					case a.status != http.StatusConflict && a.status != http.StatusUnprocessableEntity:
						t.Errorf("%s: status %d: %s", key, a.status, a.body)
					}
					break
				}
			}
		})
	}
	<-half
	for range kept {
		<-under
	}
	gateways[0].kill()
	once()
	wg.Wait()

	// Each key comes to its end, not later than the dead gateway's leases.
	unknown := 0
	deadline := time.Now().Add(time.Minute)
	for i := range keys {
		key := fmt.Sprintf("key-%03d", i)
		for settled := false; !settled; {
			settled = true
			for _, body := range bodies {
				a, err := send(1, key, body, true)
				noError(t, err)
				switch {
				case a.status == http.StatusCreated:
					note(key, a)
				case a.problem() == "outcome-unknown":
					unknown++
				case a.problem() == "in-progress" && time.Now().Before(deadline):
					settled = false
				case a.status != http.StatusUnprocessableEntity:
					t.Errorf("%s: status %d: %s", key, a.status, a.body)
				}
			}
		}
		// None, if the gateway died between its claim and its request.
		if n := len(effects[key]); n > 1 || n == 0 && acknowledged[key] != nil {
			t.Errorf("%s: %d effects", key, n)
		}
		if n := len(acknowledged[key]); n > 1 {
			t.Errorf("%s: %d different responses were acknowledged", key, n)
		}
	}
	var list listed
	noError(t, json.Unmarshal([]byte(ok(t, "keys", "list", "--store", store, "--state", "in_progress", "--json")), &list))
	want(t, "the number of records in progress", len(list.Records), 0)
	if unknown+len(acknowledged) < keys {
		t.Errorf("%d keys are acknowledged and %d outcomes unknown, of %d", len(acknowledged), unknown, keys)
	}
	if unknown > clients {
		t.Errorf("%d outcomes are unknown; %d requests can have been under way", unknown, clients)
	}
	t.Logf("%d requests, %d keys acknowledged, %d of unknown outcome", sent.Load(), len(acknowledged), unknown)
}
