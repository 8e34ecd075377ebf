// Compaction: the older part of the transcript is replaced by one user message,
// with a summary that the model writes, or (the Atomic protocol) with those of
// its lines that the model does not name. Rules kept here:
//
//   - The transcript is only replaced when the whole answer is there.
//   - What is kept begins at a message that is not a tool result, so calls and
//     results stay together.
//   - The request for the summary fits the model's window by construction.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	compactReserve = 16384 // tokens of the window that must stay free; of a small one a quarter
	keepTokens     = 20000 // of the newest messages, kept whole
	charsPerToken  = 4     // the usual estimate
	imageTokens    = 1200
	resultChars    = 2000 // of one tool result, in what the summary is made from
	unknownWindow  = 128_000
)

const compactSystem = `You write handover notes. Another engineer takes over a coding session and will see nothing of it but your notes and the last few messages. Never continue the session or answer questions in it.`

const compactTask = `Write the handover notes for the session above, under exactly these headings:

## Goal
## Constraints and preferences
## Done
## In progress
## Decisions
## Next steps
## Files and errors

Be brief and exact. Keep every file path, command, identifier and error message that is still needed, word for word. Say what was tried and failed. If the session begins with earlier notes, carry over what still holds. Under a heading with nothing to say write "none".`

const summaryHeader = "The conversation before this point was compacted. These notes replace it:\n\n"

// compactJob is the run of a compact command.
func (a *Agent) compactJob(j *job) *Event {
	summary, err := a.compact(j)
	if err != nil && j.ctx.Err() == nil {
		a.emit(j, &Event{Type: "error", Text: "compaction failed: " + err.Error()})
	}
	return &Event{Type: "done", ID: j.id, Text: summary}
}

// compactNow compacts inside a run, which goes on.
func (a *Agent) compactNow(j *job, reason string) error {
	if a.atomic {
		o := a.lines
		o.reason = reason
		_, err, end := a.compactLines(j, o)
		a.emit(j, end)
		return err
	}
	summary, err := a.compact(j)
	if err == nil {
		a.emit(j, &Event{Type: "compact_done", Text: summary})
	}
	return err
}

// compactIfNear compacts when the context is about to reach the model's
// window. A failure is told and does not stop the run; only its end does.
func (a *Agent) compactIfNear(j *job) error {
	window := a.model.ContextWindow
	near := window > 0 && a.contextTokens() > window-reserve(window)
	if _, may := a.recovery(); !may || !near || a.cutPoint() == 0 || a.atomic && tailStart(a.messages, a.lines.preserve) == 0 {
		return nil
	}
	if err := a.compactNow(j, "threshold"); err != nil && j.ctx.Err() == nil && !a.atomic {
		a.emit(j, &Event{Type: "notice", Level: "warn", Text: "automatic compaction failed: " + err.Error()})
	}
	return context.Cause(j.ctx)
}

// reserve is how much of a window must stay free.
func reserve(window int) int { return min(compactReserve, window/4) }

// count notes the size of the context as the provider measured it.
func (a *Agent) count(u *Usage) {
	if u != nil && u.Input+u.CacheRead+u.CacheWrite > 0 {
		a.mu.Lock()
		a.size = size{len(a.messages), u.Input + u.CacheRead + u.CacheWrite}
		a.mu.Unlock()
	}
}

// contextTokens estimates the size of the next request's transcript.
func (a *Agent) contextTokens() int {
	n := a.size.tokens
	if n == 0 {
		n = len(a.system) / charsPerToken
	}
	for _, m := range a.messages[a.size.messages:] {
		n += estimate(m)
	}
	return n
}

// estimate is a message's size in tokens.
func estimate(m *Message) int {
	chars := 0
	for i := range m.Content {
		b := &m.Content[i]
		chars += len(b.Text) + len(b.Args) + len(b.Name) + len(b.Signature)
		if b.Type == "image" {
			chars += imageTokens * charsPerToken
		}
	}
	return chars/charsPerToken + 4
}

