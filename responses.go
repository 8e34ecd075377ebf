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
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

type responsesWire struct{}

func (responsesWire) endpoint(base, key string, _ *request, h http.Header) string {
	if key != "" {
		h.Set("Authorization", "Bearer "+key)
	}
	return strings.TrimRight(base, "/") + "/responses"
}

// body has the conversation last, so that two requests of a session are the
// same up to the first new item.
func (responsesWire) body(r *request) []byte {
	key := fmt.Sprintf("responses %s %s %t", r.model.Provider, r.model.ID, r.model.Vision)
	separator := []byte(",")
	pieces := append(make([][]byte, 0, 2*len(r.messages)+2), responsesHead(r))
	add := func(item []byte) {
		if len(item) == 0 {
			return
		}
		if len(pieces) > 1 {
			pieces = append(pieces, separator)
		}
		pieces = append(pieces, item)
	}
	var images [][]byte // of tool results; they follow the last result of a message's calls
	for i, m := range r.messages {
		if m.wire.key != key {
			m.wire = encoded{key, encodeResponses(r.model, m)}
		}
		add(m.wire.part[0])
		images = append(images, m.wire.part[1])
		if i+1 == len(r.messages) || r.messages[i+1].Role != "tool" {
			for _, message := range images {
				add(message)
			}
			images = images[:0]
		}
	}
	return slices.Concat(append(pieces, []byte("]}"))...)
}

// responsesHead encodes all that comes before the input items.
func responsesHead(r *request) []byte {
	m := r.model
	b := appendString([]byte(`{"model":`), m.ID)
	b = append(b, `,"stream":true,"store":false`...)
	// An output as large as the window is no limit of its own, and servers
	// refuse a prompt and an output that exceed the window together.
	if n := cmp.Or(r.maxTokens, m.MaxOutput); n > 0 && (m.ContextWindow == 0 || n < m.ContextWindow) {
		b = strconv.AppendInt(append(b, `,"max_output_tokens":`...), int64(n), 10)
	}
	if len(m.Levels) > 0 { // whatever the level: such a model may always reason
		b = append(b, `,"include":["reasoning.encrypted_content"]`...)
	}
	if word := m.Levels[r.reasoning]; word != "" && word != "off" {
		b = appendString(append(b, `,"reasoning":{"effort":`...), word)
		if r.reasoning != "off" {
			b = append(b, `,"summary":"auto"`...)
		}
		b = append(b, '}')
	}
	if r.system != "" {
		b = appendString(append(b, `,"instructions":`...), r.system)
	}
	var tools []byte
	for _, t := range offeredTools(r) {
		tools = appendString(append(comma(tools), `{"type":"function","name":`...), t.name)
		tools = appendString(append(tools, `,"description":`...), t.description)
		tools = append(append(tools, `,"parameters":`...), t.schema...)
		// Without strict the server may make every optional parameter required.
		tools = append(tools, `,"strict":false}`...)
	}
	if tools != nil {
		b = append(append(append(b, `,"tools":[`...), tools...), ']')
	}
	return append(b, `,"input":[`...)
}

// encodeResponses encodes a message: its input items and, of a tool result,
// the user message with the result's images, since an output is text only.
func encodeResponses(model *Model, m *Message) (part [2][]byte) {
	switch m.Role {
	case "assistant":
		part[0] = responsesItems(model, m)
	case "tool":
		id := responsesID(m.CallID)
		text, images := responsesResult(model, m)
		b := appendString([]byte(`{"type":"function_call_output","call_id":`), id)
		part[0] = append(appendString(append(b, `,"output":`...), text), '}')
		if len(images) > 0 {
			title := Block{Type: "text", Text: "The result of " + m.ToolName + " (call " + id + ") has these images:"}
			part[1] = responsesUser(model, append([]Block{title}, images...))
		}
	default:
		part[0] = responsesUser(model, m.Content)
	}
	return part
}

const responsesNoImage = "(image left out: this model takes no images)"

