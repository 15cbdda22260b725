package vcenter

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/tags"
)

// Names of the tag categories, as upstream's topology documentation has them.
const (
	categoryZone   = "k8s-zone"
	categoryRegion = "k8s-region"
)

// tagging is the tagging service of the REST API, in both its forms:
// /rest/com/vmware/cis/tagging, whose bodies are wrapped, and
// /api/cis/tagging.
type tagging struct {
	v *VCenter

	mu   sync.Mutex // a leaf: nothing is called with it held
	core *tags.Core
	nth  int
}

func newTagging(v *VCenter) *tagging {
	t := &tagging{v: v, core: tags.New()}
	v.vim.AddHandler(t)
	return t
}

// Prefixes of the two forms.
const (
	taggingREST = "/rest/com/vmware/cis/tagging/"
	taggingAPI  = "/api/cis/tagging/"
)

func isTaggingPath(p string) bool {
	return strings.HasPrefix(p, taggingREST) || strings.HasPrefix(p, taggingAPI)
}

func categoryURN(id string) string { return "urn:vmomi:InventoryServiceCategory:" + id + ":GLOBAL" }
func tagURN(id string) string      { return "urn:vmomi:InventoryServiceTag:" + id + ":GLOBAL" }

// Reference implements simulator.RegisterObject: it names the listener.
func (t *tagging) Reference() ref { return ref{Type: "TaggingService", Value: "csilab"} }

// PutObject implements simulator.RegisterObject.
func (t *tagging) PutObject(*simulator.Context, mo.Reference) {}

// UpdateObject implements simulator.RegisterObject.
func (t *tagging) UpdateObject(*simulator.Context, mo.Reference, []types.PropertyChange) {}

// RemoveObject implements simulator.RegisterObject: tags and permissions go
// with the object.
func (t *tagging) RemoveObject(_ *simulator.Context, r ref) {
	if r.Type == "Task" {
		return // has neither, and there are many
	}
	t.mu.Lock()
	t.core.Forget(tags.Object{Type: r.Type, ID: r.Value})
	t.mu.Unlock()
	t.v.access.mu.Lock()
	t.v.access.core.Forget(r.String())
	t.v.access.mu.Unlock()
}

// attach attaches a tag, by names, and makes it and its category where they
// are missing.
func (t *tagging) attach(category, name string, cardinality tags.Cardinality, to ref) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.core.Categories(), func(c tags.Category) bool { return c.Name == category })
	cid := categoryURN(uuidOf(t.v.cfg.Seed, "category", category))
	if i >= 0 {
		cid = t.core.Categories()[i].ID
	} else if err := t.core.AddCategory(tags.Category{ID: cid, Name: category, Cardinality: cardinality}); err != nil {
		return err
	}
	tag, ok := t.core.Find(category, name)
	if !ok {
		tag = tags.Tag{ID: tagURN(uuidOf(t.v.cfg.Seed, "tag", category+"/"+name)), Category: cid, Name: name}
		if err := t.core.AddTag(tag); err != nil {
			return err
		}
	}
	return t.core.Attach(tag.ID, tags.Object{Type: to.Type, ID: to.Value})
}

// has says whether an object has a tag, by names.
func (t *tagging) has(o ref, category, name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.core.Has(tags.Object{Type: o.Type, ID: o.Value}, category, name)
}

// Tag attaches a tag to an object; see GrantRole for objects. Category (of
// cardinality MULTIPLE) and tag are made where they are missing.
func (v *VCenter) Tag(object, category, name string) error {
	o, err := v.object(object)
	if err != nil {
		return err
	}
	return wrap(v.tagging.attach(category, name, tags.Multiple, o))
}

// Untag takes a tag off an object. One that isn't there is no error.
func (v *VCenter) Untag(object, category, name string) error {
	o, err := v.object(object)
	if err != nil {
		return err
	}
	v.tagging.mu.Lock()
	defer v.tagging.mu.Unlock()
	tag, ok := v.tagging.core.Find(category, name)
	if !ok {
		return fmt.Errorf("vcenter: no tag %q in a category %q", name, category)
	}
	return wrap(v.tagging.core.Detach(tag.ID, tags.Object{Type: o.Type, ID: o.Value}))
}

