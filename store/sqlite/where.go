package sqlite

import (
	"database/sql/driver"
	"math"
	"strconv"
	"strings"
)

// where builds a query for a page of a table's rows, in the order of their ids.
type where struct {
	table, order, columns string

	conditions []string
	args       []driver.Value
	start      int64
	bucketed   bool
}

func (w *where) add(condition string, args ...driver.Value) {
	w.conditions = append(w.conditions, condition)
	w.args = append(w.args, args...)
}

// after selects the rows behind the one with id.
func (w *where) after(id uint64) {
	w.start = int64(min(id, math.MaxInt64))
	w.add(w.order+" > ?", w.start)
}

func (w *where) equal(column, value string) {
	if value != "" {
		w.add(column+" = ?", value)
	}
}

// equalInBuckets is equal for a column whose index begins with a bucket.
func (w *where) equalInBuckets(column, value string) {
	if value != "" {
		w.equal(column, value)
		w.bucketed = true
	}
}

// query returns the query for a page of limit rows.
func (w *where) query(limit int) (string, []driver.Value) {
	switch {
	case limit <= 0:
		limit = 100
	case limit > 1000:
		limit = 1000
	}
	from := w.table
	with := ""
	args := w.args
	if w.bucketed {
		// The buckets that have rows, one after the other, each found by
		// the id of its first row.
		with = strings.NewReplacer("TABLE", w.table, "ID", w.order).Replace(`
			WITH RECURSIVE bucket (n) AS (
				SELECT (SELECT ID >> 11 FROM TABLE WHERE ID > ? ORDER BY ID LIMIT 1)
				UNION ALL
				SELECT (SELECT ID >> 11 FROM TABLE WHERE ID >= (n + 1) << 11 ORDER BY ID LIMIT 1) FROM bucket WHERE n IS NOT NULL
			) `)
		from = "bucket CROSS JOIN " + w.table
		w.conditions = append(w.conditions, w.order+" >> 11 = n")
		args = append([]driver.Value{w.start}, args...)
	}
	return with + "SELECT " + w.columns + " FROM " + from + " WHERE " + strings.Join(w.conditions, " AND ") +
		" ORDER BY " + w.order + " LIMIT " + strconv.Itoa(limit), args
}
