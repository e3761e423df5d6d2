//go:build unix

package jobstest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/semelhq/semel/jobs"
)

// Paused stops a process that calls Work, on the harness's store, with its standard
// input and output, in the middle of a job: before its transaction, and in it. Another
// worker takes the job over. The process, which wakes before that one has committed,
// cannot commit.
func Paused(t *testing.T, h Harness, command func() *exec.Cmd) {
	b := &bench{TB: t, Harness: h}
	c := command()
	c.Stderr = os.Stderr
	in, e1 := c.StdinPipe()
	out, e2 := c.StdoutPipe()
	if err := errors.Join(e1, e2, c.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill() })
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	want := func(line string) {
		t.Helper()
		if got := hear(b, line, lines); got != line {
			t.Fatalf("the process says %q; want %q", got, line)
		}
	}
	proceed := func() {
		t.Helper()
		if _, err := fmt.Fprintln(in); err != nil {
			t.Fatal(err)
		}
	}
	signal := func(s os.Signal) {
		t.Helper()
		if err := c.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	want("ready")
	for _, at := range []string{"prepare", "inside"} {
		b.enqueue(jobs.Job{ID: at})
		want("prepare")
		if at == "inside" {
			proceed()
			want("inside")
		}
		signal(syscall.SIGSTOP)
		taken, finish := make(chan struct{}), make(chan struct{})
		second := b.worker(nil)
		second.config.Relay.StoreTimeout = patience
		second.config.Handlers["work"] = jobs.Handler{
			Prepare: func(context.Context, jobs.Job) (any, error) {
				close(taken)
				<-finish
				return nil, nil
			},
			Handle: func(ctx context.Context, j jobs.Job) error { return b.Effect(ctx, j.ID) },
		}
		second.start()
		if b.Exclusive && at == "inside" {
			// Nobody gets past the transaction, so nobody takes the job over.
			select {
			case <-taken:
				t.Error("the job was taken over in the middle of a transaction that keeps others from writing")
			case <-time.After(3 * processLease):
			}
			proceed()
			signal(syscall.SIGCONT)
			for line := range lines {
				if line == "done" {
					break
				}
				if line != "lost" { // which the worker thinks when it wakes, and settles all the same
					t.Fatalf("the process says %q", line)
				}
			}
			second.stop()
			b.wantEffects(at, 0)
			b.wantEffects(at+" by the process", 1)
			continue
		}
		hear(b, "the second worker", taken)
		proceed()
		if at == "prepare" {
			proceed() // in its transaction too, if it comes so far
		}
		signal(syscall.SIGCONT)
		for line := range lines {
			if line == "lost" {
				break
			}
			if line != "inside" {
				t.Fatalf("the process says %q", line)
			}
		}
		b.wantEffects(at, 0)
		b.wantEffects(at+" by the process", 0)
		close(finish)
		hear(b, "the job", second.delivered)
		second.stop()
		b.wantEffects(at, 1)
		b.wantEffects(at+" by the process", 0)
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
}
