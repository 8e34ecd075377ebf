// The Anthropic Messages API. The rules kept here:
//
//   - A message is encoded once. What depends on its position (cache marks, tool
//     results joined into one user message) is added while the kept bytes are
//     put together, so the same transcript gives the same request.
//   - Thinking and blocks that we do not know go back unchanged and in place, to
//     the provider and model that made them, or not at all.
//   - A request has at most four cache marks.
//   - Only message_stop makes an answer complete.
package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type anthropicWire struct{}

func (anthropicWire) endpoint(base, key string, r *request, h http.Header) string {
	h.Set("anthropic-version", "2023-06-01")
	if key != "" {
		h.Set("x-api-key", key)
	}
	if _, budget := anthropicBudget(r); budget > 0 {
		h.Set("anthropic-beta", "interleaved-thinking-2025-05-14") // thinking between tool calls too
	}
	base = strings.TrimSuffix(strings.TrimRight(base, "/"), "/v1")
	return base + "/v1/messages"
}

// anthropicBudget returns max_tokens and the part of it that the model may
// spend on thinking: 0 when it shall not think, or decides itself by an effort.
func anthropicBudget(r *request) (maxTokens, budget int) {
	const smallest = 1024 // the least that the vendor takes
	maxTokens = cmp.Or(r.maxTokens, r.model.MaxOutput, 8192)
	switch r.reasoning {
	case "", "off":
		return maxTokens, 0
	case "minimal":
		budget = smallest
	case "low":
		budget = 2048
	case "medium":
		budget = 8192
	default:
		budget = 16384
	}
	if r.model.Adaptive {
		return maxTokens, 0
	}
	maxTokens = max(maxTokens, 2*smallest)
	return maxTokens, min(budget, maxTokens/2) // half at least is left for the answer
}

func (anthropicWire) body(r *request) []byte {
	m := r.model
	key := fmt.Sprintf("anthropic %t %s %s", m.Vision, m.Provider, m.ID)
	head := anthropicHead(r)
	size := len(head) + len(`]}]}`) + 2*len(anthropicMark)
	var asked *Message
	for _, msg := range r.messages {
		if msg.Role == "assistant" {
			asked = msg
		}
		if msg.wire.key != key {
			msg.wire = encoded{key: key, part: [2][]byte{encodeAnthropic(m, msg, asked)}}
		}
		size += len(`]},`) + len(anthropicOpening[msg.Role]) + len(msg.wire.part[0])
	}

	last, secondLast := anthropicCached(r.messages)
	dst := append(make([]byte, 0, size), head...)
	role := ""
	for i, msg := range r.messages {
		part := msg.wire.part[0]
		if len(part) == 0 {
			continue
		}
		if msg.Role == "tool" && role == "tool" {
			dst = append(dst, ',')
		} else {
			if role != "" {
				dst = append(dst, `]},`...)
			}
			dst = append(dst, anthropicOpening[msg.Role]...)
		}
		dst = append(dst, part...)
		if i == last || i == secondLast {
			dst = markAnthropic(dst)
		}
		role = msg.Role
	}
	if role != "" {
		dst = append(dst, `]}`...)
	}
	return append(dst, `]}`...)
}

// anthropicOpening begins a message on the wire, by the role of our first
// message in it.
var anthropicOpening = map[string]string{
	"user":      `{"role":"user","content":[`,
	"tool":      `{"role":"user","content":[`,
	"assistant": `{"role":"assistant","content":[`,
}

const anthropicMark = `,"cache_control":{"type":"ephemeral"}}`

// markAnthropic puts a cache mark on the block that dst ends with. The four
// marks are on the system prompt, the last tool and the last two user messages.
func markAnthropic(dst []byte) []byte {
	return append(dst[:len(dst)-len(`}`)], anthropicMark...)
}

