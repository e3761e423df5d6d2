package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
)

// TestBackup: while a gateway writes, a backup has all that was acknowledged before
// it began, as a store that another gateway replays from.
func TestBackup(t *testing.T) {
	u, db := newUpstream(t), newStore(t)
	go func() {
		for range u.entered { // nobody looks
		}
	}()
	g := startGateway(t, "--upstream", u.url, "--store", db)
	var acknowledged atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	many := make(chan struct{}) // are acknowledged
	go func() {
		defer close(ended)
		for n := 0; ctx.Err() == nil; n++ {
			a, err := try(g.url, fmt.Sprint("k", n), "{}")
			if err != nil || a.status != 201 {
				t.Error(a, err)
				return
			}
			if acknowledged.Add(1) == 50 {
				close(many)
			}
		}
	}()
	select {
	case <-many:
	case <-ended:
		t.FailNow()
	}
	dir := t.TempDir()
	for i := range 3 {
		before := acknowledged.Load()
		to := filepath.Join(dir, fmt.Sprint("copy", i, ".db"))
		var done backupJSON
		noError(t, json.Unmarshal([]byte(ok(t, "backup", "--store", db, to, "--json")), &done))
		info, err := os.Stat(to)
		noError(t, err)
		want(t, "bytes", done.Bytes, info.Size())
		if runtime.GOOS != "windows" {
			want(t, "mode", info.Mode().Perm(), 0o600)
		}
		var found listed
		noError(t, json.Unmarshal([]byte(ok(t, "keys", "list", "--store", "sqlite:"+to, "--state", "completed", "--all", "--json")), &found))
		if int64(len(found.Records)) < before {
			t.Errorf("a backup has %d records; %d were acknowledged before it", len(found.Records), before)
		}
	}
	stop()
	<-ended
	effects := u.effects.Load()
	restored := startGateway(t, "--upstream", u.url, "--store", "sqlite:"+filepath.Join(dir, "copy0.db"))
	a := post(t, restored.url, "k0", "{}")
	want(t, "status from the backup", a.status, 201)
	want(t, "replayed", a.header.Get("Idempotency-Replayed"), "true")
	want(t, "effects of that", u.effects.Load(), effects)

	// What is there is not written over, and what goes wrong leaves nothing.
	taken := filepath.Join(dir, "taken")
	noError(t, os.WriteFile(taken, []byte("mine"), 0o600))
	for _, tt := range []struct {
		store, to, want string
		code            int
	}{
		{db, taken, "file already exists", exitFailed},
		{db, filepath.Join(dir, "nowhere", "x"), "no such file", exitFailed},
		{"sqlite:" + taken, filepath.Join(dir, "x"), "not a store", exitFailed},
		{"sqlite:" + filepath.Join(dir, "none"), filepath.Join(dir, "x"), "there is no store", exitFailed},
	} {
		out := semelWith(nil, "", "backup", "--store", tt.store, tt.to)
		want(t, "exit code of "+tt.want, out.code, tt.code)
		if !strings.Contains(out.stderr, tt.want) && runtime.GOOS != "windows" {
			t.Errorf("it says %s; want %s", out.stderr, tt.want)
		}
	}
	text, err := os.ReadFile(taken)
	noError(t, err)
	want(t, "what was there", string(text), "mine")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := backup(canceled, strings.TrimPrefix(db, "sqlite:"), filepath.Join(dir, "x")); err == nil {
		t.Error("an interrupted backup succeeded")
	}
	left, err := filepath.Glob(filepath.Join(dir, "*partial*"))
	noError(t, err)
	if _, err := os.Stat(filepath.Join(dir, "x")); err == nil || len(left) > 0 {
		t.Errorf("there is %v, or a backup that was not made", left)
	}
}

// TestDamagedBackup: a copy that is not in order is no backup.
func TestDamagedBackup(t *testing.T) {
	r := newRecords(t)
	from := strings.TrimPrefix(r.url, "sqlite:")
	copied := filepath.Join(t.TempDir(), "copy.db")
	noError(t, vacuumInto(t.Context(), from, copied))
	noError(t, checkBackup(t.Context(), copied))
	content, err := os.ReadFile(copied)
	noError(t, err)
	const page = 4096
	for at := 0; at < len(content); at += page { // also those that nobody looks at to open it
		broken := append([]byte(nil), content...)
		clear(broken[at : at+page])
		noError(t, os.WriteFile(copied, broken, 0o600))
		if err := checkBackup(t.Context(), copied); err == nil {
			t.Errorf("a file without its page %d is in order", at/page)
		}
	}
	noError(t, os.Truncate(copied, int64(len(content))/2))
	if err := checkBackup(t.Context(), copied); err == nil {
		t.Error("half a file is in order")
	}
}
