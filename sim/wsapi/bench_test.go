package wsapi

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/array"
)

// BenchmarkExport exports a volume and ends that again, on an array with as
// many volumes as the name says, without the network.
func BenchmarkExport(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			a, err := array.New(array.Config{Users: users})
			if err != nil {
				b.Fatal(err)
			}
			now := time.Now()
			sess, err := a.OpenSession(now, "3paradm", "3pardata", "10.0.0.1")
			if err == nil {
				_, err = a.CreateCPG(now, array.CPGSpec{Name: "cpg"})
			}
			for i := 0; i < n && err == nil; i++ {
				_, err = a.CreateVolume(now, array.VolumeSpec{Name: fmt.Sprint("v", i), CPG: "cpg", SizeMiB: 256})
			}
			if err == nil {
				_, err = a.CreateHost(now, array.HostSpec{Name: "h", ISCSINames: []string{"iqn.a:b"}})
			}
			if err != nil {
				b.Fatal(err)
			}
			s := &Server{cfg: Config{Array: a, Lock: new(sync.Mutex), Now: time.Now}, a: a, family: array.Primera, log: slog.New(slog.DiscardHandler)}
			s.face = detached(b, s)
			do := func(method, path, body string, want int) {
				r := httptest.NewRequest(method, "/api/v1/"+path, strings.NewReader(body))
				r.RemoteAddr = "10.0.0.1:1"
				r.Header.Set(sessionHeader, sess.Key)
				w := httptest.NewRecorder()
				if s.ServeHTTP(w, r); w.Code != want {
					b.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
				}
			}
			i := 0
			for b.Loop() {
				v := fmt.Sprint("v", i%n)
				do(http.MethodPost, "vluns", `{"volumeName":"`+v+`","lun":0,"hostname":"h","autoLun":true}`, 201)
				do(http.MethodGet, "vluns?query=%22volumeName%20EQ%20"+v+"%22", "", 200)
				do(http.MethodDelete, "vluns/"+v+",0,h", "", 200)
				i++
			}
		})
	}
}
