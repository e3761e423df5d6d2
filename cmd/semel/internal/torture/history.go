package torture

import (
	"bufio"
	"fmt"
	"io"
	"sync"
	"time"
)

// kind is the kind of an event.
type kind string

const (
	kindAttempt  kind = "attempt"
	kindResponse kind = "response"
	kindBroken   kind = "broken" // an attempt that got no whole response
	kindEnd      kind = "end"    // a client is done with a key
	kindCut      kind = "cut"
	kindKill     kind = "kill"
	kindStart    kind = "start"
	kindPause    kind = "pause"
	kindResume   kind = "resume"
	kindStall    kind = "stall" // the machine made no progress for a while
	kindLog      kind = "log"   // a line of a process
	kindPhase    kind = "phase"
	kindEffect   kind = "effect" // from the ledger, in timelines only
	kindHold     kind = "hold"   // a connection passes nothing for a while
	kindPass     kind = "pass"   // it passes again
	kindAgain    kind = "again"  // an operator runs a finished job again
)

// event is one line of the history.
type event struct {
	at       time.Duration // since the start of the run
	kind     kind
	who      string
	key      string
	attempt  uint64 // number of the attempt, also in its response
	text     string
	took     time.Duration // of a stall
	side     side          // of a cut
	response *response     // of a response
	left     bool          // of a broken attempt: the client stopped waiting
	begun    bool          // of a broken attempt: an acknowledgement had begun
	effect   string        // of a broken attempt: named in the header of its response
	entry    entry         // of an attempt at a shop, its response, and its end
}

func (e event) String() string {
	key := e.key
	if key == "" {
		key = "-"
	}
	text := e.text
	if e.attempt != 0 {
		text = fmt.Sprintf("#%d %s", e.attempt, text)
	}
	return fmt.Sprintf("%11.6f  %-18s %-11s %-8s %s", e.at.Seconds(), key, e.who, e.kind, text)
}

// history lists what happened, in order. It is also written to a file as it
// grows, so that a run that dies leaves one.
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

// snapshot returns the events so far, which no longer change.
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
