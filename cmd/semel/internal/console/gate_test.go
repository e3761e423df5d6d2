package console

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"testing/synctest"
	"time"
)

// TestGate: an address gets so many wrong tokens, and all addresses together so many,
// in a time; beyond that nothing it says is compared. Others, and addresses that the
// right token has come from, are let in all the while.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := 0
		g := NewGate(token, func(times int) { told += times })
		at := func(address, given string) (bool, time.Duration) {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.RemoteAddr = address
			return g.Admit(r, given)
		}
		admitted := func(what, address, given string, ok bool, wait time.Duration) {
			t.Helper()
			gotOK, gotWait := at(address, given)
			want(t, what+": admitted", gotOK, ok)
			want(t, what+": the wait", gotWait, wait)
		}
		for range sourceBurst {
			admitted("a wrong token", "192.0.2.1:1", "x", false, 0)
		}
		admitted("one too many", "192.0.2.1:2", "x", false, sourceEvery)
		admitted("the right one from there", "192.0.2.1:2", token, false, sourceEvery)
		admitted("another wrong one meanwhile", "192.0.2.1:2", "x", false, sourceEvery)
		admitted("the right one from elsewhere", "192.0.2.2:1", token, true, 0)
		time.Sleep(sourceEvery)
		admitted("the right one later", "192.0.2.1:1", token, true, 0)
		for range 5 * sourceBurst {
			at("192.0.2.1:1", "x")
		}
		admitted("the right one from where it has come from", "192.0.2.1:1", token, true, 0)
		if _, wait := at("192.0.2.1:1", "x"); wait == 0 {
			t.Error("a wrong one from there is not slowed down")
		}
		want(t, "wrong tokens told", told, 1)
		time.Sleep(2 * time.Hour)
		at("192.0.2.1:1", "x")
		if told < 50 {
			t.Errorf("%d wrong tokens are told after a minute", told)
		}

		// A customer has many addresses of IPv6.
		for i := range sourceBurst {
			admitted("a wrong token by IPv6", fmt.Sprintf("[2001:db8:0:1::%x]:1", i), "x", false, 0)
		}
		admitted("one too many by IPv6", "[2001:db8:0:1::ffff]:1", token, false, sourceEvery)
		admitted("another network", "[2001:db8:0:2::1]:1", token, true, 0)

		// Many addresses share what there is for all; the right token does not.
		time.Sleep(2 * time.Hour)
		slowed := 0
		for i := range 2 * maxSources {
			if _, wait := at(fmt.Sprintf("198.18.%d.%d:1", i/256, i%256), "x"); wait > 0 {
				slowed++
			}
		}
		want(t, "how many were slowed down", slowed, 2*maxSources-allBurst)
		admitted("the right one amid them", "203.0.113.1:1", token, true, 0)
		if n := len(g.sources); n > maxSources {
			t.Errorf("%d addresses are remembered", n)
		}
		for range sourceBurst {
			at("198.18.0.1:1", "x")
		}
		if ok, _ := at("198.18.0.1:1", token); ok {
			t.Error("an address can go on guessing while there is nothing left for all")
		}
		time.Sleep(2 * time.Hour)
		at("198.18.0.1:1", "x")
		want(t, "a new address is remembered again", len(g.sources) <= maxSources, true)
		admitted("the right one in the end", "198.18.99.1:1", token, true, 0)
	})
	for _, given := range []string{"", "x"} {
		if ok, _ := NewGate("", func(int) {}).Admit(httptest.NewRequest(http.MethodGet, "/", nil), given); ok {
			t.Errorf("%q opens a gate without a token", given)
		}
	}
}

// TestWrongTokensAreSlowedDown: the page says so, by its form and to programs.
func TestWrongTokensAreSlowedDown(t *testing.T) {
	w := newWorld(t)
	for range sourceBurst {
		want(t, "status of a wrong token", w.post(w.client, "/console/login", url.Values{"token": {"x"}}).status, 401)
	}
	a := w.post(w.client, "/console/login", url.Values{"token": {token}})
	want(t, "status of one too many", a.status, 429)
	r, err := http.NewRequest(http.MethodGet, w.url+"/console/", nil)
	noError(t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	res, err := w.client.Do(r)
	noError(t, err)
	_ = res.Body.Close()
	want(t, "status of a program's", res.StatusCode, 429)
	if wait := res.Header.Get("Retry-After"); wait != "6" && wait != "5" {
		t.Errorf("Retry-After is %q", wait)
	}
}
