package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The hard cases of the Atomic protocol and of sessions on disk, with the built
// binary over real pipes. The ids in comments are those of the faults they show.

// atomicScript starts the binary in Atomic mode with a script.
func atomicScript(t testing.TB, dir, text string, more ...string) *proc {
	t.Helper()
	return startZot(t, dir, nil, append([]string{"--mode", "rpc", "--provider", "script", "--model", script(t, dir, text)}, more...)...)
}

// atomicDouble starts it with a double, and with short delays between retries.
func atomicDouble(t testing.TB, dir, url string, more ...string) *proc {
	t.Helper()
	home := filepath.Join(dir, "zot-home")
	os.MkdirAll(home, 0o777)
	if err := os.WriteFile(filepath.Join(home, "settings.json"), []byte(`{"retry":{"baseDelayMs":20}}`), 0o666); err != nil {
		t.Fatal(err)
	}
	return startZot(t, dir, nil, append([]string{"--mode", "rpc", "--provider", "anthropic", "--model", "claude-sonnet-4-5",
		"--api-key", "sk-secret", "--base-url", url}, more...)...)
}

// ask sends a command with an id and returns its response.
func (p *proc) ask(format string, values ...any) map[string]any {
	p.t.Helper()
	p.asked++
	id := fmt.Sprintf("ask%d", p.asked)
	p.send(`{"id":"` + id + `",` + fmt.Sprintf(format, values...)[1:])
	frames := p.until("type", "response", "id", id)
	return frames[len(frames)-1]
}

// data is the data of a command that must succeed.
func (p *proc) data(format string, values ...any) map[string]any {
	p.t.Helper()
	r := p.ask(format, values...)
	if r["success"] != true {
		p.t.Fatalf("%s: %v", fmt.Sprintf(format, values...), r["error"])
	}
	data, _ := r["data"].(map[string]any)
	return data
}

// settle sends a prompt and returns its frames, to the end.
func (p *proc) settle(prompt string) []map[string]any {
	p.t.Helper()
	p.send(string(appendJSON(nil, `{"type":"prompt","message":?}`, prompt)))
	return p.until("type", "agent_settled")
}

// texts are the visible texts of messages, as role:text.
func texts(messages any) (list []string) {
	all, _ := messages.([]any)
	for _, m := range all {
		m := m.(map[string]any)
		var text string
		switch content := m["content"].(type) {
		case string:
			text = content
		case []any:
			for _, b := range content {
				if s, ok := b.(map[string]any)["text"].(string); ok {
					text += s
				}
			}
		}
		list = append(list, fmt.Sprint(m["role"], ":", text))
	}
	return list
}

// types lists the types of frames, neighbours that are the same once.
func types(frames []map[string]any) (list []string) {
	for _, f := range frames {
		list = append(list, fmt.Sprint(f["type"]))
	}
	return slices.Compact(list)
}

func countType(frames []map[string]any, typ string) (n int) {
	for _, f := range frames {
		if f["type"] == typ {
			n++
		}
	}
	return n
}

// openRequest says what is wrong with the messages of a request; "" is nothing.
// Each call must have its result in the next message, and the last message is
// the user's.
func openRequest(body object) string {
	var messages []struct {
		Role    string
		Content any
	}
	if err := json.Unmarshal(body["messages"], &messages); err != nil {
		return err.Error()
	}
	open := map[string]bool{}
	for i, m := range messages {
		blocks, _ := m.Content.([]any)
		results := map[string]bool{}
		for _, b := range blocks {
			if b := b.(map[string]any); b["type"] == "tool_result" {
				results[fmt.Sprint(b["tool_use_id"])] = true
			}
		}
		if !maps.Equal(open, results) {
			return fmt.Sprintf("message %d answers %v, called was %v", i, results, open)
		}
		open = map[string]bool{}
		for _, b := range blocks {
			if b := b.(map[string]any); b["type"] == "tool_use" {
				open[fmt.Sprint(b["id"])] = true
			}
		}
	}
	if len(open) > 0 || len(messages) == 0 || messages[len(messages)-1].Role != "user" {
		return "the last message is not the user's: " + string(body["messages"])
	}
	return ""
}

// strictDouble is a provider that refuses what a real one refuses. It answers a
// user's text with a call of bash, and a result with a text.
func strictDouble(t testing.TB, command string) (url string, last func() string) {
	var mu sync.Mutex
	n, messages := 0, ""
	d := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		body, err := parseObject(raw)
		if err != nil {
			return // cut off with its sender
		}
		if flaw := openRequest(body); flaw != "" {
			t.Errorf("an invalid request: %s", flaw)
		}
		mu.Lock()
		n++
		messages = string(body["messages"])
		id := fmt.Sprintf("call_%d", n)
		isResult := strings.LastIndex(messages, `"tool_result"`) > strings.LastIndex(messages, `"role":"assistant"`)
		mu.Unlock()
		w.Header().Set("Content-Type", "text/event-stream")
		if isResult {
			io.WriteString(w, sseStart+sseText("fine")+sseEnd)
		} else {
			io.WriteString(w, sseCall(id, "bash", `{"command":"`+command+`"}`))
		}
	}))
	t.Cleanup(d.Close)
	return d.URL, func() string {
		mu.Lock()
		defer mu.Unlock()
		return messages
	}
}

