package kubeletsim

import (
	"context"
	"fmt"
	"io/fs"
	"path"
)

// mapVolume makes a raw block volume available to a pod
// (operation_generator.go:935, pkg/volume/csi/csi_block.go).
func (k *Kubelet) mapVolume(ctx context.Context, op operation) error {
	if err := k.newBlockMapper(op.spec); err != nil {
		return opError("MapVolume.NewBlockVolumeMapper initialization failed", op.spec, err)
	}
	if err := k.checkUse(op, "MapVolume", "MapVolume.SetUpDevice failed"); err != nil {
		return err
	}
	devicePath := ""
	if op.attachable {
		var err error
		if devicePath, err = k.waitForAttach(op.spec); err != nil {
			return opError("MapVolume.WaitForAttach failed", op.spec, err)
		}
	}
	global := k.dirs.blockGlobal(op.innerName)
	k.mu.Lock()
	dev := k.world.deviceState(op.volume)
	k.mu.Unlock()
	if dev != mounted {
		err := k.setUpDevice(ctx, op)
		k.mu.Lock()
		if err != nil {
			k.world.deviceFailed(op.volume, devicePath, global, err)
		} else {
			k.world.setDevice(op.volume, mounted, devicePath, global)
		}
		k.mu.Unlock()
		if err != nil {
			return opError("MapVolume.SetUpDevice failed", op.spec, err)
		}
	}
	published, err := k.mapPodDevice(ctx, op)
	if err != nil {
		k.mu.Lock()
		k.world.podFailed(op.volume, op.uid, op.spec, err)
		k.mu.Unlock()
		return opError("MapVolume.MapPodDevice failed", op.spec, err)
	}
	// From here on the device is mapped: uncertain on any error, so that it is
	// unmapped when the pod goes.
	fail := func(prefix string, err error) error {
		k.mu.Lock()
		k.world.podFailed(op.volume, op.uid, op.spec, &uncertainError{err.Error()})
		k.mu.Unlock()
		return opError(prefix, op.spec, err)
	}
	real, err := k.cfg.Host.EvalSymlinks(published)
	if err != nil {
		return fail("MapVolume.EvalHostSymlinks failed", err)
	}
	k.mu.Lock()
	k.world.setDevice(op.volume, mounted, real, global)
	k.mu.Unlock()
	if err := k.mapDevice(real, op); err != nil {
		return fail("MapVolume.MapBlockVolume failed", err)
	}
	k.event(op.pod, normal, "SuccessfulMountVolume", fmt.Sprintf("MapVolume.MapPodDevice succeeded for volume %q globalMapPath %q", op.spec.name(), global))
	k.event(op.pod, normal, "SuccessfulMountVolume", fmt.Sprintf("MapVolume.MapPodDevice succeeded for volume %q volumeMapPath %q", op.spec.name(), k.dirs.blockPodDir(op.uid)))
	staging := ""
	if dev != mounted { // operation_generator.go:1115: known only if staged just now
		staging = k.dirs.blockStage(op.innerName)
	}
	if err := k.expandDuringMount(ctx, op, real, staging); err != nil {
		k.mu.Lock()
		k.world.setPod(op.volume, op.uid, op.spec, uncertain)
		k.mu.Unlock()
		return opError("MapVolume.MarkVolumeAsMounted failed while expanding volume", op.spec, err)
	}
	k.mu.Lock()
	k.world.setPod(op.volume, op.uid, op.spec, mounted)
	k.mu.Unlock()
	return nil
}

