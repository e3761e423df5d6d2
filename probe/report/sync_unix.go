//go:build unix

package report

import (
	"errors"
	"os"
)

// syncDir makes the names in a folder durable.
func syncDir(dir string) (err error) {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Sync()
}
