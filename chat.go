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
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// chatWire is the wire format of POST {base}/chat/completions.
type chatWire struct{}

func (chatWire) endpoint(base, key string, _ *request, h http.Header) string {
	if key != "" { // local servers have none
		h.Set("Authorization", "Bearer "+key)
	}
	return strings.TrimRight(base, "/") + "/chat/completions"
}

// body encodes a request: the model, messages, tools, stream, the limit and
// the reasoning fields, in this order, so that equal beginnings of transcripts
// are equal bytes.
func (chatWire) body(r *request) []byte {
	m := r.model
	head := append(appendString([]byte(`{"model":`), m.ID), `,"messages":[`...)
	list := chatList{parts: append(make([][]byte, 0, 2*len(r.messages)+8), head), bridge: isMistral(m)}
	if r.system != "" {
		role := `{"role":"system","content":`
		if m.Provider == "openai" && len(m.Levels) > 0 {
			role = `{"role":"developer","content":`
		}
		list.add("system", append(appendString([]byte(role), r.system), '}'))
	}
	offered, later := chatTools(r)
	key := fmt.Sprintf("chat %s %s vision=%t echo=%t", m.Provider, m.ID, m.Vision, m.Echo)
	for _, msg := range r.messages {
		if msg.wire.key != key {
			msg.wire = encoded{key: key, part: encodeChat(msg, m)}
		}
		list.add(msg.Role, msg.wire.part[0])
		if images := msg.wire.part[1]; images != nil {
			list.images = append(list.images, images)
		}
		for _, name := range msg.Activate {
			if t := later[name]; t != nil {
				list.activated = append(list.activated, t)
				delete(later, name)
			}
		}
	}
	list.endResults()

	tail := []byte("]")
	if len(offered) > 0 {
		tail = appendChatTools(append(tail, `,"tools":`...), offered)
	}
	tail = append(tail, `,"stream":true,"stream_options":{"include_usage":true}`...)
	size := len(tail)
	for _, part := range list.parts {
		size += len(part)
	}
	if n := chatLimit(r, size); n > 0 {
		name := `,"max_tokens":`
		if m.Provider == "openai" {
			name = `,"max_completion_tokens":`
		}
		tail = strconv.AppendInt(append(tail, name...), int64(n), 10)
	}
	tail = append(appendChatReasoning(tail, r), '}')
	return slices.Concat(append(list.parts, tail)...)
}

// chatList joins encoded messages and adds what depends on their position.
type chatList struct {
	parts  [][]byte
	last   string // role of the last message
	bridge bool   // a user message must not follow a tool result (Mistral)

	images    [][]byte // of the tool results at the end of the list
	activated []*tool  // by these results
}

var chatComma = []byte(",")

func (l *chatList) add(role string, message []byte) {
	if message == nil {
		return
	}
	if role != "tool" {
		l.endResults()
	}
	if l.bridge && l.last == "tool" && role == "user" {
		l.add("assistant", []byte(`{"role":"assistant","content":"Done."}`))
	}
	if l.last != "" {
		l.parts = append(l.parts, chatComma)
	}
	l.parts, l.last = append(l.parts, message), role
}

// endResults completes a run of tool results: the tools that they made
// available are announced behind them, so that the prefix before stays cached;
// their images follow as a user message, because results are text only.
func (l *chatList) endResults() {
	tools, images := l.activated, l.images
	l.activated, l.images = nil, nil
	if tools != nil {
		l.add("system", append(appendChatTools([]byte(`{"role":"system","tools":`), tools), '}'))
	}
	if images != nil {
		l.add("user", slices.Concat([]byte(`{"role":"user","content":[{"type":"text","text":"Images of the tool results above:"}`),
			slices.Concat(images...), []byte("]}")))
	}
}

