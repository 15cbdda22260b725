package vcenter_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/vmware/govmomi/find"
	"github.com/vmware/govmomi/vapi/rest"
	"github.com/vmware/govmomi/vapi/tags"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

// tagger logs in at the REST API.
func (r *rig) tagger() *tags.Manager {
	r.t.Helper()
	rc := rest.NewClient(r.Client.Client)
	if err := rc.Login(r.ctx, r.v.URL().User); err != nil {
		r.t.Fatal(err)
	}
	return tags.NewManager(rc)
}

// datastore finds one by name.
func (r *rig) datastoreRef(name string) types.ManagedObjectReference {
	r.t.Helper()
	d, err := find.NewFinder(r.Client.Client).Datastore(r.ctx, r.v.Datacenter()+"/datastore/"+name)
	if err != nil {
		r.t.Fatal(err)
	}
	return d.Reference()
}

func refused(err error, want string) bool { return err != nil && strings.Contains(err.Error(), want) }

func TestCategoriesAndTags(t *testing.T) {
	r := newRig(t, vcenter.Config{})
	m := r.tagger()
	ctx := r.ctx
	cid, err := m.CreateCategory(ctx, &tags.Category{Name: "tier", Description: "how fast", Cardinality: "SINGLE", AssociableTypes: []string{"Datastore"}})
	if err != nil || !strings.HasPrefix(cid, "urn:vmomi:InventoryServiceCategory:") {
		t.Fatal(cid, err)
	}
	if _, err := m.CreateCategory(ctx, &tags.Category{Name: "tier", Cardinality: "SINGLE"}); !refused(err, "com.vmware.vapi.std.errors.already_exists") {
		t.Errorf("category twice: %v", err)
	}
	if _, err := m.CreateCategory(ctx, &tags.Category{Name: "x", Cardinality: "FEW"}); !refused(err, "com.vmware.vapi.std.errors.invalid_argument") {
		t.Errorf("cardinality: %v", err)
	}
	if _, err := m.CreateCategory(ctx, &tags.Category{Name: "x", Cardinality: "SINGLE", CategoryID: "mine"}); !refused(err, "invalid_argument") {
		t.Errorf("id of the caller's: %v", err)
	}
	c, err := m.GetCategory(ctx, "tier")
	if err != nil || c.ID != cid || c.Description != "how fast" || c.Cardinality != "SINGLE" || fmt.Sprint(c.AssociableTypes) != "[Datastore]" {
		t.Errorf("%+v, %v", c, err)
	}
	gold, err := m.CreateTag(ctx, &tags.Tag{Name: "gold", CategoryID: "tier"})
	if err != nil {
		t.Fatal(err)
	}
	silver, err := m.CreateTag(ctx, &tags.Tag{Name: "silver", CategoryID: cid})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.CreateTag(ctx, &tags.Tag{Name: "gold", CategoryID: cid}); !refused(err, "already_exists") {
		t.Errorf("tag twice: %v", err)
	}
	const nope = "urn:vmomi:InventoryServiceTag:31e55277-ca60-482a-899b-232184be224c:GLOBAL"
	if _, err := m.GetTag(ctx, nope); !rest.IsStatusError(err, http.StatusNotFound) {
		t.Errorf("no such tag: %v", err)
	}
	if _, err := m.GetCategory(ctx, "urn:vmomi:InventoryServiceCategory:x:GLOBAL"); !rest.IsStatusError(err, http.StatusNotFound) {
		t.Errorf("no such category: %v", err)
	}
	ds1, ds2, vm := r.datastoreRef("datastore-1"), r.datastoreRef("datastore-2"), r.node("node-1")
	if err := m.AttachTag(ctx, gold, ds1); err != nil {
		t.Fatal(err)
	}
	if err := m.AttachTag(ctx, gold, ds1); err != nil {
		t.Errorf("attached again: %v", err)
	}
	if err := m.AttachTag(ctx, silver, ds1); !refused(err, "invalid_argument") {
		t.Errorf("second tag of a SINGLE category: %v", err)
	}
	if err := m.AttachTag(ctx, gold, vm); !refused(err, "invalid_argument") {
		t.Errorf("type that is not associable: %v", err)
	}
	if err := m.AttachTag(ctx, gold, types.ManagedObjectReference{Type: "Datastore", Value: "nope"}); !rest.IsStatusError(err, http.StatusForbidden) {
		t.Errorf("no such object: %v", err)
	}
	err = m.AttachMultipleTagsToObject(ctx, []string{gold, nope}, ds2)
	if be, ok := err.(tags.BatchErrors); !ok || len(be) != 1 || be[0].Type != "cis.tagging.objectNotFound.error" || be[0].Message != "Tagging object "+nope+" not found" {
		t.Errorf("one of two: %v", err)
	}
	on, err := m.ListAttachedObjects(ctx, "gold")
	if err != nil || len(on) != 2 || on[0].Reference() != ds1 || on[1].Reference() != ds2 {
		t.Errorf("gold is on %v, %v", on, err)
	}
	if ts, err := m.GetAttachedTags(ctx, ds2); err != nil || len(ts) != 1 || ts[0].Name != "gold" {
		t.Errorf("%v, %v", ts, err)
	}
	if got, err := m.GetAttachedTagsOnObjects(ctx, []mo.Reference{ds1, ds2, vm}); err != nil || len(got) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := m.GetAttachedObjectsOnTags(ctx, []string{gold, silver}); err != nil || len(got) != 2 || len(got[0].ObjectIDs) != 2 || len(got[1].ObjectIDs) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	if err := m.DetachMultipleTagsFromObject(ctx, []string{gold}, ds2); err != nil {
		t.Error(err)
	}
	if err := m.AttachTagToMultipleObjects(ctx, silver, []mo.Reference{ds2}); err != nil {
		t.Error(err)
	}
	if err := m.DetachTag(ctx, gold, ds1); err != nil {
		t.Error(err)
	}
	if err := m.DetachTag(ctx, gold, ds1); err != nil {
		t.Errorf("detached again: %v", err)
	}
	if err := m.UpdateTag(ctx, &tags.Tag{ID: gold, Name: "platinum"}); err != nil {
		t.Error(err)
	}
	if err := m.UpdateTag(ctx, &tags.Tag{ID: gold, Name: "silver"}); !refused(err, "already_exists") {
		t.Errorf("rename to a taken name: %v", err)
	}
	if err := m.UpdateCategory(ctx, &tags.Category{ID: cid, AssociableTypes: []string{"Datastore", "VirtualMachine"}, Cardinality: "MULTIPLE"}); err != nil {
		t.Error(err)
	}
	if err := m.UpdateCategory(ctx, &tags.Category{ID: cid, Cardinality: "SINGLE"}); !refused(err, "invalid_argument") {
		t.Errorf("narrower: %v", err)
	}
	if err := m.AttachTag(ctx, "platinum", vm); err != nil {
		t.Error(err)
	}
	ts, err := m.GetTagsForCategory(ctx, "tier")
	if err != nil || len(ts) != 2 {
		t.Errorf("%v, %v", ts, err)
	}
	if tag, err := m.GetTagForCategory(ctx, "silver", "tier"); err != nil || tag.ID != silver {
		t.Errorf("%v, %v", tag, err)
	}
	// What is gone has no tags, and a category goes with its tags.
	if err := r.v.DeleteVM("node-1"); err != nil {
		t.Fatal(err)
	}
	if on, err := m.ListAttachedObjects(ctx, gold); err != nil || len(on) != 0 {
		t.Errorf("after its VM was deleted: %v, %v", on, err)
	}
	if err := m.DeleteTag(ctx, &tags.Tag{ID: gold}); err != nil {
		t.Error(err)
	}
	if err := m.DeleteCategory(ctx, &tags.Category{ID: cid}); err != nil {
		t.Error(err)
	}
	if err := m.DeleteCategory(ctx, &tags.Category{ID: cid}); !rest.IsStatusError(err, http.StatusNotFound) {
		t.Errorf("deleted again: %v", err)
	}
	if all, err := m.ListTags(ctx); err != nil || len(all) != 0 {
		t.Errorf("left: %v, %v", all, err)
	}
}