// newBlockMapper writes the data file for the teardown
// (pkg/volume/csi/csi_plugin.go, NewBlockVolumeMapper).
func (k *Kubelet) newBlockMapper(s volumeSpec) error {
	dir := k.dirs.blockData(s.name())
	if err := k.cfg.Host.MkdirAll(dir, 0o750); err != nil {
		return csiErrorf("failed to create data dir %s:  %v", dir, err)
	}
	err := k.saveData(dir, volumeData{keySpecVolID: s.name(), keyHandle: s.csi().VolumeHandle, keyDriver: s.csi().Driver,
		keyNode: k.cfg.NodeName, keyAttachment: attachmentName(s.csi().VolumeHandle, s.csi().Driver, k.cfg.NodeName)})
	if err != nil {
		if rerr := k.removeMountDir(dir); rerr != nil {
			k.log.Error("failed to remove data dir after error", "path", dir, "error", rerr)
		}
		return csiErrorf("csi.NewBlockVolumeMapper failed to save volume info data: %v", err)
	}
	return nil
}

// setUpDevice stages a block volume (csi_block.go, SetUpDevice).
func (k *Kubelet) setUpDevice(ctx context.Context, op operation) error {
	src := op.spec.csi()
	pubCtx, err := k.publishContext(op.spec)
	if err != nil {
		return transientf("blockMapper.SetupDevice failed to get volume attachment [id=%v]: %v", attachmentName(src.VolumeHandle, src.Driver, k.cfg.NodeName), err)
	}
	ctx, cancel := context.WithTimeout(ctx, k.t.CSICall)
	defer cancel()
	c, err := k.client(src.Driver)
	if err != nil {
		return transientf("blockMapper.SetUpDevice failed to get CSI client: %v", err)
	}
	err = func() error {
		hasStage, err := c.supportsStage(ctx)
		if err != nil {
			return csiErrorf("blockMapper.stageVolumeForBlock failed to check STAGE_UNSTAGE_VOLUME capability: %v", err)
		}
		if !hasStage {
			return nil
		}
		secrets, err := k.secret(src.NodeStageSecretRef)
		if err != nil {
			return transientf("failed to get NodeStageSecretRef %s/%s: %v", src.NodeStageSecretRef.Namespace, src.NodeStageSecretRef.Name, err)
		}
		staging := k.dirs.blockStage(op.innerName)
		if err := k.cfg.Host.MkdirAll(staging, 0o750); err != nil {
			return csiErrorf("blockMapper.stageVolumeForBlock failed to create dir %s: %v", staging, err)
		}
		return c.stage(ctx, mountArgs{volumeID: src.VolumeHandle, publishContext: pubCtx, volumeContext: src.VolumeAttributes,
			secrets: secrets, accessMode: op.spec.accessMode(), block: true}, staging)
	}()
	if err != nil && finished(err) {
		if cerr := k.cleanBlockFiles(op.innerName); cerr != nil {
			k.log.Debug("failed to clean up block volume directory", "error", cerr)
		}
	}
	return err
}

// mapPodDevice publishes a block volume (csi_block.go, MapPodDevice).
func (k *Kubelet) mapPodDevice(ctx context.Context, op operation) (string, error) {
	src := op.spec.csi()
	pubCtx, err := k.publishContext(op.spec)
	if err != nil {
		return "", transientf("blockMapper.MapPodDevice failed to get volume attachment [id=%v]: %v", attachmentName(src.VolumeHandle, src.Driver, k.cfg.NodeName), err)
	}
	ctx, cancel := context.WithTimeout(ctx, k.t.CSICall)
	defer cancel()
	c, err := k.client(src.Driver)
	if err != nil {
		return "", transientf("blockMapper.MapPodDevice failed to get CSI client: %v", err)
	}
	obj, err := k.csiDriver(src.Driver)
	if err != nil {
		return "", transientf("blockMapper.publishVolumeForBlock failed to assemble volume attributes: %v", err)
	}
	secrets, err := k.secret(src.NodePublishSecretRef)
	if err != nil {
		return "", transientf("blockMapper.publishVolumeForBlock failed to get NodePublishSecretRef %s/%s: %v", src.NodePublishSecretRef.Namespace, src.NodePublishSecretRef.Name, err)
	}
	target := k.dirs.blockPublish(op.innerName, op.uid)
	if err := k.cfg.Host.MkdirAll(path.Dir(target), 0o750); err != nil {
		return "", csiErrorf("blockMapper.publishVolumeForBlock failed to create dir %s:  %v", path.Dir(target), err)
	}
	err = c.publish(ctx, mountArgs{volumeID: src.VolumeHandle, publishContext: pubCtx, volumeContext: podInfo(obj, op.pod, src.VolumeAttributes),
		secrets: secrets, accessMode: op.spec.accessMode(), block: true}, k.dirs.blockStage(op.innerName), target, op.spec.readOnly)
	return target, err
}

