package flow

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/scenarios/object"
	"github.com/csilab/csilab/sim"
)

// size of the volumes of flows, and what they grow to. Arrays have no smaller ones.
const size, bigger = "256Mi", "512Mi"

// medium is how a pod sees a volume.
type medium struct {
	suffix string // of the names of flows
	words  string
	change []func(*corev1.PersistentVolumeClaim)
	dir    string
	rest   string
}

var (
	filesystem = medium{words: "volume with a filesystem", dir: "/", rest: "/a"}
	raw        = medium{suffix: "-block", words: "raw block volume", change: []func(*corev1.PersistentVolumeClaim){object.Block}, dir: "/dev/"}
)

// file is what a pod writes of a claim's volume: a file in it, or the device.
func (m medium) file(claim string) string { return m.dir + claim + m.rest }

func (m medium) claim(name string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	return object.Claim(name, "fast", size, append(change, m.change...)...)
}

// bound creates claims and waits until they have volumes.
func bound(ctx context.Context, l *sim.Lab, claims ...*corev1.PersistentVolumeClaim) error {
	for _, c := range claims {
		if err := l.Create(ctx, c.DeepCopy()); err != nil {
			return err
		}
	}
	for _, c := range claims {
		if _, err := l.Bound(ctx, c.Name); err != nil {
			return err
		}
	}
	return nil
}

// running creates a pod and waits until it runs.
func running(ctx context.Context, l *sim.Lab, p *corev1.Pod) error {
	if err := l.Create(ctx, p.DeepCopy()); err != nil {
		return err
	}
	_, err := l.Running(ctx, p.Name)
	return err
}

// written brings a claim to where a pod on a node has written to it.
func written(ctx context.Context, l *sim.Lab, m medium, c *corev1.PersistentVolumeClaim, pod, node, content string) error {
	return steps(
		func() error { return bound(ctx, l, c) },
		func() error { return running(ctx, l, object.Pod(pod, node, c)) },
		func() error { return l.Write(ctx, pod, m.file(c.Name), content) },
	)
}

// holds starts a pod on a node that reads a claim's volume, and ends it.
func holds(ctx context.Context, l *sim.Lab, m medium, c *corev1.PersistentVolumeClaim, node, content string) error {
	return steps(
		func() error { return running(ctx, l, object.Pod("reader", node, c)) },
		func() error { return l.Expect(ctx, "reader", m.file(c.Name), content) },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "reader") },
	)
}

// usable starts a pod on a new volume, which writes and reads, and deletes both.
func usable(ctx context.Context, l *sim.Lab, m medium, c *corev1.PersistentVolumeClaim) error {
	return steps(
		func() error { return running(ctx, l, object.Pod("user", l.Nodes()[0], c)) },
		func() error { return l.Write(ctx, "user", m.file(c.Name), "of "+c.Name) },
		func() error { return l.Expect(ctx, "user", m.file(c.Name), "of "+c.Name) },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "user") },
		func() error { return l.DeletePVC(ctx, c.Name) },
	)
}

// again does what a person does who asks a driver by hand: it asks until it
// gets an answer. The error is the last one, when ctx ends.
func again(ctx context.Context, l *sim.Lab, ask func(ctx context.Context) error) error {
	patience, pause := time.Minute, 5*time.Second
	if l.Options().Timers != "real" {
		patience, pause = 5*time.Second, 50*time.Millisecond
	}
	for {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			return ask(ctx)
		}()
		if err == nil {
			return nil
		}
		if l.Sleep(ctx, pause) != nil {
			return err
		}
	}
}
