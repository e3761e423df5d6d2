// Package seal keeps digests of an audit trail, so that an entry that was
// changed, removed or slipped in afterwards is found and named.
//
// The digests are in a file of their own, an SQLite database: one for each entry,
// in the order of the trail, and over them the root of a Merkle tree as in RFC
// 6962. A checkpoint is the tree's size and root, signed with Ed25519: a C2SP
// tlog-checkpoint in a C2SP signed-note. Who can write to the store and to the
// file, but has not got the key, cannot make a checkpoint; and one that was kept
// elsewhere tells whether the file still holds what it held then.
//
// What is changed before it is sealed is not found.
package seal

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	_ "modernc.org/sqlite" // the driver

	"github.com/semelhq/semel"
)

// ErrNoFile: there is no file of digests where there should be.
var ErrNoFile = errors.New("seal: there is no file of digests")

// ErrFormat: the file is none of digests, or one of a later version.
var ErrFormat = errors.New("seal: the file holds no digests that this program knows")

// version is kept in the file, which begins with no version of another.
const version = 0x5e_a1_00_01

const schema = `
CREATE TABLE entry (
  position INTEGER PRIMARY KEY,
  at       INTEGER NOT NULL, -- microseconds, by the store's clock
  digest   BLOB    NOT NULL
) STRICT;
CREATE TABLE checkpoint (
  size     INTEGER PRIMARY KEY,
  position INTEGER NOT NULL, -- of the last entry
  made_at  INTEGER NOT NULL,
  subtrees BLOB    NOT NULL, -- from which the tree goes on
  note     TEXT    NOT NULL
) STRICT;`

// File is a file of digests.
type File struct{ db *sql.DB }

// Open opens a file, or makes it where create is set. Only its owner can read
// it.
func Open(ctx context.Context, path string, create bool) (*File, error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if !create {
			return nil, fmt.Errorf("%w: %s", ErrNoFile, path)
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	// Where a program that wrote to it was killed, also a reader has to write.
	mode := "ro"
	if f, err := os.OpenFile(path, os.O_RDWR, 0); err == nil {
		mode = "rw"
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	name := url.URL{Scheme: "file", OmitHost: true, Path: filepath.ToSlash(path), RawQuery: "mode=" + mode + "&_pragma=busy_timeout(10000)&_pragma=synchronous(full)&_txlock=immediate"}
	db, err := sql.Open("sqlite", name.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(2)
	f := &File{db}
	if err := f.prepare(ctx, create); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), db.Close())
	}
	return f, nil
}

func (f *File) prepare(ctx context.Context, create bool) error {
	// One connection, so that of two programs that make it one waits.
	return f.within(ctx, create, func(tx *sql.Tx) error {
		var got, tables int
		if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&got); err != nil {
			return fmt.Errorf("%w: %w", ErrFormat, err)
		}
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
			return err
		}
		switch {
		case got == version:
			return nil
		case got != 0 || tables > 0 || !create:
			return ErrFormat
		}
		_, err := tx.ExecContext(ctx, schema+fmt.Sprintf("PRAGMA user_version = %d;", version))
		return err
	})
}

// within runs fn in a transaction, from its beginning the only one that writes
// if write is set.
func (f *File) within(ctx context.Context, write bool, fn func(tx *sql.Tx) error) error {
	tx, err := f.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: !write})
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// Close closes the file.
func (f *File) Close() error { return f.db.Close() }

// row is what is kept of an entry: the leaf of the tree.
type row struct {
	position uint64
	at       time.Time
	digest   [sha256.Size]byte
}

func rowOf(e semel.TrailEntry) (row, error) {
	e.At = e.At.UTC()
	text, err := json.Marshal(e)
	return row{e.Position, e.At.Truncate(time.Microsecond), sha256.Sum256(text)}, err
}

// leaf is the row's hash in the tree.
func (r row) leaf() tlog.Hash {
	b := make([]byte, 0, 16+sha256.Size)
	b = binary.BigEndian.AppendUint64(b, r.position)
	b = binary.BigEndian.AppendUint64(b, uint64(r.at.UnixMicro()))
	return tlog.RecordHash(append(b, r.digest[:]...))
}

// tree is a Merkle tree as in RFC 6962, of which only what it grows from is
// kept: the roots of its complete subtrees, the largest first.
type tree struct {
	size     int64
	subtrees []tlog.Hash
}

func (t *tree) add(leaf tlog.Hash) {
	t.subtrees = append(t.subtrees, leaf)
	t.size++
	// As many subtrees of one size meet as the size now ends in zero bits.
	for n := t.size; n&1 == 0; n >>= 1 {
		last := len(t.subtrees) - 1
		t.subtrees[last-1] = tlog.NodeHash(t.subtrees[last-1], t.subtrees[last])
		t.subtrees = t.subtrees[:last]
	}
}

func (t *tree) root() tlog.Hash {
	if len(t.subtrees) == 0 {
		return sha256.Sum256(nil)
	}
	root := t.subtrees[len(t.subtrees)-1]
	for i := len(t.subtrees) - 2; i >= 0; i-- {
		root = tlog.NodeHash(t.subtrees[i], root)
	}
	return root
}

