package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"
)

func needBash(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil || runtime.GOOS == "windows" {
		t.Skip("needs bash on a Unix system")
	}
}

// waitFor waits until a condition holds, and fails after five seconds.
func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// running reports whether a process exists and is not a zombie.
func running(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil || p.Signal(syscall.Signal(0)) != nil {
		return false
	}
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return !bytes.Contains(stat, []byte(") Z "))
}

// pidIn waits for a file with a process id.
func pidIn(t *testing.T, path string) int {
	t.Helper()
	pid := 0
	waitFor(t, path, func() bool {
		b, _ := os.ReadFile(path)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return pid > 0 && bytes.HasSuffix(b, lf)
	})
	return pid
}

// runBash runs a command with what a test wants to see of it.
type bashRun struct {
	text     string
	isError  bool
	details  bashDetails
	took     time.Duration
	progress []string
}

func runBash(t *testing.T, ctx context.Context, e *toolEnv, a args) bashRun {
	t.Helper()
	needBash(t)
	var r bashRun
	var mu sync.Mutex
	returned := false
	start := time.Now()
	for _, tool := range builtinTools(e) {
		if tool.name != "bash" {
			continue
		}
		result := tool.run(ctx, &toolCall{args: encode(a), progress: func(text string) {
			mu.Lock()
			defer mu.Unlock()
			if returned {
				t.Error("progress after the result")
			}
			r.progress = append(r.progress, text)
		}})
		mu.Lock()
		returned = true
		mu.Unlock()
		r.took, r.text, r.isError = time.Since(start), resultText(result), result.isError
		r.details, _ = result.details.(bashDetails)
	}
	if d := r.details; d.FullOutputPath != nil {
		t.Cleanup(func() { os.Remove(*d.FullOutputPath) })
	}
	if !utf8.ValidString(r.text) {
		t.Errorf("not UTF-8: %.100q", r.text)
	}
	return r
}

func bash(t *testing.T, command string) bashRun {
	t.Helper()
	return runBash(t, context.Background(), &toolEnv{cwd: t.TempDir()}, args{"command": command})
}

func TestBashResults(t *testing.T) {
	for _, c := range []struct {
		command string
		want    string
		isError bool
	}{
		{"echo hi", "hi\n", false},
		{"true", "(no output)", false},
		{"printf '\\n\\n'", "(no output)", false},
		{"false", "(no output)\n\nCommand exited with code 1", true},
		{"echo a; echo b >&2; echo c; exit 3", "a\nb\nc\n\nCommand exited with code 3", true},
		{"echo dying; kill -9 $$", "dying\n\nCommand ended by signal: killed", true},
		{"printf 'no newline'", "no newline", false},
		{"no-such-command-here 2>/dev/null", "(no output)\n\nCommand exited with code 127", true},
		{"printf 'caf\\303\\251 \\xff\\xfe \\xf0\\x9f'", "café \ufffd\ufffd \ufffd\ufffd", false},
		{"printf '\\e[1;31mred\\e[0m \\e]0;title\\a\\e]8;;http://x\\e\\\\link\\e]8;;\\e\\\\ \\e(Bx\\ey\\eMz'", "red link xz", false},
		{"printf 'lost \\e]never ended\\nnext line\\n'", "lost \nnext line\n", false},
		{"printf '10%%\\r20%%\\r\\nbell\\a\\b\\0\\177 \\ttab\\302\\205'", "10%20%\nbell \ttab", false},
		{"yes 2>&1 | head -1 >/dev/null; echo ${PIPESTATUS[0]}", "141\n", false}, // SIGPIPE is not ignored
		{"read x; echo \"<$x>$?\"", "<>1\n", false},
		{"(: </dev/tty) 2>/dev/null || echo no terminal", "no terminal\n", false},
	} {
		got := bash(t, c.command)
		if got.text != c.want || got.isError != c.isError {
			t.Errorf("%s\n got %q, error %v\nwant %q, error %v", c.command, got.text, got.isError, c.want, c.isError)
		}
		if got.details.Truncation != nil || got.details.FullOutputPath != nil {
			t.Errorf("%s: details %+v", c.command, got.details)
		}
	}
	r := runBash(t, context.Background(), &toolEnv{cwd: filepath.Join(t.TempDir(), "gone")}, args{"command": "ls"})
	if !r.isError || !strings.Contains(r.text, "could not start the command") {
		t.Errorf("no working directory: %q", r.text)
	}
}

