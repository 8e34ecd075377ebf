package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRepair: whatever a crash left, every call has one result behind it.
func TestRepair(t *testing.T) {
	call := func(ids ...string) *Message {
		m := &Message{Role: "assistant", Content: []Block{{Type: "text", Text: "x"}}}
		for _, id := range ids {
			m.Content = append(m.Content, Block{Type: "tool_call", ID: id, Name: "bash", Args: []byte("{}")})
		}
		return m
	}
	result := func(id string) *Message {
		return &Message{Role: "tool", CallID: id, Content: []Block{{Type: "text", Text: "ok"}}}
	}
	user := userText("hi")
	for _, c := range []struct {
		name string
		in   []*Message
		want string
	}{
		{"whole", []*Message{user, call("a", "b"), result("a"), result("b"), user}, "user assistant a b user"},
		{"no result", []*Message{user, call("a"), user}, "user assistant a! user"},
		{"at the end", []*Message{user, call("a", "b"), result("a")}, "user assistant a b!"},
		{"wrong order", []*Message{call("a", "b"), result("b"), result("a")}, "assistant a b"},
		{"twice", []*Message{call("a"), result("a"), result("a")}, "assistant a"},
		{"orphan", []*Message{result("z"), user, result("y"), call("a"), result("x"), result("a")}, "user assistant a"},
		{"too late", []*Message{call("a"), user, result("a")}, "assistant a! user"},
		{"same id in two messages", []*Message{call("a"), result("a"), call("a"), result("a")}, "assistant a assistant a"},
		{"same id twice in one", []*Message{call("a", "a"), result("a"), result("a")}, "assistant a a"},
		{"empty", nil, ""},
	} {
		var got []string
		for _, m := range repair(c.in) {
			switch {
			case m.Role != "tool":
				got = append(got, m.Role)
			case m.IsError && strings.Contains(m.text(), "unknown"):
				got = append(got, m.CallID+"!")
			default:
				got = append(got, m.CallID)
			}
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %s, want %s", c.name, s, c.want)
		}
	}
}

// TestSnapshots asks for the state all the time: once done is on the wire, every
// answer says idle, and every command has exactly one answer.
func TestSnapshots(t *testing.T) {
	p := scripted(t, strings.Repeat("turn\ntext a\ndelay 1ms\ntext b\n", 20))
	asked := 0
	for i := range 20 {
		p.send(fmt.Sprintf(`{"id":"p%d","type":"prompt","message":"go"}`, i))
		for range 30 {
			p.send(fmt.Sprintf(`{"id":"s%d","type":"get_state"}`, asked))
			asked++
		}
		p.send(`{"id":"last","type":"ping"}`)
		done, answered := false, false
		for !done || !answered {
			f := p.frame()
			switch {
			case f["type"] == "done":
				done = true
			case f["id"] == "last":
				answered = true
			case f["command"] == "get_state" && done:
				if f["data"].(map[string]any)["busy"] != false {
					t.Fatal("busy behind done")
				}
			}
		}
	}
	p.in.Close()
	p.exit(0)
}

// TestOneResponse: failures after acceptance are events, never a second answer.
func TestOneResponse(t *testing.T) {
	d := newDouble(t, answer{status: 401, body: `{"error":{"message":"no"}}`})
	p := startZot(t, t.TempDir(), nil, anthropicFlags("rpc", d)...)
	for i := range 5 {
		p.send(fmt.Sprintf(`{"id":%d,"type":"prompt","message":"x"}`, i), fmt.Sprintf(`{"id":%d,"type":"nonsense"}`, 100+i))
	}
	p.in.Close()
	responses := map[any]int{}
	for f := p.frame(); f != nil; f = p.frame() {
		if f["type"] == "response" {
			responses[f["id"]]++
		}
	}
	p.exit(0)
	for i := range 5 {
		if responses[float64(i)] != 1 || responses[float64(100+i)] != 1 {
			t.Errorf("%v", responses)
		}
	}
}