// Checkpoint is what the holder of a key has said of a trail.
type Checkpoint struct {
	Size int64     // entries
	Root tlog.Hash // of the tree over them
	// Note is the checkpoint as text, with its signature. It reveals nothing else
	// of the trail.
	Note string
}

func sign(t *tree, signer note.Signer) (Checkpoint, error) {
	root := t.root()
	text, err := note.Sign(&note.Note{Text: fmt.Sprintf("%s\n%d\n%s\n", signer.Name(), t.size, base64.StdEncoding.EncodeToString(root[:]))}, signer)
	return Checkpoint{t.size, root, string(text)}, err
}

// ParseCheckpoint returns the checkpoint that a text holds, if the owner of the
// verifier's key has signed it.
func ParseCheckpoint(text string, verifier note.Verifier) (c Checkpoint, err error) {
	n, err := note.Open([]byte(text), note.VerifierList(verifier))
	if err != nil {
		return c, fmt.Errorf("seal: checkpoint: %w", err)
	}
	lines := strings.Split(n.Text, "\n")
	if len(lines) < 4 || lines[0] != verifier.Name() {
		return c, errors.New("seal: checkpoint: it is signed, but of something else")
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	root, err2 := base64.StdEncoding.DecodeString(lines[2])
	if err := errors.Join(err, err2); err != nil || size < 0 || len(root) != sha256.Size {
		return c, errors.New("seal: checkpoint: it is signed, but malformed")
	}
	return Checkpoint{size, tlog.Hash(root), text}, nil
}

// perCommit is how many entries are sealed in one commit at most.
const perCommit = 50_000

// Extend seals the entries behind the last that is sealed, up to the first that
// is not older than until, by the store's clock, and returns how many. Entries that
// transactions still under way will put before those are not sealed ever, so until
// should be further back than a transaction may take. told is told of each
// checkpoint, once it is in the file; with nothing to seal, of the last one, if there is
// one.
//
// Of programs that extend a file at the same time one waits for the other. Where
// it ends early, what was told of is sealed.
func (f *File) Extend(ctx context.Context, trail semel.Trail, until time.Time, signer note.Signer, told func(Checkpoint) error) (sealed int64, err error) {
	for {
		var c Checkpoint
		n := int64(0)
		err := f.within(ctx, true, func(tx *sql.Tx) (err error) {
			c, n, err = extend(ctx, tx, trail, until, signer)
			return err
		})
		if err != nil {
			return sealed, fmt.Errorf("seal: %w", err)
		}
		if sealed += n; n > 0 || sealed == 0 && c.Size > 0 {
			if err := told(c); err != nil {
				return sealed, err
			}
		}
		if n < perCommit {
			return sealed, nil
		}
	}
}

func extend(ctx context.Context, tx *sql.Tx, trail semel.Trail, until time.Time, signer note.Signer) (c Checkpoint, n int64, err error) {
	var t tree
	var after int64
	var subtrees []byte
	switch err := tx.QueryRowContext(ctx, "SELECT size, position, subtrees, note FROM checkpoint ORDER BY size DESC LIMIT 1").Scan(&t.size, &after, &subtrees, &c.Note); {
	case errors.Is(err, sql.ErrNoRows):
	case err != nil:
		return c, 0, err
	default:
		if len(subtrees)%sha256.Size != 0 {
			return c, 0, ErrFormat
		}
		for ; len(subtrees) > 0; subtrees = subtrees[sha256.Size:] {
			t.subtrees = append(t.subtrees, tlog.Hash(subtrees[:sha256.Size]))
		}
		c.Size, c.Root = t.size, t.root()
	}
	insert, err := tx.PrepareContext(ctx, "INSERT INTO entry VALUES (?, ?, ?)")
	if err != nil {
		return c, 0, err
	}
	defer func() { _ = insert.Close() }()
	for n < perCommit {
		page, err := trail.Trail(ctx, semel.TrailFilter{After: uint64(after), Limit: pageSize})
		if err != nil {
			return c, 0, err
		}
		short := len(page) < pageSize
		for _, e := range page {
			if !e.At.Before(until) {
				short = true
				break
			}
			r, err := rowOf(e)
			if err != nil {
				return c, 0, err
			}
			if _, err := insert.ExecContext(ctx, int64(r.position), r.at.UnixMicro(), r.digest[:]); err != nil {
				return c, 0, err
			}
			t.add(r.leaf())
			after = int64(r.position)
			n++
		}
		if short {
			break
		}
	}
	if n == 0 {
		return c, 0, nil
	}
	if c, err = sign(&t, signer); err != nil {
		return c, 0, err
	}
	for _, h := range t.subtrees {
		subtrees = append(subtrees, h[:]...)
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO checkpoint VALUES (?, ?, ?, ?, ?)", t.size, after, time.Now().UnixMicro(), subtrees, c.Note)
	return c, n, err
}

const pageSize = 1000
