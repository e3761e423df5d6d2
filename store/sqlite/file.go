package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

// ParseURL returns the path in a URL of scheme "sqlite", for Config.Path:
// "sqlite:orders.db" is relative to the working directory,
// "sqlite:///var/lib/semel/orders.db" is absolute. Percent-encoding is decoded;
// '?' and '#' in a path must be encoded. The URL has no parameters.
func ParseURL(s string) (path string, err error) {
	rest, ok := strings.CutPrefix(s, "sqlite:")
	if !ok {
		return "", errors.New("sqlite: the URL is not of scheme sqlite")
	}
	if strings.ContainsAny(rest, "?#") {
		return "", errors.New("sqlite: the URL has parameters or a fragment; in a path write %3F for ? and %23 for #")
	}
	if authority, ok := strings.CutPrefix(rest, "//"); ok {
		host, _, found := strings.Cut(authority, "/")
		if !found || host != "" && host != "localhost" {
			return "", errors.New("sqlite: the URL names a host; use sqlite:relative.db or sqlite:///absolute/path.db")
		}
		rest = authority[len(host):]
	}
	if path, err = url.PathUnescape(rest); err != nil {
		return "", fmt.Errorf("sqlite: the URL's path: %w", err)
	}
	if path == "" || strings.HasSuffix(path, "/") {
		return "", errors.New("sqlite: the URL names no file")
	}
	if runtime.GOOS == "windows" && len(path) > 2 && path[0] == '/' && path[2] == ':' {
		path = path[1:] // /C:/orders.db
	}
	return filepath.FromSlash(path), nil
}

func validatePath(path string) error {
	switch {
	case path == "":
		return errors.New("field Path is empty")
	case path == ":memory:":
		return errors.New("field Path names a database in memory; use package store/memory")
	case strings.HasPrefix(path, "file:"), strings.HasPrefix(path, "sqlite:"):
		return errors.New("field Path is a URL; it must be the path of a file (see ParseURL)")
	case strings.ContainsRune(path, 0):
		return errors.New("field Path holds a zero byte")
	}
	return nil
}

// creation lets one Open of this process at a time look for its file and create
// it. On POSIX systems a process loses all its locks on a file when it closes
// any descriptor of it. Hence a descriptor of ours must be closed before any
// connection can have opened the file.
var creation sync.Mutex

// locate returns the real path of the file at path, which it creates, readable
// to its owner only, unless it is there or must be. SQLite gives its companion
// files the mode of this one.
func locate(path string, mustExist bool) (string, error) {
	creation.Lock()
	defer creation.Unlock()
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	switch info, err := os.Stat(abs); {
	case err == nil && info.IsDir():
		return "", fmt.Errorf("%s is a directory", path)
	case err == nil && !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is not a regular file", path)
	case err == nil && mustExist && info.Size() == 0:
		return "", fmt.Errorf("%s is empty, and MustExist or NoMigrate is set", path)
	case err == nil:
		// A file is known by one name: under a second one SQLite would
		// look for other companion files.
		return filepath.EvalSymlinks(abs)
	case !errors.Is(err, fs.ErrNotExist):
		return "", err
	}
	if info, err := os.Lstat(abs); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return "", fmt.Errorf("%s is a symbolic link to nothing", path)
	}
	if mustExist {
		return "", fmt.Errorf("%s does not exist, and MustExist or NoMigrate is set", path)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", fmt.Errorf("the file's directory: %w", err)
	}
	abs = filepath.Join(dir, filepath.Base(abs))
	return abs, create(abs)
}

func create(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil // another process was faster
	}
	if err != nil {
		return err
	}
	// Sync the directory too, or a power loss could take the whole file.
	return errors.Join(f.Chmod(0o600), f.Sync(), f.Close(), syncDir(filepath.Dir(path)))
}

func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // directories cannot be synced there, nor need be
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// ErrFileLost reports that the database file, or one of its companions (-wal,
// -shm), was removed, moved or replaced while the store had it open. Nothing
// was written. The store works again once the files are back in place;
// otherwise open a new store.
var ErrFileLost = errors.New("sqlite: the database file was removed, moved or replaced while open")

// files remembers which files a store has open.
type files struct {
	path  string
	names [3]string
	seen  [3]fileID
}

var companions = [3]string{"", "-wal", "-shm"}

func observeFiles(path string) (*files, error) {
	f := &files{path: path}
	for i, suffix := range companions {
		f.names[i] = path + suffix
		id, err := identify(f.names[i])
		if err != nil {
			return nil, err
		}
		f.seen[i] = id
	}
	return f, nil
}

// check reports whether the files are still in their places. On Windows open
// files cannot be moved, and the check finds nothing.
func (f *files) check() error {
	for i, name := range f.names {
		id, err := identify(name)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrFileLost, err)
		}
		if !sameFile(id, f.seen[i]) {
			return fmt.Errorf("%w: %s is another file now", ErrFileLost, name)
		}
	}
	return nil
}
