package wsapi

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/csilab/csilab/sim/array"
)

var systemRoutes = []route{
	get("system", (*Server).system),
	change(http.MethodPut, "system", (*Server).changeSystem),
	get("capacity", (*Server).capacity),
	get("wsapiconfiguration", (*Server).configuration),
}

// licenses that clients look for before they use what is under them.
var licenses = []string{"Dynamic Optimization", "Online Copy", "Peer Persistence", "Priority Optimization", "Remote Copy",
	"System Reporter", "Thin Conversion", "Thin Persistence", "Thin Provisioning (102400G)", "Virtual Copy", "Virtual Domains"}

func (s *Server) system(c *call) (reply, error) {
	cfg := s.a.Config()
	model, version := "HPE_3PAR 8400", "3.3.1.215"
	if cfg.Family == array.Primera {
		model, version = "HPE Primera A650", "4.0.0.128"
	}
	nodes := make([]int, cfg.Nodes)
	for i := range nodes {
		nodes[i] = i
	}
	var lic []map[string]any
	for _, l := range licenses {
		lic = append(lic, map[string]any{"name": l})
	}
	space := s.a.Capacity()
	out := map[string]any{
		"id": s.a.System(), "name": cfg.Name, "systemVersion": version, "model": model, "serialNumber": cfg.Serial,
		"totalNodes": cfg.Nodes, "masterNode": 0, "onlineNodes": nodes, "clusterNodes": nodes, "chunkletSizeMiB": 1024,
		"totalCapacityMiB": space.TotalMiB, "allocatedCapacityMiB": space.TotalMiB - space.FreeMiB, "freeCapacityMiB": space.FreeMiB,
		"failedCapacityMiB": 0, "licenseInfo": map[string]any{"licenses": lic}, "timeZone": "UTC", "timeFmt8601": stamp(c.now),
		"readOnly": false, "links": c.link("system"),
	}
	if _, err := s.a.FlashCache(); err == nil { // Unverified: that it is told here
		out["flashCachePolicy"] = s.a.FlashPolicy()
	}
	return reply{body: out}, nil
}

// changeSystem turns the flash cache on or off for all volumes. What else the
// real one can change is not simulated, and refused as unknown.
func (s *Server) changeSystem(c *call) (reply, error) {
	var in struct {
		FlashCache *int64 `json:"flashCachePolicy"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if err := required(in.FlashCache != nil, "flashCachePolicy"); err != nil {
		return reply{}, err
	}
	p, err := flashPolicy(*in.FlashCache)
	if err != nil {
		return reply{}, err
	}
	return reply{}, s.a.SetFlashPolicy(c.now, *p)
}

func (s *Server) capacity(*call) (reply, error) {
	sp := s.a.Capacity()
	all := map[string]any{"totalMiB": sp.TotalMiB, "freeMiB": sp.FreeMiB, "unavailableCapacityMiB": 0, "failedCapacityMiB": 0,
		"allocated": map[string]any{"totalAllocatedMiB": sp.TotalMiB - sp.FreeMiB}}
	return reply{body: map[string]any{"allCapacity": all, "SSDCapacity": all,
		"FCCapacity": map[string]any{"totalMiB": 0, "freeMiB": 0}, "NLCapacity": map[string]any{"totalMiB": 0, "freeMiB": 0}}}, nil
}

func (s *Server) configuration(*call) (reply, error) {
	u, _ := url.Parse(s.face.URL())
	port, _ := strconv.Atoi(u.Port())
	cfg := s.a.Config()
	out := map[string]any{"httpState": "Disabled", "httpsState": "Disabled", "version": "1.6.3", "sessionsInUse": len(s.a.Sessions()),
		"sessionTimeout": int(cfg.SessionIdle.Minutes()), "maxSessions": cfg.MaxSessions}
	if u.Scheme == "https" {
		out["httpsState"], out["httpsPort"] = "Enabled", port
	} else {
		out["httpState"], out["httpPort"] = "Enabled", port
	}
	return reply{body: out}, nil
}
