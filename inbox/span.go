package inbox

import (
	"errors"
	"math"
	"time"
)

const forever = time.Duration(math.MaxInt64)

// Schedule is when a broker delivers a message again that was not acknowledged.
type Schedule struct {
	// MaxDeliver is how many times it delivers at most; 0 if it has no limit.
	MaxDeliver int
	// AckWait is how long it waits for an acknowledgement: its visibility timeout.
	AckWait time.Duration
	// Backoff are the delays before the second delivery, the third and so on; the
	// last is that of all further ones.
	Backoff []time.Duration
	// KeptFor is how long it keeps the message, delivered or not; 0 if without
	// limit. Where a consumer can be set back to read again, that is the limit.
	KeptFor time.Duration
	// ReadAgain says that a consumer can be set back: then a message may come for
	// as long as it is kept, whatever MaxDeliver says.
	ReadAgain bool
}

// Span returns for how long after its first delivery a message may come again, if
// neither side is down: the RetrySpan of a Config. It fails where nothing limits
// it.
func (s Schedule) Span() (time.Duration, error) {
	if s.MaxDeliver < 0 || s.AckWait < 0 || s.KeptFor < 0 {
		return 0, errors.New("inbox: schedule: a field is negative")
	}
	span := forever
	if s.MaxDeliver > 0 && !s.ReadAgain {
		span = s.AckWait // of the last delivery
		wait, left := s.AckWait, s.MaxDeliver-1
		for _, d := range s.Backoff[:min(len(s.Backoff), left)] {
			if d < 0 {
				return 0, errors.New("inbox: schedule: a field is negative")
			}
			wait = add(s.AckWait, d)
			span = add(span, wait)
			left--
		}
		if wait > 0 && time.Duration(left) >= forever/wait {
			span = forever
		} else {
			span = add(span, wait*time.Duration(left))
		}
	}
	if s.KeptFor > 0 {
		span = min(span, s.KeptFor)
	}
	switch span {
	case forever:
		return 0, errors.New("inbox: schedule: nothing limits for how long a message may come: neither MaxDeliver nor KeptFor")
	case 0:
		return 0, errors.New("inbox: schedule: AckWait and Backoff are 0")
	}
	return span, nil
}

// add is a sum that does not overflow.
func add(a, b time.Duration) time.Duration {
	if a > forever-b {
		return forever
	}
	return a + b
}
