package wsapi

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/csilab/csilab/sim/array"
)

// TestRefusalsInState are those that depend on what was done before, each with
// the number and status that clients go by.
func TestRefusalsInState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, array.Config{Family: array.ThreePAR, MaxVolumes: 12, MaxSnapshots: 2, CopyMiBs: 1, Domains: []string{"dom"}}, Config{})
		defer r.s.Close()
		for _, x := range [][2]string{
			{"/cpgs", `{"name":"small","growthLimitMiB":1024}`},
			{"/cpgs", `{"name":"other","domain":"dom"}`},
			{"/volumes", `{"name":"v","cpg":"cpg1","sizeMiB":1024,"snapCPG":"cpg1"}`},
			{"/volumes", `{"name":"full","cpg":"small","sizeMiB":768}`},
			{"/volumes", `{"name":"target","cpg":"cpg1","sizeMiB":1024,"snapCPG":"cpg1"}`},
			{"/volumes", `{"name":"dom","cpg":"other","sizeMiB":256}`},
			{"/volumes", `{"name":"src","cpg":"cpg1","sizeMiB":256,"snapCPG":"cpg1"}`},
			{"/volumes/v", `{"action":"createSnapshot","parameters":{"name":"ro","readOnly":true}}`},
			{"/volumes/src", `{"action":"createPhysicalCopy","parameters":{"destVolume":"target"}}`},
			{"/hosts", `{"name":"h","iSCSINames":["iqn.a:b"]}`},
			{"/hosts", `{"name":"hp","persona":10,"iSCSINames":["iqn.a:c"]}`},
			{"/vluns", `{"volumeName":"v","lun":0,"hostname":"h"}`},
		} {
			r.want(201, "POST", x[0], x[1])
		}
		for _, p := range r.a.Ports() {
			if p.Protocol == array.ISCSI {
				r.s.cfg.Lock.Lock()
				err := r.a.Login(array.Path{Protocol: array.ISCSI, Name: "iqn.a:b"}, p.PortPos)
				r.s.cfg.Lock.Unlock()
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		var many []string
		for i := range array.MaxPaths + 1 {
			many = append(many, fmt.Sprintf(`"iqn.a:%d"`, i))
		}
		kind := func(k array.Kind) int { return k.Wire().Code }
		for _, x := range []struct {
			status, code       int
			method, path, body string
		}{
			{400, 24, "POST", "/volumes", `{"name":"x","cpg":"small","sizeMiB":512}`},
			{403, 153, "PUT", "/volumes/full", `{"action":3,"sizeMiB":512}`},
			{403, 150, "PUT", "/volumes/ro", `{"action":3,"sizeMiB":256}`},
			{409, 96, "PUT", "/volumes/ro", `{"userCPG":"cpg1"}`},
			{409, 97, "POST", "/vluns", `{"volumeName":"target","lun":9,"hostname":"h"}`},
			{400, 29, "DELETE", "/volumes/target", ""},
			{400, 29, "POST", "/volumes/src", `{"action":"createPhysicalCopy","parameters":{"destVolume":"target"}}`},
			{403, kind(array.CopyToSelf), "POST", "/volumes/v", `{"action":"createPhysicalCopy","parameters":{"destVolume":"v"}}`},
			{400, 40, "POST", "/volumes/v", `{"action":"createPhysicalCopy","parameters":{"destVolume":"n","online":true}}`},
			{404, kind(array.NonExistentCopy), "PUT", "/volumes/v", `{"action":1}`},
			{403, kind(array.NoParent), "PUT", "/volumes/v", `{"action":2}`},
			{409, kind(array.BaseVolume), "PUT", "/volumes/v", `{"action":4}`},
			{403, kind(array.ReadOnlyToReadOnly), "POST", "/volumes/ro", `{"action":"createSnapshot","parameters":{"name":"x","readOnly":true}}`},
			{403, kind(array.SizeExceedsLimits), "PUT", "/volumes/v", `{"action":3,"sizeMiB":16777216}`},
			{400, kind(array.InvalidTime), "PUT", "/volumes/v", `{"expirationHours":43801}`},
			{400, kind(array.InvalidTime), "PUT", "/volumes/v", `{"expirationHours":-1}`},
			{400, kind(array.InvalidTime), "POST", "/volumes", `{"name":"w","cpg":"cpg","sizeMiB":256,"retentionHours":-1}`},
			{400, kind(array.RetainBeyondExpiry), "PUT", "/volumes/v", `{"expirationHours":1,"retentionHours":2}`},
			{403, kind(array.UserCPGFixed), "PUT", "/volumes/v", `{"userCPG":"small"}`},
			{409, 34, "PUT", "/volumes/v", `{"snapCPG":"small"}`},
			{403, kind(array.CPGOtherDomain), "POST", "/volumes", `{"name":"x","cpg":"cpg1","snapCPG":"other","sizeMiB":256}`},
			{409, kind(array.OtherDomain), "POST", "/vluns", `{"volumeName":"dom","lun":3,"hostname":"h"}`},
			{409, 18, "POST", "/vluns", `{"volumeName":"v","lun":1,"hostname":"h"}`},
			{409, 18, "POST", "/vluns", `{"volumeName":"src","lun":0,"hostname":"h"}`},
			{409, kind(array.AutoLUNUnavailable), "POST", "/vluns", `{"volumeName":"src","lun":3,"hostname":"h","autoLun":true,"maxAutoLun":2}`},
			{409, 26, "PUT", "/hosts/h", `{"pathOperation":2,"iSCSINames":["iqn.a:b"]}`},
			{409, 99, "POST", "/vluns", `{"volumeName":"src","lun":254,"hostname":"h"}`},
			{409, 26, "PUT", "/hosts/h", `{"persona":8}`},
			{400, 12, "GET", "/volumes" + q(strings.Repeat("name==x OR ", maxTerms)+"name==x"), ""},
			{409, 16, "PUT", "/hosts/h", `{"newName":"hp"}`},
			{409, 73, "PUT", "/hosts/h", `{"pathOperation":1,"iSCSINames":["iqn.a:c"]}`},
			{400, 46, "PUT", "/hosts/h", `{"pathOperation":3,"iSCSINames":["iqn.a:c"]}`},
			{400, 40, "POST", "/hosts", `{"name":"n","transportType":2}`},
			{400, 46, "POST", "/hosts", `{"name":"n","NQN":"nqn.2014-08.org.nvmexpress:uuid:1","transportType":1}`},
			{404, kind(array.NoInitiatorCHAP), "PUT", "/hosts/hp", `{"chapOperation":1,"chapOperationMode":2,"chapName":"u","chapSecret":"0123456789ab"}`},
			{404, kind(array.NonExistentCHAP), "PUT", "/hosts/hp", `{"chapOperation":2}`},
			{400, kind(array.TooManyPaths), "POST", "/hosts", `{"name":"n","iSCSINames":[` + strings.Join(many, ",") + `]}`},
			{400, kind(array.WarnBeyondLimit), "POST", "/cpgs", `{"name":"c","growthLimitMiB":1024,"usageWarningMiB":2048}`},
			{400, 46, "POST", "/cpgs", `{"name":"c","LDLayout":{"RAIDType":9}}`},
			{400, 12, "POST", "/cpgs", `{"name":"c","LDLayout":{"RAIDType":4,"raid":1}}`},
			{400, 44, "PUT", "/cpgs/small", `{"growthLimitMiB":2048,"rmGrowthLimit":true}`},
			{409, 14, "PUT", "/cpgs/small", `{"newName":"cpg1"}`},
			{400, 194, "POST", "/remotecopygroups", `{"name":"g","targets":[{"targetName":"nope","mode":1}]}`},
			{501, 9, "POST", "/remotecopygroups", `{"name":"g","targets":[{"targetName":"a","mode":1},{"targetName":"b","mode":1}]}`},
			{501, 9, "POST", "/qos", `{"name":"all_others","type":2,"ioMaxLimit":1}`},
		} {
			r.refused(x.status, x.code, x.method, x.path, x.body)
		}
		r.want(201, "POST", "/volumes/v", `{"action":"createSnapshot","parameters":{"name":"second"}}`)
		r.slept = nil
		r.refused(503, kind(array.SnapshotLimit), "POST", "/volumes/v", `{"action":"createSnapshot","parameters":{"name":"third"}}`)
		if fmt.Sprint(r.slept) != "[1s 3s 7s 15s]" { // a client can't tell it from a busy array
			t.Errorf("slept %v", r.slept)
		}
		for i := 7; i < 12; i++ {
			r.want(201, "POST", "/volumes", fmt.Sprintf(`{"name":"n%d","cpg":"cpg1","sizeMiB":256,"tpvv":true}`, i))
		}
		r.refused(503, kind(array.VolumeLimit), "POST", "/volumes", `{"name":"x","cpg":"cpg1","sizeMiB":256}`)
		r.want(200, "PUT", "/volumes/target", `{"action":1}`)
		r.refused(403, kind(array.StaleState), "POST", "/vluns", `{"volumeName":"target","lun":9,"hostname":"h"}`)
	})
}
