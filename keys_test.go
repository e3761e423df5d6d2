package semel_test

import (
	"context"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
)

func TestNewKeyIsUUIDv7(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		before := time.Now().UnixMilli()
		k := semel.NewKey()
		b, err := hex.DecodeString(strings.ReplaceAll(k, "-", ""))
		if err != nil || len(k) != 36 || len(b) != 16 || b[6]>>4 != 7 || b[8]>>6 != 2 || seen[k] {
			t.Fatalf("%q is no fresh UUID version 7", k)
		}
		ms := int64(b[0])<<40 | int64(b[1])<<32 | int64(b[2])<<24 | int64(b[3])<<16 | int64(b[4])<<8 | int64(b[5])
		if ms < before || ms > time.Now().UnixMilli() {
			t.Fatalf("%q was made at %d; want from %d on", k, ms, before)
		}
		seen[k] = true
	}
}

func TestCompositeKey(t *testing.T) {
	decl := semel.CompositeKey{Name: "orders.confirm", Version: 1, Fields: []string{"order", "action"}}
	key := func(c semel.CompositeKey, order, action string) string {
		t.Helper()
		k, err := c.Key(map[string]string{"order": order, "action": action})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	k := key(decl, "42", "confirm")
	if k != key(decl, "42", "confirm") {
		t.Error("the same fields gave two keys")
	}
	v2 := decl
	v2.Version = 2
	renamed := decl
	renamed.Name = "orders.cancel"
	for name, other := range map[string]string{
		"version": key(v2, "42", "confirm"), "name": key(renamed, "42", "confirm"), "value": key(decl, "43", "confirm"),
		"border between fields": key(decl, "42c", "onfirm"), "swapped": key(decl, "confirm", "42"),
	} {
		if other == k {
			t.Errorf("another %s gave the same key", name)
		}
	}
	if len(k) > semel.MaxKeyBytes || (semel.Identity{Scope: scope, Key: k}).Validate() != nil {
		t.Errorf("%q is no valid key", k)
	}
	for name, values := range map[string]map[string]string{
		"missing": {"order": "42"}, "empty": {"order": "42", "action": ""}, "undeclared": {"order": "42", "action": "x", "more": "y"},
	} {
		if _, err := decl.Key(values); err == nil {
			t.Errorf("%s field: accepted", name)
		}
	}
	for _, bad := range []semel.CompositeKey{{Fields: []string{"a"}}, {Name: "n"}, {Name: "n", Fields: []string{"a", "a"}}} {
		if _, err := bad.Key(map[string]string{"a": "1"}); err == nil {
			t.Errorf("declaration %+v: accepted", bad)
		}
	}
}

func TestEventKey(t *testing.T) {
	a, _ := semel.EventKey("stripe", "evt_1")
	b, _ := semel.EventKey("stripe", "evt_2")
	c, _ := semel.EventKey("stripee", "vt_1")
	if a == b || a == c || a == "" {
		t.Errorf("keys %q %q %q", a, b, c)
	}
	for _, in := range [][2]string{{"", "1"}, {"s", ""}} {
		if _, err := semel.EventKey(in[0], in[1]); err == nil {
			t.Errorf("EventKey(%q, %q) was accepted", in[0], in[1])
		}
	}
}

func TestKeyRules(t *testing.T) {
	v4 := "8e03978e-40d5-43e8-bc93-6894a57f9324"
	for _, c := range []struct {
		name  string
		rules semel.KeyRules
		key   string
		ok    bool
	}{
		{"anything", semel.KeyRules{}, "x", true},
		{"empty", semel.KeyRules{}, "", false},
		{"too long", semel.KeyRules{}, strings.Repeat("x", 256), false},
		{"longest", semel.KeyRules{}, strings.Repeat("x", 255), true},
		{"too short", semel.KeyRules{MinLength: 16}, "short", false},
		{"over max", semel.KeyRules{MaxLength: 8}, "ninechars", false},
		{"uuid v4", semel.KeyRules{RequireUUID: true}, v4, true},
		{"uuid v7", semel.KeyRules{RequireUUID: true, MinEntropyBits: 64}, semel.NewKey(), true},
		{"uuid v1", semel.KeyRules{RequireUUID: true}, "8e03978e-40d5-13e8-bc93-6894a57f9324", false},
		{"no uuid", semel.KeyRules{RequireUUID: true}, "8e03978e40d543e8bc936894a57f9324", false},
		{"bad variant", semel.KeyRules{RequireUUID: true}, "8e03978e-40d5-43e8-fc93-6894a57f9324", false},
		{"repetitive", semel.KeyRules{MinEntropyBits: 64}, strings.Repeat("a", 200), false},
		{"order number", semel.KeyRules{MinEntropyBits: 64}, "order-2026-11-21", false},
		{"random", semel.KeyRules{MinEntropyBits: 64}, "clkyoesmbgybucifusbbtdsbohtyuuwz", true},
		{"version 1 entropy", semel.KeyRules{MinEntropyBits: 64}, "8e03978e-40d5-13e8-bc93-6894a57f9324", false},
		{"RFC 3339", semel.KeyRules{RefuseTimestamps: true}, "2026-11-21T12:00:00Z", false},
		{"date", semel.KeyRules{RefuseTimestamps: true}, "2026-11-21", false},
		{"compact", semel.KeyRules{RefuseTimestamps: true}, "20261121120000", false},
		{"unix seconds", semel.KeyRules{RefuseTimestamps: true}, "1795262400", false},
		{"unix milliseconds", semel.KeyRules{RefuseTimestamps: true}, "1795262400123", false},
		{"unix nanoseconds", semel.KeyRules{RefuseTimestamps: true}, "1795262400123456789", false},
		{"unix with fraction", semel.KeyRules{RefuseTimestamps: true}, "1795262400.25", false},
		{"no time", semel.KeyRules{RefuseTimestamps: true}, "42", true},
		{"uuid is no time", semel.KeyRules{RefuseTimestamps: true, RefuseSerials: true}, v4, true},
		{"serial", semel.KeyRules{RefuseSerials: true}, "000123", false},
		{"named serial", semel.KeyRules{RefuseSerials: true}, "order-42", false},
		{"long number", semel.KeyRules{RefuseSerials: true}, "9028374650918273645", true},
		{"word", semel.KeyRules{RefuseSerials: true}, "clkyoesmbgybucif", true},
	} {
		err := c.rules.Check(c.key)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil && len(c.key) > 4 && strings.Contains(err.Error(), c.key) {
			t.Errorf("%s: the error shows the key: %v", c.name, err)
		}
	}
	for _, r := range []semel.KeyRules{{MinLength: -1}, {MaxLength: 256}, {MinLength: 9, MaxLength: 8}, {MinEntropyBits: math.NaN()}} {
		if r.Validate() == nil {
			t.Errorf("rules %+v were accepted", r)
		}
	}
}

func TestRetryPlan(t *testing.T) {
	for _, c := range []struct {
		plan semel.RetryPlan
		want time.Duration
	}{
		{semel.RetryPlan{Window: time.Hour}, 2 * time.Hour},
		{semel.RetryPlan{Window: time.Hour, Timeout: time.Minute, Skew: 5 * time.Second, Factor: 1.5}, 91*time.Minute + 30*time.Second + 5*time.Second},
		{semel.RetryPlan{Window: 1, Factor: 1}, time.Second},
	} {
		if got, err := c.plan.Retention(); err != nil || got != c.want {
			t.Errorf("%+v: %v, %v; want %v", c.plan, got, err, c.want)
		}
	}
	for _, bad := range []semel.RetryPlan{
		{}, {Window: -1}, {Window: 1, Factor: 0.5}, {Window: 1, Factor: math.NaN()}, {Window: 1, Skew: -1}, {Window: math.MaxInt64, Factor: 10},
	} {
		if got, err := bad.Retention(); err == nil {
			t.Errorf("%+v: %v was accepted", bad, got)
		}
	}
}

func TestFingerprintFraming(t *testing.T) {
	a, b := semel.FingerprintOf([]byte("ab"), []byte("c")), semel.FingerprintOf([]byte("a"), []byte("bc"))
	if !a.Differs(b) || a.Differs(a) || a.Differs(semel.Fingerprint{}) || (semel.Fingerprint{}).Differs(a) {
		t.Error("fingerprints compare wrongly")
	}
}

func TestCall(t *testing.T) {
	type order struct {
		ID     int64
		Amount float64
	}
	g := newGuard(t, newStore(t), semel.Policy{})
	calls := 0
	create := func(context.Context) (*order, error) { calls++; return &order{ID: 1<<53 + 1, Amount: 0.1}, nil }
	first, answer, err := semel.Call(t.Context(), g, submit("k"), create)
	if err != nil || answer != semel.AnswerExecuted {
		t.Fatalf("%v, %v", answer, err)
	}
	again, answer, err := semel.Call(t.Context(), g, submit("k"), create)
	if err != nil || answer != semel.AnswerReplayed || *again != *first || calls != 1 {
		t.Fatalf("%v, %v: %+v after %+v in %d calls", answer, err, again, first, calls)
	}
	if _, _, err := semel.Call(t.Context(), g, submit("k"), func(context.Context) (chan int, error) { return nil, nil }); err == nil {
		t.Error("a result of another type was accepted")
	}
	for range 2 {
		_, _, err = semel.Call(t.Context(), g, submit("tombstone"), func(context.Context) (func(), error) { calls++; return func() {}, nil })
		if !errors.Is(err, semel.ErrResultNotRetained) || calls != 2 {
			t.Fatalf("a value that JSON cannot hold: %v after %d calls", err, calls)
		}
	}
	refused := false
	small := newGuard(t, &faulty{Store: newStore(t), before: func(call string) error {
		if call == "complete" && !refused {
			refused = true
			return semel.ErrTooLarge
		}
		return nil
	}}, semel.Policy{})
	if v, answer, err := semel.Call(t.Context(), small, submit("large"), func(context.Context) (string, error) { return "in hand", nil }); v != "in hand" || answer != semel.AnswerExecuted || err != nil {
		t.Fatalf("a value too large for the store: %q, %v, %v", v, answer, err)
	}
	if v, _, err := semel.Call(t.Context(), small, submit("large"), func(context.Context) (string, error) { return "again", nil }); v != "" || !errors.Is(err, semel.ErrResultNotRetained) {
		t.Fatalf("its retry: %q, %v", v, err)
	}
	_, answer, err = semel.Call(t.Context(), g, submit("failed"), func(context.Context) (int, error) { return 7, semel.NoEffect(errDown) })
	if answer != semel.AnswerReleased || !errors.Is(err, errDown) {
		t.Fatalf("%v, %v", answer, err)
	}
}
