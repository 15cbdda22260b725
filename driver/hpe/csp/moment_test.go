package csp_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csilab/csilab/driver/hpe/csp"
)

// Calls that fail together are sent again one after the other: they share a login, and
// for whom it is made must not be by chance.
func TestCallsOfAMomentGoOnApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const volumes = 5
		var mu sync.Mutex
		at := map[time.Time][]string{}
		failed := map[string]bool{}
		tr := transport(func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			if strings.HasSuffix(r.URL.Path, "/tokens") {
				w.WriteString(`{"session_token":"t"}`)
				return w.Result(), nil
			}
			mu.Lock()
			defer mu.Unlock()
			if !failed[r.URL.Path] {
				failed[r.URL.Path] = true
				return nil, errors.New("the connection is broken")
			}
			now := time.Now()
			if at[now] = append(at[now], r.URL.Path); len(at[now]) > 1 {
				t.Errorf("sent again at one moment: %v", at[now])
			}
			w.WriteString(`{}`)
			return w.Result(), nil
		})
		s := csp.New(csp.Config{Account: csp.Account{URL: "http://csp/containers/v1", Backend: "b", User: "u"}, Transport: tr}).As("secret-word")
		var read sync.WaitGroup
		for _, id := range strings.Split("abcde", "") {
			read.Go(func() {
				if _, err := s.Volume(context.Background(), id); err != nil {
					t.Error(err)
				}
			})
		}
		read.Wait()
		if len(at) != volumes {
			t.Errorf("%d calls of %d", len(at), volumes)
		}
	})
}
