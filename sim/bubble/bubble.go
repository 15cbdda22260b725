// Package bubble runs labs in virtual time inside an ordinary program: each
// function in a testing/synctest bubble of its own, where time moves on as soon
// as everybody waits.
//
// Bubbles belong to tests, so a program drives package testing: one test that
// never ends, with a subtest for each bubble.
package bubble

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Epoch is when the world in a bubble begins. A bubble's own clock starts in
// 2000, before any certificate is valid.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Runner runs functions in bubbles. It is safe for concurrent use: several
// bubbles run side by side, and know nothing of each other.
type Runner struct{ t *testing.T }

// In returns the Runner of a test.
func In(t *testing.T) *Runner { return &Runner{t} }

var program = sync.OnceValue(func() *Runner {
	if !flag.Parsed() {
		// Package testing reads the flags of go test, and the program's
		// arguments are its own.
		flag.CommandLine = flag.NewFlagSet("", flag.ContinueOnError)
		_ = flag.CommandLine.Parse(nil)
	}
	root := make(chan *testing.T)
	m := testing.MainStart(deps{}, []testing.InternalTest{{Name: "bubbles", F: func(t *testing.T) {
		root <- t
		select {}
	}}}, nil, nil, nil)
	go m.Run()
	return &Runner{<-root}
})

// Program returns the Runner of the program.
func Program() *Runner { return program() }

// Run runs f in a bubble, at Epoch, and returns once all goroutines of the
// bubble have ended. The context that f gets is made inside the bubble, for one
// from outside would stop its clock; it ends soon after ctx does, on the
// virtual clock's next turn. The error is f's, or says what f left behind.
func (r *Runner) Run(ctx context.Context, f func(ctx context.Context) error) (err error) {
	var stop atomic.Pointer[error]
	defer context.AfterFunc(ctx, func() { cause := context.Cause(ctx); stop.Store(&cause) })()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.t.Run("bubble", func(t *testing.T) {
		var id string
		defer func() {
			if p := recover(); p != nil {
				err = errors.Join(err, fmt.Errorf("bubble: %v%s", p, left(id)))
			}
		}()
		synctest.Test(t, func(*testing.T) {
			id = number()
			defer func() {
				if p := recover(); p != nil {
					err = fmt.Errorf("bubble: panic: %v\n%s", p, debug.Stack())
				}
			}()
			inner, cancel := context.WithCancelCause(context.Background())
			defer cancel(nil)
			time.Sleep(time.Until(Epoch))
			go watch(inner, &stop, cancel)
			err = f(inner)
		})
	})
	return err
}

// watch looks from time to time whether the caller has gone.
func watch(ctx context.Context, stop *atomic.Pointer[error], cancel context.CancelCauseFunc) {
	t := time.NewTicker(10 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			if cause := stop.Load(); cause != nil {
				cancel(*cause)
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

var inBubble = regexp.MustCompile(`synctest bubble (\d+)`)

// number is that of the bubble of the caller, as stack traces have it.
func number() string {
	buf := make([]byte, 256)
	m := inBubble.FindSubmatch(buf[:runtime.Stack(buf, false)])
	if m == nil {
		return ""
	}
	return string(m[1])
}

// left are the goroutines that a bubble has left, with where they stand.
func left(id string) string {
	if id == "" {
		return ""
	}
	buf := make([]byte, 4<<20)
	var out strings.Builder
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		head, _, _ := strings.Cut(g, "\n")
		if m := inBubble.FindStringSubmatch(head); m != nil && m[1] == id && out.Len() < 16<<10 {
			out.WriteString("\n" + g)
		}
	}
	return out.String()
}

// deps is what package testing asks of go test: here of nobody.
type deps struct{}

// entry is testing's corpusEntry, which fuzzing alone uses.
type entry = struct {
	Parent     string
	Path       string
	Data       []byte
	Values     []any
	Generation int
	IsSeed     bool
}

var errNoFuzzing = errors.New("bubble: no fuzzing here")

func (deps) ImportPath() string                          { return "" }
func (deps) ModulePath() string                          { return "" }
func (deps) MatchString(string, string) (bool, error)    { return true, nil }
func (deps) SetPanicOnExit0(bool)                        {}
func (deps) StartCPUProfile(io.Writer) error             { return nil }
func (deps) StopCPUProfile()                             {}
func (deps) StartTestLog(io.Writer)                      {}
func (deps) StopTestLog() error                          { return nil }
func (deps) WriteProfileTo(string, io.Writer, int) error { return nil }
func (deps) CoordinateFuzzing(time.Duration, int64, time.Duration, int64, int, []entry, []reflect.Type, string, string) error {
	return errNoFuzzing
}
func (deps) RunFuzzWorker(func(entry) error) error              { return errNoFuzzing }
func (deps) ReadCorpus(string, []reflect.Type) ([]entry, error) { return nil, errNoFuzzing }
func (deps) CheckCorpus([]any, []reflect.Type) error            { return errNoFuzzing }
func (deps) ResetCoverage()                                     {}
func (deps) SnapshotCoverage()                                  {}
func (deps) InitRuntimeCoverage() (string, func(string, string) (string, error), func() float64) {
	return "", nil, nil
}
