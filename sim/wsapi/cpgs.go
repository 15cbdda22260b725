package wsapi

import (
	"net/http"

	"github.com/csilab/csilab/sim/array"
)

var cpgRoutes = []route{
	get("cpgs", (*Server).listCPGs),
	get("cpgs/{name}", (*Server).getCPG),
	change(http.MethodPost, "cpgs", (*Server).createCPG),
	change(http.MethodPut, "cpgs/{name}", (*Server).changeCPG),
	change(http.MethodDelete, "cpgs/{name}", (*Server).deleteCPG),
	{http.MethodPost, "spacereporter", (*Server).spaceReport, true, false},
}

// layout of logical disks.
type layout struct {
	RAIDType array.RAIDType     `json:"RAIDType,omitempty"`
	HA       array.Availability `json:"HA,omitempty"`
	SetSize  int                `json:"setSize,omitempty"`
}

func cpgOut(c *call, g array.CPG) map[string]any {
	usage := func(mib int64) map[string]int64 {
		return map[string]int64{"totalMiB": mib, "rawTotalMiB": mib, "usedMiB": mib, "rawUsedMiB": mib}
	}
	growth := map[string]any{"incrementMiB": g.GrowthIncrementMiB, "LDLayout": layout{g.RAID, g.HA, g.SetSize}}
	if g.GrowthLimitMiB > 0 {
		growth["limitMiB"] = g.GrowthLimitMiB
	}
	if g.WarningMiB > 0 {
		growth["warningMiB"] = g.WarningMiB
	}
	out := map[string]any{"id": g.ID, "uuid": g.UUID, "name": g.Name, "numTPVVs": g.Volumes, "numFPVVs": 0, "numTDVVs": 0,
		"UsrUsage": usage(g.UserMiB), "SDUsage": usage(g.SnapshotMiB), "SAUsage": usage(0), "SDGrowth": growth, "SAGrowth": map[string]any{"incrementMiB": 8192},
		"state": 1, "failedStates": []int{}, "degradedStates": []int{}, "additionalStates": []int{}, "links": c.link("cpgs", g.Name)}
	if g.Domain != "" {
		out["domain"] = g.Domain
	}
	return out
}

// cpgFull is a CPG with how many of its volumes are of which kind.
func (s *Server) cpgFull(c *call, g array.CPG, kinds map[string]map[array.Provisioning]int) map[string]any {
	out := cpgOut(c, g)
	k := kinds[g.Name]
	out["numFPVVs"], out["numTPVVs"], out["numTDVVs"] = k[array.Full], k[array.Thin]+k[array.Reduce], k[array.Dedup]
	if free, err := s.a.FreeSpace(g.Name); err == nil {
		out["freeSpaceMiB"], out["totalSpaceMiB"] = free.FreeMiB, free.TotalMiB
	}
	return out
}

func (s *Server) kinds() map[string]map[array.Provisioning]int {
	out := map[string]map[array.Provisioning]int{}
	for _, v := range s.a.Volumes() {
		if v.UserCPG != "" {
			if out[v.UserCPG] == nil {
				out[v.UserCPG] = map[array.Provisioning]int{}
			}
			out[v.UserCPG][v.Provisioning]++
		}
	}
	return out
}

func (s *Server) listCPGs(c *call) (reply, error) {
	var out []map[string]any
	kinds := s.kinds()
	for _, g := range s.a.CPGs() {
		out = append(out, s.cpgFull(c, g, kinds))
	}
	return reply{body: list(out)}, nil
}

func (s *Server) getCPG(c *call) (reply, error) {
	g, err := s.a.CPG(c.vars["name"])
	if err != nil {
		return reply{}, err
	}
	return reply{body: s.cpgFull(c, g, s.kinds())}, nil
}

func (s *Server) createCPG(c *call) (reply, error) {
	var in struct {
		Name      *string `json:"name"`
		Domain    *string `json:"domain"`
		Increment *int64  `json:"growthIncrementMiB"`
		Limit     *int64  `json:"growthLimitMiB"`
		Warning   *int64  `json:"usageWarningMiB"`
		Layout    *struct {
			RAIDType *int64 `json:"RAIDType"`
			HA       *int64 `json:"HA"`
			SetSize  *int64 `json:"setSize"`
			Patterns []struct {
				DiskType *int64 `json:"diskType"`
			} `json:"diskPatterns"` // which disks there are is not simulated
		} `json:"LDLayout"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if err := required(in.Name != nil, "name"); err != nil {
		return reply{}, err
	}
	spec := array.CPGSpec{Name: *in.Name, Domain: given(in.Domain), GrowthIncrementMiB: given(in.Increment), GrowthLimitMiB: given(in.Limit), WarningMiB: given(in.Warning)}
	if l := in.Layout; l != nil {
		spec.RAID, spec.HA, spec.SetSize = array.RAIDType(given(l.RAIDType)), array.Availability(given(l.HA)), int(given(l.SetSize))
	}
	if _, err := s.a.CreateCPG(c.now, spec); err != nil {
		return reply{}, err
	}
	return created("cpgs", spec.Name), nil
}

func (s *Server) changeCPG(c *call) (reply, error) {
	var in struct {
		NewName     *string `json:"newName"`
		Increment   *int64  `json:"growthIncrementMiB"`
		Limit       *int64  `json:"growthLimitMiB"`
		Warning     *int64  `json:"usageWarningMiB"`
		RemoveLimit *bool   `json:"rmGrowthLimit"`
		RemoveWarn  *bool   `json:"rmUsageWarning"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	for _, x := range []struct {
		rm   *bool
		n    **int64
		name string
	}{{in.RemoveLimit, &in.Limit, "rmGrowthLimit"}, {in.RemoveWarn, &in.Warning, "rmUsageWarning"}} {
		if given(x.rm) {
			if *x.n != nil {
				return reply{}, refuse(array.ParamConflict, x.name, "invalid input: parameters cannot be present at the same time")
			}
			*x.n = new(int64)
		}
	}
	_, err := s.a.ModifyCPG(c.now, c.vars["name"], array.CPGChange{NewName: in.NewName, GrowthIncrementMiB: in.Increment, GrowthLimitMiB: in.Limit, WarningMiB: in.Warning})
	return reply{}, err
}

func (s *Server) deleteCPG(c *call) (reply, error) {
	return reply{}, s.a.DeleteCPG(c.now, c.vars["name"])
}

// spaceReport says what a CPG could still take. The layout that a client may
// ask about changes nothing: RAID costs no space here.
func (s *Server) spaceReport(c *call) (reply, error) {
	var in struct {
		CPG *string `json:"cpg"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if err := required(in.CPG != nil, "cpg"); err != nil {
		return reply{}, err
	}
	free, err := s.a.FreeSpace(*in.CPG)
	if err != nil {
		return reply{}, err
	}
	return reply{body: map[string]int64{"rawFreeMiB": free.FreeMiB, "usableFreeMiB": free.FreeMiB}}, nil
}
