package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// installScript installs the packages named by its arguments. A fresh machine has no package lists, or old ones.
//
// Installing a database server usually also makes a database and starts the server, now and at every boot. Nobody asked for that:
// policy-rc.d forbids the start while packages are installed, and a setting for postgresql-common the making of the database. Both
// are removed again; what the machine had of them stays.
const installScript = `set -eu
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
cluster=/etc/postgresql-common/createcluster.d/tenure-tests.conf
undo=
if [ ! -e $policy ]; then
	undo="$undo $policy"
fi
undo="$undo $cluster"
trap 'rm -f $undo' EXIT
if [ ! -e $policy ]; then
	printf '#!/bin/sh\nexit 101\n' >$policy
	chmod 755 $policy
fi
mkdir -p /etc/postgresql-common/createcluster.d
echo 'create_main_cluster = false' >$cluster
apt-get -o DPkg::Lock::Timeout=300 update -qq
apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$@"
`

// install installs what is missing. It is quiet, but says what it is about to do to the machine.
func install(ctx context.Context) error {
	if err := installPackages(ctx); err != nil {
		return err
	}
	for _, s := range table {
		if s.build == nil || s.missing() == nil {
			continue
		}
		warn("building %s, which takes minutes, once", s.name)
		if err := s.build(ctx); err != nil {
			return err
		}
	}
	var missing []error
	for _, s := range table {
		if err := s.missing(); err != nil {
			missing = append(missing, fmt.Errorf("%s is still missing after it was installed: %w", s.name, err))
		}
	}
	return errors.Join(missing...)
}

func installPackages(ctx context.Context) error {
	var packages, names []string
	for _, s := range table {
		if s.missing() != nil && len(s.packages) > 0 {
			packages = append(packages, s.packages...)
			names = append(names, s.name)
		}
	}
	if len(packages) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("%s missing, and no apt-get to install it with: install it by hand and put it in PATH", strings.Join(names, " and "))
	}
	args := append([]string{"sh", "-c", installScript, "install"}, packages...)
	if os.Geteuid() != 0 {
		if _, err := exec.LookPath("sudo"); err != nil {
			return fmt.Errorf("%s missing: run this as root or install sudo, or run: apt-get install %s",
				strings.Join(names, " and "), strings.Join(packages, " "))
		}
		args = append([]string{"sudo"}, args...)
	}
	warn("installing %s (apt-get install %s)", strings.Join(names, ", "), strings.Join(packages, " "))
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("apt-get install %s: %w\n%s", strings.Join(packages, " "), err, out.Bytes())
	}
	return nil
}

func warn(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "servers: "+format+"\n", args...)
}
