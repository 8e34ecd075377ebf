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
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"unicode"
)

var anthropicWire = wireFormat{"/v1/messages", anthropicHeader, anthropicBody, func(a *assembler) streamParser { return &anthropicParser{a: a, open: map[int]*anthropicBlock{}} }}

func anthropicHeader(h http.Header, key string, r *request) {
	h.Set("anthropic-version", "2023-06-01")
	if key != "" {
		h.Set("x-api-key", key)
	}
	if _, budget := anthropicBudget(r); budget > 0 {
		h.Set("anthropic-beta", "interleaved-thinking-2025-05-14") // thinking between tool calls too
	}
}

// anthropicBudget returns max_tokens and the part of it that the model may
// spend on thinking: 0 when it shall not think, or decides itself by an effort.
func anthropicBudget(r *request) (maxTokens, budget int) {
	const smallest = 1024 // the least that the vendor takes
	maxTokens = cmp.Or(r.maxTokens, r.model.MaxOutput, 8192)
	if r.reasoning == "" || r.reasoning == "off" || r.model.Adaptive {
		return maxTokens, 0
	}
	budget = cmp.Or(map[string]int{"minimal": smallest, "low": 2048, "medium": 8192}[r.reasoning], 16384)
	maxTokens = max(maxTokens, 2*smallest)
	return maxTokens, min(budget, maxTokens/2) // half at least is left for the answer
}

func anthropicBody(r *request) [][]byte {
	m := r.model
	key := fmt.Sprintf("anthropic %t %s %s", m.Vision, m.Provider, m.ID)
	parts := append(make([][]byte, 0, 2*len(r.messages)+2), anthropicHead(r))
	var asked *Message
	var users [2]int // the parts that end the last two user messages
	role := ""
	for _, msg := range r.messages {
		if msg.Role == "assistant" {
			asked = msg
		}
		if msg.wire.key != key {
			msg.wire = encoded{key: key, part: [2][]byte{encodeAnthropic(m, msg, asked)}}
		}
		part := msg.wire.part[0]
		if part == nil {
			continue
		}
		last := len(parts) - 1
		if msg.Role == "tool" && role == "tool" { // one message with the result before
			parts[last] = bytes.TrimSuffix(parts[last], []byte("]}"))
			parts = append(parts, []byte(","))
			part = part[len(`,{"role":"user","content":[`):]
		} else if msg.Role != "assistant" {
			users[0] = users[1]
		}
		parts = append(parts, part)
		if role = msg.Role; role != "assistant" {
			users[1] = len(parts) - 1
		}
	}
	for _, i := range users {
		if i > 0 {
			parts[i] = markAnthropic(parts[i], "]}")
		}
	}
	if len(parts) > 1 {
		parts[1] = parts[1][1:] // the first message has no comma before it
	}
	return append(parts, []byte("]}"))
}

// markAnthropic returns blocks, which end follows, with a cache mark on the
// last one. The four marks are on the system prompt, the last tool and the last
// two user messages.
func markAnthropic(blocks []byte, end string) []byte {
	return slices.Concat(blocks[:len(blocks)-len(end)-1], []byte(`,"cache_control":{"type":"ephemeral"}}`), []byte(end))
}

// anthropicHead encodes a request up to its messages.
func anthropicHead(r *request) []byte {
	maxTokens, budget := anthropicBudget(r)
	dst := appendJSON(nil, `{"model":?,"max_tokens":?,"stream":true`, r.model.ID, maxTokens)
	if budget > 0 {
		dst = appendJSON(dst, `,"thinking":{"type":"enabled","budget_tokens":?}`, budget)
	} else if r.reasoning != "" && r.reasoning != "off" {
		effort := cmp.Or(r.model.Levels[r.reasoning], r.reasoning)
		if effort == "minimal" {
			effort = "low"
		}
		dst = appendJSON(dst, `,"thinking":{"type":"adaptive"},"output_config":{"effort":?}`, effort)
	}
	if !blank(r.system) {
		dst = appendJSON(dst, `,"system":?`, markAnthropic(appendJSON(nil, `[{"type":"text","text":?}]`, r.system), "]"))
	}
	if tools := offeredTools(r, r.messages); len(tools) > 0 {
		list := appendTools(nil, tools, `{"name":?,"description":?,"input_schema":?}`)
		dst = appendJSON(dst, `,"tools":?`, markAnthropic(list, "]"))
	}
	return append(dst, `,"messages":[`...)
}