// anthropicCached returns the indexes of the messages that end the last two
// user messages on the wire; -1 where there is none.
func anthropicCached(messages []*Message) (last, secondLast int) {
	last, secondLast = -1, -1
	next := ""
	for i, msg := range slices.Backward(messages) {
		if len(msg.wire.part[0]) == 0 {
			continue
		}
		joined := msg.Role == "tool" && next == "tool"
		next = msg.Role
		switch {
		case msg.Role == "assistant" || joined:
		case last < 0:
			last = i
		default:
			return last, i
		}
	}
	return last, secondLast
}

// anthropicHead encodes a request up to its messages.
func anthropicHead(r *request) []byte {
	m := r.model
	maxTokens, budget := anthropicBudget(r)
	dst := appendString([]byte(`{"model":`), m.ID)
	dst = fmt.Appendf(dst, `,"max_tokens":%d,"stream":true`, maxTokens)
	if budget > 0 {
		dst = fmt.Appendf(dst, `,"thinking":{"type":"enabled","budget_tokens":%d}`, budget)
	} else if r.reasoning != "" && r.reasoning != "off" {
		effort := cmp.Or(m.Levels[r.reasoning], r.reasoning)
		if effort == "minimal" {
			effort = "low"
		}
		dst = appendString(append(dst, `,"thinking":{"type":"adaptive"},"output_config":{"effort":`...), effort)
		dst = append(dst, '}')
	}
	if strings.TrimSpace(r.system) != "" {
		dst = appendString(append(dst, `,"system":[{"type":"text","text":`...), r.system)
		dst = append(markAnthropic(append(dst, '}')), ']')
	}
	if tools := offeredTools(r); len(tools) > 0 {
		dst = append(dst, `,"tools":[`...)
		for i, t := range tools {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendString(append(dst, `{"name":`...), t.name)
			dst = appendString(append(dst, `,"description":`...), t.description)
			dst = append(append(dst, `,"input_schema":`...), t.schema...)
			dst = append(dst, '}')
		}
		dst = append(markAnthropic(dst), ']')
	}
	return append(dst, `,"messages":[`...)
}

// offeredTools lists the tools of a request: those that are not deferred, then
// the deferred ones in the order in which results activated them, so that the
// list only ever grows at its end.
func offeredTools(r *request) []*tool {
	var offered []*tool
	for _, t := range r.tools {
		if !t.deferred {
			offered = append(offered, t)
		}
	}
	if len(offered) == len(r.tools) {
		return offered
	}
	for _, msg := range r.messages {
		for _, name := range msg.Activate {
			i := slices.IndexFunc(r.tools, func(t *tool) bool { return t.deferred && t.name == name })
			if i >= 0 && !slices.Contains(offered, r.tools[i]) {
				offered = append(offered, r.tools[i])
			}
		}
	}
	return offered
}

// encodeAnthropic encodes the content blocks of a message, separated by
// commas. Each ends in the brace that markAnthropic expects; the result is
// empty for a message that has nothing to send. asked is the assistant message
// whose calls a tool message answers.
func encodeAnthropic(m *Model, msg, asked *Message) []byte {
	switch msg.Role {
	case "assistant":
		return encodeAnthropicAnswer(m, msg)
	case "user":
		return encodeAnthropicContent(m, msg.Content)
	}
	content := encodeAnthropicContent(m, msg.Content)
	if len(content) == 0 {
		content = []byte(`{"type":"text","text":"(no output)"}`)
	}
	dst := appendString([]byte(`{"type":"tool_result","tool_use_id":`), anthropicID(msg.CallID, m, asked))
	if msg.IsError {
		dst = append(dst, `,"is_error":true`...)
	}
	dst = append(append(dst, `,"content":[`...), content...)
	return append(dst, `]}`...)
}

