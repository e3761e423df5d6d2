package outbox

import "time"

// RetrySpan returns how long after its first delivery a message of this route may
// be delivered again, if relays run all the time. A receiver has to keep the id
// for that long; see inbox.Config.RetrySpan. retryAfter is the longest delay that
// the receiver asks for, or 0.
//
// A message that is redriven starts a new span.
func (r Route) RetrySpan(retryAfter time.Duration) time.Duration {
	r = r.withDefaults()
	retryAfter = min(retryAfter, maxRetryAfter)
	retryAfter += retryAfter / 10
	span := float64(r.Timeout) * float64(r.MaxAttempts) // does not overflow
	for n := 1; n < r.MaxAttempts; n++ {
		delay := r.longest(n)
		wait := float64(max(delay, retryAfter))
		if len(r.Schedule) > 0 && n >= len(r.Schedule) || len(r.Schedule) == 0 && delay == r.MaxBackoff {
			span += float64(r.MaxAttempts-n) * wait // all that follow are as long
			break
		}
		span += wait
	}
	return time.Duration(min(span, 1<<62))
}
