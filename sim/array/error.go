package array

import "fmt"

// Kind is why a command is refused, spelled as the symbol of the WSAPI.
type Kind string

// The kinds. Codes and HTTP statuses are in wire.
const (
	UserOrPassword      Kind = "INV_USER_PASS"
	SessionKey          Kind = "INV_SESS_KEY"
	UnsupportedOp       Kind = "UNSUP_OP"
	InvalidInput        Kind = "INV_INPUT"
	PermissionDenied    Kind = "PERM_DENIED"
	ExistentCPG         Kind = "EXISTENT_CPG"
	NonExistentCPG      Kind = "NON_EXISTENT_CPG"
	ExistentHost        Kind = "EXISTENT_HOST"
	NonExistentHost     Kind = "NON_EXISTENT_HOST"
	ExistentLUN         Kind = "EXISTENT_LUN"
	NonExistentVLUN     Kind = "NON_EXISTENT_VLUN"
	NonExistentPort     Kind = "NON_EXISTENT_PORT"
	BadPortType         Kind = "BAD_PORT_TYPE"
	ExistentVolume      Kind = "EXISTENT_VOL"
	NonExistentVolume   Kind = "NON_EXISTENT_VOL"
	NoSpace             Kind = "NO_SPACE"
	HasReadOnlyChild    Kind = "HAS_RO_CHILD"
	Exported            Kind = "EXPORTED_VLUN"
	TooLarge            Kind = "TOO_LARGE"
	BeingCopied         Kind = "VV_BEING_COPIED"
	HasChild            Kind = "HAS_CHILD"
	InUse               Kind = "IN_USE"
	NonExistentDomain   Kind = "NON_EXISTENT_DOMAIN"
	WrongType           Kind = "INV_INPUT_WRONG_TYPE"
	MissingRequired     Kind = "INV_INPUT_MISSING_REQUIRED"
	ExceedsRange        Kind = "INV_INPUT_EXCEEDS_RANGE"
	ParamConflict       Kind = "INV_INPUT_PARAM_CONFLICT"
	EmptyString         Kind = "INV_INPUT_EMPTY_STR"
	BadEnum             Kind = "INV_INPUT_BAD_ENUM_VALUE"
	PortSpecification   Kind = "INV_INPUT_PORT_SPECIFICATION"
	ExceedsLength       Kind = "INV_INPUT_EXCEEDS_LENGTH"
	ExistentID          Kind = "EXISTENT_ID"
	IllegalChar         Kind = "INV_INPUT_ILLEGAL_CHAR"
	ExistentPath        Kind = "EXISTENT_PATH"
	HostInSet           Kind = "HOST_IN_SET"
	OneRequired         Kind = "INV_INPUT_ONE_REQUIRED"
	NonExistentPath     Kind = "NON_EXISTENT_PATH"
	CPGOnSnapshot       Kind = "INV_OPERATION_VV_CPG_ON_SNAPSHOT"
	PhysicalCopyTarget  Kind = "INV_OPERATION_VLUN_PCOPY_TARGET_VV"
	DuplicatePath       Kind = "INV_INPUT_DUP_PATH"
	PersonaConflict     Kind = "LUN_HOSTPERSONA_CONFLICT"
	NonExistentQoS      Kind = "NON_EXISTENT_QOS_RULE"
	ExistentSet         Kind = "EXISTENT_SET"
	NonExistentSet      Kind = "NON_EXISTENT_SET"
	ExistentQoS         Kind = "EXISTENT_QOS_RULE"
	BelowRange          Kind = "INV_INPUT_BELOW_RANGE"
	QoSTarget           Kind = "INV_INPUT_QOS_TARGET_OBJECT"
	InRemoteCopy        Kind = "INV_OPERATION_VV_IN_REMOTE_COPY"
	NonExistentTask     Kind = "NON_EXISTENT_TASK"
	UnsupportedType     Kind = "INV_OPERATION_UNSUPPORTED_VV_TYPE"
	OnlineCopy          Kind = "INV_OPERATION_VV_ONLINE_COPY_IN_PROGRESS"
	GrowSize            Kind = "INV_INPUT_VV_GROW_SIZE"
	ExceedsCPGLimit     Kind = "VV_NEW_SIZE_EXCEED_CPG_LIMIT"
	NonExistentKey      Kind = "NON_EXISTENT_OBJECT_KEY"
	ExistentKey         Kind = "EXISTENT_OBJECT_KEY"
	PromoteNotRunning   Kind = "INV_OPERATION_VV_PROMOTE_IS_NOT_IN_PROGRESS"
	NonExistentGroup    Kind = "NON_EXISTENT_RCOPY_GROUP"
	GroupTarget         Kind = "RCOPY_GROUP_INV_TARGET"
	GroupStarted        Kind = "RCOPY_GROUP_STARTED"
	ExistentGroup       Kind = "EXISTENT_RCOPY_GROUP"
	TooBusy             Kind = "SYSTEM_BUSY"
	Retained            Kind = "RETAINED"
	NoSnapCPG           Kind = "NO_SNAP_CPG"
	MissingExport       Kind = "MISSING_VLUN_EXPORT_INFO"
	AutoLUNUnavailable  Kind = "AUTO_LUN_ID_UNAVAILABLE"
	VolumeLimit         Kind = "VV_LIMIT_REACHED"
	SnapshotLimit       Kind = "SNAPSHOT_LIMIT_REACHED"
	IDLimit             Kind = "VV_ID_LIMIT_REACHED"
	AllocationWarning   Kind = "CPG_ALLOCATION_WARNING_REACHED"
	StaleState          Kind = "VV_IN_STALE_STATE"
	TooManyPaths        Kind = "INV_INPUT_TOO_MANY_WWN_OR_iSCSI"
	CHAPNotUnique       Kind = "NON_UNIQUE_CHAP_SECRET"
	CHAPLength          Kind = "INV_INPUT_BAD_LENGTH"
	NoInitiatorCHAP     Kind = "NO_INITIATOR_CHAP"
	NonExistentCHAP     Kind = "NON_EXISTENT_CHAP"
	MemberInSet         Kind = "MEMBER_IN_SET"
	MemberNotInSet      Kind = "MEMBER_NOT_IN_SET"
	OtherDomain         Kind = "MEMBER_NOT_IN_SAME_DOMAIN"
	CPGOtherDomain      Kind = "CPG_NOT_IN_SAME_DOMAIN"
	EmptySet            Kind = "EMPTY_SET"
	LUNConflict         Kind = "LUN_ID_CONFLICT"
	MatchedHostSet      Kind = "INV_INPUT_MATCHED_HOSTSET"
	DuplicateName       Kind = "INV_INPUT_DUP_NAME"
	SetHasQoS           Kind = "VVSET_QOS_TARGET"
	RetainBeyondExpiry  Kind = "INV_INPUT_RETAIN_GT_EXPIRE"
	InvalidTime         Kind = "INV_INPUT_TIME"
	WarnBeyondLimit     Kind = "INV_INPUT_WARN_GT_LIMIT"
	ReadOnlyToReadOnly  Kind = "INV_OPERATION_VV_READONLY_TO_READONLY_SNAP"
	SizeCannotReduce    Kind = "VV_SIZE_CANNOT_REDUCE"
	SizeExceedsLimits   Kind = "VV_NEW_SIZE_EXCEEDS_LIMITS"
	BaseVolume          Kind = "INV_OPERATION_VV_BASE_VOLUME"
	NotBaseVolume       Kind = "INV_OPERATION_VV_NON_BASE_VOLUME"
	CopyToSelf          Kind = "INV_OPERATION_VV_COPY_TO_SELF"
	ParentTooBig        Kind = "INV_OPERATION_VV_COPY_PARENT_TOO_BIG"
	NoParent            Kind = "INV_OPERATION_VV_NO_PARENT"
	CopyRunning         Kind = "INV_OPERATION_VV_PCOPY_IN_PROGRESS"
	PromoteRunning      Kind = "INV_OPERATION_VV_PROMOTE_IN_PROGRESS"
	PromoteTarget       Kind = "INV_OPERATION_PROMOTE_TARGET_NOT_BASE_VV"
	ParentGrew          Kind = "INV_OPERATION_PARENT_SIZE_HAS_INCREASED"
	VolumeExported      Kind = "INV_OPERATION_VV_EXPORTED"
	ParentExported      Kind = "INV_OPERATION_PARENT_VV_EXPORTED"
	NonExistentCopy     Kind = "NON_EXISTENT_VVCOPY"
	TaskNotActive       Kind = "TASK_NOT_ACTIVE"
	TargetNotReady      Kind = "RCOPY_TARGET_IS_NOT_READY"
	OnlyOnPrimary       Kind = "RCOPY_GROUP_OPERATION_ONLY_ON_PRIMARY_SIDE"
	RoleConflict        Kind = "INV_OPERATION_RCOPY_GROUP_ROLE_CONFLICT"
	GroupNotStarted     Kind = "RCOPY_GROUP_NOT_STARTED"
	GroupBusy           Kind = "RCOPY_GROUP_IS_BUSY"
	GroupEmpty          Kind = "RCOPY_GROUP_EMPTY"
	GroupHasNoCPG       Kind = "RCOPY_GROUP_HAS_NO_CPG"
	GroupExistentVolume Kind = "RCOPY_GROUP_EXISTENT_VOL"
	GroupVolumeOnTarget Kind = "RCOPY_GROUP_EXISTENT_VOL_ON_TARGET"
	GroupNoTargetVolume Kind = "RCOPY_GROUP_NON_EXISTENT_VOL_ON_TARGET"
	GroupVolumeSize     Kind = "RCOPY_GROUP_VOL_SIZE_NOT_MATCH"
	GroupVolumeReadOnly Kind = "RCOPY_GROUP_VOL_IS_RO"
	GroupVolumeIsCopy   Kind = "RCOPY_GROUP_VOL_IS_PHYSICAL_COPY"
	GroupVolumeElse     Kind = "RCOPY_GROUP_VOL_IN_OTHER_GROUP"
	GroupNotInGroup     Kind = "RCOPY_GROUP_VOL_NOT_IN_GROUP"
	GroupFamily         Kind = "RCOPY_GROUP_MULTIPLE_VOL_IN_SAME_FAMILY"
	GroupNoSnapSpace    Kind = "RCOPY_GROUP_VOL_NO_SNAPSHOT_SPACE"
	GroupTargetExported Kind = "RCOPY_GROUP_TARGET_VOL_EXPORTED"
	VolumePolicy        Kind = "INV_INPUT_VV_POLICY"
	SameBase            Kind = "INV_OPERATION_VV_SNAP_PARENT_SAME_BASE"
	CopyToBase          Kind = "INV_OPERATION_VV_COPY_TO_BASE"
	CircularCopy        Kind = "INV_OPERATION_VV_CIRCULAR_COPY"
	ReadOnlySnapshot    Kind = "INV_OPERATION_VV_READONLY_SNAPSHOT"
	OperationConflict   Kind = "INV_OPERATION_PARAM_CONFLICT"
	NamePattern         Kind = "INVALID_INPUT_VV_PATTERN"
	UserCPGFixed        Kind = "INV_OPERATION_VV_MODIFY_USR_CPG_TPVV"
	TuneRunning         Kind = "INV_OPERATION_VV_TUNE_IN_PROGRESS"
	GroupOtherDomain    Kind = "RCOPY_GROUP_VOL_NOT_IN_SAME_DOMAIN"
	GroupSplit          Kind = "RCOPY_GROUP_SECONDARY_DOES_NOT_MATCH_PRIMARY"
	FlashUnsupported    Kind = "FLASH_CACHE_NOT_SUPPORTED"
	ExistentFlash       Kind = "EXISTENT_FLASH_CACHE"
	NonExistentFlash    Kind = "NON_EXISTENT_FLASH_CACHE"
	FlashSize           Kind = "INV_FLASH_CACHE_SIZE"
	NonExistentUser     Kind = "NON_EXISTENT_USER"
	NonExistentRole     Kind = "NON_EXISTENT_ROLE"
	NonExistentLink     Kind = "NON_EXISTENT_RCOPY_LINK"
)

