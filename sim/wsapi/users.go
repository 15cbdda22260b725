package wsapi

import (
	"cmp"

	"github.com/csilab/csilab/sim/array"
)

var userRoutes = []route{
	get("users", (*Server).listUsers),
	get("users/{name}", (*Server).getUser),
	get("roles", (*Server).listRoles),
	get("roles/{name}", (*Server).getRole),
}

// userOut shows a user as HPE's PowerShell toolkit prints one; the link comes
// with a single one only.
func userOut(u array.User) map[string]any {
	return map[string]any{"username": u.Name, "privileges": []map[string]any{{"domain": cmp.Or(u.Domain, "all"), "role": u.Role}}}
}

func (s *Server) listUsers(*call) (reply, error) {
	var out []map[string]any
	for _, u := range s.a.Users() {
		out = append(out, userOut(u))
	}
	return reply{body: list(out)}, nil
}

func (s *Server) getUser(c *call) (reply, error) {
	u, err := s.a.User(c.vars["name"])
	if err != nil {
		return reply{}, err
	}
	out := userOut(u)
	out["links"] = c.link("users", u.Name)
	return reply{body: out}, nil
}

// roleOut shows a role. What rights it has in detail is not simulated: the API
// asks whether it may change things.
func roleOut(r array.Role) map[string]any {
	rights := []map[string]string{{"right": "look", "rightDescription": "Show what there is"}}
	text := "May look at everything"
	if r.Writes() {
		rights = append(rights, map[string]string{"right": "change", "rightDescription": "Make, change and remove objects"})
		text = "May look at everything and change it"
	}
	return map[string]any{"role": r, "comments": text, "rightsInfo": rights}
}

func (s *Server) listRoles(*call) (reply, error) {
	var out []map[string]any
	for _, r := range array.Roles() {
		out = append(out, roleOut(r))
	}
	return reply{body: list(out)}, nil
}

func (s *Server) getRole(c *call) (reply, error) {
	for _, r := range array.Roles() {
		if string(r) == c.vars["name"] {
			out := roleOut(r)
			out["links"] = c.link("roles", string(r))
			return reply{body: out}, nil
		}
	}
	return reply{}, refuse(array.NonExistentRole, "name", "role does not exist")
}
