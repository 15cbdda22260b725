package wsapi

import (
	"strings"
	"time"

	"github.com/csilab/csilab/sim/array"
)

// reportRoutes are those of the system reporter: {over} is vstime (one object
// or all together, over time) or attime (each object, at one time), {sampling}
// is hires, hourly or daily, with what narrows it behind semicolons.
var reportRoutes = []route{
	get("systemreporter/{over}/{report}/{sampling}", (*Server).report),
}

// samplings are how far two samples are apart.
var samplings = map[string]time.Duration{"hires": 5 * time.Minute, "hourly": time.Hour, "daily": 24 * time.Hour}

// sample is what a report has of one object.
type sample struct {
	name string
	data map[string]any   // the same for all
	mib  map[string]int64 // added up where a report is of all together
}

// reports by their name in the URL. Those that the array has nothing for are
// not supported (501): of disks, CPUs, caches, QoS and remote copy.
var reports = map[string]func(*Server) []sample{
	"cpgspacedata":    (*Server).cpgSpace,
	"volumespacedata": (*Server).volumeSpace,
	"cpgstatistics":   func(s *Server) []sample { return idle(names(s.a.CPGs(), func(g array.CPG) string { return g.Name })) },
	"vlunstatistics": func(s *Server) []sample {
		return idle(names(s.a.VLUNs(), func(x array.VLUN) string { return vlunID(x) }))
	},
	"portstatistics": func(s *Server) []sample {
		return idle(names(s.a.Ports(), func(p array.Port) string { return p.PortPos.String() }))
	},
}

func names[T any](all []T, name func(T) string) (out []string) {
	for _, x := range all {
		out = append(out, name(x))
	}
	return out
}

func (s *Server) cpgSpace() (out []sample) {
	for _, g := range s.a.CPGs() {
		free, _ := s.a.FreeSpace(g.Name)
		out = append(out, sample{name: g.Name, mib: map[string]int64{"usedSpaceMiB": g.UsedMiB(), "freeSpaceMiB": free.FreeMiB, "totalSpaceMiB": free.TotalMiB}})
	}
	return out
}

func (s *Server) volumeSpace() (out []sample) {
	for _, v := range s.a.Volumes() {
		out = append(out, sample{name: v.Name, mib: map[string]int64{"virtualSizeMiB": v.SizeMiB, "usedSpaceMiB": v.WrittenMiB + v.SnapshotMiB}})
	}
	return out
}

// idle are statistics of objects that nothing goes through: what hosts read and
// write is not counted.
func idle(names []string) (out []sample) {
	none := map[string]any{"read": 0.0, "write": 0.0, "total": 0.0}
	for _, n := range names {
		out = append(out, sample{name: n, data: map[string]any{"IO": none, "KBytes": none, "serviceTimeMS": none, "IOSizeKB": none, "queueLength": 0, "busyPct": 0.0}})
	}
	return out
}

// report answers with one sample: how it is now. The real array keeps samples
// of the past. Unverified: the members beyond those that clients read
// (cpgstatistics: OpenStack's driver for Alletra MP; the space ones: what HPE's
// PowerShell toolkit compares by).
func (s *Server) report(c *call) (reply, error) {
	over, sampling, _ := strings.Cut(c.vars["sampling"], ";")
	every, ok := samplings[over]
	if !ok {
		return reply{}, refuse(array.InvalidInput, "sampling", "invalid input: allowed are hires, hourly and daily")
	}
	vs := c.vars["over"] == "vstime"
	if !vs && c.vars["over"] != "attime" {
		return reply{}, refuse(array.InvalidInput, "report", "invalid input: allowed are vstime and attime")
	}
	of, ok := reports[c.vars["report"]]
	if !ok {
		return reply{}, refuse(array.UnsupportedOp, "report", "unsupported operation")
	}
	only := map[string]bool{}
	for _, f := range strings.Split(sampling, ";") {
		key, value, _ := strings.Cut(f, ":")
		switch key {
		case "", "groupby", "summary", "compareby": // one sample of each object has nothing to group or compare
		case "name", "vvName", "portPos":
			for _, n := range strings.Split(value, ",") {
				only[n] = true
			}
		default:
			return reply{}, refuse(array.UnsupportedOp, clip(key), "unsupported operation")
		}
	}
	if _, narrowed := c.query["query"]; narrowed { // by time, and samples are of now only
		return reply{}, refuse(array.UnsupportedOp, "query", "unsupported operation")
	}
	at := c.now.Truncate(every)
	when := map[string]any{"sampleTime": stamp(at), "sampleTimeSec": at.Unix()}
	var out []map[string]any
	sum := map[string]any{}
	for _, x := range of(s) {
		if len(only) > 0 && !only[x.name] {
			continue
		}
		one := map[string]any{"name": x.name}
		for k, v := range x.data {
			one[k], sum[k] = v, v
		}
		for k, n := range x.mib {
			one[k] = n
			before, _ := sum[k].(int64)
			sum[k] = before + n
		}
		out = append(out, one)
	}
	if vs { // all together, each sample with its time
		for k, v := range when {
			sum[k] = v
		}
		return reply{body: list([]map[string]any{sum})}, nil
	}
	body := list(out)
	for k, v := range when {
		body[k] = v
	}
	return reply{body: body}, nil
}
