package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Names of what is compared.
const (
	semelSQLite   = "semel-sqlite"
	semelMemory   = "semel-memory"
	semelFunction = "semel-guard"
	fiberThree    = "fiber-v3"
	fiberTwo      = "fiber-v2"
	byHand        = "by-hand-sqlite"
	watermill     = "watermill"
)

// columns are what facts are told of. What is true of semel over SQLite is true
// of it over memory, but for the facts about processes.
var columns = []string{semelSQLite, semelMemory, fiberThree, fiberTwo, byHand, watermill}

// about says what each column is.
var about = [][2]string{
	{semelSQLite, "this package's middleware, on store/sqlite"},
	{semelMemory, "the same on store/memory"},
	{semelFunction, "semel.Guard.Do over a function, on store/memory; what watermill is measured beside"},
	{fiberThree, "github.com/gofiber/fiber/v3 v3.2.0, middleware/idempotency, with its default lock. Its storage is a folder where a fact needs one that outlives the process, and its own map elsewhere"},
	{fiberTwo, "github.com/gofiber/fiber/v2 v2.52.15, likewise"},
	{byHand, "what a service writes for itself: insert the key, execute, update the row with the answer"},
	{watermill, "github.com/ThreeDotsLabs/watermill v1.5.1, middleware.Deduplicator over a message handler, keyed by a metadata field"},
}

// A fact is what a protection does in one situation. TestFacts finds out each
// that has a test; the others are from reading the source.
type fact struct {
	id, asks string
	read     bool
	says     map[string]string // for each of columns
}

// What becomes of a request.
const (
	executes = "EXECUTED" // once more
	replays  = "replayed"
	drops    = "dropped"
	inTheWay = "409"
	mismatch = "422"
	none     = "-" // the question makes no sense here
)

func row(id, asks string, says ...string) fact {
	f := fact{id: id, asks: asks, says: map[string]string{}}
	for i, c := range columns {
		f.says[c] = says[i]
	}
	return f
}

func read(f fact) fact {
	f.read = true
	return f
}

var facts = []fact{
	//                                                                semel-sqlite semel-memory fiber-v3 fiber-v2 by-hand watermill
	row("retry", "a retry after the answer", replays, replays, replays, replays, replays, drops),
	row("body", "the key again, with another body (fingerprint)", mismatch, mismatch, replays, replays, replays, drops),
	row("caller", "the key again, from another caller (scope)", executes, executes, replays, replays, replays, drops),
	row("path", "the key again, on another path (scope)", executes, executes, replays, replays, replays, drops),
	row("race", "16 at once, one process: executions", "1", "1", "1", "1", "1", "1"),
	row("in-flight", "a duplicate while the first executes", inTheWay, inTheWay, "waits", "waits", inTheWay, drops),
	row("two", "the same, in another process on the same store", inTheWay, none, executes, executes, inTheWay, none),
	row("500", "a retry after the handler answered 500", replays, replays, replays, replays, replays, drops),
	row("error", "a retry after the handler returned an error, where it can", none, none, executes, executes, none, drops),
	row("panic", "a retry after the handler panicked", "409 unknown", "409 unknown", executes, executes, inTheWay, drops),
	row("died", "a retry after the process died in the handler", "409 unknown", none, executes, executes, "409 for ever", none),
	row("restart", "a retry after the answer and a restart", replays, none, replays, replays, replays, none),
	row("unsaved", "a retry after the answer could not be saved", "409 unknown", "409 unknown", executes, executes, inTheWay, none),
	row("headers", "two values of a header replayed in order", "yes", "yes", "yes", "yes", "yes", none),
	read(row("lease", "a lease that is renewed while the handler runs", "yes", "yes", "no", "no", "no", "no")),
	read(row("fence", "a fence: a stale owner can write nothing", "yes", "yes", "no", "no", "no", "no")),
	read(row("trail", "an audit trail of executions, replays, refusals", "yes", "yes", "no", "no", "no", "no")),
	read(row("memory", "records in memory are bounded", none, "yes", "no", "no", none, "no")),
}

// printFacts writes the table, and what the columns are.
func printFacts(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "what happens, or is there")
	for _, c := range columns {
		fmt.Fprint(t, "\t", c)
	}
	fmt.Fprintln(t)
	for _, f := range facts {
		fmt.Fprint(t, f.asks)
		if f.read {
			fmt.Fprint(t, " *")
		}
		for _, c := range columns {
			fmt.Fprint(t, "\t", f.says[c])
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\n* from reading the source; the others are what TestFacts sees. EXECUTED: the effect once more.\ndropped: acknowledged without an effect, and nobody is told what became of the first. -: not to be had.")
	for _, a := range about {
		if _, err := fmt.Fprintf(w, "%s: %s\n", a[0], a[1]); err != nil {
			return err
		}
	}
	return nil
}
