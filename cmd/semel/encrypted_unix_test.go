//go:build !windows

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/semelhq/semel/semelhttp"
)

// TestEncryptedGateway: recorded responses are nowhere in the files of the store, in a
// backup or in what commands print, and are replayed through rotations of the keys,
// which a reload makes. Without its key a response is not readable, and nothing is
// executed. A response that an operator gives is encrypted too.
func TestEncryptedGateway(t *testing.T) {
	const payload = "the-payload-that-nobody-may-read"
	var effects atomic.Int64
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		effects.Add(1)
		if r.URL.Path == "/cut" {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.Header().Set("Location", "/orders/"+payload)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, payload)
	}))
	t.Cleanup(service.Close)
	dir := t.TempDir()
	file, keys := filepath.Join(dir, "gateway.yaml"), filepath.Join(dir, "keys")
	store := "sqlite:" + filepath.Join(dir, "semel.db")
	write := func(name, text string) {
		t.Helper()
		noError(t, os.WriteFile(name+".new", []byte(text), 0o600))
		noError(t, os.Rename(name+".new", name))
	}
	const secretA, secretB = "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=", "YmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmI="
	const keyA, keyB = "a: " + secretA + "\n", "b: " + secretB + "\n"
	config := fmt.Sprintf(`version: 1
listen: 127.0.0.1:0
store: {url: %q}
principal: {shared: {}}
encryption: {keys_file: %q, keys: ["old: ${OLD}"]}
upstreams: [{name: a, url: %q}]
routes:
  - {match: POST /, operation: all, fail_open: true}
`, store, keys, service.URL)
	env := "OLD=b2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xkb2w="
	write(keys, keyA)
	write(file, config)
	out := semelWith([]string{env}, "", "gateway", "check", file, "--explain")
	if out.code != exitOK || !strings.Contains(out.stdout, "(1 secrets)") || strings.Contains(out.stdout+out.stderr, "b2xk") || strings.Contains(out.stdout+out.stderr, secretA) {
		t.Errorf("check says %+v", out)
	}

	ctx, stop := context.WithCancel(t.Context())
	limit, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	said := &lines{}
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"gateway", "--config", file}, []string{env}, nil, io.Discard, said) }()
	const mark = "is listening on "
	said.await(limit, t, mark, 1)
	_, rest, _ := strings.Cut(said.String(), mark)
	url, _, _ := strings.Cut(rest, "\n")
	reloads, refusals := 0, 0
	reload := func(as string, n *int) {
		t.Helper()
		noError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
		*n++
		said.await(limit, t, as, *n)
	}
	post := func(path, key string) answer { return request(t, "POST", url+path, "", "Idempotency-Key: "+key) }
	replays := func(key string) {
		t.Helper()
		if a := post("/", key); a.status != 201 || a.body != payload || a.header.Get(semelhttp.HeaderReplayed) != "true" || a.header.Get("Location") != "/orders/"+payload {
			t.Errorf("%s: %+v", key, a)
		}
	}
	id := func(key string) string {
		t.Helper()
		var found listed
		noError(t, json.Unmarshal([]byte(ok(t, "keys", "list", "--store", store, "--key", key, "--json")), &found))
		want(t, "records", len(found.Records), 1)
		return found.Records[0].ID
	}
	codec := func(key string) string {
		t.Helper()
		var r recordJSON
		noError(t, json.Unmarshal([]byte(ok(t, "keys", "show", "--store", store, id(key), "--json")), &r))
		want(t, "reference of "+key, r.Result.Reference, "")
		return r.Result.Codec
	}

	want(t, "first", post("/", "k1").status, 201)
	replays("k1")
	want(t, "codec", codec("k1"), "encrypted/1:a")

	write(keys, keyA+keyB) // known to all, before any encrypts with it
	reload("was reloaded", &reloads)
	write(keys, keyB+keyA)
	reload("was reloaded", &reloads)
	replays("k1")
	want(t, "second", post("/", "k2").status, 201)
	want(t, "codec", codec("k2"), "encrypted/1:b")

	for name, broken := range map[string]string{file: "", keys: "b:" + secretA[1:]} { // both leave what is there
		before, err := os.ReadFile(name)
		noError(t, err)
		if broken == "" {
			_, broken, _ = strings.Cut(config, "encryption")
			broken = strings.Replace(config, "encryption"+broken[:strings.Index(broken, "\n")+1], "", 1)
		}
		write(name, broken)
		reload("was not reloaded", &refusals)
		write(name, string(before))
	}
	if text := said.String(); !strings.Contains(text, "encryption (on or off) cannot be changed") || !strings.Contains(text, "line 1 is not of the form") {
		t.Errorf("the refusals do not say why:\n%s", text)
	}
	replays("k1")
	replays("k2")

	write(keys, keyB) // too early
	reload("was reloaded", &reloads)
	before := effects.Load()
	a := post("/", "k1")
	if a.status != 503 || !strings.Contains(a.body, semelhttp.ProblemResultUnreadable.Type()) || a.header.Get("Retry-After") != "30" {
		t.Errorf("without its key: %+v", a)
	}
	want(t, "effects", effects.Load(), before)
	said.await(limit, t, "decrypt", 1)
	replays("k2")
	write(keys, keyB+keyA)
	reload("was reloaded", &reloads)
	replays("k1")

	want(t, "cut off", post("/cut", "k3").status, 502)
	result := ok(t, "keys", "resolve", "--store", store, id("k3"), "--as", "result", "--status", "201", "--header", "Location: /orders/"+payload,
		"--body", payload, "--because", "looked", "--by", "t", "--encryption-keys", keys)
	want(t, "codec", codec("k3"), "encrypted/1:b")
	if a := post("/cut", "k3"); a.status != 201 || a.body != payload {
		t.Errorf("the operator's: %+v", a)
	}
	want(t, "cut off", post("/cut", "k4").status, 502)
	var dry struct {
		AsOf    time.Time `json:"as_of"`
		Command []string
	}
	args := []string{"keys", "resolve", "--store", store, "--as", "result", "--body", payload, "--because", "looked", "--by", "t", "--encryption-keys", keys, "--json", "--where", "operation=all"}
	noError(t, json.Unmarshal([]byte(ok(t, args...)), &dry))
	if !strings.Contains(strings.Join(dry.Command, " "), "--encryption-keys "+keys) {
		t.Errorf("the command of the dry run is %v", dry.Command)
	}
	ok(t, dry.Command[1:]...)
	want(t, "codec", codec("k4"), "encrypted/1:b")
	if wrong := semelWith(nil, "", append(args, "--encryption-keys", file)...); wrong.code != exitUsage || !strings.Contains(wrong.stderr, "cannot be used") {
		t.Errorf("%+v", wrong)
	}

	backup := filepath.Join(dir, "backup.db")
	ok(t, "backup", "--store", store, backup)
	shown := said.String() + ok(t, "keys", "show", "--store", store, id("k1")) + ok(t, "keys", "list", "--store", store) + ok(t, "audit", "search", "--store", store, "--json")
	names, err := filepath.Glob(filepath.Join(dir, "*.db*"))
	noError(t, err)
	for _, name := range names {
		b, err := os.ReadFile(name)
		noError(t, err)
		shown += string(b)
	}
	if len(names) < 3 || !strings.Contains(shown, "encrypted/1:a") {
		t.Errorf("the files are %v", names)
	}
	for _, secret := range []string{payload, secretA, secretB, "b2xk"} {
		if strings.Contains(shown, secret) {
			t.Errorf("%s is in a file, or was shown", secret)
		}
	}
	if !strings.Contains(result, "201") {
		t.Errorf("it says %s", result)
	}
	stop()
	want(t, "exit code", <-ended, exitOK)

	// The same records by flags are another operation's, but under the same keys.
	g := startGateway(t, "--upstream", service.URL, "--store", store, "--encryption-keys", keys)
	for _, replayed := range []string{"", "true"} {
		a, err := try(g.url, "k5", "")
		noError(t, err)
		if a.status != 201 || a.header.Get(semelhttp.HeaderReplayed) != replayed {
			t.Errorf("by flags: %+v", a)
		}
	}
	want(t, "codec", codec("k5"), "encrypted/1:b")
}
