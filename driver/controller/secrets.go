package controller

import "context"

type secretsKey struct{}

// WithSecrets returns a context that carries the secrets of a request to the
// backend. They are for the backend's own login and nothing else: no log, no
// error and no context of a volume may hold them.
func WithSecrets(ctx context.Context, secrets map[string]string) context.Context {
	if len(secrets) == 0 {
		return ctx
	}
	return context.WithValue(ctx, secretsKey{}, secrets)
}

// SecretsOf returns the secrets of the request that ctx belongs to, nil when it
// has none.
func SecretsOf(ctx context.Context) map[string]string {
	s, _ := ctx.Value(secretsKey{}).(map[string]string)
	return s
}