// encodeAnthropicContent encodes texts and images. Blank texts are left out:
// the vendor refuses them.
func encodeAnthropicContent(m *Model, blocks []Block) (dst []byte) {
	for _, b := range blocks {
		switch {
		case b.Type == "image" && m.Vision:
			dst = appendString(append(comma(dst), `{"type":"image","source":{"type":"base64","media_type":`...), b.MimeType)
			dst = appendString(append(dst, `,"data":`...), b.Data)
			dst = append(dst, `}}`...)
		case b.Type == "image":
			dst = append(comma(dst), `{"type":"text","text":"(an image was left out: this model takes no images)"}`...)
		case !blank(b.Text):
			dst = appendString(append(comma(dst), `{"type":"text","text":`...), b.Text)
			dst = append(dst, '}')
		}
	}
	return dst
}

// encodeAnthropicAnswer encodes an assistant message. White space at its end
// and thinking that nothing follows are left out: the vendor refuses them.
func encodeAnthropicAnswer(m *Model, msg *Message) (dst []byte) {
	own := msg.Provider == m.Provider && msg.Model == m.ID
	blocks := slices.DeleteFunc(slices.Clone(msg.Content), func(b Block) bool {
		switch b.Type {
		case "text":
			return blank(b.Text)
		case "thinking":
			return !own || b.Signature == "" && (!m.NoSignature || blank(b.Text))
		case "opaque":
			return !own || b.Signature == ""
		}
		return false
	})
	for len(blocks) > 0 && blocks[len(blocks)-1].Type == "thinking" {
		blocks = blocks[:len(blocks)-1]
	}
	for i, b := range blocks {
		dst = comma(dst)
		switch b.Type {
		case "text":
			if i == len(blocks)-1 {
				b.Text = strings.TrimRightFunc(b.Text, unicode.IsSpace)
			}
			dst = appendString(append(dst, `{"type":"text","text":`...), b.Text)
			dst = append(dst, '}')
		case "tool_call":
			dst = appendString(append(dst, `{"type":"tool_use","id":`...), anthropicID(b.ID, m, msg))
			dst = appendString(append(dst, `,"name":`...), wireToolName(b.Name))
			dst = append(append(dst, `,"input":`...), b.Args...)
			dst = append(dst, '}')
		case "thinking":
			if b.Redacted {
				dst = append(dst, `{"type":"redacted_thinking","data":`...)
			} else {
				dst = appendString(append(dst, `{"type":"thinking","thinking":`...), b.Text)
				dst = append(dst, `,"signature":`...)
			}
			dst = append(appendString(dst, b.Signature), '}')
		case "opaque":
			dst = append(dst, b.Signature...)
		}
	}
	return dst
}

// comma appends a comma behind an earlier item.
func comma(dst []byte) []byte {
	if len(dst) > 0 {
		dst = append(dst, ',')
	}
	return dst
}

func blank(s string) bool { return strings.TrimSpace(s) == "" }

