//go:build !unix

package sqlite

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

type fileID = fs.FileInfo

func identify(path string) (fileID, error) { return os.Lstat(path) }

func sameFile(a, b fileID) bool { return os.SameFile(a, b) }

type place struct{}

// placeOf fails: what a directory says of its entries is not known here.
func placeOf(string) (place, error) { return place{}, errors.ErrUnsupported }

func (place) age() time.Duration { return 0 }
