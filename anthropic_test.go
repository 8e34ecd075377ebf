package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
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

// The recorded streams, in one piece and in small ones.
func TestAnthropicRecorded(t *testing.T) {
	r := &request{model: catalogModel(t, "anthropic", "claude-sonnet-4-5", "")}
	for _, s := range recordedStreams(t, "anthropic-messages") {
		t.Run(s.name, func(t *testing.T) {
			msg, err := decodeStream(t, anthropicWire, r, bytes.NewReader(s.sse))
			checkRecorded(t, s, msg, err)
			if thinking := messageText(msg, "thinking"); thinking != s.expected.Thinking {
				t.Errorf("thinking %q, want %q", thinking, s.expected.Thinking)
			}
			if again, _ := decodeStream(t, anthropicWire, r, &chunked{s.sse, 7}); !sameMessage(again, msg) {
				t.Errorf("in pieces of 7 bytes:\n%s", describe(again, nil))
			}
		})
	}
}

// describe tells everything about a decoded stream in a few lines.
func describe(m *Message, err error) string {
	var s strings.Builder
	for _, b := range m.Content {
		switch b.Type {
		case "text":
			fmt.Fprintf(&s, "text %q\n", b.Text)
		case "thinking":
			fmt.Fprintf(&s, "thinking %q %s redacted=%t\n", b.Text, b.Signature, b.Redacted)
		case "tool_call":
			fmt.Fprintf(&s, "call %s %s %s%s\n", b.ID, b.Name, b.Args, cmp.Or(b.BadArgs, "."))
		case "opaque":
			fmt.Fprintf(&s, "opaque %s\n", b.Signature)
		}
	}
	if u := m.Usage; u != nil {
		fmt.Fprintf(&s, "usage in %d out %d read %d write %d", u.Input, u.Output, u.CacheRead, u.CacheWrite)
		if u.Reasoning != nil {
			fmt.Fprintf(&s, " reasoning %d", *u.Reasoning)
		}
		s.WriteString("\n")
	}
	var pe *providerError
	if errors.As(err, &pe) {
		fmt.Fprintf(&s, "error %s retry=%t overflow=%t", pe, pe.retry, pe.overflow)
	} else {
		fmt.Fprintf(&s, "stop %s (%s)", m.Stop, m.RawStop)
	}
	return s.String()
}

const anthropicUsage = "usage in 10 out 20 read 0 write 0\n"

var anthropicStreams = map[string]string{
	"text": `text "Say \"hi\"\n\tC:\\new café 😀 �. é\u2028/"` + "\n" + anthropicUsage + "stop end_turn (end_turn)",
	"tool-input": "call toolu_1 ls {}.\ncall toolu_2 pwd {}.\n" + `call toolu_3 read {"path":"a.txt","n":12345678901234567890}.` + "\n" +
		`call toolu_4 read {"path":"b c"}.` + "\n" + anthropicUsage + "stop tool_use (tool_use)",
	"tools-interleaved": `text "Both"` + "\n" + `call toolu_1 read {"path":"1"}.` + "\n" + `call toolu_2 read {"path":"2"}.` + "\n" + anthropicUsage + "stop tool_use (tool_use)",
	"whole-in-start":    `text "Rolling."` + "\n" + `call toolu_1 roll {"player":"one"}.` + "\nusage in 0 out 0 read 0 write 0\nstop tool_use (tool_use)",
	"thinking": `thinking "First \u2028 look…" sig+/1== redacted=false` + "\n" + `thinking "" EncrypTED== redacted=true` + "\ncall toolu_1 ls {}.\n" +
		`thinking "" sig2 redacted=false` + "\n" + `text "Done"` + "\nusage in 10 out 90 read 0 write 0 reasoning 40\nstop tool_use (tool_use)",
	"server-tools": `opaque {"content":"So far: nothing.","type":"compaction"}` + "\n" +
		`opaque {"id":"srvtoolu_1","input":{"query":"zot"},"name":"web_search","type":"server_tool_use"}` + "\n" +
		`opaque {"content":[{"type":"web_search_result","url":"https://example.com/?a=1&b=<2>","encrypted_content":"Abc=="}],"tool_use_id":"srvtoolu_1","type":"web_search_tool_result"}` + "\n" +
		`text "It is small."` + "\n" +
		`opaque {"id":"mcptoolu_1","input":{"a":1},"name":"echo","server_name":"s","type":"mcp_tool_use"}` + "\n" +
		`opaque {"depth":4,"note":"new","text":"x","type":"hologram"}` + "\n" + anthropicUsage + "stop end_turn (end_turn)",
	"cut-arguments":        `call toolu_1 write {"path":"a","content":"b"}.` + "\n" + `call toolu_2 write {}{"path":"c","content":"half a` + "\n" + anthropicUsage + "stop length (max_tokens)",
	"cut-before-arguments": "call toolu_1 write {}.\n" + anthropicUsage + "stop length (max_tokens)",
	"restart":              `thinking "Let me call it." sig2 redacted=false` + "\n" + `call toolu_2 greet {"value":"Sparkle"}.` + "\nusage in 12 out 20 read 0 write 0\nstop tool_use (tool_use)",
	"start-twice":          `text "Hello"` + "\n" + anthropicUsage + "stop end_turn (end_turn)",
	"usage":                `text "ok"` + "\nusage in 15000 out 25 read 200 write 7 reasoning 12\nstop end_turn (end_turn)",
	"error-first":          "error overloaded_error: Overloaded (request req_1) retry=true overflow=false",
	"error-after-text":     `text "Half an ans"` + "\nusage in 10 out 1 read 0 write 0\nerror overloaded_error: Overloaded (request req_1) retry=true overflow=false",
	"error-in-tool":        `call toolu_1 bash {}{"command":"rm -r` + "\nusage in 10 out 1 read 0 write 0\nerror invalid_request_error: messages: too many total text bytes retry=false overflow=false",
	"error-plain":          "usage in 10 out 1 read 0 write 0\nerror upstream connect error retry=false overflow=false",
	"closed":               `call toolu_1 bash {"command":"true"}.` + "\n" + anthropicUsage + "error the server closed the connection before the answer was complete retry=true overflow=false",
	"refusal":              `text "Well"` + "\n" + anthropicUsage + "error the model refused to answer: This is against the usage policy. retry=false overflow=false",
	"pause":                `opaque {"id":"srvtoolu_1","input":{"query":"x"},"name":"web_search","type":"server_tool_use"}` + "\n" + anthropicUsage + "stop pause_turn (pause_turn)",
	"no-content":           anthropicUsage + "stop end_turn (stop_sequence)",
	"imitation":            `text "one two"` + "\n" + `call toolu_1 ls {"a":1}.` + "\n" + anthropicUsage + "stop tool_use (end_turn)",
}

