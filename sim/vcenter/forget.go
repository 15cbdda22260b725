package vcenter

import "fmt"

// ForgetVolume drops CNS's record of a volume, attached or not, as after its
// database was restored; the disk stays where it is. CnsCreateVolume with the
// disk's id registers it again.
func (v *VCenter) ForgetVolume(id string) error {
	if err := v.face.Forget(id); err != nil {
		return fmt.Errorf("vcenter: forget volume %q: %w", id, err)
	}
	return nil
}
