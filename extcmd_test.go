//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// zotExt runs zot ext to its end.
func zotExt(t testing.TB, dir string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command(zotBin, append([]string{"ext"}, args...)...)
	cmd.Dir, cmd.Env = dir, cleanEnv(dir, "GORACE=atexit_sleep_ms=20") // there are many of these: not a second each
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	timer := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	defer timer.Stop()
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if strings.Contains(errs.String(), "DATA RACE") {
		t.Errorf("the race detector spoke:\n%s", errs.String())
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// want runs zot ext and checks the exit code and a part of what it printed.
func want(t testing.TB, dir string, code int, text string, args ...string) string {
	t.Helper()
	stdout, stderr, got := zotExt(t, dir, args...)
	if got != code || !strings.Contains(stdout+stderr, text) {
		t.Errorf("zot ext %q: exit code %d, want %d, and %q in\n%s%s", args, got, code, text, stdout, stderr)
	}
	return stdout
}

func link(t testing.TB, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Skip(err)
	}
}

// bashExt makes an extension of a shell script.
func bashExt(t testing.TB, dir, script string) {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("bash is not installed")
	}
	put(t, filepath.Join(dir, "extension.json"), `{"name":"`+filepath.Base(dir)+`","version":"1.0","exec":"bash","args":["run.sh"]}`, 0o644)
	put(t, filepath.Join(dir, "run.sh"), script, 0o644)
}

