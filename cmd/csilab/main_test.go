package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/cns"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/types"
	"sigs.k8s.io/yaml"

	"github.com/csilab/csilab/cmd/csilab/cli"
	"github.com/csilab/csilab/driver"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/host"
)

func TestMain(m *testing.M) {
	sim.Main()
	testscript.Main(m, map[string]func(){
		"csilab": func() {
			os.Exit(cli.Main(cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, os.Args[1:]))
		},
		"csi-driver": func() { os.Exit(driver.Main(os.Args[1:], os.Getenv, os.Stdout, os.Stderr)) },
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			// Unix sockets of a lab need a short path: not testscript's own.
			e.Setenv("TMPDIR", os.TempDir())
			e.Setenv("UID", strconv.Itoa(os.Getuid()))
			short, err := os.MkdirTemp("", "csilab-cli")
			if err != nil {
				return err
			}
			e.Setenv("SHORT", filepath.Join(short, "t"))
			e.Defer(func() { os.RemoveAll(short) })
			return nil
		},
		// [root]: this machine can have real nodes.
		Condition: func(cond string) (bool, error) {
			if cond != "root" {
				return false, fmt.Errorf("unknown condition %q", cond)
			}
			return host.RealSupported() == nil, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "waitfile": waitfile, "waitlab": waitlab, "nolab": nolab, "mkvolume": mkvolume, "touchvolume": touchvolume, "volumes": volumes, "mkvv": mkvv, "for-kinds": forKinds, "plugininfo": pluginInfo},
	})
}

// exits CODE PROGRAM ARGS… runs a program and requires its exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS…")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if err != nil {
		got = err.Error()
		if e, ok := err.(interface{ ExitCode() int }); ok {
			got = strconv.Itoa(e.ExitCode())
		}
	}
	if got != args[0] {
		ts.Fatalf("exit code %s, want %s\n%s", got, args[0], ts.ReadFile("stderr"))
	}
}

// labs lists the directories of labs below a temporary directory.
func labs(ts *testscript.TestScript, tmp string) []string {
	dirs, err := filepath.Glob(filepath.Join(ts.MkAbs(tmp), "csilab-*", "l[0-9]*"))
	ts.Check(err)
	return dirs
}