// compact makes the summary and replaces the older part of the transcript.
func (a *Agent) compact(j *job) (string, error) {
	cut := a.cutPoint()
	if cut == 0 {
		return "", errors.New("nothing to compact: there are no earlier messages")
	}
	window := cmp.Or(a.model.ContextWindow, unknownWindow)
	limit := max(1000, window-reserve(window)-len(compactSystem+compactTask)/charsPerToken) * 3 // dense text has fewer characters a token
	text := serialize(a.messages[:cut])
	summary, err := a.summarize(j, text, limit)
	var pe *providerError
	if errors.As(err, &pe) && pe.overflow { // the estimate was wrong: halve it once
		summary, err = a.summarize(j, text, min(limit, len(text))/2)
	}
	if err != nil {
		return "", err
	}
	head := &Message{Role: "user", Time: time.Now(), Content: []Block{{Type: "text", Text: summaryHeader + summary}}, Activate: activated(a.messages[:cut])}
	if a.session != nil {
		kept := json.RawMessage("null")
		if cut < len(a.messages) {
			kept = encode(a.messages[cut].entry)
		}
		if _, err := a.session.append("compaction", `"summary":?,"firstKeptEntryId":?,"tokensBefore":?`, summary, kept, a.contextTokens()); err != nil {
			return "", err
		}
	}
	a.mu.Lock()
	a.messages = append([]*Message{head}, a.messages[cut:]...)
	a.size = size{}
	a.mu.Unlock()
	return summary, nil
}

// activated are the tools that messages made available.
func activated(messages []*Message) (names []string) {
	for _, m := range messages {
		names = append(names, m.Activate...)
	}
	return names
}

// cutPoint is the index of the first message that is kept: the newest ones
// within keepTokens, half the transcript and an eighth of the window, whichever
// is least, but at least the newest with its results if that is within a
// quarter of the window. 0 when there is nothing before.
func (a *Agent) cutPoint() int {
	window := cmp.Or(a.model.ContextWindow, unknownWindow)
	total := 0
	for _, m := range a.messages {
		total += estimate(m)
	}
	budget, least := min(keepTokens, total/2, window/8), window/4
	cut, kept := len(a.messages), 0
	for i := cut - 1; i > 0; i-- {
		kept += estimate(a.messages[i])
		asked := cut == len(a.messages) && a.messages[i].Role == "user" // not answered yet: it always stays
		if kept > budget && !asked && (cut < len(a.messages) || kept > least) {
			break
		}
		if a.messages[i].Role != "tool" {
			cut = i
		}
	}
	if len(a.messages) < 2 {
		return 0
	}
	if cut == 1 && strings.HasPrefix(a.messages[0].text(), summaryHeader) {
		return len(a.messages) // otherwise a summary would be all that is summarized
	}
	return cut
}

// summarize asks the model for the notes on at most limit bytes of text; of a
// longer one the beginning and the end are used.
func (a *Agent) summarize(j *job, text string, limit int) (string, error) {
	if len(text) > limit {
		head := strings.ToValidUTF8(text[:limit/4], "")
		tail := strings.ToValidUTF8(text[len(text)-limit*3/4:], "")
		text = fmt.Sprintf("%s\n\n[%d characters in the middle are left out]\n\n%s", head, len(text)-len(head)-len(tail), tail)
	}
	m, err := a.consult(j, compactSystem, "<session>\n"+text+"\n</session>\n\n"+compactTask, "off")
	switch {
	case err != nil:
		return "", err
	case m.Stop == "length":
		return "", errors.New("the summary was cut off at the output limit")
	case strings.TrimSpace(m.text()) == "":
		return "", errors.New("the model returned no summary")
	}
	return strings.TrimSpace(m.text()), nil
}

