// Command release cuts releases of the modules of this repository and builds what
// is published of them. docs/RELEASING.md says when to use what.
//
// Usage:
//
//	release cut v1.2.3            make the commit and the tags of a release
//	release check v1.2.3          check the tags of a release
//	release proxy v1.2.3 FOLDER   write the modules of a release as a module proxy
//	release dist v1.2.3 FOLDER    build programs, image, SBOMs and checksums
//
// Each works in a clone of the repository in the current folder, made for the
// purpose. Only cut changes the repository: it adds all tags or none.
// Interrupted, each can be called again.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: release cut|check VERSION, or release proxy|dist VERSION FOLDER; VERSION is like v1.2.3")

func run(ctx context.Context, args []string, out io.Writer) error {
	arguments := map[string]int{"cut": 2, "check": 2, "proxy": 3, "dist": 3}
	if len(args) == 0 || arguments[args[0]] != len(args) {
		return errUsage
	}
	verb, version := args[0], args[1]
	if err := checkVersion(version); err != nil {
		return err
	}
	repo, err := newRepository(ctx, ".")
	if err != nil {
		return err
	}
	if verb == "cut" {
		return repo.cut(ctx, version, out)
	}

	clone, err := repo.clone(ctx, "refs/tags/"+version)
	if err != nil {
		return fmt.Errorf("%w\nIs there a release %s? make cut VERSION=%s makes it, git fetch --tags gets it", err, version, version)
	}
	defer clone.remove()
	temporary, err := os.MkdirTemp("", "semel-release-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	proxy := filepath.Join(temporary, "proxy")
	if verb == "proxy" {
		proxy = args[2]
	}
	released, err := clone.check(ctx, version, proxy)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "release: %s is in order: %d modules\n", version, len(released))
	if verb == "dist" {
		return clone.dist(ctx, version, proxy, args[2], out)
	}
	return nil
}

// repository is a git repository with a work tree.
type repository struct {
	dir string // absolute
	// temporary is the folder to remove, of a clone.
	temporary string
}

func newRepository(ctx context.Context, dir string) (repository, error) {
	top, err := repository{dir: dir}.git(ctx, "rev-parse", "--show-toplevel")
	return repository{dir: top}, err
}

// clone makes a clone with the commit at ref checked out. It borrows the objects
// of r, and remove removes it.
func (r repository) clone(ctx context.Context, ref string) (repository, error) {
	commit, err := r.git(ctx, "rev-parse", "--verify", "--quiet", ref+"^{commit}")
	if err != nil {
		return repository{}, fmt.Errorf("there is no %s in %s", ref, r.dir)
	}
	temporary, err := os.MkdirTemp("", "semel-release-")
	if err != nil {
		return repository{}, err
	}
	c := repository{dir: filepath.Join(temporary, "semel"), temporary: temporary}
	if _, err = r.git(ctx, "clone", "--quiet", "--shared", "--no-checkout", r.dir, c.dir); err == nil {
		_, err = c.git(ctx, "checkout", "--quiet", "--detach", commit)
	}
	if err != nil {
		c.remove()
		return repository{}, err
	}
	return c, nil
}

func (r repository) remove() { _ = os.RemoveAll(r.temporary) }

// git runs git in r and returns what it prints, without white space around it.
func (r repository) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = r.dir
	return output(cmd)
}

// output runs cmd, and has what it says on standard error in its error.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}
