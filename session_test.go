package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func text(role, s string) *Message {
	m := &Message{Role: role, Content: []Block{{Type: "text", Text: s}}, Time: time.UnixMilli(1733234567890)}
	if role == "assistant" {
		m.Stop = "end_turn"
	}
	return m
}

// say adds messages by turns of the user and the assistant.
func userSays(t testing.TB, s *session, texts ...string) {
	t.Helper()
	for i, x := range texts {
		if err := s.addMessage(text([]string{"user", "assistant"}[i%2], x), ""); err != nil {
			t.Fatal(err)
		}
	}
}

func begin(t testing.TB, dir string) *session {
	t.Helper()
	s, err := newSession(dir, "/work", "", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

func open(t testing.TB, path string) (*session, []string) {
	t.Helper()
	s, notes, err := openSession(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s, notes
}

// store writes a session file line by line.
func store(t testing.TB, lines ...string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "2026-11-29T23-03-25-141Z_s1.jsonl")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// said lists the context as role:text.
func said(s *session) (list []string) {
	for _, m := range s.restore().messages {
		list = append(list, m.Role+":"+m.text())
	}
	return list
}

func same(t testing.TB, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s\n got: %v\nwant: %v", what, got, want)
	}
}

// TestSessionGrows: a session becomes a file with its first message, not with
// settings alone, and comes back as it was.
func TestSessionGrows(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	s := begin(t, dir)
	if _, err := s.append("model_change", `"provider":?,"modelId":?`, "anthropic", "claude"); err != nil {
		t.Fatal(err)
	}
	s.append("thinking_level_change", `"thinkingLevel":?`, "high")
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("settings alone made a file: %v", err)
	}
	userSays(t, s, "hello", "hi")
	s.append("session_info", `"name":?`, " the name ")
	leaf := s.leafID()
	info, err := os.Stat(s.path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others may read it: %v", info.Mode())
	}
	s.close()
	data, _ := os.ReadFile(s.path)
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	same(t, "lines", len(lines), 6)
	var header map[string]any
	json.Unmarshal([]byte(lines[0]), &header)
	delete(header, "timestamp")
	same(t, "header", header, map[string]any{"type": "session", "version": 3.0, "id": s.id, "cwd": "/work"})
	var parent any
	for _, line := range lines[1:] {
		var e map[string]any
		json.Unmarshal([]byte(line), &e)
		same(t, "parentId", e["parentId"], parent)
		parent = e["id"]
		if id := e["id"].(string); len(id) != 8 || strings.Trim(id, "0123456789abcdef") != "" {
			t.Errorf("the id %q is not of 8 hex digits", id)
		}
	}

	again, notes := open(t, s.path)
	same(t, "notes", len(notes), 0)
	same(t, "leaf", again.leafID(), leaf)
	same(t, "context", said(again), []string{"user:hello", "assistant:hi"})
	r := again.restore()
	same(t, "settings", []string{r.provider, r.model, r.level, r.name}, []string{"anthropic", "claude", "high", "the name"})
	same(t, "identity", []string{again.id, again.cwd, again.dir}, []string{s.id, "/work", dir})
	if after, _ := os.ReadFile(s.path); !bytes.Equal(after, data) {
		t.Error("reading changed the file")
	}
}

// TestSessionCut: a file is cut at each byte of its last two records. Whole
// records stay, the conversation goes on, and the piece is put aside.
func TestSessionCut(t *testing.T) {
	s := begin(t, t.TempDir())
	userSays(t, s, "one", "two", "three\u2028 \"quoted\"", "four")
	s.close()
	data, _ := os.ReadFile(s.path)
	lines := bytes.SplitAfter(data, lf)
	first := len(data) - len(lines[3]) - len(lines[4])
	for cut := first; cut <= len(data); cut++ {
		path := filepath.Join(t.TempDir(), "s.jsonl")
		os.WriteFile(path, data[:cut], 0o600)
		want := []string{"user:one", "assistant:two"}
		piece := data[first:cut]
		if cut >= first+len(lines[3])-1 {
			want = append(want, "user:three\u2028 \"quoted\"")
			piece = bytes.TrimPrefix(data[first+len(lines[3])-1:cut], lf)
		}
		if cut >= len(data)-1 {
			want, piece = append(want, "assistant:four"), nil
		}
		s, notes, err := openSession(path)
		if err != nil {
			t.Fatal(err)
		}
		same(t, fmt.Sprintf("cut at %d", cut), said(s), want)
		same(t, fmt.Sprintf("cut at %d: notes", cut), len(notes) == 1, len(piece) > 0)
		if now, _ := os.ReadFile(path); !bytes.Equal(now, data[:cut]) {
			t.Fatalf("cut at %d: reading changed the file", cut)
		}
		userSays(t, s, "five")
		s.close()
		s, notes, err = openSession(path)
		if err != nil {
			t.Fatal(err)
		}
		same(t, fmt.Sprintf("cut at %d, then one more", cut), said(s), append(want, "user:five"))
		same(t, "notes", len(notes), 0)
		s.close()
		if aside, _ := os.ReadFile(path + tornSuffix); !bytes.Equal(bytes.TrimSuffix(aside, lf), piece) {
			t.Errorf("cut at %d: put aside %q, want %q", cut, aside, piece)
		}
		if t.Failed() {
			return
		}
	}
}

// TestSessionLocked: a second process gets an error and the first goes on.
func TestSessionLocked(t *testing.T) {
	if path := os.Getenv("ZOT_TEST_HOLD"); path != "" { // the other process
		if _, _, err := openSession(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("held")
		os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}
	s := begin(t, t.TempDir())
	userSays(t, s, "one")
	hold := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSessionLocked$")
		cmd.Env = append(os.Environ(), "ZOT_TEST_HOLD="+s.path)
		return cmd
	}
	out, err := hold().CombinedOutput()
	if err == nil || !strings.Contains(string(out), s.path+": another process has it open") {
		t.Errorf("the second writer: %v, %s", err, out)
	}
	s.close()
	cmd := hold()
	in, _ := cmd.StdinPipe()
	stdout, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stdout.Read(make([]byte, 5))
	if _, _, err := openSession(s.path); !errors.Is(err, errLocked) {
		t.Errorf("opened a session that another process writes: %v", err)
	}
	if err := deleteSession(s.dir, s.id); !errors.Is(err, errLocked) {
		t.Errorf("deleted a session that another process writes: %v", err)
	}
	list, err := listSessions(s.dir)
	same(t, "reading needs no lock", len(list), 1)
	in.Close()
	cmd.Wait()
	again, _ := open(t, s.path)
	same(t, "context", said(again), []string{"user:one"})
}
