package gatewayfile

import (
	"time"

	"github.com/semelhq/semel/internal/strict"
)

// Config is the configuration of a gateway.
type Config struct {
	// Version of this format: 1.
	Version int `yaml:"version" rule:"required,min=1,max=1"`
	// Listen is the address to listen on; unix:/run/semel.sock for a socket. Default 127.0.0.1:8080. A reload cannot change it.
	Listen string `yaml:"listen"`
	// TLS serves TLS, with HTTP/2. Default: neither. A reload cannot change it, but its files are reread when
	// they change.
	TLS TLS `yaml:"tls"`
	// H2C also serves HTTP/2 without TLS, to clients with prior knowledge. Default false. A reload cannot
	// change it.
	H2C bool `yaml:"h2c"`
	// Admin is the listener for operators: /livez, /readyz, /metrics and the page at /console/. Default: none.
	// A reload cannot change it.
	Admin Admin `yaml:"admin"`
	// Store is where records are kept. A reload cannot change it.
	Store Store `yaml:"store" rule:"required"`
	// Encryption encrypts recorded responses in the store. A reload can change its keys, but not turn it on
	// or off. Default: off.
	Encryption Encryption `yaml:"encryption"`
	// Principal says who a caller is. It is evaluated before any store lookup, for each request with a key.
	Principal Principal `yaml:"principal" rule:"required"`
	// Upstreams are the services.
	Upstreams []Upstream `yaml:"upstreams" rule:"required,items=100"`
	// Defaults apply to all routes that do not override them.
	Defaults Settings `yaml:"defaults"`
	// Routes say how requests are handled. Requests that match no route get 404; a route for / takes the
	// rest.
	Routes []Route `yaml:"routes" rule:"required,items=1000"`
	// Resources are what the gateway itself serves to clients.
	Resources Resources `yaml:"resources"`
	// PreserveHost passes the client's Host to the upstream, and keeps the keys of each host apart. Default
	// false: the upstream gets its own host, and the client's in X-Forwarded-Host.
	PreserveHost bool `yaml:"preserve_host"`
	// TrustForwarded are the proxies whose X-Forwarded-For, -Host and -Proto and Forwarded headers the
	// upstream sees. They are removed from all other requests. Default: none are trusted, and the upstream
	// sees what the gateway says.
	TrustForwarded Proxies `yaml:"trust_forwarded"`
	// Spool stores bodies that are too large for memory. A reload cannot change it.
	Spool Spool `yaml:"spool"`
	// Bounds are limits for all requests together. A reload cannot change them.
	Bounds Bounds `yaml:"bounds"`
	// Drain is how long to wait for running requests before ending. Default 30s.
	Drain time.Duration `yaml:"drain"`
	// DrainDelay is how long the gateway continues to serve before a drain, while /readyz already returns
	// 503. Default 0. A reload cannot change it.
	DrainDelay time.Duration `yaml:"drain_delay" rule:"empty"`
	// AccessLog is a line of JSON for each request, on standard output, with keys and callers as digests. Default off. A reload cannot change it.
	AccessLog string `yaml:"access_log" rule:"enum=off|json"`
	// DryRun protects NOTHING: every request is forwarded, and what would have been decided is only reported.
	// Default false. A reload cannot change it.
	DryRun bool `yaml:"dry_run"`
	// LogFormat is the form of the log on standard error. Default text. A reload cannot change it.
	LogFormat string `yaml:"log_format" rule:"enum=text|json"`

	source *strict.Source
	digest string
}

// TLS configures the listener's certificate and those of clients.
type TLS struct {
	// CertFile is a PEM file with the certificate and its intermediate certificates.
	CertFile string `yaml:"cert_file"`
	// KeyFile is a PEM file with its key.
	KeyFile string `yaml:"key_file"`
	// ClientCAFile is a PEM file with authorities. Each client needs a certificate from one of them. Default:
	// clients need none.
	ClientCAFile string `yaml:"client_ca_file"`
}

// Admin is the listener for operators.
type Admin struct {
	// Listen is its address; without a host, as in :9090, it is on loopback.
	Listen string `yaml:"listen"`
	// TokenFile is a file with the token that the page requires, and /metrics and /readyz?verbose as
	// Authorization: Bearer. Required, here or as $SEMEL_ADMIN_TOKEN, unless the address is on loopback.
	TokenFile string `yaml:"token_file"`
}