// What the driver looks for when it prefers datastores.
func TestPreferredDatastores(t *testing.T) {
	r := newRig(t, vcenter.Config{})
	m := r.tagger()
	const category = "cns.vmware.topology-preferred-datastores"
	if _, err := m.GetCategory(r.ctx, category); err == nil || !refused(err, "404") {
		t.Errorf("before: %v", err)
	}
	if err := r.v.Tag("datastore-2", category, "zone-a"); err != nil {
		t.Fatal(err)
	}
	if err := r.v.Tag("datastore-2", category, "zone-b"); err != nil {
		t.Fatal(err)
	}
	list, err := m.ListTagsForCategory(r.ctx, category)
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	on, err := m.GetAttachedObjectsOnTags(r.ctx, list)
	if err != nil || len(on) != 2 || on[0].Tag.Name != "zone-a" || on[0].ObjectIDs[0].Reference() != r.datastoreRef("datastore-2") {
		t.Errorf("%+v, %v", on, err)
	}
	if err := r.v.Untag("datastore-2", category, "zone-a"); err != nil {
		t.Fatal(err)
	}
	if ts, err := m.GetAttachedTags(r.ctx, r.datastoreRef("datastore-2")); err != nil || len(ts) != 1 {
		t.Errorf("%v, %v", ts, err)
	}
	if err := r.v.Untag("datastore-2", category, "zone-z"); err == nil {
		t.Error("no such tag")
	}
	if err := r.v.Tag("nope", category, "zone-a"); err == nil {
		t.Error("no such object")
	}
}

