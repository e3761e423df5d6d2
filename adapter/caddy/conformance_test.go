package semelcaddy

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/testenv"
	"github.com/semelhq/semel/probe/conformance"
)

// TestConformance checks the whole contract on a Caddy in front of the test
// endpoint.
func TestConformance(t *testing.T) {
	tests := []struct {
		name, contract, inFlight string
		postgres, http2          bool
	}{
		{name: "sqlite"},
		{name: "postgres", postgres: true},
		{name: "http2", http2: true},
		{name: "stripe", contract: "stripe"},
		{name: "oasis", contract: "oasis"},
		{name: "wait", inFlight: "wait"},
		{name: "accept", inFlight: "accept"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			endpoint := httptest.NewUnstartedServer(conformance.Endpoint())
			endpoint.Config.ErrorLog = log.New(io.Discard, "", 0)
			endpoint.Start()
			t.Cleanup(endpoint.Close)
			settings := []string{"credentials Authorization", "key required", "max_request_body 64KiB"}
			c := conformance.Config{
				Contract: tt.contract, InFlight: tt.inFlight, Prefix: "/.well-known/idempotency", MaxRequestBody: 64 << 10, Timeout: time.Minute,
				Header: http.Header{"Authorization": {"Bearer a"}}, Other: http.Header{"Authorization": {"Bearer b"}},
			}
			if tt.postgres {
				url := testenv.Postgres(t)
				server := strings.SplitN(strings.SplitN(url, "@", 2)[1], "/", 2)
				proxy := testenv.NewProxy(t, server[0])
				settings = append(settings, "store "+strings.Replace(url, server[0], proxy.Addr(), 1))
				c.Outage = func(down bool) {
					proxy.Refuse(down)
					if down {
						proxy.Cut()
					}
				}
			} else {
				settings = append(settings, newSQLite(t))
			}
			if tt.contract != "" {
				settings = append(settings, "contract "+tt.contract)
			}
			if tt.inFlight != "" {
				settings = append(settings, "in_flight "+tt.inFlight)
			}
			site := "semel {\n" + strings.Join(settings, "\n") + "\n}\nreverse_proxy " + strings.TrimPrefix(endpoint.URL, "http://")
			var s *server
			if tt.http2 {
				s, c.TLS = startTLS(t, site)
				c.Protocol = "http2"
			} else {
				s = startCaddy(t, site)
			}
			c.URL = s.url + "/conformance"
			report, err := conformance.Run(t.Context(), c)
			noError(t, err)
			checked := 0
			for _, r := range report.Results {
				switch {
				case r.Outcome == conformance.Failed:
					t.Errorf("%s: %s: %s", r.Case, r.Expected, r.Detail)
				case r.Outcome == conformance.Passed:
					checked++
				case r.Case == "store-unavailable" && !tt.postgres, strings.HasPrefix(r.Detail, "of the contract"):
				default:
					t.Logf("%s does not apply: %s", r.Case, r.Detail)
				}
			}
			if checked < 25 {
				t.Errorf("only %d cases were checked", checked)
			}
		})
	}
}
