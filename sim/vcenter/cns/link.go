package cns

// A linked clone shares blocks with the snapshot that it was made from, which
// can't go while it lives. It is a disk of its own otherwise.

// link notes a linked clone at the disk that it shares blocks with.
func (c *Core) link(v *volume) {
	if v.LinkedTo != nil {
		add(c.clones, v.LinkedTo.Volume, v)
	}
}

func (c *Core) unlink(v *volume) {
	if v.LinkedTo != nil {
		drop(c.clones, v.LinkedTo.Volume, v)
	}
}

// oneClone is the id of a linked clone of a disk: of the smallest, so that the
// same state says the same.
func (c *Core) oneClone(disk string) string {
	id := ""
	for v := range c.clones[disk] {
		if id == "" || v.ID < id {
			id = v.ID
		}
	}
	return id
}
