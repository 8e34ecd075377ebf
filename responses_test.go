package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func responsesModel(t testing.TB) *Model {
	return catalogModel(t, "openai", "gpt-5.4", "http://unused")
}

func decodeResponses(t *testing.T, r io.Reader) (*Message, error) {
	t.Helper()
	return decodeStream(t, responsesWire, &request{model: &Model{Provider: "openai", ID: "gpt-5.4"}}, r)
}

func TestResponsesRecorded(t *testing.T) {
	for _, s := range recordedStreams(t, "openai-responses") {
		t.Run(s.name, func(t *testing.T) {
			if s.name == "_synthetic/openai/vercel-ai--openai-shell-container.1" {
				t.Skip("its deltas say one thing and its items another")
			}
			msg, err := decodeResponses(t, bytes.NewReader(s.sse))
			checkRecorded(t, s, msg, err)
			if got := messageText(msg, "thinking"); got != s.expected.Thinking {
				t.Errorf("thinking %q, want %q", got, s.expected.Thinking)
			}
		})
	}
}

// responsesStreams tells what the streams of testdata mean, one line a block.
var responsesStreams = map[string]string{
	"text": `
		text "One <b>\n\"two\"\t\\ é 😀 spaced � alone 你好"
		end_turn (completed) usage 70 20 30 0 reasoning 5`,
	"parallel-rotating-ids": `
		tool_call call_1 read {"path":"a.go"}
		tool_call call_2 bash {"command":"ls"}
		tool_use (completed) usage 10 5 0 0 reasoning 0`,
	"calls-without-deltas": `
		tool_call c0 read {"path":"a"}
		tool_call c1 read {"path":"b"}
		tool_call c2 read {"path":"c","n":12345678901234567890}
		tool_call c3 list {}
		tool_call c4 read {"path":"d"}
		tool_call c5 read {"path":"e"}
		tool_call fc_6 read {"path":"f"}
		tool_use (completed) usage 10 5 0 0`,
	"final-output-only": `
		thinking "Hm." {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"Hm."}],"encrypted_content":"secret"}
		text "All at once."
		tool_call call_1 read {"path":"a"}
		tool_use (completed) usage 10 5 0 0`,
	"final-output-repeats": `
		text "Once."
		tool_call call_1 read {}
		tool_use (completed) usage 10 5 0 0`,
	"reasoning": `
		thinking "First part.\n\nSecond part." {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"First part."},{"type":"summary_text","text":"Second part."}],"encrypted_content":"gAAA=="}
		thinking "" {"type":"reasoning","id":"rs_2","summary":[],"encrypted_content":"gBBB=="}
		thinking ""
		thinking "Plain\n\nthought"
		text "Done."
		end_turn (completed) usage 10 50 0 0 reasoning 40`,
	"reasoning-undelivered": `
		thinking "Summed up." {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"Summed up."}],"encrypted_content":"gAAA=="}
		text "Undelivered."
		text "Half and half."
		end_turn (completed) usage 10 5 0 0`,
	"no-event-lines": `
		thinking "Thinking."
		text "Text"
		end_turn (completed) usage 10 5 0 0`,
	"items-interleaved": `
		thinking "AC" {"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAA=="}
		text "BD"
		end_turn (completed) usage 10 5 0 0`,
	"server-tools": `
		opaque {"type":"web_search_call","id":"ws_1","status":"completed","action":{"query":"q"}}
		opaque {"type":"custom_tool_call","id":"ctc_1","call_id":"xs_call_1","name":"x_keyword_search","input":"{\"query\":\"q\"}"}
		opaque {"type":"shell_call","id":"sh_1"}
		opaque {"type":"shell_call_output","id":"sho_1"}
		text "Found."
		end_turn (completed) usage 10 5 0 0`,
	"client-tool-not-ours": `
		opaque {"type":"apply_patch_call","id":"ap_1","call_id":"call_1","status":"completed"}
		tool_use (completed) usage 10 5 0 0`,
	"approval": `
		opaque {"type":"mcp_approval_request","id":"mcpr_1","name":"delete","arguments":"{}"}
		end_turn (completed) usage 10 5 0 0`,
	"cut-arguments": `
		tool_call call_1 read {"path":"a"}
		tool_call call_2 write {} bad {"path":"b","content":"fun
		length (max_output_tokens) usage 10 16 0 0 reasoning 0`,
	"cut-but-completed": `
		tool_call call_1 write {"path":"b"}
		length (completed) usage 10 16 0 0`,
	"call-never-done": `
		tool_call call_1 clean {}
		length (completed) usage 10 16 0 0`,
	"call-done-in-final": `
		tool_call call_1 read {"path":"a"}
		tool_use (completed) usage 10 16 0 0`,
	"reasoning-only-length": `
		thinking "" {"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAA=="}
		length (max_output_tokens) usage 16 16 0 0 reasoning 16`,
	"content-filter": `
		text "Well, "
		 (content_filter) usage 10 2 0 0
		error: the provider's content filter stopped the answer (content_filter)`,
	"refusal": `
		 (completed) usage 10 5 0 0
		error: the model refused: I can't do that.`,
	"refusal-at-end": `
		 (completed) usage 10 5 0 0
		error: the model refused: No.`,
	"error-nested": `
		 ()
		error: tokens, rate_limit_exceeded: Rate limit reached for gpt-x on tokens per min. Please try again in 1.5s.
		retry 1.5s`,
	"error-flat": `
		text "Half an ans"
		 ()
		error: server_error: The server had an error.
		retry 0s`,
	"error-bare": `
		 ()
		error: 502 Bad Gateway: Provider returned error
		retry 0s`,
	"error-field": `
		 ()
		error: 500 Internal Server Error: server_error: context size exceeded
		overflow`,
	"failed": `
		 (failed) usage 10 2 0 0
		error: context_length_exceeded: Your input exceeds the context window of this model.
		overflow`,
	"cancelled": `
		 (cancelled)
		error: the server ended the response as cancelled`,
	"closed": `
		text "Half an ans"
		 ()
		error: the server closed the connection before the answer was complete
		retry 0s`,
	"broken-event": `
		text "A"
		 ()
		error: the server sent an event that is not JSON: "{\"type\":\"response.output_text.delta\",\"output_index\":0,\"delta\":\"B"
		retry 0s`,
	"phase": `
		text "Looking." commentary
		text "Found." final_answer
		end_turn (completed) usage 10 5 0 0`,
	"no-index": `
		text "First."
		tool_call call_1 read {}
		tool_call call_2 read {"path":"b"}
		tool_use (completed)`,
	"one-index": `
		text "One."
		tool_call call_1 clean {}
		tool_call call_2 read {}
		length (completed)`,
	"resumed": `
		text "Go on, then."
		thinking "Hm."
		tool_call call_1 read {"a":1}
		tool_use (completed) usage 10 5 0 0`,
	"unknown": `
		text "Fine."
		thinking ""
		opaque {"type":"compaction","id":"cmp_1","encrypted_content":"gCCC"}
		length (completed) usage 0 5 0 0`,
	"usage": `
		text "x"
		end_turn (completed) usage 0 5 161 3`,
	"wrong-status": `
		text "x"
		end_turn (completed)`,
	"plain": `
		text "A plain body."
		tool_call call_1 read {}
		tool_use (completed) usage 10 5 0 0`,
	"plain-error": `
		 ()
		error: invalid_request_error: model not loaded`,
}

