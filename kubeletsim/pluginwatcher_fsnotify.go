package kubeletsim

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"

	"github.com/csilab/csilab/sim/transport"
)

// PluginWatcher watches a real directory for unix sockets, and the directories
// in it, as pkg/kubelet/pluginmanager/pluginwatcher/plugin_watcher.go does:
// names that start with a dot and files that are no sockets are ignored. Paths
// of the node are mapped to this process's by Wall.
type PluginWatcher struct{ Wall transport.Wall }

// Watch implements transport.Watcher. Errors: the directory can't be made or watched.
func (p PluginWatcher) Watch(ctx context.Context, dir string) (<-chan transport.Event, error) {
	real := p.Wall.Map(dir)
	if err := os.MkdirAll(real, 0o755); err != nil {
		return nil, fmt.Errorf("error (re-)creating root %s: %w", dir, err)
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("failed to start plugin fsWatcher, err: %w", err)
	}
	// Watch first, then look: what is made meanwhile is seen twice, not missed.
	found, err := addTree(w, real)
	if err != nil {
		w.Close()
		return nil, err
	}
	out := make(chan transport.Event)
	go func() {
		defer close(out)
		defer w.Close()
		send := func(op transport.Op, file string) bool {
			rel, err := filepath.Rel(real, file)
			if err != nil {
				return true
			}
			select {
			case out <- transport.Event{Op: op, Path: dir + "/" + filepath.ToSlash(rel)}:
				return true
			case <-ctx.Done():
				return false
			}
		}
		for _, f := range found {
			if !send(transport.Created, f) {
				return
			}
		}
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.Errors: // an overflow: kubelet logs it and goes on
			case e, ok := <-w.Events:
				if !ok {
					return
				}
				switch {
				case e.Has(fsnotify.Create):
					for _, f := range created(w, e.Name) {
						if !send(transport.Created, f) {
							return
						}
					}
				case e.Has(fsnotify.Remove), e.Has(fsnotify.Rename):
					if !send(transport.Removed, e.Name) {
						return
					}
				}
			}
		}
	}()
	return out, nil
}

// addTree watches dir and what is below, and lists the sockets there.
func addTree(w *fsnotify.Watcher, dir string) ([]string, error) {
	var found []string
	if err := w.Add(dir); err != nil {
		return nil, fmt.Errorf("failed to watch %s, err: %w", dir, err)
	}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && p == dir:
			return err
		case err != nil, p == dir:
		case d.IsDir():
			return w.Add(p)
		default:
			if isSocket(p) {
				found = append(found, p)
			}
		}
		return nil
	})
	return found, err
}

// created gives the sockets that a new name brings: itself or those in a directory.
func created(w *fsnotify.Watcher, p string) []string {
	fi, err := os.Stat(p)
	if err != nil || strings.HasPrefix(filepath.Base(p), ".") {
		return nil
	}
	if fi.IsDir() {
		found, _ := addTree(w, p)
		return found
	}
	if isSocket(p) {
		return []string{p}
	}
	return nil
}

func isSocket(p string) bool {
	fi, err := os.Stat(p)
	return err == nil && fi.Mode()&os.ModeSocket != 0
}
