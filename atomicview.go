// The Atomic protocol's view of an agent: its events as frames (spec: Atomic
// RPC, Events and Types). Rules kept here:
//
//   - A turn is one model call and the results of its calls: it is closed by the
//     event behind it. A run is what lies between agent_start and agent_end; each
//     failed attempt that is made again is a run of its own.
//   - agent_settled is the last frame of a job.
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// atomicView implements host. All fields but the writer are changed under the
// agent's lock.
type atomicView struct {
	*writer
	failed bool // a run failed

	run     []*Message // the messages of this run; nil: none is open
	inTurn  bool
	message *Message // the turn's answer; nil: it is not complete
	begun   bool     // message_start of the answer was told
	results []*Message
	calls   map[string]*runningCall
	attempt int    // of the retries of this model call
	aside   []byte // a model call that is no part of the conversation is made: what says why
	retried bool   // ... again

	usage   Usage  // of the message being streamed, as it was last encoded:
	encoded []byte // the beginning of a message_update
}

// runningCall is a tool call that was told.
type runningCall struct {
	block  *Block
	output string // so far, its end
}

const maxPartial = 50 << 10 // bytes of a call's output in its updates

func newAtomicView(w *writer) *atomicView {
	return &atomicView{writer: w, calls: map[string]*runningCall{}}
}

// say writes a frame made from a template (see appendJSON).
func (v *atomicView) say(template string, values ...any) {
	v.frame(true, func(dst []byte) []byte { return appendJSON(dst, template, values...) })
}

func (v *atomicView) event(e *Event) {
	switch e.Type {
	case "user_message":
		v.beginTurn()
		v.whole(e.Message)
	case "turn_start":
		if v.inTurn && (v.message != nil || v.begun) {
			v.endTurn(nil)
		}
		v.beginTurn()
	case "attempt_start":
		if v.aside != nil {
			v.say(`{"type":"summarization_retry_attempt_start",?}`, v.aside)
		} else {
			v.beginTurn()
		}
	case "assistant_start":
		v.beginTurn()
		v.begin(e.Message)
	case "delta":
		v.update(&e.Delta)
	case "assistant_message":
		if v.message != nil { // aborted behind a whole turn
			v.endTurn(nil)
		}
		v.beginTurn()
		v.answer(e.Message)
	case "tool_call":
		v.calls[e.Call.ID] = &runningCall{block: e.Call}
		v.say(`{"type":"tool_execution_start","toolCallId":?,"toolName":?,"args":?}`, e.Call.ID, e.Call.Name, e.Call.Args)
	case "tool_progress":
		v.progress(v.calls[e.CallID], e.Text)
	case "tool_result":
		m := e.Message
		v.say(`{"type":"tool_execution_end","toolCallId":?,"toolName":?,"result":{"content":?,"details":?},"isError":?}`,
			m.CallID, m.ToolName, appendAgentBlocks(nil, m.Content), encode(m.details), m.IsError)
		v.whole(m)
		v.results = append(v.results, m)
	case "turn_end":
		if e.Stop == "error" || e.Stop == "aborted" {
			v.endTurn(&Message{Role: "assistant", Stop: e.Stop, Err: e.Err})
			v.endRetries(false, cmp.Or(e.Err, "Retry cancelled"))
		}
	case "attempt_failed":
		attempt := v.attempt
		v.attempt = 0 // the retries are not over
		v.beginTurn()
		v.answer(e.Message)
		v.endTurn(nil)
		v.endRun(true)
		v.attempt = attempt
	case "retry":
		if v.aside != nil {
			v.retried = true
			v.say(`{"type":"summarization_retry_scheduled","attempt":?,"maxAttempts":?,"delayMs":?,"errorMessage":?}`, e.Attempt, e.Max, e.Delay.Milliseconds(), e.Text)
		} else {
			v.attempt = e.Attempt
			v.say(`{"type":"auto_retry_start","attempt":?,"maxAttempts":?,"delayMs":?,"errorMessage":?}`, e.Attempt, e.Max, e.Delay.Milliseconds(), e.Text)
		}
	case "error":
		v.failed = true
		if v.inTurn { // behind a whole turn: no message says it
			v.note("error", "zot", e.Text)
		}
	case "done":
		v.endTurn(nil)
		v.endRun(false)
		v.say(`{"type":"agent_settled"}`)
	case "queue_update":
		v.say(`{"type":"queue_update","steering":?,"followUp":?}`, encode(e.Queue[steering]), encode(e.Queue[followUp]))
	case "compaction_start":
		if v.message != nil { // behind a whole run
			v.endTurn(nil)
			v.endRun(false)
		}
		v.aside = appendJSON(nil, `"source":"compaction","reason":?`, e.Reason)
		v.say(`{"type":"compaction_start","reason":?}`, e.Reason)
	case "compaction_end":
		v.endAside()
		v.compactionEnd(e)
	case "branch_summary_start":
		v.aside = []byte(`"source":"branchSummary"`)
	case "branch_summary_end":
		v.endAside()
	default:
		v.extension(e)
	}
}