// describeResponses puts a message into the words of the tables above.
func describeResponses(m *Message, err error) string {
	var d strings.Builder
	for _, b := range m.Content {
		d.WriteString("\n\t\t" + b.Type)
		switch b.Type {
		case "text", "thinking":
			fmt.Fprintf(&d, " %q", b.Text)
		case "tool_call":
			d.WriteString(" " + b.ID + " " + b.Name + " " + string(b.Args))
		}
		if b.BadArgs != "" {
			d.WriteString(" bad " + b.BadArgs)
		}
		if b.Signature != "" {
			d.WriteString(" " + b.Signature)
		}
	}
	fmt.Fprintf(&d, "\n\t\t%s (%s)", m.Stop, m.RawStop)
	if u := m.Usage; u != nil {
		fmt.Fprintf(&d, " usage %d %d %d %d", u.Input, u.Output, u.CacheRead, u.CacheWrite)
		if u.Reasoning != nil {
			fmt.Fprintf(&d, " reasoning %d", *u.Reasoning)
		}
	}
	if err != nil {
		pe := err.(*providerError)
		d.WriteString("\n\t\terror: " + pe.message)
		if pe.retry {
			fmt.Fprintf(&d, "\n\t\tretry %v", pe.retryAfter)
		}
		if pe.overflow {
			d.WriteString("\n\t\toverflow")
		}
	}
	return d.String()
}