// TestAtomicKilled: kill -9 at any moment of tool calls and queued messages. The
// next process sends valid requests, and each message that was accepted is
// delivered once (T1, T3).
func TestAtomicKilled(t *testing.T) {
	dir := t.TempDir()
	url, last := strictDouble(t, "sleep 0.02")
	accepted := map[string]bool{}
	start := func() *proc { return atomicDouble(t, dir, url, "--session-id", "killed") }
	for round := range 12 {
		p := start()
		p.send(`{"id":"recover","type":"start_pending_recovery"}`)
		sent := map[string]string{}
		for i, kind := range []string{"prompt", "steer", "follow_up", "steer"} {
			id := fmt.Sprintf("m%d.%d", round, i)
			sent[id] = fmt.Sprintf("<%s>", id)
			p.send(fmt.Sprintf(`{"id":%q,"type":%q,"message":%q,"streamingBehavior":"followUp"}`, id, kind, sent[id]))
		}
		deadline := time.After(time.Duration(rand.IntN(400)) * time.Millisecond)
		read := func(l string) {
			var f struct {
				Type, ID string
				Success  bool
			}
			if json.Unmarshal([]byte(l), &f) == nil && f.Type == "response" && f.Success && sent[f.ID] != "" {
				accepted[sent[f.ID]] = true
			}
		}
		for running := true; running; {
			select {
			case l := <-p.out:
				read(l)
			case <-deadline:
				running = false
			}
		}
		p.cmd.Process.Kill()
		for l := range p.out {
			read(l)
		}
		<-p.done
	}
	p := start()
	report := p.data(`{"type":"start_pending_recovery"}`)
	if again := p.data(`{"type":"start_pending_recovery"}`); fmt.Sprint(again) != fmt.Sprint(report) {
		t.Errorf("asked again: %v, first: %v", again, report)
	}
	p.settle("the last")
	said := strings.Join(texts(p.data(`{"type":"get_messages"}`)["messages"]), "\n")
	for text := range accepted {
		if n := strings.Count(said, text); n != 1 {
			t.Errorf("%s was accepted and is there %d times", text, n)
		}
		if !strings.Contains(last(), text) {
			t.Errorf("%s does not reach the model", text)
		}
	}
	if len(accepted) == 0 {
		t.Error("no message was accepted: the test shows nothing")
	}
	if state := p.data(`{"type":"get_state"}`); state["pendingMessageCount"] != 0.0 {
		t.Errorf("still pending: %v", state)
	}
}

// TestSessionCutInCall: a session is cut at each byte of a call and its result.
// What is left makes a valid request (T1, T3).
func TestSessionCutInCall(t *testing.T) {
	s := begin(t, t.TempDir())
	userSays(t, s, "one", "two", "three")
	s.addMessage(&Message{Role: "assistant", Stop: "tool_use", Time: time.UnixMilli(1), Content: []Block{
		{Type: "tool_call", ID: "c1", Name: "bash", Args: json.RawMessage(`{"command":"ls"}`)}}}, "")
	s.addMessage(&Message{Role: "tool", CallID: "c1", ToolName: "bash", Time: time.UnixMilli(2), Content: []Block{{Type: "text", Text: "a file"}}}, "")
	s.close()
	data, _ := os.ReadFile(s.path)
	lines := strings.SplitAfter(string(data), "\n")
	first := len(data) - len(lines[4]) - len(lines[5])
	path := filepath.Join(t.TempDir(), "s.jsonl")
	for cut := first; cut <= len(data); cut++ {
		os.WriteFile(path, data[:cut], 0o600)
		s, _, err := openSession(path)
		if err != nil {
			t.Fatal(err)
		}
		userSays(t, s, "next")
		messages := repair(s.restore().messages)
		s.close()
		m := catalogModel(t, "anthropic", "claude-sonnet-4-5", "http://localhost")
		body, err := parseObject(wireBody(anthropicWire, &request{model: m, messages: messages}))
		if err != nil {
			t.Fatal(err)
		}
		if flaw := openRequest(body); flaw != "" {
			t.Fatalf("cut at %d: %s", cut, flaw)
		}
		for _, text := range []string{"one", "two", "three", "next"} {
			if !strings.Contains(string(body["messages"]), `"`+text+`"`) {
				t.Fatalf("cut at %d: %q is lost", cut, text)
			}
		}
	}
}

// TestAtomicTornSession: the piece of a record at the end of a file is told, and
// put aside when the next is written; reading changes nothing (T3).
func TestAtomicTornSession(t *testing.T) {
	dir := t.TempDir()
	s := begin(t, dir)
	userSays(t, s, "one", "two", "three", "four")
	s.close()
	data, _ := os.ReadFile(s.path)
	data = data[:len(data)-30]
	os.WriteFile(s.path, data, 0o600)
	p := atomicScript(t, dir, "turn\ntext five\n", "--session", s.path)
	same(t, "messages", texts(p.data(`{"type":"get_messages"}`)["messages"]), []string{"user:one", "assistant:two", "user:three"})
	if now, _ := os.ReadFile(s.path); string(now) != string(data) {
		t.Error("reading changed the file")
	}
	p.settle("four again")
	p.in.Close()
	p.exit(0)
	if errs := p.stderr.String(); !strings.Contains(errs, "its last line is a piece of a record") {
		t.Errorf("it was not told: %q", errs)
	}
	again, notes := open(t, s.path)
	same(t, "notes", notes, []string(nil))
	same(t, "context", said(again), []string{"user:one", "assistant:two", "user:three", "user:four again", "assistant:five"})
}

// TestAtomicTwoProcesses: a session has one writer; the second process gets a
// clear error (T4).
func TestAtomicTwoProcesses(t *testing.T) {
	dir := t.TempDir()
	p := atomicScript(t, dir, "turn\ntext a\nturn\ntext b\n")
	p.settle("one")
	path := fmt.Sprint(p.data(`{"type":"get_state"}`)["sessionFile"])
	for _, flags := range [][]string{{"--session", path}, {"-c"}} {
		second := atomicScript(t, dir, "turn\n", flags...)
		if l := second.line(); l != "" {
			t.Errorf("%v: on stdout: %s", flags, l)
		}
		second.exit(exitUsage)
		if errs := second.stderr.String(); !strings.Contains(errs, path+": another process has it open") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: on stderr: %q", flags, errs)
		}
	}
	p.settle("two")
}

