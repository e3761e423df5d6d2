package plan

import (
	"strings"
	"testing"
)

// TestSensitive holds that no name which the expression finds is passed over.
func TestSensitive(t *testing.T) {
	words := strings.Fields(`authorization cookie token secret password passwd pwd api-key apikey access-key accesskey
		auth-key authkey private-key privatekey session session-id sessionid credential credentials jwt apiKey accessKey sessionId`)
	for _, word := range words {
		for _, form := range []string{"W", "Ws", "x-W", "W-x", "my_W", "W2", "userW", "Wx", "xW"} {
			for _, w := range []string{word, strings.ToUpper(word), strings.ToUpper(word[:1]) + word[1:]} {
				name := strings.ReplaceAll(form, "W", w)
				plain := strings.ReplaceAll(camel.ReplaceAllString(name, "$1-$2"), "_", "-")
				if got, want := Sensitive(name), sensitive.MatchString(plain); got != want {
					t.Errorf("%s is sensitive: %v, want %v", name, got, want)
				}
			}
		}
		if !Sensitive(word) {
			t.Errorf("%s is not sensitive", word)
		}
	}
	// The expression's k and s are also the Kelvin sign and the long s.
	for _, name := range []string{"api-\u212aey", "\u017fecret", "to\u212aen"} {
		if !Sensitive(name) {
			t.Errorf("%q is not sensitive", name)
		}
	}
	for _, name := range []string{"content-type", "amount", "monkey", "passenger", "Accept", ""} {
		if Sensitive(name) {
			t.Errorf("%q is sensitive", name)
		}
	}
}
