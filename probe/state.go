package probe

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/semelhq/semel/probe/evidence"
	"github.com/semelhq/semel/probe/internal/wire"
	"github.com/semelhq/semel/probe/plan"
)

// reader is a state reader of an operation.
type reader struct {
	name    string
	effect  *big.Rat // by how much one effect changes the number
	outside bool
	// counted: before the resource has an id, there is none of it.
	counted bool
	// uncounted: what it sends is not counted as requests.
	uncounted bool
	read      func(ctx context.Context, v *plan.Values, resource string) (reading, error)

	seen bool // the effect of a control was
}

// reading is what a reader read.
type reading struct {
	at     time.Time
	number *big.Rat // nil if err is set
	ids    []string // of what was counted, if that is known
	err    error
	x      *wire.Exchange // of readers that send
	as     plan.PrincipalName
	// distinct counts by the ids that deliveries carry themselves; -1 if one
	// has none.
	distinct int
}

func (a reading) same(b reading) bool {
	return a.err == nil && b.err == nil && a.number.Cmp(b.number) == 0 && slices.Equal(a.ids, b.ids)
}

// evidence returns the reading as it is written down.
func (a reading) evidence(rd *reader) evidence.Reading {
	e := evidence.Reading{Reader: rd.name, At: a.at}
	if a.err != nil {
		e.Err = a.err.Error()
		return e
	}
	if a.number.IsInt() && a.number.Num().IsInt64() {
		e.Count = new(a.number.Num().Int64())
	} else {
		e.Values = map[string]string{"number": text(a.number)}
	}
	if len(a.ids) > 0 {
		if e.Values == nil {
			e.Values = map[string]string{}
		}
		e.Values["ids"] = strings.Join(a.ids, " ")
	}
	return e
}

// text writes a number in decimals.
func text(n *big.Rat) string {
	if n.IsInt() {
		return n.Num().String()
	}
	s := n.FloatString(6)
	return strings.TrimRight(s, "0")
}

// readers makes the readers of an operation.
func (o *operation) makeReaders() {
	for i := range o.op.Readers {
		rd := &o.op.Readers[i]
		effect, _ := new(big.Rat).SetString(string(rd.Effect)) // validated
		made := &reader{
			name: rd.Name, effect: effect, outside: *rd.Outside, uncounted: rd.Command != nil,
			counted: rd.HTTP != nil && (rd.HTTP.Count != nil || rd.HTTP.Lines != "") || rd.Log != nil || rd.Webhook != nil || rd.SMTP != nil || rd.Command != nil && rd.Command.Pattern != "",
		}
		made.read = func(ctx context.Context, v *plan.Values, resource string) (reading, error) {
			q, err := o.r.r.Reading(v, rd, resource)
			if errors.Is(err, plan.ErrNoResource) && made.counted {
				return reading{number: new(big.Rat)}, nil
			}
			if err != nil {
				return reading{}, err
			}
			return o.r.ask(ctx, q)
		}
		o.readers = append(o.readers, made)
	}
	for _, s := range o.r.o.State {
		o.readers = append(o.readers, &reader{
			name: s.Name, effect: new(big.Rat).SetInt64(cmp.Or(s.Effect, 1)), outside: s.Outside, uncounted: true,
			read: func(ctx context.Context, v *plan.Values, resource string) (reading, error) {
				n, err := s.Read(ctx, StateRequest{Operation: o.op.Name, Key: v.Key(), Resource: resource, Variable: v.Variable})
				return reading{number: new(big.Rat).SetInt64(n)}, err
			},
		})
	}
}

// ask reads what a rendered reader asks for.
func (r *runner) ask(ctx context.Context, q *plan.Reading) (reading, error) {
	rd := q.Reader
	switch {
	case rd.HTTP != nil:
		return r.readHTTP(ctx, q)
	case rd.SQL != nil:
		n, err := r.query(ctx, q)
		return reading{number: n}, err
	case rd.Log != nil:
		f, err := os.Open(q.File)
		if errors.Is(err, os.ErrNotExist) {
			return reading{number: new(big.Rat)}, nil // nothing was logged yet
		}
		if err != nil {
			return reading{}, err
		}
		defer f.Close()
		n := 0
		err = eachLine(f, func(line []byte) {
			if q.Pattern.Match(line) {
				n++
			}
		})
		return reading{number: big.NewRat(int64(n), 1)}, err
	case rd.Command != nil:
		out, err := r.command(ctx, q.Argv, rd.Command.Timeout)
		if err != nil {
			return reading{}, err
		}
		if q.Pattern == nil {
			n, err := number(strings.TrimSpace(string(out)))
			return reading{number: n}, err
		}
		n := 0
		err = eachLine(bytes.NewReader(out), func(line []byte) {
			if q.Pattern.Match(line) {
				n++
			}
		})
		return reading{number: big.NewRat(int64(n), 1)}, err
	}
	s := r.sinks[sinkAddr(rd)]
	if s == nil {
		return reading{}, errors.New("the sink is not open")
	}
	n, ids, err := s.count(q.Pattern)
	if err != nil {
		return reading{}, err
	}
	out := reading{number: big.NewRat(int64(n), 1), distinct: -1}
	if len(ids) == n {
		out.ids = slices.Compact(slices.Sorted(slices.Values(ids)))
		out.distinct = len(out.ids)
	}
	return out, nil
}

