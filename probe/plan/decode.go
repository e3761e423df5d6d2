package plan

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/semelhq/semel/internal/strict"
)

// ParseFile reads the plan in a file. Files that the plan names are relative to
// the file's folder.
func ParseFile(name string) (*Plan, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	return Parse(name, data)
}

// Parse reads a plan, validates it and fills in the defaults. The name of the
// file is for messages and says where the plan's folder is.
//
// The error holds all problems, each a *Problem. If the text can be read as a
// plan at all, the plan is returned with the error; it must not be used, except
// to continue an import (see [OnlyToFill]).
func Parse(file string, data []byte) (*Plan, error) {
	found := &problems{Source: strict.NewSource(file)}
	p := &Plan{source: found.Source}
	if !language.Decode(found, data, p) {
		return nil, found.Err()
	}
	// What could not be read needs no second complaint for being missing.
	unread := len(found.List)
	p.check(found)
	found.Forget(unread)
	if err := found.Err(); err != nil {
		return p, err
	}
	withDefaults := p.WithDefaults()
	return &withDefaults, nil
}

// Dir returns the plan's folder; empty for the working directory.
func (p *Plan) Dir() string {
	if p.source == nil || p.source.File == "" {
		return ""
	}
	return filepath.Dir(p.source.File)
}
