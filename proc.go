// Child processes. Rules kept here:
//
//   - Each child leads a session and process group of its own: no child can
//     ask on our terminal, and all that it starts ends with it, also (on Linux)
//     what went into other groups.
//   - What counts is whether a group still has members, not whether its leader
//     is there: launchers leave early, servers stay.
//   - Who leaves a group (setsid) does not outlive us either where orphans come
//     to us: on Linux. All children with groups are therefore started here.
//   - If we are killed (SIGKILL), who reads our pipes learns it from them, and on
//     Linux the leaders of groups are killed too; what else they had started is
//     out of reach then.
//   - No wait is longer than its caller allows, even for a process that cannot
//     be killed.
//   - The token that protects our stdin never reaches a child.
package main

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// killWait is how long a group may take to vanish after SIGKILL.
const killWait = 200 * time.Millisecond

// group is a child and everything in its process group.
type group struct {
	pgid   int
	exited chan struct{}    // closed when the leader is gone and state is set
	state  *os.ProcessState // how the leader ended; nil when that is unknown
}

// procs holds every group that may have members.
var procs = struct {
	sync.Mutex
	groups   map[int]*group // by pgid
	starting int            // children between fork and registration
	closed   bool           // killAllGroups was called: nothing is started any more
	once     sync.Once      // for the goroutines that follow
	forks    chan func()
}{groups: map[int]*group{}, forks: make(chan func())}

// fork starts the children. The kernel tells a child of its parent's end when the
// thread that forked it ends, so that must be one that lives as long as we do.
func fork() {
	runtime.LockOSThread()
	for start := range procs.forks {
		start()
	}
}

// startGroup starts cmd as the leader of its own session and group. The group
// waits for the leader; the caller must not. cmd's streams are files or pipes
// that the caller closes: nothing here reads them or waits for them.
func startGroup(cmd *exec.Cmd) (*group, error) {
	if cmd.Env == nil {
		cmd.Env = childEnv(nil)
	}
	detach(cmd)
	procs.once.Do(func() { go reap(); go fork() }) // they end with the process

	procs.Lock()
	if procs.closed {
		procs.Unlock()
		return nil, errors.New("not started: zot is exiting")
	}
	// Forget the dead before their ids are used again.
	maps.DeleteFunc(procs.groups, func(_ int, g *group) bool { return !g.alive() })
	if procs.starting == 0 { // else one of them may not be registered yet
		orphans(procs.groups)
	}
	procs.starting++
	procs.Unlock()

	started := make(chan error)
	procs.forks <- func() { started <- cmd.Start() }
	err := <-started

	procs.Lock()
	defer procs.Unlock()
	procs.starting--
	if err != nil {
		return nil, err
	}
	g := &group{pgid: cmd.Process.Pid, exited: make(chan struct{})}
	procs.groups[g.pgid] = g
	go func() { // ends with the leader
		// Not cmd.Wait, which would close pipes that still hold output.
		g.state, _ = cmd.Process.Wait()
		close(g.exited)
	}()
	return g, nil
}

// alive reports whether the group still has members.
func (g *group) alive() bool {
	select {
	case <-g.exited:
		return groupExists(g.pgid)
	default:
		return true
	}
}

// kill ends the group and what its members started in other groups: SIGTERM, up
// to grace for them to leave, SIGKILL. It returns when nobody is left, at the
// latest grace + killWait later.
func (g *group) kill(grace time.Duration) {
	seen := map[int]bool{}
	stop(grace, func() []int {
		ids := strays(g.pgid, seen)
		if g.alive() {
			ids = append(ids, -g.pgid)
		}
		return ids
	})
}

// killAllGroups ends all groups at once, and the orphans that left them. It is
// for the end of the process: no child can be started after it.
func killAllGroups(grace time.Duration) {
	stop(grace, func() (ids []int) {
		procs.Lock()
		defer procs.Unlock()
		procs.closed = true
		for _, g := range procs.groups {
			if g.alive() {
				ids = append(ids, -g.pgid)
			}
		}
		ids = append(ids, orphans(procs.groups)...)
		if procs.starting > 0 {
			ids = append(ids, 0) // nobody to signal, somebody to wait for
		}
		return ids
	})
}

// stop sends SIGTERM to all that alive lists, gives them grace to leave, then
// sends SIGKILL until none is listed, for killWait at most. An id is a process
// or, negative, a group.
func stop(grace time.Duration, alive func() []int) {
	start := time.Now()
	killed := false // at least once, however slow the machine is
	for first := true; ; first = false {
		ids, passed := alive(), time.Since(start)
		if len(ids) == 0 || killed && passed > grace+killWait {
			return
		}
		for _, id := range ids {
			if first {
				signalProcess(id, syscall.SIGTERM)
			} else if passed >= grace {
				signalProcess(id, syscall.SIGKILL)
				killed = true
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// childEnv is our environment without the token and without the variables
// whose names match one of the patterns (path.Match, letter case ignored).
func childEnv(drop []string) []string {
	drop = append([]string{"ZOTCORE_RPC_TOKEN"}, drop...)
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.ContainsFunc(drop, func(pattern string) bool {
			ok, err := path.Match(strings.ToUpper(pattern), strings.ToUpper(name))
			return ok || err != nil // a pattern that cannot be read hides everything
		})
	})
}
