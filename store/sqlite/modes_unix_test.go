//go:build unix

package sqlite_test

import (
	"os"
	"path/filepath"
	"testing"

	"context"

	"github.com/gotenure/tenure/store/sqlite"
)

// checkModes checks that nobody else can look into the default file.
func checkModes(t *testing.T, path string) {
	t.Helper()
	for name, want := range map[string]os.FileMode{filepath.Dir(path): 0o700 | os.ModeDir, path: 0o600, path + "-wal": 0o600, path + "-shm": 0o600} {
		if info, err := os.Stat(name); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want mode %v", name, info, err, want)
		}
	}
}

// Whoever may use the file may use what belongs to it, whatever the umask.
func TestModesFollowTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenure.db")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		t.Fatal(err)
	}
	store, err := sqlite.New(context.Background(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if info, err := os.Stat(path + suffix); err != nil || info.Mode() != 0o660 {
			t.Errorf("%s: %v, %v; want mode 0660", path+suffix, info.Mode(), err)
		}
	}
}
