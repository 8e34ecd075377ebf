package ext

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

// TestMain also is an extension, for the tests that need a process.
func TestMain(m *testing.M) {
	if os.Getenv("EXT_TEST_PROCESS") != "" {
		noisyExtension()
		return
	}
	os.Exit(m.Run())
}

// patience is how long a test waits for what must come.
const patience = time.Minute

// testHost is the host's end of the pipes.
type testHost struct {
	t    *testing.T
	in   *io.PipeWriter
	out  chan string // one write each
	done chan error  // what run returned
}

// writes is a writer that passes on each write.
type writes chan string

func (w writes) Write(p []byte) (int, error) {
	w <- string(p)
	return len(p), nil
}

// start runs an extension as far as hello.
func start(t *testing.T, e *Extension) *testHost {
	t.Helper()
	r, w := io.Pipe()
	h := &testHost{t: t, in: w, out: make(chan string), done: make(chan error, 1)}
	go func() { h.done <- e.run(r, writes(h.out)) }()
	t.Cleanup(func() {
		w.Close()
		for {
			select {
			case <-h.out:
			case <-h.done:
				return
			}
		}
	})
	h.want(`{"type":"hello","name":"test","version":"1","capabilities":["commands","tools","panels"]}`)
	return h
}

// ready runs an extension as far as ready.
func ready(t *testing.T, e *Extension) *testHost {
	t.Helper()
	h := start(t, e)
	h.send(`{"type":"hello_ack","protocol_version":1}`)
	for h.line() != `{"type":"ready"}` {
	}
	return h
}

func (h *testHost) send(lines ...string) {
	h.t.Helper()
	for _, l := range lines {
		if _, err := io.WriteString(h.in, l+"\n"); err != nil {
			h.t.Fatalf("sending %.200s: %v", l, err)
		}
	}
}

// line returns the next frame, which must be one write of one line.
func (h *testHost) line() string {
	h.t.Helper()
	select {
	case s := <-h.out:
		if strings.Index(s, "\n") != len(s)-1 {
			h.t.Fatalf("not one line: %.200q", s)
		}
		return s[:len(s)-1]
	case err := <-h.done:
		h.done <- err
		h.t.Fatalf("no frame: Run has returned %v", err)
	case <-time.After(patience):
		h.t.Fatal("no frame comes")
	}
	return ""
}

func (h *testHost) want(lines ...string) {
	h.t.Helper()
	for _, want := range lines {
		if got := h.line(); got != want {
			h.t.Fatalf("got  %.1000s\nwant %.1000s", got, want)
		}
	}
}

// ended waits for the end of run, with no more frames.
func (h *testHost) ended() {
	h.t.Helper()
	select {
	case err := <-h.done:
		h.done <- err
		if err != nil {
			h.t.Errorf("Run returned %v", err)
		}
	case s := <-h.out:
		h.t.Errorf("a frame too many: %s", s)
	case <-time.After(patience):
		h.t.Fatal("Run does not return")
	}
}

// quiet makes an extension whose log is kept for the test.
func quiet() (*Extension, *logged) {
	e, l := New("test", "1"), &logged{}
	e.log.SetOutput(l)
	return e, l
}

type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func say(text string) func(json.RawMessage) ToolResult {
	return func(json.RawMessage) ToolResult { return TextResult(text) }
}

