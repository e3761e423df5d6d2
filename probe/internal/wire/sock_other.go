//go:build !linux && !darwin

package wire

// unacked cannot be told here.
func (p *pipe) unacked() (n int, ok bool) { return 0, false }
