package probe

import (
	"context"
	"net"
)

// DialWith has the connections to targets opened by a function.
func (o *Options) DialWith(dial func(ctx context.Context, network, addr string) (net.Conn, error)) {
	o.dial = dial
}
