package semel_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
)

type transactionKey struct{}

// deafStore grants, but nobody hears of its first three grants. It notes what
// the calls that come once Do has answered carry.
type deafStore struct {
	*memory.Store
	begun    int
	answered bool
	carried  []any
}

func (s *deafStore) Begin(ctx context.Context, a semel.Attempt) (semel.Claim, error) {
	if s.answered {
		s.carried = append(s.carried, ctx.Value(transactionKey{}))
	}
	c, err := s.Store.Begin(ctx, a)
	if s.begun == 2 {
		s.answered = true // Do gives up with this call
	}
	if s.begun++; s.begun <= 3 {
		return nil, errors.New("the answer was lost")
	}
	return c, err
}

// Whoever began a transaction for a store to join has it back with the answer. A
// guard that went on to look for a lost grant in it would use it at the same time
// as its owner, who may be committing.
func TestLostGrantIsNotPursuedInTheCallersTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := memory.New(memory.Config{})
		if err != nil {
			t.Fatal(err)
		}
		s := &deafStore{Store: m}
		g, err := semel.New(semel.Config{Store: s})
		if err != nil {
			t.Fatal(err)
		}
		id := semel.Identity{Scope: semel.Scope{Operation: "pay"}, Key: "k"}
		ctx := context.WithValue(t.Context(), transactionKey{}, "the caller's")
		out, err := g.Do(ctx, semel.Submit{Identity: id}, func(context.Context) (semel.Result, error) {
			t.Error("executed without a claim")
			return semel.Result{}, nil
		})
		if out.Answer != semel.AnswerUnavailable {
			t.Fatalf("answered %v, %v", out.Answer, err)
		}
		synctest.Wait()
		if len(s.carried) == 0 {
			t.Error("the lost grant is not pursued")
		}
		for _, v := range s.carried {
			if v != nil {
				t.Errorf("after the answer the store is called with %v transaction", v)
			}
		}
	})
}
