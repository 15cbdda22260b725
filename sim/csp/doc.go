// Package csp is a Container Storage Provider for Primera, Alletra 9000 and
// 3PAR: the REST API (base /containers/v1) that HPE's CSI driver calls, over a
// client of the array's own API. Every request passes the interceptor of the
// hop csp; what it says to the array passes the hop wsapi there.
//
// What a provider knows lies on the array: a volume or snapshot has its full id
// and parameters in the comment of its virtual volume (in key/values where it
// is too long for it), a host its uuid in its comment. A provider that is
// started anew has lost its tokens, and nothing else.
//
// The contract is fixtures/csp/openapi.yaml; docs/csp.md tells what is checked
// and where real clients differ from it.
package csp
