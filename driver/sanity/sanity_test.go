// Package sanity_test runs csi-sanity over the driver on its sockets, with each
// backend: mount and block volumes, on a node in memory and, as root, on a real
// one.
package sanity_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
)

// skip is specs that may be skipped, by a part of their text.
type skip struct {
	text  string
	specs int    // in one suite
	why   string // the capability that the driver rightly lacks
	runs  int    // suites in which they aren't skipped
}

// alpha are the calls of CSI 1.13 that no backend has.
var alpha = []skip{
	{text: "ControllerGetVolumeHealth", specs: 2, why: "health RPCs of CSI 1.13 are alpha"},
	{text: "ControllerListVolumeHealth", specs: 1, why: "health RPCs of CSI 1.13 are alpha"},
	{text: "NodeGetVolumeHealth", specs: 2, why: "health RPCs of CSI 1.13 are alpha"},
	{text: "NodeGetStorageHealth", specs: 1, why: "health RPCs of CSI 1.13 are alpha"},
	{text: "should succeed when creating a snapshot with accessibility requirements", specs: 1, why: "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS: a snapshot lies with its volume"},
	{text: "GetSnapshot [Controller Server]", specs: 3, why: "GET_SNAPSHOT is alpha"},
}

// skips by backend. docs/csi-sanity.md has the same lists.
var skips = map[string][]skip{
	"vsphere": append([]skip{
		{text: "should fail when publishing more volumes than the node max attach limit", specs: 1, runs: 1, why: "59 volumes: in one suite only, to save time"},
		{text: "should create volume from an existing source volume", specs: 1, why: "CLONE_VOLUME: CNS restores snapshots only"},
		{text: "should fail when the volume source volume is not found", specs: 1, why: "CLONE_VOLUME: CNS restores snapshots only"},
		{text: "should fail when the volume is already published but is incompatible", specs: 1, why: "PUBLISH_READONLY: a disk is attached writable"},
		{text: "ModifyVolume [Controller Server]", specs: 6, why: "MODIFY_VOLUME: no mutable parameters"},
		{text: "volume attribute class", specs: 2, why: "MODIFY_VOLUME: no mutable parameters"},
		{text: "GroupController", specs: 6, why: "GROUP_CONTROLLER_SERVICE: CNS has no snapshots of groups"},
	}, alpha...),
	"hpe": append([]skip{
		{text: "should fail when publishing more volumes than the node max attach limit", specs: 1, why: "neither provider nor driver counts a node's volumes, the scheduler does"},
		{text: "GetCapacity", specs: 1, why: "GET_CAPACITY: a provider doesn't tell free space"},
	}, alpha...),
	"hpe files": append(append([]skip{
		{text: "should fail when publishing more volumes than the node max attach limit", specs: 1, why: "neither provider nor driver counts a node's volumes, the scheduler does"},
		{text: "GetCapacity", specs: 1, why: "GET_CAPACITY: a provider doesn't tell free space"},
	}, alpha...), noCopies...),
}

// noCopies are specs about what the driver's capabilities promise of devices and
// nobody has of shares: they would fail.
var noCopies = []skip{
	{text: "napshot", specs: 22, why: "no snapshots of shares"},
	{text: "existing source volume", specs: 1, why: "no clones of shares"},
	{text: "source volume is not found", specs: 1, why: "no clones of shares"},
	{text: "GroupController", specs: 1, why: "no snapshots of shares"},
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
	var worlds []*world
	for _, x := range []struct {
		make func(*testing.T, *platform) *world
		real bool // on a real node too
	}{{startVSphere, true}, {startISCSI, true}, {startFC, os.Getenv("CSILAB_FULL") != ""}, {startFiles, false}} {
		worlds = append(worlds, x.make(t, memory(t)))
		if !x.real || raced || os.Getenv("CSILAB_SANITY_NODES") == "memory" {
			continue // the driver on a real node is the driver on one in memory
		}
		real, err := real(t)
		if err != nil {
			t.Logf("no real node: %v", err)
			continue
		}
		worlds = append(worlds, x.make(t, real))
	}
	var contexts []*sanity.TestContext
	suites := map[string]int{}
	for _, w := range worlds {
		for _, access := range []string{"mount", "block"} {
			if w.protocol == "nfs" && access == "block" {
				continue // a share is no block device
			}
			cfg := w.config(access)
			cfg.TestNodeVolumeAttachLimit = w.backend == "vsphere" && w.node.Kind() == "memory" && access == "mount"
			suites[w.backend]++
			ginkgo.Describe(w.name()+", "+access, func() {
				contexts = append(contexts, sanity.GinkgoTest(&cfg))
			})
		}
	}
	var report ginkgo.Report
	ginkgo.ReportAfterSuite("keep", func(r ginkgo.Report) { report = r })
	suite, reporter := ginkgo.GinkgoConfiguration()
	suite.ParallelTotal, suite.ParallelProcess = 1, 1
	reporter.Succinct, reporter.NoColor = true, true
	for _, k := range noCopies {
		suite.SkipStrings = append(suite.SkipStrings, "^csi-sanity hpe files,.*"+regexp.QuoteMeta(k.text))
	}
	ginkgo.RunSpecs(t, "csi-sanity", suite, reporter)
	for _, c := range contexts {
		c.Finalize()
	}
	for _, w := range worlds {
		if err := w.stop(); err != nil {
			t.Errorf("%s: %v", w.name(), err)
		}
	}
	check(t, report, suites)
}

// name of the world, which begins with its backend.
func (w *world) name() string {
	name := w.backend + ", " + w.node.Kind()
	if w.protocol != "" {
		name += ", " + w.protocol
	}
	return name
}

// check compares what was skipped with the lists.
func check(t *testing.T, report ginkgo.Report, suites map[string]int) {
	t.Helper()
	states := map[string]int{}
	seen := map[string][]int{}
	for backend := range suites {
		seen[backend] = make([]int, len(skips[backend]))
	}
	for _, s := range report.SpecReports {
		if s.LeafNodeText == "keep" {
			continue
		}
		states[s.State.String()]++
		if s.State.String() != "skipped" {
			continue
		}
		backend, _, _ := strings.Cut(s.FullText(), ",")
		known := false
		for i, k := range skips[backend] {
			if strings.Contains(s.FullText(), k.text) {
				known = true
				seen[backend][i]++
				break
			}
		}
		if !known {
			t.Errorf("skipped: %s: %s", s.FullText(), s.Failure.Message)
		}
	}
	all := 0
	for backend, n := range suites {
		all += n
		for i, k := range skips[backend] {
			if want := k.specs * (n - k.runs); seen[backend][i] != want {
				t.Errorf("%s: %d specs with %q are skipped, the list has %d", backend, seen[backend][i], k.text, want)
			}
		}
	}
	if states["pending"] != unfinished*all {
		t.Errorf("%d specs are pending, want %d", states["pending"], unfinished*all)
	}
	t.Logf("suites %v: %v", suites, states)
}
