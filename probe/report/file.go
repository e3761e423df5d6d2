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

// WriteFile writes a file that only the user can read. It is created whole or
// not at all: it is written in the same folder under an unpredictable name,
// which begins with a dot and ends in .partial, synced and renamed. An existing
// file is replaced. If the path is a link, the link is replaced, and the file
// it leads to is not touched. It is an error if the path is anything else, such
// as a device or a pipe.
//
// After an error the path is as it was and the partial file is removed, unless
// the error says that the file is written. A process that dies leaves the
// partial file.
func WriteFile(path string, write func(io.Writer) error) (err error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return &fs.PathError{Op: "write", Path: path, Err: errors.New("it exists and is not a regular file")}
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
