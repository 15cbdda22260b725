package control

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Table writes a list as Get returned it, with a line for each thing; now is
// what ages are counted from.
func Table(w io.Writer, kind string, list json.RawMessage, now time.Time) error {
	switch kind {
	case "volumes":
		return table(w, list, "VCENTER\tNAME\tID\tTYPE\tMIB\tDATASTORE\tSNAPSHOTS\tNODES\tAGE", func(v Volume) []any {
			return []any{v.VCenter, v.Name, v.ID, v.Type, v.CapacityMB, v.Datastore, v.Snapshots, strings.Join(v.Nodes, ","), age(now, v.Created)}
		})
	case "attachments":
		return table(w, list, "VCENTER\tNODE\tNAME\tVOLUME\tDISK\tSLOT", func(a Attachment) []any {
			return []any{a.VCenter, a.Node, a.Name, a.Volume, a.DiskUUID, fmt.Sprintf("%d:%d", a.Bus, a.Unit)}
		})
	case "tasks":
		return table(w, list, "VCENTER\tID\tOPERATION\tSTATE\tVOLUME\tNODE\tTOOK\tAGE\tERROR", func(t Task) []any {
			took := now.Sub(t.Queued)
			if t.Completed != nil {
				took = t.Completed.Sub(t.Queued)
			}
			state := t.State
			if state == "running" && t.Progress > 0 {
				state = fmt.Sprintf("running %d%%", t.Progress)
			}
			return []any{t.VCenter, t.ID, t.Op, state, t.Volume, t.Node, took.Round(time.Millisecond), age(now, t.Queued), t.Error}
		})
	case "sessions":
		return table(w, list, "VCENTER\tKIND\tUSER\tAGENT\tADDRESS\tCALLS\tRUNNING\tAGE\tIDLE", func(s Session) []any {
			return []any{s.VCenter, s.Kind, s.User, s.Agent, s.Addr, s.Calls, s.Running, age(now, s.LoggedIn), age(now, s.LastActive)}
		})
	case "datastores":
		return table(w, list, "VCENTER\tDATACENTER\tNAME\tTYPE\tCAPACITY MIB\tFREE MIB\tVOLUMES\tHOSTS\tSTATE", func(d Datastore) []any {
			state := d.Maintenance
			if !d.Accessible {
				state = "inaccessible"
			}
			return []any{d.VCenter, d.Datacenter, d.Name, d.Type, d.CapacityBytes >> 20, d.FreeBytes >> 20, d.Volumes, len(d.Hosts), state}
		})
	}
	return CheckKind(kind)
}

func table[T any](w io.Writer, list json.RawMessage, head string, row func(T) []any) error {
	var l List[T]
	if err := json.Unmarshal(list, &l); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, head)
	for _, i := range l.Items {
		for n, c := range row(i) {
			if n > 0 {
				fmt.Fprint(t, "\t")
			}
			s := strings.Join(strings.Fields(fmt.Sprint(c)), " ") // a name may hold anything
			if s == "" {
				s = "-"
			}
			fmt.Fprint(t, s)
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// age is how long ago something was, in seconds below two minutes.
func age(now, then time.Time) string {
	d := max(0, now.Sub(then))
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return fmt.Sprintf("%dh", d/time.Hour)
}