// Every stream means the same however it is cut into reads; of one that ends
// early no call would run.
func TestAnthropicStreams(t *testing.T) {
	r := &request{model: catalogModel(t, "anthropic", "claude-sonnet-4-5", "")}
	files, err := filepath.Glob("testdata/streams/anthropic-*.sse")
	if err != nil || len(files) != len(anthropicStreams) {
		t.Fatalf("%d files, %d expectations, %v", len(files), len(anthropicStreams), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "anthropic-"), ".sse")
		t.Run(name, func(t *testing.T) {
			sse, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			whole, err := decodeStream(t, anthropicWire, r, bytes.NewReader(sse))
			if got := describe(whole, err); got != anthropicStreams[name] {
				t.Fatalf("got:\n%s\nwant:\n%s", got, anthropicStreams[name])
			}
			for _, n := range []int{1, 7, 4096} {
				if msg, _ := decodeStream(t, anthropicWire, r, &chunked{sse, n}); !sameMessage(msg, whole) {
					t.Errorf("in pieces of %d bytes:\n%s", n, describe(msg, nil))
				}
			}
			complete := bytes.Index(sse, []byte(`{"type":"message_stop"`)) // as far as any answer must get
			if complete < 0 {
				complete = len(sse) - 1
			}
			for cut := 0; cut <= complete; cut += 1 + len(sse)/700*6 { // each byte of small ones
				msg, err := decodeStream(t, anthropicWire, r, bytes.NewReader(sse[:cut]))
				if err == nil {
					t.Fatalf("cut at %d: no error but\n%s", cut, describe(msg, err))
				}
			}
		})
	}
}

// chunked reads n bytes at a time.
type chunked struct {
	data []byte
	n    int
}

func (c *chunked) Read(b []byte) (int, error) {
	if len(c.data) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), c.n)], c.data)
	c.data = c.data[n:]
	return n, nil
}

