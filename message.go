// Messages in the shape of the Atomic protocol (spec: Types), which is also that
// of session files. Rules kept here:
//
//   - What is written comes back as it was. Keys that the document does not know
//     hold what would be lost otherwise; programs that do not know them pass
//     over them.
//   - Reading takes what pi and Atomic write.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// What the model is told of messages that are neither its own nor the user's.
const branchText = "The following is a summary of a branch that this conversation came back from:\n\n<summary>\n%s\n</summary>"

// stopWords are our words for the stop reasons of the Atomic protocol; the
// others are the same.
var stopWords = map[string]string{"stop": "end_turn", "toolUse": "tool_use", "length": "length", "error": "error", "aborted": "aborted"}

// appendAgentMessage appends a message.
func appendAgentMessage(dst []byte, m *Message) []byte {
	if m.raw != nil {
		return append(dst, m.raw...)
	}
	switch m.Role {
	case "assistant":
		dst = appendJSON(dst, `{"role":"assistant","content":?,"api":?,"provider":?,"model":?,"usage":?,"stopReason":?`,
			appendAgentBlocks(nil, m.Content), m.API, m.Provider, m.Model, appendAgentUsage(nil, m.Usage), agentStop(m.Stop))
		if m.RawStop != "" || m.Stop == "pause_turn" {
			dst = appendJSON(dst, `,"rawStopReason":?`, cmp.Or(m.RawStop, m.Stop))
		}
		if m.Err != "" {
			dst = appendJSON(dst, `,"errorMessage":?`, m.Err)
		}
	case "tool":
		dst = appendJSON(dst, `{"role":"toolResult","toolCallId":?,"toolName":?,"content":?`, m.CallID, m.ToolName, appendAgentBlocks(nil, m.Content))
		if m.details != nil {
			dst = appendJSON(dst, `,"details":?`, encode(m.details))
		}
		dst = appendJSON(dst, `,"isError":?`, m.IsError)
	default:
		dst = appendJSON(dst, `{"role":"user","content":?`, appendAgentBlocks(nil, m.Content))
	}
	if len(m.Activate) > 0 {
		dst = appendJSON(dst, `,"activate":?`, encode(m.Activate))
	}
	return appendJSON(dst, `,"timestamp":?}`, m.Time.UnixMilli())
}

func appendAgentBlocks(dst []byte, blocks []Block) []byte {
	return appendList(dst, blocks, func(dst []byte, b Block) []byte { return appendAgentBlock(dst, &b) })
}

func appendAgentBlock(dst []byte, b *Block) []byte {
	signature := "" // the key that holds it
	switch b.Type {
	case "text":
		dst = appendJSON(dst, `{"type":"text","text":?`, b.Text)
		signature = "textSignature"
	case "image":
		dst = appendJSON(dst, `{"type":"image","data":?,"mimeType":?`, b.Data, b.MimeType)
	case "thinking":
		dst = appendJSON(dst, `{"type":"thinking","thinking":?`, b.Text)
		signature = "thinkingSignature"
		if b.Redacted {
			dst = append(dst, `,"redacted":true`...)
		}
	case "tool_call":
		dst = appendJSON(dst, `{"type":"toolCall","id":?,"name":?,"arguments":?`, b.ID, b.Name, b.Args)
		signature = "thoughtSignature"
		if b.BadArgs != "" {
			dst = appendJSON(dst, `,"badArguments":?`, b.BadArgs)
		}
	default:
		if b.Signature == "" && b.Data != "" {
			return append(dst, b.Data...)
		}
		dst = append(dst, `{"type":"opaque"`...)
		signature = "signature"
	}
	if b.Signature != "" {
		dst = appendJSON(dst, `,?:?`, signature, b.Signature)
	}
	return append(dst, '}')
}

// appendAgentUsage appends usage; what is unknown is 0.
func appendAgentUsage(dst []byte, u *Usage) []byte {
	if u == nil {
		u = &Usage{}
	}
	dst = appendJSON(dst, `{"input":?,"output":?,"cacheRead":?,"cacheWrite":?,"totalTokens":?`,
		u.Input, u.Output, u.CacheRead, u.CacheWrite, u.Input+u.Output+u.CacheRead+u.CacheWrite)
	if u.Reasoning != nil {
		dst = appendJSON(dst, `,"reasoning":?`, *u.Reasoning)
	}
	return appendJSON(dst, `,"cost":?}`, encode(u.Cost))
}

// agentStop is a stop reason in the Atomic protocol's words.
func agentStop(stop string) string {
	switch stop {
	case "end_turn", "":
		return "stop"
	case "tool_use", "pause_turn":
		return "toolUse"
	}
	return stop
}

