package control

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
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
	case "arrays":
		return table(w, list, "ARRAY\tFAMILY\tSERIAL\tSTATE\tVVS\tVLUNS\tHOSTS\tSESSIONS\tTOTAL MIB\tFREE MIB\tURL", func(a Array) []any {
			state := "up"
			if a.Down {
				state = "down"
			}
			return []any{a.Array, a.Family, a.Serial, state, a.VVs, a.VLUNs, a.Hosts, a.Sessions, a.TotalMiB, a.FreeMiB, a.URL}
		})
	case "vvs":
		return table(w, list, "ARRAY\tNAME\tID\tPROV\tTYPE\tMIB\tUSED MIB\tCPG\tSTATE\tHOSTS\tWWN\tAGE", func(v VV) []any {
			return []any{v.Array, v.Name, v.ID, v.Provisioning, v.CopyType, v.SizeMiB, v.UsedMiB, v.CPG, v.State, strings.Join(v.Hosts, ","), v.WWN, age(now, v.Created)}
		})
	case "copies":
		return table(w, list, "ARRAY\tNAME\tID\tOF\tMODE\tMIB\tHOSTS\tWWN\tAGE", func(v VV) []any {
			mode := "rw"
			if v.ReadOnly {
				mode = "ro"
			}
			return []any{v.Array, v.Name, v.ID, v.CopyOf, mode, v.SizeMiB, strings.Join(v.Hosts, ","), v.WWN, age(now, v.Created)}
		})
	case "vluns":
		return table(w, list, "ARRAY\tLUN\tVOLUME\tHOST\tPORT\tTYPE\tPATHS\tWWN\tAGE", func(v VLUN) []any {
			return []any{v.Array, v.LUN, v.Volume, v.Host, v.Port, v.Type, v.Paths, v.WWN, age(now, v.Created)}
		})
	case "hosts":
		return table(w, list, "ARRAY\tNAME\tID\tPERSONA\tINITIATORS\tCHAP\tVLUNS\tPATHS", func(h ArrayHost) []any {
			return []any{h.Array, h.Name, h.ID, h.Persona, strings.Join(slices.Concat(h.IQNs, h.WWPNs, h.NQNs), ","), h.CHAP, h.VLUNs, len(h.Ports)}
		})
	case "hostsets", "volumesets":
		return table(w, list, "ARRAY\tNAME\tID\tMEMBERS\tCOMMENT", func(s Set) []any {
			return []any{s.Array, s.Name, s.ID, strings.Join(s.Members, ","), s.Comment}
		})
	case "cpgs":
		return table(w, list, "ARRAY\tNAME\tID\tDOMAIN\tVVS\tUSER MIB\tSNAPSHOT MIB\tFREE MIB\tLIMIT MIB", func(c CPG) []any {
			limit := ""
			if c.LimitMiB > 0 {
				limit = fmt.Sprint(c.LimitMiB)
			}
			return []any{c.Array, c.Name, c.ID, c.Domain, c.VVs, c.UserMiB, c.SnapshotMiB, c.FreeMiB, limit}
		})
	case "shares":
		return table(w, list, "ARRAY\tVOLUME\tMIB\tMODE\tCLIENTS\tPATH", func(s Share) []any {
			mode := "rw"
			if s.ReadOnly {
				mode = "ro"
			}
			return []any{s.Array, s.Volume, s.SizeMiB, mode, strings.Join(s.Clients, ","), s.Path}
		})
	case "ports":
		return table(w, list, "ARRAY\tPORT\tPROTOCOL\tSTATE\tADDRESS\tNAME", func(p ArrayPort) []any {
			return []any{p.Array, p.Port, p.Protocol, p.State, p.Address, p.Name}
		})
	case "rcgroups":
		return table(w, list, "ARRAY\tNAME\tTARGET\tMODE\tROLE\tSTATE\tFAILOVER\tSYNCED\tVOLUMES", func(g RCGroup) []any {
			failover := "manual"
			if g.AutoFailover {
				failover = "auto"
			}
			return []any{g.Array, g.Name, g.Target, g.Mode, g.Role, g.State, failover, fmt.Sprintf("%d/%d", g.Synced, len(g.Volumes)), strings.Join(g.Volumes, ",")}
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
