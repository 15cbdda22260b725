package csp

// checkReplication refuses replication that cannot be.
func (s *Server) checkReplication(c *call, cfg config) error {
	if d := cfg["replication_devices"]; d != "" {
		return wrong("replication_devices", d, "replication is not built yet")
	}
	return nil
}

func (s *Server) replicate(*call, string, *record) error { return nil }

func (s *Server) replicateLater(*call, *item, config) error { return nil }

func (s *Server) withdraw(*call, *item) error { return nil }

func (s *Server) publishPeers(*call, *item, export, string) ([]peer, error) { return nil, nil }

func (s *Server) unpublishPeers(*call, *item, string) error { return nil }

func (s *Server) expand(c *call, x *item, mib int64) error { return s.grow(c, x, mib) }
