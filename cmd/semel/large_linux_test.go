package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// memoryPeak is the most memory that a process has had at once, in bytes.
func memoryPeak(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	noError(t, err)
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kib), "kB")), 10, 64)
			noError(t, err)
			return n << 10
		}
	}
	t.Fatal("the system does not tell the peak of a process's memory")
	return 0
}

// stretch is repeated to make large bodies.
var stretch = func() []byte {
	b := make([]byte, 1_000_003)
	for i := range b {
		b[i] = byte(i ^ i>>7 ^ i>>15)
	}
	return b
}()

// repeated is a body of stretches.
type repeated struct{ at, size int64 }

func (r *repeated) Read(p []byte) (int, error) {
	if r.at == r.size {
		return 0, io.EOF
	}
	n := copy(p[:min(int64(len(p)), r.size-r.at)], stretch[r.at%int64(len(stretch)):])
	r.at += int64(n)
	return n, nil
}

// wantRepeated fails the test unless r is a repeated of the size.
func wantRepeated(t *testing.T, what string, r io.Reader, size int64) {
	t.Helper()
	mine, theirs, want := make([]byte, 64<<10), make([]byte, 64<<10), &repeated{size: size}
	for {
		n, err := io.ReadFull(r, theirs)
		m, _ := io.ReadFull(want, mine)
		if !bytes.Equal(theirs[:n], mine[:m]) {
			t.Errorf("%s: another body, or %v, before byte %d", what, err, want.at)
			return
		}
		if err != nil {
			return
		}
	}
}

// A whole gateway stays within 32 MiB above what it takes when idle while a body
// of 100 MB goes each way, and within 64 MiB while ten answers of 20 MB do at the
// same time. Nothing is left in its directory for files, and no file stays open.
func TestLargeBodiesInAProcess(t *testing.T) {
	const up, down, size, clients = 100 << 20, 20 << 20, 100 << 20, 10
	var effects atomic.Int64
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		effects.Add(1)
		answer := int64(2)
		switch r.URL.Path {
		case "/up":
			wantRepeated(t, "upload", r.Body, up)
			answer = size
		case "/down":
			answer = down
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = io.Copy(w, &repeated{size: answer})
	}))
	defer service.Close()
	dir := t.TempDir()
	p := startGateway(t, "--upstream", service.URL, "--store", newStore(t), "--max-request-body", "128MiB", "--spool-dir", dir)
	want(t, "status of the first", post(t, p.url, "first", "{}").status, 200)
	idle := memoryPeak(t, p.cmd.Process.Pid)

	send := func(path, key string, body io.Reader, length, answer int64) {
		r, err := http.NewRequest(http.MethodPost, p.url+path, body)
		noError(t, err)
		r.ContentLength = length
		r.Header.Set("Idempotency-Key", key)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = res.Body.Close() }()
		want(t, "status", res.StatusCode, 200)
		wantRepeated(t, "answer", res.Body, answer)
	}
	send("/up", "up", &repeated{size: up}, up, size)
	alone := memoryPeak(t, p.cmd.Process.Pid)
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() { send("/down", fmt.Sprint("down", i), strings.NewReader("{}"), 2, down) })
	}
	group.Wait()
	want(t, "effects", effects.Load(), clients+2)
	peak := memoryPeak(t, p.cmd.Process.Pid)
	t.Logf("idle %d MiB, at most %d MiB, then %d MiB", idle>>20, alone>>20, peak>>20)
	if alone > idle+32<<20 || peak > idle+64<<20 {
		t.Errorf("the gateway took %d and %d MiB, %d and %d MiB above idle", alone>>20, peak>>20, (alone-idle)>>20, (peak-idle)>>20)
	}

	// The last file is closed when its response has been sent, a moment after the
	// client has it.
	for spooled := 1; spooled > 0; runtime.Gosched() {
		spooled = 0
		open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.cmd.Process.Pid))
		noError(t, err)
		for _, fd := range open {
			if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, dir) {
				spooled++
			}
		}
		if deadline, ok := t.Deadline(); spooled > 0 && ok && time.Until(deadline) < time.Minute {
			t.Fatalf("%d files stay open", spooled)
		}
	}
	p.terminate() // and wait for what is running
	want(t, "exit code", p.exitCode(), 0)
	left, err := os.ReadDir(dir)
	noError(t, err)
	want(t, "files left", len(left), 0)
}
