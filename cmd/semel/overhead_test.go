package main

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/semelhq/semel"
	semelotel "github.com/semelhq/semel/adapter/otel"
	"github.com/semelhq/semel/cmd/semel/internal/gatewayfile"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/semelhttp"
	"github.com/semelhq/semel/store/memory"
)

// BenchmarkOverhead is a first-time request through a gateway as flags alone make it,
// and through one by a file, with a hundred routes, callers known by JWT, and metrics,
// each with a store of its own. Requests of the two take turns.
func BenchmarkOverhead(b *testing.B) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusCreated)
	}))
	b.Cleanup(upstream.Close)
	target, err := url.Parse(upstream.URL)
	noError(b, err)
	guarded := func(observer *semel.Observer) *semel.Guard {
		store, err := memory.New(memory.Config{})
		noError(b, err)
		guard, err := semel.New(semel.Config{Store: store, Observer: observer})
		noError(b, err)
		return guard
	}
	plain, err := gateway.New(gateway.Config{Upstream: target, Guard: guarded(nil)})
	noError(b, err)

	encode := base64.RawURLEncoding.EncodeToString
	public, private, err := ed25519.GenerateKey(nil)
	noError(b, err)
	keys := filepath.Join(b.TempDir(), "keys.json")
	noError(b, os.WriteFile(keys, []byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","use":"sig","kid":"k","x":"`+encode(public)+`"}]}`), 0o600))
	token := encode([]byte(`{"alg":"EdDSA","kid":"k"}`)) + "." +
		encode(fmt.Appendf(nil, `{"iss":"https://issuer","aud":"orders","sub":"alice","exp":%d}`, time.Now().Add(time.Hour).Unix()))
	token += "." + encode(ed25519.Sign(private, []byte(token)))

	text := "version: 1\nstore: {url: 'memory:'}\nupstreams: [{name: a, url: '" + upstream.URL + "'}]\n" +
		"principal: {jwt: {issuer: 'https://issuer', audiences: [orders], algorithms: [EdDSA], keys_file: '" + filepath.ToSlash(keys) + "'}}\nroutes:\n  - match: POST /orders\n  - match: /\n"
	for i := range 100 {
		text += fmt.Sprintf("  - match: POST /api%d/{id}/x\n", i)
	}
	config, err := gatewayfile.Parse("gateway.yaml", []byte(text), os.LookupEnv)
	noError(b, err)
	telemetry, err := semelotel.New(semelotel.Config{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))})
	noError(b, err)
	spools, err := semelhttp.NewSpools(semelhttp.SpoolsConfig{})
	noError(b, err)
	built, err := config.Build(&gatewayfile.Runtime{Guard: guarded(telemetry.Guard(nil)), Spools: spools, Observer: telemetry.Gateway(nil)})
	noError(b, err)

	var urls [2]string
	for i, h := range []http.Handler{plain, telemetry.Handler(built)} {
		server := httptest.NewServer(h)
		b.Cleanup(server.Close)
		urls[i] = server.URL
	}
	var took [2][]time.Duration
	for n := 0; b.Loop(); n++ {
		for _, i := range [2]int{n % 2, 1 - n%2} {
			req, err := http.NewRequest(http.MethodPost, urls[i]+"/orders", strings.NewReader(`{"item":"book"}`))
			noError(b, err)
			req.Header.Set("Idempotency-Key", fmt.Sprint("k", n))
			req.Header.Set("Authorization", "Bearer "+token)
			begin := time.Now()
			res, err := http.DefaultTransport.RoundTrip(req)
			noError(b, err)
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			took[i] = append(took[i], time.Since(begin))
			if res.StatusCode != http.StatusCreated {
				b.Fatal(res.StatusCode)
			}
		}
	}
	median := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)/2])
	}
	b.ReportMetric(median(took[0]), "flags-ns")
	b.ReportMetric(median(took[1]), "file-ns")
	b.ReportMetric(100*(median(took[1])/median(took[0])-1), "%overhead")
}
