// The JSON-lines server that both protocols share (commands, responses, ids) and
// the zot protocol on it (spec: zot RPC). Rules kept here:
//
//   - The reader only parses and dispatches; nothing it does waits for a model or
//     a tool, nor for our own output until maxBacklog of it is unread.
//   - Every command line that parses gets exactly one response with its id. A
//     line that does not parse gets an error response. No line ends the process.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// command is one parsed input line.
type command struct {
	id   json.RawMessage // nil when absent
	name string
	object
}

// response appends a response frame: id, command, then data or error.
func (c *command) response(dst []byte, data any, err error) []byte {
	dst = append(dst, `{"type":"response"`...)
	if c.id != nil {
		dst = append(append(dst, `,"id":`...), c.id...)
	}
	dst = appendString(append(dst, `,"command":`...), c.name)
	if err != nil {
		dst = append(dst, `,"success":false,"error":`...)
		return append(appendString(dst, err.Error()), '}')
	}
	dst = append(dst, `,"success":true`...)
	switch d := data.(type) {
	case nil:
	case json.RawMessage:
		dst = append(append(dst, `,"data":`...), d...)
	case []byte: // JSON too
		dst = append(append(dst, `,"data":`...), d...)
	case func([]byte) []byte: // appends it: for what is large
		dst = d(append(dst, `,"data":`...))
	default:
		dst = append(append(dst, `,"data":`...), encode(d)...)
	}
	return append(dst, '}')
}

// want returns a required string. The error suggests the right name when a
// usual wrong one is there.
func (c *command) want(key string, wrong ...string) (string, error) {
	if !c.has(key) {
		for _, w := range wrong {
			if c.has(w) {
				return "", fmt.Errorf("%s needs %q (a string): did you mean it by %q?", c.name, key, w)
			}
		}
		return "", fmt.Errorf("%s needs %q (a string)", c.name, key)
	}
	return c.str(key)
}

// serve reads commands until the input ends or handle says stop. With an error,
// the command is what could be read of it. idle is called before each wait for
// input, when all that came was handled.
func serve(in io.Reader, idle func(), handle func(*command, error) (stop bool)) {
	r := bufio.NewReaderSize(in, 64<<10)
	for {
		if b, _ := r.Peek(r.Buffered()); bytes.IndexByte(b, '\n') < 0 {
			idle()
		}
		line, err := inputLine(r)
		if line == nil && err == nil {
			idle()
			return
		}
		c := &command{name: "parse"}
		if err == nil {
			c, err = parseCommand(line)
		}
		if handle(c, err) {
			return
		}
	}
}

// parseCommand reads a line. With an error, the command holds what is needed
// to answer it.
func parseCommand(line []byte) (*command, error) {
	o, err := parseObject(line)
	if err != nil {
		return &command{name: "parse"}, fmt.Errorf("Failed to parse command: %w", err)
	}
	c := &command{object: o, name: "parse"}
	if o.has("id") {
		if c.id, err = normalize(o["id"]); err != nil {
			return c, err
		}
	}
	name, err := o.str("type")
	if err == nil && name == "" {
		err = errors.New(`a command needs "type" (a string)`)
	}
	if err != nil {
		return c, err
	}
	c.name = name
	return c, nil
}

// zotView writes an agent's events as zot protocol frames. Notices are held
// until the first response: clients take the first line as the answer to their
// first command.
type zotView struct {
	*writer
	held    [][]byte
	dropped int  // what came when maxHeld were held
	opened  bool // the first response was written
	failed  bool // a run failed
}

const maxHeld = 1000

// open lets notices pass. It is called under the agent's lock, like event.
func (v *zotView) open() {
	if v.opened {
		return
	}
	v.opened = true
	for _, f := range v.held {
		v.frame(true, func(dst []byte) []byte { return append(dst, f...) })
	}
	v.held = nil
	if v.dropped > 0 {
		v.event(&Event{Type: "notice", Level: "warn", Text: fmt.Sprintf("%d more notices of extensions came before the first command and were dropped", v.dropped)})
	}
}

