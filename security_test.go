// What others may have written with ill will: extensions, session files,
// servers, repositories. Escapes for the terminal are tested with it (tui_test.go),
// pages with the export (export_test.go).
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSessionIDsAreNoPaths: the id in a file becomes part of file names.
func TestSessionIDsAreNoPaths(t *testing.T) {
	for _, id := range []string{"../x", "/x", "a/b", `a\\b`, "..", "a\\nb", strings.Repeat("x", 129)} {
		path := filepath.Join(t.TempDir(), "s.jsonl")
		os.WriteFile(path, fmt.Appendf(nil, `{"type":"session","version":3,"id":"%s","cwd":"/"}`+"\n", id), 0o600)
		if _, _, err := openSession(path); err == nil || !strings.Contains(err.Error(), "session id") {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// TestExtensionNamesAreNoPaths: a name that is none is refused, also where the
// directory has it.
func TestExtensionNamesAreNoPaths(t *testing.T) {
	home, cwd := t.TempDir(), t.TempDir()
	for dir, name := range map[string]string{"a": "../b", "b": "/etc", ".hidden": ".hidden", "two words": "two words", "..x": "..x", "good": "good"} {
		put(t, filepath.Join(home, "extensions", dir, "extension.json"), fmt.Sprintf(`{"name":%q,"exec":"true"}`, name), 0o666)
	}
	for _, e := range (extPlaces{home: home, cwd: cwd}).find() {
		if runs := e.runs(); runs != (e.Name == "good") {
			t.Errorf("%q runs: %t (%v)", e.Name, runs, e.err)
		}
		if filepath.Dir(e.log) != filepath.Join(home, "logs") {
			t.Errorf("%q has its log in %s", e.Name, e.log)
		}
	}
}

// TestPrivateFiles: what we write about the user is for the user alone.
func TestPrivateFiles(t *testing.T) {
	needModes(t)
	dir := t.TempDir()
	name := script(t, dir, "turn\ncall bash {\"command\":\"seq 1 20000\"}\nturn\ntext ok\n")
	puppet(t, dir, "p", greeting(`{"type":"ready"}`))
	p := startZot(t, dir, []string{"TMPDIR=" + dir}, "--mode", "rpc", "--provider", "script", "--model", name, "--ext", filepath.Join(dir, "p"))
	p.send(`{"id":1,"type":"prompt","message":"go"}`)
	p.until("type", "agent_settled")
	p.send(`{"id":2,"type":"logout_provider","provider":"openai"}`, `{"id":3,"type":"set_thinking_level","level":"low","persist":true}`)
	p.until("id", 3.0)
	p.in.Close()
	p.exit(0)
	want := map[string]bool{"auth.json": true, "settings.json": true, "ext-p.log": true, ".jsonl": true, "zot-bash-": true}
	filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		info, err := os.Lstat(path)
		if err != nil {
			t.Error(err)
			return nil
		}
		private := strings.HasPrefix(path, filepath.Join(dir, "zot-home")) || strings.HasPrefix(entry.Name(), "zot-bash-")
		if private && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has the mode %v", path, info.Mode())
		}
		for part := range want {
			if strings.Contains(path, part) {
				delete(want, part)
			}
		}
		return nil
	})
	if len(want) > 0 {
		t.Errorf("not written: %v", want)
	}
}

// TestDeepError: however deep a server nests what it says, it costs no stack.
func TestDeepError(t *testing.T) {
	for _, piece := range []string{"[", "{\"error\":"} {
		if pe := streamError([]byte(strings.Repeat(piece, 1<<20))); pe.message == "" {
			t.Errorf("%s: no error", piece)
		}
	}
}

// TestManyEntries: what a client asks of a long session is not more than it asks
// for, and comes soon.
func TestManyEntries(t *testing.T) {
	dir := t.TempDir()
	s, err := newSession(dir, dir, "", "")
	if err != nil {
		t.Fatal(err)
	}
	const n = 20_000
	lines := append(s.appendHeader(nil), '\n')
	for i := range n {
		parent := "null"
		if i > 0 {
			parent = fmt.Sprintf(`"%08x"`, i-1)
		}
		lines = fmt.Appendf(lines, `{"type":"message","id":"%08x","parentId":%s,"timestamp":"2026-01-01T00:00:00.000Z","message":{"role":"user","content":"message %[1]d"}}`+"\n", i, parent)
	}
	putFile(t, s.path, string(lines))
	p := startZot(t, dir, nil, "--mode", "rpc", "--provider", "script", "--session", s.path)
	for _, c := range []struct {
		line       string
		least, max int
	}{
		{`{"type":"get_entries","since":"00004e1e"}`, 1, 1000},
		{`{"type":"get_entries"}`, n, 200 * n},
		{`{"type":"get_messages"}`, n, 200 * n},
		{`{"type":"get_state"}`, 1, 5000},
	} {
		start := time.Now()
		p.send(c.line)
		l := p.line()
		if entries := strings.Count(l, "message "); entries < c.least && c.least > 1 || len(l) > c.max || !strings.Contains(l, `"success":true`) {
			t.Fatalf("%s: %d bytes, %d entries, stderr: %s", c.line, len(l), entries, p.stderr)
		}
		if took := time.Since(start); took > limit(5*time.Second) {
			t.Errorf("%s took %v", c.line, took)
		}
	}
}

// needModes skips a test where files have no modes.
func needModes(t *testing.T) {
	if os.PathSeparator == '\\' {
		t.Skip("Windows has no file modes")
	}
}
