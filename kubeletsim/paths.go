package kubeletsim

import (
	"crypto/sha256"
	"fmt"
	"path"
)

// layout is where kubelet keeps things below its root directory. Paths are the
// node's, so they have slashes on every operating system.
type layout struct{ root string }

const (
	csiDir     = "kubernetes.io~csi"
	dataFile   = "vol_data.json"
	blockSub   = "volumeDevices"
	emptyDirFS = "kubernetes.io~empty-dir"
)

func (l layout) registry() string             { return path.Join(l.root, "plugins_registry") }
func (l layout) plugins() string              { return path.Join(l.root, "plugins/kubernetes.io/csi") }
func (l layout) pods() string                 { return path.Join(l.root, "pods") }
func (l layout) pod(uid string) string        { return path.Join(l.pods(), uid) }
func (l layout) volumes(uid string) string    { return path.Join(l.pod(uid), "volumes") }
func (l layout) csiVolumes(uid string) string { return path.Join(l.volumes(uid), csiDir) }
func (l layout) emptyDir(uid, name string) string {
	return path.Join(l.volumes(uid), emptyDirFS, name)
}

// publish is the target path of a filesystem (pkg/volume/csi/csi_mounter.go, GetPath).
func (l layout) publish(uid, pv string) string {
	return path.Join(l.csiVolumes(uid), pv, "mount")
}

// stage is the staging path of a filesystem (pkg/volume/csi/csi_attacher.go,
// makeDeviceMountPath).
func (l layout) stage(driver, handle string) string {
	return path.Join(l.plugins(), driver, fmt.Sprintf("%x", sha256.Sum256([]byte(handle))), "globalmount")
}

// Paths of a raw block volume (pkg/volume/csi/csi_block.go:55-64).
func (l layout) blockRoot() string            { return path.Join(l.plugins(), blockSub) }
func (l layout) blockVolume(pv string) string { return path.Join(l.blockRoot(), pv) }
func (l layout) blockData(pv string) string   { return path.Join(l.blockVolume(pv), "data") }
func (l layout) blockGlobal(pv string) string { return path.Join(l.blockVolume(pv), "dev") }
func (l layout) blockStage(pv string) string  { return path.Join(l.blockRoot(), "staging", pv) }
func (l layout) blockPublishDir(pv string) string {
	return path.Join(l.blockRoot(), "publish", pv)
}
func (l layout) blockPublish(pv, uid string) string {
	return path.Join(l.blockPublishDir(pv), uid)
}
func (l layout) blockPodDir(uid string) string {
	return path.Join(l.pod(uid), blockSub, csiDir)
}
func (l layout) blockPodLink(uid, pv string) string { return path.Join(l.blockPodDir(uid), pv) }

// attachmentName is the name of the VolumeAttachment object
// (pkg/volume/csi/csi_attacher.go, getAttachmentName).
func attachmentName(handle, driver, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}
