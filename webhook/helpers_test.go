package webhook_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"time"

	"github.com/semelhq/semel/webhook"
)

// stripeHeader signs any body, which Sign does only for events.
func stripeHeader(at time.Time, secret, body string) http.Header {
	m := hmac.New(sha256.New, []byte(secret))
	_, _ = fmt.Fprintf(m, "%d.%s", at.Unix(), body)
	return http.Header{webhook.HeaderStripeSignature: {fmt.Sprintf("t=%d,v1=%s", at.Unix(), hex.EncodeToString(m.Sum(nil)))}}
}
