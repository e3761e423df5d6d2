package probe

import (
	"context"
	"net"

	"github.com/semelhq/semel/probe/internal/har"
)

// DialWith has the connections to targets opened by a function.
func (o *Options) DialWith(dial func(ctx context.Context, network, addr string) (net.Conn, error)) {
	o.dial = dial
}

// HAR returns what WriteHAR writes.
func (r *Result) HAR() har.Document { return r.har }
