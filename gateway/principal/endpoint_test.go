package principal

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestEndpointIsTold pins what the endpoint gets: the credentials that are
// named, what the gateway knows of the request, and nothing else of it.
func TestEndpointIsTold(t *testing.T) {
	j := &judge{says: func(*http.Request) (int, http.Header) {
		return 204, http.Header{"X-Auth-Subject": {"alice"}, "X-Auth-Tenant": {"acme"}}
	}}
	e := newEndpoint(t, j, func(c *EndpointConfig) {
		c.Credentials = []string{"cookie", "Authorization"}
		c.Proxies = trusted
		c.CacheFor = -1
	})
	ask := func(target string, as ...caller) http.Header {
		t.Helper()
		r := httptest.NewRequest("DELETE", target, strings.NewReader("secret body"))
		r.Host = "api.example"
		r.Header = http.Header{
			"Authorization": {"Bearer a"}, "Cookie": {"a=1", "b=2"}, "Idempotency-Key": {"k"}, "X-Auth-Subject": {"mallory"}, "X-Forwarded-Method": {"GET"},
			"X-Forwarded-Uri": {"/public"}, "X-Forwarded-For": {"192.0.2.7, 10.1.5.5"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"shop.example"}, "X-Other": {"x"},
		}
		for _, c := range as {
			c(r)
		}
		p, err := e.Identify(r)
		noError(t, err)
		want(t, "principal", p, Principal{Actor: "auth:alice", Tenant: "acme"})
		want(t, "method", j.seen.Method, "GET")
		want(t, "body", j.seen.Body, nil)
		want(t, "URL", j.seen.URL.String(), "https://auth.example/check")
		return j.seen.Header
	}
	tell := func(h http.Header) string {
		return fmt.Sprint(h["X-Forwarded-Method"], h["X-Forwarded-Uri"], h["X-Forwarded-For"], h["X-Forwarded-Proto"], h["X-Forwarded-Host"])
	}
	h := ask("/orders/1?x=%2F", from("203.0.113.5:1"))
	want(t, "told of a stranger", tell(h), "[DELETE] [/orders/1?x=%2F] [203.0.113.5] [http] [api.example]")
	want(t, "credentials", fmt.Sprint(h["Authorization"], h["Cookie"]), "[Bearer a] [a=1 b=2]")
	want(t, "fields", len(h), 8)
	want(t, "told by a proxy", tell(ask("/orders/1", from("10.1.2.3:1"))), "[DELETE] [/orders/1] [192.0.2.7] [https] [shop.example]")
	want(t, "told of an absolute target", tell(ask("http://api.example/orders//1?a", from("203.0.113.5:1"))), "[DELETE] [/orders//1?a] [203.0.113.5] [http] [api.example]")
	want(t, "told of odd forwarding", tell(ask("/", from("10.1.2.3:1"), with("X-Forwarded-Proto", "javascript"), with("X-Forwarded-Host", "a", "b"))),
		"[DELETE] [/] [192.0.2.7] [http] [api.example]")
}