func TestResponsesStreams(t *testing.T) {
	files, err := filepath.Glob("testdata/streams/responses-*.sse")
	if err != nil || len(files) != len(responsesStreams) {
		t.Fatalf("%d files for %d expected results, %v", len(files), len(responsesStreams), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.ToSlash(file), "testdata/streams/responses-"), ".sse")
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range []int{len(data), 1, 7, 4096} {
				if got := describeResponses(decodeResponses(t, &chunked{data, n})); got != responsesStreams[name] {
					t.Errorf("in chunks of %d:%s\nwant:%s", n, got, responsesStreams[name])
				}
			}
		})
	}
}

// However a stream is cut, it is either the whole answer or an error, and then
// no part of it counts as complete.
func TestResponsesCutAnywhere(t *testing.T) {
	for _, name := range []string{"parallel-rotating-ids", "reasoning", "cut-arguments"} {
		data, err := os.ReadFile("testdata/streams/responses-" + name + ".sse")
		if err != nil {
			t.Fatal(err)
		}
		for cut := 0; cut < len(data); cut += 5 {
			msg, err := decodeResponses(t, bytes.NewReader(data[:cut]))
			if err == nil {
				if got := describeResponses(msg, err); got != responsesStreams[name] {
					t.Fatalf("%s cut at %d is taken for whole:%s", name, cut, got)
				}
			} else if msg.Stop != "" || !err.(*providerError).retry {
				t.Fatalf("%s cut at %d: %q, %v", name, cut, msg.Stop, err)
			}
		}
	}
}

// responsesTalk is a conversation with everything in it.
func responsesTalk(m *Model) []*Message {
	reasoning := `{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAA=="}`
	return []*Message{
		{Role: "user", Content: []Block{{Type: "text", Text: "Look <at> this:"}, {Type: "image", MimeType: "image/png", Data: "AAAA"}, {Type: "text", Text: " \n"}}},
		{Role: "assistant", Provider: m.Provider, Model: m.ID, Content: []Block{
			{Type: "thinking", Text: "Hm.", Signature: reasoning},
			{Type: "text", Text: "Reading.", Signature: "commentary"},
			{Type: "opaque", Signature: `{"type":"web_search_call","id":"ws_1"}`},
			{Type: "thinking", Text: "not encrypted"},
			{Type: "tool_call", ID: "call_1", Name: "read", Args: []byte(`{"path":"a\"b"}`)},
			{Type: "tool_call", ID: "functions.read:1", Name: "functions.read", Args: []byte(`{}`), BadArgs: `{"pa`},
			{Type: "thinking", Signature: reasoning}}},
		{Role: "tool", CallID: "call_1", ToolName: "read", Content: []Block{{Type: "text", Text: "a\x1b<b\xff\u2028"}, {Type: "image", MimeType: "image/jpeg", Data: "BBBB"}}},
		{Role: "tool", CallID: "functions.read:1", ToolName: "read", IsError: true, Content: []Block{{Type: "text", Text: " "}}, Activate: []string{"later2", "gone", "later1", "later2"}},
		{Role: "assistant", Provider: m.Provider, Model: m.ID, Content: []Block{{Type: "thinking", Signature: reasoning}, {Type: "text", Text: "\n"}}},
		{Role: "user", Content: []Block{{Type: "text", Text: "And?"}}},
	}
}

func responsesToolList() []*tool {
	schema := json.RawMessage(`{"type":"object","properties":{"z":{},"a":{}}}`)
	return []*tool{{name: "later1", schema: schema, deferred: true}, {name: "read", description: "Reads <a file>.", schema: schema},
		{name: "later2", schema: schema, deferred: true}, {name: "never", schema: schema, deferred: true}}
}