// One stream for each stop reason, alone, behind a text and behind a call.
func TestAnthropicStopReasons(t *testing.T) {
	const text = `{"type":"text","text":"hi"}`
	const call = `{"type":"tool_use","id":"toolu_1","name":"ls","input":{"a":1}}`
	refused := "error the model refused to answer retry=false overflow=false"
	overflow := "error the conversation fills the model's context window retry=false overflow=true"
	for _, c := range []struct{ reason, alone, text, call string }{
		{`"end_turn"`, "stop end_turn (end_turn)", "stop end_turn (end_turn)", "stop tool_use (end_turn)"},
		{`"tool_use"`, "stop end_turn (tool_use)", "stop end_turn (tool_use)", "stop tool_use (tool_use)"},
		{`"stop_sequence"`, "stop end_turn (stop_sequence)", "stop end_turn (stop_sequence)", "stop tool_use (stop_sequence)"},
		{`"max_tokens"`, "stop length (max_tokens)", "stop length (max_tokens)", "stop length (max_tokens)"},
		{`"pause_turn"`, "stop pause_turn (pause_turn)", "stop pause_turn (pause_turn)", "stop tool_use (pause_turn)"},
		{`"model_context_window_exceeded"`, overflow, "stop length (model_context_window_exceeded)", overflow},
		{`"refusal"`, refused, refused, refused},
		{`"something_new"`, "stop end_turn (something_new)", "stop end_turn (something_new)", "stop tool_use (something_new)"},
		{`null`, "stop end_turn ()", "stop end_turn ()", "stop tool_use ()"},
		{`7`, "stop end_turn ()", "stop end_turn ()", "stop tool_use ()"},
	} {
		for content, want := range map[string]string{"": c.alone, text: c.text, call: c.call} {
			// Streamed, and as one JSON body in answer to a streaming request.
			message := `{"type":"message","content":[` + content + `],"stop_reason":` + c.reason + `}`
			for _, body := range []string{
				"data: {\"type\":\"message_start\",\"message\":" + message + "}\n\ndata: {\"type\":\"message_stop\"}\n\n",
				"\r\n" + message,
			} {
				p := anthropicWire.parser(&assembler{msg: &Message{}, on: func(delta) {}}).(*anthropicParser)
				err := read(&guard{body: strings.NewReader(body)}, p, 0)
				p.a.msg.Content = nil
				if got := describe(p.a.msg, err); got != want {
					t.Errorf("%s with %s: %s, want %s", c.reason, content, got, want)
				}
			}
		}
	}
}

// What is wrong with events is told or ignored, and never fatal.
func TestAnthropicBadEvents(t *testing.T) {
	r := &request{model: catalogModel(t, "anthropic", "claude-sonnet-4-5", "")}
	good := "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\"}}\n\n"
	end := "data: {\"type\":\"message_stop\"}\n\n"
	for _, ignored := range []string{
		`{}`, `{"type":7}`, `{"type":"message_start"}`, `{"type":"message_start","message":[]}`, `{"type":"message_start","message":{"content":{},"usage":[]}}`,
		`{"type":"content_block_start"}`, `{"type":"content_block_start","index":-1,"content_block":null}`,
		`{"type":"content_block_delta"}`, `{"type":"content_block_delta","index":99,"delta":{"type":"text_delta","text":"x"}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"x"}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"x"}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":null}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta"}}`, `{"type":"content_block_delta","index":0,"delta":"x"}`,
		`{"type":"content_block_delta","index":18446744073709551616,"delta":{"type":"signature_delta","signature":"x"}}`,
		`{"type":"content_block_stop","index":"1"}`, `{"type":"content_block_stop","index":5}`,
		`{"type":"message_delta"}`, `{"type":"message_delta","delta":null,"usage":{"input_tokens":"many"}}`, ``, `null`, `ping`,
	} {
		msg, err := decodeStream(t, anthropicWire, r, strings.NewReader(good+"data: "+ignored+"\n\n"+end))
		if err != nil || messageText(msg, "text") != "" || msg.Stop != "end_turn" {
			t.Errorf("%s: %v, %+v", ignored, err, msg)
		}
	}
	// A block without its stop is whole when the message is.
	open := "data: {\"type\":\"content_block_start\",\"index\":3,\"content_block\":{\"type\":\"tool_use\",\"name\":\"rm\",\"input\":{\"path\":\"a\"}}}\n\n"
	msg, err := decodeStream(t, anthropicWire, r, strings.NewReader(good+open+end))
	if err != nil || msg.Stop != "tool_use" || string(msg.Content[1].Args) != `{"path":"a"}` || msg.Content[1].ID == "" {
		t.Errorf("%v, %+v", err, msg)
	}
	for _, c := range []struct{ body, want string }{
		{good + "data: {\"type\":\"content_bl", "closed the connection"},
		{good + "data: {\"type\":\"content_bl\n\n" + end, "an event that is not JSON"},
		{good + "data: null\n\n", "closed the connection"},
		{good + "data: [DONE]\n\n", "closed the connection"},
		{`{"answer":42}`, "JSON that is not a message"},
		{`{"type":"message",`, "closed the connection"},
		{`{"error":{"type":"overloaded_error","message":"Busy"}}`, "overloaded_error: Busy"},
		{`{"error":"no such model"}`, "no such model"},
		{"data: {\"error\":{\"message\":\"prompt is too long: 9 tokens\"}}\n\n", "prompt is too long"},
		{"error: {\"error\":{\"message\":\"slot unavailable\"}}\n\n", "slot unavailable"},
		{"", "closed the connection"},
		{"<html>busy</html>", "closed the connection"},
	} {
		if _, err := decodeStream(t, anthropicWire, r, strings.NewReader(c.body)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.body, err, c.want)
		}
	}
}

