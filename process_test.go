//go:build unix

package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// awaitPID waits for a command that writes its process id to the file "pid".
func awaitPID(t testing.TB, dir string) int {
	t.Helper()
	return await(t, func() int {
		data, _ := os.ReadFile(filepath.Join(dir, "pid"))
		pid, _ := strconv.Atoi(strings.TrimSpace(string(data)))
		return pid
	})
}

// TestReaderGone: the client closes its end; the process and its tools end.
func TestReaderGone(t *testing.T) {
	for _, stream := range []string{"repeat 1000000 text \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"\n", "", "hang\n"} {
		dir := t.TempDir()
		name := script(t, dir, "turn\ncall bash {\"command\":\"echo $$ > pid; exec sleep 300\"}\nturn\n")
		if stream != "" {
			name = script(t, dir, "turn\n"+stream)
		}
		cmd := exec.Command(zotBin, "rpc", "--provider", "script", "--model", name, "--cwd", dir)
		cmd.Env = cleanEnv(dir)
		cmd.Stderr = &lockedBuffer{}
		in, _ := cmd.StdinPipe()
		r, w, _ := os.Pipe()
		cmd.Stdout = w
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w.Close()
		io.WriteString(in, `{"id":1,"type":"prompt","message":"go"}`+"\n")
		io.ReadFull(r, make([]byte, 1))
		child := 0
		if stream == "" {
			child = awaitPID(t, dir)
		}
		r.Close()
		start := time.Now()
		timer := time.AfterFunc(patience, func() { cmd.Process.Kill() })
		cmd.Wait()
		timer.Stop()
		if code := cmd.ProcessState.ExitCode(); code != exitNoPipe {
			t.Errorf("%q: exit code %d", stream, code)
		}
		if took := time.Since(start); took > limit(2*time.Second) {
			t.Errorf("%q: ended %v after its reader", stream, took)
		}
		if child != 0 && syscall.Kill(child, 0) == nil {
			t.Errorf("the tool outlived us")
		}
		if n := len(cmd.Stderr.(*lockedBuffer).String()); n > 10<<10 {
			t.Errorf("%d bytes of log", n)
		}
	}
}

// TestClientKilled: kill -9 of the client closes both pipes.
func TestClientKilled(t *testing.T) {
	dir := t.TempDir()
	name := script(t, dir, "turn\ncall bash {\"command\":\"echo $$ > pid; exec sleep 600\"}\nturn\n")
	// the shell is the client: it holds the other ends of both pipes
	wrapper := exec.Command("bash", "-c", `mkfifo in out; "$0" rpc --provider script --model "$1" --cwd "$2" <in >out & exec 3>in 4<out; echo '{"type":"prompt","message":"go"}' >&3; while read -r line <&4; do :; done`, zotBin, name, dir)
	wrapper.Dir = dir
	wrapper.Env = cleanEnv(dir)
	if err := wrapper.Start(); err != nil {
		t.Fatal(err)
	}
	defer wrapper.Wait()
	defer wrapper.Process.Kill() // if the test ends before it does so itself
	child := awaitPID(t, dir)
	wrapper.Process.Kill()
	wrapper.Wait()
	start := time.Now()
	await(t, func() bool { return syscall.Kill(child, 0) != nil })
	if took := time.Since(start); took > limit(3*time.Second) {
		t.Errorf("the tool ended %v after the client", took)
	}
}

// TestKilled: after kill -9 neither a tool goes on nor an extension, also not one
// that ignores the end of its input.
func TestKilled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells the children")
	}
	dir := t.TempDir()
	p := withScript(t, dir, "turn\ncall bash {\"command\":\"echo $$ > pid; sleep 300; sleep 300\"}\n", puppet(t, dir, "x", greeting("stay"))...)
	p.send(`{"type":"prompt","message":"go"}`)
	tool, extension := awaitPID(t, dir), awaitPID(t, filepath.Join(dir, "x"))
	p.cmd.Process.Kill()
	await(t, func() bool { return !running(tool) && !running(extension) })
}

