//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestSessionDiskFull: a record that does not fit leaves nothing behind, is
// told, and costs only itself. The limit of a file's size stands for the disk.
func TestSessionDiskFull(t *testing.T) {
	if path := os.Getenv("ZOT_TEST_CHILD"); path != "" { // a process of its own, for the limit is one of processes
		signal.Notify(make(chan os.Signal, 1), sigFileSize)
		s, _, err := openSession(path)
		if err != nil {
			t.Fatal(err)
		}
		before, _ := os.ReadFile(path)
		var limit syscall.Rlimit
		syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit)
		small := limit
		small.Cur = 0
		for range len(before) + 20 { // the type differs from system to system
			small.Cur++
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &small); err != nil {
			t.Fatal(err)
		}
		err = s.addMessage(text("user", "lost"), "")
		after, _ := os.ReadFile(path)
		if err == nil || !bytes.Equal(before, after) {
			t.Fatalf("the file grew by %d bytes; error: %v", len(after)-len(before), err)
		}
		n, err := newSession(s.dir, "/", "", "")
		if err == nil {
			err = n.addMessage(text("user", strings.Repeat("long ", 1000)), "")
		}
		if _, missing := os.Stat(n.path); err == nil || missing == nil {
			t.Fatalf("a new file: %v, %v", err, missing)
		}
		syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit)
		userSays(t, s, "two")
		fmt.Println("the disk was full")
		return
	}
	s := begin(t, t.TempDir())
	userSays(t, s, "one")
	s.close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestSessionDiskFull$", "-test.v")
	cmd.Env = append(os.Environ(), "ZOT_TEST_CHILD="+s.path)
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("the disk was full")) {
		t.Fatalf("%v\n%s", err, out)
	}
	again, notes := open(t, s.path)
	same(t, "notes", notes, []string(nil))
	same(t, "context", said(again), []string{"user:one", "user:two"})
}

// TestSessionNoFile: a FIFO and a device are refused; opening one would wait for
// ever, or fill the disk.
func TestSessionNoFile(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo.jsonl")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Skip(err)
	}
	store := filepath.Join(dir, "store")
	for _, path := range []string{fifo, "/dev/zero", dir} {
		if _, _, err := openSession(path); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("open %s: %v", path, err)
		}
		if _, _, err := importSession(path, store); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("import %s: %v", path, err)
		}
	}
	if left, _ := os.ReadDir(store); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
