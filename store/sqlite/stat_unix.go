//go:build unix

package sqlite

import (
	"errors"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"
)

// fileID tells files apart.
type fileID struct{ device, inode uint64 }

// identify costs one system call and no more.
func identify(path string) (fileID, error) {
	p, err := placeOf(path)
	return p.fileID, err
}

func sameFile(a, b fileID) bool { return a == b }

// place is a directory as it was at some time. It differs from that of another
// time if an entry was made, removed or replaced in between, other than within the
// resolution of the file system's clock.
type place struct {
	fileID
	changed int64 // nanoseconds; not the time of modification, which can be set back
}

func placeOf(dir string) (place, error) {
	var st unix.Stat_t
	err := unix.Lstat(dir, &st)
	for errors.Is(err, unix.EINTR) {
		err = unix.Lstat(dir, &st)
	}
	if err != nil {
		return place{}, &fs.PathError{Op: "lstat", Path: dir, Err: err}
	}
	return place{fileID{uint64(st.Dev), uint64(st.Ino)}, st.Ctim.Nano()}, nil // their types differ between systems
}

func (p place) age() time.Duration { return time.Since(time.Unix(0, p.changed)) }
