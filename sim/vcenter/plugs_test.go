package vcenter_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
)

// plugs is hardware that notes what is plugged in.
type plugs struct {
	mu  sync.Mutex
	all []string // "<vm uuid> <disk uuid> <image>"
}

func (p *plugs) Attach(_ context.Context, vm, diskUUID, image string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, vm+" "+diskUUID+" "+image)
	return nil
}

func (p *plugs) Detach(_ context.Context, vm, diskUUID string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.all, func(s string) bool { return strings.HasPrefix(s, vm+" "+diskUUID+" ") })
	if i < 0 {
		return errors.New("not plugged in")
	}
	p.all = slices.Delete(p.all, i, i+1)
	return nil
}

func (p *plugs) Resize(context.Context, string, string) error { return nil }

func (p *plugs) list() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.all)
}
