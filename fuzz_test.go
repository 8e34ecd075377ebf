// What comes from outside may be anything: clients, servers, extensions, models
// and files. Each target takes such bytes and states what holds for all of them;
// that nothing panics or hangs holds for every one. The seeds run with the
// ordinary tests. To look for more:
//
//	go test -run '^$' -fuzz FuzzSession -fuzztime 10m .
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// seedFiles adds the files of a pattern as seeds.
func seedFiles(f *testing.F, pattern string, add func(data []byte)) {
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		f.Fatalf("no seeds: %s", pattern)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		add(data)
	}
}

// seedLines adds what the transcripts send or expect: the lines behind a prefix.
func seedLines(f *testing.F, pattern, prefix string) {
	seedFiles(f, pattern, func(data []byte) {
		for line := range bytes.Lines(data) {
			if line, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte(prefix)); ok {
				f.Add(bytes.Clone(line))
			}
		}
	})
}

// inPieces reads data in pieces of n bytes.
func inPieces(data []byte, n byte) io.Reader { return &chunked{data, 1 + int(n)} }

// checkFrame fails unless a frame is one JSON object on one line, also for
// clients that take U+2028 for a line end.
func checkFrame(t *testing.T, frame []byte) object {
	t.Helper()
	o, err := parseObject(frame)
	if err != nil || !utf8.Valid(frame) || bytes.ContainsAny(frame, "\n\r\u2028\u2029") {
		t.Fatalf("not a frame (%v): %q", err, frame)
	}
	return o
}

// checkMessage fails unless a message can be kept, shown and sent.
func checkMessage(t *testing.T, m *Message) {
	t.Helper()
	checkFrame(t, appendAgentMessage(nil, m))
	checkFrame(t, appendMessage(nil, m))
	for _, b := range m.Content {
		if b.Type != "tool_call" {
			continue
		}
		if _, err := parseObject(b.Args); err != nil {
			t.Errorf("arguments %q: %v", b.Args, err)
		}
	}
}

func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,-2.5e+3,true,null,"x\u00e9\ud83d\ude00\ud83d\n"],"a":{}}`, `"\\\""`, "[]", " 0 ", `{"a`, "\"\u2028\xff\""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := normalize(data)
		if (err == nil) != json.Valid(data) {
			t.Fatalf("normalize: %v", err)
		}
		if err != nil {
			return
		}
		if !json.Valid(v) || !utf8.Valid(v) || bytes.ContainsAny(v, "\n\u2028\u2029") {
			t.Fatalf("normalized to %q", v)
		}
		if again, _ := normalize(v); !bytes.Equal(again, v) {
			t.Errorf("normalized again: %q, before %q", again, v)
		}
		if !walk(data, nil) && bytes.Count(data, []byte("["))+bytes.Count(data, []byte("{")) < 1000 {
			t.Error("walk did not find it whole")
		}
		var s string
		if json.Unmarshal(v, &s) == nil && v[0] == '"' && textOf(v) != s {
			t.Errorf("%q is %q, not %q", v, s, textOf(v))
		}
		if strict := strictJSON(data); !strict {
			t.Error("strictJSON refused it")
		}
	})
}

func FuzzInputLine(f *testing.F) {
	f.Add([]byte("{}\n\r\n a\r\r\nb"), byte(0))
	f.Add([]byte("\n\n"), byte(3))
	f.Fuzz(func(t *testing.T, data []byte, n byte) {
		r := bufio.NewReaderSize(inPieces(data, n), 16)
		for want := range bytes.Lines(data) {
			want = bytes.TrimSuffix(bytes.TrimSuffix(want, lf), []byte("\r"))
			if line, err := inputLine(r); err != nil || line == nil || !bytes.Equal(line, want) {
				t.Fatalf("%q, %v, want %q", line, err, want)
			}
		}
		if line, err := inputLine(r); line != nil || err != nil {
			t.Fatalf("%q, %v at the end", line, err)
		}
	})
}

