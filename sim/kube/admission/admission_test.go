package admission_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/csilab/csilab/sim/kube/admission"
	"github.com/csilab/csilab/sim/kube/store"
)

var ctx = context.Background()

const good = `# a user's file
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
provisioner: csi.vsphere.vmware.com
parameters:
  storagepolicyname: gold
allowVolumeExpansion: true
---
# nothing here
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: data
  labels: {app: db}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: fast
  resources: {requests: {storage: 10Gi}}
--- # the pod
apiVersion: v1
kind: Pod
metadata: {name: db}
spec:
  containers:
  - name: db
    image: postgres
    ports: [{containerPort: 5432}]
    livenessProbe: {httpGet: {path: /, port: http}}
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: snap}
driver: csi.vsphere.vmware.com
deletionPolicy: Delete
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: s}
spec: {volumeSnapshotClassName: snap, source: {persistentVolumeClaimName: data}}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {k: v}}
- {apiVersion: v1, kind: Secret, metadata: {name: t}, data: {k: dg==}}
`

func decode(t *testing.T, text string) []store.Object {
	t.Helper()
	objects, err := admission.Decode("f.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func TestGoodManifest(t *testing.T) {
	c := store.New(1, nil).Client("user")
	objects := decode(t, good)
	if len(objects) != 7 {
		t.Fatalf("%d objects", len(objects))
	}
	for _, o := range objects {
		if r, err := admission.Apply(ctx, c, o); err != nil || r != admission.Created {
			t.Fatalf("%s %s: %v %v", store.KindOf(o), o.GetName(), r, err)
		}
	}
	for _, o := range decode(t, good) {
		if r, err := admission.Apply(ctx, c, o); err != nil || r != admission.Unchanged {
			t.Errorf("again %s %s: %v %v", store.KindOf(o), o.GetName(), r, err)
		}
	}
	sc, _ := store.Get[storagev1.StorageClass](c, "", "fast")
	if *sc.ReclaimPolicy != corev1.PersistentVolumeReclaimDelete || *sc.VolumeBindingMode != storagev1.VolumeBindingImmediate {
		t.Errorf("%+v", sc)
	}
	p, _ := store.Get[corev1.PersistentVolumeClaim](c, "default", "data")
	if *p.Spec.VolumeMode != corev1.PersistentVolumeFilesystem || p.Finalizers[0] != "kubernetes.io/pvc-protection" || p.Status.Phase != corev1.ClaimPending {
		t.Errorf("%+v", p)
	}
	pod, _ := store.Get[corev1.Pod](c, "default", "db")
	if *pod.Spec.TerminationGracePeriodSeconds != 30 || len(pod.Spec.Tolerations) != 2 || *pod.Spec.Tolerations[1].TolerationSeconds != 300 {
		t.Errorf("%+v", pod.Spec)
	}
	for _, n := range []string{"s", "t"} {
		s, _ := store.Get[corev1.Secret](c, "default", n)
		if string(s.Data["k"]) != "v" || s.StringData != nil || s.Type != corev1.SecretTypeOpaque {
			t.Errorf("%+v", s)
		}
	}
}

func TestDefaultClass(t *testing.T) {
	c := store.New(1, nil).Client("user")
	for _, o := range decode(t, `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: std, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: x.example.com
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: a}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: s}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: b}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Gi}}}
`) {
		if err := admission.Create(ctx, c, o); err != nil {
			t.Fatal(err)
		}
	}
	a, _ := store.Get[corev1.PersistentVolumeClaim](c, "default", "a")
	b, _ := store.Get[corev1.PersistentVolumeClaim](c, "default", "b")
	if *a.Spec.StorageClassName != "std" || *b.Spec.StorageClassName != "" || a.Spec.DataSourceRef == nil || a.Spec.DataSourceRef.Name != "s" {
		t.Errorf("%+v %+v", a.Spec, b.Spec)
	}
}

func TestBadManifests(t *testing.T) {
	pvc := func(spec string) string {
		return "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c, namespace: ns}\nspec: " + spec + "\n"
	}
	for _, tc := range []struct{ name, text, want string }{
		{"unknown field", pvc("{accessModes: [ReadWriteOnce], resources: {request: {storage: 1Gi}}, foo: 1}"),
			"f.yaml:4:50: PersistentVolumeClaim \"ns/c\": unknown field \"spec.resources.request\"; did you mean requests?\nf.yaml:4:76: PersistentVolumeClaim \"ns/c\": unknown field \"spec.foo\""},
		{"wrong case", pvc("{AccessModes: []}"), `f.yaml:4:8: PersistentVolumeClaim "ns/c": unknown field "spec.AccessModes"; did you mean accessModes?`},
		{"wrong quantity", pvc("{resources: {requests: {storage: 10 Gb}}}"),
			`spec.resources.requests.storage: Invalid value: "10 Gb": quantities must match the regular expression`},
		{"huge quantity", pvc("{resources: {requests: {storage: 1e9999999}}}"), `spec.resources.requests.storage: Invalid value: "1e9999999": out of range`},
		{"wrong type", pvc("{accessModes: ReadWriteOnce, storageClassName: 5, volumeMode: true}"),
			"f.yaml:4:8: PersistentVolumeClaim \"ns/c\": spec.accessModes: Invalid value: expected a list, got the string \"ReadWriteOnce\"\nf.yaml:4:36: PersistentVolumeClaim \"ns/c\": spec.storageClassName: Invalid value: expected a string, got the number 5\n" +
				"f.yaml:4:57: PersistentVolumeClaim \"ns/c\": spec.volumeMode: Invalid value: expected a string, got true"},
		{"in a list", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a}, {name: b, volumeMounts: [{nam: x}]}], terminationGracePeriodSeconds: soon}",
			"f.yaml:4:58: Pod \"p\": unknown field \"spec.containers[1].volumeMounts[0].nam\"; did you mean name?\nf.yaml:4:70: Pod \"p\": spec.terminationGracePeriodSeconds: Invalid value: expected an integer, got the string \"soon\""},
		{"annotation that is no string", "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: s, annotations: {storageclass.kubernetes.io/is-default-class: true}}\nprovisioner: x",
			`f.yaml:3:35: StorageClass "s": metadata.annotations[storageclass.kubernetes.io/is-default-class]: Invalid value: expected a string, got true`},
		{"parameter that is no string", "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: s}\nprovisioner: x\nparameters: {num: 5}",
			`parameters.num: Invalid value: expected a string, got the number 5`},
		{"unknown kind", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}",
			`Deployment "d": no matches for kind "Deployment" in version "apps/v1"; supported are`},
		{"old version", "apiVersion: storage.k8s.io/v1beta1\nkind: StorageClass\nmetadata: {name: d}", `no matches for kind "StorageClass" in version "storage.k8s.io/v1beta1"`},
		{"no kind", "metadata: {name: d}", "f.yaml:1:1: d: apiVersion: Required value: a string such as \"v1\"\nf.yaml:1:1: d: kind: Required value"},
		{"not an object", "- a", "expected an object, got a list"},
		{"second document", "apiVersion: v1\nkind: Namespace\nmetadata: {name: n}\n---\n\nkind: [\n", "f.yaml:3:12: Namespace: metadata.name: Invalid value: expected a string, got false\nf.yaml:6:1: no YAML: did not find"},
		{"duplicate key", "apiVersion: v1\nkind: Namespace\nkind: Pod\n", `f.yaml:3:1: key "kind" already set in map`},
		{"tab", "apiVersion: v1\n\tkind: Pod\n", "f.yaml:2:1: no YAML: found a tab character that violates indentation"},
		{"list", "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Secret, metadata: {name: s}, data: {k: '%'}}]",
			`f.yaml:3:68: Secret "s": items[0].data.k: Invalid value: expected base64 text`},
		{"big integer", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {priority: 9999999999}", "spec.priority: Invalid value: 9999999999: expected an integer of 32 bits"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			objects, err := admission.Decode("f.yaml", []byte(tc.text))
			if err == nil || objects != nil {
				t.Fatalf("%v, %v", objects, err)
			}
			var ps admission.Problems
			if !errors.As(err, &ps) || ps[0].File != "f.yaml" || ps[0].Line < 1 || ps[0].Column < 1 {
				t.Errorf("%#v", err)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
	// All documents' mistakes are told at once, and nothing is returned.
	_, err := admission.Decode("f", []byte("kind: A\n---\n"+good+"---\nkind: B\n"))
	if err == nil || strings.Count(err.Error(), "f:1:1: A: apiVersion") != 1 || strings.Count(err.Error(), ": B: apiVersion") != 1 {
		t.Errorf("%v", err)
	}
	// Who reads on gets what is right beside them.
	if ms, err := admission.Read("f", []byte("kind: A\n---\n"+good)); err == nil || len(ms) != 7 {
		t.Errorf("%d objects, %v", len(ms), err)
	}
}

func ephemeralPod(source string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, image: i}], volumes: [{name: e, ephemeral: " + source + "}]}"
}

