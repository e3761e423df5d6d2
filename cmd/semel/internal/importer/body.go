package importer

import (
	"bytes"
	"errors"
	"io"
	"net/url"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/semelhq/semel/probe/plan"
)

func (d *drafting) contentType() string {
	for _, f := range d.header {
		if strings.EqualFold(f.Name, "Content-Type") {
			media, _, _ := strings.Cut(f.Value, ";")
			return strings.ToLower(strings.TrimSpace(media))
		}
	}
	return ""
}

// sortBody replaces the credentials in a body.
func (d *drafting) sortBody() {
	if len(d.body) == 0 {
		return
	}
	media := d.contentType()
	if media == "application/x-www-form-urlencoded" {
		parts := strings.Split(string(d.body), "&")
		for i, p := range parts {
			name, value, _ := strings.Cut(p, "=")
			if plain, err := url.QueryUnescape(name); err == nil && plan.Sensitive(plain) && value != "" {
				parts[i] = name + "=" + d.secret(value, "field "+plain, "form field "+label(plain))
			}
		}
		d.body = []byte(d.redact(strings.Join(parts, "&")))
		return
	}
	if out, err := d.sortJSON(d.body); err == nil {
		// A template stands for text. Where it is to be a number, it stands in
		// the text of the JSON.
		for _, h := range d.numbers {
			out = bytes.ReplaceAll(out, []byte(`"`+h+`"`), []byte(h))
		}
		d.body = out
		return
	}
	d.body = []byte(d.redact(string(d.body)))
}

// sortJSON returns the JSON text, compact, without its credentials.
func (d *drafting) sortJSON(text []byte) ([]byte, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(text))
	var out bytes.Buffer
	enc := jsontext.NewEncoder(&out)
	// What is below a name that is sensitive is: {"credentials": {"user": ...}}.
	name, below := "", 0
	for {
		tok, err := dec.ReadToken()
		if errors.Is(err, io.EOF) && out.Len() > 0 {
			return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
		}
		if err != nil {
			return nil, err
		}
		depth := dec.StackDepth()
		if depth > plan.MaxDepth-4 {
			return nil, errors.New("nested too deep")
		}
		parent, n := dec.StackIndex(depth)
		switch kind := tok.Kind(); {
		case kind == '"' && parent == '{' && n%2 == 1:
			name = tok.String()
			if len(name) > 500 || strings.Contains(name, holeOpen) {
				return nil, errors.New("a name that a plan cannot hold")
			}
		case kind == '{' || kind == '[':
			// The name is of what was opened.
			if below == 0 && parentIsNamed(dec) && plan.Sensitive(name) {
				below = depth
			}
		case kind == '}' || kind == ']':
			if depth < below {
				below = 0
			}
		case kind == '"':
			s := tok.String()
			if below > 0 || parent == '{' && plan.Sensitive(name) {
				s = d.secret(s, "body "+name, "member "+label(name))
			} else {
				s = d.redact(s)
			}
			tok = jsontext.String(s)
		case kind == '0' && (below > 0 || parent == '{' && plan.Sensitive(name)):
			env := d.secret(tok.String(), "body "+name, "member "+label(name))
			h := d.hole(strings.Replace(d.template(env), "{{env ", "{{ env ", 1)) // apart from those in strings
			d.numbers = append(d.numbers, h)
			tok = jsontext.String(h)
		}
		if err := enc.WriteToken(tok); err != nil {
			return nil, err
		}
	}
}

// parentIsNamed reports whether what was just opened is the value of a member.
func parentIsNamed(dec *jsontext.Decoder) bool {
	kind, _ := dec.StackIndex(dec.StackDepth() - 1)
	return kind == '{'
}

// firstNumber returns where the first number in a JSON text is, and what it is.
func firstNumber(text []byte) (pointer, number string) {
	dec := jsontext.NewDecoder(bytes.NewReader(text))
	for {
		tok, err := dec.ReadToken()
		if err != nil {
			return "", ""
		}
		if tok.Kind() == '0' {
			return string(dec.StackPointer()), tok.String()
		}
	}
}
