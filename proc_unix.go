//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// newSession makes cmd the leader of a new session, out of reach of our
// terminal, and so of a new process group with its own pid as the id.
func newSession(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
}

// signalProcess signals a process or, for a negative id, a group. 0 is nobody.
func signalProcess(id int, sig syscall.Signal) {
	if id == 0 {
		return
	}
	syscall.Kill(id, sig)
	syscall.Kill(id, syscall.SIGCONT) // a stopped process would not see SIGTERM
}

// groupExists reports whether a group whose leader was waited for has members.
func groupExists(pgid int) bool {
	// Dead orphans that came to us would count as members until we reap them.
	for {
		if pid, _ := syscall.Wait4(-pgid, nil, syscall.WNOHANG, nil); pid <= 0 {
			return syscall.Kill(-pgid, 0) == nil
		}
	}
}

// orphans reaps the dead among our children that belong to none of the groups,
// and returns the living, as groups. Only Linux lists children.
func orphans(groups map[int]*group) (ids []int) {
	files, _ := filepath.Glob("/proc/self/task/*/children")
	for _, file := range files {
		list, _ := os.ReadFile(file)
		for _, field := range strings.Fields(string(list)) {
			pid, _ := strconv.Atoi(field)
			pgid, err := syscall.Getpgid(pid)
			if err != nil || pgid == syscall.Getpgrp() || groups[pgid] != nil {
				continue
			}
			if dead, _ := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); dead == 0 {
				ids = append(ids, -pgid)
			}
		}
	}
	return ids
}

// keepOwner gives f the owner and group of the file that it will replace.
func keepOwner(f *os.File, old os.FileInfo) error {
	now, err := f.Stat()
	if err != nil {
		return err
	}
	was, is := old.Sys().(*syscall.Stat_t), now.Sys().(*syscall.Stat_t)
	if was.Uid == is.Uid && was.Gid == is.Gid {
		return nil
	}
	return f.Chown(int(was.Uid), int(was.Gid))
}
