// The agent: messages, jobs, the run loop and its events. Rules kept here:
//
//   - Jobs run first in, first out, one at a time; each ends in exactly one
//     terminal event and nothing of it is emitted afterwards.
//   - State changes and the events that tell of them happen under one lock, so
//     every snapshot agrees with the events before it. The lock is never held
//     across I/O.
//   - The transcript only holds finished messages. Every tool call has its
//     result right behind it, whatever happened.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Message is one entry of the transcript, in no provider's format. A message
// is not changed once it is in the transcript.
type Message struct {
	Role    string // "user", "assistant" or "tool" (the result of one call)
	Content []Block
	Time    time.Time

	// Of an assistant message: who made it, and how it ended. Opaque blocks are
	// only sent back to the provider and model that made them.
	API, Provider, Model string
	Stop                 string // end_turn, tool_use, length, error, aborted; pause_turn is resent
	RawStop              string // the provider's own word for Stop
	Usage                *Usage // nil when the provider reported none
	Err                  string // the error text of Stop "error"

	// Of a tool message.
	CallID, ToolName string
	IsError          bool
	Activate         []string // deferred tools that this result made available; also of a summary
	details          any      // see toolResult

	entry string          // its id in the session
	raw   json.RawMessage // the message as the session holds it, when it is none of user, assistant and tool

	wire  encoded                // the message in the wire format last used
	frame atomic.Pointer[[]byte] // the message in the client protocol's format
}

// Block is one part of a message's content.
type Block struct {
	Type string // "text", "image", "thinking", "tool_call", "opaque"
	Text string // of text and thinking

	MimeType string // of an image
	Data     string // of an image: base64; of an opaque block without Signature: the block as the session holds it

	ID, Name string          // of a tool call
	Args     json.RawMessage // of a tool call: one normalized JSON object
	// BadArgs is what the model sent as arguments when that was not one complete
	// JSON object. Such a call is never run; Args is then {}.
	BadArgs string

	// Signature is what the provider wants back unchanged: of a thinking block
	// its signature, or with Redacted its data, or (Responses) the reasoning
	// item, or (Chat) the reasoning_details, as JSON; of an opaque block the
	// whole block as JSON. Never trimmed, repaired or shown.
	Signature string
	Redacted  bool
}

// encoded is a message in a provider's wire format, kept so that a turn does
// not encode the history again.
type encoded struct {
	key  string    // identifies the format and everything else that shaped parts
	part [2][]byte // what the format needs: usually one JSON value
}

// Usage counts the tokens of one model call, or of many. Input excludes cache
// reads and writes.
type Usage struct {
	Input, Output, CacheRead, CacheWrite int
	Reasoning                            *int // nil when unknown; included in Output
	Cost                                 Cost
}

// Cost is in US dollars.
type Cost struct {
	Input      float64 `json:"input"`
	Output     float64 `json:"output"`
	CacheRead  float64 `json:"cacheRead"`
	CacheWrite float64 `json:"cacheWrite"`
	Total      float64 `json:"total"`
}

// tool is something that the model may call.
type tool struct {
	name, description string
	schema            json.RawMessage // normalized; its root is an object
	readOnly          bool            // may run beside other calls that only read
	deferred          bool            // not offered until a result activates it
	run               func(ctx context.Context, c *toolCall) toolResult
}

// toolCall is one call on its way through a tool. run must return within two
// seconds of ctx's end.
type toolCall struct {
	id       string
	args     json.RawMessage   // one JSON object
	progress func(text string) // appended text; whole characters
}

// toolResult is what a tool gives back. Empty content is allowed.
type toolResult struct {
	content  []Block // text and image blocks
	isError  bool
	activate []string
	details  any // for the Atomic protocol's result.details; nil or a JSON-able value
}

// assistantMessage is one that m begins to make.
func assistantMessage(m *Model) *Message {
	return &Message{Role: "assistant", API: m.API, Provider: m.Provider, Model: m.ID, Time: time.Now()}
}

func errorResult(text string) toolResult {
	return toolResult{content: []Block{{Type: "text", Text: text}}, isError: true}
}

// request is one model call.
type request struct {
	model     *Model
	system    string
	tools     []*tool
	messages  []*Message
	reasoning string // "" or "off": none; else a level that the model supports
	maxTokens int    // 0: the model's own maximum
	// pause is called before each wait for the network: the place to flush what
	// was emitted and to wait until the reader has taken it.
	pause func()
}

