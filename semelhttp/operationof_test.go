package semelhttp_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// TestJSONPointer: a value is found where it is, and nowhere that two readers
// could disagree about.
func TestJSONPointer(t *testing.T) {
	for _, tt := range []struct{ pointer, body, want string }{
		{"/a", `{"a":"x"}`, "x"},
		{"/a", ` {"b":[1,{"a":"no"}],"a":"x"} `, "x"},
		{"/a/1/b", `{"a":[{"b":"no"},{"b":"x"},{"b":"no"}]}`, "x"},
		{"/a", `{"\u0061":"x"}`, "x"},
		{"/a~1b/~0", `{"a/b":{"~":"x"}}`, "x"},
		{"/é", `{"\u00e9":"x\u0041"}`, "xA"},
		{"/a", `{"a":12.50}`, "12.50"},
		{"/1", `["no","x"]`, "x"},
		{"/1", `{"1":"x"}`, "x"},
		// refused
		{"/a", ``, ""},
		{"/a", `{}`, ""},
		{"/a", `{"a":""}`, ""},
		{"/a", `{"a":null}`, ""},
		{"/a", `{"a":true}`, ""},
		{"/a", `{"a":{"b":"x"}}`, ""},
		{"/a", `[{"a":"x"}]`, ""},
		{"/a", `{"a":"x","a":"y"}`, ""},
		{"/a", `{"a":"x","\u0061":"x"}`, ""},
		{"/a", `{"a":"x","b":{"c":1,"c":1}}`, ""},
		{"/a", `{"a":"x"} {"a":"y"}`, ""},
		{"/a", `{"a":"x"`, ""},
		{"/a", `{"a":"x",}`, ""},
		{"/a", "{\"a\":\"\xff\"}", ""},
		{"/a", `{"a":"\ud800"}`, ""},
		{"/01", `["no","x"]`, ""},
		{"/-", `["x"]`, ""},
	} {
		p, err := semelhttp.ParseJSONPointer(tt.pointer)
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.Text(newRequest(t, "POST", "http://h/", "", tt.body), []byte(tt.body))
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s in %s is %q, %v; want %q", tt.pointer, tt.body, got, err, tt.want)
		}
		if refused, ok := errors.AsType[*semelhttp.ScopeError](err); err != nil && (!ok || refused.Status != 400) {
			t.Errorf("%s in %s: %v", tt.pointer, tt.body, err)
		}
	}
	for _, s := range []string{"", "a", "/~", "/~2", "/\xff"} {
		if _, err := semelhttp.ParseJSONPointer(s); err == nil {
			t.Errorf("%q is taken for a pointer", s)
		}
	}
	p, _ := semelhttp.ParseJSONPointer("/a")
	coded := newRequest(t, "POST", "http://h/", "", `{"a":"x"}`)
	coded.Header.Set("Content-Encoding", "gzip")
	if _, err := p.Text(coded, []byte(`{"a":"x"}`)); err == nil {
		t.Error("a coded body was read as it is")
	}
}

func FuzzJSONPointer(f *testing.F) {
	f.Add("/a/0", `{"a":["x"]}`)
	f.Add("/a", `{"a":"x","a":"y"}`)
	f.Fuzz(func(t *testing.T, pointer, body string) {
		p, err := semelhttp.ParseJSONPointer(pointer)
		if err != nil {
			return
		}
		if text, err := p.Text(&http.Request{}, []byte(body)); err == nil && text == "" {
			t.Error("an empty value was found")
		}
	})
}

// TestOperationOf: one endpoint, many operations, each with keys of its own.
func TestOperationOf(t *testing.T) {
	b := newFixture(t)
	var o orders
	p, err := semelhttp.ParseJSONPointer("/operationName")
	if err != nil {
		t.Fatal(err)
	}
	s, _ := serve(t, b.protect(t, &o, func(c *semelhttp.Config) {
		c.Scope = func(*http.Request) (semel.Scope, error) { return semel.Scope{Actor: "a"}, nil }
		c.OperationOf = p.Text
	}), false)
	pay, refund := `{"operationName":"pay","n":1}`, `{"operationName":"refund","n":1}`
	if a := post(t, s, "k", pay); a.status != 201 || a.replayed() {
		t.Fatalf("got %+v", a)
	}
	if a := post(t, s, "k", refund); a.status != 201 || a.replayed() {
		t.Fatalf("the key of another operation: got %+v", a)
	}
	if a := post(t, s, "k", pay); !a.replayed() {
		t.Fatalf("got %+v", a)
	}
	post(t, s, "k", strings.Replace(pay, "1", "2", 1)).want(t, semelhttp.ProblemKeyMismatch)
	o.want(t, 2)
	for _, body := range []string{`{"n":1}`, `[` + pay + `]`, `{"operationName":"pay","operationName":"refund"}`, ``, `pay`} {
		if a := post(t, s, "k", body); a.status != 400 {
			t.Errorf("%s: got %+v", body, a)
		}
	}
	o.want(t, 2)
}