// TestForeignBytes: nothing that a tool prints or does to its descriptors gets
// between the frames, and no tool has our standard output or the token. (From
// 10 on bash keeps descriptors of its own.)
func TestForeignBytes(t *testing.T) {
	dir := t.TempDir()
	name := script(t, dir, `turn
call bash {"command":"printf '\\033]0;title\\007\\033[2J{\"type\":\"done\"}\\n'; printf 'text\\n' >&2"}
call bash {"command":"for i in 3 4 5 6 7 8 9; do { echo leak >&$i; } 2>/dev/null; done; true"}
call bash {"command":"env | grep -ci shared.secret"}
turn
text ok
`)
	p := startZot(t, dir, []string{"ZOTCORE_RPC_TOKEN=shared-secret"}, "rpc", "--provider", "script", "--model", name, "--cwd", dir)
	p.send(`{"type":"hello","token":"shared-secret"}`, `{"id":1,"type":"prompt","message":"go"}`)
	frames := p.until("type", "done") // frame fails on anything that is no frame
	var results []string
	for _, f := range frames {
		if f["type"] == "tool_result" {
			results = append(results, fmt.Sprint(f["content"].([]any)[0].(map[string]any)["text"]))
		}
	}
	want := []string{"{\"type\":\"done\"}\ntext\n", "(no output)", "0\n\nCommand exited with code 1"}
	if !slices.Equal(results, want) {
		t.Errorf("%q, want %q", results, want)
	}
}

// TestReadableText: <, > and & reach the model and the client as they are.
func TestReadableText(t *testing.T) {
	d := newDouble(t, answer{body: sseCall("c1", "bash", `{"command":"printf 'a<b && c>d'"}`)}, textAnswer("ok"))
	p := startZot(t, t.TempDir(), nil, anthropicFlags("rpc", d)...)
	p.send(`{"id":1,"type":"prompt","message":"go"}`)
	for l := p.line(); !strings.Contains(l, `"tool_result"`); l = p.line() {
		if l == "" {
			t.Fatal("no result")
		}
		if strings.Contains(l, `\u003c`) {
			t.Errorf("escaped: %s", l)
		}
	}
	p.until("type", "done")
	if body := d.sent(1)["messages"]; !bytes.Contains(body, []byte(`"text":"a<b && c>d"`)) {
		t.Errorf("sent %s", body)
	}
}

// TestSameBytes: two processes send the same request for the same prompt, and
// each request begins with the bytes of the one before it, cache marks apart.
func TestSameBytes(t *testing.T) {
	var first []object
	dir := t.TempDir()
	os.WriteFile(filepath.Join(dir, "AGENTS.md"), []byte("Be brief."), 0o666)
	for range 2 {
		d := newDouble(t, answer{body: sseCall("c1", "bash", `{"command":"echo hi"}`)}, textAnswer("one"), textAnswer("two"))
		p := startZot(t, dir, nil, anthropicFlags("rpc", d)...)
		p.send(`{"id":1,"type":"prompt","message":"go"}`, `{"id":2,"type":"prompt","message":"go on"}`)
		p.until("type", "done", "prompt_id", 2.0)
		unmarked := func(n int) string {
			return strings.ReplaceAll(string(d.sent(n)["messages"]), `,"cache_control":{"type":"ephemeral"}`, "")
		}
		for n := range 2 {
			if before := strings.TrimSuffix(unmarked(n), "]"); !strings.HasPrefix(unmarked(n+1), before) {
				t.Errorf("request %d does not begin as request %d did", n+1, n)
			}
		}
		for n := range 3 {
			if len(first) < 3 {
				first = append(first, d.sent(n))
				continue
			}
			for key, value := range d.sent(n) {
				if !bytes.Equal(value, first[n][key]) {
					t.Errorf("request %d: %q differs between processes", n, key)
				}
			}
		}
	}
}

// TestRetryAfterHeader: the server's wish is honoured and announced.
func TestRetryAfterHeader(t *testing.T) {
	var times []time.Time
	d := newDouble(t, answer{write: func(w http.ResponseWriter, r *http.Request) {
		times = append(times, time.Now())
		if len(times) == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		io.WriteString(w, textAnswer("ok").body)
	}})
	p := startZot(t, t.TempDir(), nil, anthropicFlags("rpc", d)...)
	p.send(`{"id":1,"type":"prompt","message":"go"}`)
	frames := p.until("type", "retry")
	if f := frames[len(frames)-1]; f["attempt"] != 1.0 || f["max_attempts"] != 3.0 || f["delay_ms"] != 1000.0 {
		t.Errorf("%v", f)
	}
	p.until("type", "done")
	if gap := times[1].Sub(times[0]); gap < time.Second || gap > limit(3*time.Second) {
		t.Errorf("asked again after %v", gap)
	}
}

