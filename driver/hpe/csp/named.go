package csp

import (
	"context"
	"net/http"
	"net/url"
	"slices"
)

// named finds in a list what has the name that was asked for: a provider may say
// 404 where there is none, or list others.
func named[T any](ctx context.Context, s *Session, path string, q url.Values, is func(T) bool) (found T, ok bool, err error) {
	var all []T
	err = s.do(ctx, call{method: http.MethodGet, path: path, query: q}.again(), &all)
	if StatusOf(err) == http.StatusNotFound {
		return found, false, nil
	}
	if i := slices.IndexFunc(all, is); err == nil && i >= 0 {
		return all[i], true, nil
	}
	return found, false, err
}
