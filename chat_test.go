package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// chatStreams are the streams in testdata/streams/chat-*.sse and what they
// mean. content is one line a block; a call that must not run has its
// arguments behind a "!".
var chatStreams = map[string]struct {
	content string
	stop    string
	raw     string
	usage   string // input output cache-read cache-write reasoning
	err     string // in the error text; the call failed
	retry   bool
}{
	"text":                        {content: "text Grüße, \"you\"\n😀 \u2028 <b> \ufffd.", stop: "end_turn", raw: "stop", usage: "12 7 8 0 0"},
	"framing":                     {content: "text one two", stop: "end_turn", raw: "stop"},
	"calls-interleaved":           {content: "text Looking.|call_a read {\"path\":\"a.go\"}|call_b bash {\"command\":\"ls\"}", stop: "tool_use", raw: "tool_calls"},
	"calls-one-index":             {content: "call_a read {\"path\":\"a\"}|call_b read {\"path\":\"b\"}|call_c list {}", stop: "tool_use", raw: "tool_calls"},
	"calls-without-index":         {content: "aB3dE6gH9 read {\"path\":\"a\"}|zY8xW7vU6 read {\"path\":\"b\"}", stop: "tool_use", raw: "tool_calls", usage: "30 12 0 0 -"},
	"calls-without-index-written": {content: "x1 read {\"path\":\"a\"}|call_3_2 read {\"path\":\"b\"}|call_3_3 now {}", stop: "tool_use", raw: "tool_calls"},
	"calls-blanked":               {content: "call_a read {\"path\":\"a\"}", stop: "tool_use", raw: "tool_calls"},
	"calls-changing-id":           {content: "functions.read:0 read {\"path\":\"a\"}|functions.bash:1 bash {\"command\":\"ls\"}", stop: "tool_use", raw: "tool_calls"},
	"calls-bad-ids":               {content: "call_3_1 read {\"path\":\"a\"}|call_3_2 read {\"path\":\"b\"}|same read {\"path\":\"c\"}|call_3_4 read {\"path\":\"d\"}", stop: "tool_use", raw: "tool_calls"},
	"calls-from-one":              {content: "thinking |call_a read {\"path\":\"a\"}", stop: "tool_use", raw: "stop"},
	"calls-late-name":             {content: "call_a read {\"path\":\"a\"}", stop: "tool_use", raw: "function_call"},
	"arguments":                   {content: "a read {\"path\":\"é\\u2028<\",\"n\":12345678901234567890}|b now {}|c now {}|d read {\"path\":\"x\"}|e now {}|f read ![1]", stop: "tool_use", raw: "tool_calls"},
	"length-empty-arguments":      {content: "call_a write {}", stop: "length", raw: "length"},
	"length-native":               {content: "call_a write !{\"content\":\"abc", stop: "length", raw: "max_output_tokens", usage: "9 16 0 0 -"},
	"length-empty":                {stop: "length", raw: "length", usage: "5 64 0 0 64"},
	"finish-null-again":           {content: "text hi", stop: "end_turn", raw: "stop", usage: "3 1 0 0 -"},
	"no-finish":                   {content: "text hi!", stop: "end_turn"},
	"cut-text":                    {content: "text half an ans", err: "closed the connection", retry: true},
	"cut-call":                    {content: "call_a write {\"path\":\"a\"}", err: "closed the connection", retry: true},
	"cut-event":                   {content: "text a", err: "closed the connection", retry: true},
	"only-done":                   {err: "closed the connection", retry: true},
	"error-object":                {content: "text par", usage: "4 2 0 0 -", err: "502 Bad Gateway: Upstream idle timeout exceeded", retry: true},
	"error-in-choice":             {err: "429 Too Many Requests: Rate limited by the upstream", retry: true},
	"error-event":                 {content: "text may", err: "400 Bad Request: invalid_request_error, tool_use_failed: Tool choice is required"},
	"error-field":                 {content: "text a", err: "500 Internal Server Error: server_error: the slot was lost", retry: true},
	"error-text":                  {err: "model is overloaded", retry: true},
	"error-overflow":              {err: "maximum context length is 8192"},
	"content-filter":              {content: "text Well, ", err: "content filter"},
	"gave-up":                     {content: "text a", err: "insufficient_system_resource", retry: true},
	"refusal":                     {content: "text I can't help with that.", stop: "end_turn", raw: "stop"},
	"reasoning":                   {content: "thinking abc|text d", stop: "end_turn", raw: "stop"},
	"reasoning-details":           {content: "thinking Let me see\u2028.|text Yes.", stop: "end_turn", raw: "stop"},
	"reasoning-details-alone":     {content: "thinking Hmm.|text 4", stop: "end_turn", raw: "stop"},
	"content-parts":               {content: "thinking 2+2 is 4.|text The answer is 4.", stop: "end_turn", raw: "stop"},
	"think-tags":                  {content: "text <think>a</think>b", stop: "end_turn", raw: "stop"},
	"usage-in-choice":             {content: "text hi", stop: "end_turn", raw: "stop", usage: "36 5 64 0 -"},
	"usage-cumulative":            {content: "text ab", stop: "end_turn", raw: "stop", usage: "10 3 0 0 -"},
	"usage-groq":                  {content: "text hi", stop: "end_turn", raw: "stop", usage: "12 4 0 0 -"},
	"usage-cached-above-prompt":   {content: "text hi", stop: "end_turn", raw: "stop", usage: "0 8 161 0 -"},
	"usage-cache-write":           {content: "text hi", stop: "end_turn", raw: "stop", usage: "20 8 30 50 -"},
	"usage-xai":                   {content: "text hi", stop: "end_turn", raw: "stop", usage: "1 2 164 0 129"},
	"choices-interleaved":         {content: "text A1A2", stop: "end_turn", raw: "stop"},
	"message-beside-delta":        {content: "text ab", stop: "end_turn", raw: "stop", usage: "2 2 0 0 -"},
	"whole-message":               {content: "thinking hm|text hi|call_a read {\"path\":\"a\"}", stop: "tool_use", raw: "tool_calls", usage: "4 2 0 0 -"},
	"glued":                       {content: "text ok", stop: "end_turn", raw: "stop"},
	"not-json":                    {content: "text a", err: "not JSON", retry: true},
	"keep-alives":                 {content: "text a", stop: "end_turn", raw: "stop"},
	"thought-signature":           {content: "call_a read {\"path\":\"a\"}", stop: "tool_use", raw: "stop", usage: "2 2 0 0 -"},
	"interleaved-text":            {content: "text a|call_a read {\"path\":\"a\"}|text b|thinking c|text d", stop: "tool_use", raw: "tool_calls"},
}