// Store is where records are kept.
type Store struct {
	// URL is sqlite:semel.db, sqlite:///var/lib/semel/semel.db, postgres://user@host/database, or memory: for
	// records that are lost when the process ends.
	URL string `yaml:"url" rule:"required,secret"`
	// Required makes the gateway exit if the store cannot be opened at start, instead of responding with 503
	// until it can. Default false.
	Required bool `yaml:"required"`
}

// Encryption says under which keys responses are encrypted. The first encrypts, and each decrypts what it has
// encrypted. Keys are written NAME: SECRET, with a secret of 32 bytes in base64, as from openssl rand -base64 32.
type Encryption struct {
	// KeysFile is a file with keys, one on each line. It is reread on a reload.
	KeysFile string `yaml:"keys_file"`
	// Keys are more keys, after those of the file. Take their secrets from the environment: "2026a: ${NAME}".
	Keys []string `yaml:"keys" rule:"secret,items=20"`
}

// Principal says who a caller is. Keys of two callers never meet.
type Principal struct {
	_ struct{} `one:"jwt,mtls,endpoint,header,digest,shared"`
	// JWT accepts tokens that an issuer has signed. Their iss and sub identify the caller.
	JWT *JWT `yaml:"jwt"`
	// MTLS uses the client's certificate, which the listener or a trusted proxy has verified.
	MTLS *MTLS `yaml:"mtls"`
	// Endpoint asks a service about each request, like forward_auth in other proxies.
	Endpoint *Endpoint `yaml:"endpoint"`
	// Header trusts a header set by trusted proxies.
	Header *Header `yaml:"header"`
	// Digest uses a digest of the credential, and verifies nothing: a refreshed token is another caller,
	// whose retry executes again, and a revoked token still gets its recorded responses.
	Digest *Digest `yaml:"digest"`
	// Shared makes all callers share one scope: two that choose the same key get the same record. Unguessable
	// keys are then their only protection.
	Shared *Shared `yaml:"shared"`
}

// JWT says which tokens are accepted. They need exp, iss, aud and sub.
type JWT struct {
	_ struct{} `one:"keys_url,keys_file"`
	// Issuer is the required iss of tokens.
	Issuer string `yaml:"issuer" rule:"required"`
	// Audiences are the accepted audiences; a token must name one of them in aud.
	Audiences []string `yaml:"audiences" rule:"required,items=20"`
	// Algorithms are the accepted signature algorithms.
	Algorithms []string `yaml:"algorithms" rule:"required,items=10,enum=RS256|RS384|RS512|PS256|PS384|PS512|ES256|ES384|ES512|EdDSA"`
	// KeysURL is where the issuer's keys are, as a JWK Set: https, or an address of this machine.
	KeysURL string `yaml:"keys_url"`
	// KeysFile is a file with the JWK Set instead. It is reread when it changes.
	KeysFile string `yaml:"keys_file"`
	// Tenant is the claim that names the caller's tenant, which is then required. Default: there is none.
	Tenant string `yaml:"tenant"`
	// Header is where the token is. Default: Authorization, behind Bearer.
	Header string `yaml:"header" rule:"names=header"`
	// Leeway is how far apart our clock and the issuer's may be, up to a minute. Default 30s.
	Leeway time.Duration `yaml:"leeway" rule:"empty"`
	// KeysMaxAge is the longest time until a withdrawn key is noticed. Default 10m.
	KeysMaxAge time.Duration `yaml:"keys_max_age"`
	// KeysKeep is how much older the keys may get while they cannot be loaded; after that requests get 503.
	// Default 1h.
	KeysKeep time.Duration `yaml:"keys_keep" rule:"empty"`
	// KeysTimeout bounds a load. Default 5s.
	KeysTimeout time.Duration `yaml:"keys_timeout"`
}

// MTLS says which part of a certificate identifies the caller.
type MTLS struct {
	// Name is a part that stays the same when the certificate is renewed: the one URI among the alternative
	// names, the distinguished name, or a digest of the public key.
	Name string `yaml:"name" rule:"required,enum=uri|dn|spki"`
	// Proxies terminate the clients' TLS, and pass the certificates on in Client-Cert. Default: none.
	Proxies Proxies `yaml:"proxies"`
}

