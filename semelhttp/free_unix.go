//go:build linux || darwin || freebsd

package semelhttp

import "syscall"

// freeBytes is what an unprivileged user can still write to the disk of dir.
func freeBytes(dir string) (int64, bool) {
	var s syscall.Statfs_t
	if syscall.Statfs(dir, &s) != nil {
		return 0, false
	}
	return int64(min(uint64(s.Bavail), 1<<40) * uint64(s.Bsize)), true
}