// FuzzCommand: any line gets a response that is a frame and has the line's id.
func FuzzCommand(f *testing.F) {
	seedLines(f, "testdata/*/*.txt", "> ")
	f.Add([]byte(`{"id":12345678901234567890,"type":"prompt","images":[{"data":"eA=="}]}`))
	f.Add([]byte("{\"id\":\"\xff\\ud800\",\"type\":\"compact\",\"preserve_recent\":1e99,\"query\":[]}"))
	settings, err := loadSettings(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		c, err := parseCommand(line)
		if err == nil {
			c.promptContent()
			c.want("model", "modelId")
			atomic := atomicCommand{command: c}
			atomic.oneOf("streamingBehavior", false, "steer", "followUp")
			atomic.flag("enabled", true)
			atomic.opt("since")
			settings.order(c)
			a := arguments{c.object, nil}
			a.path("/")
			a.replacements()
			a.count("offset", 1)
		}
		o := checkFrame(t, c.response(nil, nil, err))
		if given, _ := parseObject(line); given.has("id") != o.has("id") {
			t.Errorf("the id of the response: %s", o["id"])
		}
	})
}

// FuzzSSE: the events are the same however the bytes are cut.
func FuzzSSE(f *testing.F) {
	seedFiles(f, "testdata/streams/*.sse", func(data []byte) { f.Add(data, byte(6)) })
	f.Add([]byte("\ufeffevent: a\rdata:1\r\n\r\rerror: x\n\n: ping\n\ndata"), byte(0))
	events := func(r io.Reader) (list []string, err error) {
		for s := newSSEReader(r); ; {
			name, data, err := s.next()
			if err != nil {
				return list, err
			}
			list = append(list, name+"|"+string(data))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, n byte) {
		whole, err := events(bytes.NewReader(data))
		cut, err2 := events(inPieces(data, n))
		if !slices.Equal(whole, cut) || err != io.EOF || err2 != io.EOF {
			t.Fatalf("whole %q, %v; cut %q, %v", whole, err, cut, err2)
		}
	})
}

// fuzzParser: the message is the same however the bytes of the stream are cut,
// it can be kept and shown, and the next request is JSON.
func fuzzParser(f *testing.F, w wireFormat, seeds, provider, id string) {
	seedFiles(f, "testdata/streams/"+seeds+"-*.sse", func(data []byte) { f.Add(data, byte(6)) })
	m := catalogModel(f, provider, id, "http://127.0.0.1")
	f.Fuzz(func(t *testing.T, data []byte, n byte) {
		r := &request{model: m, messages: []*Message{userText("hi")}}
		whole, err := decodeStream(t, w, r, bytes.NewReader(data))
		cut, err2 := decodeStream(t, w, r, inPieces(data, n))
		if !sameMessage(whole, cut) || describe(whole, err) != describe(cut, err2) {
			t.Fatalf("whole %s\ncut   %s", describe(whole, err), describe(cut, err2))
		}
		checkMessage(t, whole)
		r.messages = repair(append(r.messages, whole, userText("go on")))
		if body := wireBody(w, r); !json.Valid(body) || !utf8.Valid(body) {
			t.Errorf("the next request: %q", body)
		}
	})
}

func FuzzAnthropic(f *testing.F) {
	fuzzParser(f, anthropicWire, "anthropic", "anthropic", "claude-sonnet-5")
}
func FuzzChat(f *testing.F)      { fuzzParser(f, chatWire, "chat", "deepseek", "deepseek-v4-flash") }
func FuzzResponses(f *testing.F) { fuzzParser(f, responsesWire, "responses", "openai", "gpt-5.4") }

// FuzzServerError: what a server says about an error is told, and bounded.
func FuzzServerError(f *testing.F) {
	for _, s := range []string{`{"error":{"type":"overloaded_error","message":"x"}}`, `[{"error":{"code":429,"status":"X","metadata":{"raw":"{\"error\":\"y\"}"}}}]`,
		"try again in 1m2.5s", "[]", `"x"`, `{"error":"retry after 9999999999 hours"}`} {
		f.Add([]byte(s), 400)
	}
	f.Fuzz(func(t *testing.T, body []byte, status int) {
		if pe := httpError(status, nil, body); pe.message == "" || pe.retryAfter < 0 {
			t.Errorf("%+v", pe)
		}
	})
}

