package fault

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
)

// TraceField carries the cause of a call over a boundary, as tracing sidecars
// send it to drivers and traced drivers to what they call (W3C Trace Context).
const TraceField = "traceparent"

// ofLab begins the trace ids of a lab: "csilab" in hexadecimal. What follows is
// the number of the call, since a driver that makes spans of its own keeps the
// trace id and replaces the parent id.
const ofLab = "6373696c6162"

// Traceparent names a call by its number in the ledger.
func Traceparent(seq uint64) string { return fmt.Sprintf("00-%s%020x-%016x-01", ofLab, seq, seq) }

// CauseFrom is the number of the call that a traceparent names, or 0.
func CauseFrom(traceparent string) uint64 {
	if len(traceparent) < 36 || traceparent[3:3+len(ofLab)] != ofLab {
		return 0
	}
	n, err := strconv.ParseUint(traceparent[3+len(ofLab):35], 16, 64)
	if err != nil {
		return 0
	}
	return n
}

// CauseIn is the number of the call for which a request of HTTP is made, or 0.
func CauseIn(h http.Header) uint64 { return CauseFrom(h.Get(TraceField)) }

// WithCause says that what is done with a context is done for call seq.
func WithCause(ctx context.Context, seq uint64) context.Context {
	if seq == 0 {
		return ctx
	}
	return context.WithValue(ctx, seqKey{}, seq)
}
