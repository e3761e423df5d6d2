package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/testenv"
)

func sendTo(t *testing.T, method, url, key, body, prefer string) answer {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	noError(t, err)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	if prefer != "" {
		req.Header.Set("Prefer", prefer)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	noError(t, err)
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	noError(t, err)
	return answer{res.StatusCode, res.Header, string(b)}
}

// TestInFlightAcrossProcesses: one gateway executes, and what comes to another
// on the same store meanwhile is told apart, waits, is led to the status
// resource, and survives the death of the first.
func TestInFlightAcrossProcesses(t *testing.T) {
	for _, kind := range []string{"sqlite", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			db := newStore(t)
			if kind == "postgres" {
				db = testenv.Postgres(t)
			}
			t.Run("mismatch, wait and accept", func(t *testing.T) {
				u := newUpstream(t)
				args := []string{"--upstream", u.url, "--store", db, "--lease", "2s"}
				a, b := startGateway(t, args...), startGateway(t, append(args, "--in-flight", "accept")...)
				u.held.Store(true)
				first := make(chan answer, 1)
				go func() {
					got, err := try(a.url, "k", `{"item":"book"}`)
					if err != nil {
						t.Error(err)
					}
					first <- got
				}()
				<-u.entered
				want(t, "another request, at the other gateway", post(t, b.url, "k", `{"item":"pen"}`).status, 422)

				accepted := post(t, b.url, "k", `{"item":"book"}`)
				want(t, "status of an accepted duplicate", accepted.status, 202)
				status := accepted.header.Get("Location")
				for _, g := range []*process{a, b} {
					got := sendTo(t, http.MethodGet, g.url+status, "", "", "")
					want(t, "status of the status", got.status, 200)
					if !strings.Contains(got.body, `"state":"in_progress"`) {
						t.Errorf("the status is %s", got.body)
					}
				}
				inProgress := post(t, a.url, "k", `{"item":"book"}`)
				want(t, "a duplicate at the first gateway", inProgress.problem(), "in-progress")
				if !strings.Contains(inProgress.body, status) {
					t.Errorf("its problem leads nowhere: %s", inProgress.body)
				}

				waited := make(chan answer, 2)
				for _, g := range []*process{a, b} {
					go func() { waited <- sendTo(t, http.MethodPost, g.url+"/orders", "k", `{"item":"book"}`, "wait=30") }()
				}
				time.AfterFunc(100*time.Millisecond, u.release) // so that they are likely to wait; they need not
				original := <-first
				want(t, "status of the first", original.status, 201)
				for range 2 {
					got := <-waited
					want(t, "status after the wait", got.status, 201)
					want(t, "answer after the wait", got.body, original.body)
					want(t, "replayed", got.replayed(), true)
					want(t, "Preference-Applied", got.header.Get("Preference-Applied"), "wait=30")
				}
				result := sendTo(t, http.MethodGet, b.url+status+"/result", "", "", "")
				want(t, "status of the result", result.status, 201)
				want(t, "the result", result.body, original.body)
				want(t, "effects", u.effects.Load(), 1)
			})
			t.Run("owner killed while others wait", func(t *testing.T) {
				u := newUpstream(t)
				args := []string{"--upstream", u.url, "--store", db, "--lease", "2s"}
				a, b := startGateway(t, args...), startGateway(t, args...)
				u.held.Store(true)
				cut := make(chan error, 1)
				go func() {
					_, err := try(a.url, "dies", `{"item":"book"}`)
					cut <- err
				}()
				<-u.entered
				waited := make(chan answer, 3)
				for range 3 {
					go func() { waited <- sendTo(t, http.MethodPost, b.url+"/orders", "dies", `{"item":"book"}`, "wait=30") }()
				}
				a.kill()
				killed := time.Now()
				if err := <-cut; err == nil {
					t.Error("the client of the dead gateway got a response")
				}
				for range 3 {
					got := <-waited
					want(t, "what a waiter is told", got.problem(), "outcome-unknown")
					var p struct {
						StatusURL string `json:"status_url"`
					}
					noError(t, json.Unmarshal([]byte(got.body), &p))
					status := sendTo(t, http.MethodGet, b.url+p.StatusURL, "", "", "")
					if !strings.Contains(status.body, `"state":"unknown"`) {
						t.Errorf("the status is %s", status.body)
					}
				}
				t.Logf("told %v after the death; the lease was 2 s", time.Since(killed).Round(10*time.Millisecond))
				u.release()
				want(t, "effects", u.effects.Load(), 1)
			})
		})
	}
}

func TestContractsOfTheGateway(t *testing.T) {
	u := newUpstream(t)
	g := startGateway(t, "--upstream", u.url, "--store", "memory:", "--contract", "stripe")
	want(t, "first", post(t, g.url, "k", "{}").status, 201)
	want(t, "Idempotent-Replayed", post(t, g.url, "k", "{}").header.Get("Idempotent-Replayed"), "true")
	mismatch := post(t, g.url, "k", `{"o":1}`)
	want(t, "mismatch", mismatch.status, 400)
	if !strings.Contains(mismatch.body, `"type":"idempotency_error"`) {
		t.Errorf("mismatch: %s", mismatch.body)
	}
}

// TestIssuedKeysOfTheGateway: two steps, and every host with the secret accepts
// the keys of the others.
func TestIssuedKeysOfTheGateway(t *testing.T) {
	u, db := newUpstream(t), newStore(t)
	secrets := writeFile(t, "secrets", strings.Repeat("s", 40)+"\n")
	args := []string{"--upstream", u.url, "--store", db, "--key-secrets", secrets, "--issued-only"}
	a, b := startGateway(t, args...), startGateway(t, args...)
	issued := sendTo(t, http.MethodPost, a.url+"/.well-known/idempotency/keys", "", "", "")
	want(t, "status of the issue", issued.status, 201)
	var key struct{ Value string }
	noError(t, json.Unmarshal([]byte(issued.body), &key))
	want(t, "first use", post(t, b.url, key.Value, "{}").status, 201)
	want(t, "second use", post(t, a.url, key.Value, "{}").replayed(), true)
	want(t, "a key of one's own", post(t, a.url, "own", "{}").problem(), "key-not-issued")
	want(t, "effects", u.effects.Load(), 1)

	for _, bad := range []string{"", "short\n", strings.Repeat("s", 40) + "\nshort\n"} {
		out := semelWith(nil, "", "gateway", "--upstream", u.url, "--store", "memory:", "--key-secrets", writeFile(t, "bad", bad))
		want(t, "exit code", out.code, exitUsage)
		if strings.Contains(out.stderr, "sss") || strings.Contains(out.stderr, "short") {
			t.Errorf("a secret is in the message: %s", out.stderr)
		}
	}
	for _, args := range [][]string{{"--issued-only"}, {"--no-resources", "--in-flight", "accept"}, {"--wait", "1m", "--in-flight", "wait"}, {"--max-wait", "-1s"}, {"--contract", "x"}} {
		out := semelWith(nil, "", append([]string{"gateway", "--upstream", u.url, "--store", "memory:"}, args...)...)
		want(t, strings.Join(args, " ")+": exit code", out.code, exitUsage)
	}
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	noError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}