func TestHandshake(t *testing.T) {
	e, _ := quiet()
	e.Command("Weather", "current weather for a city", func(string) Response { return Noop() })
	e.Tool("weather", "Get the weather.", json.RawMessage("{\n \"type\": \"object\"\n}"), say(""))
	e.DeferredTool("later", "Offered later.", nil, say(""))
	e.AddTool(ToolSpec{Name: "slow", Timeout: 5 * time.Minute, Run: func(context.Context, ToolCall) ToolResult { return ToolResult{} }})
	e.AddTool(ToolSpec{Name: "ask", Interactive: true, Run: func(context.Context, ToolCall) ToolResult { return ToolResult{} }})
	e.On("turn_start", func(Event) {})
	e.On("tool_call", func(Event) {})
	e.InterceptToolCall(func(string, json.RawMessage) (bool, string) { return true, "" })
	e.BeforeAgentStart(func(string) string { return "" })
	e.OnHello(func(host HostInfo) {
		e.Notify("info", "hello from "+host.CWD)
		e.Command("cwd", "show the directory", func(string) Response { return Display(host.CWD) })
	})
	h := start(t, e)
	h.send(`{"type":"hello_ack","protocol_version":1,"zot_version":"0.1","provider":"anthropic","model":"m","cwd":"/work","extension_dir":"/x","data_dir":"/x","mode":"rpc","capabilities":["panels"]}`)
	h.want(`{"type":"notify","level":"info","message":"hello from /work"}`,
		`{"type":"register_command","name":"Weather","description":"current weather for a city"}`,
		`{"type":"register_command","name":"cwd","description":"show the directory"}`,
		`{"type":"register_tool","name":"weather","description":"Get the weather.","schema":{"type":"object"}}`,
		`{"type":"register_tool","name":"later","description":"Offered later.","schema":{"type":"object"},"deferred":true}`,
		`{"type":"register_tool","name":"slow","schema":{"type":"object"},"timeout_ms":300000}`,
		`{"type":"register_tool","name":"ask","schema":{"type":"object"},"interactive":true}`,
		`{"type":"subscribe","events":["turn_start","tool_call"],"intercept":["tool_call","before_agent_start"]}`,
		`{"type":"ready"}`)
	h.send(`{"type":"hello_ack"}`, `{"type":"command_invoked","id":"1","name":"CWD","args":""}`)
	h.want(`{"type":"command_response","id":"1","action":"display","display":"/work"}`)
}

func TestHostInfo(t *testing.T) {
	e, _ := quiet()
	got := make(chan HostInfo, 1)
	e.OnHello(func(host HostInfo) { got <- host })
	h := start(t, e)
	h.send(`{"type":"hello_ack","protocol_version":1,"zot_version":"0.1","provider":"p","model":"m","cwd":"/work","extension_dir":"/x","data_dir":"/d","mode":"rpc","capabilities":["panels"]}`)
	h.want(`{"type":"ready"}`)
	want := HostInfo{1, "0.1", "p", "m", "/work", "/x", "/d", "rpc", []string{"panels"}}
	if host := <-got; fmt.Sprint(host) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", host, want)
	}
}

func TestCommands(t *testing.T) {
	e, _ := quiet()
	responses := map[string]Response{
		"prompt":  Prompt("a<b && c"),
		"insert":  Insert("text"),
		"display": Display("note"),
		"panel":   OpenPanel("main", "Todos", []string{"one", ""}, "esc close"),
		"empty":   OpenPanel("main", "Todos", nil, ""),
		"noop":    Noop(),
		"zero":    {},
		"error":   Errorf("no %s", "luck"),
	}
	for name, r := range responses {
		e.Command(name, "", func(string) Response { return r })
	}
	e.Command("echo", "", func(args string) Response { return Display(args) })
	e.Command("panic", "", func(string) Response { panic("oh") })
	h := ready(t, e)
	for _, c := range []struct{ request, reply string }{
		{`"name":"prompt"`, `"action":"prompt","prompt":"a<b && c"`},
		{`"name":"insert"`, `"action":"insert","insert":"text"`},
		{`"name":"display"`, `"action":"display","display":"note"`},
		{`"name":"panel"`, `"action":"open_panel","open_panel":{"id":"main","title":"Todos","lines":["one",""],"footer":"esc close"}`},
		{`"name":"empty"`, `"action":"open_panel","open_panel":{"id":"main","title":"Todos","lines":[],"footer":""}`},
		{`"name":"noop"`, `"action":"noop"`},
		{`"name":"zero"`, `"action":"noop"`},
		{`"name":"error"`, `"action":"noop","error":"no luck"`},
		{`"name":"ECHO","args":"two words"`, `"action":"display","display":"two words"`},
		{`"name":"echo","args":7`, `"action":"noop","error":"test: the arguments of echo are not text: json: cannot unmarshal number into Go value of type string"`},
		{`"name":"nosuch"`, `"action":"noop","error":"test has no command \"nosuch\""`},
		{`"name":"panic"`, `"action":"noop","error":"test: command panic failed inside: oh"`},
	} {
		h.send(`{"type":"command_invoked","id":"7",` + c.request + `}`)
		h.want(`{"type":"command_response","id":"7",` + c.reply + `}`)
	}
}

