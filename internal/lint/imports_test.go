package lint

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// layer says what the packages of one kind may import, tests aside. A pattern
// names a folder with all below it; "store/*" is each folder in store. Packages
// of one layer do not import each other.
type layer struct {
	patterns []string
	// tree lists patterns of lower layers; down allows them all, but for
	// those with the mark testOnly. A package may always import its own
	// folder's sub-packages and parents.
	tree []string
	down bool
	// others lists import paths outside of the tree and the standard
	// library; any allows them all.
	others []string
	any    bool
	// testing: may import the standard library's testing packages, which
	// otherwise would add their flags to programs.
	testing bool
	// testOnly: may be imported by tests and by layers that name it.
	testOnly bool
}

// layers are from top to bottom: imports only point down. A package in no layer
// is an error, so that a new one gets its place by decision. Where several patterns match, the longest counts.
var layers = []layer{
	{patterns: []string{"cmd/semel"}, down: true, any: true},
	{patterns: []string{"cmd/semel/internal/browser"}, tree: []string{"internal/testenv"}, any: true, testing: true, testOnly: true},
	{patterns: []string{"bench", "examples", "internal/matrix"}, down: true, any: true},
	{patterns: []string{"examples/internal/shelldoc"}, tree: []string{"internal/testenv"}, testing: true, testOnly: true},
	{patterns: []string{"probe/probetest"}, down: true, testing: true, testOnly: true},
	{patterns: []string{"adapter/otel"}, tree: []string{"gateway", "outbox", "semelhttp", "."}, any: true},
	{patterns: []string{"gateway", "probe"}, down: true, any: true},
	{patterns: []string{"adapter/caddy"}, tree: []string{"store/*", "semelhttp", "."}, any: true},
	{patterns: []string{"adapter/river"}, tree: []string{"store/*", "inbox", "."}, any: true},
	{patterns: []string{"adapter/*"}, tree: []string{"adapter/internal", "semelclient", "semelhttp", "."}, any: true},
	{patterns: []string{"adapter/internal/rpc/rpctest"}, tree: []string{"store/memory", "."}, any: true, testing: true, testOnly: true},
	{patterns: []string{"adapter/internal"}, tree: []string{"semelclient", "semelhttp", "."}, any: true},
	{patterns: []string{"internal/routertest"}, tree: []string{"semelhttp", "store/memory", "."}, testing: true, testOnly: true},
	{patterns: []string{"semeltest"}, tree: []string{"semelhttp", "."}, testing: true, testOnly: true},
	{patterns: []string{"webhook/send"}, tree: []string{"webhook", "outbox", "."}},
	{patterns: []string{"webhook", "conditional"}, tree: []string{"semelhttp", "."}},
	{patterns: []string{"steps/stepstest"}, tree: []string{"internal/recorder", "semelclient", "steps", "."}, testing: true, testOnly: true},
	{patterns: []string{"semelclient"}, tree: []string{"internal/httpfield", "semelhttp", "."}},
	{patterns: []string{"semelhttp"}, tree: []string{"internal/httpfield", "."}, others: []string{"github.com/dunglas/httpsfv", "github.com/go-json-experiment/json/jsontext"}},
	{patterns: []string{"store/*"}, tree: []string{"outbox", "inbox", "steps", "internal/recordid", "internal/storekit", "."}, any: true},
	{patterns: []string{"internal/brokenstore"}, tree: []string{"storetest", "outbox/outboxtest", "store/memory", "outbox", "."}, testing: true, testOnly: true},
	{patterns: []string{"store/memory"}, tree: []string{"outbox", "inbox", "steps", "internal/recordid", "internal/storekit", "."}},
	{patterns: []string{"storetest"}, tree: []string{"internal/recorder", "."}, testing: true, testOnly: true},
	{patterns: []string{"jobs/jobstest"}, tree: []string{"internal/recorder", "jobs", "outbox", "inbox", "."}, testing: true, testOnly: true},
	{patterns: []string{"jobs"}, tree: []string{"outbox", "inbox", "."}},
	{patterns: []string{"internal/storekit"}, tree: []string{"outbox", "."}},
	{patterns: []string{"outbox/outboxtest"}, tree: []string{"internal/recorder", "outbox"}, testing: true, testOnly: true},
	{patterns: []string{"outbox"}, tree: []string{"internal/httpfield", "."}},
	{patterns: []string{"steps"}, tree: []string{"."}},
	{patterns: []string{"inbox/inboxtest"}, tree: []string{"internal/recorder", "inbox"}, testing: true, testOnly: true},
	{patterns: []string{"inbox"}},
	{patterns: []string{"internal/model"}, tree: []string{"."}, testOnly: true},
	{patterns: []string{"internal/recordid"}, tree: []string{"."}},
	{patterns: []string{"internal/quick"}, testing: true, testOnly: true},
	{patterns: []string{"internal/httpfield"}},
	{patterns: []string{"internal/strict"}, others: []string{"go.yaml.in/yaml/v4"}},
	{patterns: []string{"internal/recorder"}, testing: true, testOnly: true},
	{patterns: []string{"."}},
	{patterns: []string{"docs/lessons", "clients/js"}},
	{patterns: []string{"internal/testenv"}, any: true, testing: true, testOnly: true},
	{patterns: []string{"internal/tools", "internal/deploycheck"}, any: true, testOnly: true},
	{patterns: []string{"internal/lint"}, testOnly: true},
}