// tagZones attaches the tags of zones and regions to the datacenters, clusters
// and hosts that have them.
func (t *tagging) tagZones() error {
	both := func(zone, region string, to ref) error {
		if zone != "" {
			if err := t.attach(categoryZone, zone, tags.Single, to); err != nil {
				return err
			}
		}
		if region != "" {
			return t.attach(categoryRegion, region, tags.Single, to)
		}
		return nil
	}
	for _, c := range t.v.inv.centers {
		if err := both(c.Zone, c.Region, c.obj.Self); err != nil {
			return err
		}
	}
	for _, z := range t.v.inv.zones {
		if err := both(z.Zone, z.Region, z.cluster.Self); err != nil {
			return err
		}
		for i, h := range z.Hosts {
			if err := both(h.Zone, h.Region, z.hosts[i].Self); err != nil {
				return err
			}
		}
	}
	return nil
}

// tagCall is one request to the tagging service.
type tagCall struct {
	t    *tagging
	api  bool
	who  principal
	body []byte
	id   string // of the path; "" where it has none
}

// objectID is a reference to an object as the API writes it.
type objectID struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

func (o objectID) object() tags.Object { return tags.Object{Type: o.Type, ID: o.ID} }
func (o objectID) ref() ref            { return ref{Type: o.Type, Value: o.ID} }

func idOf(o tags.Object) objectID { return objectID{o.Type, o.ID} }

// serve answers a call of a session.
func (t *tagging) serve(w *recorder, r *http.Request, who principal) {
	c := &tagCall{t: t, api: strings.HasPrefix(r.URL.Path, taggingAPI), who: who}
	rest := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, taggingREST), taggingAPI)
	kind, id, hasID := strings.Cut(rest, "/")
	if hasID && !c.api {
		if id, hasID = strings.CutPrefix(id, "id:"); !hasID {
			restFault{http.StatusNotFound, "not_found", "com.vmware.vapi.rest.httpNotFound", "Not found.", nil}.send(w, c.api)
			return
		}
	}
	c.id = id
	action := r.URL.Query().Get("~action")
	if c.api {
		action = r.URL.Query().Get("action")
	}
	var err error
	if r.Body != nil {
		if c.body, err = io.ReadAll(r.Body); err != nil {
			restFault{http.StatusBadRequest, "invalid_argument", "vapi.bindings.typeconverter.invalid", err.Error(), nil}.send(w, c.api)
			return
		}
	}
	handler := tagHandlers[strings.TrimSuffix(r.Method+" "+kind+" "+action, " ")+map[bool]string{true: " id"}[hasID]]
	if handler == nil {
		restFault{http.StatusNotFound, "operation_not_found", "vapi.method.input.invalid.method", "Cannot find operation '" + action + "' in service 'com.vmware.cis.tagging." + kind + "'.", []string{action}}.send(w, c.api)
		return
	}
	value, err := handler(c)
	switch {
	case err != nil:
		tagFault(err).send(w, c.api)
	case value == nil && c.api:
		w.code = http.StatusNoContent
	case value == nil:
		w.Header().Set("Content-Type", "application/json")
	case c.api && r.Method == http.MethodPost && action == "":
		reply(w, http.StatusCreated, value)
	default:
		replyValue(w, c.api, value)
	}
}

// tagHandlers by method, resource and action; those with " id" act on one.
var tagHandlers = map[string]func(*tagCall) (any, error){
	"GET category":       (*tagCall).listCategories,
	"POST category":      (*tagCall).createCategory,
	"GET category id":    (*tagCall).getCategory,
	"PATCH category id":  (*tagCall).updateCategory,
	"DELETE category id": (*tagCall).deleteCategory,

	"GET tag":       (*tagCall).listTags,
	"POST tag":      (*tagCall).createTag,
	"GET tag id":    (*tagCall).getTag,
	"PATCH tag id":  (*tagCall).updateTag,
	"DELETE tag id": (*tagCall).deleteTag,
	// /rest takes the category in the path, /api in the body.
	"POST tag list-tags-for-category id": (*tagCall).listOfCategory,
	"POST tag list-tags-for-category":    (*tagCall).listOfCategory,

	"POST tag-association attach id":                           (*tagCall).attach,
	"POST tag-association detach id":                           (*tagCall).detach,
	"POST tag-association list-attached-objects id":            (*tagCall).listObjects,
	"POST tag-association attach-tag-to-multiple-objects id":   (*tagCall).attachToMany,
	"POST tag-association detach-tag-from-multiple-objects id": (*tagCall).detachFromMany,
	"POST tag-association list-attached-tags":                  (*tagCall).listAttached,
	"POST tag-association list-attachable-tags":                (*tagCall).listAttachable,
	"POST tag-association list-attached-objects-on-tags":       (*tagCall).listObjectsOnTags,
	"POST tag-association list-attached-tags-on-objects":       (*tagCall).listTagsOnObjects,
	"POST tag-association attach-multiple-tags-to-object":      (*tagCall).attachMany,
	"POST tag-association detach-multiple-tags-from-object":    (*tagCall).detachMany,
}