// The most frequent event costs no memory but its text's.
func TestAnthropicDeltaAllocations(t *testing.T) {
	p := openAnthropicBlock()
	if n := testing.AllocsPerRun(100, func() {
		p.event("", anthropicDeltaEvent)
		p.a.text[0] = p.a.text[0][:0]
	}); n != 0 {
		t.Errorf("%v allocations for a delta", n)
	}
}

// anthropicConversation has a bit of everything, by its own model.
func anthropicConversation() []*Message {
	at := time.UnixMilli(1700000000000)
	return []*Message{
		{Role: "user", Content: []Block{{Type: "text", Text: "look <&>"}, {Type: "text", Text: " \n"}, {Type: "image", MimeType: "image/png", Data: "iVBORw0="}}},
		{Role: "assistant", Provider: "anthropic", Model: "claude-sonnet-4-5", Stop: "tool_use", Time: at, Content: []Block{
			{Type: "thinking", Text: "a \u2028 <b> 😀", Signature: "sig+/=="},
			{Type: "text", Text: " "},
			{Type: "opaque", Signature: `{"type":"server_tool_use","id":"srvtoolu_1","input":{"q":1.0}}`},
			{Type: "tool_call", ID: "toolu_1", Name: "read", Args: json.RawMessage(`{"path":"a"}`)},
			{Type: "thinking", Redacted: true, Signature: "EncrypTED=="},
			{Type: "tool_call", ID: "toolu_2", Name: "shot", Args: json.RawMessage(`{}`), BadArgs: `{"half`},
			{Type: "thinking", Text: "unsigned"},
		}},
		{Role: "tool", CallID: "toolu_1", ToolName: "read", Content: []Block{{Type: "text", Text: "\n"}}},
		{Role: "tool", CallID: "toolu_2", ToolName: "shot", IsError: true, Content: []Block{{Type: "text", Text: "bad"}, {Type: "image", MimeType: "image/png", Data: "iVBORw0="}}},
		{Role: "assistant", Provider: "anthropic", Model: "claude-sonnet-4-5", Stop: "aborted", Time: at, Content: []Block{
			{Type: "thinking", Text: "signed, and nothing more", Signature: "sig2"}}},
		{Role: "user", Content: []Block{{Type: "text", Text: "go on"}}},
		{Role: "assistant", Provider: "anthropic", Model: "claude-sonnet-4-5", Stop: "end_turn", Time: at, Content: []Block{{Type: "text", Text: " done \u00a0\n"}}},
	}
}

const (
	markedBlock   = `"cache_control":{"type":"ephemeral"}`
	anthropicLook = `{"role":"user","content":[{"type":"text","text":"look <&>"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0="}}]}`
)

func TestAnthropicBody(t *testing.T) {
	m := catalogModel(t, "anthropic", "claude-sonnet-4-5", "")
	tools := []*tool{
		{name: "read", description: "reads <a>", schema: json.RawMessage(`{"type":"object","z":1.0,"a":{}}`)},
		{name: "late", deferred: true, schema: json.RawMessage(`{}`)},
		{name: "shot", schema: json.RawMessage(`{"type":"object"}`)},
	}
	r := &request{model: m, system: "be <brief>", tools: tools, messages: anthropicConversation(), reasoning: "medium"}
	want := `{"model":"claude-sonnet-4-5","max_tokens":64000,"stream":true,"thinking":{"type":"enabled","budget_tokens":8192},` +
		`"system":[{"type":"text","text":"be <brief>",` + markedBlock + `}],` +
		`"tools":[{"name":"read","description":"reads <a>","input_schema":{"type":"object","z":1.0,"a":{}}},` +
		`{"name":"shot","description":"","input_schema":{"type":"object"},` + markedBlock + `}],` +
		`"messages":[` + anthropicLook + `,` +
		`{"role":"assistant","content":[{"type":"thinking","thinking":"a \u2028 <b> 😀","signature":"sig+/=="},` +
		`{"type":"server_tool_use","id":"srvtoolu_1","input":{"q":1.0}},` +
		`{"type":"tool_use","id":"toolu_1","name":"read","input":{"path":"a"}},` +
		`{"type":"redacted_thinking","data":"EncrypTED=="},` +
		`{"type":"tool_use","id":"toolu_2","name":"shot","input":{}}]},` +
		`{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"text","text":"(no output)"}]},` +
		`{"type":"tool_result","tool_use_id":"toolu_2","is_error":true,"content":[{"type":"text","text":"bad"},` +
		`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0="}}],` + markedBlock + `}]},` +
		`{"role":"user","content":[{"type":"text","text":"go on",` + markedBlock + `}]},` +
		`{"role":"assistant","content":[{"type":"text","text":" done"}]}]}`
	got := wireBody(anthropicWire, r)
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if again := wireBody(anthropicWire, r); !bytes.Equal(got, again) {
		t.Errorf("a second time\n%s", again)
	}
	// Another process knows the transcript from a session file.
	r.messages = anthropicConversation()
	if fresh := wireBody(anthropicWire, r); !bytes.Equal(got, fresh) {
		t.Errorf("encoded afresh\n%s", fresh)
	}
	if cap(got) > len(got)*11/10 {
		t.Errorf("%d bytes in a buffer of %d", len(got), cap(got))
	}
	if body := wireBody(anthropicWire, &request{model: m}); string(body) != `{"model":"claude-sonnet-4-5","max_tokens":64000,"stream":true,"messages":[]}` {
		t.Errorf("nothing to say: %s", body)
	}
}

