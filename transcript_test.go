// The transcripts in testdata are conversations with the built binary. They are
// the documentation of the protocol, and this runner replays them over real
// pipes. A transcript is lines:
//
//	# a comment
//	file NAME           the indented lines below are written to a file
//	env NAME=VALUE      for the processes below ($DIR is the working directory)
//	$ zot rpc ...       starts a process
//	> LINE              is sent to it ("> @NAME" sends a file's bytes)
//	< LINE              must come from it: JSON is compared as JSON, where the
//	                    string "*" stands for any value and a * in a string, or
//	                    in a line that is no JSON, for any text; the key "*"
//	                    allows more keys; the string "*=name" is any string
//	                    too, and $name in the lines below it stands for it
//	< ...               any lines, until the next expected one
//	close               ends its input
//	signal TERM         is sent to it
//	exit N              it must end with this code, after no more lines
//	stderr TEXT         TEXT must be on its standard error (checked after exit)
//	has FILE LINE       LINE must come to be in a file, behind the line that the
//	                    last "has" of this file found; compared as with "<"
//	count FILE N TEXT   TEXT must be in N lines of a file
//	needs NAME          skips the transcript where a program is missing
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var zotBin string // the built binary; the puppet (testdata/puppet) is beside it

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if os.Getenv("ZOT_TEST_CHILD") != "" { // a process that a test has started needs no binary
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "zot-test-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	zotBin = filepath.Join(dir, "zot")
	args := []string{"build", "-o", zotBin}
	if raceDetector() {
		args = append(args, "-race")
	}
	for _, build := range [][]string{append(args, "."), {"build", "-o", filepath.Join(dir, "puppet"), "./testdata/puppet"}} {
		if out, err := exec.Command("go", build...).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
			return 1
		}
	}
	return m.Run()
}

// raceDetector reports whether the tests run under the race detector: then the
// binary does too.
func raceDetector() bool {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if s.Key == "-race" && s.Value == "true" {
			return true
		}
	}
	return false
}

// proc is a running zot.
type proc struct {
	t      testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    chan string // lines; closed at the end of the output
	stderr *lockedBuffer
	code   int
	done   chan struct{}
	asked  int    // commands of ask
	last   string // the last line that came
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// cleanEnv is an environment in which no setting of this machine's user counts.
func cleanEnv(home string, extra ...string) []string {
	path := filepath.Dir(zotBin) + string(os.PathListSeparator) + os.Getenv("PATH")
	env := []string{"PATH=" + path, "HOME=" + home, "ZOT_HOME=" + filepath.Join(home, "zot-home"), "TMPDIR=" + os.TempDir(), "TERM=xterm"}
	return append(env, extra...)
}

// startZot starts the binary in a directory, with an empty home below it.
func startZot(t testing.TB, dir string, env []string, args ...string) *proc {
	t.Helper()
	return startProcess(t, dir, env, exec.Command(zotBin, args...))
}

func startProcess(t testing.TB, dir string, env []string, cmd *exec.Cmd) *proc {
	t.Helper()
	p := &proc{t: t, cmd: cmd, out: make(chan string, 1000), stderr: &lockedBuffer{}, done: make(chan struct{})}
	p.cmd.Dir = dir
	p.cmd.Env = cleanEnv(dir, env...)
	p.cmd.Stderr = p.stderr
	p.cmd.WaitDelay = 5 * time.Second
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout = w
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	go func() {
		defer close(p.out)
		defer r.Close()
		lines := bufio.NewReader(r)
		for {
			line, err := lines.ReadString('\n')
			if line != "" {
				p.out <- line
			}
			if err != nil {
				return
			}
		}
	}()
	go func() {
		p.cmd.Wait()
		p.code = p.cmd.ProcessState.ExitCode()
		if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			p.code = 128 + int(ws.Signal())
		}
		close(p.done)
	}()
	t.Cleanup(func() {
		p.in.Close()
		p.cmd.Process.Kill()
		for range p.out {
		}
		<-p.done
		if s := p.stderr.String(); strings.Contains(s, "DATA RACE") {
			t.Errorf("the race detector spoke:\n%s", s)
		}
	})
	return p
}

func (p *proc) send(lines ...string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, strings.Join(lines, "\n")+"\n"); err != nil {
		p.t.Fatalf("sending %.200q: %v\nstderr: %s", lines, err, p.stderr)
	}
}

const patience = time.Minute

// line returns the next line of output, "" at its end.
func (p *proc) line() string {
	p.t.Helper()
	select {
	case l, ok := <-p.out:
		if !ok {
			return ""
		}
		if !strings.HasSuffix(l, "\n") {
			p.t.Fatalf("the output ends in half a line: %q", l)
		}
		p.last = strings.TrimSuffix(l, "\n")
		return p.last
	case <-time.After(patience):
		p.t.Fatalf("nothing came in %v behind %s\nstderr: %s", patience, p.last, p.stderr)
		return ""
	}
}

