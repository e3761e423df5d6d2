package interop_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stripe/stripe-go/v83"
	stripewebhook "github.com/stripe/stripe-go/v83/webhook"

	"github.com/semelhq/semel/webhook"
)

// bodies are such that a signature over anything but the bytes as they are would
// be another.
func bodies() []string {
	return []string{
		`{"test": 2432232314}`, "{}", "", " \n{\"a\" : 1}\r\n", `{"é":"\u00e9 </script>&"}`, "\x00\xff\xfe", strings.Repeat("x", 300<<10),
	}
}

func TestStandardWebhooksLibrary(t *testing.T) {
	for _, secret := range []string{webhook.NewSecret(), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"} {
		theirs, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		alone, err := webhook.NewStandard(webhook.StandardConfig{Secrets: []string{secret}})
		if err != nil {
			t.Fatal(err)
		}
		private, _ := webhook.NewKeyPair()
		rotating, err := webhook.NewStandard(webhook.StandardConfig{Secrets: []string{private, webhook.NewSecret(), secret}})
		if err != nil {
			t.Fatal(err)
		}
		for _, body := range bodies() {
			for _, ours := range []*webhook.Standard{alone, rotating} {
				h, err := ours.Sign("msg_1", []byte(body))
				if err != nil {
					t.Fatal(err)
				}
				if err := theirs.Verify([]byte(body), h); err != nil {
					t.Errorf("theirs refuses ours: %v", err)
				}
				if err := theirs.Verify([]byte(body+"x"), h); err == nil {
					t.Error("theirs takes anything")
				}

				now := time.Now()
				signature, err := theirs.Sign("msg_2", now, []byte(body))
				if err != nil {
					t.Fatal(err)
				}
				h = http.Header{}
				h.Set(standardwebhooks.HeaderWebhookID, "msg_2")
				h.Set(standardwebhooks.HeaderWebhookTimestamp, fmt.Sprint(now.Unix()))
				h.Set(standardwebhooks.HeaderWebhookSignature, signature)
				ev, err := ours.Verify(h, []byte(body))
				if err != nil || ev.ID != "msg_2" || ev.SignedAt.Unix() != now.Unix() {
					t.Errorf("ours refuses theirs: %+v, %v", ev, err)
				}
				if _, err := ours.Verify(h, []byte(body+"x")); err == nil {
					t.Error("ours takes anything")
				}
			}
		}
	}
}

func TestStripeLibrary(t *testing.T) {
	const secret = "whsec_test_secret"
	alone, err := webhook.NewStripe(webhook.StripeConfig{Secrets: []string{secret}})
	if err != nil {
		t.Fatal(err)
	}
	rotating, err := webhook.NewStripe(webhook.StripeConfig{Secrets: []string{"whsec_other", secret}})
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{
  "id": "evt_1", "object": "event", "api_version": %q, "pending_webhooks": 1,
  "type": "charge.succeeded", "data": {"object": {"id": "ch_1", "description": "é </script>"}}
}`, stripe.APIVersion)
	for _, ours := range []*webhook.Stripe{alone, rotating} {
		h, err := ours.Sign("", []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		ev, err := stripewebhook.ConstructEvent([]byte(body), h.Get(webhook.HeaderStripeSignature), secret)
		if err != nil || ev.ID != "evt_1" {
			t.Errorf("theirs refuses ours: %v", err)
		}
		if err := stripewebhook.ValidatePayload([]byte(body+" "), h.Get(webhook.HeaderStripeSignature), secret); err == nil {
			t.Error("theirs takes anything")
		}

		signed := stripewebhook.GenerateTestSignedPayload(&stripewebhook.UnsignedPayload{Payload: []byte(body), Secret: secret})
		got, err := ours.Verify(http.Header{webhook.HeaderStripeSignature: {signed.Header}}, signed.Payload)
		if err != nil || got.ID != "evt_1" || got.SignedAt.Unix() != signed.Timestamp.Unix() {
			t.Errorf("ours refuses theirs: %+v, %v", got, err)
		}
		for name, p := range map[string]stripewebhook.UnsignedPayload{
			"old":            {Payload: []byte(body), Secret: secret, Timestamp: time.Now().Add(-time.Hour)},
			"another secret": {Payload: []byte(body), Secret: "whsec_x"},
			"another scheme": {Payload: []byte(body), Secret: secret, Scheme: "v0"},
		} {
			signed := stripewebhook.GenerateTestSignedPayload(&p)
			if _, err := ours.Verify(http.Header{webhook.HeaderStripeSignature: {signed.Header}}, signed.Payload); err == nil {
				t.Errorf("%s: accepted", name)
			}
			if err := stripewebhook.ValidatePayload(signed.Payload, signed.Header, secret); err == nil {
				t.Errorf("%s: accepted by theirs", name)
			}
		}
	}
}

// TestGitHubExample is the one of GitHub's documentation, as a request.
func TestGitHubExample(t *testing.T) {
	scheme, err := webhook.NewGitHub(webhook.GitHubConfig{Secrets: []string{"It's a Secret to Everybody"}})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("Hello, World!"))
	r.Header.Set("X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958")
	r.Header.Set("X-Hub-Signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17")
	ev, err := scheme.Verify(r.Header, []byte("Hello, World!"))
	if err != nil || ev.ID != "72d3162e-cc78-11e3-81ab-4c9367dc0958" {
		t.Errorf("got %+v, %v", ev, err)
	}
}
