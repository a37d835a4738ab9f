package sqlite

import "time"

// The clock that decides expiry is one for all processes of the machine, counts the time that the machine was suspended, and takes no notice
// when somebody sets the wall clock: a step forward must not end leases that their holders trust.
//
// It is the time since the machine was started, plus a base, both in microseconds. The base is in the file, and is what makes the times in it
// look like those of the wall clock. When that is set, all times in the file move along with the base, in one transaction: see follow.

// newBase is what base has to be for the clock to agree with the wall clock.
func newBase() int64 { return time.Now().UnixMicro() - sinceBoot() }
