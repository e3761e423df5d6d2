package plan

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/internal/wire"
)

// signatureHeaders are what each scheme adds, in order.
var signatureHeaders = map[string][]string{
	"standard-webhooks": {"webhook-timestamp", "webhook-signature"},
	"stripe":            {"Stripe-Signature"},
	"github":            {"X-Hub-Signature-256"},
}

// sign returns the header fields that sign a delivery of the body, under the
// event id, at a time.
func sign(scheme, secret, id string, at time.Time, body []byte) ([]wire.Field, error) {
	stamp := strconv.FormatInt(at.Unix(), 10)
	mac := func(key []byte, parts ...string) []byte {
		h := hmac.New(sha256.New, key)
		for _, p := range parts {
			h.Write([]byte(p))
		}
		return h.Sum(nil)
	}
	names := signatureHeaders[scheme]
	switch scheme {
	case "standard-webhooks":
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		if err != nil {
			return nil, errors.New("the secret is not base64, as Standard Webhooks has it")
		}
		sum := mac(key, id, ".", stamp, ".", string(body))
		return []wire.Field{{Name: names[0], Value: stamp}, {Name: names[1], Value: "v1," + base64.StdEncoding.EncodeToString(sum)}}, nil
	case "stripe":
		return []wire.Field{{Name: names[0], Value: "t=" + stamp + ",v1=" + hex.EncodeToString(mac([]byte(secret), stamp, ".", string(body)))}}, nil
	default: // github; there are no others
		return []wire.Field{{Name: names[0], Value: "sha256=" + hex.EncodeToString(mac([]byte(secret), string(body)))}}, nil
	}
}
