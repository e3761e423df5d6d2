// Command platforms checks that every package of the workspace, with its tests, can
// be compiled for the platforms it is given, such as linux/arm64; with -packages
// those that it names.
//
// It checks types and generates no code, and of packages outside of the workspace it
// reads declarations only, which takes seconds for a platform instead of minutes.
// What it cannot see is what only a linker does; make cross builds everything.
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/tools/go/packages"
)

func main() {
	pattern := flag.String("packages", "work", "what to check, such as ./... in a module outside of the workspace")
	flag.Parse()
	root, err := os.Getwd()
	if err != nil {
		fmt.Fprintln(os.Stderr, "platforms:", err)
		os.Exit(2)
	}
	if !check(root, *pattern, flag.Args(), os.Stdout) {
		os.Exit(1)
	}
}

// check checks the packages of a pattern below root, and reports whether all is
// well. What is not goes to out.
func check(root, pattern string, platforms []string, out io.Writer) bool {
	files := sources{root: root + string(filepath.Separator), parsed: map[string]parsed{}}
	fset := token.NewFileSet()
	ok := true
	for _, platform := range platforms {
		fmt.Fprintf(out, "check: %s\n", platform)
		goos, goarch, _ := strings.Cut(platform, "/")
		all, err := packages.Load(&packages.Config{
			Mode:  packages.LoadAllSyntax | packages.NeedModule,
			Dir:   root,
			Env:   append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch),
			Fset:  fset,
			Tests: true,

			ParseFile: files.parse,
		}, pattern)
		if err != nil {
			fmt.Fprintf(out, "%s: %v\n", platform, err)
			return false
		}
		if len(all) == 0 {
			fmt.Fprintf(out, "%s: there are no packages\n", platform)
			ok = false
		}
		told := map[string]bool{} // a file belongs to a package and to its tests
		packages.Visit(all, nil, func(p *packages.Package) {
			if p.Module == nil || !p.Module.Main || strings.HasSuffix(p.ID, ".test") { // whose main function the go command writes
				return
			}
			for _, err := range p.Errors {
				if !told[err.Error()] {
					told[err.Error()], ok = true, false
					fmt.Fprintf(out, "%s: %v\n", platform, err)
				}
			}
		})
	}
	return ok
}

type parsed struct {
	file *ast.File
	err  error
}

// sources parses files, each once for all platforms.
type sources struct {
	root   string
	mu     sync.Mutex
	parsed map[string]parsed
}

func (s *sources) parse(fset *token.FileSet, name string, text []byte) (*ast.File, error) {
	s.mu.Lock()
	p, ok := s.parsed[name]
	s.mu.Unlock()
	if ok {
		return p.file, p.err
	}
	file, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution|parser.AllErrors)
	if file != nil && !strings.HasPrefix(name, s.root) {
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				f.Body = nil // what this makes of the package is not looked at
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parsed[name] = parsed{file, err}
	return file, err
}