// Wire is how the WSAPI tells a kind: the number that clients go by, and the
// status of the response.
type Wire struct{ Code, Status int }

// Unknown is where the numbers begin of kinds whose real number no public
// source tells: clients take none of them for another.
const Unknown = 9000

// wire: numbers up to 99 are of the WSAPI developer's guides 1.2 and 1.3.1,
// most of those from 100 on of HPE's python client and its test server, or of
// OpenStack's driver, whose reactions to them show what they mean. The statuses
// of kinds from Unknown on are of the guides and of that client's reference.
var wire = map[Kind]Wire{
	UserOrPassword: {5, 403}, SessionKey: {6, 403}, UnsupportedOp: {9, 501}, InvalidInput: {12, 400},
	PermissionDenied: {13, 403}, ExistentCPG: {14, 409}, NonExistentCPG: {15, 404},
	ExistentHost: {16, 409}, NonExistentHost: {17, 404}, ExistentLUN: {18, 409},
	NonExistentVLUN: {19, 404}, NonExistentPort: {20, 404}, BadPortType: {21, 400},
	ExistentVolume: {22, 409}, NonExistentVolume: {23, 404}, NoSpace: {24, 400},
	HasReadOnlyChild: {25, 409}, Exported: {26, 409}, TooLarge: {28, 400}, BeingCopied: {29, 400},
	HasChild: {32, 409}, InUse: {34, 409}, NonExistentDomain: {38, 404}, WrongType: {39, 400},
	MissingRequired: {40, 400}, ExceedsRange: {43, 400}, ParamConflict: {44, 400}, EmptyString: {45, 400},
	BadEnum: {46, 400}, PortSpecification: {55, 400}, ExceedsLength: {57, 400}, ExistentID: {59, 409},
	IllegalChar: {69, 400}, ExistentPath: {73, 409}, HostInSet: {77, 409}, OneRequired: {78, 400},
	NonExistentPath: {80, 404}, CPGOnSnapshot: {96, 409}, PhysicalCopyTarget: {97, 409},
	DuplicatePath: {98, 400}, PersonaConflict: {99, 409}, NonExistentQoS: {100, 404},
	// The guide 1.3.1 says 400 for an existing set; clients (OpenStack) know 409.
	ExistentSet: {101, 409}, NonExistentSet: {102, 404},
	ExistentQoS: {114, 400}, BelowRange: {115, 400}, QoSTarget: {117, 404}, InRemoteCopy: {120, 403},
	NonExistentTask: {145, 404}, UnsupportedType: {150, 403}, OnlineCopy: {151, 409}, GrowSize: {152, 400},
	ExceedsCPGLimit: {153, 403}, NonExistentKey: {180, 404}, ExistentKey: {181, 409},
	PromoteNotRunning: {185, 409}, NonExistentGroup: {187, 404}, GroupTarget: {194, 400},
	GroupStarted: {215, 403}, ExistentGroup: {237, 409}, TooBusy: {270, 503},

	Retained: {Unknown, 409}, NoSnapCPG: {Unknown + 1, 409}, MissingExport: {Unknown + 2, 400},
	AutoLUNUnavailable: {Unknown + 3, 409}, VolumeLimit: {Unknown + 4, 503}, SnapshotLimit: {Unknown + 5, 503},
	IDLimit: {Unknown + 6, 503}, AllocationWarning: {Unknown + 7, 503}, StaleState: {Unknown + 8, 403},
	TooManyPaths: {Unknown + 9, 400}, CHAPNotUnique: {Unknown + 10, 409}, CHAPLength: {Unknown + 11, 400},
	NoInitiatorCHAP: {Unknown + 12, 404}, NonExistentCHAP: {Unknown + 13, 404}, MemberInSet: {Unknown + 14, 409},
	MemberNotInSet: {Unknown + 15, 404}, OtherDomain: {Unknown + 16, 409}, CPGOtherDomain: {Unknown + 17, 403},
	EmptySet: {Unknown + 18, 404}, LUNConflict: {Unknown + 19, 400}, MatchedHostSet: {Unknown + 20, 400},
	DuplicateName: {Unknown + 21, 400}, SetHasQoS: {Unknown + 22, 409}, RetainBeyondExpiry: {Unknown + 23, 400},
	InvalidTime: {Unknown + 24, 400}, WarnBeyondLimit: {Unknown + 25, 400}, ReadOnlyToReadOnly: {Unknown + 26, 403},
	SizeCannotReduce: {Unknown + 27, 403}, SizeExceedsLimits: {Unknown + 28, 403}, BaseVolume: {Unknown + 29, 409},
	NotBaseVolume: {Unknown + 30, 403}, CopyToSelf: {Unknown + 31, 403}, ParentTooBig: {Unknown + 32, 409},
	NoParent: {Unknown + 33, 403}, CopyRunning: {Unknown + 34, 409}, PromoteRunning: {Unknown + 35, 409},
	PromoteTarget: {Unknown + 36, 403}, ParentGrew: {Unknown + 37, 409}, VolumeExported: {Unknown + 38, 403},
	ParentExported: {Unknown + 39, 403}, NonExistentCopy: {Unknown + 40, 404}, TaskNotActive: {Unknown + 41, 409},
	TargetNotReady: {Unknown + 42, 403}, OnlyOnPrimary: {Unknown + 43, 403}, RoleConflict: {Unknown + 44, 403},
	GroupNotStarted: {Unknown + 45, 403}, GroupBusy: {Unknown + 46, 403}, GroupEmpty: {Unknown + 47, 403},
	GroupHasNoCPG: {Unknown + 48, 403}, GroupExistentVolume: {Unknown + 49, 409}, GroupVolumeOnTarget: {Unknown + 50, 409},
	GroupNoTargetVolume: {Unknown + 51, 404}, GroupVolumeSize: {Unknown + 52, 403}, GroupVolumeReadOnly: {Unknown + 53, 403},
	GroupVolumeIsCopy: {Unknown + 54, 403}, GroupVolumeElse: {Unknown + 55, 403}, GroupNotInGroup: {Unknown + 56, 404},
	GroupFamily: {Unknown + 57, 403}, GroupNoSnapSpace: {Unknown + 58, 403}, GroupTargetExported: {Unknown + 59, 403},
	GroupSplit: {Unknown + 60, 403}, VolumePolicy: {Unknown + 61, 400}, NamePattern: {Unknown + 62, 400},
	UserCPGFixed: {Unknown + 63, 403}, TuneRunning: {Unknown + 64, 409}, SameBase: {Unknown + 65, 403},
	CopyToBase: {Unknown + 66, 403}, CircularCopy: {Unknown + 67, 403}, ReadOnlySnapshot: {Unknown + 68, 403},
	OperationConflict: {Unknown + 69, 409}, GroupOtherDomain: {Unknown + 70, 403}, FlashUnsupported: {Unknown + 71, 403},
	ExistentFlash: {Unknown + 72, 409}, NonExistentFlash: {Unknown + 73, 404}, FlashSize: {Unknown + 74, 400},
	// Unverified: the symbols of these three.
	NonExistentUser: {Unknown + 75, 404}, NonExistentRole: {Unknown + 76, 404}, NonExistentLink: {Unknown + 77, 404},
}

// Wire returns the number and status of a kind.
func (k Kind) Wire() Wire { return wire[k] }

// Error is a refused command. The state is as it was.
type Error struct {
	Kind   Kind
	Field  string // the member that is wrong, as the WSAPI spells it
	Value  string // its value
	Reason string // what was allowed, or what stands against it
	Holder string // who stands against it: a host, a volume, a set
}

// Wire returns the number and status of the error.
func (e *Error) Wire() Wire { return e.Kind.Wire() }

func (e *Error) Error() string {
	s := "array: " + string(e.Kind)
	if e.Field != "" {
		s += fmt.Sprintf(": %s %q", e.Field, e.Value)
	}
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	if e.Holder != "" {
		s += fmt.Sprintf(" (%s)", e.Holder)
	}
	return s
}
