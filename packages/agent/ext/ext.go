// Package ext is the SDK for zot extensions written in Go.
//
// An extension is a program that zot starts and talks to in JSON lines: zot on
// the extension's stdin, the extension on its stdout. This package is the
// extension's side of it. A whole extension:
//
//	func main() {
//		e := ext.New("hello", "1.0.0")
//		e.Command("hello", "say hi", func(args string) ext.Response {
//			return ext.Prompt("Greet me in one short sentence.")
//		})
//		if err := e.Run(); err != nil {
//			log.Fatal(err)
//		}
//	}
//
// Rules kept here:
//
//   - stdout carries frames only. During Run os.Stdout is stderr, which zot
//     writes to the extension's log, so a stray print harms nothing.
//   - A frame is one write of one line: valid UTF-8, without U+2028 and U+2029,
//     which some readers take for line ends. Lines that come in have any length.
//   - Every request gets one reply, also when the handler panics. Requests are
//     handled at the same time; events come in order, and so do panel keys.
//   - The end of stdin ends Run: when zot has gone, the extension goes.
//
// A registration that cannot be right (a name taken twice, a schema that is not
// a JSON object, a registration after ready) is a mistake in the program, and
// panics with a sentence that says what to change.
package ext

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Extension is one extension. Make it with New, register what it offers, and
// call Run. All its methods may be called at the same time.
type Extension struct {
	name, version string
	log           *log.Logger

	frames   chan []byte     // to the writer, unbuffered: a host that does not read slows us down
	ready    chan struct{}   // closed when the registrations have been announced
	gone     chan struct{}   // closed at the end of Run
	ctx      context.Context // ends when the host has gone or asked us to go
	handlers sync.WaitGroup  // of the handlers that are running
	events   lane
	keys     lane

	mu         sync.Mutex // guards what follows
	running    bool
	sealed     bool            // registrations have been announced
	taken      map[string]bool // what has been registered, in words for the author
	commands   []command
	tools      []ToolSpec
	onHello    func(HostInfo)
	onEvent    map[string]func(Event)
	hooks      map[string]func(*incoming) outgoing
	subscribed subscription
	panelKey   func(panelID, key, text string)
	panelClose func(panelID string)
}

type command struct {
	name, description string
	run               func(args string) Response
}

type subscription struct{ events, intercept []string }

// HostInfo is what zot tells of itself in hello_ack.
type HostInfo struct {
	ProtocolVersion int      `json:"protocol_version"`
	ZotVersion      string   `json:"zot_version"`
	Provider        string   `json:"provider"`
	Model           string   `json:"model"`
	CWD             string   `json:"cwd"`           // the user's project; the extension itself runs in ExtensionDir
	ExtensionDir    string   `json:"extension_dir"` // where extension.json is
	DataDir         string   `json:"data_dir"`      // where the extension keeps its files
	Mode            string   `json:"mode"`          // "interactive", "print", "json", "rpc" or "atomic"; "" from older hosts
	Capabilities    []string `json:"capabilities"`  // what the host can show; empty from older hosts
}

// Event is something that happened in the agent. The fields that an event does
// not speak of are empty.
type Event struct {
	Name        string          `json:"event"`        // session_start, turn_start, turn_end, tool_call, tool_confirmation_requested, assistant_message
	Step        int             `json:"step"`         // turn_start: 1 is the first model call of a prompt
	ToolID      string          `json:"tool_id"`      // tool_call, tool_confirmation_requested
	ToolName    string          `json:"tool_name"`    // tool_call, tool_confirmation_requested
	ToolArgs    json.RawMessage `json:"tool_args"`    // tool_call: a JSON object
	ToolPreview string          `json:"tool_preview"` // tool_confirmation_requested: the short text that the user sees
	Stop        string          `json:"stop"`         // turn_end: end_turn, tool_use, length, error or aborted
	Error       string          `json:"error"`        // turn_end: why it failed
	Text        string          `json:"text"`         // assistant_message: the text as the user sees it
}