// errForbidden is a missing privilege, or an object that there isn't: the
// service does not tell which (govmomi vapi/tags, AttachMultipleTagsToObject).
var errForbidden = errors.New("the user lacks a privilege, or there is no such object")

var errMalformed = errors.New("the body is not what the operation takes")

// tagFault maps a refusal to the wire.
// Unverified: ids and texts, except that of a tag that is not there.
func tagFault(err error) restFault {
	var e *tags.Error
	switch {
	case errors.Is(err, errForbidden):
		return restFault{http.StatusForbidden, "unauthorized", "cis.tagging.unauthorized.error", "Unauthorized to perform the operation.", nil}
	case !errors.As(err, &e):
		return restFault{http.StatusBadRequest, "invalid_argument", "vapi.bindings.typeconverter.invalid", err.Error(), nil}
	}
	switch e.Kind {
	case tags.NotFound:
		return restFault{http.StatusNotFound, "not_found", "cis.tagging.objectNotFound.error", "Tagging object " + e.Value + " not found", []string{e.Value}}
	case tags.Exists:
		return restFault{http.StatusBadRequest, "already_exists", "cis.tagging.alreadyExists.error", "Tagging object " + e.Value + " already exists", []string{e.Value}}
	}
	return restFault{http.StatusBadRequest, "invalid_argument", "cis.tagging.invalidArgument.error", "Invalid " + e.Field + " " + e.Value + ": " + e.Why, []string{e.Value}}
}

// decode reads the body. /rest wraps what is created in a field of its own.
func (c *tagCall) decode(wrapper string, into any) error {
	b := c.body
	if wrapper != "" && !c.api {
		var outer map[string]json.RawMessage
		if json.Unmarshal(b, &outer) != nil || outer[wrapper] == nil {
			return errMalformed
		}
		b = outer[wrapper]
	}
	if json.Unmarshal(b, into) != nil {
		return errMalformed
	}
	return nil
}

// may says whether the caller has a privilege on the root, where tags and
// categories have theirs from.
func (c *tagCall) may(privilege string) error {
	if c.t.v.access.allowed(c.who, c.t.v.content.RootFolder, privilege) {
		return nil
	}
	return errForbidden
}

// do runs a command of the core.
func (c *tagCall) do(f func(core *tags.Core) error) error {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	return f(c.t.core)
}

type categoryModel struct {
	ID              string   `json:"id"`
	Name            string   `json:"name"`
	Description     string   `json:"description"`
	Cardinality     string   `json:"cardinality"`
	AssociableTypes []string `json:"associable_types"`
	UsedBy          []string `json:"used_by"`
}

// categorySpec is what create and update take. What an update leaves out stays.
type categorySpec struct {
	Name            *string  `json:"name"`
	Description     *string  `json:"description"`
	Cardinality     *string  `json:"cardinality"`
	AssociableTypes []string `json:"associable_types"`
	CategoryID      string   `json:"category_id"`
}

func (c *tagCall) listCategories() (any, error) {
	ids := []string{}
	if c.may("System.Read") != nil {
		return ids, nil
	}
	_ = c.do(func(core *tags.Core) error {
		for _, x := range core.Categories() {
			ids = append(ids, x.ID)
		}
		return nil
	})
	return ids, nil
}

