package array

import "maps"

// Key/value pairs of volumes. Unverified: the length of a value; HPE's test
// server takes 31 bytes, which OpenStack's driver exceeds.

func checkPair(key, value string) error {
	if key == "" {
		return &Error{Kind: MissingRequired, Field: "key", Reason: "a key is required"}
	}
	if err := checkText("key", key, MaxKey); err != nil {
		return err
	}
	return checkText("value", value, MaxValue)
}

// CreateValue adds a pair. Errors: NON_EXISTENT_VOL, EXISTENT_OBJECT_KEY,
// lengths.
func (a *Array) CreateValue(volume, key, value string) error {
	v, err := a.volume("name", volume)
	if err != nil {
		return err
	}
	if err := checkPair(key, value); err != nil {
		return err
	}
	if _, ok := v.Values[key]; ok {
		return &Error{Kind: ExistentKey, Field: "key", Value: key, Reason: "the volume has this key"}
	}
	v.setValue(key, value)
	return nil
}

// PutValue sets a pair, new or not. Errors: NON_EXISTENT_VOL, lengths.
func (a *Array) PutValue(volume, key, value string) error {
	v, err := a.volume("name", volume)
	if err != nil {
		return err
	}
	if err := checkPair(key, value); err != nil {
		return err
	}
	v.setValue(key, value)
	return nil
}

func (v *volume) setValue(key, value string) {
	if v.Values == nil {
		v.Values = map[string]string{}
	}
	v.Values[key] = value
}

// Value returns a value. Errors: NON_EXISTENT_VOL, NON_EXISTENT_OBJECT_KEY.
func (a *Array) Value(volume, key string) (string, error) {
	v, err := a.volume("name", volume)
	if err != nil {
		return "", err
	}
	value, ok := v.Values[key]
	if !ok {
		return "", &Error{Kind: NonExistentKey, Field: "key", Value: key, Reason: "the volume has no such key"}
	}
	return value, nil
}

// Values returns all pairs of a volume. Errors: NON_EXISTENT_VOL.
func (a *Array) Values(volume string) (map[string]string, error) {
	v, err := a.volume("name", volume)
	if err != nil {
		return nil, err
	}
	return maps.Clone(v.Values), nil
}

// DeleteValue drops a pair. Errors: NON_EXISTENT_VOL, NON_EXISTENT_OBJECT_KEY.
func (a *Array) DeleteValue(volume, key string) error {
	v, err := a.volume("name", volume)
	if err != nil {
		return err
	}
	if _, ok := v.Values[key]; !ok {
		return &Error{Kind: NonExistentKey, Field: "key", Value: key, Reason: "the volume has no such key"}
	}
	delete(v.Values, key)
	if len(v.Values) == 0 {
		v.Values = nil
	}
	return nil
}
