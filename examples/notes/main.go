// Command notes is a small service that several people edit. A change says which
// version it is for, so that nobody's gets lost, and may carry a key, so that a
// retry is answered like the first try.
//
//	go run ./notes
//	curl -i localhost:9004/notes/1 -u ann: -X PUT -H 'If-None-Match: *' -d '{"title": "Milk", "body": "one pint"}'
//	curl -i localhost:9004/notes/1 -u ann: -X PATCH -H 'If-Match: "1"' -H 'Idempotency-Key: "k1"' -d '{"body": "two pints"}'
//	curl -i localhost:9004/notes/1 -u ann: -H 'If-None-Match: "2"'
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/conditional"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/sqlite"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:9004", "address to listen on")
	path := flag.String("db", "notes.db", "file of the notes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *listen, *path); err != nil {
		log.Fatal("notes: ", err)
	}
}

func serve(ctx context.Context, listen, path string) error {
	n, err := open(ctx, path)
	if err != nil {
		return err
	}
	server := &http.Server{Addr: listen, Handler: n.handler, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	log.Printf("notes: listening on http://%s", listen)
	select {
	case err := <-failed:
		return errors.Join(err, n.close())
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return errors.Join(server.Shutdown(drain), n.guard.Drain(drain), n.close())
}

// A note that was deleted keeps its row, so that its versions do not come again.
const table = `CREATE TABLE IF NOT EXISTS notes (id TEXT PRIMARY KEY, version INTEGER NOT NULL, gone INTEGER NOT NULL,
	title TEXT NOT NULL, body TEXT NOT NULL)`

type note struct {
	Title string `json:"title"`
	Body  string `json:"body"`
}

type notes struct {
	db      *sql.DB
	store   *sqlite.Store
	guard   *semel.Guard
	handler http.Handler
}

func open(ctx context.Context, path string) (*notes, error) {
	store, err := sqlite.Open(ctx, sqlite.Config{Path: path, Mode: sqlite.ModeTransactional})
	if err != nil {
		return nil, err
	}
	n := &notes{store: store}
	abs, err := filepath.Abs(path)
	if err == nil {
		file := url.URL{Scheme: "file", Path: "/" + strings.TrimPrefix(filepath.ToSlash(abs), "/"), RawQuery: "_pragma=busy_timeout(5000)"}
		if n.db, err = sql.Open("sqlite", file.String()); err == nil {
			if _, err = n.db.ExecContext(ctx, table); err == nil {
				err = n.routes()
			}
			if err != nil {
				err = errors.Join(err, n.db.Close())
			}
		}
	}
	if err != nil {
		return nil, errors.Join(err, n.store.Close(context.Background()))
	}
	return n, nil
}

func (n *notes) close() error { return errors.Join(n.db.Close(), n.store.Close(context.Background())) }

func (n *notes) routes() (err error) {
	if n.guard, err = semel.New(semel.Config{Store: n.store}); err != nil {
		return err
	}
	keys, err := semelhttp.New(semelhttp.Config{
		Guard: n.guard,
		Scope: func(r *http.Request) (semel.Scope, error) {
			user, _, _ := r.BasicAuth() // nobody checks the password here
			return semel.Scope{Actor: user}, nil
		},
		Protects:    semelhttp.ProtectMethods(http.MethodPut, http.MethodPatch, http.MethodDelete),
		Fingerprint: semelhttp.FingerprintConfig{Headers: conditional.RequestHeaders()},
	})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /notes/{id}", n.get)
	mux.HandleFunc("PUT /notes/{id}", n.change)
	mux.HandleFunc("PATCH /notes/{id}", n.change)
	mux.HandleFunc("DELETE /notes/{id}", n.change)
	// The key answers first: keys outside.
	n.handler = keys(conditional.New(conditional.Config{})(mux))
	return nil
}

// tx returns the transaction of the request's claim, or the database where the
// request has no key.
func (n *notes) tx(ctx context.Context) sqlite.Querier {
	if tx, ok := sqlite.Tx(ctx); ok {
		return tx
	}
	return n.db
}

// find reads a note and its version.
func (n *notes) find(ctx context.Context, id string) (found note, s conditional.State, err error) {
	err = n.tx(ctx).QueryRowContext(ctx, "SELECT version, gone, title, body FROM notes WHERE id = ?", id).
		Scan(&s.Version, &s.Gone, &found.Title, &found.Body)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil // the zero State
	}
	return found, s, err
}

func (n *notes) get(w http.ResponseWriter, r *http.Request) {
	found, s, err := n.find(r.Context(), r.PathValue("id"))
	switch {
	case err != nil:
		http.Error(w, "failed", http.StatusInternalServerError)
	case s.Version == 0 || s.Gone:
		http.NotFound(w, r)
	default:
		answer(w, http.StatusOK, s.Version, found)
	}
}

// change serves PUT, PATCH and DELETE.
func (n *notes) change(w http.ResponseWriter, r *http.Request) {
	id, remove := r.PathValue("id"), r.Method == http.MethodDelete
	var body json.RawMessage
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&body); err != nil && !remove {
		http.Error(w, "no JSON", http.StatusBadRequest)
		return
	}
	if err := json.Unmarshal(body, &note{}); err != nil && !remove {
		http.Error(w, "no note", http.StatusUnprocessableEntity)
		return
	}
	var next note
	result, err := conditional.Apply(r.Context(), conditional.Change{
		Creates: r.Method == http.MethodPut,
		Current: func(ctx context.Context) (conditional.State, error) {
			found, s, err := n.find(ctx, id)
			next = note{}
			if r.Method == http.MethodPatch {
				next = found // what the patch leaves out stays
			}
			return s, err
		},
		Write: func(ctx context.Context, found, version int64) (int64, error) {
			if !remove {
				if err := json.Unmarshal(body, &next); err != nil {
					return 0, err
				}
			}
			if found == 0 {
				return conditional.Rows(n.tx(ctx).ExecContext(ctx, "INSERT INTO notes VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
					id, version, remove, next.Title, next.Body))
			}
			return conditional.Rows(n.tx(ctx).ExecContext(ctx, "UPDATE notes SET version = ?, gone = ?, title = ?, body = ? WHERE id = ? AND version = ?",
				version, remove, next.Title, next.Body, id, found))
		},
	})
	switch {
	case err != nil && conditional.Refuse(w, r, err):
	case err != nil:
		http.Error(w, "failed", http.StatusInternalServerError)
	case remove:
		w.WriteHeader(http.StatusNoContent)
	case result.Created:
		answer(w, http.StatusCreated, result.Version, next)
	default:
		answer(w, http.StatusOK, result.Version, next)
	}
}

func answer(w http.ResponseWriter, status int, version int64, n note) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("ETag", conditional.VersionTag(version).String())
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(n)
}
