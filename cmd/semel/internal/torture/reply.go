package torture

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// form is how the answer to a key looks. It is part of the key, so that whoever
// meets the key knows it.
type form string

const (
	formSmall     form = "small"     // recorded in one piece
	formLarge     form = "large"     // recorded in pieces
	formAnnounced form = "announced" // over the limit, and says so by its length
	formChunked   form = "chunked"   // over the limit, and does not say so
	formStream    form = "stream"    // of events, with the effect in its middle
)

var forms = []form{formSmall, formLarge, formAnnounced, formChunked, formStream}

// Limits of what is tortured. They are low, so that reaching them is cheap; a
// large answer may still take two pieces.
const (
	maxInline = 16 << 10
	maxResult = 288 << 10
)

// retained reports whether a recorded answer of the form can be replayed. Others
// reach the client once, if at all.
func (f form) retained() bool { return f == formSmall || f == formLarge }

// formKey returns the key with this number, and one key in every large is of
// another form than small.
func formKey(prefix string, number, every int) string {
	key := fmt.Sprintf("%s-%d", prefix, number)
	if every > 0 && number%every == 0 {
		others := forms[1:]
		key += "-" + string(others[number/every%len(others)])
	}
	return key
}

// formOf returns the form of a key's answer.
func formOf(key string) form {
	if f := form(key[strings.LastIndexByte(key, '-')+1:]); slices.Contains(forms, f) {
		return f
	}
	return formSmall
}

// reply is the body of an answer, or of the last event of a stream. Whoever reads
// it whole knows that it is.
type reply struct {
	Effect string `json:"effect"`
	Key    string `json:"key"`
	// Filling makes the answer as long as its form wants it.
	Filling string `json:"filling"`
}

// headerEffect repeats the effect's id in the answer's header.
const headerEffect = "Torture-Effect"

// headerRefused marks an answer of a ledger that did nothing.
const headerRefused = "Torture-Refused"

const (
	typeReply  = "application/json"
	typeStream = "text/event-stream"

	lastEvent = "event: done\ndata: "
	eventEnd  = "\n\n"
)

// digest is of all that must be the same in every acknowledgement.
type digest struct{ hash.Hash }

func newDigest(status int, contentType, effect []string) digest {
	d := digest{sha256.New()}
	_, _ = fmt.Fprintf(d, "%d %q %q\n", status, contentType, effect)
	return d
}

func (d digest) String() string { return hex.EncodeToString(d.Sum(nil)[:6]) }

// errTorn: an answer's transfer came to its end, but the answer did not.
var errTorn = errors.New("whole by its transfer, but not all of the answer")

// parseReply returns what a whole answer of the form says.
func parseReply(f form, body []byte) (told reply, err error) {
	if f == formStream {
		events, ok := bytes.CutSuffix(body, []byte(eventEnd))
		at := bytes.LastIndex(events, []byte(lastEvent))
		if !ok || at < 0 {
			return told, errTorn
		}
		body = events[at+len(lastEvent):]
	}
	if json.Unmarshal(body, &told) != nil {
		return told, errTorn
	}
	return told, nil
}

// Manner is how a ledger takes its time, and what it refuses.
type Manner struct {
	// Delay is the longest time that an ordinary effect takes.
	Delay time.Duration
	// Slow is the longest time that one in SlowEvery takes instead.
	Slow      time.Duration
	SlowEvery int
	// One in RefuseEvery requests is refused without an effect.
	RefuseEvery int
	// Seed decides all that.
	Seed uint64
}

// planner plans how requests are answered.
type planner struct {
	Manner
	mu  sync.Mutex
	rng *rand.Rand
}

func newPlanner(m Manner) *planner {
	return &planner{Manner: m, rng: rand.New(rand.NewPCG(m.Seed, uint64(os.Getpid())))}
}

// plan is how one request is answered.
type plan struct {
	form          form
	before, after time.Duration // of the effect
	refuse        bool
	announce      bool // the length of the answer
	events        int
	filling       int
}

func (p *planner) plan(key string) plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	whole := randomDuration(p.rng, 0, p.Delay)
	if p.SlowEvery > 0 && p.rng.IntN(p.SlowEvery) == 0 {
		whole = randomDuration(p.rng, p.Delay, p.Slow)
	}
	l := plan{form: formOf(key), before: randomDuration(p.rng, 0, whole), events: 3 + p.rng.IntN(6)}
	l.after = whole - l.before
	l.refuse = p.RefuseEvery > 0 && p.rng.IntN(p.RefuseEvery) == 0
	switch l.form {
	case formLarge:
		// As many between 16 and 32 KiB as between 128 and 256.
		l.filling = min(maxInline<<p.rng.IntN(5)+p.rng.IntN(maxInline), maxResult-1<<10)
		l.announce = p.rng.IntN(2) == 0
	case formAnnounced, formChunked:
		l.filling = maxResult + p.rng.IntN(64<<10)
		l.announce = l.form == formAnnounced
	case formStream:
		l.filling = p.rng.IntN(4 << 10)
	default:
		l.filling = p.rng.IntN(4 << 10)
		l.announce = true
	}
	return l
}

// parts returns an answer's body as it is written, part by part.
func (l plan) parts(e Effect) [][]byte {
	last, err := json.Marshal(reply{e.ID, e.Key, strings.Repeat("x", l.filling)})
	if err != nil {
		panic(err)
	}
	if l.form != formStream {
		half := len(last) / 2
		return [][]byte{last[:half], last[half:]}
	}
	var parts [][]byte
	for n := range l.events {
		parts = append(parts, fmt.Appendf(nil, "event: step\ndata: %d of %d%s", n+1, l.events, eventEnd))
	}
	return append(parts, fmt.Appendf(nil, "%s%s%s", lastEvent, last, eventEnd))
}

// answer has the effect e happen and answers a request as planned, unless it is
// refused. happen is given e with the digest of the answer.
func (l plan) answer(w http.ResponseWriter, e Effect, happen func(Effect)) {
	if l.refuse {
		wait(l.before)
		w.Header().Set("Retry-After", "1")
		w.Header().Set(headerRefused, "true")
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	h := w.Header()
	h.Set("Content-Type", typeReply)
	if l.form == formStream {
		h.Set("Content-Type", typeStream)
	}
	h.Set(headerEffect, e.ID)
	parts := l.parts(e)
	d := newDigest(http.StatusCreated, h["Content-Type"], h[headerEffect])
	size := 0
	for _, p := range parts {
		_, _ = d.Write(p)
		size += len(p)
	}
	e.Digest = d.String()
	if l.announce {
		h.Set("Content-Length", strconv.Itoa(size))
	}
	// An answer that takes its time can be cut off in its middle.
	effectAt, between := 0, l.after/2
	if l.form == formStream {
		effectAt, between = len(parts)/2, (l.before+l.after)/time.Duration(len(parts))
	} else {
		wait(l.before)
	}
	for n, p := range parts {
		if n == effectAt {
			happen(e)
			if l.form != formStream {
				wait(l.after - between)
			}
		}
		if n == 0 {
			w.WriteHeader(http.StatusCreated)
		}
		_, _ = w.Write(p) // whether somebody is there does not matter
		if l.form != formSmall {
			w.(http.Flusher).Flush()
			wait(between)
		}
	}
}

// wait takes its time, whoever asked and has gone since.
func wait(d time.Duration) { pause(context.Background(), d) }