// TestBrokenCall: a connection that breaks behind a whole tool call does not run
// it, neither now nor in a second attempt.
func TestBrokenCall(t *testing.T) {
	dir := t.TempDir()
	whole := sseCall("c1", "bash", `{"command":"touch ran"}`)
	d := newDouble(t, answer{body: whole[:strings.Index(whole, "event: message_delta")]})
	p := startZot(t, dir, nil, anthropicFlags("rpc", d)...)
	p.send(`{"id":1,"type":"prompt","message":"go"}`)
	frames := p.until("type", "done")
	if end := frames[len(frames)-3]; end["type"] != "turn_end" || end["stop"] != "error" {
		t.Errorf("%v", end)
	}
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil || d.count() != 1 {
		t.Errorf("the call ran, or was asked for again (%d requests)", d.count())
	}
}

// TestRefusedImage: a picture that the provider does not take becomes a note,
// and the conversation goes on.
func TestRefusedImage(t *testing.T) {
	d := newDouble(t, answer{status: 400, body: `{"error":{"type":"invalid_request_error","message":"messages.0.content.1.image: Could not process image"}}`}, textAnswer("I can't see it."))
	p := startZot(t, t.TempDir(), nil, anthropicFlags("rpc", d)...)
	p.send(`{"id":1,"type":"prompt","message":"look","images":[{"mime_type":"image/png","data":"` + base64PNG(t) + `"}]}`)
	frames := p.until("type", "done")
	if !slices.ContainsFunc(frames, func(f map[string]any) bool { return f["type"] == "ext_notify" }) || frames[len(frames)-2]["stop"] != "end_turn" {
		t.Errorf("%v", frames)
	}
	if body := d.sent(1)["messages"]; bytes.Contains(body, []byte(base64PNG(t))) || !bytes.Contains(body, []byte("image was left out")) {
		t.Errorf("sent %s", body)
	}
}

// TestSystemPromptFlags: the flags and files that make it.
func TestSystemPromptFlags(t *testing.T) {
	dir := t.TempDir()
	os.WriteFile(filepath.Join(dir, "AGENTS.md"), []byte("Project rule."), 0o666)
	sent := func(flags ...string) string {
		d := newDouble(t, textAnswer("ok"))
		p := startZot(t, dir, nil, anthropicFlags("rpc", d, flags...)...)
		p.send(`{"id":1,"type":"prompt","message":"go"}`)
		p.until("type", "done")
		return string(d.sent(0)["system"]) + string(d.sent(0)["tools"])
	}
	for _, c := range []struct {
		flags         []string
		have, haveNot []string
	}{
		{nil, []string{"You are zot", "Project rule.", "Working directory: " + dir, `"name":"bash"`}, nil},
		{[]string{"--system-prompt", "Be a pirate.", "--append-system-prompt", "Arr.", "--append-system-prompt", "Avast."}, []string{"Be a pirate.", "Project rule.", "Arr.", "Avast."}, []string{"You are zot"}},
		{[]string{"--no-context-files", "--no-tools"}, []string{"You are zot"}, []string{"Project rule.", `"name":"bash"`}},
		{[]string{"--tools", "read"}, []string{`"name":"read"`}, []string{`"name":"bash"`}},
	} {
		got := sent(c.flags...)
		for _, s := range c.have {
			if !strings.Contains(got, s) {
				t.Errorf("%v: no %q in %s", c.flags, s, got)
			}
		}
		for _, s := range c.haveNot {
			if strings.Contains(got, s) {
				t.Errorf("%v: %q in %s", c.flags, s, got)
			}
		}
	}
}

// TestAutoCompact: the context nears the model's window, so it is compacted
// before the next call; --no-auto-compact leaves it alone.
func TestAutoCompact(t *testing.T) {
	home := t.TempDir()
	os.MkdirAll(filepath.Join(home, "zot-home"), 0o777)
	os.WriteFile(filepath.Join(home, "zot-home", "models.json"), []byte(`{"providers":{"small":{"api":"anthropic-messages","baseUrl":"http://127.0.0.1:1",
		"models":[{"id":"s","contextWindow":30000,"maxTokens":1000}]}}}`), 0o666)
	full := strings.Replace(textAnswer(strings.Repeat("many words ", 200)).body, `"input_tokens":10`, `"input_tokens":25000`, 1)
	for _, auto := range []bool{true, false} {
		d := newDouble(t, answer{body: full}, textAnswer("## Goal\nnotes"), textAnswer("done"))
		flags := []string{"rpc", "--provider", "small", "--base-url", d.URL}
		if !auto {
			flags = append(flags, "--no-auto-compact")
		}
		p := startZot(t, home, nil, flags...)
		p.send(`{"id":1,"type":"prompt","message":"one"}`, `{"id":2,"type":"prompt","message":"two"}`)
		frames := p.until("type", "done", "prompt_id", 2.0)
		compacted := slices.ContainsFunc(frames, func(f map[string]any) bool { return f["type"] == "compact_done" })
		if compacted != auto {
			t.Errorf("auto %t: compacted %t", auto, compacted)
		}
		if auto && !strings.Contains(string(d.sent(2)["messages"]), "These notes replace it") {
			t.Errorf("after compaction: %s", d.sent(2)["messages"])
		}
	}
}

