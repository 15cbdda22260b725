package cns

// Crypt is what to do to the encryption of a disk.
type Crypt string

// The kinds, after vim25's CryptoSpec types.
const (
	Encrypt        Crypt = "encrypt"
	Decrypt        Crypt = "decrypt"
	ShallowRecrypt Crypt = "shallow recrypt" // the data stays under its key, which is wrapped anew
	DeepRecrypt    Crypt = "deep recrypt"    // the data too
)

// PlanCrypt checks whether Crypt would succeed. What rewrites the data needs a
// disk that nobody holds and without snapshots (vSphere Security, "Virtual
// Machine Encryption": only shallow recryption works on what runs or has
// snapshots). Unverified: the faults.
func (c *Core) PlanCrypt(id string, what Crypt, key Key) error {
	v, ok := c.disk(id)
	if !ok {
		return c.unknown(id)
	}
	if what != Decrypt && key.ID == "" {
		return &Error{Kind: InvalidArgument, Field: "cryptoKeyId", Reason: "names no key"}
	}
	if plain := v.Key == (Key{}); plain == (what != Encrypt) {
		reason := "the disk is encrypted"
		if plain {
			reason = "the disk is not encrypted"
		}
		return &Error{Kind: InvalidState, Field: "volumeId", Value: id, Reason: reason}
	}
	if what == ShallowRecrypt {
		return nil
	}
	if as := c.attachments[id]; len(as) > 0 {
		return &Error{Kind: InvalidState, Field: "volumeId", Value: id, Holder: as[0].VM, Reason: "a VM holds the disk"}
	}
	if n := len(v.Snapshots); n > 0 {
		return &Error{Kind: InvalidState, Field: "volumeId", Value: id, Holder: v.Snapshots[n-1].ID, Reason: "the disk has snapshots"}
	}
	return nil
}

// Crypt changes the encryption of a disk. Its content is not changed: the lab
// shows it as a VM sees it. Errors: NotFound, InvalidArgument (no key),
// InvalidState.
func (c *Core) Crypt(id string, what Crypt, key Key) (Disk, error) {
	if err := c.PlanCrypt(id, what, key); err != nil {
		return Disk{}, err
	}
	v, _ := c.disk(id)
	v.Key = key
	if what == Decrypt {
		v.Key = Key{}
	}
	return v.Disk.clone(), nil
}
