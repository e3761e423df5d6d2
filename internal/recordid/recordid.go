// Package recordid names the records of a store that numbers them.
//
// A store that keeps one rising number for each record needs no second, random
// column with an index of its own: the opaque id is that number under a keyed
// permutation. Likewise it needs no index over the four texts of an identity:
// 16 bytes of a keyed digest find the record, and the texts, once read, are
// compared. Both keys come from one secret of the store.
package recordid

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"

	"github.com/semelhq/semel"
)

// SecretBytes is the length of a store's secret.
const SecretBytes = 32

// NewSecret returns a random secret, to be kept for as long as the store.
func NewSecret() []byte {
	b := make([]byte, SecretBytes)
	_, _ = rand.Read(b) // never fails: crypto/rand aborts the process instead
	return b
}

// Namer names records. Safe for concurrent use.
type Namer struct {
	block cipher.Block
	mac   [SecretBytes]byte
}

// New returns the namer of the store with that secret.
func New(secret []byte) (*Namer, error) {
	if len(secret) != SecretBytes {
		return nil, fmt.Errorf("recordid: the secret is %d bytes long; it must be %d", len(secret), SecretBytes)
	}
	n := &Namer{mac: sha256.Sum256(append([]byte("semel identity digest\x00"), secret...))}
	key := sha256.Sum256(append([]byte("semel record id\x00"), secret...))
	n.block, _ = aes.NewCipher(key[:16]) // fails for other lengths only
	return n, nil
}

// Ids are 128 bits in 26 letters and digits, like those of semel.NewRecordID.
var encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

const idLength = 26

// ID is the opaque id of the record with that number. Who does not know the
// secret can neither tell the number from it nor make up the id of another.
func (n *Namer) ID(number uint64) string {
	var block [aes.BlockSize]byte
	binary.BigEndian.PutUint64(block[8:], number)
	n.block.Encrypt(block[:], block[:])
	var text [idLength]byte
	encoding.Encode(text[:], block[:])
	return string(text[:])
}

// Number is the inverse of ID. It reports false for a text that is not the id of
// any number.
func (n *Namer) Number(id string) (number uint64, ok bool) {
	if len(id) != idLength {
		return 0, false
	}
	block, err := encoding.DecodeString(id)
	if err != nil {
		return 0, false
	}
	n.block.Decrypt(block, block)
	number = binary.BigEndian.Uint64(block[8:])
	// The last letter has two bits more than it needs: only one writing of them
	// is an id.
	return number, binary.BigEndian.Uint64(block) == 0 && n.ID(number) == id
}

// Digest is the keyed digest of an identity, which callers without the secret
// cannot make collide with another's.
func (n *Namer) Digest(id semel.Identity) (d [16]byte) {
	var space [512]byte
	b := append(space[:0], n.mac[:]...)
	for _, s := range [...]string{id.Tenant, id.Actor, id.Operation, id.Key} {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	sum := sha256.Sum256(b)
	copy(d[:], sum[:])
	return d
}