// newID makes the id of a category or tag, or takes the caller's.
func (c *tagCall) newID(given string, urn func(string) string, kind string) (string, error) {
	if given != "" {
		prefix, _, _ := strings.Cut(urn("\x00"), "\x00")
		if !strings.HasPrefix(given, prefix) {
			return "", &tags.Error{Kind: tags.Invalid, Field: kind + "_id", Value: given, Why: "it must begin with " + prefix}
		}
		return given, nil
	}
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	c.t.nth++
	return urn(uuidOf(c.t.v.cfg.Seed, "made "+kind, fmt.Sprintf("%d|%d", c.t.v.epoch, c.t.nth))), nil
}

func (c *tagCall) createCategory() (any, error) {
	var s categorySpec
	if err := c.decode("create_spec", &s); err != nil {
		return nil, err
	}
	if err := c.may("InventoryService.Tagging.CreateCategory"); err != nil {
		return nil, err
	}
	if s.Name == nil || s.Description == nil || s.Cardinality == nil || s.AssociableTypes == nil {
		return nil, errMalformed // all are required (CategoryTypes.CreateSpec)
	}
	id, err := c.newID(s.CategoryID, categoryURN, "category")
	if err != nil {
		return nil, err
	}
	card := tags.Cardinality(*s.Cardinality)
	if card == "" {
		card = tags.Single // Unverified: govmomi's clients leave it empty in tests only
	}
	return id, c.do(func(core *tags.Core) error {
		return core.AddCategory(tags.Category{ID: id, Name: *s.Name, Description: *s.Description, Cardinality: card, Types: s.AssociableTypes})
	})
}

func (c *tagCall) getCategory() (any, error) {
	if err := c.may("System.Read"); err != nil {
		return nil, err
	}
	var m categoryModel
	err := c.do(func(core *tags.Core) error {
		x, err := core.Category(c.id)
		m = categoryModel{x.ID, x.Name, x.Description, string(x.Cardinality), append([]string{}, x.Types...), []string{}}
		return err
	})
	return m, err
}

func (c *tagCall) updateCategory() (any, error) {
	var s categorySpec
	if err := c.decode("update_spec", &s); err != nil {
		return nil, err
	}
	if err := c.may("InventoryService.Tagging.EditCategory"); err != nil {
		return nil, err
	}
	return nil, c.do(func(core *tags.Core) error {
		x, err := core.Category(c.id)
		if err != nil {
			return err
		}
		if s.Name != nil {
			x.Name = *s.Name
		}
		if s.Description != nil {
			x.Description = *s.Description
		}
		if s.Cardinality != nil {
			x.Cardinality = tags.Cardinality(*s.Cardinality)
		}
		if len(s.AssociableTypes) > 0 {
			x.Types = s.AssociableTypes
		}
		return core.UpdateCategory(x)
	})
}

func (c *tagCall) deleteCategory() (any, error) {
	if err := c.may("InventoryService.Tagging.DeleteCategory"); err != nil {
		return nil, err
	}
	return nil, c.do(func(core *tags.Core) error { return core.RemoveCategory(c.id) })
}

