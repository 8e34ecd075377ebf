// OpenAI Chat Completions, and everything that imitates it. Rules kept here:
//
//   - What a server leaves out, repeats, blanks or adds costs no text and no
//     tool call. Only choice 0 counts; the last usage and finish reason win.
//   - An answer is complete when it had a finish reason or [DONE].
//   - Reasoning, its opaque details and thought signatures go back only to the
//     provider and model that made them.
//   - A message is encoded once; a request joins the kept fragments.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

var chatWire = wireFormat{"/chat/completions", bearer, chatBody, func(a *assembler) streamParser { return &chatParser{a: a} }}

// chatBody encodes a request: the model, messages, tools, stream, the limit and
// the reasoning fields, in this order, so that equal beginnings of transcripts
// are equal bytes.
func chatBody(r *request) [][]byte {
	m := r.model
	parts := append(make([][]byte, 0, len(r.messages)+8), appendJSON(nil, `{"model":?,"messages":[`, m.ID))
	add := func(message []byte) {
		if len(message) > 0 {
			parts = append(parts, message)
		}
	}
	if r.system != "" {
		role := "system"
		if m.Provider == "openai" && len(m.Levels) > 0 {
			role = "developer"
		}
		add(appendJSON(nil, `,{"role":?,"content":?}`, role, r.system))
	}
	// Kimi gets tools at the place where a result activated them, so that the
	// prefix before stays cached.
	tools := offeredTools(r, nil)
	if !m.Kimi {
		tools = offeredTools(r, r.messages)
	}
	offered, announced := tools, len(tools)
	var images []byte // of the last tool results, which are text only
	key := fmt.Sprintf("chat %s %s vision=%t echo=%t", m.Provider, m.ID, m.Vision, m.Echo)
	for i, msg := range r.messages {
		if msg.wire.key != key {
			msg.wire = encoded{key: key, part: encodeChat(msg, m)}
		}
		add(msg.wire.part[0])
		images = append(images, msg.wire.part[1]...)
		tools = activate(tools, r, msg)
		next := ""
		if i+1 < len(r.messages) {
			next = r.messages[i+1].Role
		}
		if next == "tool" {
			continue
		}
		if len(tools) > announced {
			add(appendJSON(nil, `,{"role":"system","tools":?}`, appendTools(nil, tools[announced:], chatTool)))
			announced = len(tools)
		}
		if msg.Role == "tool" && isMistral(m) && (next == "user" || images != nil) { // which refuses a user message there
			add([]byte(`,{"role":"assistant","content":"Done."}`))
		}
		if images != nil {
			add(appendJSON(nil, `,{"role":"user","content":[{"type":"text","text":"Images of the tool results above:"}?]}`, images))
			images = nil
		}
	}
	if len(parts) > 1 {
		parts[1] = parts[1][1:] // the first has no comma before it
	}
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	tail := []byte("]")
	if len(offered) > 0 {
		tail = appendTools([]byte(`],"tools":`), offered, chatTool)
		size += len(tail)
	}
	tail = append(tail, `,"stream":true,"stream_options":{"include_usage":true}`...)
	if n := chatLimit(r, size); n > 0 && m.Provider == "openai" {
		tail = appendJSON(tail, `,"max_completion_tokens":?`, n)
	} else if n > 0 {
		tail = appendJSON(tail, `,"max_tokens":?`, n)
	}
	tail = append(appendChatReasoning(tail, r), '}')
	return append(parts, tail)
}

const chatTool = `{"type":"function","function":{"name":?,"description":?,"parameters":?}}`

// chatLimit is how many tokens may be generated, 0 when the server decides.
// Some servers refuse a limit that does not fit into the window beside the
// prompt; a token is taken to be three bytes, which errs on the safe side.
func chatLimit(r *request, promptBytes int) int {
	n := cmp.Or(r.maxTokens, r.model.MaxOutput)
	if w := r.model.ContextWindow; w > 0 {
		n = min(n, max(w-promptBytes/3, w/8))
	}
	return n
}

// appendChatReasoning sets reasoning the way the model wants it (see thinking=
// in models.txt): by a switch or by an effort, never both. The level "" leaves
// it to the server.
func appendChatReasoning(b []byte, r *request) []byte {
	m, on := r.model, r.reasoning != "off"
	word, known := m.Levels[r.reasoning]
	switch {
	case r.reasoning == "" || m.Thinking == "none":
	case m.Thinking == "reasoning.effort" && on: // also without a list of levels
		b = appendJSON(b, `,"reasoning":{"effort":?}`, cmp.Or(word, r.reasoning))
	case m.Thinking == "reasoning.effort":
		b = append(b, `,"reasoning":{"enabled":false}`...)
	case !known:
	case m.Thinking == "" && word != "off", m.Effort && on: // off is sent where the vendor has a word for it
		b = appendJSON(b, `,"reasoning_effort":?`, word)
	case m.Thinking == "reasoning.enabled":
		b = appendJSON(b, `,"reasoning":{"enabled":?}`, on)
	case m.Thinking == "thinking.type" && on:
		b = append(b, `,"thinking":{"type":"enabled"}`...)
	case m.Thinking == "thinking.type":
		b = append(b, `,"thinking":{"type":"disabled"}`...)
	}
	return b
}