// responsesUser encodes a user message; nil when there is nothing in it.
func responsesUser(model *Model, content []Block) []byte {
	var parts []byte
	for i := range content {
		c := &content[i]
		text := c.Text
		switch {
		case c.Type == "image" && model.Vision:
			parts = append(comma(parts), `{"type":"input_image","detail":"auto","image_url":`...)
			parts = append(appendString(parts, "data:"+c.MimeType+";base64,"+c.Data), '}')
			continue
		case c.Type == "image":
			text = responsesNoImage
		case c.Type != "text" || blank(text):
			continue
		}
		parts = append(comma(parts), `{"type":"input_text","text":`...)
		parts = append(appendString(parts, text), '}')
	}
	if parts == nil {
		return nil
	}
	return slices.Concat([]byte(`{"type":"message","role":"user","content":[`), parts, []byte("]}"))
}

// responsesResult is the text of a tool result, and the images that the model
// can take.
func responsesResult(model *Model, m *Message) (text string, images []Block) {
	var lines []string
	for _, c := range m.Content {
		switch {
		case c.Type == "image" && model.Vision:
			images = append(images, c)
		case c.Type == "image":
			lines = append(lines, responsesNoImage)
		case c.Type == "text" && !blank(c.Text):
			lines = append(lines, c.Text)
		}
	}
	if len(lines) == 0 && len(images) > 0 {
		return "(the image follows)", images
	}
	return cmp.Or(strings.Join(lines, "\n"), "(no output)"), images
}

// reasoningItem is how the Signature of a thinking block begins that was made
// here.
const reasoningItem = `{"type":"reasoning",`

// responsesItems encodes an assistant message as the items it was made of.
func responsesItems(model *Model, m *Message) (b []byte) {
	own := m.Provider == model.Provider && m.Model == model.ID
	var reasoning []byte // is refused without the item that followed it
	next := func(open string) {
		b = comma(b)
		if reasoning != nil {
			b = append(append(b, reasoning...), ',')
			reasoning = nil
		}
		b = append(b, open...)
	}
	for i := range m.Content {
		c := &m.Content[i]
		switch {
		case c.Type == "thinking" && own && strings.HasPrefix(c.Signature, reasoningItem):
			reasoning = append(comma(reasoning), c.Signature...)
		case c.Type == "text" && !blank(c.Text):
			next(`{"type":"message","role":"assistant","content":[{"type":"output_text","text":`)
			b = append(appendString(b, c.Text), "}]"...)
			if own && c.Signature != "" {
				b = appendString(append(b, `,"phase":`...), c.Signature)
			}
			b = append(b, '}')
		case c.Type == "tool_call":
			next(`{"type":"function_call","call_id":`)
			b = appendString(b, responsesID(c.ID))
			b = appendString(append(b, `,"name":`...), wireToolName(c.Name))
			b = append(appendString(append(b, `,"arguments":`...), []byte(c.Args)), '}')
		}
	}
	return b
}

// responsesID is a call's id as the vendor takes it: up to 64 letters, digits,
// _ and -. Others are replaced by a digest, so that different ones stay
// different.
func responsesID(id string) string {
	if id != "" && len(id) <= 64 && !strings.ContainsFunc(id, notWord) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return fmt.Sprintf("call_%x", sum[:16])
}

func (responsesWire) parser(_ *request, a *assembler) streamParser {
	return &responsesParser{a: a}
}

