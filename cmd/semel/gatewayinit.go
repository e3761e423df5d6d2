package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/cmd/semel/internal/gatewayfile"
	"github.com/semelhq/semel/cmd/semel/internal/importer"
	"github.com/semelhq/semel/gateway"
	"github.com/semelhq/semel/semelhttp"
)

func (p *program) gatewayInitCommand() *cobra.Command {
	var openapi, upstream, storeURL, out string
	cmd := &cobra.Command{
		Use:   "init --openapi FILE",
		Short: "Write a configuration from an OpenAPI document",
		Long: `Writes the configuration of a gateway for a service that an OpenAPI 3 document
describes. Each POST and PATCH becomes an operation named by its operationId, and so
does each PUT and DELETE that declares an idempotency key. A key is required where
the document requires it. The last route takes everything else.

References that lead out of the document are not followed, and no connection is
opened. The result is checked. Read it before you use it, above all its principal: a
digest of the credential verifies nothing.`,
		Example: "  semel gateway init --openapi openapi.yaml --upstream http://127.0.0.1:9000 > gateway.yaml\n  semel gateway init --openapi openapi.json --out gateway.yaml && semel gateway check gateway.yaml --explain",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if openapi == "" {
				return usagef("--openapi is not set; name the file with the OpenAPI document")
			}
			data, err := readUpTo(openapi, importer.MaxOpenAPI)
			if err != nil {
				return &fault{code: exitFailed, err: fmt.Errorf("the document cannot be read: %w", err), do: "Name a file that can be read. Nothing was written; a retry is safe."}
			}
			api, err := importer.ListOpenAPI(data)
			if err != nil {
				return usagef("%s: %w", openapi, err)
			}
			text, notes, err := initConfig(api, upstream, storeURL)
			if err != nil {
				return usagef("%w", err)
			}
			if _, err := gatewayfile.Parse("the written configuration", text, p.lookupEnv); err != nil {
				return &fault{code: exitFailed, err: fmt.Errorf("the document's operations do not make a valid configuration:\n%w", err), do: "Write one by hand: docs/gateway.md. Nothing was written."}
			}
			for _, note := range notes {
				_, _ = fmt.Fprintln(p.stderr, printable(note))
			}
			if out == "" {
				_, err = p.stdout.Write(text)
				return err
			}
			f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err == nil {
				_, err = f.Write(text)
				err = errors.Join(err, f.Close())
			}
			if err != nil {
				do := "Nothing was written, or not all of it; remove the file and try again."
				if errors.Is(err, fs.ErrExist) {
					do = "Name another file, or remove this one. It was left as it is."
				}
				return &fault{code: exitFailed, err: fmt.Errorf("the configuration cannot be written: %w", err), do: do}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&openapi, "openapi", "", "file with the OpenAPI document (required)")
	cmd.Flags().StringVar(&upstream, "upstream", "", "URL of the service (default the document's first server)")
	cmd.Flags().StringVar(&storeURL, "store", "sqlite:semel.db", "where records are kept")
	cmd.Flags().StringVar(&out, "out", "", "file to write, which must not exist (default standard output)")
	return cmd
}

func readUpTo(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, limit+1))
}

// initConfig writes a configuration. Notes say what of the document is not in it.
func initConfig(api *importer.API, upstream, storeURL string) (text []byte, notes []string, err error) {
	base := api.BasePath()
	if upstream == "" {
		u, err := url.Parse(api.Server)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, nil, errors.New("the document does not name the service's server; name it with --upstream")
		}
		upstream = u.Scheme + "://" + u.Host
	}
	var b bytes.Buffer
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(&b, format+"\n", args...) }
	line("# Made by semel gateway init of the OpenAPI document %q.", printable(api.Title))
	line("# Check it with semel gateway check --explain. The keys are described in docs/gateway.md.")
	line("version: 1\nstore:\n  url: %s", quoted(storeURL))
	switch {
	case len(api.Credentials) > 0:
		line("# A digest checks nothing: a refreshed token is another caller, and a revoked one\n# still sees its recorded responses. Better: jwt, mtls, endpoint or header.")
		list := make([]string, len(api.Credentials))
		for i, c := range api.Credentials {
			list[i] = quoted(c)
		}
		line("principal:\n  digest: {headers: [%s]}", strings.Join(list, ", "))
	case api.Cookie != "":
		line("# The cookie must be an opaque session id that stays as it is.")
		line("principal:\n  digest: {cookie: %s}", quoted(api.Cookie))
	default:
		line("# The document names no way to authenticate: all callers share their keys.")
		line("principal:\n  shared: {}")
	}
	line("upstreams:\n  - name: service\n    url: %s", quoted(upstream))
	line("routes:")
	names, patterns, routes := map[string]bool{}, map[string]bool{}, 0
	for _, op := range api.Operations {
		protect := op.Method == "POST" || op.Method == "PATCH" || op.Key != "" && (op.Method == "PUT" || op.Method == "DELETE")
		if !protect {
			continue
		}
		path, ok := pattern(base + op.Path)
		match := op.Method + " " + path
		if _, err := gateway.NewRouter(gateway.RouterConfig{Routes: []gateway.Route{{Patterns: []string{match}, Gateway: &gateway.Gateway{}}}}); !ok || err != nil || patterns[match] {
			notes = append(notes, fmt.Sprintf("%s %s cannot be a route, because a {name} must be a whole segment of the path, or it is one already; the last route has its requests.", op.Method, op.Path))
			continue
		}
		patterns[match] = true
		routes++
		line("  - match: %s", quoted(match))
		if id := op.ID; id != "" && !names[id] && (semel.Identity{Scope: semel.Scope{Operation: id}, Key: "k"}).Validate() == nil {
			names[id] = true
			line("    operation: %s", quoted(id))
		}
		if op.Key != "" {
			key := "key: {required: " + fmt.Sprint(op.KeyRequired)
			if !strings.EqualFold(op.Key, semelhttp.HeaderKey) {
				key += ", from: [" + quoted("header "+op.Key) + "]"
			}
			line("    %s}", key)
		}
	}
	line("  - match: /")
	if routes == 0 {
		notes = append(notes, "The document has no POST and no PATCH: there is nothing to protect but by the last route.")
	}
	return b.Bytes(), notes, nil
}

// quoted is s as a string of YAML, in which nothing comes from the environment.
func quoted(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(strings.ReplaceAll(s, "$", "$$")) // of a string
	return strings.TrimSpace(b.String())
}

var (
	parameter = regexp.MustCompile(`^\{[^{}]+\}$`)
	notName   = regexp.MustCompile(`[^A-Za-z0-9_]+`)
)

// pattern is a path of OpenAPI as one of a route. It reports whether it can be one.
func pattern(path string) (string, bool) {
	var names []string
	segments := strings.Split(path, "/")
	for i, s := range segments {
		if !parameter.MatchString(s) {
			if strings.ContainsAny(s, "{}") {
				return "", false
			}
			continue
		}
		name := strings.Trim(notName.ReplaceAllString(s, "_"), "_")
		if name == "" || name[0] >= '0' && name[0] <= '9' {
			name = "p" + name
		}
		for slices.Contains(names, name) {
			name += "_"
		}
		names = append(names, name)
		segments[i] = "{" + name + "}"
	}
	path = strings.Join(segments, "/")
	if strings.HasSuffix(path, "/") && path != "/" {
		path += "{$}" // the place itself, not all below it
	}
	return path, true
}