// Endpoint is a service that identifies callers. It gets a GET without a body. A 2xx with the subject header
// names the caller, 401 and 403 are passed on, and for anything else the client gets 503 and nothing is
// executed.
type Endpoint struct {
	// URL is its address: https, or an address of this machine.
	URL string `yaml:"url" rule:"required"`
	// AllowHTTP allows http to other machines: anyone who can respond in its place can say who callers are. Default false.
	AllowHTTP bool `yaml:"allow_http"`
	// Credentials are the request headers that are sent to it; no others are.
	Credentials []string `yaml:"credentials" rule:"required,items=20,names=header"`
	// Subject is the response header that names the caller.
	Subject string `yaml:"subject" rule:"required,names=header"`
	// Tenant is the header that names the caller's tenant, which is then required. Default: there is none.
	Tenant string `yaml:"tenant" rule:"names=header"`
	// Timeout bounds how long a request waits for it. Default 2s.
	Timeout time.Duration `yaml:"timeout"`
	// CacheFor is the longest time until a revocation is noticed; 0 for at once. Default 5s, at most 1m.
	CacheFor time.Duration `yaml:"cache_for" rule:"empty"`
	// MaxCalls is the most concurrent requests to it. Default 64.
	MaxCalls int `yaml:"max_calls" rule:"min=1,max=10000"`
	// Proxies are trusted for a client's address, host and scheme. Default: none.
	Proxies Proxies `yaml:"proxies"`
}

// Header says which headers name a caller. They are removed from requests that do not come from a trusted
// proxy.
type Header struct {
	// Subject names the caller.
	Subject string `yaml:"subject" rule:"required,names=header"`
	// Tenant names the caller's tenant, which is then required. Default: there is none.
	Tenant string `yaml:"tenant" rule:"names=header"`
	// Proxies are the trusted proxies.
	Proxies Proxies `yaml:"proxies" rule:"required"`
}

// Proxies are trusted to say who a client is and what its address is.
type Proxies struct {
	// From lists their networks, as in 10.1.2.0/24.
	From []string `yaml:"from" rule:"items=100"`
	// Unix trusts whoever connects over a unix socket. Default false.
	Unix bool `yaml:"unix"`
}

// Digest says what the credential of a request is.
type Digest struct {
	_ struct{} `one:"headers,cookie"`
	// Headers are the headers whose values together are the credential, such as Authorization.
	Headers []string `yaml:"headers" rule:"items=20,names=header"`
	// Cookie is the cookie that is the credential: an opaque session id that does not change.
	Cookie string `yaml:"cookie" rule:"names=header"`
	// Challenge is the WWW-Authenticate of a 401. Default: there is none.
	Challenge string `yaml:"challenge"`
}

// Shared has no settings: write {}.
type Shared struct{}

// Upstream is a service. Its connections are shared by all routes that lead to it.
type Upstream struct {
	// Name is the name by which routes refer to it.
	Name string `yaml:"name" rule:"required,names=name,max=100"`
	// URL is http or https, a host, and optionally a path that is prefixed to each request's.
	URL string `yaml:"url" rule:"required"`
	// IdleTimeout is how long an unused connection is kept; it must be shorter than the service's own limit. Default 4s.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
	// DialTimeout bounds each attempt to connect. Default 5s.
	DialTimeout time.Duration `yaml:"dial_timeout"`
	// MaxConns is the most connections; requests beyond it wait. Default: no limit.
	MaxConns int `yaml:"max_conns" rule:"min=1,max=1000000"`
	// HTTP2 uses only HTTP/2 with it, even without TLS. Less is then known when a connection breaks. Default
	// false: HTTP/1.1.
	HTTP2 bool `yaml:"http2"`
	// Socket is the path of a Unix socket that it listens on. Default: the host of url.
	Socket string `yaml:"socket"`
	// CAFile is a PEM file with the authorities that may have signed its certificate. Default: the system's. Read at the start, and when a reload changes the upstream.
	CAFile string `yaml:"ca_file"`
	// CertFile is a PEM file with the client certificate to present to it. Default: none.
	CertFile string `yaml:"cert_file"`
	// KeyFile is a PEM file with the key of cert_file. The pair is read for each connection.
	KeyFile string `yaml:"key_file"`
	// ServerName is the name that its certificate must be valid for. Default: the host of url.
	ServerName string `yaml:"server_name"`
}

