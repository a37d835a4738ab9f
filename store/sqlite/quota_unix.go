//go:build unix

package sqlite

import "syscall"

// errQuota says that a user's share of a disk is used up.
const errQuota = syscall.EDQUOT