// encodeChat encodes one message. The first part is the message, nil when
// there is nothing to send; the second the images of a tool result, each as a
// content part. All stand behind a comma.
func encodeChat(msg *Message, m *Model) (part [2][]byte) {
	if msg.Role == "tool" {
		text, images := splitResult(m, msg.Content)
		b := appendJSON(nil, `,{"role":"tool","tool_call_id":?`, chatToolID(msg.CallID, m))
		if m.Provider == "google" { // which refuses a result without it
			b = appendJSON(b, `,"name":?`, wireToolName(msg.ToolName))
		}
		part[0] = appendJSON(b, `,"content":?}`, text)
		part[1] = chatParts(images)
		return part
	}
	blocks := sendable(m, msg.Content)
	text, images := split(blocks)
	switch {
	case msg.Role == "assistant":
		part[0] = encodeChatAssistant(msg, m, text)
	case images != nil:
		part[0] = appendJSON(nil, `,{"role":"user","content":[?]}`, chatParts(blocks)[1:])
	case text != "":
		part[0] = appendJSON(nil, `,{"role":"user","content":?}`, text)
	}
	return part
}

// chatParts encodes texts and images as content parts, each behind a comma.
func chatParts(blocks []Block) []byte {
	return appendParts(nil, blocks, `,{"type":"text","text":?}`, `,{"type":"image_url","image_url":{"url":"data:?;base64,?"}}`)
}

func encodeChatAssistant(msg *Message, m *Model, text string) []byte {
	own := msg.Provider == m.Provider && msg.Model == m.ID
	var thinking, details string
	var calls []byte
	for _, b := range msg.Content {
		switch {
		case b.Type == "tool_call":
			calls = appendJSON(comma(calls), `{"id":?`, chatToolID(b.ID, m))
			if own && b.Signature != "" {
				calls = appendJSON(calls, `,"extra_content":{"google":{"thought_signature":?}}`, b.Signature)
			}
			calls = appendJSON(calls, `,"type":"function","function":{"name":?,"arguments":?}}`, wireToolName(b.Name), string(b.Args))
		case b.Type == "thinking" && own:
			thinking += b.Text
			if strings.HasPrefix(b.Signature, "[") { // else it is another wire format's
				details = b.Signature
			}
		}
	}
	if text == "" && calls == nil {
		return nil
	}
	b := []byte(`,{"role":"assistant","content":null`)
	if text != "" {
		b = appendJSON(nil, `,{"role":"assistant","content":?`, text)
	}
	if details != "" {
		b = append(append(b, `,"reasoning_details":`...), details...)
	}
	if calls != nil && m.Echo {
		b = appendJSON(b, `,"reasoning_content":?`, thinking)
	}
	if calls != nil {
		b = appendJSON(b, `,"tool_calls":[?]`, calls)
	}
	return append(b, '}')
}

// isMistral reports whether a model has Mistral's rules for message order and
// tool ids, which other servers of its models keep too.
func isMistral(m *Model) bool {
	return m.Provider == "mistral" || strings.Contains(strings.ToLower(m.ID), "stral")
}

var (
	chatID    = lazyRegexp(`^[A-Za-z0-9_-]{1,40}$`)
	kimiID    = lazyRegexp(`^[A-Za-z0-9_.:-]{1,80}$`) // its functions.read:0 mean something to it
	mistralID = lazyRegexp(`^[A-Za-z0-9]{9}$`)
)

// chatToolID returns a tool call's id as the model's server takes it.
func chatToolID(id string, m *Model) string {
	switch {
	case strings.Contains(strings.ToLower(m.ID), "kimi"):
		return wireID(id, kimiID)
	case isMistral(m):
		return strings.TrimPrefix(wireID(id, mistralID), "call_")[:9]
	}
	return wireID(id, chatID)
}

// chatParser reads the chunks of an answer, or a whole answer as one chunk.
type chatParser struct {
	a        *assembler
	calls    []chatCall
	details  []object // OpenRouter's reasoning_details, put together from their pieces
	finish   string   // the last finish reason
	native   string   // OpenRouter: the last finish reason in the vendor's words
	failure  []byte   // the event's error
	progress bool     // the event brought something
}