// TestEndpointAnswers: what the endpoint says is done, and when it says nothing
// of use nothing is.
func TestEndpointAnswers(t *testing.T) {
	up := newUpstream(t)
	alice := http.Header{"X-Auth-Subject": {"alice"}, "X-Auth-Tenant": {"acme"}}
	for name, tt := range map[string]struct {
		status int
		header http.Header
		err    error
		delay  time.Duration
		want   int
	}{
		"200":                 {200, alice, nil, 0, 200},
		"299":                 {299, alice, nil, 0, 200},
		"401":                 {401, http.Header{"Www-Authenticate": {`A x="1"`, "B"}, "Set-Cookie": {"a=b"}, "Location": {"/login"}}, nil, 0, 401},
		"403":                 {403, nil, nil, 0, 403},
		"two subjects":        {200, http.Header{"X-Auth-Subject": {"alice", "bob"}, "X-Auth-Tenant": {"acme"}}, nil, 0, 503},
		"two tenants":         {200, http.Header{"X-Auth-Subject": {"alice"}, "X-Auth-Tenant": {"acme", "other"}}, nil, 0, 503},
		"no subject":          {200, http.Header{"X-Auth-Tenant": {"acme"}}, nil, 0, 403},
		"no tenant":           {200, http.Header{"X-Auth-Subject": {"alice"}}, nil, 0, 403},
		"unreadable subject":  {200, http.Header{"X-Auth-Subject": {"al\xffice"}, "X-Auth-Tenant": {"acme"}}, nil, 0, 403},
		"redirect":            {302, http.Header{"Location": {"https://login.example"}, "X-Auth-Subject": {"alice"}}, nil, 0, 503},
		"switching":           {101, alice, nil, 0, 503},
		"404":                 {404, alice, nil, 0, 503},
		"407":                 {407, alice, nil, 0, 503},
		"429":                 {429, alice, nil, 0, 503},
		"500":                 {500, alice, nil, 0, 503},
		"connection refused":  {0, nil, errors.New("connection refused"), 0, 503},
		"no answer in time":   {200, alice, nil, time.Minute, 503},
		"an answer just then": {200, alice, nil, DefaultEndpointTimeout - time.Millisecond, 200},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var told atomic.Int64
				j := &judge{err: tt.err, delay: tt.delay, says: func(*http.Request) (int, http.Header) { return tt.status, tt.header }}
				f := newFront(t, up, newEndpoint(t, j, func(c *EndpointConfig) {
					c.Failed = func(_ context.Context, err error) {
						told.Add(1)
						if strings.Contains(err.Error(), "s3cret") {
							t.Errorf("the error holds the credential: %v", err)
						}
					}
				}))
				began := time.Now()
				var a answer
				if tt.want == 200 {
					a = f.post("k", bearer("s3cret"))
				} else {
					a = f.untouched("refused", func() answer { return f.post("k", bearer("s3cret")) })
				}
				want(t, "status", a.Code, tt.want)
				if took := time.Since(began); took > DefaultEndpointTimeout {
					t.Errorf("it took %v", took)
				}
				want(t, "failures told", told.Load() == 1, tt.want == 503)
				if strings.Contains(fmt.Sprint(a.Header(), a.Body), "s3cret") {
					t.Error("the answer holds the credential")
				}
				switch tt.want {
				case 401:
					want(t, "challenges", fmt.Sprint(a.Header()["Www-Authenticate"]), `[A x="1" B]`)
					want(t, "cookies", len(a.Header()["Set-Cookie"])+len(a.Header()["Location"]), 0)
				case 503:
					want(t, "when to come again", a.Header().Get("Retry-After"), "1")
				}
				// What was said is remembered, and what was not is asked again.
				f.post("k", bearer("s3cret"))
				want(t, "calls", j.count() == 1, tt.want != 503)
			})
		})
	}
}

// TestRevocation: a revoked credential is honoured for as long as answers are
// remembered, and not a moment longer, however often it is used and however slow
// the endpoint is. A fresh credential of the same caller goes on.
func TestRevocation(t *testing.T) {
	up := newUpstream(t)
	for _, tt := range []struct{ cache, delay time.Duration }{
		{-1, 0},
		{time.Second, 0},
		{5 * time.Second, 0},
		{5 * time.Second, 700 * time.Millisecond},
		{time.Second, 1900 * time.Millisecond}, // answers are old when they come
		{-1, 700 * time.Millisecond},
	} {
		t.Run(fmt.Sprint(tt.cache, " ", tt.delay), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				callers := map[string][2]string{"Bearer a": {"alice", "acme"}, "Bearer a2": {"alice", "acme"}}
				j := &judge{says: known(callers), delay: tt.delay}
				f := newFront(t, up, newEndpoint(t, j, func(c *EndpointConfig) { c.CacheFor = tt.cache }))
				up.effects.Store(0)
				want(t, "first", f.post("k", bearer("a")).Code, 200)
				revoked := time.Now().Add(10 * time.Second)
				end := revoked.Add(20 * time.Second)
				var requests sync.WaitGroup
				for time.Now().Before(end) {
					if time.Now().Equal(revoked) {
						j.set(func() { delete(callers, "Bearer a") })
					}
					arrived := time.Now()
					requests.Go(func() {
						switch a := f.post("k", bearer("a")); {
						case a.replayed():
							if late := arrived.Sub(revoked); late > max(tt.cache, 0) || late == max(tt.cache, 0) && late > 0 {
								t.Errorf("replayed to a request that came %v after the revocation", late)
							}
						case a.Code == 401:
							if arrived.Before(revoked) {
								t.Errorf("refused %v before the revocation", revoked.Sub(arrived))
							}
						default:
							t.Errorf("%d %s", a.Code, a.Body)
						}
					})
					time.Sleep(100 * time.Millisecond)
					synctest.Wait()
				}
				requests.Wait()
				want(t, "revoked", f.untouched("revoked", func() answer { return f.post("k", bearer("a")) }).Code, 401)
				want(t, "a fresh credential", f.post("k", bearer("a2")).replayed(), true)
				want(t, "effects", up.effects.Load(), 1)
				if tt.cache > 0 {
					if most := int(30*time.Second/tt.cache) + 5; j.count() > most {
						t.Errorf("the endpoint was asked %d times, want at most %d", j.count(), most)
					}
				}
			})
		})
	}
}