// ToolSpec describes a tool that the model can call.
type ToolSpec struct {
	Name        string          // letters, digits, _ and -, beginning with a letter
	Description string          // for the model
	Schema      json.RawMessage // JSON Schema of the arguments, an object; nil: no arguments
	// Deferred tools are offered to the model only after a result has named
	// them in ActivateTools.
	Deferred bool
	// Timeout is how long zot waits for the result, or for the next progress; 0
	// is zot's default, 60 s.
	Timeout time.Duration
	// Interactive tools wait for a person: zot waits as long as it takes.
	Interactive bool
	// Run makes one call. Its context ends when zot has gone or asks the
	// extension to go.
	Run func(ctx context.Context, call ToolCall) ToolResult
}

// ToolCall is one call of a tool.
type ToolCall struct {
	Args json.RawMessage // a JSON object, as the model wrote it: check it

	id json.RawMessage
	e  *Extension
}

// Progress shows text while the call runs, and starts its time limit anew.
func (c ToolCall) Progress(text string) {
	c.e.send(outgoing{Type: "tool_progress", ID: c.id, Text: text})
}

// ToolResult is what the model gets back from a call.
type ToolResult struct {
	Content       []Content `json:"content,omitzero"`
	IsError       bool      `json:"is_error,omitempty"`
	ActivateTools []string  `json:"activate_tools,omitempty"` // deferred tools to offer from now on
}

// Content is one block of a result: {Type: "text", Text} or {Type: "image",
// MimeType, Data}.
type Content struct {
	Type     string `json:"type"`
	Text     string `json:"text,omitempty"`
	MimeType string `json:"mime_type,omitempty"` // "image/png"
	Data     string `json:"data,omitempty"`      // base64
}

// TextResult is a result of one text.
func TextResult(text string) ToolResult {
	return ToolResult{Content: []Content{{Type: "text", Text: text}}}
}

// TextErrorResult is a failed call; the text tells the model why.
func TextErrorResult(text string) ToolResult {
	return ToolResult{Content: []Content{{Type: "text", Text: text}}, IsError: true}
}

// ImageResult is a result of one image.
func ImageResult(mimeType string, data []byte) ToolResult {
	return ToolResult{Content: []Content{{Type: "image", MimeType: mimeType, Data: base64.StdEncoding.EncodeToString(data)}}}
}

// Response is what a command makes zot do. The zero value is Noop.
type Response struct {
	Action  string `json:"action,omitempty"` // prompt, insert, display, open_panel or noop
	Prompt  string `json:"prompt,omitempty"`
	Insert  string `json:"insert,omitempty"`
	Display string `json:"display,omitempty"`
	Panel   *Panel `json:"open_panel,omitempty"`
	Error   string `json:"error,omitempty"` // shown as an error, whatever the action
}

// Panel is the content of a panel.
type Panel struct {
	ID     string   `json:"id"`
	Title  string   `json:"title"`
	Lines  []string `json:"lines"`
	Footer string   `json:"footer"`
}

// Prompt submits text as the user's message; the agent answers it.
func Prompt(text string) Response { return Response{Action: "prompt", Prompt: text} }

// Insert puts text into the editor, where the user can change and send it.
func Insert(text string) Response { return Response{Action: "insert", Insert: text} }

// Display shows text to the user; the model does not see it.
func Display(text string) Response { return Response{Action: "display", Display: text} }

// OpenPanel opens a panel. Its keys come to OnPanelKey; RenderPanel changes what
// it shows.
func OpenPanel(panelID, title string, lines []string, footer string) Response {
	return Response{Action: "open_panel", Panel: &Panel{panelID, title, shown(lines), footer}}
}

// Noop does nothing: the command has done all there was to do.
func Noop() Response { return Response{Action: "noop"} }

// Errorf shows an error to the user.
func Errorf(format string, args ...any) Response {
	return Response{Action: "noop", Error: fmt.Sprintf(format, args...)}
}

// shown makes a panel without lines [] instead of null.
func shown(lines []string) []string {
	if lines == nil {
		return []string{}
	}
	return lines
}

// ToolCallDecision is a hook's word on a tool call. The zero value lets it pass.
type ToolCallDecision struct {
	Block        bool
	Reason       string          // of a block: the model gets it as the call's error
	ModifiedArgs json.RawMessage // replaces the arguments: a JSON object
}