// installed lists what is in the extensions directory, leftovers included.
func installed(t testing.TB, dir string) (names []string) {
	entries, _ := os.ReadDir(filepath.Join(dir, "zot-home", "extensions"))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestExtUsage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, args := range [][]string{{}, {"frob"}, {"list", "x"}, {"list", "-f"}, {"install"}, {"install", "a", "b"}, {"install", "--json", "a"},
		{"remove"}, {"enable"}, {"disable", "a", "b"}, {"logs"}, {"logs", "-x", "a"}, {"doctor", "a", "b"}, {"doctor", ""}, {"remove", ""}} {
		if stdout, stderr, code := zotExt(t, dir, args...); code != exitUsage || stdout != "" || stderr == "" {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
	want(t, dir, 0, "zot ext doctor", "help")
	want(t, dir, 0, "No extensions", "list")
	want(t, dir, 0, "No extensions", "doctor")
	want(t, dir, 0, `{"extensions":[]}`, "list", "--json")
	want(t, dir, 0, `{"extensions":[]}`, "doctor", "--json")
}

func TestSetEnabled(t *testing.T) {
	for _, c := range []struct {
		on      bool
		in, out string
	}{
		{false, `{"name":"a"}`, `{"name":"a","enabled": false}`},
		{true, `{"name":"a"}`, `{"name":"a"}`},
		{false, "{\r\n\t\"name\" : \"a\" ,\r\n\t\"args\":[ 1.0 ]\r\n}\r\n", "{\r\n\t\"name\" : \"a\" ,\r\n\t\"args\":[ 1.0 ],\r\n\t\"enabled\": false\r\n}\r\n"},
		{false, " {\"enabled\" :\n true\t, \"x\":{\"enabled\":true}} ", " {\"enabled\" :\n false\t, \"x\":{\"enabled\":true}} "},
		{true, `{"x":[{"enabled":false}],"enabled":false}`, `{"x":[{"enabled":false}],"enabled":true}`},
		{true, `{"enabled":false,"a":"\u00e9é","Enabled": null , "n":1e400}`, `{"enabled":true,"a":"\u00e9é","Enabled": true , "n":1e400}`},
		{false, `{"\u0065nabled":"yes"}`, `{"\u0065nabled":false}`},
		{false, "{ }", "{ \"enabled\": false }"},
		{false, `{"enabled":true`, ""},
		{false, `[1]`, ""},
		{false, ``, ""},
	} {
		out, err := setEnabled([]byte(c.in), c.on)
		if (err != nil) != (c.out == "") || string(out) != c.out {
			t.Errorf("%s: %v\ngot  %q\nwant %q", c.in, err, out, c.out)
		}
		if err == nil && !json.Valid(out) {
			t.Errorf("no longer JSON: %s", out)
		}
	}
}

// TestExtInstall: a directory is copied with modes and links, without .git.
func TestExtInstall(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src := filepath.Join(dir, "src")
	put(t, filepath.Join(src, "extension.json"), `{"name":"tools","exec":"./run"}`, 0o640)
	put(t, filepath.Join(src, "run"), "#!/bin/sh\n", 0o755)
	put(t, filepath.Join(src, "secret"), "s", 0o400)
	put(t, filepath.Join(src, "sub", "file"), "f", 0o604)
	put(t, filepath.Join(src, ".git", "config"), "x", 0o644)
	put(t, filepath.Join(src, "sub", ".git"), "gitdir: elsewhere", 0o644)
	link(t, "sub/../run", filepath.Join(src, "inside"))
	link(t, "../sub", filepath.Join(src, "sub", "loop"))
	if err := os.Chmod(filepath.Join(src, "sub"), 0o555); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(filepath.Join(src, "sub"), 0o755) })

	want(t, dir, 0, "installed tools in "+filepath.Join(dir, "zot-home", "extensions", "tools"), "install", "./src")
	to := filepath.Join(dir, "zot-home", "extensions", "tools")
	for name, mode := range map[string]fs.FileMode{"extension.json": 0o640, "run": 0o755, "secret": 0o400, "sub/file": 0o604, "sub": fs.ModeDir | 0o755} {
		info, err := os.Stat(filepath.Join(to, name))
		if err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if target, err := os.Readlink(filepath.Join(to, "inside")); target != "sub/../run" {
		t.Errorf("the link leads to %q: %v", target, err)
	}
	for _, name := range []string{".git", "sub/.git"} {
		if _, err := os.Lstat(filepath.Join(to, name)); err == nil {
			t.Errorf("%s was copied", name)
		}
	}
	want(t, dir, 1, "installed already", "install", src)
	want(t, dir, 0, "removed", "remove", "tools")
	if names := installed(t, dir); names != nil {
		t.Errorf("left: %q", names)
	}
}

// TestExtInstallRefused: what can not be installed leaves nothing.
func TestExtInstallRefused(t *testing.T) {
	t.Parallel()
	const manifest = `{"name":"a","exec":"./a"}`
	for name, c := range map[string]struct {
		text string
		make func(src string)
	}{
		"no manifest":     {"there is no extension.json", func(src string) { os.Remove(filepath.Join(src, "extension.json")) }},
		"no JSON":         {"extension.json:1:", func(src string) { put(t, filepath.Join(src, "extension.json"), "{nope", 0o644) }},
		"no name":         {`"name" is missing`, func(src string) { put(t, filepath.Join(src, "extension.json"), `{"exec":"./a"}`, 0o644) }},
		"unsafe name":     {"must be letters", func(src string) { put(t, filepath.Join(src, "extension.json"), `{"name":"../a","exec":"./a"}`, 0o644) }},
		"hidden name":     {"must be letters", func(src string) { put(t, filepath.Join(src, "extension.json"), `{"name":".a","exec":"./a"}`, 0o644) }},
		"absolute link":   {"must lead to something in the extension", func(src string) { link(t, filepath.Join(src, "a"), filepath.Join(src, "z")) }},
		"link out":        {"must lead to something in the extension", func(src string) { link(t, "../secret", filepath.Join(src, "z")) }},
		"link to nothing": {"must lead to something in the extension", func(src string) { link(t, "nothing", filepath.Join(src, "z")) }},
		"link round":      {"must lead to something in the extension", func(src string) { link(t, "z", filepath.Join(src, "z")) }},
		"link out by a link": {"must lead to something in the extension", func(src string) { // its text looks harmless
			os.MkdirAll(filepath.Join(src, "b", "c"), 0o755)
			link(t, "..", filepath.Join(src, "b", "c", "up"))
			link(t, "b/c/up/../../secret", filepath.Join(src, "z"))
		}},
		"pipe": {"is no file, directory or link", func(src string) {
			if err := exec.Command("mkfifo", filepath.Join(src, "z")).Run(); err != nil {
				t.Skip("mkfifo:", err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			src := filepath.Join(dir, "src")
			put(t, filepath.Join(dir, "secret"), "s", 0o600)
			put(t, filepath.Join(src, "a"), "", 0o755)
			put(t, filepath.Join(src, "extension.json"), manifest, 0o644)
			c.make(src)
			want(t, dir, 1, c.text, "install", "src")
			if names := installed(t, dir); names != nil {
				t.Errorf("left: %q", names)
			}
		})
	}
	dir := t.TempDir()
	for _, source := range []string{"missing", "http://localhost/x", "ext::sh -c 'touch pwned'", "fd::3", "https://-x", "-oProxyCommand=x@host:y", "C:\\x"} {
		if _, stderr, code := zotExt(t, dir, "install", source); code == 0 || stderr == "" {
			t.Errorf("%s: exit code %d: %s", source, code, stderr)
		}
	}
	want(t, dir, 1, "is a file", "install", zotBin)
	// of a directory around the home, the copy does not contain itself
	put(t, filepath.Join(dir, "extension.json"), manifest, 0o644)
	want(t, dir, 0, "installed a", "install", ".")
}

func TestExtInstallGit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	repo := filepath.Join(dir, "repo")
	put(t, filepath.Join(repo, "run"), "", 0o755)
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", repo, "-c", "user.name=a", "-c", "user.email=a@localhost"}, args...)...)
		cmd.Env = cleanEnv(dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	git("init", "-q")
	git("add", ".")
	git("commit", "-q", "-m", "no manifest")
	url := "file://" + filepath.ToSlash(repo)
	want(t, dir, 1, "there is no extension.json in the repository", "install", url)
	want(t, dir, 1, "git clone failed", "install", url+"-missing")
	if names := installed(t, dir); names != nil {
		t.Errorf("left: %q", names)
	}
	put(t, filepath.Join(repo, "extension.json"), `{"name":"cloned","exec":"./run"}`, 0o644)
	git("add", ".")
	git("commit", "-q", "-m", "manifest")
	want(t, dir, 0, "installed cloned", "install", url)
	if _, err := os.Stat(filepath.Join(dir, "zot-home", "extensions", "cloned", ".git")); err == nil {
		t.Error(".git was kept")
	}
	if names := installed(t, dir); len(names) != 1 {
		t.Errorf("left: %q", names)
	}
}

// TestExtInstallInterrupted: an interrupted installation leaves nothing, git's
// processes included.
func TestExtInstallInterrupted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, filepath.Join(dir, "bin", "git"), "#!/usr/bin/env bash\nmkdir -p \"${@: -1}\"; trap '' INT TERM; echo \"$GIT_TERMINAL_PROMPT $*\" > args; echo $$ > pid; sleep 300\n", 0o755)
	p := startZot(t, dir, []string{"PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH")}, "ext", "install", "git@host:some/where")
	child := awaitPID(t, dir)
	if args, _ := os.ReadFile(filepath.Join(dir, "args")); !strings.HasPrefix(string(args), "0 clone --depth 1 -- git@host:some/where /") {
		t.Errorf("git was run with %s", args)
	}
	p.cmd.Process.Signal(syscall.SIGINT)
	p.exit(exitFailed)
	if names := installed(t, dir); names != nil {
		t.Errorf("left: %q", names)
	}
	if err := syscall.Kill(child, 0); err == nil {
		t.Error("git outlived us")
	}
}

