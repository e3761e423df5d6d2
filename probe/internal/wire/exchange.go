package wire

import (
	"crypto/tls"
	"errors"
	"net/http"
	"net/netip"
	"time"
)

// Delivery says how far a request got. It is about bytes: only NotSent and
// Refused tell that the request had no effect, and none of them tells that it
// had one.
type Delivery uint8

const (
	// NotSent: nothing of the request was handed to the network. It
	// certainly had no effect.
	NotSent Delivery = iota
	// Partial: some of the request was, but not all of it, and no response came.
	Partial
	// Refused: the server said that it did not process the request
	// (HTTP/2: RST_STREAM with REFUSED_STREAM, or a GOAWAY that leaves the
	// stream out). By RFC 9113 it had no effect.
	Refused
	// Unanswered: the whole request was handed to the network, and no status
	// that could be read came back: the connection was closed, reset, timed
	// out, was cut by us, or carried something else. Whether the server got
	// the request is not known, unless Acked is set.
	Unanswered
	// Answered: a final status came back, whichever it is. The server may
	// have answered before it had the whole request: Timing.LastWrite tells.
	Answered
)

var deliveryNames = [...]string{"not-sent", "partial", "refused", "unanswered", "answered"}

func (d Delivery) String() string {
	if int(d) < len(deliveryNames) {
		return deliveryNames[d]
	}
	return "unknown"
}

// Timing is when what happened, by this machine's clock; the times carry
// monotonic readings. What did not happen has the zero time.
type Timing struct {
	Start      time.Time // the look-up, or the first step in an open connection
	Resolved   time.Time // the address is known
	Connected  time.Time // TCP stands
	Secured    time.Time // TLS stands
	FirstWrite time.Time // the first bytes of the request are about to be written
	LastWrite  time.Time // the last byte of the request was handed to the network
	FirstByte  time.Time // the first byte of a response was read
	Done       time.Time // the exchange is over
}

// Response is a response, as far as it came.
type Response struct {
	Status  int
	Reason  string // HTTP/1.1 only
	Proto   string // as answered: HTTP/1.0, HTTP/1.1, HTTP/2.0
	Header  http.Header
	Trailer http.Header
	// Body is without chunked coding, and with its Content-Encoding.
	Body []byte
	// Interim are the 1xx statuses that came before.
	Interim []int
	// Truncated: the response is not whole. The Exchange's Err says why.
	Truncated bool
}

// Exchange is what came of one request. It shares no memory with others.
type Exchange struct {
	Request  Request
	Protocol Protocol // as spoken; Auto if it did not come to that
	// Addr is the target's entry in the allow-list.
	Addr          string
	Remote, Local netip.AddrPort
	// TLS is the state after the handshake; nil without TLS. It holds
	// verified chains exactly if the server's certificate was verified.
	TLS *tls.ConnectionState

	// Sent is what of the request was handed to the network, below it is TLS
	// at most. With HTTP/2 it is the frames of the request's stream: those
	// of the connection (preface, SETTINGS, PING, WINDOW_UPDATE) are not in
	// it. Where a write failed within TLS, the bytes of its last record may
	// be missing.
	Sent []byte
	// Received is what was read of the response, in the same way.
	Received []byte

	Delivery Delivery
	// Acked: the server's machine acknowledged all that was sent. Only
	// SendCut looks; never set where the system cannot tell (Windows).
	Acked bool
	// Cut: we ended the exchange as asked, by SendCut.
	Cut bool
	// Response is set exactly if Delivery is Answered.
	Response *Response
	// Err is why there is no response, or why it is truncated. It quotes
	// nothing that was sent or received. For a context that ended it matches
	// the context's cause, for a time limit of the Config ErrTimeout.
	Err    error
	Timing Timing
}

// Causes in Exchange.Err and Race.Err, for errors.Is.
var (
	// ErrTimeout: a time limit of the Config was over.
	ErrTimeout = errors.New("wire: time limit reached")
	// ErrTooLarge: the response is larger than Config.MaxResponse, or one of the
	// other bounds named there is reached.
	ErrTooLarge = errors.New("wire: the response is larger than the limit")
	// ErrProtocol: what the server said is not HTTP, or not the version asked for.
	ErrProtocol = errors.New("wire: the server broke the protocol, or does not speak it")
	// ErrClosed: the server ended the connection or the stream too early.
	ErrClosed = errors.New("wire: closed by the server")
	// ErrCut: we cut the exchange, as asked.
	ErrCut = errors.New("wire: cut as asked")
	// ErrNotRaced: the requests of a race could not be released together.
	ErrNotRaced = errors.New("wire: could not race")
)