// TestAtomicDiskFull: what can not be written is refused or told, and leaves
// nothing behind (T3).
func TestAtomicDiskFull(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command("bash", "-c", `ulimit -f 16; exec "$0" "$@"`, zotBin, "--mode", "rpc", "--provider", "script", "--model",
		script(t, dir, strings.Repeat("turn\ntext fine\n", 20)), "--session-id", "full")
	p := startProcess(t, dir, nil, cmd)
	var accepted []string
	refused := ""
	for i := 0; i < 20 && refused == ""; i++ {
		text := fmt.Sprintf("%d %s", i, strings.Repeat("x", 2000))
		r := p.ask(`{"type":"prompt","message":%q}`, text)
		if r["success"] != true {
			refused = fmt.Sprint(r["error"])
			break
		}
		accepted = append(accepted, "user:"+text)
		p.until("type", "agent_settled")
	}
	if !strings.Contains(refused, "could not be saved") || !strings.Contains(refused, "file too large") {
		t.Errorf("refused with %q after %d prompts", refused, len(accepted))
	}
	path := fmt.Sprint(p.data(`{"type":"get_state"}`)["sessionFile"])
	p.in.Close()
	p.exit(0)
	s, notes := open(t, path)
	same(t, "notes", notes, []string(nil))
	same(t, "what was accepted", slices.DeleteFunc(said(s), func(m string) bool { return strings.HasPrefix(m, "assistant") }), accepted)
}

// TestAtomicAbortBehindPrompt: an abort ends the prompt right before it and not
// the one right behind it (R8, invariant 3).
func TestAtomicAbortBehindPrompt(t *testing.T) {
	rounds := 50
	p := atomicScript(t, t.TempDir(), strings.Repeat("turn\ntext fast\n", 2*rounds))
	for i := range rounds {
		b := fmt.Sprintf("b%d", i)
		p.send(`{"type":"prompt","message":"one"}`, `{"type":"abort"}`, `{"id":"`+b+`","type":"prompt","message":"two"}`)
		frames := append(p.until("type", "agent_settled"), p.until("type", "agent_settled")...)
		var ends []string
		for _, f := range frames {
			if f["success"] == false {
				t.Fatalf("round %d: refused: %v", i, f)
			}
			if m, ok := f["message"].(map[string]any); ok && f["type"] == "turn_end" {
				ends = append(ends, fmt.Sprint(m["stopReason"]))
			}
		}
		if !slices.Equal(ends, []string{"aborted", "stop"}) {
			t.Fatalf("round %d: the turns ended in %v", i, ends)
		}
	}
}

// TestAtomicQueueSurvivesAbort: what was queued goes on after an abort, unless
// clear_queue took it back (R9).
func TestAtomicQueueSurvivesAbort(t *testing.T) {
	text := "turn\ntext half\nhang\n" + strings.Repeat("turn\ntext fine\n", 3) + "turn\ntext half\nhang\n"
	p := atomicScript(t, t.TempDir(), text)
	p.send(`{"type":"prompt","message":"go"}`)
	p.until("type", "message_update")
	p.data(`{"type":"steer","message":"a"}`)
	p.data(`{"type":"steer","message":"b"}`)
	p.data(`{"type":"follow_up","message":"c"}`)
	p.send(`{"type":"abort"}`)
	frames := p.until("command", "abort")
	if countType(frames, "agent_settled") != 1 {
		t.Errorf("the response of abort did not wait for the end: %v", types(frames))
	}
	frames = p.until("type", "agent_settled")
	if u := frames[slices.IndexFunc(frames, func(f map[string]any) bool { return f["type"] == "queue_update" })]; fmt.Sprint(u["steering"], u["followUp"]) != "[b] [c]" {
		t.Errorf("the first change of the queue: %v", u)
	}
	same(t, "messages", texts(p.data(`{"type":"get_messages"}`)["messages"]),
		[]string{"user:go", "assistant:half", "user:a", "assistant:fine", "user:b", "assistant:fine", "user:c", "assistant:fine"})

	p.send(`{"type":"prompt","message":"again"}`)
	p.until("type", "message_update")
	p.data(`{"type":"steer","message":"d"}`)
	p.data(`{"type":"follow_up","message":"e"}`)
	same(t, "taken back", fmt.Sprint(p.data(`{"type":"clear_queue"}`)), "map[followUp:[e] steering:[d]]")
	p.data(`{"type":"abort"}`)
	state := p.data(`{"type":"get_state"}`)
	same(t, "state", fmt.Sprint(state["isStreaming"], state["pendingMessageCount"]), "false 0")
	p.data(`{"type":"follow_up","message":"f"}`) // after an abort it waits for a prompt
	state = p.data(`{"type":"get_state"}`)
	same(t, "state", fmt.Sprint(state["isStreaming"], state["pendingMessageCount"]), "false 1")
}

// TestAtomicIdleFollowUp: what is queued while nothing runs starts a turn of its
// own, and what was taken back before starts none.
func TestAtomicIdleFollowUp(t *testing.T) {
	d := newDouble(t, textAnswer("fine"))
	p := atomicDouble(t, t.TempDir(), d.URL)
	p.data(`{"type":"follow_up","message":"first"}`) // the session is empty: it waits
	p.settle("go")
	for _, kind := range []string{"steer", "follow_up"} {
		p.data(`{"type":%q,"message":"<%[1]s>"}`, kind)
		p.until("type", "agent_settled")
		body := d.sent(d.count() - 1)
		if flaw := openRequest(body); flaw != "" || !strings.Contains(string(body["messages"]), "<"+kind+">") {
			t.Errorf("%s: %s %s", kind, flaw, body["messages"])
		}
	}
	url, _ := strictDouble(t, "true")
	p = atomicDouble(t, t.TempDir(), url)
	p.settle("go")
	for range 20 {
		p.send(`{"type":"follow_up","message":"x"}`, `{"type":"clear_queue"}`)
	}
	p.in.Close()
	for p.line() != "" {
	}
	p.exit(0)
}

