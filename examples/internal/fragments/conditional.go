//lint:file-ignore U1000,SA4006 the documents leave out what becomes of errors and results

package fragments

import (
	"context"
	"database/sql"
	"net/http"
	"time"

	"github.com/semelhq/semel/conditional"
	"github.com/semelhq/semel/store/postgres"
)

func change(mux *http.ServeMux, keys func(http.Handler) http.Handler, db *sql.DB) {
	patchOrder := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, id, total := db, r.PathValue("id"), r.FormValue("total")
		result, err := conditional.Apply(r.Context(), conditional.Change{
			Current: func(ctx context.Context) (s conditional.State, err error) { // and what the patch is for
				err = tx.QueryRowContext(ctx, "SELECT version, gone FROM orders WHERE id = ?", id).Scan(&s.Version, &s.Gone)
				return s, err // the zero State where there is no row
			},
			Write: func(ctx context.Context, found, next int64) (int64, error) {
				return conditional.Rows(tx.ExecContext(ctx, "UPDATE orders SET version = ?, total = ? WHERE id = ? AND version = ?", next, total, id, found))
			},
		})
		if err != nil && !conditional.Refuse(w, r, err) { // not one of conditional's: the database's
			http.Error(w, "failed", http.StatusInternalServerError)
		}
		if err != nil {
			return
		}
		w.Header().Set("ETag", conditional.VersionTag(result.Version).String())
	})
	mux.Handle("PATCH /orders/{id}", keys(conditional.New(conditional.Config{})(patchOrder))) // keys: semelhttp's middleware, outside
}

func transitions(r *http.Request, subject conditional.Subject) (conditional.Moved, error) {
	orders, err := conditional.NewTable(
		conditional.Transition{Event: "approve", From: []string{"draft"}, To: "approved"},
		conditional.Transition{Event: "cancel", From: []string{"draft", "approved"}, To: "cancelled"},
	)
	moved, err := orders.Apply(r.Context(), "approve", subject) // UPDATE ... SET state, event, version WHERE id AND state AND version
	return moved, err
}

func lock(ctx context.Context, id int) (int, error) {
	var balance int
	err := postgres.LockRow(ctx, 2*time.Second, []any{&balance}, "SELECT balance FROM account WHERE id = $1 FOR UPDATE", id)
	return balance, err
}
