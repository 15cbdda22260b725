package sim

import "fmt"

// StopComponent kills a component and keeps it down until StartComponent: a
// kubelet that is cut off from all and whose pods run on, a registrar whose
// pod is gone, a controller with no leader. Names are those of Starts.
func (l *Lab) StopComponent(name string) error {
	l.mu.Lock()
	c := l.components[name]
	l.mu.Unlock()
	if c == nil {
		return fmt.Errorf("no component %q", name)
	}
	c.stop()
	return nil
}

// StartComponent starts what StopComponent has stopped.
func (l *Lab) StartComponent(name string) error {
	l.mu.Lock()
	c := l.components[name]
	l.mu.Unlock()
	if c == nil {
		return fmt.Errorf("no component %q", name)
	}
	c.start()
	return nil
}

// Remember takes Forget back: a node that was cut off is reached again, and
// what is left on it counts.
func (l *Lab) Remember(node string) {
	n := l.node(node)
	n.mu.Lock()
	n.forgotten = false
	n.mu.Unlock()
}
