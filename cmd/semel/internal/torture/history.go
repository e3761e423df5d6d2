package torture

import (
	"bufio"
	"fmt"
	"io"
	"sync"
	"time"
)

// kind says what an event is.
type kind string

const (
	kindAsk    kind = "ask"
	kindAnswer kind = "answer"
	kindBroken kind = "broken" // an ask that was not answered
	kindEnd    kind = "end"    // a client is done with a key
	kindCut    kind = "cut"
	kindKill   kind = "kill"
	kindStart  kind = "start"
	kindPause  kind = "pause"
	kindResume kind = "resume"
	kindStall  kind = "stall" // the machine did not get on for a while
	kindLog    kind = "log"   // a line of a process
	kindPhase  kind = "phase"
	kindEffect kind = "effect" // from the ledger, in timelines only
	kindHold   kind = "hold"   // a connection passes nothing for a while
	kindPass   kind = "pass"   // it passes again
	kindAgain  kind = "again"  // somebody has what is done run again
)

// event is one line of the history.
type event struct {
	at     time.Duration // since the start of the run
	kind   kind
	who    string
	key    string
	ask    uint64 // ties an answer to its ask
	text   string
	took   time.Duration // of a stall
	side   side          // of a cut
	answer *answer       // of an answer
	left   bool          // of a broken ask: the client did not wait longer
	begun  bool          // of a broken ask: an acknowledgement had begun
	effect string        // that it told of in its header
	entry  entry         // of an ask of a shop, what came of it, and its end
}

func (e event) String() string {
	key := e.key
	if key == "" {
		key = "-"
	}
	text := e.text
	if e.ask != 0 {
		text = fmt.Sprintf("#%d %s", e.ask, text)
	}
	return fmt.Sprintf("%11.6f  %-12s %-11s %-7s %s", e.at.Seconds(), key, e.who, e.kind, text)
}

// history is what happened, in order. It is also written to a file as it comes,
// so that a run that dies leaves one.
type history struct {
	start time.Time

	mu     sync.Mutex
	events []event
	out    *bufio.Writer
	err    error // of out
}

func newHistory(w io.Writer) *history {
	return &history{start: time.Now(), out: bufio.NewWriterSize(w, 64<<10)}
}

func (h *history) add(e event) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.at = time.Since(h.start)
	h.events = append(h.events, e)
	if _, err := fmt.Fprintln(h.out, e); err != nil && h.err == nil {
		h.err = err
	}
	return e.at
}

// snapshot returns the events so far. They do not change any more.
func (h *history) snapshot() []event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.events[:len(h.events):len(h.events)]
}

func (h *history) flush() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.out.Flush(); err != nil && h.err == nil {
		h.err = err
	}
	return h.err
}