func TestBashTimeout(t *testing.T) {
	e := &toolEnv{cwd: t.TempDir()}
	r := runBash(t, context.Background(), e, args{"command": "echo a; sleep 9", "timeout": 1})
	if r.text != "a\n\nCommand timed out after 1 seconds" || !r.isError || r.took > limit(3*time.Second) {
		t.Errorf("%q after %v", r.text, r.took)
	}
	r = runBash(t, context.Background(), e, args{"command": "sleep 9", "timeout": "0.05"})
	if r.text != "(no output)\n\nCommand timed out after 0.05 seconds" {
		t.Errorf("%q", r.text)
	}
	for _, seconds := range []float64{0, -5, 3600} {
		if r := runBash(t, context.Background(), e, args{"command": "echo ok", "timeout": seconds}); r.text != "ok\n" {
			t.Errorf("timeout %v: %q", seconds, r.text)
		}
	}
	r = runBash(t, context.Background(), e, args{"command": "echo ok", "timeout": 180000})
	if r.text != "ok\n\n[timeout 180000 is above the maximum, the limit was 3600 seconds]" || r.isError {
		t.Errorf("%q", r.text)
	}
}

// What a command leaves in the background neither holds the result nor loses
// output; it lives until it is ended with us.
func TestBashBackground(t *testing.T) {
	for _, c := range []struct {
		command, want string
		isError       bool
	}{
		{"sleep 300 & echo hi", "hi\n\n[A background process is still running, in process group ", false},
		{"sleep 300 >/dev/null 2>&1 & echo hi", "hi\n\n[A background process is still running, in process group ", false},
		{"setsid sleep 300 & echo hi; sleep 0.1", "hi\n\n[A background process that left", false},
		{"(sleep 300; echo late) & exit 3", "(no output)\n\n[A background process is still running", true},
		{"(sleep 0.15; echo late) & echo hi", "hi\nlate\n", false},
	} {
		if strings.HasPrefix(c.command, "setsid") {
			if _, err := exec.LookPath("setsid"); err != nil {
				continue
			}
		}
		r := bash(t, c.command)
		if !strings.HasPrefix(r.text, c.want) || r.isError != c.isError || r.took > limit(2*time.Second) {
			t.Errorf("%s: %q, error %v, after %v", c.command, r.text, r.isError, r.took)
		}
		if c.isError {
			wantHas(t, r.text, "\n\nCommand exited with code 3")
		}
		if m := regexp.MustCompile(`kill -- (-\d+)`).FindString(r.text); m != "" {
			if killed := bash(t, m); killed.isError {
				t.Errorf("%s: %q", m, killed.text)
			}
		}
	}
	for _, id := range orphans(nil) {
		signalProcess(id, syscall.SIGKILL)
	}

	// A background process that prints on is not stopped by a full or closed pipe.
	path := filepath.Join(t.TempDir(), "pid")
	r := bash(t, "(trap 'echo $? > "+path+".end' EXIT; echo $BASHPID > "+path+"; while :; do echo line || exit; done) & sleep 0.1")
	wantHas(t, r.text, "still running")
	pid := pidIn(t, path)
	time.Sleep(50 * time.Millisecond) // time for it to fail, if it will
	if !running(pid) {
		t.Errorf("the background process has ended: %s", fileText(t, path+".end"))
	}
	signalProcess(pid, syscall.SIGKILL)
}