// chatTools splits the tools into those offered at the top level and those
// that Kimi gets at the place where a result activated them.
func chatTools(r *request) (offered []*tool, later map[string]*tool) {
	if !r.model.Kimi {
		return offeredTools(r), nil
	}
	later = map[string]*tool{}
	for _, t := range r.tools {
		if t.deferred {
			later[t.name] = t
		} else {
			offered = append(offered, t)
		}
	}
	return offered, later
}

func appendChatTools(b []byte, tools []*tool) []byte {
	for i, t := range tools {
		b = append(b, "[,"[min(i, 1)])
		b = appendString(append(b, `{"type":"function","function":{"name":`...), t.name)
		if t.description != "" {
			b = appendString(append(b, `,"description":`...), t.description)
		}
		b = append(append(append(b, `,"parameters":`...), t.schema...), "}}"...)
	}
	return append(b, ']')
}

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
		b = append(appendString(append(b, `,"reasoning":{"effort":`...), cmp.Or(word, r.reasoning)), '}')
	case m.Thinking == "reasoning.effort":
		b = append(b, `,"reasoning":{"enabled":false}`...)
	case !known:
	case m.Thinking == "" && word != "off", m.Effort && on: // off is sent where the vendor has a word for it
		b = appendString(append(b, `,"reasoning_effort":`...), word)
	case m.Thinking == "reasoning.enabled":
		b = append(strconv.AppendBool(append(b, `,"reasoning":{"enabled":`...), on), '}')
	case m.Thinking == "thinking.type" && on:
		b = append(b, `,"thinking":{"type":"enabled"}`...)
	case m.Thinking == "thinking.type":
		b = append(b, `,"thinking":{"type":"disabled"}`...)
	}
	return b
}

// encodeChat encodes one message. The first part is the message, nil when
// there is nothing to send; the second the images of a tool result, each as a
// content part behind a comma.
func encodeChat(msg *Message, m *Model) (part [2][]byte) {
	var kept []Block
	var texts []string
	images := false
	for _, b := range msg.Content {
		if b.Type == "image" && !m.Vision {
			b = Block{Type: "text", Text: "(an image was left out: this model takes no images)"}
		}
		switch {
		case b.Type == "image":
			images = true
		case b.Type == "text" && !blank(b.Text): // blank text is refused by some servers
			texts = append(texts, b.Text)
		default:
			continue
		}
		kept = append(kept, b)
	}
	text := strings.Join(texts, "\n")
	switch {
	case msg.Role == "assistant":
		part[0] = encodeChatAssistant(msg, m, text)
	case msg.Role == "tool":
		part[0] = encodeChatResult(msg, m, text, images)
		if images {
			kept = slices.DeleteFunc(kept, func(b Block) bool { return b.Type != "image" })
			part[1] = appendChatParts(nil, kept)
		}
	case images:
		part[0] = append(append([]byte(`{"role":"user","content":[`), appendChatParts(nil, kept)[1:]...), "]}"...)
	case text != "":
		part[0] = append(appendString([]byte(`{"role":"user","content":`), text), '}')
	}
	return part
}

// appendChatParts appends text and images as content parts, each behind a comma.
func appendChatParts(dst []byte, blocks []Block) []byte {
	for _, b := range blocks {
		if b.Type == "text" {
			dst = append(appendString(append(dst, `,{"type":"text","text":`...), b.Text), '}')
			continue
		}
		dst = append(dst, `,{"type":"image_url","image_url":{"url":`...)
		dst = append(appendString(dst, "data:"+b.MimeType+";base64,"+b.Data), "}}"...)
	}
	return dst
}

func encodeChatAssistant(msg *Message, m *Model, text string) []byte {
	own := msg.Provider == m.Provider && msg.Model == m.ID
	var thinking, details string
	var calls []byte
	for _, b := range msg.Content {
		switch {
		case b.Type == "tool_call":
			calls = appendChatCall(append(calls, ','), &b, m, own)
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
	b := []byte(`{"role":"assistant","content":`)
	if text == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, text)
	}
	if details != "" {
		b = append(append(b, `,"reasoning_details":`...), details...)
	}
	if calls != nil {
		if m.Echo {
			b = appendString(append(b, `,"reasoning_content":`...), thinking)
		}
		b = append(append(append(b, `,"tool_calls":[`...), calls[1:]...), ']')
	}
	return append(b, '}')
}

