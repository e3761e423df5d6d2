//go:build !unix

package sqlite

import (
	"io/fs"
	"os"
)

type fileID = fs.FileInfo

func identify(path string) (fileID, error) { return os.Lstat(path) }

func sameFile(a, b fileID) bool { return os.SameFile(a, b) }
