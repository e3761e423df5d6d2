package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/semver"
)

// cut makes a release of HEAD: a commit on top of it, in which each released
// module requires the others at version, by checksum, and replaces none; and a tag
// of that commit for each of them. It comes to be in a clone, is checked there, and
// its tags come to r all at once or not at all. Nothing leaves the machine.
func (r repository) cut(ctx context.Context, version string, out io.Writer) error {
	changes, err := r.git(ctx, "status", "--porcelain")
	if err != nil {
		return err
	}
	if changes != "" {
		return fmt.Errorf("the work tree has changes that the release would not have; commit or remove them first. Nothing was done\n%s", changes)
	}
	tags, err := r.git(ctx, "tag", "--list", "v*")
	if err != nil {
		return err
	}
	for _, tag := range strings.Fields(tags) {
		if semver.Compare(tag, version) >= 0 {
			return fmt.Errorf("%s is not above %s, which has been released. Nothing was done", version, tag)
		}
	}
	// A clone has none of the settings of its origin.
	var who []string
	for _, key := range []string{"user.name", "user.email"} {
		value, err := r.git(ctx, "config", key)
		if err != nil {
			return fmt.Errorf("git does not know who releases; set it with git config %s. Nothing was done", key)
		}
		who = append(who, "-c", key+"="+value)
	}

	clone, err := r.clone(ctx, "HEAD")
	if err != nil {
		return err
	}
	defer clone.remove()
	modules, err := readTree(clone.dir)
	if err != nil {
		return err
	}
	if err := setPackageVersion(filepath.Join(clone.dir, "clients", "js", "package.json"), version); err != nil {
		return err
	}
	proxy := filepath.Join(clone.temporary, "proxy")
	sums := map[string][]string{}
	for _, m := range modules.released {
		if err := m.setVersion(version, true); err != nil {
			return err
		}
		if err := m.addSums(sums); err != nil {
			return err
		}
		// A module's checksum covers its go.sum, which has those of the modules it
		// requires: hence the order.
		if _, err := clone.git(ctx, "add", "--all"); err != nil {
			return err
		}
		written, err := clone.git(ctx, "write-tree")
		if err != nil {
			return err
		}
		if sums[m.path], err = clone.publish(m, version, written, proxy); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(out, "cut: %s\n", m.tag(version))
	}
	// They stay as they are in the tree but for the versions, so that they build.
	for _, m := range modules.others {
		if err := m.setVersion(version, false); err != nil {
			return err
		}
	}
	if _, err := clone.git(ctx, "add", "--all"); err != nil {
		return err
	}
	if _, err := clone.git(ctx, append(who, "commit", "--quiet", "--no-verify", "--allow-empty", "--message", "Release "+version+"\n\nMade by make cut from the commit before it. Belongs to no branch.")...); err != nil {
		return err
	}
	refs := make([]string, 0, len(modules.released))
	for _, m := range modules.released {
		ref := "refs/tags/" + m.tag(version)
		if _, err := clone.git(ctx, "update-ref", ref, "HEAD"); err != nil {
			return err
		}
		refs = append(refs, ref+":"+ref)
	}
	if _, err := clone.check(ctx, version, filepath.Join(clone.temporary, "checked")); err != nil {
		return fmt.Errorf("the release is not in order, so it was not made: %w", err)
	}
	if _, err := clone.git(ctx, append([]string{"push", "--quiet", "--atomic", r.dir}, refs...)...); err != nil {
		return fmt.Errorf("%w\nNo tag was made", err)
	}
	_, _ = fmt.Fprintf(out, `cut: %s has %d tags here, and nowhere else.
Build it:  make release VERSION=%[1]s
Publish:   git push --atomic origin $(git tag --points-at %[1]s)
Undo:      git tag --delete $(git tag --points-at %[1]s)    only before it is published
`, version, len(refs))
	return nil
}

// setPackageVersion sets the version of the npm package, which is 0.0.0 in the tree. A
// tree without the package is left as it is.
func setPackageVersion(name, version string) error {
	text, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	const unset = `"version": "0.0.0"`
	if strings.Count(string(text), unset) != 1 {
		return fmt.Errorf("clients/js/package.json does not have %s. Nothing was done", unset)
	}
	set := strings.Replace(string(text), unset, `"version": "`+strings.TrimPrefix(version, "v")+`"`, 1)
	return os.WriteFile(name, []byte(set), 0o644)
}

// addSums adds the checksums of the modules of the tree that m requires to its
// go.sum.
func (m *mod) addSums(sums map[string][]string) error {
	name := filepath.Join(m.dir, "go.sum")
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	lines := slices.DeleteFunc(strings.Split(string(text), "\n"), func(l string) bool { return l == "" || ours(strings.Fields(l)[0]) })
	for _, p := range m.requires() {
		lines = append(lines, sums[p]...)
	}
	if len(lines) == 0 {
		return nil
	}
	slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(strings.Fields(a)[0], strings.Fields(b)[0]) })
	return os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o644)
}

// check returns the released modules of what is checked out, having written them
// to proxy, or an error unless they are a release: each has its tag on this
// commit, replaces nothing, and requires the others at version and with the
// checksums that they have.
func (r repository) check(ctx context.Context, version, proxy string) ([]*mod, error) {
	modules, err := readTree(r.dir)
	if err != nil {
		return nil, err
	}
	head, err := r.git(ctx, "rev-parse", "HEAD")
	if err != nil {
		return nil, err
	}
	var wrong []error
	report := func(m *mod, format string, args ...any) {
		wrong = append(wrong, fmt.Errorf("%s: %w", m.path, fmt.Errorf(format, args...)))
	}
	sums := map[string][]string{}
	for _, m := range modules.released {
		if commit, err := r.git(ctx, "rev-parse", "--verify", "--quiet", "refs/tags/"+m.tag(version)+"^{commit}"); err != nil || commit != head {
			report(m, "the tag %s is not of the commit that %s is of", m.tag(version), version)
		}
		for _, replaced := range m.file.Replace {
			report(m, "go.mod replaces %s: go install refuses such a module", replaced.Old.Path)
		}
		if sums[m.path], err = r.publish(m, version, head, proxy); err != nil {
			return nil, err
		}
		text, err := os.ReadFile(filepath.Join(m.dir, "go.sum"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		lines := strings.Split(string(text), "\n")
		for _, required := range m.file.Require {
			if !ours(required.Mod.Path) {
				continue
			}
			if required.Mod.Version != version {
				report(m, "go.mod requires %s at %s", required.Mod.Path, required.Mod.Version)
			}
			for _, sum := range sums[required.Mod.Path] {
				if !slices.Contains(lines, sum) {
					report(m, "go.sum lacks %q", sum)
				}
			}
		}
	}
	return modules.released, errors.Join(wrong...)
}
