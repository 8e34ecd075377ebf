//go:build unix

package main

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestSoak is the short form of testdata/soak, which says what must hold.
func TestSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	soak := filepath.Join(t.TempDir(), "soak")
	if out, err := exec.Command("go", "build", "-o", soak, "./testdata/soak").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, protocol := range []string{"zot", "atomic"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			out, err := exec.Command(soak, "-zot", zotBin, "-protocol", protocol, "-prompts", "150").CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("%s", out)
		})
	}
}
