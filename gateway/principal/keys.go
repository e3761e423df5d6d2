package principal

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	jose "github.com/go-jose/go-jose/v4"
)

const (
	// maxKeySetBytes and maxKeys bound a set of keys; larger ones are refused.
	maxKeySetBytes = 512 << 10
	maxKeys        = 256
	// minAsk is the least time between two loads when the second is only for a
	// key that the first did not bring, and the least age of a set.
	minAsk = 30 * time.Second
	// minRetry is the least time between a load that failed and the next.
	minRetry = 5 * time.Second
	// absentFor is how long nothing is loaded for a key that a load did not
	// bring.
	absentFor = 5 * time.Minute
	// maxAbsent is how many such keys are remembered, or up to twice as many.
	maxAbsent = 1024
	// fileAge is how old what was read of a file may be.
	fileAge = 10 * time.Second
)

var (
	// errNoKey: there is no such key.
	errNoKey = errors.New("principal: the issuer has no such key")
	// errKeyMisfit: there is, but not for this.
	errKeyMisfit = errors.New("principal: the key is not for this algorithm")
)

// unknownYet is the error while it cannot be said whether there is a key.
type unknownYet struct {
	retryAfter time.Duration
	err        error
}

func (e *unknownYet) Error() string { return e.err.Error() }
func (e *unknownYet) Unwrap() error { return e.err }

// keyring holds the keys that an issuer publishes.
//
// They are loaded by the requests that need them, one at a time; the others wait
// only where there are no keys to go on with. What a load takes away is gone at
// once. When loads fail, the keys are good for another while.
type keyring struct {
	// load returns the keys, and how long they are good for.
	load    func(context.Context) (keySet, time.Duration, error)
	keep    time.Duration // how much longer they are, if loading fails
	timeout time.Duration // of a load
	failed  func(context.Context, error)
	waiting room

	mu      sync.Mutex
	keys    keySet // nil before the first
	version uint64 // of keys
	asked   time.Time
	refresh time.Time     // from then on there is to be a load
	expires time.Time     // from then on the keys need one
	retry   time.Time     // before then there is none, because the last failed
	broken  error         // how the last load failed
	flight  chan struct{} // closed when the load under way has ended; nil if there is none
	absent  generations[string, time.Time]
}

// keySet holds keys by their ids.
type keySet map[string][]jose.JSONWebKey

// current returns the version of the keys, if nothing needs to be done about them.
func (k *keyring) current(now time.Time) (version uint64, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.version, k.keys != nil && now.Before(k.refresh)
}

// find returns the key of the id for the algorithm, and of which version of the
// keys it is. An empty id means the only key there is for the algorithm.
func (k *keyring) find(ctx context.Context, id string, alg jose.SignatureAlgorithm) (found any, version uint64, _ error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	looked := false // loaded for this id
	for {
		now := time.Now()
		good := k.keys != nil && now.Before(k.expires)
		usable := good || k.keys != nil && k.broken != nil && now.Before(k.expires.Add(k.keep))
		if k.flight != nil && !usable {
			if err := k.await(ctx); err != nil {
				return nil, 0, err
			}
			continue
		}
		// A load that has just come back is not followed by another.
		if k.flight == nil && !looked && (k.keys == nil || !now.Before(k.refresh)) && !now.Before(k.retry) {
			looked = true
			k.renew(ctx)
			continue
		}
		if !usable {
			return nil, 0, &unknownYet{max(k.retry.Sub(now), time.Second), k.why()}
		}
		key, err := k.keys.find(id, alg)
		if err != errNoKey || id == "" {
			return key, k.version, err
		}
		// Nobody has this key, or it is newer than what was loaded.
		if at, ok := k.absent.get(id); ok && now.Before(at) {
			return nil, 0, errNoKey
		}
		switch {
		case looked && k.broken == nil:
			k.absent.put(id, now.Add(absentFor))
			return nil, 0, errNoKey
		case looked:
			return nil, 0, &unknownYet{max(k.asked.Add(minAsk).Sub(now), time.Second), k.why()}
		case k.flight != nil:
			if err := k.await(ctx); err != nil {
				return nil, 0, err
			}
		case now.Before(k.asked.Add(minAsk)):
			return nil, 0, &unknownYet{k.asked.Add(minAsk).Sub(now), errors.New("principal: the issuer was asked for its keys moments ago")}
		default:
			looked = true
			k.renew(ctx)
		}
	}
}

