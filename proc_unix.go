//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// detached makes a child the leader of a new session, out of reach of our
// terminal, and so of a new process group with its own pid as the id.
var detached = syscall.SysProcAttr{Setsid: true}

func detach(cmd *exec.Cmd) {
	attributes := detached
	cmd.SysProcAttr = &attributes
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

// orphans reaps the dead among our children, the leaders of groups apart, which
// are waited for elsewhere. It returns the living that belong to none of the
// groups, as groups. Only Linux lists children.
func orphans(groups map[int]*group) (ids []int) {
	const tasks = "/proc/self/task"
	entries, _ := os.ReadDir(tasks) // Glob would read the directory of each, too
	for _, e := range entries {
		list, _ := os.ReadFile(filepath.Join(tasks, e.Name(), "children"))
		for _, field := range strings.Fields(string(list)) {
			pid, _ := strconv.Atoi(field)
			pgid, err := syscall.Getpgid(pid)
			if err != nil || pgid == syscall.Getpgrp() || groups[pid] != nil {
				continue
			}
			if dead, _ := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); dead == 0 && groups[pgid] == nil {
				ids = append(ids, -pgid)
			}
		}
	}
	return ids
}

// reap frees the dead orphans as they come to us. It ends with the process.
func reap() {
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	for range died {
		procs.Lock()
		if procs.starting == 0 { // else a leader may not be registered yet
			orphans(procs.groups)
		}
		procs.Unlock()
		time.Sleep(50 * time.Millisecond)
	}
}

// strays returns the living processes that a group's leader started, in other
// groups: by session (timeout and job control leave the group only) and by
// descent (setsid). seen keeps what was found: descent is lost when a parent
// ends. Only Linux tells.
func strays(pgid int, seen map[int]bool) (ids []int) {
	type process struct{ parent, group, session int }
	living := map[int]process{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		var p process
		var state string
		data, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		fmt.Sscan(string(data[bytes.LastIndexByte(data, ')')+1:]), &state, &p.parent, &p.group, &p.session)
		if state != "" && state != "Z" {
			living[pid] = p
		}
	}
	seen[pgid] = true
	for grown := true; grown; {
		grown = false
		for pid, p := range living {
			if !seen[pid] && (p.session == pgid || seen[p.parent]) {
				seen[pid], grown = true, true
			}
		}
	}
	for pid := range seen {
		if p, lives := living[pid]; lives && p.group != pgid {
			ids = append(ids, pid)
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
