package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A source is a module of which server programs are built, where no package of the system has them in a fit version. What was built stays in
// the user's cache directory, under the version: the next run does not build, nor link, again.
type source struct {
	name, version string
	mod, sum      string            // of a module that requires what the programs need
	programs      map[string]string // package by program
	ldflags       string
}

// dir returns the directory of the finished programs.
func (s *source) dir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no directory for the programs of %s: %w", s.name, err)
	}
	return filepath.Join(cache, "tenure", "servers", s.name+"-"+s.version), nil
}

// program returns the path of a finished program.
func (s *source) program(name string) (string, error) {
	dir, err := s.dir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s %s is not built: run go run ./dev/servers install: %w", s.name, s.version, err)
	}
	return path, nil
}

// missing returns nil when all programs are there.
func (s *source) missing() error {
	for name := range s.programs {
		if _, err := s.program(name); err != nil {
			return err
		}
	}
	return nil
}

// build builds what is missing. Programs appear when they are finished, so several processes may build at once.
func (s *source) build(ctx context.Context) (err error) {
	if s.missing() == nil {
		return nil
	}
	dir, err := s.dir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// In the same file system, so that a program can be moved there in one step.
	work, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	for name, text := range map[string]string{"go.mod": s.mod, "go.sum": s.sum} {
		if err := os.WriteFile(filepath.Join(work, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	for name, pkg := range s.programs {
		if _, err := s.program(name); err == nil {
			continue
		}
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w "+s.ldflags, "-o", filepath.Join(work, name), pkg)
		cmd.Dir = work
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s %s: %w\n%s", pkg, s.version, err, strings.TrimSpace(string(out)))
		}
		if err := os.Rename(filepath.Join(work, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
