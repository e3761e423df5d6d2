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

// form is the form of the response to a key. It is part of the key, so that every
// process that sees the key knows it.
type form string

const (
	formSmall     form = "small"     // recorded in one piece
	formLarge     form = "large"     // recorded in pieces
	formAnnounced form = "announced" // over the limit, with its length announced
	formChunked   form = "chunked"   // over the limit, without a length
	formStream    form = "stream"    // of events, with the effect in its middle
)

var forms = []form{formSmall, formLarge, formAnnounced, formChunked, formStream}

// Limits of what is tortured. They are low, so that reaching them is cheap, but a
// large response may still take two pieces.
const (
	maxInline = 16 << 10
	maxResult = 288 << 10
)

// retained reports whether a recorded response of the form can be replayed. Others
// reach the client at most once.
func (f form) retained() bool { return f == formSmall || f == formLarge }

// formKey returns the key with the given number. One key in every is not small.
func formKey(prefix string, number, every int) string {
	key := fmt.Sprintf("%s-%d", prefix, number)
	if every > 0 && number%every == 0 {
		others := forms[1:]
		key += "-" + string(others[number/every%len(others)])
	}
	return key
}

// formOf returns the form of the response to a key.
func formOf(key string) form {
	if f := form(key[strings.LastIndexByte(key, '-')+1:]); slices.Contains(forms, f) {
		return f
	}
	return formSmall
}

// reply is the body of a response, or the data of the last event of a stream. A part
// of it does not parse.
type reply struct {
	Effect string `json:"effect"`
	Key    string `json:"key"`
	// Filling makes the response as long as its form requires.
	Filling string `json:"filling"`
}

// headerEffect repeats the effect's id in the response's header.
const headerEffect = "Torture-Effect"

// headerRefused marks a response of a ledger that did nothing.
const headerRefused = "Torture-Refused"

const (
	typeReply  = "application/json"
	typeStream = "text/event-stream"

	lastEvent = "event: done\ndata: "
	eventEnd  = "\n\n"
)

// digest covers all that must be the same in every acknowledgement.
type digest struct{ hash.Hash }

func newDigest(status int, contentType, effect []string) digest {
	d := digest{sha256.New()}
	_, _ = fmt.Fprintf(d, "%d %q %q\n", status, contentType, effect)
	return d
}

func (d digest) String() string { return hex.EncodeToString(d.Sum(nil)[:6]) }

// errTorn means that a transfer came to its end, but the response is not whole.
var errTorn = errors.New("complete as a transfer, but not the whole response")

// parseReply parses the body of a whole response of the form.
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

// Manner says how long a ledger takes, and what it refuses.
type Manner struct {
	// Delay is the longest time that an ordinary effect takes.
	Delay time.Duration
	// Slow is the longest time that one in SlowEvery takes instead.
	Slow      time.Duration
	SlowEvery int
	// One in RefuseEvery requests is refused without an effect.
	RefuseEvery int
	// Seed decides what is chosen at random.
	Seed uint64
}

// planner plans the responses to requests.
type planner struct {
	Manner
	mu  sync.Mutex
	rng *rand.Rand
}

func newPlanner(m Manner) *planner {
	return &planner{Manner: m, rng: rand.New(rand.NewPCG(m.Seed, uint64(os.Getpid())))}
}

// plan is how to respond to one request.
type plan struct {
	form          form
	before, after time.Duration // of the effect
	refuse        bool
	announce      bool // the length of the response
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
		// As many from 16 to 32 KiB as from 128 to 256.
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

// parts returns the body of the response, in the parts in which it is written.
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

// respond causes the effect e and responds as planned, unless it refuses the request.
// happen gets e with the digest of the response.
func (l plan) respond(w http.ResponseWriter, e Effect, happen func(Effect)) {
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
	// A response that takes time can be cut off in its middle.
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
		_, _ = w.Write(p) // even if the client has gone
		if l.form != formSmall {
			w.(http.Flusher).Flush()
			wait(between)
		}
	}
}

// wait waits for d, even if the client has gone.
func wait(d time.Duration) { pause(context.Background(), d) }