// beginTurn opens a turn, and a run, unless one is open.
func (v *atomicView) beginTurn() {
	if v.run == nil {
		v.run = []*Message{}
		v.say(`{"type":"agent_start"}`)
	}
	if !v.inTurn {
		v.inTurn = true
		v.say(`{"type":"turn_start"}`)
	}
}

// endTurn closes the turn, if one is open. missing stands for an answer that
// never came, or that a guard kept back.
func (v *atomicView) endTurn(missing *Message) {
	if !v.inTurn {
		return
	}
	if v.message == nil {
		v.answer(cmp.Or(missing, &Message{Role: "assistant", Stop: "end_turn"}))
	}
	v.frame(true, func(dst []byte) []byte {
		dst = appendMessageOnce(append(dst, `{"type":"turn_end","message":`...), v.message)
		dst = appendAgentMessages(append(dst, `,"toolResults":`...), v.results)
		return append(dst, '}')
	})
	v.inTurn, v.message, v.begun, v.results = false, nil, false, nil
	clear(v.calls)
}

func (v *atomicView) endRun(again bool) {
	if v.run == nil {
		return
	}
	v.frame(true, func(dst []byte) []byte {
		dst = appendAgentMessages(append(dst, `{"type":"agent_end","messages":`...), v.run)
		return append(appendJSON(dst, `,"willRetry":?`, again), '}')
	})
	v.run = nil
}

// whole tells of a message that came at once.
func (v *atomicView) whole(m *Message) {
	v.frame(false, func(dst []byte) []byte {
		return append(appendMessageOnce(append(dst, `{"type":"message_start","message":`...), m), '}')
	})
	v.end(m)
}

func (v *atomicView) end(m *Message) {
	v.frame(true, func(dst []byte) []byte {
		return append(appendMessageOnce(append(dst, `{"type":"message_end","message":`...), m), '}')
	})
	v.run = append(v.run, m)
}

// begin announces an answer: it is pending, and empty.
func (v *atomicView) begin(m *Message) {
	if v.begun {
		return
	}
	v.begun, v.encoded = true, nil
	pending := &Message{Role: "assistant", API: m.API, Provider: m.Provider, Model: m.Model, Time: m.Time, Stop: "pending"}
	v.frame(true, func(dst []byte) []byte {
		return append(appendAgentMessage(append(dst, `{"type":"message_start","message":`...), pending), '}')
	})
}

// answer tells of a complete answer.
func (v *atomicView) answer(m *Message) {
	v.begin(m)
	v.message = m
	v.end(m)
	v.endRetries(m.Stop != "error" && m.Stop != "aborted", cmp.Or(m.Err, "Retry cancelled"))
}

// endRetries tells how the retries of a model call ended, if there were any.
func (v *atomicView) endRetries(success bool, finalError string) {
	if v.attempt > 0 && success {
		v.say(`{"type":"auto_retry_end","success":true,"attempt":?}`, v.attempt)
	} else if v.attempt > 0 {
		v.say(`{"type":"auto_retry_end","success":false,"attempt":?,"finalError":?}`, v.attempt, finalError)
	}
	v.attempt = 0
}

func (v *atomicView) endAside() {
	if v.retried {
		v.say(`{"type":"summarization_retry_finished"}`)
	}
	v.aside, v.retried = nil, false
}

// deltaKinds are the protocol's words for the blocks that are streamed.
var deltaKinds = map[string]string{"text": "text", "thinking": "thinking", "tool_call": "toolcall"}

