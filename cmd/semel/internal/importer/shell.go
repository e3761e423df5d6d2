package importer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// shellWords splits a command line as bash does, as far as a command that was
// copied from somewhere goes: quotes of all kinds, backslashes, line
// continuations, comments. $NAME and ${NAME} become what variable returns.
// Whatever would run something, redirect or match file names is an error, but
// a pipe ends the line: what comes after it does not change the request.
func shellWords(line string, variable func(name string) string) (words []string, piped bool, err error) {
	s := &shell{rest: line, variable: variable}
	for {
		more, err := s.word()
		if err != nil {
			return nil, false, err
		}
		if !more {
			return s.words, s.piped, nil
		}
		if len(s.words) > 10_000 {
			return nil, false, errors.New("there are too many words")
		}
	}
}

type shell struct {
	rest     string
	variable func(string) string
	words    []string
	piped    bool
}

// word reads one word, and returns false at the end.
func (s *shell) word() (more bool, err error) {
	for {
		s.rest = strings.TrimLeft(s.rest, " \t\r\n")
		if after, ok := s.continued(); ok {
			s.rest = after
			continue
		}
		break
	}
	if s.rest == "" {
		return false, nil
	}
	switch s.rest[0] {
	case '#':
		_, after, _ := strings.Cut(s.rest, "\n")
		s.rest = after
		return true, nil
	case '|':
		if strings.HasPrefix(s.rest, "||") {
			return false, errors.New("there is a second command after ||")
		}
		s.piped = true
		return false, nil
	}
	var b strings.Builder
	for s.rest != "" {
		c := s.rest[0]
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '|':
			s.words = append(s.words, b.String())
			return true, nil
		case c == '\'':
			text, after, ok := strings.Cut(s.rest[1:], "'")
			if !ok {
				return false, errors.New("a ' is not closed")
			}
			b.WriteString(text)
			s.rest = after
		case c == '"':
			err = s.double(&b)
		case strings.HasPrefix(s.rest, "$'"):
			err = s.ansi(&b)
		case c == '$':
			err = s.expand(&b)
		case c == '\\':
			if after, ok := s.continued(); ok {
				s.rest = after
				continue
			}
			if len(s.rest) == 1 {
				return false, errors.New("there is nothing after the last backslash")
			}
			_, n := utf8.DecodeRuneInString(s.rest[1:])
			b.WriteString(s.rest[1 : 1+n])
			s.rest = s.rest[1+n:]
		case strings.IndexByte(";&<>()`", c) >= 0:
			return false, fmt.Errorf("there is a %c outside of quotes; put the URL in quotes, and give one command alone", c)
		case c == '^' && b.Len() == 0 && strings.HasPrefix(s.rest, `^"`):
			return false, errors.New("this was copied for cmd.exe; copy it for bash")
		default:
			b.WriteByte(c)
			s.rest = s.rest[1:]
		}
		if err != nil {
			return false, err
		}
	}
	s.words = append(s.words, b.String())
	return true, nil
}

// continued reports a backslash at the end of a line, and what is after it.
func (s *shell) continued() (after string, ok bool) {
	if after, ok = strings.CutPrefix(s.rest, "\\\n"); ok {
		return after, true
	}
	return strings.CutPrefix(s.rest, "\\\r\n")
}

func (s *shell) double(b *strings.Builder) error {
	s.rest = s.rest[1:]
	for s.rest != "" {
		c := s.rest[0]
		switch {
		case c == '"':
			s.rest = s.rest[1:]
			return nil
		case c == '`':
			return errors.New("a command within the command cannot be run")
		case c == '$':
			if err := s.expand(b); err != nil {
				return err
			}
		case c == '\\' && len(s.rest) > 1 && strings.IndexByte("$`\"\\\n", s.rest[1]) >= 0:
			if s.rest[1] != '\n' {
				b.WriteByte(s.rest[1])
			}
			s.rest = s.rest[2:]
		default:
			b.WriteByte(c)
			s.rest = s.rest[1:]
		}
	}
	return errors.New(`a " is not closed`)
}

// expand reads $NAME or ${NAME}; a $ before anything else is a $.
func (s *shell) expand(b *strings.Builder) error {
	after := s.rest[1:]
	braced := strings.HasPrefix(after, "{")
	if strings.HasPrefix(after, "(") {
		return errors.New("a command within the command cannot be run")
	}
	if braced {
		after = after[1:]
	}
	n := 0
	for n < len(after) && (after[n] == '_' || 'a' <= after[n]|0x20 && after[n]|0x20 <= 'z' || n > 0 && '0' <= after[n] && after[n] <= '9') {
		n++
	}
	name := after[:n]
	after = after[n:]
	if braced {
		rest, ok := strings.CutPrefix(after, "}")
		if !ok || name == "" {
			return errors.New("a ${...} is more than a name")
		}
		after = rest
	}
	if name == "" {
		b.WriteByte('$')
		s.rest = s.rest[1:]
		return nil
	}
	b.WriteString(s.variable(name))
	s.rest = after
	return nil
}

// ansi reads $'...', with the escapes of C.
func (s *shell) ansi(b *strings.Builder) error {
	s.rest = s.rest[2:]
	for s.rest != "" {
		c := s.rest[0]
		if c == '\'' {
			s.rest = s.rest[1:]
			return nil
		}
		if c != '\\' || len(s.rest) == 1 {
			b.WriteByte(c)
			s.rest = s.rest[1:]
			continue
		}
		e := s.rest[1]
		s.rest = s.rest[2:]
		const from, to = `abeEfnrtv`, "\a\b\x1b\x1b\f\n\r\t\v"
		switch {
		case strings.IndexByte(from, e) >= 0:
			b.WriteByte(to[strings.IndexByte(from, e)])
		case strings.IndexByte(`\'"?`, e) >= 0:
			b.WriteByte(e)
		case e == 'x':
			n, _ := s.number(16, 2)
			b.WriteByte(byte(n))
		case e == 'u' || e == 'U':
			digits := 4
			if e == 'U' {
				digits = 8
			}
			r, ok := s.number(16, digits)
			// Browsers write what is beyond the first plane as two halves.
			if 0xd800 <= r && r < 0xdc00 && strings.HasPrefix(s.rest, `\u`) {
				saved := s.rest
				s.rest = s.rest[2:]
				if low, ok := s.number(16, 4); ok && 0xdc00 <= low && low < 0xe000 {
					r = (r-0xd800)<<10 + (low - 0xdc00) + 0x10000
				} else {
					s.rest = saved
				}
			}
			if !ok {
				return errors.New(`a \u in $'...' has no number`)
			}
			b.WriteRune(rune(min(r, utf8.MaxRune+1)))
		case '0' <= e && e <= '7':
			s.rest = string(e) + s.rest
			n, _ := s.number(8, 3)
			b.WriteByte(byte(n))
		case e == 'c':
			return errors.New(`a \c in $'...' is not supported`)
		default:
			b.WriteByte('\\')
			b.WriteByte(e)
		}
	}
	return errors.New("a $' is not closed")
}

// number reads up to so many digits.
func (s *shell) number(base, digits int) (uint64, bool) {
	n := 0
	for n < len(s.rest) && n < digits {
		if _, err := strconv.ParseUint(s.rest[n:n+1], base, 8); err != nil {
			break
		}
		n++
	}
	v, err := strconv.ParseUint(s.rest[:n], base, 64)
	s.rest = s.rest[n:]
	return v, err == nil
}