// delta is one step of an assistant message being streamed. A block is
// announced by "start", grows by "delta" and is complete at "end".
type delta struct {
	phase string // "start", "delta", "end"
	index int    // of the block in the message's content
	block *Block // as far as it is known; complete at "end"
	text  []byte // of "delta": new text, thinking, or argument JSON; valid during the call only
	usage *Usage // as far as the provider has told; nil: nothing yet
}

// provider makes model calls. Each makes one attempt; the agent retries.
type provider interface {
	// call streams one assistant message. The message is never nil and holds
	// what arrived, also when err is not nil; err is a *providerError, or
	// ctx's error when that ended the call.
	call(ctx context.Context, r *request, on func(delta)) (*Message, error)
}

// providerError is a failed model call.
type providerError struct {
	message    string        // for the user: status, type, the vendor's text, request id
	status     int           // HTTP status, 0 when there was none
	retry      bool          // trying again may help, if nothing was received yet
	retryAfter time.Duration // what the server asked for; 0: it did not say
	overflow   bool          // the context was too large
	badImage   bool          // an image was refused
}

func (e *providerError) Error() string { return e.message }

// Event is one thing that happened. Type is the zot protocol's word for it
// ("delta" covers all streaming; "notice" is ext_notify); the fields that the
// type does not speak of are empty.
type Event struct {
	Type    string
	ID      json.RawMessage // user_message, done: the id of the command, if it had one
	Step    int             // turn_start
	Message *Message        // user_message, assistant_message, tool_result, attempt_failed (it will be made again)
	Delta   delta           // delta
	Call    *Block          // tool_call
	CallID  string          // tool_progress
	Text    string          // tool_progress, error, compact_done and done of a compaction (the summary), notice, retry (the error)
	Level   string          // notice: info, success, warn or error
	Stop    string          // turn_end
	Err     string          // turn_end
	Usage   *Usage          // usage: of this call
	Total   Usage           // usage: cumulative
	Attempt int             // retry: 1 is the first retry
	Max     int             // retry: how many there may be
	Delay   time.Duration   // retry
	Reason  string          // compaction_start, compaction_end: manual, threshold or overflow
	Result  json.RawMessage // compaction_end: nil when there is none
	Queue   [2][]string     // queue_update: the texts of the steering and the follow-up messages

	Extension string // notice and ext_*: who; "" is zot itself
	Startup   bool   // notice: the extension could not be started
	Manifest  string // notice: the path of the extension's, when it is about it and not by it
	During    string // notice about an extension: the event that it failed in, or command; "" for none
	Panel     *panel // ext_panel_*
}

// host is who an agent works for: a protocol's view or the terminal.
type host interface {
	// event is called under the agent's lock, in order. It must not block, nor
	// keep what the event points to beyond messages and blocks.
	event(e *Event)
	// flush passes on what was emitted and waits until the reader has caught up
	// or ctx ends. It is called without the lock.
	flush(ctx context.Context)
	// behind reports whether the reader has not caught up.
	behind() bool
}

// Agent runs jobs. The fields above mu are changed only while it is idle.
type Agent struct {
	host      host
	model     *Model
	provider  provider
	reasoning string // wanted level; clamped for each call
	builtin   func() []*tool
	allows    func(name string) bool // of extension tools: what --tools and --no-tools leave
	tools     []*tool                // with those of extensions; made anew for each prompt
	ext       *extHost
	approval  approval
	prepare   func() string // assembles the system prompt
	system    string        // as extensions left it
	prepared  bool          // system is what the next job uses
	maxSteps  int
	session   *session        // nil: the conversation is not kept
	atomic    bool            // failed attempts are messages too, compaction keeps lines
	ctx       context.Context // ends when the process must

	mu       sync.Mutex
	jobs     []*job // the first is running
	worker   sync.WaitGroup
	messages []*Message // the transcript; only ever appended to or replaced
	usage    Usage      // cumulative
	running  bool
	settled  *sync.Cond // a job has ended
	size     size
	next     *choice // takes effect with the next turn; nil: nothing was chosen meanwhile

	autoCompact bool
	compacting  string       // the reason of a compaction by lines; "": none runs
	lines       compactOrder // the settings of a compaction by lines
	summaries   bool         // the session gets a summary when the agent goes idle
	stopSummary func()       // ends the one that is being made
	retry       retrySettings
	queues      [2]queue   // steering and follow-up messages that wait for their turn
	notes       []*Message // what commands of the user printed during a job: it joins the transcript at its end
	held        error      // how the last run ended, if not well: what is queued waits for a prompt
}

