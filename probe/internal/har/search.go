package har

import (
	"encoding/base64"
	"encoding/hex"
	"html"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// maxEscapes is how deep escapes may be nested: a URL in JSON in HTML.
	maxEscapes = 3
	// maxPacked is how deep base64 and hexadecimal digits may be nested.
	maxPacked = 2
	// maxSearched is as much of a secret as is searched for, in bytes: what
	// begins with so much of a secret is taken for it.
	maxSearched = 4 << 10
	// minPrefix is how much of a secret is taken for it where a text ends in
	// the middle of it, or where searching for all of it takes too long.
	minPrefix = 8
)

// finder finds secrets in text, however they are spelled there: each character
// of them as it is, escaped as in a URL, in JSON or another language, or in
// HTML and XML, and escapes of escapes; all of that also in base64 or in
// hexadecimal digits. The time it takes grows as the text does, whatever is in
// it.
type finder struct {
	root    node
	readers [maxPacked + 1]reader
}

// node is a place in the tree of all secrets' beginnings.
type node struct {
	b              byte
	child, sibling *node
	name           string // of the secret that ends here; empty for none
}

func (n *node) next(b byte) *node {
	for c := n.child; c != nil; c = c.sibling {
		if c.b == b {
			return c
		}
	}
	return nil
}

func (f *finder) add(secret, name string) {
	n := &f.root
	for i := range min(len(secret), maxSearched) {
		c := n.next(secret[i])
		if c == nil {
			c = &node{b: secret[i], sibling: n.child}
			n.child = c
		}
		n = c
	}
	if n.name == "" {
		n.name = name
	}
}

// hit is where a secret is.
type hit struct {
	start, end int
	name       string
}

// replace returns a text with the names of secrets in their place.
func (f *finder) replace(s string) string {
	hits := f.find(s, maxPacked)
	if len(hits) == 0 {
		return s
	}
	var b strings.Builder
	at := 0
	for _, h := range hits {
		b.WriteString(s[at:h.start])
		b.WriteString(h.name)
		at = h.end
	}
	b.WriteString(s[at:])
	return b.String()
}

// whole returns the name of the secret that a text is a spelling of, or nothing.
func (f *finder) whole(s string) string {
	if hits := f.find(s, maxPacked); len(hits) == 1 && hits[0].start == 0 && hits[0].end == len(s) {
		return hits[0].name
	}
	return ""
}

// find returns where secrets are, in order and apart.
func (f *finder) find(s string, packed int) []hit {
	if f.root.child == nil || s == "" {
		return nil
	}
	r := &f.readers[packed]
	r.s = s
	r.run++
	m := matcher{reader: r, steps: len(s) + 1<<16}
	var first [256]bool
	for c := f.root.child; c != nil; c = c.sibling {
		first[c.b] = true
	}
	var hits []hit
	for i := 0; i < len(s); {
		if !first[s[i]] && !leads(s[i]) {
			i++
			continue
		}
		m.end = -1
		if len(m.seen) > 1000 { // clearing takes as long as it once was large
			m.seen = nil
		}
		clear(m.seen)
		m.walk(&f.root, i, 0)
		if m.end < 0 {
			i++
			continue
		}
		hits = append(hits, hit{i, m.end, m.name})
		i = m.end
	}
	if packed > 0 {
		hits = append(hits, f.findPacked(r, packed)...)
	}
	slices.SortFunc(hits, func(a, b hit) int { return a.start - b.start })
	out := hits[:0]
	for _, h := range hits {
		if n := len(out) - 1; n >= 0 && h.start < out[n].end {
			out[n].end = max(out[n].end, h.end)
			continue
		}
		out = append(out, h)
	}
	return out
}

// matcher matches the secrets at one place of a text.
type matcher struct {
	*reader
	steps int // that are left for searching in full
	seen  map[state]bool
	end   int // of the longest match so far; negative for none
	name  string
}

type state struct {
	n *node
	i int
}