// TestTerm: SIGTERM during a bash call whose child ignores it.
func TestTerm(t *testing.T) {
	dir := t.TempDir()
	p := startZot(t, dir, nil, "rpc", "--provider", "script", "--cwd", dir, "--model",
		script(t, dir, "turn\ncall bash {\"command\":\"trap '' TERM; echo $$ > pid; sleep 300 & wait; sleep 300\"}\nturn\n"))
	p.send(`{"id":1,"type":"prompt","message":"go"}`)
	child := awaitPID(t, dir)
	start := time.Now()
	p.cmd.Process.Signal(syscall.SIGTERM)
	told := false
	for l := p.line(); l != ""; l = p.line() {
		told = strings.HasPrefix(l, `{"type":"done"`)
	}
	p.exit(128 + int(syscall.SIGTERM))
	if !told && !raceDetector() { // which may be too slow for the time that there is
		t.Error("the end of the prompt was not told")
	}
	if took := time.Since(start); took > limit(time.Second) && !raceDetector() {
		t.Errorf("took %v", took)
	}
	if syscall.Kill(-child, 0) == nil {
		t.Error("a member of the tool's group outlived us")
	}
}

// TestLostAnswer: an answer that could not be written is no success.
func TestLostAnswer(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("there is no /dev/full: ", err)
	}
	defer full.Close()
	dir := t.TempDir()
	cmd := exec.Command(zotBin, "-p", "--provider", "script", "hello")
	cmd.Env, cmd.Stdout = cleanEnv(dir), full
	cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != exitNoPipe {
		t.Errorf("exit code %d", code)
	}
}

// TestNonBlockingStdout: a parent may hand over a pipe in non-blocking mode.
func TestNonBlockingStdout(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(zotBin, "-p", "--provider", "script", "--model", script(t, dir, "turn\nrepeat 3000 text \""+strings.Repeat("y", 1000)+"\\n\"\n"), "go")
	cmd.Env = cleanEnv(dir)
	r, w, _ := os.Pipe()
	syscall.SetNonblock(int(w.Fd()), true)
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	time.Sleep(time.Second) // let the pipe fill: this is the case to show
	data, _ := io.ReadAll(r)
	if err := cmd.Wait(); err != nil || len(data) != 3000*1001 {
		t.Errorf("%v, %d of 3003000 bytes", err, len(data))
	}
}

// TestSocketReaderGone: Node hands over sockets. Their other end is watched too,
// while nothing is written.
func TestSocketReaderGone(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells without a write")
	}
	dir := t.TempDir()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	syscall.CloseOnExec(pair[0])
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	cmd := exec.Command(zotBin, "rpc", "--provider", "script", "--model", script(t, dir, "turn\ntext hi\nhang\n"))
	cmd.Env = cleanEnv(dir)
	in, _ := cmd.StdinPipe()
	cmd.Stdout = theirs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	io.WriteString(in, `{"id":1,"type":"prompt","message":"go"}`+"\n")
	io.ReadFull(ours, make([]byte, 1))
	ours.Close()
	timer := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	defer timer.Stop()
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitNoPipe {
		t.Errorf("exit code %d", code)
	}
}

// TestOtherGroups: what a command starts in process groups of their own ends
// with it: timeout makes one, and so do job control and setsid.
func TestOtherGroups(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells")
	}
	for _, command := range []string{"timeout 99 sleep 98", "echo $(timeout 99 sleep 98)", "setsid -w sleep 98", "set -m; sleep 98 & wait"} {
		dir := t.TempDir()
		// the marker finds the processes again
		command = "ZOT_TEST_MARK=" + dir + " bash -c " + "'" + command + "'"
		p := startZot(t, dir, nil, "rpc", "--provider", "script", "--model", script(t, dir, "turn\ncall bash "+string(encode(map[string]string{"command": command}))+"\n"))
		p.send(`{"id":1,"type":"prompt","message":"go"}`)
		await(t, func() bool { return len(marked(dir)) >= 2 })
		p.send(`{"id":2,"type":"abort"}`)
		p.until("type", "done")
		if left := marked(dir); len(left) > 0 {
			t.Errorf("%s: left after the abort: %v", command, left)
		}
	}
}

// marked lists the living processes that have the marker in their environment.
func marked(mark string) (pids []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		if env, _ := os.ReadFile(f); strings.Contains(string(env), "ZOT_TEST_MARK="+mark) {
			pids = append(pids, filepath.Base(filepath.Dir(f)))
		}
	}
	return pids
}
