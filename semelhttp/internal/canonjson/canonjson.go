// Package canonjson writes JSON documents in one form for all that say the same,
// whole or in parts that JSON pointers select.
package canonjson

import (
	"bufio"
	"bytes"
	"math"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// jsonOptions make jsontext validate a document, drop its white space and
// write each string in the one minimal way. Numbers stay as written. Repeated
// names are found here, by sorting, which needs no table of all names.
var jsonOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true)}

// Document is a JSON document, ready to be written with its members sorted. It
// can be used for one after the other.
//
// jsontext can sort as well, but moves the text of an object once for every
// object around it: a small deeply nested document would take minutes. Here
// every byte is written once, whatever the depth.
type Document struct {
	text    []byte   // without white space, members in their own order
	objects []object // in the order of their opening braces
	members []member // of all objects; those of one are together and sorted

	open    []openContainer
	pending []member // of the open objects
}

// object is an object whose members are looked at: because they are out of
// order, or because a pointer may lead through them.
type object struct {
	start, end uint32 // of the text between the braces
	first, n   uint32 // its members; with n = 0 the text is written as it is
	after      uint32 // index of the first object behind this one
}

type member struct {
	name    uint32 // offset of the quoted name
	colon   uint32
	end     uint32 // of the value
	objects uint32 // index of the first object within the value, if any
}

type openContainer struct {
	object  int32 // index into objects, or -1 for an array
	pending uint32
	deep    bool // no pointer leads through it
}

// Reset gives buffers up that are larger than keep, in bytes.
func (d *Document) Reset(keep int) {
	if cap(d.text) > keep {
		d.text = nil
	}
	if cap(d.objects)+cap(d.members)+cap(d.open)+cap(d.pending) > keep/16 {
		*d = Document{text: d.text}
	}
}

// Parse reads a document, of which s can then be written. It reports false for
// one that is not valid UTF-8 JSON in all its strings, repeats a member name or
// is too deep.
func (d *Document) Parse(body []byte, s *Selection) bool {
	d.text, d.objects, d.members, d.open, d.pending = d.text[:0], d.objects[:0], d.members[:0], d.open[:0], d.pending[:0]
	if len(body) > math.MaxInt32 { // offsets would not fit; the minimal text is never longer than body
		return false
	}
	var err error
	if d.text, err = jsontext.AppendFormat(d.text, body, jsonOptions...); err != nil {
		return false
	}
	// The text is valid and has no white space from here on.
	inName := false
	for i := 0; i < len(d.text); {
		switch d.text[i] {
		case '"':
			end := skipString(d.text, i)
			if inName {
				d.pending = append(d.pending, member{name: uint32(i), colon: uint32(end), objects: uint32(len(d.objects))})
				inName = false
				end++
			}
			i = end
			continue
		case '{':
			d.open = append(d.open, openContainer{object: int32(len(d.objects)), pending: uint32(len(d.pending)), deep: len(d.open) >= s.depth})
			d.objects = append(d.objects, object{start: uint32(i + 1)})
			inName = d.text[i+1] == '"'
		case '[':
			d.open = append(d.open, openContainer{object: -1})
		case ',':
			if top := d.open[len(d.open)-1]; top.object >= 0 {
				d.pending[len(d.pending)-1].end = uint32(i)
				inName = true
			}
		case ']':
			d.open = d.open[:len(d.open)-1]
		case '}':
			if !d.close(i) {
				return false
			}
		}
		i++
	}
	return true
}

// close ends the innermost object at offset i. It reports whether the
// object's names are all different.
func (d *Document) close(i int) bool {
	top := d.open[len(d.open)-1]
	d.open = d.open[:len(d.open)-1]
	o := &d.objects[top.object]
	own := d.pending[top.pending:]
	if len(own) > 0 {
		own[len(own)-1].end = uint32(i)
	}
	sorted := true
	for k := 1; k < len(own); k++ {
		if d.compare(own[k-1], own[k]) >= 0 {
			sorted = false
			break
		}
	}
	if !sorted {
		slices.SortFunc(own, d.compare)
		for k := 1; k < len(own); k++ {
			if d.compare(own[k-1], own[k]) == 0 {
				return false
			}
		}
	}
	o.end = uint32(i)
	o.after = uint32(len(d.objects))
	switch {
	case !sorted || !top.deep:
		o.first, o.n = uint32(len(d.members)), uint32(len(own))
		d.members = append(d.members, own...)
	case int(top.object) == len(d.objects)-1:
		d.objects = d.objects[:top.object] // nothing to do in it: forget it
	}
	d.pending = d.pending[:top.pending]
	return true
}

// compare orders members by the bytes of their names in minimal quotes. Any
// fixed order will do; this one needs no unquoting.
func (d *Document) compare(a, b member) int {
	return bytes.Compare(d.text[a.name:a.colon], d.text[b.name:b.colon])
}

