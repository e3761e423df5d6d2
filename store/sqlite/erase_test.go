package sqlite_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/store/sqlite"
)

// TestErasedIsGoneFromTheFile: nothing of an erased answer is in the file and its
// companions once the store is closed, however the answer was kept; and what stands
// beside it is.
func TestErasedIsGoneFromTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "semel.db")
	s, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	secret, other := bytes.Repeat([]byte("THE-SECRET-ANSWER."), 6000), []byte("the answer of somebody else")
	inPieces := bytes.Repeat([]byte("IN-PIECES-SECRET."), 40_000)
	for key, res := range map[string]semel.Result{
		"small": {Codec: "c/1", Head: []byte("THE-SECRET-HEAD"), Body: secret[:100], Label: "201", Reference: "/THE-SECRET-REFERENCE"},
		"large": {Codec: "c/1", Head: []byte("head"), Body: secret, Label: "201"},
		"pieces": {Codec: "c/1", Label: "201", Pieces: &semel.Pieces{Size: int64(len(inPieces)), Read: func(_ context.Context, n int) ([]byte, error) {
			return inPieces[n*semel.PieceBytes : min((n+1)*semel.PieceBytes, len(inPieces))], nil
		}}},
		"other": {Codec: "c/1", Body: other, Label: "201"},
	} {
		id := identity(key)
		c, err := s.Begin(t.Context(), semel.NewAttempt(id, semel.FingerprintOf([]byte(key)), time.Minute, time.Hour))
		if err == nil {
			_, err = c.Complete(t.Context(), res)
		}
		if err == nil && key != "other" {
			_, err = s.Erase(t.Context(), semel.Erasure{Identity: id, Fence: c.Fence()})
		}
		if err != nil {
			t.Fatal(key, err)
		}
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, path + "-wal"} {
		content, err := os.ReadFile(name)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, gone := range []string{"THE-SECRET", "SECRET-ANSWER", "IN-PIECES"} {
			if bytes.Contains(content, []byte(gone)) {
				t.Errorf("%s still has %s", name, gone)
			}
		}
		if name == path && !bytes.Contains(content, other) {
			t.Error("the test does not find what is there")
		}
	}
}