// TurnStartDecision is a hook's word on the next model call. The zero value lets
// it begin.
type TurnStartDecision struct {
	Block  bool
	Reason string // of a block: shown to the user
}

// AssistantMessageDecision is a hook's word on what the model said. The zero
// value lets it pass. The model always keeps its own text in mind.
type AssistantMessageDecision struct {
	Block       bool
	Reason      string // of a block: shown to the user
	ReplaceText string // shown instead; "" is no change
}

// New makes an extension. The name is the one in its extension.json.
func New(name, version string) *Extension {
	return &Extension{
		name: name, version: version,
		log:     log.New(os.Stderr, "", log.LstdFlags),
		frames:  make(chan []byte),
		ready:   make(chan struct{}),
		gone:    make(chan struct{}),
		taken:   map[string]bool{},
		onEvent: map[string]func(Event){},
		hooks:   map[string]func(*incoming) outgoing{},
	}
}

// register makes one registration; what names it for the author, given reports
// whether there is a function.
func (e *Extension) register(what string, given bool, add func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !given:
		panic("ext: " + what + " needs a function")
	case e.sealed:
		panic("ext: " + what + " comes too late: register before Run or in OnHello")
	case e.taken[what]:
		panic("ext: " + what + " is registered twice")
	}
	e.taken[what] = true
	add()
}

// Command registers the slash command /name. args is what the user typed behind
// it, trimmed. Names that differ by case only are the same.
func (e *Extension) Command(name, description string, run func(args string) Response) {
	if name == "" {
		panic("ext: a command needs a name")
	}
	e.register(fmt.Sprintf("command %q", strings.ToLower(name)), run != nil, func() {
		e.commands = append(e.commands, command{name, description, run})
	})
}

// Tool registers a tool that the model can call. schema is the JSON Schema of
// its arguments, an object.
func (e *Extension) Tool(name, description string, schema json.RawMessage, run func(args json.RawMessage) ToolResult) {
	e.simpleTool(ToolSpec{Name: name, Description: description, Schema: schema}, run)
}

// DeferredTool registers a tool that is offered to the model only after a
// result has named it in ActivateTools.
func (e *Extension) DeferredTool(name, description string, schema json.RawMessage, run func(args json.RawMessage) ToolResult) {
	e.simpleTool(ToolSpec{Name: name, Description: description, Schema: schema, Deferred: true}, run)
}

func (e *Extension) simpleTool(t ToolSpec, run func(args json.RawMessage) ToolResult) {
	if run != nil {
		t.Run = func(_ context.Context, c ToolCall) ToolResult { return run(c.Args) }
	}
	e.AddTool(t)
}

// AddTool registers a tool that needs more than Tool offers: a context,
// progress, or another time limit.
func (e *Extension) AddTool(t ToolSpec) {
	if t.Name == "" {
		panic("ext: a tool needs a name")
	}
	if t.Schema == nil {
		t.Schema = json.RawMessage(`{"type":"object"}`)
	}
	if !isObject(t.Schema) {
		panic(fmt.Sprintf("ext: the schema of tool %q is not a JSON object: %s", t.Name, t.Schema))
	}
	if t.Timeout < 0 {
		panic(fmt.Sprintf("ext: the time limit of tool %q is negative: %v", t.Name, t.Timeout))
	}
	e.register(fmt.Sprintf("tool %q", t.Name), t.Run != nil, func() {
		e.tools = append(e.tools, t)
	})
}

// isObject reports whether raw is one JSON object.
func isObject(raw json.RawMessage) bool {
	var o map[string]json.RawMessage
	return json.Unmarshal(raw, &o) == nil && o != nil
}

// OnHello is called once, when zot has told of itself and before the
// registrations are announced: the place for those that depend on it.
func (e *Extension) OnHello(f func(HostInfo)) {
	e.register("the OnHello handler", f != nil, func() { e.onHello = f })
}

var eventNames = []string{"session_start", "turn_start", "turn_end", "tool_call", "tool_confirmation_requested", "assistant_message"}