// chatRequest is a call behind three messages.
func chatRequest(m *Model) *request {
	return &request{model: m, messages: []*Message{userText("a"), userText("b"), userText("c")}}
}

func TestChatStreams(t *testing.T) {
	files, err := filepath.Glob("testdata/streams/chat-*.sse")
	if err != nil || len(files) != len(chatStreams) {
		t.Errorf("%d streams, %d are described (%v)", len(files), len(chatStreams), err)
	}
	for name, want := range chatStreams {
		t.Run(name, func(t *testing.T) {
			stream, err := os.ReadFile("testdata/streams/chat-" + name + ".sse")
			if err != nil {
				t.Fatal(err)
			}
			r := chatRequest(&Model{Provider: "test", ID: "m"})
			msg, err := decodeStream(t, chatWire, r, bytes.NewReader(stream))
			if got := chatContent(msg); got != want.content {
				t.Errorf("content %q\nwant    %q", got, want.content)
			}
			if msg.Stop != want.stop || msg.RawStop != want.raw && want.err == "" {
				t.Errorf("stop %q (%q), want %q (%q)", msg.Stop, msg.RawStop, want.stop, want.raw)
			}
			if got := chatUsage(msg.Usage); got != want.usage {
				t.Errorf("usage %q, want %q", got, want.usage)
			}
			pe, _ := err.(*providerError)
			if (err != nil) != (want.err != "") || err != nil && (!strings.Contains(err.Error(), want.err) || pe.retry != want.retry) {
				t.Errorf("error %+v, want %q, retry %t", pe, want.err, want.retry)
			}
			for _, n := range []int{1, 7, 4096} {
				again, err2 := decodeStream(t, chatWire, r, &chunked{stream, n})
				if !sameMessage(msg, again) || fmt.Sprint(err) != fmt.Sprint(err2) {
					t.Errorf("in pieces of %d bytes: %q, %v", n, chatContent(again), err2)
				}
			}
			chatCutStream(t, r, stream, msg)
		})
	}
}

// chatCutStream ends a stream at every byte (a long one at every few): what
// arrives is the beginning of the message, and no call may run unless the
// server said that it was done.
func chatCutStream(t *testing.T, r *request, stream []byte, whole *Message) {
	finished := bytes.Index(stream, []byte(`"finish_reason":"`))
	for n := 0; n < len(stream); n += 1 + len(stream)/120 {
		msg, err := decodeStream(t, chatWire, r, bytes.NewReader(stream[:n]))
		if !strings.HasPrefix(messageText(whole, "text"), messageText(msg, "text")) {
			t.Fatalf("cut at %d: %q", n, chatContent(msg))
		}
		if err == nil && msg.Stop == "" || err == nil && finished >= 0 && n < finished {
			t.Fatalf("cut at %d of %d: stop %q, no error", n, len(stream), msg.Stop)
		}
	}
}

func chatContent(m *Message) string {
	var blocks []string
	for _, b := range m.Content {
		switch {
		case b.Type != "tool_call":
			blocks = append(blocks, b.Type+" "+b.Text)
		case b.BadArgs != "":
			blocks = append(blocks, b.ID+" "+b.Name+" !"+b.BadArgs)
		default:
			blocks = append(blocks, b.ID+" "+b.Name+" "+string(b.Args))
		}
	}
	return strings.Join(blocks, "|")
}

