package report

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteFile writes a file that only the user can read. It is there whole or not
// at all: it is written in the same folder under a name that nobody can know
// beforehand, which begins with a dot and ends in .partial, synced and renamed.
// What was at the path is replaced, also if it is a link: where that leads is
// not touched. What is neither a file nor a link to one is left alone, with an
// error: a device or a pipe cannot be written whole.
//
// After an error the path is as it was and what was written beside it is
// removed, but for an error that says that the file is written; a process that
// dies leaves what it wrote.
func WriteFile(path string, write func(io.Writer) error) (err error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return &fs.PathError{Op: "write", Path: path, Err: errors.New("it is there already and no file")}
	}
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*.partial") // mode 0600
	if err != nil {
		return err
	}
	if err := fill(f, write); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	if err := syncDir(dir); err != nil {
		return fmt.Errorf("%s is written, but may not survive a loss of power: %w", path, err)
	}
	return nil
}

// fill writes a file, to the disk, and closes it.
func fill(f *os.File, write func(io.Writer) error) (err error) {
	defer func() { err = errors.Join(err, f.Close()) }()
	b := bufio.NewWriterSize(f, 1<<16)
	if err := write(b); err != nil {
		return err
	}
	if err := b.Flush(); err != nil {
		return err
	}
	return f.Sync()
}
