package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
)

// tamperer is a store whose tables a test can write to by hand.
type tamperer struct {
	store
	url  string
	exec func(statement string)
}

// tamperers returns one of each kind.
func tamperers(t *testing.T) map[string]*tamperer {
	t.Helper()
	all := map[string]*tamperer{}
	for kind, url := range map[string]string{"sqlite": newStore(t), "postgres": testenv.Postgres(t)} {
		s, err := openStore(t.Context(), nil, url, 0, func(int, error) {})
		noError(t, err)
		t.Cleanup(func() { noError(t, s.Close(context.Background())) })
		exec := func(statement string) {
			t.Helper()
			db, err := pgx.Connect(t.Context(), url)
			noError(t, err)
			defer db.Close(context.Background())
			_, err = db.Exec(t.Context(), "SET search_path = semel; "+statement)
			noError(t, err)
		}
		if kind == "sqlite" {
			exec = func(statement string) {
				t.Helper()
				db, err := sql.Open("sqlite", strings.TrimPrefix(url, "sqlite:")+"?_pragma=busy_timeout(60000)")
				noError(t, err)
				defer db.Close()
				_, err = db.Exec(statement)
				noError(t, err)
			}
		}
		all[kind] = &tamperer{s, url, exec}
	}
	return all
}

// execute claims and completes a key, or holds it if cause is not empty.
func (s *tamperer) execute(t *testing.T, key, cause string, retention time.Duration) {
	t.Helper()
	c, err := s.Begin(t.Context(), semel.NewAttempt(semel.Identity{Scope: semel.Scope{Operation: "POST /payments"}, Key: key},
		semel.Fingerprint{Scheme: "test/1"}, time.Hour, retention))
	noError(t, err)
	if cause != "" {
		noError(t, c.Hold(t.Context(), cause))
		return
	}
	_, err = c.Complete(t.Context(), semel.Result{Codec: "test/1", Label: "201", Body: []byte("card 4111")})
	noError(t, err)
}

