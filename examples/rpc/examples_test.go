// The example clients against the built zot and its scripted provider. None may
// hang, show a stack trace, or call a failure a success.
package rpc

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

const patience = time.Minute

var zot, goClient string // built binaries

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if runtime.GOOS == "windows" {
		fmt.Println("skipped: the tests need scripts that start by their first line")
		return 0
	}
	dir, err := os.MkdirTemp("", "zot-clients-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	zot, goClient = filepath.Join(dir, "zot"), filepath.Join(dir, "client")
	for to, from := range map[string]string{zot: "../..", goClient: "./go"} {
		if out, err := exec.Command("go", "build", "-o", to, from).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
			return 1
		}
	}
	return m.Run()
}

// eachClient runs a test for each client whose interpreter is there.
func eachClient(t *testing.T, test func(t *testing.T, client string)) {
	for _, c := range []struct {
		name  string
		path  string
		needs []string
	}{
		{"shell", "shell/client.sh", []string{"bash", "jq"}},
		{"python", "python/client.py", []string{"python3"}},
		{"node", "node/client.mjs", []string{"node"}},
		{"go", goClient, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, program := range c.needs {
				if _, err := exec.LookPath(program); err != nil {
					t.Skipf("needs %s: %v", program, err)
				}
			}
			path, err := filepath.Abs(c.path)
			if err != nil {
				t.Fatal(err)
			}
			test(t, path)
		})
	}
}

// command is a client in a directory of its own, with an empty zot home.
func command(dir, client string, env []string, args ...string) *exec.Cmd {
	cmd := exec.Command(client, args...)
	cmd.Dir = dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "ZOT_HOME=" + filepath.Join(dir, "home"), "ZOT=" + zot}, env...)
	cmd.WaitDelay = patience
	return cmd
}

// write puts a file into dir.
func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestClients(t *testing.T) {
	const answer = `
		turn
		text Looking.
		usage input=10 output=5
		call bash id=c1 {"command":"echo out of the tool"}
		turn
		text "One\n\n"
		text "Tw\u00f6 \u2028 three"
		usage input=20 output=7`
	cases := []struct {
		name, script, prompt string
		fake                 string // a shell script in place of zot; $REAL is zot
		env                  []string
		flags                []string
		code                 int
		stdout               string
		stderr               []string
	}{
		{name: "answer", script: answer, prompt: "go", stdout: "Looking.\nOne\n\nTwö \u2028 three\n",
			stderr: []string{"> bash {\"command\"", "echo out of the tool", "tokens: 10 in, 5 out; $0", "tokens: 30 in, 12 out; $0"}},
		{name: "token", script: answer, prompt: "go", env: []string{"ZOTCORE_RPC_TOKEN=secret"}, stdout: "Looking.\nOne\n\nTwö \u2028 three\n"},
		{name: "failing provider", script: "turn\nerror 401 no", prompt: "go", code: 1, stderr: []string{"the run failed: 401 Unauthorized: no"}},
		{name: "failing behind text", script: "turn\ntext Once upon\ncut", prompt: "go", code: 1, stdout: "Once upon\n", stderr: []string{"the run failed: "}},
		{name: "refused prompt", script: answer, prompt: "", code: 1, stderr: []string{"zot refused prompt: "}},
		{name: "wrong token", script: answer, prompt: "go", env: []string{"ZOTCORE_RPC_TOKEN=guess"},
			fake: `ZOTCORE_RPC_TOKEN=secret exec "$REAL" "$@"`, code: 1, stderr: []string{"zot refused hello: unauthorized"}},
		{name: "bad flag", script: answer, prompt: "go", flags: []string{"--frobnicate"}, code: 1,
			stderr: []string{"zot: unknown flag --frobnicate", "zot ended before the run was done"}},
		{name: "no zot", script: answer, prompt: "go", env: []string{"ZOT=/nowhere/zot"}, code: 1, stderr: []string{"cannot start /nowhere/zot"}},
		{name: "zot dies", prompt: "go", fake: `echo '{"type":"text_delta","delta":"One"}'; kill -9 $$`, code: 1, stdout: "One",
			stderr: []string{"zot ended before the run was done"}},
		{name: "aborted by zot", prompt: "go", fake: `echo '{"type":"turn_end","stop":"aborted"}'; echo '{"type":"done"}'; cat >/dev/null`, code: 1,
			stderr: []string{"the run failed: aborted"}},
		{name: "extensions speak", prompt: "/hi", fake: `echo 'a stray line'
			echo '{"type":"ext_notify","extension":"hi","level":"info","message":"busy"}'
			echo '{"type":"ext_display","extension":"hi","text":"Hello"}'; echo '{"type":"done"}'; cat >/dev/null`,
			stdout: "Hello\n", stderr: []string{"[hi] busy"}},
	}
	eachClient(t, func(t *testing.T, client string) {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				dir := t.TempDir()
				write(t, dir, "s.script", c.script)
				env := []string{"REAL=" + zot}
				if c.fake != "" {
					env = append(env, "ZOT="+write(t, dir, "fake", "#!/bin/sh\n"+c.fake+"\n"))
				}
				t.Parallel() // behind the files: one that is still open for writing does not start
				args := append([]string{c.prompt, "--provider", "script", "--model", "s.script"}, c.flags...)
				cmd := command(dir, client, append(env, c.env...), args...)
				var stdout, stderr bytes.Buffer
				cmd.Stdout, cmd.Stderr = &stdout, &stderr
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				kill := time.AfterFunc(patience, func() {
					t.Error("it hangs")
					cmd.Process.Kill()
				})
				cmd.Wait()
				kill.Stop()
				if code := cmd.ProcessState.ExitCode(); code != c.code {
					t.Errorf("exit code %d, want %d", code, c.code)
				}
				if stdout.String() != c.stdout {
					t.Errorf("stdout %q, want %q", stdout.String(), c.stdout)
				}
				for _, want := range c.stderr {
					if !strings.Contains(stderr.String(), want) {
						t.Errorf("stderr has no %q", want)
					}
				}
				for _, trace := range []string{"Traceback", "Exception", "    at ", "goroutine ", "panic:"} {
					if strings.Contains(stderr.String(), trace) {
						t.Errorf("stderr has a stack trace")
					}
				}
				if t.Failed() {
					t.Logf("stderr:\n%s", &stderr)
				}
			})
		}
	})
}

