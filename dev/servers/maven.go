package main

import (
	"errors"
	"os/exec"
)

// maven builds the rivals that are written in Java.
var maven = server{
	name:     "Maven",
	packages: []string{"maven", "default-jdk-headless"},
	missing: func() error {
		_, mvn := exec.LookPath("mvn")
		_, javac := exec.LookPath("javac")
		return errors.Join(mvn, javac)
	},
}