// Route says how matching requests are handled. The most specific pattern wins.
type Route struct {
	// Match is a pattern, or a list: [METHOD ][HOST]/PATH, where {name} in the path matches one segment,
	// {name...} all that follow, and a / at its end everything below.
	Match Patterns `yaml:"match" rule:"required,items=100"`
	// Operation is the name of what these requests do; a key stands for one request of an operation. Default:
	// the first pattern, if it has a method and does not match a whole tree; else each request's method and
	// path.
	Operation string `yaml:"operation" rule:"max=255"`
	// OperationFrom is a JSON pointer to the operation's name in the body, such as /operationName for
	// GraphQL.
	OperationFrom string `yaml:"operation_from" rule:"names=member"`
	// Webhook treats the requests as a sender's deliveries: each is verified by its signature, and each event
	// is processed once, by its id. They need no key and no principal.
	Webhook *Webhook `yaml:"webhook"`
	Settings
}

// Webhook is a sender of events.
type Webhook struct {
	// Scheme is how it signs.
	Scheme string `yaml:"scheme" rule:"required,enum=standard|stripe|github"`
	// Sender names whose ids these are.
	Sender string `yaml:"sender" rule:"required,max=255"`
	// Secrets are the endpoint's secrets; several during a rotation. Take them from the environment: ${NAME}.
	Secrets []string `yaml:"secrets" rule:"required,secret,items=8"`
	// Tolerance is how far the time of signing may be from the gateway's clock. Default 5m.
	Tolerance time.Duration `yaml:"tolerance"`
	// RetrySpan is the longest time from an event's first delivery to its last. Default: what the sender
	// documents. Events are remembered for longer than that.
	RetrySpan time.Duration `yaml:"retry_span"`
}

// Settings are how requests are protected.
type Settings struct {
	// Upstream is the name of the service. Default: the only upstream.
	Upstream string `yaml:"upstream" rule:"names=name,max=100"`
	// Protect protects the route's requests; otherwise they are passed on unchanged. Default true.
	Protect bool `yaml:"protect"`
	// Methods are the protected methods, in addition to those that the route's patterns name. GET, HEAD,
	// OPTIONS and TRACE never are. Default POST, PATCH.
	Methods []string `yaml:"methods" rule:"items=20,names=method"`
	// Key is about the client's key.
	Key Key `yaml:"key"`
	// Fingerprint says what makes two requests the same request.
	Fingerprint Fingerprint `yaml:"fingerprint"`
	// Contract is the form of responses: the IETF draft's, Stripe's, or OASIS Repeatable Requests'. Default
	// ietf.
	Contract string `yaml:"contract" rule:"enum=ietf|stripe|oasis"`
	// InFlight is what a duplicate of a running request gets: 409 at once, the response after a wait, or 202
	// with a status URL. Default reject.
	InFlight string `yaml:"in_flight" rule:"enum=reject|wait|accept"`
	// Wait is how long a duplicate waits with in_flight: wait. Default 10s, or max_wait if that is shorter.
	Wait time.Duration `yaml:"wait"`
	// MaxWait is the longest wait that a client can request with Prefer: wait=N; 0 ignores the preference.
	// Default 30s.
	MaxWait time.Duration `yaml:"max_wait" rule:"empty"`
	// MaxWaiters is how many duplicates of one request may wait. Default 16.
	MaxWaiters int `yaml:"max_waiters" rule:"min=1,max=1000000"`
	// OnCrash is what to do if an owner died or the outcome is unknown: hold the key until it is resolved;
	// retry, which is only safe if the service itself deduplicates by key; or reconcile, which asks the
	// service when the request comes again. Default hold.
	OnCrash string `yaml:"on_crash" rule:"enum=hold|retry|reconcile"`
	// Reconcile is how to ask the service what became of a request, with on_crash: reconcile.
	Reconcile Reconcile `yaml:"reconcile"`
	// NoEffectStatus are the service's statuses that mean that nothing was processed: the response is passed
	// on, and the key is free again. 503 counts only with Retry-After. Default 401, 407, 425, 429, 503.
	NoEffectStatus []int `yaml:"no_effect_status" rule:"min=300,max=599,items=100"`
	// UnknownStatus are the statuses after which the outcome is unknown. 503 counts only without Retry-After.
	// Default 502, 503, 504.
	UnknownStatus []int `yaml:"unknown_status" rule:"min=300,max=599,items=100"`
	// FailOpen lets requests pass UNPROTECTED while the store is down, instead of responding with 503.
	// Default false.
	FailOpen bool `yaml:"fail_open"`
	// Lease is how long a claim holds unless it is renewed. Default 15s.
	Lease time.Duration `yaml:"lease"`
	// Heartbeat is how often a claim is renewed; at most half the lease. Default a third of it.
	Heartbeat time.Duration `yaml:"heartbeat"`
	// Deadline is the longest time that one execution may take; at most the retention. Default 10m, or the retention if that is shorter.
	Deadline time.Duration `yaml:"deadline"`
	// Retention is how long a recorded response is replayed. Default 24h.
	Retention time.Duration `yaml:"retention"`
	// StoreTimeout bounds each store call. Default 5s, or the lease if that is shorter.
	StoreTimeout time.Duration `yaml:"store_timeout"`
	// MaxRequestBody is the largest body of a protected request; larger ones are refused with 413. Default 32MiB.
	MaxRequestBody Size `yaml:"max_request_body"`
	// MaxInline is the largest response that is held in memory and recorded in one piece. Default 256KiB, or
	// max_result if that is smaller.
	MaxInline Size `yaml:"max_inline"`
	// MaxResult is the largest response that is recorded, up to 256MiB; larger ones are passed on but cannot
	// be replayed. Default 32MiB.
	MaxResult Size `yaml:"max_result"`
	// MinRate is the lowest average rate, in bytes a second, at which a client may send a body or read a
	// response, after 10s. Default 1KiB.
	MinRate Size `yaml:"min_rate"`
	// ClientIdle is how long a client may neither send nor read any of a body. Default 30s.
	ClientIdle time.Duration `yaml:"client_idle"`
}