// choice is who answers.
type choice struct {
	model     *Model
	provider  provider
	reasoning string
}

// retrySettings say how failed model calls are made again.
type retrySettings struct {
	max    int           // attempts after the first; 0: none
	base   time.Duration // the first delay; each is twice the last
	cancel func()        // ends the delay that is being waited out
}

// size is what the provider last said about the size of the context: the first
// messages of the transcript had so many tokens.
type size struct{ messages, tokens int }

// job is one accepted command that runs: a prompt or a compaction.
type job struct {
	id     json.RawMessage
	run    func(*job) *Event // returns the terminal event
	ctx    context.Context
	cancel context.CancelCauseFunc
}

var (
	errAborted = errors.New("aborted")
	errBusy    = errors.New("agent is busy: wait for the active operation, or abort it and wait for it to end")
)

const (
	maxRetries  = 3
	retryBase   = 2 * time.Second
	maxWait     = 5 * time.Minute // longer waits that a server asks for end the run
	toolGrace   = 1500 * time.Millisecond
	maxParallel = 8 // calls that only read
	maxPauses   = 10
)

// submit accepts a job; start lets it run. accepted is called under the lock:
// the place to answer the client.
func (a *Agent) submit(id json.RawMessage, run func(*job) *Event, accepted func(queued bool)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held = nil
	accepted(len(a.jobs) > 0)
	a.addJob(id, run)
}

// addJob adds a job behind those that are there. The lock is held.
func (a *Agent) addJob(id json.RawMessage, run func(*job) *Event) *job {
	a.stopSummary()
	j := &job{id: id, run: run}
	j.ctx, j.cancel = context.WithCancelCause(a.ctx)
	a.jobs = append(a.jobs, j)
	return j
}

// start makes sure that accepted jobs are running.
func (a *Agent) start() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.jobs) > 0 && !a.running {
		a.running = true
		a.worker.Go(a.work)
	}
}

// work is the runner: it ends when there is no job left.
func (a *Agent) work() {
	for {
		a.mu.Lock()
		j := a.jobs[0]
		a.mu.Unlock()
		terminal := a.do(j)
		j.cancel(nil)
		a.mu.Lock()
		for len(a.notes) > 0 { // a message between those of the job would part calls and results
			m := a.notes[0]
			a.notes = a.notes[1:]
			a.mu.Unlock()
			a.add(nil, m, nil)
			a.mu.Lock()
		}
		a.jobs = a.jobs[1:]
		a.carryOn()
		a.running = len(a.jobs) > 0
		a.host.event(terminal)
		a.adopt()
		a.settled.Broadcast()
		if !a.running && a.summaries {
			a.summarizeSession()
		}
		idle := !a.running
		a.mu.Unlock()
		if idle {
			return
		}
	}
}

// do runs one job; a panic ends it like any other failure.
func (a *Agent) do(j *job) (terminal *Event) {
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(os.Stderr, "zot: internal error: %v\n%s", p, debug.Stack())
			a.mu.Lock()
			a.messages = repair(a.messages)
			a.mu.Unlock()
			terminal = a.broken(j, nil, nil, fmt.Errorf("internal error: %v", p))
		}
	}()
	return j.run(j)
}

// stopped reports a run that ended behind a whole turn, without its answer, and
// returns its terminal event.
func (a *Agent) stopped(j *job, text string) *Event {
	a.hold(errors.New(text))
	a.emit(j, &Event{Type: "error", Text: text})
	return &Event{Type: "done", ID: j.id}
}

// broken reports a run that failed or was aborted and returns its terminal
// event. m (nil: nothing) is what arrived of the last message, shown what may
// be shown of it. Its text is kept: half thinking must not go back to a
// provider, and a call of such a message is never run. An attempt that would
// have been made again was told already.
func (a *Agent) broken(j *job, m, shown *Message, err error) *Event {
	if m == nil {
		m = assistantMessage(a.model)
		shown = m
	}
	end := &Event{Type: "turn_end", Stop: "error", Err: err.Error()}
	if j.ctx.Err() != nil {
		end.Stop, end.Err = "aborted", ""
	}
	told := m.entry != ""
	if !told {
		m.strip(end.Stop, end.Err)
	}
	if len(m.Content) > 0 || a.atomic {
		a.add(j, m, nil)
		if shown != nil && !told {
			a.emit(j, &Event{Type: "assistant_message", Message: shown})
		}
	}
	a.emit(j, end)
	if end.Stop == "aborted" {
		a.hold(errAborted)
		return &Event{Type: "done", ID: j.id}
	}
	_, mayCompact := a.recovery()
	if pe := (*providerError)(nil); a.atomic && mayCompact && !told && errors.As(err, &pe) && pe.overflow {
		a.emit(j, &Event{Type: "compaction_end", Reason: "overflow", Stop: "overflow",
			Err: "Context overflow recovery failed after one compact-and-retry attempt: " + end.Err})
	}
	return a.stopped(j, end.Err)
}

