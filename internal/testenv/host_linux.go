package testenv

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Host is another host on a network with this one: a thread in a network
// namespace of its own, tied to ours by a pair of virtual interfaces. What is
// dialled from it has its own TCP, which nobody answers for once it vanished.
type Host struct {
	ip      string // the program
	network netip.Prefix
	work    chan func()

	mu       sync.Mutex
	vanished bool
	open     []net.Conn
}

// NewHost makes a host, which ends with the test or, at the latest, soon after
// the test binary. Where the rights over the network that it needs, root's, are
// not given, it is with the test as without a server.
func NewHost(t testing.TB) *Host {
	t.Helper()
	long(t)
	h := &Host{work: make(chan func())}
	thread := make(chan int, 1)
	failed := make(chan error, 1)
	go onOwnThread(func() {
		if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
			failed <- err
			return
		}
		thread <- syscall.Gettid()
		for f := range h.work {
			f()
		}
	})
	var tid int
	select {
	case tid = <-thread:
	case err := <-failed:
		missing(t, fmt.Errorf("a network namespace: %w", err))
	}
	t.Cleanup(func() { close(h.work) })
	var err error
	if h.ip, err = findOrInstall("ip", "iproute2"); err != nil {
		missing(t, err)
	}

	// One of 32,768 networks of two hosts, in the range set aside for
	// benchmarks of network devices (RFC 2544).
	var b [5]byte
	_, _ = rand.Read(b[:])
	base := [4]byte{198, 18 + b[0]&1, b[1], b[2] &^ 3}
	address := func(n byte) netip.Prefix {
		a := base
		a[3] |= n
		return netip.PrefixFrom(netip.AddrFrom4(a), 30)
	}
	h.network = address(1)
	link := "semel" + hex.EncodeToString(b[1:])
	if err := h.run("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(tid)); err != nil {
		missing(t, err)
	}
	t.Cleanup(func() {
		if err := h.run("link", "del", link); err != nil {
			t.Errorf("testenv: %v", err)
		}
	})
	h.within(func() {
		err = errors.Join(h.run("address", "add", address(2).String(), "dev", "eth0"), h.run("link", "set", "eth0", "up"))
	})
	if err := errors.Join(err, h.run("address", "add", h.network.String(), "dev", link), h.run("link", "set", link, "up")); err != nil {
		t.Fatalf("testenv: %v", err)
	}
	return h
}

// onOwnThread runs f in a thread that ends with it, so not in the first one,
// which cannot.
func onOwnThread(f func()) {
	runtime.LockOSThread()
	if syscall.Gettid() != syscall.Getpid() {
		f()
		return
	}
	defer runtime.UnlockOSThread()
	done := make(chan struct{})
	go func() {
		defer close(done)
		onOwnThread(f)
	}()
	<-done
}

// run runs the program ip, in the network of the thread it is called in.
func (h *Host) run(args ...string) error {
	out, err := exec.Command(h.ip, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %q: %w\n%s", args, err, tail(out))
	}
	return nil
}

// within runs f in the host's network.
func (h *Host) within(f func()) {
	done := make(chan struct{})
	h.work <- func() {
		defer close(done)
		f()
	}
	<-done
}

// Network is the network that the host shares with us: our address, and how
// many bits of it the two have in common.
func (h *Host) Network() netip.Prefix { return h.network }

// Dial connects from the host. The address is an IP address and a port.
func (h *Host) Dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, err // to look a name up would take other threads
	}
	h.within(func() { c, err = new(net.Dialer).DialContext(ctx, network, address) })
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.vanished {
		return nil, errors.Join(errors.New("the host has vanished"), c.Close())
	}
	h.open = append(h.open, c)
	return c, nil
}

// Vanish takes the host off the network, in the middle of whatever it does:
// nothing that is sent to it is answered any more, or refused. Then the
// connections dialled from it are closed, so that who uses them here need not
// wait for a timeout; nobody out there hears of that.
func (h *Host) Vanish(t testing.TB) {
	t.Helper()
	var err error
	h.within(func() { err = h.run("link", "set", "eth0", "down") })
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.vanished = true
	for _, c := range h.open {
		_ = c.Close() // its user may have
	}
}

// Unheard reports whether something was sent to the host whose receipt it has
// not acknowledged.
func (h *Host) Unheard(t testing.TB) bool {
	t.Helper()
	table, err := os.ReadFile("/proc/thread-self/net/tcp")
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	a := h.network.Addr().Next().As4()
	address := fmt.Sprintf("%08X:", binary.NativeEndian.Uint32(a[:]))
	for line := range strings.Lines(string(table)) {
		// sl local_address rem_address st tx_queue:rx_queue
		f := strings.Fields(line)
		if len(f) > 4 && strings.HasPrefix(f[2], address) && !strings.HasPrefix(f[4], "00000000:") {
			return true
		}
	}
	return false
}
