package gateway

import (
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/quick"
)

// nothingSpooled waits for the end of all work and looks for what it left in the
// directory of the spools.
func nothingSpooled(t *testing.T, b *bundle, dir string) {
	t.Helper()
	b.client.CloseIdleConnections()
	b.server.Close()
	for b.gateway.InFlight() > 0 {
		runtime.Gosched()
	}
	noError(t, b.gateway.Drain(context.Background()))
	left, err := os.ReadDir(dir)
	noError(t, err)
	want(t, "files left", len(left), 0)
	open, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range open {
		if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, dir) {
			t.Errorf("still open: %s", target)
		}
	}
}

// noise is size bytes whose stretches are moved against every buffer's size.
func noise(size int64) io.Reader {
	at := 0
	return io.LimitReader(readerFunc(func(p []byte) (int, error) {
		n := copy(p, stretch[at:])
		at = (at + n) % len(stretch)
		return n, nil
	}), size)
}

var stretch = func() []byte {
	b := make([]byte, 1_000_003)
	for i := range b {
		b[i] = byte(i ^ i>>7 ^ i>>15)
	}
	return b
}()

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// digest also tells the most memory in use while r was read.
func digest(t *testing.T, r io.Reader) (string, uint64) {
	t.Helper()
	h, most := crc32.New(crc32.MakeTable(crc32.Castagnoli)), uint64(0)
	n := int64(0)
	for {
		more, err := io.CopyN(h, r, 1<<20)
		n += more
		most = max(most, inUse())
		if err == io.EOF {
			break
		}
		noError(t, err)
	}
	return fmt.Sprintf("%d bytes, %x", n, h.Sum(nil)), most
}

func inUse() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64() + s[1].Value.Uint64()
}

// TestLargeBodies: 100 MB up and 100 MB down, with what is in memory bounded.
func TestLargeBodies(t *testing.T) {
	quick.LeaveOut(t)
	const size = 100 << 20
	whole, _ := digest(t, noise(size))
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			// How much there is at most depends on when it is collected.
			percent := debug.SetGCPercent(100)
			defer debug.SetGCPercent(percent)
			debug.FreeOSMemory() // what other tests have left
			idle, dir := inUse(), t.TempDir()
			var asked atomic.Int64
			var most atomic.Uint64
			upstream := handler(t, func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				want(t, "Content-Length upstream", r.ContentLength, size)
				got, mem := digest(t, r.Body)
				want(t, "body upstream", got, whole)
				most.Store(mem)
				_, _ = io.Copy(w, noise(size))
			})
			b := newBundle(t, upstream, semel.Policy{}, func(c *Config) { c.MaxRequestBody, c.SpoolDir = 128<<20, dir })
			if http2 {
				s := httptest.NewUnstartedServer(b.gateway)
				s.EnableHTTP2 = true
				s.StartTLS()
				defer s.Close()
				b.url, b.server, b.client = s.URL, s, s.Client()
			}
			send := func() *http.Response {
				r := b.request("POST", "/files", "k", "x")
				r.GetBody, r.Body, r.ContentLength = nil, io.NopCloser(noise(size)), size
				res, err := b.client.Do(r)
				noError(t, err)
				return res
			}
			res := send()
			got, mem := digest(t, res.Body)
			want(t, "status", res.StatusCode, 200)
			want(t, "protocol", res.ProtoMajor == 2, http2)
			want(t, "body", got, whole)
			again := send()
			want(t, "status of the retry", again.StatusCode, 409)
			_ = again.Body.Close()
			want(t, "requests", asked.Load(), 1)
			if mem = max(mem, most.Load()); mem > idle+64<<20 {
				t.Errorf("%d MiB above idle", (mem-idle)>>20)
			}
			nothingSpooled(t, b, dir)
		})
	}
}
