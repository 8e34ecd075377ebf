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
	same(t, "settings", []string{r.provider, r.model, r.level, s.name()}, []string{"anthropic", "claude", "high", "the name"})
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
	path := filepath.Join(t.TempDir(), "s.jsonl")
	for cut := first; cut <= len(data); cut++ {
		os.Remove(path + tornSuffix)
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
	if path := os.Getenv("ZOT_TEST_CHILD"); path != "" { // the other process
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
		cmd.Env = append(os.Environ(), "ZOT_TEST_CHILD="+s.path)
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

// TestSessionOfOthers: files as pi and Atomic write them, with every kind of
// entry, one that nobody knows, and what a model is told of them.
func TestSessionOfOthers(t *testing.T) {
	usage := `"usage":{"input":31,"output":5,"cacheRead":0,"cacheWrite":0,"totalTokens":36,"cost":{"input":0.1,"output":0.2,"cacheRead":0,"cacheWrite":0,"total":0.3}}`
	lines := []string{
		`{"type":"session","version":3,"id":"01a2298c-0000-7000-8000-000000000001","timestamp":"2026-11-29T23:03:25.141Z","cwd":"/work","parentSession":"/old.jsonl"}`,
		`{"type":"model_change","id":"00000001","parentId":null,"timestamp":"2026-11-29T23:03:25.142Z","provider":"anthropic","modelId":"claude-sonnet-4-5"}`,
		`{"type":"thinking_level_change","id":"00000002","parentId":"00000001","timestamp":"2026-11-29T23:03:25.142Z","thinkingLevel":"medium"}`,
		`{"type":"message","id":"00000003","parentId":"00000002","timestamp":"2026-11-29T23:03:26.000Z","message":{"role":"user","content":"hello","timestamp":1733234567890}}`,
		`{"type":"message","id":"00000004","parentId":"00000003","timestamp":"2026-11-29T23:03:27.000Z","message":{"role":"assistant","content":[{"type":"thinking","thinking":"hm","thinkingSignature":"sig"},{"type":"text","text":"I look` + "\u2028" + `"},{"type":"toolCall","id":"call_1","name":"bash","arguments":{"command":"ls"}}],"api":"anthropic-messages","provider":"anthropic","model":"claude-sonnet-4-5",` + usage + `,"stopReason":"toolUse","responseId":"r1","timestamp":1733234567891}}`,
		`{"type":"message","id":"00000005","parentId":"00000004","timestamp":"2026-11-29T23:03:28.000Z","message":{"role":"toolResult","toolCallId":"call_1","toolName":"bash","content":[{"type":"text","text":"a.txt"}],"details":{"truncation":null},"isError":false,"timestamp":1733234567892}}`,
		`{"type":"message","id":"00000006","parentId":"00000005","timestamp":"2026-11-29T23:03:29.000Z","message":{"role":"assistant","content":[],"api":"anthropic-messages","provider":"anthropic","model":"claude-sonnet-4-5",` + usage + `,"stopReason":"error","errorMessage":"529 overloaded","timestamp":1733234567893}}`,
		`{"type":"message","id":"00000007","parentId":"00000006","timestamp":"2026-11-29T23:03:30.000Z","message":{"role":"assistant","content":[{"type":"text","text":"one file"},{"type":"novelty","x":[1]}],"api":"anthropic-messages","provider":"anthropic","model":"claude-sonnet-4-5",` + usage + `,"stopReason":"stop","timestamp":1733234567894}}`,
		`{"type":"message","id":"00000008","parentId":"00000007","timestamp":"2026-11-29T23:03:31.000Z","message":{"role":"bashExecution","command":"false","output":"","exitCode":1,"cancelled":false,"truncated":false,"timestamp":1733234567895}}`,
		`{"type":"message","id":"00000009","parentId":"00000008","timestamp":"2026-11-29T23:03:31.000Z","message":{"role":"bashExecution","command":"pwd","output":"/","exitCode":0,"cancelled":false,"truncated":false,"excludeFromContext":true,"timestamp":1733234567895}}`,
		`{"type":"custom","id":"0000000a","parentId":"00000009","timestamp":"2026-11-29T23:03:32.000Z","customType":"ext","data":{"n":1}}`,
		`{"type":"custom_message","id":"0000000b","parentId":"0000000a","timestamp":"2026-11-29T23:03:33.000Z","customType":"note","content":"from an extension","display":false}`,
		`{"type":"label","id":"0000000c","parentId":"0000000b","timestamp":"2026-11-29T23:03:34.000Z","targetId":"00000003","label":"start"}`,
		`{"type":"session_info","id":"0000000d","parentId":"0000000c","timestamp":"2026-11-29T23:03:35.000Z","name":"my work"}`,
		`{"type":"branch_summary","id":"0000000e","parentId":"0000000d","timestamp":"2026-11-29T23:03:36.000Z","fromId":"00000007","summary":"tried it"}`,
		`{"type":"novel_kind","id":"0000000f","parentId":"0000000e","timestamp":"2026-11-29T23:03:37.000Z","anything":[true]}`,
		`{"type":"session_summary","id":"00000010","parentId":"0000000f","timestamp":"2026-11-29T23:03:38.000Z","summary":"lists files","summarizedThroughId":"0000000f"}`,
	}
	path := store(t, lines...)
	s, notes := open(t, path)
	same(t, "notes", notes, []string(nil))
	same(t, "identity", []string{s.id, s.cwd, s.parentSession}, []string{"01a2298c-0000-7000-8000-000000000001", "/work", "/old.jsonl"})
	same(t, "context", said(s), []string{
		"user:hello", "assistant:I look\u2028", "tool:a.txt", "assistant:one file",
		"user:Ran `false`\n(no output)\n\nCommand exited with code 1", "user:", "user:from an extension",
		"user:The following is a summary of a branch that this conversation came back from:\n\n<summary>\ntried it\n</summary>"})
	r := s.restore()
	same(t, "settings", []string{r.provider, r.model, r.level, s.name()}, []string{"anthropic", "claude-sonnet-4-5", "medium", "my work"})
	same(t, "call", r.messages[1].Content[2], Block{Type: "tool_call", ID: "call_1", Name: "bash", Args: json.RawMessage(`{"command":"ls"}`)})
	same(t, "thinking", r.messages[1].Content[0], Block{Type: "thinking", Text: "hm", Signature: "sig"})
	same(t, "unknown block", string(appendAgentBlocks(nil, r.messages[3].Content)), `[{"type":"text","text":"one file"},{"type":"novelty","x":[1]}]`)

	all, _ := s.entriesSince("")
	if bytes.Contains(all, []byte("\u2028")) {
		t.Error("a line separator would go to clients")
	}
	var got, want any
	json.Unmarshal(all, &got)
	json.Unmarshal([]byte("["+strings.Join(lines[1:], ",")+"]"), &want)
	same(t, "entries", got, want)
	some, _ := s.entriesSince("0000000e")
	same(t, "since", string(some), "["+strings.Join(lines[15:], ",")+"]")
	if _, err := s.entriesSince("nope"); err == nil || err.Error() != "Entry not found: nope" {
		t.Errorf("since an unknown entry: %v", err)
	}

	list, err := listSessions(s.dir)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	list[0].modified = time.Time{}
	same(t, "list", list[0], sessionInfo{path: path, name: "my work", firstMessage: "hello", summary: "lists files", summarizedThrough: "0000000f", messages: 7,
		header: header{version: 3, id: s.id, cwd: "/work", parentSession: "/old.jsonl", created: time.Date(2026, 11, 29, 23, 3, 25, 141e6, time.UTC)}})
}

// TestSessionCompaction: a summary stands for what it replaced.
func TestSessionCompaction(t *testing.T) {
	s := begin(t, "")
	userSays(t, s, "one", "two", "three", "four")
	kept := s.branch()[2].id
	s.append("compaction", `"summary":"short","firstKeptEntryId":?,"tokensBefore":9`, kept)
	userSays(t, s, "five")
	same(t, "summary", said(s), []string{"user:" + summaryHeader + "short", "user:three", "assistant:four", "user:five"})
	for _, null := range []string{`null`, `""`} {
		s.append("compaction", `"summary":"[User]: five","firstKeptEntryId":?,"tokensBefore":9,"details":{"strategy":"verbatim-lines","promptVersion":3}`, []byte(null))
		userSays(t, s, "six")
		same(t, "lines", said(s), []string{"user:" + linesHeader + "\n\n[User]: five", "user:six"})
	}
	m := s.restore().messages[0]
	same(t, "as the protocol shows it", textOf(get(appendAgentMessage(nil, m), "customType")), "compaction")
}

// TestSessionTree: branches, labels, orphans, forks and clones.
func TestSessionTree(t *testing.T) {
	s := begin(t, t.TempDir())
	userSays(t, s, "one", "two", "three", "four")
	b := s.branch()
	if err := s.navigate(b[1].id); err != nil {
		t.Fatal(err)
	}
	userSays(t, s, "other three")
	other := s.leafID()
	s.append("label", `"targetId":?,"label":"here"`, b[0].id)
	same(t, "branch", said(s), []string{"user:one", "assistant:two", "user:other three"})
	same(t, "fork points", s.forkPoints(), []*entry{b[0], s.entry(other)})
	type node struct {
		Entry    struct{ ID string }
		Children []node
		Label    string
	}
	var roots []node
	if err := json.Unmarshal(s.tree(), &roots); err != nil || len(roots) != 1 || roots[0].Label != "here" || len(roots[0].Children[0].Children) != 2 {
		t.Errorf("tree: %v %s", err, s.tree())
	}
	same(t, "siblings", roots[0].Children[0].Children[0].Entry.ID, b[2].id)
	if err := s.navigate("nope"); err == nil || err.Error() != "Entry not found: nope" {
		t.Errorf("navigate: %v", err)
	}

	n, fell, err := s.fork(other)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "text", fell, "other three")
	same(t, "fork", said(n), []string{"user:one", "assistant:two"})
	same(t, "same ids", n.branch()[1].id, b[1].id)
	n.close()
	n, _ = open(t, n.path)
	same(t, "fork, loaded", []string{n.parentSession, said(n)[1]}, []string{s.path, "assistant:two"})
	n, _, err = s.fork(b[0].id)
	if err != nil || len(n.branch()) != 0 {
		t.Errorf("fork of the first message: %v", err)
	}
	if _, _, err := s.fork(b[1].id); err == nil || err.Error() != "Invalid entry ID for forking" {
		t.Errorf("fork of an answer: %v", err)
	}
	c, err := s.clone()
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	same(t, "clone", said(c), said(s))
	if c.id == s.id || c.path == s.path {
		t.Error("a clone is a session of its own")
	}
	s.navigate("")
	userSays(t, s, "new root")
	same(t, "before everything", said(s), []string{"user:new root"})
}

// TestSessionQueue: what waits survives a restart until it is delivered or
// cleared, on whatever branch, and stays with one session.
func TestSessionQueue(t *testing.T) {
	s := begin(t, t.TempDir())
	userSays(t, s, "one", "two")
	a, _ := s.queue(steering, text("user", "a"))
	b, _ := s.queue(followUp, text("user", "b"))
	c, err := s.queue(steering, text("user", "c"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.addMessage(text("user", "a"), a); err != nil {
		t.Fatal(err)
	}
	s.unqueue([]string{c})
	s.navigate("")
	clone, err := s.copy(s.entries[0].branch())
	if err != nil {
		t.Fatal(err)
	}
	clone.close()
	s.close()
	s, _ = open(t, s.path)
	pending := s.restore().pending
	if len(pending[steering]) != 0 || len(pending[followUp]) != 1 || pending[followUp][0].id != b || pending[followUp][0].message.text() != "b" {
		t.Errorf("pending: %+v", pending)
	}
	n, err := s.clone()
	if err != nil {
		t.Fatal(err)
	}
	n.close()
	n, _ = open(t, n.path)
	same(t, "pending in the clone", n.restore().pending, [2][]queuedMessage{})
}

// TestSessionDamaged: what cannot be understood costs itself only, and is told.
func TestSessionDamaged(t *testing.T) {
	header := `{"type":"session","version":3,"id":"s1","timestamp":"2026-11-29T23:03:25.141Z","cwd":"/"}`
	message := func(id, parent, text string) string {
		return string(appendJSON(nil, `{"type":"message","id":?,"parentId":?,"timestamp":"2026-11-29T23:03:25.141Z","message":{"role":"user","content":?}}`, id, orNull(parent), text))
	}
	for _, test := range []struct {
		name, note string
		lines, say []string
	}{
		{"not JSON", flawSyntax + ": 4, the first is line 3", []string{message("a", "", "1"), "junk", `{"type":"message","id":"b","message":{"x":tru}}`, `[]`, "{\"type\":\"x\",\"id\":\"\x01\"}", message("c", "a", "2")}, []string{"user:1", "user:2"}},
		{"zeros", "", []string{message("a", "", "1"), strings.Repeat("\x00", 4096) + message("b", "a", "2"), "\x00\x00"}, []string{"user:1", "user:2"}},
		{"CRLF and empty lines", "", []string{message("a", "", "1") + "\r", "\r", "", message("b", "a", "2") + "\r"}, []string{"user:1", "user:2"}},
		{"an id twice", flawTwice + ": 1, the first is line 4", []string{message("a", "", "1"), message("b", "a", "2"), message("a", "b", "3"), message("c", "a", "4")}, []string{"user:1", "user:2", "user:3", "user:4"}},
		{"a cycle", flawParent + ": 1, the first is line 2", []string{message("a", "b", "1"), message("b", "a", "2")}, []string{"user:1", "user:2"}},
		{"its own parent", flawParent + ": 1, the first is line 2", []string{message("a", "a", "1")}, []string{"user:1"}},
		{"no parent", flawParent + ": 1, the first is line 3", []string{message("a", "", "1"), message("b", "gone", "2")}, []string{"user:2"}},
		{"no id", flawNoID + ": 1, the first is line 3", []string{message("a", "", "1"), `{"type":"message","message":{"role":"user","content":"2"}}`}, []string{"user:1", "user:2"}},
		{"an unknown role", "", []string{message("a", "", "1"), `{"type":"message","id":"b","parentId":"a","message":{"role":"oracle"}}`}, []string{"user:1"}},
		{"bad UTF-8", "", []string{message("a", "", "1"), strings.Replace(message("b", "a", "X"), "X", "\xff", 1)}, []string{"user:1", "user:\ufffd"}},
	} {
		path := store(t, append([]string{header}, test.lines...)...)
		before, _ := os.ReadFile(path)
		s, notes := open(t, path)
		var want []string
		if test.note != "" {
			want = []string{path + ": " + test.note}
		}
		same(t, test.name+": notes", notes, want)
		same(t, test.name, said(s), test.say)
		if all, _ := s.entriesSince(""); !json.Valid(all) || !json.Valid(s.tree()) {
			t.Errorf("%s: clients would get %q", test.name, all)
		}
		userSays(t, s, "more")
		s.close()
		again, _ := open(t, path)
		same(t, test.name+": and on", said(again), append(test.say, "user:more"))
		if after, _ := os.ReadFile(path); !bytes.HasPrefix(after, before) {
			t.Errorf("%s: the file was rewritten", test.name)
		}
	}
	for name, content := range map[string]string{
		"no header":         message("a", "", "1") + "\n",
		"not a session":     "hello\n",
		"half a header":     header[:40],
		"a version to come": strings.Replace(header, `3`, `4`, 1) + "\n",
	} {
		path := filepath.Join(t.TempDir(), "s.jsonl")
		os.WriteFile(path, []byte(content), 0o600)
		if _, _, err := openSession(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
		if after, _ := os.ReadFile(path); string(after) != content {
			t.Errorf("%s: the file was rewritten", name)
		}
	}
	empty := filepath.Join(t.TempDir(), "s.jsonl")
	os.WriteFile(empty, nil, 0o600)
	s, notes := open(t, empty)
	same(t, "an empty file: notes", len(notes), 1)
	userSays(t, s, "one")
	s.close()
	s, _ = open(t, empty)
	same(t, "an empty file", said(s), []string{"user:one"})
	if _, _, err := openSession(t.TempDir()); err == nil {
		t.Error("opened a directory")
	}
}

// TestSessionOldVersions: version 1 is a chain without ids, version 2 has
// another word for custom messages. Both go on in the same file.
func TestSessionOldVersions(t *testing.T) {
	old := func(more string) string {
		return `{"type":"session",` + more + `"id":"s1","timestamp":"2025-11-01T00:00:00.000Z","cwd":"/"}`
	}
	path := store(t, old(""),
		`{"type":"message","timestamp":"2025-11-01T00:00:01.000Z","message":{"role":"user","content":"one"}}`,
		`{"type":"message","timestamp":"2025-11-01T00:00:02.000Z","message":{"role":"user","content":"two"}}`,
		`{"type":"compaction","timestamp":"2025-11-01T00:00:03.000Z","summary":"short","firstKeptEntryIndex":2,"tokensBefore":9}`)
	want := []string{"user:" + summaryHeader + "short", "user:two"}
	for _, more := range []string{"three", "four"} {
		s, notes := open(t, path)
		same(t, "notes", notes, []string(nil))
		same(t, "version 1", said(s), want)
		userSays(t, s, more)
		s.close()
		want = append(want, "user:"+more)
	}
	s, _ := open(t, path)
	same(t, "one branch", len(s.branch()), 5)
	path = store(t, old(`"version":2,`),
		`{"type":"message","id":"a","parentId":null,"timestamp":"2025-11-01T00:00:01.000Z","message":{"role":"hookMessage","customType":"x","content":"one"}}`)
	s, _ = open(t, path)
	same(t, "version 2", said(s), []string{"user:one"})
}

// TestSessionStore: sessions are listed, found by the beginning of their ids,
// and deleted with what lies beside them.
func TestSessionStore(t *testing.T) {
	dir := t.TempDir()
	same(t, "directory", sessionsDir("/home", "/src/a:b\\c"), filepath.Join("/home", "sessions", "--src-a-b-c--"))
	for i, id := range []string{"abc-1", "abc-2", "xyz"} {
		s, err := newSession(dir, "/work", id, "")
		if err != nil {
			t.Fatal(err)
		}
		userSays(t, s, "hello "+id)
		s.close()
		os.Chtimes(s.path, time.Time{}, time.Now().Add(time.Duration(i)*time.Minute))
	}
	os.WriteFile(filepath.Join(dir, "bad.jsonl"), []byte("junk\n"), 0o600)
	os.Mkdir(filepath.Join(dir, "dir.jsonl"), 0o700)
	list, err := listSessions(dir)
	var ids []string
	for _, info := range list {
		ids = append(ids, info.id+" "+info.firstMessage)
	}
	same(t, "newest first", ids, []string{"xyz hello xyz", "abc-2 hello abc-2", "abc-1 hello abc-1"})
	path, err := findSession(dir, "x")
	if err != nil || !strings.HasSuffix(path, "_xyz.jsonl") {
		t.Errorf("found %q, %v", path, err)
	}
	for id, want := range map[string]string{"abc": "2 sessions", "none": "no session none", "../x": "not the id", "": "not the id"} {
		if _, err := findSession(dir, id); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("found %q: %v", id, err)
		}
	}
	if _, err := newSession(dir, "/", "../../x", ""); err == nil {
		t.Error("an id with a path in it was taken")
	}
	os.WriteFile(path+".1.compact.bak", []byte("copy"), 0o600)
	for range 2 { // the second time there is none
		if err := deleteSession(dir, "xyz"); err != nil {
			t.Error(err)
		}
	}
	deleteSession(dir, "abc") // no whole id
	left, _ := filepath.Glob(filepath.Join(dir, "*abc*"))
	gone, _ := filepath.Glob(filepath.Join(dir, "*xyz*"))
	same(t, "left", []int{len(left), len(gone)}, []int{2, 0})
	if list, err := listSessions(filepath.Join(dir, "none")); list != nil || err != nil {
		t.Errorf("no directory: %v, %v", list, err)
	}
}

// TestAgentMessages: what is written comes back as it was.
func TestAgentMessages(t *testing.T) {
	n, at := 7, time.UnixMilli(1733234567890)
	for _, m := range []*Message{
		{Role: "user", Time: at, Content: []Block{{Type: "text", Text: "a\u2028\"b"}, {Type: "image", Data: "aGk=", MimeType: "image/png"}}, Activate: []string{"x"}},
		{Role: "assistant", Time: at, Provider: "anthropic", API: "anthropic-messages", Model: "claude", Stop: "tool_use", RawStop: "tool_use",
			Usage: &Usage{Input: 1, Output: 2, CacheRead: 3, CacheWrite: 4, Reasoning: &n, Cost: Cost{0.1, 0.2, 0.3, 0.4, 1}},
			Content: []Block{{Type: "thinking", Text: "hm", Signature: "s"}, {Type: "thinking", Redacted: true, Signature: "r"}, {Type: "text", Text: "t", Signature: "p"},
				{Type: "opaque", Signature: `{"type":"server_tool_use"}`}, {Type: "opaque", Data: `{"type":"novelty","x":1}`},
				{Type: "tool_call", ID: "c", Name: "bash", Args: json.RawMessage(`{"n":1.0}`), Signature: "g"},
				{Type: "tool_call", ID: "d", Name: "bash", Args: json.RawMessage(`{}`), BadArgs: "{half"}}},
		{Role: "assistant", Time: at, Stop: "pause_turn", RawStop: "pause_turn", Content: []Block{{Type: "text", Text: "t"}}},
		{Role: "assistant", Time: at, Stop: "error", Err: "529", Content: nil},
		{Role: "tool", Time: at, CallID: "c", ToolName: "bash", IsError: true, Content: []Block{{Type: "text", Text: "out"}}, Activate: []string{"y"}, details: json.RawMessage(`{"diff":"x"}`)},
	} {
		b := appendAgentMessage(nil, m)
		got, err := parseAgentMessage(b)
		if err != nil || !json.Valid(b) {
			t.Fatalf("%s: %v", b, err)
		}
		same(t, string(b), got, m)
	}
	raw := `{"role":"bashExecution","command":"yes","output":"y","cancelled":true,"truncated":true,"fullOutputPath":"/log","timestamp":1}`
	m, err := parseAgentMessage([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	same(t, "bash", m.text(), "Ran `yes`\n```\ny\n```\n\n(command cancelled)\n\n[Output truncated. Full output: /log]")
	same(t, "raw", string(appendAgentMessage(nil, m)), raw)
	for _, bad := range []string{"", "1", `{"role":"oracle"}`, `{}`} {
		if _, err := parseAgentMessage([]byte(bad)); err == nil {
			t.Errorf("%q is no message", bad)
		}
	}
}

// large makes a session file of n entries, each of a usual size.
func large(b *testing.B, n int) (path string, ids []string) {
	s := begin(b, b.TempDir())
	message := text("assistant", strings.Repeat("some words of an answer ", 15))
	message.Usage = &Usage{Input: 1000, Output: 100}
	for range n {
		if err := s.addMessage(message, ""); err != nil {
			b.Fatal(err)
		}
		ids = append(ids, message.entry)
	}
	s.close()
	return s.path, ids
}

func BenchmarkSession(b *testing.B) {
	path, ids := large(b, 20_000)
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			s, _, err := openSession(path)
			if err != nil {
				b.Fatal(err)
			}
			s.close()
		}
	})
	s, _ := open(b, path)
	b.Run("restore", func(b *testing.B) {
		for b.Loop() {
			s.restore()
		}
	})
	b.Run("since", func(b *testing.B) {
		for b.Loop() {
			s.entriesSince(ids[len(ids)-10])
		}
	})
	b.Run("tree", func(b *testing.B) {
		for b.Loop() {
			s.tree()
		}
	})
	b.Run("append", func(b *testing.B) {
		for b.Loop() {
			s.addMessage(text("user", "hello"), "")
		}
	})
}
