//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// puppetGroup is the group of a puppet that may have ended.
func puppetGroup(t testing.TB, dir, name string) int {
	t.Helper()
	pid := awaitPID(t, filepath.Join(dir, name))
	if pgid, err := syscall.Getpgid(pid); err == nil {
		return pgid
	}
	return pid // it led its group
}

// TestNobodyOutlives: whatever an extension does, after the end of the process
// nobody of its group is left, and the end does not take long.
func TestNobodyOutlives(t *testing.T) {
	t.Parallel()
	session := onHello(`{"type":"subscribe","events":["session_start"]}`)
	launcher := `{"name":"x","exec":"sh","args":["-c","exec 3<&0; puppet <&3 & wait"]}`
	type ending struct {
		name  string
		p     *proc
		pgid  int
		start time.Time
		at    chan time.Time
		limit time.Duration
		code  int
	}
	var endings []ending
	for name, script := range map[string]string{
		"leaves":          greeting(session),
		"daemon":          greeting(session, "fork"),
		"daemon left":     greeting(session, "fork", "on event exit 0"),
		"stays":           greeting(session, "stay"),
		"ignores TERM":    greeting(session, "stay", "ignore-term"),
		"behind launcher": greeting(session, "stay", "ignore-term"),
		"does not read":   greeting(session, "on event sleep 1m"),
	} {
		for _, byTerm := range []bool{false, true} {
			dir := t.TempDir()
			ext := puppet(t, dir, "x", script)
			if name == "behind launcher" {
				if err := os.WriteFile(filepath.Join(dir, "x", "extension.json"), []byte(launcher), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			e := ending{name: fmt.Sprintf("%s, SIGTERM %t", name, byTerm), limit: 3 * time.Second, code: exitDone, at: make(chan time.Time, 1)}
			e.p = withScript(t, dir, "turn\ntext x\n", ext...)
			e.p.send(`{"id":1,"type":"prompt","message":"go"}`)
			e.p.until("type", "done")
			e.pgid = puppetGroup(t, dir, "x")
			e.start = time.Now()
			if byTerm {
				e.limit, e.code = time.Second, 128+int(syscall.SIGTERM)
				e.p.cmd.Process.Signal(syscall.SIGTERM)
			} else {
				e.p.in.Close()
			}
			go func() { // ends with the process
				<-e.p.done
				e.at <- time.Now()
			}()
			endings = append(endings, e)
		}
	}
	for _, e := range endings {
		e.p.exit(e.code)
		if took := (<-e.at).Sub(e.start); took > e.limit && !raceDetector() {
			t.Errorf("%s: took %v", e.name, took)
		}
		if groupExists(e.pgid) {
			t.Errorf("%s: a member of the extension's group outlived us", e.name)
		}
		for f := e.p.frame(); f != nil; f = e.p.frame() {
			if f["type"] == "ext_notify" && !strings.HasPrefix(e.name, "daemon left") {
				t.Errorf("%s: an expected end was told: %v", e.name, f)
			}
		}
	}
}

// TestHostKilled: kill -9 of the host ends the extension by the end of its input.
func TestHostKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := withScript(t, dir, "turn\n", puppet(t, dir, "x", greeting())...)
	awaitFrame(t, dir, "x", "hello_ack")
	pid := awaitPID(t, filepath.Join(dir, "x"))
	p.cmd.Process.Kill()
	start := time.Now()
	await(t, func() bool { return !running(pid) })
	if took := time.Since(start); took > limit(3*time.Second) {
		t.Errorf("the extension lived %v longer", took)
	}
}

// TestKilledInCall: kill -9 of an extension fails its call at once.
func TestKilledInCall(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := withScript(t, dir, "turn\ncall t {}\ncall t {}\nturn\ntext ok\n", puppet(t, dir, "x", greeting(registers("t")))...)
	p.send(`{"id":1,"type":"prompt","message":"go"}`)
	awaitFrame(t, dir, "x", `"tool_call"`)
	start := time.Now()
	syscall.Kill(awaitPID(t, filepath.Join(dir, "x")), syscall.SIGKILL)
	frames := p.until("type", "done")
	if took := time.Since(start); took > limit(2*time.Second) {
		t.Errorf("took %v", took)
	}
	all := fmt.Sprint(frames)
	for _, want := range []string{
		"Tool t failed: extension x has ended (signal: killed). Whether it had an effect is unknown.",
		"Tool t was not run: extension x has ended (signal: killed).",
		"extension x ended (signal: killed): its tools and commands no longer work. log: ",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("nothing says %q: %s", want, all)
		}
	}
}

// TestPipeAsLog: a log that is a pipe costs the extension, and nothing waits.
func TestPipeAsLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	logs := filepath.Join(dir, "zot-home", "logs")
	if err := errors.Join(os.MkdirAll(logs, 0o700), syscall.Mkfifo(filepath.Join(logs, "ext-x.log"), 0o600)); err != nil {
		t.Skip(err)
	}
	p := withScript(t, dir, "turn\ntext ok\n", puppet(t, dir, "x", greeting())...)
	p.send(`{"type":"prompt","message":"go"}`)
	if n := notices(p.until("type", "done")); len(n) != 1 || !strings.Contains(n[0], "ext-x.log is a pipe: remove it") {
		t.Errorf("notices: %q", n)
	}
}
