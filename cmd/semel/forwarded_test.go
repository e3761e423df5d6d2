package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// startBefore starts a gateway before the service, with more lines in its file.
func startBefore(t *testing.T, up *wiretap, lines string) *process {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	text := "version: 1\nlisten: 127.0.0.1:0\nstore: {url: 'memory:'}\nprincipal: {shared: {}}\nupstreams: [{name: a, url: '" + up.url + "'}]\nroutes: [{match: /}]\n" + lines
	if strings.Contains(lines, "listen:") {
		text = strings.Replace(text, "listen: 127.0.0.1:0\n", "", 1)
	}
	noError(t, os.WriteFile(file, []byte(text), 0o600))
	return startGatewayBy(t, file)
}

// TestForwarded: the service sees what the proxies that a file or flags name say of
// clients, in the one spelling that is theirs, and of everybody else what the gateway
// does.
func TestForwarded(t *testing.T) {
	const said = "Forwarded: for=192.0.2.7;proto=https; X-Forwarded-For: 192.0.2.7, 127.0.0.1; X-Forwarded-Host: shop.example; X-Forwarded-Proto: https"
	const seen = "X-Forwarded-For: 127.0.0.1; X-Forwarded-Host: a; X-Forwarded-Proto: http"
	socket := filepath.Join(t.TempDir(), "s")
	for _, tt := range []struct{ name, lines, want string }{ // lines of a file, or flags
		{"no proxies", "", seen},
		{"the peer", "trust_forwarded: {from: [10.0.0.0/8, 127.0.0.1/32]}\n", said},
		{"others", "trust_forwarded: {from: [10.0.0.0/8], unix: true}\n", seen},
		// What is said there has no address of the peer behind it.
		{"the socket", "listen: unix:" + socket + "\ntrust_forwarded: {unix: true}\n", strings.Replace(said, ", 127.0.0.1", "", 1)},
		{"no proxies, by flags", "--lease 15s", seen},
		{"the peer, by flags", "--trust-forwarded 10.0.0.0/8,127.0.0.1/32", said},
		{"the peer, by flags one by one", "--trust-forwarded 127.0.0.1/32 --trust-forwarded unix", said},
		{"others, by flags", "--trust-forwarded 10.0.0.0/8,unix", seen},
		{"the socket, by flags", "--trust-forwarded unix --listen unix:" + socket + "3", strings.Replace(said, ", 127.0.0.1", "", 1)},
		{"others than the socket", "listen: unix:" + socket + "2\ntrust_forwarded: {from: [127.0.0.1/32]}\n", strings.Replace(seen, "X-Forwarded-For: 127.0.0.1; ", "", 1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			up := newWiretap(t)
			var g *process
			if strings.HasPrefix(tt.lines, "--") {
				g = startGateway(t, append([]string{"--upstream", up.url, "--store", "memory:"}, strings.Fields(tt.lines)...)...)
			} else {
				g = startBefore(t, up, tt.lines)
			}
			network, address := "tcp", strings.TrimPrefix(g.url, "http://")
			if _, path, ok := strings.Cut(tt.lines, "unix:/"); ok {
				path, _, _ = strings.Cut(path, "\n")
				network, address = "unix", "/"+path
			}
			for _, key := range []string{"", "Idempotency-Key: k\r\n"} {
				for _, forged := range []string{
					"Forwarded: for=192.0.2.7;proto=https\r\nX-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Host: shop.example\r\nX-Forwarded-Proto: https\r\n",
					// In other spellings, which many services take for the same, and with a
					// Connection that would have a proxy's own lines taken away.
					"Connection: close, forwarded, X-Forwarded-For, x_forwarded_proto\r\nX_Forwarded_For: 9.9.9.9\r\nx.forwarded.proto: gopher\r\nX-Forwarded_Host: evil\r\n" +
						"Forwarded: for=192.0.2.7;proto=https\r\nx-forwarded-for: 192.0.2.7\r\nX-FORWARDED-HOST: shop.example\r\nX-Forwarded-Proto: https\r\n",
				} {
					conn, err := net.Dial(network, address)
					noError(t, err)
					noError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
					_, err = io.WriteString(conn, "POST /p HTTP/1.1\r\nHost: a\r\n"+forged+key+"Transfer-Encoding: chunked\r\nTrailer: X-Forwarded-For, X_Forwarded_Host\r\n\r\n"+
						"0\r\nX-Forwarded-For: 8.8.8.8\r\nX_Forwarded_Host: trailing\r\n\r\n")
					noError(t, err)
					res, err := http.ReadResponse(bufio.NewReader(conn), nil)
					noError(t, err)
					want(t, "status", res.StatusCode, 200)
					_ = conn.Close()
					_, raw := up.take()
					var got []string
					for line := range strings.SplitSeq(raw, "\r\n") {
						name, _, _ := strings.Cut(line, ":")
						if strings.Contains(strings.ToLower(name), "forwarded") {
							got = append(got, line)
						}
					}
					slices.Sort(got)
					want(t, "what the service sees", strings.Join(got, "; "), tt.want)
					if strings.Contains(raw, "8.8.8.8") || strings.Contains(raw, "trailing") || strings.Contains(raw, "9.9.9.9") {
						t.Errorf("it sees what was forged:\n%s", raw)
					}
					if key != "" {
						key = strings.Replace(key, "k", "kk", 1) // or it is replayed
					}
				}
			}
		})
	}
}