func (k *keyring) why() error {
	if k.broken != nil {
		return k.broken
	}
	return errors.New("principal: there are no keys of the issuer")
}

// await waits for the load under way. It is called with the lock held, which it
// gives up meanwhile.
func (k *keyring) await(ctx context.Context) error {
	flight := k.flight
	k.mu.Unlock()
	defer k.mu.Lock()
	if !k.waiting.enter() {
		return &unknownYet{time.Second, errBusy}
	}
	defer k.waiting.leave()
	select {
	case <-flight:
		return nil
	case <-ctx.Done(): // it is the client that has gone
		return &unknownYet{time.Second, context.Cause(ctx)}
	}
}

// renew loads the keys. It is called with the lock held, which it gives up
// meanwhile, and while no other load is under way.
func (k *keyring) renew(ctx context.Context) {
	flight := make(chan struct{})
	k.flight, k.asked = flight, time.Now()
	k.mu.Unlock()
	var keys keySet
	var life time.Duration
	err := errors.New("principal: loading the keys panicked")
	defer func() {
		k.mu.Lock()
		k.broken = err
		if err != nil {
			k.retry = time.Now().Add(minRetry)
		} else {
			k.version++
			// Counted from when they were asked for.
			k.keys, k.refresh, k.expires, k.retry = keys, k.asked.Add(life*3/4), k.asked.Add(life), time.Time{}
		}
		k.flight = nil
		close(flight)
	}()
	// Others wait for it too, and it is for the next that come.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.timeout)
	defer cancel()
	keys, life, err = k.load(ctx)
	if err != nil && k.failed != nil {
		k.failed(ctx, err)
	}
}

func (s keySet) find(id string, alg jose.SignatureAlgorithm) (any, error) {
	if id == "" {
		var found any
		for _, keys := range s {
			for _, key := range keys {
				if !fits(&key, alg) {
					continue
				}
				if found != nil {
					return nil, errNoKey // which of them, nobody says
				}
				found = key.Key
			}
		}
		if found == nil {
			return nil, errNoKey
		}
		return found, nil
	}
	keys, ok := s[id]
	if !ok {
		return nil, errNoKey
	}
	for _, key := range keys {
		if fits(&key, alg) {
			return key.Key, nil
		}
	}
	return nil, errKeyMisfit
}

// fits reports whether the key is for signatures by the algorithm.
func fits(key *jose.JSONWebKey, alg jose.SignatureAlgorithm) bool {
	if key.Algorithm != "" && key.Algorithm != string(alg) {
		return false
	}
	switch k := key.Key.(type) {
	case *rsa.PublicKey:
		return slices.Contains([]jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512}, alg)
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return alg == jose.ES256
		case elliptic.P384():
			return alg == jose.ES384
		case elliptic.P521():
			return alg == jose.ES512
		}
	case ed25519.PublicKey:
		return alg == jose.EdDSA
	}
	return false
}

// parseKeys reads a JWK Set (RFC 7517 5). Of keys that are not public keys for
// signatures it takes none.
func parseKeys(text []byte) (keySet, error) {
	var set struct {
		Keys *[]json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil || set.Keys == nil {
		return nil, errors.New("principal: the response is not a JWK Set")
	}
	if len(*set.Keys) > maxKeys {
		return nil, fmt.Errorf("principal: the set has %d keys; at most %d are read", len(*set.Keys), maxKeys)
	}
	keys := make(keySet)
	for _, raw := range *set.Keys {
		var key jose.JSONWebKey
		var more struct {
			Operations []string `json:"key_ops"`
		}
		if json.Unmarshal(raw, &more) != nil || key.UnmarshalJSON(raw) != nil || !usableKey(&key, more.Operations) {
			continue
		}
		keys[key.KeyID] = append(keys[key.KeyID], key)
	}
	return keys, nil
}

func usableKey(key *jose.JSONWebKey, operations []string) bool {
	if key.Use != "" && key.Use != "sig" || operations != nil && !slices.Contains(operations, "verify") || len(key.KeyID) > maxKeyID {
		return false
	}
	switch k := key.Key.(type) {
	case *rsa.PublicKey: // more than 4,096 bits are not read
		return k.N.BitLen() >= 2048
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return true
	}
	return false
}

// fileKeys loads keys from a file.
func fileKeys(name string, most time.Duration) func(context.Context) (keySet, time.Duration, error) {
	return func(context.Context) (keySet, time.Duration, error) {
		// A pipe would have us wait for its writer.
		if info, err := os.Stat(name); err != nil {
			return nil, 0, fmt.Errorf("principal: the file of keys cannot be read: %w", err)
		} else if !info.Mode().IsRegular() {
			return nil, 0, fmt.Errorf("principal: %s is not a regular file", name)
		}
		f, err := os.Open(name)
		if err != nil {
			return nil, 0, fmt.Errorf("principal: the file of keys cannot be read: %w", err)
		}
		defer func() { _ = f.Close() }()
		keys, err := readKeys(f)
		if err != nil {
			return nil, 0, fmt.Errorf("principal: %s: %w", name, err)
		}
		return keys, min(fileAge, most), nil
	}
}

func readKeys(r io.Reader) (keySet, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxKeySetBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("principal: the keys cannot be read: %w", err)
	case len(text) > maxKeySetBytes:
		return nil, fmt.Errorf("principal: the keys take more than %d bytes", maxKeySetBytes)
	}
	return parseKeys(text)
}