// strip makes a message that did not end well what it stays as.
func (m *Message) strip(stop, err string) {
	m.Stop, m.Err = stop, err
	m.Content = slices.DeleteFunc(m.Content, func(b Block) bool {
		return b.Type != "text" || strings.TrimSpace(b.Text) == ""
	})
}

// emit passes an event of a job on, unless the job has ended.
func (a *Agent) emit(j *job, e *Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.jobs) > 0 && a.jobs[0] == j {
		a.host.event(e)
		a.ext.event(e)
	}
}

// tell passes on an event that belongs to no job.
func (a *Agent) tell(e *Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.host.event(e)
}

// add appends a message to the transcript and tells of it, unless e is nil. It
// is in the session before anybody hears of it.
func (a *Agent) add(j *job, m *Message, e *Event) {
	if m.entry == "" {
		a.record(m, "")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.messages = append(a.messages, m)
	if e != nil {
		e.Message = m
		a.host.event(e)
	}
}

// record writes a message to the session. What can not be written is told, and
// the run goes on without it.
func (a *Agent) record(m *Message, queued string) {
	if a.session == nil {
		return
	}
	if err := a.session.addMessage(m, queued); err != nil {
		a.tell(&Event{Type: "notice", Level: "error", Text: "a message is not in the session file: " + err.Error()})
	}
}

// resume goes on with a session. The agent is idle.
func (a *Agent) resume(s *session, r restored) {
	a.clear()
	a.session, a.messages, a.usage = s, r.messages, Usage{}
	for _, m := range r.messages {
		if m.Usage != nil {
			a.usage.add(m.Usage)
		}
	}
	a.queues[steering].messages, a.queues[followUp].messages, a.held = nil, nil, nil
}

// begin notes in a new session what it is begun with.
func (a *Agent) begin(s *session) error {
	if s.leafID() != "" {
		return nil
	}
	c := a.currentChoice()
	_, err := s.append("model_change", `"provider":?,"modelId":?`, c.model.Provider, c.model.ID)
	if err == nil {
		_, err = s.append("thinking_level_change", `"thinkingLevel":?`, levelName(c.model, c.reasoning))
	}
	return err
}

func (a *Agent) currentSession() *session {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.session
}

// abort cancels the running job. The lock is held.
func (a *Agent) abort() {
	if len(a.jobs) > 0 {
		a.jobs[0].cancel(errAborted)
	}
}

// chosen is who answers the next model call. The lock is held.
func (a *Agent) chosen() choice {
	if a.next != nil {
		return *a.next
	}
	return choice{a.model, a.provider, a.reasoning}
}

func (a *Agent) currentChoice() choice {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.chosen()
}

// choose changes who answers: now, or with the next turn of the running job.
func (a *Agent) choose(change func(c *choice)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.chosen()
	change(&c)
	a.next = &c
	if len(a.jobs) == 0 {
		a.adopt()
	}
}

// adopt makes the choice what is used. The lock is held.
func (a *Agent) adopt() {
	if c := a.next; c != nil {
		if a.next = nil; c.model != a.model {
			a.setModel(c.model, c.provider)
		}
		a.reasoning = c.reasoning
	}
}

// whenIdle runs a change that must not happen during a job.
func (a *Agent) whenIdle(change func() error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.jobs) > 0 {
		return errBusy
	}
	return change()
}

// clear drops the transcript. The cumulative usage stays.
func (a *Agent) clear() {
	a.messages, a.size, a.prepared = nil, size{}, false
}

// setModel changes the model; the system prompt is made anew for it.
func (a *Agent) setModel(m *Model, p provider) {
	a.model, a.provider, a.size, a.prepared = m, p, size{}, false
}

// prompt is the run of a prompt. Images are checked here and not by the
// reader: it takes time. The command of an extension may take its place.
func (a *Agent) prompt(text string, images [][]byte) func(*job) *Event {
	return func(j *job) *Event {
		if c, args := a.ext.called(j.ctx, text); c != nil && j.ctx.Err() == nil {
			if text = c.invoke(j.ctx, args); j.ctx.Err() != nil {
				return a.broken(j, nil, nil, errAborted)
			}
			if strings.TrimSpace(text) == "" {
				return &Event{Type: "done", ID: j.id}
			}
		}
		return a.answer(j, &Message{Role: "user", Content: promptBlocks(j.ctx, text, images), Time: time.Now()})
	}
}