func appendChatCall(dst []byte, b *Block, m *Model, own bool) []byte {
	dst = appendString(append(dst, `{"id":`...), chatToolID(b.ID, m))
	if own && b.Signature != "" {
		dst = append(appendString(append(dst, `,"extra_content":{"google":{"thought_signature":`...), b.Signature), "}}"...)
	}
	dst = appendString(append(dst, `,"type":"function","function":{"name":`...), wireToolName(b.Name))
	return append(appendString(append(dst, `,"arguments":`...), []byte(b.Args)), "}}"...)
}

func encodeChatResult(msg *Message, m *Model, text string, images bool) []byte {
	if text == "" && images {
		text = "(image below)"
	}
	b := appendString([]byte(`{"role":"tool","tool_call_id":`), chatToolID(msg.CallID, m))
	if m.Provider == "google" { // which refuses a result without it
		b = appendString(append(b, `,"name":`...), wireToolName(msg.ToolName))
	}
	return append(appendString(append(b, `,"content":`...), cmp.Or(text, "(no output)")), '}')
}

// isMistral reports whether a model has Mistral's rules for message order and
// tool ids, which other servers of its models keep too.
func isMistral(m *Model) bool {
	return m.Provider == "mistral" || strings.Contains(strings.ToLower(m.ID), "stral")
}

// chatToolID returns a tool call's id as the model's server takes it: nine
// letters and digits for Mistral, up to 40 characters elsewhere. Ids that do
// not fit are replaced by a digest, so that different ones stay different.
func chatToolID(id string, m *Model) string {
	notAllowed, shortest, longest := notWord, 1, 40
	mistral := isMistral(m)
	switch {
	case mistral:
		notAllowed = func(r rune) bool { return notWord(r) || r == '_' || r == '-' }
		shortest, longest = 9, 9
	case strings.Contains(strings.ToLower(m.ID), "kimi"): // its functions.read:0 mean something to it
		notAllowed = func(r rune) bool { return notWord(r) && r != '.' && r != ':' }
		longest = 80
	}
	if len(id) >= shortest && len(id) <= longest && !strings.ContainsFunc(id, notAllowed) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	if mistral {
		digits := "00000000" + strconv.FormatUint(binary.BigEndian.Uint64(sum[:]), 36)
		return digits[len(digits)-9:]
	}
	return fmt.Sprintf("call_%x", sum[:16])
}

// chatParser reads the chunks of an answer, or a whole answer as one chunk.
type chatParser struct {
	a        *assembler
	r        *request
	open     int // the text or thinking block that grows; -1: none
	calls    []chatCall
	thinking int // the first thinking block; -1: none
	details  []*reasoningDetail
	finish   string // the last finish reason
	native   string // OpenRouter: the last finish reason in the vendor's words
	done     bool   // saw [DONE], or a whole answer
	failure  []byte // the event's error
	progress bool   // the event brought something
	broken   error  // the last event was not JSON
	textDecoder
}

// chatCall is a tool call as the server identifies it.
type chatCall struct {
	index, id, name string // as sent; index and id may be ""
	block           int
}

func (chatWire) parser(r *request, a *assembler) streamParser {
	return &chatParser{a: a, r: r, open: -1, thinking: -1}
}

