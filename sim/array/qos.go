package array

import (
	"fmt"
	"time"
)

// Limits of a QoS rule (WSAPI reference of HPE's python client).
const (
	MaxKBs       = 9223372036854775807
	MaxIOs       = 2147483647
	MaxLatencyMs = 50000
)

// Rule is what the volumes of a set shall have together. It is told, not
// enforced: the core sees no I/O. 0 is none.
type Rule struct {
	ID           int64 `json:"id"`
	BwMinGoalKB  int64 `json:"bwMinGoalKB,omitempty"` // per second
	BwMaxLimitKB int64 `json:"bwMaxLimitKB,omitempty"`
	IOMinGoal    int64 `json:"ioMinGoal,omitempty"` // per second
	IOMaxLimit   int64 `json:"ioMaxLimit,omitempty"`
	LatencyGoal  int64 `json:"latencyGoal,omitempty"` // ms
	Priority     int   `json:"priority"`              // 1 low, 2 normal, 3 high
	Enabled      bool  `json:"enabled"`
	// Set is the name of the set of volumes that it is for.
	Set string `json:"set"`
}

func (r Rule) check() error {
	for _, x := range []struct {
		field string
		v     int64
		limit int64
	}{{"bwMinGoalKB", r.BwMinGoalKB, MaxKBs}, {"bwMaxLimitKB", r.BwMaxLimitKB, MaxKBs}, {"ioMinGoal", r.IOMinGoal, MaxIOs},
		{"ioMaxLimit", r.IOMaxLimit, MaxIOs}, {"latencyGoal", r.LatencyGoal, MaxLatencyMs}} {
		if x.v < 0 {
			return &Error{Kind: BelowRange, Field: x.field, Value: fmt.Sprint(x.v), Reason: fmt.Sprintf("allowed are 0 to %d", x.limit)}
		}
		if x.v > x.limit {
			return &Error{Kind: ExceedsRange, Field: x.field, Value: fmt.Sprint(x.v), Reason: fmt.Sprintf("allowed are 0 to %d", x.limit)}
		}
	}
	// Unverified: the code for a goal beyond its limit.
	if r.BwMaxLimitKB > 0 && r.BwMinGoalKB > r.BwMaxLimitKB {
		return &Error{Kind: ExceedsRange, Field: "bwMinGoalKB", Value: fmt.Sprint(r.BwMinGoalKB), Reason: fmt.Sprintf("the limit is %d", r.BwMaxLimitKB)}
	}
	if r.IOMaxLimit > 0 && r.IOMinGoal > r.IOMaxLimit {
		return &Error{Kind: ExceedsRange, Field: "ioMinGoal", Value: fmt.Sprint(r.IOMinGoal), Reason: fmt.Sprintf("the limit is %d", r.IOMaxLimit)}
	}
	if r.Priority < 0 || r.Priority > 3 {
		return &Error{Kind: BadEnum, Field: "priority", Value: fmt.Sprint(r.Priority), Reason: "allowed are 1 to 3"}
	}
	return nil
}

// target finds the set that a rule is for.
func (a *Array) target(name string) (*volumeSet, error) {
	s, ok := a.volumeSets.get(name)
	if !ok {
		return nil, &Error{Kind: QoSTarget, Field: "name", Value: name, Reason: "no such volume set"}
	}
	return s, nil
}

// CreateRule makes the QoS rule of a set. Priority 0 is 2. Errors:
// INV_INPUT_QOS_TARGET_OBJECT, EXISTENT_QOS_RULE, INV_INPUT_BELOW_RANGE,
// INV_INPUT_EXCEEDS_RANGE, INV_INPUT_BAD_ENUM_VALUE.
func (a *Array) CreateRule(now time.Time, r Rule) (Rule, error) {
	s, err := a.target(r.Set)
	if err != nil {
		return Rule{}, err
	}
	if a.rules.has(s) {
		return Rule{}, &Error{Kind: ExistentQoS, Field: "name", Value: r.Set, Reason: "the set has a rule"}
	}
	if err := r.check(); err != nil {
		return Rule{}, err
	}
	if r.Priority == 0 {
		r.Priority = 2
	}
	a.ruleSeq++
	r.ID = a.ruleSeq
	a.rules.put(s, &r)
	a.log(now, Added, "qos", r.Set)
	return r, nil
}

func (a *Array) rule(name string) (*volumeSet, *Rule, error) {
	if s, ok := a.volumeSets.get(name); ok {
		if r, ok := a.rules.get(s); ok {
			return s, r, nil
		}
	}
	return nil, nil, &Error{Kind: NonExistentQoS, Field: "name", Value: name, Reason: "no such rule"}
}

// ModifyRule changes a rule; its id and set stay. Errors: NON_EXISTENT_QOS_RULE
// and those of CreateRule.
func (a *Array) ModifyRule(now time.Time, set string, change func(*Rule)) (Rule, error) {
	s, r, err := a.rule(set)
	if err != nil {
		return Rule{}, err
	}
	n := *r
	change(&n)
	n.ID, n.Set = r.ID, ""
	if n.Priority == 0 {
		n.Priority = r.Priority
	}
	if err := n.check(); err != nil {
		return Rule{}, err
	}
	*r = n
	a.log(now, Changed, "qos", s.Name)
	n.Set = s.Name
	return n, nil
}

// DeleteRule drops the rule of a set. Errors: NON_EXISTENT_QOS_RULE.
func (a *Array) DeleteRule(now time.Time, set string) error {
	s, _, err := a.rule(set)
	if err != nil {
		return err
	}
	a.rules.drop(s)
	a.log(now, Removed, "qos", set)
	return nil
}

// Rule returns the rule of a set. Errors: NON_EXISTENT_QOS_RULE.
func (a *Array) Rule(set string) (Rule, error) {
	s, r, err := a.rule(set)
	if err != nil {
		return Rule{}, err
	}
	o := *r
	o.Set = s.Name
	return o, nil
}

// Rules returns all rules, by age of their sets.
func (a *Array) Rules() []Rule {
	out := []Rule{}
	for s := range a.volumeSets.all() {
		if r, ok := a.rules.get(s); ok {
			o := *r
			o.Set = s.Name
			out = append(out, o)
		}
	}
	return out
}
