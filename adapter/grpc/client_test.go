package semelgrpc_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/semelhq/semel"
	semelgrpc "github.com/semelhq/semel/adapter/grpc"
	"github.com/semelhq/semel/semelclient"
	"github.com/semelhq/semel/store/sqlite"
)

// TestClientKeepsKey: gRPC's own retries of one call carry one key; two calls
// carry two.
func TestClientKeepsKey(t *testing.T) {
	var keys []string
	r := newRig(t, paid, options{
		dial: []grpc.DialOption{
			grpc.WithUnaryInterceptor(semelgrpc.UnaryClient),
			grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 3,
				"initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`),
		},
		front: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			keys = append(keys, metadata.ValueFromIncomingContext(ctx, semelgrpc.MetadataKey)...)
			if len(keys)%2 == 1 {
				return nil, status.Error(codes.Unavailable, "come again")
			}
			return next(ctx, req)
		}},
	})
	for range 2 {
		if a := r.call(as(t.Context(), "ann"), pay, ten); a.err != nil || a.replayed() {
			t.Errorf("the answer is %+v", a)
		}
	}
	r.wantEffects(2)
	if len(keys) != 4 || keys[0] != keys[1] || keys[2] != keys[3] || keys[0] == keys[2] {
		t.Errorf("the keys on the wire are %q", keys)
	}
	r.call(semelclient.WithKey(as(t.Context(), "ann"), `my "own" key`), pay, ten)
	if want := `"my \"own\" key"`; keys[4] != want || keys[5] != want {
		t.Errorf("the keys on the wire are %q, want %s", keys[4:], want)
	}
	if a := r.call(semelclient.WithKey(as(t.Context(), "ann"), "ä"), pay, ten); status.Code(a.err) != codes.Internal || !errors.Is(a.err, semel.ErrNoEffect) || len(keys) != 6 {
		t.Errorf("a key that cannot be sent: %v", a.err)
	}
}

// TestFreshKeyInsideAnExecution: an operation that is executed again makes its
// calls under the same keys, and one that is not named is not made.
func TestFreshKeyInsideAnExecution(t *testing.T) {
	var keys []string
	r := newRig(t, paid, options{
		dial: []grpc.DialOption{grpc.WithUnaryInterceptor(semelgrpc.UnaryClient)},
		front: []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			keys = append(keys, first(metadata.ValueFromIncomingContext(ctx, semelgrpc.MetadataKey)))
			return next(ctx, req)
		}},
	})
	guard, err := r.guard.With(semel.Policy{OnCrash: semel.CrashRetry})
	if err != nil {
		t.Fatal(err)
	}
	submit := semel.Submit{Identity: semel.Identity{Scope: semel.Scope{Operation: "orders.create"}, Key: "k"}}
	for range 2 {
		_, err := guard.Do(semelclient.WithKey(t.Context(), "outer"), submit, func(ctx context.Context) (semel.Result, error) {
			// The key of the whole is not that of its parts.
			a := r.call(as(ctx, "ann"), pay, ten)
			if !errors.Is(a.err, semelclient.ErrNoStep) || !errors.Is(a.err, semel.ErrNoEffect) || status.Code(a.err) != codes.Internal {
				t.Errorf("a call without a step: %v", a.err)
			}
			r.call(as(ctx, "ann"), get, ten)
			for _, step := range []string{"charge", "mail"} {
				step, err := semelclient.WithStep(as(ctx, "ann"), step)
				if err != nil {
					return semel.Result{}, err
				}
				for range 2 {
					if a := r.call(step, pay, ten); a.err != nil {
						t.Error(a.err)
					}
				}
			}
			r.call(as(ctx, "ann", "mine"), pay, ten)
			return semel.Result{}, errors.New("cannot tell")
		})
		if !errors.Is(err, semel.ErrUnknown) {
			t.Fatal(err)
		}
	}
	charge, err1 := submit.Identity.ChildKey("charge")
	mail, err2 := submit.Identity.ChildKey("mail")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	charge, mail = strconv.Quote(charge), strconv.Quote(mail)
	want := []string{"", charge, charge, mail, mail, "mine"}
	if !slices.Equal(keys, slices.Concat(want, want)) {
		t.Errorf("the keys on the wire are %q, want %q twice", keys, want)
	}
	r.wantEffects(5) // charge, mail and mine once, a read in each execution
}

// TestHalfAnEffectCommitted: over a store whose claims are transactions, a
// handler that fails after it has changed something has changed nothing.
func TestHalfAnEffectCommitted(t *testing.T) {
	detailed, err := status.New(codes.NotFound, "no such account").WithDetails(protoadapt.MessageV1Of(wrapperspb.String(strings.Repeat("x", 2000))))
	if err != nil {
		t.Fatal(err)
	}
	keep := semelgrpc.Config{Release: func(codes.Code) bool { return false }}
	for _, tt := range []struct {
		name   string
		err    error
		config semelgrpc.Config
		// rows is how many payments two calls leave, effects how often they executed.
		rows, effects int64
		second        string // message
	}{
		{"OK", nil, semelgrpc.Config{}, 1, 1, ""},
		{"NOT_FOUND", status.Error(codes.NotFound, "none"), semelgrpc.Config{}, 0, 1, "none"},
		{"a tombstone of NOT_FOUND", detailed.Err(), semelgrpc.Config{MaxResult: 1000}, 0, 1, "not retained"},
		{"INTERNAL", status.Error(codes.Internal, "broke"), semelgrpc.Config{}, 0, 2, "broke"},
		{"INTERNAL, recorded", status.Error(codes.Internal, "broke"), keep, 0, 1, "broke"},
		{"UNAVAILABLE", status.Error(codes.Unavailable, "upstream"), semelgrpc.Config{}, 0, 2, "rolled back"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "payments.db")
			store, err := sqlite.Open(t.Context(), sqlite.Config{Path: path, Mode: sqlite.ModeTransactional})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := store.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			if _, err := db.ExecContext(t.Context(), "CREATE TABLE payment (id INTEGER)"); err != nil {
				t.Fatal(err)
			}
			r := newRig(t, func(ctx context.Context, _ *structpb.Struct) (*wrapperspb.StringValue, error) {
				tx, ok := sqlite.Tx(ctx)
				if !ok {
					return nil, errors.New("no transaction")
				}
				if _, err := tx.ExecContext(ctx, "INSERT INTO payment VALUES (1)"); err != nil {
					return nil, err
				}
				return wrapperspb.String("paid"), tt.err
			}, options{store: store, config: tt.config})
			r.call(as(t.Context(), "ann", "k"), pay, ten)
			a := r.call(as(t.Context(), "ann", "k"), pay, ten)
			if !strings.Contains(status.Convert(a.err).Message(), tt.second) {
				t.Errorf("the second call is told %v, want %q", a.err, tt.second)
			}
			if a.replayed() != (tt.effects == 1 && tt.second != "not retained") {
				t.Errorf("the second is marked as a replay: %v", a.replayed())
			}
			var rows int64
			if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM payment").Scan(&rows); err != nil {
				t.Fatal(err)
			}
			if rows != tt.rows {
				t.Errorf("%d payments, want %d", rows, tt.rows)
			}
			r.wantEffects(tt.effects)
		})
	}
}
