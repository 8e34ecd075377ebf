//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestAtomicTerm: SIGTERM during a call whose child ignores it: everything is
// gone at once, and the session goes on later (C6, B3, L3).
func TestAtomicTerm(t *testing.T) {
	dir := t.TempDir()
	p := atomicScript(t, dir, "turn\ntext first\ncall bash {\"command\":\"trap '' TERM; echo $$ > pid; sleep 300 & wait; sleep 300\"}\n", "--session-id", "term")
	p.send(`{"type":"prompt","message":"go"}`, `{"id":"sh","type":"bash","command":"trap '' TERM; sleep 300; sleep 300"}`)
	child := awaitPID(t, dir)
	p.data(`{"type":"steer","message":"later"}`)
	start := time.Now()
	p.cmd.Process.Signal(syscall.SIGTERM)
	for p.line() != "" {
	}
	p.exit(128 + int(syscall.SIGTERM))
	if took := time.Since(start); took > limit(800*time.Millisecond) && !raceDetector() {
		t.Errorf("took %v", took)
	}
	if syscall.Kill(-child, 0) == nil {
		t.Error("a member of the tool's group outlived us")
	}
	p = atomicScript(t, dir, "turn\ntext fine\n", "--session-id", "term")
	said := texts(p.data(`{"type":"get_messages"}`)["messages"])
	if len(said) < 2 || said[0] != "user:go" || said[1] != "assistant:first" {
		t.Errorf("the session holds %v", said)
	}
	same(t, "replayed", p.data(`{"type":"start_pending_recovery","reason":"resume"}`)["replayed"], 1.0)
	said = texts(p.data(`{"type":"get_messages"}`)["messages"])
	same(t, "the end", said[len(said)-2:], []string{"user:later", "assistant:fine"})
}

// TestAtomicSlowReader: a client that does not read keeps nothing from being
// aborted, and gets all of it later, in order.
func TestAtomicSlowReader(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(zotBin, "--mode", "rpc", "--provider", "script", "--model", script(t, dir, "turn\nrepeat 400000 text \"0123456789\"\nturn\ntext fine\n"))
	cmd.Env = cleanEnv(dir)
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	io.WriteString(in, `{"type":"prompt","message":"go"}`+"\n")
	lines := bufio.NewReader(out)
	for l := ""; !strings.Contains(l, "message_update"); {
		var err error
		if l, err = lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Second) // nothing is read meanwhile: this is the case to show
	before := rss(t, cmd.Process.Pid)
	time.Sleep(time.Second)
	if after := rss(t, cmd.Process.Pid); after > before+8<<20 && !raceDetector() {
		t.Errorf("memory grew from %d to %d KiB while nobody read", before>>10, after>>10)
	}
	io.WriteString(in, `{"id":1,"type":"abort"}`+"\n"+`{"id":2,"type":"prompt","message":"next"}`+"\n")
	in.Close()
	settled, aborted := 0, 0
	for {
		l, err := lines.ReadString('\n')
		if err == io.EOF && l == "" {
			break
		}
		var f struct {
			Type, Command string
			Success       bool
		}
		if err := json.Unmarshal([]byte(l), &f); err != nil {
			t.Fatalf("%.100q: %v", l, err)
		}
		switch {
		case f.Type == "agent_settled":
			settled++
		case f.Type == "response" && !f.Success:
			t.Errorf("refused: %s", l)
		case f.Command == "abort" && settled == 1:
			aborted++
		}
	}
	if settled != 2 || aborted != 1 {
		t.Errorf("settled %d times, %d aborts in between", settled, aborted)
	}
}

// TestAtomicReaderGone: the client closes its end during a call; the process and
// the tool end, the session stays whole.
func TestAtomicReaderGone(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(zotBin, "--mode", "rpc", "--provider", "script", "--session-id", "gone", "--cwd", dir, "--model",
		script(t, dir, "turn\ncall bash {\"command\":\"echo $$ > pid; exec sleep 300\"}\n"))
	cmd.Env, cmd.Stderr = cleanEnv(dir), &lockedBuffer{}
	in, _ := cmd.StdinPipe()
	r, w, _ := os.Pipe()
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	io.WriteString(in, `{"type":"prompt","message":"go"}`+"\n")
	child := awaitPID(t, dir)
	r.Close()
	start := time.Now()
	timer := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	cmd.Wait()
	timer.Stop()
	if code, took := cmd.ProcessState.ExitCode(), time.Since(start); code != exitNoPipe || took > limit(2*time.Second) && !raceDetector() {
		t.Errorf("exit code %d after %v", code, took)
	}
	if syscall.Kill(child, 0) == nil {
		t.Error("the tool outlived us")
	}
	if log := fmt.Sprint(cmd.Stderr); len(log) > 10<<10 {
		t.Errorf("%d bytes of log", len(log))
	}
	p := atomicScript(t, dir, "turn\ntext fine\n", "--session-id", "gone", "--cwd", dir)
	if said := texts(p.data(`{"type":"get_messages"}`)["messages"]); len(said) == 0 || said[0] != "user:go" {
		t.Errorf("the session holds %v", said)
	}
	p.settle("next")
	if errs := p.stderr.String(); strings.Contains(errs, "session") {
		t.Errorf("the session is damaged: %s", errs)
	}
}