// urlKeys loads keys from a URL. A redirect is not followed.
func urlKeys(at *url.URL, transport http.RoundTripper, most time.Duration) func(context.Context) (keySet, time.Duration, error) {
	return func(ctx context.Context) (keySet, time.Duration, error) {
		r := &http.Request{Method: http.MethodGet, URL: at, Host: at.Host, Header: http.Header{
			"Accept": {"application/jwk-set+json, application/json"}, "User-Agent": {userAgent},
		}}
		res, err := transport.RoundTrip(r.WithContext(ctx))
		if err != nil {
			return nil, 0, fmt.Errorf("principal: the keys of %s cannot be loaded: %w", at.Host, err)
		}
		defer func() { _ = res.Body.Close() }()
		if res.StatusCode != http.StatusOK {
			return nil, 0, fmt.Errorf("principal: asked for its keys, %s answered with the status %d", at.Host, res.StatusCode)
		}
		keys, err := readKeys(res.Body)
		if err != nil {
			return nil, 0, fmt.Errorf("principal: the answer of %s: %w", at.Host, err)
		}
		return keys, freshness(res.Header, most), nil
	}
}

const userAgent = "semel-gateway"

// freshness is how long an answer is good for by its Cache-Control (RFC 9111
// 4.2), within bounds of our own.
func freshness(h http.Header, most time.Duration) time.Duration {
	life := most
	for _, line := range h["Cache-Control"] {
		for directive := range strings.SplitSeq(line, ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(directive), "=")
			switch strings.ToLower(name) {
			case "no-store", "no-cache":
				life = 0
			case "max-age":
				if s, err := strconv.ParseInt(strings.Trim(value, `"`), 10, 32); err == nil {
					life = min(life, time.Duration(s)*time.Second)
				}
			}
		}
	}
	if s, err := strconv.ParseInt(h.Get("Age"), 10, 32); err == nil && s > 0 {
		life -= time.Duration(s) * time.Second
	}
	return max(life, min(minAsk, most))
}

// endpointURL reads the URL of something that is trusted to say who callers are.
// Over http anybody on the way could say it.
func endpointURL(errs *[]error, field, s string, plain bool) *url.URL {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		err = errors.New("is not a URL") // the parser's error would show it
	case u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		err = errors.New("has no scheme and host; write it as https://host/path")
	case u.User != nil || u.Fragment != "":
		err = errors.New("holds a user name or a fragment; it can have neither")
	case u.Scheme == "http" && !plain && !isLoopback(u.Hostname()):
		err = errors.New("is http to another machine; use https")
	default:
		return u
	}
	*errs = append(*errs, fmt.Errorf("field %s %w", field, err))
	return &url.URL{}
}

func isLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// newTransport returns a transport of our own, with limits.
func newTransport(maxIdle int) *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:    5 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		DisableKeepAlives:      maxIdle == 0,
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        30 * time.Second,
		ForceAttemptHTTP2:      maxIdle > 0,
	}
}

// generations is a bounded map: when most have been put in, those before them
// are forgotten. So it holds twice as many at the most.
type generations[K comparable, V any] struct {
	most       int
	young, old map[K]V
}

func (g *generations[K, V]) get(key K) (V, bool) {
	v, ok := g.young[key]
	if !ok {
		v, ok = g.old[key]
	}
	return v, ok
}

func (g *generations[K, V]) put(key K, v V) {
	if g.young == nil || len(g.young) >= g.most {
		g.old, g.young = g.young, make(map[K]V)
	}
	g.young[key] = v
}
