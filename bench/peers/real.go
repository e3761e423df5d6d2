package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// procs is before the names of figures of real processes.
const procs = "wrk/"

const connections = 64

// real measures proxies as processes of their own, before an upstream that is
// one too, all on this machine.
type real struct {
	tmp, self, semel, wrk, nginx string // "" where it is not installed
	span                         time.Duration
	stderr                       io.Writer
	runs                         int
}

func newReal(ctx context.Context, root, tmp string, span time.Duration, stderr io.Writer) (*real, error) {
	// Below some seconds wrk's figure is that of its start.
	r := &real{tmp: tmp, semel: filepath.Join(tmp, "semel"), span: max(3*time.Second, span).Round(time.Second), stderr: stderr}
	var err error
	if r.self, err = os.Executable(); err != nil {
		return nil, err
	}
	for name, path := range map[string]*string{"wrk": &r.wrk, "nginx": &r.nginx} {
		if *path, err = exec.LookPath(name); err != nil {
			fmt.Fprintf(stderr, "left out: %s is not installed here (a package of that name is what Debian has)\n", name)
			*path = ""
		}
	}
	if r.wrk == "" {
		return r, nil
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", r.semel, "./cmd/semel")
	build.Dir, build.Stderr = root, stderr
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("build the gateway: %w", err)
	}
	return r, nil
}

// serve is this program as one of the processes: "upstream ADDRESS" or "proxy
// ADDRESS TARGET".
func serve(ctx context.Context, args []string) error {
	var h http.Handler
	switch {
	case len(args) == 2 && args[0] == "upstream":
		body := `{"id":1,"item":"` + strings.Repeat("x", 150) + `","quantity":1}`
		h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Location", "/orders/1")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, body)
		})
	case len(args) == 3 && args[0] == "proxy":
		target, err := url.Parse(args[2])
		if err != nil {
			return err
		}
		h = &httputil.ReverseProxy{
			Rewrite:   func(p *httputil.ProxyRequest) { p.SetURL(target); p.SetXForwarded() },
			Transport: &http.Transport{MaxIdleConnsPerHost: 2 * connections},
		}
	default:
		return fmt.Errorf("serve %q: want upstream ADDRESS, or proxy ADDRESS TARGET", args)
	}
	server := &http.Server{Addr: args[1], Handler: h}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (r *real) run(ctx context.Context) (values, error) {
	got := values{}
	if r.wrk == "" {
		return got, nil
	}
	r.runs++
	upstream, end, err := r.start(ctx, func(address string) []string { return []string{r.self, "serve", "upstream", address} })
	if err != nil {
		return nil, err
	}
	defer end()
	measure := func(name, address string, keys int) error {
		perSecond, err := r.load(ctx, address, keys)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		got[procs+name+" req/s"] = perSecond
		return nil
	}
	if err := measure("upstream", upstream, 0); err != nil {
		return nil, err
	}
	target := "http://" + upstream
	type proxy struct {
		name    string
		command func(address string) []string
		keyed   bool
	}
	proxies := []proxy{{"proxy", func(a string) []string { return []string{r.self, "serve", "proxy", a, target} }, false}}
	if r.nginx != "" {
		proxies = append(proxies, proxy{"nginx", func(a string) []string { return r.nginxCommand(a, upstream) }, false})
	}
	for _, store := range []string{"memory", "sqlite"} {
		proxies = append(proxies, proxy{"semel-" + store, func(a string) []string {
			where := store + ":"
			if store == "sqlite" {
				where += filepath.Join(r.tmp, fmt.Sprintf("gateway-%d.db", r.runs))
			}
			return []string{r.semel, "gateway", "--upstream", target, "--listen", a, "--store", where}
		}, true})
	}
	for _, p := range proxies {
		err := func() error {
			address, end, err := r.start(ctx, p.command)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			defer end()
			if !p.keyed {
				return measure(p.name, address, 0)
			}
			if err := measure(p.name+"/first", address, -1); err != nil {
				return err
			}
			return measure(p.name+"/replay", address, 1000)
		}()
		if err != nil {
			return nil, err
		}
	}
	return got, nil
}