func TestValidation(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"no size", "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c}\nspec: {accessModes: [ReadWriteOnce]}",
			`PersistentVolumeClaim "c" is invalid: spec.resources[storage]: Required value`},
		{"zero size", "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 0}}}",
			`spec.resources[storage]: Invalid value: "0": must be greater than zero`},
		{"no mode", "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c}\nspec: {resources: {requests: {storage: 1}}}",
			`spec.accessModes: Required value: at least 1 access mode is required`},
		{"bad mode", "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c}\nspec: {accessModes: [RWO, ReadWriteOncePod], volumeMode: Disk, resources: {requests: {storage: 1}}}",
			`PersistentVolumeClaim "c" is invalid: [spec.accessModes: Unsupported value: "RWO": supported values: "ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod", spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes, spec.volumeMode: Unsupported value: "Disk": supported values: "Block", "Filesystem"]`},
		{"bad name", "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: A_b}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1}}}",
			`metadata.name: Invalid value: "A_b": a lowercase RFC 1123 subdomain must consist of`},
		{"no name", "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1}}}",
			`PersistentVolumeClaim "" is invalid: metadata.name: Required value: name or generateName is required`},
		{"bad prefix", "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {generateName: A_}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1}}}",
			`metadata.generateName: Invalid value: "A_": a lowercase RFC 1123 subdomain must consist of`},
		{"no provisioner", "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: s}\nvolumeBindingMode: Later\nreclaimPolicy: Recycle",
			`[provisioner: Required value, reclaimPolicy: Unsupported value: "Recycle": supported values: "Delete", "Retain", volumeBindingMode: Unsupported value: "Later": supported values: "Immediate", "WaitForFirstConsumer"]`},
		{"volume", "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: v}\nspec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, csi: {driver: d}}",
			`spec.csi.volumeHandle: Required value`},
		{"volume without a source", "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: v}\nspec: {accessModes: [ReadWriteOnce]}",
			`[spec: Required value: must specify a volume type, spec.capacity: Required value]`},
		{"pod", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, image: i, volumeMounts: [{name: x, mountPath: /x}], volumeDevices: [{name: e, devicePath: /d}]}], volumes: [{name: e, emptyDir: {}}]}",
			`[spec.containers[0].volumeDevices[0].name: Invalid value: "e": can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode, spec.containers[0].volumeMounts[0].name: Not found: "x"]`},
		{"ephemeral volume without a template", ephemeralPod("{}"), `spec.volumes[0].ephemeral.volumeClaimTemplate: Required value`},
		{"ephemeral volume", ephemeralPod("{volumeClaimTemplate: {metadata: {name: x, labels: {a: '?'}}, spec: {accessModes: [ReadWriteOnce]}}}"),
			`[spec.volumes[0].ephemeral.volumeClaimTemplate.metadata.labels: Invalid value: "?": a valid label must be`},
		{"ephemeral volume's template has a name", ephemeralPod("{volumeClaimTemplate: {metadata: {name: x}, spec: {accessModes: [ReadWriteOnce]}}}"),
			`[spec.volumes[0].ephemeral.volumeClaimTemplate.metadata.name: Forbidden: cannot be set, spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources[storage]: Required value]`},
		{"ephemeral volume's claim has a long name", strings.Replace(ephemeralPod("{volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1}}}}}"), "name: p", "name: "+strings.Repeat("p", 253), 1),
			`spec.volumes[0].name: Invalid value: "e": PVC name "` + strings.Repeat("p", 253) + `-e": must be no more than 253`},
		{"pod without containers", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {}", `spec.containers: Required value`},
		{"snapshot", "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: {name: s}\nspec: {source: {}}",
			`VolumeSnapshot.snapshot.storage.k8s.io "s" is invalid: spec.source: Invalid value: "object": exactly one of volumeSnapshotContentName and persistentVolumeClaimName must be set`},
		{"snapshot class", "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotClass\nmetadata: {name: s}\ndeletionPolicy: Keep",
			`[deletionPolicy: Unsupported value: "Keep": supported values: "Delete", "Retain", driver: Required value]`},
		{"namespace", "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: nowhere}", `namespaces "nowhere" not found`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := store.New(1, nil).Client("user")
			err := admission.Create(ctx, c, decode(t, tc.text)[0])
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

// What an API server refuses is told with the place of its field, also in a List;
// what is about no field with that of the object.
func TestRefusedPlaces(t *testing.T) {
	c := store.New(1, nil).Client("user")
	ms, err := admission.Read("f.yaml", []byte(`apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: PersistentVolumeClaim
  metadata:
    name: c
  spec:
    accessModes:
    - ReadWriteOnce
    - RWO
    volumeMode: Disk
    resources:
      requests:
        storage: 0
- apiVersion: v1
  kind: Secret
  metadata:
    namespace: nowhere
    name: s
`))
	if err != nil || len(ms) != 2 {
		t.Fatal(ms, err)
	}
	want := []string{`f.yaml:9:5: PersistentVolumeClaim "c": spec.accessModes: Unsupported value: "RWO"`,
		`f.yaml:13:5: PersistentVolumeClaim "c": spec.resources[storage]: Invalid value: "0"`,
		`f.yaml:12:5: PersistentVolumeClaim "c": spec.volumeMode: Unsupported value: "Disk"`,
		`f.yaml:20:5: Secret "nowhere/s": namespaces "nowhere" not found`}
	var got []string
	for _, m := range ms {
		for _, p := range m.Refused(admission.Create(ctx, c, m.Object)) {
			got = append(got, p.Error())
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%q", got)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("got  %s\nwant %s", got[i], want[i])
		}
	}
}

// An API server makes the name before it validates; kubectl apply refuses, as it
// could not find the object again.
func TestGenerateName(t *testing.T) {
	c := store.New(1, nil).Client("user")
	const text = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {generateName: data-}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1}}}"
	o := decode(t, text)[0]
	if err := admission.Create(ctx, c, o); err != nil {
		t.Fatal(err)
	}
	if n := o.GetName(); len(n) != len("data-")+5 || !strings.HasPrefix(n, "data-") {
		t.Errorf("name %q", n)
	}
	o = decode(t, strings.Replace(text, "storage: 1", "storage: 0", 1))[0]
	if err := admission.Create(ctx, c, o); !apierrors.IsInvalid(err) || o.GetName() != "" {
		t.Errorf("refused: %v, name %q", err, o.GetName())
	}
	if _, err := admission.Apply(ctx, c, decode(t, text)[0]); err == nil || err.Error() != "from data-: cannot use generate name with apply" {
		t.Errorf("apply: %v", err)
	}
}