func TestBashAbort(t *testing.T) {
	for _, command := range []string{
		"echo $$ > pid; find / 2>/dev/null | cat",
		"echo $$ > pid; bash -c 'trap \"\" TERM; echo here; sleep 99 & echo $! > pid; wait; sleep 99'",
		"trap '' TERM; echo $$ > pid; sleep 99; sleep 99",
		"echo $$ > pid; timeout 99 yes >/dev/null",
		"echo $$ > pid; yes",
		"sleep 99 & echo $! > pid; wait",
	} {
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan bashRun, 1)
		go func() { done <- runBash(t, ctx, &toolEnv{cwd: dir}, args{"command": command}) }()
		pid := pidIn(t, filepath.Join(dir, "pid"))
		start := time.Now()
		cancel()
		r := <-done
		if took := time.Since(start); took > limit(2*time.Second) {
			t.Errorf("%s: abort took %v", command, took)
		}
		if !r.isError || !strings.HasSuffix(r.text, "side effects may have happened]\n\nCommand aborted") {
			t.Errorf("%s: %.200q", command, r.text)
		}
		waitFor(t, "end of "+command, func() bool { return !running(pid) && !groupExists(pid) })
	}
}

// The output so far survives an abort.
func TestBashAbortKeepsOutput(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	needBash(t)
	var seen string
	res, err := runShell(ctx, &toolEnv{cwd: t.TempDir()}, "echo before; sleep 99", 0, false, func(_, text string) {
		seen += text
		cancel()
	})
	if err != nil || !res.aborted || res.output != "before\n" || seen != "before\n" {
		t.Errorf("%+v, %v, progress %q", res, err, seen)
	}
}

func TestBashEnvironment(t *testing.T) {
	t.Setenv("ZOTCORE_RPC_TOKEN", "hush-token")
	t.Setenv("ZOT_TEST_API_KEY", "hush-key")
	t.Setenv("ZOT_TEST_PLAIN", "shown")
	t.Setenv("CLAUDECODE", "1")
	t.Setenv("EDITOR", "vi")
	t.Setenv("GIT_SEQUENCE_EDITOR", ":")
	e := &toolEnv{cwd: t.TempDir(), dropEnv: []string{"zot_test_*_key"}}
	r := runBash(t, context.Background(), e, args{"command": "env"})
	if strings.Contains(r.text, "hush") {
		t.Error("a secret is in the environment")
	}
	wantHas(t, "\n"+r.text, "\nZOT_TEST_PLAIN=shown\n", "\nCLAUDECODE=1\n", "\nEDITOR=true\n", "\nGIT_SEQUENCE_EDITOR=:\n", "\nGIT_TERMINAL_PROMPT=0\n", "\nTERM=dumb\n", "\nPAGER=cat\n")
	if env := childEnv([]string{"["}); len(env) != 0 {
		t.Errorf("a pattern that cannot be read shows %d variables", len(env))
	}
}