// TestAtomicTerminalEvents: however a run ends, it settles once, and the next
// one works (R1).
func TestAtomicTerminalEvents(t *testing.T) {
	for name, a := range map[string]answer{
		"401":     {status: 401, body: `{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}`},
		"500":     {status: 500},
		"garbage": {body: "data: {{{\n\ndata: \x00\xff\n\n"},
		"half":    {body: sseStart + sseText("half an")},
		"reset": {write: func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, sseStart+sseText("half an"))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDouble(t, a, a, a, a, textAnswer("fine"))
			if name == "401" {
				d.answers = []answer{a, textAnswer("fine")}
			}
			p := atomicDouble(t, t.TempDir(), d.URL)
			frames := p.settle("one")
			p.send(`{"type":"get_state"}`)
			frames = append(frames, p.until("command", "get_state")...)
			if n := countType(frames, "agent_settled"); n != 1 {
				t.Errorf("settled %d times", n)
			}
			if starts, ends := countType(frames, "agent_start"), countType(frames, "agent_end"); starts != ends {
				t.Errorf("%d starts, %d ends", starts, ends)
			}
			if starts, ends := countType(frames, "message_start"), countType(frames, "message_end"); starts != ends {
				t.Errorf("%d messages start, %d end", starts, ends)
			}
			if state := frames[len(frames)-1]["data"].(map[string]any); state["isStreaming"] != false {
				t.Error("streaming after it settled")
			}
			last := frames[slices.IndexFunc(frames, func(f map[string]any) bool { return f["type"] == "agent_settled" })-1]
			if last["type"] != "agent_end" || last["willRetry"] != false {
				t.Errorf("before it settled: %v", last)
			}
			frames = p.settle("two")
			if text := p.data(`{"type":"get_last_assistant_text"}`)["text"]; text != "fine" {
				t.Errorf("the next prompt: %v", types(frames))
			}
			if flaw := openRequest(d.sent(d.count() - 1)); flaw != "" {
				t.Error(flaw)
			}
		})
	}
}

// TestAtomicToolPanics: a failure inside a tool is its result (R1).
func TestAtomicToolPanics(t *testing.T) {
	p := atomicScript(t, t.TempDir(), "turn\ncall panic {}\nturn\ntext after it\n")
	frames := p.settle("go")
	for _, f := range frames {
		if f["type"] == "tool_execution_end" && f["isError"] != true {
			t.Errorf("%v", f)
		}
	}
	same(t, "text", p.data(`{"type":"get_last_assistant_text"}`)["text"], "after it")
}

// TestAtomicRetriesSettleOnce: agent_end is not the end; agent_settled is (R2).
func TestAtomicRetriesSettleOnce(t *testing.T) {
	busy := answer{status: 503, body: `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`}
	d := newDouble(t, busy, busy, textAnswer("fine"))
	p := atomicDouble(t, t.TempDir(), d.URL)
	p.send(`{"type":"prompt","message":"go"}`, `{"type":"follow_up","message":"f1"}`, `{"type":"follow_up","message":"f2"}`)
	frames := p.until("type", "agent_settled")
	var again []any
	for _, f := range frames {
		if f["type"] == "agent_end" {
			again = append(again, f["willRetry"])
		}
	}
	same(t, "willRetry", again, []any{true, true, false})
	same(t, "messages", texts(p.data(`{"type":"get_messages"}`)["messages"]),
		[]string{"user:go", "assistant:fine", "user:f1", "assistant:fine", "user:f2", "assistant:fine"})
	p.in.Close()
	if f := p.frame(); f != nil {
		t.Errorf("behind the end: %v", f)
	}
}

// TestAtomicOverflowForEver: a context that never fits costs few calls (R4).
func TestAtomicOverflowForEver(t *testing.T) {
	d := newDouble(t, answer{status: 400, body: `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 300000 tokens > 200000 maximum"}}`})
	dir := t.TempDir()
	s := begin(t, dir)
	userSays(t, s, strings.Repeat("line\n", 3000), strings.Repeat("line\n", 3000), "three", "four")
	s.close()
	p := atomicDouble(t, dir, d.URL, "--session", s.path)
	frames := p.settle("go")
	if n := d.count(); n > 4 {
		t.Errorf("%d calls", n)
	}
	if n := countType(frames, "compaction_start"); n != 1 {
		t.Errorf("%d compactions: %v", n, types(frames))
	}
}

// TestAtomicAbortSettles: abort ends whatever is waited for within two seconds,
// and the next prompt works (R7, B3).
func TestAtomicAbortSettles(t *testing.T) {
	for name, c := range map[string]struct{ script, await string }{
		"silent provider":       {"turn\ntext half\nhang\n", "message_update"},
		"stubborn command":      {"turn\ncall bash {\"command\":\"trap '' TERM; echo go; sleep 99 | cat\"}\n", "tool_execution_update"},
		"long delay of a retry": {"turn\nerror 429 after=200s Slow down\n", "auto_retry_start"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := atomicScript(t, t.TempDir(), c.script+"turn\ntext fine\n")
			p.send(`{"type":"prompt","message":"go"}`)
			p.until("type", c.await)
			start := time.Now()
			p.data(`{"type":"abort"}`)
			if took := time.Since(start); took > limit(2*time.Second) && !raceDetector() {
				t.Errorf("took %v", took)
			}
			p.settle("next")
			same(t, "text", p.data(`{"type":"get_last_assistant_text"}`)["text"], "fine")
		})
	}
}