// TestAuditSealAndVerify: what was done to the tables by hand is named; what the
// store does by itself, as sweeping, is not.
func TestAuditSealAndVerify(t *testing.T) {
	dir := t.TempDir()
	key, public := filepath.Join(dir, "audit.key"), filepath.Join(dir, "audit.pub")
	noError(t, os.WriteFile(public, []byte(ok(t, "audit", "key", "--name", "example.com/audit", key)), 0o600))
	secret, err := os.ReadFile(key)
	noError(t, err)
	if info, err := os.Stat(key); err != nil || info.Mode().Perm()&0o077 != 0 && os.PathSeparator == '/' {
		t.Errorf("others can read the key: %v, %v", info.Mode(), err)
	}
	want(t, "exit code where a key is already", semelWith(nil, "", "audit", "key", key).code, exitFailed)
	if after, _ := os.ReadFile(key); string(after) != string(secret) {
		t.Error("a key was written over")
	}

	for kind, s := range tamperers(t) {
		t.Run(kind, func(t *testing.T) {
			seals, checkpoint := filepath.Join(t.TempDir(), "seals.db"), filepath.Join(t.TempDir(), "checkpoint")
			seal := func() string {
				t.Helper()
				return ok(t, "audit", "seal", "--store", s.url, "--seals", seals, "--key", key, "--behind", "0s")
			}
			verify := func(args ...string) (output, []string) {
				t.Helper()
				out := semelWith(nil, "", append([]string{"audit", "verify", "--store", s.url, "--seals", seals, "--public-key", public, "--json"}, args...)...)
				var doc struct {
					Findings []struct {
						What  string
						Entry *semel.TrailEntry
					}
				}
				noError(t, json.Unmarshal([]byte(out.stdout), &doc))
				var found []string
				for _, f := range doc.Findings {
					what := f.What
					if f.Entry != nil {
						what += " " + f.Entry.Key
					}
					found = append(found, what)
				}
				return out, found
			}
			wantFound := func(what, findings string, args ...string) {
				t.Helper()
				out, found := verify(args...)
				want(t, what, strings.Join(found, ", "), findings)
				code := exitOK
				if findings != "" {
					code = exitViolated
				}
				want(t, "exit code of "+what, out.code, code)
				if strings.Contains(out.stdout+out.stderr, "4111") || strings.Contains(out.stdout+out.stderr, strings.TrimSpace(string(secret))) {
					t.Errorf("a payload or the key is in %s", out.stdout+out.stderr)
				}
			}

			for i := range 5 {
				s.execute(t, fmt.Sprint("brief", i), "", time.Microsecond)
				s.execute(t, fmt.Sprint("kept", i), "", time.Hour)
				s.execute(t, fmt.Sprint("held", i), "the handler answered 502", time.Hour)
			}
			first := seal()
			noError(t, os.WriteFile(checkpoint, []byte(first), 0o600))
			if lines := strings.Split(first, "\n"); lines[0] != "example.com/audit" || lines[1] != "15" {
				t.Errorf("the checkpoint is %s", first)
			}
			wantFound("an untouched trail", "", "--checkpoint", checkpoint)

			// Sweeping moves entries, and replacing and resolving a record adds some.
			removed, err := s.store.(semel.Sweeper).Sweep(t.Context(), 100)
			noError(t, err)
			want(t, "swept", removed, 5)
			s.execute(t, "brief0", "", time.Hour)
			held, err := s.List(t.Context(), semel.Filter{Key: "held4"})
			noError(t, err)
			ok(t, "keys", "resolve", "--store", s.url, held[0].ID, "--as", "no-effect", "--because", "looked")
			wantFound("a swept trail", "", "--checkpoint", checkpoint)
			if seal() == first {
				t.Error("the later entries were not sealed")
			}
			wantFound("a trail that was sealed twice", "", "--checkpoint", checkpoint)

			s.exec("UPDATE trail SET cause = 'nothing happened' WHERE key = 'held1'")
			wantFound("a changed cause", "changed held1", "--checkpoint", checkpoint)
			s.exec("UPDATE trail SET cause = 'the handler answered 502' WHERE key = 'held1'")
			s.exec("UPDATE record SET actor = 'mallory' WHERE key = 'kept1'")
			wantFound("a record with another actor", "changed kept1")
			s.exec("UPDATE record SET actor = '' WHERE key = 'kept1'")
			s.exec("DELETE FROM trail WHERE key = 'held2'")
			wantFound("a removed entry", "removed")
			wantFound("the same, when it may be", "", "--kept", "0s")
			out := semelWith(nil, "", "audit", "verify", "--store", s.url, "--seals", seals, "--public-key", public)
			if want(t, "exit code", out.code, exitViolated); !strings.Contains(out.stdout, "removed") || !strings.Contains(out.stderr, "1 findings") {
				t.Errorf("it says\n%s%s", out.stdout, out.stderr)
			}
		})
	}

	bad := func(what, says string, code int, args ...string) {
		t.Helper()
		out := semelWith(nil, "", append([]string{"audit"}, args...)...)
		want(t, "exit code of "+what, out.code, code)
		if out.stdout != "" || !strings.Contains(out.stderr, says) {
			t.Errorf("%s says %s%s", what, out.stdout, out.stderr)
		}
	}
	store := tamperers(t)["sqlite"].url
	bad("no file", "there is no file of digests", exitFailed, "verify", "--store", store, "--seals", filepath.Join(dir, "none"), "--public-key", public)
	bad("no key", "--key", exitUsage, "seal", "--store", store, "--seals", filepath.Join(dir, "none"), "--key", public)
	bad("a bad name", "--name", exitUsage, "key", "--name", "a b", filepath.Join(dir, "other"))
	bad("a key instead of the public one", "--public-key", exitUsage, "verify", "--store", store, "--seals", "x", "--public-key", key)
	bad("a bad checkpoint", "--checkpoint", exitUsage, "verify", "--store", store, "--seals", "x", "--public-key", public, "--checkpoint", public)
	out := semelWith(nil, "", "audit", "seal", "--store", store, "--seals", filepath.Join(dir, "new"), "--key", key)
	want(t, "what is said of an empty trail", out.stdout+out.stderr, "There is no entry yet that is older than 1m0s.\n")
}

// TestSealerKilled: a sealer is killed again and again while the trail grows.
// What it printed is in the file, and everything is as it was sealed.
func TestSealerKilled(t *testing.T) {
	dir := t.TempDir()
	key, public, seals := filepath.Join(dir, "key"), filepath.Join(dir, "pub"), filepath.Join(dir, "seals")
	noError(t, os.WriteFile(public, []byte(ok(t, "audit", "key", key)), 0o600))
	s := tamperers(t)["sqlite"]
	var last string
	for round := range 8 {
		cmd := exec.Command(binary(t), "audit", "seal", "--store", s.url, "--seals", seals, "--key", key, "--behind", "0s", "--every", "1ms", "--json")
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "SYSTEMROOT=" + os.Getenv("SYSTEMROOT")}
		stdout, err := cmd.StdoutPipe()
		noError(t, err)
		noError(t, cmd.Start())
		documents := json.NewDecoder(stdout)
		for i := range 3 {
			for range 5 {
				s.execute(t, fmt.Sprint(round, "-", i, "-", time.Now().UnixNano()), "", time.Hour)
			}
			var doc struct{ Checkpoint string }
			noError(t, documents.Decode(&doc))
			last = doc.Checkpoint
		}
		noError(t, cmd.Process.Kill())
		_ = cmd.Wait()
	}
	checkpoint := filepath.Join(dir, "checkpoint")
	noError(t, os.WriteFile(checkpoint, []byte(last), 0o600))
	ok(t, "audit", "verify", "--store", s.url, "--seals", seals, "--public-key", public, "--checkpoint", checkpoint)
}