// TestCopyInterrupted: also the copy of a single large file ends at once.
func TestCopyInterrupted(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	put(t, filepath.Join(from, "large"), "", 0o644)
	if err := os.Truncate(filepath.Join(from, "large"), 1<<40); err != nil { // it takes no room; its copy would
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := copyTree(ctx, from, filepath.Join(to, "tree")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it ended with %v", err)
	}
	if took := time.Since(start); took > limit(5*time.Second) {
		t.Errorf("it took %v", took)
	}
}

func TestExtRemove(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	home := filepath.Join(dir, "zot-home")
	mine := filepath.Join(dir, "mine")
	put(t, filepath.Join(mine, "extension.json"), `{"name":"linked","exec":"./a"}`, 0o644)
	put(t, filepath.Join(home, "extensions", "empty", "x"), "", 0o644)
	put(t, filepath.Join(home, "extensions", "other", "extension.json"), `{"name":"named","exec":"./a"}`, 0o644)
	put(t, filepath.Join(home, "auth.json"), "{}", 0o600)
	put(t, filepath.Join(dir, ".zot", "extensions", "local", "extension.json"), `{"name":"local","exec":"./a"}`, 0o644)
	link(t, mine, filepath.Join(home, "extensions", "linked"))
	link(t, "/nowhere", filepath.Join(home, "extensions", "dangling"))
	for _, verb := range []string{"remove", "enable", "disable"} {
		for _, name := range []string{"..", ".", "../auth.json", "../extensions/empty", "empty/../empty", "other/", "local", "missing", mine} {
			want(t, dir, 1, "there is no extension", verb, name)
		}
	}
	for _, name := range []string{"linked", "dangling", "empty", "named"} {
		want(t, dir, 0, "removed", "remove", name)
	}
	if names := installed(t, dir); names != nil {
		t.Errorf("left: %q", names)
	}
	for _, path := range []string{filepath.Join(mine, "extension.json"), filepath.Join(home, "auth.json")} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

func TestExtSwitch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "zot-home", "extensions", "a", "extension.json")
	const before = "{\n  \"name\": \"a\",\n  \"exec\": \"./a\",   \"x\": 1.50\n}\n\n"
	put(t, path, before, 0o604)
	want(t, dir, 0, "a is disabled", "disable", "a")
	after, err := os.ReadFile(path)
	if string(after) != strings.Replace(before, "1.50", "1.50,\n  \"enabled\": false", 1) {
		t.Errorf("%v: %s", err, after)
	}
	want(t, dir, 0, "disabled", "list")
	want(t, dir, 0, "a is disabled", "disable", "a")
	want(t, dir, 0, "a is enabled", "enable", "a")
	if stdout := want(t, dir, 0, "enabled", "list"); strings.Contains(stdout, "disabled") {
		t.Error(stdout)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o604 {
		t.Errorf("%v %v", info, err)
	}
	put(t, path, `{"name":`, 0o644)
	want(t, dir, 1, "not JSON", "disable", "a")
}

func TestExtList(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	user := filepath.Join(dir, "zot-home", "extensions")
	put(t, filepath.Join(dir, ".zot", "extensions", "same", "extension.json"), `{"name":"same","version":"2","exec":"./a"}`, 0o644)
	put(t, filepath.Join(user, "same", "extension.json"), `{"name":"same","exec":"./a"}`, 0o644)
	put(t, filepath.Join(user, "off", "extension.json"), `{"name":"off","exec":"./a","enabled":false}`, 0o644)
	put(t, filepath.Join(user, "theme", "extension.json"), `{"name":"theme"}`, 0o644)
	put(t, filepath.Join(user, "theme", "theme.json"), `{}`, 0o644)
	put(t, filepath.Join(user, "bad\x1b[31m", "extension.json"), `{"name":"\u001b]0;x\u0007"}`, 0o644)
	put(t, filepath.Join(user, "loud", "extension.json"), `{"name":"loud","version":"\u009b1m","exec":"a","description":"one\u001b[2Jtwo\nthree\tfour\u202e"}`, 0o644)
	stdout := want(t, dir, 0, "", "list")
	for _, text := range []string{"same     2        project  enabled", "user     shadowed by  " + filepath.Join(dir, ".zot", "extensions", "same"), "user     disabled", "user     bundle", "user     broken:      /", "enabled      one[2Jtwo three four\n"} {
		if !strings.Contains(stdout, text) {
			t.Errorf("%q is not in\n%s", text, stdout)
		}
	}
	asJSON := want(t, dir, 0, `"state":"shadowed"`, "list", "--json")
	if clean := strings.ReplaceAll(printable(stdout+asJSON), "\n", ""); clean != strings.ReplaceAll(stdout+asJSON, "\n", " ") {
		t.Errorf("control characters: %q", stdout+asJSON)
	}
	var list struct{ Extensions []extReport }
	if err := json.Unmarshal([]byte(asJSON), &list); err != nil || len(list.Extensions) != 6 {
		t.Errorf("%v: %s", err, asJSON)
	}
}

// TestExtDoctor: each fault of an extension is told in words.
func TestExtDoctor(t *testing.T) {
	t.Parallel()
	const loop = "while read -r line; do case $line in *'\"shutdown\"'*) echo '{\"type\":\"shutdown_ack\"}'; exit;; esac; done\n"
	const ready = "echo '{\"type\":\"ready\"}'\n"
	hello := func(name string) string { return "echo '{\"type\":\"hello\",\"name\":\"" + name + "\"}'\n" }
	send := func(frames ...string) string { return "printf '%s\\n' '" + strings.Join(frames, "' '") + "'\n" }
	for name, c := range map[string]struct {
		script string
		code   int
		texts  []string
	}{
		"good": {hello("good") + send(`{"type":"register_command","name":"hi"}`, `{"type":"register_tool","name":"t"}`, `{"type":"subscribe","events":["turn_start"],"intercept":["tool_call"]}`) + ready + loop,
			0, []string{"good: ready\n", "/hi\n", "  hello       after ", "  ready       after ", "  ended       exit status 0", "turn_start\n", "tool_call\n"}},
		"autoready": {hello("autoready") + "read -r ack; sleep 0.2\n" + send(`{"type":"register_command","name":"hi"}`) + loop, 0, []string{"autoready: auto-ready", `send {"type":"ready"}`}},
		"misnamed":  {hello("another") + ready + loop, 1, []string{`hello says the name is "another"`}},
		"chatty":    {"echo starting\n" + send(`{"type":"notify","level":"info","message":"too soon"}`) + hello("chatty") + ready + "echo '{\"type\":'\n" + loop, 1, []string{"belongs on stderr): starting", `before hello skipped: "notify"`, "not JSON"}},
		"unknown":   {hello("unknown") + send(`{"type":"register_tol"}`, `{"type":"tool_result","id":"7"}`, `{"type":"notify","level":"warn","message":"no key\u001b[1m"}`) + ready + loop, 1, []string{`unknown frame skipped: "register_tol"`, `the id "7" answers nothing`, "it notified (warn): no key[1m"}},
		"events":    {hello("events") + send(`{"type":"subscribe","events":["turn_begin","before_agent_start","turn_end"],"intercept":["session_start"]}`) + ready + loop, 1, []string{`unknown event "turn_begin" (known: session_start`, `unknown event "session_start" (known: tool_call`, "before_agent_start\n"}},
		"names": {hello("names") + send(`{"type":"register_tool","name":"bash"}`, `{"type":"register_tool","name":"a.b"}`, `{"type":"register_tool","name":"a_b"}`, `{"type":"register_tool","name":""}`, `{"type":"register_tool","name":"x","schema":{"type":"array"}}`,
			`{"type":"register_command","name":"Go"}`, `{"type":"register_command","name":"go"}`, `{"type":"register_command","name":"g o"}`) + ready + loop, 1,
			[]string{"belongs to a built-in", "a.b (for models a_b)", `"a_b" is left out: extension names has the name a_b already`, "a tool needs a name", "root of its schema must be an object", "the command /go is left out: extension names has the name /go already", `"g o" is no command name`}},
		"silent":   {"exit 3", 1, []string{"silent: failed", "ended before hello", "exit status 3", "log:"}},
		"brief":    {hello("brief") + ready + "exit 4\n", 1, []string{"it ended by itself (exit status 4)"}},
		"rude":     {hello("rude") + ready + "read -r a; read -r b; exit 0\n", 0, []string{`send {"type":"shutdown_ack"}`}},
		"stubborn": {hello("stubborn") + ready + "trap '' TERM; while :; do sleep 1; done\n", 1, []string{"it was killed 2s after shutdown"}},
		"parent":   {hello("parent") + ready + "sleep 300 >/dev/null & " + loop, 1, []string{"other processes that it had started were killed"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			bashExt(t, filepath.Join(dir, name), c.script)
			begin := time.Now()
			stdout, stderr, code := zotExt(t, dir, "doctor", "./"+name)
			if took := time.Since(begin); took > limit(4*time.Second) && !raceDetector() {
				t.Errorf("it took %v", took)
			}
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, text := range c.texts {
				if !strings.Contains(stdout, text) {
					t.Errorf("%q is not in it", text)
				}
			}
			if strings.ContainsRune(stdout, '\x1b') {
				t.Error("a control character")
			}
			if log := fileText(t, filepath.Join(dir, "zot-home", "logs", "ext-"+name+".log")); name == "parent" && !strings.Contains(log, "were killed") {
				t.Errorf("the log says %q", log)
			}
			if t.Failed() {
				t.Logf("\n%s%s", stdout, stderr)
			}
		})
	}
}

// TestExtHyphen: a name may begin with a hyphen; behind -- it is no switch.
func TestExtHyphen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, filepath.Join(dir, "-x", "extension.json"), `{"name":"-x","exec":"true"}`, 0o644)
	for _, verb := range []string{"install", "disable", "enable", "remove"} {
		want(t, dir, exitUsage, "usage: zot ext "+verb, verb, "-x")
		want(t, dir, exitDone, "-x", verb, "--", "-x")
	}
	if names := installed(t, dir); names != nil {
		t.Errorf("left: %q", names)
	}
}

