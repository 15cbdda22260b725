package hpe

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/hpe/csp"
)

// maxProviders bounds the accounts that are kept: those used last. A Secret
// that changes its user leaves an account behind.
const maxProviders = 64

// providers are the clients by account, the one used last at the end, with the
// password that worked last for calls that bring none.
type providers struct {
	make func(csp.Account) *csp.Client

	mu    sync.Mutex
	order []csp.Account
	m     map[csp.Account]*provider
}

type provider struct {
	client   *csp.Client
	password string
}

func newProviders(make_ func(csp.Account) *csp.Client) *providers {
	return &providers{make: make_, m: map[csp.Account]*provider{}}
}

// session returns the session of an account.
func (p *providers) session(a csp.Account, password string) *csp.Session {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.m[a]
	if x == nil {
		x = &provider{client: p.make(a)}
		p.m[a] = x
	} else {
		i := slices.Index(p.order, a)
		p.order = slices.Delete(p.order, i, i+1)
	}
	p.order = append(p.order, a)
	x.password = password
	if len(p.order) > maxProviders {
		delete(p.m, p.order[0])
		p.order = slices.Delete(p.order, 0, 1)
	}
	return x.client.As(password)
}

// known returns the sessions of the accounts used so far, sorted by account.
func (p *providers) known() []*csp.Session {
	p.mu.Lock()
	defer p.mu.Unlock()
	as := slices.SortedFunc(slices.Values(p.order), func(a, b csp.Account) int {
		return compareStrings(a.URL, b.URL, a.Backend, b.Backend, a.User, b.User)
	})
	var out []*csp.Session
	for _, a := range as {
		out = append(out, p.m[a].client.As(p.m[a].password))
	}
	return out
}

// compareStrings compares pairs in turn.
func compareStrings(pairs ...string) int {
	for i := 0; i < len(pairs); i += 2 {
		switch {
		case pairs[i] < pairs[i+1]:
			return -1
		case pairs[i] > pairs[i+1]:
			return 1
		}
	}
	return 0
}

// secret is the request's, or the configured one.
func (b *Backend) secret(ctx context.Context) (map[string]string, error) {
	if s := controller.SecretsOf(ctx); len(s) > 0 {
		return s, nil
	}
	if b.cfg.SecretSource != nil {
		s, err := b.cfg.SecretSource(ctx)
		if err != nil {
			return nil, controller.Errorf(controller.Unavailable, "the configured Secret: %w", err)
		}
		return s, nil
	}
	return b.cfg.Secret, nil
}

// session returns the session that the request's Secret names.
func (b *Backend) session(ctx context.Context) (*csp.Session, error) {
	secret, err := b.secret(ctx)
	if err != nil {
		return nil, err
	}
	if len(secret) == 0 {
		return nil, controller.Errorf(controller.Unauthenticated, "secrets: the request has none and none is configured")
	}
	a, password, err := csp.FromSecret(secret)
	if err != nil {
		var e *csp.ErrSecret
		if errors.As(err, &e) {
			return nil, controller.Errorf(controller.Unauthenticated, "%w", err)
		}
		return nil, err
	}
	return b.providers.session(a, password), nil
}
