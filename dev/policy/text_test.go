package policy

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// Nothing says where it was built or fetched from, and nothing is left for later in the source.
func TestForbiddenText(t *testing.T) {
	// The words are written so that this file passes its own test.
	forbidden := []struct {
		pattern *regexp.Regexp
		why     string
	}{
		{regexp.MustCompile(`(^|[\s"'=(:` + "`" + `])/(work|root|home)/`), "a path of somebody's machine"},
		{regexp.MustCompile(`\.\./[s]hared\b`), "a folder that is not in the repository"},
		{regexp.MustCompile(`(proxy|sum)\.golang\.[o]rg|deb\.debian\.[o]rg|registry\.npmjs\.[o]rg|pypi\.[o]rg|crates\.[i]o`), "a package registry's host"},
		{regexp.MustCompile(`\b(TO[D]O|FIX[M]E|XX[X])\b`), "work left undone: do it or file an issue"},
	}
	for _, p := range files(t) {
		base := path.Base(p)
		if base == "go.sum" || base == "go.work.sum" || base == "LICENSE" {
			continue
		}
		text := read(t, p)
		if !utf8.ValidString(text) {
			continue // a picture or a database
		}
		for i, line := range strings.Split(text, "\n") {
			for _, f := range forbidden {
				if found := f.pattern.FindString(line); found != "" {
					t.Errorf("%s:%d: %q is %s", p, i+1, found, f.why)
				}
			}
		}
	}
}

func TestLicence(t *testing.T) {
	text := read(t, "LICENSE")
	for _, part := range []string{"Apache License", "Version 2.0, January 2004", "END OF TERMS AND CONDITIONS"} {
		if !strings.Contains(text, part) {
			t.Errorf("LICENSE does not say %q", part)
		}
	}
}

// What the documentation tells people to type exists.
func TestDocumentedCommands(t *testing.T) {
	var targets []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):.*## `).FindAllStringSubmatch(read(t, "Makefile"), -1) {
		targets = append(targets, m[1])
	}
	makeTarget := regexp.MustCompile("(?m)(?:^ *|`)make ([a-z-]+)")
	goRun := regexp.MustCompile(`go run \./([a-z/-]+)`)
	checked := 0
	for _, p := range files(t) {
		if path.Ext(p) != ".md" && p != "Makefile" && p != ".ci/run" {
			continue
		}
		text := read(t, p)
		for _, m := range makeTarget.FindAllStringSubmatch(text, -1) {
			if checked++; !slices.Contains(targets, m[1]) {
				t.Errorf("%s says make %s, and the Makefile explains %v", p, m[1], targets)
			}
		}
		for _, m := range goRun.FindAllStringSubmatch(text, -1) {
			checked++
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s says %s: %v", p, m[0], err)
			}
		}
	}
	if checked < 5 {
		t.Errorf("found %d commands only: this test looks for the wrong thing", checked)
	}
}

func TestDocumentedLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)]*)?\)`)
	for _, p := range files(t) {
		if path.Ext(p) != ".md" {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(read(t, p), -1) {
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(p), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", p, m[1], err)
			}
		}
	}
}
