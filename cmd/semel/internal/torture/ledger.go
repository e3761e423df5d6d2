package torture

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/gateway"
)

// Effect is a line of the ledger: an effect that happened.
type Effect struct {
	ID    string    `json:"effect"`
	Key   string    `json:"key"`
	Fence string    `json:"fence"` // of the claim, from the gateway
	At    time.Time `json:"at"`
	PID   int       `json:"pid"`
	// Digest is the digest of the response that reports the effect.
	Digest string `json:"digest"`
}

// LedgerConfig says how an effect ledger behaves.
type LedgerConfig struct {
	// File keeps the effects. It is created if it does not exist.
	File string
	// Listen is the address to listen on.
	Listen string
	Manner
	// Listening is called with the address when the ledger listens.
	Listening func(addr string)
}

// ServeLedger runs a ledger until ctx ends: a service without any protection of
// its own, which causes one effect per request, even if the client has gone. An
// effect is on disk before the response.
func ServeLedger(ctx context.Context, c LedgerConfig) error {
	f, err := os.OpenFile(c.File, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	l := &ledger{planner: newPlanner(c.Manner), file: f}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: l, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	c.Listening(listener.Addr().String())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

type ledger struct {
	planner *planner

	mu   sync.Mutex
	file *os.File
}

func (l *ledger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	e := newEffect(r)
	l.planner.plan(e.Key).respond(w, e, func(e Effect) {
		e.At = time.Now()
		if err := l.put(e); err != nil {
			// It may be on disk or not, and nothing here can repair that.
			_, _ = fmt.Fprintln(os.Stderr, "semel torture ledger:", err)
			os.Exit(1)
		}
	})
}

// newEffect returns the effect of a request, which has not happened yet.
func newEffect(r *http.Request) Effect {
	return Effect{
		ID: semel.NewRecordID(), Key: strings.Trim(r.Header.Get("Idempotency-Key"), `"`),
		Fence: r.Header.Get(gateway.HeaderFence), PID: os.Getpid(),
	}
}

// put writes the effect to disk, which is when it happens.
func (l *ledger) put(e Effect) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.file.Write(append(line, '\n')); err != nil {
		return err
	}
	return l.file.Sync()
}

// readLedger returns the effects so far. A line counts once it is whole.
func readLedger(file string) ([]Effect, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if end := bytes.LastIndexByte(b, '\n'); end >= 0 {
		b = b[:end+1]
	} else {
		b = nil
	}
	var effects []Effect
	in := bufio.NewScanner(bytes.NewReader(b))
	for in.Scan() {
		var e Effect
		if err := json.Unmarshal(in.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("line %d of the ledger: %w", len(effects)+1, err)
		}
		effects = append(effects, e)
	}
	return effects, in.Err()
}

func randomDuration(rng *rand.Rand, from, to time.Duration) time.Duration {
	if to <= from {
		return from
	}
	return from + time.Duration(rng.Int64N(int64(to-from)))
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
