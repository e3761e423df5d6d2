package webhook

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// GitHub is the scheme of GitHub's webhooks: a header field X-Hub-Signature-256
// with a signature of the body by HMAC-SHA256. Neither the delivery id in
// X-GitHub-Delivery nor the kind of event in X-GitHub-Event is signed, and there
// is no time, so a signature is valid forever. See GitHubConfig.IgnoreDelivery.
//
// It is safe for concurrent use.
type GitHub struct {
	keys   [][]byte
	ignore bool
}

// GitHubConfig configures a GitHub.
type GitHubConfig struct {
	// Secrets are the secrets of the webhook. A delivery is accepted if it is
	// signed with any of them. Sign uses the first. At least one is required.
	Secrets []string
	// IgnoreDelivery makes the body alone identify an event. By default anyone
	// who has obtained a delivery can send it again with another id, and it is
	// processed as another event. IgnoreDelivery prevents that for as long as
	// records are kept, but events with equal bodies, such as two pings, then
	// count as one.
	IgnoreDelivery bool
}

// Header fields of GitHub.
const (
	HeaderGitHubSignature = "X-Hub-Signature-256"
	HeaderGitHubDelivery  = "X-Github-Delivery" // as net/http writes it
)

// NewGitHub returns the scheme, or an error that lists everything wrong with c
// and contains no secret.
func NewGitHub(c GitHubConfig) (*GitHub, error) {
	keys, err := textSecrets(c.Secrets)
	if err != nil {
		return nil, fmt.Errorf("webhook: github: %w", err)
	}
	return &GitHub{keys: keys, ignore: c.IgnoreDelivery}, nil
}

// Verify implements Scheme.
func (g *GitHub) Verify(header http.Header, body []byte) (Event, error) {
	v, err := line(header, HeaderGitHubSignature, MaxSignatureBytes)
	if err != nil {
		return Event{}, err
	}
	signature, err := githubSignature(v)
	if err != nil {
		return Event{}, err
	}
	if !matches(g.keys, [][]byte{signature}, body) {
		return Event{}, &Error{Reason: ReasonNoMatch, Part: HeaderGitHubSignature + " header"}
	}
	if g.ignore {
		return Event{ID: "body", Unsigned: true}, nil
	}
	id, err := line(header, HeaderGitHubDelivery, MaxIDBytes)
	if err == nil {
		err = checkID(id, HeaderGitHubDelivery+" header")
	}
	if err != nil {
		return Event{}, err
	}
	return Event{ID: id, Unsigned: true}, nil
}

// githubSignature reads a field such as "sha256=00".
func githubSignature(v string) ([]byte, error) {
	text, ok := strings.CutPrefix(v, "sha256=")
	signature, err := hex.DecodeString(text)
	if !ok || err != nil || len(signature) != 32 {
		return nil, &Error{Reason: ReasonMalformed, Part: HeaderGitHubSignature + " header", Want: "sha256= and 64 hexadecimal digits"}
	}
	return signature, nil
}

// RetrySpan implements Scheme: 3 days. GitHub does not deliver again by itself,
// but does so for that long on request, with the same delivery id.
func (g *GitHub) RetrySpan() time.Duration { return 3 * 24 * time.Hour }

// Sign implements Signer.
func (g *GitHub) Sign(id string, body []byte) (http.Header, error) {
	if err := checkID(id, "id"); err != nil {
		return nil, err
	}
	return http.Header{
		HeaderGitHubSignature: {"sha256=" + hex.EncodeToString(mac(g.keys[0], body))},
		HeaderGitHubDelivery:  {id},
	}, nil
}
