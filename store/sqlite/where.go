package sqlite

import (
	"database/sql/driver"
	"strconv"
	"strings"

	"github.com/semelhq/semel"
)

// where collects the conditions of a query.
type where struct {
	conditions []string
	args       []driver.Value
}

func (w *where) add(condition string, args ...driver.Value) {
	w.conditions = append(w.conditions, condition)
	w.args = append(w.args, args...)
}

func (w *where) equal(column, value string) {
	if value != "" {
		w.add(column+" = ?", value)
	}
}

// key selects entries by their key, in the words of the index of its end.
func (w *where) key(key string) {
	if key != "" {
		w.add("substr(key, -6) = substr(?, -6) AND key = ?", key, key)
	}
}

// entry selects by what entries and records have in common, except the key.
func (w *where) entry(f semel.TrailFilter) {
	w.equal("tenant", f.Tenant)
	w.equal("actor", f.Actor)
	w.equal("operation", f.Operation)
	w.equal("request_id", f.RequestID)
	w.equal("event_id", f.EventID)
	w.equal("trace_id", f.TraceID)
}

func (w where) String() string {
	if len(w.conditions) == 0 {
		return "true"
	}
	return strings.Join(w.conditions, " AND ")
}

// with returns w and one more condition.
func (w where) with(condition string, args ...driver.Value) where {
	return where{
		append(w.conditions[:len(w.conditions):len(w.conditions)], condition),
		append(w.args[:len(w.args):len(w.args)], args...),
	}
}

// inBuckets returns a query for rows of a table that an index of buckets finds,
// the first limit in an order. Only buckets after the id start are searched.
func inBuckets(table, id, columns string, start int64, w where, order string, limit int) (string, []driver.Value) {
	// The buckets that have rows, one after the other, each found by the id
	// of its first row.
	with := strings.NewReplacer("TABLE", table, "ID", id).Replace(`
		WITH RECURSIVE bucket (n) AS (
			SELECT (SELECT ID >> 11 FROM TABLE WHERE ID > ? ORDER BY ID LIMIT 1)
			UNION ALL
			SELECT (SELECT ID >> 11 FROM TABLE WHERE ID >= (n + 1) << 11 ORDER BY ID LIMIT 1) FROM bucket WHERE n IS NOT NULL
		) `)
	return with + "SELECT " + columns + " FROM bucket CROSS JOIN " + table + " WHERE " + id + " >> 11 = n AND " + w.String() +
		" ORDER BY " + order + " LIMIT " + strconv.Itoa(limit), append([]driver.Value{start}, w.args...)
}
