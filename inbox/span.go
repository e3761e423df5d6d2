package inbox

import (
	"errors"
	"math"
	"time"
)

const forever = time.Duration(math.MaxInt64)

// Schedule describes when a broker redelivers a message that was not
// acknowledged.
type Schedule struct {
	// MaxDeliver is the maximum number of deliveries, or 0 if there is no
	// limit.
	MaxDeliver int
	// AckWait is how long the broker waits for an acknowledgement, its
	// visibility timeout.
	AckWait time.Duration
	// Backoff lists the delays before the second delivery, the third and so on.
	// The last is used for all further deliveries.
	Backoff []time.Duration
	// KeptFor is how long the broker keeps a message, delivered or not, or 0 if
	// there is no limit.
	KeptFor time.Duration
	// ReadAgain says that a consumer can be reset to read again. A message may
	// then be delivered for as long as it is kept, regardless of MaxDeliver.
	ReadAgain bool
}

// Span returns how long after its first delivery a message may be delivered
// again, if neither side is down. Use it as Config.RetrySpan. It fails if there
// is no limit.
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