func (m *matcher) walk(n *node, i, depth int) {
	m.steps--
	switch {
	case n.name != "" && i > m.end:
		m.end, m.name = i, n.name
	case depth >= minPrefix && (i == len(m.s) || m.steps < 0) && i > m.end:
		any := n
		for any.name == "" {
			any = any.child
		}
		m.end, m.name = i, any.name
	}
	if i == len(m.s) || n.child == nil || m.steps < 0 && depth >= minPrefix {
		return
	}
	if !leads(m.s[i]) {
		if c := n.next(m.s[i]); c != nil {
			m.walk(c, i+1, depth+1)
		}
		return
	}
	// Several readings may lead to the same place: that is looked at once.
	if m.seen == nil {
		m.seen = map[state]bool{}
	}
	if m.seen[state{n, i}] {
		return
	}
	m.seen[state{n, i}] = true
	for os, k := m.readings(i, maxEscapes), 0; k < os.n; k++ {
		o := os.o[k]
		if o.text == "+" { // a space, in a form
			if c := n.next(' '); c != nil {
				m.walk(c, o.next, depth+1)
			}
		}
		c := n
		for b := 0; b < len(o.text) && c != nil; b++ {
			c = c.next(o.text[b])
		}
		if c != nil {
			m.walk(c, o.next, depth+len(o.text))
		}
	}
}

// leads reports whether an escape may begin with a byte.
func leads(b byte) bool { return b == '%' || b == '\\' || b == '&' || b == '+' || b == '=' }

// option is one way to read what is at a place: as which text, and up to where.
type option struct {
	text string
	next int
}

// options are the ways to read what is at a place, the most unescaped last. More
// than these are not looked at; each level of escapes adds one at most for each
// kind of escape that the place can be read as.
type options struct {
	n int
	o [4]option
}

func (os *options) add(o option) {
	if os.n < len(os.o) && !slices.Contains(os.o[:os.n], o) {
		os.o[os.n] = o
		os.n++
	}
}

// reader reads a text, and remembers what it has read last: most places are looked
// at several times, and each time there is all that is nested in them.
type reader struct {
	s    string
	run  int // of the text, to tell what is remembered of another one
	last [maxEscapes][256]struct {
		run, i int
		os     options
	}
}

// readings returns the ways to read what is at a place, with escapes nested up to
// a depth.
func (r *reader) readings(i, depth int) (all options) {
	if i >= len(r.s) {
		return all
	}
	if depth == 0 || !leads(r.s[i]) {
		all.add(option{r.s[i : i+1], i + 1})
		return all
	}
	known := &r.last[depth-1][i%256]
	if known.run == r.run && known.i == i && known.os.n > 0 {
		return known.os
	}
	all = r.readings(i, depth-1)
	for k := range all.n {
		lead := all.o[k]
		var o option
		ok := false
		switch lead.text {
		case "%", "=": // of a URL; of quoted-printable
			o, ok = r.hexEscape(lead.next, depth-1)
		case "\\":
			o, ok = r.backslash(lead.next, depth-1)
		case "&":
			o, ok = r.entity(lead.next, depth-1)
		}
		if ok {
			all.add(o)
		}
	}
	known.run, known.i, known.os = r.run, i, all
	return all
}

// char reads one character that is part of an escape: as it is, or escaped
// itself.
func (r *reader) char(i, depth int) (byte, int, bool) {
	if i >= len(r.s) {
		return 0, 0, false
	}
	if depth == 0 || !leads(r.s[i]) {
		return r.s[i], i + 1, true
	}
	os := r.readings(i, depth)
	o := os.o[os.n-1]
	return o.text[0], o.next, len(o.text) == 1
}

func (r *reader) number(i, depth, digits int) (n rune, next int, ok bool) {
	for range digits {
		c, after, ok := r.char(i, depth)
		v := strings.IndexByte("0123456789abcdef", c|0x20)
		if c < 'A' {
			v = strings.IndexByte("0123456789", c)
		}
		if !ok || v < 0 {
			return 0, 0, false
		}
		n, i = n<<4|rune(v), after
	}
	return n, i, true
}

// hexEscape reads the digits that stand for one byte.
func (r *reader) hexEscape(i, depth int) (option, bool) {
	n, next, ok := r.number(i, depth, 2)
	return option{bytesOf[n:][:1], next}, ok
}

// bytesOf has each byte once.
var bytesOf = func() string {
	var b [256]byte
	for i := range b {
		b[i] = byte(i)
	}
	return string(b[:])
}()