// matches reports whether the pattern covers the package, and which folder of
// the package's path it covers.
func matches(pattern, pkg string) (folder string, ok bool) {
	if pattern == "." {
		return ".", pkg == "."
	}
	parts, want := strings.Split(pkg, "/"), strings.Split(pattern, "/")
	if len(parts) < len(want) {
		return "", false
	}
	for i, w := range want {
		if w != "*" && w != parts[i] {
			return "", false
		}
	}
	return path.Join(parts[:len(want)]...), true
}

// find returns the place of a package in layers, the pattern that covers it
// and the folder it covers; -1 if none does.
func find(pkg string) (at int, pattern, folder string) {
	at = -1
	for i, l := range layers {
		for _, p := range l.patterns {
			if f, ok := matches(p, pkg); ok && len(p) > len(pattern) {
				at, pattern, folder = i, p, f
			}
		}
	}
	return at, pattern, folder
}

// checkImport returns what is wrong with pkg importing imported, or "".
// pkg is a folder of the tree, imported an import path.
func checkImport(pkg, imported string, inTest bool) string {
	from, _, folder := find(pkg)
	if from < 0 {
		return "is in no layer: give it one in internal/lint/imports_test.go, above all that it imports"
	}
	if imported == "C" {
		return "uses cgo"
	}

	if target, ok := inTree(imported); ok {
		to, pattern, toFolder := find(target)
		switch {
		case to < 0:
			return "imports " + target + ", which is in no layer"
		case toFolder == folder:
			return ""
		case pattern == "cmd/semel":
			return "imports the program, " + target
		case inTest:
			return ""
		case to <= from:
			return "imports " + target + ": arrows only point down"
		case slices.Contains(layers[from].tree, pattern):
			return ""
		case layers[to].testOnly:
			return "imports " + target + ", which is for tests"
		case layers[from].down:
			return ""
		}
		return "may not import " + target
	}

	if inTest {
		return "" // the module's requirements are the limit
	}
	first, _, _ := strings.Cut(imported, "/")
	if !strings.Contains(first, ".") {
		if first == "testing" && !layers[from].testing {
			return "imports " + imported + " outside of a test"
		}
		return ""
	}
	if layers[from].any || slices.Contains(layers[from].others, imported) {
		return ""
	}
	return "may not import " + imported
}

// inTree returns the folder of an import path of this tree.
func inTree(imported string) (folder string, ok bool) {
	if imported == modulePath {
		return ".", true
	}
	return strings.CutPrefix(imported, modulePath+"/")
}

// checkImports checks every Go file of the tree.
func checkImports(tree fs.FS) ([]string, error) {
	names, err := files(tree, ".go")
	if err != nil {
		return nil, err
	}
	var wrong []string
	for _, name := range names {
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
		if err != nil {
			return nil, err
		}
		pkg := path.Dir(name)
		if at, _, _ := find(pkg); at < 0 {
			wrong = append(wrong, fmt.Sprintf("%s: %s", name, checkImport(pkg, "", false)))
			continue
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if w := checkImport(pkg, imported, strings.HasSuffix(name, "_test.go")); w != "" {
				wrong = append(wrong, fmt.Sprintf("%s: %s", name, w))
			}
		}
	}
	return wrong, nil
}