// encodeAnthropic encodes a message behind a comma; nil for one that has nothing
// to send. asked is the assistant message whose calls a tool message answers.
func encodeAnthropic(m *Model, msg, asked *Message) []byte {
	role, blocks := "user", appendParts(nil, sendable(m, msg.Content), `,{"type":"text","text":?}`, `,{"type":"image","source":{"type":"base64","media_type":"?","data":"?"}}`)
	switch msg.Role {
	case "assistant":
		role, blocks = "assistant", encodeAnthropicAnswer(m, msg)
	case "tool":
		if blocks == nil {
			blocks = []byte(`,{"type":"text","text":"(no output)"}`)
		}
		failed := ""
		if msg.IsError {
			failed = `"is_error":true,`
		}
		blocks = appendJSON(nil, `,{"type":"tool_result","tool_use_id":?,?"content":[?]}`, anthropicID(msg.CallID, m, asked), []byte(failed), blocks[1:])
	}
	if blocks == nil {
		return nil
	}
	return appendJSON(nil, `,{"role":?,"content":[?]}`, role, blocks[1:])
}

// encodeAnthropicAnswer encodes the blocks of an assistant message. White space at its end
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
		dst = append(dst, ',')
		switch {
		case b.Type == "text":
			if i == len(blocks)-1 {
				b.Text = strings.TrimRightFunc(b.Text, unicode.IsSpace)
			}
			dst = appendJSON(dst, `{"type":"text","text":?}`, b.Text)
		case b.Type == "tool_call":
			dst = appendJSON(dst, `{"type":"tool_use","id":?,"name":?,"input":?}`, anthropicID(b.ID, m, msg), wireToolName(b.Name), b.Args)
		case b.Redacted:
			dst = appendJSON(dst, `{"type":"redacted_thinking","data":?}`, b.Signature)
		case b.Type == "thinking":
			dst = appendJSON(dst, `{"type":"thinking","thinking":?,"signature":?}`, b.Text, b.Signature)
		default:
			dst = append(dst, b.Signature...)
		}
	}
	return dst
}

// anthropicID is the id of a call in the message asked as the vendor takes it,
// never twice in a transcript. Ids of other providers may recur from message to
// message, so they are replaced together with their message's time.
func anthropicID(id string, m *Model, asked *Message) string {
	if asked == nil || asked.Provider == m.Provider && wordID().MatchString(id) {
		return id
	}
	return wireID(fmt.Sprintf("%d %s", asked.Time.UnixMilli(), id), wordID)
}

// anthropicParser reads the events of one answer.
type anthropicParser struct {
	a        *assembler
	open     map[int]*anthropicBlock // by their index in the stream
	stale    int                     // blocks of an answer that the server began anew
	stop     string                  // stop_reason
	refusal  string                  // why, when that is "refusal"
	complete bool                    // message_stop came
}

// anthropicBlock is a content block of the stream.
type anthropicBlock struct {
	at     int    // its index in the message
	fields object // as it started; an opaque one grows
}

func (p *anthropicParser) event(name string, data []byte) (meaningful bool, err error) {
	v, whole := pick(data, "type", "index", "delta", "content_block", "message", "usage", "error")
	if !whole {
		return false, errNotJSON
	}
	typ := bytes.Trim(v[0], `"`)
	if len(typ) == 0 {
		typ = []byte(name)
	}
	switch index := count(v[1]); string(typ) {
	case "content_block_delta":
		p.delta(p.open[index], v[2])
	case "content_block_start":
		p.startBlock(index, v[3])
	case "content_block_stop":
		p.stopBlock(index)
	case "message_start":
		p.message(v[4])
	case "message": // not streamed
		p.message(data)
		p.complete = true
	case "message_delta":
		p.stopReason(v[2])
		p.usage(v[5])
	case "message_stop":
		p.complete = true
		return true, io.EOF
	case "ping":
		return false, nil
	case "error":
		return false, streamError(data)
	default:
		if v[6] != nil {
			return false, streamError(data)
		}
		if name == "json" {
			return false, &providerError{message: fmt.Sprintf("the server answered with JSON that is not a message: %.500s", data)}
		}
	}
	return true, nil
}

// message takes a message as far as it is known: the empty one that a stream
// begins with, or a whole one. A second one begins the answer anew.
func (p *anthropicParser) message(message []byte) {
	p.a.finish()
	clear(p.open)
	p.stale = len(p.a.msg.Content)
	index := 0
	walk(get(message, "content"), func(_, block []byte) {
		p.startBlock(index, block)
		p.stopBlock(index)
		index++
	})
	p.stopReason(message)
	p.usage(get(message, "usage"))
}