// FuzzExtension: whatever an extension prints, the client gets frames that say
// whose they are.
func FuzzExtension(f *testing.F) {
	seedLines(f, "testdata/ext/*.txt", "say ")
	for _, s := range []string{`{"type":"notify","level":"info","message":"a\n{\"type\":\"done\"}"}`, "noise\n\n[]", `{"type":"register_tool","name":"x","schema":{"type":"object","properties":{"a":{}}}}`,
		`{"type":"open_panel","panel":{"id":"p","title":"t","lines":["\u2028"]}}`, `{"type":"tool_result","id":"1","content":[]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		tell := func(e *Event) {
			for _, frame := range [][]byte{appendExt(nil, e), appendAtomic(e)} {
				o := checkFrame(t, bytes.TrimSuffix(frame, lf))
				if o.text("type") == "extension_error" {
					o["extension"] = encode(filepath.Dir(o.text("extensionPath")))
				}
				if o.text("extension") != "fuzzed" || slices.Contains([]string{"done", "response", "error"}, o.text("type")) {
					t.Errorf("a frame of the extension: %s", frame)
				}
			}
		}
		h := &extHost{tell: tell, flush: func() {}, builtin: func(string) bool { return false }, started: make(chan struct{}),
			ack: func(*extension) map[string]any { return nil }, taken: map[string]*registration{}, panels: map[string]*extension{}}
		close(h.started)
		e := &extension{host: h, helloAt: time.Now(), out: newWriter(io.Discard, nil), patience: time.NewTimer(time.Hour),
			subscribed: map[string]map[string]bool{"events": {}, "intercept": {}}, pending: map[string]chan object{}}
		defer e.out.close(time.Second)
		e.Name, e.dir = "fuzzed", "fuzzed"
		h.exts = []*extension{e}
		e.readFrames(bytes.NewReader(data))
		for _, tool := range h.allTools() {
			if o, err := parseObject(tool.schema); err != nil || o.text("type") != "object" || !wireName(tool.name) {
				t.Errorf("the tool %q has the schema %s", tool.name, tool.schema)
			}
		}
	})
}

// appendAtomic is the frame of what an extension says in the Atomic protocol.
func appendAtomic(e *Event) []byte {
	w := &writer{wake: make(chan struct{}, 1)} // without a goroutine: what it holds stays in buf
	(&atomicView{writer: w}).extension(e)
	return w.buf
}

// wireName reports whether every provider takes a name for a tool.
func wireName(s string) bool { return s != "" && len(s) <= 64 && modelName(s) == s }

// FuzzSession: any file is refused or opened. An open one takes more and shows
// all that it showed before when it is opened again.
func FuzzSession(f *testing.F) {
	const head = `{"type":"session","version":3,"id":"s","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/"}` + "\n"
	for _, s := range []string{"", head, head + `{"type":"message","id":"a","parentId":null,"message":{"role":"user","content":"hi"}}` + "\n" + `{"type":"mess`,
		head + `{"type":"message","id":"a","parentId":"b","message":{"role":"assistant","content":[{"type":"toolCall","id":"c","name":"bash","arguments":{}}]}}`,
		head + `{"type":"compaction","id":"a","parentId":"a","summary":"x","firstKeptEntryId":"a"}` + "\n\x00\x00\n" + `{"type":"custom","id":"q","parentId":"a","customType":"zot.queue","data":{"message":{"role":"user"}}}` + "\n",
		`{"type":"session","id":"s"}` + "\n" + `{"type":"message","message":{"role":"hookMessage","content":[{"type":"image","data":"x"}]}}` + "\n" + `{"type":"label","targetId":"00000001","label":"l"}` + "\n"} {
		f.Add([]byte(s))
	}
	costly := `{"type":"message","message":{"role":"assistant","content":"x","usage":{"input":1,"cost":{"total":1.7e308}}}}` + "\n"
	f.Add([]byte(`{"type":"session","id":"s"}` + "\n" + costly + costly))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "s.jsonl")
		os.WriteFile(path, data, 0o600)
		s, _, err := openSession(path)
		if err != nil {
			return
		}
		told := entriesOf(t, s)
		if now, _ := os.ReadFile(path); !bytes.Equal(now, data) {
			t.Fatalf("opening changed the file: %q", now)
		}
		if err := s.addMessage(userText("more"), ""); err != nil {
			t.Fatal(err)
		}
		s.close()
		again, _, err := openSession(path)
		if err != nil {
			t.Fatal(err)
		}
		defer again.close()
		list := entriesOf(t, again)
		if len(list) != len(told)+1 || !slices.Equal(list[:len(told)], told) {
			t.Errorf("before %q\nafter  %q", told, list)
		}
	})
}