// TestExtProject: what is installed is switched and removed; what the project
// has by that name is not, and that is said. doctor takes either by its name.
func TestExtProject(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const manifest = `{"name":"a","exec":"./a"}`
	project := filepath.Join(dir, ".zot", "extensions", "a")
	put(t, filepath.Join(project, "extension.json"), manifest, 0o644)
	also := "; the project's own, in " + project + ", stays as it is"
	for _, verb := range []string{"disable", "enable", "remove"} {
		want(t, dir, exitFailed, "there is no extension \"a\" in "+filepath.Join(dir, "zot-home", "extensions")+also, verb, "a")
	}
	want(t, dir, exitFailed, project+" (path)", "doctor", "a")
	put(t, filepath.Join(dir, "zot-home", "extensions", "one", "extension.json"), manifest, 0o644)
	want(t, dir, exitDone, "a is disabled"+also, "disable", "a")
	put(t, filepath.Join(dir, "zot-home", "config.json"), `{"project_extensions":false}`, 0o644)
	want(t, dir, exitDone, "project  not approved", "list")
	want(t, dir, exitDone, "a is enabled"+also, "enable", "a")
	want(t, dir, exitFailed, filepath.Join("extensions", "one")+" (path)", "doctor", "a")
	want(t, dir, exitDone, also, "remove", "a")
	if _, err := os.Stat(project); err != nil {
		t.Error(err)
	}
	want(t, dir, exitFailed, "there is no extension.json in "+filepath.Join(dir, "nobody"), "doctor", "nobody")
}

