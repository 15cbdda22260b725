package host

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/mount-utils"
	"k8s.io/utils/exec"
)

// mountCommands is the part of mount.Interface that runs mount and umount, with
// the calls, texts and quirks of mount-utils' Linux mounter (mount_linux.go at
// v0.37.2).
type mountCommands struct{ exec exec.Interface }

func (m mountCommands) mount(args []string, logged string) error {
	out, err := m.exec.Command("mount", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("mount failed: %w\nMounting command: mount\nMounting arguments: %s\nOutput: %s", err, logged, out)
	}
	return nil
}

func (m mountCommands) Mount(source, target, fstype string, options []string) error {
	return m.MountSensitive(source, target, fstype, options, nil)
}

func (m mountCommands) MountSensitive(source, target, fstype string, options, sensitive []string) error {
	return m.MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype, options, sensitive, nil)
}

func (m mountCommands) MountSensitiveWithoutSystemd(source, target, fstype string, options, sensitive []string) error {
	return m.MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype, options, sensitive, nil)
}

func (m mountCommands) MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype string, options, sensitive, flags []string) error {
	bind, bindOpts, again, againSensitive := mount.MakeBindOptsSensitive(options, sensitive)
	if !bind {
		args, logged := mountArgs(source, target, fstype, options, sensitive, flags)
		return m.mount(args, logged)
	}
	// A bind mount ignores other options, so that it takes two calls.
	args, logged := mountArgs(source, target, fstype, bindOpts, nil, flags)
	if err := m.mount(args, logged); err != nil {
		return err
	}
	args, logged = mountArgs(source, target, fstype, again, againSensitive, flags)
	return m.mount(args, logged)
}

// mountArgs are the arguments of mount(8), and how they are logged.
func mountArgs(source, target, fstype string, options, sensitive, flags []string) (args []string, logged string) {
	args = slices.Clone(flags)
	if fstype != "" {
		args = append(args, "-t", fstype)
	}
	shown := slices.Clone(args)
	if all := append(slices.Clone(options), sensitive...); len(all) > 0 {
		args = append(args, "-o", strings.Join(all, ","))
		masked := slices.Clone(options)
		for range sensitive {
			masked = append(masked, "<masked>")
		}
		shown = append(shown, "-o", strings.Join(masked, ","))
	}
	for _, s := range []string{source, target} {
		if s != "" {
			args, shown = append(args, s), append(shown, s)
		}
	}
	return args, strings.Join(shown, " ")
}

// Unmount implements mount.Interface. What is not mounted is no error, as with
// any umount that says "not mounted" (safe behaviour of mount-utils).
func (m mountCommands) Unmount(target string) error {
	out, err := m.exec.Command("umount", target).CombinedOutput()
	if err == nil || strings.Contains(string(out), "not mounted") {
		return nil
	}
	return fmt.Errorf("unmount failed: %w\nUnmounting arguments: %s\nOutput: %s", err, target, out)
}
