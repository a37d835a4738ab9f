// Command modules looks after the Go modules of this repository, which go.work lists.
//
//	go run ./dev/modules list             # directory and path of each module
//	go run ./dev/modules add DIR          # enter a new module, which has a go.mod, in go.work
//	go run ./dev/modules check [DIR...]   # build and vet each module from outside the workspace
//	go run ./dev/modules tidy [DIR...]    # go mod tidy, and write go.mod and go.sum back
//	go run ./dev/modules get DIR PATH...  # go get, and write go.mod and go.sum back
//
// A workspace hides a requirement that is missing from a go.mod, and without the workspace the modules of this repository cannot
// find each other until they are published. So check and tidy work with GOWORK=off on a throw-away copy of the go.mod that has a
// replace for each sibling. Nothing of that copy's replaces is ever written back.
//
// For the same reason go.work, and it alone, has a replace for each sibling's unpublished version: even in a workspace the go
// command looks up the go.mod of a version that is required. add, tidy and get keep these lines up to date.
//
// When go.work or a go.mod is broken, GOWORK=off go run ./dev/modules still works: the root module has no requirements.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "modules:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("no command given: use list, add, check, tidy or get")
	}
	root, err := findRoot()
	if err != nil {
		return err
	}
	if args[0] == "add" {
		if len(args) != 2 {
			return errors.New("add needs the directory of one module: add ./store/sqlite")
		}
		if err := use(root, args[1]); err != nil {
			return err
		}
	}
	all, err := load(root)
	if err != nil {
		return err
	}
	if slices.Contains([]string{"add", "tidy", "get"}, args[0]) {
		if err := writeWork(root, all); err != nil {
			return err
		}
	}
	dirs, paths := args[1:], []string(nil)
	if args[0] == "get" {
		if len(dirs) < 2 {
			return errors.New("get needs the directory of a module and what to get: get ./store/sqlite example.org/x@v1.2.3")
		}
		dirs, paths = dirs[:1], dirs[1:]
	}
	chosen, err := choose(root, all, dirs)
	if err != nil {
		return err
	}
	switch args[0] {
	case "add":
		return nil
	case "list":
		for _, m := range chosen {
			fmt.Printf("%s\t%s\n", m.rel, m.path)
		}
		return nil
	case "check":
		return each(chosen, all, check)
	case "tidy":
		return each(chosen, all, tidy)
	case "get":
		return each(chosen, all, func(m module, modfile string) error { return get(m, modfile, paths) })
	}
	return fmt.Errorf("unknown command %q: use list, add, check, tidy or get", args[0])
}

// findRoot returns the nearest directory at or above the working directory that has a go.work.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		if filepath.Dir(dir) == dir {
			return "", errors.New("no go.work at or above the working directory: run this inside the repository")
		}
		dir = filepath.Dir(dir)
	}
}

// choose returns the modules in the directories named, or all of them when none is.
func choose(root string, all []module, dirs []string) ([]module, error) {
	if len(dirs) == 0 {
		return all, nil
	}
	var chosen []module
	for _, dir := range dirs {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(all, func(m module) bool { return m.dir == abs })
		if i < 0 {
			return nil, fmt.Errorf("%s is not a module of %s: add it with go work use", dir, filepath.Join(root, "go.work"))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// each goes on after a failure, so that one run tells everything.
func each(chosen, all []module, do func(m module, modfile string) error) error {
	failed := 0
	for _, m := range chosen {
		if err := withModfile(m, all, do); err != nil {
			failed++
			fmt.Printf("FAIL\t%s\n%v\n", m.rel, err)
			continue
		}
		fmt.Printf("ok\t%s\n", m.rel)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d modules failed", failed, len(chosen))
	}
	return nil
}

func check(m module, modfile string) error {
	if err := goCommand(m.dir, "build", "-modfile="+modfile, "./..."); err != nil {
		return err
	}
	if err := goCommand(m.dir, "vet", "-modfile="+modfile, "./..."); err != nil {
		return err
	}
	if err := goCommand(m.dir, "mod", "tidy", "-diff", "-modfile="+modfile); err != nil {
		return fmt.Errorf("%w\nremedy: go run ./dev/modules tidy %s", err, m.rel)
	}
	return nil
}

func tidy(m module, modfile string) error {
	if err := goCommand(m.dir, "mod", "tidy", "-modfile="+modfile); err != nil {
		return err
	}
	return m.writeBack(modfile)
}

func get(m module, modfile string, paths []string) error {
	if err := goCommand(m.dir, append([]string{"get", "-modfile=" + modfile}, paths...)...); err != nil {
		return err
	}
	return m.writeBack(modfile)
}

func use(root, dir string) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(root, abs)
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "work", "use", "./"+filepath.ToSlash(rel))
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOWORK="+filepath.Join(root, "go.work"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go work use: %w\n%s", err, out)
	}
	return nil
}

// goCommand runs go outside the workspace. What it prints is shown only when it fails.
func goCommand(dir string, args ...string) error {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s %s: %w\n%s", args[0], args[1], err, out)
	}
	return nil
}
