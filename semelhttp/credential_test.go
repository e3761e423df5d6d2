package semelhttp_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/semelhq/semel/semelhttp"
)

// TestCredentialActor pins the digest: a change would free every key in use.
func TestCredentialActor(t *testing.T) {
	h := http.Header{"Authorization": {"Bearer a"}, "X-Api-Key": {"b"}}
	digest := func(names ...string) string {
		t.Helper()
		actor, err := semelhttp.CredentialActor(names...)
		if err != nil {
			t.Fatal(err)
		}
		return actor(h)
	}
	for _, names := range [][]string{nil, {"Authorization"}, {"authorization", "Authorization"}} {
		if got := digest(names...); got != "e39f7e9ccbc9b87880911150b52c65d5" {
			t.Errorf("digest of %q is %s", names, got)
		}
	}
	if a, b := digest("Authorization", "X-Api-Key"), digest("x-api-key", "authorization"); a != b || a == digest() {
		t.Errorf("digests of two headers are %s and %s", a, b)
	}
	if got := digest("X-Other"); got != "" {
		t.Errorf("without the header the actor is %q", got)
	}
	_, err := semelhttp.CredentialActor("Connection", "no header", "Host", "Idempotency-Key", "Authorization")
	if err == nil || strings.Count(err.Error(), ", which ") != 4 || strings.Contains(err.Error(), "Authorization") {
		t.Errorf("the error is %v", err)
	}
}