// On observes an event; Event lists their names. Events come one after another,
// in the order in which they happened.
func (e *Extension) On(event string, f func(Event)) {
	if !slices.Contains(eventNames, event) {
		panic(fmt.Sprintf("ext: there is no event %q (known: %s)", event, strings.Join(eventNames, ", ")))
	}
	e.register(fmt.Sprintf("the handler of event %q", event), f != nil, func() {
		e.onEvent[event] = f
		e.subscribed.events = append(e.subscribed.events, event)
	})
}

// intercept registers a hook. zot waits 5 s for its word, then goes on.
func (e *Extension) intercept(event string, given bool, hook func(*incoming) outgoing) {
	e.register(fmt.Sprintf("the hook of %q", event), given, func() {
		e.hooks[event] = hook
		e.subscribed.intercept = append(e.subscribed.intercept, event)
	})
}

// InterceptToolCall decides whether a tool call may run. A reason for a refusal
// goes to the model. If the hook panics, the call is refused.
func (e *Extension) InterceptToolCall(f func(tool string, args json.RawMessage) (allow bool, reason string)) {
	e.intercept("tool_call", f != nil, func(in *incoming) outgoing {
		allow, reason := f(in.ToolName, in.ToolArgs)
		return outgoing{Block: !allow, Reason: reason}
	})
}

// InterceptToolCallX is InterceptToolCall for hooks that also rewrite arguments.
func (e *Extension) InterceptToolCallX(f func(tool string, args json.RawMessage) ToolCallDecision) {
	e.intercept("tool_call", f != nil, func(in *incoming) outgoing {
		d := f(in.ToolName, in.ToolArgs)
		if d.ModifiedArgs != nil && !isObject(d.ModifiedArgs) {
			// The original must not run in place of what was meant to replace it.
			panic(fmt.Sprintf("ModifiedArgs is not a JSON object: %s", d.ModifiedArgs))
		}
		return outgoing{Block: d.Block, Reason: d.Reason, ModifiedArgs: d.ModifiedArgs}
	})
}

// InterceptTurnStart decides whether the model may be called; step 1 is the
// first call of a prompt. If the hook panics, it may not.
func (e *Extension) InterceptTurnStart(f func(step int) TurnStartDecision) {
	e.intercept("turn_start", f != nil, func(in *incoming) outgoing {
		d := f(in.Step)
		return outgoing{Block: d.Block, Reason: d.Reason}
	})
}

// InterceptAssistantMessage sees what the model said before the user does, and
// can replace or suppress it. If the hook panics, it is suppressed.
func (e *Extension) InterceptAssistantMessage(f func(text string) AssistantMessageDecision) {
	e.intercept("assistant_message", f != nil, func(in *incoming) outgoing {
		d := f(in.Text)
		return outgoing{Block: d.Block, Reason: d.Reason, ReplaceText: d.ReplaceText}
	})
}

const agentStart = "before_agent_start"

// BeforeAgentStart sees the complete system prompt before the agent's first
// model call and returns the one to use; "" keeps it. zot asks again after
// /clear and when the model changes.
func (e *Extension) BeforeAgentStart(f func(systemPrompt string) string) {
	e.intercept(agentStart, f != nil, func(in *incoming) outgoing {
		return outgoing{SystemPrompt: f(in.SystemPrompt)}
	})
}

// OnPanelKey is called for each key while a panel of this extension is focused.
// key is up, down, left, right, enter, esc, tab, pageup, pagedown, home, end,
// backspace, delete or rune; of a rune, text is the character.
func (e *Extension) OnPanelKey(f func(panelID, key, text string)) {
	e.register("the panel key handler", f != nil, func() { e.panelKey = f })
}

// OnPanelClose is called when the user has closed a panel.
func (e *Extension) OnPanelClose(f func(panelID string)) {
	e.register("the panel close handler", f != nil, func() { e.panelClose = f })
}

// RenderPanel changes what an open panel shows.
func (e *Extension) RenderPanel(panelID, title string, lines []string, footer string) {
	e.send(outgoing{Type: "panel_render", PanelID: panelID, Title: title, Lines: shown(lines), Footer: footer})
}

// ClosePanel closes a panel.
func (e *Extension) ClosePanel(panelID string) {
	e.send(outgoing{Type: "panel_close", PanelID: panelID})
}

