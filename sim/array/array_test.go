package array

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func vol(name string, mib int64) VolumeSpec {
	return VolumeSpec{Name: name, CPG: "cpg", SnapCPG: "cpg", SizeMiB: mib, Provisioning: Thin}
}

const iqn = "iqn.1994-05.com.redhat:node-"

// world has two linked 3PARs. The first has a CPG, a small one of 1024 MiB and
// one in a domain, and of each thing one that stands against a command.
func world(t testing.TB) (a, b *Array) {
	a, err := New(Config{Name: "one", Family: ThreePAR, Seed: 1, Domains: []string{"dom"}, CopyMiBs: 1000,
		Users: []User{{Name: "admin", Password: "secret", Role: Edit}, {Name: "guest", Password: "guest", Role: Browse}}, MaxSessions: 2})
	ok(t, err)
	b, err = New(Config{Name: "two", Family: ThreePAR, Seed: 2, Domains: []string{"dom"}})
	ok(t, err, Link(a, b))
	cpg := must[CPG](t)
	volume := must[Volume](t)
	host := must[Host](t)
	set := must[Set](t)
	vlun := must[VLUN](t)
	task := must[Task](t)
	cpg(a.CreateCPG(epoch, CPGSpec{Name: "cpg"}))
	cpg(a.CreateCPG(epoch, CPGSpec{Name: "small", GrowthLimitMiB: 1024, WarningMiB: 512}))
	cpg(a.CreateCPG(epoch, CPGSpec{Name: "dom", Domain: "dom"}))
	cpg(b.CreateCPG(epoch, CPGSpec{Name: "cpg"}))
	for _, n := range []string{"plain", "exported", "member", "parent", "forked", "source", "target", "promoted", "tuned", "primary", "spare"} {
		volume(a.CreateVolume(epoch, vol(n, 1024)))
	}
	volume(a.CreateVolume(epoch, VolumeSpec{Name: "lone", CPG: "cpg", SizeMiB: 1024, Provisioning: Thin}))
	volume(a.CreateVolume(epoch, VolumeSpec{Name: "full", CPG: "small", SnapCPG: "small", SizeMiB: 512, Provisioning: Full}))
	volume(a.CreateVolume(epoch, VolumeSpec{Name: "domained", CPG: "dom", SizeMiB: 512, Provisioning: Thin}))
	volume(a.CreateVolume(epoch, VolumeSpec{Name: "large", CPG: "cpg", SnapCPG: "cpg", SizeMiB: 4096, Provisioning: Thin}))
	s := vol("retained", 256)
	s.ExpirationHours, s.RetentionHours = 20, 10
	volume(a.CreateVolume(epoch, s))
	volume(a.CreateCopy(epoch, CopySpec{Of: "parent", Name: "ro", ReadOnly: true}))
	volume(a.CreateCopy(epoch, CopySpec{Of: "forked", Name: "rw"}))
	volume(a.CreateCopy(epoch, CopySpec{Of: "promoted", Name: "promoting", ReadOnly: true}))
	volume(a.CreateCopy(epoch, CopySpec{Of: "exported", Name: "of-exported", ReadOnly: true}))
	task(a.Clone(epoch, CloneSpec{Of: "source", To: "online", Online: true, CPG: "cpg"}))
	volume(a.CreateVolume(epoch, vol("offline-source", 1024)))
	task(a.Clone(epoch, CloneSpec{Of: "offline-source", To: "target"}))
	task(a.Promote(epoch, PromoteSpec{Copy: "promoting"}))
	task(a.Tune(epoch, TuneSpec{Volume: "tuned", UserCPG: "small"}))
	host(a.CreateHost(epoch, HostSpec{Name: "h1", ISCSINames: []string{iqn + "1"}}))
	host(a.CreateHost(epoch, HostSpec{Name: "h2", FCWWNs: []string{"10000000c9000002"}}))
	host(a.CreateHost(epoch, HostSpec{Name: "h3", Domain: "dom"}))
	host(a.CreateHost(epoch, HostSpec{Name: "esx", Persona: VMware}))
	host(a.CreateHost(epoch, HostSpec{Name: "clash"}))
	host(a.CreateHost(epoch, HostSpec{Name: "in-set", ISCSINames: []string{iqn + "4"}}))
	set(a.CreateHostSet(epoch, SetSpec{Name: "hosts", Members: []string{"in-set"}}))
	set(a.CreateHostSet(epoch, SetSpec{Name: "empty"}))
	set(a.CreateVolumeSet(epoch, SetSpec{Name: "vols", Members: []string{"member"}}))
	set(a.CreateVolumeSet(epoch, SetSpec{Name: "empty"}))
	must[Rule](t)(a.CreateRule(epoch, Rule{Set: "vols", IOMaxLimit: 100}))
	vlun(a.CreateVLUN(epoch, VLUNSpec{Volume: "exported", LUN: 3, Host: "h1"}))
	vlun(a.CreateVLUN(epoch, VLUNSpec{Volume: "large", LUN: 5, Host: "set:hosts"}))
	vlun(a.CreateVLUN(epoch, VLUNSpec{Volume: "exported", LUN: 5, Host: "clash"}))
	vlun(a.CreateVLUN(epoch, VLUNSpec{Volume: "spare", LUN: 9, Port: &PortPos{0, 2, 1}}))
	ok(t, a.Login(Path{ISCSI, iqn + "1"}, PortPos{0, 2, 1}), a.CreateValue("plain", "k", "v"))
	must[Group](t)(a.CreateGroup(epoch, GroupSpec{Name: "rcg", Target: "two", Mode: Synchronous, TargetUserCPG: "cpg"}))
	must[[]ContentOp](t)(a.AdmitVolume(epoch, "rcg", AdmitSpec{Volume: "primary", Remote: "secondary", Create: true}))
	_, _, err = a.StartGroup(epoch, "rcg")
	ok(t, err)
	must[Group](t)(a.CreateGroup(epoch, GroupSpec{Name: "idle", Target: "two", Mode: Periodic, Period: 300}))
	return a, b
}