func TestUpdates(t *testing.T) {
	c := store.New(1, nil).Client("user")
	for _, text := range []string{`
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: grows}
provisioner: x.example.com
allowVolumeExpansion: true
`, `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fixed}
provisioner: x.example.com
`} {
		if _, err := admission.Apply(ctx, c, decode(t, text)[0]); err != nil {
			t.Fatal(err)
		}
	}
	claim := func(name, class, size, mode string) store.Object {
		return decode(t, "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: "+name+"}\nspec: {accessModes: ["+mode+"], storageClassName: "+class+", resources: {requests: {storage: "+size+"}}}")[0]
	}
	const rwo = "ReadWriteOnce"
	for _, class := range []string{"grows", "fixed"} {
		if _, err := admission.Apply(ctx, c, claim(class, class, "10Gi", rwo)); err != nil {
			t.Fatal(err)
		}
	}
	try := func(o store.Object, want string) {
		t.Helper()
		r, err := admission.Apply(ctx, c, o)
		switch {
		case want == "" && (err != nil || r != admission.Configured):
			t.Errorf("%v %v", r, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	try(claim("grows", "grows", "20Gi", rwo), `persistentvolumeclaims "grows" is forbidden: Only bound persistent volume claims can be expanded`)
	for _, n := range []string{"grows", "fixed"} {
		if _, err := store.Modify(ctx, c, "default", n, func(p *corev1.PersistentVolumeClaim) error {
			p.Spec.VolumeName = "v-" + n
			p.Annotations = map[string]string{"kept": "yes"}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := store.ModifyStatus(ctx, c, "default", n, func(p *corev1.PersistentVolumeClaim) error {
			p.Status.Phase, p.Status.Capacity = corev1.ClaimBound, corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	try(claim("grows", "grows", "5Gi", rwo), `spec.resources.requests.storage: Forbidden: field can not be less than status.capacity`)
	try(claim("fixed", "fixed", "20Gi", rwo), `persistentvolumeclaims "fixed" is forbidden: only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize`)
	try(claim("grows", "grows", "10Gi", "ReadWriteMany"), `spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims`)
	try(claim("grows", "fixed", "10Gi", rwo), `spec: Forbidden: spec is immutable`)
	try(claim("grows", "grows", "20Gi", rwo), "")
	// A size that has not been reached yet may be taken back.
	try(claim("grows", "grows", "15Gi", rwo), "")
	p, _ := store.Get[corev1.PersistentVolumeClaim](c, "default", "grows")
	if p.Spec.VolumeName != "v-grows" || p.Annotations["kept"] != "yes" || p.Spec.Resources.Requests.Storage().String() != "15Gi" || p.Status.Phase != corev1.ClaimBound {
		t.Errorf("%+v", p)
	}
	try(decode(t, "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: fixed}\nprovisioner: other.example.com\nparameters: {a: b}")[0],
		`StorageClass.storage.k8s.io "fixed" is invalid: [parameters: Invalid value: {"a":"b"}: field is immutable, provisioner: Invalid value: "other.example.com": field is immutable]`)
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, image: IMAGE}]}"
	if _, err := admission.Apply(ctx, c, decode(t, strings.Replace(pod, "IMAGE", "i", 1))[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Modify(ctx, c, "default", "p", func(p *corev1.Pod) error { p.Spec.NodeName = "n"; return nil }); err != nil {
		t.Fatal(err)
	}
	if r, err := admission.Apply(ctx, c, decode(t, strings.Replace(pod, "IMAGE", "i", 1))[0]); err != nil || r != admission.Unchanged {
		t.Errorf("%v %v", r, err)
	}
	try(decode(t, strings.Replace(pod, "IMAGE", "j", 1))[0], `spec: Forbidden: pod updates may not change fields other than`)
	if err := admission.Update(ctx, c, claim("none", "grows", "1Gi", rwo)); !apierrors.IsNotFound(err) {
		t.Errorf("%v", err)
	}
}

// Whatever the input, Decode answers with objects that the API accepts to
// default and validate, or with an error that names file and document.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("--- {apiVersion: v1, kind: Pod, spec: {containers: [null]}}"))
	f.Add([]byte("apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List, items: [1]}]"))
	f.Add([]byte("apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: v}\nspec: {accessModes: [ReadWriteOnce], capacity: {storage: '1e9999999999'}, csi: {driver: d, volumeHandle: h}}"))
	f.Add([]byte("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: null\nspec: {resources: {requests: {storage: 1e99999}}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		objects, err := admission.Decode("f", data)
		if err != nil {
			var ps admission.Problems
			if !errors.As(err, &ps) || objects != nil || len(ps) == 0 {
				t.Fatalf("%v %#v", objects, err)
			}
			return
		}
		c := store.New(1, nil).Client("user")
		for _, o := range objects {
			_, _ = admission.Apply(ctx, c, o)
		}
	})
}

// An object with fields that can't be read is read without them, and an API server's
// refusal leaves out what follows from these.
func TestWrongFieldsAndMore(t *testing.T) {
	const text = `apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: c
  name: d
spec:
  accessModes: [ReadWriteOnce, 5, RWO]
  volumeMode: Disk
  resource: {}
  resources:
    requests:
      storage: lots
`
	ms, err := admission.Read("f.yaml", []byte(text))
	if err == nil || len(ms) != 1 {
		t.Fatal(ms, err)
	}
	var ps admission.Problems
	if !errors.As(err, &ps) || len(ps) != 4 {
		t.Errorf("%v", err)
	}
	c := store.New(1, nil).Client("user")
	var got []string
	for _, p := range ms[0].Refused(admission.Create(ctx, c, ms[0].Object)) {
		got = append(got, p.Error())
	}
	if len(got) != 1 || !strings.HasPrefix(got[0], `f.yaml:8:3: PersistentVolumeClaim "d": spec.volumeMode: Unsupported value: "Disk"`) {
		t.Errorf("%q", got)
	}
}
