package wsapi

import (
	"net/http"
	"strings"

	"github.com/csilab/csilab/sim/array"
)

var qosRoutes = []route{
	get("qos", (*Server).listRules),
	get("qos/{target}", (*Server).getRule),
	change(http.MethodPost, "qos", (*Server).createRule),
	change(http.MethodPut, "qos/{target}", (*Server).changeRule),
	change(http.MethodDelete, "qos/{target}", (*Server).deleteRule),
}

func ruleOut(c *call, r array.Rule) map[string]any {
	out := map[string]any{"id": r.ID, "type": 1, "name": r.Set, "priority": r.Priority, "enabled": r.Enabled, "links": c.link("qos", "vvset:"+r.Set)}
	for _, x := range []struct {
		name string
		n    int64
	}{{"bwMinGoalKB", r.BwMinGoalKB}, {"bwMaxLimitKB", r.BwMaxLimitKB}, {"ioMinGoal", r.IOMinGoal}, {"ioMaxLimit", r.IOMaxLimit}, {"latencyGoal", r.LatencyGoal}} {
		if x.n != 0 {
			out[x.name] = x.n
		}
	}
	return out
}

func (s *Server) listRules(c *call) (reply, error) {
	var out []map[string]any
	for _, r := range s.a.Rules() {
		out = append(out, ruleOut(c, r))
	}
	return reply{body: list(out)}, nil
}

// ruleSet is the set that a path names; the rule of all other volumes
// (sys:all_others) is not there.
func ruleSet(c *call) (string, error) {
	set, ok := strings.CutPrefix(c.vars["target"], "vvset:")
	if !ok {
		return "", refuse(array.NonExistentQoS, "name", "QoS rule does not exist")
	}
	return set, nil
}

func (s *Server) getRule(c *call) (reply, error) {
	set, err := ruleSet(c)
	if err != nil {
		return reply{}, err
	}
	r, err := s.a.Rule(set)
	if err != nil {
		return reply{}, err
	}
	return reply{body: ruleOut(c, r)}, nil
}

// goals are what a body says about a rule. Of a member and its …OP there is one
// only: 2 is no limit.
type goals struct {
	Name         *string `json:"name"`
	Type         *int64  `json:"type"`
	BwMinGoalKB  *int64  `json:"bwMinGoalKB"`
	BwMaxLimitKB *int64  `json:"bwMaxLimitKB"`
	IOMinGoal    *int64  `json:"ioMinGoal"`
	IOMaxLimit   *int64  `json:"ioMaxLimit"`
	LatencyGoal  *int64  `json:"latencyGoal"`
	Priority     *int64  `json:"priority"`
	Enable       *bool   `json:"enable"`
	BwMinOP      *int64  `json:"bwMinGoalOP"`
	BwMaxOP      *int64  `json:"bwMaxLimitOP"`
	IOMinOP      *int64  `json:"ioMinGoalOP"`
	IOMaxOP      *int64  `json:"ioMaxLimitOP"`
	LatencyOP    *int64  `json:"latencyGoalOP"`
}

// onto says how the rule is changed.
func (g goals) onto() (func(*array.Rule), error) {
	for _, x := range []struct {
		n, op *int64
		name  string
	}{{g.BwMinGoalKB, g.BwMinOP, "bwMinGoalOP"}, {g.BwMaxLimitKB, g.BwMaxOP, "bwMaxLimitOP"}, {g.IOMinGoal, g.IOMinOP, "ioMinGoalOP"},
		{g.IOMaxLimit, g.IOMaxOP, "ioMaxLimitOP"}, {g.LatencyGoal, g.LatencyOP, "latencyGoalOP"}} {
		switch {
		case x.op == nil:
		case x.n != nil:
			return nil, refuse(array.ParamConflict, x.name, "invalid input: parameters cannot be present at the same time")
		case *x.op == 1: // a goal of zero is none to the core
			return nil, refuse(array.UnsupportedOp, x.name, "unsupported operation")
		case *x.op != 2:
			return nil, refuse(array.BadEnum, x.name, "invalid input: allowed are 1 and 2")
		}
	}
	if g.Priority != nil && (*g.Priority < 1 || *g.Priority > 3) {
		return nil, refuse(array.BadEnum, "priority", "invalid input: allowed are 1 to 3")
	}
	return func(r *array.Rule) {
		for _, x := range []struct {
			n, op *int64
			to    *int64
		}{{g.BwMinGoalKB, g.BwMinOP, &r.BwMinGoalKB}, {g.BwMaxLimitKB, g.BwMaxOP, &r.BwMaxLimitKB}, {g.IOMinGoal, g.IOMinOP, &r.IOMinGoal},
			{g.IOMaxLimit, g.IOMaxOP, &r.IOMaxLimit}, {g.LatencyGoal, g.LatencyOP, &r.LatencyGoal}} {
			if x.n != nil {
				*x.to = *x.n
			}
			if x.op != nil {
				*x.to = 0
			}
		}
		if g.Priority != nil {
			r.Priority = int(*g.Priority)
		}
		if g.Enable != nil {
			r.Enabled = *g.Enable
		}
	}, nil
}

func (s *Server) createRule(c *call) (reply, error) {
	var in goals
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if err := required(in.Name != nil, "name"); err != nil {
		return reply{}, err
	}
	if err := required(in.Type != nil, "type"); err != nil {
		return reply{}, err
	}
	switch *in.Type {
	case 1:
	case 2:
		return reply{}, refuse(array.UnsupportedOp, "type", "unsupported operation")
	default:
		return reply{}, refuse(array.BadEnum, "type", "invalid input: allowed are 1 and 2")
	}
	onto, err := in.onto()
	if err != nil {
		return reply{}, err
	}
	r := array.Rule{Set: *in.Name, Enabled: true}
	onto(&r)
	if _, err := s.a.CreateRule(c.now, r); err != nil {
		return reply{}, err
	}
	return created("qos", "vvset:"+r.Set), nil
}

func (s *Server) changeRule(c *call) (reply, error) {
	set, err := ruleSet(c)
	if err != nil {
		return reply{}, err
	}
	var in goals
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if in.Name != nil || in.Type != nil {
		return reply{}, refuse(array.InvalidInput, "name", "invalid input: name and type stay")
	}
	onto, err := in.onto()
	if err != nil {
		return reply{}, err
	}
	_, err = s.a.ModifyRule(c.now, set, onto)
	return reply{}, err
}

func (s *Server) deleteRule(c *call) (reply, error) {
	set, err := ruleSet(c)
	if err != nil {
		return reply{}, err
	}
	return reply{}, s.a.DeleteRule(c.now, set)
}