// TestAtomicCommandsAreAnswered: whatever is wrong with a line, it gets one
// response, with its id, which says what to do (F3, C1, C2, C3).
func TestAtomicCommandsAreAnswered(t *testing.T) {
	p := startZot(t, t.TempDir(), nil, "--mode", "rpc", "--provider", "script")
	for i, c := range []struct{ command, fault string }{
		{`"type":"no_such"`, "no_such"},
		{`"type":"prompt","content":"hi"`, `"message"`},
		{`"type":"prompt","message":[]`, "message"},
		{`"type":"prompt","message":""`, "empty"},
		{`"type":"prompt","message":"x","streamingBehavior":"later"`, "steer, followUp"},
		{`"type":"steer","message":"x","images":"picture.png"`, `an array of objects with "data" (base64), not a string`},
		{`"type":"set_model"`, `"provider"`},
		{`"type":"set_model","provider":"nobody","modelId":"x"`, "Model not found: nobody/x"},
		{`"type":"set_thinking_level","level":"lots"`, "lots"},
		{`"type":"set_steering_mode","mode":"banana"`, "all, one-at-a-time"},
		{`"type":"set_auto_retry","enabled":"yes"`, "true or false"},
		{`"type":"bash"`, `"command"`},
		{`"type":"fork","entryId":"nope"`, "Invalid entry ID"},
		{`"type":"get_entries","since":"nope"`, "Entry not found: nope"},
		{`"type":"switch_session","sessionId":"../x"`, "not found"},
		{`"type":"delete_session","sessionId":""`, ""},
		{`"type":"set_session_name","name":"  "`, "empty"},
		{`"type":"compact"`, "too small"},
		{`"type":"export_html"`, "Nothing to export"},
		{`"type":"clone"`, "not been saved"},
	} {
		p.send(fmt.Sprintf(`{"id":%d,%s}`, i, c.command))
		frames := p.until("type", "response")
		if f := frames[len(frames)-1]; c.fault != "" && (f["id"] != float64(i) || f["success"] != false || !strings.Contains(fmt.Sprint(f["error"]), c.fault)) {
			t.Errorf("%s: %v", c.command, f)
		}
	}
	for _, line := range []string{"null", "[]", "42", `"x"`, `{"type":`, "\xff\x00", `{"id":1}`, `{"type":7}`} {
		p.send(line)
		if f := p.frame(); f["success"] != false || f["command"] != "parse" {
			t.Errorf("%q: %v", line, f)
		}
	}
	p.data(`{"type":"get_state"}`)
}

// TestAtomicBashBesideAll: a long command keeps nothing waiting and is ended by
// its id (C4).
func TestAtomicBashBesideAll(t *testing.T) {
	p := startZot(t, t.TempDir(), nil, "--mode", "rpc", "--provider", "script")
	p.send(`{"id":"one","type":"bash","command":"echo out; echo err >&2; sleep 60"}`, `{"id":"two","type":"bash","command":"sleep 0.3; echo two"}`)
	p.until("type", "bash_execution_update", "id", "one", "channel", "stderr")
	p.data(`{"type":"get_state"}`)
	p.data(`{"type":"abort_bash","requestId":"nobody"}`)
	p.send(`{"id":"stop","type":"abort_bash","requestId":"one"}`)
	results := map[any]map[string]any{}
	for len(results) < 3 {
		f := p.frame()
		if f["type"] == "response" {
			if results[f["id"]] != nil {
				t.Errorf("a second response: %v", f)
			}
			results[f["id"]] = f
		}
	}
	one, two := results["one"]["data"].(map[string]any), results["two"]["data"].(map[string]any)
	if one["cancelled"] != true || one["exitCode"] != nil || two["cancelled"] != false || two["exitCode"] != 0.0 || two["output"] != "two\n" {
		t.Errorf("one: %v\ntwo: %v", one, two)
	}
}

// TestAtomicBashInBackground: a process left behind does not hold a command
// (B1), and huge output costs little (B6).
func TestAtomicBashInBackground(t *testing.T) {
	p := startZot(t, t.TempDir(), nil, "--mode", "rpc", "--provider", "script")
	start := time.Now()
	r := p.data(`{"type":"bash","command":"(sleep 300; echo late) & exit 3"}`)
	if took := time.Since(start); r["exitCode"] != 3.0 || took > limit(2*time.Second) && !raceDetector() {
		t.Errorf("after %v: %v", took, r)
	}
	r = p.data(`{"type":"bash","command":"head -c 100000000 /dev/zero | tr '\\0' x"}`)
	if n := len(fmt.Sprint(r["output"])); r["truncated"] != true || n > 60<<10 || r["fullOutputPath"] == nil {
		t.Errorf("%d bytes, truncated %v, %v", n, r["truncated"], r["fullOutputPath"])
	}
	if m := rss(t, p.cmd.Process.Pid); m > 100<<20 && !raceDetector() {
		t.Errorf("%d MiB resident", m>>20)
	}
}

// TestAtomicBashStaysInItsSession: output goes to the session where the command
// began, and never between a call and its result.
func TestAtomicBashStaysInItsSession(t *testing.T) {
	dir := t.TempDir()
	url, last := strictDouble(t, "sleep 0.5")
	p := atomicDouble(t, dir, url)
	p.send(`{"type":"prompt","message":"go"}`)
	p.until("type", "tool_execution_start")
	p.data(`{"type":"bash","command":"echo during"}`)
	p.until("type", "agent_settled")
	if strings.Contains(last(), "during") {
		t.Error("it came into the run")
	}
	first := fmt.Sprint(p.data(`{"type":"get_state"}`)["sessionFile"])
	if saved, _ := os.ReadFile(first); !strings.Contains(string(saved), "echo during") {
		t.Error("it is not in the session when the run has ended")
	}
	p.send(`{"id":"late","type":"bash","command":"sleep 1; echo late"}`)
	p.data(`{"type":"new_session"}`)
	p.until("id", "late")
	p.settle("in the new session")
	if strings.Contains(last(), "late") || strings.Contains(last(), "during") {
		t.Error("it came into the other session")
	}
	p.data(`{"type":"switch_session","sessionPath":%q}`, first)
	p.settle("back")
	for _, text := range []string{"Ran `echo during`", "Ran `sleep 1; echo late`"} {
		if strings.Count(last(), text) != 1 {
			t.Errorf("%q is not in the session where it began", text)
		}
	}
}