// TestCutPoint: what is kept begins with a message that is no result.
func TestCutPoint(t *testing.T) {
	long := strings.Repeat("word ", 4000)
	call := &Message{Role: "assistant", Content: []Block{{Type: "tool_call", ID: "a", Name: "bash", Args: []byte("{}")}}}
	result := &Message{Role: "tool", CallID: "a", Content: []Block{{Type: "text", Text: long}}}
	a := &Agent{model: &Model{ContextWindow: 100_000}, ctx: context.Background()}
	for _, c := range []struct {
		messages []*Message
		want     int
	}{
		{nil, 0},
		{[]*Message{userText("x")}, 0},
		{[]*Message{userText(long), call, result}, 1},
		{[]*Message{userText(long), call, result, userText("y")}, 3},
		{[]*Message{userText(long), userText(long), userText(long), call, result, call, result}, 3},
		{[]*Message{userText(summaryHeader + "z"), userText("y")}, 2},
	} {
		a.messages = c.messages
		if got := a.cutPoint(); got != c.want {
			t.Errorf("%d messages: %d, want %d", len(c.messages), got, c.want)
		}
	}
}

// TestKeyInError: a server that repeats the key, at any place of a long body,
// does not make us tell it; and the error stays short.
func TestKeyInError(t *testing.T) {
	key := "sk-0123456789abcdef"
	for _, before := range []int{0, 480, 490, 990, 5000} {
		d := newDouble(t, answer{status: 400, body: strings.Repeat("a", before) + key + strings.Repeat("b", 5000)})
		m := catalogModel(t, "groq", "openai/gpt-oss-120b", d.URL)
		p := newHTTPProvider(m, func() (string, error) { return key, nil }, timeouts{})
		_, err := p.call(context.Background(), &request{model: m, messages: []*Message{userText("hi")}}, func(delta) {})
		if err == nil || strings.Contains(err.Error(), key[:8]) || len(err.Error()) > 1200 {
			t.Errorf("%d: %v", before, err)
		}
	}
}

// TestCompleteThenBroken: an answer with a finish reason is complete, however the
// connection ends.
func TestCompleteThenBroken(t *testing.T) {
	body := "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"all\"},\"finish_reason\":\"stop\"}]}\n\n"
	d := newDouble(t, answer{write: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, body)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}})
	m, _, err := callModel(t, &request{model: catalogModel(t, "groq", "openai/gpt-oss-120b", d.URL), messages: []*Message{userText("hi")}})
	if err != nil || m.text() != "all" || m.Stop != "end_turn" {
		t.Errorf("%q %s %v", m.text(), m.Stop, err)
	}
}

// TestHopeless: a provider that always says overflow, but does write summaries,
// is asked three times, and the error says what did not fit.
func TestHopeless(t *testing.T) {
	overflow := answer{status: 400, body: `{"error":{"type":"invalid_request_error","message":"prompt is too long: 9 tokens > 8 maximum"}}`}
	d := newDouble(t, textAnswer("one"), overflow, textAnswer("## Goal\nnotes"), overflow)
	p := startZot(t, t.TempDir(), nil, anthropicFlags("rpc", d)...)
	p.send(`{"id":1,"type":"prompt","message":"hi"}`, `{"id":2,"type":"prompt","message":"keep this question"}`)
	frames := p.until("type", "done", "prompt_id", 2.0)
	end := frames[len(frames)-2]
	if end["type"] != "error" || !strings.Contains(fmt.Sprint(end["message"]), "after compaction") || d.count() != 4 {
		t.Errorf("%d requests, %v", d.count(), end)
	}
	if body := string(d.sent(3)["messages"]); !strings.Contains(body, "keep this question") {
		t.Errorf("the question was lost: %s", body)
	}
}

