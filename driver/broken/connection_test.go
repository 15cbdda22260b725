package broken_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"syscall"
	"testing"

	"github.com/csilab/csilab/driver/broken"
)

func TestBroken(t *testing.T) {
	for _, err := range []error{
		&url.Error{Op: "Post", URL: "http://a/sdk", Err: io.EOF},
		&net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)},
		errors.New("Post \"http://a/sdk\": http: server closed idle connection"),
	} {
		if !broken.Connection(err) {
			t.Errorf("%v is of no broken connection", err)
		}
	}
	for _, err := range []error{nil, errors.New("x509: certificate signed by unknown authority"), &net.DNSError{Err: "no such host", Name: "vc"}, os.ErrDeadlineExceeded} {
		if broken.Connection(err) {
			t.Errorf("%v is of a broken connection", err)
		}
	}
}

// However a server goes away, a client's error is one of a broken connection.
func TestBrokenServer(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/cut" {
			panic(http.ErrAbortHandler)
		}
	}))
	defer srv.Close()
	get := func(path string) error {
		res, err := srv.Client().Post(srv.URL+path, "text/plain", nil)
		if err == nil {
			res.Body.Close()
		}
		return err
	}
	if err := get("/"); err != nil {
		t.Fatal(err)
	}
	if err := get("/cut"); !broken.Connection(err) {
		t.Errorf("cut: %v", err)
	}
	for range 20 { // a kept connection that ends just before its use
		if err := get("/"); err != nil {
			t.Fatal(err)
		}
		srv.CloseClientConnections()
		if err := get("/"); err != nil && !broken.Connection(err) {
			t.Errorf("closed: %v", err)
		}
	}
	srv.Close()
	if err := get("/"); !broken.Connection(err) {
		t.Errorf("gone: %v", err)
	}
}
