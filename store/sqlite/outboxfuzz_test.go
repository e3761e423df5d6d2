package sqlite_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/semelhq/semel/outbox"
	"github.com/semelhq/semel/store/sqlite"
)

// Whatever another program inserts, the table refuses it, or a claim takes it: as a
// message whose parts are within their bounds, or as one that says why it is none.
// It never holds up what is beside it.
func FuzzOutboxRow(f *testing.F) {
	for _, headers := range []string{`{"a": "b"}`, `{"a": 1}`, `{"a": {"b": []}}`, `{"a": null}`, `{"a": "x", "a": "y"}`, `{"": "x"}`, `{"a": "\u0000"}`, "{\"a\": \"\xff\"}", `{"a": "\ud800"}`, `[]`, `null`, `{`, ``} {
		f.Add("id", "t", "k", "type", headers, []byte("payload"), true, int64(0))
	}
	f.Add("a.b:c-d_e", "t\u202e", "\U0001f4a9", "\xff", "", []byte("\xff\x00"), false, int64(1)<<62)
	f.Add("a\x00b", "t\x00", "\x00", "\x00", "", []byte{}, true, int64(-1))
	dir := f.TempDir()
	store, err := sqlite.Open(f.Context(), sqlite.Config{Path: filepath.Join(dir, "semel.db")})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = store.Close(context.Background()) })
	o := store.Outbox()
	db := raw(f, filepath.Join(dir, "semel.db"))
	mustExec(f, db, "PRAGMA synchronous = OFF")
	f.Fuzz(func(t *testing.T, id, topic, key, kind, headers string, payload []byte, text bool, before int64) {
		mustExec(t, db, "DELETE FROM outbox")
		var body, lane, head, at any = payload, key, headers, before
		if text {
			body = string(payload)
		}
		if key == "" {
			lane = nil
		}
		if headers == "" {
			head = nil
		}
		if before == 0 {
			at = nil
		}
		_, refused := db.Exec("INSERT INTO outbox (id, topic, key, type, headers, payload, not_before) VALUES (?, ?, ?, ?, ?, ?, ?)", id, topic, lane, kind, head, body, at)
		mustExec(t, db, "INSERT INTO outbox (id, topic) VALUES ('beside-it', 'other')")
		mustExec(t, db, "UPDATE outbox SET due = 0")
		got, _, err := o.Exchange(t.Context(), nil, outbox.Claim{Max: 10, Lease: time.Hour})
		if err != nil {
			t.Fatalf("a row holds up all: %v", err)
		}
		beside := 0
		var done []outbox.Settlement
		for _, m := range got {
			done = append(done, outbox.Settlement{Ref: m.Ref, Outcome: outbox.OutcomeDelivered})
			if m.ID == "beside-it" {
				beside++
				continue
			}
			if refused != nil {
				t.Errorf("a row that was refused (%v) was claimed: %+v", refused, m)
			}
			if err := m.Validate(); err != nil && m.Malformed == nil {
				t.Errorf("claimed as a good message: %v", err)
			}
			if m.Malformed != nil && (!utf8.ValidString(m.Malformed.Error()) || len(headers) > 8 && strings.Contains(m.Malformed.Error(), headers)) {
				t.Errorf("what is malformed tells of its contents: %v", m.Malformed)
			}
			if string(m.Payload) != string(payload) {
				t.Errorf("the payload %q came as %q", payload, m.Payload)
			}
		}
		if want := 1; beside != want && id != "beside-it" || refused == nil && len(got) != 2 {
			t.Errorf("claimed %d, %d of them beside it; refused: %v", len(got), beside, refused)
		}
		if _, lost, err := o.Exchange(t.Context(), done, outbox.Claim{}); err != nil || len(lost) > 0 {
			t.Errorf("settled: lost %v, %v", lost, err)
		}
		if _, err := o.List(t.Context(), outbox.Filter{}); err != nil {
			t.Errorf("it cannot be looked at: %v", err)
		}
	})
}