func chatUsage(u *Usage) string {
	if u == nil {
		return ""
	}
	reasoning := "-"
	if u.Reasoning != nil {
		reasoning = fmt.Sprint(*u.Reasoning)
	}
	return fmt.Sprint(u.Input, u.Output, u.CacheRead, u.CacheWrite, " ", reasoning)
}

func TestChatRecorded(t *testing.T) {
	r := chatRequest(catalogModel(t, "groq", "openai/gpt-oss-120b", ""))
	for _, s := range recordedStreams(t, "openai-completions") {
		t.Run(s.name, func(t *testing.T) {
			msg, err := decodeStream(t, chatWire, r, bytes.NewReader(s.sse))
			checkRecorded(t, s, msg, err)
			if think := messageText(msg, "thinking"); strings.TrimSpace(think) != strings.TrimSpace(s.expected.Thinking) {
				t.Errorf("thinking %q, want %q", think, s.expected.Thinking)
			}
			again, err2 := decodeStream(t, chatWire, r, &chunked{s.sse, 7})
			if !sameMessage(msg, again) || fmt.Sprint(err) != fmt.Sprint(err2) {
				t.Errorf("in pieces of 7 bytes: %q, %v", chatContent(again), err2)
			}
		})
	}
}

func sentChat(t *testing.T, r *request) string {
	t.Helper()
	body := wireBody(chatWire, r)
	if !json.Valid(body) {
		t.Fatalf("not JSON: %s", body)
	}
	return string(body)
}

// chatMessages returns the messages of a request, one a line.
func chatMessages(t *testing.T, r *request) string {
	t.Helper()
	var body struct{ Messages []json.RawMessage }
	if err := json.Unmarshal([]byte(sentChat(t, r)), &body); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, m := range body.Messages {
		lines = append(lines, string(m))
	}
	return strings.Join(lines, "\n")
}

var chatTestTool = &tool{name: "read", description: "Reads a <file>.", schema: json.RawMessage(`{"type":"object","properties":{"path":{"type":"string"}}}`)}

func chatSays(s string) Block { return Block{Type: "text", Text: s} }

// chatTurn is an assistant message of m with calls, and their results.
func chatTurn(m *Model, content []Block, results ...*Message) []*Message {
	for i, r := range results {
		r.Role, r.CallID = "tool", content[len(content)-len(results)+i].ID
	}
	return append([]*Message{{Role: "assistant", Provider: m.Provider, Model: m.ID, Content: content}}, results...)
}

func TestChatBody(t *testing.T) {
	m := &Model{Provider: "groq", ID: "g", MaxOutput: 500, ContextWindow: 8000, Levels: map[string]string{"low": "low"}}
	call := Block{Type: "tool_call", ID: "call_1", Name: "read", Args: json.RawMessage(`{"path":"a\"b"}`)}
	r := &request{model: m, system: "Be <brief> & exact.\u2028", tools: []*tool{chatTestTool}, reasoning: "low"}
	r.messages = append([]*Message{userText("hi")}, chatTurn(m, []Block{chatSays("ok"), call}, &Message{ToolName: "read", Content: []Block{chatSays("a < b")}})...)
	want := `{"model":"g","messages":[{"role":"system","content":"Be <brief> & exact.\u2028"},{"role":"user","content":"hi"},` +
		`{"role":"assistant","content":"ok","tool_calls":[{"id":"call_1","type":"function","function":{"name":"read","arguments":"{\"path\":\"a\\\"b\"}"}}]},` +
		`{"role":"tool","tool_call_id":"call_1","content":"a < b"}],` +
		`"tools":[{"type":"function","function":{"name":"read","description":"Reads a <file>.","parameters":{"type":"object","properties":{"path":{"type":"string"}}}}}],` +
		`"stream":true,"stream_options":{"include_usage":true},"max_tokens":500,"reasoning_effort":"low"}`
	if got := sentChat(t, r); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := sentChat(t, r); got != want {
		t.Errorf("the second time: %s", got)
	}

	r.model = &Model{Provider: "openai", ID: "gpt-5", MaxOutput: 500, Levels: map[string]string{"off": "none"}}
	r.reasoning, r.tools, r.messages, r.maxTokens = "off", nil, r.messages[:1], 77
	want = `{"model":"gpt-5","messages":[{"role":"developer","content":"Be <brief> & exact.\u2028"},{"role":"user","content":"hi"}],` +
		`"stream":true,"stream_options":{"include_usage":true},"max_completion_tokens":77,"reasoning_effort":"none"}`
	if got := sentChat(t, r); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}

	r = &request{model: &Model{Provider: "ollama", ID: "q"}, messages: r.messages[:1], reasoning: "high"}
	want = `{"model":"q","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}}`
	if got := sentChat(t, r); got != want {
		t.Errorf("a model that nobody knows: %s", got)
	}
}

func TestChatLimit(t *testing.T) {
	m := &Model{Provider: "mistral", ID: "m", ContextWindow: 8000, MaxOutput: 8000}
	for _, test := range []struct{ max, prompt, want int }{
		{0, 300, 7900}, {0, 1 << 20, 1000}, {500, 300, 500}, {9000, 300, 7900},
	} {
		if got := chatLimit(&request{model: m, maxTokens: test.max}, test.prompt); got != test.want {
			t.Errorf("limit for %+v: %d", test, got)
		}
	}
}

