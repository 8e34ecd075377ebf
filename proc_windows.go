package main

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// detach keeps our console's Ctrl-C from the child.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// signalProcess ends a process and its descendants. There is no gentle way
// that console programs understand, so SIGTERM does nothing.
func signalProcess(id int, sig syscall.Signal) {
	if sig == syscall.SIGKILL && id != 0 {
		exec.Command("taskkill", "/T", "/F", "/PID", strconv.Itoa(max(id, -id))).Run()
	}
}

// groupExists: Windows cannot tell who is left once the leader is gone.
func groupExists(int) bool { return false }

func orphans(map[int]*group) []int { return nil }

func reap() {}

func strays(int, map[int]bool) []int { return nil }

// keepOwner: a new file inherits its rights from the directory.
func keepOwner(*os.File, os.FileInfo) error { return nil }
