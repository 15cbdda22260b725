package wsapi

import (
	"maps"
	"slices"
)

type pair struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

func (s *Server) listValues(c *call) (reply, error) {
	all, err := s.a.Values(c.vars["name"])
	if err != nil {
		return reply{}, err
	}
	var out []pair
	for _, k := range slices.Sorted(maps.Keys(all)) {
		out = append(out, pair{k, all[k]})
	}
	return reply{body: list(out)}, nil
}

func (s *Server) getValue(c *call) (reply, error) {
	v, err := s.a.Value(c.vars["name"], c.vars["key"])
	if err != nil {
		return reply{}, err
	}
	return reply{body: pair{c.vars["key"], v}}, nil
}

func (s *Server) createValue(c *call) (reply, error) {
	var in struct {
		Key   *string `json:"key"`
		Value *string `json:"value"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if err := required(in.Key != nil, "key"); err != nil {
		return reply{}, err
	}
	if err := required(in.Value != nil, "value"); err != nil {
		return reply{}, err
	}
	if err := s.a.CreateValue(c.vars["name"], *in.Key, *in.Value); err != nil {
		return reply{}, err
	}
	return created("volumes", c.vars["name"], "objectKeyValues", *in.Key), nil
}

func (s *Server) putValue(c *call) (reply, error) {
	var in struct {
		Value *string `json:"value"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if err := required(in.Value != nil, "value"); err != nil {
		return reply{}, err
	}
	return reply{}, s.a.PutValue(c.vars["name"], c.vars["key"], *in.Value)
}

func (s *Server) deleteValue(c *call) (reply, error) {
	return reply{}, s.a.DeleteValue(c.vars["name"], c.vars["key"])
}
