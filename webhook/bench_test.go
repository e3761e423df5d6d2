package webhook_test

import (
	"strings"
	"testing"
)

// BenchmarkVerify is the cost of one delivery of 2 KiB, before anything is looked
// up.
func BenchmarkVerify(b *testing.B) {
	body := `{"id":"evt_1","data":"` + strings.Repeat("x", 2000) + `"}`
	for name, s := range map[string]scheme{
		"standard": standard(b, noon, sharedA), "ed25519": standard(b, noon, seed), "stripe": stripe(b, noon, "whsec_a"), "github": github(b, "a"),
	} {
		h, bytes := sign(b, s, "evt_1", body), []byte(body)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Verify(h, bytes); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
