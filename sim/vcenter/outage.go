package vcenter

// SetReachable cuts the vCenter off from its clients, or connects it again.
// Connections break at once, and new ones as soon as they are made; tasks go
// on, and sessions stay until they idle out.
func (v *VCenter) SetReachable(yes bool) { v.line.SetReachable(yes) }