// Thinking and unknown blocks go to their own provider and model only, images
// to models that see, and unsigned thinking where it is wanted.
func TestAnthropicOtherModels(t *testing.T) {
	answer := func(m *Model) string {
		o, err := parseObject(wireBody(anthropicWire, &request{model: m, messages: anthropicConversation()}))
		if err != nil {
			t.Fatal(err)
		}
		var messages []json.RawMessage
		if err := json.Unmarshal(o["messages"], &messages); err != nil {
			t.Fatal(err)
		}
		return string(messages[0]) + string(messages[1])
	}
	calls := `{"type":"tool_use","id":"toolu_1","name":"read","input":{"path":"a"}},{"type":"tool_use","id":"toolu_2","name":"shot","input":{}}]}`
	other := catalogModel(t, "anthropic", "claude-opus-4-8", "")
	if got, want := answer(other), anthropicLook+`{"role":"assistant","content":[`+calls; got != want {
		t.Errorf("another model: got\n%s\nwant\n%s", got, want)
	}
	other.Vision = false
	if got := answer(other); !strings.Contains(got, "look") || !strings.Contains(got, "takes no images") || strings.Contains(got, "iVBOR") {
		t.Errorf("no vision: %s", got)
	}

	kimi := catalogModel(t, "kimi-coding", "kimi-for-coding", "")
	messages := []*Message{userText("hi"), {Role: "assistant", Provider: "kimi-coding", Model: "kimi-for-coding", Content: []Block{
		{Type: "thinking", Text: "hm"}, {Type: "text", Text: "yes"}}}}
	if got, want := string(wireBody(anthropicWire, &request{model: kimi, messages: messages})), `{"type":"thinking","thinking":"hm","signature":""},`; !strings.Contains(got, want) {
		t.Errorf("unsigned thinking is missing: %s", got)
	}
	messages[1].wire, kimi.NoSignature = encoded{}, false
	if got := string(wireBody(anthropicWire, &request{model: kimi, messages: messages})); strings.Contains(got, "thinking") {
		t.Errorf("unsigned thinking: %s", got)
	}
}

// What ended before it was whole does not go back.
func TestAnthropicCutAnswer(t *testing.T) {
	m := catalogModel(t, "anthropic", "claude-sonnet-4-5", "")
	cut := &Message{Role: "assistant", Provider: "anthropic", Model: m.ID, Stop: "length", Content: []Block{
		{Type: "text", Text: "x"}, {Type: "opaque"}, {Type: "thinking", Text: "unsigned"}, {Type: "thinking", Redacted: true}}}
	body := string(wireBody(anthropicWire, &request{model: m, messages: []*Message{userText("hi"), cut}}))
	if want := `{"role":"assistant","content":[{"type":"text","text":"x"}]}]}`; !strings.HasSuffix(body, want) {
		t.Errorf("%s, want %s", body, want)
	}
}

