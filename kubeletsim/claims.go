package kubeletsim

import "sync"

// podsOfClaims says which pods of the node use a claim. It has a lock of its own:
// the store asks it while it tells of a change.
type podsOfClaims struct {
	mu sync.Mutex
	of map[string]map[string]bool // namespace/name of a claim -> uids of pods
}

func (c *podsOfClaims) add(claim, uid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[claim] == nil {
		c.of[claim] = map[string]bool{}
	}
	c.of[claim][uid] = true
}

func (c *podsOfClaims) drop(claim, uid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.of[claim], uid)
	if len(c.of[claim]) == 0 {
		delete(c.of, claim)
	}
}

func (c *podsOfClaims) has(claim string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.of[claim]) > 0
}

// pods are the uids of the pods that use a claim, sorted.
func (c *podsOfClaims) pods(claim string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return sortedKeys(c.of[claim])
}