// TestOperationOfIssuedKey: a key that was issued for one operation is no key for
// another that the body names.
func TestOperationOfIssuedKey(t *testing.T) {
	b := newFixture(t)
	var o orders
	scope := func(*http.Request) (semel.Scope, error) { return semel.Scope{Actor: "a"}, nil }
	issuer, err := semelhttp.NewKeyIssuer(semelhttp.KeyIssuerConfig{Secrets: [][]byte{[]byte(strings.Repeat("s", 32))}, Retention: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	resources, err := semelhttp.NewResources(semelhttp.ResourcesConfig{Guard: b.guard, Scope: scope, Keys: issuer})
	if err != nil {
		t.Fatal(err)
	}
	p, err := semelhttp.ParseJSONPointer("/operationName")
	if err != nil {
		t.Fatal(err)
	}
	s, _ := serve(t, b.protect(t, &o, func(c *semelhttp.Config) {
		c.Scope, c.OperationOf, c.Resources, c.IssuedOnly = scope, p.Text, resources, true
	}), false)
	key, _ := issuer.Issue(semel.Scope{Actor: "a", Operation: "pay"})
	post(t, s, key, `{"operationName":"refund"}`).want(t, semelhttp.ProblemKeyNotIssued)
	post(t, s, "k", `{"operationName":"pay"}`).want(t, semelhttp.ProblemKeyNotIssued)
	o.want(t, 0)
	if a := post(t, s, key, `{"operationName":"pay"}`); a.status != 201 {
		t.Fatalf("got %+v", a)
	}
	o.want(t, 1)
}

// TestKeyAge: a key whose record may be gone does not execute again.
func TestKeyAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t, func(c *semel.Config) { c.Policy.Retention = time.Hour })
		var o orders
		h := b.protect(t, &o, func(c *semelhttp.Config) { c.KeyRules.MaxUUIDAge = 45 * time.Minute })
		key, unused := semel.NewKey(), semel.NewKey()
		if a := direct(t, h, key, "1"); a.status != 201 {
			t.Fatalf("got %+v", a)
		}
		time.Sleep(44 * time.Minute)
		if a := direct(t, h, key, "1"); !a.replayed() {
			t.Fatalf("got %+v", a)
		}
		time.Sleep(2 * time.Hour)
		for _, k := range []string{key, unused} {
			a := direct(t, h, k, "1")
			a.want(t, semelhttp.ProblemKeyExpired)
			if !strings.Contains(a.body, `"retry":"no"`) {
				t.Errorf("the answer invites another key: %s", a.body)
			}
		}
		ms := time.Now().Add(6 * time.Minute).UnixMilli()
		ahead := fmt.Sprintf("%08x-%04x-7000-8000-000000000000", ms>>16, ms&0xffff)
		direct(t, h, ahead, "1").want(t, semelhttp.ProblemKeyExpired)
		o.want(t, 1)
		for _, k := range []string{semel.NewKey(), "8e03978e-40d5-43e8-bc93-6894a57f9324", "mine"} {
			if a := direct(t, h, k, "1"); a.status != 201 {
				t.Errorf("%s: got %+v", k, a)
			}
		}
	})
	b := newFixture(t, func(c *semel.Config) { c.Policy.Retention = time.Hour })
	_, err := semelhttp.New(semelhttp.Config{Guard: b.guard, Scope: tester, KeyRules: semel.KeyRules{MaxUUIDAge: 50 * time.Minute}})
	if err == nil || !strings.Contains(err.Error(), "MaxUUIDAge") {
		t.Errorf("records that are kept for less than keys live are accepted: %v", err)
	}
}