// update streams a piece of an answer.
func (v *atomicView) update(d *delta) {
	if v.encoded == nil || d.usage != nil && *d.usage != v.usage {
		v.usage = Usage{}
		if d.usage != nil {
			v.usage = *d.usage
		}
		v.encoded = append(appendAgentUsage([]byte(`{"type":"message_update","usage":`), &v.usage), `,"assistantMessageEvent":{"type":"`...)
	}
	kind := deltaKinds[d.block.Type]
	if kind == "" {
		return
	}
	v.frame(d.phase != "delta", func(dst []byte) []byte {
		dst = append(append(append(append(append(dst, v.encoded...), kind...), '_'), d.phase...), `","contentIndex":`...)
		dst = fmt.Append(dst, d.index)
		switch {
		case d.phase == "delta":
			dst = appendString(append(dst, `,"delta":`...), d.text)
		case d.phase == "end" && kind == "toolcall":
			dst = appendAgentBlock(append(dst, `,"toolCall":`...), d.block)
		case d.phase == "end":
			dst = appendString(append(dst, `,"content":`...), d.block.Text)
		}
		return append(dst, "}}"...)
	})
}

// progress tells what a call has printed so far.
func (v *atomicView) progress(c *runningCall, text string) {
	if c == nil {
		return
	}
	c.output += text
	if n := len(c.output) - maxPartial; n > 0 {
		c.output = strings.ToValidUTF8(c.output[n:], "")
	}
	v.say(`{"type":"tool_execution_update","toolCallId":?,"toolName":?,"args":?,"partialResult":{"content":[{"type":"text","text":?}],"details":{"truncation":null,"fullOutputPath":null}}}`,
		c.block.ID, c.block.Name, c.block.Args, c.output)
}

func (v *atomicView) compactionEnd(e *Event) {
	result := e.Result
	if result == nil {
		result = json.RawMessage("null")
	}
	v.frame(true, func(dst []byte) []byte {
		dst = appendJSON(dst, `{"type":"compaction_end","reason":?,"result":?,"aborted":?,"willRetry":?`, e.Reason, result,
			e.Stop == "aborted", e.Reason == "overflow" && e.Result != nil)
		if e.Err != "" {
			dst = appendJSON(dst, `,"errorMessage":?`, e.Err)
		}
		if e.Stop == "overflow" {
			dst = append(dst, `,"unresolvedOverflow":true`...)
		}
		return append(dst, '}')
	})
}

// request asks the client's user interface for something; nothing is answered.
func (v *atomicView) request(method, members string, values ...any) {
	v.say(`{"type":"extension_ui_request","id":?,"method":?,?}`, newUUID(time.Now()), method, appendJSON(nil, members, values...))
}

// note is a line for the user.
func (v *atomicView) note(level, from, text string) {
	if level == "warn" {
		level = "warning"
	}
	v.request("notify", `"message":?,"notifyType":?,"extension":?`, text, level, from)
}

// extension passes on what extensions say, as requests to the client's user
// interface. Only confirm wants an answer.
func (v *atomicView) extension(e *Event) {
	from := cmp.Or(e.Extension, "zot")
	switch e.Type {
	case "notice":
		if e.Manifest != "" {
			v.say(`{"type":"extension_error","extensionPath":?,"event":?,"error":?}`, e.Manifest, cmp.Or(e.During, "host"), e.Text)
		} else {
			v.note(e.Level, from, e.Text)
		}
	case "ext_display":
		v.note("info", from, e.Text)
	case "ext_clear_notes":
		v.request("clearNotes", `"extension":?`, from)
	case "ext_insert":
		v.request("set_editor_text", `"text":?,"extension":?`, e.Text, from)
	case "ext_panel_open", "ext_panel_render":
		lines := append(append([]string{e.Panel.Title}, e.Panel.Lines...), e.Panel.Footer)
		v.request("setWidget", `"widgetKey":?,"widgetLines":?,"extension":?`, e.Panel.ID, encode(lines), from)
	case "ext_panel_close":
		v.request("setWidget", `"widgetKey":?,"extension":?`, e.Panel.ID, from)
	case "tool_confirmation_requested":
		v.say(`{"type":"extension_ui_request","id":?,"method":"confirm","title":?,"message":?,"toolCallId":?}`, e.Call.ID, "Allow "+e.Call.Name+"?", e.Text, e.Call.ID)
	}
}
