package wsapi

import (
	"context"
	"crypto/tls"
	"log/slog"
	"testing"
)

func insecure() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }

// quiet is a log on which a panic of a handler fails the test.
func quiet(t *testing.T) *slog.Logger { return slog.New(panics{t}) }

type panics struct{ t *testing.T }

func (p panics) Enabled(context.Context, slog.Level) bool { return true }
func (p panics) WithAttrs([]slog.Attr) slog.Handler       { return p }
func (p panics) WithGroup(string) slog.Handler            { return p }
func (p panics) Handle(_ context.Context, r slog.Record) error {
	p.t.Errorf("logged: %s", r.Message)
	r.Attrs(func(a slog.Attr) bool { p.t.Errorf("%s", a); return true })
	return nil
}