// question is a model call that is no part of the conversation.
func (a *Agent) question(ctx context.Context, system, text, reasoning string) *request {
	r := a.request(&job{ctx: ctx}, []*Message{{Role: "user", Time: time.Now(), Content: []Block{{Type: "text", Text: text}}}})
	r.system, r.tools, r.reasoning = system, nil, a.model.clamp(reasoning)
	return r
}

// consult asks the model something that is no part of the conversation.
func (a *Agent) consult(j *job, system, text, reasoning string) (*Message, error) {
	r := a.question(j.ctx, system, text, reasoning)
	for retries := 0; ; {
		m, err := a.provider.call(j.ctx, r, func(delta) {})
		a.account(j, m)
		var pe *providerError
		if most, _ := a.recovery(); !errors.As(err, &pe) || !pe.retry || retries >= most || j.ctx.Err() != nil {
			return m, err
		}
		retries++
		if err := a.backOff(j, retries, pe); err != nil {
			return m, err
		}
	}
}

// text is the visible text of a message.
func (m *Message) text() string {
	var parts []string
	for _, b := range m.Content {
		if b.Type == "text" {
			parts = append(parts, b.Text)
		}
	}
	return strings.Join(parts, "\n")
}

// serialize writes messages as plain text for a summary.
func serialize(messages []*Message) string {
	lines, _ := serializeLines(messages, resultChars)
	return strings.Join(lines, "\n")
}

// shorten cuts the middle out of a long text, at characters.
func shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	head := strings.ToValidUTF8(s[:limit/2], "")
	tail := strings.ToValidUTF8(s[len(s)-limit/2:], "")
	return fmt.Sprintf("%s [%d characters left out] %s", head, len(s)-len(head)-len(tail), tail)
}

// oneLine is a text in one short line.
func oneLine(text string) string {
	return shorten(strings.Join(strings.Fields(text), " "), 200)
}

// compactOrder is what a compaction by lines is asked for.
type compactOrder struct {
	reason   string // manual, threshold or overflow
	ratio    float64
	preserve int    // messages that stay out of it
	query    string // "": the last user message
}

// compactLines lets the model name the lines of the older part that can go, and
// puts the rest in its place, word for word (spec: compact). It tells how it
// begins; end tells how it ended.
func (a *Agent) compactLines(j *job, o compactOrder) (result json.RawMessage, err error, end *Event) {
	a.mu.Lock()
	a.compacting = o.reason
	a.mu.Unlock()
	a.emit(j, &Event{Type: "compaction_start", Reason: o.reason})
	result, err = a.planAndRender(j, o)
	end = &Event{Type: "compaction_end", Reason: o.reason, Result: result}
	switch {
	case err == nil: // an abort came too late
	case j.ctx.Err() != nil:
		err, end.Stop = errors.New("Compaction cancelled"), "aborted"
	default:
		end.Err = "Compaction failed: " + err.Error()
	}
	a.mu.Lock()
	a.compacting = ""
	a.mu.Unlock()
	return result, err, end
}