// TestSmugglingAuthority sends requests whose :authority and Host differ, in HTTP/2
// frames of its own. Whoever goes by one of the two and whoever goes by the other
// would take them for different requests: either the gateway refuses, or the service
// gets one host, the one by which the gateway has told callers apart.
func TestSmugglingAuthority(t *testing.T) {
	up := newWiretap(t)
	g := startBefore(t, up, "h2c: true\npreserve_host: true\n")
	for n, tt := range []struct {
		name   string
		fields []hpack.HeaderField
		status string
		host   string // that the service gets; "" if it gets nothing
	}{
		{"authority", fields(":authority", "a"), "200", "a"},
		{"host", fields("host", "a"), "200", "a"},
		{"both, alike", fields(":authority", "a", "host", "a"), "200", "a"},
		{"both, alike but for the case", fields(":authority", "a", "host", "A"), "200", "a"},
		{"both, different", fields(":authority", "a", "host", "b"), "400", ""},
		{"different in the port", fields(":authority", "a", "host", "a:8080"), "400", ""},
		{"authority that is empty", fields(":authority", "", "host", "b"), "200", "b"},
		{"two hosts", fields(":authority", "a", "host", "a", "host", "b"), "400", ""},
		{"two hosts alone", fields("host", "a", "host", "b"), "400", ""},
		{"host that is empty", fields(":authority", "a", "host", ""), "400", ""},
		{"two authorities", fields(":authority", "a", ":authority", "b"), "reset", ""},
		{"authority behind the fields", fields("x-a", "1", ":authority", "a"), "reset", ""},
		{"host in capitals", fields(":authority", "a", "Host", "b"), "reset", ""},
		{"user in the authority", fields(":authority", "root@a"), "reset", ""},
		{"space in the authority", fields(":authority", "a b"), "400", ""},
		{"line end in the authority", fields(":authority", "a\r\nX-A: 1"), "reset", ""},
		{"path in the authority", fields(":authority", "a/p"), "400", ""},
		{"neither", nil, "400", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			key := fmt.Sprint("key", n)
			want(t, "the response", g.overHTTP2(append(fields(":method", "POST", ":scheme", "http", ":path", "/p"), append(tt.fields, fields("idempotency-key", key)...)...)), tt.status)
			requests, raw := up.take()
			if tt.host == "" {
				want(t, "what the service gets", requests, "")
				return
			}
			want(t, "what the service gets", requests, fmt.Sprintf(`POST /p key=%s body=""`, key))
			var hosts []string
			for line := range strings.SplitSeq(raw, "\r\n") {
				if name, value, _ := strings.Cut(line, ": "); strings.Contains(strings.ToLower(name), "host") {
					hosts = append(hosts, value)
				}
			}
			if len(hosts) != 2 || hosts[0] != tt.host || hosts[1] != tt.host { // Host and X-Forwarded-Host
				t.Errorf("the service gets the hosts %v:\n%s", hosts, raw)
			}
			// The record is that host's.
			want(t, "the same over HTTP/1.1", onTheWire(t, g, "POST /p HTTP/1.1\r\nHost: "+tt.host+"\r\nConnection: close\r\nIdempotency-Key: "+key+"\r\nContent-Length: 0\r\n\r\n"), "200")
			again, _ := up.take()
			want(t, "what the service gets of that", again, "")
		})
	}
}

func fields(namesAndValues ...string) (all []hpack.HeaderField) {
	for pair := range slices.Chunk(namesAndValues, 2) {
		all = append(all, hpack.HeaderField{Name: pair[0], Value: pair[1]})
	}
	return all
}

// overHTTP2 sends a request without a body, as it is, and returns its status, or
// "reset" if the stream or the connection was ended instead.
func (p *process) overHTTP2(fields []hpack.HeaderField) string {
	p.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	noError(p.t, err)
	defer func() { _ = conn.Close() }()
	noError(p.t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range fields {
		noError(p.t, encoder.WriteField(f))
	}
	_, err = io.WriteString(conn, http2.ClientPreface)
	noError(p.t, err)
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	noError(p.t, framer.WriteSettings())
	noError(p.t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}))
	for {
		frame, err := framer.ReadFrame()
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			return f.PseudoValue("status")
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return "reset"
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				p.t.Error(err)
			}
			return "reset"
		}
	}
}