type tagModel struct {
	ID          string   `json:"id"`
	CategoryID  string   `json:"category_id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	UsedBy      []string `json:"used_by"`
}

type tagSpec struct {
	Name        *string `json:"name"`
	Description *string `json:"description"`
	CategoryID  string  `json:"category_id"`
	TagID       string  `json:"tag_id"`
}

func tagIDs(list []tags.Tag) []string {
	ids := make([]string, 0, len(list))
	for _, x := range list {
		ids = append(ids, x.ID)
	}
	return ids
}

func (c *tagCall) listTags() (any, error) {
	var list []tags.Tag
	if c.may("System.Read") == nil {
		_ = c.do(func(core *tags.Core) error { list = core.Tags(); return nil })
	}
	return tagIDs(list), nil
}

func (c *tagCall) createTag() (any, error) {
	var s tagSpec
	if err := c.decode("create_spec", &s); err != nil {
		return nil, err
	}
	if err := c.may("InventoryService.Tagging.CreateTag"); err != nil {
		return nil, err
	}
	if s.Name == nil || s.Description == nil {
		return nil, errMalformed // both are required (TagTypes.CreateSpec)
	}
	id, err := c.newID(s.TagID, tagURN, "tag")
	if err != nil {
		return nil, err
	}
	return id, c.do(func(core *tags.Core) error {
		return core.AddTag(tags.Tag{ID: id, Category: s.CategoryID, Name: *s.Name, Description: *s.Description})
	})
}

func (c *tagCall) getTag() (any, error) {
	if err := c.may("System.Read"); err != nil {
		return nil, err
	}
	var m tagModel
	err := c.do(func(core *tags.Core) error {
		x, err := core.Tag(c.id)
		m = tagModel{x.ID, x.Category, x.Name, x.Description, []string{}}
		return err
	})
	return m, err
}

func (c *tagCall) updateTag() (any, error) {
	var s tagSpec
	if err := c.decode("update_spec", &s); err != nil {
		return nil, err
	}
	if err := c.may("InventoryService.Tagging.EditTag"); err != nil {
		return nil, err
	}
	return nil, c.do(func(core *tags.Core) error {
		x, err := core.Tag(c.id)
		if err != nil {
			return err
		}
		if s.Name != nil {
			x.Name = *s.Name
		}
		if s.Description != nil {
			x.Description = *s.Description
		}
		return core.UpdateTag(x)
	})
}

func (c *tagCall) deleteTag() (any, error) {
	if err := c.may("InventoryService.Tagging.DeleteTag"); err != nil {
		return nil, err
	}
	return nil, c.do(func(core *tags.Core) error { return core.RemoveTag(c.id) })
}

func (c *tagCall) listOfCategory() (any, error) {
	if err := c.may("System.Read"); err != nil {
		return nil, err
	}
	id := c.id
	if id == "" {
		var s tagSpec
		if err := c.decode("", &s); err != nil {
			return nil, err
		}
		id = s.CategoryID
	}
	var list []tags.Tag
	err := c.do(func(core *tags.Core) (err error) { list, err = core.OfCategory(id); return err })
	return tagIDs(list), err
}

// associationSpec is the body of all operations on associations.
type associationSpec struct {
	ObjectID  *objectID  `json:"object_id"`
	TagIDs    []string   `json:"tag_ids"`
	ObjectIDs []objectID `json:"object_ids"`
}

// object reads an operation that is about one object.
func (c *tagCall) object() (associationSpec, error) {
	var s associationSpec
	if err := c.decode("", &s); err != nil {
		return s, err
	}
	if s.ObjectID == nil {
		return s, errMalformed
	}
	return s, nil
}

// attachable says whether the caller may attach tags to an object, or take
// them off.
func (c *tagCall) attachable(o objectID) error {
	if c.t.v.vim.Get(o.ref()) == nil || !c.readable(o.object()) {
		return errForbidden
	}
	return c.may("InventoryService.Tagging.AttachTag")
}

// readable says whether the caller sees an object at all.
func (c *tagCall) readable(o tags.Object) bool {
	a := c.t.v.access
	r := ref{Type: o.Type, Value: o.ID}
	return a.allowed(c.who, r, "System.Read") || a.leadsTo(c.who, r)
}

func (c *tagCall) attach() (any, error) {
	s, err := c.object()
	if err != nil {
		return nil, err
	}
	if err := c.attachable(*s.ObjectID); err != nil {
		return nil, err
	}
	return nil, c.do(func(core *tags.Core) error { return core.Attach(c.id, s.ObjectID.object()) })
}

func (c *tagCall) detach() (any, error) {
	s, err := c.object()
	if err != nil {
		return nil, err
	}
	if err := c.attachable(*s.ObjectID); err != nil {
		return nil, err
	}
	return nil, c.do(func(core *tags.Core) error { return core.Detach(c.id, s.ObjectID.object()) })
}

func (c *tagCall) listAttached() (any, error) {
	s, err := c.object()
	if err != nil {
		return nil, err
	}
	if !c.readable(s.ObjectID.object()) {
		return nil, errForbidden
	}
	var list []tags.Tag
	_ = c.do(func(core *tags.Core) error { list = core.On(s.ObjectID.object()); return nil })
	return tagIDs(list), nil
}

// listAttachable lists the tags that the object could get.
func (c *tagCall) listAttachable() (any, error) {
	s, err := c.object()
	if err != nil {
		return nil, err
	}
	ids := []string{}
	_ = c.do(func(core *tags.Core) error {
		taken := map[string]bool{}
		for _, x := range core.On(s.ObjectID.object()) {
			taken[x.Category] = true
		}
		for _, x := range core.Tags() {
			cat, err := core.Category(x.Category)
			if err != nil || len(cat.Types) > 0 && !slices.Contains(cat.Types, s.ObjectID.Type) || cat.Cardinality == tags.Single && taken[cat.ID] {
				continue
			}
			ids = append(ids, x.ID)
		}
		return nil
	})
	return ids, nil
}

// objectsOf lists the objects of a tag that the caller sees.
func (c *tagCall) objectsOf(tag string) ([]objectID, error) {
	var objects []tags.Object
	if err := c.do(func(core *tags.Core) (err error) { objects, err = core.Objects(tag); return err }); err != nil {
		return nil, err
	}
	out := []objectID{}
	for _, o := range objects {
		if c.readable(o) {
			out = append(out, idOf(o))
		}
	}
	return out, nil
}

func (c *tagCall) listObjects() (any, error) { return c.objectsOf(c.id) }

// listObjectsOnTags leaves out tags that there aren't.
// Unverified: that they are left out, and not refused.
func (c *tagCall) listObjectsOnTags() (any, error) {
	var s associationSpec
	if err := c.decode("", &s); err != nil {
		return nil, err
	}
	out := []any{}
	for _, id := range s.TagIDs {
		if objects, err := c.objectsOf(id); err == nil {
			out = append(out, map[string]any{"tag_id": id, "object_ids": objects})
		}
	}
	return out, nil
}

func (c *tagCall) listTagsOnObjects() (any, error) {
	var s associationSpec
	if err := c.decode("", &s); err != nil {
		return nil, err
	}
	out := []any{}
	for _, o := range s.ObjectIDs {
		if !c.readable(o.object()) {
			continue
		}
		var list []tags.Tag
		_ = c.do(func(core *tags.Core) error { list = core.On(o.object()); return nil })
		if len(list) > 0 { // "only objects that have tags" (TagAssociation API)
			out = append(out, map[string]any{"object_id": o, "tag_ids": tagIDs(list)})
		}
	}
	return out, nil
}

// batch is the result of an operation on many: it passes, and says what failed.
type batch struct {
	Success bool         `json:"success"`
	Errors  []batchError `json:"error_messages"`
}

type batchError struct {
	ID             string   `json:"id"`
	DefaultMessage string   `json:"default_message"`
	Args           []string `json:"args"`
}

func (b *batch) add(err error) {
	if err != nil {
		f := tagFault(err)
		b.Errors = append(b.Errors, batchError{f.id, f.text, append([]string{}, f.args...)})
	}
	b.Success = len(b.Errors) == 0
}

// many does something with each tag and one object.
func (c *tagCall) many(f func(core *tags.Core, tag string, o tags.Object) error) (any, error) {
	s, err := c.object()
	if err != nil {
		return nil, err
	}
	if err := c.attachable(*s.ObjectID); err != nil {
		return nil, err
	}
	b := &batch{Success: true, Errors: []batchError{}}
	for _, id := range s.TagIDs {
		b.add(c.do(func(core *tags.Core) error { return f(core, id, s.ObjectID.object()) }))
	}
	return b, nil
}

func (c *tagCall) attachMany() (any, error) { return c.many((*tags.Core).Attach) }
func (c *tagCall) detachMany() (any, error) { return c.many((*tags.Core).Detach) }

// toMany does something with one tag and each object.
func (c *tagCall) toMany(f func(core *tags.Core, tag string, o tags.Object) error) (any, error) {
	var s associationSpec
	if err := c.decode("", &s); err != nil {
		return nil, err
	}
	if err := c.do(func(core *tags.Core) error { _, err := core.Tag(c.id); return err }); err != nil {
		return nil, err
	}
	b := &batch{Success: true, Errors: []batchError{}}
	for _, o := range s.ObjectIDs {
		err := c.attachable(o)
		if err == nil {
			err = c.do(func(core *tags.Core) error { return f(core, c.id, o.object()) })
		}
		b.add(err)
	}
	return b, nil
}

func (c *tagCall) attachToMany() (any, error)   { return c.toMany((*tags.Core).Attach) }
func (c *tagCall) detachFromMany() (any, error) { return c.toMany((*tags.Core).Detach) }