// TestExtUnbuilt: what cannot run yet is installed, and how to make it is said.
func TestExtUnbuilt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src := filepath.Join(dir, "src")
	put(t, filepath.Join(src, "extension.json"), `{"name":"made","exec":"./made"}`, 0o644)
	put(t, filepath.Join(src, "go.mod"), "module made\n", 0o644)
	put(t, filepath.Join(src, "main.go"), "package main\n\nfunc main() {}\n", 0o644)
	_, stderr, code := zotExt(t, dir, "install", "src")
	_, hint, ok := strings.Cut(strings.TrimSpace(stderr), "; make it: ")
	if code != exitDone || !ok || !strings.Contains(stderr, "its exec ./made cannot be run yet") {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	build := exec.Command("sh", "-c", hint)
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", hint, err, out)
	}
	if err := exec.Command(filepath.Join(dir, "zot-home", "extensions", "made", "made")).Run(); err != nil {
		t.Error(err)
	}
}

// TestExtDoctorStart: programs that can not be started, a bundle without its
// skills, and conflicts between extensions.
func TestExtDoctorStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	user := filepath.Join(dir, "zot-home", "extensions")
	put(t, filepath.Join(user, "a", "extension.json"), `{"name":"a","exec":"./missing"}`, 0o644)
	put(t, filepath.Join(user, "b", "extension.json"), `{"name":"b","exec":"./b"}`, 0o644)
	put(t, filepath.Join(user, "b", "b"), "", 0o644)
	put(t, filepath.Join(user, "c", "extension.json"), `{"name":"c","exec":"./c"}`, 0o644)
	put(t, filepath.Join(user, "c", "c"), "echo no first line\n", 0o755)
	put(t, filepath.Join(user, "d", "extension.json"), `{"name":"d","skills":["nothing"]}`, 0o644)
	put(t, filepath.Join(user, "e", "extension.json"), `{"name":"e","exec":"./e","enabled":false}`, 0o644)
	const registers = `echo '{"type":"hello","name":"x"}{"type":"hello"}'; echo '{"type":"hello","name":"%"}'; echo '{"type":"register_command","name":"go"}'; echo '{"type":"ready"}'; read -r _; read -r _; echo '{"type":"shutdown_ack"}'`
	for _, name := range []string{"f", "g"} {
		bashExt(t, filepath.Join(user, name), strings.ReplaceAll(registers, "%", name))
	}
	stdout := want(t, dir, 1, "extensions with problems: 6 of 7", "doctor")
	for _, text := range []string{"a: failed", "no such file", "b: failed", "permission denied", "c: failed", "exec format error", "d: bundle", `"skills" in extension.json`, "e: disabled", "f: ready", "the command /go is left out: extension f has the name /go already"} {
		if !strings.Contains(stdout, text) {
			t.Errorf("%q is not in it", text)
		}
	}
	if t.Failed() {
		t.Log(stdout)
	}
	put(t, filepath.Join(dir, "zot-home", "config.json"), "{", 0o644)
	want(t, dir, 1, "config.json", "doctor")
}

