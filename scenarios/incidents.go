package scenarios

import (
	"fmt"
	"slices"
	"strings"
)

// An incident that a scenario shows is written "ID where": an id of the
// catalogue (V: vSphere, H: HPE, K: Kubernetes) and the public issues, pull
// requests or release notes that tell of it.

// incidentID is the id of an incident.
func incidentID(incident string) string {
	id, _, _ := strings.Cut(incident, " ")
	return id
}

// withIncidents adds the ids of a scenario's incidents to its labels.
func withIncidents(s Scenario) Scenario {
	if len(s.Incidents) == 0 {
		return s
	}
	labels := append(slices.Clone(s.Labels), "incident")
	for _, i := range s.Incidents {
		labels = append(labels, incidentID(i))
	}
	s.Labels = nil
	for _, l := range labels { // in the order given, each once
		if !slices.Contains(s.Labels, l) {
			s.Labels = append(s.Labels, l)
		}
	}
	return s
}

// Command runs the scenario alone, on the first system that it makes sense
// for, or on all.
func (s Scenario) Command() string {
	cmd := fmt.Sprintf("go run ./cmd/csilab run --focus '^%s$'", s.Name)
	if len(s.Backends) == 1 {
		cmd += " --backend " + s.Backends[0]
	}
	return cmd
}

// kinds are the labels of a scenario that are neither ids nor "incident".
func (s Scenario) kinds() (out []string) {
	for _, l := range s.Labels {
		if l != "incident" && !slices.ContainsFunc(s.Incidents, func(i string) bool { return incidentID(i) == l }) {
			out = append(out, l)
		}
	}
	return out
}

// noScenario are the incidents of the catalogue, or sides of them, that have no
// scenario, and why.
var noScenario = []struct{ id, what, why string }{
	{"H19", "a task that the array has forgotten", "the provider asks no task of the array's: it looks at the volume itself, which is what is right after a task is gone"},
	{"H31", "sessions are logged out before the host entry goes", "sessions to an array's ports are all volumes' of the node, and no call tells the node that the controller ends the last export; unverified: what the vendor's node does"},
	{"H34", "the device of an encrypted volume is opened twice", "the driver does not encrypt on the node"},
	{"K19", "the removal of the old registration socket is told after the new one was made", "the watcher tells what happened in its order, as inotify does; `go test ./kubeletsim -run TestSocketRemovedAndMadeAgain` and `driver-registered-again` have the order as it is"},
	{"K55", "the kubelet of the second node is restarted after the first has told the new size", "the real one takes the claim's size for its device's and grows it with the next stage, and so does the simulated one"},
	{"V35", "a full sync sends two pods for one block volume", "the driver has no syncer: it writes no pods and claims into CNS"},
	{"V36", "a full sync unregisters volumes whose PersistentVolumes are missing", "the driver has no syncer; `old-backup-restored` shows that volumes without a PersistentVolume stay"},
	{"V37", "several PersistentVolumes of one volume lose their metadata", "the driver has no syncer; the simulated CNS keeps metadata of each cluster and entity"},
}

// IncidentsMarkdown is docs/incidents.md: the track record.
func IncidentsMarkdown() string {
	type row struct{ id, where, scenario, kinds, command string }
	var rows []row
	ids := map[string]bool{}
	for _, s := range All() {
		for _, i := range s.Incidents {
			id, where, _ := strings.Cut(i, " ")
			ids[id] = true
			rows = append(rows, row{id, where, s.Name, strings.Join(s.kinds(), ", "), s.Command()})
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int { return strings.Compare(a.id, b.id) })
	var b strings.Builder
	b.WriteString(`# Incidents

Made by ` + "`go run ./cmd/csilab list -o incidents`" + `; a test holds this page to it.

Each row is a bug that somebody met and told of in public, and the scenario that shows it: it asserts what is right, and the mutation that it names in [scenarios.md](scenarios.md) makes it go wrong as the incident did. ` + "`make mutants-incidents`" + ` runs all mutations. Ids: V vSphere and CNS, H HPE arrays, K Kubernetes and any driver.

`)
	fmt.Fprintf(&b, "%d incidents.\n\n| id | public issue | kind | scenario | the one command |\n|---|---|---|---|---|\n", len(ids))
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | `%s` |\n", r.id, r.where, r.kinds, r.scenario, r.command)
	}
	b.WriteString("\nThese, or a side of them, have no scenario:\n\n| id | what | why |\n|---|---|---|\n")
	for _, n := range noScenario {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", n.id, n.what, n.why)
	}
	return b.String()
}