func TestAnthropicIDs(t *testing.T) {
	m := catalogModel(t, "anthropic", "claude-sonnet-4-5", "")
	var messages []*Message
	turn := func(provider string, at int64, ids ...string) {
		answer := &Message{Role: "assistant", Provider: provider, Model: "m", Time: time.UnixMilli(at)}
		messages = append(messages, userText("go"), answer)
		for _, id := range ids {
			answer.Content = append(answer.Content, Block{Type: "tool_call", ID: id, Name: "functions.add x", Args: json.RawMessage(`{}`)})
			messages = append(messages, &Message{Role: "tool", CallID: id})
		}
	}
	turn("moonshotai", 1, "functions.add:0", "functions.add:1", "functions_add_0", "é", "")
	turn("moonshotai", 2, "functions.add:0") // they recur
	turn("groq", 3, "call_0")
	turn("groq", 4, "call_0")
	turn("anthropic", 5, "toolu_01AbC-_", "bad id")

	var body struct {
		Messages []struct {
			Content []struct {
				Type, ID, Name string
				ToolUseID      string `json:"tool_use_id"`
			}
		}
	}
	raw := wireBody(anthropicWire, &request{model: m, messages: messages})
	if err := json.Unmarshal(raw, &body); err != nil {
		t.Fatal(err)
	}
	var calls, results []string
	for _, msg := range body.Messages {
		for _, b := range msg.Content {
			switch b.Type {
			case "tool_use":
				calls = append(calls, b.ID)
				if b.ID == "" || notWord().MatchString(b.ID) || b.Name != "functions_add_x" {
					t.Errorf("id %q, name %q", b.ID, b.Name)
				}
			case "tool_result":
				results = append(results, b.ToolUseID)
			}
		}
	}
	if !slices.Equal(calls, results) || len(calls) != 10 {
		t.Errorf("calls %q, results %q", calls, results)
	}
	if !slices.Contains(calls, "toolu_01AbC-_") {
		t.Error("a good id of the own provider was changed")
	}
	slices.Sort(calls)
	if len(slices.Compact(calls)) != 10 {
		t.Errorf("ids are not unique: %q", results)
	}
	for name, want := range map[string]string{"": "_", "ls": "ls", "mcp__a-b": "mcp__a-b", "a.b/ç": "a_b__", strings.Repeat("x", 80): strings.Repeat("x", 64)} {
		if got := wireToolName(name); got != want {
			t.Errorf("name %q: %q", name, got)
		}
	}
}

func TestAnthropicThinking(t *testing.T) {
	for _, c := range []struct {
		model, level string
		max          int
		want, beta   string
	}{
		{"claude-sonnet-4-5", "", 0, `"max_tokens":64000,"stream":true,"messages"`, ""},
		{"claude-sonnet-4-5", "off", 300, `"max_tokens":300,"stream":true,"messages"`, ""},
		{"claude-sonnet-4-5", "minimal", 0, `"max_tokens":64000,"stream":true,"thinking":{"type":"enabled","budget_tokens":1024}`, "interleaved-thinking-2025-05-14"},
		{"claude-sonnet-4-5", "low", 0, `"budget_tokens":2048}`, "interleaved-thinking-2025-05-14"},
		{"claude-sonnet-4-5", "medium", 0, `"budget_tokens":8192}`, "interleaved-thinking-2025-05-14"},
		{"claude-sonnet-4-5", "high", 0, `"budget_tokens":16384}`, "interleaved-thinking-2025-05-14"},
		{"claude-sonnet-4-5", "max", 0, `"budget_tokens":16384}`, "interleaved-thinking-2025-05-14"},
		{"claude-sonnet-4-5", "high", 20000, `"max_tokens":20000,"stream":true,"thinking":{"type":"enabled","budget_tokens":10000}`, "interleaved-thinking-2025-05-14"},
		{"claude-sonnet-4-5", "high", 300, `"max_tokens":2048,"stream":true,"thinking":{"type":"enabled","budget_tokens":1024}`, "interleaved-thinking-2025-05-14"},
		{"claude-opus-4-8", "off", 0, `"max_tokens":128000,"stream":true,"messages"`, ""},
		{"claude-opus-4-8", "minimal", 0, `"thinking":{"type":"adaptive"},"output_config":{"effort":"low"},"messages"`, ""},
		{"claude-opus-4-8", "xhigh", 300, `"max_tokens":300,"stream":true,"thinking":{"type":"adaptive"},"output_config":{"effort":"xhigh"}`, ""},
		{"unknown", "", 0, `"max_tokens":8192,`, ""},
		{"unknown", "high", 0, `"max_tokens":8192,"stream":true,"thinking":{"type":"enabled","budget_tokens":4096}`, "interleaved-thinking-2025-05-14"},
	} {
		m := &Model{Provider: "anthropic", ID: "unknown"}
		if c.model != "unknown" {
			m = catalogModel(t, "anthropic", c.model, "")
		}
		r := &request{model: m, reasoning: c.level, maxTokens: c.max}
		if got := string(wireBody(anthropicWire, r)); !strings.Contains(got, c.want) {
			t.Errorf("%+v: %s", c, got)
		}
		h := http.Header{}
		anthropicHeader(h, "", r)
		if got := h.Get("anthropic-beta"); got != c.beta {
			t.Errorf("%+v: beta %q", c, got)
		}
	}
	minimal := &Model{ID: "m", Adaptive: true, Levels: map[string]string{"minimal": "tiny"}}
	if got := string(wireBody(anthropicWire, &request{model: minimal, reasoning: "minimal"})); !strings.Contains(got, `"effort":"tiny"`) {
		t.Errorf("the vendor's own word: %s", got)
	}
}