func (p *chatParser) event(name string, data []byte) (meaningful bool, err error) {
	if p.broken != nil {
		return false, p.broken
	}
	data = bytes.TrimSpace(data)
	if string(data) == "[DONE]" {
		p.done = true
		return false, io.EOF
	}
	if name == "error" {
		return true, streamError(data)
	}
	if len(data) == 0 || data[0] != '{' {
		return false, nil // some servers' idea of a keep-alive
	}
	chunk, ok := readChatChunk(data)
	if !ok {
		chunk, ok = readChatChunk(afterGlue(data))
	}
	if !ok { // an error if anything follows, else the connection was cut here
		p.broken = &providerError{message: fmt.Sprintf("the server sent an event that is not JSON: %.200q", data), retry: true}
		return false, nil
	}
	p.progress, p.failure = false, chunk.failure
	walkJSON(chunk.choices, func(_, choice []byte) { p.choice(choice) })
	p.usage(chunk.usage)
	if p.failure != nil {
		return true, streamError(p.failure)
	}
	if name == "json" && chunk.choices == nil {
		return true, streamError(data)
	}
	p.done = p.done || name == "json"
	return p.progress, nil
}

// chatChunk is one event's parts, still encoded; nil when absent or null.
type chatChunk struct{ choices, usage, failure []byte }

func readChatChunk(data []byte) (c chatChunk, ok bool) {
	v, ok := pickJSON(data, "choices", "usage", "x_groq", "error", "object")
	c.choices, c.usage, c.failure = v[0], v[1], v[3]
	if inner, _ := pickJSON(v[2], "usage"); inner[0] != nil {
		c.usage = inner[0]
	}
	switch {
	case string(c.failure) == "{}" || string(c.failure) == `""` || string(c.failure) == "false":
		c.failure = nil
	case string(v[4]) == `"error"`: // {"object":"error","message":...}
		c.failure = data
	}
	return c, ok
}

// afterGlue returns the event behind a cut one: a gateway may lose the end of
// an event together with its line end.
func afterGlue(data []byte) []byte {
	i := bytes.LastIndex(data, []byte("data:"))
	if i < 0 {
		return nil
	}
	return data[i+len("data:"):]
}

func (p *chatParser) choice(choice []byte) {
	v, _ := pickJSON(choice, "index", "delta", "message", "usage", "finish_reason", "native_finish_reason", "error")
	if index := string(v[0]); index != "" && index != "0" {
		return
	}
	delta := v[1]
	if delta == nil && len(p.a.msg.Content) == 0 {
		delta = v[2] // a whole answer; some servers repeat it beside the deltas
	}
	p.delta(delta)
	p.usage(v[3]) // Kimi
	if s := p.text(v[4]); len(s) > 0 {
		p.finish, p.progress = string(s), true
	}
	if s := p.text(v[5]); len(s) > 0 {
		p.native = string(s)
	}
	if v[6] != nil { // OpenRouter
		p.failure = v[6]
	}
}

func (p *chatParser) delta(delta []byte) {
	v, _ := pickJSON(delta, "content", "reasoning_content", "reasoning", "reasoning_text", "reasoning_details", "refusal", "tool_calls")
	var thought []byte
	for _, name := range v[1:4] {
		if len(thought) == 0 {
			thought = p.text(name)
		}
	}
	p.add("thinking", thought)
	walkJSON(v[4], func(_, detail []byte) { p.detail(detail, len(thought) > 0) })
	if content := v[0]; len(content) > 0 && content[0] == '[' {
		walkJSON(content, func(_, part []byte) { p.part(part) })
	} else {
		p.add("text", p.text(content))
	}
	p.add("text", p.text(v[5])) // a refusal is what the model says
	walkJSON(v[6], func(_, call []byte) { p.toolCall(call) })
}

// part takes a content part as Mistral sends them: {"text"}, or {"thinking"}
// with a string or a list of text parts.
func (p *chatParser) part(part []byte) {
	v, _ := pickJSON(part, "text", "thinking")
	p.add("text", p.text(v[0]))
	p.add("thinking", p.text(v[1]))
	walkJSON(v[1], func(_, inner []byte) {
		v, _ := pickJSON(inner, "text")
		p.add("thinking", p.text(v[0]))
	})
}