// TestAtomicAbortBehindCompact: an abort_compaction ends the compact commands
// before it, also those that have not begun, and none behind it.
func TestAtomicAbortBehindCompact(t *testing.T) {
	p := atomicScript(t, t.TempDir(), "turn\ntext \""+strings.Repeat("a line\\n", 60)+"\"\nturn\nhang\nturn\nhang\n")
	p.settle("go")
	p.send(`{"id":1,"type":"compact","preserve_recent":0}`, `{"id":2,"type":"compact","preserve_recent":0}`, `{"type":"abort_compaction"}`)
	for id := range 2 {
		frames := p.until("type", "response", "command", "compact")
		if f := frames[len(frames)-1]; f["id"] != float64(id+1) || f["error"] != "Compaction cancelled" {
			t.Errorf("%v", f)
		}
	}
	if r := p.ask(`{"type":"compact","preserve_recent":9}`); r["error"] != "Nothing to compact (session too small)" {
		t.Errorf("%v", r)
	}
}

// TestAtomicEndOfInput: what was accepted is finished, shells are ended and
// answered (L1, L2).
func TestAtomicEndOfInput(t *testing.T) {
	p := atomicScript(t, t.TempDir(), "turn\ndelay 200ms\ntext one\nturn\ntext two\nturn\ntext three\n")
	p.send(`{"type":"prompt","message":"a"}`, `{"type":"steer","message":"b"}`, `{"type":"follow_up","message":"c"}`, `{"id":"sh","type":"bash","command":"sleep 60"}`)
	p.in.Close()
	var frames []map[string]any
	for f := p.frame(); f != nil; f = p.frame() {
		frames = append(frames, f)
	}
	p.exit(0)
	end := slices.IndexFunc(frames, func(f map[string]any) bool { return f["type"] == "agent_settled" })
	if countType(frames, "agent_settled") != 1 || slices.ContainsFunc(frames[end+1:], func(f map[string]any) bool { return f["id"] != "sh" }) {
		t.Errorf("%v", types(frames))
	}
	at := slices.IndexFunc(frames, func(f map[string]any) bool { return f["id"] == "sh" })
	if at < 0 || frames[at]["data"].(map[string]any)["cancelled"] != true {
		t.Error("the command was not cancelled and answered")
	}
	same(t, "messages", texts(frames[end-1]["messages"]), []string{"user:a", "user:b", "assistant:one", "user:c", "assistant:two"})
	idle := startZot(t, t.TempDir(), nil, "--mode", "rpc", "--provider", "script")
	idle.in.Close()
	if l := idle.line(); l != "" {
		t.Errorf("idle: %s", l)
	}
	idle.exit(0)
}

// TestAtomicStartErrors: one line on stderr, exit code 2, nothing on stdout
// (C10, L6).
func TestAtomicStartErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	os.WriteFile(file, []byte("no session\n"), 0o666)
	for _, flags := range [][]string{
		{"--no-such-flag"}, {"--session", "/no/such/file.jsonl"}, {"--session", "abcdef"}, {"--session", file}, {"--session", dir + "/"},
		{"--session-id", "../x"}, {"--session-dir", filepath.Join(file, "below")}, {"--resume"}, {"--model", "nobody/nothing"}, {"--thinking", "lots"},
	} {
		p := startZot(t, dir, nil, append([]string{"--mode", "rpc", "--provider", "script"}, flags...)...)
		if l := p.line(); l != "" {
			t.Errorf("%v: on stdout: %s", flags, l)
		}
		p.exit(exitUsage)
		if errs := p.stderr.String(); strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: on stderr: %q", flags, errs)
		}
	}
	p := startZot(t, dir, nil, "--mode", "rpc", "--provider", "script", "--no-themes", "--no-skills", "--approve", "--thinking", "high",
		"--no-extensions", "--no-context-files", "--no-prompt-templates", "--no-approve", "-n", "a name", "--tools", "read,bash")
	state := p.data(`{"type":"get_state"}`)
	same(t, "state", fmt.Sprint(state["thinkingLevel"], state["sessionName"]), "high"+"a name")
	p.in.Close()
	p.exit(0)
}

// TestAtomicNewSessionInRun: the run ends with its terminal events before the
// session changes (R12).
func TestAtomicNewSessionInRun(t *testing.T) {
	p := atomicScript(t, t.TempDir(), "turn\ntext half\nhang\nturn\ntext fine\n")
	p.send(`{"type":"prompt","message":"go"}`)
	p.until("type", "message_update")
	p.data(`{"type":"steer","message":"queued"}`)
	p.send(`{"type":"new_session"}`)
	frames := p.until("command", "new_session")
	list := types(frames)
	if i := slices.Index(list, "agent_settled"); i < 0 || !slices.Contains(list[i:], "queue_update") {
		t.Errorf("before the response: %v", list)
	}
	state := p.data(`{"type":"get_state"}`)
	same(t, "state", fmt.Sprint(state["isStreaming"], state["messageCount"], state["pendingMessageCount"]), "false 0 0")
	p.settle("next")
	same(t, "messages", texts(p.data(`{"type":"get_messages"}`)["messages"]), []string{"user:next", "assistant:fine"})
}