// query runs the query of a sql reader, read-only where the driver can.
func (r *runner) query(ctx context.Context, q *plan.Reading) (*big.Rat, error) {
	s := q.Reader.SQL
	if r.o.OpenSQL == nil {
		return nil, fmt.Errorf("there is no driver for %s here", s.Driver)
	}
	id := s.Driver + " " + q.DSN
	db := r.dbs[id]
	if db == nil {
		var err error
		if db, err = r.o.OpenSQL(ctx, s.Driver, q.DSN); err != nil {
			return nil, fmt.Errorf("open database: %w", err)
		}
		r.dbs[id] = db
	}
	ctx, cancel := context.WithTimeout(ctx, r.p.Timing.Timeout)
	defer cancel()
	tx, err := db.BeginTx(ctx, readOnly)
	if err != nil {
		if tx, err = db.BeginTx(ctx, nil); err != nil {
			return nil, err
		}
	}
	defer func() { _ = tx.Rollback() }()
	args := make([]any, len(q.Args))
	for i, a := range q.Args {
		args[i] = a
	}
	rows, err := tx.QueryContext(ctx, s.Query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	if !rows.Next() {
		return nil, cmp.Or(rows.Err(), errors.New("the query has no row"))
	}
	var first any
	into := make([]any, len(columns))
	for i := range into {
		into[i] = new(any)
	}
	into[0] = &first
	if err := rows.Scan(into...); err != nil {
		return nil, err
	}
	switch v := first.(type) {
	case nil:
		return new(big.Rat), nil // sum() of nothing
	case []byte:
		return number(string(v))
	case float64:
		return number(strconv.FormatFloat(v, 'f', -1, 64))
	}
	return number(fmt.Sprint(first))
}

const maxOutput = 16 << 20

// command runs a program without a shell and returns its output.
func (r *runner) command(ctx context.Context, argv []string, timeout time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	if c.Dir = r.p.Dir(); c.Dir != "" && strings.ContainsRune(argv[0], filepath.Separator) && !filepath.IsAbs(argv[0]) {
		if abs, err := filepath.Abs(r.r.Path(argv[0])); err == nil {
			c.Path, c.Err = abs, nil
		}
	}
	if ext := strings.ToLower(filepath.Ext(c.Path)); ext == ".bat" || ext == ".cmd" {
		// Windows has a shell run these, whatever the arguments are made of.
		if strings.ContainsAny(strings.Join(argv[1:], ""), `"%!^&|<>()`) {
			return nil, errors.New("the program is a batch file, which a shell runs, and an argument has a character that the shell would interpret")
		}
	}
	c.WaitDelay = time.Second
	var out limited
	c.Stdout = &out
	if err := c.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("the program failed: %w", err)
	}
	if out.over {
		return nil, errors.New("the program writes too much")
	}
	return out.Bytes(), nil
}

// limited keeps the first maxOutput bytes.
type limited struct {
	bytes.Buffer
	over bool
}

func (l *limited) Write(b []byte) (int, error) {
	if keep := maxOutput - l.Len(); len(b) > keep {
		l.over = true
		_, _ = l.Buffer.Write(b[:max(keep, 0)])
		return len(b), nil
	}
	return l.Buffer.Write(b)
}

// maxLine bounds a line of a log; what is longer is cut.
const maxLine = 1 << 20

func eachLine(in io.Reader, f func(line []byte)) error {
	b := bufio.NewReaderSize(in, 64<<10)
	var line []byte
	for {
		part, isPrefix, err := b.ReadLine()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if room := maxLine - len(line); room > 0 {
			line = append(line, part[:min(len(part), room)]...)
		}
		if !isPrefix {
			f(line)
			line = line[:0]
		}
	}
}

var decimal = regexp.MustCompile(`^[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$`)

func number(s string) (*big.Rat, error) {
	if !decimal.MatchString(s) || len(s) > 100 {
		return nil, errors.New("it is not a number")
	}
	n, ok := new(big.Rat).SetString(s)
	if !ok {
		return nil, errors.New("it is not a number")
	}
	return n, nil
}

func decodeJSON(b []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one value")
	}
	return v, nil
}

// lookup finds what a JSON pointer names.
func lookup(v any, p plan.Pointer) (any, bool) {
	for _, part := range parts(p) {
		switch at := v.(type) {
		case map[string]any:
			next, ok := at[part]
			if !ok {
				return nil, false
			}
			v = next
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i < 0 || i >= len(at) {
				return nil, false
			}
			v = at[i]
		default:
			return nil, false
		}
	}
	return v, true
}

// scalar is the text of a JSON value; strings are without quotes.
func scalar(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	}
	b, _ := json.Marshal(v)
	return string(b)
}