// entriesOf checks what a session shows, and returns its entries.
func entriesOf(t *testing.T, s *session) (list []string) {
	all, err := s.entriesSince("")
	if err != nil {
		t.Fatal(err)
	}
	checkFrame(t, appendJSON(nil, `{"entries":?,"tree":?}`, all, s.tree()))
	var total Usage
	for _, m := range s.restore().messages {
		checkMessage(t, m)
		if m.Usage != nil {
			total.add(m.Usage)
		}
	}
	checkFrame(t, appendAgentUsage(nil, &total))
	for _, p := range s.forkPoints() {
		if _, _, err := s.fork(p.id); err != nil {
			t.Errorf("fork at %q: %v", p.id, err)
		}
	}
	walk(all, func(_, e []byte) { list = append(list, string(e)) })
	return list
}

// FuzzConfig: a file of the user's is refused by its name or makes settings
// that can be used.
func FuzzConfig(f *testing.F) {
	for _, s := range []string{`{"providers":{"x":{"api":"openai-completions","baseUrl":"http://h","models":[{"id":"m","contextWindow":1,"reasoning":true,"cost":{"input":1}}]}}}`,
		`{"providers":{"anthropic":{"models":[{"id":"claude-sonnet-5","thinkingLevelMap":{"low":null}}]}}}`, `{"defaultThinkingLevel":"max","compaction":{"compression_ratio":0.3}}`,
		`{"steeringMode":"all","retry":{"maxRetries":40}}`, `{"retry":{"baseDelayMs":-100}}`, "null", "[]", "{"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		home := t.TempDir()
		for _, name := range []string{"models.json", "settings.json", "auth.json"} {
			os.WriteFile(filepath.Join(home, name), data, 0o600)
		}
		catalog, err := loadCatalog(home)
		if err != nil && !strings.Contains(err.Error(), "models.json") {
			t.Errorf("which file is it? %v", err)
		}
		for _, p := range catalog {
			credential(p, "", home)
			for _, m := range p.models() {
				if m.ID == "" || m.cost(&Usage{Input: 1, Output: 1}).Total < 0 {
					t.Errorf("%s: %+v", p.Name, m)
				}
				m.clamp("high")
			}
		}
		s, err := loadSettings(home)
		if err != nil {
			if !strings.Contains(err.Error(), "settings.json") {
				t.Errorf("which file is it? %v", err)
			}
			return
		}
		if longest := time.Duration(s.Retry.BaseDelayMs) * time.Millisecond << max(0, s.Retry.MaxRetries-1); longest < 0 || s.Retry.BaseDelayMs < 0 {
			t.Errorf("the last retry comes after %v", longest)
		}
		if err := s.save(map[string]any{"defaultModel": "m"}); err != nil {
			return // it is no object
		}
		if again, err := loadSettings(home); err != nil || again.DefaultModel != "m" {
			t.Errorf("saved: %+v, %v", again, err)
		}
	})
}

// FuzzSkill: a skill file is loaded or named in a warning.
func FuzzSkill(f *testing.F) {
	for _, s := range []string{"---\nname: x\ndescription: >\n  a\n  b\n---\nbody", "---\n# c\ndescription: \"q\\n\"\n---", "---\n", "\ufeff---\r\ndescription: 'it''s'\r\n---\r\n", "x: y"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, "SKILL.md")
		os.WriteFile(path, data, 0o600)
		l := loader{cwd: dir, skills: true, searched: map[string]bool{}}
		l.load("path", path)
		if len(l.files)+len(l.warnings) != 1 {
			t.Fatalf("%q %q", l.files, l.warnings)
		}
		for _, s := range l.files {
			out, err := expand("/skill:"+s.name+" x", l.files, nil)
			if err != nil || !strings.HasSuffix(out, "x") || !utf8.ValidString(out) {
				t.Errorf("%q: %q, %v", s.name, out, err)
			}
			if list := skillList(l.files); strings.Count(list, "<skill>") != 1 || strings.Count(list, "</available_skills>") != 1 {
				t.Errorf("the skill breaks out of the list: %s", list)
			}
		}
	})
}

// FuzzTemplate: a text without placeholders stays, and what an argument says is
// not expanded again.
func FuzzTemplate(f *testing.F) {
	f.Add("fix $1 in ${@:2:1}, ${3:-all} $ARGUMENTS $@", `one "two three" 'four`)
	f.Add("${@:0:99999999999999999999} $99999999999999999999 ${1:-", "")
	f.Fuzz(func(t *testing.T, body, args string) {
		out := substitute(body, splitArgs(args))
		if !placeholder().MatchString(body) && out != body {
			t.Errorf("%q became %q", body, out)
		}
		if got := substitute("$1", []string{body}); got != body {
			t.Errorf("%q was expanded to %q", body, got)
		}
	})
}