func TestResponsesBody(t *testing.T) {
	m := responsesModel(t)
	const schema = `{"type":"object","properties":{"z":{},"a":{}}}`
	head := `{"model":"gpt-5.4","stream":true,"store":false,"max_output_tokens":128000,"include":["reasoning.encrypted_content"],` +
		`"reasoning":{"effort":"high","summary":"auto"},"instructions":"Be brief.","tools":[` +
		`{"type":"function","name":"read","description":"Reads <a file>.","parameters":` + schema + `,"strict":false},` +
		`{"type":"function","name":"later2","description":"","parameters":` + schema + `,"strict":false},` +
		`{"type":"function","name":"later1","description":"","parameters":` + schema + `,"strict":false}],"input":[`
	first := `{"type":"message","role":"user","content":[{"type":"input_text","text":"Look <at> this:"},{"type":"input_image","detail":"auto","image_url":"data:image/png;base64,AAAA"}]}`
	reasoning := `{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAA=="}`
	said := `{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Reading."}],"phase":"commentary"}`
	calls := []string{`{"type":"function_call","call_id":"call_1","name":"read","arguments":"{\"path\":\"a\\\"b\"}"}`,
		`{"type":"function_call","call_id":"call_08bea97104410e54e835e00fb71655fa","name":"functions_read","arguments":"{}"}`}
	result := `{"type":"function_call_output","call_id":"call_1","output":"a\u001b<b` + "\ufffd" + `\u2028"}`
	empty := `{"type":"function_call_output","call_id":"call_08bea97104410e54e835e00fb71655fa","output":"(no output)"}`
	image := `{"type":"message","role":"user","content":[{"type":"input_text","text":"The result of read (call call_1) has these images:"},{"type":"input_image","detail":"auto","image_url":"data:image/jpeg;base64,BBBB"}]}`
	last := `{"type":"message","role":"user","content":[{"type":"input_text","text":"And?"}]}`

	r := &request{model: m, system: "Be brief.", tools: responsesToolList(), messages: responsesTalk(m), reasoning: "high"}
	check := func(r *request, head string, items ...string) {
		t.Helper()
		got := string(wireBody(responsesWire, r))
		if want := head + strings.Join(items, ",") + "]}"; got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
		if !json.Valid([]byte(got)) {
			t.Error("not JSON")
		}
	}
	check(r, head, first, reasoning, said, calls[0], calls[1], result, empty, image, last)
	check(r, head, first, reasoning, said, calls[0], calls[1], result, empty, image, last)

	// The same transcript for another model: nothing of the first one's own.
	other := *m
	other.ID, other.Vision, other.MaxOutput, other.Levels = "other", false, 0, nil
	note := "(an image was left out: this model takes no images)"
	r = &request{model: &other, messages: r.messages, maxTokens: 100}
	check(r, `{"model":"other","stream":true,"store":false,"max_output_tokens":100,"input":[`,
		strings.ReplaceAll(first, `{"type":"input_image","detail":"auto","image_url":"data:image/png;base64,AAAA"}`, `{"type":"input_text","text":"`+note+`"}`),
		strings.ReplaceAll(said, `,"phase":"commentary"`, ""), calls[0], calls[1],
		strings.ReplaceAll(result, `\u2028"`, `\u2028\n`+note+`"`), empty, last)
}

func TestResponsesImageOnlyResult(t *testing.T) {
	m := responsesModel(t)
	r := &request{model: m, messages: []*Message{
		{Role: "tool", CallID: "a", ToolName: "read", Content: []Block{{Type: "image", MimeType: "image/png", Data: "AAAA"}}},
		{Role: "tool", CallID: "b", ToolName: "read", Content: []Block{{Type: "image", MimeType: "image/png", Data: "BBBB"}}},
		{Role: "assistant", Content: []Block{{Type: "text", Text: "Nice."}}},
		{Role: "tool", CallID: "c", ToolName: "read"}}}
	body := string(wireBody(responsesWire, r))
	at := -1
	for _, part := range []string{`"call_id":"a","output":"(image below)"`, `"call_id":"b","output":"(image below)"`,
		"base64,AAAA", "base64,BBBB", "Nice.", `"call_id":"c","output":"(no output)"`} {
		next := strings.Index(body, part)
		if next <= at {
			t.Errorf("%s is not in its place in %s", part, body)
		}
		at = next
	}
}

