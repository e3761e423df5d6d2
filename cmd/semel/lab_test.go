package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestLab starts a lab, charges twice without a defence and once with all of them,
// and stops it: nothing of it is left.
func TestLab(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	said, tell := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"lab", "--listen", "127.0.0.1:0"}, nil, strings.NewReader(""), io.Discard, tell)
		tell.Close()
	}()
	line := make([]byte, 1000)
	n, err := said.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, said) }()
	url := regexp.MustCompile(`http://[0-9.:]+`).FindString(string(line[:n]))
	if url == "" || !strings.Contains(string(line[:n]), "vulnerable") {
		t.Fatalf("it says %q", line[:n])
	}
	post := func(path, body string) int {
		r, err := http.NewRequestWithContext(t.Context(), "POST", url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer alice@acme")
		r.Header.Set("Idempotency-Key", `"k"`)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	done := func() int {
		r, err := http.NewRequestWithContext(t.Context(), "GET", url+"/v1/charges?reference=r", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer alice@acme")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(body, []byte(`"id"`))
	}
	for _, c := range []struct {
		preset string
		want   int
	}{{"unprotected", 2}, {"semel", 1}} {
		post("/lab/reset", "")
		post("/lab/presets/"+c.preset, "")
		for range 2 {
			if status := post("/v1/charges", `{"reference": "r", "amount": 500}`); status != 201 {
				t.Errorf("%s: answered %d", c.preset, status)
			}
		}
		if n := done(); n != c.want {
			t.Errorf("%s: charged %d times, want %d", c.preset, n, c.want)
		}
	}
	stop()
	if code := <-ended; code != exitOK {
		t.Errorf("it ended with %d", code)
	}
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestLabStaysAtHome refuses addresses that others can reach.
func TestLabStaysAtHome(t *testing.T) {
	for _, listen := range []string{":9003", "0.0.0.0:9003", "192.168.0.1:9003", "[::]:9003", "example.com:80", "nonsense"} {
		var said bytes.Buffer
		if code := run(t.Context(), []string{"lab", "--listen", listen}, nil, strings.NewReader(""), io.Discard, &said); code != exitUsage {
			t.Errorf("%s: ended with %d: %s", listen, code, said.String())
		}
	}
	for _, args := range [][]string{{"--store", "memory:"}, {"--store", "mysql://localhost/x"}, {"--store", "sqlite:a.db", "--file", "b.db"}} {
		var said bytes.Buffer
		if code := run(t.Context(), append([]string{"lab"}, args...), nil, strings.NewReader(""), io.Discard, &said); code != exitUsage {
			t.Errorf("%s: ended with %d: %s", args, code, said.String())
		}
	}
	var said bytes.Buffer
	if code := run(t.Context(), []string{"lab", "--preset", "none"}, nil, strings.NewReader(""), io.Discard, &said); code != exitUsage || !strings.Contains(said.String(), "unprotected") {
		t.Errorf("a wrong preset: %d, %s", code, said.String())
	}
}