// frame returns the next frame, nil at the end of the output.
func (p *proc) frame() map[string]any {
	p.t.Helper()
	l := p.line()
	if l == "" {
		return nil
	}
	var f map[string]any
	if err := json.Unmarshal([]byte(l), &f); err != nil {
		p.t.Fatalf("not a frame: %q: %v", l, err)
	}
	if _, ok := f["type"].(string); !ok {
		p.t.Fatalf("a frame without a type: %q", l)
	}
	return f
}

// until returns the frames up to and with the first that has all of these
// fields (pairs of key and value).
func (p *proc) until(fields ...any) (frames []map[string]any) {
	p.t.Helper()
next:
	for {
		f := p.frame()
		if f == nil {
			p.t.Fatalf("the output ended before %v; frames: %v\nstderr: %s", fields, frames, p.stderr)
		}
		frames = append(frames, f)
		for i := 0; i < len(fields); i += 2 {
			if !reflect.DeepEqual(f[fields[i].(string)], fields[i+1]) {
				continue next
			}
		}
		return frames
	}
}

// exit waits for the end of the process and checks its code.
func (p *proc) exit(code int) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("still running after %v\nstderr: %s", patience, p.stderr)
	}
	if p.code != code {
		p.t.Errorf("exit code %d, want %d\nstderr: %s", p.code, code, p.stderr)
	}
}