// Notify shows a note to the user. level is info, success, warn or error.
func (e *Extension) Notify(level, message string) {
	e.send(outgoing{Type: "notify", Level: level, Message: message})
}

// ClearNotes removes the notes of this extension.
func (e *Extension) ClearNotes() { e.send(outgoing{Type: "clear_notes"}) }

// Submit sends text as the user's message, behind a run that is going on. Only
// the interactive host does it.
func (e *Extension) Submit(text string) { e.send(outgoing{Type: "submit", Text: text}) }

// Logf writes a line to the extension's log, which `zot ext logs NAME` shows.
func (e *Extension) Logf(format string, args ...any) { e.log.Printf(format, args...) }

// Run serves zot until it asks the extension to go, or has gone itself; then it
// returns nil. Handlers that are running get a second to finish: return from
// main behind Run. It returns an error when stdin cannot be read.
func (e *Extension) Run() error {
	out := os.Stdout
	os.Stdout = os.Stderr
	// Without this a write to a host that has gone ends the process at once.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return e.run(os.Stdin, out)
}

// How long a handler and the last frame may take when the extension must go:
// together less than the 2 s after which zot ends it by force.
const (
	handlerGrace = time.Second
	writeGrace   = 250 * time.Millisecond
)

func (e *Extension) run(in io.Reader, out io.Writer) error {
	e.mu.Lock()
	again := e.running
	e.running = true
	e.mu.Unlock()
	if again {
		panic("ext: Run is called twice")
	}
	var cancel context.CancelFunc
	e.ctx, cancel = context.WithCancel(context.Background())
	defer cancel()
	var writer sync.WaitGroup
	writer.Go(func() { e.write(out) })

	e.send(outgoing{Type: "hello", Name: e.name, Version: e.version, Capabilities: []string{"commands", "tools", "panels"}})
	shutdown, err := e.read(bufio.NewReader(in))
	cancel()
	within(handlerGrace, e.handlers.Wait)
	if shutdown {
		within(writeGrace, func() { e.send(outgoing{Type: "shutdown_ack"}) })
	}
	close(e.gone)
	within(writeGrace, writer.Wait)
	return err
}

// within waits until f has returned, for at most d. What f still does then is
// left to the end of the process.
func within(d time.Duration, f func()) {
	done := make(chan struct{})
	go func() { f(); close(done) }()
	select {
	case <-done:
	case <-time.After(d):
	}
}

// read handles frames until shutdown or the end of the input.
func (e *Extension) read(in *bufio.Reader) (shutdown bool, err error) {
	greeted := false
	for {
		line, err := in.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			f := e.decode(line)
			switch {
			case f.Type == "shutdown":
				return true, nil
			case f.Type == "hello_ack" && !greeted:
				greeted = true
				e.handlers.Go(func() { e.announce(f.HostInfo) })
			default:
				e.handle(f)
			}
		}
		if err == io.EOF {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("reading from zot: %w", err)
		}
	}
}

// decode reads one frame. A field of an unexpected type costs that field, and a
// line that is not a frame costs that line.
func (e *Extension) decode(line []byte) *incoming {
	var f incoming
	if err := json.Unmarshal(line, &f); err != nil {
		e.Logf("frame from zot: %v: %.200s", err, line)
		var mismatch *json.UnmarshalTypeError
		if !errors.As(err, &mismatch) {
			return &incoming{}
		}
	}
	return &f
}

// announce runs OnHello and sends the registrations and ready. It is the only
// handler whose panic ends the process: half of an extension should not run.
func (e *Extension) announce(host HostInfo) {
	e.mu.Lock()
	onHello := e.onHello
	e.mu.Unlock()
	if onHello != nil {
		onHello(host)
	}
	e.mu.Lock()
	e.sealed = true
	e.mu.Unlock()
	for _, c := range e.commands {
		e.send(outgoing{Type: "register_command", Name: c.name, Description: c.description})
	}
	for _, t := range e.tools {
		e.send(outgoing{Type: "register_tool", Name: t.Name, Description: t.Description, Schema: t.Schema,
			Deferred: t.Deferred, TimeoutMS: t.Timeout.Milliseconds(), Interactive: t.Interactive})
	}
	if s := e.subscribed; len(s.events)+len(s.intercept) > 0 {
		e.send(outgoing{Type: "subscribe", Events: s.events, Intercept: s.intercept})
	}
	e.send(outgoing{Type: "ready"})
	close(e.ready)
}