// TestRememberedIsExactlyTold: an answer holds for what the endpoint was told,
// and for nothing else.
func TestRememberedIsExactlyTold(t *testing.T) {
	j := &judge{says: known(map[string][2]string{"Bearer a": {"alice", "acme"}})}
	e := newEndpoint(t, j, func(c *EndpointConfig) { c.Credentials = []string{"Authorization", "Cookie"} })
	ask := func(method, target string, as ...caller) {
		r := httptest.NewRequest(method, target, nil)
		for _, c := range as {
			c(r)
		}
		_, _ = e.Identify(r)
	}
	steps := []func(){
		func() { ask("POST", "/a", bearer("a")) },
		func() { ask("GET", "/a", bearer("a")) },
		func() { ask("POST", "/b", bearer("a")) },
		func() { ask("POST", "/a?q", bearer("a")) },
		func() { ask("POST", "/a", bearer("a"), from("203.0.113.5:1")) },
		func() { ask("POST", "/a", bearer("a"), func(r *http.Request) { r.Host = "other.example" }) },
		func() { ask("POST", "/a", bearer("a"), with("Cookie", "x")) },
		func() { ask("POST", "/a", with("Cookie", "Bearer a")) },
		func() { ask("POST", "/a", with("Authorization", "Bearer a", "Bearer a")) },
		func() { ask("POST", "/a", with("Authorization", "Bearer aBearer a")) },
		func() { ask("POST", "/a") },
		func() { ask("POST", "/a", with("Authorization", "ab", "c")) },
		func() { ask("POST", "/a", with("Authorization", "a", "bc")) },
	}
	for n, step := range steps {
		step()
		want(t, fmt.Sprint("calls after step ", n), j.count(), n+1)
		step()
		want(t, fmt.Sprint("calls after step ", n, " again"), j.count(), n+1)
	}
	ask("POST", "/a", bearer("a"), from("192.0.2.1:9999"), with("X-Other", "x"), with("X-Forwarded-For", "9.9.9.9"))
	want(t, "calls, where nothing differs that it is told", j.count(), len(steps))
}

// TestEndpointIsNotFlooded: of those who ask the same at once one asks; strangers
// with a credential each come a few at a time; and they make the gateway forget
// nobody.
func TestEndpointIsNotFlooded(t *testing.T) {
	up := newUpstream(t)
	synctest.Test(t, func(t *testing.T) {
		j := &judge{says: known(map[string][2]string{"Bearer a": {"alice", "acme"}}), delay: 100 * time.Millisecond}
		e := newEndpoint(t, j, func(c *EndpointConfig) { c.MaxCalls, c.CacheFor = 8, time.Minute })
		f := newFront(t, up, e)
		var requests sync.WaitGroup
		for range 500 {
			requests.Go(func() {
				if a := f.post("k", bearer("a")); a.Code != 200 && a.Code != 409 {
					t.Errorf("%d %s", a.Code, a.Body)
				}
			})
		}
		requests.Wait()
		want(t, "calls for one credential", j.count(), 1)
		want(t, "effects", up.effects.Load(), 1)

		calls := f.store.calls.Load()
		want(t, "bound for answers", e.allowed.most, maxVerdicts)
		want(t, "bound for refusals", e.refused.most, maxVerdicts)
		e.allowed.most, e.refused.most = 10, 10
		const flood = 5000
		var refused, busy, atOnce atomic.Int64
		for n := range flood {
			requests.Go(func() {
				began := time.Now()
				switch a := f.post("k", bearer(fmt.Sprint("forged ", n))); a.Code {
				case 401:
					refused.Add(1)
				case 503:
					busy.Add(1)
					if time.Since(began) == 0 {
						atOnce.Add(1)
					}
				default:
					t.Errorf("%d %s", a.Code, a.Body)
				}
			})
		}
		requests.Wait()
		want(t, "calls of the store", f.store.calls.Load()-calls, 0)
		want(t, "at the same time", j.most, 8)
		want(t, "refused and busy", refused.Load()+busy.Load(), flood)
		want(t, "not left to wait", atOnce.Load(), flood-maxWaiting)
		// 8 at a time, 100 ms each, for 2 s.
		if n := refused.Load(); n == 0 || n > 8*21 {
			t.Errorf("%d were refused", n)
		}
		if n := len(e.refused.young) + len(e.refused.old); n == 0 || n > 20 {
			t.Errorf("%d refusals are remembered", n)
		}
		before := j.count()
		want(t, "the caller who is known", f.post("k", bearer("a")).replayed(), true)
		want(t, "calls for it", j.count(), before)
		want(t, "flights left", len(e.flights), 0)
		want(t, "waiting", len(e.waiting), 0)
	})
}