func TestChatReasoning(t *testing.T) {
	for _, test := range []struct{ provider, model, level, want string }{
		{"groq", "openai/gpt-oss-120b", "high", `,"reasoning_effort":"high"`},
		{"groq", "openai/gpt-oss-120b", "", ``},
		{"groq", "qwen/qwen3.6-27b", "high", `,"reasoning_effort":"default"`},
		{"groq", "qwen/qwen3.6-27b", "off", `,"reasoning_effort":"none"`},
		{"groq", "llama-3.1-8b-instant", "high", ``},
		{"google", "gemini-2.5-flash", "off", ``},
		{"moonshotai", "kimi-k3", "max", `,"reasoning_effort":"max"`},
		{"moonshotai", "kimi-k2.6", "high", `,"thinking":{"type":"enabled"}`},
		{"moonshotai", "kimi-k2.6", "off", `,"thinking":{"type":"disabled"}`},
		{"moonshotai", "kimi-k2.6", "", ``},
		{"moonshotai", "kimi-k2-0711-preview", "off", ``},
		{"deepseek", "deepseek-v4-pro", "max", `,"reasoning_effort":"max"`},
		{"deepseek", "deepseek-v4-pro", "off", `,"thinking":{"type":"disabled"}`},
		{"zai", "glm-5.2", "off", `,"thinking":{"type":"disabled"}`},
		{"zai", "glm-5.2", "high", `,"reasoning_effort":"high"`},
		{"together", "MiniMaxAI/MiniMax-M3", "high", `,"reasoning":{"enabled":true}`},
		{"together", "MiniMaxAI/MiniMax-M3", "off", `,"reasoning":{"enabled":false}`},
		{"together", "deepseek-ai/DeepSeek-V4-Pro", "high", `,"reasoning_effort":"high"`},
		{"together", "MiniMaxAI/MiniMax-M2.7", "high", ``},
		{"openrouter", "some/model", "xhigh", `,"reasoning":{"effort":"xhigh"}`},
		{"openrouter", "some/model", "off", `,"reasoning":{"enabled":false}`},
		{"openrouter", "some/model", "", ``},
	} {
		r := &request{model: catalogModel(t, test.provider, test.model, ""), reasoning: test.level}
		if got := string(appendChatReasoning(nil, r)); got != test.want {
			t.Errorf("%s %s at %q: %s, want %s", test.provider, test.model, test.level, got, test.want)
		}
	}
}

// What one model wants back, another never gets.
func TestChatReplay(t *testing.T) {
	kimi := catalogModel(t, "moonshotai", "kimi-k2.6", "")
	router := &Model{Provider: "openrouter", ID: "vendor/m"}
	google := catalogModel(t, "google", "gemini-3.5-flash", "")
	call := Block{Type: "tool_call", ID: "functions.read:0", Name: "read", Args: json.RawMessage(`{}`), Signature: "sig"}
	thinking := Block{Type: "thinking", Text: "hm\u2028", Signature: `[{"type":"reasoning.encrypted","data":"x"}]`}
	for _, test := range []struct {
		name    string
		by, to  *Model
		content []Block
		want    string
	}{
		{"reasoning to its model", kimi, kimi, []Block{{Type: "thinking", Text: "a"}, {Type: "thinking", Text: "b"}, {Type: "tool_call", ID: "functions.read:0", Name: "read", Args: json.RawMessage(`{}`)}},
			`{"role":"assistant","content":null,"reasoning_content":"ab","tool_calls":[{"id":"functions.read:0","type":"function","function":{"name":"read","arguments":"{}"}}]}`},
		{"without a call it is not wanted", kimi, kimi, []Block{{Type: "thinking", Text: "a"}, chatSays("b")}, `{"role":"assistant","content":"b"}`},
		{"another model's reasoning", google, kimi, []Block{{Type: "thinking", Text: "a"}, {Type: "tool_call", ID: "x", Name: "read", Args: json.RawMessage(`{}`)}},
			`{"role":"assistant","content":null,"reasoning_content":"","tool_calls":[{"id":"x","type":"function","function":{"name":"read","arguments":"{}"}}]}`},
		{"details to their model", router, router, []Block{thinking, chatSays("b")},
			`{"role":"assistant","content":"b","reasoning_details":[{"type":"reasoning.encrypted","data":"x"}]}`},
		{"details to another model", router, kimi, []Block{thinking, chatSays("b")}, `{"role":"assistant","content":"b"}`},
		{"the signature of another wire format", router, router, []Block{{Type: "thinking", Text: "a", Signature: `{"type":"reasoning"}`}, chatSays("b")}, `{"role":"assistant","content":"b"}`},
		{"thought signature to its model", google, google, []Block{call},
			`{"role":"assistant","content":null,"tool_calls":[{"id":"call_c216cab2de2e56d547b4e6340edfc11a","extra_content":{"google":{"thought_signature":"sig"}},"type":"function","function":{"name":"read","arguments":"{}"}}]}`},
		{"thought signature to another", google, kimi, []Block{call},
			`{"role":"assistant","content":null,"reasoning_content":"","tool_calls":[{"id":"functions.read:0","type":"function","function":{"name":"read","arguments":"{}"}}]}`},
		{"arguments that were cut", router, router, []Block{{Type: "tool_call", ID: "x", Name: "a b", Args: json.RawMessage(`{}`), BadArgs: `{"pa`}},
			`{"role":"assistant","content":null,"tool_calls":[{"id":"x","type":"function","function":{"name":"a_b","arguments":"{}"}}]}`},
		{"blank text", router, router, []Block{chatSays("a"), chatSays(" \n"), chatSays("b"), {Type: "opaque", Signature: "{}"}}, `{"role":"assistant","content":"a\nb"}`},
		{"nothing", router, router, []Block{chatSays(" \n"), {Type: "thinking", Text: "a"}}, ``},
	} {
		msg := &Message{Role: "assistant", Provider: test.by.Provider, Model: test.by.ID, Content: test.content}
		if got := chatMessages(t, &request{model: test.to, messages: []*Message{msg}}); got != test.want {
			t.Errorf("%s:\ngot  %s\nwant %s", test.name, got, test.want)
		}
	}
}

