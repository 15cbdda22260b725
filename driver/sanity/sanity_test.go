// Package sanity_test runs csi-sanity over the driver on its sockets: mount and
// block volumes, on a node in memory and, as root, on a real one.
package sanity_test

import (
	"os"
	"strings"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
)

// skips are the specs that may be skipped, by a part of their text, with how
// many there are in one run and the capability that the driver rightly lacks.
// docs/csi-sanity.md has the same list.
var skips = []struct {
	text  string
	specs int
	why   string
	runs  int // suites in which it isn't skipped
}{
	{text: "should fail when publishing more volumes than the node max attach limit", specs: 1, runs: 1, why: "59 volumes: in one suite only, to save time"},
	{text: "should create volume from an existing source volume", specs: 1, why: "CLONE_VOLUME: CNS restores snapshots only"},
	{text: "should fail when the volume source volume is not found", specs: 1, why: "CLONE_VOLUME: CNS restores snapshots only"},
	{text: "should fail when the volume is already published but is incompatible", specs: 1, why: "PUBLISH_READONLY: a disk is attached writable"},
	{text: "ModifyVolume [Controller Server]", specs: 6, why: "MODIFY_VOLUME: no mutable parameters"},
	{text: "volume attribute class", specs: 2, why: "MODIFY_VOLUME: no mutable parameters"},
	{text: "ControllerGetVolumeHealth", specs: 2, why: "health RPCs of CSI 1.13 are alpha"},
	{text: "ControllerListVolumeHealth", specs: 1, why: "health RPCs of CSI 1.13 are alpha"},
	{text: "NodeGetVolumeHealth", specs: 2, why: "health RPCs of CSI 1.13 are alpha"},
	{text: "NodeGetStorageHealth", specs: 1, why: "health RPCs of CSI 1.13 are alpha"},
	{text: "should succeed when creating a snapshot with accessibility requirements", specs: 1, why: "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS: a snapshot lies with its volume"},
	{text: "GetSnapshot [Controller Server]", specs: 3, why: "GET_SNAPSHOT is alpha"},
	{text: "GroupController", specs: 6, why: "GROUP_CONTROLLER_SERVICE: CNS has no snapshots of groups"},
}

// unfinished are specs that csi-test v5.6.0 itself marks as pending (XIt).
const unfinished = 1

func TestMain(m *testing.M) { os.Exit(main(m)) }

var ran bool

func TestSanity(t *testing.T) {
	if ran {
		t.Skip("ginkgo runs a suite once per process")
	}
	ran = true
	gomega.RegisterFailHandler(ginkgo.Fail)
	worlds := map[string]*world{"memory": start(t, memory(t))}
	if real, err := real(t); err == nil {
		worlds["real"] = start(t, real)
	} else {
		t.Logf("no real node: %v", err)
	}
	var contexts []*sanity.TestContext
	suites := 0
	for name, w := range worlds {
		for _, access := range []string{"mount", "block"} {
			cfg := w.config(access)
			cfg.TestNodeVolumeAttachLimit = name == "memory" && access == "mount"
			suites++
			ginkgo.Describe(name+", "+access, func() {
				contexts = append(contexts, sanity.GinkgoTest(&cfg))
			})
		}
	}
	var report ginkgo.Report
	ginkgo.ReportAfterSuite("keep", func(r ginkgo.Report) { report = r })
	suite, reporter := ginkgo.GinkgoConfiguration()
	suite.ParallelTotal, suite.ParallelProcess = 1, 1
	reporter.Succinct, reporter.NoColor = true, true
	ginkgo.RunSpecs(t, "csi-sanity", suite, reporter)
	for _, c := range contexts {
		c.Finalize()
	}
	for name, w := range worlds {
		if err := w.stop(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	check(t, report, suites)
}

// check compares what was skipped with the list.
func check(t *testing.T, report ginkgo.Report, suites int) {
	t.Helper()
	states := map[string]int{}
	seen := make([]int, len(skips))
	for _, s := range report.SpecReports {
		if s.LeafNodeText == "keep" {
			continue
		}
		states[s.State.String()]++
		if s.State.String() != "skipped" {
			continue
		}
		known := false
		for i, k := range skips {
			if strings.Contains(s.FullText(), k.text) {
				known = true
				seen[i]++
				break
			}
		}
		if !known {
			t.Errorf("skipped: %s: %s", s.FullText(), s.Failure.Message)
		}
	}
	for i, k := range skips {
		if want := k.specs * (suites - k.runs); seen[i] != want {
			t.Errorf("%d specs with %q are skipped, the list has %d", seen[i], k.text, want)
		}
	}
	if states["pending"] != unfinished*suites {
		t.Errorf("%d specs are pending, want %d", states["pending"], unfinished*suites)
	}
	t.Logf("%d suites: %v", suites, states)
}
