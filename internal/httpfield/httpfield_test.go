package httpfield

import (
	"strings"
	"testing"
)

func TestIsToken(t *testing.T) {
	for i := range 256 {
		c := string([]byte{byte(i)})
		want := 'a' <= i && i <= 'z' || 'A' <= i && i <= 'Z' || '0' <= i && i <= '9' || strings.Contains("!#$%&'*+-.^_`|~", c)
		if got := IsToken("x" + c); got != want {
			t.Errorf("with byte %#x it is %v", i, got)
		}
	}
	if IsToken("") {
		t.Error("the empty string is one")
	}
}