func TestChatResults(t *testing.T) {
	m := &Model{Provider: "groq", ID: "g", Vision: true}
	image := Block{Type: "image", MimeType: "image/png", Data: "QUJD"}
	calls := []Block{{Type: "tool_call", ID: "a", Name: "read", Args: json.RawMessage(`{}`)}, {Type: "tool_call", ID: "b", Name: "read", Args: json.RawMessage(`{}`)}, {Type: "tool_call", ID: "c", Name: "read", Args: json.RawMessage(`{}`)}}
	r := &request{model: m}
	r.messages = append([]*Message{{Role: "user", Content: []Block{chatSays("what is"), image, chatSays("this?")}}},
		chatTurn(m, calls, &Message{Content: []Block{image}}, &Message{}, &Message{ToolName: "read", Content: []Block{chatSays("one"), image, chatSays("two")}})...)
	const png = `{"type":"image_url","image_url":{"url":"data:image/png;base64,QUJD"}}`
	want := []string{`{"role":"user","content":[{"type":"text","text":"what is"},` + png + `,{"type":"text","text":"this?"}]}`, "",
		`{"role":"tool","tool_call_id":"a","content":"(image below)"}`,
		`{"role":"tool","tool_call_id":"b","content":"(no output)"}`,
		`{"role":"tool","tool_call_id":"c","content":"one\ntwo"}`,
		`{"role":"user","content":[{"type":"text","text":"Images of the tool results above:"},` + png + `,` + png + `]}`}
	check := func(what string) {
		t.Helper()
		got := strings.Split(chatMessages(t, r), "\n")
		for i := range max(len(want), len(got)) {
			if i >= len(want) || i >= len(got) || want[i] != "" && got[i] != want[i] {
				t.Fatalf("%s: message %d of\n%s\nwant\n%s", what, i, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	}
	check("images")

	r.messages = append(r.messages, userText("go on"))
	want = append(want, `{"role":"user","content":"go on"}`)
	check("images before a user message")

	r.model = &Model{Provider: "google", ID: "g"}
	const note = `(an image was left out: this model takes no images)`
	want = []string{`{"role":"user","content":"what is\n` + note + `\nthis?"}`, "",
		`{"role":"tool","tool_call_id":"a","name":"_","content":"` + note + `"}`, "",
		`{"role":"tool","tool_call_id":"c","name":"read","content":"one\n` + note + `\ntwo"}`, `{"role":"user","content":"go on"}`}
	check("a model without vision that wants names")

	r.model, r.messages = &Model{Provider: "openrouter", ID: "mistralai/Devstral"}, r.messages[1:]
	want = []string{"", "", "", "", `{"role":"assistant","content":"Done."}`, `{"role":"user","content":"go on"}`}
	check("a model that wants an assistant message between")
}

func TestChatToolIDs(t *testing.T) {
	ids := []string{"call_1", "functions.read:0", "functions_read_0", "functions.read.0", "aB3dE6gH9", "a:b", "a;b", "", strings.Repeat("x", 41), strings.Repeat("x", 42), "é"}
	for _, test := range []struct {
		model   *Model
		pattern string
		kept    []string
	}{
		{&Model{Provider: "groq", ID: "g"}, `^[A-Za-z0-9_-]{1,40}$`, []string{"call_1", "functions_read_0", "aB3dE6gH9"}},
		{&Model{Provider: "mistral", ID: "g"}, `^[A-Za-z0-9]{9}$`, []string{"aB3dE6gH9"}},
		{&Model{Provider: "vllm", ID: "Devstral-Small"}, `^[A-Za-z0-9]{9}$`, []string{"aB3dE6gH9"}},
		{&Model{Provider: "openrouter", ID: "moonshotai/kimi-k2"}, `^[A-Za-z0-9_.:-]{1,80}$`, []string{"functions.read:0", "a:b"}},
	} {
		seen := map[string]string{}
		for _, id := range ids {
			got := chatToolID(id, test.model)
			if !regexp.MustCompile(test.pattern).MatchString(got) {
				t.Errorf("%s: %q becomes %q", test.model.ID, id, got)
			}
			if other, ok := seen[got]; ok {
				t.Errorf("%s: %q and %q both become %q", test.model.ID, id, other, got)
			}
			seen[got] = id
			if slices.Contains(test.kept, id) && got != id {
				t.Errorf("%s: %q becomes %q", test.model.ID, id, got)
			}
		}
	}
}

func TestChatDeferredTools(t *testing.T) {
	later := &tool{name: "later", schema: json.RawMessage(`{"type":"object"}`), deferred: true}
	never := &tool{name: "never", schema: json.RawMessage(`{"type":"object"}`), deferred: true}
	const def = `{"type":"function","function":{"name":"later","description":"","parameters":{"type":"object"}}}`
	ask := func(m *Model) (messages, body string) {
		r := &request{model: m, tools: []*tool{chatTestTool, later, never}}
		for i := range 2 { // activated twice, announced once
			id := fmt.Sprint("c", i)
			r.messages = append(r.messages, chatTurn(m, []Block{{Type: "tool_call", ID: id, Name: "find", Args: json.RawMessage(`{}`)}, {Type: "tool_call", ID: id + "b", Name: "read", Args: json.RawMessage(`{}`)}},
				&Message{Activate: []string{"later", "gone"}, Content: []Block{{Type: "image", MimeType: "image/png", Data: "QQ=="}}}, &Message{})...)
		}
		return chatMessages(t, r), sentChat(t, r)
	}
	messages, body := ask(catalogModel(t, "moonshotai", "kimi-k3", ""))
	var roles []string
	for _, line := range strings.Split(messages, "\n") {
		roles = append(roles, line[:strings.Index(line, ",")])
		if strings.Contains(line, `"system"`) && line != `{"role":"system","tools":[`+def+`]}` {
			t.Errorf("the announcement is %s", line)
		}
	}
	want := `{"role":"assistant" {"role":"tool" {"role":"tool" {"role":"system" {"role":"user" {"role":"assistant" {"role":"tool" {"role":"tool" {"role":"user"`
	if got := strings.Join(roles, " "); got != want {
		t.Errorf("Kimi gets %s\nwant %s", got, want)
	}
	if strings.Count(body, `"name":"later"`) != 1 || strings.Contains(body, "never") {
		t.Errorf("Kimi gets %s", body)
	}
	messages, body = ask(catalogModel(t, "groq", "openai/gpt-oss-120b", ""))
	if strings.Contains(messages, "later") || !strings.Contains(body, `,`+def+`],"stream"`) || strings.Contains(body, "never") {
		t.Errorf("another model gets %s", body)
	}
}

// The history is encoded once for a model, whatever follows it.
func TestChatEncodesOnce(t *testing.T) {
	m := &Model{Provider: "p", ID: "m"}
	r := &request{model: m, system: "s", tools: []*tool{chatTestTool}}
	for i := range 1000 {
		call := Block{Type: "tool_call", ID: fmt.Sprint("c", i), Name: "read", Args: json.RawMessage(`{"path":"a"}`)}
		r.messages = append(r.messages, chatTurn(m, []Block{chatSays("ok"), call}, &Message{Content: []Block{chatSays("file")}})...)
	}
	first := sentChat(t, r)
	kept := make([]*byte, len(r.messages))
	for i, msg := range r.messages {
		kept[i] = &msg.wire.part[0][0]
	}
	r.messages = append(r.messages, userText("go on"))
	second := sentChat(t, r)
	same := strings.Index(first, `],"tools"`)
	if first[:same] != second[:same] {
		t.Error("the second request begins otherwise than the first")
	}
	for i := range kept {
		if kept[i] != &r.messages[i].wire.part[0][0] {
			t.Fatalf("message %d was encoded again", i)
		}
	}
	if n := testing.AllocsPerRun(5, func() { wireBody(chatWire, r) }); n > 60 {
		t.Errorf("%v allocations for a request with a known history", n)
	}
	r.model = &Model{Provider: "p", ID: "other"}
	sentChat(t, r)
	if kept[0] == &r.messages[0].wire.part[0][0] {
		t.Error("another model got the encoding of the first")
	}
}

// What a stream brought besides text goes back as it came.
func TestChatRoundTrip(t *testing.T) {
	for stream, want := range map[string]string{
		"reasoning-details": `{"role":"assistant","content":"Yes.","reasoning_details":[` +
			`{"format":"anthropic-claude-v1","index":0,"signature":"c2ln","text":"Let me see\u2028.","type":"reasoning.text"},` +
			`{"data":"ZW5j","id":"rs_1","index":1,"type":"reasoning.encrypted"}]}`,
		"reasoning-details-alone": `{"role":"assistant","content":"4","reasoning_details":[{"text":"Hmm.","type":"reasoning.text"}]}`,
		"calls-from-one": `{"role":"assistant","content":null,"reasoning_details":[{"data":"gAAA==","id":"rs_1","type":"reasoning.encrypted"}],` +
			`"tool_calls":[{"id":"call_a","type":"function","function":{"name":"read","arguments":"{\"path\":\"a\"}"}}]}`,
		"thought-signature": `{"role":"assistant","content":null,"tool_calls":[{"id":"call_a","extra_content":{"google":{"thought_signature":"c2lnbmVk"}},` +
			`"type":"function","function":{"name":"read","arguments":"{\"path\":\"a\"}"}}]}`,
	} {
		r := &request{model: &Model{Provider: "p", ID: "m"}}
		msg := chatDecode(t, r, stream)
		r.messages = []*Message{msg}
		if got := chatMessages(t, r); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", stream, got, want)
		}
	}
}

func chatDecode(t *testing.T, r *request, stream string) *Message {
	t.Helper()
	f, err := os.Open("testdata/streams/chat-" + stream + ".sse")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	msg, err := decodeStream(t, chatWire, r, f)
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

// xAI itself is known to leave reasoning out of the output; elsewhere the
// number is taken as it is.
func TestChatUsageOfXAI(t *testing.T) {
	msg := chatDecode(t, &request{model: &Model{Provider: "xai", ID: "grok"}}, "usage-xai")
	if got := chatUsage(msg.Usage); got != "1 131 164 0 129" {
		t.Errorf("usage %s", got)
	}
}

// An answer is complete when it had a finish reason or [DONE].
func TestChatComplete(t *testing.T) {
	for what, body := range map[string]string{
		"text hi":                  `"content":"hi"`,
		`call_1 read {"path":"a"}`: `"tool_calls":[{"index":0,"id":"call_1","function":{"name":"read","arguments":"{\"path\":\"a\"}"}}]`,
		`call_1 read !{"path`:      `"tool_calls":[{"index":0,"id":"call_1","function":{"name":"read","arguments":"{\"path"}}]`,
	} {
		for _, finish := range []string{`,"finish_reason":"stop"`, `,"finish_reason":null`, `,"finish_reason":""`, ``} {
			for _, done := range []string{"", "data: [DONE]"} {
				stream := fmt.Sprintf("data: {\"choices\":[{\"delta\":{%s}}]}\n\ndata: {\"choices\":[{\"delta\":{}%s}]}\n\n%s", body, finish, done)
				want := ""
				if strings.Contains(finish, "stop") || done != "" {
					want = map[bool]string{true: "end_turn", false: "tool_use"}[what == "text hi"]
				}
				msg, err := decodeStream(t, chatWire, chatRequest(&Model{}), strings.NewReader(stream))
				if chatContent(msg) != what || msg.Stop != want || (err == nil) != (want != "") {
					t.Errorf("%q: %s, stop %q, %v", stream, chatContent(msg), msg.Stop, err)
				}
			}
		}
	}
}

// A whole answer needs neither [DONE] nor the end of the connection: without
// them it ends after a few seconds of silence, whatever the limit of a gap.
func TestChatWithoutEnd(t *testing.T) {
	t.Parallel()
	d := newDouble(t, answer{write: func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"ok\"},\"finish_reason\":\"stop\"}]}\n\n"+
			"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\n")
		for r.Context().Err() == nil {
			io.WriteString(w, ": ping\n\ndata: {\"choices\":[]}\n\n")
			http.NewResponseController(w).Flush()
			time.Sleep(50 * time.Millisecond)
		}
	}})
	m := &Model{Provider: "p", ID: "m", API: "openai-completions", BaseURL: d.URL}
	p := newHTTPProvider(m, func() (string, error) { return "", nil }, timeouts{Gap: 120})
	start := time.Now()
	msg, err := p.call(context.Background(), &request{model: m, messages: []*Message{userText("hi")}}, func(delta) {})
	if took := time.Since(start); err != nil || msg.text() != "ok" || msg.Stop != "end_turn" || msg.Usage == nil || took < 4*time.Second || took > time.Minute {
		t.Errorf("%q, stop %q, %v after %v", msg.text(), msg.Stop, err, took)
	}
}

// Only what moves the answer on keeps the server's time limit away.
func TestChatMeaningful(t *testing.T) {
	for event, want := range map[string]bool{
		`{"choices":[]}`:                false,
		`{"choices":null,"usage":null}`: false,
		`{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}`: false,
		`{"choices":[{"index":1,"delta":{"content":"a"}}]}`:                              false,
		`{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`:                           false,
		`{"choices":[{"delta":{"content":"a"}}]}`:                                        true,
		`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"a"}}]}}]}`:   true,
		`{"choices":[{"delta":{},"finish_reason":"stop"}]}`:                              true,
		`{"choices":[],"usage":{"prompt_tokens":1}}`:                                     true,
	} {
		p := chatWire.parser(&assembler{msg: &Message{}, on: func(delta) {}})
		if got, err := p.event("", []byte(event)); got != want || err != nil {
			t.Errorf("%s: %t, %v", event, got, err)
		}
	}
}

func TestChatCalls(t *testing.T) {
	const done = "data: {\"choices\":[{\"delta\":{\"content\":\"ok\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
	for _, test := range []struct {
		name   string
		answer answer
		text   string
		err    string
		retry  bool
	}{
		{"stream", answer{body: done}, "ok", "", false},
		{"one JSON body", answer{status: 200, header: map[string]string{"Content-Type": "application/json"},
			body: "{\n \"choices\": [{\"index\": 0, \"message\": {\"content\": \"ok\"}, \"finish_reason\": null}]}"}, "ok", "", false},
		{"a JSON error with status 200", answer{body: `{"error":{"message":"no such model","type":"not_found"}}`}, "", "not_found: no such model", false},
		{"a JSON text of another kind", answer{body: `{"detail":"wrong path"}`}, "", "wrong path", false},
		{"a JSON body without a message", answer{body: `{"choices":[]}`}, "", "closed the connection", true},
		{"401", answer{status: 401, header: map[string]string{"x-request-id": "r1"}, body: `{"error":{"message":"bad key","type":"auth","code":"invalid_api_key"}}`}, "",
			"401 Unauthorized: auth, invalid_api_key: bad key (request r1)", false},
		{"an error of the vendor behind OpenRouter", answer{status: 400, body: `{"error":{"message":"Provider returned error","code":400,` +
			`"metadata":{"raw":"{\"message\":\"maximum context length is 8192\"}","provider_name":"x"}}}`}, "",
			"400 Bad Request: Provider returned error: maximum context length is 8192", false},
		{"503", answer{status: 503, body: "try later"}, "", "503 Service Unavailable: try later", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDouble(t, test.answer)
			r := chatRequest(&Model{Provider: "p", ID: "m", API: "openai-completions", BaseURL: d.URL + "/v1/"})
			msg, _, err := callModel(t, r)
			pe, _ := err.(*providerError)
			if (err != nil) != (test.err != "") || err != nil && (!strings.Contains(err.Error(), test.err) || pe.retry != test.retry) {
				t.Errorf("error %+v, want %q, retry %t", pe, test.err, test.retry)
			}
			if err != nil && (strings.Contains(err.Error(), "sk-secret") || pe.overflow != strings.Contains(test.err, "context length")) {
				t.Errorf("error %+v", pe)
			}
			if got := messageText(msg, "text"); got != test.text {
				t.Errorf("text %q", got)
			}
			if got := d.requests[0]; got.URL.Path != "/v1/chat/completions" || got.Header.Get("Authorization") != "Bearer sk-secret" {
				t.Errorf("%s %v", got.URL.Path, got.Header)
			}
		})
	}
}