// add appends to the open block if it is of that type, else to a new one.
func (p *chatParser) add(kind string, text []byte) {
	if len(text) == 0 {
		return
	}
	p.progress = true
	if p.open < 0 || p.a.msg.Content[p.open].Type != kind {
		p.close()
		p.open = p.a.start(Block{Type: kind})
		if kind == "thinking" && p.thinking < 0 {
			p.thinking = p.open
		}
	}
	p.a.add(p.open, text)
}

func (p *chatParser) close() {
	if p.open >= 0 {
		p.a.end(p.open)
		p.open = -1
	}
}

// toolCall takes one entry of delta.tool_calls: a new call or more of one.
func (p *chatParser) toolCall(entry []byte) {
	v, _ := pickJSON(entry, "index", "id", "function", "extra_content")
	f, _ := pickJSON(v[2], "name", "arguments")
	google, _ := pickJSON(v[3], "google")
	signature, _ := pickJSON(google[0], "thought_signature")
	d := chatCall{index: string(v[0]), id: string(p.text(v[1])), name: string(p.text(f[0]))}
	if d.id == "null" {
		d.id = ""
	}
	sign := string(p.text(signature[0]))
	args := f[1]
	if len(args) > 0 && args[0] == '"' {
		args = p.text(args)
	}
	call := p.findCall(d)
	if call == nil && d.id == "" && d.name == "" && len(args) == 0 {
		return
	}
	if call == nil || p.isNewCall(call, d, args) {
		call = p.startCall(d)
	}
	p.progress = true
	b := &p.a.msg.Content[call.block]
	if b.Name == "" {
		b.Name, call.name = d.name, d.name
	}
	b.Signature = cmp.Or(sign, b.Signature)
	p.a.add(call.block, args)
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
		return otherID || len(bytes.TrimSpace(args)) > 0
	case len(written) > 0:
		return false
	}
	return d.index == "" && (d.id == "" || otherID)
}

// startCall opens a tool call. Its id is the server's unless that is missing or
// was used in this message; a made-up one is unique in the conversation.
func (p *chatParser) startCall(d chatCall) *chatCall {
	p.close()
	id := d.id
	if id == "" || slices.ContainsFunc(p.a.msg.Content, func(b Block) bool { return b.ID == id }) {
		id = fmt.Sprintf("call_%d_%d", len(p.r.messages), len(p.calls)+1)
	}
	d.block = p.a.start(Block{Type: "tool_call", ID: id, Name: d.name})
	p.calls = append(p.calls, d)
	return &p.calls[len(p.calls)-1]
}

// reasoningDetail is an entry of OpenRouter's reasoning_details, put together
// from its pieces. What a provider wants back may only be in here.
type reasoningDetail struct {
	kind, index string            // the type, and the index as sent
	text        map[string][]byte // fields that grow: text, summary, data
	other       object            // the last value of each other field
}

// detail merges one piece: with the entry of the same type and index, or where
// there is no index with the last entry if that is of the same type of text.
func (p *chatParser) detail(piece []byte, shown bool) {
	v, _ := pickJSON(piece, "type", "index")
	kind, index := string(v[0]), string(v[1])
	at := slices.IndexFunc(p.details, func(d *reasoningDetail) bool { return index != "" && d.kind == kind && d.index == index })
	if last := len(p.details) - 1; index == "" && last >= 0 && p.details[last].kind == kind && kind != `"reasoning.encrypted"` {
		at = last
	}
	if at < 0 {
		at = len(p.details)
		p.details = append(p.details, &reasoningDetail{kind: kind, index: index, text: map[string][]byte{}, other: object{}})
	}
	d := p.details[at]
	walkJSON(piece, func(key, value []byte) {
		switch string(key) {
		case "text", "summary":
			if !shown {
				p.add("thinking", p.text(value))
			}
			fallthrough
		case "data":
			if value[0] == '"' {
				d.text[string(key)] = append(d.text[string(key)], p.text(value)...)
			}
		default:
			if string(value) != "null" && !bytes.Equal(d.other[string(key)], value) {
				d.other[string(key)] = bytes.Clone(value)
			}
		}
	})
	p.progress = true
	if p.thinking < 0 { // nothing to show: a block for the details alone
		p.close()
		p.open = p.a.start(Block{Type: "thinking"})
		p.thinking = p.open
	}
}