// event implements host.
func (v *zotView) event(e *Event) {
	switch e.Type {
	case "delta":
		if e.Delta.phase == "delta" && e.Delta.block.Type == "text" {
			v.frame(false, func(dst []byte) []byte {
				dst = append(dst, `{"type":"text_delta","delta":`...)
				return append(appendString(dst, e.Delta.text), '}')
			})
		}
	case "notice", "ext_display", "ext_insert", "ext_clear_notes", "ext_panel_open", "ext_panel_render", "ext_panel_close":
		f := appendExt(nil, e)
		switch {
		case v.opened:
			v.frame(true, func(dst []byte) []byte { return append(dst, f...) })
		case len(v.held) < maxHeld:
			v.held = append(v.held, f)
		default:
			v.dropped++
		}
	case "attempt_start", "queue_update": // the Atomic protocol's
	default:
		v.failed = v.failed || e.Type == "error"
		v.frame(true, func(dst []byte) []byte { return appendEvent(dst, e) })
	}
}

// appendExt appends the frame of something that an extension says.
func appendExt(dst []byte, e *Event) []byte {
	typ := e.Type
	if typ == "notice" {
		typ = "ext_notify"
	}
	dst = appendString(append(dst, `{"type":`...), typ)
	dst = appendString(append(dst, `,"extension":`...), cmp.Or(e.Extension, "zot"))
	switch {
	case e.Type == "notice":
		dst = appendString(append(dst, `,"level":`...), e.Level)
		dst = appendString(append(dst, `,"message":`...), e.Text)
	case e.Panel != nil:
		dst = appendString(append(dst, `,"panel_id":`...), e.Panel.ID)
		if e.Type != "ext_panel_close" {
			dst = appendString(append(dst, `,"title":`...), e.Panel.Title)
			dst = append(append(dst, `,"lines":`...), encode(e.Panel.Lines)...)
			dst = appendString(append(dst, `,"footer":`...), e.Panel.Footer)
		}
	case e.Type != "ext_clear_notes":
		dst = appendString(append(dst, `,"text":`...), e.Text)
	}
	return append(dst, '}')
}

// appendEvent appends the frame of an event (spec: Events).
func appendEvent(dst []byte, e *Event) []byte {
	dst = append(append(append(dst, `{"type":"`...), e.Type...), '"')
	switch e.Type {
	case "turn_start":
		dst = strconv.AppendInt(append(dst, `,"step":`...), int64(e.Step), 10)
	case "user_message", "assistant_message":
		dst = appendContent(append(dst, ','), e.Message)
	case "usage":
		dst = appendUsage(append(dst, ','), e.Usage)
		dst = append(appendUsage(append(dst, `,"cumulative":{`...), &e.Total), '}')
	case "tool_call":
		dst = appendString(append(dst, `,"id":`...), e.Call.ID)
		dst = appendString(append(dst, `,"name":`...), e.Call.Name)
		dst = appendArgs(dst, e.Call)
	case "tool_confirmation_requested":
		dst = appendCall(dst, e.Call)
		dst = appendString(append(dst, `,"tool_preview":`...), e.Text)
	case "tool_progress":
		dst = appendString(append(dst, `,"id":`...), e.CallID)
		dst = appendString(append(dst, `,"text":`...), e.Text)
	case "tool_result":
		m := e.Message
		dst = appendString(append(dst, `,"id":`...), m.CallID)
		dst = strconv.AppendBool(append(dst, `,"is_error":`...), m.IsError)
		dst = appendBlocks(append(dst, `,"content":`...), m.Content)
	case "turn_end":
		dst = appendString(append(dst, `,"stop":`...), e.Stop)
		if e.Err != "" {
			dst = appendString(append(dst, `,"error":`...), e.Err)
		}
	case "error":
		dst = appendString(append(dst, `,"message":`...), e.Text)
	case "compact_done":
		dst = appendString(append(dst, `,"summary":`...), e.Text)
	case "retry":
		dst = fmt.Appendf(dst, `,"attempt":%d,"max_attempts":%d,"delay_ms":%d,"message":`, e.Attempt, e.Max, e.Delay.Milliseconds())
		dst = appendString(dst, e.Text)
	}
	if e.ID != nil {
		dst = append(append(dst, `,"prompt_id":`...), e.ID...)
	}
	if e.Type == "done" && e.Text != "" { // both in one write: no snapshot comes between
		dst = appendString(append(dst, "}\n{\"type\":\"compact_done\",\"summary\":"...), e.Text)
	}
	return append(dst, '}')
}

// appendUsage appends the fields of a usage object without its braces.
func appendUsage(dst []byte, u *Usage) []byte {
	reasoning := "null"
	if u.Reasoning != nil {
		reasoning = strconv.Itoa(*u.Reasoning)
	}
	return fmt.Appendf(dst, `"input":%d,"output":%d,"reasoning":%s,"cache_read":%d,"cache_write":%d,"cost_usd":%s`,
		u.Input, u.Output, reasoning, u.CacheRead, u.CacheWrite, strconv.FormatFloat(u.Cost.Total, 'f', -1, 64))
}

