// Package principal identifies who sent a request before the gateway looks
// in its store: a retry gets its recorded response only if its caller is
// identified.
//
// A [Source] identifies the caller, in one of these ways:
//
//   - [JWT]: a token signed by a key that its issuer publishes.
//   - [MTLS]: the client's certificate.
//   - [Endpoint]: the response of a service that is asked about the credential.
//   - [Header]: what a trusted proxy says.
//   - [Digest]: a digest of the credential, or of one cookie, which nobody checks.
//   - [Shared]: nobody in particular; all callers share one scope.
//
// [Scope] turns a source into the Scope of a gateway.Config. Put [Clean] around
// the gateway for sources that trust proxies: it keeps clients from forging
// what proxies say.
//
// The actor is the caller, not its credential: a refreshed token or a renewed
// certificate gives the same actor as before, so a retry with it gets the first
// response. (For a certificate, unless its key is the name; for a digest,
// never.) Each kind of source has its own names, which reveal nothing about the
// credential.
//
// # What a revocation costs
//
// A token is honoured until it expires, or until its key is withdrawn: that is
// noticed within JWTConfig.KeysMaxAge, or KeysMaxAge and KeysKeep while the
// issuer cannot be reached. A response of the endpoint is honoured for
// EndpointConfig.CacheFor. A certificate is honoured until it expires;
// revocation lists are not read. A digest is honoured forever.
//
// # Refusals
//
// A source's error is a *semelhttp.ScopeError, which says how to respond: with
// 401 if the caller is unknown, 403 if it is not allowed or has no name, and 503
// if it cannot be identified at present. In each case nothing was executed. The
// error never contains a credential.
package principal
