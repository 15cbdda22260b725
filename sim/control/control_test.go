package control_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/control"
	"github.com/csilab/csilab/sim/san"
	"github.com/csilab/csilab/sim/vcenter"
)

func TestControl(t *testing.T) {
	var sources []control.Source
	for i, name := range []string{"vc-1", "vc-2"} {
		v, err := vcenter.New(t.Context(), vcenter.Config{Seed: uint64(i + 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		sources = append(sources, control.Source{Name: name, VCenter: v})
	}
	network, err := san.New(t.Context(), san.Config{Arrays: make([]san.ArrayConfig, 2), Pairs: []san.Pair{{"array1", "array2"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer network.Close()
	token := control.NewToken()
	s := httptest.NewServer(control.Handler(token, sources, network, nil))
	defer s.Close()
	c := control.Client{URL: s.URL, Token: token, HTTP: s.Client()}
	for _, kind := range control.Kinds {
		b, err := c.Get(t.Context(), kind, "")
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		var l control.List[map[string]any]
		if err := json.Unmarshal(b, &l); err != nil || l.APIVersion != control.APIVersion || !strings.HasSuffix(l.Kind, "List") || l.Items == nil {
			t.Errorf("%s: %v, %s", kind, err, b)
		}
		var out strings.Builder
		if err := control.Table(&out, kind, b, time.Now()); err != nil || !strings.HasPrefix(out.String(), map[bool]string{true: "ARRAY ", false: "VCENTER "}[control.OfArrays(kind)]) {
			t.Errorf("%s: %v\n%s", kind, err, out.String())
		}
		if kind == "datastores" && (len(l.Items) != 4 || l.Items[3]["vcenter"] != "vc-2") {
			t.Errorf("datastores: %v", l.Items)
		}
	}
	b, err := c.Get(t.Context(), "datastores", "vc-2")
	if err != nil || strings.Contains(string(b), "vc-1") {
		t.Errorf("of one vCenter: %v, %s", err, b)
	}
	if _, err := c.Get(t.Context(), "datastores", "vc-3"); err == nil || !strings.Contains(err.Error(), "there are vc-1, vc-2") {
		t.Error(err)
	}
	wrong := c
	for _, bad := range []string{"", "x", token[1:], token + "0"} {
		wrong.Token = bad
		if _, err := wrong.Get(t.Context(), "volumes", ""); !errors.Is(err, control.ErrToken) {
			t.Errorf("token %q: %v", bad, err)
		}
	}
	for _, x := range []struct {
		method, path string
		code         int
	}{{"POST", "/v1alpha1/volumes", 405}, {"GET", "/v1alpha1/pods", 404}, {"GET", "/", 404}, {"DELETE", "/v1alpha1/sessions", 405}} {
		req, _ := http.NewRequestWithContext(t.Context(), x.method, s.URL+x.path, nil)
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != x.code {
			t.Errorf("%s %s: %s", x.method, x.path, res.Status)
		}
	}
}
