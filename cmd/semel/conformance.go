package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/semelhq/semel/probe/conformance"
	"github.com/semelhq/semel/probe/report"
	"github.com/semelhq/semel/semelhttp"
)

// conformanceSettings are the flags of semel conformance.
type conformanceSettings struct {
	url, prefix, junit, ca string
	contract, inFlight     choice
	protocol               choice
	headers, others        []string
	keyOptional, strict    bool
	maxRequestBody         byteSize
	timeout                time.Duration
	json                   bool
}

func (p *program) conformanceCommand() *cobra.Command {
	s := conformanceSettings{
		contract: choice{value: "ietf", of: []string{"ietf", "stripe", "oasis"}},
		inFlight: choice{value: "reject", of: []string{"reject", "wait", "accept"}},
		protocol: choice{value: "auto", of: []string{"auto", "http1", "http2"}},
	}
	cmd := &cobra.Command{
		Use:   "conformance",
		Short: "Check that a server keeps the HTTP contract, case by case",
		Long: `Sends requests to a server that is running and checks every case of the HTTP
contract: repeated, missing, malformed and foreign keys, different requests under the
same key, duplicates in flight, races, lost clients, cut-off operations, and how each
of them is answered. Requests are sent only to the host of --url.

The server must offer a test endpoint at --url: one protected operation whose
effects can be counted. semel conformance endpoint serves one to put behind a
gateway. For your own server in Go, use the handler Endpoint of package
probe/conformance; its documentation says how to write one in another language. Do
not offer it in production.

It prints one line for each case. The exit code is 0 if none failed, 5 if one did,
and 1 if the endpoint could not be reached.`,
		Example: `  semel conformance endpoint --listen 127.0.0.1:9000 &
  semel gateway --upstream http://127.0.0.1:9000 --store memory: --require-key &
  semel conformance --url http://127.0.0.1:8080/conformance \
      --header "Authorization: Bearer a" --other-header "Authorization: Bearer b"
  semel conformance --url https://staging.example/conformance --contract stripe --key-optional --junit conformance.xml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.conformance(cmd.Context(), s) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&s.url, "url", "", "URL of the test endpoint (required)")
	choiceFlag(cmd, &s.contract, "contract", "the form of the contract that is expected")
	f.StringArrayVar(&s.headers, "header", nil, `header line of every request, as in "Authorization: Bearer x"; may be repeated`)
	f.StringArrayVar(&s.others, "other-header", nil, "header line of another caller, whose keys are its own; may be repeated")
	choiceFlag(cmd, &s.inFlight, "in-flight", "what the operation does with a duplicate of a running request")
	f.BoolVar(&s.keyOptional, "key-optional", false, "the operation passes requests without a key")
	f.BoolVar(&s.strict, "strict-keys", false, "the operation takes keys in double quotes only")
	f.StringVar(&s.prefix, "prefix", semelhttp.DefaultPrefix, "path of the status resources; empty if there are none")
	f.Var(&s.maxRequestBody, "max-request-body", "the operation's limit, to check that it is kept; keep it small")
	choiceFlag(cmd, &s.protocol, "protocol", "version of HTTP to speak")
	f.StringVar(&s.ca, "ca", "", "file of certificates (PEM) to verify the server by, instead of the system's")
	f.DurationVar(&s.timeout, "timeout", 30*time.Second, "longest time for one request")
	f.StringVar(&s.junit, "junit", "", "write the results to this file, in the form of JUnit")
	jsonFlag(cmd, &s.json)
	fromEnv(cmd, "header", "other-header")
	cmd.AddCommand(p.conformanceEndpointCommand())
	return cmd
}

func (s *conformanceSettings) config() (conformance.Config, error) {
	c := conformance.Config{
		URL: s.url, Contract: s.contract.value, InFlight: s.inFlight.value, KeyOptional: s.keyOptional, Strict: s.strict,
		Prefix: strings.TrimSuffix(s.prefix, "/"), MaxRequestBody: int(s.maxRequestBody), Timeout: s.timeout,
		Protocol: s.protocol.value,
	}
	if s.url == "" {
		return c, usagef("--url is not set; name the test endpoint, as in --url http://127.0.0.1:8080/conformance")
	}
	if s.maxRequestBody > 64<<20 {
		return c, usagef("--max-request-body is %s; it must be at most 64MiB", &s.maxRequestBody)
	}
	if s.timeout <= 0 {
		return c, usagef("--timeout is %v; it must be positive", s.timeout)
	}
	var err error
	if c.Header, err = headerLines("header", s.headers); err != nil {
		return c, err
	}
	if c.Other, err = headerLines("other-header", s.others); err != nil {
		return c, err
	}
	if s.ca != "" {
		pem, err := os.ReadFile(s.ca)
		if err != nil {
			return c, usagef("--ca cannot be read: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return c, usagef("--ca: %s does not hold a certificate in PEM form", s.ca)
		}
		c.TLS = &tls.Config{RootCAs: roots}
	}
	return c, nil
}

// headerLines reads header lines. Its errors do not repeat values.
func headerLines(flag string, lines []string) (http.Header, error) {
	if len(lines) == 0 {
		return nil, nil
	}
	fields := http.Header{}
	for i, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		if !ok || strings.TrimSpace(name) != name || name == "" {
			return nil, usagef("--%s: header line %d is not of the form Name: value", flag, i+1)
		}
		fields.Add(name, strings.TrimSpace(value))
	}
	return fields, nil
}

func (p *program) conformance(ctx context.Context, s conformanceSettings) error {
	c, err := s.config()
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(p.stdout, 26, 0, 2, ' ', 0)
	if !s.json {
		c.Checked = func(r conformance.Result) {
			word := map[conformance.Outcome]string{conformance.Passed: "ok", conformance.Failed: "FAILED", conformance.NotApplicable: "-"}[r.Outcome]
			_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", r.Case, word, printable(r.Expected))
			if r.Detail != "" {
				_, _ = fmt.Fprintf(table, "\t\t  %s\n", printable(r.Detail))
			}
			_ = table.Flush() // a line at a time: it is the progress too
		}
	}
	result, err := conformance.Run(ctx, c)
	switch {
	case errors.Is(err, conformance.ErrUnreachable):
		return &fault{code: exitFailed, err: err, do: "Start the server with its test endpoint, or correct --url; semel conformance --help says what it must offer. A retry is safe."}
	case ctx.Err() != nil:
		return &fault{code: exitFailed, err: errors.New("interrupted"), do: "What was checked until then is above. A retry is safe: every run has keys of its own."}
	case err != nil:
		return usagef("%w", err)
	}
	if s.junit != "" {
		if err := report.WriteFile(s.junit, result.WriteJUnit); err != nil {
			return &fault{code: exitFailed, err: fmt.Errorf("--junit: %w", err), do: "Choose a file that can be written. A retry is safe."}
		}
	}
	failed, skipped := result.Failed(), 0
	for _, r := range result.Results {
		if r.Outcome == conformance.NotApplicable {
			skipped++
		}
	}
	if s.json {
		if err := p.printJSON(result); err != nil {
			return err
		}
	} else {
		_, _ = fmt.Fprintf(p.stdout, "%d passed, %d failed, %d not applicable, in %v with %d requests\n",
			len(result.Results)-failed-skipped, failed, skipped, result.Took.Round(time.Millisecond), result.Sends)
	}
	if failed > 0 {
		return &fault{code: exitViolated, err: fmt.Errorf("%d of %d cases of the contract %s failed", failed, len(result.Results), result.Contract), do: "Each failed line says what was seen instead. A retry is safe: every run has keys of its own."}
	}
	return nil
}

func (p *program) conformanceEndpointCommand() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "endpoint",
		Short: "Serve an unprotected test endpoint, to put behind a gateway",
		Long: `Serves the test endpoint of semel conformance, on every path. It protects nothing
by itself: a gateway before it does, and is what semel conformance then checks.
It keeps its counts in memory and ends on Ctrl-C.`,
		Example: "  semel conformance endpoint --listen 127.0.0.1:9000",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			l, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
			if err != nil {
				return &fault{code: exitFailed, err: fmt.Errorf("cannot listen on %s: %w", listen, err), do: "Free the address or choose another with --listen. A retry is safe."}
			}
			server := &http.Server{Handler: conformance.Endpoint(), ReadHeaderTimeout: 10 * time.Second}
			stop := context.AfterFunc(ctx, func() { _ = server.Close() })
			defer stop()
			_, _ = fmt.Fprintf(p.stderr, "semel conformance endpoint is listening on http://%s\n", l.Addr())
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:9000", "address to listen on")
	return cmd
}
