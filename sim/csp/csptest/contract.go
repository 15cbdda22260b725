// Package csptest is for tests of what speaks to a storage provider.
package csptest

import (
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/csilab/csilab/fixtures"
)

// Contract finds the operations of fixtures/csp/openapi.yaml. Errors: it is no
// contract.
var Contract = sync.OnceValues(func() (routers.Router, error) {
	l := openapi3.NewLoader()
	doc, err := l.LoadFromData(fixtures.CSPContract)
	if err != nil {
		return nil, err
	}
	if err := doc.Validate(l.Context); err != nil {
		return nil, err
	}
	return legacy.NewRouter(doc)
})