// answer runs a user message; nil: what the transcript and the queues hold.
func (a *Agent) answer(j *job, m *Message) *Event {
	if m != nil {
		a.add(j, m, &Event{Type: "user_message", ID: j.id})
	}
	a.ext.wait(j.ctx)
	a.tools = a.builtin()
	for _, t := range a.ext.allTools() {
		if a.allows(t.name) {
			a.tools = append(a.tools, t)
		}
	}
	if !a.prepared && j.ctx.Err() == nil {
		system := a.ext.guardPrompt(j.ctx, a.prepare())
		a.mu.Lock()
		a.system, a.prepared = system, j.ctx.Err() == nil // else not all were asked
		a.mu.Unlock()
	}
	return a.loop(j)
}

// loop makes turns until the model has nothing more to do. It returns the
// job's terminal event.
func (a *Agent) loop(j *job) *Event {
	pauses, hollow, kind := 0, 0, steering
	for step := 1; ; step++ {
		if j.ctx.Err() != nil {
			return a.broken(j, nil, nil, errAborted)
		}
		if a.maxSteps > 0 && step > a.maxSteps {
			return a.stopped(j, fmt.Sprintf("stopped after %d steps (--max-steps)", a.maxSteps))
		}
		if !a.beginTurn(j, step, kind) {
			return &Event{Type: "done", ID: j.id}
		}
		kind = steering
		if e, reason := a.ext.guardTurn(j.ctx, step); e != nil {
			a.hold(errors.New(reason))
			a.emit(j, &Event{Type: "turn_end", Stop: "error", Err: reason})
			a.emit(j, &Event{Type: "notice", Extension: e.Name, Level: "warn", Text: reason})
			return &Event{Type: "done", ID: j.id}
		}
		m, shown, err := a.callModel(j)
		if err != nil {
			return a.broken(j, m, shown, err)
		}
		calls := a.keep(j, m, shown)
		switch {
		case len(calls) > 0:
			a.runTools(j, m, calls)
		case m.Stop == "pause_turn":
			if pauses++; pauses > maxPauses {
				return a.stopped(j, fmt.Sprintf("stopped: the model paused its turn %d times in a row", pauses))
			}
		case isHollow(m) && hollow == 0:
			hollow++ // ask once more: some models think and then forget to speak
		case a.waiting(steering):
		case a.waiting(followUp):
			kind = followUp
		default:
			if isHollow(m) {
				a.emit(j, &Event{Type: "notice", Level: "warn", Text: "the model answered with reasoning only, twice"})
			}
			if a.atomic {
				a.compactIfNear(j) // an abort of it does not make the run an aborted one
			}
			return &Event{Type: "done", ID: j.id}
		}
	}
}

// unanswered reports whether the last word is the user's.
func unanswered(messages []*Message) bool {
	for _, m := range slices.Backward(messages) {
		if m.raw == nil {
			return m.Role == "user"
		}
	}
	return false
}

// keep takes a complete assistant message into the transcript, tells of what is
// shown of it (nil: nothing) and returns its tool calls.
func (a *Agent) keep(j *job, m, shown *Message) (calls []*Block) {
	m.Content = slices.DeleteFunc(m.Content, func(b Block) bool {
		return b.Type == "text" && strings.TrimSpace(b.Text) == ""
	})
	for i := range m.Content {
		if m.Content[i].Type == "tool_call" {
			calls = append(calls, &m.Content[i])
		}
	}
	if len(m.Content) > 0 && !isHollow(m) {
		a.add(j, m, nil)
	}
	if shown != nil {
		a.emit(j, &Event{Type: "assistant_message", Message: shown})
	}
	for _, c := range calls {
		a.emit(j, &Event{Type: "tool_call", Call: c})
	}
	stop := m.Stop
	if stop == "pause_turn" {
		stop = "tool_use" // the protocol's nearest word for "the run goes on"
	}
	a.emit(j, &Event{Type: "turn_end", Stop: stop})
	return calls
}

