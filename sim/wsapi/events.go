package wsapi

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/csilab/csilab/sim/array"
)

// eventRoutes: the stream of events (eventstream) is not built.
var eventRoutes = []route{
	get("eventlog", (*Server).listEvents),
	get("eventlog/{filter}", (*Server).listEvents),
}

// classes, categories and severities of events, as HPE's PowerShell toolkit has
// them.
const (
	alertClass        = 1
	creationClass     = 2
	removalClass      = 3
	modificationClass = 4
	statusClass       = 5

	lifecycle = 1
	alert     = 2

	majorEvent    = 3
	degradedEvent = 5
	informational = 6
)

// components of events that the toolkit knows; all others are 99 here, unknown.
var components = map[string]int{"vlun": 2, "port": 3, "volume": 4}

// eventOut shows an event. Unverified: its words, and which members it has
// beyond those that clients read.
func eventOut(e array.Event) map[string]any {
	class, category, severity := modificationClass, lifecycle, informational
	switch e.Type {
	case array.Added:
		class = creationClass
	case array.Removed, array.Expired:
		class = removalClass
	case array.Finished:
		class = statusClass
	case array.Failed:
		class, severity = statusClass, majorEvent
	case array.Warning:
		class, category, severity = alertClass, alert, degradedEvent
	}
	component := components[e.Object]
	if component == 0 {
		component = 99
	}
	return map[string]any{"id": strconv.FormatInt(e.Seq, 10), "time": stamp(e.Time), "timeSecs": e.Time.Unix(), "class": class, "category": category,
		"severity": severity, "component": component, "resource": component, "componentName": e.Name, "components": e.Object + ":" + e.Name,
		"type": e.Object + " " + string(e.Type), "description": fmt.Sprintf("%s %s %s", e.Object, e.Name, e.Type)}
}

// listEvents lists the events that are kept, or those of the last minutes
// (minutes:N), oldest first.
func (s *Server) listEvents(c *call) (reply, error) {
	var since time.Time
	if f, ok := c.vars["filter"]; ok {
		n, fits := strings.CutPrefix(f, "minutes:")
		if !fits {
			return reply{}, failed(noResource)
		}
		m, ok := number(n)
		if !ok || m < 1 || m > 1<<20 {
			return reply{}, refuse(array.InvalidInput, "minutes", "invalid input: "+clip(n)+" is no number of minutes")
		}
		since = c.now.Add(-time.Duration(m) * time.Minute)
	}
	var out []map[string]any
	for _, e := range s.a.Events(0) {
		if !e.Time.Before(since) {
			out = append(out, eventOut(e))
		}
	}
	return reply{body: list(out)}, nil
}
