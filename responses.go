// OpenAI Responses: POST {base}/responses. Rules kept here:
//
//   - The vendor stores nothing: each request holds the whole conversation. A
//     reasoning item goes back with its encrypted content, in its place and to
//     the model that made it, or not at all.
//   - The items of a stream are told apart by output_index: their ids may
//     change from event to event.
//   - Only function_call items are calls of our tools. Items of tools that run
//     at the vendor are opaque blocks; since they are not stored there, they
//     can not go back.
package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

var responsesWire = wireFormat{"/responses", bearer, responsesBody, func(a *assembler) streamParser { return &responsesParser{a: a} }}

// responsesBody has the conversation last, so that two requests of a session are the
// same up to the first new item.
func responsesBody(r *request) [][]byte {
	key := fmt.Sprintf("responses %s %s %t", r.model.Provider, r.model.ID, r.model.Vision)
	parts := append(make([][]byte, 0, len(r.messages)+2), responsesHead(r))
	var images [][]byte // of tool results; they follow the last result of a message's calls
	for i, m := range r.messages {
		if m.wire.key != key {
			m.wire = encoded{key, encodeResponses(r.model, m)}
		}
		parts = append(parts, m.wire.part[0])
		images = append(images, m.wire.part[1])
		if i+1 == len(r.messages) || r.messages[i+1].Role != "tool" {
			parts = append(parts, images...)
			images = images[:0]
		}
	}
	parts = slices.DeleteFunc(parts, func(part []byte) bool { return len(part) == 0 })
	if len(parts) > 1 {
		parts[1] = parts[1][1:] // the first item has no comma before it
	}
	return append(parts, []byte("]}"))
}

// responsesHead encodes all that comes before the input items.
func responsesHead(r *request) []byte {
	m := r.model
	b := appendJSON(nil, `{"model":?,"stream":true,"store":false`, m.ID)
	// An output as large as the window is no limit of its own, and servers
	// refuse a prompt and an output that exceed the window together.
	if n := cmp.Or(r.maxTokens, m.MaxOutput); n > 0 && (m.ContextWindow == 0 || n < m.ContextWindow) {
		b = appendJSON(b, `,"max_output_tokens":?`, n)
	}
	if len(m.Levels) > 0 { // whatever the level: such a model may always reason
		b = append(b, `,"include":["reasoning.encrypted_content"]`...)
	}
	if word := m.Levels[r.reasoning]; r.reasoning == "off" && word != "off" && word != "" {
		b = appendJSON(b, `,"reasoning":{"effort":?}`, word)
	} else if r.reasoning != "off" && word != "" {
		b = appendJSON(b, `,"reasoning":{"effort":?,"summary":"auto"}`, word)
	}
	if r.system != "" {
		b = appendJSON(b, `,"instructions":?`, r.system)
	}
	if tools := offeredTools(r, r.messages); len(tools) > 0 {
		// Without strict the server may make every optional parameter required.
		b = appendTools(append(b, `,"tools":`...), tools, `{"type":"function","name":?,"description":?,"parameters":?,"strict":false}`)
	}
	return append(b, `,"input":[`...)
}

// encodeResponses encodes a message: its input items and, of a tool result,
// the user message with the result's images, since an output is text only.
// Each item stands behind a comma.
func encodeResponses(model *Model, m *Message) (part [2][]byte) {
	switch m.Role {
	case "assistant":
		part[0] = responsesItems(model, m)
	case "tool":
		id := wireID(m.CallID, wordID)
		text, images := splitResult(model, m.Content)
		part[0] = appendJSON(nil, `,{"type":"function_call_output","call_id":?,"output":?}`, id, text)
		if images != nil {
			title := Block{Type: "text", Text: "The result of " + m.ToolName + " (call " + id + ") has these images:"}
			part[1] = responsesUser(model, append([]Block{title}, images...))
		}
	default:
		part[0] = responsesUser(model, m.Content)
	}
	return part
}

