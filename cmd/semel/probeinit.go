package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	_ "github.com/jackc/pgx/v5/stdlib" // sql readers of plans
	"github.com/spf13/cobra"
	_ "modernc.org/sqlite" // sql readers of plans

	"github.com/semelhq/semel/cmd/semel/internal/importer"
)

// probeInitSettings are the flags of semel probe init.
type probeInitSettings struct {
	curl, har, postman, burp, openapi string
	index                             int
	url, method, item, operation      string
	server, out                       string
	optional                          bool
}

func (p *program) probeInitCommand() *cobra.Command {
	s := probeInitSettings{index: -1}
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make a plan from a curl command, a recording or an API description",
		Long: `Makes a plan for one operation from a curl command, a HAR file, a Postman
collection, a Burp export or an OpenAPI document. What the request does not show
is left for you to fill in, with a comment at each place: above all how to read
the state that the operation changes.

Credentials are not carried over. The plan takes them from environment variables,
whose names are printed.`,
		Example: `  semel probe init --curl "curl -d '{\"item\":\"book\"}' http://127.0.0.1:9000/orders" --out orders.yaml
  semel probe init --curl - < request.sh
  semel probe init --har traffic.har --url /orders --method POST
  semel probe init --postman shop.json --item "Orders/Create order"
  semel probe init --openapi openapi.yaml --operation createOrder --server http://127.0.0.1:9000`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return p.probeInit(s) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&s.curl, "curl", "", "curl command line, written for bash; - reads it from standard input")
	f.StringVar(&s.har, "har", "", "HAR file, as browsers save it")
	f.StringVar(&s.postman, "postman", "", "Postman collection, format 2.1")
	f.StringVar(&s.burp, "burp", "", "Burp export of items (XML)")
	f.StringVar(&s.openapi, "openapi", "", "OpenAPI 3 document")
	f.IntVar(&s.index, "index", -1, "which request of a HAR file or Burp export, counted from 0")
	f.StringVar(&s.url, "url", "", "part of the URL of the request, in a HAR file or Burp export")
	f.StringVar(&s.method, "method", "", "method of the request, in a HAR file or Burp export")
	f.StringVar(&s.item, "item", "", "path of the request in a Postman collection, as in Folder/Name")
	f.StringVar(&s.operation, "operation", "", "operationId, or method and path, in an OpenAPI document")
	f.StringVar(&s.server, "server", "", "base URL, instead of the OpenAPI document's first server")
	f.BoolVar(&s.optional, "optional", false, "take over optional parameters and fields of an OpenAPI document that have a value there")
	f.StringVar(&s.out, "out", "", "file for the plan, which must not exist (default standard output)")
	return cmd
}

// maxImport is as much as is read of a file to import.
const maxImport = 64 << 20

func (p *program) probeInit(s probeInitSettings) error {
	sources := 0
	for _, v := range []string{s.curl, s.har, s.postman, s.burp, s.openapi} {
		if v != "" {
			sources++
		}
	}
	if sources != 1 {
		return probeUsagef("name one source: --curl, --har, --postman, --burp or --openapi")
	}
	read := func(name string) ([]byte, error) {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		data, err := io.ReadAll(io.LimitReader(f, maxImport+1))
		if err == nil && len(data) > maxImport {
			err = fmt.Errorf("%s is larger than 64 MiB", name)
		}
		return data, err
	}
	var draft *importer.Draft
	var data []byte
	var err error
	choice := importer.Choice{Index: s.index, URL: s.url, Method: s.method}
	switch {
	case s.curl == "-":
		data, err = io.ReadAll(io.LimitReader(p.stdin, maxImport))
		if err == nil {
			draft, err = importer.Curl(string(data), importer.FilesIn("."))
		}
	case s.curl != "":
		draft, err = importer.Curl(s.curl, importer.FilesIn("."))
	case s.har != "":
		if data, err = read(s.har); err == nil {
			draft, err = importer.HAR(data, choice)
		}
	case s.burp != "":
		if data, err = read(s.burp); err == nil {
			draft, err = importer.Burp(data, choice)
		}
	case s.postman != "":
		if data, err = read(s.postman); err == nil {
			draft, err = importer.Postman(data, s.item)
		}
	default:
		if data, err = read(s.openapi); err == nil {
			draft, err = importer.OpenAPI(data, importer.APIChoice{Operation: s.operation, Server: s.server, Document: s.openapi, Optional: s.optional})
		}
	}
	if err != nil {
		return probeUsagef("%w", err)
	}
	if s.out == "" {
		_, err = p.stdout.Write(draft.YAML)
	} else {
		var f *os.File
		if f, err = os.OpenFile(s.out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			_, err = f.Write(draft.YAML)
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		return probeUsagef("the plan cannot be written: %w", err)
	}
	for _, secret := range draft.Secrets {
		_, _ = fmt.Fprintf(p.stderr, "left out: %s; the plan takes it from the environment variable %s\n", printable(secret.From), printable(secret.Env))
	}
	for _, note := range draft.Notes {
		_, _ = fmt.Fprintf(p.stderr, "note: %s\n", printable(note))
	}
	_, _ = fmt.Fprintln(p.stderr, "Fill in what the comments ask for, then: semel probe run PLAN")
	return nil
}