// Twenty steps with three parallel calls each: never more than four marks, on
// the system prompt, the last tool and the two newest user messages; and each
// request begins with the bytes of the one before, but for its marks.
func TestAnthropicCacheMarks(t *testing.T) {
	r := &request{model: catalogModel(t, "anthropic", "claude-sonnet-4-5", ""), system: "s", messages: []*Message{userText("one"), userText("two")}}
	for i := range 30 {
		r.tools = append(r.tools, &tool{name: fmt.Sprint("t", i), schema: json.RawMessage(`{}`)})
	}
	before := ""
	for step := range 20 {
		body := string(wireBody(anthropicWire, r))
		if n := strings.Count(body, markedBlock); n != 4 {
			t.Fatalf("step %d: %d marks in %s", step, n, body)
		}
		if !strings.HasSuffix(body, `,`+markedBlock+`}]}]}`) {
			t.Fatalf("step %d: the newest message is not marked: %s", step, body)
		}
		bare := strings.ReplaceAll(body, ","+markedBlock, "")
		if !strings.HasPrefix(bare, strings.TrimSuffix(before, "]}")) {
			t.Fatalf("step %d: %s does not go on from %s", step, bare, before)
		}
		before = bare
		answer := &Message{Role: "assistant", Provider: "anthropic", Model: r.model.ID, Content: []Block{{Type: "thinking", Text: "hm", Signature: "s"}}}
		r.messages = append(r.messages, answer)
		for i := range 3 {
			id := fmt.Sprintf("toolu_%d_%d", step, i)
			answer.Content = append(answer.Content, Block{Type: "tool_call", ID: id, Name: "t1", Args: json.RawMessage(`{}`)})
			r.messages = append(r.messages, &Message{Role: "tool", CallID: id})
		}
	}
}

// A turn puts kept bytes together: nothing old is encoded again.
func TestAnthropicKeepsEncodings(t *testing.T) {
	r := &request{model: catalogModel(t, "anthropic", "claude-sonnet-4-5", "")}
	for range 1000 {
		r.messages = append(r.messages, userText("hello"), &Message{Role: "assistant", Content: []Block{{Type: "text", Text: "hello back"}}})
	}
	first := wireBody(anthropicWire, r)
	kept := r.messages[0].wire.part[0]
	r.messages[0].Content[0].Text = "changed" // never done: it shows what is read
	if n := testing.AllocsPerRun(10, func() {
		if !bytes.Equal(wireBody(anthropicWire, r), first) {
			t.Error("the second body differs")
		}
	}); n > 20 {
		t.Errorf("%v allocations for 2,000 old messages", n)
	}
	if again := r.messages[0].wire.part[0]; &again[0] != &kept[0] {
		t.Error("an old message was encoded again")
	}
	r.model = catalogModel(t, "anthropic", "claude-opus-4-8", "")
	if body := wireBody(anthropicWire, r); !bytes.Contains(body, []byte("changed")) {
		t.Error("another model got the encoding of the first")
	}
}

// Deferred tools are offered once a result has activated them, at the end.
func TestAnthropicDeferredTools(t *testing.T) {
	r := &request{model: catalogModel(t, "anthropic", "claude-sonnet-4-5", ""), messages: []*Message{userText("hi")}}
	for _, name := range []string{"late1", "late2", "now", "late3"} {
		r.tools = append(r.tools, &tool{name: name, deferred: name != "now", schema: json.RawMessage(`{}`)})
	}
	names := func() (names []string) {
		var body struct{ Tools []struct{ Name string } }
		if err := json.Unmarshal(wireBody(anthropicWire, r), &body); err != nil {
			t.Fatal(err)
		}
		for _, tool := range body.Tools {
			names = append(names, tool.Name)
		}
		return names
	}
	if got := names(); !slices.Equal(got, []string{"now"}) {
		t.Errorf("before: %q", got)
	}
	r.messages = append(r.messages, &Message{Role: "tool", Activate: []string{"late3", "nobody", "now"}}, &Message{Role: "tool", Activate: []string{"late1", "late3"}})
	if got := names(); !slices.Equal(got, []string{"now", "late3", "late1"}) {
		t.Errorf("after: %q", got)
	}
}