// TestRefusals: each precondition refuses with its code and status, and
// changes nothing on either array.
func TestRefusals(t *testing.T) {
	create := func(change func(*VolumeSpec)) func(a *Array) error {
		return func(a *Array) error {
			s := vol("new", 1024)
			change(&s)
			_, perr := a.PlanCreateVolume(s)
			_, err := a.CreateVolume(epoch, s)
			if !reflect.DeepEqual(perr, err) {
				return fmt.Errorf("plan says %v, create %v", perr, err)
			}
			return err
		}
	}
	del := func(name string) func(a *Array) error {
		return func(a *Array) error { _, err := a.DeleteVolume(epoch, name); return err }
	}
	grow := func(name string, mib int64) func(a *Array) error {
		return func(a *Array) error { _, err := a.Grow(epoch, name, mib); return err }
	}
	modify := func(name string, ch VolumeChange) func(a *Array) error {
		return func(a *Array) error { _, err := a.ModifyVolume(epoch, name, ch); return err }
	}
	snap := func(s CopySpec) func(a *Array) error {
		return func(a *Array) error { _, err := a.CreateCopy(epoch, s); return err }
	}
	snapSet := func(s CopySpec) func(a *Array) error {
		return func(a *Array) error { _, err := a.CopySet(epoch, s); return err }
	}
	clone := func(s CloneSpec) func(a *Array) error {
		return func(a *Array) error { _, err := a.Clone(epoch, s); return err }
	}
	promote := func(s PromoteSpec) func(a *Array) error {
		return func(a *Array) error { _, err := a.Promote(epoch, s); return err }
	}
	tune := func(s TuneSpec) func(a *Array) error {
		return func(a *Array) error { _, err := a.Tune(epoch, s); return err }
	}
	vlun := func(s VLUNSpec) func(a *Array) error {
		return func(a *Array) error { _, err := a.CreateVLUN(epoch, s); return err }
	}
	unexport := func(k VLUNKey) func(a *Array) error {
		return func(a *Array) error { _, err := a.DeleteVLUN(epoch, k); return err }
	}
	host := func(s HostSpec) func(a *Array) error {
		return func(a *Array) error { _, err := a.CreateHost(epoch, s); return err }
	}
	change := func(name string, ch HostChange) func(a *Array) error {
		return func(a *Array) error { _, err := a.ModifyHost(epoch, name, ch); return err }
	}
	cpg := func(s CPGSpec) func(a *Array) error {
		return func(a *Array) error { _, err := a.CreateCPG(epoch, s); return err }
	}
	vset := func(s SetSpec) func(a *Array) error {
		return func(a *Array) error { _, err := a.CreateVolumeSet(epoch, s); return err }
	}
	hset := func(s SetSpec) func(a *Array) error {
		return func(a *Array) error { _, err := a.CreateHostSet(epoch, s); return err }
	}
	vsetChange := func(name string, ch SetChange) func(a *Array) error {
		return func(a *Array) error { _, err := a.ModifyVolumeSet(epoch, name, ch); return err }
	}
	hsetChange := func(name string, ch SetChange) func(a *Array) error {
		return func(a *Array) error { _, err := a.ModifyHostSet(epoch, name, ch); return err }
	}
	rule := func(r Rule) func(a *Array) error {
		return func(a *Array) error { _, err := a.CreateRule(epoch, r); return err }
	}
	group := func(s GroupSpec) func(a *Array) error {
		return func(a *Array) error { _, err := a.CreateGroup(epoch, s); return err }
	}
	admit := func(name string, s AdmitSpec) func(a *Array) error {
		return func(a *Array) error { _, err := a.AdmitVolume(epoch, name, s); return err }
	}
	id, p := int64(1), func(s string) *string { return &s }
	pos := func(n, s, c int) *PortPos { return &PortPos{n, s, c} }
	esx, bad := VMware, Persona(12)
	long := strings.Repeat("x", 32)

	for name, x := range map[string]struct {
		do     func(*Array) error
		kind   Kind
		code   int
		status int
	}{
		"create without a name":           {create(func(s *VolumeSpec) { s.Name = "" }), EmptyString, 45, 400},
		"create with a long name":         {create(func(s *VolumeSpec) { s.Name = long }), ExceedsLength, 57, 400},
		"create with a slash":             {create(func(s *VolumeSpec) { s.Name = "a/b" }), IllegalChar, 69, 400},
		"create with a dash first":        {create(func(s *VolumeSpec) { s.Name = "-a" }), IllegalChar, 69, 400},
		"create what exists":              {create(func(s *VolumeSpec) { s.Name = "plain" }), ExistentVolume, 22, 409},
		"create with no size":             {create(func(s *VolumeSpec) { s.SizeMiB = 0 }), InvalidInput, 12, 400},
		"create too small":                {create(func(s *VolumeSpec) { s.SizeMiB = 255 }), BelowRange, 115, 400},
		"create too large":                {create(func(s *VolumeSpec) { s.SizeMiB = MaxSizeMiB + 1 }), TooLarge, 28, 400},
		"create in no CPG":                {create(func(s *VolumeSpec) { s.CPG = "x" }), NonExistentCPG, 15, 404},
		"create without a CPG":            {create(func(s *VolumeSpec) { s.CPG = "" }), EmptyString, 45, 400},
		"create with no snap CPG":         {create(func(s *VolumeSpec) { s.SnapCPG = "x" }), NonExistentCPG, 15, 404},
		"create over two domains":         {create(func(s *VolumeSpec) { s.SnapCPG = "dom" }), CPGOtherDomain, Unknown + 17, 403},
		"create full where there's none":  {create(func(s *VolumeSpec) { s.CPG, s.SnapCPG, s.Provisioning = "small", "", Full }), NoSpace, 24, 400},
		"create reduced on a 3PAR":        {create(func(s *VolumeSpec) { s.Provisioning = Reduce }), InvalidInput, 12, 400},
		"create a snapshot":               {create(func(s *VolumeSpec) { s.Provisioning = Snapshot }), InvalidInput, 12, 400},
		"create full and compressed":      {create(func(s *VolumeSpec) { s.Provisioning, s.Compression = Full, true }), InvalidInput, 12, 400},
		"create with a taken id":          {create(func(s *VolumeSpec) { i := int64(3); s.ID = &i }), ExistentID, 59, 409},
		"create with a huge id":           {create(func(s *VolumeSpec) { i := int64(1 << 40); s.ID = &i }), ExceedsRange, 43, 400},
		"create with a long comment":      {create(func(s *VolumeSpec) { s.Comment = strings.Repeat("x", 512) }), ExceedsLength, 57, 400},
		"create to expire in six years":   {create(func(s *VolumeSpec) { s.ExpirationHours = 43801 }), InvalidTime, Unknown + 24, 400},
		"create retained beyond its end":  {create(func(s *VolumeSpec) { s.ExpirationHours, s.RetentionHours = 1, 2 }), RetainBeyondExpiry, Unknown + 23, 400},
		"create a system volume":          {create(func(s *VolumeSpec) { s.Policies.System = true }), VolumePolicy, Unknown + 61, 400},
		"create warning beyond the limit": {create(func(s *VolumeSpec) { s.UserWarningPct, s.UserLimitPct = 90, 80 }), WarnBeyondLimit, Unknown + 25, 400},

		"delete what is not there":            {del("x"), NonExistentVolume, 23, 404},
		"delete an exported volume":           {del("exported"), Exported, 26, 409},
		"delete what a port presents":         {del("spare"), Exported, 26, 409},
		"delete what has a read-only copy":    {del("parent"), HasReadOnlyChild, 25, 409},
		"delete what has a copy":              {del("forked"), HasChild, 32, 409},
		"delete what is in a set":             {del("member"), InUse, 34, 409},
		"delete what is retained":             {del("retained"), Retained, Unknown, 409},
		"delete what is replicated":           {del("primary"), InRemoteCopy, 120, 403},
		"delete the source of a copy":         {del("source"), BeingCopied, 29, 400},
		"delete the target of an online copy": {del("online"), OnlineCopy, 151, 409},
		"delete what is promoted":             {del("promoted"), PromoteRunning, Unknown + 35, 409},
		"delete what is tuned":                {del("tuned"), TuneRunning, Unknown + 64, 409},

		"grow what is not there":        {grow("x", 1), NonExistentVolume, 23, 404},
		"grow by nothing":               {grow("plain", 0), GrowSize, 152, 400},
		"grow by less than nothing":     {grow("plain", -256), GrowSize, 152, 400},
		"grow a virtual copy":           {grow("ro", 256), UnsupportedType, 150, 403},
		"grow beyond the largest":       {grow("plain", MaxSizeMiB), SizeExceedsLimits, Unknown + 28, 403},
		"grow beyond the CPG's limit":   {grow("full", 1024), ExceedsCPGLimit, 153, 403},
		"grow what an online copy is":   {grow("online", 256), OnlineCopy, 151, 409},
		"grow in a started group":       {grow("primary", 256), InRemoteCopy, 120, 403},
		"modify what is not there":      {modify("x", VolumeChange{Comment: p("")}), NonExistentVolume, 23, 404},
		"modify nothing":                {modify("plain", VolumeChange{}), MissingRequired, 40, 400},
		"rename to what exists":         {modify("plain", VolumeChange{NewName: p("lone")}), ExistentVolume, 22, 409},
		"rename to nonsense":            {modify("plain", VolumeChange{NewName: p("a b")}), IllegalChar, 69, 400},
		"rename an online copy":         {modify("online", VolumeChange{NewName: p("b")}), OnlineCopy, 151, 409},
		"rename what is replicated":     {modify("primary", VolumeChange{NewName: p("b")}), InRemoteCopy, 120, 403},
		"a CPG for a virtual copy":      {modify("ro", VolumeChange{SnapCPG: p("cpg")}), CPGOnSnapshot, 96, 409},
		"another user CPG":              {modify("plain", VolumeChange{UserCPG: p("small")}), UserCPGFixed, Unknown + 63, 403},
		"another snap CPG with copies":  {modify("parent", VolumeChange{SnapCPG: p("small")}), InUse, 34, 409},
		"a shorter retention":           {modify("retained", VolumeChange{RetentionHours: 5}), Retained, Unknown, 409},
		"a retention beyond the end":    {modify("retained", VolumeChange{RetentionHours: 30}), RetainBeyondExpiry, Unknown + 23, 400},
		"an end and none":               {modify("plain", VolumeChange{ExpirationHours: 1, RemoveExpiration: true}), ParamConflict, 44, 400},
		"copy of what is not there":     {snap(CopySpec{Of: "x", Name: "s"}), NonExistentVolume, 23, 404},
		"copy to what exists":           {snap(CopySpec{Of: "plain", Name: "lone"}), ExistentVolume, 22, 409},
		"copy without a snap CPG":       {snap(CopySpec{Of: "lone", Name: "s"}), NoSnapCPG, Unknown + 1, 409},
		"read-only of a read-only copy": {snap(CopySpec{Of: "ro", Name: "s", ReadOnly: true}), ReadOnlyToReadOnly, Unknown + 26, 403},
		"copy of a running copy":        {snap(CopySpec{Of: "online", Name: "s"}), OnlineCopy, 151, 409},
		"copy with a taken id":          {snap(CopySpec{Of: "plain", Name: "s", ID: func() *int64 { i := int64(3); return &i }()}), ExistentID, 59, 409},
		"copy of no set":                {snapSet(CopySpec{Of: "x", Name: "s"}), NonExistentSet, 102, 404},
		"copy of an empty set":          {snapSet(CopySpec{Of: "empty", Name: "s"}), EmptySet, Unknown + 18, 404},
		"copy of a set with an id":      {snapSet(CopySpec{Of: "vols", Name: "s", ID: &id}), InvalidInput, 12, 400},

		"clone what is not there":          {clone(CloneSpec{Of: "x", To: "c", Online: true, CPG: "cpg"}), NonExistentVolume, 23, 404},
		"clone to itself":                  {clone(CloneSpec{Of: "plain", To: "plain"}), CopyToSelf, Unknown + 31, 403},
		"clone online to what exists":      {clone(CloneSpec{Of: "plain", To: "lone", Online: true, CPG: "cpg"}), ExistentVolume, 22, 409},
		"clone online to no CPG":           {clone(CloneSpec{Of: "plain", To: "c", Online: true, CPG: "x"}), NonExistentCPG, 15, 404},
		"clone online without a snap CPG":  {clone(CloneSpec{Of: "lone", To: "c", Online: true, CPG: "cpg"}), NoSnapCPG, Unknown + 1, 409},
		"clone what is cloned":             {clone(CloneSpec{Of: "source", To: "c", Online: true, CPG: "cpg"}), BeingCopied, 29, 400},
		"clone with a CPG, but not online": {clone(CloneSpec{Of: "plain", To: "lone", CPG: "cpg"}), ParamConflict, 44, 400},
		"clone to what is not there":       {clone(CloneSpec{Of: "plain", To: "x"}), NonExistentVolume, 23, 404},
		"clone to a virtual copy":          {clone(CloneSpec{Of: "plain", To: "rw"}), NotBaseVolume, Unknown + 30, 403},
		"clone to an exported volume":      {clone(CloneSpec{Of: "plain", To: "exported"}), VolumeExported, Unknown + 38, 403},
		"clone to what is replicated":      {clone(CloneSpec{Of: "plain", To: "primary"}), InRemoteCopy, 120, 403},
		"clone to what has copies":         {clone(CloneSpec{Of: "plain", To: "parent"}), HasChild, 32, 409},
		"clone to its own parent":          {clone(CloneSpec{Of: "ro", To: "parent"}), CopyToBase, Unknown + 66, 403},
		"clone to a smaller volume":        {clone(CloneSpec{Of: "large", To: "plain"}), ParentTooBig, Unknown + 32, 409},
		"clone to a running copy":          {clone(CloneSpec{Of: "plain", To: "target"}), CopyRunning, Unknown + 34, 409},
		"clone with priority 4":            {clone(CloneSpec{Of: "plain", To: "lone", Priority: 4}), BadEnum, 46, 400},
		"stop no copy":                     {func(a *Array) error { _, err := a.StopCopy(epoch, "plain"); return err }, NonExistentCopy, Unknown + 40, 404},
		"resync no copy":                   {func(a *Array) error { _, err := a.Resync(epoch, "plain"); return err }, NoParent, Unknown + 33, 403},
		"promote a base volume":            {promote(PromoteSpec{Copy: "plain"}), BaseVolume, Unknown + 29, 409},
		"promote to an exported volume":    {promote(PromoteSpec{Copy: "of-exported"}), ParentExported, Unknown + 39, 403},
		"promote again":                    {promote(PromoteSpec{Copy: "promoting"}), PromoteRunning, Unknown + 35, 409},
		"promote online with a priority":   {promote(PromoteSpec{Copy: "of-exported", Online: true, Priority: 1}), OperationConflict, Unknown + 69, 409},
		"stop no promotion":                {func(a *Array) error { return a.StopPromote(epoch, "plain") }, PromoteNotRunning, 185, 409},
		"tune a virtual copy":              {tune(TuneSpec{Volume: "ro", UserCPG: "cpg"}), UnsupportedType, 150, 403},
		"tune to nowhere":                  {tune(TuneSpec{Volume: "plain"}), OneRequired, 78, 400},
		"tune to another domain":           {tune(TuneSpec{Volume: "plain", UserCPG: "dom"}), CPGOtherDomain, Unknown + 17, 403},
		"convert what has copies":          {tune(TuneSpec{Volume: "parent", UserCPG: "cpg", Convert: Full}), HasChild, 32, 409},
		"convert where there is no space":  {tune(TuneSpec{Volume: "large", UserCPG: "small", Convert: Full}), NoSpace, 24, 400},
		"cancel task 0":                    {func(a *Array) error { _, _, err := a.CancelTask(epoch, 0); return err }, BelowRange, 115, 400},
		"cancel task 2^40":                 {func(a *Array) error { _, _, err := a.CancelTask(epoch, 1<<40); return err }, ExceedsRange, 43, 400},
		"cancel no task":                   {func(a *Array) error { _, _, err := a.CancelTask(epoch, 999); return err }, NonExistentTask, 145, 404},

		"export what is not there":          {vlun(VLUNSpec{Volume: "x", LUN: 1, Host: "h1"}), NonExistentVolume, 23, 404},
		"export nothing":                    {vlun(VLUNSpec{LUN: 1, Host: "h1"}), MissingRequired, 40, 400},
		"export to nobody":                  {vlun(VLUNSpec{Volume: "plain", LUN: 1}), MissingExport, Unknown + 2, 400},
		"export to no host":                 {vlun(VLUNSpec{Volume: "plain", LUN: 1, Host: "x"}), NonExistentHost, 17, 404},
		"export to no set":                  {vlun(VLUNSpec{Volume: "plain", LUN: 1, Host: "set:x"}), NonExistentSet, 102, 404},
		"export to an empty set":            {vlun(VLUNSpec{Volume: "plain", LUN: 1, Host: "set:empty"}), EmptySet, Unknown + 18, 404},
		"export over no port":               {vlun(VLUNSpec{Volume: "plain", LUN: 1, Host: "h1", Port: pos(1, 9, 4)}), NonExistentPort, 20, 404},
		"export over nonsense":              {vlun(VLUNSpec{Volume: "plain", LUN: 1, Host: "h1", Port: pos(8, 0, 1)}), PortSpecification, 55, 400},
		"export over a disk port":           {vlun(VLUNSpec{Volume: "plain", LUN: 1, Host: "h1", Port: pos(0, 0, 1)}), BadPortType, 21, 400},
		"export to a set over a port":       {vlun(VLUNSpec{Volume: "plain", LUN: 1, Host: "set:hosts", Port: pos(0, 2, 1)}), MatchedHostSet, Unknown + 20, 400},
		"export at LUN 16384":               {vlun(VLUNSpec{Volume: "plain", LUN: 16384, Host: "h1"}), TooLarge, 28, 400},
		"export at LUN -1":                  {vlun(VLUNSpec{Volume: "plain", LUN: -1, Host: "h1"}), ExceedsRange, 43, 400},
		"export at a taken LUN":             {vlun(VLUNSpec{Volume: "plain", LUN: 3, Host: "h1"}), ExistentLUN, 18, 409},
		"export at a LUN of the host's set": {vlun(VLUNSpec{Volume: "plain", LUN: 5, Host: "in-set"}), ExistentLUN, 18, 409},
		"export at a second LUN":            {vlun(VLUNSpec{Volume: "exported", LUN: 4, Host: "h1", Port: pos(0, 2, 1)}), ExistentLUN, 18, 409},
		"export again":                      {vlun(VLUNSpec{Volume: "exported", LUN: 3, Host: "h1"}), ExistentLUN, 18, 409},
		"export again, automatically":       {vlun(VLUNSpec{Volume: "exported", Auto: true, Host: "h1"}), ExistentLUN, 18, 409},
		"export where a port presents":      {vlun(VLUNSpec{Volume: "plain", LUN: 9, Host: "h1"}), ExistentLUN, 18, 409},
		"export automatically to a limit":   {vlun(VLUNSpec{Volume: "plain", LUN: 3, Auto: true, MaxAuto: 3, Host: "h1"}), AutoLUNUnavailable, Unknown + 3, 409},
		"export at a LUN of the array":      {vlun(VLUNSpec{Volume: "plain", LUN: 254, Host: "h1"}), PersonaConflict, 99, 409},
		"export at ESX's LUN":               {vlun(VLUNSpec{Volume: "plain", LUN: 256, Host: "esx"}), PersonaConflict, 99, 409},
		"export the target of a copy":       {vlun(VLUNSpec{Volume: "target", LUN: 1, Host: "h1"}), PhysicalCopyTarget, 97, 409},
		"export with override, to a port":   {vlun(VLUNSpec{Volume: "plain", LUN: 1, Port: pos(0, 2, 1), Override: true}), ParamConflict, 44, 400},
		"export into another domain":        {vlun(VLUNSpec{Volume: "plain", LUN: 1, Host: "h3"}), OtherDomain, Unknown + 16, 409},
		"export a set that isn't there":     {vlun(VLUNSpec{Volume: "set:nope", LUN: 1, Host: "h1"}), NonExistentSet, 102, 404},
		"unexport what isn't":               {unexport(VLUNKey{Volume: "plain", LUN: 1, Host: "h1"}), NonExistentVLUN, 19, 404},
		"unexport at another LUN":           {unexport(VLUNKey{Volume: "exported", LUN: 4, Host: "h1"}), NonExistentVLUN, 19, 404},
		"unexport from no host":             {unexport(VLUNKey{Volume: "exported", LUN: 3, Host: "x"}), NonExistentHost, 17, 404},
		"unexport from nobody":              {unexport(VLUNKey{Volume: "exported", LUN: 3}), MissingRequired, 40, 400},
		"unexport from LUN 99999":           {unexport(VLUNKey{Volume: "exported", LUN: 99999, Host: "h1"}), ExceedsRange, 43, 400},

		"host without a name":            {host(HostSpec{}), EmptyString, 45, 400},
		"host that exists":               {host(HostSpec{Name: "h1"}), ExistentHost, 16, 409},
		"host with a long name":          {host(HostSpec{Name: long}), ExceedsLength, 57, 400},
		"host with another's IQN":        {host(HostSpec{Name: "h", ISCSINames: []string{strings.ToUpper(iqn + "1")}}), ExistentPath, 73, 409},
		"host with another's WWN":        {host(HostSpec{Name: "h", FCWWNs: []string{"10000000C9000002"}}), ExistentPath, 73, 409},
		"host with a path twice":         {host(HostSpec{Name: "h", FCWWNs: []string{"10000000C9000003", "10000000c9000003"}}), DuplicatePath, 98, 400},
		"host with a short WWN":          {host(HostSpec{Name: "h", FCWWNs: []string{"1000"}}), WrongType, 39, 400},
		"host with a WWN of x":           {host(HostSpec{Name: "h", FCWWNs: []string{"x000000000000000"}}), WrongType, 39, 400},
		"host with FC and iSCSI":         {host(HostSpec{Name: "h", FCWWNs: []string{"10000000C9000003"}, ISCSINames: []string{iqn + "9"}}), ParamConflict, 44, 400},
		"host with an empty IQN":         {host(HostSpec{Name: "h", ISCSINames: []string{""}}), EmptyString, 45, 400},
		"host with a spaced IQN":         {host(HostSpec{Name: "h", ISCSINames: []string{"iqn x"}}), IllegalChar, 69, 400},
		"host with a long IQN":           {host(HostSpec{Name: "h", ISCSINames: []string{strings.Repeat("x", 224)}}), ExceedsLength, 57, 400},
		"host with 1025 IQNs":            {host(HostSpec{Name: "h", ISCSINames: make([]string, 1025)}), TooManyPaths, Unknown + 9, 400},
		"host in no domain":              {host(HostSpec{Name: "h", Domain: "x"}), NonExistentDomain, 38, 404},
		"host of persona 12":             {host(HostSpec{Name: "h", Persona: 12}), BadEnum, 46, 400},
		"change no host":                 {change("x", HostChange{NewName: p("y")}), NonExistentHost, 17, 404},
		"change nothing of a host":       {change("h1", HostChange{}), OneRequired, 78, 400},
		"rename a host to what exists":   {change("h1", HostChange{NewName: p("h2")}), ExistentHost, 16, 409},
		"persona 12":                     {change("h2", HostChange{Persona: &bad}), BadEnum, 46, 400},
		"persona under an export":        {change("h1", HostChange{Persona: &esx}), Exported, 26, 409},
		"add a path of another":          {change("h2", HostChange{PathOp: EditAdd, ISCSINames: []string{iqn + "1"}}), ExistentPath, 73, 409},
		"add a path again":               {change("h1", HostChange{PathOp: EditAdd, ISCSINames: []string{iqn + "1"}}), DuplicatePath, 98, 400},
		"add by force":                   {change("h1", HostChange{PathOp: EditAdd, ISCSINames: []string{iqn + "9"}, Force: true}), ParamConflict, 44, 400},
		"add no paths":                   {change("h1", HostChange{PathOp: EditAdd}), OneRequired, 78, 400},
		"paths without an operation":     {change("h1", HostChange{ISCSINames: []string{iqn + "9"}}), OneRequired, 78, 400},
		"paths and a name":               {change("h1", HostChange{PathOp: EditAdd, ISCSINames: []string{iqn + "9"}, NewName: p("y")}), ParamConflict, 44, 400},
		"path operation 3":               {change("h1", HostChange{PathOp: 3, ISCSINames: []string{iqn + "9"}}), BadEnum, 46, 400},
		"remove a path that isn't":       {change("h2", HostChange{PathOp: EditRemove, ISCSINames: []string{iqn + "9"}}), NonExistentPath, 80, 404},
		"remove a path under an export":  {change("h1", HostChange{PathOp: EditRemove, ISCSINames: []string{iqn + "1"}}), Exported, 26, 409},
		"a short CHAP secret":            {change("h1", HostChange{CHAPOp: EditAdd, CHAPMode: CHAPInitiator, CHAPSecret: "short"}), CHAPLength, Unknown + 11, 400},
		"a long CHAP secret":             {change("h1", HostChange{CHAPOp: EditAdd, CHAPMode: CHAPInitiator, CHAPSecret: strings.Repeat("x", 17)}), CHAPLength, Unknown + 11, 400},
		"a CHAP secret of odd hex":       {change("h1", HostChange{CHAPOp: EditAdd, CHAPMode: CHAPInitiator, CHAPSecret: "00", CHAPHex: true}), CHAPLength, Unknown + 11, 400},
		"target CHAP without the host's": {change("h1", HostChange{CHAPOp: EditAdd, CHAPMode: CHAPTarget, CHAPSecret: "0123456789abc"}), NoInitiatorCHAP, Unknown + 12, 404},
		"remove CHAP that isn't":         {change("h1", HostChange{CHAPOp: EditRemove}), NonExistentCHAP, Unknown + 13, 404},
		"remove CHAP with a secret":      {change("h1", HostChange{CHAPOp: EditRemove, CHAPSecret: "x"}), ParamConflict, 44, 400},
		"delete no host":                 {func(a *Array) error { return a.DeleteHost(epoch, "x") }, NonExistentHost, 17, 404},
		"delete a host with exports":     {func(a *Array) error { return a.DeleteHost(epoch, "h1") }, Exported, 26, 409},
		"delete a host in a set":         {func(a *Array) error { return a.DeleteHost(epoch, "in-set") }, HostInSet, 77, 409},

		"CPG that exists":              {cpg(CPGSpec{Name: "cpg"}), ExistentCPG, 14, 409},
		"CPG in no domain":             {cpg(CPGSpec{Name: "n", Domain: "x"}), NonExistentDomain, 38, 404},
		"CPG warning beyond its limit": {cpg(CPGSpec{Name: "n", GrowthLimitMiB: 1, WarningMiB: 2}), WarnBeyondLimit, Unknown + 25, 400},
		"CPG of RAID 9":                {cpg(CPGSpec{Name: "n", RAID: 9}), BadEnum, 46, 400},
		"delete no CPG":                {func(a *Array) error { return a.DeleteCPG(epoch, "x") }, NonExistentCPG, 15, 404},
		"delete a CPG in use":          {func(a *Array) error { return a.DeleteCPG(epoch, "cpg") }, InUse, 34, 409},
		"space of no CPG":              {func(a *Array) error { _, err := a.FreeSpace("x"); return err }, NonExistentCPG, 15, 404},
		"write past a CPG":             {func(a *Array) error { return a.Written(epoch, "full", 512, 1000) }, NoSpace, 24, 400},

		"set that exists":             {vset(SetSpec{Name: "vols"}), ExistentSet, 101, 409},
		"set with a long name":        {vset(SetSpec{Name: strings.Repeat("x", 28)}), ExceedsLength, 57, 400},
		"set of no volume":            {vset(SetSpec{Name: "s", Members: []string{"x"}}), NonExistentVolume, 23, 404},
		"set of a volume twice":       {vset(SetSpec{Name: "s", Members: []string{"plain", "plain"}}), DuplicateName, Unknown + 21, 400},
		"set over domains":            {vset(SetSpec{Name: "s", Members: []string{"plain", "domained"}}), OtherDomain, Unknown + 16, 409},
		"set of no host":              {hset(SetSpec{Name: "s", Members: []string{"x"}}), NonExistentHost, 17, 404},
		"host set that exists":        {hset(SetSpec{Name: "hosts"}), ExistentSet, 101, 409},
		"add a member again":          {vsetChange("vols", SetChange{Add: []string{"member"}}), MemberInSet, Unknown + 14, 409},
		"remove no member":            {vsetChange("vols", SetChange{Remove: []string{"plain"}}), MemberNotInSet, Unknown + 15, 404},
		"add and rename":              {vsetChange("vols", SetChange{Add: []string{"plain"}, NewName: p("x")}), ParamConflict, 44, 400},
		"change no set":               {vsetChange("x", SetChange{NewName: p("y")}), NonExistentSet, 102, 404},
		"rename a set to what exists": {vsetChange("vols", SetChange{NewName: p("empty")}), ExistentSet, 101, 409},
		"a host that has the LUN":     {hsetChange("hosts", SetChange{Add: []string{"clash"}}), LUNConflict, Unknown + 19, 400},
		"a host of another domain":    {hsetChange("hosts", SetChange{Add: []string{"h3"}}), OtherDomain, Unknown + 16, 409},
		"delete a set with a rule":    {func(a *Array) error { return a.DeleteVolumeSet(epoch, "vols") }, SetHasQoS, Unknown + 22, 409},
		"delete a set with exports":   {func(a *Array) error { return a.DeleteHostSet(epoch, "hosts") }, Exported, 26, 409},
		"rule for no set":             {rule(Rule{Set: "x"}), QoSTarget, 117, 404},
		"rule again":                  {rule(Rule{Set: "vols"}), ExistentQoS, 114, 400},
		"rule of -1":                  {rule(Rule{Set: "empty", IOMaxLimit: -1}), BelowRange, 115, 400},
		"rule of 2^40":                {rule(Rule{Set: "empty", IOMaxLimit: 1 << 40}), ExceedsRange, 43, 400},
		"rule of priority 4":          {rule(Rule{Set: "empty", Priority: 4}), BadEnum, 46, 400},
		"delete no rule":              {func(a *Array) error { return a.DeleteRule(epoch, "empty") }, NonExistentQoS, 100, 404},
		"a key again":                 {func(a *Array) error { return a.CreateValue("plain", "k", "w") }, ExistentKey, 181, 409},
		"no key":                      {func(a *Array) error { _, err := a.Value("plain", "x"); return err }, NonExistentKey, 180, 404},
		"a long key":                  {func(a *Array) error { return a.PutValue("plain", long, "w") }, ExceedsLength, 57, 400},
		"delete no key":               {func(a *Array) error { return a.DeleteValue("plain", "x") }, NonExistentKey, 180, 404},
		"a key of no volume":          {func(a *Array) error { return a.PutValue("x", "k", "w") }, NonExistentVolume, 23, 404},
		"wrong password":              {func(a *Array) error { _, err := a.OpenSession(epoch, "admin", "x", "c"); return err }, UserOrPassword, 5, 403},
		"unknown key":                 {func(a *Array) error { _, err := a.UseSession(epoch, "x", "c"); return err }, SessionKey, 6, 403},
		"end an unknown session":      {func(a *Array) error { return a.CloseSession("x") }, SessionKey, 6, 403},
		"login at a port of FC":       {func(a *Array) error { return a.Login(Path{ISCSI, iqn + "1"}, PortPos{0, 1, 1}) }, BadPortType, 21, 400},

		"group that exists":            {group(GroupSpec{Name: "rcg", Target: "two", Mode: Synchronous}), ExistentGroup, 237, 409},
		"group with a long name":       {group(GroupSpec{Name: strings.Repeat("x", 23), Target: "two", Mode: Synchronous}), ExceedsLength, 57, 400},
		"group to nowhere":             {group(GroupSpec{Name: "g", Target: "x", Mode: Synchronous}), GroupTarget, 194, 400},
		"group of mode 5":              {group(GroupSpec{Name: "g", Target: "two", Mode: 5}), BadEnum, 46, 400},
		"group every second":           {group(GroupSpec{Name: "g", Target: "two", Mode: Periodic, Period: 1}), ExceedsRange, 43, 400},
		"synchronous group's period":   {group(GroupSpec{Name: "g", Target: "two", Mode: Synchronous, Period: 300}), ParamConflict, 44, 400},
		"group into no CPG":            {group(GroupSpec{Name: "g", Target: "two", Mode: Synchronous, TargetUserCPG: "x"}), NonExistentCPG, 15, 404},
		"delete no group":              {func(a *Array) error { return a.DeleteGroup(epoch, "x") }, NonExistentGroup, 187, 404},
		"delete a started group":       {func(a *Array) error { return a.DeleteGroup(epoch, "rcg") }, GroupStarted, 215, 403},
		"start a started group":        {func(a *Array) error { _, _, err := a.StartGroup(epoch, "rcg"); return err }, GroupStarted, 215, 403},
		"start an empty group":         {func(a *Array) error { _, _, err := a.StartGroup(epoch, "idle"); return err }, GroupEmpty, Unknown + 47, 403},
		"stop a stopped group":         {func(a *Array) error { _, err := a.StopGroup(epoch, "idle"); return err }, GroupNotStarted, Unknown + 45, 403},
		"sync while it syncs":          {func(a *Array) error { _, _, err := a.SyncGroup(epoch, "rcg"); return err }, GroupBusy, Unknown + 46, 403},
		"switch over while it syncs":   {func(a *Array) error { return a.Switchover(epoch, "rcg") }, GroupBusy, Unknown + 46, 403},
		"fail over the primary":        {func(a *Array) error { return a.Failover(epoch, "rcg") }, RoleConflict, Unknown + 44, 403},
		"recover what did not fail":    {func(a *Array) error { _, _, err := a.Recover(epoch, "idle"); return err }, RoleConflict, Unknown + 44, 403},
		"reverse a started group":      {func(a *Array) error { return a.Reverse(epoch, "rcg") }, GroupStarted, 215, 403},
		"override what isn't safe":     {func(a *Array) error { return a.Override(epoch, "rcg") }, RoleConflict, Unknown + 44, 403},
		"admit to a started group":     {admit("rcg", AdmitSpec{Volume: "plain", Remote: "r", Create: true}), GroupStarted, 215, 403},
		"admit no volume":              {admit("idle", AdmitSpec{Volume: "x", Remote: "r"}), NonExistentVolume, 23, 404},
		"admit what another group has": {admit("idle", AdmitSpec{Volume: "primary", Remote: "r"}), GroupVolumeElse, Unknown + 55, 403},
		"admit a read-only copy":       {admit("idle", AdmitSpec{Volume: "ro", Remote: "r"}), GroupVolumeReadOnly, Unknown + 53, 403},
		"admit what is being copied":   {admit("idle", AdmitSpec{Volume: "source", Remote: "r"}), GroupVolumeIsCopy, Unknown + 54, 403},
		"admit from another domain":    {admit("idle", AdmitSpec{Volume: "domained", Remote: "r"}), GroupOtherDomain, Unknown + 70, 403},
		"change nothing of a group":    {func(a *Array) error { _, err := a.ModifyGroup(epoch, "idle", GroupChange{}); return err }, MissingRequired, 40, 400},
		"change a started group": {func(a *Array) error {
			b := true
			_, err := a.ModifyGroup(epoch, "rcg", GroupChange{AutoFailover: &b})
			return err
		}, GroupStarted, 215, 403},
		"admit without snap space":  {admit("idle", AdmitSpec{Volume: "lone", Remote: "r"}), GroupNoSnapSpace, Unknown + 58, 403},
		"admit without a CPG there": {admit("idle", AdmitSpec{Volume: "plain", Remote: "r", Create: true}), GroupHasNoCPG, Unknown + 48, 403},
		"admit over what is there":  {admit("idle", AdmitSpec{Volume: "plain", Remote: "secondary", Create: true}), GroupVolumeOnTarget, Unknown + 50, 409},
		"admit with no peer":        {admit("idle", AdmitSpec{Volume: "plain", Remote: "r"}), GroupNoTargetVolume, Unknown + 51, 404},
		"admit with another's peer": {admit("idle", AdmitSpec{Volume: "plain", Remote: "secondary"}), GroupVolumeElse, Unknown + 55, 403},
		"admit with a smaller peer": {admit("idle", AdmitSpec{Volume: "large", Remote: "secondary"}), GroupVolumeSize, Unknown + 52, 403},
		"dismiss what isn't in":     {func(a *Array) error { _, err := a.DismissVolume(epoch, "idle", "plain", false); return err }, GroupNotInGroup, Unknown + 56, 404},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := world(t)
			before, peer := a.dump(), b.dump()
			err := x.do(a)
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want %s", err, x.kind)
			}
			if w := e.Wire(); e.Kind != x.kind || w.Code != x.code || w.Status != x.status {
				t.Errorf("got %v (%d, %d), want %s (%d, %d)", e, w.Code, w.Status, x.kind, x.code, x.status)
			}
			if !reflect.DeepEqual(before, a.dump()) || !reflect.DeepEqual(peer, b.dump()) {
				t.Errorf("refused with %v, but changed", err)
			}
		})
	}
}

