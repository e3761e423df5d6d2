package matrix

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/semelhttp"
)

// trickle is a body that takes its time, but keeps the pace.
type trickle struct {
	rest []byte
	each time.Duration // for 4 KiB
}

func (b *trickle) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		return 0, io.EOF
	}
	<-time.After(b.each)
	n := copy(p, b.rest[:min(len(b.rest), 4<<10)])
	b.rest = b.rest[n:]
	return n, nil
}

// A request that comes in time, but whose body has come only when the record of
// an earlier sending has expired, must not start over. Its clock may be fast, too.
func TestSlowUploadDoesNotOutliveItsRecord(t *testing.T) {
	const retention = 24 * time.Hour
	body := bytes.Repeat([]byte("book "), 400<<10)
	for _, ahead := range []time.Duration{-4 * time.Minute, 0, 4 * time.Minute} {
		t.Run(fmt.Sprintf("first sent %v ahead", ahead), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				executed := newGauge()
				s := newShop(t, false, func(w http.ResponseWriter, r *http.Request) {
					executed.add(1)
					_, _ = io.Copy(io.Discard, r.Body)
				}, func(c *semelhttp.Config) { c.Contract = semelhttp.OASIS() })
				begun := time.Now()
				first := begun.Add(ahead).UTC().Format(http.TimeFormat)
				send := func(body io.Reader) (int, string) {
					tr := &http.Transport{DialContext: dialer(pipes{}, s.listen), DisableKeepAlives: true}
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://shop.example/orders", body)
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Repeatability-Request-ID", "8e03978e-40d5-43e8-bc93-6894a57f9324")
					req.Header.Set("Repeatability-First-Sent", first)
					resp, err := tr.RoundTrip(req)
					if err != nil { // refused before its body had come
						return http.StatusPreconditionFailed, err.Error()
					}
					defer func() { _ = resp.Body.Close() }()
					answer, err := io.ReadAll(resp.Body)
					if err != nil {
						t.Fatal(err)
					}
					return resp.StatusCode, string(answer)
				}
				if status, answer := send(bytes.NewReader(body)); status != 200 {
					t.Fatal(status, answer)
				}
				// Then again and again, by uploads that take half an hour and that
				// begin before the record has expired.
				for at := retention - 45*time.Minute; at < retention+10*time.Minute; at += 31 * time.Minute {
					<-time.After(time.Until(begun.Add(at)))
					status, answer := send(&trickle{body, 3600 * time.Millisecond})
					if status != 200 && status != 412 {
						t.Errorf("begun after %v: %d %q", at, status, answer)
					}
				}
				for at := retention + 40*time.Minute; at < retention+time.Hour; at += time.Minute {
					<-time.After(time.Until(begun.Add(at)))
					if status, answer := send(bytes.NewReader(body)); status != 412 {
						t.Errorf("after %v: %d %q", at, status, answer)
					}
				}
				if n, _ := executed.read(); n != 1 {
					t.Errorf("%d effects", n)
				}
			})
		})
	}
}

// Likewise a key that was issued, and whose life ends during the upload.
func TestIssuedKeyExpiresDuringASlowUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		executed := newGauge()
		var keys *semelhttp.KeyIssuer
		scope := semel.Scope{Operation: "orders"}
		s := newShop(t, false, func(w http.ResponseWriter, r *http.Request) {
			executed.add(1)
			_, _ = io.Copy(io.Discard, r.Body)
		}, func(c *semelhttp.Config) {
			var err error
			c.Guard, err = c.Guard.With(semel.Policy{Retention: 20 * time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			keys, err = semelhttp.NewKeyIssuer(semelhttp.KeyIssuerConfig{
				Secrets: [][]byte{bytes.Repeat([]byte("s"), semelhttp.MinSecretBytes)}, Life: 5 * time.Minute, Retention: 20 * time.Minute,
			})
			if err != nil {
				t.Fatal(err)
			}
			c.Resources, err = semelhttp.NewResources(semelhttp.ResourcesConfig{Guard: c.Guard, Scope: c.Scope, Keys: keys})
			if err != nil {
				t.Fatal(err)
			}
			c.IssuedOnly = true
		})
		body := bytes.Repeat([]byte("book "), 400<<10)
		key, _ := keys.Issue(scope)
		if status, answer, err := s.post(key, bytes.NewReader(body), int64(len(body))); status != 200 || err != nil {
			t.Fatal(status, answer, err)
		}
		status, answer, err := s.post(key, &trickle{body, 3600 * time.Millisecond}, int64(len(body))) // 30 min
		if status != 400 || !strings.Contains(answer, "#key-expired") || err != nil {
			t.Errorf("%d %q, %v", status, answer, err)
		}
		if n, _ := executed.read(); n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}
