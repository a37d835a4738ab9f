package driver

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// MaxNameLen is the greatest length in bytes of the name of an election, a member or a resource.
const MaxNameLen = 255

// CheckName returns an error that wraps ErrInvalid and names the field unless name is fit to name an election, a member or a
// resource: 1 to 255 bytes of UTF-8 without control characters. Quotes, slashes and spaces are fine.
func CheckName(field, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: %s is empty: give it a name of 1 to %d bytes", ErrInvalid, field, MaxNameLen)
	case len(name) > MaxNameLen:
		return fmt.Errorf("%w: %s %.40q… has %d bytes: shorten it to at most %d", ErrInvalid, field, name, len(name), MaxNameLen)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: %s %q is not UTF-8: encode it as UTF-8", ErrInvalid, field, name)
	}
	for i, r := range name {
		if unicode.IsControl(r) {
			return fmt.Errorf("%w: %s %q has the control character %U at byte %d: remove it", ErrInvalid, field, name, r, i)
		}
	}
	return nil
}