func TestTaggingPrivileges(t *testing.T) {
	v := start(t, vcenter.Config{Nodes: []vcenter.Node{{Name: "node-1", Zone: "a"}}, Users: []vcenter.User{{Name: otherUser, Password: otherPassword, Role: "ReadOnly"}}})
	c, err := loginAs(t, v, otherUser, otherPassword)
	if err != nil {
		t.Fatal(err)
	}
	rc := rest.NewClient(c.Client)
	if err := rc.Login(t.Context(), url.UserPassword(otherUser, otherPassword)); err != nil {
		t.Fatal(err)
	}
	m := tags.NewManager(rc)
	if all, err := m.GetTagsForCategory(t.Context(), "k8s-zone"); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	on, err := m.ListAttachedObjects(t.Context(), "a")
	if err != nil || len(on) != 1 {
		t.Fatal(on, err)
	}
	if _, err := m.CreateCategory(t.Context(), &tags.Category{Name: "x", Cardinality: "SINGLE"}); !rest.IsStatusError(err, http.StatusForbidden) {
		t.Errorf("create: %v", err)
	}
	if err := m.DetachTag(t.Context(), "a", on[0]); !rest.IsStatusError(err, http.StatusForbidden) {
		t.Errorf("detach: %v", err)
	}
	if err := v.GrantRole(otherUser, "NoAccess", "/DC0/host"); err != nil {
		t.Fatal(err)
	}
	if on, err := m.ListAttachedObjects(t.Context(), "a"); err != nil || len(on) != 0 {
		t.Errorf("objects that are hidden: %v, %v", on, err)
	}
	if _, err := m.ListAttachedTags(t.Context(), on[0]); !rest.IsStatusError(err, http.StatusForbidden) {
		t.Errorf("tags of what is hidden: %v", err)
	}
	if err := v.GrantRole(otherUser, "NoAccess", ""); err != nil {
		t.Fatal(err)
	}
	if all, err := m.ListCategories(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("categories: %v, %v", all, err)
	}
}