// mapDevice bind-mounts the device into the global map path and links it in
// the pod's (pkg/volume/util/util.go:422, without the loop device there).
func (k *Kubelet) mapDevice(device string, op operation) error {
	h := k.cfg.Host
	global := k.dirs.blockGlobal(op.innerName)
	if err := h.MkdirAll(global, 0o750); err != nil {
		return fmt.Errorf("failed to mkdir %s: %v", global, err)
	}
	file := path.Join(global, op.uid)
	if is, err := k.isDevice(file); err != nil {
		return err
	} else if !is {
		if err := h.WriteFile(file, nil, 0o660); err != nil {
			return fmt.Errorf("failed to open file %s: %v", file, err)
		}
		if err := h.Mounter().Mount(device, file, "", []string{"bind"}); err != nil {
			return fmt.Errorf("failed to bind mount devicePath: %s to linkPath %s: %v", device, file, err)
		}
	}
	dir, link := k.dirs.blockPodDir(op.uid), k.dirs.blockPodLink(op.uid, op.innerName)
	if err := h.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("failed to mkdir %s: %v", dir, err)
	}
	if err := k.remove(link); err != nil {
		return fmt.Errorf("failed to remove file %s: %v", link, err)
	}
	return h.Symlink(device, link)
}

func (k *Kubelet) isDevice(p string) (bool, error) {
	fi, err := k.cfg.Host.Lstat(p)
	if missing(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("failed to Lstat file %s: %v", p, err)
	}
	return fi.Mode()&fs.ModeDevice != 0, nil
}

// unmapVolume takes a block volume from a pod (operation_generator.go:1174).
func (k *Kubelet) unmapVolume(ctx context.Context, op operation) error {
	data, err := k.loadData(k.dirs.blockData(op.innerName))
	if err != nil {
		return opError("UnmapVolume.NewUnmapper failed", op.spec, csiErrorf("unmapper failed to load volume data file [%s]: %v", k.dirs.blockData(op.innerName), err))
	}
	k.mu.Lock()
	k.world.setPod(op.volume, op.uid, op.spec, uncertain)
	k.mu.Unlock()
	if err := k.unmapDevice(op); err != nil {
		return opError("UnmapVolume.UnmapBlockVolume failed", op.spec, err)
	}
	err = func() error {
		c, err := k.client(data[keyDriver])
		if err != nil {
			return transientf("blockMapper.UnmapPodDevice failed to get CSI client: %v", err)
		}
		ctx, cancel := context.WithTimeout(ctx, k.t.CSICall)
		defer cancel()
		if err := c.unpublish(ctx, data[keyHandle], k.dirs.blockPublish(op.innerName, op.uid)); err != nil {
			return csiErrorf("blockMapper.unpublishVolumeForBlock failed: %v", err)
		}
		return nil
	}()
	if err != nil {
		return opError("UnmapVolume.UnmapPodDevice failed", op.spec, err)
	}
	k.mu.Lock()
	k.world.dropPod(op.volume, op.uid)
	k.mu.Unlock()
	return nil
}

// unmapDevice undoes mapDevice, the pod's link first (util.go:460).
func (k *Kubelet) unmapDevice(op operation) error {
	if err := k.remove(k.dirs.blockPodLink(op.uid, op.innerName)); err != nil {
		return err
	}
	file := path.Join(k.dirs.blockGlobal(op.innerName), op.uid)
	is, err := k.isDevice(file)
	if err != nil {
		return err
	}
	if is {
		if err := k.cfg.Host.Mounter().Unmount(file); err != nil {
			return fmt.Errorf("failed to unmount linkPath %s: %v", file, err)
		}
	}
	return k.remove(file)
}

