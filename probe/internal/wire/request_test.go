package wire

import (
	"bytes"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"
)

func TestRequestBytes(t *testing.T) {
	tests := []struct {
		name string
		r    Request
		want string
	}{
		{
			"nothing added but the frame",
			Request{Method: "GET", URL: "http://A.example"},
			"GET / HTTP/1.1\r\nHost: A.example\r\n\r\n",
		},
		{
			"order, case and target as written",
			Request{Method: "POST", URL: "https://a.example:8443/x//../%7e?b=2&a=%2F+#frag", Header: []Field{{"x-B", "1"}, {"X-a", ""}, {"x-B", " 2"}}, Body: []byte("ab")},
			"POST /x//../%7e?b=2&a=%2F+ HTTP/1.1\r\nHost: a.example:8443\r\nx-B: 1\r\nX-a: \r\nx-B:  2\r\nContent-Length: 2\r\n\r\nab",
		},
		{
			"own Host and Content-Length stay where they are",
			Request{Method: "PUT", URL: "http://127.0.0.1:1?q", Header: []Field{{"content-length", "1"}, {"HOST", "b.example"}}, Body: []byte("z")},
			"PUT /?q HTTP/1.1\r\ncontent-length: 1\r\nHOST: b.example\r\n\r\nz",
		},
		{
			"a POST without a body has a length",
			Request{Method: "POST", URL: "http://[::1]:80/"},
			"POST / HTTP/1.1\r\nHost: [::1]:80\r\nContent-Length: 0\r\n\r\n",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.r.Bytes()
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
			again, _ := tt.r.Bytes()
			if !bytes.Equal(got, again) {
				t.Error("rendered differently the second time")
			}
		})
	}
}

func TestRequestRefuses(t *testing.T) {
	ok := Request{Method: "POST", URL: "http://a.example/", Body: []byte("x")}
	tests := []struct {
		name   string
		change func(*Request)
		want   string
	}{
		{"CR in a value", func(r *Request) { r.Header = []Field{{"A", "secret\rB: 1"}} }, "the value of A contains CR, LF or NUL"},
		{"LF in a value", func(r *Request) { r.Header = []Field{{"A", "secret\nB: 1"}} }, "the value of A contains CR, LF or NUL"},
		{"NUL in a value", func(r *Request) { r.Header = []Field{{"A", "secret\x00"}} }, "the value of A contains CR, LF or NUL"},
		{"colon in a name", func(r *Request) { r.Header = []Field{{"A: b", "1"}} }, "is not a field name"},
		{"LF in a name", func(r *Request) { r.Header = []Field{{"A\nB", "1"}} }, "is not a field name"},
		{"empty name", func(r *Request) { r.Header = []Field{{"", "1"}} }, "is not a field name"},
		{"LF in the method", func(r *Request) { r.Method = "GET / HTTP/1.1\r\nX:" }, "is not a method"},
		{"tunnel", func(r *Request) { r.Method = "CONNECT" }, "asks for a tunnel"},
		{"wrong length", func(r *Request) { r.Header = []Field{{"Content-Length", "2"}} }, "is not the length of the body, 1"},
		{"two lengths", func(r *Request) { r.Header = []Field{{"Content-Length", "1"}, {"content-length", "1"}} }, "given 2 times"},
		{"two hosts", func(r *Request) { r.Header = []Field{{"Host", "a"}, {"host", "b"}} }, "given 2 times"},
		{"bad host", func(r *Request) { r.Header = []Field{{"Host", "a b"}} }, "is not a host"},
		{"chunked", func(r *Request) { r.Header = []Field{{"transfer-encoding", "chunked"}} }, "is not supported"},
		{"LF in the URL", func(r *Request) { r.URL = "http://a.example/\nsecret" }, "URL: it cannot be parsed"},
		{"space in the path", func(r *Request) { r.URL = "http://a.example/a b" }, "visible ASCII"},
		{"bytes in the query", func(r *Request) { r.URL = "http://a.example/?ä" }, "visible ASCII"},
		{"scheme", func(r *Request) { r.URL = "ftp://a.example/" }, "has to be http or https"},
		{"no host", func(r *Request) { r.URL = "http:///x" }, "no host"},
		{"user", func(r *Request) { r.URL = "http://u:secret@a.example/" }, "credentials"},
		{"host with a space", func(r *Request) { r.URL = "http://a%20b/" }, "cannot be parsed"},
		{"host not ASCII", func(r *Request) { r.URL = "http://ä.example/" }, "not a host name"},
		{"port", func(r *Request) { r.URL = "http://a.example:0/" }, "not a port"},
		{"protocol", func(r *Request) { r.Protocol = 9 }, "is unknown"},
	}
	if err := ok.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := ok
			tt.change(&r)
			err := r.Validate()
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want one with %q", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error quotes a value: %v", err)
			}
		})
	}
	r := Request{Method: "", URL: "x", Header: []Field{{"", ""}}}
	if err := r.Validate(); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("error is %v, want all three problems", err)
	}
}

// A header block has to be the same at any place in any connection, or a race
// would not send the same bytes.
func TestHeaderBlockStandsAlone(t *testing.T) {
	r := Request{Method: "POST", URL: "https://a.example/x", Body: []byte("1"), Header: []Field{
		{"Host", "b.example"}, {"X-Long", strings.Repeat("v", 100)}, {"Connection", "close"}, {"TE", "gzip"}, {"te", "trailers"}, {"Cookie", " a=b\t"},
	}}
	m, err := r.render()
	if err != nil {
		t.Fatal(err)
	}
	dec := hpack.NewDecoder(4096, nil)
	for range 2 {
		fields, err := dec.DecodeFull(m.block)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, f := range fields {
			got += f.Name + "=" + f.Value + "\n"
		}
		want := ":method=POST\n:authority=b.example\n:scheme=https\n:path=/x\nx-long=" + strings.Repeat("v", 100) + "\nte=trailers\ncookie=a=b\ncontent-length=1\n"
		if got != want {
			t.Errorf("got %q\nwant %q", got, want)
		}
	}
	if _, err := hpack.NewDecoder(0, nil).DecodeFull(m.block); err != nil {
		t.Errorf("the block needs a dynamic table: %v", err)
	}
}
