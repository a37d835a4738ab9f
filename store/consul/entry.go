package consul

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/hashicorp/consul/api"

	"github.com/gotenure/tenure/driver"
)

// flags mark the keys of locks. They are those of api.Lock, which refuses a key with others.
const flags = api.LockFlagValue

// maxValue is the greatest length of a value in bytes: in a transaction, where it is written in base 64, it has to stay below the 512 KiB that a
// server takes by default.
const maxValue = 256 << 10

// header begins a value before which the token is written. Token 0 stands for the entry's own ModifyIndex.
const header = "tenure-token:"

// encode returns how a value is written in a term with a token; 0: by the write that begins it.
func encode(value []byte, token uint64) []byte {
	if token == 0 && !bytes.HasPrefix(value, []byte(header)) {
		return value
	}
	return append(strconv.AppendUint([]byte(header), token, 10), append([]byte{'\n'}, value...)...)
}

// decode returns the token and the value of an entry that a session holds.
func decode(entry *api.KVPair) (token uint64, value []byte) {
	if text, ok := bytes.CutPrefix(entry.Value, []byte(header)); ok {
		if number, value, ok := bytes.Cut(text, []byte{'\n'}); ok {
			if token, err := strconv.ParseUint(string(number), 10, 64); err == nil && token <= entry.ModifyIndex {
				if token == 0 {
					token = entry.ModifyIndex
				}
				return token, value
			}
		}
	}
	return entry.ModifyIndex, entry.Value
}

func tokenOf(entry *api.KVPair) uint64 {
	token, _ := decode(entry)
	return token
}

// vacant reports whether nobody holds the lock.
func vacant(entry *api.KVPair) bool { return entry == nil || entry.Session == "" }

// index returns the entry's ModifyIndex; 0: there is no entry.
func index(entry *api.KVPair) uint64 {
	if entry == nil {
		return 0
	}
	return entry.ModifyIndex
}

// intact returns an error for a key that is not a lock.
func intact(entry *api.KVPair) error {
	if entry == nil || entry.Flags == flags {
		return nil
	}
	return fmt.Errorf("consul: %w: key %q has flags %d instead of %d, so it is no lock of this library or of consul lock: rename the election, or delete the key if nothing uses it",
		driver.ErrCorrupt, entry.Key, entry.Flags, uint64(flags))
}
