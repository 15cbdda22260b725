package cnsface

import (
	"fmt"

	"github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// CnsUpdateVolumeCrypto encrypts, decrypts or re-encrypts a volume, and may
// give it another storage policy with it.
func (m *manager) CnsUpdateVolumeCrypto(ctx *simulator.Context, req *cnstypes.CnsUpdateVolumeCrypto) soap.HasFault {
	task := plain(m.f, ctx, "CnsUpdateVolumeCrypto", req.UpdateSpecs,
		func(s cnstypes.CnsVolumeCryptoUpdateSpec) string { return s.VolumeId.Id }, m.f.updateCrypto)
	return &methods.CnsUpdateVolumeCryptoBody{Res: &cnstypes.CnsUpdateVolumeCryptoResponse{Returnval: task}}
}

func (f *Face) updateCrypto(s cnstypes.CnsVolumeCryptoUpdateSpec) error {
	policy, err := f.policyOf(s.Profile)
	if err != nil {
		return err
	}
	var what cns.Crypt
	var key cns.Key
	if s.DisksCrypto != nil {
		if what, key, err = cryptOf(s.DisksCrypto.Crypto); err != nil {
			return err
		}
	}
	if what == "" && policy == "" {
		return &cns.Error{Kind: cns.InvalidArgument, Field: "disksCrypto", Reason: "neither a profile nor anything to do to the encryption"}
	}
	return f.change(s.VolumeId.Id, policy, func() (err error) {
		if what != "" {
			_, err = f.core.Crypt(s.VolumeId.Id, what, key)
		}
		if err == nil && policy != "" {
			_, err = f.core.SetPolicy(s.VolumeId.Id, policy)
		}
		return err
	})
}

// cryptOf reads a crypto specification; "" is nothing to do. Errors:
// InvalidArgument.
func cryptOf(s vim.BaseCryptoSpec) (cns.Crypt, cns.Key, error) {
	key := func(k vim.CryptoKeyId) cns.Key {
		x := cns.Key{ID: k.KeyId}
		if k.ProviderId != nil {
			x.Provider = k.ProviderId.Id
		}
		return x
	}
	switch x := s.(type) {
	case *vim.CryptoSpecEncrypt:
		return cns.Encrypt, key(x.CryptoKeyId), nil
	case *vim.CryptoSpecDecrypt:
		return cns.Decrypt, cns.Key{}, nil
	case *vim.CryptoSpecShallowRecrypt:
		return cns.ShallowRecrypt, key(x.NewKeyId), nil
	case *vim.CryptoSpecDeepRecrypt:
		return cns.DeepRecrypt, key(x.NewKeyId), nil
	case *vim.CryptoSpecNoOp:
		return "", cns.Key{}, nil
	}
	return "", cns.Key{}, &cns.Error{Kind: cns.InvalidArgument, Field: "crypto", Value: fmt.Sprintf("%T", s),
		Reason: "allowed are CryptoSpecEncrypt, Decrypt, ShallowRecrypt, DeepRecrypt and NoOp"}
}

// cryptoKey is the key of a disk on the wire, nil when it has none.
func cryptoKey(k cns.Key) *vim.CryptoKeyId {
	if k.ID == "" {
		return nil
	}
	w := &vim.CryptoKeyId{KeyId: k.ID}
	if k.Provider != "" {
		w.ProviderId = &vim.KeyProviderId{Id: k.Provider}
	}
	return w
}
