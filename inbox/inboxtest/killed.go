package inboxtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/semelhq/semel/inbox"
)

const deliveries = 400 // different messages in Killed

func number(n int) string { return fmt.Sprintf("m%03d", n) }

// Consume is the main function of the processes that Killed kills. It handles
// random messages, alone and in batches, some of which fail, until in ends. It
// writes a line with the id of each message that needs no redelivery.
func Consume(s inbox.Store, effect func(ctx context.Context, name string) error, in io.Reader, out io.Writer) error {
	b, err := inbox.New(inbox.Config{Store: s, Consumer: consumer, RetrySpan: day, Remember: 50})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	for ctx.Err() == nil {
		messages := make([]inbox.Message, 1+rand.IntN(2)*rand.IntN(16))
		for i := range messages {
			messages[i].ID = number(rand.IntN(deliveries))
		}
		for i, r := range b.ProcessBatch(ctx, messages, func(ctx context.Context, i int) error {
			if err := effect(ctx, messages[i].ID); err != nil {
				return err
			}
			switch rand.IntN(40) {
			case 0:
				return errHandler
			case 1:
				panic("on purpose")
			}
			return nil
		}) {
			if r.Err == nil {
				if _, err := fmt.Fprintln(out, messages[i].ID); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Killed starts processes that handle messages, many of them several times, kills
// the processes at random, and delivers all messages once more. Every message must
// have one effect, and must have had it when it was acknowledged. command makes a
// process that calls Consume with its standard input and output, on the harness's
// store.
func Killed(t *testing.T, h Harness, kills int, command func() *exec.Cmd) {
	type process struct {
		cmd *exec.Cmd
		out *bufio.Scanner
	}
	start := func() process {
		c := command()
		c.Stderr = os.Stderr
		_, in := c.StdinPipe()
		out, err := c.StdoutPipe()
		if err := errors.Join(in, err, c.Start()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill() })
		return process{c, bufio.NewScanner(out)}
	}
	acknowledged := map[string]bool{}
	heard := 0
	hear := func(p process) bool {
		if !p.out.Scan() {
			return false
		}
		heard++
		if line := p.out.Text(); len(line) == len(number(0)) && strings.HasPrefix(line, "m") { // else it was cut off
			acknowledged[line] = true
		}
		return true
	}
	end := func(p process) {
		if err := p.cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		for hear(p) { // what it had said
		}
		_ = p.cmd.Wait() // it was killed
	}
	var all [4]process
	for i := range all {
		all[i] = start()
	}
	for range kills {
		i := rand.IntN(len(all))
		for range 1 + rand.IntN(30) {
			if !hear(all[i]) {
				t.Fatalf("a process ended by itself: %v", all[i].cmd.Wait())
			}
		}
		end(all[i])
		if i%2 == 0 { // before all are killed
			wantOnce(t, h, acknowledged)
		}
		all[i] = start()
	}
	for _, p := range all {
		end(p)
	}
	wantOnce(t, h, acknowledged)
	if heard < kills || len(acknowledged) < deliveries/4 {
		t.Errorf("only %d acknowledgements, of %d messages", heard, len(acknowledged))
	}
	b := &bench{TB: t, Harness: h}
	for n := range deliveries {
		if err := b.deliver(h.Store, []string{number(n)}, nil); err != nil {
			t.Fatal(err)
		}
		acknowledged[number(n)] = true
	}
	wantOnce(t, h, acknowledged)
	t.Logf("%d acknowledgements of %d messages, %d kills", heard, deliveries, kills+len(all))
}

// wantOnce wants one effect of each acknowledged message, and of no message two.
func wantOnce(t *testing.T, h Harness, acknowledged map[string]bool) {
	t.Helper()
	got := h.Effects()
	for id, n := range got {
		if n != 1 {
			t.Errorf("message %s has %d effects", id, n)
		}
	}
	for id := range acknowledged {
		if got[id] != 1 {
			t.Errorf("message %s was acknowledged and has %d effects", id, got[id])
		}
	}
}