func TestResponsesHead(t *testing.T) {
	for _, c := range []struct {
		provider, model, level string
		maxTokens              int
		has, lacks             string
	}{
		{"openai", "gpt-5.4", "", 0, `"include":["reasoning.encrypted_content"]`, `"reasoning":`},
		{"openai", "gpt-5.4", "off", 0, `"include":["reasoning.encrypted_content"],"reasoning":{"effort":"none"},`, "summary"},
		{"openai", "gpt-5.4", "xhigh", 0, `"reasoning":{"effort":"xhigh","summary":"auto"},`, ""},
		{"openai", "gpt-5.4", "max", 0, `"include"`, `"reasoning":`},
		{"openai", "gpt-5", "", 0, `"include"`, `"reasoning":`},
		{"openai", "gpt-4.1", "high", 0, `"max_output_tokens":32768,`, `reasoning`},
		{"openai", "gpt-4", "", 0, `"store":false`, `max_output_tokens`}, // output = window
		{"openai", "gpt-4", "", 1000, `"max_output_tokens":1000`, ``},
		{"xai", "grok-4.5", "low", 0, `"effort":"low"`, `max_output_tokens`},
	} {
		m := catalogModel(t, c.provider, c.model, "")
		body := string(wireBody(responsesWire, &request{model: m, reasoning: c.level, maxTokens: c.maxTokens, messages: []*Message{userText("hi")}}))
		if !strings.Contains(body, c.has) || c.lacks != "" && strings.Contains(body, c.lacks) {
			t.Errorf("%s %q: %s", c.model, c.level, body)
		}
	}
	m := responsesModel(t)
	m.Levels = map[string]string{"off": "off", "low": "low"} // a model of the user's
	if body := string(wireBody(responsesWire, &request{model: m})); strings.Contains(body, `"reasoning":`) {
		t.Errorf("%s", body)
	}
}

func TestResponsesID(t *testing.T) {
	long := strings.Repeat("x", 64)
	seen := map[string]string{}
	for id, kept := range map[string]bool{"call_AbC-19": true, long: true, "a.b": false, "a:b": false, "": false, "é": false, long + "y": false, long + "z": false} {
		got := wireID(id, wordID)
		if (got == id) != kept || len(got) > 64 || got == "" || notWord().MatchString(got) || wireID(id, wordID) != got {
			t.Errorf("%q: %q", id, got)
		}
		if seen[got] != "" {
			t.Errorf("%q and %q became one", id, seen[got])
		}
		seen[got] = id
	}
}

// strictResponses checks an input as a vendor does that stores nothing.
func strictResponses(t *testing.T, body object) (items []string) {
	t.Helper()
	if string(body["store"]) != "false" || string(body["include"]) != `["reasoning.encrypted_content"]` {
		t.Errorf("store %s, include %s", body["store"], body["include"])
	}
	open := map[string]bool{}
	before := ""
	var input []json.RawMessage
	if err := json.Unmarshal(body["input"], &input); err != nil {
		t.Fatal(err)
	}
	for _, raw := range input {
		item, err := parseObject(raw)
		if err != nil {
			t.Fatal(err)
		}
		typ, _ := item.str("type")
		id, _ := item.str("call_id")
		switch typ {
		case "reasoning":
			if !item.has("id") || !item.has("encrypted_content") || item["summary"][0] != '[' || item.has("content") || item.has("status") {
				t.Errorf("reasoning %s", raw)
			}
		case "function_call":
			open[id] = true
		case "function_call_output":
			if !open[id] {
				t.Errorf("a result without a call: %s", raw)
			}
			delete(open, id)
		}
		if role, _ := item.str("role"); before == "reasoning" && (typ == "function_call_output" || role == "user") {
			t.Errorf("reasoning without what it led to, before %s", raw)
		}
		before = typ
		items = append(items, typ)
	}
	if before == "reasoning" || len(open) > 0 {
		t.Errorf("ends in %s, calls without results: %v", before, open)
	}
	return items
}

