package principal

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Defaults of a JWTConfig.
const (
	DefaultLeeway      = 30 * time.Second
	DefaultKeysMaxAge  = 10 * time.Minute
	DefaultKeysKeep    = time.Hour
	DefaultKeysTimeout = 5 * time.Second
)

// Limits on tokens, in bytes.
const (
	maxToken = 8 << 10
	maxKeyID = 256
)

// JWTConfig configures a JWT.
type JWTConfig struct {
	// Issuer is the only accepted iss of tokens. Required.
	Issuer string
	// Audiences are the accepted audiences; a token must name one of them
	// in aud. Required, so that a token issued for another service is
	// refused.
	Audiences []string
	// Algorithms are the accepted signature algorithms, of RS256, RS384, RS512,
	// PS256, PS384, PS512, ES256, ES384, ES512 and EdDSA. Required.
	Algorithms []string
	// Tenant names the claim that holds the caller's tenant, a string, which is
	// then required. Default: there is none.
	Tenant string
	// Header is the header with the token. Default: Authorization, after
	// Bearer. In any other header the token is the whole value.
	Header string
	// Leeway is how far apart this host's clock and the issuer's may be, up to a
	// minute. Default DefaultLeeway; negative for none.
	Leeway time.Duration

	// KeysURL or KeysFile is where the issuer's keys are, as a JWK Set. One of
	// them is required. A URL must be https, or of this machine. A changed file
	// is reread within 10 s.
	KeysURL  string
	KeysFile string
	// KeysMaxAge is how old the keys may be, and so the longest time until a
	// withdrawn key is noticed; less if the response's Cache-Control says so,
	// but at least 30 s. They are reloaded from three quarters of it on.
	// Default DefaultKeysMaxAge, from 30 s up to a day.
	KeysMaxAge time.Duration
	// KeysKeep is how much older the keys may get while they cannot be
	// loaded. Default DefaultKeysKeep, up to a day; negative for not at
	// all.
	KeysKeep time.Duration
	// KeysTimeout bounds a load. Default DefaultKeysTimeout, from 100 ms up to
	// 30 s.
	KeysTimeout time.Duration
	// Transport is for KeysURL. Default: one that goes by the environment's
	// proxy. It must limit the response's header itself.
	Transport http.RoundTripper
	// Failed is called when the keys could not be loaded, at most once in 5 s.
	// It must not block. May be nil.
	Failed func(context.Context, error)
}

// JWT is the Source that accepts tokens signed by an issuer (RFC 7519,
// following RFC 8725). The actor is the issuer with the token's sub; nothing
// else in a token matters, so a fresh token is the same caller.
//
// A token must have exp, iss, aud and sub. A token bound by a cnf claim to
// something else that its bearer must present is refused, and so is one with
// critical extensions. Keys and key URLs in a token's header are ignored. A token
// without kid needs an issuer with only one key for its algorithm.
//
// At most one signature is verified for a request, and only for a token that is
// otherwise valid. For unknown keys the issuer is asked at most every 30 s,
// however many tokens name them; until then they get 503.
type JWT struct {
	config     JWTConfig
	algorithms []jose.SignatureAlgorithm
	keys       *keyring

	mu       sync.Mutex
	verified generations[[sha256.Size]byte, verified]
}

// verified is what came of a token that was good.
type verified struct {
	principal Principal
	until     time.Time
	keys      uint64 // the version of the keys it was verified with
}

// maxVerified is how many of those are remembered, or up to twice as many.
const maxVerified = 4096