// anthropicID is the id of a call in the message asked, as the vendor takes it:
// letters, digits, _ and -, and never twice in a transcript. Ids of other
// providers may recur from message to message, so they are hashed together
// with their message's time.
func anthropicID(id string, m *Model, asked *Message) string {
	if asked == nil || asked.Provider == m.Provider && id != "" && !strings.ContainsFunc(id, notWord) {
		return id
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", asked.Time.UnixMilli(), id))
	return fmt.Sprintf("call_%x", sum[:16])
}

// wireToolName is a tool's name as all vendors take it. Models make names up.
func wireToolName(name string) string {
	name = strings.Map(func(r rune) rune {
		if notWord(r) {
			return '_'
		}
		return r
	}, name)
	return cmp.Or(name[:min(len(name), 64)], "_")
}

func notWord(r rune) bool {
	return r != '_' && r != '-' && (r >= utf8.RuneSelf || !unicode.IsLetter(r) && !unicode.IsDigit(r))
}

func (anthropicWire) parser(_ *request, a *assembler) streamParser { return &anthropicParser{a: a} }

// anthropicParser reads the events of one answer.
type anthropicParser struct {
	a        *assembler
	open     []anthropicBlock // started and not stopped yet
	stale    int              // blocks of an answer that the server began anew
	stop     string           // stop_reason
	refusal  string           // why, when that is "refusal"
	complete bool             // message_stop came
	unquoted []byte
}

// anthropicBlock is a content block that is being streamed.
type anthropicBlock struct {
	index, at int    // its index in the stream; in the message
	fields    object // of an opaque block, without what input_json_delta brings
	input     []byte // of a tool call: arguments that came with the start; of an opaque block: from deltas
}

func (p *anthropicParser) event(name string, data []byte) (meaningful bool, err error) {
	if p.plainDelta(data) {
		return true, nil
	}
	o, err := parseObject(data)
	typ := cmp.Or(eventText(o, "type"), name)
	switch {
	case name == "error" || typ == "error" || eventText(o, "type") == "" && o.has("error"):
		return false, anthropicError(o, data)
	case err != nil && (len(data) == 0 || string(data) == "[DONE]"): // of imitations
		return false, nil
	case err != nil:
		return false, &providerError{message: "the server sent an event that is " + err.Error(), retry: true}
	}
	switch typ {
	case "ping":
		return false, nil
	case "message_start":
		p.message(eventObject(o, "message"))
	case "message": // not streamed
		p.message(o)
		p.complete = true
		return true, io.EOF
	case "json":
		return false, &providerError{message: "the server answered with JSON that is not a message"}
	case "content_block_start":
		p.startBlock(eventInt(o, "index"), o["content_block"])
	case "content_block_delta":
		p.delta(eventInt(o, "index"), eventObject(o, "delta"))
	case "content_block_stop":
		p.stopBlock(eventInt(o, "index"))
	case "message_delta":
		p.stopReason(eventObject(o, "delta"))
		p.usage(eventObject(o, "usage"))
	case "message_stop":
		p.complete = true
		return true, io.EOF
	}
	return true, nil
}

// anthropicDeltas are the deltas that a stream mostly consists of, in the
// vendor's spelling, and the block types that they belong to.
var anthropicDeltas = []struct{ head, block string }{
	{`"type":"text_delta","text":"`, "text"},
	{`"type":"input_json_delta","partial_json":"`, "tool_call"},
	{`"type":"thinking_delta","thinking":"`, "thinking"},
}

// plainDelta takes a delta in the vendor's usual spelling without decoding the
// event. It reports false, having done nothing, for everything else.
func (p *anthropicParser) plainDelta(data []byte) bool {
	rest, ok := bytes.CutPrefix(data, []byte(`{"type":"content_block_delta","index":`))
	digits := bytes.IndexByte(rest, ',')
	if !ok || digits < 1 || digits > 4 {
		return false
	}
	index := 0
	for _, c := range rest[:digits] {
		if c < '0' || c > '9' {
			return false
		}
		index = index*10 + int(c-'0')
	}
	b := p.find(index)
	if b == nil {
		return false
	}
	rest, ok = bytes.CutPrefix(rest[digits:], []byte(`,"delta":{`))
	if !ok {
		return false
	}
	for _, d := range anthropicDeltas {
		text, ok := bytes.CutPrefix(rest, []byte(d.head))
		if !ok || p.a.msg.Content[b.at].Type != d.block {
			continue
		}
		p.unquoted, rest, ok = appendUnquoted(p.unquoted[:0], text)
		if !ok || !onlyBraces(rest) {
			return false
		}
		p.a.add(b.at, p.unquoted)
		return true
	}
	return false
}

// onlyBraces reports whether an event ends with two closing braces and nothing
// but spaces around them.
func onlyBraces(rest []byte) bool {
	n := 0
	for _, c := range rest {
		if c == '}' {
			n++
		} else if c != ' ' {
			return false
		}
	}
	return n == 2
}

// appendUnquoted appends a JSON string, whose opening quote is gone, up to its
// closing quote, and returns what follows that. ok is false for what is not
// worth a fast path: \u escapes and bad UTF-8.
func appendUnquoted(dst, src []byte) (text, rest []byte, ok bool) {
	start := 0
	for i := 0; i < len(src); i++ {
		switch c := src[i]; {
		case c == '"':
			dst = append(dst, src[start:i]...)
			return dst, src[i+1:], utf8.Valid(dst)
		case c < ' ':
			return dst, nil, false
		case c == '\\':
			dst = append(dst, src[start:i]...)
			i++
			escape := -1
			if i < len(src) {
				escape = strings.IndexByte(`"\/bfnrt`, src[i])
			}
			if escape < 0 {
				return dst, nil, false
			}
			dst = append(dst, "\"\\/\b\f\n\r\t"[escape])
			start = i + 1
		}
	}
	return dst, nil, false
}

// message takes a message as far as it is known: the empty one that a stream
// begins with, or a whole one. A second one begins the answer anew.
func (p *anthropicParser) message(o object) {
	p.a.finish()
	p.open = p.open[:0]
	p.stale = len(p.a.msg.Content)
	var content []json.RawMessage
	if json.Unmarshal(o["content"], &content) == nil {
		for i, block := range content {
			p.startBlock(i, block)
			p.stopBlock(i)
		}
	}
	p.stopReason(o)
	p.usage(eventObject(o, "usage"))
}

// find returns an open block by its index in the stream, or nil.
func (p *anthropicParser) find(index int) *anthropicBlock {
	for i := range p.open {
		if p.open[i].index == index {
			return &p.open[i]
		}
	}
	return nil
}

func (p *anthropicParser) startBlock(index int, raw json.RawMessage) {
	o, err := parseObject(raw)
	if err != nil || eventText(o, "type") == "" {
		return
	}
	p.stopBlock(index)
	b := anthropicBlock{index: index}
	var text string
	switch eventText(o, "type") {
	case "text":
		b.at = p.a.start(Block{Type: "text"})
		text = eventText(o, "text")
	case "thinking":
		b.at = p.a.start(Block{Type: "thinking", Signature: eventText(o, "signature")})
		text = eventText(o, "thinking")
	case "redacted_thinking":
		b.at = p.a.start(Block{Type: "thinking", Redacted: true, Signature: eventText(o, "data")})
	case "tool_use":
		b.input = o["input"]
		id := cmp.Or(eventText(o, "id"), fmt.Sprintf("call_%d_%d", p.a.msg.Time.UnixMilli(), len(p.a.msg.Content)))
		b.at = p.a.start(Block{Type: "tool_call", ID: id, Name: eventText(o, "name")})
	default:
		b.fields = o
		b.at = p.a.start(Block{Type: "opaque"})
	}
	p.a.add(b.at, []byte(text))
	p.open = append(p.open, b)
}

func (p *anthropicParser) delta(index int, o object) {
	b := p.find(index)
	if b == nil {
		return
	}
	typ := eventText(o, "type")
	switch block := &p.a.msg.Content[b.at]; block.Type + " " + typ {
	case "text text_delta":
		p.a.add(b.at, []byte(eventText(o, "text")))
	case "thinking thinking_delta":
		p.a.add(b.at, []byte(eventText(o, "thinking")))
	case "thinking signature_delta":
		block.Signature += eventText(o, "signature")
	case "tool_call input_json_delta":
		p.a.add(b.at, []byte(eventText(o, "partial_json")))
	case "opaque input_json_delta":
		b.input = append(b.input, eventText(o, "partial_json")...)
	default:
		if block.Type == "opaque" {
			b.merge(o)
		}
	}
}

// merge adds an unknown delta to an unknown block: strings grow, everything
// else is replaced.
func (b *anthropicBlock) merge(delta object) {
	for key, value := range delta {
		if key == "type" || !delta.has(key) {
			continue
		}
		if more, err := delta.str(key); err == nil {
			value = appendString(nil, eventText(b.fields, key)+more)
		}
		b.fields[key] = value
	}
}

func (p *anthropicParser) stopBlock(index int) {
	b := p.find(index)
	if b == nil {
		return
	}
	switch block := &p.a.msg.Content[b.at]; block.Type {
	case "tool_call":
		if len(p.a.text[b.at]) == 0 && string(b.input) != "{}" {
			p.a.add(b.at, b.input)
		}
	case "opaque":
		if json.Valid(b.input) {
			b.fields["input"] = b.input
		}
		// A block without its end has no signature, and so does not go back.
		if whole, err := normalize(encode(b.fields)); err == nil {
			block.Signature = string(whole)
		}
	}
	p.a.end(b.at)
	p.open = slices.DeleteFunc(p.open, func(o anthropicBlock) bool { return o.index == index })
}

// stopReason reads stop_reason and stop_details where they are given.
func (p *anthropicParser) stopReason(o object) {
	if o.has("stop_reason") {
		p.stop = eventText(o, "stop_reason")
	}
	if details := eventObject(o, "stop_details"); details != nil {
		p.refusal = cmp.Or(eventText(details, "explanation"), eventText(details, "category"))
	}
}

// usage takes the counts that are given: each report holds totals, not always
// all of them.
func (p *anthropicParser) usage(o object) {
	if o == nil {
		return
	}
	msg := p.a.msg
	if msg.Usage == nil {
		msg.Usage = &Usage{}
	}
	u := msg.Usage
	for key, count := range map[string]*int{
		"input_tokens":                &u.Input,
		"output_tokens":               &u.Output,
		"cache_read_input_tokens":     &u.CacheRead,
		"cache_creation_input_tokens": &u.CacheWrite,
	} {
		if o.has(key) {
			*count = eventInt(o, key)
		}
	}
	if details := eventObject(o, "output_tokens_details"); details.has("thinking_tokens") {
		n := eventInt(details, "thinking_tokens")
		u.Reasoning = &n
	}
}

func (p *anthropicParser) end() error {
	for p.complete && len(p.open) > 0 { // an imitation left content_block_stop out
		p.stopBlock(p.open[0].index)
	}
	p.a.finish()
	msg := p.a.msg
	msg.Content = msg.Content[p.stale:]
	msg.RawStop = p.stop
	if !p.complete {
		return truncated()
	}
	has := func(want func(Block) bool) bool { return slices.ContainsFunc(msg.Content, want) }
	calls := has(func(b Block) bool { return b.Type == "tool_call" })
	switch {
	case p.stop == "refusal":
		return &providerError{message: strings.TrimSuffix("the model refused to answer: "+p.refusal, ": ")}
	case p.stop == "max_tokens":
		msg.Stop = "length"
	case p.stop == "model_context_window_exceeded":
		if !has(func(b Block) bool { return b.Type == "text" && !blank(b.Text) }) {
			return &providerError{message: "the conversation fills the model's context window", overflow: true}
		}
		msg.Stop = "length"
	case calls:
		msg.Stop = "tool_use"
	case p.stop == "pause_turn":
		msg.Stop = "pause_turn"
	default:
		msg.Stop = "end_turn"
	}
	return nil
}

// anthropicError is an error inside a stream.
func anthropicError(o object, data []byte) *providerError {
	kind, message := vendorError(data)
	if kind == "" && message == "" {
		message = strings.TrimSpace(string(data[:min(len(data), 500)]))
	}
	pe := classify(0, kind, message)
	if id := eventText(o, "request_id"); id != "" {
		pe.message += " (request " + id + ")"
	}
	return pe
}

// eventText, eventObject and eventInt read values of events, in which nothing
// is sure: what is missing or of another type is "", nil or 0.
func eventText(o object, key string) string {
	s, _ := o.str(key)
	return s
}

func eventObject(o object, key string) object {
	n, _ := parseObject(o[key])
	return n
}

func eventInt(o object, key string) int {
	n, err := strconv.ParseFloat(string(o[key]), 64)
	if err != nil || n < 0 || n > 1<<40 {
		return 0
	}
	return int(n)
}
