package semel_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/memory"
)

// A payment is charged once, however often the request for it arrives.
func Example() {
	ctx := context.Background()
	store, _ := memory.New(memory.Config{})
	guard, _ := semel.New(semel.Config{Store: store})

	type receipt struct{ Payment, Amount int }
	charges := 0
	charge := func(amount int) func(context.Context) (receipt, error) {
		return func(context.Context) (receipt, error) {
			charges++
			return receipt{Payment: charges, Amount: amount}, nil
		}
	}
	submit := func(amount int) semel.Submit {
		return semel.Submit{
			Identity: semel.Identity{
				Scope: semel.Scope{Tenant: "acme", Actor: "alice", Operation: "payments.create"},
				Key:   "8e03978e-40d5-43e8-bc93-6894a57f9324",
			},
			Fingerprint: semel.FingerprintOf(fmt.Append(nil, amount)),
		}
	}

	for range 2 {
		r, answer, err := semel.Call(ctx, guard, submit(100), charge(100))
		fmt.Println(answer, r, err)
	}
	_, answer, err := semel.Call(ctx, guard, submit(999), charge(999))
	fmt.Println(answer, errors.Is(err, semel.ErrNoEffect))
	fmt.Println("charges:", charges)
	// Output:
	// executed {1 100} <nil>
	// replayed {1 100} <nil>
	// mismatch true
	// charges: 1
}

// What a handler says decides whether the key is free again.
func ExampleNoEffect() {
	ctx := context.Background()
	store, _ := memory.New(memory.Config{})
	guard, _ := semel.New(semel.Config{Store: store})
	s := semel.Submit{Identity: semel.Identity{Scope: semel.Scope{Operation: "mail.send"}, Key: "welcome-42-b6589fc6"}}

	busy := true
	send := func(context.Context) (semel.Result, error) {
		if busy { // refused before anything was sent
			return semel.Result{}, semel.NoEffect(errors.New("mail server busy"))
		}
		return semel.Result{Label: "sent"}, nil
	}
	out, err := guard.Do(ctx, s, send)
	fmt.Println(out.Answer, errors.Is(err, semel.ErrNoEffect))
	busy = false
	out, err = guard.Do(ctx, s, send)
	fmt.Println(out.Answer, err)
	// Output:
	// released true
	// executed <nil>
}

// An outcome that nobody knows blocks the key until someone finds out.
func ExampleGuard_Resolve() {
	ctx := context.Background()
	store, _ := memory.New(memory.Config{})
	guard, _ := semel.New(semel.Config{Store: store})
	s := semel.Submit{Identity: semel.Identity{Scope: semel.Scope{Operation: "mail.send"}, Key: "welcome-42-b6589fc6"}}

	send := func(context.Context) (semel.Result, error) {
		return semel.Result{}, semel.Indeterminate("connection lost after DATA", nil)
	}
	out, err := guard.Do(ctx, s, send)
	fmt.Println(out.Answer, errors.Is(err, semel.ErrMaybeEffect))

	// The mail server's log shows that the mail went out.
	_, err = guard.Resolve(ctx, semel.Resolution{
		Identity: s.Identity, Fence: out.Record.Fence, Decision: semel.DecideResult,
		Result: semel.Result{Label: "sent"}, Cause: "found in the mail server's log",
	})
	fmt.Println(err)
	out, err = guard.Do(ctx, s, send)
	fmt.Println(out.Answer, out.Result.Label, err)
	// Output:
	// unknown true
	// <nil>
	// replayed sent <nil>
}

// Results are encrypted in the store. The keys come from where the service has its
// secrets, and can be replaced while it runs.
func ExampleCipher() {
	ctx := context.Background()
	secrets := "2026b: bmV3LW5ldy1uZXctbmV3LW5ldy1uZXctbmV3LW5ldy0=\n" +
		"2026a: b2xkLW9sZC1vbGQtb2xkLW9sZC1vbGQtb2xkLW9sZC0=\n"
	keys, _ := semel.ParseEncryptionKeys([]byte(secrets))
	cipher, _ := semel.NewCipher(keys...) // the first encrypts, both decrypt
	store, _ := memory.New(memory.Config{})
	guard, _ := semel.New(semel.Config{Store: store, Cipher: cipher})
	s := semel.Submit{Identity: semel.Identity{Scope: semel.Scope{Operation: "cards.issue"}, Key: "card-42-b6589fc6"}}

	issue := func(context.Context) (string, error) { return "4111 1111 1111 1111", nil }
	for range 2 {
		card, answer, err := semel.Call(ctx, guard, s, issue)
		fmt.Println(card, answer, err)
	}
	stored, _ := store.Find(ctx, s.Identity)
	fmt.Println(stored.Result.Codec, stored.Result.Label)

	_ = cipher.Rotate(keys[1]) // without the key that it needs, it is not executed again either
	_, answer, err := semel.Call(ctx, guard, s, issue)
	fmt.Println(answer, errors.Is(err, semel.ErrUnreadable))
	// Output:
	// 4111 1111 1111 1111 executed <nil>
	// 4111 1111 1111 1111 replayed <nil>
	// encrypted/1:2026b ok
	// unavailable true
}

func ExampleCompositeKey() {
	confirm := semel.CompositeKey{Name: "orders.confirm", Version: 1, Fields: []string{"order", "action"}}
	key, err := confirm.Key(map[string]string{"order": "42", "action": "confirm"})
	fmt.Println(key, err)
	// Output: nk_5pcgcgqk7wnunfttwhkguczy3ij7dyz4ufwitposk364oorg6g4q <nil>
}