// guard lets extensions see a message before the user does: it returns the
// message as it is shown, nil if it is not, and sends its text, which was held
// back.
func (a *Agent) guard(j *job, m *Message) *Message {
	text := m.text()
	if text == "" {
		return m
	}
	shown, e, reason := a.ext.guardText(j.ctx, text)
	switch {
	case j.ctx.Err() != nil:
		return nil // what was not looked at is not shown
	case e != nil:
		a.emit(j, &Event{Type: "notice", Extension: e.Name, Level: "warn", Text: reason})
		return nil
	}
	d := delta{block: &Block{Type: "text", Text: shown}, text: []byte(shown), usage: m.Usage,
		index: slices.IndexFunc(m.Content, func(b Block) bool { return b.Type == "text" })}
	for _, d.phase = range []string{"start", "delta", "end"} {
		a.emit(j, &Event{Type: "delta", Delta: d})
	}
	if shown == text {
		return m
	}
	other := &Message{Role: m.Role, Time: m.Time, API: m.API, Provider: m.Provider, Model: m.Model, Stop: m.Stop, RawStop: m.RawStop,
		Usage: m.Usage, Content: []Block{{Type: "text", Text: shown}}}
	for _, b := range m.Content {
		if b.Type != "text" {
			other.Content = append(other.Content, b)
		}
	}
	return other
}

// isHollow reports a message that ended well and holds nothing but thinking.
func isHollow(m *Message) bool {
	return m.Stop == "end_turn" && len(m.Content) > 0 &&
		!slices.ContainsFunc(m.Content, func(b Block) bool { return b.Type != "thinking" })
}

// callModel makes one model call, with retries as long as nothing arrived, a
// compaction when the context is too large, and another try without images
// when one was refused. shown is what may be shown of m; with an error both may
// be nil.
func (a *Agent) callModel(j *job) (m, shown *Message, err error) {
	if err := a.compactIfNear(j); err != nil {
		return nil, nil, err
	}
	started, held := false, a.ext.holdsText()
	e := &Event{Type: "delta"} // one for all deltas: there are many
	on := func(d delta) {
		if !started {
			a.emit(j, &Event{Type: "assistant_start", Message: assistantMessage(a.model)})
			started = true
		}
		if e.Delta = d; !held || d.block.Type != "text" {
			a.emit(j, e)
		}
	}
	retries, compacted := 0, false
	for {
		m, err := a.provider.call(j.ctx, a.request(j, a.messages), on)
		if err == nil && !started {
			a.emit(j, &Event{Type: "assistant_start", Message: assistantMessage(a.model)})
		}
		shown := m
		if held {
			if shown = a.guard(j, m); j.ctx.Err() != nil {
				err = context.Cause(j.ctx)
			}
		}
		a.account(j, m)
		if err == nil {
			a.count(m.Usage)
			return m, shown, nil
		}
		var pe *providerError
		if j.ctx.Err() != nil || !errors.As(err, &pe) || len(m.Content) > 0 && !a.atomic {
			return m, shown, err
		}
		dropped := func() {
			if a.atomic {
				m.strip("error", pe.message)
				a.record(m, "")
				a.emit(j, &Event{Type: "attempt_failed", Message: m})
				started = false
			}
		}
		most, mayCompact := a.recovery()
		switch {
		case pe.overflow && compacted:
			return m, shown, fmt.Errorf("%w (after compaction: what is left, %d messages or about %d tokens, does not fit)", err, len(a.messages), a.contextTokens())
		case pe.overflow && mayCompact:
			compacted = true
			dropped()
			if cerr := a.compactNow(j, "overflow"); cerr != nil {
				return m, shown, fmt.Errorf("%w (and making room failed: %w)", err, cerr)
			}
		case pe.badImage && a.model.Vision:
			a.emit(j, &Event{Type: "notice", Level: "warn", Text: "the provider refused an image; images are left out from now on: " + pe.message})
			dropped()
			blind := *a.model
			blind.Vision = false
			a.mu.Lock()
			a.model = &blind
			a.mu.Unlock()
		case pe.retry && retries < most:
			retries++
			dropped()
			if err := a.backOff(j, retries, pe); err != nil {
				return m, shown, err
			}
		default:
			return m, shown, err
		}
	}
}

// request is a model call with the agent's settings and a valid transcript.
func (a *Agent) request(j *job, messages []*Message) *request {
	return &request{
		model:     a.model,
		system:    a.system,
		tools:     a.tools,
		messages:  boundImages(repair(messages)),
		reasoning: a.model.clamp(a.reasoning),
		pause:     func() { a.host.flush(j.ctx) },
	}
}

// recovery is what may be done about a failed call, as the user last set it.
func (a *Agent) recovery() (retries int, compact bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.retry.max, a.autoCompact
}