// responsesParser assembles the output items of one response.
type responsesParser struct {
	a       *assembler
	items   []*responsesItem // in the order they began
	refusal []byte
	cut     bool   // a function call is incomplete although the response may not say so
	status  string // how the response ended; "" while it has not
	final   object // the response as its last event has it
	broken  error  // the last event was not JSON
	textDecoder
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
	data = bytes.TrimSpace(data)
	switch {
	case p.broken != nil:
		return false, p.broken
	case name == "error":
		return false, streamError(data)
	case len(data) == 0 || data[0] != '{': // [DONE], which some servers send
		return false, nil
	case name == "json":
		return true, p.whole(data)
	}
	v, ok := pickJSON(data, "type", "output_index", "delta", "content_index", "summary_index", "item", "arguments", "response", "error")
	if !ok { // an error if anything follows, else the connection was cut here
		p.broken = &providerError{message: fmt.Sprintf("the server sent an event that is not JSON: %.200q", data)}
		return false, nil
	}
	typ, index := p.text(v[0]), indexOf(v[1])
	switch string(typ) {
	case "response.output_text.delta":
		p.delta("message", index, 0, v[2])
	case "response.reasoning_summary_text.delta", "response.reasoning_text.delta":
		p.delta("reasoning", index, max(indexOf(v[3]), indexOf(v[4])), v[2])
	case "response.function_call_arguments.delta":
		p.delta("function_call", index, 0, v[2])
	case "response.refusal.delta":
		p.refusal = append(p.refusal, p.text(v[2])...)
	case "response.output_item.added":
		item, _ := parseObject(v[5])
		p.begin(index, eventText(item, "type"), item)
	case "response.output_item.done":
		p.complete(index, v[5])
	case "response.function_call_arguments.done":
		if it := p.at(index); it != nil && it.kind == "function_call" && it.block >= 0 && !it.done {
			p.rest(it, argumentText(v[6]))
		}
	case "response.completed", "response.incomplete", "response.failed", "response.cancelled":
		response, _ := parseObject(v[7])
		p.finish(strings.TrimPrefix(string(typ), "response."), response)
		return true, io.EOF
	default:
		ours := bytes.HasPrefix(typ, []byte("response."))
		if string(typ) == "error" || !ours && v[8] != nil {
			return false, streamError(data)
		}
		return ours, nil
	}
	return true, nil
}

// indexOf reads a small number; -1 when there is none.
func indexOf(v []byte) int {
	if len(v) == 0 || len(v) > 9 {
		return -1
	}
	n, err := strconv.Atoi(string(v))
	if err != nil {
		return -1
	}
	return n
}

// whole takes a body that was not streamed: a response or an error.
func (p *responsesParser) whole(data []byte) error {
	response, err := parseObject(data)
	if err != nil {
		return truncated()
	}
	if !response.has("output") {
		return streamError(data)
	}
	p.finish("completed", response)
	return io.EOF
}

// finish takes the last event. The response's own status is only believed when
// it is a worse one than the event's: some servers leave it at in_progress.
func (p *responsesParser) finish(status string, response object) {
	p.status, p.final = status, response
	switch s := eventText(response, "status"); s {
	case "incomplete", "failed", "cancelled":
		p.status = s
	}
}

func (p *responsesParser) end() error {
	if p.status == "" {
		return truncated()
	}
	msg := p.a.msg
	msg.RawStop = p.status
	msg.Usage = responsesUsage(p.final)
	p.collect()
	switch {
	case p.status == "failed" || p.status == "cancelled":
		if !p.final.has("error") {
			return &providerError{message: "the server ended the response as " + p.status}
		}
		return streamError(p.final["error"])
	case p.status == "incomplete":
		reason := eventText(eventObject(p.final, "incomplete_details"), "reason")
		msg.RawStop = cmp.Or(reason, p.status)
		if reason == "content_filter" {
			return &providerError{message: "the provider's content filter stopped the answer (content_filter)"}
		}
		msg.Stop = "length"
	case len(p.refusal) > 0:
		return &providerError{message: "the model refused: " + string(p.refusal)}
	case p.cut:
		msg.Stop = "length"
	case p.waitsForUs():
		msg.Stop = "tool_use"
	default:
		msg.Stop = "end_turn"
	}
	return nil
}