// TestEndpointAtOnce is the same with the wall's clock, for the race detector.
func TestEndpointAtOnce(t *testing.T) {
	up := newUpstream(t)
	callers := map[string][2]string{"Bearer a": {"alice", "acme"}}
	j := &judge{says: known(callers)}
	f := newFront(t, up, newEndpoint(t, j, func(c *EndpointConfig) { c.CacheFor = 50 * time.Millisecond }))
	want(t, "first", f.post("k", bearer("a")).Code, 200)
	revoke, revoked := make(chan struct{}), make(chan struct{})
	go func() {
		<-revoke
		j.set(func() { delete(callers, "Bearer a") })
		close(revoked)
	}()
	var requests sync.WaitGroup
	var replays, refusals atomic.Int64
	for g := range 16 {
		requests.Go(func() {
			for n := range 200 {
				if g == 0 && n == 100 {
					close(revoke)
				}
				switch a := f.post("k", bearer("a")); {
				case a.replayed():
					replays.Add(1)
				case a.Code == 401:
					refusals.Add(1)
				default:
					t.Errorf("%d %s", a.Code, a.Body)
				}
				f.post("k", bearer(fmt.Sprint("forged ", g, n)))
			}
		})
	}
	requests.Wait()
	<-revoked
	// TestRevocation says how late it may be; here it is only awaited.
	for f.post("k", bearer("a")).replayed() {
		runtime.Gosched()
	}
	want(t, "revoked", f.untouched("revoked", func() answer { return f.post("k", bearer("a")) }).Code, 401)
	want(t, "effects", up.effects.Load(), 1)
	if replays.Load() == 0 {
		t.Error("nothing was replayed")
	}
}

// TestEndpointByHTTP asks a real one.
func TestEndpointByHTTP(t *testing.T) {
	up := newUpstream(t)
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.URL.Path != "/check" {
			http.Error(w, "redirects are not followed", 200)
			return
		}
		switch r.Header.Get("Authorization") {
		case "Bearer a":
			w.Header().Set("X-Auth-Subject", "alice")
			w.WriteHeader(200)
			_, _ = fmt.Fprint(w, strings.Repeat("x", 200_000))
		case "Bearer moved":
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		case "Bearer header":
			w.Header().Set("X-Long", strings.Repeat("x", 100_000))
			w.Header().Set("X-Auth-Subject", "alice")
		default:
			w.WriteHeader(403)
		}
	}))
	defer server.Close()
	e := newEndpoint(t, nil, func(c *EndpointConfig) { c.URL, c.Transport, c.Tenant = server.URL+"/check", nil, "" })
	defer func() { noError(t, e.Close()) }()
	f := newFront(t, up, e)
	want(t, "allowed", f.post("k", bearer("a")).Code, 200)
	want(t, "refused", f.post("k", bearer("b")).Code, 403)
	want(t, "redirected", f.post("k", bearer("moved")).Code, 503)
	want(t, "with a header that is too long", f.post("k", bearer("header")).Code, 503)
	want(t, "asked", asked.Load(), 4)
	server.Close()
	want(t, "gone", f.post("k2", bearer("other")).Code, 503)
	want(t, "effects", up.effects.Load(), 1)
}
