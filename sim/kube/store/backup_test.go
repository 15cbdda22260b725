package store_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/store"
)

// A backup brings back what was deleted, with its uid, takes away what was
// made since, undoes changes, and tells those who watch.
func TestBackup(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := store.New(1, nil)
	c := s.Client("test")
	node := func(name, label string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"l": label}}}
	}
	lost, changed, kept := node("lost", "1"), node("changed", "1"), node("kept", "1")
	for _, n := range []*corev1.Node{lost, changed, kept} {
		if err := c.Create(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	uid := lost.UID
	b := s.Save()
	if err := c.Delete(ctx, lost); err != nil {
		t.Fatal(err)
	}
	changed.Labels["l"] = "2"
	if err := c.Update(ctx, changed); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(ctx, node("new", "1")); err != nil {
		t.Fatal(err)
	}
	events := c.Watch(ctx, "Node")
	for range 3 { // what is there
		<-events
	}
	s.Restore(b)
	got := map[string]store.EventType{}
	for range 3 {
		e := <-events
		got[e.Object.GetName()] = e.Type
	}
	if got["new"] != store.Deleted || got["lost"] != store.Added || got["changed"] != store.Modified {
		t.Errorf("watched %v", got)
	}
	n, err := store.Get[corev1.Node](c, "", "lost")
	if err != nil || n.UID != uid {
		t.Errorf("lost: %v, %v; its uid was %s", n, err, uid)
	}
	if n, err := store.Get[corev1.Node](c, "", "changed"); err != nil || n.Labels["l"] != "1" {
		t.Errorf("changed: %v, %v", n, err)
	}
	if _, err := store.Get[corev1.Node](c, "", "new"); err == nil {
		t.Error("new is still there")
	}
	n.Labels["l"] = "3"
	if err := c.Update(ctx, n); err != nil {
		t.Errorf("what was brought back can't be changed: %v", err)
	}
}
