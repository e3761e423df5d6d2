package semel_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
)

// joiningStore's claims live in a transaction of the caller's.
type joiningStore struct{ *memory.Store }

func (s joiningStore) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	c, err := s.Store.Begin(ctx, a)
	if err != nil {
		return nil, err
	}
	return joined{c}, nil
}

type joined struct{ semel.Claim }

func (joined) Joined() bool { return true }

// Otherwise the caller would commit its transaction while the work goes on in
// it.
func TestDetachedWorkInTheCallersTransactionIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := memory.New(memory.Config{})
		if err != nil {
			t.Fatal(err)
		}
		g, err := semel.New(semel.Config{Store: joiningStore{m}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ended := false
		out, err := g.Do(ctx, semel.Submit{
			Identity: semel.Identity{Scope: semel.Scope{Operation: "pay"}, Key: "k"}, Detached: true,
		}, func(context.Context) (semel.Result, error) {
			time.Sleep(time.Minute)
			ended = true
			return semel.Result{}, nil
		})
		if !ended || err != nil || out.Answer != semel.AnswerExecuted {
			t.Errorf("ended %v, answered %v, %v", ended, out.Answer, err)
		}
	})
}
