package sqlite

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// shared are file systems that other machines may have mounted too, by their number. Memory is not shared between machines, nor does every one of them lock.
var shared = map[uint32]string{
	unix.NFS_SUPER_MAGIC:   "NFS",
	unix.SMB_SUPER_MAGIC:   "SMB",
	unix.CIFS_SUPER_MAGIC:  "CIFS",
	unix.SMB2_SUPER_MAGIC:  "SMB",
	unix.V9FS_MAGIC:        "9P",
	unix.AFS_SUPER_MAGIC:   "AFS",
	unix.AFS_FS_MAGIC:      "AFS",
	unix.CODA_SUPER_MAGIC:  "Coda",
	unix.CEPH_SUPER_MAGIC:  "Ceph",
	unix.OCFS2_SUPER_MAGIC: "OCFS2",
	0x01161970:             "GFS2",
	0x0bd00bd0:             "Lustre",
	0x47504653:             "GPFS",
	0x19830326:             "BeeGFS",
	0xaad7aaea:             "PanFS",
	0x786f4256:             "VirtualBox shared folder",
	0xbacbacbc:             "VMware shared folder",
	0x013111a8:             "IBRIX",
}

// statfs is the system call except in tests.
var statfs = unix.Statfs

// fileSystem returns the name of the file system of dir when other machines may have it mounted too, and reports whether that is certain. FUSE may be
// anything.
func fileSystem(dir string) (name string, certain bool, err error) {
	var s unix.Statfs_t
	if err := statfs(dir, &s); err != nil {
		return "", false, fmt.Errorf("statfs %s: %w", dir, err)
	}
	name, certain = shared[uint32(s.Type)]
	if uint32(s.Type) == unix.FUSE_SUPER_MAGIC {
		name = "FUSE"
	}
	return name, certain, nil
}