// TestSnapshotAfterEvents: get_messages is never older than what was told.
func TestSnapshotAfterEvents(t *testing.T) {
	p := scripted(t, strings.Repeat("turn\ncall bash {\"command\":\"true\"}\n", 30)+"turn\ntext x\n")
	p.send(`{"id":"p","type":"prompt","message":"go"}`)
	p.send(`{"id":"m","type":"get_messages"}`)
	told := 0
	for {
		f := p.frame()
		switch f["type"] {
		case "user_message", "assistant_message", "tool_result":
			told++
		case "done":
			return
		}
		if f["id"] == "m" && f["command"] == "get_messages" {
			if n := len(f["data"].(map[string]any)["messages"].([]any)); n < told {
				t.Fatalf("%d messages after %d were told", n, told)
			}
			p.send(`{"id":"m","type":"get_messages"}`)
		}
	}
}

// TestBoundImages: the newest images stay.
func TestBoundImages(t *testing.T) {
	image := func(mib int) Block { return Block{Type: "image", Data: strings.Repeat("x", mib<<20)} }
	old := &Message{Role: "user", Content: []Block{image(8), {Type: "text", Text: "t"}, image(8)}}
	now := &Message{Role: "user", Content: []Block{image(9)}}
	out := boundImages([]*Message{old, now})
	if out[0].Content[0].Type != "text" || out[0].Content[2].Type != "image" || out[1] != now || old.Content[0].Type != "image" {
		t.Error("not the oldest image, or not that one alone, was replaced")
	}
}

// TestSmallWindow: a model with a small window is not compacted all the time.
func TestSmallWindow(t *testing.T) {
	home := t.TempDir()
	os.MkdirAll(filepath.Join(home, "zot-home"), 0o777)
	os.WriteFile(filepath.Join(home, "zot-home", "models.json"), []byte(`{"providers":{"small":{"api":"anthropic-messages","baseUrl":"http://127.0.0.1:1",
		"models":[{"id":"s","contextWindow":8192}]}}}`), 0o666)
	d := newDouble(t, textAnswer("one"))
	p := startZot(t, home, nil, "rpc", "--provider", "small", "--base-url", d.URL)
	p.send(`{"id":1,"type":"prompt","message":"one"}`, `{"id":2,"type":"prompt","message":"two"}`)
	for _, f := range p.until("type", "done", "prompt_id", 2.0) {
		if f["type"] == "compact_done" || f["type"] == "ext_notify" {
			t.Errorf("%v", f)
		}
	}
	if d.count() != 2 {
		t.Errorf("%d requests", d.count())
	}
}

// TestChoice: which provider and model is taken without flags.
func TestChoice(t *testing.T) {
	home := t.TempDir()
	zotHome := filepath.Join(home, "zot-home")
	os.MkdirAll(zotHome, 0o777)
	for _, c := range []struct{ config, auth, env, args, want string }{
		{"{}", "{}", "", "", "anthropic claude-sonnet-5"},
		{"{}", `{"openai":{"api_key":"k"}}`, "", "", "openai gpt-5.4"},
		{"{}", "{}", "GROQ_API_KEY=k", "", "groq openai/gpt-oss-120b"},
		{`{"model":"grok-4.3"}`, "{}", "GROQ_API_KEY=k", "", "xai grok-4.3"},
		{`{"model":"grok-4.3"}`, "{}", "", "--provider deepseek", "deepseek deepseek-v4-flash"},
		{`{"provider":"xai","model":"grok-4.3"}`, "{}", "", "", "xai grok-4.3"},
		{`{"provider":"xai","model":"grok-4.3"}`, "{}", "", "--provider script", "script demo"},
		{"{}", "{}", "", "--model gpt-5", "openai gpt-5"},
	} {
		os.WriteFile(filepath.Join(zotHome, "config.json"), []byte(c.config), 0o666)
		os.WriteFile(filepath.Join(zotHome, "auth.json"), []byte(c.auth), 0o600)
		p := startZot(t, home, []string{c.env}, append([]string{"rpc"}, strings.Fields(c.args)...)...)
		p.send(`{"type":"hello"}`)
		data, _ := p.frame()["data"].(map[string]any)
		if got := fmt.Sprint(data["provider"], " ", data["model"]); got != c.want {
			t.Errorf("%v: %s", c, got)
		}
	}
}