// The most frequent events, against the usual way to decode them.
func BenchmarkChatEvent(b *testing.B) {
	const head = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1765717894,"model":"gpt","service_tier":"default","system_fingerprint":"fp_5",` +
		`"choices":[{"index":0,"delta":{`
	const tail = `},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"jMg4tKd"}`
	for name, body := range map[string]string{
		"text":      `"content":" weather\n"`,
		"arguments": `"tool_calls":[{"index":0,"function":{"arguments":"{\"path\""}}]`,
	} {
		event := []byte(head + body + tail)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			a := &assembler{msg: &Message{}, on: func(delta) {}}
			p := chatWire.parser(a)
			p.event("", []byte(`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"read"}}]}}]}`))
			for b.Loop() {
				p.event("", event)
				for i := range a.text { // keep memory out of it
					a.text[i] = a.text[i][:0]
				}
			}
		})
		b.Run(name+"/encoding-json", func(b *testing.B) {
			b.ReportAllocs()
			var text strings.Builder
			for b.Loop() {
				var chunk struct {
					Choices []struct {
						Index int
						Delta struct {
							Content   string
							ToolCalls []struct {
								Index    int
								ID       string
								Function struct{ Name, Arguments string }
							} `json:"tool_calls"`
						}
						FinishReason *string `json:"finish_reason"`
					}
					Usage *struct{ PromptTokens, CompletionTokens int }
				}
				if err := json.Unmarshal(event, &chunk); err != nil {
					b.Fatal(err)
				}
				text.Reset()
				text.WriteString(chunk.Choices[0].Delta.Content)
			}
		})
	}
}

// A request at the end of a long conversation.
func BenchmarkChatBody(b *testing.B) {
	m := &Model{Provider: "p", ID: "m"}
	r := &request{model: m, system: "s", tools: []*tool{chatTestTool}}
	for i := range 1000 {
		call := Block{Type: "tool_call", ID: fmt.Sprint("c", i), Name: "read", Args: json.RawMessage(`{"path":"a"}`)}
		r.messages = append(r.messages, chatTurn(m, []Block{chatSays("ok"), call}, &Message{Content: []Block{chatSays(strings.Repeat("file ", 200))}})...)
	}
	b.ReportAllocs()
	for b.Loop() {
		wireBody(chatWire, r)
	}
}
