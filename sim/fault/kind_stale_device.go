package fault

import "context"

// reuser is a world that gives LUNs to other volumes.
type reuser interface {
	volumes
	machines
	// ReuseLUN ends a volume's export to a node and gives its LUN there to another
	// volume, while the node keeps the devices that it has.
	ReuseLUN(volume, by, node string) error
}

// ReuseLUN makes a node's devices of a volume answer for another one; volume and
// node "" are those of the call.
func ReuseLUN(volume, by, node string) Action {
	return NewChange(named("reuse LUN", volume, "for", by, node), 0, func(_ context.Context, in *Interceptor, c Call) (func(), error) {
		w, id, name, err := attachment[reuser](in, "reuse LUNs", volume, node, c)
		if err != nil {
			return nil, err
		}
		other, err := volumeOf(in, w, by, Call{})
		if err != nil {
			return nil, err
		}
		return nil, w.ReuseLUN(id, other, name)
	})
}

// StaleDeviceParams are those of kind stale-device.
type StaleDeviceParams struct {
	Volume string `yaml:"volume" default:"that of the call, or of the calls that it is made for" doc:"the volume that loses its LUN"`
	By     string `yaml:"by" need:"yes" min:"1" doc:"the volume that gets it: its id in CSI, its claim or its PersistentVolume; it must be exported to the node too"`
	Node   string `yaml:"node" default:"that of the call, or of its caller" doc:"name of the node"`
}

func init() {
	Register(Kind{
		Name:   "stale-device",
		Doc:    "A volume's export to a node ends and its LUN goes to another volume, while the node keeps the devices that it has: they are stale, and answer for the other. There is no way back.",
		Phases: []Phase{Before, After},
		Params: StaleDeviceParams{},
		Needs:  NeedsWorld[reuser]("reuse LUNs"),
		New:    Make(func(_ Rule, p StaleDeviceParams) (Action, error) { return ReuseLUN(p.Volume, p.By, p.Node), nil }),
		Example: `name: the LUN belongs to another volume before it is unstaged
hop: csi
op: NodeUnstageVolume
volume: data
nth: 1
do:
  stale-device: {by: default/other}`,
	})
}