// handle starts what a frame asks for. Frames of unknown types are those of
// newer hosts, and ignored.
func (e *Extension) handle(f *incoming) {
	switch f.Type {
	case "command_invoked":
		e.answer(f, e.runCommand)
	case "tool_call":
		e.answer(f, e.runTool)
	case "event_intercept":
		e.answer(f, e.runHook)
	case "event":
		e.events.add(&e.handlers, func() { e.tell(f) })
	case "panel_key", "panel_close":
		e.keys.add(&e.handlers, func() { e.tell(f) })
	}
}

// answer runs a request and sends its reply, in a goroutine that ends with it.
// Requests wait for ready, so that handlers find what OnHello prepared.
func (e *Extension) answer(f *incoming, run func(*incoming) outgoing) {
	e.handlers.Go(func() {
		select {
		case <-e.ready:
		case <-e.gone:
			return
		}
		reply := run(f)
		reply.ID = f.ID
		e.send(reply)
	})
}

// protected runs a handler. If it panics, the stack is logged and the failure
// returned as a sentence.
func (e *Extension) protected(what string, f func()) (failure string) {
	defer func() {
		if p := recover(); p != nil {
			failure = fmt.Sprintf("%s: %s failed inside: %v", e.name, what, p)
			e.Logf("%s\n%s", failure, debug.Stack())
		}
	}()
	f()
	return ""
}

func (e *Extension) runCommand(f *incoming) outgoing {
	i := slices.IndexFunc(e.commands, func(c command) bool { return strings.EqualFold(c.name, f.Name) })
	var r Response
	var args string
	if i < 0 {
		r = Errorf("%s has no command %q", e.name, f.Name)
	} else if err := json.Unmarshal(f.Args, &args); f.Args != nil && err != nil {
		r = Errorf("%s: the arguments of %s are not text: %v", e.name, f.Name, err)
	} else if failure := e.protected("command "+f.Name, func() { r = e.commands[i].run(args) }); failure != "" {
		r = Errorf("%s", failure)
	}
	if r.Action == "" {
		r.Action = "noop"
	}
	return outgoing{Type: "command_response", Response: r}
}

func (e *Extension) runTool(f *incoming) outgoing {
	i := slices.IndexFunc(e.tools, func(t ToolSpec) bool { return t.Name == f.Name })
	call := ToolCall{Args: f.Args, id: f.ID, e: e}
	if call.Args == nil {
		call.Args = json.RawMessage("{}")
	}
	var r ToolResult
	if i < 0 {
		r = TextErrorResult(fmt.Sprintf("%s has no tool %q", e.name, f.Name))
	} else if failure := e.protected("tool "+f.Name, func() { r = e.tools[i].Run(e.ctx, call) }); failure != "" {
		r = TextErrorResult(failure + ". Whether it had an effect is unknown.")
	}
	if r.Content == nil {
		r.Content = []Content{}
	}
	return outgoing{Type: "tool_result", ToolResult: r}
}

// runHook asks a hook. A guard that fails must not let through what it was there
// to stop, so a panic blocks; a system prompt just stays as it is.
func (e *Extension) runHook(f *incoming) outgoing {
	var reply outgoing
	if hook := e.hooks[f.Event.Name]; hook != nil {
		failure := e.protected("hook "+f.Event.Name, func() { reply = hook(f) })
		switch {
		case failure == "":
		case f.Event.Name == agentStart:
			reply = outgoing{}
			e.Notify("warn", failure)
		default:
			reply = outgoing{Block: true, Reason: failure}
		}
	}
	reply.Type = "event_intercept_response"
	return reply
}

