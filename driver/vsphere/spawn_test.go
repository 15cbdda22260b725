package vsphere

import (
	"context"
	"testing"
)

// TestSpawnBesideClose: calls that are under way when the backend closes start
// nothing behind its back. (With a plain WaitGroup the race detector finds an
// Add beside Wait.)
func TestSpawnBesideClose(t *testing.T) {
	for range 50 {
		b := &Backend{}
		b.life, b.cancel = context.WithCancel(context.Background())
		begun := make(chan struct{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			close(begun)
			for range 20 {
				b.spawn(func() {})
			}
		}()
		<-begun
		if err := b.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		b.spawn(func() { t.Error("spawned after Close") })
		<-ended
	}
}