func TestTools(t *testing.T) {
	e, log := quiet()
	e.Tool("echo", "", nil, func(args json.RawMessage) ToolResult { return TextResult(string(args)) })
	e.Tool("fail", "", nil, func(json.RawMessage) ToolResult { return TextErrorResult("no") })
	e.Tool("image", "", nil, func(json.RawMessage) ToolResult { return ImageResult("image/png", []byte("png")) })
	e.Tool("empty", "", nil, func(json.RawMessage) ToolResult { return ToolResult{} })
	e.Tool("load", "", nil, func(json.RawMessage) ToolResult {
		r := TextResult("loaded")
		r.ActivateTools = []string{"later"}
		return r
	})
	e.Tool("panic", "", nil, func(json.RawMessage) ToolResult { panic(errors.New("oh")) })
	h := ready(t, e)
	for _, c := range []struct{ request, reply string }{
		{`"name":"echo","args":{"n":12345678901234567890}`, `"content":[{"type":"text","text":"{\"n\":12345678901234567890}"}]`},
		{`"name":"echo"`, `"content":[{"type":"text","text":"{}"}]`},
		{`"name":"fail","args":{}`, `"content":[{"type":"text","text":"no"}],"is_error":true`},
		{`"name":"image","args":{}`, `"content":[{"type":"image","mime_type":"image/png","data":"cG5n"}]`},
		{`"name":"empty","args":{}`, `"content":[]`},
		{`"name":"load","args":{}`, `"content":[{"type":"text","text":"loaded"}],"activate_tools":["later"]`},
		{`"name":"Echo","args":{}`, `"content":[{"type":"text","text":"test has no tool \"Echo\""}],"is_error":true`},
		{`"name":"panic","args":{}`, `"content":[{"type":"text","text":"test: tool panic failed inside: oh. Whether it had an effect is unknown."}],"is_error":true`},
	} {
		h.send(`{"type":"tool_call","id":9,` + c.request + `}`)
		h.want(`{"type":"tool_result","id":9,` + c.reply + `}`)
	}
	if !strings.Contains(log.String(), "ext_test.go") {
		t.Errorf("the log has no stack of the panic:\n%s", log)
	}
}

// A tool that takes its time does not hold up the others, tells how far it is,
// and is told when zot wants the extension to go.
func TestSlowTool(t *testing.T) {
	e, _ := quiet()
	e.AddTool(ToolSpec{Name: "slow", Run: func(ctx context.Context, c ToolCall) ToolResult {
		c.Progress("half")
		<-ctx.Done()
		return TextResult("stopped")
	}})
	e.Tool("quick", "", nil, say("done"))
	h := ready(t, e)
	h.send(`{"type":"tool_call","id":"1","name":"slow","args":{}}`)
	h.want(`{"type":"tool_progress","id":"1","text":"half"}`)
	h.send(`{"type":"tool_call","id":"2","name":"quick","args":{}}`)
	h.want(`{"type":"tool_result","id":"2","content":[{"type":"text","text":"done"}]}`)
	h.send(`{"type":"shutdown"}`)
	h.want(`{"type":"tool_result","id":"1","content":[{"type":"text","text":"stopped"}]}`, `{"type":"shutdown_ack"}`)
	h.ended()
}

