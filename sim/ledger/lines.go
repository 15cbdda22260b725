package ledger

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// LineError says which line of a file is wrong, from 1 on.
type LineError struct {
	Line int
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap gives what is wrong.
func (e *LineError) Unwrap() error { return e.Err }

// ErrTruncated is a last line without its end: the file was cut off.
var ErrTruncated = errors.New("the line has no end: the file was cut off")

// MaxLine bounds a line, in bytes: a world of thousands of volumes is one.
const MaxLine = 64 << 20

// Lines calls f with each line of r, without its end. Errors are *LineError:
// f's own, ErrTruncated, or a line that is longer than MaxLine.
func Lines(r io.Reader, f func(line int, b []byte) error) error {
	br := bufio.NewReaderSize(r, 64<<10)
	var buf []byte
	for n := 1; ; {
		part, err := br.ReadSlice('\n')
		buf = append(buf, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			if len(buf) > MaxLine {
				return &LineError{n, fmt.Errorf("has more than %d bytes", MaxLine)}
			}
			continue
		case errors.Is(err, io.EOF):
			if len(buf) > 0 {
				return &LineError{n, ErrTruncated}
			}
			return nil
		case err != nil:
			return &LineError{n, err}
		}
		if err := f(n, bytes.TrimSuffix(buf, []byte("\n"))); err != nil {
			return &LineError{n, err}
		}
		buf = buf[:0]
		n++
	}
}

// Strict decodes one JSON value that has no unknown field and nothing behind it.
func Strict(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("has something behind its JSON value")
	}
	return nil
}

// Validate says what is wrong with an entry that came from outside.
func (e Entry) Validate() error {
	switch {
	case e.Seq == 0:
		return errors.New("seq is 0, allowed are 1 and more")
	case !slices.Contains(Hops(), e.Hop):
		return fmt.Errorf("hop is %q, allowed are %q", e.Hop, Hops())
	case e.Op == "":
		return errors.New("op is empty")
	case !slices.Contains(Outcomes(), e.Outcome):
		return fmt.Errorf("outcome is %q, allowed are %q", e.Outcome, Outcomes())
	case e.Cause >= e.Seq:
		return fmt.Errorf("cause is %d, allowed are 0 to %d: a call begins after what it is made for", e.Cause, e.Seq-1)
	case e.Duration < 0:
		return fmt.Errorf("duration is %d, allowed are 0 and more", e.Duration)
	}
	return nil
}

// WriteJSON writes the kept entries as JSON lines.
func (l *Ledger) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	for _, e := range l.Entries() {
		if err := enc.Encode(e); err != nil {
			return err
		}
	}
	return nil
}

// Read reads entries that WriteJSON or a spill wrote, a line each, and returns
// them in order of sequence. Errors name the line: *LineError.
func Read(r io.Reader) ([]Entry, error) {
	var out []Entry
	seen := map[uint64]int{}
	err := Lines(r, func(n int, b []byte) error {
		var e Entry
		if err := Strict(b, &e); err != nil {
			return err
		}
		if err := e.Validate(); err != nil {
			return err
		}
		if at, ok := seen[e.Seq]; ok {
			return fmt.Errorf("seq is %d, as in line %d", e.Seq, at)
		}
		seen[e.Seq] = n
		out = append(out, e)
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Compare(a.Seq, b.Seq) })
	return out, nil
}