// TestAtomicNobodyConfirms: a question that nobody answers is a refusal (U2).
func TestAtomicNobodyConfirms(t *testing.T) {
	for _, eof := range []bool{false, true} {
		p := atomicScript(t, t.TempDir(), "turn\ncall bash {\"command\":\"touch done\"}\nturn\ntext fine\n", "--no-yolo", "--confirm-timeout", map[bool]string{false: "1", true: "300"}[eof])
		p.send(`{"type":"prompt","message":"go"}`)
		p.until("type", "extension_ui_request", "method", "confirm")
		if eof {
			p.in.Close()
		}
		frames := p.until("type", "agent_settled")
		for _, f := range frames {
			if f["type"] == "tool_execution_end" && !strings.Contains(fmt.Sprint(f["result"]), "Not run") {
				t.Errorf("%v", f)
			}
		}
		if _, err := os.Stat(filepath.Join(p.cmd.Dir, "done")); err == nil {
			t.Error("the call was run")
		}
	}
}

// TestAtomicToken: the first line must be a hello with the token; children never
// see it (S1).
func TestAtomicToken(t *testing.T) {
	for _, line := range []string{`{"type":"hello","token":"wrong"}`, `{"type":"prompt","message":"hi"}`, `nonsense`} {
		p := startZot(t, t.TempDir(), []string{"ZOTCORE_RPC_TOKEN=s3cret"}, "--mode", "rpc", "--provider", "script")
		p.send(line)
		if f := p.frame(); f["success"] != false {
			t.Errorf("%s: %v", line, f)
		}
		p.exit(exitRefused)
	}
	p := startZot(t, t.TempDir(), []string{"ZOTCORE_RPC_TOKEN=s3cret"}, "--mode", "rpc", "--provider", "script")
	p.data(`{"type":"hello","token":"s3cret"}`)
	p.data(`{"type":"hello","token":"s3cret"}`)
	if r := p.data(`{"type":"bash","command":"env"}`); strings.Contains(fmt.Sprint(r["output"]), "s3cret") {
		t.Error("a command sees the token")
	}
}

// TestAtomicLongLines: large prompts pass, and a line over the limit costs
// itself alone (F5).
func TestAtomicLongLines(t *testing.T) {
	p := startZot(t, t.TempDir(), nil, "--mode", "rpc", "--provider", "script")
	big := strings.Repeat("x", 5<<20)
	for _, f := range p.settle(big) {
		if m, ok := f["message"].(map[string]any); ok && m["role"] == "user" && texts([]any{m})[0] != "user:"+big {
			t.Error("the prompt did not come back whole")
		}
	}
	p.send(`{"type":"prompt","message":"` + strings.Repeat("x", maxLine) + `"}`)
	if f := p.frame(); f["success"] != false || !strings.Contains(fmt.Sprint(f["error"]), "64 MiB") {
		t.Errorf("%v", f)
	}
	p.data(`{"type":"get_state"}`)
}

// TestAtomicDeltas: 50,000 deltas cost a line each; nothing grows (F7).
func TestAtomicDeltas(t *testing.T) {
	p := atomicScript(t, t.TempDir(), "turn\nrepeat 50000 text \"word \"\n")
	p.send(`{"type":"prompt","message":"go"}`)
	bytes, deltas := 0, 0
	for l := p.line(); !strings.Contains(l, `"agent_settled"`); l = p.line() {
		if strings.Contains(l, `"text_delta"`) {
			bytes += len(l)
			deltas++
		}
	}
	if deltas != 50000 || bytes/deltas > 250 {
		t.Errorf("%d deltas, %d bytes each", deltas, bytes/max(1, deltas))
	}
}

// piSession is a session as pi and Atomic write it.
var piSession = []string{
	`{"type":"session","version":3,"id":"0198-pi","timestamp":"2026-01-02T03:04:05.678Z","cwd":"/elsewhere"}`,
	`{"type":"model_change","id":"00000001","parentId":null,"timestamp":"2026-01-02T03:04:05.679Z","provider":"script","modelId":"demo"}`,
	`{"type":"thinking_level_change","id":"00000002","parentId":"00000001","timestamp":"2026-01-02T03:04:05.679Z","thinkingLevel":"high"}`,
	`{"type":"message","id":"00000003","parentId":"00000002","timestamp":"2026-01-02T03:04:06.000Z","message":{"role":"user","content":"a string","timestamp":1767323046000}}`,
	`{"type":"message","id":"00000004","parentId":"00000003","timestamp":"2026-01-02T03:04:07.000Z","message":{"role":"assistant","content":[{"type":"thinking","thinking":"hm","thinkingSignature":"sig"},{"type":"text","text":"answer"},{"type":"toolCall","id":"t1","name":"read","arguments":{"path":"x"}}],"api":"anthropic-messages","provider":"anthropic","model":"claude-sonnet-4-5","usage":{"input":3,"output":4,"cacheRead":0,"cacheWrite":0,"totalTokens":7,"cost":{"input":0.1,"output":0.2,"cacheRead":0,"cacheWrite":0,"total":0.3}},"stopReason":"toolUse","timestamp":1767323047000}}`,
	`{"type":"message","id":"00000005","parentId":"00000004","timestamp":"2026-01-02T03:04:08.000Z","message":{"role":"toolResult","toolCallId":"t1","toolName":"read","content":[{"type":"text","text":"file"}],"isError":false,"timestamp":1767323048000}}`,
	`{"type":"hologram","id":"00000006","parentId":"00000005","timestamp":"2026-01-02T03:04:08.500Z","anything":[1,2]}`,
	`{"type":"custom_message","id":"00000007","parentId":"00000006","timestamp":"2026-01-02T03:04:09.000Z","customType":"note","content":"told by an extension","display":true}`,
	`{"type":"message","id":"00000008","parentId":"00000007","timestamp":"2026-01-02T03:04:10.000Z","message":{"role":"user","content":[{"type":"text","text":"second"}],"timestamp":1767323050000}}`,
	`{"type":"session_info","id":"00000009","parentId":"00000008","timestamp":"2026-01-02T03:04:10.500Z","name":"made by pi"}`,
}