// Reconcile is a GET to the route's upstream, made when a request of unknown outcome comes again, with that
// request's header, so that the service knows who asks. It must look only among that caller's operations of
// this kind, or go by the fence. What it does not clearly say leaves the outcome unknown.
type Reconcile struct {
	// URL is a path, below that of the upstream's url, and perhaps a query: {key} is the key, {fence} the
	// Semel-Fence that the service got, {name} a wildcard of the pattern. It needs {key} or {fence}.
	URL string `yaml:"url"`
	// Present are the statuses that say that the request took effect. Default 200.
	Present []int `yaml:"present" rule:"min=200,max=499,items=20"`
	// Absent are the statuses that say that it did not: it then executes, once settle_after is over. Default: none.
	Absent []int `yaml:"absent" rule:"min=200,max=499,items=20"`
	// Value is a JSON pointer to a string or number in a response with one of the statuses in present, which
	// then decides instead of the status.
	Value string `yaml:"value" rule:"names=member"`
	// PresentValues are those that say that the request took effect.
	PresentValues []string `yaml:"present_values" rule:"items=20"`
	// AbsentValues are those that say that it did not.
	AbsentValues []string `yaml:"absent_values" rule:"items=20"`
	// KeepResponse records this response, with its status, as that of the request. Default false: only the
	// fact and the Location are recorded, and the client gets 409, result not retained.
	KeepResponse bool `yaml:"keep_response"`
	// SettleAfter is the longest time after the lease in which an effect can still appear. Required with
	// absent or absent_values.
	SettleAfter time.Duration `yaml:"settle_after"`
	// Timeout bounds the look-up, at most the lease. Default 5s, or the lease if that is shorter.
	Timeout time.Duration `yaml:"timeout"`
}

