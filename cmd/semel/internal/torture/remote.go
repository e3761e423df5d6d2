package torture

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/semelhq/semel"
)

// headerOrder names the order that a message between processes is about. Only proxies
// read it.
const headerOrder = "Torture-Order"

// Charge is a line of the remote's ledger: a charge, or a later call under its key.
type Charge struct {
	ID     string    `json:"charge"`
	Key    string    `json:"key"`
	Order  string    `json:"order"`
	Repeat bool      `json:"repeat,omitempty"`
	At     time.Time `json:"at"`
}

// RemoteConfig says how the remote service of shops behaves.
type RemoteConfig struct {
	// File keeps the charges. It is created if it does not exist.
	File string
	// Listen is the address to listen on.
	Listen string
	Manner
	// Listening is called with the address when the service listens.
	Listening func(addr string)
}

// ServeRemote runs, until ctx ends, a service that charges. Like many payment services,
// it charges once for each Idempotency-Key, for as long as its file exists, and responds
// to a repetition as to the first request. It knows nothing else: two keys for one order
// are two charges. A charge is made even if the client has gone, and is on disk before
// the response. Some orders are declined for good, and some calls are turned away.
func ServeRemote(ctx context.Context, c RemoteConfig) error {
	f, err := os.OpenFile(c.File, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	r := &remote{planner: newPlanner(c.Manner), file: f, made: map[string]string{}}
	before, err := readCharges(c.File)
	if err != nil {
		return err
	}
	if err := mend(f); err != nil {
		return err
	}
	for _, b := range before {
		if !b.Repeat {
			r.made[b.Key] = b.ID
		}
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	c.Listening(listener.Addr().String())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

type remote struct {
	planner *planner

	mu   sync.Mutex
	file *os.File
	made map[string]string // id of the charge, by key
}

func (m *remote) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	order, err := io.ReadAll(io.LimitReader(r.Body, 1<<10))
	key := strings.Trim(r.Header.Get("Idempotency-Key"), `"`)
	if err != nil || key == "" {
		http.Error(w, "no key", http.StatusBadRequest)
		return
	}
	p := m.planner.plan("")
	wait(p.before)
	switch {
	case p.refuse:
		w.Header().Set(headerRefused, "true")
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case orderKindOf(string(order)) == orderDeclined:
		w.WriteHeader(http.StatusPaymentRequired)
		return
	}
	id, err := m.charge(key, string(order))
	if err != nil {
		// It may be on disk or not, and nothing here can repair that.
		_, _ = fmt.Fprintln(os.Stderr, "semel torture remote:", err)
		os.Exit(1)
	}
	wait(p.after)
	_, _ = io.WriteString(w, id)
}

func (m *remote) charge(key, order string) (id string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, repeat := m.made[key]
	if !repeat {
		id = semel.NewRecordID()
	}
	line, err := json.Marshal(Charge{ID: id, Key: key, Order: order, Repeat: repeat, At: time.Now()})
	if err == nil {
		_, err = m.file.Write(append(line, '\n'))
	}
	if err == nil && !repeat {
		err = m.file.Sync()
	}
	m.made[key] = id
	return id, err
}

// mend ends a line that an earlier process did not. No client got its response.
func mend(f *os.File) error {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, info.Size()-1); err != nil {
		return err
	}
	if last[0] != '\n' {
		_, err = f.Write([]byte{'\n'})
	}
	return err
}

// readCharges returns the charges so far. A line counts once it is whole.
func readCharges(file string) (all []Charge, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	in := bufio.NewScanner(bytes.NewReader(b[:bytes.LastIndexByte(b, '\n')+1]))
	for in.Scan() {
		var c Charge
		if json.Unmarshal(in.Bytes(), &c) == nil { // else a kill cut it off
			all = append(all, c)
		}
	}
	return all, in.Err()
}
