package main

import (
	"context"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// pluginInfo SOCKET NAME asks a driver for its name, as sidecars do.
func pluginInfo(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cc, err := grpc.NewClient("unix://"+args[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	ts.Check(err)
	defer cc.Close()
	r, err := csi.NewIdentityClient(cc).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	ts.Check(err)
	if r.GetName() != args[1] {
		ts.Fatalf("the driver is %q, want %q", r.GetName(), args[1])
	}
}