// Without arguments a client says how it is called.
func TestUsage(t *testing.T) {
	eachClient(t, func(t *testing.T, client string) {
		out, err := command(t.TempDir(), client, nil).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.HasPrefix(string(out), "usage: ") {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// Text is printed as it comes, not at the end of the run: here the run ends only
// after its first text has been read.
func TestStreaming(t *testing.T) {
	eachClient(t, func(t *testing.T, client string) {
		dir := t.TempDir()
		write(t, dir, "s.script", "turn\ntext first\ncall bash {\"command\":\"until [ -e read ]; do sleep 0.02; done\"}\nturn\ntext second")
		cmd := command(dir, client, nil, "go", "--provider", "script", "--model", "s.script", "--cwd", dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		late := time.AfterFunc(patience, func() {
			t.Error("no text before the end of the run")
			write(t, dir, "read", "")
		})
		got := make([]byte, len("first"))
		if _, err := io.ReadFull(out, got); err != nil || string(got) != "first" {
			t.Errorf("got %q (%v)", got, err)
		}
		late.Stop()
		write(t, dir, "read", "")
		if rest, err := io.ReadAll(out); err != nil || string(rest) != "\nsecond\n" {
			t.Errorf("then got %q (%v)", rest, err)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// obvious is the client that people write first: it ignores responses, stops at
// the first error event, waits for done, and takes the cost for a number. abort is
// called at the first text.
func obvious(out io.Reader, abort func()) (text, cost string, err error) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var event map[string]any
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return text, cost, err
		}
		switch event["type"] {
		case "text_delta":
			text += event["delta"].(string)
			if abort != nil {
				abort()
				abort = nil
			}
		case "usage":
			cost = fmt.Sprintf("$%.4f", event["cumulative"].(map[string]any)["cost_usd"].(float64))
		case "error":
			return text, cost, errors.New(event["message"].(string))
		case "done":
			return text, cost, nil
		}
	}
	return text, cost, errors.New("the output ended")
}

func TestObviousClient(t *testing.T) {
	for _, c := range []struct {
		name, script string
		abort        bool
		text, cost   string
		err          string
	}{
		{name: "normal", script: "turn\ntext Hello.\nusage input=10 output=5", text: "Hello.", cost: "$0.0000"},
		{name: "retried", script: "turn\nerror 429 after=1ms Slow down\nturn\ntext Hello.\nusage input=1 output=1", text: "Hello.", cost: "$0.0000"},
		{name: "aborted", script: "turn\ntext Once\nhang", abort: true, text: "Once"},
		{name: "401", script: "turn\nerror 401 no", err: "401 Unauthorized: no"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, "s.script", c.script)
			cmd := command(dir, zot, nil, "rpc", "--provider", "script", "--model", "s.script")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			kill := time.AfterFunc(patience, func() { cmd.Process.Kill() })
			defer kill.Stop()
			io.WriteString(in, `{"type":"prompt","message":"go"}`+"\n")
			var abort func()
			if c.abort {
				abort = func() { io.WriteString(in, `{"type":"abort"}`+"\n") }
			}
			text, cost, err := obvious(out, abort)
			if text != c.text || cost != c.cost {
				t.Errorf("got %q, cost %q", text, cost)
			}
			if (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
				t.Errorf("got error %v, want %q", err, c.err)
			}
			in.Close()
			io.Copy(io.Discard, out)
			if err := cmd.Wait(); err != nil {
				t.Errorf("zot ended with %v", err)
			}
		})
	}
}