func TestHooks(t *testing.T) {
	const toolCall = `"event":"tool_call","tool_id":"c","tool_name":"bash","tool_args":{"command":"ls"}`
	for _, c := range []struct {
		name     string
		register func(e *Extension)
		request  string
		reply    string
	}{
		{"allow", func(e *Extension) {
			e.InterceptToolCall(func(tool string, args json.RawMessage) (bool, string) { return true, "" })
		}, toolCall, ``},
		{"refuse", func(e *Extension) {
			e.InterceptToolCall(func(tool string, args json.RawMessage) (bool, string) { return false, tool + string(args) })
		}, toolCall, `,"block":true,"reason":"bash{\"command\":\"ls\"}"`},
		{"rewrite", func(e *Extension) {
			e.InterceptToolCallX(func(string, json.RawMessage) ToolCallDecision {
				return ToolCallDecision{ModifiedArgs: json.RawMessage(`{"command": "echo GUARDED"}`)}
			})
		}, toolCall, `,"modified_args":{"command":"echo GUARDED"}`},
		{"bad rewrite", func(e *Extension) {
			e.InterceptToolCallX(func(string, json.RawMessage) ToolCallDecision {
				return ToolCallDecision{ModifiedArgs: json.RawMessage(`{"command"`)}
			})
		}, toolCall, `,"block":true,"reason":"test: hook tool_call failed inside: ModifiedArgs is not a JSON object: {\"command\""`},
		{"panic", func(e *Extension) {
			e.InterceptToolCallX(func(string, json.RawMessage) ToolCallDecision { panic("oh") })
		}, toolCall, `,"block":true,"reason":"test: hook tool_call failed inside: oh"`},
		{"turn", func(e *Extension) {
			e.InterceptTurnStart(func(step int) TurnStartDecision {
				return TurnStartDecision{Block: true, Reason: fmt.Sprint("step ", step)}
			})
		}, `"event":"turn_start","step":3`, `,"block":true,"reason":"step 3"`},
		{"message", func(e *Extension) {
			e.InterceptAssistantMessage(func(text string) AssistantMessageDecision {
				return AssistantMessageDecision{ReplaceText: strings.ReplaceAll(text, "SECRET", "[redacted]")}
			})
		}, `"event":"assistant_message","text":"the SECRET"`, `,"replace_text":"the [redacted]"`},
		{"prompt", func(e *Extension) {
			e.BeforeAgentStart(func(prompt string) string { return prompt + " Be brief." })
		}, `"event":"before_agent_start","system_prompt":"Help."`, `,"system_prompt":"Help. Be brief."`},
		{"prompt kept", func(e *Extension) {
			e.BeforeAgentStart(func(string) string { return "" })
		}, `"event":"before_agent_start","system_prompt":"Help."`, ``},
		{"not asked for", func(e *Extension) {}, `"event":"future_event"`, ``},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, _ := quiet()
			c.register(e)
			h := ready(t, e)
			h.send(`{"type":"event_intercept","id":"1",` + c.request + `}`)
			h.want(`{"type":"event_intercept_response","id":"1"` + c.reply + `}`)
		})
	}
}

// A prompt hook that fails leaves the prompt as it is, and says so.
func TestPromptHookPanic(t *testing.T) {
	e, _ := quiet()
	e.BeforeAgentStart(func(string) string { panic("oh") })
	h := ready(t, e)
	h.send(`{"type":"event_intercept","id":"1","event":"before_agent_start","system_prompt":"Help."}`)
	h.want(`{"type":"notify","level":"warn","message":"test: hook before_agent_start failed inside: oh"}`,
		`{"type":"event_intercept_response","id":"1"}`)
}