// collect completes what was not streamed from the final response. Its output
// is empty on some servers and has other ids than the stream on others.
func (p *responsesParser) collect() {
	streamed := len(p.items) > 0
	index := 0
	walkJSON(p.final["output"], func(_, item []byte) {
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

// waitsForUs reports whether the response ended in a tool call: of our tools,
// or of a kind that was not offered but that only a client could run.
func (p *responsesParser) waitsForUs() bool {
	if slices.ContainsFunc(p.a.msg.Content, func(b Block) bool { return b.Type == "tool_call" }) {
		return true
	}
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
func (p *responsesParser) begin(index int, kind string, item object) *responsesItem {
	if index < 0 {
		index = len(p.items)
	}
	it := &responsesItem{index: index, kind: kind, block: -1}
	p.items = append(p.items, it)
	switch id, name := eventText(item, "call_id"), eventText(item, "name"); {
	case kind == "reasoning":
		it.block = p.a.start(Block{Type: "thinking"})
	case kind == "function_call" && id != "" && name != "":
		it.block = p.a.start(Block{Type: "tool_call", ID: id, Name: name})
	}
	return it
}

// delta adds to an open item. The parts of a reasoning item are set apart.
func (p *responsesParser) delta(kind string, index, part int, delta []byte) {
	text := p.text(delta)
	if len(text) == 0 {
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
	p.a.add(it.block, text)
}

// complete takes an item that has ended, as the server sums it up.
func (p *responsesParser) complete(index int, raw []byte) {
	item, _ := parseObject(raw)
	kind := eventText(item, "type")
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
		text, refusal := messageParts(item)
		if it.block < 0 && text != "" {
			it.block = p.a.start(Block{Type: "text"})
		}
		if it.block >= 0 {
			p.a.msg.Content[it.block].Signature = eventText(item, "phase")
			p.rest(it, text)
		}
		if len(p.refusal) == 0 {
			p.refusal = []byte(refusal)
		}
	case "reasoning":
		p.a.msg.Content[it.block].Signature = reasoningSignature(item)
		p.rest(it, reasoningText(item))
	case "function_call":
		if it.block < 0 { // it may have no id of its own
			id := cmp.Or(eventText(item, "call_id"), eventText(item, "id"), "call_"+strconv.Itoa(len(p.items)))
			it.block = p.a.start(Block{Type: "tool_call", ID: id, Name: eventText(item, "name")})
		}
		p.rest(it, argumentText(item["arguments"]))
		p.cut = p.cut || eventText(item, "status") == "incomplete"
	default:
		if whole, err := normalize(raw); err == nil {
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

// argumentText is the arguments of a call: a string of JSON, on some servers
// the JSON itself.
func argumentText(v json.RawMessage) string {
	var text string
	if json.Unmarshal(v, &text) == nil {
		return text
	}
	return string(v)
}

// messageParts joins what the parts of a message item say.
func messageParts(item object) (text, refusal string) {
	walkJSON(item["content"], func(_, raw []byte) {
		part, _ := parseObject(raw)
		text += eventText(part, "text")
		refusal += eventText(part, "refusal")
	})
	return text, refusal
}

// reasoningText is the summary of a reasoning item, else its plain text.
func reasoningText(item object) string {
	var parts []string
	for _, key := range []string{"summary", "content"} {
		if len(parts) > 0 {
			break
		}
		walkJSON(item[key], func(_, raw []byte) {
			part, _ := parseObject(raw)
			parts = append(parts, eventText(part, "text"))
		})
	}
	return strings.Join(parts, "\n\n")
}

// reasoningSignature is a reasoning item as it goes back: id, summary and
// encrypted content. "" when there is no encrypted content, because the vendor
// did not keep the item either.
func reasoningSignature(item object) string {
	if eventText(item, "encrypted_content") == "" {
		return ""
	}
	summary := item["summary"]
	if len(summary) == 0 || summary[0] != '[' {
		summary = []byte("[]")
	}
	b := []byte(reasoningItem)
	if item.has("id") {
		b = append(append(append(b, `"id":`...), item["id"]...), ',')
	}
	b = append(append(b, `"summary":`...), summary...)
	b = append(append(b, `,"encrypted_content":`...), item["encrypted_content"]...)
	whole, _ := normalize(append(b, '}')) // valid, as its parts are
	return string(whole)
}

// responsesUsage is nil when the response reports no tokens.
func responsesUsage(response object) *Usage {
	usage := eventObject(response, "usage")
	if !usage.has("input_tokens") && !usage.has("output_tokens") {
		return nil
	}
	read, made := eventObject(usage, "input_tokens_details"), eventObject(usage, "output_tokens_details")
	u := &Usage{
		Output:     eventInt(usage, "output_tokens"),
		CacheRead:  eventInt(read, "cached_tokens"),
		CacheWrite: eventInt(read, "cache_write_tokens"),
	}
	u.Input = max(0, eventInt(usage, "input_tokens")-u.CacheRead-u.CacheWrite)
	if made.has("reasoning_tokens") {
		n := eventInt(made, "reasoning_tokens")
		u.Reasoning = &n
	}
	return u
}