// start starts a process that listens on an address, and awaits that it does.
func (r *real) start(ctx context.Context, command func(address string) []string) (address string, end func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	address = l.Addr().String()
	_ = l.Close()
	args := command(address)
	c := exec.CommandContext(ctx, args[0], args[1:]...)
	var log strings.Builder
	c.Stdout, c.Stderr = &log, &log
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = 10 * time.Second
	if err := c.Start(); err != nil {
		return "", nil, err
	}
	ended := make(chan struct{})
	go func() { // ends with the process, which end or ctx ends
		_ = c.Wait()
		close(ended)
	}()
	end = func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = c.Process.Kill()
			<-ended
		}
	}
	for range 200 {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
			return address, end, nil
		}
		select {
		case <-ended:
			return "", nil, fmt.Errorf("%s ended:\n%s", args[0], log.String())
		case <-time.After(50 * time.Millisecond):
		}
	}
	end()
	return "", nil, fmt.Errorf("%s does not listen:\n%s", args[0], log.String())
}

func (r *real) nginxCommand(address, upstream string) []string {
	folder := filepath.Join(r.tmp, "nginx")
	_ = os.MkdirAll(folder, 0o755) // nginx tells if it is missing
	user := ""
	if os.Getuid() == 0 {
		user = "user root;" // who can write to the folder
	}
	var paths strings.Builder
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&paths, "%s_temp_path %s;\n", kind, filepath.Join(folder, kind))
	}
	file := filepath.Join(folder, "nginx.conf")
	_ = os.WriteFile(file, fmt.Appendf(nil, `%s
daemon off; worker_processes auto; pid %s/pid; error_log stderr;
events { worker_connections 1024; }
http {
	access_log off; keepalive_requests 1000000;
	%s
	upstream service { server %s; keepalive %d; }
	server {
		listen %s;
		location / {
			proxy_pass http://service; proxy_http_version 1.1; proxy_set_header Connection "";
			proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Forwarded-Host $host; proxy_set_header X-Forwarded-Proto $scheme;
		}
	}
}
`, user, folder, paths.String(), upstream, 2*connections, address), 0o644)
	return []string{r.nginx, "-c", file, "-p", folder, "-e", "stderr"}
}

// script posts orders: without keys, each with a key of its own (-1), or with
// so many keys in turn.
const script = `
local keys, run, n = %d, "%d", 0
local body = '{"item":"book","quantity":1}'
local headers = { ["Content-Type"] = "application/json", ["Authorization"] = "Bearer 0123456789abcdef" }
request = function()
	n = n + 1
	if keys ~= 0 then
		local k = n
		if keys > 0 then k = n %% keys end
		headers["Idempotency-Key"] = string.format('"8e03978e-%%s-%%012d"', run, k)
	end
	return wrk.format("POST", nil, headers, body)
end
`

var (
	wrkRate   = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)
	wrkFailed = regexp.MustCompile(`Non-2xx or 3xx responses: .*|Socket errors: .*`)
)

func (r *real) load(ctx context.Context, address string, keys int) (perSecond float64, err error) {
	file := filepath.Join(r.tmp, "load.lua")
	if err := os.WriteFile(file, fmt.Appendf(nil, script, keys, keys), 0o600); err != nil {
		return 0, err
	}
	wrk := func(span time.Duration) (string, error) {
		out, err := exec.CommandContext(ctx, r.wrk, "-t1", "-c", strconv.Itoa(connections), "-d", span.String(), "-s", file, "http://"+address+"/orders").CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%w\n%s", err, out)
		}
		if failed := wrkFailed.Find(out); failed != nil {
			return "", fmt.Errorf("%s", failed)
		}
		return string(out), nil
	}
	if keys >= 0 { // connections, and the records to be replayed
		warm := time.Second
		if keys > 0 {
			// A store on SQLite looks at three files for each replay until their
			// directory has been left alone for some seconds.
			warm = 4 * time.Second
		}
		if _, err := wrk(warm); err != nil {
			return 0, err
		}
	}
	out, err := wrk(r.span)
	if err != nil {
		return 0, err
	}
	m := wrkRate.FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("no rate in what wrk says:\n%s", out)
	}
	return strconv.ParseFloat(m[1], 64)
}
