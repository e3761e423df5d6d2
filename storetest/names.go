package storetest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/semelhq/semel"
)

// The same key under another scope is another identity, and parts do not run
// into each other.
func scopeSeparates(t testing.TB, h Harness, ctx context.Context) {
	ids := []semel.Identity{
		{Scope: semel.Scope{Tenant: "t", Actor: "a", Operation: "op"}, Key: "k"},
		{Scope: semel.Scope{Tenant: "t2", Actor: "a", Operation: "op"}, Key: "k"},
		{Scope: semel.Scope{Tenant: "t", Actor: "a2", Operation: "op"}, Key: "k"},
		{Scope: semel.Scope{Tenant: "t", Actor: "a", Operation: "op2"}, Key: "k"},
		{Scope: semel.Scope{Tenant: "t", Actor: "a", Operation: "op"}, Key: "k2"},
		{Scope: semel.Scope{Tenant: "", Actor: "ta", Operation: "op"}, Key: "k"},
		{Scope: semel.Scope{Tenant: "ta", Actor: "", Operation: "op"}, Key: "k"},
		{Scope: semel.Scope{Tenant: "t", Actor: "", Operation: "aop"}, Key: "k"},
	}
	for _, sep := range []string{":", "/", "|", ".", "-", ",", "#", " "} {
		ids = append(ids,
			semel.Identity{Scope: semel.Scope{Tenant: "t" + sep + "a", Actor: "b", Operation: "op"}, Key: "k"},
			semel.Identity{Scope: semel.Scope{Tenant: "t", Actor: "a" + sep + "b", Operation: "op"}, Key: "k"},
			semel.Identity{Scope: semel.Scope{Tenant: "t", Actor: "a", Operation: "op" + sep + "x"}, Key: "y"},
			semel.Identity{Scope: semel.Scope{Tenant: "t", Actor: "a", Operation: "op"}, Key: "x" + sep + "y"},
		)
	}
	for i, id := range ids {
		c := begin(t, ctx, h.Store, semel.NewAttempt(id, semel.Fingerprint{}, lease, retention))
		complete(t, ctx, c, result(fmt.Sprint("of ", i)))
	}
	for i, id := range ids {
		if got := string(find(t, ctx, h.Store, id).Result.Body); got != fmt.Sprint("of ", i) {
			t.Fatalf("identity %d reads %q", i, got)
		}
	}
}

// Identities are compared byte by byte: no case folding, trimming,
// normalisation or truncation.
func keysAreBytes(t testing.TB, h Harness, ctx context.Context) {
	long := strings.Repeat("x", semel.MaxKeyBytes-1)
	keys := []string{
		"k", "K", "k ", " k", "é", "e\u0301", "k%", "k_", `k"`, `k\`, "k'", "ключ", "🔑", long + "1", long + "2",
	}
	// One part at a time, so that no other part tells the identities apart.
	parts := map[string]func(id *semel.Identity) *string{
		"tenant": func(id *semel.Identity) *string { return &id.Tenant },
		"actor":  func(id *semel.Identity) *string { return &id.Actor },
		"key":    func(id *semel.Identity) *string { return &id.Key },
	}
	for name, part := range parts {
		for _, k := range keys {
			id := identity("bytes of the " + name)
			*part(&id) = k
			c := begin(t, ctx, h.Store, semel.NewAttempt(id, semel.Fingerprint{}, lease, retention))
			complete(t, ctx, c, result(k))
			if r := find(t, ctx, h.Store, id); r.Identity != id || string(r.Result.Body) != k {
				t.Fatalf("%s %q reads back as %+v", name, k, r.Identity)
			}
		}
	}
}
