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
	"context"
	"encoding/json"
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
	Provider, Model string
	Stop            string // end_turn, tool_use, length, error, aborted; pause_turn is resent
	RawStop         string // the provider's own word for Stop
	Usage           *Usage // nil when the provider reported none
	Err             string // the error text of Stop "error"

	// Of a tool message.
	CallID, ToolName string
	IsError          bool
	Activate         []string // deferred tools that this result made available

	wire encoded // the message in the wire format last used
}

// Block is one part of a message's content.
type Block struct {
	Type string // "text", "image", "thinking", "tool_call", "opaque"
	Text string // of text and thinking

	MimeType string // of an image
	Data     string // of an image: base64

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