// chatCall is a tool call as the server identifies it.
type chatCall struct {
	index, id, name string // as sent; index and id may be ""
	block           int
}

func (p *chatParser) event(name string, data []byte) (meaningful bool, err error) {
	v, whole := pick(data, "choices", "usage", "x_groq", "error", "object")
	if !whole { // a gateway may lose the end of an event together with its line end
		if i := bytes.LastIndex(data, []byte("data:")); i > 0 {
			return p.event(name, data[i+len("data:"):])
		}
		return false, errNotJSON
	}
	p.progress, p.failure = false, v[3]
	if slices.Contains([]string{`{}`, `""`, `false`}, string(p.failure)) {
		p.failure = nil
	}
	walk(v[0], func(_, choice []byte) { p.choice(choice) })
	p.usage(v[1])
	p.usage(get(v[2], "usage"))
	switch {
	case p.failure != nil:
		return true, streamError(p.failure)
	case string(v[4]) == `"error"`, name == "json" && v[0] == nil:
		return true, streamError(data)
	case p.progress && p.finish != "" && p.a.msg.Usage != nil:
		return true, errComplete
	}
	return p.progress, nil
}

func (p *chatParser) choice(choice []byte) {
	v, _ := pick(choice, "index", "delta", "message", "usage", "finish_reason", "native_finish_reason", "error")
	if count(v[0]) > 0 {
		return
	}
	delta := v[1]
	if delta == nil && len(p.a.msg.Content) == 0 {
		delta = v[2] // a whole answer; some servers repeat it beside the deltas
	}
	p.delta(delta)
	p.usage(v[3]) // Kimi
	if s := textOf(v[4]); s != "" {
		p.finish, p.progress = s, true
	}
	p.native = cmp.Or(textOf(v[5]), p.native)
	if v[6] != nil { // OpenRouter
		p.failure = v[6]
	}
}

func (p *chatParser) delta(delta []byte) {
	v, _ := pick(delta, "content", "reasoning_content", "reasoning", "reasoning_text", "reasoning_details", "refusal", "tool_calls")
	shown := false
	for _, thought := range v[1:4] {
		shown = shown || p.add("thinking", thought)
	}
	walk(v[4], func(_, detail []byte) { p.detail(detail, shown) })
	if !p.add("text", v[0]) {
		walk(v[0], func(_, part []byte) { p.part(part) })
	}
	p.add("text", v[5]) // a refusal is what the model says
	walk(v[6], func(_, call []byte) { p.toolCall(call) })
}

// part takes a content part as Mistral sends them: {"text"}, or {"thinking"}
// with a string or a list of text parts.
func (p *chatParser) part(part []byte) {
	v, _ := pick(part, "text", "thinking")
	p.add("text", v[0])
	p.add("thinking", v[1])
	walk(v[1], func(_, inner []byte) { p.add("thinking", get(inner, "text")) })
}

// add appends a string to the open block if that is of this type, else to a
// new one. It reports false for an empty string and for other values.
func (p *chatParser) add(kind string, v []byte) bool {
	if len(v) <= len(`""`) || v[0] != '"' {
		return false
	}
	p.progress = true
	p.a.addJSON(p.a.last(kind), v)
	return true
}

// toolCall takes one entry of delta.tool_calls: a new call or more of one.
func (p *chatParser) toolCall(entry []byte) {
	v, _ := pick(entry, "index", "id", "function", "extra_content")
	f, _ := pick(v[2], "name", "arguments")
	args := f[1]
	d := chatCall{index: string(v[0]), id: textOf(v[1]), name: textOf(f[0])}
	if d.id == "null" {
		d.id = ""
	}
	if string(args) == `""` {
		args = nil
	}
	call := p.findCall(d)
	if call == nil && d.id == "" && d.name == "" && args == nil {
		return
	}
	if call == nil || p.isNewCall(call, d, args) {
		p.a.endText()
		d.block = p.a.startCall(d.id, d.name)
		p.calls = append(p.calls, d)
		call = &p.calls[len(p.calls)-1]
	}
	p.progress = true
	b := &p.a.msg.Content[call.block]
	if b.Name == "" {
		b.Name, call.name = d.name, d.name
	}
	b.Signature = cmp.Or(textOf(get(v[3], "google", "thought_signature")), b.Signature)
	p.a.addJSON(call.block, args)
}

// findCall finds the call that an entry may continue: the newest of its index;
// without an index the one of its id, else the newest.
func (p *chatParser) findCall(d chatCall) *chatCall {
	for i := range slices.Backward(p.calls) {
		if c := &p.calls[i]; c.index == d.index && (d.index != "" || d.id == "" || d.id == c.id) {
			return c
		}
	}
	if d.index == "" && len(p.calls) > 0 {
		return &p.calls[len(p.calls)-1]
	}
	return nil
}

