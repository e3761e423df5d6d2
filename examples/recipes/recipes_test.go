package recipes_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite"

	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/sqlite"
)

// openShop makes a file with tables, and returns what removes it.
func openShop(tables string) (db *sql.DB, path string, remove func()) {
	dir, err := os.MkdirTemp("", "recipes")
	if err != nil {
		log.Fatal(err)
	}
	path = filepath.Join(dir, "shop.db")
	if db, err = sql.Open("sqlite", path+"?_pragma=busy_timeout(5000)"); err != nil {
		log.Fatal(err)
	}
	if tables != "" {
		must(db, tables)
	}
	return db, path, func() {
		_ = db.Close()
		_ = os.RemoveAll(dir)
	}
}

// must runs a statement and returns how many rows it changed.
func must(db *sql.DB, query string, args ...any) int64 {
	res, err := db.Exec(query, args...)
	if err != nil {
		log.Fatal(err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		log.Fatal(err)
	}
	return n
}

func number(db *sql.DB, query string, args ...any) (n int) {
	if err := db.QueryRow(query, args...).Scan(&n); err != nil {
		log.Fatal(err)
	}
	return n
}

// An order has a number of its own before it is sent: the customer's basket, or the
// purchase order. The database refuses the second of them, whoever asks twice.
func Example_naturalKey() {
	db, _, remove := openShop(`
		CREATE TABLE order_wrong (id INTEGER PRIMARY KEY, basket TEXT, amount INTEGER);
		CREATE TABLE order_right (id INTEGER PRIMARY KEY, basket TEXT NOT NULL UNIQUE, amount INTEGER)`)
	defer remove()
	for range 2 { // the second is a retry
		must(db, "INSERT INTO order_wrong (basket, amount) VALUES (?, ?)", "basket-7", 1999)
		must(db, "INSERT INTO order_right (basket, amount) VALUES (?, ?) ON CONFLICT (basket) DO NOTHING", "basket-7", 1999)
	}
	fmt.Println("wrong:", number(db, "SELECT count(*) FROM order_wrong"), "orders")
	fmt.Println("right:", number(db, "SELECT count(*) FROM order_right"), "order")
	// The answer to a retry is the order that is there, if it is the same one.
	fmt.Println("same order:", number(db, "SELECT amount = ? FROM order_right WHERE basket = ?", 1999, "basket-7") == 1)
	fmt.Println("another under its number:", number(db, "SELECT amount = ? FROM order_right WHERE basket = ?", 2500, "basket-7") == 0)
	// Output:
	// wrong: 2 orders
	// right: 1 order
	// same order: true
	// another under its number: true
}

// "Set it to this" can be done twice: an upsert. "Look, then insert" cannot: two that
// look at the same time both insert.
func Example_upsert() {
	db, _, remove := openShop(`
		CREATE TABLE wrong (user TEXT, mail TEXT);
		CREATE TABLE right (user TEXT PRIMARY KEY, mail TEXT)`)
	defer remove()
	first := number(db, "SELECT count(*) FROM wrong WHERE user = 'u'")
	second := number(db, "SELECT count(*) FROM wrong WHERE user = 'u'")
	for _, found := range []int{first, second} {
		if found == 0 {
			must(db, "INSERT INTO wrong VALUES ('u', 'u@example.com')")
		}
	}
	for range 2 {
		must(db, "INSERT INTO right VALUES ('u', 'u@example.com') ON CONFLICT (user) DO UPDATE SET mail = excluded.mail")
	}
	fmt.Println("wrong:", number(db, "SELECT count(*) FROM wrong"), "rows")
	fmt.Println("right:", number(db, "SELECT count(*) FROM right"), "row")
	// Output:
	// wrong: 2 rows
	// right: 1 row
}

// Each event is written down once, in the transaction of what it does: an insert that
// is ignored says that it has been done.
func Example_insertOrIgnore() {
	db, _, remove := openShop(`
		CREATE TABLE seen (consumer TEXT, event TEXT, PRIMARY KEY (consumer, event));
		CREATE TABLE points (n INTEGER); INSERT INTO points VALUES (0)`)
	defer remove()
	handle := func(event string) error {
		tx, err := db.Begin()
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // what fails leaves nothing, and its redelivery runs
		res, err := tx.Exec("INSERT INTO seen VALUES ('points', ?) ON CONFLICT DO NOTHING", event)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return err
		}
		if _, err := tx.Exec("UPDATE points SET n = n + 10"); err != nil {
			return err
		}
		return tx.Commit()
	}
	for range 2 {
		if err := handle("event-1"); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(number(db, "SELECT n FROM points"), "points")
	// Output: 10 points
}

// "Add 5" doubles when it is repeated. "Set it to 15, if it is at version 3" does not:
// the second changes no row, and finds its own result there.
func Example_setInsteadOfIncrement() {
	db, _, remove := openShop(`
		CREATE TABLE wrong (stock INTEGER); INSERT INTO wrong VALUES (10);
		CREATE TABLE right (stock INTEGER, version INTEGER); INSERT INTO right VALUES (10, 3)`)
	defer remove()
	for range 2 {
		must(db, "UPDATE wrong SET stock = stock + 5")
		changed := must(db, "UPDATE right SET stock = ?, version = version + 1 WHERE version = ?", 15, 3)
		fmt.Println("rows changed:", changed)
	}
	fmt.Println("wrong:", number(db, "SELECT stock FROM wrong"))
	fmt.Println("right:", number(db, "SELECT stock FROM right"))
	// Output:
	// rows changed: 1
	// rows changed: 0
	// wrong: 20
	// right: 15
}

// A row that is gone cannot refuse a late message about it: it comes back. A
// tombstone can, because it remembers the version at which it was deleted.
func Example_tombstone() {
	db, _, remove := openShop(`
		CREATE TABLE wrong (user TEXT PRIMARY KEY, mail TEXT);
		CREATE TABLE right (user TEXT PRIMARY KEY, mail TEXT, version INTEGER NOT NULL, deleted INTEGER NOT NULL DEFAULT 0)`)
	defer remove()
	put := func(mail string, version int) {
		must(db, "INSERT INTO wrong VALUES ('u', ?) ON CONFLICT (user) DO UPDATE SET mail = excluded.mail", mail)
		must(db, `INSERT INTO right (user, mail, version) VALUES ('u', ?, ?)
			ON CONFLICT (user) DO UPDATE SET mail = excluded.mail, version = excluded.version, deleted = 0 WHERE excluded.version > right.version`, mail, version)
	}
	put("old@example.com", 1)
	for range 2 { // deleting twice is deleting once
		must(db, "DELETE FROM wrong WHERE user = 'u'")
		must(db, "UPDATE right SET mail = NULL, version = ?, deleted = 1 WHERE user = 'u' AND version < ?", 2, 2)
	}
	put("old@example.com", 1) // the first message again, late
	fmt.Println("wrong:", number(db, "SELECT count(*) FROM wrong"), "user")
	fmt.Println("right:", number(db, "SELECT count(*) FROM right WHERE NOT deleted"), "users")
	// Output:
	// wrong: 1 user
	// right: 0 users
}

// A mail that a handler sends goes out for what is rolled back, and again with every
// retry. One that is enqueued in the transaction goes out for what was committed, and
// is sent where sending is put on record: at the boundary.
func Example_mailAtTheBoundary() {
	db, path, remove := openShop("")
	defer remove()
	store, err := sqlite.Open(context.Background(), sqlite.Config{Path: path}) // before there are other tables
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close(context.Background())
	must(db, "CREATE TABLE paid (invoice TEXT PRIMARY KEY)")

	sent := map[string]int{} // by the handler itself, and by the relay
	pay := func(fails bool) error {
		tx, err := db.Begin()
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		res, err := tx.Exec("INSERT INTO paid VALUES ('invoice-1') ON CONFLICT DO NOTHING")
		if err != nil {
			return err
		}
		sent["by the handler"]++
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return err // it is paid already
		}
		if err := sqlite.EnqueueTx(context.Background(), tx, outbox.Message{ID: "receipt-1", Topic: "mail", Payload: []byte("Thank you")}); err != nil {
			return err
		}
		if fails {
			return errors.New("no")
		}
		return tx.Commit()
	}
	for _, fails := range []bool{true, false, false} { // rolled back, paid, and a retry
		_ = pay(fails)
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	relay, err := outbox.New(outbox.Config{Store: store.Outbox(), Routes: []outbox.Route{{Topic: "mail", Sink: outbox.SinkFunc(func(ctx context.Context, d outbox.Delivery) error {
		if err := d.BeforeEffect(ctx); err != nil { // what comes next cannot be taken back
			return err
		}
		sent["by the relay"]++ // smtpsink sends it
		cancel()
		return nil
	})}}})
	if err != nil {
		log.Fatal(err)
	}
	if err := relay.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("wrong:", sent["by the handler"], "mails")
	fmt.Println("right:", sent["by the relay"], "mail")
	// Output:
	// wrong: 3 mails
	// right: 1 mail
}
