//go:build unix

package main

import (
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

// manifestOf replaces what a puppet is started with.
func manifestOf(t testing.TB, dir, name, manifest string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name, "extension.json"), []byte(manifest), 0o666); err != nil {
		t.Fatal(err)
	}
}

// TestNobodyOutlives: whatever an extension does, after the end of the process
// nobody of its group is left, and the end does not take long.
func TestNobodyOutlives(t *testing.T) {
	for name, c := range map[string]struct {
		puppet   string
		launcher bool
	}{
		"leaves":          {greeting(), false},
		"daemon":          {greeting("fork"), false},
		"daemon left":     {greeting("fork", "on hello_ack exit 0"), false},
		"stays":           {greeting("stay"), false},
		"ignores TERM":    {greeting("stay", "ignore-term"), false},
		"behind launcher": {greeting("stay", "ignore-term"), true},
		"does not read":   {greeting("on event sleep 1m"), false},
	} {
		for _, end := range []string{"end of input", "SIGTERM"} {
			t.Run(name+", "+end, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				ext := puppet(t, dir, "x", strings.Replace(c.puppet, "on hello_ack {\"type\":\"ready\"}", onHello(`{"type":"subscribe","events":["session_start"]}`)+"\non hello_ack {\"type\":\"ready\"}", 1))
				if c.launcher {
					manifestOf(t, dir, "x", `{"name":"x","exec":"sh","args":["-c","exec 3<&0; puppet <&3 & wait"]}`)
				}
				p := withScript(t, dir, "turn\ntext x\n", ext...)
				p.send(`{"id":1,"type":"prompt","message":"go"}`)
				p.until("type", "done")
				pgid := puppetGroup(t, dir, "x")
				start := time.Now()
				limit, code := 3*time.Second, exitDone
				if end == "SIGTERM" {
					limit, code = time.Second, 128+int(syscall.SIGTERM)
					p.cmd.Process.Signal(syscall.SIGTERM)
				} else {
					p.in.Close()
				}
				var last []map[string]any
				for f := p.frame(); f != nil; f = p.frame() {
					last = append(last, f)
				}
				p.exit(code)
				if took := time.Since(start); took > limit && !raceDetector() {
					t.Errorf("took %v", took)
				}
				if groupExists(pgid) {
					t.Error("a member of the extension's group outlived us")
				}
				if name != "daemon left" && len(notices(last)) > 0 {
					t.Errorf("an expected end was told: %q", notices(last))
				}
			})
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
	if took := time.Since(start); took > 3*time.Second {
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
	if took := time.Since(start); took > 2*time.Second {
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
