//go:build unix

package jobstest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/semelhq/semel/jobs"
)

// Paused stops a process that calls Work, on the harness's store, with its standard
// input and output, in the middle of a job: before its transaction, and in it. Another
// worker takes the job over. The paused process wakes before that worker has
// committed, and must not be able to commit.
func Paused(t *testing.T, h Harness, command func() *exec.Cmd) {
	for _, at := range []string{"prepare", "inside"} {
		paused(&bench{TB: t, Harness: h}, command(), at)
	}
}

func paused(b *bench, c *exec.Cmd, at string) {
	c.Stderr = os.Stderr
	in, e1 := c.StdinPipe()
	out, e2 := c.StdoutPipe()
	if err := errors.Join(e1, e2, c.Start()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Process.Kill() })
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	until := func(want string, others ...string) {
		b.Helper()
		for {
			switch got := hear(b, want, lines); {
			case got == want:
				return
			case !slices.Contains(others, got):
				b.Fatalf("the process says %q; want %q", got, want)
			}
		}
	}
	proceed := func() {
		b.Helper()
		if _, err := fmt.Fprintln(in); err != nil {
			b.Fatal(err)
		}
	}
	signal := func(s os.Signal) {
		b.Helper()
		if err := c.Process.Signal(s); err != nil {
			b.Fatal(err)
		}
	}
	end := func() { // with all that it was at
		b.Helper()
		if err := in.Close(); err != nil {
			b.Error(err)
		}
		for range lines {
		}
		if err := c.Wait(); err != nil {
			b.Error(err)
		}
	}
	until("ready")
	b.enqueue(jobs.Job{ID: at})
	until("prepare")
	if at == "inside" {
		proceed()
		until("inside")
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
			b.Error("the job was taken over in the middle of a transaction that keeps others from writing")
		case <-time.After(3 * processLease):
		}
		proceed()
		signal(syscall.SIGCONT)
		until("done", "lost") // which the worker may think when it wakes, and settles all the same
		second.stop()
		end()
		b.wantEffects(at, 0)
		b.wantEffects(at+" by the process", 1)
		return
	}
	for tries := 0; b.Exclusive && tries < 10; tries++ {
		select {
		case <-taken:
			tries = 10
		case <-time.After(3 * processLease):
			// It was stopped while it renewed its claim, which keeps others from writing.
			signal(syscall.SIGCONT)
			signal(syscall.SIGSTOP)
		}
	}
	hear(b, "the second worker", taken)
	proceed()
	if at == "prepare" {
		proceed() // in its transaction too, if it comes so far
	}
	signal(syscall.SIGCONT)
	until("lost", "inside")
	end()
	b.wantEffects(at, 0)
	b.wantEffects(at+" by the process", 0)
	close(finish)
	hear(b, "the job", second.delivered)
	second.stop()
	b.wantEffects(at, 1)
	b.wantEffects(at+" by the process", 0)
}
