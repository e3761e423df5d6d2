package main

import (
	"bufio"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/semelhq/semel/internal/testenv"
)

// Services in other languages behind the gateway, each by its own configuration:
// many requests at once have one effect and one response.
func TestServicesInOtherLanguages(t *testing.T) {
	for _, c := range []struct {
		name, program, debian, service, address string // the variable with the service's address
		path, look, effect                      string
		body, other                             string
		header                                  http.Header
		status                                  int
	}{
		{
			name: "python", program: "python3", debian: "python3", service: "service.py", address: "CHARGES",
			path: "/charges", look: "/charges", effect: `"amount"`, body: `{"amount":100}`, other: `{"amount":101}`,
			header: http.Header{"Authorization": {"Bearer ann"}, "Idempotency-Key": {"order-17"}}, status: 201,
		},
		{
			name: "node", program: "node", debian: "nodejs", service: "service.mjs", address: "SIGNUPS",
			path: "/signups", look: "/", effect: `"to"`, body: `{"event":"signup-1","address":"ann@example.com"}`, other: `{"event":"signup-1","address":"bob@example.com"}`,
			status: 202,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join("..", "..", "examples", c.name)
			program, err := exec.LookPath(c.program)
			if err != nil {
				program = testenv.Program(t, c.debian)
			}
			service := exec.Command(program, filepath.Join(dir, c.service), "0")
			stdout, err := service.StdoutPipe()
			noError(t, err)
			noError(t, service.Start())
			t.Cleanup(func() { _ = service.Process.Kill(); _ = service.Wait() })
			line, err := bufio.NewReader(stdout).ReadString('\n')
			noError(t, err)
			_, at, _ := strings.Cut(strings.TrimSpace(line), " on ")

			config := filepath.Join(dir, "gateway.yaml")
			g := startGatewayBy(t, config, c.address+"="+at, "STORE="+newStore(t), "LISTEN=127.0.0.1:0")
			send := func(method, path, body string) answer {
				req, err := http.NewRequest(method, g.url+path, strings.NewReader(body))
				noError(t, err)
				req.Header = c.header.Clone()
				res, err := http.DefaultClient.Do(req)
				noError(t, err)
				defer func() { _ = res.Body.Close() }()
				text, err := io.ReadAll(res.Body)
				noError(t, err)
				return answer{res.StatusCode, res.Header, string(text)}
			}
			first := send(http.MethodPost, c.path, c.body)
			want(t, "the status", first.status, c.status)
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					again := send(http.MethodPost, c.path, c.body)
					want(t, "the status of a repeat", again.status, c.status)
					want(t, "its body", again.body, first.body)
					want(t, "replayed", again.replayed(), true)
				})
			}
			wg.Wait()
			want(t, "another body", send(http.MethodPost, c.path, c.other).status, http.StatusUnprocessableEntity)
			c.header.Del("Idempotency-Key")
			without := send(http.MethodPost, c.path, `{"amount":1}`)
			want(t, "without a key: "+without.body, without.status, http.StatusBadRequest)
			seen := send(http.MethodGet, c.look, "")
			want(t, "the number of effects in "+seen.body, strings.Count(seen.body, c.effect), 1)
		})
	}
}
