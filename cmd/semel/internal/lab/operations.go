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
)

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
	change func(ctx context.Context, tx querier, c call) (map[string]any, error)
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
	trace     string // of the request that asked for it
	madeBy    string // the key of semel's execution or job, if there is one
	job       string // that does it, if there is one
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

func charge(ctx context.Context, tx querier, c call) (map[string]any, error) {
	if c.Amount <= 0 {
		return nil, invalid("amount must be more than 0, in cents")
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO accounts VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", c.who.Tenant, c.who.Actor, startBalance); err != nil {
		return nil, err
	}
	var balance int64
	err := tx.QueryRowContext(ctx, "UPDATE accounts SET balance = balance - $1 WHERE tenant = $2 AND owner = $3 RETURNING balance",
		c.Amount, c.who.Tenant, c.who.Actor).Scan(&balance)
	return map[string]any{"amount": c.Amount, "balance": balance}, err
}

func order(_ context.Context, _ querier, c call) (map[string]any, error) {
	if c.Item == "" || c.Quantity <= 0 {
		return nil, invalid("item must be named, and quantity more than 0")
	}
	return map[string]any{"item": c.Item, "quantity": c.Quantity}, nil
}

func grant(_ context.Context, _ querier, c call) (map[string]any, error) {
	if c.User == "" || c.Role == "" {
		return nil, invalid("user and role must be named")
	}
	return map[string]any{"user": c.User, "role": c.Role}, nil
}

// transition returns what takes a document from one state to the next. Every
// reference names a document that is in the first one, so that there are always
// enough of them.
func transition(from, to string) func(context.Context, querier, call) (map[string]any, error) {
	return func(ctx context.Context, tx querier, c call) (map[string]any, error) {
		if _, err := tx.ExecContext(ctx, "INSERT INTO documents VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
			c.who.Tenant, c.operation.Name, c.Reference, from); err != nil {
			return nil, err
		}
		query, args := "UPDATE documents SET state = $1 WHERE tenant = $2 AND operation = $3 AND reference = $4", []any{to, c.who.Tenant, c.operation.Name, c.Reference}
		if c.switches.Unique {
			// The transition and the question whether it is allowed are one statement.
			// Of all that ask at the same time, one changes a row.
			query, args = query+" AND state = $5", append(args, from)
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
	Trace     string         `json:"trace_id"`
}

// perform does what c asks for, in one transaction, and tells the caller by mail, and
// others by webhook.
func (p *app) perform(ctx context.Context, c call, midway func(string)) (e Effect, err error) {
	var draft int64
	if !c.switches.Transaction {
		// DEFECT(transaction): the first half is committed by itself. Who dies now leaves a draft
		// that nobody goes on with, and where the database accepts each reference once
		// the retry is told that it was done. Lesson: what belongs together is one
		// transaction.
		if draft, err = insert(ctx, p.db, c, 0, nil); err != nil {
			return e, err
		}
		midway("half of it is done: " + c.operation.id(draft))
	}
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return e, err
	}
	defer func() {
		if err != nil {
			_ = tx.Rollback() // err says why; after a failed commit there is nothing left
			if draft != 0 {
				_, _ = p.db.ExecContext(ctx, "DELETE FROM effects WHERE id = $1 AND done = 0", draft) // what is left of it is a draft, as it is
			}
		}
	}()
	e, err = p.performIn(ctx, tx, c, draft, func(ctx context.Context, m ...outbox.Message) error { return p.enqueue(ctx, tx, m...) })
	if err != nil {
		return e, err
	}
	if err := tx.Commit(); err != nil {
		return e, err
	}
	p.outbox.Wake()
	midway("done: " + e.ID)
	return e, nil
}

// performIn is perform in a transaction. The draft is the one to make an effect of, 0
// for none; enqueue adds to the outbox in the transaction.
func (p *app) performIn(ctx context.Context, tx querier, c call, draft int64, enqueue func(context.Context, ...outbox.Message) error) (e Effect, err error) {
	mail := outbox.Message{
		Topic: mailTopic, Type: c.operation.Name, Payload: []byte(c.operation.Mail),
		Headers: map[string]string{"To": c.who.Actor + "@" + c.who.Tenant + ".example", "Reference": c.Reference, "Trace": c.trace},
	}
	hook := outbox.Message{
		Topic: hookTopic, Type: c.operation.Name + ".done", Payload: fmt.Appendf(nil, `{"reference": %q}`, c.Reference),
		Headers: map[string]string{"To": "https://shop." + c.who.Tenant + ".example/hooks", "Reference": c.Reference, "Trace": c.trace},
	}
	if c.switches.Outbox {
		// If the transaction is not committed, there are no such messages.
		err = enqueue(ctx, mail, hook)
	} else {
		// DEFECT(outbox): mail and webhook are on their way before anyone knows whether the
		// transaction will be committed. Lesson: what leaves the database goes through an
		// outbox.
		p.outside.Arrive(sending(mail))
		p.outside.Arrive(sending(hook))
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
	if draft != 0 {
		_, err = tx.ExecContext(ctx, "UPDATE effects SET done = 1, detail = $1 WHERE id = $2", string(text), draft)
	} else {
		draft, err = insert(ctx, tx, c, 1, text)
	}
	return Effect{c.operation.id(draft), c.operation.Name, c.who.Tenant, c.who.Actor, c.Reference, time.Now(), detail, c.trace}, err
}

// insert writes an effect down, or a draft of one.
func insert(ctx context.Context, tx querier, c call, done int, detail []byte) (id int64, err error) {
	null := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	// DEFECT(unique), where the switch is off: NULL is never equal to NULL, so that the
	// column accepts any number of rows. Lesson: let the database say no.
	var only any
	if c.switches.Unique {
		only = strings.Join([]string{c.who.Tenant, c.who.Actor, c.operation.Name, c.Reference}, "\x1f")
	}
	if detail == nil {
		detail = []byte("{}")
	}
	err = tx.QueryRowContext(ctx, `INSERT INTO effects (operation, tenant, actor, reference, detail, at, trace, done, only_one, made_by, job)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT DO NOTHING RETURNING id`,
		c.operation.Name, c.who.Tenant, c.who.Actor, c.Reference, string(detail), time.Now().UnixMilli(), c.trace, done, only, null(c.madeBy), null(c.job)).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, errAgain
	}
	return id, err
}

func (o *Operation) id(n int64) string { return fmt.Sprintf("%s_%d", o.prefix, n) }

// operationNamed returns the operation of a name, nil if there is none.
func operationNamed(name string) *Operation {
	for _, o := range Operations {
		if o.Name == name {
			return o
		}
	}
	return nil
}
