package array

import (
	"fmt"
	"time"
)

// FlashCacheMode is what a flash cache does, numbered as the WSAPI does.
type FlashCacheMode int

// The modes.
const (
	FlashSimulator FlashCacheMode = 1 // counts what it would have saved, takes no space
	FlashReal      FlashCacheMode = 2
)

// Sizes of a flash cache in GiB, of each pair of nodes. Unverified: the bounds,
// which depend on the model; the unit is of HPE's clients.
const (
	FlashUnitGiB = 16
	MinFlashGiB  = 64
	MaxFlashGiB  = 3072
)

// FlashCache is a part of the array's flash that reads are kept in. What it is
// to performance is not simulated: it takes space, and policies of sets and of
// the system say what is kept.
type FlashCache struct {
	SizeGiB int64          `json:"sizeGiB"`
	Mode    FlashCacheMode `json:"mode"`
	Created time.Time      `json:"created"`
}

// mib is what it takes of the array.
func (f *FlashCache) mib(nodes int) int64 {
	if f == nil || f.Mode == FlashSimulator {
		return 0
	}
	return f.SizeGiB << 10 * int64(max(1, nodes/2))
}

// flashes refuses an array that can have no flash cache: one that has flash
// only, as Primera and Alletra are (unverified: which 3PAR models too).
func (a *Array) flashes() error {
	if a.cfg.Family != ThreePAR {
		return &Error{Kind: FlashUnsupported, Field: "sizeGiB", Reason: "arrays of the family " + string(a.cfg.Family) + " have no flash cache"}
	}
	return nil
}

// CreateFlashCache makes the flash cache. Errors: FLASH_CACHE_NOT_SUPPORTED,
// EXISTENT_FLASH_CACHE, INV_INPUT_BAD_ENUM_VALUE, INV_INPUT_EXCEEDS_RANGE,
// INV_FLASH_CACHE_SIZE, NO_SPACE.
func (a *Array) CreateFlashCache(now time.Time, f FlashCache) (FlashCache, error) {
	if err := a.flashes(); err != nil {
		return FlashCache{}, err
	}
	if a.flash != nil {
		return FlashCache{}, &Error{Kind: ExistentFlash, Field: "sizeGiB", Value: fmt.Sprint(f.SizeGiB), Reason: "the flash cache exists"}
	}
	if f.Mode == 0 {
		f.Mode = FlashReal
	}
	if f.Mode != FlashSimulator && f.Mode != FlashReal {
		return FlashCache{}, &Error{Kind: BadEnum, Field: "mode", Value: fmt.Sprint(int(f.Mode)), Reason: "allowed are 1 and 2"}
	}
	if f.SizeGiB < MinFlashGiB || f.SizeGiB > MaxFlashGiB {
		return FlashCache{}, &Error{Kind: ExceedsRange, Field: "sizeGiB", Value: fmt.Sprint(f.SizeGiB), Reason: fmt.Sprintf("allowed are %d to %d", MinFlashGiB, MaxFlashGiB)}
	}
	if f.SizeGiB%FlashUnitGiB != 0 {
		return FlashCache{}, &Error{Kind: FlashSize, Field: "sizeGiB", Value: fmt.Sprint(f.SizeGiB), Reason: fmt.Sprintf("allowed are multiples of %d", FlashUnitGiB)}
	}
	if free := a.cfg.CapacityMiB - a.usedMiB; f.mib(a.cfg.Nodes) > free {
		return FlashCache{}, &Error{Kind: NoSpace, Field: "sizeGiB", Value: fmt.Sprint(f.SizeGiB), Reason: fmt.Sprintf("%d MiB are free", free)}
	}
	f.Created = now
	a.flash = &f
	a.usedMiB += f.mib(a.cfg.Nodes)
	a.log(now, Added, "flashcache", fmt.Sprintf("%d GiB", f.SizeGiB))
	return f, nil
}

// FlashCache returns it. Errors: FLASH_CACHE_NOT_SUPPORTED,
// NON_EXISTENT_FLASH_CACHE.
func (a *Array) FlashCache() (FlashCache, error) {
	if err := a.flashes(); err != nil {
		return FlashCache{}, err
	}
	if a.flash == nil {
		return FlashCache{}, &Error{Kind: NonExistentFlash, Reason: "there is no flash cache"}
	}
	return *a.flash, nil
}

// DeleteFlashCache drops it, whatever policies say. Errors:
// FLASH_CACHE_NOT_SUPPORTED, NON_EXISTENT_FLASH_CACHE.
func (a *Array) DeleteFlashCache(now time.Time) error {
	f, err := a.FlashCache()
	if err != nil {
		return err
	}
	a.usedMiB -= f.mib(a.cfg.Nodes)
	a.flash = nil
	a.log(now, Removed, "flashcache", fmt.Sprintf("%d GiB", f.SizeGiB))
	return nil
}

// FlashPolicy says for whom the flash cache is on, numbered as the WSAPI does.
type FlashPolicy int

// The policies.
const (
	FlashOn  FlashPolicy = 1
	FlashOff FlashPolicy = 2
)

func (p FlashPolicy) check() error {
	if p != FlashOn && p != FlashOff {
		return &Error{Kind: BadEnum, Field: "flashCachePolicy", Value: fmt.Sprint(int(p)), Reason: "allowed are 1 and 2"}
	}
	return nil
}

// SetFlashPolicy turns the flash cache on or off for all volumes. Errors:
// INV_INPUT_BAD_ENUM_VALUE, FLASH_CACHE_NOT_SUPPORTED,
// NON_EXISTENT_FLASH_CACHE.
func (a *Array) SetFlashPolicy(now time.Time, p FlashPolicy) error {
	if err := p.check(); err != nil {
		return err
	}
	if _, err := a.FlashCache(); err != nil {
		return err
	}
	a.flashPolicy = p
	a.log(now, Changed, "flashcache", "policy")
	return nil
}

// FlashPolicy is that of all volumes.
func (a *Array) FlashPolicy() FlashPolicy {
	if a.flashPolicy == 0 {
		return FlashOff
	}
	return a.flashPolicy
}