// backslash reads what comes after a backslash in JSON, JavaScript, C and so on.
func (r *reader) backslash(i, depth int) (option, bool) {
	c, next, ok := r.char(i, depth)
	if !ok {
		return option{}, false
	}
	switch c {
	case 'x':
		return r.hexEscape(next, depth)
	case 'u', 'U':
		digits := 4
		if c == 'U' {
			digits = 8
		} else if c, after, ok := r.char(next, depth); ok && c == '{' {
			for digits = 1; digits <= 6; digits++ {
				n, end, ok := r.number(after, depth, digits)
				if c, closed, _ := r.char(end, depth); ok && c == '}' {
					return option{string(n), closed}, true
				}
			}
			return option{}, false
		}
		n, next, ok := r.number(next, depth, digits)
		if ok && utf16.IsSurrogate(n) {
			if c, after, ok := r.char(next, depth); ok && c == '\\' {
				if c, after, ok = r.char(after, depth); ok && c == 'u' {
					if low, end, ok := r.number(after, depth, 4); ok && utf16.DecodeRune(n, low) != utf8.RuneError {
						n, next = utf16.DecodeRune(n, low), end
					}
				}
			}
		}
		return option{string(n), next}, ok
	case 'b', 'f', 'n', 'r', 't', 'v', 'a', 'e', '0':
		const from, to = "bfnrtvae0", "\b\f\n\r\t\v\a\x1b\x00"
		return option{to[strings.IndexByte(from, c):][:1], next}, true
	}
	return option{bytesOf[c:][:1], next}, c == '"' || c == '\'' || c == '/' || c == '\\' || c == '`'
}

// entity reads what comes after the & of an entity of HTML or XML.
func (r *reader) entity(i, depth int) (option, bool) {
	text := []byte{'&'}
	for len(text) < 12 {
		c, next, ok := r.char(i, depth)
		if !ok || c != '#' && c != ';' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			break
		}
		text, i = append(text, c), next
		if c == ';' {
			plain := html.UnescapeString(string(text))
			return option{plain, i}, plain != string(text) && plain != ""
		}
	}
	return option{}, false
}

// findPacked returns the runs of base64 and of hexadecimal digits that secrets are
// in. It is not known where in a run something begins, so each place is tried.
func (f *finder) findPacked(r *reader, packed int) (hits []hit) {
	s := r.s
	var run []byte
	var at []int // where each of run is in s
	flush := func(end int) {
		if len(run) >= minPrefix {
			if name := f.unpack(run, packed); name != "" {
				for range 2 {
					if c, next, ok := r.char(end, maxEscapes); ok && c == '=' {
						end = next
					}
				}
				hits = append(hits, hit{at[0], end, name})
			}
		}
		run, at = run[:0], at[:0]
	}
	for i := 0; i < len(s); {
		c, next := s[i], i+1
		if leads(c) && c != '+' && c != '=' {
			if d, after, ok := r.char(i, maxEscapes); ok {
				c, next = d, after
			}
		}
		switch {
		case c >= '0' && c <= '9', c|0x20 >= 'a' && c|0x20 <= 'z', c == '+', c == '/':
		case c == '-':
			c = '+'
		case c == '_':
			c = '/'
		case (c == '\r' || c == '\n') && len(run) >= 60: // lines, as in a mail
			i = next
			continue
		default:
			flush(i)
			i = next
			continue
		}
		run, at = append(run, c), append(at, i)
		i = next
	}
	flush(len(s))
	return hits
}

// unpack returns the name of a secret that is in a run, or nothing.
func (f *finder) unpack(run []byte, packed int) string {
	look := func(plain []byte) string {
		if hits := f.find(string(plain), packed-1); len(hits) > 0 {
			return hits[0].name
		}
		return ""
	}
	buf := make([]byte, len(run))
	for skip := range min(4, len(run)) {
		part := run[skip:]
		if len(part)%4 == 1 {
			part = part[:len(part)-1]
		}
		n, _ := base64.RawStdEncoding.Decode(buf, part)
		if name := look(buf[:n]); name != "" {
			return name
		}
	}
	for i := 0; i < len(run); {
		end := i
		for end < len(run) && (run[end] >= '0' && run[end] <= '9' || run[end]|0x20 >= 'a' && run[end]|0x20 <= 'f') {
			end++
		}
		for skip := range 2 {
			if digits := run[min(i+skip, end):end]; len(digits) >= minPrefix {
				n, _ := hex.Decode(buf, digits[:len(digits)&^1])
				if name := look(buf[:n]); name != "" {
					return name
				}
			}
		}
		i = max(end, i+1)
	}
	return ""
}