// encodeDetails is the JSON list that goes back to the provider.
func encodeDetails(details []*reasoningDetail) string {
	list := make([]object, len(details))
	for i, d := range details {
		o := object{}
		for key, text := range d.text {
			o[key] = appendString(nil, text)
		}
		for key, value := range d.other {
			if v, err := normalize(value); err == nil {
				o[key] = v
			}
		}
		list[i] = o
	}
	return string(encode(list))
}

// usage takes token counts; the last ones that a stream reports are right.
// prompt_tokens includes what was read from and written to the cache.
func (p *chatParser) usage(counts []byte) {
	v, _ := pickJSON(counts, "prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details",
		"cached_tokens", "prompt_cache_hit_tokens", "num_cached_tokens", "reasoning_tokens")
	if v[0] == nil && v[1] == nil {
		return
	}
	in, _ := pickJSON(v[3], "cached_tokens", "cache_write_tokens")
	out, _ := pickJSON(v[4], "reasoning_tokens")
	prompt, completion := tokenCount(v[0]), tokenCount(v[1])
	cached := max(tokenCount(in[0]), tokenCount(v[5]), tokenCount(v[6]), tokenCount(v[7]))
	written := tokenCount(in[1])
	p.progress = true
	u := &Usage{Input: max(0, prompt-cached-written), Output: completion, CacheRead: cached, CacheWrite: written}
	if out[0] != nil || v[8] != nil {
		n := max(tokenCount(out[0]), tokenCount(v[8]))
		u.Reasoning = &n
		if p.r.model.Provider == "xai" && tokenCount(v[2]) == prompt+completion+n {
			u.Output += n // xAI leaves it out
		}
	}
	p.a.msg.Usage = u
}

// tokenCount reads a count; what is no number counts as none.
func tokenCount(v []byte) int {
	n, err := strconv.ParseFloat(string(v), 64)
	if err != nil || !(n > 0 && n < 1e15) {
		return 0
	}
	return int(n)
}

func (p *chatParser) end() error {
	msg := p.a.msg
	if p.finish == "" && (!p.done || len(msg.Content) == 0) {
		return truncated()
	}
	if len(p.details) > 0 {
		msg.Content[p.thinking].Signature = encodeDetails(p.details)
	}
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
	switch reason {
	case "length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_length", "model_context_window_exceeded":
		return true
	}
	return false
}

// streamError is an error that a server reports with status 200: an object with
// or without {"error":...} around it, or just a text. OpenRouter, Google and
// Groq add the status that it would have had.
func streamError(data []byte) *providerError {
	kind, message := vendorError(data)
	if message == "" {
		message = fmt.Sprintf("%.500s", data)
		if bytes.HasPrefix(data, []byte{'"'}) {
			message, _ = object{"text": data}.str("text")
		}
	}
	if v, _ := pickJSON(data, "error"); len(v[0]) > 0 && v[0][0] == '{' {
		data = v[0]
	}
	status := 0
	v, _ := pickJSON(data, "code", "status_code")
	for _, code := range v[:2] {
		if n := tokenCount(code); n >= 400 && n < 600 {
			status = n
		}
	}
	return classify(status, kind, message)
}

// textDecoder decodes strings of events without an allocation for each.
type textDecoder struct{ scratch []byte }

