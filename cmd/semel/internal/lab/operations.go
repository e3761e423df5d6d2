package lab

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/sqlite"
)

// Tables of the payments app. They are in the file in which semel keeps its own,
// so that one transaction can have both.
const tables = `
CREATE TABLE IF NOT EXISTS effects ( -- one row for each time something was done
  id        INTEGER PRIMARY KEY,
  operation TEXT NOT NULL,
  tenant    TEXT NOT NULL,
  actor     TEXT NOT NULL,
  reference TEXT NOT NULL, -- the caller's own name for what is wanted
  detail    TEXT NOT NULL, -- JSON
  at        INTEGER NOT NULL, -- Unix milliseconds
  only_one  TEXT UNIQUE -- tenant, actor, operation and reference where the switch "unique" is on, else NULL
) STRICT;
CREATE INDEX IF NOT EXISTS effects_by_reference ON effects (operation, tenant, reference);
CREATE TABLE IF NOT EXISTS accounts (
  tenant  TEXT NOT NULL,
  owner   TEXT NOT NULL,
  balance INTEGER NOT NULL, -- in cents
  PRIMARY KEY (tenant, owner)
) STRICT;
CREATE TABLE IF NOT EXISTS documents ( -- what is approved or confirmed
  tenant    TEXT NOT NULL,
  operation TEXT NOT NULL,
  reference TEXT NOT NULL,
  state     TEXT NOT NULL,
  PRIMARY KEY (tenant, operation, reference)
) STRICT;
CREATE TABLE IF NOT EXISTS used_keys ( -- of homemade.go
  name        TEXT PRIMARY KEY,
  fingerprint TEXT NOT NULL,
  status      INTEGER, -- NULL while the first request is being worked on
  answer      BLOB
) STRICT;`

// startBalance is what every account begins with, in cents.
const startBalance = 100_000

// Operation is something that the app does for its callers.
type Operation struct {
	Name    string // in paths, keys and tables
	Title   string
	Example string // a body, in which REF stands for the reference
	Mail    string // what the caller is told by mail
	prefix  string // of ids
	// transition says that it takes a document from one state to the next.
	transition bool

	// change makes the change in the transaction of the effect and returns what is
	// to be seen of it.
	change func(ctx context.Context, tx *sql.Tx, c call) (map[string]any, error)
}

// call is a request that was understood.
type call struct {
	Reference string `json:"reference"`
	Amount    int64  `json:"amount"`
	Item      string `json:"item"`
	Quantity  int64  `json:"quantity"`
	User      string `json:"user"`
	Role      string `json:"role"`

	who       caller
	operation *Operation
	switches  Switches
}

// caller is who sends a request.
type caller struct{ Tenant, Actor string }

// Operations are all of them.
var Operations = []*Operation{
	{Name: "charges", Title: "Charge a card", Example: `{"reference": "REF", "amount": 500}`, Mail: "We have charged your card.", prefix: "chg", change: charge},
	{Name: "orders", Title: "Create an order", Example: `{"reference": "REF", "item": "book", "quantity": 1}`, Mail: "We have your order.", prefix: "ord", change: order},
	{Name: "roles", Title: "Grant a role", Example: `{"reference": "REF", "user": "bob", "role": "admin"}`, Mail: "A role was granted.", prefix: "rol", change: grant},
	{Name: "approvals", Title: "Approve a document", Example: `{"reference": "REF"}`, Mail: "Your document was approved.", prefix: "apr", transition: true, change: transition("draft", "approved")},
	{Name: "confirmations", Title: "Confirm a payment", Example: `{"reference": "REF"}`, Mail: "Your payment has arrived; we are sending the goods.", prefix: "cnf", transition: true, change: transition("pending", "confirmed")},
}

func charge(ctx context.Context, tx *sql.Tx, c call) (map[string]any, error) {
	if c.Amount <= 0 {
		return nil, invalid("amount must be more than 0, in cents")
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO accounts VALUES (?, ?, ?) ON CONFLICT DO NOTHING", c.who.Tenant, c.who.Actor, startBalance); err != nil {
		return nil, err
	}
	var balance int64
	err := tx.QueryRowContext(ctx, "UPDATE accounts SET balance = balance - ? WHERE tenant = ? AND owner = ? RETURNING balance",
		c.Amount, c.who.Tenant, c.who.Actor).Scan(&balance)
	return map[string]any{"amount": c.Amount, "balance": balance}, err
}

func order(_ context.Context, _ *sql.Tx, c call) (map[string]any, error) {
	if c.Item == "" || c.Quantity <= 0 {
		return nil, invalid("item must be named, and quantity more than 0")
	}
	return map[string]any{"item": c.Item, "quantity": c.Quantity}, nil
}

func grant(_ context.Context, _ *sql.Tx, c call) (map[string]any, error) {
	if c.User == "" || c.Role == "" {
		return nil, invalid("user and role must be named")
	}
	return map[string]any{"user": c.User, "role": c.Role}, nil
}

