package webhook_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/semelhq/semel/webhook"
)

// The fuzz tests let anything be sent, and hold what is accepted against another
// way to check it: the signature must stand in the field, and its time near now.

func sum(key, message string) []byte {
	m := hmac.New(sha256.New, []byte(key))
	m.Write([]byte(message))
	return m.Sum(nil)
}

// judge fails the test where a delivery is accepted that may not be, or the
// error is no *Error or repeats what was sent.
func judge(t *testing.T, ev webhook.Event, err error, signed, near bool) {
	t.Helper()
	switch {
	case err == nil && !signed:
		t.Fatal("accepted without a signature")
	case err == nil && !near:
		t.Fatal("accepted from another time")
	case err == nil && (ev.ID == "" || len(ev.ID) > webhook.MaxIDBytes || strings.ContainsFunc(ev.ID, func(r rune) bool { return r <= ' ' || r >= 0x7f })):
		t.Fatalf("accepted the id %q", ev.ID)
	case err != nil:
		e, ok := errors.AsType[*webhook.Error](err)
		if !ok || e.Reason == 0 || len(err.Error()) > 300 {
			t.Fatalf("got %T %.400v", err, err)
		}
	}
}

func near(timestamp string) bool {
	n, err := strconv.ParseInt(timestamp, 10, 64)
	d := n - noon.Unix()
	return err == nil && -300 <= d && d <= 300
}

func FuzzStandardHeaders(f *testing.F) {
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(sharedA, "whsec_"))
	s := standard(f, noon, sharedA)
	now := fmt.Sprint(noon.Unix())
	good := base64.StdEncoding.EncodeToString(sum(string(key), "msg_1."+now+".{}"))
	f.Add("msg_1", now, "v1,"+good, "{}")
	f.Add("msg_1", now, "v1a,AAAA v1,"+good+" v2,x", "{}")
	f.Add("msg.1", "-1", "v1,!", "")
	f.Add("é", "99999999999999999999", ", ,v1", "1.2")
	f.Fuzz(func(t *testing.T, id, timestamp, list, body string) {
		h := http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {timestamp}, "Webhook-Signature": {list}}
		ev, err := s.Verify(h, []byte(body))
		want := sum(string(key), id+"."+timestamp+"."+body)
		signed := slices.ContainsFunc(strings.Split(list, " "), func(entry string) bool {
			sig, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(entry, "v1,"))
			return strings.HasPrefix(entry, "v1,") && err == nil && string(sig) == string(want)
		})
		judge(t, ev, err, signed, near(timestamp))

		// What is signed over the same id and body verifies, if it can be signed.
		if h, err := s.Sign(id, []byte(body)); err == nil {
			if ev, err := s.Verify(h, []byte(body)); err != nil || ev.ID != id {
				t.Fatalf("own signature: %+v, %v", ev, err)
			}
		}
	})
}

func FuzzStripeHeader(f *testing.F) {
	s := stripe(f, noon, "whsec_a")
	body := `{"id":"evt_1"}`
	now := fmt.Sprint(noon.Unix())
	good := hex.EncodeToString(sum("whsec_a", now+"."+body))
	f.Add("t="+now+",v1="+good, body)
	f.Add("t="+now+",v1=00,v0=11,v1="+good, body)
	f.Add("v1="+good+",t=-1,t=", body)
	f.Add(",=,t=99999999999999999999", "{")
	f.Fuzz(func(t *testing.T, field, body string) {
		ev, err := s.Verify(http.Header{webhook.HeaderStripeSignature: {field}}, []byte(body))
		timestamp, signed := "", false
		for entry := range strings.SplitSeq(field, ",") {
			if v, ok := strings.CutPrefix(entry, "t="); ok {
				timestamp = v
			}
		}
		for entry := range strings.SplitSeq(field, ",") {
			if v, ok := strings.CutPrefix(entry, "v1="); ok {
				sig, err := hex.DecodeString(v)
				signed = signed || err == nil && string(sig) == string(sum("whsec_a", timestamp+"."+body))
			}
		}
		judge(t, ev, err, signed, near(timestamp))
		if h, err := s.Sign("", []byte(body)); err == nil {
			if _, err := s.Verify(h, []byte(body)); err != nil {
				t.Fatalf("own signature: %v", err)
			}
		}
	})
}

func FuzzGitHubHeaders(f *testing.F) {
	s := github(f, "a")
	good := hex.EncodeToString(sum("a", "{}"))
	f.Add("sha256="+good, "id-1", "{}")
	f.Add("sha1="+good, "", "{}")
	f.Add("sha256="+good+good, "é", "")
	f.Fuzz(func(t *testing.T, field, id, body string) {
		ev, err := s.Verify(http.Header{webhook.HeaderGitHubSignature: {field}, webhook.HeaderGitHubDelivery: {id}}, []byte(body))
		v, ok := strings.CutPrefix(field, "sha256=")
		sig, bad := hex.DecodeString(v)
		judge(t, ev, err, ok && bad == nil && string(sig) == string(sum("a", body)), true)
		if h, err := s.Sign(id, []byte(body)); err == nil {
			if ev, err := s.Verify(h, []byte(body)); err != nil || ev.ID != id {
				t.Fatalf("own signature: %+v, %v", ev, err)
			}
		}
	})
}

// FuzzStripeEvent: what is no event is never signed, and the fingerprint does not
// depend on pending_webhooks.
func FuzzStripeEvent(f *testing.F) {
	s := stripe(f, noon, "a")
	f.Add(`{"id":"evt_1","pending_webhooks":1}`, 2)
	f.Add(`{"id":"evt_1","id":"evt_2"}`, -1)
	f.Add(`{"id":"evt_1","pending_webhooks":[{}],"é":"\ud800"}`, 0)
	f.Fuzz(func(t *testing.T, body string, pending int) {
		h, err := s.Sign("", []byte(body))
		if err != nil {
			judge(t, webhook.Event{}, err, false, false)
			return
		}
		first, err := s.Verify(h, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		again := strings.TrimRight(body, " \t\r\n")
		again = fmt.Sprintf(`%s,"pending_webhooks":%d}`, again[:len(again)-1], pending) // the last one counts
		second, err := s.Verify(stripeHeader(noon, "a", again), []byte(again))
		if err != nil || second.ID != first.ID || second.Fingerprint.Differs(first.Fingerprint) {
			t.Fatalf("got %+v, then %+v, %v", first, second, err)
		}
	})
}