// asymmetric lists the algorithms there are. Those with shared secrets are not
// among them: a public key must never be taken for one.
var asymmetric = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// NewJWT returns a source, or one error that names everything wrong with c. A
// file of keys must be there already; a URL is not asked before the first token.
func NewJWT(c JWTConfig) (*JWT, error) {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	c.Audiences, c.Algorithms = slices.Clone(c.Audiences), slices.Clone(c.Algorithms)
	if c.Issuer == "" || strings.ContainsAny(c.Issuer, " \t") || whyNoName(c.Issuer) != "" {
		wrong("field Issuer is %q; it must be the iss of tokens, without spaces", c.Issuer)
	}
	if len(c.Audiences) == 0 || slices.Contains(c.Audiences, "") {
		wrong("field Audiences is empty or holds an empty string; name what tokens for this service have in aud")
	}
	s := &JWT{verified: generations[[sha256.Size]byte, verified]{most: maxVerified}}
	if len(c.Algorithms) == 0 {
		wrong("field Algorithms is empty; name those that the issuer signs by, as in RS256")
	}
	for _, name := range c.Algorithms {
		if a := jose.SignatureAlgorithm(name); slices.Contains(asymmetric, a) {
			s.algorithms = append(s.algorithms, a)
		} else {
			wrong("field Algorithms holds %q; it can hold %v", name, asymmetric)
		}
	}
	if c.Header == "" {
		c.Header = authorization
	}
	c.Header = headerName(&errs, "Header", c.Header, true)
	c.Leeway = within(&errs, "Leeway", c.Leeway, DefaultLeeway, 0, time.Minute, true)
	c.KeysMaxAge = within(&errs, "KeysMaxAge", c.KeysMaxAge, DefaultKeysMaxAge, minAsk, 24*time.Hour, false)
	c.KeysKeep = within(&errs, "KeysKeep", c.KeysKeep, DefaultKeysKeep, 0, 24*time.Hour, true)
	c.KeysTimeout = within(&errs, "KeysTimeout", c.KeysTimeout, DefaultKeysTimeout, 100*time.Millisecond, 30*time.Second, false)
	s.keys = &keyring{keep: c.KeysKeep, timeout: c.KeysTimeout, failed: c.Failed, waiting: make(room, maxWaiting), absent: generations[string, time.Time]{most: maxAbsent}}
	switch {
	case (c.KeysURL == "") == (c.KeysFile == ""):
		wrong("exactly one of the fields KeysURL and KeysFile is needed")
	case c.KeysFile != "":
		if c.Transport != nil {
			wrong("field Transport is set, but keys come from a file")
		}
		s.keys.load = fileKeys(c.KeysFile, c.KeysMaxAge)
		if keys, _, err := s.keys.load(context.Background()); err != nil {
			wrong("field KeysFile: %w", err)
		} else if len(keys) == 0 {
			wrong("field KeysFile: %s holds no public key for signatures", c.KeysFile)
		}
	default:
		if c.Transport == nil {
			c.Transport = newTransport(0)
		}
		s.keys.load = urlKeys(endpointURL(&errs, "KeysURL", c.KeysURL, false), c.Transport, c.KeysMaxAge)
	}
	s.config = c
	return made("JWT", s, errs)
}

const authorization = "Authorization"

// claims are those that count.
type claims struct {
	jwt.Claims
	Confirmation any `json:"cnf"`
}