// Events come in order, each with its fields; a handler that fails costs one.
func TestEvents(t *testing.T) {
	e, _ := quiet()
	for _, name := range eventNames {
		e.On(name, func(v Event) {
			if v.Stop == "panic" {
				panic("oh")
			}
			e.Notify("info", fmt.Sprintf("%s %d %s %s %s %s %s %s %s", v.Name, v.Step, v.ToolID, v.ToolName, v.ToolArgs, v.ToolPreview, v.Stop, v.Error, v.Text))
		})
	}
	h := ready(t, e)
	note := func(text string) string { return `{"type":"notify","level":"info","message":"` + text + `"}` }
	h.send(`{"type":"event","event":"session_start"}`,
		`{"type":"event","event":"turn_start","step":1}`,
		`{"type":"event","event":"tool_call","tool_id":"c1","tool_name":"read","tool_args":{}}`,
		`{"type":"event","event":"tool_confirmation_requested","tool_id":"c1","tool_name":"read","tool_preview":"foo.go"}`,
		`{"type":"event","event":"future_event"}`,
		`{"type":"event","event":"assistant_message","text":"hi"}`,
		`{"type":"event","event":"turn_end","stop":"panic"}`,
		`{"type":"event","event":"turn_end","stop":"error","error":"401"}`)
	h.want(note("session_start 0       "), note("turn_start 1       "), note("tool_call 0 c1 read {}    "),
		note("tool_confirmation_requested 0 c1 read  foo.go   "), note("assistant_message 0       hi"),
		`{"type":"notify","level":"error","message":"test: the handler of turn_end failed inside: oh"}`,
		note("turn_end 0     error 401 "))
	for i := range 100 {
		h.send(fmt.Sprintf(`{"type":"event","event":"turn_start","step":%d}`, i))
	}
	for i := range 100 {
		h.want(note(fmt.Sprintf("turn_start %d       ", i)))
	}
}

func TestPanels(t *testing.T) {
	e, _ := quiet()
	e.OnPanelKey(func(panelID, key, text string) {
		if key == "delete" {
			e.ClosePanel(panelID)
			return
		}
		e.RenderPanel(panelID, "Keys", []string{key + text}, "esc close")
	})
	e.OnPanelClose(func(panelID string) { panic(panelID) })
	h := ready(t, e)
	h.send(`{"type":"panel_key","panel_id":"main","key":"down"}`,
		`{"type":"panel_key","panel_id":"main","key":"rune","text":"é"}`,
		`{"type":"panel_key","panel_id":"main","key":"delete"}`,
		`{"type":"panel_close","panel_id":"main"}`)
	h.want(`{"type":"panel_render","panel_id":"main","title":"Keys","lines":["down"],"footer":"esc close"}`,
		`{"type":"panel_render","panel_id":"main","title":"Keys","lines":["runeé"],"footer":"esc close"}`,
		`{"type":"panel_close","panel_id":"main"}`,
		`{"type":"notify","level":"error","message":"test: the handler of panel_close failed inside: main"}`)
}

func TestOneWay(t *testing.T) {
	e, log := quiet()
	e.Notify("info", "too early")
	if !strings.Contains(log.String(), "notify before Run is dropped") {
		t.Errorf("log: %s", log)
	}
	h := ready(t, e)
	go func() {
		e.ClearNotes()
		e.Submit("Summarize.")
		e.RenderPanel("main", "Empty", nil, "")
	}()
	h.want(`{"type":"clear_notes"}`, `{"type":"submit","text":"Summarize."}`,
		`{"type":"panel_render","panel_id":"main","title":"Empty","lines":[]}`)
	e.Logf("%d entries", 12)
	if !strings.Contains(log.String(), "12 entries\n") {
		t.Errorf("log: %s", log)
	}
}

// What is not a frame of this protocol harms nothing, and frames have any length.
func TestLines(t *testing.T) {
	e, log := quiet()
	e.Command("echo", "", func(args string) Response { return Display(args) })
	h := ready(t, e)
	h.send(``, `banner`, `[1]`, `null`, `{"type":7}`, `{"type":"future_frame","id":"x"}`, `{"type":"event"`,
		`{"type":"command_invoked","id":"1","name":"echo","args":"still here","step":"x"}`)
	h.want(`{"type":"command_response","id":"1","action":"display","display":"still here"}`)
	if !strings.Contains(log.String(), "banner") {
		t.Errorf("the log does not name the bad line:\n%s", log)
	}
	long := strings.Repeat("x", 5<<20)
	h.send(`{"type":"command_invoked","id":"2","name":"echo","args":"` + long + `"}`)
	h.want(`{"type":"command_response","id":"2","action":"display","display":"` + long + `"}`)
}