// isNewCall reports whether an entry starts another call although it was found
// to match call c. Servers repeat names, change ids within a call, or send all
// calls with the same index or none, so it takes a name to start a call, and
// half-written arguments to tell a repeated name from a second call.
func (p *chatParser) isNewCall(c *chatCall, d chatCall, args []byte) bool {
	written := p.a.text[c.block]
	otherID := d.id != "" && d.id != c.id
	switch {
	case d.name == "" || c.name == "":
		return false
	case d.name != c.name:
		return true
	case bytes.HasSuffix(written, []byte("}")) && json.Valid(written):
		return otherID || args != nil
	case len(written) > 0:
		return false
	}
	return d.index == "" && (d.id == "" || otherID)
}

// detail merges one piece of the reasoning details: with the entry of the same
// type and index, or where there is no index with the last entry if that is of
// the same type of text. Its text is shown unless it is in the delta as well.
func (p *chatParser) detail(piece []byte, shown bool) {
	v, _ := pick(piece, "type", "index", "text", "summary")
	at := slices.IndexFunc(p.details, func(d object) bool {
		return v[1] != nil && bytes.Equal(d["type"], v[0]) && bytes.Equal(d["index"], v[1])
	})
	if last := len(p.details) - 1; v[1] == nil && last >= 0 && bytes.Equal(p.details[last]["type"], v[0]) && string(v[0]) != `"reasoning.encrypted"` {
		at = last
	}
	if at < 0 {
		at = len(p.details)
		p.details = append(p.details, object{})
	}
	p.details[at].merge(piece, func(key string) bool { return key == "text" || key == "summary" || key == "data" })
	p.progress = true
	if !shown {
		p.add("thinking", v[2])
		p.add("thinking", v[3])
	}
	if !p.a.msg.has("thinking") { // nothing to show: a block for the details alone
		p.a.last("thinking")
	}
}

// signDetails keeps the details, as a JSON list, with the first thinking.
func (p *chatParser) signDetails() {
	var list []byte
	for _, d := range p.details {
		list = append(comma(list), d.encode()...)
	}
	for i := range p.a.msg.Content {
		if b := &p.a.msg.Content[i]; b.Type == "thinking" && list != nil {
			b.Signature = "[" + string(list) + "]"
			return
		}
	}
}

// usage takes token counts; the last ones that a stream reports are right.
// prompt_tokens includes what was read from and written to the cache.
func (p *chatParser) usage(counts []byte) {
	v, _ := pick(counts, "prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details",
		"cached_tokens", "prompt_cache_hit_tokens", "num_cached_tokens", "reasoning_tokens")
	if v[0] == nil && v[1] == nil {
		return
	}
	p.progress = true
	prompt, completion := count(v[0]), count(v[1])
	cached := max(count(get(v[3], "cached_tokens")), count(v[5]), count(v[6]), count(v[7]))
	written := count(get(v[3], "cache_write_tokens"))
	u := &Usage{Input: max(0, prompt-cached-written), Output: completion, CacheRead: cached, CacheWrite: written}
	if reasoning := get(v[4], "reasoning_tokens"); reasoning != nil || v[8] != nil {
		n := max(count(reasoning), count(v[8]))
		u.Reasoning = &n
		if p.a.msg.Provider == "xai" && count(v[2]) == prompt+completion+n {
			u.Output += n // xAI leaves it out
		}
	}
	p.a.msg.Usage = u
}

func (p *chatParser) end(done bool) error {
	msg := p.a.msg
	if p.finish == "" && (!done || len(msg.Content) == 0) {
		return truncated()
	}
	p.signDetails()
	msg.RawStop = p.finish
	if isLengthStop(p.native) { // although it may say tool_calls
		msg.RawStop = p.native
	}
	switch stop := msg.RawStop; {
	case isLengthStop(stop):
		msg.Stop = "length"
	case slices.Contains([]string{"content_filter", "sensitive"}, stop):
		return &providerError{message: "the provider's content filter stopped the answer (" + stop + ")"}
	case slices.Contains([]string{"error", "abort", "network_error", "insufficient_system_resource"}, stop):
		return &providerError{message: "the server gave up on the answer (" + stop + ")", retry: true}
	case len(p.calls) > 0: // many servers say stop
		msg.Stop = "tool_use"
	default:
		msg.Stop = "end_turn"
	}
	return nil
}

// isLengthStop reports whether a finish reason means that a limit was reached.
func isLengthStop(reason string) bool {
	return slices.Contains([]string{"length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_length", "model_context_window_exceeded"}, reason)
}