// backOff announces and waits out the delay before a retry.
func (a *Agent) backOff(j *job, attempt int, pe *providerError) error {
	delay := pe.retryAfter
	if delay > maxWait {
		return fmt.Errorf("%w: the server asks to wait %v, which is longer than %v", pe, delay.Round(time.Second), maxWait)
	}
	if delay == 0 {
		delay = a.retry.base << (attempt - 1)
		if !a.atomic { // it promises the exact delays
			delay += rand.N(delay/8 + 1) // so that many clients do not come back at once
		}
	}
	ctx, cancel := context.WithCancelCause(j.ctx)
	defer cancel(nil)
	a.mu.Lock()
	a.retry.cancel = func() { cancel(errors.New("Retry cancelled")) }
	a.mu.Unlock()
	most, _ := a.recovery()
	a.emit(j, &Event{Type: "retry", Attempt: attempt, Max: most, Delay: delay, Text: pe.message})
	if err := sleep(ctx, delay); err != nil {
		return err
	}
	a.emit(j, &Event{Type: "attempt_start"})
	return nil
}

// sleep waits, at most until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// account adds the usage of a call, complete or not, and tells of it.
func (a *Agent) account(j *job, m *Message) {
	u := m.Usage
	if u == nil {
		return
	}
	u.Cost = a.model.cost(u)
	a.mu.Lock()
	a.usage.add(u)
	total := a.usage
	a.mu.Unlock()
	a.emit(j, &Event{Type: "usage", Usage: u, Total: total})
}

// add sums usage; Reasoning is the sum of the known ones.
func (u *Usage) add(v *Usage) {
	u.Input += v.Input
	u.Output += v.Output
	u.CacheRead += v.CacheRead
	u.CacheWrite += v.CacheWrite
	if v.Reasoning != nil {
		sum := *v.Reasoning
		if u.Reasoning != nil {
			sum += *u.Reasoning
		}
		u.Reasoning = &sum
	}
	u.Cost.Input += v.Cost.Input
	u.Cost.Output += v.Cost.Output
	u.Cost.CacheRead += v.Cost.CacheRead
	u.Cost.CacheWrite += v.Cost.CacheWrite
	u.Cost.Total += v.Cost.Total
}

// runTools runs the calls of a message in order, neighbours that only read
// together, and adds a result for each, whatever happens. Guards and the client
// are asked about one call after another; results are told in the order of the
// calls.
func (a *Agent) runTools(j *job, m *Message, calls []*Block) {
	for len(calls) > 0 {
		n := 1
		for n < len(calls) && n < maxParallel && a.onlyReads(calls[n-1]) && a.onlyReads(calls[n]) {
			n++
		}
		results := make([]chan toolResult, n)
		for i, c := range calls[:n] {
			results[i] = make(chan toolResult, 1)
			args, refusal := a.permit(j, m, c)
			if refusal != "" {
				results[i] <- errorResult(refusal)
				continue
			}
			go func() { results[i] <- a.runTool(j, c, args) }() // ends with the tool
		}
		for i, c := range calls[:n] {
			r := <-results[i]
			a.add(j, &Message{Role: "tool", Content: r.content, Time: time.Now(), CallID: c.ID, ToolName: c.Name,
				IsError: r.isError, Activate: r.activate, details: r.details}, &Event{Type: "tool_result"})
		}
		calls = calls[n:]
	}
}

func (a *Agent) tool(name string) *tool {
	for _, t := range a.tools {
		if t.name == name {
			return t
		}
	}
	return nil
}

func (a *Agent) onlyReads(c *Block) bool {
	t := a.tool(c.Name)
	return t != nil && t.readOnly
}

// permit decides whether a call runs and with what arguments. refusal is what
// the model is told instead.
func (a *Agent) permit(j *job, m *Message, c *Block) (args json.RawMessage, refusal string) {
	switch {
	case j.ctx.Err() != nil:
		return nil, notRunAborted
	case m.Stop == "length":
		return nil, "Not run: your message was cut off at the output limit, so this call may be incomplete. Do it in smaller parts."
	case a.tool(c.Name) == nil:
		return nil, fmt.Sprintf("Tool %s not found. Available: %s.", c.Name, cmp.Or(strings.Join(toolNames(a.tools), ", "), "none"))
	case c.BadArgs != "":
		_, err := parseObject([]byte(c.BadArgs))
		return nil, fmt.Sprintf("Not run: the arguments of %s are not one complete JSON object: %v. Send the whole call again.", c.Name, err)
	}
	args, refusal = a.ext.guardCall(j.ctx, c)
	if refusal == "" {
		refusal = a.confirm(j, c, args)
	}
	if j.ctx.Err() != nil {
		refusal = notRunAborted
	}
	return args, refusal
}

