package principal

import (
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// CertificateName says which part of a certificate is the caller's name. It must
// stay the same when the certificate is renewed, which a serial number or a
// fingerprint does not.
type CertificateName string

// What can be the name.
const (
	// CertificateURI is the one URI among the subject's alternative names, as
	// in SPIFFE.
	CertificateURI CertificateName = "uri"
	// CertificateSubject is the subject's distinguished name. The authorities
	// that the listener trusts must not give one name to two subjects.
	CertificateSubject CertificateName = "dn"
	// CertificateKey is a digest of the public key. A renewal has to keep the
	// key.
	CertificateKey CertificateName = "spki"
)

// MTLSConfig configures an MTLS.
type MTLSConfig struct {
	// Name is the part of the certificate that is the caller's name. Required.
	Name CertificateName
	// Proxies terminate the clients' TLS and pass verified certificates on
	// in Client-Cert (RFC 9440). Nothing else is accepted from them: their
	// own certificate is not their clients'. Default: none.
	Proxies Proxies
}

// MTLS is the Source that identifies callers by the client certificate. The
// listener must verify certificates: an unverified one is ignored. With Proxies
// it is to be used with Clean.
type MTLS struct{ config MTLSConfig }

// NewMTLS returns a source, or one error that names everything wrong with c.
func NewMTLS(c MTLSConfig) (*MTLS, error) {
	var errs []error
	c.Proxies = c.Proxies.checked(&errs)
	switch c.Name {
	case CertificateURI, CertificateSubject, CertificateKey:
	default:
		errs = append(errs, fmt.Errorf("field Name is %q; it must be %q, %q or %q", c.Name, CertificateURI, CertificateSubject, CertificateKey))
	}
	return made("MTLS", &MTLS{c}, errs)
}

const headerClientCert = "Client-Cert"

// Identify implements Source.
func (m *MTLS) Identify(r *http.Request) (Principal, error) {
	cert, err := m.certificate(r)
	if err != nil {
		return Principal{}, err
	}
	if now := time.Now(); now.Before(cert.NotBefore) || now.After(cert.NotAfter) {
		// The handshake may have been long ago.
		return Principal{}, unauthenticated("The client's certificate is not valid now. Connect with one that is and send the request again with the same key.", nil)
	}
	name, err := m.name(cert)
	if err != nil {
		return Principal{}, nameless("The client's certificate has no usable name in it.", err)
	}
	a, err := actor(string(m.config.Name), name)
	return Principal{Actor: a}, err
}

func (m *MTLS) certificate(r *http.Request) (*x509.Certificate, error) {
	if m.config.Proxies.Trusts(r) {
		v, lines := only(r.Header, headerClientCert)
		if lines == 0 {
			return nil, unauthenticated("The client showed the proxy no certificate. Connect with one and send the request again with the same key.", nil)
		}
		cert, err := parseClientCert(v)
		if err != nil {
			return nil, refuse(http.StatusForbidden, "The proxy did not pass on a client certificate.", err)
		}
		return cert, nil
	}
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || len(r.TLS.VerifiedChains[0]) == 0 {
		return nil, unauthenticated("The client showed no certificate that could be verified. Connect with one and send the request again with the same key.", nil)
	}
	return r.TLS.VerifiedChains[0][0], nil
}

// parseClientCert reads a Byte Sequence (RFC 9651 3.3.5) that is a certificate.
func parseClientCert(v string) (*x509.Certificate, error) {
	if len(v) < 2 || v[0] != ':' || v[len(v)-1] != ':' {
		return nil, errors.New("the Client-Cert header is not one line of base64 between colons")
	}
	der, err := base64.StdEncoding.DecodeString(v[1 : len(v)-1])
	if err != nil {
		return nil, errors.New("the Client-Cert header is not base64")
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, errors.New("the Client-Cert header holds no X.509 certificate")
	}
	return cert, nil
}

func (m *MTLS) name(cert *x509.Certificate) (string, error) {
	switch m.config.Name {
	case CertificateURI:
		if n := len(cert.URIs); n != 1 {
			return "", fmt.Errorf("the certificate has %d URIs; it must have one", n)
		}
		return cert.URIs[0].String(), nil
	case CertificateSubject:
		return distinguishedName(cert.RawSubject)
	default:
		sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
		return hex.EncodeToString(sum[:]), nil
	}
}

// distinguishedName writes a name as RFC 4514 does, in its own order. A
// pkix.Name would put some attributes in an order of its own.
func distinguishedName(der []byte) (string, error) {
	var name pkix.RDNSequence
	if rest, err := asn1.Unmarshal(der, &name); err != nil || len(rest) > 0 {
		return "", errors.New("the certificate's subject cannot be read")
	}
	for _, set := range name {
		for _, attribute := range set {
			if v, ok := attribute.Value.(string); !ok || strings.TrimSpace(v) == "" {
				return "", fmt.Errorf("the attribute %v of the certificate's subject is not text", attribute.Type)
			}
		}
	}
	return name.String(), nil
}

func (m *MTLS) identityHeaders() ([]string, Proxies) {
	if m.config.Proxies.none() {
		// Nobody reads it here, but the upstream may.
		return []string{headerClientCert, headerClientCertChain}, Proxies{}
	}
	return []string{headerClientCert, headerClientCertChain}, m.config.Proxies
}

const headerClientCertChain = "Client-Cert-Chain"
