package webhook

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// GitHub is the scheme of GitHub's webhooks: a field X-Hub-Signature-256 with a
// signature of the body by HMAC-SHA256, and nothing else signed. The delivery id
// in X-GitHub-Delivery is not, nor is the kind of event in X-GitHub-Event, and
// there is no time: what was signed once is so forever. See
// GitHubConfig.IgnoreDelivery.
//
// Safe for concurrent use.
type GitHub struct {
	keys   [][]byte
	ignore bool
}

// GitHubConfig makes a GitHub.
type GitHubConfig struct {
	// Secrets are the webhook's. A delivery is accepted if it is signed by one of
	// them, and signed by the first. At least one is required.
	Secrets []string
	// IgnoreDelivery has the body alone mark an event. By default whoever got
	// hold of a delivery can send it again under an id of his own, and have it
	// processed as another event. With IgnoreDelivery he cannot, as long as
	// records are kept; but events whose bodies are equal, such as two pings, are
	// one then.
	IgnoreDelivery bool
}

// Names of GitHub's fields.
const (
	HeaderGitHubSignature = "X-Hub-Signature-256"
	HeaderGitHubDelivery  = "X-Github-Delivery" // as net/http writes it
)

// NewGitHub returns the scheme, or one error that names everything wrong with c
// and holds no secret.
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

// RetrySpan implements Scheme: 3 days. GitHub delivers nothing again by itself,
// but for that long on request, under the same delivery id.
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