// Frames are valid UTF-8 without U+2028 and U+2029, raw values included.
func TestEncoding(t *testing.T) {
	e, _ := quiet()
	e.Command("text", "", func(string) Response { return Display("a\u2028b\u2029c\xff<&>") })
	e.InterceptToolCallX(func(string, json.RawMessage) ToolCallDecision {
		return ToolCallDecision{ModifiedArgs: json.RawMessage("{\"k\":\"a\u2028b\u2029c\xff\"}")}
	})
	h := ready(t, e)
	h.send(`{"type":"command_invoked","id":"1","name":"text"}`)
	display := h.line()
	if want := `{"type":"command_response","id":"1","action":"display","display":"a\u2028b\u2029c` + "\ufffd" + `<&>"}`; display != want &&
		display != strings.Replace(want, "\ufffd", `\ufffd`, 1) {
		t.Errorf("got %s", display)
	}
	h.send("{\"type\":\"event_intercept\",\"id\":\"\u2028\",\"event\":\"tool_call\"}")
	reply := h.line()
	if want := `{"type":"event_intercept_response","id":"\u2028","modified_args":{"k":"a\u2028b\u2029c` + "\ufffd" + `"}}`; reply != want {
		t.Errorf("got %s", reply)
	}
	if !utf8.ValidString(display + reply) {
		t.Error("not valid UTF-8")
	}
}

// Requests that come before ready are answered behind it.
func TestEarlyRequest(t *testing.T) {
	e, _ := quiet()
	begun, goOn := make(chan bool), make(chan bool)
	greeting := ""
	e.OnHello(func(host HostInfo) { begun <- true; <-goOn; greeting = "prepared" })
	e.Command("greet", "", func(string) Response { return Display(greeting) })
	h := start(t, e)
	h.send(`{"type":"hello_ack"}`)
	<-begun
	h.send(`{"type":"command_invoked","id":"1","name":"greet"}`)
	close(goOn)
	h.want(`{"type":"register_command","name":"greet"}`, `{"type":"ready"}`,
		`{"type":"command_response","id":"1","action":"display","display":"prepared"}`)
}

// The end of the input ends Run in every state, at the latest after the grace.
func TestEndOfInput(t *testing.T) {
	stuck := make(chan bool)
	t.Cleanup(func() { close(stuck) })
	t.Run("before hello_ack", func(t *testing.T) {
		t.Parallel()
		e, _ := quiet()
		h := start(t, e)
		h.in.Close()
		h.ended()
	})
	t.Run("in OnHello", func(t *testing.T) {
		t.Parallel()
		e, _ := quiet()
		e.OnHello(func(HostInfo) { <-stuck })
		h := start(t, e)
		h.send(`{"type":"hello_ack"}`, `{"type":"command_invoked","id":"1"}`)
		h.in.Close()
		h.ended()
	})
	t.Run("a handler that never ends", func(t *testing.T) {
		t.Parallel()
		e, _ := quiet()
		e.Command("stuck", "", func(string) Response { <-stuck; return Noop() })
		h := ready(t, e)
		h.send(`{"type":"command_invoked","id":"1","name":"stuck"}`)
		h.in.Close()
		h.ended()
	})
	t.Run("a host that does not read", func(t *testing.T) {
		t.Parallel()
		e, _ := quiet()
		e.On("turn_start", func(Event) { e.Notify("info", "x") })
		h := ready(t, e)
		for range 100 {
			h.send(`{"type":"event","event":"turn_start"}`)
		}
		h.send(`{"type":"shutdown"}`)
		select {
		case err := <-h.done:
			h.done <- err
		case <-time.After(patience):
			t.Fatal("Run waits for a host that does not read")
		}
	})
	t.Run("without a line end", func(t *testing.T) {
		t.Parallel()
		e, _ := quiet()
		h := ready(t, e)
		io.WriteString(h.in, `{"type":"shutdown"}`)
		h.in.Close()
		h.want(`{"type":"shutdown_ack"}`)
		h.ended()
	})
	t.Run("an input that breaks", func(t *testing.T) {
		t.Parallel()
		e, _ := quiet()
		h := ready(t, e)
		h.in.CloseWithError(errors.New("broken"))
		if err := <-h.done; err == nil || err.Error() != "reading from zot: broken" {
			t.Errorf("Run returned %v", err)
		}
		h.done <- nil
	})
}