// Programs that would ask end at once, and harm nothing.
func TestBashQuestions(t *testing.T) {
	needBash(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="private"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer server.Close()
	dir := t.TempDir()
	e := &toolEnv{cwd: dir}
	t.Setenv("HOME", dir)
	t.Setenv("EDITOR", "vi")
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	setup := runBash(t, context.Background(), e, args{"command": `git init -q . && git config user.name x && git config user.email x@localhost &&
		for i in 1 2 3; do git commit -q --allow-empty -m "commit $i"; done && git log --format=%s > .git/before`})
	if setup.isError {
		t.Fatal(setup.text)
	}
	for _, c := range []struct {
		program, command string
		isError          bool
	}{
		{"git", "git commit --amend --allow-empty", false},
		{"git", "git rebase -i HEAD~2", true},
		{"git", "git log", false},
		{"git", "git clone " + server.URL + "/private", true},
		{"python3", "python3 -c 'input()'", true},
		{"sudo", "sudo -k true", os.Getuid() != 0},
	} {
		if _, err := exec.LookPath(c.program); err != nil {
			t.Logf("not tried, %s is missing: %s", c.program, c.command)
			continue
		}
		r := runBash(t, context.Background(), e, args{"command": c.command, "timeout": 20})
		if r.isError != c.isError || r.took > limit(5*time.Second) {
			t.Errorf("%s: error %v after %v: %s", c.command, r.isError, r.took, r.text)
		}
	}
	if r := runBash(t, context.Background(), e, args{"command": "git log --format=%s | diff - .git/before"}); r.isError {
		t.Errorf("the history changed:\n%s", r.text)
	}
}

func TestBashTail(t *testing.T) {
	r := bash(t, "seq 1 5001")
	text, note, _ := strings.Cut(r.text, "\n\n")
	if text+"\n" != numbers(3002, 5001) {
		t.Errorf("lines: %.50q...", text)
	}
	d := r.details
	if d.FullOutputPath == nil || d.Truncation == nil {
		t.Fatalf("details %+v", d)
	}
	if want := "[Showing lines 3002-5001 of 5001. Full output: " + *d.FullOutputPath + "]"; note != want {
		t.Errorf("note %q, want %q", note, want)
	}
	if want := (truncation{true, "lines", 5001, 23898, 2000, 10000}); *d.Truncation != want {
		t.Errorf("truncation %+v, want %+v", *d.Truncation, want)
	}
	if got := fileText(t, *d.FullOutputPath); got != numbers(1, 5001) {
		t.Errorf("full output: %d bytes", len(got))
	}
	if info, err := os.Stat(*d.FullOutputPath); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}

	// Bytes are the limit, and one line is too long.
	r = bash(t, "seq -f 'line %g with some more text in it' 1 2500")
	wantHas(t, r.text, "line 2500 with some more text in it\n\n[Showing lines ", "-2500 of 2500. Full output: ")
	if d := r.details.Truncation; d == nil || d.TruncatedBy != "bytes" || d.OutputBytes > maxBytes || !strings.HasPrefix(r.text, "line ") {
		t.Errorf("truncation %+v of %.40q", d, r.text)
	}
	r = bash(t, "echo first; for i in {1..60000}; do printf é; done")
	if !strings.HasPrefix(r.text, strings.Repeat("é", maxBytes/2)+"\n\n[Showing the last 51200 bytes of line 2 of 2. Full output: ") {
		t.Errorf("long line: ...%q", r.text[max(0, len(r.text)-200):])
	}
	// Bad bytes grow three times as long.
	r = bash(t, `printf '\xff%.0s' {1..30000}`)
	if r.details.FullOutputPath == nil || len(fileText(t, *r.details.FullOutputPath)) != 30000 {
		t.Errorf("bad bytes: %+v ...%q", r.details, r.text[max(0, len(r.text)-200):])
	}
	// More than the result keeps, but nothing of it is text: no file is left.
	r = bash(t, `printf '\e[0m%.0s' {1..30000}; echo; echo end`)
	if r.text != "\nend\n" || r.details.FullOutputPath != nil {
		t.Errorf("escapes: %.100q %+v", r.text, r.details)
	}
}

// The file of the full output ends at 64 MiB, and the result says so.
func TestBashFullOutputLimit(t *testing.T) {
	r := bash(t, "yes 0123456789abcdef | head -c 80M")
	if r.details.FullOutputPath == nil {
		t.Fatal("no file")
	}
	if info, err := os.Stat(*r.details.FullOutputPath); err != nil || info.Size() != spillMax {
		t.Errorf("%v, %v", info, err)
	}
	wantHas(t, r.text, "(cut after 64 MiB)]")
	if got := r.details.Truncation.TotalBytes; got != 80<<20 {
		t.Errorf("total %d", got)
	}
	// Without a place for the file the result says that, too.
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "gone"))
	r = bash(t, "seq 1 5001")
	wantHas(t, r.text, "\n5001\n\n[Showing lines 3002-5001 of 5001. The full output was not kept: ")
}

