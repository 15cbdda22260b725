// Package tags is the core of a vCenter's tagging: categories, tags, and what
// they are attached to. It does no I/O and takes no locks; ids are passed in.
package tags

import (
	"fmt"
	"slices"
)

// Cardinality is how many tags of a category an object may have.
type Cardinality string

// The cardinalities.
const (
	Single   Cardinality = "SINGLE"
	Multiple Cardinality = "MULTIPLE"
)

// Category of tags.
type Category struct {
	ID          string
	Name        string // unique
	Description string
	Cardinality Cardinality
	// Types of objects that its tags may be attached to, e.g. Datastore; none
	// means all.
	Types []string
}

// Tag of a category.
type Tag struct {
	ID          string
	Category    string // id
	Name        string // unique in the category
	Description string
}

// Object is what a tag is attached to.
type Object struct{ Type, ID string }

// Kind of an error.
type Kind int

// Kinds of errors, as the API tells them apart.
const (
	Invalid Kind = iota
	NotFound
	Exists
)

// Error is the refusal of a command.
type Error struct {
	Kind  Kind
	Field string
	Value string
	Why   string
}

func (e *Error) Error() string { return fmt.Sprintf("tags: %s is %q: %s", e.Field, e.Value, e.Why) }

// Core holds categories, tags and attachments. A command that is refused
// changes nothing.
type Core struct {
	categories []*Category // oldest first
	tags       []*tag
	byID       map[string]*tag
	on         map[Object][]*tag // in the order in which they were attached
}

type tag struct {
	Tag
	category *Category
	objects  []Object
}

// New makes an empty core.
func New() *Core {
	return &Core{byID: map[string]*tag{}, on: map[Object][]*tag{}}
}

func (c *Core) category(id string) (*Category, error) {
	for _, x := range c.categories {
		if x.ID == id {
			return x, nil
		}
	}
	return nil, &Error{NotFound, "category", id, "there is no such category"}
}

func (c *Core) tag(id string) (*tag, error) {
	if t := c.byID[id]; t != nil {
		return t, nil
	}
	return nil, &Error{NotFound, "tag", id, "there is no such tag"}
}

func (c *Core) checkCategory(x Category) error {
	if x.Name == "" {
		return &Error{Invalid, "name", x.Name, "a category has a name"}
	}
	if x.Cardinality != Single && x.Cardinality != Multiple {
		return &Error{Invalid, "cardinality", string(x.Cardinality), "allowed are SINGLE and MULTIPLE"}
	}
	for _, y := range c.categories {
		if y.Name == x.Name && y.ID != x.ID {
			return &Error{Exists, "name", x.Name, "a category of that name exists"}
		}
	}
	return nil
}

// AddCategory adds a category.
func (c *Core) AddCategory(x Category) error {
	if err := c.checkCategory(x); err != nil {
		return err
	}
	if _, err := c.category(x.ID); err == nil {
		return &Error{Exists, "id", x.ID, "a category of that id exists"}
	}
	x.Types = slices.Clone(x.Types)
	c.categories = append(c.categories, &x)
	return nil
}

// UpdateCategory gives a category another name, description, cardinality or
// types. Cardinality can only go from SINGLE to MULTIPLE and types can only be
// added: what is attached stays right.
func (c *Core) UpdateCategory(x Category) error {
	old, err := c.category(x.ID)
	if err != nil {
		return err
	}
	if err := c.checkCategory(x); err != nil {
		return err
	}
	if old.Cardinality == Multiple && x.Cardinality == Single {
		return &Error{Invalid, "cardinality", string(x.Cardinality), "it can't be narrowed"}
	}
	if len(old.Types) == 0 && len(x.Types) > 0 {
		return &Error{Invalid, "associable_types", fmt.Sprint(x.Types), "types can only be added, and the category has all"}
	}
	for _, t := range old.Types {
		if len(x.Types) > 0 && !slices.Contains(x.Types, t) {
			return &Error{Invalid, "associable_types", fmt.Sprint(x.Types), "types can only be added; it lacks " + t}
		}
	}
	x.Types = slices.Clone(x.Types)
	*old = x
	return nil
}

// RemoveCategory removes a category with its tags.
func (c *Core) RemoveCategory(id string) error {
	x, err := c.category(id)
	if err != nil {
		return err
	}
	for _, t := range slices.Clone(c.tags) {
		if t.category == x {
			_ = c.RemoveTag(t.ID)
		}
	}
	c.categories = slices.DeleteFunc(c.categories, func(y *Category) bool { return y == x })
	return nil
}

// Category finds a category by id.
func (c *Core) Category(id string) (Category, error) {
	x, err := c.category(id)
	if err != nil {
		return Category{}, err
	}
	return x.clone(), nil
}

func (x *Category) clone() Category {
	out := *x
	out.Types = slices.Clone(out.Types)
	return out
}

// Categories lists all categories, oldest first.
func (c *Core) Categories() []Category {
	out := make([]Category, 0, len(c.categories))
	for _, x := range c.categories {
		out = append(out, x.clone())
	}
	return out
}