// Identify implements Source.
func (s *JWT) Identify(r *http.Request) (Principal, error) {
	text, err := s.token(r)
	if err != nil {
		return Principal{}, err
	}
	// A client sends a token again and again, and to verify it takes longer than
	// all else that is done for a replay.
	now, digest := time.Now(), sha256.Sum256([]byte(text))
	if version, ok := s.keys.current(now); ok {
		s.mu.Lock()
		v, ok := s.verified.get(digest)
		s.mu.Unlock()
		if ok && v.keys == version && !now.After(v.until) {
			return v.principal, nil
		}
	}
	token, err := jwt.ParseSigned(text, s.algorithms)
	if err != nil {
		return Principal{}, s.invalid("The token is malformed or signed by an algorithm that is not accepted.", nil)
	}
	header := &token.Headers[0]
	for _, name := range []jose.HeaderKey{"crit", "b64"} {
		if _, ok := header.ExtraHeaders[name]; ok {
			return Principal{}, s.invalid("The token has extensions that are not supported.", nil)
		}
	}
	if len(header.KeyID) > maxKeyID {
		return Principal{}, s.invalid("The token's key id is too long.", nil)
	}
	// What can be refused without a key is: the issuer is not asked for it, and
	// no signature verified.
	var c claims
	var all map[string]any
	if err := token.UnsafeClaimsWithoutVerification(&c); err != nil {
		return Principal{}, s.invalid("The token's claims cannot be read.", nil)
	}
	if s.config.Tenant != "" {
		if err := token.UnsafeClaimsWithoutVerification(&all); err != nil {
			return Principal{}, s.invalid("The token's claims cannot be read.", nil)
		}
	}
	if err := s.check(&c, now); err != nil {
		return Principal{}, err
	}
	key, version, err := s.keys.find(r.Context(), header.KeyID, jose.SignatureAlgorithm(header.Algorithm))
	if later, ok := errors.AsType[*unknownYet](err); ok {
		return Principal{}, unavailable("The key that the token is signed with is not known, and the issuer cannot be asked now.", later.retryAfter, later.err)
	}
	if err != nil {
		return Principal{}, s.invalid("The token is signed with a key that the issuer does not have.", err)
	}
	if err := token.Claims(key); err != nil {
		return Principal{}, s.invalid("The token's signature is wrong.", nil)
	}
	p, err := s.principal(&c, all)
	if err == nil {
		s.mu.Lock()
		s.verified.put(digest, verified{p, c.Expiry.Time().Add(s.config.Leeway), version})
		s.mu.Unlock()
	}
	return p, err
}

// token returns the token that the request has.
func (s *JWT) token(r *http.Request) (string, error) {
	v, lines := only(r.Header, s.config.Header)
	switch {
	case lines == 0:
		return "", unauthenticated("The request has no token.", nil, s.challenges("")...)
	case lines > 1:
		return "", s.invalid("The request has more than one token.", nil)
	}
	if s.config.Header == authorization {
		scheme, rest, _ := strings.Cut(v, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return "", unauthenticated("The request has a credential of another kind than a bearer token.", nil, s.challenges("")...)
		}
		v = strings.TrimLeft(rest, " ")
	}
	if len(v) > maxToken {
		return "", s.invalid("The token is too long.", nil)
	}
	return v, nil
}

func (s *JWT) check(c *claims, now time.Time) error {
	err := c.ValidateWithLeeway(jwt.Expected{Issuer: s.config.Issuer, AnyAudience: s.config.Audiences, Time: now}, s.config.Leeway)
	switch {
	case c.Expiry == nil:
		return s.invalid("The token does not say when it expires.", nil)
	case errors.Is(err, jwt.ErrExpired):
		return s.invalid("The token has expired.", nil)
	case errors.Is(err, jwt.ErrNotValidYet), errors.Is(err, jwt.ErrIssuedInTheFuture):
		return s.invalid("The token is not valid yet.", nil)
	case err != nil:
		return s.invalid("The token is of another issuer or for another audience.", nil)
	case c.Confirmation != nil:
		return s.invalid("The token is bound to its sender, which is not supported.", nil)
	}
	return nil
}

func (s *JWT) principal(c *claims, all map[string]any) (Principal, error) {
	if c.Subject == "" {
		return Principal{}, nameless("The token does not say who its bearer is.", nil)
	}
	if why := whyNoText(c.Subject); why != "" {
		return Principal{}, nameless("The caller has no usable name.", errors.New("the token's sub "+why))
	}
	// In an issuer there is no space.
	return named("jwt", s.config.Issuer+" "+c.Subject, func() (string, error) {
		t, _ := all[s.config.Tenant].(string)
		return t, nil
	}, s.config.Tenant != "")
}

// invalid is the error for a token that is not accepted. What it tells is not
// the token's own.
func (s *JWT) invalid(detail string, err error) error {
	return unauthenticated(detail+" Get a new token and send the request again with the same key.", err, s.challenges(detail)...)
}

// challenges are as in RFC 6750 3.
func (s *JWT) challenges(detail string) []string {
	switch {
	case s.config.Header != authorization:
		return nil
	case detail == "":
		return []string{"Bearer"}
	}
	return []string{fmt.Sprintf(`Bearer error="invalid_token", error_description="%s"`, detail)}
}
