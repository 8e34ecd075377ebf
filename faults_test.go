package main

import (
	"os"
	"strings"
	"testing"
)

// TestFaults checks that each test and transcript that testdata/FAULTS.txt names
// exists.
func TestFaults(t *testing.T) {
	data, err := os.ReadFile("testdata/FAULTS.txt")
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		if strings.TrimSpace(line) == "" || line[0] == '#' {
			continue
		}
		columns := strings.Split(strings.TrimSpace(line), " | ")
		id, shown := strings.TrimSpace(columns[0]), 0
		if ids[id] {
			t.Errorf("%s stands there twice", id)
		}
		ids[id] = true
		for _, reference := range columns[min(2, len(columns)):] {
			file, name, isTest := strings.Cut(reference, ": ")
			if !strings.HasSuffix(file, ".txt") && !strings.HasSuffix(file, "_test.go") {
				continue // what does not apply
			}
			shown++
			text, err := os.ReadFile(file)
			if err != nil || isTest && !strings.Contains(string(text), "\nfunc "+name+"(") {
				t.Errorf("%s: there is no %s", id, reference)
			}
		}
		if shown == 0 {
			t.Errorf("%s: no test shows it", id)
		}
	}
	if len(ids) != 95 {
		t.Errorf("%d faults, want 95", len(ids))
	}
}