// Key is about the client's key.
type Key struct {
	// Required refuses requests without a key. Default false: they pass unprotected.
	Required bool `yaml:"required"`
	// IssuedOnly accepts only keys that the gateway has issued; see resources. Default false.
	IssuedOnly bool `yaml:"issued_only"`
	// Strict accepts only keys in double quotes, as in Idempotency-Key: "k". Default false.
	Strict bool `yaml:"strict"`
	// From is where the key is, if not in the contract's header: "header NAME", or "body /pointer" for a
	// string or number in a JSON body. With several places, the key is a digest of all values, and each is
	// required. A key from the body or from several places is always required.
	From []string `yaml:"from" rule:"items=20,names=part"`
	// MinLength is the smallest number of bytes. Default 1.
	MinLength int `yaml:"min_length" rule:"min=1,max=255"`
	// MaxLength is the largest number of bytes. Default 255.
	MaxLength int `yaml:"max_length" rule:"min=1,max=255"`
	// MinEntropyBits refuses keys with fewer bits by an upper estimate; 64 accepts random UUIDs and refuses
	// order-2026-11-21. Default: not checked.
	MinEntropyBits int `yaml:"min_entropy_bits" rule:"min=1,max=2000"`
	// RefuseTimestamps refuses keys that read as a point in time. Default false.
	RefuseTimestamps bool `yaml:"refuse_timestamps"`
	// RefuseSerials refuses keys that are a short number, alone or after a word. Default false.
	RefuseSerials bool `yaml:"refuse_serials"`
	// RequireUUID accepts only UUIDs of version 4 or 7. Default false.
	RequireUUID bool `yaml:"require_uuid"`
	// MaxUUIDAge refuses version 7 UUIDs whose timestamp is older, or in the future: their record may be
	// gone. At least 10m shorter than the retention. Default: not checked.
	MaxUUIDAge time.Duration `yaml:"max_uuid_age"`
}

// Fingerprint says what makes two requests the same request: method, path, query, and the parts of the body
// and headers given here.
type Fingerprint struct {
	// Mode is how a body is read: by its Content-Type, as raw bytes, or always as JSON. Default auto.
	Mode string `yaml:"mode" rule:"enum=auto|raw|json"`
	// Include are JSON pointers to the only values that are compared. Default: all are.
	Include []string `yaml:"include" rule:"items=100,names=pointer"`
	// Exclude are JSON pointers to values that are not compared, such as a time of sending.
	Exclude []string `yaml:"exclude" rule:"items=100,names=member"`
	// Headers are the headers that are compared. Default: none are.
	Headers []string `yaml:"headers" rule:"items=20,names=header"`
	// MaxCanonical is the largest body that is compared as JSON or a form; larger ones are compared as bytes.
	// Default 4MiB.
	MaxCanonical Size `yaml:"max_canonical"`
}

// Resources are the status of operations, issued keys, the specification, and /ready.
type Resources struct {
	// Off leaves all URLs to the upstreams; responses then contain no status URL. Default false.
	Off bool `yaml:"off"`
	// Prefix is the path prefix of these resources. Default /.well-known/idempotency.
	Prefix string `yaml:"prefix" rule:"names=prefix"`
	// KeySecrets is a file with secrets for issuing keys, one on each line, of at least 32 bytes; the first
	// signs, all verify. It is reread on a reload. To change the secret, add the new one as the last line on
	// every host, then move it to the first, and remove the old one when key_life and the longest retention
	// have passed: without it, clients are told to use other keys, even for what has executed. Default: no
	// keys are issued.
	KeySecrets string `yaml:"key_secrets"`
	// KeyLife is how long an issued key may be used for the first time. Default 1h.
	KeyLife time.Duration `yaml:"key_life"`
}

// Spool stores bodies that are too large for memory.
type Spool struct {
	// Dir is a directory on disk. Default: the system's for temporary files.
	Dir string `yaml:"dir"`
	// Max is the most that the files hold together. Default 4GiB, or a quarter of the disk's free space if that is less.
	Max Size `yaml:"max"`
}

// Bounds are limits for all requests together.
type Bounds struct {
	// Executions is the most concurrent protected requests; more get 503. Default 4096.
	Executions int `yaml:"executions" rule:"min=1,max=10000000"`
	// TenantExecutions is the same for one tenant, if callers have tenants. Default a quarter.
	TenantExecutions int `yaml:"tenant_executions" rule:"min=1,max=10000000"`
	// Waiters is the most requests that wait for another's response; more get 409 at once. Default 1000.
	Waiters int `yaml:"waiters" rule:"min=1,max=10000000"`
}
