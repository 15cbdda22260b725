// Command mutants builds deliberately wrong drivers and simulators and shows
// which of csilab's judges tells each from the right one: sanity, scenarios,
// sweep or soak. A mutant is an edit of one file that the compiler sees through
// an overlay; nothing of it is in the product.
package main

// Mutant is one deliberate mistake.
type Mutant struct {
	Name string // unique, words joined by dashes
	Text string // the mistake, in one sentence
	// File is edited, relative to the project's root: Old, which is there exactly
	// once, becomes New.
	File, Old, New string
	// Systems are those that it shows on, e.g. "vsphere", "hpe-iscsi".
	Systems []string
	// Flows are those that the code is part of: what a sweep takes.
	Flows []string
}

var (
	onBoth    = []string{"vsphere", "hpe-iscsi"}
	onVSphere = []string{"vsphere"}
	onHPE     = []string{"hpe-iscsi"}
)

// Mutants are all, the driver's first.
var Mutants = []Mutant{
	{
		Name: "detach-ok-on-error", Text: "ControllerUnpublishVolume answers OK whatever the backend said (kubernetes-sigs/vsphere-csi-driver#1038)",
		File: "driver/controller/volume.go",
		Old: `		return s.backend.Detach(ctx, r.GetVolumeId(), r.GetNodeId())
	})
	if err != nil {`,
		New: `		return s.backend.Detach(ctx, r.GetVolumeId(), r.GetNodeId())
	})
	if err != nil && r.GetVolumeId() == "" {`,
		Systems: onBoth, Flows: []string{"detach", "move"},
	},
	{
		Name: "detach-lookup-error-is-gone", Text: "a look-up of the VM that fails counts as a VM that is gone (kubernetes-sigs/vsphere-csi-driver#1038)",
		File: "driver/vsphere/attach.go",
		Old: `				if vm, err = b.machine(ctx, node); err != nil {
					return false, err
				}
			}
			if vm == nil {
				return true, b.gone(ctx, volume, node)`,
		New: `				if vm, err = b.machine(ctx, node); err != nil {
					return true, nil
				}
			}
			if vm == nil {
				return true, b.gone(ctx, volume, node)`,
		Systems: onVSphere, Flows: []string{"detach"},
	},
	{
		Name: "task-id-lost", Text: "a caller that gives up takes the record of the running task with it (kubernetes-sigs/vsphere-csi-driver#4258)",
		File: "driver/vsphere/operation.go",
		Old: `	if err != nil {
		return nil, err
	}
	out := &outcome`,
		New: `	if err != nil {
		if !errors.Is(err, errTaskGone) {
			_ = b.records.Delete(context.WithoutCancel(ctx), rec.Key)
		}
		return nil, err
	}
	out := &outcome`,
		Systems: onVSphere, Flows: []string{"provision", "attach"},
	},
	{
		Name: "settle-forgotten", Text: "what an earlier attempt left running is not waited for: each attempt starts its own task",
		File: "driver/vsphere/operation.go",
		Old: `	case rec.Done:
		return nil, nil
	}
	if host`,
		New: `	case rec.Done, rec.Task != "":
		return nil, nil
	}
	if host`,
		Systems: onVSphere, Flows: []string{"provision", "attach"},
	},
	{
		Name: "session-never-renewed", Text: "a session that the vCenter has ended is used on",
		File: "driver/vsphere/call.go",
		Old: `	case *types.NotAuthenticated:
		return true`,
		New: `	case *types.NotAuthenticated:
		return false`,
		Systems: onVSphere, Flows: []string{"provision", "attach"},
	},
	{
		Name: "mkfs-on-unreadable-device", Text: "a device of which blkid knows nothing is formatted without a look at it (kubernetes#142243, hetznercloud/csi-driver#1346)",
		File:    "driver/node/filesystem.go",
		Old:     `		return "", s.blank(device)`,
		New:     `		return "", nil`,
		Systems: onBoth, Flows: []string{"stage"},
	},
	{
		Name: "fsck-skipped", Text: "a filesystem with errors is mounted as it is (hpe-storage/csi-driver#416)",
		File:    "driver/node/filesystem.go",
		Old:     `	_, err := s.run("fsck", "-a", device)`,
		New:     `	_, err := []byte(nil), error(nil)`,
		Systems: onBoth, Flows: []string{"stage"},
	},
	{
		Name: "filesystem-not-grown", Text: "the filesystem stays as small as it was when its device grows",
		File:    "driver/node/filesystem.go",
		Old:     "	case \"ext3\", \"ext4\":\n		_, err := s.run(\"resize2fs\", device)\n		return err\n	case \"xfs\":\n		_, err := s.run(\"xfs_growfs\", \"-d\", mounted)\n		return err",
		New:     "	case \"ext3\", \"ext4\", \"xfs\":\n		return nil",
		Systems: onBoth, Flows: []string{"expand"},
	},
	{
		Name: "no-node-expansion", Text: "ControllerExpandVolume says that the node has nothing to do",
		File:    "driver/controller/volume.go",
		Old:     `NodeExpansionRequired: true}`,
		New:     `NodeExpansionRequired: false}`,
		Systems: onBoth, Flows: []string{"expand"},
	},
	{
		Name: "dead-staging-mount-kept", Text: "what is mounted at the staging path counts as staged though its device is gone (kubernetes#121937)",
		File: "driver/node/stage.go",
		Old: `	if dead := s.alive(p, top.Device); dead != nil {
		s.log.Warn("staging path`,
		New: `	if dead := s.alive(p, top.Device); dead != nil {
		return false, nil
	}
	if dead := s.alive(p, top.Device); dead != nil {
		s.log.Warn("staging path`,
		Systems: onBoth, Flows: []string{"stage", "publish"},
	},
	{
		Name: "other-volume-staged-is-ok", Text: "any device at the staging path counts as the volume",
		File: "driver/node/stage.go",
		Old: `	if !s.sameDevice(top.Device, device) {
		return false, status.Errorf(codes.AlreadyExists, "%s has %s mounted`,
		New: `	if false {
		return false, status.Errorf(codes.AlreadyExists, "%s has %s mounted`,
		Systems: onBoth, Flows: []string{"stage"},
	},
	{
		Name: "unstage-without-unmount", Text: "NodeUnstageVolume answers OK and leaves the mount",
		File: "driver/node/stage.go",
		Old: `	if _, err := s.unmountAll(p); err != nil {
		return nil, fail(ctx, codes.Internal, "unmount: %w", err)
	}
	if err := s.cfg.Backend.Release(ctx, volume, device); err != nil {`,
		New:     `	if err := error(nil); err != nil {`,
		Systems: onBoth, Flows: []string{"detach"},
	},
	{
		Name: "device-not-released", Text: "NodeUnstageVolume leaves the paths and the map of the device on the node (hpe-storage/csi-driver, CON-2445)",
		File:    "driver/node/stage.go",
		Old:     `	if err := s.cfg.Backend.Release(ctx, volume, device); err != nil {`,
		New:     `	if err := error(nil); err != nil {`,
		Systems: onHPE, Flows: []string{"detach"},
	},
	{
		Name: "failed-stage-leaves-mount", Text: "a NodeStageVolume that fails after its mount leaves it (GoogleCloudPlatform/gcs-fuse-csi-driver#1576)",
		File: "driver/node/stage.go",
		Old: `	_, uerr := s.unmountAll(p)
	return errors.Join(err, uerr)`,
		New: `	_ = p
	return err`,
		Systems: onBoth, Flows: []string{"stage"},
	},
	{
		Name: "plain-directory-published", Text: "NodePublishVolume binds the staging path whether the volume is staged there or not (kubernetes#86360)",
		File: "driver/node/publish.go",
		Old: `		} else if len(at) == 0 {
			return nil, status.Errorf(codes.FailedPrecondition, "the volume is not staged at %s", staging)
		}
		staged = at[len(at)-1]
	}
	if a.fs.Share != "" {
		if err := s.publishableShare(staging, staged, a, req.GetReadonly()); err != nil {
			return nil, err
		}
		if err := s.bind(ctx, binding{source: staging, target: target, staging: staging, staged: staged, options: bindOptions(a, req.GetReadonly())}, a.oneAtop); err != nil {
			return nil, err
		}
		s.known.put(target, volume)
		return &csi.NodePublishVolumeResponse{}, nil
	}
	device, err := s.cfg.Backend.Device(ctx, v, false)
	if err != nil {
		return nil, fail(ctx, codes.Internal, "device of volume %q: %w", volume, err)
	}
	b := binding{source: device, target: target, staging: staging}
	if !a.block {
		b.source = staging
		if err := s.publishable(staging, device, a, req.GetReadonly()); err != nil {
			return nil, err
		}`,
		New: `		}
		if len(at) > 0 {
			staged = at[len(at)-1]
		}
	}
	if a.fs.Share != "" {
		if err := s.publishableShare(staging, staged, a, req.GetReadonly()); err != nil {
			return nil, err
		}
		if err := s.bind(ctx, binding{source: staging, target: target, staging: staging, staged: staged, options: bindOptions(a, req.GetReadonly())}, a.oneAtop); err != nil {
			return nil, err
		}
		s.known.put(target, volume)
		return &csi.NodePublishVolumeResponse{}, nil
	}
	device, _ := s.cfg.Backend.Device(ctx, v, false)
	b := binding{source: device, target: target, staging: staging}
	if !a.block {
		b.source = staging`,
		Systems: onBoth, Flows: []string{"publish"},
	},
	{
		Name: "read-only-filesystem-published", Text: "a filesystem that went read-only is published writable (longhorn/longhorn#7843)",
		File:    "driver/node/publish.go",
		Old:     `	if isReadOnly(top) && !a.readOnly && !readOnly {`,
		New:     `	if false {`,
		Systems: onBoth, Flows: []string{"publish"},
	},
	{
		Name: "read-only-forgotten", Text: "readonly of NodePublishVolume is ignored",
		File: "driver/node/publish.go",
		Old: `	if readOnly || a.readOnly {
		o = append(o, "ro")`,
		New: `	if false {
		o = append(o, "ro")`,
		Systems: onBoth, Flows: []string{"publish"},
	},
	{
		Name: "unpublish-errors-ignored", Text: "an unpublish that the storage provider refused counts as done (hpe-storage/csi-driver#518)",
		File: "driver/hpe/publish.go",
		Old: `		if err := s.Unpublish(ctx, volume, uuid); err != nil {
			return fail(ctx, err, nil, "unpublishing volume %s from node %s", volume, uuid)
		}`,
		New: `		if err := s.Unpublish(ctx, volume, uuid); err != nil {
			return nil
		}`,
		Systems: onHPE, Flows: []string{"detach"},
	},
	{
		Name: "unexported-lun-taken", Text: "a publication without a LUN (-1) is passed on to the node (hpe-storage/csi-driver, CON-4496)",
		File:    "driver/hpe/publish.go",
		Old:     `	case l.Number < 0 || l.Number > 16383:`,
		New:     `	case l.Number < -1 || l.Number > 16383:`,
		Systems: onHPE, Flows: []string{"attach", "stage"},
	},
	{
		Name: "snapshot-of-restore-deleted", Text: "the snapshot that a volume was restored from is deleted as if it were the driver's own (hpe-storage/csi-driver, CON-2166)",
		File: "driver/hpe/volume.go",
		Old: `	if r.Source != "" {
		b.forgetCloneSnapshot(ctx, s, r.Source, r.Name)
	}`,
		New: `	if r.Snapshot != "" {
		_ = s.DeleteSnapshot(ctx, r.Snapshot)
	}`,
		Systems: onHPE, Flows: []string{"restore", "delete"},
	},
	{
		Name: "copy-not-waited-for", Text: "a volume counts as made while its content is still being copied",
		File: "driver/hpe/volume.go",
		Old: `	switch state := v.Background(); {
	case state == "":
		return nil`,
		New: `	switch state := v.Background(); {
	case state != "?":
		return nil`,
		Systems: onHPE, Flows: []string{"clone"},
	},
	{
		Name: "lun-trusted-over-serial", Text: "where no path has the volume's serial number, what is at its LUN is taken (hpe-storage/csi-driver, CON-2445)",
		File: "driver/node/san/device.go",
		Old: `		case len(others) > 0:
			return not("no path has this serial number; at LUN %v, %s", e.luns(), strings.Join(others, ", "))`,
		New: `		case len(others) > 0:
			for _, d := range b.disks {
				if e.hasLUN(d.lun) && d.holder.multipath() {
					return d.holder.node(), nil
				}
			}
			return not("no path has this serial number")`,
		Systems: onHPE, Flows: []string{"stage"},
	},
	{
		Name: "stale-paths-kept", Text: "paths that were another volume's are left on the node when their LUN is given to the volume (hpe-storage/csi-driver, CON-2446)",
		File: "driver/node/san/device.go",
		Old: `	case now == e.serial && d.wwn != e.serial:
		// Its LUN was given to the volume. The kernel, and whoever uses the device,
		// take it for the one of before.
		return fmt.Sprintf("it was %s and is %s now", d.wwn, now)
	case now != e.serial && member:
		return fmt.Sprintf("a path of the volume, but it is %s", now)
	case now != d.wwn && d.wwn == e.serial:
		return fmt.Sprintf("it was the volume and is %s now", now)
	}
	if m := d.holder; m.multipath() && now != "" && m.uuid != mapUUID(now) {`,
		New: `	case now != e.serial && member:
		return fmt.Sprintf("a path of the volume, but it is %s", now)
	}
	if m := d.holder; false {`,
		Systems: onHPE, Flows: []string{"stage", "move"},
	},
	{
		Name: "share-left-open", Text: "ControllerUnpublishVolume of a share answers OK and leaves the node among those that may mount it",
		File: "driver/hpe/file.go",
		Old: `	if left := allClients(rec.Params); len(left) > 0 {
		_, err = s.PublishFile(`,
		New: `	if left := allClients(rec.Params); len(leave) > 0 {
		err = nil
	} else if len(left) > 0 {
		_, err = s.PublishFile(`,
		Systems: onHPE, Flows: []string{"share"},
	},
	{
		Name: "share-for-the-last-node", Text: "a share is for the node that it was published to last, and for no other that has it",
		File:    "driver/hpe/file.go",
		Old:     `	p, err := s.PublishFile(ctx, r.Volume, strings.Join(all, ","))`,
		New:     `	p, err := s.PublishFile(ctx, r.Volume, strings.Join(clients, ","))`,
		Systems: onHPE, Flows: []string{"share"},
	},
	{
		Name: "stale-share-is-gone", Text: "NodeUnstageVolume takes a mount with stale handles (ESTALE) for one that is gone, and leaves it",
		File: "driver/node/share.go",
		Old: `func (s *Service) unstageShare(ctx context.Context, volume, p string, top mount.MountPoint) error {
`,
		New: `func (s *Service) unstageShare(ctx context.Context, volume, p string, top mount.MountPoint) error {
	if s.dead(p, top) != nil {
		return nil
	}
`,
		Systems: onHPE, Flows: []string{"share"},
	},
	{
		Name: "share-not-deleted", Text: "DeleteVolume of a share answers OK and leaves it on the array",
		File: "driver/hpe/volume.go",
		Old: `	case v.Published && isFiles(v):
		if err := b.unshare(ctx, s, id); err != nil {
			return err
		}
`,
		New: `	case isFiles(v):
		return b.deleted(ctx, s, id)
`,
		Systems: onHPE, Flows: []string{"share"},
	},

	// Wrong simulators, and a wrong control plane.
	{
		Name: "vcenter-double-attach", Text: "a vCenter that attaches a volume to a second VM",
		File:    "sim/vcenter/cns/attach.go",
		Old:     `		if a.VM == want.VM || a.share() == "" || a.share() != want.share() {`,
		New:     `		if a.VM == want.VM {`,
		Systems: onVSphere, Flows: []string{"move", "failover"},
	},
	{
		Name: "array-keeps-exports", Text: "an array that answers OK to the removal of an export and keeps it",
		File: "sim/array/vlun.go",
		Old: `	a.unexport(x)
	a.log(now, Removed, "vlun", o.Volume)
	return o, nil`,
		New: `	a.log(now, Removed, "vlun", o.Volume)
	return o, nil`,
		Systems: onHPE, Flows: []string{"detach"},
	},
	{
		Name: "snapshot-is-live", Text: "a snapshot that goes on changing with its volume",
		File: "sim/disk/memory.go",
		Old: `	im.snaps[snap], im.data = copyOf(im.data)
	im.gens[snap]`,
		New: `	im.snaps[snap] = im.data
	im.gens[snap]`,
		Systems: onBoth, Flows: []string{"snapshot", "restore"},
	},
	{
		Name: "detached-while-mounted", Text: "an attach/detach controller that does not look whether the node still has the volume mounted",
		File: "sim/kube/attachdetach/sync.go",
		Old: `	if s.mounted(node, n) && !force && !taint {
		if s.now.Before(due) && !s.noForce {
			s.at(due)
		}
		return nil
	}
	// First the node must know that the volume is not safe to mount any more.
	was := s.unreport(node, s.v.name)
	if err := s.writeNode(ctx, node); err != nil {
		if was {
			s.report(node, s.v.name)
		}
		return err
	}
	o := s.begin(detach, node)
	if !force && !taint { // operation_generator.go, verifyVolumeIsSafeToDetach
		if n, err := store.See[corev1.Node](s.c, "", node); err == nil && slices.Contains(n.Status.VolumesInUse, corev1.UniqueVolumeName(s.v.name)) {`,
		New: `	if s.mounted(node, n) && n == nil {
		if s.now.Before(due) && !s.noForce {
			s.at(due)
		}
		return nil
	}
	// First the node must know that the volume is not safe to mount any more.
	was := s.unreport(node, s.v.name)
	if err := s.writeNode(ctx, node); err != nil {
		if was {
			s.report(node, s.v.name)
		}
		return err
	}
	o := s.begin(detach, node)
	if !force && !taint { // operation_generator.go, verifyVolumeIsSafeToDetach
		if n, err := store.See[corev1.Node](s.c, "", node); err != nil && n == nil {`,
		Systems: onBoth, Flows: []string{"detach", "failover"},
	},
	{
		Name: "unstage-skipped", Text: "a kubelet that does not unstage",
		File: "kubeletsim/csiclient.go",
		Old: `		_, err := n.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})
		return err`,
		New:     `		return nil`,
		Systems: onBoth, Flows: []string{"detach"},
	},
	{
		Name: "new-name-for-each-attempt", Text: "a provisioner that gives each attempt a name of its own",
		File:    "sim/kube/provisioner/request.go",
		Old:     `		Name:          "pvc-" + string(pvc.UID),`,
		New:     `		Name:          fmt.Sprintf("pvc-%.20s-%p", pvc.UID, new(int)),`,
		Systems: onBoth, Flows: []string{"provision"},
	},
}
