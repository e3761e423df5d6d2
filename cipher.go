package semel

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
)

// ErrUnreadable means that something in the store cannot be decrypted: its key is
// not among those of the Cipher, there is no Cipher, or the stored bytes have been
// changed or moved from another record. What it says has happened all the same, so
// nothing is executed because of it.
var ErrUnreadable = errors.New("semel: what is stored cannot be decrypted")

// EncryptionKey is a key of a Cipher.
type EncryptionKey struct {
	// Name is stored with what the key has encrypted, in the clear. It consists of 1
	// to 64 letters, digits and the characters ._- and must never name another key.
	Name string
	// Secret is the key: 32 random bytes, as from openssl rand -base64 32.
	Secret []byte `json:"-"`
}

// String returns the name.
func (k EncryptionKey) String() string { return k.Name }

// ParseEncryptionKeys reads keys from lines of the form
//
//	name: secret
//
// with the secret in standard base64. Lines that are empty or begin with # are
// skipped. The errors name the line and hold nothing of it.
func ParseEncryptionKeys(text []byte) (keys []EncryptionKey, err error) {
	n := 0
	for line := range bytes.Lines(text) {
		n++
		if line = bytes.TrimSpace(line); len(line) == 0 || line[0] == '#' {
			continue
		}
		name, secret, ok := strings.Cut(string(line), ":")
		key := EncryptionKey{Name: strings.TrimSpace(name)}
		if key.Secret, err = base64.StdEncoding.DecodeString(strings.TrimSpace(secret)); err != nil || !ok {
			return nil, fmt.Errorf("semel: line %d is not of the form name: secret, with the secret in base64", n)
		}
		if err := key.check(); err != nil {
			return nil, fmt.Errorf("semel: line %d: %w", n, err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

func (k EncryptionKey) check() error {
	for _, c := range []byte(k.Name) {
		if c >= 0x80 || !isLetterOrDigit(c) && strings.IndexByte("._-", c) < 0 {
			return errors.New("the name of a key must consist of letters, digits and the characters ._-")
		}
	}
	if k.Name == "" || len(k.Name) > 64 {
		return errors.New("the name of a key must have 1 to 64 characters")
	}
	if len(k.Secret) != 32 {
		return fmt.Errorf("the key %s has %d bytes; it must have 32, as from openssl rand -base64 32", k.Name, len(k.Secret))
	}
	return nil
}

func isLetterOrDigit(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// Cipher encrypts what a store keeps of results, with AES-256-GCM. The first of its
// keys encrypts, and each decrypts what it has encrypted. Each result has a key of
// its own, which is derived with HKDF-SHA256 from the key, a random salt and the
// identity of the record. So there is no limit to how many results a key encrypts,
// and a result does not open in another record.
//
// A Cipher is safe for concurrent use.
type Cipher struct {
	keys atomic.Pointer[[]EncryptionKey]
}

// NewCipher returns a cipher with at least one key. The error says what is wrong
// with them, and holds no secret.
func NewCipher(keys ...EncryptionKey) (*Cipher, error) {
	c := &Cipher{}
	if err := c.Rotate(keys...); err != nil {
		return nil, err
	}
	return c, nil
}

// Rotate replaces the keys, also for the guards that use c. If the error is not
// nil, c goes on with those that it has.
//
// A new key must be known to every process that reads the store before the first
// encrypts with it. So give it to all of them behind the present key, then put it
// first, and take the old one away when nothing is kept any more that it has
// encrypted.
func (c *Cipher) Rotate(keys ...EncryptionKey) error {
	all := make([]EncryptionKey, len(keys))
	seen := map[string]bool{}
	for i, k := range keys {
		if err := k.check(); err != nil {
			return fmt.Errorf("semel: cipher: %w", err)
		}
		if seen[k.Name] {
			return fmt.Errorf("semel: cipher: two keys are named %s", k.Name)
		}
		seen[k.Name] = true
		all[i] = EncryptionKey{k.Name, bytes.Clone(k.Secret)}
	}
	if len(all) == 0 {
		return errors.New("semel: cipher: there is no key")
	}
	c.keys.Store(&all)
	return nil
}

const (
	saltBytes = 32
	// sealBytes is what encryption adds to a text: a nonce and a tag.
	sealBytes = 12 + 16
	// chunkBytes is how much of a body is encrypted at a time, so that what comes
	// of it is a piece.
	chunkBytes = PieceBytes - sealBytes
)

// aead returns what encrypts under the key, for one salt and purpose. Nonces are
// random, and what a key is derived for has few texts.
func (k *EncryptionKey) aead(salt []byte, purpose string) cipher.AEAD {
	derived, err := hkdf.Key(sha256.New, k.Secret, salt, purpose, 32)
	var block cipher.Block
	if err == nil {
		block, err = aes.NewCipher(derived)
	}
	var aead cipher.AEAD
	if err == nil {
		aead, err = cipher.NewGCMWithRandomNonce(block)
	}
	if err != nil {
		panic(err) // for other lengths only
	}
	return aead
}

// seal returns what encrypts with the first key, and the header that open needs.
func (c *Cipher) seal(purpose string) (key string, salt []byte, aead cipher.AEAD) {
	k := &(*c.keys.Load())[0]
	salt = make([]byte, saltBytes)
	_, _ = rand.Read(salt) // never fails
	return k.Name, salt, k.aead(salt, purpose)
}

// open returns what decrypts.
func (c *Cipher) open(key string, salt []byte, purpose string) (cipher.AEAD, error) {
	if c != nil {
		for _, k := range *c.keys.Load() {
			if k.Name == key {
				return k.aead(salt, purpose), nil
			}
		}
	}
	return nil, fmt.Errorf("%w: the key %q is not among those that are configured; add it", ErrUnreadable, key)
}

// damaged is the error for what a key should open, and does not.
func damaged(key string) error {
	return fmt.Errorf("%w: it is not what the key %q has encrypted here: it was changed, or moved from another record, or the key is another than the one of that name before", ErrUnreadable, key)
}

// purpose tells apart what is derived from a key.
func purpose(what string, id Identity, more ...string) string {
	b := make([]byte, 0, 64+len(id.Tenant)+len(id.Actor)+len(id.Operation)+len(id.Key))
	for _, s := range append([]string{what, id.Tenant, id.Actor, id.Operation, id.Key}, more...) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return string(b)
}

// sealedText begins a text of Encrypt. No JSON begins with it.
const sealedText = "\x00semel-encrypted/1:"

// Encrypt encrypts a text of up to a few MiB that belongs to id, such as a step's
// result. Only Decrypt with the same id and name decrypts it. If c is nil, the text
// is returned as it is.
func (c *Cipher) Encrypt(id Identity, name string, text []byte) []byte {
	if c == nil {
		return text
	}
	key, salt, aead := c.seal(purpose("semel text/1", id, name))
	b := make([]byte, 0, len(sealedText)+len(key)+1+len(salt)+len(text)+sealBytes)
	b = append(append(append(b, sealedText...), key...), 0)
	b = append(b, salt...)
	return aead.Seal(b, nil, text, nil)
}

// Decrypt decrypts a text of Encrypt. A text that was never encrypted is returned
// as it is, also if c is nil. Otherwise the error is ErrUnreadable.
func (c *Cipher) Decrypt(id Identity, name string, b []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(b, []byte(sealedText))
	if !ok {
		return b, nil
	}
	key, rest, ok := bytes.Cut(rest, []byte{0})
	if !ok || len(rest) < saltBytes {
		return nil, damaged("")
	}
	aead, err := c.open(string(key), rest[:saltBytes], purpose("semel text/1", id, name))
	if err != nil {
		return nil, err
	}
	text, err := aead.Open(nil, nil, rest[saltBytes:], nil)
	if err != nil {
		return nil, damaged(string(key))
	}
	return text, nil
}

// codecEncrypted begins the codec of an encrypted result. The name of the key
// follows. The head is the salt and, encrypted, a version, whether the result is
// a tombstone, the length of the body, the codec, the reference and the head. The
// body is encrypted in chunks.
const codecEncrypted = "encrypted/1:"

// What is authenticated beside a text, so that none stands in the place of another.
func headPlace() []byte           { return []byte("head") }
func bodyPlace(n int) []byte      { return binary.AppendUvarint([]byte("body"), uint64(n)) }
func resultOf(id Identity) string { return purpose("semel result/1", id) }

// chunks returns how many chunks a body has.
func chunks(size int64) int64 { return (size + chunkBytes - 1) / chunkBytes }

// encrypt returns r as it is stored for id.
func (c *Cipher) encrypt(id Identity, r Result) Result {
	if c == nil {
		return r
	}
	key, salt, aead := c.seal(resultOf(id))
	head := make([]byte, 0, 24+len(r.Codec)+len(r.Reference)+len(r.Head))
	head = append(head, 1, 0)
	if r.Tombstone {
		head[1] = 1
	}
	head = binary.AppendUvarint(head, uint64(max(r.Size(), 0)))
	for _, s := range []string{r.Codec, r.Reference} {
		head = binary.AppendUvarint(head, uint64(len(s)))
		head = append(head, s...)
	}
	head = append(head, r.Head...)
	sealed := Result{Codec: codecEncrypted + key, Label: r.Label, Tombstone: r.Tombstone, Failed: r.Failed}
	sealed.Head = aead.Seal(append(make([]byte, 0, len(salt)+len(head)+sealBytes), salt...), nil, head, headPlace())
	if size := int64(len(r.Body)); size > 0 {
		sealed.Body = make([]byte, 0, size+chunks(size)*sealBytes)
		for n, rest := 0, r.Body; len(rest) > 0; n++ {
			chunk := rest[:min(chunkBytes, len(rest))]
			sealed.Body = aead.Seal(sealed.Body, nil, chunk, bodyPlace(n))
			rest = rest[len(chunk):]
		}
	}
	if p := r.Pieces; p != nil {
		if p.Read == nil || p.Size <= 0 { // for the store to refuse
			sealed.Pieces = p
			return sealed
		}
		from := &cut{each: PieceBytes, read: p.ReadPiece}
		sealed.Pieces = &Pieces{Size: p.Size + chunks(p.Size)*sealBytes, Read: func(ctx context.Context, n int) ([]byte, error) {
			at := int64(n) * chunkBytes
			chunk := make([]byte, min(chunkBytes, p.Size-at))
			if err := from.readAt(ctx, chunk, at); err != nil {
				return nil, err
			}
			return aead.Seal(nil, nil, chunk, bodyPlace(n)), nil
		}}
	}
	return sealed
}

// decrypt returns a result as it was before it was stored for id. The error is
// ErrUnreadable, and is also that of pieces.
func (c *Cipher) decrypt(id Identity, sealed Result) (Result, error) {
	key, ok := strings.CutPrefix(sealed.Codec, codecEncrypted)
	if !ok || sealed.Tombstone && len(sealed.Head) == 0 { // erased
		return sealed, nil
	}
	if len(sealed.Head) < saltBytes {
		return Result{}, damaged(key)
	}
	aead, err := c.open(key, sealed.Head[:saltBytes], resultOf(id))
	if err != nil {
		return Result{}, err
	}
	head, err := aead.Open(nil, nil, sealed.Head[saltBytes:], headPlace())
	if err != nil || len(head) < 2 || head[0] != 1 {
		return Result{}, damaged(key)
	}
	r := Result{Label: sealed.Label, Tombstone: head[1] == 1}
	size, head, ok := cutNumber(head[2:])
	if r.Codec, head, ok = cutText(head, ok); ok {
		r.Reference, r.Head, ok = cutText(head, ok)
	}
	if !ok || size > 1<<50 {
		return Result{}, damaged(key)
	}
	whole := int64(size)
	if r.Tombstone {
		return r, nil
	}
	if sealed.Size() != whole+chunks(whole)*sealBytes {
		return Result{}, damaged(key)
	}
	openChunk := func(into []byte, n int, chunk []byte) ([]byte, error) {
		text, err := aead.Open(into, nil, chunk, bodyPlace(n))
		if err != nil {
			return nil, damaged(key)
		}
		return text, nil
	}
	if p := sealed.Pieces; p != nil {
		from := &cut{each: chunkBytes, read: func(ctx context.Context, n int) ([]byte, error) {
			chunk, err := p.ReadPiece(ctx, n)
			if err != nil {
				return nil, err
			}
			return openChunk(nil, n, chunk)
		}}
		r.Pieces = &Pieces{Size: whole}
		r.Pieces.Read = func(ctx context.Context, n int) ([]byte, error) {
			piece := make([]byte, r.Pieces.Length(n))
			return piece, from.readAt(ctx, piece, int64(n)*PieceBytes)
		}
		return r, nil
	}
	if whole == 0 {
		return r, nil
	}
	r.Body = make([]byte, 0, whole)
	for n, rest := 0, sealed.Body; len(rest) > 0; n++ {
		chunk := rest[:min(PieceBytes, len(rest))]
		if r.Body, err = openChunk(r.Body, n, chunk); err != nil {
			return Result{}, err
		}
		rest = rest[len(chunk):]
	}
	return r, nil
}

// cutNumber takes a number off b.
func cutNumber(b []byte) (n uint64, rest []byte, ok bool) {
	n, l := binary.Uvarint(b)
	return n, b[max(l, 0):], l > 0
}

// cutText takes a text off b, if so far all is well.
func cutText(b []byte, ok bool) (s string, rest []byte, _ bool) {
	n, rest, is := cutNumber(b)
	if !ok || !is || n > uint64(len(rest)) {
		return "", nil, false
	}
	return string(rest[:n]), rest[n:], true
}

// cut reads any part of what is read in pieces of one length. It keeps the last.
type cut struct {
	each int64
	read func(ctx context.Context, n int) ([]byte, error)

	n     int // counted from 1
	piece []byte
}

func (c *cut) readAt(ctx context.Context, into []byte, at int64) error {
	for len(into) > 0 {
		n := int(at/c.each) + 1
		if n != c.n {
			piece, err := c.read(ctx, n-1)
			if err != nil {
				return err
			}
			c.n, c.piece = n, piece
		}
		begin := at - int64(n-1)*c.each
		if begin >= int64(len(c.piece)) {
			return ErrUnreadable // it is shorter than what it belongs to says
		}
		copied := copy(into, c.piece[begin:])
		into, at = into[copied:], at+int64(copied)
	}
	return nil
}