// waitlab DIR waits until a lab lives below a temporary directory.
func waitlab(ts *testscript.TestScript, _ bool, args []string) {
	deadline := time.After(30 * time.Second)
	for len(labs(ts, args[0])) == 0 {
		select {
		case <-deadline:
			ts.Fatalf("no lab appeared")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// nolab DIR requires that no lab is left below a temporary directory.
func nolab(ts *testscript.TestScript, _ bool, args []string) {
	if left := labs(ts, args[0]); len(left) > 0 {
		ts.Fatalf("left behind: %v", left)
	}
}

// waitfile FILE waits until a file is there.
func waitfile(ts *testscript.TestScript, _ bool, args []string) {
	deadline := time.After(30 * time.Second)
	for {
		if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
			return
		}
		select {
		case <-deadline:
			ts.Fatalf("%s did not appear", args[0])
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// cnsOf logs in where an environment file says, as a user of serve does.
func cnsOf(ts *testscript.TestScript, env, variable string) (ctx context.Context, c *cns.Client, end func()) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	for line := range strings.Lines(ts.ReadFile(env)) {
		v, ok := strings.CutPrefix(strings.TrimSpace(line), variable+"=")
		if !ok {
			continue
		}
		u, err := url.Parse(strings.Trim(v, "'"))
		ts.Check(err)
		vc, err := govmomi.NewClient(ctx, u, true)
		ts.Check(err)
		c, err := cns.NewClient(ctx, vc.Client)
		ts.Check(err)
		return ctx, c, func() { vc.Logout(ctx); vc.CloseIdleConnections(); cancel() }
	}
	ts.Fatalf("%s: no %s", env, variable)
	return nil, nil, nil
}

// mkvolume ENV NAME [VARIABLE] makes a volume of 1 MiB on the vCenter that an
// environment file names.
func mkvolume(ts *testscript.TestScript, neg bool, args []string) {
	variable := "CSILAB_VCENTER_URL"
	if len(args) == 3 {
		variable = args[2]
	}
	ctx, c, end := cnsOf(ts, args[0], variable)
	defer end()
	task, err := c.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{{
		Name: args[1], VolumeType: string(cnstypes.CnsVolumeTypeBlock),
		Metadata: cnstypes.CnsVolumeMetadata{ContainerCluster: cnstypes.CnsContainerCluster{
			ClusterType: string(cnstypes.CnsClusterTypeKubernetes), ClusterId: "script", ClusterFlavor: string(cnstypes.CnsClusterFlavorVanilla), VSphereUser: "u@v"}},
		BackingObjectDetails: &cnstypes.CnsBlockBackingDetails{CnsBackingObjectDetails: cnstypes.CnsBackingObjectDetails{CapacityInMb: 1}},
	}})
	ended(ts, neg, ctx, task, err)
}

// touchvolume ENV NAME writes the metadata of a volume.
func touchvolume(ts *testscript.TestScript, neg bool, args []string) {
	ctx, c, end := cnsOf(ts, args[0], "CSILAB_VCENTER_URL")
	defer end()
	r, err := c.QueryAllVolume(ctx, cnstypes.CnsQueryFilter{Names: []string{args[1]}}, cnstypes.CnsQuerySelection{})
	ts.Check(err)
	task, err := c.UpdateVolumeMetadata(ctx, []cnstypes.CnsVolumeMetadataUpdateSpec{{VolumeId: r.Volumes[0].VolumeId, Metadata: r.Volumes[0].Metadata}})
	ended(ts, neg, ctx, task, err)
}

// ended waits for the end of a task with one volume.
func ended(ts *testscript.TestScript, neg bool, ctx context.Context, task *object.Task, err error) {
	if err == nil {
		var info *types.TaskInfo
		if info, err = task.WaitForResultEx(ctx); err == nil {
			if f := info.Result.(cnstypes.CnsVolumeOperationBatchResult).VolumeResults[0].GetCnsVolumeOperationResult().Fault; f != nil {
				err = fmt.Errorf("%s", f.LocalizedMessage)
			}
		}
	}
	if (err != nil) != neg {
		ts.Fatalf("volume: %v", err)
	}
}

// volumes ENV NAME… requires that there are these volumes and no others.
func volumes(ts *testscript.TestScript, _ bool, args []string) {
	ctx, c, end := cnsOf(ts, args[0], "CSILAB_VCENTER_URL")
	defer end()
	r, err := c.QueryAllVolume(ctx, cnstypes.CnsQueryFilter{}, cnstypes.CnsQuerySelection{})
	ts.Check(err)
	var names []string
	for _, v := range r.Volumes {
		names = append(names, v.Name)
	}
	slices.Sort(names)
	if !slices.Equal(names, args[1:]) {
		ts.Fatalf("volumes %q, want %q", names, args[1:])
	}
}

// mkvv ENV NAME [CLIENTS] makes a volume over the storage provider that an
// environment file names, as a driver does with the Secret that is written there,
// and publishes it to node-a, or as a share of files to clients.
func mkvv(ts *testscript.TestScript, _ bool, args []string) {
	env := map[string]string{}
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		env[k] = v
	}
	var secret struct{ StringData map[string]string }
	first, _, _ := strings.Cut(ts.ReadFile(env["CSILAB_HPE_SECRET"]), "---\n")
	ts.Check(yaml.Unmarshal([]byte(first), &secret))
	d := secret.StringData
	base := "http://" + net.JoinHostPort(d["serviceName"], d["servicePort"]) + "/containers/v1"
	if base != env["CSILAB_CSP_URL"]+"/containers/v1" {
		ts.Fatalf("the Secret leads to %s, the environment to %s", base, env["CSILAB_CSP_URL"])
	}
	token := ""
	call := func(method, path string, in any, out any) {
		b, err := json.Marshal(in)
		ts.Check(err)
		req, err := http.NewRequest(method, base+path, bytes.NewReader(b))
		ts.Check(err)
		req.Header.Set("x-auth-token", token)
		req.Header.Set("x-array-ip", d["backend"])
		req.Header.Set("Content-Type", "application/json")
		req.Close = true
		res, err := http.DefaultClient.Do(req)
		ts.Check(err)
		defer res.Body.Close()
		answer, err := io.ReadAll(res.Body)
		ts.Check(err)
		if res.StatusCode != http.StatusOK {
			ts.Fatalf("%s %s: %s %s", method, path, res.Status, answer)
		}
		ts.Check(json.Unmarshal(answer, out))
	}
	var session struct {
		Token string `json:"session_token"`
	}
	call("POST", "/tokens", map[string]string{"username": d["username"], "password": d["password"], "array_ip": d["backend"]}, &session)
	token = session.Token
	var v struct{ ID string }
	if len(args) > 2 {
		call("POST", "/volumes", map[string]any{"name": args[1], "size": 1 << 30, "config": map[string]any{"cpg": env["CSILAB_CPG"], "access_protocol": "nfs"}}, &v)
		var p struct {
			IP   string `json:"export_ip"`
			Path string `json:"mount_path"`
		}
		call("PUT", "/volumes/"+v.ID+"/actions/publish", map[string]string{"name": args[1], "access_protocol": "nfs", "access_control_list": args[2]}, &p)
		if p.IP != d["backend"] || p.Path != "/file/"+args[1]+"/"+args[1] {
			ts.Fatalf("the share is at %s:%s", p.IP, p.Path)
		}
		return
	}
	call("POST", "/volumes", map[string]any{"name": args[1], "size": 1 << 30, "config": map[string]any{"cpg": env["CSILAB_CPG"], "host_sees_vlun": "true"}}, &v)
	call("POST", "/hosts", map[string]any{"name": "node-a", "uuid": "u-a", "iqns": []string{"iqn.1994-05.com.redhat:a"}, "access_protocol": "iscsi"}, new(any))
	call("PUT", "/volumes/"+v.ID+"/actions/publish", map[string]string{"host_uuid": "u-a", "access_protocol": "iscsi"}, new(any))
}

// for-kinds ENV KIND… requires that get lists these kinds as tables.
func forKinds(ts *testscript.TestScript, _ bool, args []string) {
	for _, kind := range args[1:] {
		ts.Check(ts.Exec("csilab", "get", kind, "--env", args[0]))
		if out := ts.ReadFile("stdout"); !strings.HasPrefix(out, "ARRAY ") {
			ts.Fatalf("get %s: %s", kind, out)
		}
	}
}
