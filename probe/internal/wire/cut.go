package wire

import (
	"context"
	"fmt"
)

// CutPoint is where SendCut ends an exchange.
type CutPoint uint8

const (
	// BeforeLastByte sends all but the last byte (in HTTP/2 all but the end
	// of the stream, with the last byte of the body if there is one), waits
	// until that is acknowledged, and cuts. A server must not act on it.
	BeforeLastByte CutPoint = iota + 1
	// AfterRequest sends the whole request, waits until the server's machine
	// has acknowledged it as far as that can be told (Exchange.Acked), and
	// cuts. What of the response came before the cut is kept.
	AfterRequest
	// AfterFirstByte cuts as soon as the first byte of the response (in HTTP/2
	// the first frame of the stream) was read. The rest is not read.
	AfterFirstByte
)

// CutHow is the way SendCut ends an exchange.
type CutHow uint8

const (
	// ByReset closes the connection with a TCP RST, without any farewell.
	ByReset CutHow = iota
	// ByClose closes it with a FIN, after TLS's farewell if there is TLS.
	ByClose
	// ByStream resets the stream (RST_STREAM with CANCEL), waits until the
	// server has seen that, and then closes the connection. HTTP/2 only:
	// over anything else nothing is sent.
	ByStream
)

// Cut says where and how to cut.
type Cut struct {
	At CutPoint
	By CutHow
}

// SendCut sends a request in a connection of its own and throws the response
// away by cutting the exchange. Errors and contexts are those of Send. Cut is
// set in the Exchange if it came to that; it did not if the exchange was over
// before, answered, refused or broken.
func (s *Sender) SendCut(ctx context.Context, r Request, cut Cut) (Exchange, error) {
	if cut.At < BeforeLastByte || cut.At > AfterFirstByte || cut.By > ByStream {
		return Exchange{}, fmt.Errorf("wire: there is no cut %d by %d", cut.At, cut.By)
	}
	m, err := s.admit(ctx, 1, r)
	if err != nil {
		return Exchange{}, err
	}
	x := s.single(ctx, m[0], cut)
	s.observe(ctx, KindCut, x)
	return x, nil
}

// cut ends the connection.
func (c *conn) cut(how CutHow) {
	if how == ByReset {
		c.reset()
		return
	}
	c.close()
}