func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/[^t]*/*.txt") // testdata/tui is for TestScreens
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts in testdata")
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.ToSlash(f), ".txt")
		t.Run(strings.TrimPrefix(name, "testdata/"), func(t *testing.T) {
			t.Parallel()
			replayTranscript(t, f)
		})
	}
}

func replayTranscript(t *testing.T, path string) {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.ReplaceAll(string(data), "$DIR", dir), "\n")
	var env []string
	var p *proc
	skip := false            // "< ..." was said
	seen := map[string]int{} // by file: the lines that "has" has passed
	named := names{}
	for n := 0; n < len(lines); n++ {
		at := fmt.Sprintf("%s:%d", path, n+1)
		verb, arg, _ := strings.Cut(named.replace(lines[n]), " ")
		switch verb {
		case "", "#":
		case "needs":
			if _, err := exec.LookPath(arg); err != nil {
				t.Skipf("%s is not installed", arg)
			}
		case "file":
			var text []string
			for n+1 < len(lines) && (strings.HasPrefix(lines[n+1], "  ") || lines[n+1] == "") {
				n++
				text = append(text, strings.TrimPrefix(lines[n], "  "))
			}
			f := filepath.Join(dir, arg)
			os.MkdirAll(filepath.Dir(f), 0o777)
			if err := os.WriteFile(f, []byte(strings.TrimRight(strings.Join(text, "\n"), "\n")+"\n"), 0o666); err != nil {
				t.Fatal(err)
			}
		case "env":
			env = append(env, arg)
		case "$":
			words := splitWords(arg)
			if words[0] != "zot" {
				t.Fatalf("%s: only zot can be run", at)
			}
			p = startZot(t, dir, env, words[1:]...)
		case ">":
			if name, ok := strings.CutPrefix(arg, "@"); ok {
				data, err := os.ReadFile(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				arg = strings.TrimSuffix(string(data), "\n")
			}
			p.send(arg)
		case "<":
			if arg == "..." {
				skip = true
				continue
			}
			var got string
			for {
				got = p.line()
				if got == "" {
					t.Fatalf("%s: the output ended before %s\nstderr: %s", at, arg, p.stderr)
				}
				if named.matches(arg, got) || !skip {
					break
				}
			}
			if !named.matches(arg, got) {
				t.Fatalf("%s:\nwant %s\ngot  %s", at, arg, got)
			}
			skip = false
		case "close":
			p.in.Close()
		case "signal":
			p.cmd.Process.Signal(map[string]os.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "KILL": syscall.SIGKILL}[arg])
		case "exit":
			code, err := strconv.Atoi(arg)
			if err != nil {
				t.Fatalf("%s: %v", at, err)
			}
			for l := p.line(); l != ""; l = p.line() {
				if !skip {
					t.Fatalf("%s: one more line: %s", at, l)
				}
			}
			p.exit(code)
			skip = false
		case "stderr":
			if !strings.Contains(p.stderr.String(), arg) {
				t.Errorf("%s: not on stderr: %q\nstderr: %s", at, arg, p.stderr)
			}
		case "has":
			name, want, _ := strings.Cut(arg, " ")
			named.awaitLine(t, at, filepath.Join(dir, name), want, seen)
		case "count":
			words := strings.SplitN(arg, " ", 3)
			data, err := os.ReadFile(filepath.Join(dir, words[0]))
			if err != nil {
				t.Fatalf("%s: %v", at, err)
			}
			n := 0
			for line := range strings.Lines(string(data)) {
				if strings.Contains(line, words[2]) {
					n++
				}
			}
			if strconv.Itoa(n) != words[1] {
				t.Errorf("%s: it is in %d lines of\n%s", at, n, data)
			}
		default:
			t.Fatalf("%s: what is %q?", at, verb)
		}
	}
}

// awaitLine waits for a line in a file, behind those that were seen.
func (named names) awaitLine(t *testing.T, at, path, want string, seen map[string]int) {
	t.Helper()
	var lines []string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		data, _ := os.ReadFile(path)
		lines = strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
		for i := seen[path]; i < len(lines); i++ {
			if named.matches(want, lines[i]) {
				seen[path] = i + 1
				return
			}
		}
	}
	t.Fatalf("%s: behind line %d there is no %s in\n%s", at, seen[path], want, strings.Join(lines, "\n"))
}

// splitWords splits a command line at spaces; double quotes group.
func splitWords(s string) (words []string) {
	for _, w := range regexp.MustCompile(`(?:[^\s"]|"[^"]*")+`).FindAllString(s, -1) {
		words = append(words, strings.ReplaceAll(w, `"`, ""))
	}
	return words
}

// names are the strings that expected lines have given names to.
type names map[string]string

var nameInLine = regexp.MustCompile(`\$[a-z]+`)

func (named names) replace(line string) string {
	return nameInLine.ReplaceAllStringFunc(line, func(word string) string {
		if s, ok := named[word[1:]]; ok {
			return s
		}
		return word
	})
}

// matches compares a line with what a transcript expects.
func (named names) matches(want, got string) bool {
	if want == got {
		return true
	}
	var w, g any
	if json.Unmarshal([]byte(want), &w) != nil || json.Unmarshal([]byte(got), &g) != nil {
		return named.match(want, got)
	}
	return named.match(w, g)
}

func (named names) match(want, got any) bool {
	switch w := want.(type) {
	case string:
		if w == "*" {
			return true
		}
		g, ok := got.(string)
		if !ok || !strings.Contains(w, "*") {
			return ok && w == g
		}
		if name, ok := strings.CutPrefix(w, "*="); ok {
			named[name] = g
			return true
		}
		parts := strings.Split(w, "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		return regexp.MustCompile("(?s)^" + strings.Join(parts, ".*") + "$").MatchString(g)
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return false
		}
		_, open := w["*"]
		n := 0
		for k, v := range w {
			if k == "*" {
				continue
			}
			gv, ok := g[k]
			if !ok || !named.match(v, gv) {
				return false
			}
			n++
		}
		return open || n == len(g)
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return false
		}
		for i := range w {
			if !named.match(w[i], g[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(want, got)
}

// put writes a file with its mode and directories.
func put(t testing.TB, path, text string, mode fs.FileMode) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err := errors.Join(err, os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

// limit is how long something may take before a test says that a promise of so
// much time is broken. Machines are noisy, so that is four times as long and two
// seconds more, unless ZOT_EXACT_TIMES is set.
func limit(promise time.Duration) time.Duration {
	if os.Getenv("ZOT_EXACT_TIMES") != "" {
		return promise
	}
	return 4*promise + 2*time.Second
}

// TestFaults checks that each test and transcript that testdata/FAULTS.txt names
// exists.
func TestFaults(t *testing.T) {
	data, err := os.ReadFile("testdata/FAULTS.txt")
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		if strings.TrimSpace(line) == "" || line[0] == '#' {
			continue
		}
		columns := strings.Split(strings.TrimSpace(line), " | ")
		id, shown := strings.TrimSpace(columns[0]), 0
		if ids[id] {
			t.Errorf("%s stands there twice", id)
		}
		ids[id] = true
		for _, reference := range columns[min(2, len(columns)):] {
			file, name, isTest := strings.Cut(reference, ": ")
			if !strings.HasSuffix(file, ".txt") && !strings.HasSuffix(file, "_test.go") {
				continue // what does not apply
			}
			shown++
			text, err := os.ReadFile(file)
			if err != nil || isTest && !strings.Contains(string(text), "\nfunc "+name+"(") {
				t.Errorf("%s: there is no %s", id, reference)
			}
		}
		if shown == 0 {
			t.Errorf("%s: no test shows it", id)
		}
	}
	if len(ids) != 95 {
		t.Errorf("%d faults, want 95", len(ids))
	}
}