func TestResponsesToolLoop(t *testing.T) {
	const step1 = `data: {"type":"response.output_item.done","output_index":0,"item":{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"é\u2028"}],"content":[],"status":"completed","encrypted_content":"gAAA=="}}

data: {"type":"response.output_item.done","output_index":1,"item":{"type":"function_call","id":"fc_1","call_id":"call_1","name":"read","arguments":"{\"path\":\"\ud99c\"}"}}

data: {"type":"response.completed","response":{"status":"completed"}}

`
	aborted := strings.Split(step1, "data: ")[1]
	d := newDouble(t, answer{body: "data: " + aborted}, answer{body: step1}, answer{body: okStream})
	r := &request{model: catalogModel(t, "openai", "gpt-5.4", d.URL+"/v1/"), messages: []*Message{userText("Read it.")}}

	msg, _, err := callModel(t, r)
	if err == nil || len(msg.Content) != 1 || msg.Content[0].Type != "thinking" {
		t.Fatalf("%v, %s", err, encode(msg.Content))
	}
	r.messages = append(r.messages, msg, userText("Go on."))
	msg, deltas, err := callModel(t, r)
	if err != nil || msg.Stop != "tool_use" {
		t.Fatal(msg.Stop, err)
	}
	if want := []string{"start 0 ", "delta 0 é\u2028", "end 0 ", "start 1 ", "delta 1 {\"path\":\"\ufffd\"}", "end 1 "}; !reflect.DeepEqual(deltas, want) {
		t.Errorf("deltas %q", deltas)
	}
	before := wireBody(responsesWire, r)
	r.messages = append(r.messages, msg, &Message{Role: "tool", CallID: "call_1", ToolName: "read", Content: []Block{{Type: "text", Text: "text"}}})
	if msg, _, err = callModel(t, r); err != nil || messageText(msg, "text") != "ok" {
		t.Fatal(err)
	}
	if after := wireBody(responsesWire, r); !bytes.HasPrefix(after, bytes.TrimSuffix(before, []byte("]}"))) {
		t.Errorf("%s\nis not continued by\n%s", before, after)
	}
	if got := strictResponses(t, d.sent(1)); !reflect.DeepEqual(got, []string{"message", "message"}) {
		t.Errorf("after the abort: %v", got)
	}
	if got := strictResponses(t, d.sent(2)); !reflect.DeepEqual(got, []string{"message", "message", "reasoning", "function_call", "function_call_output"}) {
		t.Errorf("after the call: %v", got)
	}
	input := string(d.sent(2)["input"])
	for _, part := range []string{`{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"é\u2028"}],"encrypted_content":"gAAA=="}`, `"arguments":"{\"path\":\"` + "\ufffd" + `\"}"`} {
		if !strings.Contains(input, part) {
			t.Errorf("%s is not in %s", part, input)
		}
	}
	if d.requests[2].URL.Path != "/v1/responses" || d.requests[2].Header.Get("Authorization") != "Bearer sk-secret" {
		t.Errorf("%s %v", d.requests[2].URL, d.requests[2].Header)
	}
}

func longTalk(m *Model, n int) []*Message {
	var messages []*Message
	for len(messages) < n {
		messages = append(messages, responsesTalk(m)...)
	}
	return messages
}

// A turn copies what earlier turns have encoded.
func TestResponsesHistoryIsKept(t *testing.T) {
	m := responsesModel(t)
	r := &request{model: m, messages: longTalk(m, 2000)}
	first := wireBody(responsesWire, r)
	kept := &r.messages[0].wire.part[0][0]
	if allocs := testing.AllocsPerRun(3, func() { wireBody(responsesWire, r) }); allocs > 30 {
		t.Errorf("%.0f allocations for a history that is encoded", allocs)
	}
	if &r.messages[0].wire.part[0][0] != kept || !bytes.Equal(first, wireBody(responsesWire, r)) {
		t.Error("the history was encoded again")
	}
}

func BenchmarkResponsesBody(b *testing.B) {
	m := responsesModel(b)
	r := &request{model: m, messages: longTalk(m, 2000)}
	b.SetBytes(int64(len(wireBody(responsesWire, r))))
	b.ReportAllocs()
	for b.Loop() {
		wireBody(responsesWire, r)
	}
}

var responsesDeltaEvent = []byte(`{"type":"response.output_text.delta","content_index":0,"delta":" small\nstep","item_id":"msg_0a63f40a2632b74300699f881bfbc88196aec38f30c3dd24b0","logprobs":[],"obfuscation":"pDfMv6","output_index":0,"sequence_number":52}`)

func BenchmarkResponsesDelta(b *testing.B) {
	a := &assembler{msg: &Message{}, on: func(delta) {}}
	p := responsesWire.parser(a)
	b.SetBytes(int64(len(responsesDeltaEvent)))
	b.ReportAllocs()
	for b.Loop() {
		p.event("response.output_text.delta", responsesDeltaEvent)
		a.text[0] = a.text[0][:0] // or the text would outgrow the memory
	}
}

// What BenchmarkResponsesDelta is measured against.
func BenchmarkResponsesDeltaEncodingJSON(b *testing.B) {
	a := &assembler{msg: &Message{}, on: func(delta) {}}
	a.start(Block{Type: "text"})
	b.SetBytes(int64(len(responsesDeltaEvent)))
	b.ReportAllocs()
	for b.Loop() {
		var e struct {
			Type         string `json:"type"`
			OutputIndex  int    `json:"output_index"`
			ContentIndex int    `json:"content_index"`
			Delta        string `json:"delta"`
		}
		if err := json.Unmarshal(responsesDeltaEvent, &e); err != nil {
			b.Fatal(err)
		}
		a.add(0, []byte(e.Delta))
		a.text[0] = a.text[0][:0]
	}
}
