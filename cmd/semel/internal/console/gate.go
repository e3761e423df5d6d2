package console

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

// Gate lets in whoever has the token, and slows down whoever guesses it. An address
// that has used up its wrong tokens is refused without a comparison until it has one
// again, unless the right token came from there lately: it may be that of a proxy,
// behind which others are. Safe for concurrent use.
type Gate struct {
	token   [sha256.Size]byte
	open    bool
	refused func(times int)

	mu      sync.Mutex
	all     allowance
	sources map[netip.Prefix]*source
	wrong   int // not told yet
	told    time.Time
}

// source is where tokens have come from.
type source struct {
	allowance
	right time.Time // when the right one last came
}

// allowance is when all that was used of it will be there again.
type allowance time.Time

const (
	sourceBurst, sourceEvery = 10, 6 * time.Second // wrong tokens of one address
	allBurst, allEvery       = 100, 600 * time.Millisecond
	rightFor                 = time.Hour // how long an address is known for the right token
	maxSources               = 4096
)

// left returns how long it takes until there is something, 0 if there is.
func (a allowance) left(now time.Time, burst int, every time.Duration) time.Duration {
	return max(time.Time(a).Sub(now.Add(time.Duration(burst-1)*every)), 0)
}

// use takes one, if there is one, and returns how long it takes until there is.
func (a *allowance) use(now time.Time, burst int, every time.Duration) time.Duration {
	wait := a.left(now, burst, every)
	if wait == 0 {
		if until := time.Time(*a); until.After(now) {
			now = until
		}
		*a = allowance(now.Add(every))
	}
	return wait
}

// NewGate returns a gate; with an empty token it is always closed. refused is told
// how many wrong tokens came, at most once a minute.
func NewGate(token string, refused func(times int)) *Gate {
	return &Gate{token: sha256.Sum256([]byte(token)), open: token != "", refused: refused, sources: map[netip.Prefix]*source{}}
}

// Admit reports whether the token, which the request has given, is right. If not,
// wait is how long the client should wait before another; 0 if it need not.
func (g *Gate) Admit(r *http.Request, token string) (ok bool, wait time.Duration) {
	now, from := time.Now(), sourceOf(r)
	g.mu.Lock()
	if s := g.sources[from]; s != nil && now.Sub(s.right) > rightFor {
		wait = s.left(now, sourceBurst, sourceEvery)
	}
	g.mu.Unlock()
	given := sha256.Sum256([]byte(token))
	ok = wait == 0 && g.open && subtle.ConstantTimeCompare(g.token[:], given[:]) == 1
	times := 0
	defer func() {
		if times > 0 {
			g.refused(times)
		}
	}()
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.source(from, now)
	if ok {
		s.right = now
		return true, 0
	}
	if g.wrong++; now.Sub(g.told) >= time.Minute {
		times, g.wrong, g.told = g.wrong, 0, now
	}
	if wait > 0 {
		return false, wait
	}
	return false, max(s.use(now, sourceBurst, sourceEvery), g.all.use(now, allBurst, allEvery))
}

// source returns what is known of an address. If there are too many, it is not
// remembered.
func (g *Gate) source(from netip.Prefix, now time.Time) *source {
	s := g.sources[from]
	if s == nil {
		s = &source{}
		if len(g.sources) >= maxSources {
			for at, old := range g.sources {
				if !time.Time(old.allowance).After(now) && now.Sub(old.right) > rightFor {
					delete(g.sources, at)
				}
			}
		}
		if len(g.sources) < maxSources {
			g.sources[from] = s
		}
	}
	return s
}

// sourceOf is the address at the other end of the connection, or the network that one
// customer of a provider has at least.
func sourceOf(r *http.Request) netip.Prefix {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Prefix{}
	}
	bits := 32
	if at.Addr().Unmap().Is6() {
		bits = 64
	}
	network, _ := at.Addr().Unmap().WithZone("").Prefix(bits)
	return network
}

// RetryAfter is the header of that name: whole seconds, at least one.
func RetryAfter(wait time.Duration) string {
	return strconv.Itoa(int((wait + time.Second - 1) / time.Second))
}
