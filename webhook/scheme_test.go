package webhook_test

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/webhook"
)

// noon is the time of tests.
var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func at(t time.Time) func() time.Time { return func() time.Time { return t } }

const (
	sharedA = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	sharedB = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
	seed    = "whsk_VEVTVFNJR05JTkdLRVlET05PVFVTRVRISVNGT1JBTlk="
)

func standard(t testing.TB, now time.Time, secrets ...string) *webhook.Standard {
	t.Helper()
	s, err := webhook.NewStandard(webhook.StandardConfig{Secrets: secrets, Now: at(now)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func stripe(t testing.TB, now time.Time, secrets ...string) *webhook.Stripe {
	t.Helper()
	s, err := webhook.NewStripe(webhook.StripeConfig{Secrets: secrets, Now: at(now)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func github(t testing.TB, secrets ...string) *webhook.GitHub {
	t.Helper()
	s, err := webhook.NewGitHub(webhook.GitHubConfig{Secrets: secrets})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

type scheme interface {
	webhook.Scheme
	webhook.Signer
}

func sign(t testing.TB, s webhook.Signer, id, body string) http.Header {
	t.Helper()
	h, err := s.Sign(id, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// wantReason fails the test unless err is an *Error of the reason.
func wantReason(t testing.TB, err error, want webhook.Reason) {
	t.Helper()
	e, ok := errors.AsType[*webhook.Error](err)
	if !ok || e.Reason != want {
		t.Fatalf("got %v; want reason %d", err, want)
	}
}

// schemes are the three with two secrets each: as a sender has them that rotates,
// and as one has them that knows only the first, the second, or another.
func schemes(t testing.TB, now time.Time) map[string]struct {
	both, first, second, other scheme
	body                       string
} {
	return map[string]struct {
		both, first, second, other scheme
		body                       string
	}{
		"standard": {standard(t, now, sharedA, sharedB), standard(t, now, sharedA), standard(t, now, sharedB), standard(t, now, "whsec_b3RoZXI="), `{"n":1}`},
		"stripe":   {stripe(t, now, "whsec_a", "whsec_b"), stripe(t, now, "whsec_a"), stripe(t, now, "whsec_b"), stripe(t, now, "whsec_c"), `{"id":"evt_1","n":1}`},
		"github":   {github(t, "a", "b"), github(t, "a"), github(t, "b"), github(t, "c"), `{"n":1}`},
	}
}

func TestSignedDeliveriesVerify(t *testing.T) {
	for name, s := range schemes(t, noon) {
		t.Run(name, func(t *testing.T) {
			h := sign(t, s.first, "evt_1", s.body)
			for _, receiver := range []scheme{s.first, s.both} { // with one secret, and during a rotation
				ev, err := receiver.Verify(h, []byte(s.body))
				if err != nil || ev.ID != "evt_1" || ev.Unsigned != (name == "github") {
					t.Fatalf("got %+v, %v", ev, err)
				}
				if name != "github" && !ev.SignedAt.Equal(noon) {
					t.Errorf("signed at %v", ev.SignedAt)
				}
			}
			// The second of the receiver's secrets, and the second of the sender's.
			if _, err := s.both.Verify(sign(t, s.second, "evt_1", s.body), []byte(s.body)); err != nil {
				t.Error(err)
			}
			if _, err := s.second.Verify(sign(t, s.both, "evt_1", s.body), []byte(s.body)); (err != nil) != (name == "github") { // which has room for one
				t.Error(err)
			}
			for _, tampered := range []string{s.body + " ", s.body[:len(s.body)-1], strings.Replace(s.body, "1", "2", 1), ""} {
				_, err := s.both.Verify(h, []byte(tampered))
				wantReason(t, err, webhook.ReasonNoMatch)
			}
			_, err := s.other.Verify(h, []byte(s.body))
			wantReason(t, err, webhook.ReasonNoMatch)
		})
	}
}

// TestPublishedVectors are from GitHub's documentation and the tests of the
// Standard Webhooks libraries.
func TestPublishedVectors(t *testing.T) {
	body := []byte(`{"test": 2432232314}`)
	then := time.Unix(1614265330, 0)
	for name, v := range map[string]struct {
		scheme   scheme
		id, body string
		header   http.Header
	}{
		"standard v1": {standard(t, then, sharedA), "msg_p5jXN8AQM9LWM0D4loKWxJek", string(body), http.Header{
			"Webhook-Id": {"msg_p5jXN8AQM9LWM0D4loKWxJek"}, "Webhook-Timestamp": {"1614265330"},
			"Webhook-Signature": {"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
		}},
		"standard v1a": {standard(t, then, seed), "msg_p5jXN8AQM9LWM0D4loKWxJek", string(body), http.Header{
			"Webhook-Id": {"msg_p5jXN8AQM9LWM0D4loKWxJek"}, "Webhook-Timestamp": {"1614265330"},
			"Webhook-Signature": {"v1a,tQ9V2XOqn7jL/DQenEFpqIugdBVtiMmER5mhSkXBNwM0mkATuDe6KYYUuxqtaiHeYGb7KaaBRdM5WqyeFiL8Ag=="},
		}},
		"github": {github(t, "It's a Secret to Everybody"), "72d3162e-cc78-11e3-81ab-4c9367dc0958", "Hello, World!", http.Header{
			"X-Hub-Signature-256": {"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
			"X-Github-Delivery":   {"72d3162e-cc78-11e3-81ab-4c9367dc0958"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if ev, err := v.scheme.Verify(v.header, []byte(v.body)); err != nil || ev.ID != v.id {
				t.Errorf("got %+v, %v", ev, err)
			}
			if h := sign(t, v.scheme, v.id, v.body); !maps.EqualFunc(h, v.header, func(a, b []string) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
				t.Errorf("signed as %v", h)
			}
		})
	}
}

func TestPublicKeyVerifiesAndCannotSign(t *testing.T) {
	private, public := webhook.NewKeyPair()
	sender, receiver := standard(t, noon, private), standard(t, noon, sharedA, public)
	h := sign(t, sender, "msg_1", "{}")
	if ev, err := receiver.Verify(h, []byte("{}")); err != nil || ev.ID != "msg_1" {
		t.Errorf("got %+v, %v", ev, err)
	}
	_, err := receiver.Verify(h, []byte("{ }"))
	wantReason(t, err, webhook.ReasonNoMatch)
	_, other := webhook.NewKeyPair()
	_, err = standard(t, noon, other).Verify(h, []byte("{}"))
	wantReason(t, err, webhook.ReasonNoMatch)
	if _, err := standard(t, noon, public).Sign("msg_1", nil); err == nil {
		t.Error("a public key signs")
	}

	// While the keys of both sides change, the right ones can stand anywhere.
	private2, public2 := webhook.NewKeyPair()
	for _, keys := range [][2][]string{
		{{private}, {other, public}},
		{{private}, {public, other}},
		{{private, private2}, {public}},
		{{private2, private}, {public}},
		{{private, private2}, {other, public2}},
		{{private2}, {public2, sharedA}},
	} {
		if _, err := standard(t, noon, keys[1]...).Verify(sign(t, standard(t, noon, keys[0]...), "msg_1", "{}"), []byte("{}")); err != nil {
			t.Error(err)
		}
	}

	// A shared secret does not make v1a signatures good, nor the other way round:
	// who knows a public key would have a shared secret.
	shared := standard(t, noon, "whsec_"+strings.TrimPrefix(public, "whpk_"))
	h = sign(t, shared, "msg_1", "{}")
	h.Set("Webhook-Signature", strings.Replace(h.Get("Webhook-Signature"), "v1,", "v1a,", 1)+" "+h.Get("Webhook-Signature"))
	_, err = standard(t, noon, public).Verify(h, []byte("{}"))
	wantReason(t, err, webhook.ReasonNoMatch)

	// The other form of a private key in use, with the public key behind the seed.
	raw, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(private, "whsk_"))
	pub, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(public, "whpk_"))
	long := standard(t, noon, "whsk_"+base64.StdEncoding.EncodeToString(append(raw, pub...)))
	if _, err := receiver.Verify(sign(t, long, "msg_1", "{}"), []byte("{}")); err != nil {
		t.Error(err)
	}
}

func TestNewSecret(t *testing.T) {
	a, b := webhook.NewSecret(), webhook.NewSecret()
	raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(a, "whsec_"))
	if err != nil || len(raw) != 32 || a == b {
		t.Fatalf("got %d bytes, %v; equal: %v", len(raw), err, a == b)
	}
	if _, err := standard(t, noon, a).Verify(sign(t, standard(t, noon, a), "m", ""), nil); err != nil {
		t.Error(err)
	}
}

func TestOtherPrefixOfStandardHeaders(t *testing.T) {
	s, err := webhook.NewStandard(webhook.StandardConfig{Secrets: []string{sharedA}, Prefix: "svix-", Now: at(noon)})
	if err != nil {
		t.Fatal(err)
	}
	h := sign(t, s, "msg_1", "{}")
	if len(h["Svix-Id"]) != 1 {
		t.Errorf("signed as %v", h)
	}
	if _, err := s.Verify(h, []byte("{}")); err != nil {
		t.Error(err)
	}
}

// TestClocksApart: the receiver's clock is off by as much as is written.
func TestClocksApart(t *testing.T) {
	for _, tc := range []struct {
		off  time.Duration
		want webhook.Reason
	}{
		{0, 0},
		{5 * time.Minute, 0},
		{-5 * time.Minute, 0},
		{5*time.Minute + time.Second, webhook.ReasonTooOld},
		{-5*time.Minute - time.Second, webhook.ReasonTooNew},
		{time.Hour, webhook.ReasonTooOld},
		{-time.Hour, webhook.ReasonTooNew},
		{200 * 365 * 24 * time.Hour, webhook.ReasonTooOld},
		{-56 * 365 * 24 * time.Hour, webhook.ReasonTooNew},
	} {
		for name, body := range map[string]string{"standard": "{}", "stripe": `{"id":"evt_1"}`} {
			t.Run(name+" "+tc.off.String(), func(t *testing.T) {
				sent, received := schemes(t, noon)[name], schemes(t, noon.Add(tc.off))[name]
				_, err := received.first.Verify(sign(t, sent.first, "evt_1", body), []byte(body))
				if tc.want == 0 {
					if err != nil {
						t.Fatal(err)
					}
					return
				}
				wantReason(t, err, tc.want)
				e, _ := errors.AsType[*webhook.Error](err)
				if !e.SignedAt.Equal(noon) || !e.Now.Equal(noon.Add(tc.off)) || e.Tolerance != 5*time.Minute {
					t.Errorf("got %+v", e)
				}
				// It can only be told of what was signed.
				h := sign(t, sent.other, "evt_1", body)
				_, err = received.first.Verify(h, []byte(body))
				wantReason(t, err, webhook.ReasonNoMatch)
			})
		}
	}
	e := &webhook.Error{Reason: webhook.ReasonTooOld, SignedAt: noon, Now: noon.Add(time.Hour), Tolerance: 5 * time.Minute}
	if got := e.Error(); !strings.Contains(got, "2026-11-22T12:00:00Z, 1h0m0s behind the receiver's clock (2026-11-22T13:00:00Z); 5m0s are tolerated") {
		t.Errorf("got %q", got)
	}
	// Without a time in it, a delivery is as good after a year.
	if _, err := github(t, "a").Verify(sign(t, github(t, "a"), "1", "{}"), []byte("{}")); err != nil {
		t.Error(err)
	}
}

// TestTimeCannotBeMovedIntoTheID: of what is signed, "a.1.2.rest"
// could be read with the id "a.1" and the time 2 as well, by whoever has seen a
// delivery whose body begins with a number and a dot.
func TestTimeCannotBeMovedIntoTheID(t *testing.T) {
	s := standard(t, noon, sharedA)
	now := fmt.Sprint(noon.Unix())
	h := sign(t, s, "a", now+".5")
	moved := http.Header{
		"Webhook-Id": {"a." + now}, "Webhook-Timestamp": {now}, "Webhook-Signature": h["Webhook-Signature"],
	}
	_, err := s.Verify(moved, []byte("5"))
	wantReason(t, err, webhook.ReasonMalformed)
	if _, err := s.Sign("a.1", nil); err == nil {
		t.Error("an id with a dot is signed")
	}
}

func TestStripeEventsAreReadFromTheBody(t *testing.T) {
	s := stripe(t, noon, "whsec_a")
	for _, tc := range []struct {
		name, body string
		want       webhook.Reason
	}{
		{"id", `{"data":{"id":"ch_1"},"id":"evt_1"}`, 0},
		{"no id", `{"data":{"id":"evt_1"}}`, webhook.ReasonMissing},
		{"case", `{"ID":"evt_1"}`, webhook.ReasonMissing},
		{"empty", `{"id":""}`, webhook.ReasonMissing},
		{"null", `{"id":null}`, webhook.ReasonMissing},
		{"number", `{"id":1}`, webhook.ReasonMalformed},
		{"long", `{"id":"` + strings.Repeat("e", webhook.MaxIDBytes+1) + `"}`, webhook.ReasonTooLong},
		{"longest", `{"id":"` + strings.Repeat("e", webhook.MaxIDBytes) + `"}`, 0},
		{"space", `{"id":"evt 1"}`, webhook.ReasonMalformed},
		{"not ASCII", `{"id":"évt"}`, webhook.ReasonMalformed},
		{"control character", `{"id":"evt\u0000"}`, webhook.ReasonMalformed},
		{"array", `["evt_1"]`, webhook.ReasonMalformed},
		{"null body", `null`, webhook.ReasonMalformed},
		{"nothing", ``, webhook.ReasonMalformed},
		{"half", `{"id":"evt_1"`, webhook.ReasonMalformed},
		{"deep", `{"id":"evt_1","x":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`, webhook.ReasonMalformed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := s.Verify(stripeHeader(noon, "whsec_a", tc.body), []byte(tc.body))
			if tc.want != 0 {
				wantReason(t, err, tc.want)
			} else if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Sign("", []byte(tc.body)); (err != nil) != (tc.want != 0) {
				t.Errorf("Sign: %v", err)
			}
		})
	}
	if _, err := s.Sign("evt_2", []byte(`{"id":"evt_1"}`)); err == nil {
		t.Error("signed under another id than that of the event")
	}
}

// TestHostileHeaders changes deliveries that are signed well, each in one way.
func TestHostileHeaders(t *testing.T) {
	const id, ts, sig = "Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"
	set := func(name string, values ...string) func(http.Header) {
		return func(h http.Header) { h[name] = values }
	}
	good := func(f func(v string) string, name string) func(http.Header) {
		return func(h http.Header) { h.Set(name, f(h.Get(name))) }
	}
	many := func(n int, entry, sep string) func(string) string {
		return func(v string) string { return strings.Repeat(entry+sep, n) + v }
	}
	const st, gh = webhook.HeaderStripeSignature, webhook.HeaderGitHubSignature
	for _, tc := range []struct {
		scheme, name string
		change       func(http.Header)
		want         webhook.Reason
		part         string
	}{
		{"standard", "no id", set(id), webhook.ReasonMissing, id},
		{"standard", "empty id", set(id, ""), webhook.ReasonMissing, id},
		{"standard", "two ids", set(id, "evt_1", "evt_1"), webhook.ReasonRepeated, id},
		{"standard", "long id", set(id, strings.Repeat("x", webhook.MaxIDBytes+1)), webhook.ReasonTooLong, id},
		{"standard", "very long id", set(id, strings.Repeat("x", 1<<20)), webhook.ReasonTooLong, id},
		{"standard", "another id", set(id, "evt_2"), webhook.ReasonNoMatch, sig},
		{"standard", "id in another case", set(id, "EVT_1"), webhook.ReasonNoMatch, sig},
		{"standard", "id not ASCII", set(id, "évt"), webhook.ReasonMalformed, id},
		{"standard", "id not UTF-8", set(id, "\xff"), webhook.ReasonMalformed, id},
		{"standard", "id with a dot", set(id, "evt.1"), webhook.ReasonMalformed, id},
		{"standard", "id with a space", set(id, "evt 1"), webhook.ReasonMalformed, id},
		{"standard", "id under a name that is not canonical", func(h http.Header) { h["webhook-id"] = h[id]; delete(h, id) }, webhook.ReasonMissing, id},
		{"standard", "no time", set(ts), webhook.ReasonMissing, ts},
		{"standard", "two times", set(ts, "1", "1"), webhook.ReasonRepeated, ts},
		{"standard", "negative time", set(ts, "-1"), webhook.ReasonMalformed, ts},
		{"standard", "signed time", set(ts, fmt.Sprintf("+%d", noon.Unix())), webhook.ReasonMalformed, ts},
		{"standard", "huge time", set(ts, "9223372036854775808"), webhook.ReasonMalformed, ts},
		{"standard", "very long time", set(ts, strings.Repeat("9", 1000)), webhook.ReasonTooLong, ts},
		{"standard", "time of another planet", set(ts, "999999999999"), webhook.ReasonMalformed, ts},
		{"standard", "hexadecimal time", set(ts, "0x10"), webhook.ReasonMalformed, ts},
		{"standard", "time with underscores", set(ts, "1_0"), webhook.ReasonMalformed, ts},
		{"standard", "fraction of a second", set(ts, fmt.Sprintf("%d.5", noon.Unix())), webhook.ReasonMalformed, ts},
		{"standard", "exponent", set(ts, "1e9"), webhook.ReasonMalformed, ts},
		{"standard", "time in Arabic digits", set(ts, "١"), webhook.ReasonMalformed, ts},
		{"standard", "another time", set(ts, fmt.Sprint(noon.Unix()+1)), webhook.ReasonNoMatch, sig},
		{"standard", "time with a zero in front", set(ts, fmt.Sprintf("0%d", noon.Unix())), webhook.ReasonNoMatch, sig},
		{"standard", "no signature", set(sig), webhook.ReasonMissing, sig},
		{"standard", "empty signature", set(sig, ""), webhook.ReasonMissing, sig},
		{"standard", "repeated signatures", func(h http.Header) { h[sig] = append(h[sig], h[sig]...) }, webhook.ReasonRepeated, sig},
		{"standard", "version alone", set(sig, "v1,"), webhook.ReasonNoMatch, sig},
		{"standard", "no version", good(func(v string) string { return strings.TrimPrefix(v, "v1,") }, sig), webhook.ReasonMalformed, sig},
		{"standard", "unknown version", good(func(v string) string { return strings.Replace(v, "v1,", "v2,", 1) }, sig), webhook.ReasonMalformed, sig},
		{"standard", "version in upper case", good(func(v string) string { return strings.Replace(v, "v1,", "V1,", 1) }, sig), webhook.ReasonMalformed, sig},
		{"standard", "asymmetric version", good(func(v string) string { return strings.Replace(v, "v1,", "v1a,", 1) }, sig), webhook.ReasonNoMatch, sig},
		{"standard", "not base64", set(sig, "v1,!!!"), webhook.ReasonMalformed, sig},
		{"standard", "half a signature", good(func(v string) string { return v[:len("v1,")+24] }, sig), webhook.ReasonNoMatch, sig},
		{"standard", "as many as there may be", good(many(webhook.MaxSignatures-1, "v1,AAAA", " "), sig), 0, ""},
		{"standard", "too many", good(many(webhook.MaxSignatures, "v1,AAAA", " "), sig), webhook.ReasonTooLong, sig},
		{"standard", "too long", good(many(1, "v9,"+strings.Repeat("A", webhook.MaxSignatureBytes), " "), sig), webhook.ReasonTooLong, sig},
		{"standard", "in the last place, behind versions to come", good(many(2, "v2,AAAA v1,AAAA", " "), sig), 0, ""},
		{"standard", "commas", set(sig, ",,,,"), webhook.ReasonMalformed, sig},
		{"standard", "spaces", set(sig, "       "), webhook.ReasonMalformed, sig},

		{"stripe", "no field", set(st), webhook.ReasonMissing, st},
		{"stripe", "two fields", func(h http.Header) { h[st] = append(h[st], h[st]...) }, webhook.ReasonRepeated, st},
		{"stripe", "no time", good(func(v string) string { _, v, _ = strings.Cut(v, ","); return v }, st), webhook.ReasonMissing, "t in the"},
		{"stripe", "two times", good(func(v string) string { return "t=1," + v }, st), webhook.ReasonRepeated, "t in the"},
		{"stripe", "two times, one behind", good(func(v string) string { return v + ",t=1" }, st), webhook.ReasonRepeated, "t in the"},
		{"stripe", "empty time", set(st, "t=,v1=00"), webhook.ReasonMissing, "t in the"},
		{"stripe", "negative time", set(st, "t=-1,v1=00"), webhook.ReasonMalformed, "t in the"},
		{"stripe", "huge time", set(st, "t=99999999999999999999,v1=00"), webhook.ReasonMalformed, "t in the"},
		{"stripe", "another time", set(st, "t=1,v1=00"), webhook.ReasonNoMatch, st},
		{"stripe", "name in upper case", good(strings.ToUpper, st), webhook.ReasonMissing, "t in the"},
		{"stripe", "digits in upper case", good(func(v string) string { return strings.Replace(strings.ToUpper(v), "T=", "t=", 1) }, st), webhook.ReasonMissing, "v1"},
		{"stripe", "hexadecimal in upper case", good(func(v string) string {
			t, s, _ := strings.Cut(v, ",v1=")
			return t + ",v1=" + strings.ToUpper(s)
		}, st), 0, ""},
		{"stripe", "no signature", set(st, "t=1"), webhook.ReasonMissing, "v1"},
		{"stripe", "only of another version", good(func(v string) string { return strings.Replace(v, "v1=", "v0=", 1) }, st), webhook.ReasonMissing, "v1"},
		{"stripe", "not hexadecimal", set(st, "t=1,v1=zz"), webhook.ReasonMissing, "v1"},
		{"stripe", "odd", good(func(v string) string { return v[:len(v)-1] }, st), webhook.ReasonMissing, "v1"},
		{"stripe", "half", good(func(v string) string { return v[:len(v)-2] }, st), webhook.ReasonNoMatch, st},
		{"stripe", "no list", set(st, "t"), webhook.ReasonMalformed, st},
		{"stripe", "commas", set(st, ",,,"), webhook.ReasonMalformed, st},
		{"stripe", "space behind the comma", good(func(v string) string { return strings.ReplaceAll(v, ",", ", ") }, st), webhook.ReasonMissing, "v1"},
		{"stripe", "as many as there may be", good(func(v string) string {
			return strings.Replace(v, ",", strings.Repeat(",v1=00", webhook.MaxSignatures-1)+",", 1)
		}, st), 0, ""},
		{"stripe", "too many", good(func(v string) string { return v + strings.Repeat(",v1=00", webhook.MaxSignatures) }, st), webhook.ReasonTooLong, st},
		{"stripe", "too long", good(func(v string) string { return v + ",x=" + strings.Repeat("a", webhook.MaxSignatureBytes) }, st), webhook.ReasonTooLong, st},

		{"github", "no field", set(gh), webhook.ReasonMissing, gh},
		{"github", "SHA-1 alone", func(h http.Header) { delete(h, gh); h.Set("X-Hub-Signature", "sha1=00") }, webhook.ReasonMissing, gh},
		{"github", "two fields", func(h http.Header) { h[gh] = append(h[gh], h[gh]...) }, webhook.ReasonRepeated, gh},
		{"github", "algorithm in upper case", good(func(v string) string { return strings.Replace(v, "sha256", "SHA256", 1) }, gh), webhook.ReasonMalformed, gh},
		{"github", "no algorithm", good(func(v string) string { return strings.TrimPrefix(v, "sha256=") }, gh), webhook.ReasonMalformed, gh},
		{"github", "empty", set(gh, "sha256="), webhook.ReasonMalformed, gh},
		{"github", "half", good(func(v string) string { return v[:len(v)-2] }, gh), webhook.ReasonMalformed, gh},
		{"github", "twice as long", good(func(v string) string { return v + v[len("sha256="):] }, gh), webhook.ReasonMalformed, gh},
		{"github", "two joined", good(func(v string) string { return v + ", " + v }, gh), webhook.ReasonMalformed, gh},
		{"github", "too long", good(func(v string) string { return v + strings.Repeat("0", webhook.MaxSignatureBytes) }, gh), webhook.ReasonTooLong, gh},
		{"github", "another", set(gh, "sha256="+strings.Repeat("0", 64)), webhook.ReasonNoMatch, gh},
		{"github", "no id", set("X-Github-Delivery"), webhook.ReasonMissing, "X-Github-Delivery"},
		{"github", "empty id", set("X-Github-Delivery", ""), webhook.ReasonMissing, "X-Github-Delivery"},
		{"github", "two ids", set("X-Github-Delivery", "a", "b"), webhook.ReasonRepeated, "X-Github-Delivery"},
		{"github", "long id", set("X-Github-Delivery", strings.Repeat("x", webhook.MaxIDBytes+1)), webhook.ReasonTooLong, "X-Github-Delivery"},
		{"github", "id not ASCII", set("X-Github-Delivery", "é"), webhook.ReasonMalformed, "X-Github-Delivery"},
	} {
		t.Run(tc.scheme+"/"+tc.name, func(t *testing.T) {
			s := schemes(t, noon)[tc.scheme]
			h := sign(t, s.first, "evt_1", s.body)
			tc.change(h)
			ev, err := s.first.Verify(h, []byte(s.body))
			if tc.want == 0 {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			wantReason(t, err, tc.want)
			e, _ := errors.AsType[*webhook.Error](err)
			if !strings.Contains(e.Part, tc.part) {
				t.Errorf("it is the %s; want %s", e.Part, tc.part)
			}
			if err != nil && !ev.SignedAt.IsZero() {
				t.Errorf("an event beside an error: %+v", ev)
			}
			if strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r >= 0x7f }) || len(err.Error()) > 300 {
				t.Errorf("the error repeats what was sent: %.400q", err)
			}
		})
	}
}

// TestErrorsHoldNoSecrets: of configurations and of deliveries.
func TestErrorsHoldNoSecrets(t *testing.T) {
	const secret = "c2VjcmV0LXRoYXQtbm9ib2R5LW1heS1zZWU="
	raw, _ := base64.StdEncoding.DecodeString(secret)
	var texts []string
	note := func(err error) {
		t.Helper()
		if err == nil {
			t.Fatal("no error")
		}
		texts = append(texts, fmt.Sprintf("%v %+v %#v", err, err, err))
	}
	for _, s := range []string{"whsk_" + secret, "whpk_" + secret, "whsec_" + secret + "!", secret + " ", "\n" + secret, ""} {
		_, err := webhook.NewStandard(webhook.StandardConfig{Secrets: []string{s}})
		note(err)
	}
	for _, s := range []string{secret + "\n", ""} {
		_, err := webhook.NewStripe(webhook.StripeConfig{Secrets: []string{s}})
		note(err)
		_, err = webhook.NewGitHub(webhook.GitHubConfig{Secrets: []string{s}})
		note(err)
	}
	s := standard(t, noon, secret)
	h := sign(t, s, "m", "{}")
	expected := strings.TrimPrefix(h.Get("Webhook-Signature"), "v1,")
	h.Set("Webhook-Signature", "v1,AAAA")
	_, err := s.Verify(h, []byte("{}"))
	note(err)
	mac, _ := base64.StdEncoding.DecodeString(expected)
	for _, text := range texts {
		for _, hidden := range []string{secret, secret[:12], string(raw), expected, string(mac), hex.EncodeToString(mac), fmt.Sprint(mac)} {
			if strings.Contains(text, hidden) {
				t.Errorf("%q holds a secret", text)
			}
		}
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	nine := strings.Split(strings.Repeat("whsec_YQ== ", webhook.MaxSignatures)+"whsec_YQ==", " ")
	for name, err := range map[string]error{
		"standard: no secret":     second(webhook.NewStandard(webhook.StandardConfig{})),
		"standard: empty key":     second(webhook.NewStandard(webhook.StandardConfig{Secrets: []string{"whsec_"}})),
		"standard: too many":      second(webhook.NewStandard(webhook.StandardConfig{Secrets: nine})),
		"standard: tolerance":     second(webhook.NewStandard(webhook.StandardConfig{Secrets: []string{sharedA}, Tolerance: -1})),
		"standard: prefix":        second(webhook.NewStandard(webhook.StandardConfig{Secrets: []string{sharedA}, Prefix: "a b"})),
		"stripe: no secret":       second(webhook.NewStripe(webhook.StripeConfig{})),
		"stripe: empty secret":    second(webhook.NewStripe(webhook.StripeConfig{Secrets: []string{"a", ""}})),
		"stripe: too many":        second(webhook.NewStripe(webhook.StripeConfig{Secrets: nine})),
		"stripe: tolerance":       second(webhook.NewStripe(webhook.StripeConfig{Secrets: []string{"a"}, Tolerance: -1})),
		"github: no secret":       second(webhook.NewGitHub(webhook.GitHubConfig{})),
		"github: end of the file": second(webhook.NewGitHub(webhook.GitHubConfig{Secrets: []string{"a\n"}})),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	_, err := webhook.NewStandard(webhook.StandardConfig{Secrets: []string{"", "whpk_YQ=="}, Tolerance: -1})
	for _, part := range []string{"Secrets[0]", "Secrets[1]", "Tolerance"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not name %s", err, part)
		}
	}
}

func second[T any](_ T, err error) error { return err }
