// Package principal says who sent a request, before the gateway looks in its
// store: a retry gets its recorded answer only while its caller is known.
//
// A [Source] identifies the caller, in one of these ways:
//
//   - [JWT]: a token signed by a key that its issuer publishes.
//   - [MTLS]: the client's certificate.
//   - [Endpoint]: the answer of a service that is asked about the credential.
//   - [Header]: what a trusted proxy says.
//   - [Digest]: a digest of the credential, or of one cookie, which nobody checks.
//   - [Shared]: nobody in particular; all callers share one scope.
//
// [Scope] makes the Scope of a gateway.Config of it. [Clean] belongs around the
// gateway for the sources that read what proxies say: it keeps clients from
// saying it.
//
// The actor is who the caller is, and not by what it proved so: a token that was
// refreshed and a certificate that was renewed give the same actor as before, so
// a retry with them gets the first answer. (With a certificate that is so unless
// its key is the name; with a digest it is never so.) Each kind of source has
// names of its own, which tell nothing of the credential.
//
// # What a revocation costs
//
// A token is honoured until it expires, or until its key is withdrawn: that is
// noticed within JWTConfig.KeysMaxAge, or KeysMaxAge and KeysKeep while the
// issuer cannot be reached. An answer of the endpoint is honoured for
// EndpointConfig.CacheFor. A certificate is honoured until it expires; lists of
// revoked ones are not read. A digest is honoured for ever.
//
// # Refusals
//
// An error of a source is a *semelhttp.ScopeError, which says how to answer: with
// 401 to a caller that is not known, with 403 to one that may not or that has no
// name, and with 503 where it cannot be said now who the caller is. In each case
// nothing was executed. What such an error says never holds a credential.
package principal