const notRunAborted = "Not run: the run was aborted."

// runTool runs one call. It returns within two seconds of the job's end even if
// the tool does not.
func (a *Agent) runTool(j *job, c *Block, args json.RawMessage) toolResult {
	t := a.tool(c.Name)
	done := make(chan toolResult, 1)
	go func() { // ends with the tool; a tool that ignores ctx is left behind
		defer func() {
			if p := recover(); p != nil {
				fmt.Fprintf(os.Stderr, "zot: tool %s failed inside: %v\n%s", c.Name, p, debug.Stack())
				done <- errorResult(fmt.Sprintf("Tool %s failed inside: %v. Whether it had an effect is unknown.", c.Name, p))
			}
		}()
		done <- t.run(j.ctx, &toolCall{id: c.ID, args: args, progress: func(text string) {
			if !a.host.behind() { // the result has the output; a slow reader only misses its growth
				a.emit(j, &Event{Type: "tool_progress", CallID: c.ID, Text: text})
			}
		}})
	}()
	select {
	case r := <-done:
		return r
	case <-j.ctx.Done():
	}
	select {
	case r := <-done:
		return r
	case <-time.After(toolGrace):
		return errorResult("Aborted: the tool did not stop in time. Whether it had an effect is unknown.")
	}
}

func toolNames(tools []*tool) (names []string) {
	for _, t := range tools {
		names = append(names, t.name)
	}
	return names
}

// repair returns the transcript with every tool call answered exactly once,
// right behind its message and in call order: results are added where a run
// ended in between, and dropped where they answer nothing.
func repair(messages []*Message) []*Message {
	out := make([]*Message, 0, len(messages)+1)
	for i := 0; i < len(messages); {
		m := messages[i]
		i++
		if m.Role == "tool" || len(m.Content) == 0 {
			continue // answers nothing (what does is taken below), or says nothing
		}
		out = append(out, m)
		first := i
		for i < len(messages) && messages[i].Role == "tool" {
			i++
		}
		results := slices.Clone(messages[first:i])
		for _, b := range m.Content {
			if b.Type != "tool_call" {
				continue
			}
			if at := slices.IndexFunc(results, func(r *Message) bool { return r.CallID == b.ID }); at >= 0 {
				out = append(out, results[at])
				results = slices.Delete(results, at, at+1)
				continue
			}
			out = append(out, &Message{Role: "tool", Time: m.Time, CallID: b.ID, ToolName: b.Name, IsError: true,
				Content: []Block{{Type: "text", Text: "No result: the run ended while this call was made. Whether it had an effect is unknown."}}})
		}
	}
	return out
}

// promptBlocks is the content of a user message. An image that no provider
// would take becomes a note, and so does one that an abort overtook.
func promptBlocks(ctx context.Context, text string, images [][]byte) (blocks []Block) {
	if strings.TrimSpace(text) != "" {
		blocks = append(blocks, Block{Type: "text", Text: strings.ToValidUTF8(text, "\ufffd")})
	}
	for i, data := range images {
		b, err := Block{}, context.Cause(ctx)
		if err == nil {
			b, err = prepareImage(data)
		}
		if err != nil {
			b = Block{Type: "text", Text: fmt.Sprintf("[image %d was left out: %v]", i+1, err)}
		}
		blocks = append(blocks, b)
	}
	return blocks
}

// maxImages bounds the images of one request, in bytes of base64: providers
// refuse requests of more than about 30 MB.
const maxImages = 20 << 20

// boundImages replaces the oldest images by notes until the rest fit into a
// request.
func boundImages(messages []*Message) []*Message {
	out, total := messages, 0
	for i, m := range slices.Backward(messages) {
		for k, b := range slices.Backward(m.Content) {
			if total += len(b.Data); b.Type != "image" || total <= maxImages {
				continue
			}
			if out[i] == m { // a message in the transcript is not changed
				out = slices.Clone(out)
				out[i] = &Message{Role: m.Role, Content: slices.Clone(m.Content), Time: m.Time, CallID: m.CallID,
					ToolName: m.ToolName, IsError: m.IsError, Activate: m.Activate}
			}
			out[i].Content[k] = Block{Type: "text", Text: "[an image was here; there were too many for one request]"}
		}
	}
	return out
}