func TestCleanupSpill(t *testing.T) {
	needBash(t)
	named := bash(t, "seq 1 5001").details.FullOutputPath
	unnamed, err := createSpill("")
	if err != nil || named == nil {
		t.Fatal(named, err)
	}
	unnamed.Close()
	cleanupSpill()
	if _, err := os.Stat(unnamed.Name()); !os.IsNotExist(err) {
		t.Errorf("the file that no result names: %v", err)
	}
	if _, err := os.Stat(*named); err != nil {
		t.Errorf("the file that a result names: %v", err)
	}
}

// Every run returns all its output, also when the machine is busy.
func TestBashLosesNothing(t *testing.T) {
	needBash(t)
	dir := t.TempDir()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 15 {
				res, err := runShell(context.Background(), &toolEnv{cwd: dir}, "seq 1 20000", 0, false, func(_, _ string) {})
				if err != nil || res.truncation == nil || res.truncation.TotalBytes != 108894 || res.truncation.TotalLines != 20000 {
					t.Errorf("%v %+v", err, res)
					return
				}
				os.Remove(*res.fullOutput)
			}
		})
	}
	all.Wait()
}

func TestBashProgress(t *testing.T) {
	// The first output comes at once, the rest in few pieces, which make up all.
	needBash(t)
	start := time.Now()
	var first time.Time
	var pieces []string
	_, err := runShell(context.Background(), &toolEnv{cwd: t.TempDir()}, `printf 'a\xc3'; sleep 0.3; printf '\xa9\e[1'; sleep 0.3; for i in {1..60}; do sleep 0.01; printf m; done`, 0, false, func(_, text string) {
		if pieces == nil {
			first = time.Now()
		}
		pieces = append(pieces, text)
	})
	if err != nil || strings.Join(pieces, "") != "aé"+strings.Repeat("m", 59) || pieces[0] != "a" || len(pieces) > int(time.Since(start)/progressGap)+4 {
		t.Errorf("%q, %v", pieces, err)
	}
	if first.Sub(start) > limit(250*time.Millisecond) {
		t.Errorf("first after %v", first.Sub(start))
	}

	// Of very much output the newest is passed on, with the count of the rest.
	r := bash(t, "yes 12345678901234 | head -c 30000000; echo; echo end")
	total := 0
	for _, piece := range r.progress {
		if len(piece) > progressKeep+50 {
			t.Errorf("a piece of %d bytes", len(piece))
		}
		if m := regexp.MustCompile(`^\[\.\.\. (\d+) bytes skipped \.\.\.\]\n`).FindStringSubmatch(piece); m != nil {
			skipped, _ := strconv.Atoi(m[1])
			total += skipped - len(m[0])
		}
		total += len(piece)
	}
	if total != 30000005 || len(r.progress) > int(r.took/progressGap)+3 || !strings.HasSuffix(r.progress[len(r.progress)-1], "\nend\n") {
		t.Errorf("%d bytes in %d pieces in %v", total, len(r.progress), r.took)
	}
}