// TestExtDoctorDaemon: who left the extension's session is found and ended, too.
func TestExtDoctorDaemon(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("setsid"); err != nil || runtime.GOOS != "linux" {
		t.Skip("only Linux tells whose orphans these are, and setsid makes one")
	}
	dir := t.TempDir()
	bashExt(t, filepath.Join(dir, "daemon"), `echo '{"type":"hello","name":"daemon"}'; setsid bash -c 'echo $$ > ../pid; exec sleep 300' & read -r _; read -r _`)
	stdout, stderr, code := zotExt(t, dir, "doctor", "daemon")
	if code != exitFailed || !strings.Contains(stderr, "1 processes left their extension's session") || !strings.Contains(stdout, "holds its stdout") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	if child := awaitPID(t, dir); syscall.Kill(child, 0) == nil {
		t.Error("the daemon outlived us")
	}
}

// TestExtDoctorInterrupted: nothing that doctor started outlives it.
func TestExtDoctorInterrupted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bashExt(t, filepath.Join(dir, "slow"), "echo $$ > ../pid; trap '' TERM; sleep 300")
	p := startZot(t, dir, nil, "ext", "doctor", "slow")
	child := awaitPID(t, dir)
	p.cmd.Process.Signal(syscall.SIGTERM)
	p.exit(128 + int(syscall.SIGTERM))
	if err := syscall.Kill(child, 0); err == nil {
		t.Error("the extension outlived us")
	}
}