// responsesUser encodes a user message; nil when there is nothing in it.
func responsesUser(model *Model, content []Block) (b []byte) {
	b = appendParts(nil, sendable(model, content), `,{"type":"input_text","text":?}`, `,{"type":"input_image","detail":"auto","image_url":"data:?;base64,?"}`)
	if b == nil {
		return nil
	}
	return appendJSON(nil, `,{"type":"message","role":"user","content":[?]}`, b[1:])
}

// reasoningItem is how the Signature of a thinking block begins that was made
// here.
const reasoningItem = `{"type":"reasoning",`

// responsesItems encodes an assistant message as the items it was made of.
func responsesItems(model *Model, m *Message) (b []byte) {
	own := m.Provider == model.Provider && m.Model == model.ID
	whole := 0 // of b; the reasoning behind it is refused without an item that follows
	for _, c := range m.Content {
		switch {
		case c.Type == "thinking" && own && strings.HasPrefix(c.Signature, reasoningItem):
			b = append(append(b, ','), c.Signature...)
			continue
		case c.Type == "text" && !blank(c.Text):
			b = appendJSON(b, `,{"type":"message","role":"assistant","content":[{"type":"output_text","text":?}]`, c.Text)
			if own && c.Signature != "" {
				b = appendJSON(b, `,"phase":?`, c.Signature)
			}
			b = append(b, '}')
		case c.Type == "tool_call":
			b = appendJSON(b, `,{"type":"function_call","call_id":?,"name":?,"arguments":?}`, wireID(c.ID, wordID), wireToolName(c.Name), string(c.Args))
		default:
			continue
		}
		whole = len(b)
	}
	return b[:whole]
}

// responsesParser assembles the output items of one response.
type responsesParser struct {
	a       *assembler
	items   []*responsesItem // in the order they began
	refusal []byte
	cut     bool // a function call is incomplete although the response may not say so
}

// responsesItem is an output item on its way.
type responsesItem struct {
	index int    // its output_index
	kind  string // its type
	block int    // its place in the message; -1: there is nothing to show yet
	part  int    // of a reasoning item: the part that its text so far ends in
	done  bool
}

func (p *responsesParser) event(name string, data []byte) (meaningful bool, err error) {
	v, whole := pick(data, "type", "output_index", "delta", "content_index", "summary_index", "item", "response", "error", "output")
	if !whole {
		return false, errNotJSON
	}
	index := -1
	if v[1] != nil {
		index = count(v[1])
	}
	typ := bytes.Trim(v[0], `"`)
	switch string(typ) {
	case "response.output_text.delta":
		p.delta("message", index, 0, v[2])
	case "response.reasoning_summary_text.delta", "response.reasoning_text.delta":
		p.delta("reasoning", index, max(count(v[3]), count(v[4])), v[2])
	case "response.function_call_arguments.delta":
		p.delta("function_call", index, 0, v[2])
	case "response.refusal.delta":
		p.refusal = appendText(p.refusal, v[2])
	case "response.output_item.added":
		p.begin(index, textOf(get(v[5], "type")), v[5])
	case "response.output_item.done":
		p.complete(index, v[5])
	case "response.completed", "response.incomplete", "response.failed", "response.cancelled":
		return true, cmp.Or(p.finish(string(typ[len("response."):]), v[6]), io.EOF)
	default:
		if name == "json" && v[8] != nil { // a response that was not streamed
			return true, p.finish("completed", data)
		}
		ours := bytes.HasPrefix(typ, []byte("response."))
		if string(typ) == "error" || name == "json" || !ours && v[7] != nil {
			return false, streamError(data)
		}
		return ours, nil
	}
	return true, nil
}

