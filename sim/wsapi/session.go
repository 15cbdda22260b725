package wsapi

import (
	"net/http"

	"github.com/csilab/csilab/sim/array"
)

var sessionRoutes = []route{
	{http.MethodPost, "credentials", (*Server).login, true, true},
	{http.MethodDelete, "credentials/{key}", (*Server).logout, true, false},
}

// versions says what the API is; clients choose by the build what they send.
func (s *Server) versions(*call) (reply, error) {
	v := map[string]int{"major": 1, "minor": 6, "revision": 3, "build": s.cfg.Build}
	if s.family == array.Primera {
		v["minor"], v["revision"] = 8, 1
	}
	return reply{body: v}, nil
}

func (s *Server) login(c *call) (reply, error) {
	var in struct {
		User        *string `json:"user"`
		Password    *string `json:"password"`
		SessionType *int64  `json:"sessionType"` // 1 is regular, 2 cluster: the time that it may idle
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if err := required(in.User != nil, "user"); err != nil {
		return reply{}, err
	}
	if err := required(in.Password != nil, "password"); err != nil {
		return reply{}, err
	}
	o, err := s.a.OpenSession(c.now, *in.User, *in.Password, c.client)
	if err != nil {
		return reply{}, err
	}
	r := created("credentials", o.Key)
	r.body = map[string]any{"key": o.Key}
	return r, nil
}

// logout ends a session: one's own, or with the role super any.
func (s *Server) logout(c *call) (reply, error) {
	if k := c.vars["key"]; k != c.session.Key && c.session.Role != array.Super {
		return reply{}, refuse(array.PermissionDenied, "", texts[array.PermissionDenied])
	}
	return reply{}, s.a.CloseSession(c.vars["key"])
}