func (p *anthropicParser) startBlock(index int, raw []byte) {
	fields, err := parseObject(raw)
	kind := textOf(fields["type"])
	if err != nil || kind == "" {
		return
	}
	p.stopBlock(index)
	b := &anthropicBlock{fields: fields}
	switch kind {
	case "text":
		b.at = p.a.start(Block{Type: "text"})
		p.a.addJSON(b.at, fields["text"])
	case "thinking":
		b.at = p.a.start(Block{Type: "thinking", Signature: textOf(fields["signature"])})
		p.a.addJSON(b.at, fields["thinking"])
	case "redacted_thinking":
		b.at = p.a.start(Block{Type: "thinking", Redacted: true, Signature: textOf(fields["data"])})
	case "tool_use":
		b.at = p.a.startCall(textOf(fields["id"]), textOf(fields["name"]))
	default:
		b.at = p.a.start(Block{Type: "opaque"})
	}
	p.open[index] = b
}

// delta adds to a block what deltas of its type bring.
func (p *anthropicParser) delta(b *anthropicBlock, delta []byte) {
	if b == nil {
		return
	}
	v, _ := pick(delta, "text", "partial_json", "thinking", "signature")
	switch block := &p.a.msg.Content[b.at]; block.Type {
	case "text":
		p.a.addJSON(b.at, v[0])
	case "tool_call":
		p.a.addJSON(b.at, v[1])
	case "thinking":
		p.a.addJSON(b.at, v[2])
		block.Signature += textOf(v[3])
	case "opaque":
		kind := b.fields["type"]
		delete(b.fields, "type")
		b.fields.merge(delta, func(string) bool { return true })
		b.fields["type"] = kind
	}
}

func (p *anthropicParser) stopBlock(index int) {
	b := p.open[index]
	if b == nil {
		return
	}
	delete(p.open, index)
	switch block := &p.a.msg.Content[b.at]; block.Type {
	case "tool_call": // all of the input may have come with the start
		if input := b.fields["input"]; len(p.a.text[b.at]) == 0 && string(input) != "{}" {
			p.a.addJSON(b.at, input)
		}
	case "opaque": // without its end it has no signature, and so does not go back
		if input := []byte(textOf(b.fields["partial_json"])); json.Valid(input) {
			b.fields["input"] = input
		}
		delete(b.fields, "partial_json")
		block.Signature = string(b.fields.encode())
	}
	p.a.end(b.at)
}

// stopReason reads stop_reason and stop_details where they are given.
func (p *anthropicParser) stopReason(from []byte) {
	v, _ := pick(from, "stop_reason", "stop_details")
	if v[0] != nil {
		p.stop = textOf(v[0])
	}
	if v[1] != nil {
		p.refusal = cmp.Or(textOf(get(v[1], "explanation")), textOf(get(v[1], "category")))
	}
}

// usage takes the counts that are given: each report holds totals, not always
// all of them.
func (p *anthropicParser) usage(counts []byte) {
	v, isObject := pick(counts, "input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens_details")
	if !isObject {
		return
	}
	u := cmp.Or(p.a.msg.Usage, &Usage{})
	p.a.msg.Usage = u
	for i, n := range []*int{&u.Input, &u.Output, &u.CacheRead, &u.CacheWrite} {
		if v[i] != nil {
			*n = count(v[i])
		}
	}
	if thinking := get(v[4], "thinking_tokens"); thinking != nil {
		u.Reasoning = new(count(thinking))
	}
}

func (p *anthropicParser) end(bool) error {
	if p.complete { // an imitation may have left content_block_stop out
		for _, index := range slices.Sorted(maps.Keys(p.open)) {
			p.stopBlock(index)
		}
	}
	p.a.finish()
	msg := p.a.msg
	msg.Content = msg.Content[p.stale:]
	msg.RawStop = p.stop
	switch {
	case !p.complete:
		return truncated()
	case p.stop == "refusal":
		return &providerError{message: strings.TrimSuffix("the model refused to answer: "+p.refusal, ": ")}
	case p.stop == "model_context_window_exceeded" && blank(msg.text()):
		return &providerError{message: "the conversation fills the model's context window", overflow: true}
	case p.stop == "max_tokens", p.stop == "model_context_window_exceeded":
		msg.Stop = "length"
	case msg.has("tool_call"):
		msg.Stop = "tool_use"
	case p.stop == "pause_turn":
		msg.Stop = "pause_turn"
	default:
		msg.Stop = "end_turn"
	}
	return nil
}