func TestAnthropicCall(t *testing.T) {
	sse, err := os.ReadFile("testdata/streams/anthropic-text.sse")
	if err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "/", "/v1", "/v1/"} {
		d := newDouble(t, answer{body: string(sse)})
		m := catalogModel(t, "anthropic", "claude-sonnet-4-5", d.URL+suffix)
		msg, deltas, err := callModel(t, &request{model: m, messages: []*Message{userText("hi")}})
		if err != nil || msg.Stop != "end_turn" || msg.Provider != "anthropic" || msg.Model != m.ID {
			t.Fatalf("%+v, %v", msg, err)
		}
		if deltas[0] != "start 0 " || deltas[len(deltas)-1] != "end 0 " || len(deltas) != 5 {
			t.Errorf("deltas %q", deltas)
		}
		got := d.requests[0]
		if got.URL.Path != "/v1/messages" || got.Header.Get("x-api-key") != "sk-secret" || got.Header.Get("anthropic-version") != "2023-06-01" || got.Header.Get("anthropic-beta") != "" {
			t.Errorf("%s %v", got.URL, got.Header)
		}
		if model, _ := d.sent(0).str("model"); model != m.ID {
			t.Errorf("sent %v", d.sent(0))
		}
	}
}

func TestAnthropicHTTPErrors(t *testing.T) {
	for _, c := range []struct {
		status          int
		body, want      string
		retry, overflow bool
		retryAfter      time.Duration
	}{
		{401, `{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"},"request_id":"req_b"}`,
			"401 Unauthorized: authentication_error: invalid x-api-key (request req_h)", false, false, 0},
		{429, `{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}`,
			"429 Too Many Requests: rate_limit_error: slow down (request req_h)", true, false, 7 * time.Second},
		{529, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`,
			"529: overloaded_error: Overloaded (request req_h)", true, false, 7 * time.Second},
		{400, `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 209000 tokens > 200000 maximum"}}`,
			"400 Bad Request: invalid_request_error: prompt is too long: 209000 tokens > 200000 maximum (request req_h)", false, true, 0},
	} {
		header := map[string]string{"request-id": "req_h"}
		if c.retryAfter > 0 {
			header["retry-after"] = "7"
		}
		d := newDouble(t, answer{status: c.status, header: header, body: c.body})
		m := catalogModel(t, "anthropic", "claude-sonnet-4-5", d.URL)
		msg, _, err := callModel(t, &request{model: m, messages: []*Message{userText("hi")}})
		var pe *providerError
		if !errors.As(err, &pe) || msg == nil {
			t.Fatalf("%d: %v", c.status, err)
		}
		if pe.message != c.want || pe.retry != c.retry || pe.overflow != c.overflow || pe.retryAfter != c.retryAfter {
			t.Errorf("%d: %+v", c.status, pe)
		}
	}
}

// The most frequent event, against decoding the same bytes with encoding/json.
var anthropicDeltaEvent = []byte(`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" the \"quick\" brown fox\n"}}`)

func BenchmarkAnthropicDelta(b *testing.B) {
	p := openAnthropicBlock()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.event("content_block_delta", anthropicDeltaEvent); err != nil {
			b.Fatal(err)
		}
		p.a.text[0] = p.a.text[0][:0]
	}
}

func BenchmarkAnthropicDeltaEncodingJSON(b *testing.B) {
	p := openAnthropicBlock()
	b.ReportAllocs()
	for b.Loop() {
		var e struct {
			Type  string
			Index int
			Delta struct{ Type, Text string }
		}
		if err := json.Unmarshal(anthropicDeltaEvent, &e); err != nil {
			b.Fatal(err)
		}
		p.a.add(e.Index, []byte(e.Delta.Text))
		p.a.text[0] = p.a.text[0][:0]
	}
}

// openAnthropicBlock is a parser in the middle of a text.
func openAnthropicBlock() *anthropicParser {
	p := anthropicWire.parser(&assembler{msg: &Message{}, on: func(delta) {}}).(*anthropicParser)
	p.startBlock(0, []byte(`{"type":"text","text":""}`))
	return p
}

func BenchmarkAnthropicStream(b *testing.B) {
	var s bytes.Buffer
	s.WriteString("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n")
	for range 2000 {
		fmt.Fprintf(&s, "event: content_block_delta\ndata: %s\n\n", anthropicDeltaEvent)
	}
	s.WriteString("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n")
	b.SetBytes(int64(s.Len()))
	b.ReportAllocs()
	for b.Loop() {
		p := anthropicWire.parser(&assembler{msg: &Message{}, on: func(delta) {}}).(*anthropicParser)
		if err := read(&guard{body: bytes.NewReader(s.Bytes())}, p, 0); err != nil {
			b.Fatal(err)
		}
	}
}