// finish takes the last event. The response's own status is only believed when
// it is a worse one than the event's: some servers leave it at in_progress.
func (p *responsesParser) finish(status string, response []byte) error {
	v, _ := pick(response, "status", "usage", "output", "error", "incomplete_details")
	if own := textOf(v[0]); slices.Contains([]string{"incomplete", "failed", "cancelled"}, own) {
		status = own
	}
	msg := p.a.msg
	msg.Usage = responsesUsage(v[1])
	p.collect(v[2])
	reason := textOf(get(v[4], "reason"))
	msg.RawStop = status
	if status == "incomplete" {
		msg.RawStop = cmp.Or(reason, status)
	}
	switch {
	case (status == "failed" || status == "cancelled") && v[3] != nil:
		return streamError(v[3])
	case status == "failed" || status == "cancelled":
		return &providerError{message: "the server ended the response as " + status}
	case status == "incomplete" && reason == "content_filter":
		return &providerError{message: "the provider's content filter stopped the answer (content_filter)"}
	case status != "incomplete" && len(p.refusal) > 0:
		return &providerError{message: "the model refused: " + string(p.refusal)}
	case status == "incomplete" || p.cut:
		msg.Stop = "length"
	case msg.has("tool_call") || p.waitsForUs():
		msg.Stop = "tool_use"
	default:
		msg.Stop = "end_turn"
	}
	return nil
}

func (p *responsesParser) end(bool) error {
	if p.a.msg.Stop == "" {
		return truncated()
	}
	return nil
}

// collect completes what was not streamed from the final response. Its output
// is empty on some servers and has other ids than the stream on others.
func (p *responsesParser) collect(output []byte) {
	streamed := len(p.items) > 0
	index := 0
	walk(output, func(_, item []byte) {
		if it := p.at(index); !streamed || it != nil && !it.done {
			p.complete(index, item)
		}
		index++
	})
	for _, it := range p.items {
		if it.kind == "function_call" && !it.done && (it.block < 0 || len(p.a.text[it.block]) == 0) {
			p.cut = true // that no arguments came does not mean that there are none
		}
	}
}

// waitsForUs reports whether the response ended in a call of a tool that was
// not offered but that only a client could run.
func (p *responsesParser) waitsForUs() bool {
	last := p.at(-1)
	return last != nil && slices.Contains([]string{"custom_tool_call", "shell_call", "local_shell_call", "apply_patch_call"}, last.kind)
}

// at finds the latest item of an output_index; nil when there is none. An
// event without one (-1) is about the latest item of all.
func (p *responsesParser) at(index int) *responsesItem {
	for _, it := range slices.Backward(p.items) {
		if it.index == index || index < 0 {
			return it
		}
	}
	return nil
}

// begin takes a new item. Text has no block before its first character, and a
// call none before its name.
func (p *responsesParser) begin(index int, kind string, item []byte) *responsesItem {
	if index < 0 {
		index = len(p.items)
	}
	it := &responsesItem{index: index, kind: kind, block: -1}
	p.items = append(p.items, it)
	v, _ := pick(item, "call_id", "name")
	if kind == "reasoning" {
		it.block = p.a.start(Block{Type: "thinking"})
	} else if kind == "function_call" && v[0] != nil && v[1] != nil {
		it.block = p.a.startCall(textOf(v[0]), textOf(v[1]))
	}
	return it
}

// delta adds to an open item. The parts of a reasoning item are set apart.
func (p *responsesParser) delta(kind string, index, part int, delta []byte) {
	if len(delta) <= len(`""`) || delta[0] != '"' {
		return
	}
	it := p.at(index)
	if it == nil || it.kind != kind || it.done {
		it = p.begin(index, kind, nil)
	}
	if it.block < 0 && kind == "message" {
		it.block = p.a.start(Block{Type: "text"})
	}
	if it.block < 0 {
		return // a call whose name is not known yet; its end brings all of it
	}
	if it.part != part && len(p.a.text[it.block]) > 0 {
		p.a.add(it.block, []byte("\n\n"))
	}
	it.part = part
	p.a.addJSON(it.block, delta)
}

