package sqlite

import (
	"context"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/storekit"
)

// Erase implements semel.Eraser. What is erased is overwritten in the file, and is
// gone from its log when that is next written to the file, at the latest when the
// last handle is closed. Copies and backups of the file keep it.
func (s *Store) Erase(ctx context.Context, e semel.Erasure) (erased bool, err error) {
	e.Cause, e.Origin = storekit.Cut(e.Cause), storekit.Origin(e.Origin, storekit.Cut)
	return write(ctx, s, 0, func(t *tx) (bool, error) { return t.erase(e) })
}

// The fingerprint of no scheme is never compared.
const eraseRecord = `
	UPDATE record SET tombstone = 1, head = NULL, body = NULL, reference = NULL, pieces = NULL, pieces_size = NULL,
		fingerprint_scheme = NULL, fingerprint_sum = zeroblob(32)
	WHERE number = ?`

func (t *tx) erase(e semel.Erasure) (bool, error) {
	rec, found, err := t.find(e.Identity)
	switch {
	case err != nil:
		return false, err
	case !found || rec.expired(t.now):
		return false, semel.ErrNotFound
	case rec.Fence != e.Fence || rec.State != semel.StateCompleted:
		return false, semel.ErrStaleFence
	case rec.Erased():
		return false, nil
	}
	if err := t.overwriting(func() error {
		if rec.Result.Pieces != nil {
			if _, err := t.exec("DELETE FROM piece WHERE body = (SELECT pieces FROM record WHERE number = ?)", int64(rec.number)); err != nil {
				return err
			}
		}
		_, err := t.exec(eraseRecord, int64(rec.number))
		return err
	}); err != nil {
		return false, err
	}
	t.store.cache.erasing()
	return true, t.append(t.time, semel.TrailEntry{
		Kind: semel.TrailErased, RecordID: rec.ID, Fence: rec.Fence, Tenant: rec.Identity.Tenant, Actor: rec.Identity.Actor,
		Operation: rec.Identity.Operation, Key: rec.Identity.Key, Origin: e.Origin, Cause: e.Cause,
	})
}

// overwriting has what change removes from the file overwritten with zeros.
func (t *tx) overwriting(change func() error) error {
	set := func(on string) error {
		// It takes effect when it is prepared, so it must be each time.
		err := t.conn.script("PRAGMA secure_delete = " + on)
		if err != nil && t.err == nil {
			t.err = err
		}
		return err
	}
	if err := set("ON"); err != nil {
		return err
	}
	err := change()
	if e := set("OFF"); err == nil {
		err = e
	}
	return err
}