// FuzzPlan: lines that a plan does not delete stay word for word and in order,
// and protected ones always; the count of lines is right.
func FuzzPlan(f *testing.F) {
	f.Add("[User]: a\nb\n(filtered 3 lines)\nc\n<keepContext>\nd\n</keepContext>\n[Tool result]: e", "2,4\n1,99", byte(1), byte(50))
	f.Add("a\n\nb", "99999999999999999999,1\n3,3", byte(0), byte(1))
	f.Fuzz(func(t *testing.T, text, plan string, head, percent byte) {
		lines := strings.Split(text, "\n")
		protected := make([]bool, len(lines))
		protect(lines, protected, true)
		behind := min(int(head), len(lines))
		ranges, err := parsePlan(plan, len(lines)-behind, percent%2 == 0)
		if err != nil {
			return
		}
		ratio := float64(1+percent%99) / 100
		del := deletions(lines, protected, behind, ranges, ratio)
		out, stats := render(lines, del)
		if before, after := countLines(lines), countLines(strings.Split(out, "\n")); before != after {
			t.Errorf("%d lines became %d", before, after)
		}
		if stats.linesKept+stats.linesDeleted != len(lines) || stats.rangeCount != len(del) {
			t.Errorf("%+v", stats)
		}
		kept := strings.Split(out, "\n")
		for i, line := range lines {
			deleted := slices.ContainsFunc(del, func(r lineRange) bool { return r.from <= i && i < r.to })
			if deleted && protected[i] {
				t.Errorf("the protected line %d was deleted", i)
			}
			if deleted {
				continue
			}
			for len(kept) > 0 && kept[0] != line {
				kept = kept[1:]
			}
			if len(kept) == 0 {
				t.Fatalf("line %d is not kept: %q", i, line)
			}
			kept = kept[1:]
		}
	})
}

// countLines counts the lines of a conversation, those that markers stand for
// included.
func countLines(lines []string) (n int) {
	for _, line := range lines {
		n += max(1, filtered(line))
	}
	return n
}

// FuzzEdit: an edit replaces its text, seen without byte order mark and with LF
// for CRLF, and leaves the lines around it as they were, byte for byte.
func FuzzEdit(f *testing.F) {
	f.Add("\ufeffa\r\nb\nc\rd\r\n", "b\nc", "B\nC\n")
	f.Add("a “b”  \nc", "a \"b\"\nc", "x")
	f.Add("a\r\nb", "\n", "\r\n\n")
	f.Add("\r\n", "\n", "\r\r\n")
	plain := func(s string) string { return strings.ReplaceAll(strings.TrimPrefix(s, utf8BOM), "\r\n", "\n") }
	f.Fuzz(func(t *testing.T, body, old, text string) {
		if old == "" {
			return
		}
		changes, loose, err := planEdits([]byte(body), []replacement{{old, text}}, "f")
		if err != nil {
			return
		}
		out := string(splice([]byte(body), changes))
		unifiedDiff("f", []byte(body), []byte(out), changes)
		if loose {
			return
		}
		find := newView(old, false).text
		before, after, _ := strings.Cut(plain(body), find)
		want := before + plain(text) + after
		if is := plain(out); is != want && is != plain(want) && !strings.HasPrefix(text, utf8BOM) {
			t.Fatalf("%q with %q for %q became %q", body, text, old, out)
		}
		was, is := strings.SplitAfter(body, "\n"), strings.SplitAfter(out, "\n")
		if n := strings.Count(before, "\n"); !reflect.DeepEqual(was[:n], is[:n]) {
			t.Errorf("lines before: %q became %q", was[:n], is[:n])
		}
		if n := strings.Count(after, "\n"); !reflect.DeepEqual(was[len(was)-n:], is[len(is)-n:]) {
			t.Errorf("lines behind: %q became %q", was[len(was)-n:], is[len(is)-n:])
		}
	})
}

// FuzzImage: any picture is refused or within the limits.
func FuzzImage(f *testing.F) {
	f.Add(webpOf("VP8L", 3, 2))
	f.Add(bombOf(60000, 60000))
	f.Add([]byte("GIF89a\x01\x00\x01\x00\x00\x00\x00,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := prepareImage(data)
		if err == nil && (b.Type != "image" || len(b.Data) > imageBytes*4/3+4) {
			t.Errorf("%s with %d bytes", b.Type, len(b.Data))
		}
		withOrientation(data, data)
	})
}
