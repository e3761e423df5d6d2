package har

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"html"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/quick"
)

// speller writes text in ways in which it can be read again. Which ones is for
// the random numbers to say, for each character anew.
type speller struct{ r *rand.Rand }

func (p speller) chance() bool { return p.r.IntN(2) == 0 }

func (p speller) caseOf(s string) string {
	if p.chance() {
		return strings.ToUpper(s)
	}
	return s
}

// escapes are of URLs, of JSON, of JavaScript, of HTML.
var escapes = []struct {
	name string
	each func(p speller, c rune) string
}{
	{"url", func(p speller, c rune) string {
		if c == '%' || c == '+' || p.chance() {
			out := ""
			for _, b := range []byte(string(c)) {
				out += "%" + p.caseOf(fmt.Sprintf("%02x", b))
			}
			return out
		}
		return string(c)
	}},
	{"json", func(p speller, c rune) string {
		switch {
		case (c == '/' || c == '"') && p.chance():
			return `\` + string(c)
		case c == '"', c == '\\', p.chance():
			if c > 0xffff {
				return fmt.Sprintf(`\u%04x\u%04X`, (c-0x10000)>>10+0xd800, (c-0x10000)&0x3ff+0xdc00)
			}
			return `\u` + p.caseOf(fmt.Sprintf("%04x", c))
		}
		return string(c)
	}},
	{"javascript", func(p speller, c rune) string {
		switch {
		case c < 0x100 && p.chance() || c == '\\':
			return `\x` + p.caseOf(fmt.Sprintf("%02x", c&0xff))[:2]
		case p.chance():
			return fmt.Sprintf(`\u{%x}`, c)
		}
		return string(c)
	}},
	{"html", func(p speller, c rune) string {
		switch {
		case strings.ContainsRune("&<>\"'", c) && p.chance():
			return html.EscapeString(string(c))
		case c == '&', p.chance():
			if p.chance() {
				return fmt.Sprintf("&#%d;", c)
			}
			return "&#" + p.caseOf("x") + p.caseOf(fmt.Sprintf("%x", c)) + ";"
		}
		return string(c)
	}},
}

// packings hold the text somewhere within.
var packings = []struct {
	name string
	all  func(p speller, s string) string
}{
	{"base64", func(p speller, s string) string {
		s = strings.Repeat("~", p.r.IntN(4)) + s + strings.Repeat("?", p.r.IntN(4))
		enc := []*base64.Encoding{base64.StdEncoding, base64.URLEncoding, base64.RawStdEncoding, base64.RawURLEncoding}[p.r.IntN(4)]
		return enc.EncodeToString([]byte(s))
	}},
	{"hex", func(p speller, s string) string { return p.caseOf(hex.EncodeToString([]byte(s))) }},
}

// spell spells a secret in up to three escapes and up to two packings. JavaScript
// has bytes where others have characters, so it only comes first, or for ASCII.
func (p speller) spell(secret string) (spelled, how string) {
	spelled = secret
	escaped, packed := 0, 0
	for range p.r.IntN(5) + 1 {
		if p.chance() && escaped < maxEscapes {
			e := escapes[p.r.IntN(len(escapes))]
			var b strings.Builder
			for _, c := range spelled {
				b.WriteString(e.each(p, c))
			}
			spelled = b.String()
			how += e.name + " "
			escaped++
		} else if packed < maxPacked {
			k := packings[p.r.IntN(len(packings))]
			spelled = k.all(p, spelled)
			how += k.name + " "
			packed++
			escaped = 0
		}
	}
	return spelled, how
}

// A secret is found in every spelling, and the text around it stays.
func FuzzSpellings(f *testing.F) {
	for i := range uint64(100) {
		f.Add(i, `s3cret/with+special="chars&<%2f>\`)
		f.Add(i, "tok-8d1c5f")
		f.Add(i, "päss wörd 😀")
	}
	f.Fuzz(func(t *testing.T, seed uint64, secret string) {
		if len(secret) < 6 || len(secret) > 500 || strings.ToValidUTF8(secret, "") != secret || strings.Contains(secret, "redacted") {
			return
		}
		for _, c := range secret {
			// JavaScript's \x is for bytes, and HTML does not have every character.
			if c < ' ' || c >= 0x7f && c < 0xa0 || c&0xfffe == 0xfffe || html.UnescapeString(fmt.Sprintf("&#%d;", c)) != string(c) {
				return
			}
		}
		p := speller{rand.New(rand.NewPCG(seed, 1))}
		spelled, how := p.spell(secret)
		if strings.Contains(how, "javascript") && strings.IndexFunc(secret, func(c rune) bool { return c >= 0x80 }) >= 0 {
			return
		}
		r := NewRedactor(secret)
		if got := r.String("<i> " + spelled + " !"); got != "<i> redacted-1 !" {
			t.Errorf("%q as %sis %q, which became %q", secret, how, spelled, got)
		}
	})
}

// The spellings of this list are found wherever they stand.
func TestSpellings(t *testing.T) {
	const secret = `s3/cr+et"é=`
	r := NewRedactor(secret)
	for _, spelled := range []string{
		`s3\/cr+et\"é=`, `s3\u002fcr\u002Bet\u0022\u00e9=`, "s3%2fcr%2bet%22%c3%a9=", "s3%2Fcr%2Bet%22%C3%A9%3D", "s3/cr&#43;et&quot;&eacute;&#61;", "s3&#x2f;cr&#x2B;et&#34;&#233;=",
		`\x733/cr\x2bet\"\u{e9}=`, "s3%252fcr%252bet%2522%25c3%25a9=", `s3\\u002fcr\\u002bet\\u0022é=`, "s3=2Fcr=2Bet=22=C3=A9=3D", "%73%33%2F%63%72%2B%65%74%22%C3%A9%3D",
		url.QueryEscape(html.EscapeString(secret)), hex.EncodeToString([]byte(secret)), base64.StdEncoding.EncodeToString([]byte("user:" + secret)),
		base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","x":"s3\/cr+et\"` + "é" + `="}`)), url.QueryEscape(base64.StdEncoding.EncodeToString([]byte("??" + secret + "??"))),
		strings.ReplaceAll(base64.StdEncoding.EncodeToString([]byte("????>>>"+secret)), "/", `\/`),
		base64.StdEncoding.EncodeToString([]byte(base64.StdEncoding.EncodeToString([]byte(secret)))),
	} {
		for _, around := range []string{"%s", "a %s b", "<%s>", "(%s)", `{"a":"%s"}`, "a,%s;"} {
			if got, want := r.String(fmt.Sprintf(around, spelled)), fmt.Sprintf(around, "redacted-1"); got != want {
				t.Errorf("%s became %s", fmt.Sprintf(around, spelled), got)
			}
		}
	}
	// A text that was cut off in the middle of it.
	if got := r.String(`x s3\/cr+et`); got != "x redacted-1" {
		t.Errorf("got %q", got)
	}
	for _, other := range []string{"s3/cr et", "s3/cr+et é=", "%", "%%2", "&", "&;", `\`, `\u`, `\u{`, "&#x", "s3%2fcr%2", "aGVsbG8gd29ybGQ=", "\x00\xff"} {
		if got := r.String(other + "."); got != other+"." {
			t.Errorf("%q became %q", other, got)
		}
	}
}

// Searching takes a time that grows as the text does, whatever the text is and
// whatever the target taught to look for.
func TestSearchIsBounded(t *testing.T) {
	quick.LeaveOut(t)
	long := strings.Repeat("a", 5000) + "b"
	r := NewRedactor(long, strings.Repeat("%25", 300)+"x", strings.Repeat(`\`, 300)+"x", strings.Repeat("&amp;", 300)+"x")
	for i := range 3000 {
		r.hide(fmt.Sprintf("learnt-%d-%s", i, strings.Repeat("%", i%50)))
	}
	const n = 1 << 16
	cost := func(unit string) time.Duration {
		text := strings.Repeat(unit, n/len(unit))
		at := time.Now()
		_ = r.Text(text)
		return time.Since(at)
	}
	plain := cost("lorem ipsum dolor. ")
	for _, unit := range []string{
		"a", "aaaaaaaab", "%", "%25", "%2525", `\`, `\\u005c`, "&", "&amp;", "&amp;amp;", "+", "=", "=3D", "\x00", "0", "learnt-", "YWFh", "%5Cu0025", `\u`, `\u{`, "{", "[", `{"token":`, `{"token":"x"}`, `"`,
		"token=", "token=x&", "<token>", "<token>x", "://", "http://a:b@", "?token=b", `name="token"` + "\n\n", "\r\n",
	} {
		// The machine may be busy: what is looked for is a different order.
		if took := cost(unit); took > 200*max(plain, 200*time.Millisecond) {
			t.Errorf("64 KiB of %q took %v, and of plain text %v", unit, took, plain)
		} else if testing.Verbose() {
			t.Logf("%-20q %v", unit, took.Round(time.Millisecond))
		}
	}
}
