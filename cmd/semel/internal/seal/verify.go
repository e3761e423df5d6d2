package seal

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/semelhq/semel"
)

// What was found, in Finding.What.
const (
	// Changed: the entry is not what it was when it was sealed.
	Changed = "changed"
	// Removed: the entry was sealed, and is not there any more.
	Removed = "removed"
	// Added: the entry is among sealed ones, and came later. Where its transaction
	// was under way while they were sealed, nobody has done wrong.
	Added = "added"
	// Digests: the file of digests does not hold what a checkpoint says.
	Digests = "digests"
)

// Finding is something that is not as it was sealed.
type Finding struct {
	What     string     `json:"what"`
	Position uint64     `json:"position,omitempty"`
	At       *time.Time `json:"at,omitempty"` // the entry's
	Detail   string     `json:"detail"`
	// Entry is what is there now; nil where nothing is.
	Entry *semel.TrailEntry `json:"entry,omitempty"`
}

// Verification says what Verify has compared.
type Verification struct {
	Sealed   int64 `json:"sealed"`   // entries in the file
	Intact   int64 `json:"intact"`   // are as they were sealed
	Expired  int64 `json:"expired"`  // are gone, and older than what is kept
	Unsealed int64 `json:"unsealed"` // came after the last that is sealed
	Findings int64 `json:"found"`
	// Checkpoint is the last in the file. Kept says that the one that was given was
	// held against the file too.
	Checkpoint string `json:"checkpoint,omitempty"`
	Kept       bool   `json:"kept_checkpoint"`
}

// Verify compares the trail with the file. It tells of each finding as it comes,
// and of its progress now and then.
//
// Entries from before keptSince may be gone: the store removes them when their
// time is over. kept is a checkpoint that was kept elsewhere; without it, who has
// the key or an older copy of the file may have put back both.
func (f *File) Verify(ctx context.Context, trail semel.Trail, verifier note.Verifier, keptSince time.Time, kept *Checkpoint, told func(Finding) error, progress func(compared int64)) (v Verification, err error) {
	found := func(f Finding) error {
		v.Findings++
		if f.Entry != nil {
			e := *f.Entry
			e.At = e.At.UTC()
			f.Entry = &e
		}
		return told(f)
	}
	c := &comparison{trail: trail, v: &v, keptSince: keptSince, found: found, progress: progress}
	err = f.within(ctx, false, func(tx *sql.Tx) error {
		var text string
		var last Checkpoint
		switch err := tx.QueryRowContext(ctx, "SELECT note FROM checkpoint ORDER BY size DESC LIMIT 1").Scan(&text); {
		case errors.Is(err, sql.ErrNoRows):
		case err != nil:
			return err
		default:
			v.Checkpoint = text
			if last, err = ParseCheckpoint(text, verifier); err != nil {
				if err := found(Finding{What: Digests, Detail: "the last checkpoint in the file: " + err.Error()}); err != nil {
					return err
				}
			}
		}
		marks := []Checkpoint{last}
		if kept != nil {
			v.Kept = true
			marks = append(marks, *kept)
		}
		return c.compare(ctx, tx, marks)
	})
	if err != nil {
		err = fmt.Errorf("seal: %w", err)
	}
	return v, err
}

// comparison is a walk through both, in the order of positions.
type comparison struct {
	trail     semel.Trail
	v         *Verification
	keptSince time.Time
	found     func(Finding) error
	progress  func(int64)

	page  []semel.TrailEntry
	after uint64
	done  bool
}

// next returns the entry that the walk has come to, nil behind the last.
func (c *comparison) next(ctx context.Context) (*semel.TrailEntry, error) {
	for len(c.page) == 0 {
		if c.done {
			return nil, nil
		}
		page, err := c.trail.Trail(ctx, semel.TrailFilter{After: c.after, Limit: pageSize})
		if err != nil {
			return nil, err
		}
		if c.page, c.done = page, len(page) < pageSize; len(page) > 0 {
			c.after = page[len(page)-1].Position
		}
	}
	return &c.page[0], nil
}

func (c *comparison) compare(ctx context.Context, tx *sql.Tx, marks []Checkpoint) error {
	rows, err := tx.QueryContext(ctx, "SELECT position, at, digest FROM entry ORDER BY position")
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	var t tree
	check := func() error {
		for _, m := range marks {
			if m.Note != "" && m.Size == t.size && m.Root != t.root() {
				err := c.found(Finding{What: Digests, Detail: fmt.Sprintf("among the first %d digests some are not what the checkpoint of that size signs", m.Size)})
				if err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := check(); err != nil {
		return err
	}
	for rows.Next() {
		var r row
		var position, at int64
		var digest []byte
		if err := rows.Scan(&position, &at, &digest); err != nil {
			return err
		}
		if len(digest) != sha256.Size {
			return fmt.Errorf("%w: the digest of position %d has %d bytes", ErrFormat, position, len(digest))
		}
		r.position, r.at, r.digest = uint64(position), time.UnixMicro(at).UTC(), [sha256.Size]byte(digest)
		t.add(r.leaf())
		if t.size%pageSize == 0 {
			c.progress(t.size)
		}
		if err := c.one(ctx, r); err != nil {
			return err
		}
		if err := check(); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	c.v.Sealed = t.size
	for _, m := range marks {
		if m.Size > t.size {
			err := c.found(Finding{What: Digests, Detail: fmt.Sprintf("a checkpoint is of %d digests, and the file has %d", m.Size, t.size)})
			if err != nil {
				return err
			}
		}
	}
	if last := marks[0]; last.Size < t.size {
		err := c.found(Finding{What: Digests, Detail: fmt.Sprintf("the last %d digests are under no checkpoint", t.size-last.Size)})
		if err != nil {
			return err
		}
	}
	for {
		e, err := c.next(ctx)
		if e == nil || err != nil {
			return err
		}
		c.v.Unsealed++
		c.page = c.page[1:]
	}
}

// one compares the entry that was sealed as r.
func (c *comparison) one(ctx context.Context, r row) error {
	for {
		e, err := c.next(ctx)
		if err != nil {
			return err
		}
		if e == nil || e.Position > r.position {
			if r.at.Before(c.keptSince) {
				c.v.Expired++
				return nil
			}
			return c.found(Finding{What: Removed, Position: r.position, At: &r.at, Detail: "it was sealed, and is gone"})
		}
		c.page = c.page[1:]
		at := e.At.UTC()
		if e.Position < r.position {
			if err := c.found(Finding{What: Added, Position: e.Position, At: &at, Detail: "it was not there when those around it were sealed", Entry: e}); err != nil {
				return err
			}
			continue
		}
		got, err := rowOf(*e)
		switch {
		case err != nil:
			return err
		case got.digest == r.digest && got.at.Equal(r.at):
			c.v.Intact++
			return nil
		}
		return c.found(Finding{What: Changed, Position: e.Position, At: &r.at, Detail: "it is not what was sealed; what is there now is shown", Entry: e})
	}
}
