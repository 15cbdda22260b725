package cnsface

import (
	"context"
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
	var s cnstypes.CnsVolumeCryptoUpdateSpec
	if len(req.UpdateSpecs) == 1 {
		s = req.UpdateSpecs[0]
	}
	j := job1("CnsUpdateVolumeCrypto", s.VolumeId.Id, func(ctx context.Context, c *simulator.Context) (vim.AnyType, error) {
		if err := oneSpec(len(req.UpdateSpecs)); err != nil {
			return nil, err
		}
		return m.f.updateCrypto(ctx, s)
	})
	return &methods.CnsUpdateVolumeCryptoBody{Res: &cnstypes.CnsUpdateVolumeCryptoResponse{Returnval: m.f.start(ctx, j)}}
}

func (f *Face) updateCrypto(ctx context.Context, s cnstypes.CnsVolumeCryptoUpdateSpec) (vim.AnyType, error) {
	r := &cnstypes.CnsVolumeOperationResult{VolumeId: s.VolumeId}
	refuse := func(err error) (vim.AnyType, error) {
		r.Fault = wire("CnsUpdateVolumeCrypto", err)
		return batch(r), err
	}
	policy, err := f.policyOf(s.Profile)
	if err != nil {
		return refuse(err)
	}
	var what cns.Crypt
	var key cns.Key
	if s.DisksCrypto != nil {
		if what, key, err = cryptOf(s.DisksCrypto.Crypto); err != nil {
			return refuse(err)
		}
	}
	if what == "" && policy == "" {
		return refuse(&cns.Error{Kind: cns.InvalidArgument, Field: "disksCrypto", Reason: "neither a profile nor anything to do to the encryption"})
	}
	id := s.VolumeId.Id
	unlock, err := f.volumes.lock(ctx, id)
	if err != nil {
		return nil, &taskError{local(&vim.RequestCanceled{}, err.Error())}
	}
	defer unlock()
	f.mu.Lock()
	v, err := f.core.Volume(id)
	f.mu.Unlock()
	if err != nil {
		return refuse(err)
	}
	if err := f.satisfies(policy, v.Datastore); err != nil {
		return refuse(err)
	}
	f.mu.Lock()
	if what != "" {
		_, err = f.core.Crypt(id, what, key)
	}
	if err == nil && policy != "" {
		_, err = f.core.SetPolicy(id, policy)
	}
	f.mu.Unlock()
	if err != nil {
		return refuse(err)
	}
	return batch(r), nil
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
