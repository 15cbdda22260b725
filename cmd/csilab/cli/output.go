package cli

import (
	"errors"
	"io"
	"sync"
)

// output is standard output, and remembers that not all of it could be written: a
// report of which a part is missing is none, whatever it says.
type output struct {
	w io.Writer

	mu  sync.Mutex
	err error // the first one
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.err == nil {
			o.err = err
		}
	}
	return n, err
}

// judge is the end of a command that ended with err, when all is written. Its own
// failure goes before that of its output.
func (o *output) judge(err error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return err
	}
	lost := exitf(ExitEnvironment, "standard output: %w", o.err)
	if err == nil || errors.Is(err, o.err) {
		return lost
	}
	return &exitError{codeOf(err), errors.Join(err, lost)}
}
