//go:build unix

package sqlite

import (
	"errors"
	"io/fs"
	"syscall"
)

// fileID tells files apart.
type fileID struct{ device, inode uint64 }

// identify is asked before each look-up, so it costs one system call and no more.
func identify(path string) (fileID, error) {
	var st syscall.Stat_t
	err := syscall.Lstat(path, &st)
	for errors.Is(err, syscall.EINTR) {
		err = syscall.Lstat(path, &st)
	}
	if err != nil {
		return fileID{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return fileID{uint64(st.Dev), uint64(st.Ino)}, nil // their types differ between systems
}

func sameFile(a, b fileID) bool { return a == b }