// dump is all that a refused command may not change.
func (a *Array) dump() any {
	logins := map[Path][]PortPos{}
	for p := range a.logins {
		logins[p] = a.LoggedIn(p)
	}
	return []any{a.State(), a.Sessions(), logins, a.usedMiB, a.snapshots, a.Ports()}
}

// TestCodes: every kind has a number of its own and a status.
func TestCodes(t *testing.T) {
	seen := map[int]Kind{}
	for k, w := range wire {
		if other, twice := seen[w.Code]; twice {
			t.Errorf("%s and %s have the number %d", k, other, w.Code)
		}
		seen[w.Code] = k
		if !slices.Contains([]int{400, 403, 404, 409, 501, 503}, w.Status) {
			t.Errorf("%s has status %d", k, w.Status)
		}
	}
}

// TestIDs: ids that are built by hand are what they are described as.
func TestIDs(t *testing.T) {
	a, err := New(Config{Seed: 5, Serial: "CZ1"})
	ok(t, err)
	for _, n := range []uint64{0, 1, 255, 1 << 31, 1<<32 - 1} {
		hi, lo := mix(5, "x/hi", n), mix(5, "x/lo", n)
		want := fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", hi>>32, hi>>16&0xffff, hi&0xfff, lo>>48&0x3fff|0x8000, lo&0xffffffffffff)
		if got := uuid(5, "x", n); got != want {
			t.Errorf("uuid %s, want %s", got, want)
		}
		if got, want := a.newWWN(n), fmt.Sprintf("60002AC000000000%08X%08X", n, a.system); got != want {
			t.Errorf("WWN %s, want %s", got, want)
		}
		if got, want := a.imageName(n, 3), fmt.Sprintf("CZ1-%d-3", n); got != want {
			t.Errorf("image %s, want %s", got, want)
		}
	}
}