// A mistake of the author is a panic that says what to change.
func TestMistakes(t *testing.T) {
	command := func(string) Response { return Noop() }
	for _, c := range []struct {
		want string
		do   func(e *Extension)
	}{
		{`ext: command "a" is registered twice`, func(e *Extension) { e.Command("a", "", command); e.Command("A", "", command) }},
		{`ext: tool "t" is registered twice`, func(e *Extension) { e.Tool("t", "", nil, say("")); e.DeferredTool("t", "", nil, say("")) }},
		{`ext: the hook of "tool_call" is registered twice`, func(e *Extension) {
			e.InterceptToolCall(func(string, json.RawMessage) (bool, string) { return true, "" })
			e.InterceptToolCallX(func(string, json.RawMessage) ToolCallDecision { return ToolCallDecision{} })
		}},
		{`ext: a command needs a name`, func(e *Extension) { e.Command("", "", command) }},
		{`ext: a tool needs a name`, func(e *Extension) { e.Tool("", "", nil, say("")) }},
		{`ext: the OnHello handler needs a function`, func(e *Extension) { e.OnHello(nil) }},
		{`ext: tool "t" needs a function`, func(e *Extension) { e.Tool("t", "", nil, nil) }},
		{`ext: the schema of tool "t" is not a JSON object: [1]`, func(e *Extension) { e.Tool("t", "", json.RawMessage("[1]"), say("")) }},
		{`ext: the time limit of tool "t" is negative: -1s`, func(e *Extension) { e.AddTool(ToolSpec{Name: "t", Timeout: -time.Second}) }},
		{`ext: there is no event "tool_cal" (known: session_start, turn_start, turn_end, tool_call, tool_confirmation_requested, assistant_message)`,
			func(e *Extension) { e.On("tool_cal", func(Event) {}) }},
		{`ext: command "late" comes too late: register before Run or in OnHello`, func(e *Extension) {
			ready(t, e)
			e.Command("late", "", command)
		}},
		{`ext: Run is called twice`, func(e *Extension) {
			ready(t, e)
			e.run(nil, nil)
		}},
	} {
		e, _ := quiet()
		var got any
		func() {
			defer func() { got = recover() }()
			c.do(e)
		}()
		if got != c.want {
			t.Errorf("got %v, want %s", got, c.want)
		}
	}
}

// noisyExtension prints where frames go.
func noisyExtension() {
	e := New("noisy", "1")
	e.Command("print", "", func(string) Response {
		fmt.Println("a stray line")
		return Display("printed")
	})
	e.Command("die", "", func(string) Response {
		<-e.ctx.Done()
		for range 10 {
			e.Notify("info", "to nobody")
		}
		e.Logf("finished")
		return Noop()
	})
	if err := e.Run(); err != nil {
		e.Logf("%v", err)
		os.Exit(1)
	}
	fmt.Println("a stray line behind Run")
}

// A real process: stray prints go to the log, and when the host is gone the
// handlers finish, the process leaves and no write to the dead pipe ends it early.
func TestProcess(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "EXT_TEST_PROCESS=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, _ := cmd.StdinPipe()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	kill := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
	defer kill.Stop()
	lines := bufio.NewScanner(r)
	io.WriteString(in, `{"type":"hello_ack"}`+"\n"+`{"type":"command_invoked","id":"1","name":"print"}`+"\n"+`{"type":"command_invoked","id":"2","name":"die"}`+"\n")
	for lines.Scan() && !strings.Contains(lines.Text(), "command_response") {
		if !json.Valid(lines.Bytes()) {
			t.Errorf("not a frame: %s", lines.Text())
		}
	}
	if want := `{"type":"command_response","id":"1","action":"display","display":"printed"}`; lines.Text() != want {
		t.Errorf("got %s", lines.Text())
	}
	r.Close()
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the process ended with %v", err)
	}
	for _, want := range []string{"a stray line\n", "finished\n", "a stray line behind Run\n"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("stderr has no %q:\n%s", want, &stderr)
		}
	}
}