// text decodes a JSON string; nil for any other value. It is valid until the
// next call, or as long as value is.
func (d *textDecoder) text(value []byte) []byte {
	if len(value) < 2 || value[0] != '"' {
		return nil
	}
	s := value[1 : len(value)-1]
	switch {
	case bytes.IndexByte(s, '\\') < 0:
	case bytes.Contains(s, []byte(`\u`)): // rare enough for the general decoder
		var decoded string
		if json.Unmarshal(value, &decoded) == nil {
			s = []byte(decoded)
		}
	default:
		d.scratch = appendUnescaped(d.scratch[:0], s)
		s = d.scratch
	}
	if !utf8.Valid(s) {
		s = bytes.ToValidUTF8(s, []byte("\ufffd"))
	}
	return s
}

// appendUnescaped appends what stands between the quotes of a JSON string that
// has no \u escapes.
func appendUnescaped(dst, s []byte) []byte {
	for {
		i := bytes.IndexByte(s, '\\')
		if i < 0 || i+1 == len(s) {
			return append(dst, s...)
		}
		c := s[i+1]
		if k := strings.IndexByte("nrtbf", c); k >= 0 {
			c = "\n\r\t\b\f"[k]
		}
		dst = append(append(dst, s[:i]...), c)
		s = s[i+2:]
	}
}

// walkJSON calls f with each member of an object (the key as it stands between
// its quotes) or element of an array (no key), still encoded, and reports
// whether data is one complete JSON value. It builds no tree, which makes a
// chunk cheap; it takes numbers and literals on trust, so that values which
// are kept encoded must go through normalize.
func walkJSON(data []byte, f func(key, value []byte)) bool {
	end := endOfJSON(data, skipSpace(data, 0), 0, f)
	return end >= 0 && skipSpace(data, end) == len(data)
}

// pickJSON returns up to nine named members of an object, nil where absent or
// null.
func pickJSON(object []byte, names ...string) (members [9][]byte, ok bool) {
	ok = walkJSON(object, func(key, value []byte) {
		for i, name := range names {
			if string(key) == name && string(value) != "null" {
				members[i] = value
			}
		}
	})
	return members, ok
}

// endOfJSON returns where the value at data[i] ends, -1 if it does not.
func endOfJSON(data []byte, i, depth int, f func(key, value []byte)) int {
	if i >= len(data) || depth > 1000 {
		return -1
	}
	open := data[i]
	switch open {
	case '"':
		return endOfString(data, i)
	case '{', '[':
	default:
		start := i
		for i < len(data) && isLiteral(data[i]) {
			i++
		}
		if i == start {
			return -1
		}
		return i
	}
	i = skipSpace(data, i+1)
	if i < len(data) && data[i] == open+2 { // } follows { by two in ASCII, ] follows [
		return i + 1
	}
	for {
		var key []byte
		if open == '{' {
			end := endOfString(data, i)
			if end < 0 {
				return -1
			}
			key = data[i+1 : end-1]
			i = skipSpace(data, end)
			if i >= len(data) || data[i] != ':' {
				return -1
			}
			i = skipSpace(data, i+1)
		}
		end := endOfJSON(data, i, depth+1, nil)
		if end < 0 {
			return -1
		}
		if f != nil {
			f(key, data[i:end])
		}
		i = skipSpace(data, end)
		switch {
		case i < len(data) && data[i] == open+2:
			return i + 1
		case i >= len(data) || data[i] != ',':
			return -1
		}
		i = skipSpace(data, i+1)
	}
}

// endOfString returns the index behind the string that starts at data[i], -1
// if there is none.
func endOfString(data []byte, i int) int {
	if i >= len(data) || data[i] != '"' {
		return -1
	}
	for i++; i < len(data); i++ {
		switch data[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
	}
	return -1
}

// isLiteral reports whether c occurs in numbers, true, false and null.
func isLiteral(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c == '-' || c == '+' || c == '.' || c == 'E'
}

func skipSpace(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\t' || data[i] == '\n' || data[i] == '\r') {
		i++
	}
	return i
}
