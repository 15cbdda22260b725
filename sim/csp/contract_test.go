package csp_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"

	"github.com/csilab/csilab/fixtures"
	"github.com/csilab/csilab/sim/csp/csptest"
)

// keeps checks an exchange by the contract. What is refused with 400 need not
// be a request of it, and neither is one that no operation has.
func keeps(t testing.TB, method, path, body string, status int, kind, answer string) {
	t.Helper()
	router, err := csptest.Contract()
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(method, "/containers/v1"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("x-auth-token", "t")
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	to, vars, err := router.FindRoute(req)
	if err != nil {
		if status != 404 && status != 405 {
			t.Errorf("%s %s: no operation of the contract, and answered with %d", method, path, status)
		}
		return
	}
	in := &openapi3filter.RequestValidationInput{Request: req, PathParams: vars, Route: to,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true}}
	if status != 400 {
		if err := openapi3filter.ValidateRequest(context.Background(), in); err != nil {
			t.Errorf("%s %s %s: not by the contract, and answered with %d: %v", method, path, body, status, err)
		}
	}
	out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: status, Header: http.Header{}, Options: in.Options}
	if kind != "" {
		out.Header.Set("Content-Type", kind)
	}
	out.Body = io.NopCloser(strings.NewReader(answer))
	if err := openapi3filter.ValidateResponse(context.Background(), out); err != nil {
		t.Errorf("%s %s %s: the answer is not by the contract: %d %s: %v", method, path, body, status, answer, err)
	}
}

// Each operation of the contract is one of the provider, and the other way
// round.
func TestContractHasAllOperations(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData(fixtures.CSPContract)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	r.login()
	n := 0
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			n++
			code, body, err := r.raw(method, strings.ReplaceAll(path, "{id}", "x"), "{}")
			if err != nil || strings.Contains(body, "no such resource") || code == 405 {
				t.Errorf("%s %s: %d %s %v", method, path, code, body, err)
			}
		}
	}
	if n != 26 {
		t.Errorf("%d operations", n)
	}
}
