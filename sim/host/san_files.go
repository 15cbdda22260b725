package host

import (
	"fmt"
	"strings"
)

// initiatorFile is what /etc/iscsi/initiatorname.iscsi holds.
func initiatorFile(iqn string) []byte { return []byte("InitiatorName=" + iqn + "\n") }

// sanFiles are files below /etc: those of a storage network's software, and the
// name that the machine has for itself.
func sanFiles(seed uint64, name string, a Adapters, recheckWWID bool, retry NoPathRetry) map[string]string {
	files := map[string]string{"machine-id": strings.ReplaceAll(UUIDOf(fmt.Sprintf("%d|host|%s|machine-id", seed, name)), "-", "") + "\n"}
	if a.IQN != "" {
		files["iscsi/initiatorname.iscsi"] = string(initiatorFile(a.IQN))
		files["iscsi/iscsid.conf"] = "node.startup = manual\nnode.session.timeo.replacement_timeout = 120\n"
	}
	recheck := ""
	if recheckWWID {
		recheck = "    recheck_wwid yes\n"
	}
	files["multipath.conf"] = `defaults {
    user_friendly_names yes
    find_multipaths no
` + recheck + `}
blacklist {
    devnode "^sda$"
}
devices {
    device {
        vendor "3PARdata"
        product "VV"
        path_grouping_policy group_by_prio
        path_checker tur
        prio alua
        hardware_handler "1 alua"
        features "0"
        failback immediate
        no_path_retry ` + retry.String() + `
        fast_io_fail_tmo 10
        dev_loss_tmo infinity
    }
}
`
	return files
}