// parseAgentMessage reads what appendAgentMessage and other programs write.
// Messages that no provider knows become the user's, with what the model is
// told of them as content and the message itself in raw.
func parseAgentMessage(raw json.RawMessage) (*Message, error) {
	m := &Message{}
	role, stop := "", ""
	var content []byte
	whole := walk(raw, func(key, value []byte) {
		if string(value) == "null" {
			return
		}
		switch string(key) {
		case "role":
			role = textOf(value)
		case "content":
			content = value
		case "timestamp":
			m.Time = parseTime(value)
		case "api":
			m.API = textOf(value)
		case "provider":
			m.Provider = textOf(value)
		case "model":
			m.Model = textOf(value)
		case "usage":
			m.Usage = parseAgentUsage(value)
		case "stopReason":
			stop = textOf(value)
		case "rawStopReason":
			m.RawStop = textOf(value)
		case "errorMessage":
			m.Err = textOf(value)
		case "toolCallId":
			m.CallID = textOf(value)
		case "toolName":
			m.ToolName = textOf(value)
		case "isError":
			m.IsError = string(value) == "true"
		case "activate":
			json.Unmarshal(value, &m.Activate)
		case "details":
			if details, err := normalize(value); err == nil {
				m.details = details
			}
		}
	})
	if !whole {
		return nil, errors.New("a message must be a JSON object")
	}
	switch role {
	case "user":
		m.Role, m.Content = "user", parseAgentBlocks(content)
	case "assistant":
		m.Role, m.Content, m.Stop = "assistant", parseAgentBlocks(content), cmp.Or(stopWords[stop], "end_turn")
		if m.RawStop == "pause_turn" && m.Stop == "tool_use" {
			m.Stop = "pause_turn"
		}
	case "toolResult":
		m.Role, m.Content = "tool", parseAgentBlocks(content)
	case "custom":
		m.Role, m.Content = "user", parseAgentBlocks(content)
	case "branchSummary":
		m.Content = []Block{{Type: "text", Text: fmt.Sprintf(branchText, textOf(get(raw, "summary")))}}
	case "compactionSummary":
		m.Content = []Block{{Type: "text", Text: summaryHeader + textOf(get(raw, "summary"))}}
	case "bashExecution":
		if string(get(raw, "excludeFromContext")) != "true" {
			m.Content = []Block{{Type: "text", Text: bashText(raw)}}
		}
	default:
		return nil, fmt.Errorf("a message of the unknown role %q", role)
	}
	if m.Role == "" || role == "custom" {
		m.Role, m.raw = "user", raw
	}
	return m, nil
}

// bashText is what the model is told of a command that the user ran.
func bashText(raw []byte) string {
	v, _ := pick(raw, "command", "output", "exitCode", "cancelled", "truncated", "fullOutputPath")
	text := fmt.Sprintf("Ran `%s`\n", textOf(v[0]))
	if output := textOf(v[1]); output != "" {
		text += "```\n" + output + "\n```"
	} else {
		text += "(no output)"
	}
	if string(v[3]) == "true" {
		text += "\n\n(command cancelled)"
	} else if v[2] != nil && string(v[2]) != "0" {
		text += fmt.Sprintf("\n\nCommand exited with code %s", v[2])
	}
	if path := textOf(v[5]); string(v[4]) == "true" && path != "" {
		text += fmt.Sprintf("\n\n[Output truncated. Full output: %s]", path)
	}
	return text
}

// parseAgentBlocks reads content: a string, or an array of blocks.
func parseAgentBlocks(content []byte) (blocks []Block) {
	if text := textOf(content); text != "" {
		return []Block{{Type: "text", Text: text}}
	}
	if len(content) == 0 || content[0] != '[' {
		return nil
	}
	walk(content, func(_, raw []byte) {
		v, _ := pick(raw, "type", "text", "thinking", "data", "mimeType", "textSignature", "thinkingSignature", "redacted", "signature")
		b := Block{Type: textOf(v[0])}
		switch b.Type {
		case "text":
			b.Text, b.Signature = textOf(v[1]), textOf(v[5])
		case "image":
			b.Data, b.MimeType = textOf(v[3]), textOf(v[4])
		case "thinking":
			b.Text, b.Signature, b.Redacted = textOf(v[2]), textOf(v[6]), string(v[7]) == "true"
		case "toolCall":
			b = parseAgentCall(raw)
		case "opaque":
			b.Signature = textOf(v[8])
		default:
			b.Type, b.Data = "opaque", string(raw)
		}
		blocks = append(blocks, b)
	})
	return blocks
}

func parseAgentCall(raw []byte) Block {
	v, _ := pick(raw, "id", "name", "arguments", "thoughtSignature", "badArguments")
	b := Block{Type: "tool_call", ID: textOf(v[0]), Name: textOf(v[1]), Signature: textOf(v[3]), BadArgs: textOf(v[4]), Args: json.RawMessage("{}")}
	if args, err := normalize(v[2]); err == nil && args[0] == '{' {
		b.Args = args
	} else if b.BadArgs == "" {
		b.BadArgs = string(v[2])
	}
	return b
}

// parseAgentUsage reads usage; nil when all of it is 0.
func parseAgentUsage(raw []byte) *Usage {
	v, _ := pick(raw, "input", "output", "cacheRead", "cacheWrite", "reasoning", "cost")
	c, _ := pick(v[5], "input", "output", "cacheRead", "cacheWrite", "total")
	u := &Usage{Input: count(v[0]), Output: count(v[1]), CacheRead: count(v[2]), CacheWrite: count(v[3]),
		Cost: Cost{dollars(c[0]), dollars(c[1]), dollars(c[2]), dollars(c[3]), dollars(c[4])}}
	if v[4] != nil {
		n := count(v[4])
		u.Reasoning = &n
	}
	if *u == (Usage{}) {
		return nil
	}
	return u
}

// dollars reads a cost. It is small enough for sums to stay numbers that JSON has.
func dollars(v []byte) float64 {
	d, err := strconv.ParseFloat(string(v), 64)
	if err != nil || !(d > 0) {
		return 0
	}
	return min(d, 1e9)
}

// appendMessageOnce appends a message, which is encoded only once: for the
// client. In a process it has one format.
func appendMessageOnce(dst []byte, m *Message) []byte {
	f := m.frame.Load()
	if f == nil {
		b := appendAgentMessage(nil, m)
		f = &b
		m.frame.Store(f)
	}
	return append(dst, *f...)
}

// appendAgentMessages appends an array of messages.
func appendAgentMessages(dst []byte, messages []*Message) []byte {
	return appendList(dst, messages, appendMessageOnce)
}
