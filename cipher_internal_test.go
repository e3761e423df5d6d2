package semel

import (
	"bytes"
	"testing"
)

// Whatever somebody with the key has encrypted as a head, to decrypt it yields a result
// or an error, and the result is no larger than what there was.
func FuzzCipherHead(f *testing.F) {
	c, err := NewCipher(EncryptionKey{"a", bytes.Repeat([]byte("a"), 32)})
	if err != nil {
		f.Fatal(err)
	}
	id := Identity{Scope{Operation: "o"}, "k"}
	f.Add([]byte{1, 0, 0, 0, 0}, []byte(nil))
	f.Add([]byte("\x01\x01\x00\x01c\x01rhead"), []byte(nil))
	f.Add([]byte("\x01\x00\x04\x01c\x01rhead"), []byte("body"))
	f.Add([]byte("\x01\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00"), []byte("body"))
	f.Add([]byte("\x01\x00\x04\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01c"), []byte("body"))
	f.Fuzz(func(t *testing.T, head, body []byte) {
		key, salt, aead := c.seal(resultOf(id))
		sealed := Result{Codec: codecEncrypted + key, Head: aead.Seal(salt, nil, head, headPlace())}
		if len(body) > 0 {
			sealed.Body = aead.Seal(nil, nil, body, bodyPlace(0))
		}
		r, err := c.decrypt(id, sealed)
		if err == nil && (len(r.Codec)+len(r.Reference)+len(r.Head) > len(head) || !r.Tombstone && len(body) < chunkBytes && !bytes.Equal(r.Body, body)) {
			t.Errorf("%+v", r)
		}
	})
}