// skipString returns the offset behind the string that starts at offset i.
func skipString(text []byte, i int) int {
	for i++; text[i] != '"'; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// skipValue returns the offset behind the value that starts at offset i.
func skipValue(text []byte, i int) int {
	depth := 0
	for {
		switch text[i] {
		case '"':
			i = skipString(text, i)
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		case ',', ':':
			i++
			continue
		default: // a number or literal
			for i++; i < len(text) && strings.IndexByte(",:]}", text[i]) < 0; i++ {
			}
		}
		if depth == 0 {
			return i
		}
	}
}

// emit writes the values in text[i:end] with their members sorted. k is the
// index of the first object at or behind i.
func (d *Document) emit(w *bufio.Writer, i, end, k uint32) {
	for int(k) < len(d.objects) && d.objects[k].start <= end {
		o := d.objects[k]
		if o.n == 0 {
			k++
			continue
		}
		_, _ = w.Write(d.text[i:o.start])
		for n, m := range d.members[o.first : o.first+o.n] {
			if n > 0 {
				_ = w.WriteByte(',')
			}
			_, _ = w.Write(d.text[m.name : m.colon+1])
			d.emit(w, m.colon+1, m.end, m.objects)
		}
		i, k = o.end, o.after
	}
	_, _ = w.Write(d.text[i:end])
}

// Write writes what s selects of the document. Of what is included it says first,
// in a byte, whether it is there.
func (d *Document) Write(w *bufio.Writer, s *Selection) {
	if s.include == nil {
		d.emitWithout(w, 0, uint32(len(d.text)), 0, s.exclude)
		return
	}
	for _, v := range s.include {
		i, end, k, found := d.find(v.at)
		if !found {
			_ = w.WriteByte(0)
			continue
		}
		_ = w.WriteByte(1)
		d.emitWithout(w, i, end, k, v.exclude)
	}
}

// emitWithout is emit for one value, without what the pointers below node
// lead to. What is written of an array does not say which elements were left
// out; that is the same in every document.
func (d *Document) emitWithout(w *bufio.Writer, i, end, k uint32, node *tree) {
	switch {
	case node != nil && d.text[i] == '{':
		o := d.objects[k]
		_ = w.WriteByte('{')
		first := true
		for _, m := range d.members[o.first : o.first+o.n] {
			child := node.members[string(d.text[m.name:m.colon])]
			if child.isEnd() {
				continue
			}
			if !first {
				_ = w.WriteByte(',')
			}
			first = false
			_, _ = w.Write(d.text[m.name : m.colon+1])
			d.emitWithout(w, m.colon+1, m.end, m.objects, child)
		}
		_ = w.WriteByte('}')
	case node != nil && d.text[i] == '[':
		_ = w.WriteByte('[')
		first := true
		j := i + 1
		for n := 0; d.text[j] != ']'; n++ {
			valueEnd := uint32(skipValue(d.text, int(j)))
			if child := node.elements[n]; !child.isEnd() {
				if !first {
					_ = w.WriteByte(',')
				}
				first = false
				k = d.objectFrom(j, k)
				d.emitWithout(w, j, valueEnd, k, child)
			}
			j = valueEnd
			if d.text[j] == ',' {
				j++
			}
		}
		_ = w.WriteByte(']')
	default:
		d.emit(w, i, end, k)
	}
}

// find returns where the value is that p leads to.
func (d *Document) find(p Pointer) (i, end, k uint32, found bool) {
	end = uint32(len(d.text))
	for _, t := range p {
		switch d.text[i] {
		case '{':
			o := d.objects[k]
			own := d.members[o.first : o.first+o.n]
			n, ok := slices.BinarySearchFunc(own, t.name, func(m member, name []byte) int {
				return bytes.Compare(d.text[m.name:m.colon], name)
			})
			if !ok {
				return 0, 0, 0, false
			}
			i, end, k = own[n].colon+1, own[n].end, own[n].objects
		case '[':
			if t.index < 0 || d.text[i+1] == ']' {
				return 0, 0, 0, false
			}
			i++
			for n := t.index; ; n-- {
				end = uint32(skipValue(d.text, int(i)))
				if n == 0 {
					break
				}
				if d.text[end] == ']' {
					return 0, 0, 0, false
				}
				i = end + 1
			}
			k = d.objectFrom(i, k)
		default:
			return 0, 0, 0, false
		}
	}
	return i, end, k, true
}

// objectFrom returns the index of the first object at or behind offset i,
// given that of one at or before it.
func (d *Document) objectFrom(i, k uint32) uint32 {
	for int(k) < len(d.objects) && d.objects[k].start <= i {
		k = d.objects[k].after
	}
	return k
}