func TestImports(t *testing.T) {
	wrong, err := checkImports(tree(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wrong {
		t.Error(w)
	}
}

// TestLayersPointDown keeps the table itself in order.
func TestLayersPointDown(t *testing.T) {
	for i, l := range layers {
		for _, pattern := range l.tree {
			if at := slices.IndexFunc(layers, func(l layer) bool { return slices.Contains(l.patterns, pattern) }); at <= i {
				t.Errorf("layer %s names %s, which is not below it", l.patterns, pattern)
			}
		}
	}
}

func TestImportsFinds(t *testing.T) {
	tests := []struct {
		file    string
		imports string // a path of the tree after "semel/", or any other
		want    string // "" if it is allowed
	}{
		{"a.go", "net/url", ""},
		{"a.go", "github.com/dunglas/httpsfv", "may not import github.com/dunglas/httpsfv"},
		{"a.go", "semel/store/memory", "arrows only point down"},
		{"a.go", "testing", "imports testing outside of a test"},
		{"a_test.go", "testing", ""},
		{"a_test.go", "semel/store/memory", ""},
		{"a.go", "C", "uses cgo"},

		{"semelhttp/a.go", "semel", ""},
		{"semelhttp/a.go", "github.com/dunglas/httpsfv", ""},
		{"semelhttp/a.go", "github.com/go-json-experiment/json/jsontext", ""},
		{"semelhttp/a.go", "github.com/go-json-experiment/json", "may not import github.com/go-json-experiment/json"},
		{"semelhttp/a.go", "github.com/spf13/cobra", "may not import github.com/spf13/cobra"},
		{"semelhttp/a.go", "semel/store/memory", "may not import store/memory"},
		{"semelhttp/a.go", "semel/store/sqlite", "may not import store/sqlite"},
		{"semelhttp/a_test.go", "semel/store/memory", ""},
		{"semelhttp/a.go", "semel/gateway", "arrows only point down"},

		{"webhook/a.go", "semel/semelhttp", ""},
		{"webhook/a.go", "semel", ""},
		{"webhook/a.go", "github.com/dunglas/httpsfv", "may not import github.com/dunglas/httpsfv"},
		{"webhook/a.go", "semel/store/sqlite", "may not import store/sqlite"},
		{"webhook/interop/a_test.go", "github.com/stripe/stripe-go/v83/webhook", ""},
		{"semelhttp/a.go", "semel/webhook", "arrows only point down"},
		{"semelclient/a.go", "semel/semelhttp", ""},
		{"semelhttp/a.go", "semel/semelclient", "arrows only point down"},
		{"conditional/a.go", "semel/semelhttp", ""},
		{"conditional/a.go", "semel/webhook", "arrows only point down"},
		{"conditional/a.go", "github.com/jackc/pgx/v5", "may not import github.com/jackc/pgx/v5"},

		{"store/memory/a.go", "semel", ""},
		{"store/memory/a.go", "semel/store/sqlite", "arrows only point down"},
		{"store/memory/a.go", "modernc.org/sqlite", "may not import modernc.org/sqlite"},
		{"store/memory/a_test.go", "semel/storetest", ""},
		{"store/sqlite/a.go", "semel", ""},
		{"store/sqlite/a.go", "semel/store/sqlite/migrations", ""},
		{"store/sqlite/a.go", "semel/store/postgres", "arrows only point down"},
		{"store/sqlite/a.go", "semel/store/memory", "may not import store/memory"},
		{"store/sqlite/a.go", "semel/storetest", "which is for tests"},
		{"store/sqlite/a.go", "semel/semelhttp", "arrows only point down"},
		{"store/sqlite/a.go", "semel/gateway", "arrows only point down"},
		{"store/sqlite/a.go", "modernc.org/sqlite", ""},

		{"adapter/gin/a.go", "semel/semelhttp", ""},
		{"adapter/gin/a.go", "semel", ""},
		{"adapter/gin/a.go", "github.com/gin-gonic/gin", ""},
		{"adapter/gin/a.go", "semel/store/memory", "may not import store/memory"},
		{"adapter/gin/a_test.go", "semel/store/memory", ""},
		{"adapter/gin/a.go", "semel/gateway", "arrows only point down"},
		{"adapter/grpc/a.go", "semel/adapter/internal/rpc", ""},
		{"adapter/grpc/a.go", "semel/adapter/connect", "arrows only point down"},
		{"adapter/internal/rpc/a.go", "semel/semelhttp", ""},
		{"adapter/internal/rpc/a.go", "semel/adapter/grpc", "arrows only point down"},
		{"semelhttp/a.go", "semel/adapter/gin", "arrows only point down"},
		{"examples/chi/a.go", "semel/adapter/chi", ""},

		{"storetest/a.go", "testing", ""},
		{"storetest/a.go", "testing/synctest", ""},
		{"storetest/a.go", "semel", ""},
		{"storetest/a.go", "semel/store/memory", "arrows only point down"},
		{"storetest/a.go", "semel/internal/brokenstore", "arrows only point down"},
		{"storetest/a_test.go", "semel/internal/brokenstore", ""},
		{"storetest/a.go", "github.com/google/go-cmp/cmp", "may not import github.com/google/go-cmp/cmp"},

		{"outbox/a.go", "semel/store/memory", "arrows only point down"},
		{"outbox/a_test.go", "semel/store/memory", ""},
		{"outbox/httpsink/a.go", "semel/outbox", ""},
		{"outbox/a.go", "testing", "imports testing outside of a test"},
		{"outbox/outboxtest/a.go", "testing", ""},
		{"store/sqlite/a.go", "semel/outbox", ""},
		{"store/sqlite/a.go", "semel/outbox/outboxtest", "which is for tests"},
		{"store/memory/a.go", "semel/outbox", ""},
		{"store/memory/a.go", "semel/inbox", ""},
		{"inbox/a.go", "semel/outbox", "arrows only point down"},
		{"inbox/inboxtest/a.go", "testing", ""},

		{"semeltest/a.go", "testing", ""},
		{"semeltest/a.go", "semel/semelhttp", ""},
		{"semeltest/a.go", "semel/store/memory", "may not import store/memory"},
		{"semeltest/a.go", "github.com/google/go-cmp/cmp", "may not import github.com/google/go-cmp/cmp"},
		{"semeltest/a_test.go", "semel/store/memory", ""},
		{"semelhttp/a.go", "semel/semeltest", "arrows only point down"},
		{"examples/payments/a.go", "semel/semeltest", "which is for tests"},
		{"examples/payments/a_test.go", "semel/semeltest", ""},

		{"internal/brokenstore/a.go", "semel/store/memory", ""},
		{"internal/brokenstore/a.go", "semel/storetest", ""},
		{"internal/brokenstore/a.go", "semel/store/sqlite", "arrows only point down"},

		{"gateway/a.go", "semel/semelhttp", ""},
		{"gateway/a.go", "semel/store/sqlite", ""},
		{"gateway/a.go", "semel", ""},
		{"gateway/a.go", "golang.org/x/sync/errgroup", ""},
		{"gateway/a.go", "semel/storetest", "which is for tests"},
		{"gateway/a.go", "semel/internal/brokenstore", "which is for tests"},
		{"store/sqlite/a.go", "semel/internal/testenv", "which is for tests"},
		{"store/sqlite/a_test.go", "semel/internal/testenv", ""},
		{"gateway/a.go", "semel/internal/lint", "which is for tests"},
		{"gateway/a.go", "semel/cmd/semel/internal/lab", "imports the program"},
		{"gateway/a_test.go", "semel/cmd/semel/internal/lab", "imports the program"},
		{"gateway/a.go", "semel/bench", "arrows only point down"},
		{"probe/a.go", "semel/semelhttp", ""},
		{"probe/a.go", "semel/gateway", "arrows only point down"},
		{"gateway/a.go", "semel/probe", "arrows only point down"},
		{"examples/a.go", "semel/bench", "arrows only point down"},

		{"cmd/semel/a.go", "semel/gateway", ""},
		{"cmd/semel/a.go", "semel/cmd/semel/internal/lab", ""},
		{"cmd/semel/a.go", "github.com/spf13/cobra", ""},
		{"cmd/semel/a.go", "semel/storetest", "which is for tests"},
		{"examples/orders/a.go", "semel/semelhttp", ""},
		{"bench/a_test.go", "semel/cmd/semel", "imports the program"},
		{"internal/tools/cmd/testall/a.go", "semel", "arrows only point down"},

		{"internal/new/a.go", "net/url", "is in no layer"},
		{"internal/new/a.go", "", "is in no layer"},
		{"store/a.go", "net/url", "is in no layer"},
		{"gateway/a.go", "semel/internal/new", "which is in no layer"},
		{"testdata/a.go", "C", ""},
		{"gateway/_old/a.go", "C", ""},
	}
	for _, tt := range tests {
		imported := tt.imports
		if rest, ok := strings.CutPrefix(imported, "semel"); ok && (rest == "" || rest[0] == '/') {
			imported = modulePath + rest
		}
		t.Run(tt.file+" "+tt.imports, func(t *testing.T) {
			text := "package p\n"
			if imported != "" {
				text += "\nimport _ " + strconv.Quote(imported) + "\n"
			}
			tree := fstest.MapFS{tt.file: {Data: []byte(text)}}
			wrong, err := checkImports(tree)
			if err != nil {
				t.Fatal(err)
			}
			expect(t, wrong, tt.want)
		})
	}
}