// The form of /api: bodies and errors without wrapping.
func TestTaggingAPIForm(t *testing.T) {
	r := newRig(t, vcenter.Config{})
	m := r.tagger()
	do := func(method, path string, body any) (int, string) {
		t.Helper()
		b, _ := json.Marshal(body)
		u := r.v.URL()
		u.User = nil
		u.Path, u.RawQuery, _ = strings.Cut(path, "?")
		req, err := http.NewRequestWithContext(r.ctx, method, u.String(), bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("vmware-api-session-id", m.SessionID())
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		out, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(out)
	}
	id := func(code int, body string) string {
		t.Helper()
		var s string
		if err := json.Unmarshal([]byte(body), &s); err != nil || code != http.StatusCreated {
			t.Fatalf("%d %s", code, body)
		}
		return s
	}
	cat := id(do("POST", "/api/cis/tagging/category", map[string]any{"name": "c", "description": "", "cardinality": "MULTIPLE", "associable_types": []string{}}))
	tag := id(do("POST", "/api/cis/tagging/tag", map[string]any{"name": "t", "description": "", "category_id": cat}))
	object := map[string]any{"object_id": map[string]any{"type": "Datastore", "id": r.datastoreRef("datastore-1").Value}}
	for _, x := range []struct {
		method, path string
		body         any
		code         int
		want         string
	}{
		{"GET", "/api/cis/tagging/category/" + cat, nil, 200, `"name":"c"`},
		{"PATCH", "/api/cis/tagging/category/" + cat, map[string]any{"description": "d"}, 204, ""},
		{"GET", "/api/cis/tagging/tag", nil, 200, tag},
		{"POST", "/api/cis/tagging/tag?action=list-tags-for-category", map[string]any{"category_id": cat}, 200, tag},
		{"POST", "/api/cis/tagging/tag-association/" + tag + "?action=attach", object, 204, ""},
		{"POST", "/api/cis/tagging/tag-association?action=list-attached-tags", object, 200, tag},
		{"POST", "/api/cis/tagging/tag-association?action=list-attachable-tags", object, 200, tag},
		{"POST", "/api/cis/tagging/tag-association/" + tag + "?action=list-attached-objects", nil, 200, `"type":"Datastore"`},
		{"POST", "/api/cis/tagging/tag-association/" + tag + "?action=detach-tag-from-multiple-objects", map[string]any{"object_ids": []any{object["object_id"]}}, 200, `"success":true`},
		{"POST", "/api/cis/tagging/category", map[string]any{"name": "c", "description": "", "cardinality": "MULTIPLE", "associable_types": []string{}}, 400, `{"error_type":"ALREADY_EXISTS","messages":[{`},
		{"POST", "/api/cis/tagging/category", "no object", 400, `"INVALID_ARGUMENT"`},
		{"POST", "/api/cis/tagging/tag-association?action=list-attached-tags", map[string]any{}, 400, `"INVALID_ARGUMENT"`},
		{"GET", "/api/cis/tagging/tag/nope", nil, 404, `{"error_type":"NOT_FOUND"`},
		{"GET", "/api/cis/nothing", nil, 404, ``},
		{"POST", "/api/cis/tagging/tag?action=nothing", nil, 404, `OPERATION_NOT_FOUND`},
		{"GET", "/rest/com/vmware/cis/tagging/tag/" + tag, nil, 404, `"com.vmware.vapi.std.errors.not_found"`}, // without id:
		{"GET", "/rest/com/vmware/cis/tagging/tag/id:" + tag, nil, 200, `{"value":{"id":`},
		{"DELETE", "/api/cis/tagging/tag/" + tag, nil, 204, ""},
		{"DELETE", "/api/cis/tagging/category/" + cat, nil, 204, ""},
	} {
		if code, body := do(x.method, x.path, x.body); code != x.code || !strings.Contains(body, x.want) {
			t.Errorf("%s %s: %d %s, want %d %s", x.method, x.path, code, body, x.code, x.want)
		}
	}
	if !slices.Equal(must(m.ListTags(r.ctx)), nil) && len(must(m.ListTags(r.ctx))) > 0 {
		t.Error("tags are left")
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