func (c *Core) checkTag(x Tag) error {
	if x.Name == "" {
		return &Error{Invalid, "name", x.Name, "a tag has a name"}
	}
	for _, y := range c.tags {
		if y.Name == x.Name && y.Category == x.Category && y.ID != x.ID {
			return &Error{Exists, "name", x.Name, "the category has a tag of that name"}
		}
	}
	return nil
}

// AddTag adds a tag to a category.
func (c *Core) AddTag(x Tag) error {
	cat, err := c.category(x.Category)
	if err != nil {
		return err
	}
	if err := c.checkTag(x); err != nil {
		return err
	}
	if c.byID[x.ID] != nil {
		return &Error{Exists, "id", x.ID, "a tag of that id exists"}
	}
	t := &tag{Tag: x, category: cat}
	c.tags = append(c.tags, t)
	c.byID[x.ID] = t
	return nil
}

// UpdateTag gives a tag another name or description. It stays in its category.
func (c *Core) UpdateTag(x Tag) error {
	t, err := c.tag(x.ID)
	if err != nil {
		return err
	}
	x.Category = t.Category
	if err := c.checkTag(x); err != nil {
		return err
	}
	t.Tag = x
	return nil
}

// RemoveTag removes a tag, from all that it is attached to.
func (c *Core) RemoveTag(id string) error {
	t, err := c.tag(id)
	if err != nil {
		return err
	}
	for _, o := range slices.Clone(t.objects) {
		c.detach(t, o)
	}
	delete(c.byID, id)
	c.tags = slices.DeleteFunc(c.tags, func(y *tag) bool { return y == t })
	return nil
}

// Tag finds a tag by id.
func (c *Core) Tag(id string) (Tag, error) {
	t, err := c.tag(id)
	if err != nil {
		return Tag{}, err
	}
	return t.Tag, nil
}

// Tags lists all tags, oldest first.
func (c *Core) Tags() []Tag {
	out := make([]Tag, 0, len(c.tags))
	for _, t := range c.tags {
		out = append(out, t.Tag)
	}
	return out
}

// OfCategory lists the tags of a category.
func (c *Core) OfCategory(id string) ([]Tag, error) {
	if _, err := c.category(id); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(c.Tags(), func(t Tag) bool { return t.Category != id }), nil
}

// Find finds a tag by the names of its category and its own.
func (c *Core) Find(category, name string) (Tag, bool) {
	for _, t := range c.tags {
		if t.Name == name && t.category.Name == category {
			return t.Tag, true
		}
	}
	return Tag{}, false
}

// Attach attaches a tag to an object. Doing it again changes nothing.
func (c *Core) Attach(id string, o Object) error {
	t, err := c.tag(id)
	if err != nil {
		return err
	}
	if slices.Contains(t.objects, o) {
		return nil
	}
	if len(t.category.Types) > 0 && !slices.Contains(t.category.Types, o.Type) {
		return &Error{Invalid, "object_id", o.Type + ":" + o.ID, fmt.Sprintf("the category %s is for %v", t.category.Name, t.category.Types)}
	}
	if t.category.Cardinality == Single {
		for _, x := range c.on[o] {
			if x.category == t.category {
				return &Error{Invalid, "object_id", o.Type + ":" + o.ID, fmt.Sprintf("it has the tag %s, and the category %s allows one", x.Name, t.category.Name)}
			}
		}
	}
	t.objects = append(t.objects, o)
	c.on[o] = append(c.on[o], t)
	return nil
}

// Detach takes a tag off an object. One that isn't there is no error.
func (c *Core) Detach(id string, o Object) error {
	t, err := c.tag(id)
	if err != nil {
		return err
	}
	c.detach(t, o)
	return nil
}

func (c *Core) detach(t *tag, o Object) {
	t.objects = slices.DeleteFunc(t.objects, func(x Object) bool { return x == o })
	c.on[o] = slices.DeleteFunc(c.on[o], func(x *tag) bool { return x == t })
	if len(c.on[o]) == 0 {
		delete(c.on, o)
	}
}

// On lists the tags of an object.
func (c *Core) On(o Object) []Tag {
	out := make([]Tag, 0, len(c.on[o]))
	for _, t := range c.on[o] {
		out = append(out, t.Tag)
	}
	return out
}

// Has says whether an object has a tag, by the names of category and tag.
func (c *Core) Has(o Object, category, name string) bool {
	return slices.ContainsFunc(c.on[o], func(t *tag) bool { return t.Name == name && t.category.Name == category })
}

// Objects lists what a tag is attached to.
func (c *Core) Objects(id string) ([]Object, error) {
	t, err := c.tag(id)
	if err != nil {
		return nil, err
	}
	return slices.Clone(t.objects), nil
}

// Forget takes all tags off an object that is gone.
func (c *Core) Forget(o Object) {
	for _, t := range slices.Clone(c.on[o]) {
		c.detach(t, o)
	}
}
