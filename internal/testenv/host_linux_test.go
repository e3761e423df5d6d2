package testenv_test

import (
	"errors"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/testenv"
)

func TestHostIsHeardUntilItVanishes(t *testing.T) {
	h := testenv.NewHost(t)
	l, err := net.Listen("tcp", net.JoinHostPort(h.Network().Addr().String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	theirs, err := h.Dial(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = theirs.Close() }()
	ours, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ours.Close() }()
	if _, err := theirs.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1)
	if _, err := ours.Read(buf); err != nil {
		t.Fatalf("the host is not heard: %v", err)
	}
	deadline := time.Now().Add(30 * time.Second)
	if _, err := ours.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	for h.Unheard(t) {
		if time.Now().After(deadline) {
			t.Fatal("the host does not acknowledge what it is sent")
		}
		runtime.Gosched()
	}
	h.Vanish(t)
	if _, err := theirs.Write([]byte("x")); err == nil {
		t.Fatal("a connection of a host that vanished can be written to")
	}
	if c, err := h.Dial(t.Context(), "tcp", l.Addr().String()); err == nil {
		t.Fatalf("a host that vanished has connected to %v", c.RemoteAddr())
	}
	if err := ours.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := ours.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a host that vanished is heard: %v", err)
	}
	if _, err := ours.Write([]byte("x")); err != nil || !h.Unheard(t) {
		t.Fatalf("a host that vanished acknowledges what it is sent, or refuses it: %v", err)
	}
}
