package fault

import (
	"context"
	"time"
)

// certificates is a world whose backend can get a new certificate.
type certificates interface {
	// ChangeCertificate gives the backend one that nobody trusts yet. heal, where
	// there is one, makes the driver trust it.
	ChangeCertificate(ctx context.Context) (heal func(), err error)
}

// ChangeCertificate gives the backend a new certificate.
func ChangeCertificate(last time.Duration) Action {
	return NewChange("change certificate", last, func(ctx context.Context, in *Interceptor, _ Call) (func(), error) {
		w, err := WorldOf[certificates](in, "change certificates")
		if err != nil {
			return nil, err
		}
		return w.ChangeCertificate(ctx)
	})
}

func init() {
	Register(Kind{
		Name:   "certificate-changed",
		Doc:    "The vCenter gets a new certificate that it signed itself, as when certificates are regenerated: its connections end, and who trusts the old one only is refused by itself. It heals as a deployment of the driver with the new thumbprint does. In bubbles, where a vCenter serves without TLS, there is none.",
		Phases: []Phase{Before, After},
		Params: LastParams{},
		Needs:  NeedsWorld[certificates]("change certificates"),
		New:    Make(func(_ Rule, p LastParams) (Action, error) { return ChangeCertificate(p.For), nil }),
		Example: `name: the certificate is renewed under a running driver
hop: csi
op: CreateVolume
nth: 1
do:
  certificate-changed: {for: 5m}`,
	})
}