// appendMessage appends a message in the shape of the document. The encoding of
// all but large ones is kept: get_messages asks for it again and again.
func appendMessage(dst []byte, m *Message) []byte {
	if f := m.frame.Load(); f != nil {
		return append(dst, *f...)
	}
	start := len(dst)
	dst = appendString(append(dst, `{"role":`...), m.Role)
	dst = append(appendContent(append(dst, ','), m), '}')
	if len(dst)-start < 64<<10 {
		f := bytes.Clone(dst[start:])
		m.frame.Store(&f)
	}
	return dst
}

// appendContent appends the fields content and time of a message.
func appendContent(dst []byte, m *Message) []byte {
	dst = append(dst, `"content":`...)
	if m.Role == "tool" {
		dst = appendString(append(dst, `[{"type":"tool_result","call_id":`...), m.CallID)
		dst = strconv.AppendBool(append(dst, `,"is_error":`...), m.IsError)
		dst = append(appendBlocks(append(dst, `,"content":`...), m.Content), "}]"...)
	} else {
		dst = appendBlocks(dst, m.Content)
	}
	return append(m.Time.UTC().AppendFormat(append(dst, `,"time":"`...), time.RFC3339), '"')
}

// appendBlocks appends content blocks (spec: Content block types). Thinking and
// opaque blocks are not part of the protocol.
func appendBlocks(dst []byte, blocks []Block) []byte {
	dst = append(dst, '[')
	first := true
	for i := range blocks {
		b := &blocks[i]
		if b.Type == "thinking" || b.Type == "opaque" {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		switch b.Type {
		case "text":
			dst = appendString(append(dst, `{"type":"text","text":`...), b.Text)
		case "image":
			dst = appendString(append(dst, `{"type":"image","mime_type":`...), b.MimeType)
			size := base64.RawStdEncoding.DecodedLen(len(strings.TrimRight(b.Data, "=")))
			dst = strconv.AppendInt(append(dst, `,"bytes":`...), int64(size), 10)
		case "tool_call":
			dst = appendString(append(dst, `{"type":"tool_call","id":`...), b.ID)
			dst = appendString(append(dst, `,"name":`...), b.Name)
			dst = appendArgs(dst, b)
		}
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

// appendArgs appends the arguments of a call: null when what the model sent was
// not one complete JSON object.
func appendArgs(dst []byte, b *Block) []byte {
	if b.BadArgs != "" {
		return append(dst, `,"args":null`...)
	}
	return append(append(dst, `,"args":`...), b.Args...)
}

// zotServer answers the commands of the zot protocol.
type zotServer struct {
	agent *Agent
	view  *zotView
	setup *setup
	token string // required in the first line; "" is no token
}

// run serves until the input ends. It reports whether the client was refused.
func (s *zotServer) run(in io.Reader) (refused bool) {
	admitted := s.token == ""
	serve(in, s.agent.start, func(c *command, err error) (stop bool) {
		s.view.wait(s.agent.ctx, maxBacklog)
		switch {
		case !admitted && (err != nil || !c.knows(s.token)):
			refused = true // the notices that are held are not for this client
			s.view.frame(true, func(dst []byte) []byte { return c.response(dst, nil, errUnauthorized) })
		case err != nil:
			s.respond(c, nil, err)
		default:
			admitted = true
			s.handle(c)
		}
		return refused
	})
	return refused
}

var errUnauthorized = errors.New("unauthorized: the first line must be a hello with the right token")

// knows reports whether this is a hello with the token.
func (c *command) knows(token string) bool {
	given, err := c.str("token")
	return err == nil && c.name == "hello" && subtle.ConstantTimeCompare([]byte(given), []byte(token)) == 1
}

// respond answers a command, in order with the agent's events.
func (s *zotServer) respond(c *command, data any, err error) {
	s.agent.mu.Lock()
	defer s.agent.mu.Unlock()
	s.respondLocked(c, data, err)
}

func (s *zotServer) respondLocked(c *command, data any, err error) {
	s.view.frame(true, func(dst []byte) []byte { return c.response(dst, data, err) })
	s.view.open()
}

// handle dispatches one command (spec: Commands).
func (s *zotServer) handle(c *command) {
	a := s.agent
	switch c.name {
	case "hello":
		if s.token != "" && !c.knows(s.token) {
			s.respond(c, nil, errors.New("wrong token"))
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		s.respondLocked(c, map[string]any{"protocol_version": 1, "version": version(), "provider": a.model.Provider, "model": a.model.ID}, nil)
	case "ping":
		s.respond(c, json.RawMessage(`{"pong":true}`), nil)
	case "prompt":
		s.prompt(c)
	case "compact":
		a.submit(c.id, a.compactJob, s.accepted(c))
	case "abort":
		a.mu.Lock()
		defer a.mu.Unlock()
		a.abort()
		s.respondLocked(c, nil, nil)
	case "get_state":
		a.mu.Lock()
		defer a.mu.Unlock()
		s.respondLocked(c, s.state(), nil)
	case "get_messages":
		a.mu.Lock()
		defer a.mu.Unlock()
		s.respondLocked(c, messageList(a.messages), nil)
	case "get_models":
		s.respond(c, map[string]any{"models": s.models()}, nil)
	case "get_commands": // known when the extensions are there; the reader does not wait for that
		a.ext.work.Go(func() {
			a.ext.wait(a.ctx)
			s.respond(c, map[string]any{"commands": s.commands()}, nil)
		})
	case "clear":
		s.respond(c, nil, a.whenIdle(func() error { a.clear(); return nil }))
	case "set_model":
		s.respond(c, nil, s.setModel(c))
	case "set_reasoning":
		s.respond(c, nil, s.setReasoning(c))
	case "confirm_tool":
		a.mu.Lock() // what comes of it follows the response
		defer a.mu.Unlock()
		s.respondLocked(c, nil, s.confirmTool(c))
	case "panel_key", "panel_close":
		a.mu.Lock() // what comes of it follows the response
		defer a.mu.Unlock()
		s.respondLocked(c, nil, a.panelCommand(c))
	case "reload_ext":
		s.reloadExt(c)
	default:
		s.respond(c, nil, fmt.Errorf("unknown command: %s (known: %s)", c.name, strings.Join(zotCommands, ", ")))
	}
}

var zotCommands = []string{"hello", "prompt", "abort", "compact", "get_state", "get_messages", "clear", "set_model",
	"set_reasoning", "get_models", "get_commands", "ping", "confirm_tool", "panel_key", "panel_close", "reload_ext"}

// accepted answers a command that became a job.
func (s *zotServer) accepted(c *command) func(queued bool) {
	return func(queued bool) {
		data := json.RawMessage(`{"started":true}`)
		if queued {
			data = json.RawMessage(`{"started":false,"queued":true}`)
		}
		s.respondLocked(c, data, nil)
	}
}

func (s *zotServer) prompt(c *command) {
	text, images, err := c.promptContent()
	if err == nil {
		text, err = expand(text, *s.setup.skills.Load(), s.setup.templates)
	}
	if err != nil {
		s.respond(c, nil, err)
		return
	}
	a := s.agent
	a.submit(c.id, a.prompt(text, images), s.accepted(c))
}

// promptContent checks the parameters of a prompt.
func (c *command) promptContent() (text string, images [][]byte, err error) {
	if images, err = c.images(); err != nil {
		return "", nil, err
	}
	if len(images) == 0 || c.has("message") {
		if text, err = c.want("message", "text", "content", "prompt"); err != nil {
			return "", nil, err
		}
	}
	if strings.TrimSpace(text) == "" && len(images) == 0 {
		return "", nil, fmt.Errorf(`%s needs a "message" that is not empty, or images`, c.name)
	}
	return text, images, nil
}

// images decodes the optional images of a prompt. What they hold is checked
// later, when it may take time.
func (c *command) images() (images [][]byte, err error) {
	if !c.has("images") {
		return nil, nil
	}
	var list []json.RawMessage
	if json.Unmarshal(c.object["images"], &list) != nil {
		return nil, fmt.Errorf(`"images" must be an array of objects with "data" (base64), not %s`, kindOf(c.object["images"]))
	}
	for i, raw := range list {
		o, err := parseObject(raw)
		if err != nil {
			return nil, fmt.Errorf(`images[%d] must be an object with "data" (base64): it is %w`, i, err)
		}
		data, err := o.str("data")
		if err != nil || data == "" {
			return nil, fmt.Errorf(`images[%d] needs "data" (a string of base64)`, i)
		}
		image, err := base64.StdEncoding.DecodeString(data)
		if err != nil {
			return nil, fmt.Errorf(`images[%d].data is not base64: %w`, i, err)
		}
		images = append(images, image)
	}
	return images, nil
}

// state is the data of get_state.
func (s *zotServer) state() json.RawMessage {
	a := s.agent
	dst := appendString([]byte(`{"provider":`), a.model.Provider)
	dst = appendString(append(dst, `,"model":`...), a.model.ID)
	dst = appendString(append(dst, `,"cwd":`...), s.setup.cwd)
	if names := a.ext.starting(); len(names) > 0 {
		dst = append(append(dst, `,"starting":`...), encode(names)...)
	}
	dst = fmt.Appendf(dst, `,"message_count":%d,"busy":%t,"usage":{`, len(a.messages), len(a.jobs) > 0)
	return append(appendUsage(dst, &a.usage), "}}"...)
}

// messageList appends the data of get_messages.
func messageList(messages []*Message) func(dst []byte) []byte {
	return func(dst []byte) []byte {
		size := 0
		for _, m := range messages {
			if f := m.frame.Load(); f != nil {
				size += len(*f) + 1
			}
		}
		dst = append(slices.Grow(dst, size), `{"messages":[`...)
		for i, m := range messages {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendMessage(dst, m)
		}
		return append(dst, "]}"...)
	}
}

func (s *zotServer) models() []map[string]any {
	list := []map[string]any{}
	for _, m := range s.setup.provider.models() {
		list = append(list, map[string]any{"id": m.ID, "provider": m.Provider, "context_window": m.ContextWindow,
			"max_output": m.MaxOutput, "reasoning": len(m.Levels) > 0})
	}
	return list
}

func (s *zotServer) commands() []map[string]any {
	list := []map[string]any{}
	for _, c := range s.agent.ext.allCommands() {
		list = append(list, map[string]any{"name": c.name, "description": c.description, "source": "extension", "extension": c.ext.Name})
	}
	for _, t := range s.setup.templates {
		list = append(list, map[string]any{"name": t.name, "description": t.description, "source": "prompt"})
	}
	for _, k := range *s.setup.skills.Load() {
		list = append(list, map[string]any{"name": "skill:" + k.name, "description": k.description, "source": "skill"})
	}
	return list
}

func (s *zotServer) setModel(c *command) error {
	id, err := c.want("model", "modelId", "model_id")
	if err != nil {
		return err
	}
	m, err := s.setup.provider.model(strings.TrimPrefix(id, s.setup.provider.Name+"/"))
	if err != nil {
		return err
	}
	m = s.setup.configured(m)
	client, err := s.setup.client(m)
	if err != nil {
		return err
	}
	return s.agent.whenIdle(func() error { s.agent.setModel(m, client); return nil })
}

func (s *zotServer) setReasoning(c *command) error {
	word, err := c.want("reasoning", "level")
	if err != nil {
		return err
	}
	level, err := parseReasoning(word)
	if err != nil {
		return err
	}
	return s.agent.whenIdle(func() error { s.agent.reasoning = level; return nil })
}

// confirmTool answers a tool_confirmation_requested event. The agent is locked.
func (s *zotServer) confirmTool(c *command) error {
	id, err := c.want("tool_id", "id_tool", "call_id")
	if err != nil {
		return err
	}
	word, err := c.want("decision")
	if err != nil {
		return err
	}
	if !slices.Contains(decisions, word) {
		return fmt.Errorf("unknown decision %q (known: %s)", word, strings.Join(decisions, ", "))
	}
	reason, err := c.str("reason")
	if err != nil {
		return err
	}
	return s.agent.decide(id, decision{word, reason})
}

// panelCommand passes on what the user did with a panel.
func (a *Agent) panelCommand(c *command) error {
	id, err := c.want("panel_id")
	if err != nil {
		return err
	}
	if c.name == "panel_close" {
		return a.ext.panelClosed(id)
	}
	key, err := c.want("key")
	if err != nil {
		return err
	}
	text, err := c.str("text")
	if err != nil {
		return err
	}
	return a.ext.panelKey(id, key, text)
}

// reloadExt stops all extensions, reads their manifests anew and starts them.
// The agent must be idle; prompts that come meanwhile wait.
func (s *zotServer) reloadExt(c *command) {
	a := s.agent
	err := a.whenIdle(func() error {
		a.prepared = false // before_agent_start is asked again
		a.ext.reload(func(r reloaded) { s.respond(c, r, nil) })
		return nil
	})
	if err != nil {
		s.respond(c, nil, err)
	}
}