// Whatever a command prints, memory stays small and time linear.
func TestBashHugeOutput(t *testing.T) {
	if os.Getenv("ZOT_TEST_HUGE") != "" {
		for _, command := range []string{"yes | head -c 512M", "head -c 200M /dev/zero | tr '\\0' x"} {
			r := bash(t, command)
			if r.took > limit(10*time.Second) || len(r.text) > maxBytes+1000 {
				t.Errorf("%s: %v, result of %d bytes", command, r.took, len(r.text))
			}
			t.Logf("%s: %v", command, r.took)
		}
		status := fileText(t, "/proc/self/status")
		peak, _ := strconv.Atoi(regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindStringSubmatch(status)[1])
		if peak > 50<<10 {
			t.Errorf("peak memory %d KiB", peak)
		}
		return
	}
	needBash(t)
	if runtime.GOOS != "linux" || raceDetector() {
		t.Skip("measures memory: needs Linux, and no race detector")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestBashHugeOutput$", "-test.v")
	cmd.Env = append(os.Environ(), "ZOT_TEST_HUGE=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// A group counts as alive as long as it has members, whatever its leader does.
func TestGroup(t *testing.T) {
	needBash(t)
	path := filepath.Join(t.TempDir(), "pid")
	g, err := startGroup(exec.Command("bash", "-c", "(trap '' TERM; echo $BASHPID > "+path+"; while :; do sleep 99; done) & exit 7"))
	if err != nil {
		t.Fatal(err)
	}
	pid := pidIn(t, path)
	<-g.exited
	if g.state.ExitCode() != 7 || !g.alive() {
		t.Errorf("state %v, alive %v", g.state, g.alive())
	}
	start := time.Now()
	g.kill(200 * time.Millisecond)
	if took := time.Since(start); took < 200*time.Millisecond || took > limit(450*time.Millisecond) || g.alive() {
		t.Errorf("kill took %v, alive %v", took, g.alive())
	}
	waitFor(t, "end of the member", func() bool { return !running(pid) })

	// A gentle process gets the time it needs, and no more is waited.
	g, err = startGroup(exec.Command("bash", "-c", "trap 'echo gentle > "+path+".end; exit' TERM; echo $$ > "+path+".2; while :; do sleep 0.01; done"))
	if err != nil {
		t.Fatal(err)
	}
	pidIn(t, path+".2")
	start = time.Now()
	g.kill(5 * time.Second)
	if took := time.Since(start); took > limit(2*time.Second) || g.alive() || fileText(t, path+".end") != "gentle\n" {
		t.Errorf("kill took %v, alive %v", took, g.alive())
	}
	if _, err := startGroup(exec.Command(path)); err == nil {
		t.Error("started what is no program")
	}
}

// At the end of the process everything goes at once, also what left its group.
func TestKillAllGroups(t *testing.T) {
	needBash(t)
	if dir := os.Getenv("ZOT_TEST_KILL_ALL"); dir != "" {
		for i, command := range []string{
			"trap '' TERM; echo $BASHPID > %s; sleep 99; sleep 99",
			"sleep 99 & echo $! > %s; wait",
			"(trap '' TERM; echo $BASHPID > %s; while :; do sleep 99; done) & exit",
			"setsid bash -c \"trap '' TERM; echo \\$\\$ > %s; sleep 99; sleep 99\"",
		} {
			file := filepath.Join(dir, strconv.Itoa(i))
			if _, err := startGroup(exec.Command("bash", "-c", fmt.Sprintf(command, file))); err != nil {
				t.Fatal(err)
			}
			pidIn(t, file)
		}
		start := time.Now()
		killAllGroups(300 * time.Millisecond)
		if took := time.Since(start); took > limit(700*time.Millisecond) {
			t.Errorf("took %v", took)
		}
		if _, err := startGroup(exec.Command("bash", "-c", "sleep 99")); err == nil {
			t.Error("started a child at the end")
		}
		return
	}
	if _, err := exec.LookPath("setsid"); err != nil || runtime.GOOS != "linux" {
		t.Skip("needs setsid and Linux, which lists children")
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKillAllGroups$", "-test.v")
	cmd.Env = append(os.Environ(), "ZOT_TEST_KILL_ALL="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for i := range 4 {
		if pid := pidIn(t, filepath.Join(dir, strconv.Itoa(i))); running(pid) {
			t.Errorf("process %d is still there", i)
			signalProcess(pid, syscall.SIGKILL)
		}
	}
}

// Text does not depend on where the output was cut into pieces.
func TestPlainTextPieces(t *testing.T) {
	src := []byte("a\x1b[1;3mé\x1b]0;t\x1b\\b\x1b(Bc\r\n\x1b[31\nd\u0085\x07日本\xff")
	const want = "aébc\n\nd日本\ufffd"
	for cut := range src {
		n := len(wholeText(src[:cut]))
		if got := string(plainText(src[:n])) + string(plainText(src[n:])); got != want {
			t.Errorf("cut at %d: %q, want %q", cut, got, want)
		}
	}
}
