//go:build !linux

package sqlite

import "time"

const clockName = "the machine's wall clock"

// sinceBoot is the wall clock here, for a start in 1970: Go has no clock that all processes share and nobody can set.
func sinceBoot() int64 { return time.Now().UnixMicro() }

func bootID() (string, error) { return "", nil }