// unmapBlockDevice unstages a block volume that no pod uses
// (operation_generator.go:1282, csi_block.go, TearDownDevice).
func (k *Kubelet) unmapBlockDevice(ctx context.Context, op operation) error {
	name := op.spec.name()
	global := k.dirs.blockGlobal(name)
	data, err := k.loadData(k.dirs.blockData(name))
	if err != nil {
		return opError("UnmapDevice.NewUnmapper failed", op.spec, csiErrorf("unmapper failed to load volume data file [%s]: %v", k.dirs.blockData(name), err))
	}
	entries, err := k.cfg.Host.ReadDir(global)
	if err != nil && !missing(err) {
		return opError("UnmapDevice.GetDeviceBindMountRefs check failed", op.spec, err)
	}
	var refs []string
	for _, e := range entries {
		p := path.Join(global, e.Name())
		if is, err := k.isDevice(p); err == nil && is {
			refs = append(refs, p)
		}
	}
	if len(refs) > 0 {
		return opError("UnmapDevice failed", op.spec, fmt.Errorf("the device %q is still referenced from other Pods %v", global, refs))
	}
	k.mu.Lock()
	k.world.setDevice(op.volume, uncertain, "", global)
	k.mu.Unlock()
	if err := k.tearDownBlock(ctx, name, data); err != nil {
		return opError("UnmapDevice.TearDownDevice failed", op.spec, err)
	}
	if err := k.removeTree(global, false); err != nil {
		return opError("UnmapDevice.RemoveMapPath failed", op.spec, err)
	}
	k.mu.Lock()
	k.world.setDevice(op.volume, notMounted, "", "")
	k.mu.Unlock()
	return nil
}

func (k *Kubelet) tearDownBlock(ctx context.Context, name string, data volumeData) error {
	ctx, cancel := context.WithTimeout(ctx, k.t.CSICall)
	defer cancel()
	c, err := k.client(data[keyDriver])
	if err != nil {
		return transientf("blockMapper.TearDownDevice failed to get CSI client: %v", err)
	}
	staging := k.dirs.blockStage(name)
	// Kubelet skips the call when the staging path is gone (kubernetes#129825).
	if _, err := k.cfg.Host.Stat(staging); err == nil {
		hasStage, err := c.supportsStage(ctx)
		if err != nil {
			return csiErrorf("blockMapper.unstageVolumeForBlock failed to check STAGE_UNSTAGE_VOLUME capability: %v", err)
		}
		if hasStage {
			if err := c.unstage(ctx, data[keyHandle], staging); err != nil {
				return csiErrorf("blockMapper.unstageVolumeForBlock failed: %v", err)
			}
			if err := k.removeTree(staging, false); err != nil {
				return csiErrorf("blockMapper.unstageVolumeForBlock failed to remove staging path after NodeUnstageVolume() error [%s]: %v", staging, err)
			}
		}
	} else if !missing(err) {
		return err
	}
	if err := k.cleanBlockFiles(name); err != nil {
		k.log.Debug("failed to clean up block volume directory", "error", err)
	}
	return nil
}

// cleanBlockFiles removes what staging and publishing left
// (csi_block.go:480, cleanupOrphanDeviceFiles). It stops at the first error: a
// volume that is still published keeps its data file, or it could never be
// unpublished.
func (k *Kubelet) cleanBlockFiles(name string) error {
	if err := k.remove(k.dirs.blockPublishDir(name)); err != nil {
		return err
	}
	if err := k.remove(k.dirs.blockStage(name)); err != nil {
		return err
	}
	return k.removeTree(k.dirs.blockVolume(name), false)
}