// planAndRender does what compactLines says.
func (a *Agent) planAndRender(j *job, o compactOrder) (json.RawMessage, error) {
	start := tailStart(a.messages, o.preserve)
	region, tail := a.messages[:start], a.messages[start:]
	lines, protected := serializeLines(region, linesResult)
	if len(lines) < minLines {
		return nil, errors.New("Nothing to compact (session too small)")
	}
	before := a.contextTokens()
	for i := len(a.messages) - 1; i >= 0 && o.query == ""; i-- {
		if m := a.messages[i]; m.Role == "user" && m.raw == nil {
			o.query = m.text()
		}
	}
	rung := "planned"
	del, err := a.planLines(j, lines, protected, o)
	if err != nil && o.reason == "overflow" && j.ctx.Err() == nil { // the run cannot go on without room
		rung, del, err = "fresh", deletions(lines, protected, len(lines), nil, o.ratio), nil
	}
	if err == nil && len(del) == 0 {
		err = errors.New("the model named no lines that can go")
	}
	if err != nil {
		return nil, err
	}
	text, stats := render(lines, del)
	stats.measure(before, text, tail)
	kept := json.RawMessage("null")
	if len(tail) > 0 {
		kept = encode(tail[0].entry)
	}
	details := appendJSON(nil, `"promptVersion":3,"parameters":{"compression_ratio":?,"preserve_recent":?,"query":?},"rung":?,"stats":{"linesBefore":?,"linesDeleted":?,"linesKept":?,"rangeCount":?,"tokensBefore":?,"tokensAfter":?,"percentReduction":?}`,
		o.ratio, o.preserve, o.query, rung, stats.linesBefore, stats.linesDeleted, stats.linesKept, stats.rangeCount,
		stats.tokensBefore, stats.tokensAfter, stats.percentReduction)
	if a.session != nil {
		backup, err := a.session.backup(map[string]string{"manual": "compact", "threshold": "auto-compact", "overflow": "overflow-auto-compact"}[o.reason])
		if err != nil {
			return nil, fmt.Errorf("the session could not be copied before: %w", err)
		}
		if backup != "" {
			details = appendJSON(details, `,"backupPath":?`, backup)
		}
		if _, err := a.session.append("compaction", `"summary":?,"firstKeptEntryId":?,"tokensBefore":?,"details":{"strategy":"verbatim-lines",?}`,
			text, kept, stats.tokensBefore, details); err != nil {
			return nil, err
		}
	}
	a.mu.Lock()
	a.messages, a.size = []*Message{compactedMessage(text, a.messages, tail, time.Now())}, size{}
	a.mu.Unlock()
	return appendJSON(nil, `{"compactedText":?,"firstKeptEntryId":?,"tokensBefore":?,?}`, text, kept, stats.tokensBefore, details), nil
}

// planLines asks the model which lines can go. When they are too many for it,
// the older half goes unasked.
func (a *Agent) planLines(j *job, lines []string, protected []bool, o compactOrder) ([]lineRange, error) {
	for head := 0; ; head += (len(lines) - head + 1) / 2 {
		m, err := a.consult(j, planSystem, planRequest(lines[head:], protected[head:], o.ratio, o.query), a.reasoning)
		var pe *providerError
		// a run that waits for room does not wait for many calls
		if errors.As(err, &pe) && pe.overflow && len(lines)-head > minLines && (head == 0 || o.reason != "overflow") {
			continue
		}
		if err != nil {
			return nil, err
		}
		ranges, err := parsePlan(m.text(), len(lines)-head, m.Stop == "length")
		return deletions(lines, protected, head, ranges, o.ratio), err
	}
}

const (
	summaryEntries = 4 // a shorter session gets no summary
	summaryChars   = 30_000
	summarySystem  = `You label coding sessions for a list. Answer with one line of at most 100 characters: what the session is about and where it stands. No quotes, no preamble.`
)

// summarizeSession writes a line about the session in the background, for lists
// of sessions. A failure is silent; the next prompt ends it. The lock is held
// and the agent is idle.
func (a *Agent) summarizeSession() {
	through := a.session.leafID()
	if len(a.messages) < summaryEntries || a.held != nil {
		return
	}
	ctx, cancel := context.WithCancel(a.ctx)
	a.stopSummary = cancel
	r := a.question(ctx, summarySystem, "<session>\n"+shorten(serialize(a.messages), summaryChars)+"\n</session>", "off")
	session, model, provider := a.session, a.model, a.provider
	a.ext.work.Go(func() { // ends with the call
		defer cancel()
		m, err := provider.call(ctx, r, func(delta) {})
		line := strings.Join(strings.Fields(m.text()), " ")
		if err != nil || line == "" || ctx.Err() != nil {
			return
		}
		if m.Usage != nil {
			m.Usage.Cost = model.cost(m.Usage)
		}
		session.append("session_summary", `"summary":?,"summarizedThroughId":?,"usage":?`, shorten(line, 200), through, appendAgentUsage(nil, m.Usage))
	})
}
