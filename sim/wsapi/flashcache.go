package wsapi

import (
	"net/http"

	"github.com/csilab/csilab/sim/array"
)

var flashCacheRoutes = []route{
	get("flashcache", (*Server).getFlashCache),
	change(http.MethodPost, "flashcache", (*Server).createFlashCache),
	change(http.MethodDelete, "flashcache", (*Server).deleteFlashCache),
}

// flashPolicy reads who the flash cache is for: 1 on, 2 off.
func flashPolicy(n int64) (*array.FlashPolicy, error) {
	p := array.FlashPolicy(n)
	if p != array.FlashOn && p != array.FlashOff {
		return nil, refuse(array.BadEnum, "flashCachePolicy", "invalid input: allowed are 1 and 2")
	}
	return &p, nil
}

// getFlashCache shows the flash cache. Unverified: its members beyond what its
// clients send.
func (s *Server) getFlashCache(c *call) (reply, error) {
	f, err := s.a.FlashCache()
	if err != nil {
		return reply{}, err
	}
	return reply{body: map[string]any{"sizeGiB": f.SizeGiB, "mode": f.Mode, "state": 1, "usedSizeGiB": f.SizeGiB, "links": c.link("flashcache")}}, nil
}

func (s *Server) createFlashCache(c *call) (reply, error) {
	var in struct {
		SizeGiB  *int64  `json:"sizeGiB"`
		Mode     *int64  `json:"mode"`
		RAIDType *string `json:"RAIDType"`       // of its logical disks, which are not simulated
		NoCheck  *bool   `json:"noCheckSCMSize"` // whether its devices may differ, likewise
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if err := required(in.SizeGiB != nil, "sizeGiB"); err != nil {
		return reply{}, err
	}
	if r := in.RAIDType; r != nil && *r != "R0" && *r != "R1" && *r != "R6" {
		return reply{}, refuse(array.BadEnum, "RAIDType", "invalid input: allowed are R0, R1 and R6")
	}
	mode := array.FlashReal
	if in.Mode != nil {
		if mode = array.FlashCacheMode(*in.Mode); mode != array.FlashReal && mode != array.FlashSimulator {
			return reply{}, refuse(array.BadEnum, "mode", "invalid input: allowed are 1 and 2")
		}
	}
	if _, err := s.a.CreateFlashCache(c.now, array.FlashCache{SizeGiB: *in.SizeGiB, Mode: mode}); err != nil {
		return reply{}, err
	}
	return created("flashcache"), nil
}

func (s *Server) deleteFlashCache(c *call) (reply, error) {
	return reply{}, s.a.DeleteFlashCache(c.now)
}
