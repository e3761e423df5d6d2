package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// The payments example keeps its rows and semel's records in one database: its
// table of orders is the ledger, and there is nothing behind it to be cut off
// from. A key is the name of the ordered item. Its responses are small; those of
// other forms come from a service of our own, in the same database.

func (r *run) isOrder(key string) bool {
	return r.config.Payments != "" && formOf(key) == formSmall
}

func orderRequest(key string) []byte {
	body := `{"item":"` + key + `","price":1}`
	return fmt.Appendf(nil, "POST /orders HTTP/1.1\r\nHost: payments\r\nX-User: torture\r\n"+
		"Idempotency-Key: %q\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", key, len(body), body)
}

// orderOf returns the effect that a 201 to an order names.
func orderOf(body []byte, key string) (effect string, ok bool, err error) {
	var o struct {
		ID   int64  `json:"id"`
		Item string `json:"item"`
	}
	if json.Unmarshal(body, &o) != nil {
		return "", false, errTorn
	}
	return strconv.FormatInt(o.ID, 10), o.ID > 0 && o.Item == key, nil
}

// orderRefused reports whether the response means that there was no effect: the
// example sends a 5xx only after its transaction was rolled back.
func orderRefused(status int, problem string) bool {
	return status == http.StatusInternalServerError && problem == "" ||
		status == http.StatusServiceUnavailable && problem == "rolled-back"
}

// readOrders reads the ledger. Its rows do not have times.
func readOrders(database string) ([]Effect, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, "SELECT id::text, item, '' FROM orders UNION ALL SELECT id, key, digest FROM torture_effects")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Effect, err error) {
		err = row.Scan(&e.ID, &e.Key, &e.Digest)
		return e, err
	})
}