// TestExtLogs: -f goes on when the log is cut and when it is replaced.
func TestExtLogs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, "zot-home", "logs", "ext-a.log")
	want(t, dir, 1, "has no log", "logs", "a")
	want(t, dir, 1, "is no name", "logs", "../a")
	put(t, log, "one\ntwo", 0o600)
	if stdout := want(t, dir, 0, "", "logs", "a"); stdout != "one\ntwo" {
		t.Errorf("%q", stdout)
	}
	p := startZot(t, dir, nil, "ext", "logs", "-f", "a")
	next := func(text string) {
		t.Helper()
		if got := p.line(); got != text {
			t.Fatalf("%q came, not %q", got, text)
		}
	}
	appendTo := func(text string) {
		f, err := os.OpenFile(log, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString(text)
		f.Close()
	}
	next("one")
	appendTo(" and a half\n")
	next("two and a half")
	if err := os.Truncate(log, 0); err != nil {
		t.Fatal(err)
	}
	appendTo("cut\n")
	next("cut")
	appendTo("last\n")
	if err := os.Rename(log, log+".1"); err != nil {
		t.Fatal(err)
	}
	next("last")
	appendTo("replaced\n")
	next("replaced")
	p.cmd.Process.Signal(syscall.SIGINT)
	p.exit(128 + int(syscall.SIGINT))
}