// tell runs a handler that has no reply; if it fails, the user gets a note.
func (e *Extension) tell(f *incoming) {
	e.mu.Lock()
	onEvent, onKey, onClose := e.onEvent[f.Event.Name], e.panelKey, e.panelClose
	e.mu.Unlock()
	failure := e.protected("the handler of "+cmp.Or(f.Event.Name, f.Type), func() {
		switch {
		case f.Type == "event" && onEvent != nil:
			onEvent(f.Event)
		case f.Type == "panel_key" && onKey != nil:
			onKey(f.PanelID, f.Key, f.Text)
		case f.Type == "panel_close" && onClose != nil:
			onClose(f.PanelID)
		}
	})
	if failure != "" {
		e.Notify("error", failure)
	}
}

// lane runs functions one after another, in the order in which they were added.
// It has no bound: the reader must go on, to notice when zot has gone.
type lane struct {
	mu      sync.Mutex
	waiting []func()
	busy    bool
}

func (l *lane) add(wg *sync.WaitGroup, f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, f)
	if !l.busy {
		l.busy = true
		wg.Go(l.work)
	}
}

// work ends when nothing is left to do.
func (l *lane) work() {
	for {
		l.mu.Lock()
		if len(l.waiting) == 0 {
			l.busy = false
			l.mu.Unlock()
			return
		}
		f := l.waiting[0]
		l.waiting = l.waiting[1:]
		l.mu.Unlock()
		f()
	}
}

// incoming is any frame from zot.
type incoming struct {
	Type         string          `json:"type"`
	ID           json.RawMessage `json:"id"`
	Name         string          `json:"name"`
	Args         json.RawMessage `json:"args"` // command_invoked: a string; tool_call: an object
	SystemPrompt string          `json:"system_prompt"`
	PanelID      string          `json:"panel_id"`
	Key          string          `json:"key"`
	Event                        // event; event_intercept and panel_key speak of some of it
	HostInfo                     // hello_ack
}

// outgoing is any frame to zot. What its type does not speak of is left out.
type outgoing struct {
	Type         string          `json:"type"`
	ID           json.RawMessage `json:"id,omitempty"`
	Name         string          `json:"name,omitempty"`
	Version      string          `json:"version,omitempty"`
	Capabilities []string        `json:"capabilities,omitempty"`
	Description  string          `json:"description,omitempty"`
	Schema       json.RawMessage `json:"schema,omitempty"`
	Deferred     bool            `json:"deferred,omitempty"`
	TimeoutMS    int64           `json:"timeout_ms,omitempty"`
	Interactive  bool            `json:"interactive,omitempty"`
	Events       []string        `json:"events,omitempty"`
	Intercept    []string        `json:"intercept,omitempty"`
	Block        bool            `json:"block,omitempty"`
	Reason       string          `json:"reason,omitempty"`
	ModifiedArgs json.RawMessage `json:"modified_args,omitempty"`
	ReplaceText  string          `json:"replace_text,omitempty"`
	SystemPrompt string          `json:"system_prompt,omitempty"`
	PanelID      string          `json:"panel_id,omitempty"`
	Title        string          `json:"title,omitempty"`
	Lines        []string        `json:"lines,omitzero"`
	Footer       string          `json:"footer,omitempty"`
	Level        string          `json:"level,omitempty"`
	Message      string          `json:"message,omitempty"`
	Text         string          `json:"text,omitempty"`
	Response
	ToolResult
}

// send hands a frame to the writer. Before Run and after it there is no host.
func (e *Extension) send(f outgoing) {
	e.mu.Lock()
	running := e.running
	e.mu.Unlock()
	if !running {
		e.Logf("%s before Run is dropped: there is no host yet", f.Type)
		return
	}
	select {
	case e.frames <- encode(f):
	case <-e.gone:
	}
}

// write owns the output until the end of Run. A failed write is no more than a
// host that has gone, which the reader notices too.
func (e *Extension) write(out io.Writer) {
	for {
		select {
		case line := <-e.frames:
			out.Write(line)
		case <-e.gone:
			return
		}
	}
}

// encode makes a line of a frame. The raw values in it come from the author or
// from zot and are repaired here; they are known to be JSON.
func encode(f outgoing) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(f); err != nil {
		panic(err)
	}
	line := bytes.ToValidUTF8(b.Bytes(), []byte("\uFFFD"))
	line = bytes.ReplaceAll(line, []byte("\u2028"), []byte(`\u2028`))
	return bytes.ReplaceAll(line, []byte("\u2029"), []byte(`\u2029`))
}