// complete takes an item that has ended, as the server sums it up.
func (p *responsesParser) complete(index int, item []byte) {
	v, _ := pick(item, "type", "id", "call_id", "name", "arguments", "content", "summary", "status", "phase")
	kind := textOf(v[0])
	if kind == "" {
		return
	}
	it := p.at(index)
	if it == nil || it.kind != kind || it.done && index < 0 {
		it = p.begin(index, kind, item)
	}
	if it.done { // and told twice
		return
	}
	it.done = true
	switch kind {
	case "message":
		text := joinParts(v[5], "text", "")
		if it.block < 0 && text != "" {
			it.block = p.a.start(Block{Type: "text"})
		}
		if it.block >= 0 {
			p.a.msg.Content[it.block].Signature = textOf(v[8])
			p.rest(it, text)
		}
		if len(p.refusal) == 0 {
			p.refusal = []byte(joinParts(v[5], "refusal", ""))
		}
	case "reasoning":
		p.a.msg.Content[it.block].Signature = reasoningSignature(item)
		p.rest(it, cmp.Or(joinParts(v[6], "text", "\n\n"), joinParts(v[5], "text", "\n\n")))
	case "function_call":
		if it.block < 0 { // it may have no id of its own
			it.block = p.a.startCall(cmp.Or(textOf(v[2]), textOf(v[1])), textOf(v[3]))
		}
		args := string(v[4])
		if strings.HasPrefix(args, `"`) { // some servers send the JSON itself
			args = textOf(v[4])
		}
		p.rest(it, args)
		p.cut = p.cut || string(v[7]) == `"incomplete"`
	default:
		if whole, err := normalize(item); err == nil {
			it.block = p.a.start(Block{Type: "opaque", Signature: string(whole)})
		}
	}
	if it.block >= 0 {
		p.a.end(it.block)
	}
}

// rest adds what the deltas have not brought of an item's text.
func (p *responsesParser) rest(it *responsesItem, whole string) {
	if tail, ok := strings.CutPrefix(whole, string(p.a.text[it.block])); ok {
		p.a.add(it.block, []byte(tail))
	}
}

// joinParts joins a field of the parts of an item.
func joinParts(parts []byte, field, separator string) string {
	var texts []string
	walk(parts, func(_, part []byte) {
		if v := get(part, field); v != nil {
			texts = append(texts, textOf(v))
		}
	})
	return strings.Join(texts, separator)
}

// reasoningSignature is a reasoning item as it goes back: id, summary and
// encrypted content. "" when there is no encrypted content, because the vendor
// did not keep the item either.
func reasoningSignature(item []byte) string {
	v, _ := pick(item, "encrypted_content", "id", "summary")
	if textOf(v[0]) == "" {
		return ""
	}
	b := []byte(reasoningItem)
	if v[1] != nil {
		b = appendJSON(b, `"id":?,`, v[1])
	}
	if len(v[2]) == 0 || v[2][0] != '[' {
		v[2] = []byte("[]")
	}
	whole, _ := normalize(appendJSON(b, `"summary":?,"encrypted_content":?}`, v[2], v[0]))
	return string(whole)
}

// responsesUsage is nil when the response reports no tokens.
func responsesUsage(usage []byte) *Usage {
	v, _ := pick(usage, "input_tokens", "output_tokens", "input_tokens_details", "output_tokens_details")
	if v[0] == nil && v[1] == nil {
		return nil
	}
	u := &Usage{Output: count(v[1]), CacheRead: count(get(v[2], "cached_tokens")), CacheWrite: count(get(v[2], "cache_write_tokens"))}
	u.Input = max(0, count(v[0])-u.CacheRead-u.CacheWrite)
	if reasoning := get(v[3], "reasoning_tokens"); reasoning != nil {
		u.Reasoning = new(count(reasoning))
	}
	return u
}
