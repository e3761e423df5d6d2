package postgres

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// where collects the conditions of a query.
type where struct {
	conditions []string
	args       []any
}

// add adds a condition, in which each "?" stands for the next argument.
func (w *where) add(condition string, args ...any) {
	for _, a := range args {
		condition = strings.Replace(condition, "?", w.arg(a), 1)
	}
	w.conditions = append(w.conditions, condition)
}

// arg adds an argument and returns what stands for it.
func (w *where) arg(a any) string {
	w.args = append(w.args, a)
	return "$" + strconv.Itoa(len(w.args))
}

func (w *where) equal(column, value string) {
	if value != "" {
		// A value that no column can hold equals none.
		w.add(column+" = ?", text(value))
	}
}

// between adds the condition that a time is not before since and before until.
func (w *where) between(column string, since, until time.Time) {
	if !since.IsZero() {
		w.add(column+" >= ?", ceilMicro(since))
	}
	if !until.IsZero() {
		w.add(column+" < ?", ceilMicro(until))
	}
}

// and returns the conditions and another one.
func (w *where) and(condition string) string {
	return strings.Join(append(slices.Clone(w.conditions), condition), " AND ")
}