// transition returns what takes a document from one state to the next. Every
// reference names a document that is in the first one, so that there are always
// enough of them.
func transition(from, to string) func(context.Context, *sql.Tx, call) (map[string]any, error) {
	return func(ctx context.Context, tx *sql.Tx, c call) (map[string]any, error) {
		if _, err := tx.ExecContext(ctx, "INSERT INTO documents VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
			c.who.Tenant, c.operation.Name, c.Reference, from); err != nil {
			return nil, err
		}
		query, args := "UPDATE documents SET state = ? WHERE tenant = ? AND operation = ? AND reference = ?", []any{to, c.who.Tenant, c.operation.Name, c.Reference}
		if c.switches.Unique {
			// The transition and the question whether it is allowed are one statement.
			// Of all that ask at the same time, one changes a row.
			query, args = query+" AND state = ?", append(args, from)
		}
		// DEFECT(transition), without the condition: whatever the state was, it is set again, and a
		// decision is recorded again. Lesson: a transition says where it comes from.
		done, err := tx.ExecContext(ctx, query, args...)
		if err != nil {
			return nil, err
		}
		if n, err := done.RowsAffected(); err != nil || n == 0 {
			return nil, errors.Join(errAgain, err)
		}
		return map[string]any{"state": to}, nil
	}
}

// Errors of operations. In none of them anything was changed.
var (
	errAgain   = errors.New("it was done before")
	errInvalid = errors.New("the request is not understood")
)

func invalid(why string) error { return fmt.Errorf("%w: %s", errInvalid, why) }

// Effect is something that was done.
type Effect struct {
	ID        string         `json:"id"`
	Operation string         `json:"operation"`
	Tenant    string         `json:"tenant"`
	Actor     string         `json:"actor"`
	Reference string         `json:"reference"`
	At        time.Time      `json:"at"`
	Detail    map[string]any `json:"detail"`
}

// perform does what c asks for, in one transaction, and tells by mail.
func (l *Lab) perform(ctx context.Context, c call) (e Effect, err error) {
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return e, err
	}
	defer func() {
		if err != nil {
			_ = tx.Rollback() // err says why; after a failed commit there is nothing left
		}
	}()
	mail := outbox.Message{
		Topic: mailTopic, Type: c.operation.Name, Payload: []byte(c.operation.Mail),
		Headers: map[string]string{"To": c.who.Actor + "@" + c.who.Tenant + ".example", "Reference": c.Reference},
	}
	if c.switches.Outbox {
		// If the transaction is not committed, there is no such message.
		err = sqlite.EnqueueTx(ctx, tx, mail)
	} else {
		// DEFECT(outbox): the mail is on its way before anyone knows whether the transaction
		// will be committed. Lesson: what leaves the database goes through an outbox.
		l.world.mail(mail.Headers["To"], c.Reference, c.operation.Name, c.operation.Mail)
	}
	if err != nil {
		return e, err
	}
	detail, err := c.operation.change(ctx, tx, c)
	if err != nil {
		return e, err
	}
	text, err := json.Marshal(detail)
	if err != nil {
		return e, err
	}
	// DEFECT(unique), where the switch is off: NULL is never equal to NULL, so that the
	// column accepts any number of rows. Lesson: let the database say no.
	var only any
	if c.switches.Unique {
		only = strings.Join([]string{c.who.Tenant, c.who.Actor, c.operation.Name, c.Reference}, "\x1f")
	}
	var id int64
	now := time.Now()
	err = tx.QueryRowContext(ctx, `INSERT INTO effects (operation, tenant, actor, reference, detail, at, only_one) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (only_one) DO NOTHING RETURNING id`,
		c.operation.Name, c.who.Tenant, c.who.Actor, c.Reference, string(text), now.UnixMilli(), only).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return e, errAgain
	}
	if err != nil {
		return e, err
	}
	if err := tx.Commit(); err != nil {
		return e, err
	}
	l.outbox.Wake()
	return Effect{c.operation.id(id), c.operation.Name, c.who.Tenant, c.who.Actor, c.Reference, now, detail}, nil
}

func (o *Operation) id(n int64) string { return fmt.Sprintf("%s_%d", o.prefix, n) }

// Effects returns what was done, the latest first. An empty tenant or reference
// stands for all of them.
func (l *Lab) Effects(ctx context.Context, operation *Operation, tenant, reference string, most int) ([]Effect, error) {
	rows, err := l.db.QueryContext(ctx, `SELECT id, tenant, actor, reference, detail, at FROM effects
		WHERE operation = ? AND (? = '' OR tenant = ?) AND (? = '' OR reference = ?) ORDER BY id DESC LIMIT ?`,
		operation.Name, tenant, tenant, reference, reference, most)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	list := []Effect{}
	for rows.Next() {
		var (
			id, at int64
			detail string
			e      = Effect{Operation: operation.Name}
		)
		if err := rows.Scan(&id, &e.Tenant, &e.Actor, &e.Reference, &detail, &at); err != nil {
			return nil, err
		}
		if err := json.Unmarshal([]byte(detail), &e.Detail); err != nil {
			return nil, err
		}
		e.ID, e.At = operation.id(id), time.UnixMilli(at)
		list = append(list, e)
	}
	return list, rows.Err()
}
