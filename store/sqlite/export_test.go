package sqlite

import (
	"regexp"
	"strings"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/recordid"
)

// FilterQueries returns, with parameters written as 1, queries of List, Trail,
// Find and Sweep and the index that each shall use.
func FilterQueries() map[string]string {
	names, err := recordid.New(make([]byte, recordid.SecretBytes))
	if err != nil {
		panic(err)
	}
	s := &Store{names: names}
	list := func(f semel.Filter) string { q, _ := s.listQuery(f, 0); return q }
	trail := func(f semel.TrailFilter) string { q, _ := s.trailQuery(f); return q }
	executions := func(f semel.TrailFilter) string { q, _ := s.executionsQuery(f, 0); return q }
	numbered := regexp.MustCompile(`[?][0-9]`)
	queries := map[string]string{
		selectRecord:                        "record_identity",
		selectExpired:                       "record_expiry",
		list(semel.Filter{}):                "PRIMARY KEY",
		list(semel.Filter{ID: names.ID(7)}): "PRIMARY KEY",
		list(semel.Filter{Key: "x"}):        "record_identity",
		list(semel.Filter{Tenant: "t", Actor: "a", Operation: "o", Key: "x"}): "record_identity",
		list(semel.Filter{State: semel.StateUnknown}):                         "record_open",
		list(semel.Filter{State: semel.StateInProgress}):                      "record_open",
		list(semel.Filter{Lapsed: true}):                                      "record_open",
		executions(semel.TrailFilter{Key: "x"}):                               "record_identity",
		executions(semel.TrailFilter{RequestID: "x"}):                         "record_request",
		executions(semel.TrailFilter{EventID: "x"}):                           "record_event",
		executions(semel.TrailFilter{TraceID: "x", Tenant: "t"}):              "record_trace",
		executions(semel.TrailFilter{RecordID: names.ID(7)}):                  "PRIMARY KEY",
		selectRun: "PRIMARY KEY",
		numbered.ReplaceAllString(selectRuns, "?"):                               "executed_at",
		trail(semel.TrailFilter{}):                                               "PRIMARY KEY",
		trail(semel.TrailFilter{RecordID: "x"}):                                  "trail_record_id",
		trail(semel.TrailFilter{RecordID: names.ID(7)}):                          "trail_record",
		trail(semel.TrailFilter{Key: "x"}):                                       "trail_key",
		trail(semel.TrailFilter{Tenant: "t", Key: "x"}):                          "trail_key",
		trail(semel.TrailFilter{RequestID: "x"}):                                 "trail_request",
		trail(semel.TrailFilter{EventID: "x"}):                                   "trail_event",
		trail(semel.TrailFilter{TraceID: "x", Since: time.Unix(1, 0)}):           "trail_trace",
		trail(semel.TrailFilter{Since: time.Unix(1, 0), Until: time.Unix(2, 0)}): "trail_at",
	}
	out := make(map[string]string, len(queries))
	for q, index := range queries {
		out[strings.ReplaceAll(q, "?", "1")] = index
	}
	return out
}

// Cached reports whether the completed record of id is answered without the file.
func (s *Store) Cached(id semel.Identity) bool {
	return s.cache.get(&id, time.Now().UnixMicro()) != nil
}

// ForgetPending has the next message count those that wait.
func (s *Store) ForgetPending() {
	s.pending.mu.Lock()
	defer s.pending.mu.Unlock()
	s.pending.counted = time.Time{}
}

// Settle has the store take its directory for one that has been left alone, and
// reports whether it does.
func (s *Store) Settle() bool {
	s.files.settle = 0
	return s.files.look() == nil && s.Settled()
}

// Settled reports whether the store takes its directory for one that has been left
// alone.
func (s *Store) Settled() bool { return s.files.calm.Load() != nil }