// TestAtomicSessionsOfOthers: files that pi and Atomic wrote are resumed however
// they are named, and go on; what is not known stays.
func TestAtomicSessionsOfOthers(t *testing.T) {
	context := []string{"user:a string", "assistant:answer", "toolResult:file", "custom:told by an extension", "user:second"}
	for _, flags := range [][]string{{"-c"}, {"--session", "0198"}, {"--session", "PATH"}, {"--session-id", "0198-pi"}, {"--session", "0198-pi"}} {
		dir := t.TempDir()
		sessions := filepath.Join(dir, "kept")
		os.Mkdir(sessions, 0o777)
		path := filepath.Join(sessions, "2026-01-02T03-04-05-678Z_0198-pi.jsonl")
		if err := os.WriteFile(path, []byte(strings.Join(piSession, "\n")+"\n"), 0o666); err != nil {
			t.Fatal(err)
		}
		if flags[1:] != nil && flags[len(flags)-1] == "PATH" {
			flags = []string{"--session", path}
		}
		p := startZot(t, dir, nil, append([]string{"--mode", "rpc", "--session-dir", "kept"}, flags...)...)
		state := p.data(`{"type":"get_state"}`)
		same(t, fmt.Sprint(flags), fmt.Sprint(state["sessionId"], state["sessionName"], state["thinkingLevel"], state["sessionFile"]), "0198-pi"+"made by pi"+"high"+path)
		same(t, "context", texts(p.data(`{"type":"get_messages"}`)["messages"]), context)
		p.settle("third")
		entries := fmt.Sprint(p.data(`{"type":"get_entries"}`)["entries"])
		if !strings.Contains(entries, "hologram") {
			t.Error("what is not known is gone")
		}
		if since := p.data(`{"type":"get_entries","since":"00000009"}`)["entries"].([]any); len(since) != 2 {
			t.Errorf("%d entries since then", len(since))
		}
		stats := p.data(`{"type":"get_session_stats"}`)
		same(t, "counts", fmt.Sprint(stats["userMessages"], stats["assistantMessages"], stats["toolCalls"], stats["toolResults"]), "3 2 1 1")

		// a fork in front of the second message; then back
		same(t, "fork", p.data(`{"type":"fork","entryId":"00000008"}`)["text"], "second")
		same(t, "forked", texts(p.data(`{"type":"get_messages"}`)["messages"]), context[:4])
		fork := p.data(`{"type":"get_state"}`)
		p.settle("other second")
		p.data(`{"type":"clone"}`)
		same(t, "cloned", len(p.data(`{"type":"get_messages"}`)["messages"].([]any)), 6)
		p.data(`{"type":"switch_session","sessionId":"0198-pi"}`)
		same(t, "back", len(p.data(`{"type":"get_messages"}`)["messages"].([]any)), 7)
		list := p.data(`{"type":"list_sessions"}`)["sessions"].([]any)
		same(t, "sessions", len(list), 3)
		p.data(`{"type":"delete_session","sessionId":%q}`, fork["sessionId"])
		same(t, "sessions", len(p.data(`{"type":"list_sessions"}`)["sessions"].([]any)), 2)
		p.in.Close()
		p.exit(0)
		data, _ := os.ReadFile(path)
		if !strings.HasPrefix(string(data), strings.Join(piSession, "\n")+"\n") {
			t.Error("what the file held was changed")
		}
	}
}

// TestSessionsInOtherModes: zot rpc, -p and --json keep a session when they are
// asked to, and go on with it.
func TestSessionsInOtherModes(t *testing.T) {
	dir := t.TempDir()
	kept := func() (files []string) {
		files, _ = filepath.Glob(filepath.Join(dir, "zot-home", "sessions", "*", "*.jsonl"))
		return files
	}
	run := func(args ...string) {
		t.Helper()
		p := startZot(t, dir, nil, append([]string{"--provider", "script"}, args...)...)
		p.in.Close()
		for p.line() != "" {
		}
		p.exit(0)
	}
	run("-p", "nothing is kept")
	run("--json", "nothing is kept")
	same(t, "kept unasked", kept(), []string(nil))
	run("-p", "--name", "n", "one")
	run("--json", "-c", "two")
	p := startZot(t, dir, nil, "rpc", "--provider", "script", "-c")
	p.send(`{"type":"prompt","message":"three"}`)
	p.until("type", "done")
	p.in.Close()
	p.exit(0)
	files := kept()
	if len(files) != 1 {
		t.Fatalf("kept: %v", files)
	}
	s, notes := open(t, files[0])
	same(t, "notes", notes, []string(nil))
	same(t, "the user's", slices.DeleteFunc(said(s), func(m string) bool { return strings.HasPrefix(m, "assistant") }), []string{"user:one", "user:two", "user:three"})
	same(t, "name", s.name(), "n")
}

// TestAtomicSwitchKeepsTheAddress: the model that a session was left with is
// asked where the flags say.
func TestAtomicSwitchKeepsTheAddress(t *testing.T) {
	d, dir := newDouble(t, textAnswer("fine")), t.TempDir()
	put(t, filepath.Join(dir, "zot-home", "config.json"), `{"provider":"anthropic"}`, 0o600)
	put(t, filepath.Join(dir, "s", "old.jsonl"), `{"type":"session","version":3,"id":"old","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/"}
{"type":"model_change","id":"00000001","parentId":null,"timestamp":"2026-01-01T00:00:00.000Z","provider":"anthropic","modelId":"claude-opus-4-5"}
`, 0o600)
	p := startZot(t, dir, nil, "--mode", "rpc", "--api-key", "k", "--base-url", d.URL, "--session-dir", "s")
	p.send(`{"id":1,"type":"switch_session","sessionId":"old"}`, `{"id":2,"type":"prompt","message":"hi"}`)
	p.until("type", "agent_settled")
	if model := string(d.sent(0)["model"]); model != `"claude-opus-4-5"` {
		t.Errorf("asked %s", model)
	}
}
