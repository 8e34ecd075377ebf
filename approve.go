// Approval (--no-yolo): the client, or who sits at the terminal, is asked before
// a tool runs. Rules kept here:
//
//   - A call that nobody allows does not run, and the model is told why.
//   - Each question ends: with an answer, its time, the run, or the client.
package main

import (
	"encoding/json"
	"fmt"
	"time"
)

// approval is what a tool call needs before it runs (--no-yolo).
type approval struct {
	timeout time.Duration            // of the question to the client; 0: nothing is asked
	refuse  string                   // nobody can be asked: why a call is refused
	allowed map[string]bool          // tools that were allowed for good; "*" is all
	waiting map[string]chan decision // by call id
}

// decision is the client's answer: allow, allow_tool, allow_all or deny.
type decision struct{ word, reason string }

var decisions = []string{"allow", "allow_tool", "allow_all", "deny"}

// confirm asks the client about a call. It returns why not, "" to run it.
func (a *Agent) confirm(j *job, c *Block, args json.RawMessage) (refusal string) {
	p := &a.approval
	if p.timeout == 0 {
		return ""
	}
	answer := make(chan decision, 1)
	a.mu.Lock()
	allowed, refuse := p.allowed["*"] || p.allowed[c.Name], p.refuse
	if !allowed && refuse == "" {
		p.waiting[c.ID] = answer
	}
	a.mu.Unlock()
	if allowed {
		return ""
	}
	if refuse != "" {
		return refuse
	}
	a.emit(j, &Event{Type: "tool_confirmation_requested", Call: c, Text: preview(args)})
	timer := time.NewTimer(p.timeout)
	defer timer.Stop()
	var d decision
	select {
	case d = <-answer:
	case <-timer.C:
		d = decision{"deny", fmt.Sprintf("nobody answered within %v (--confirm-timeout)", p.timeout)}
	case <-j.ctx.Done():
		d.word = "deny"
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(p.waiting, c.ID)
	switch d.word {
	case "allow_tool":
		p.allowed[c.Name] = true
	case "allow_all":
		p.allowed["*"] = true
	case "deny":
		refusal = "Not run: the user did not allow this call"
		if d.reason != "" {
			refusal += ": " + d.reason
		}
	}
	return refusal
}

// decide answers the question about a call. The lock is held.
func (a *Agent) decide(id string, d decision) error {
	answer := a.approval.waiting[id]
	if answer == nil {
		return fmt.Errorf("no tool call %q waits for confirmation", id)
	}
	delete(a.approval.waiting, id)
	answer <- d
	return nil
}

// nobodyAnswers refuses what waits for the client's answer, and what would.
func (a *Agent) nobodyAnswers(why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.approval.refuse = "Not run: " + why
	for id, answer := range a.approval.waiting {
		delete(a.approval.waiting, id)
		answer <- decision{"deny", why}
	}
}

// preview is a call's arguments in one short line: the command or path alone if
// there is one.
func preview(args json.RawMessage) string {
	text := string(args)
	if o, err := parseObject(args); err == nil {
		for _, key := range []string{"command", "path", "name"} {
			if s, err := o.str(key); err == nil && s != "" {
				text = s
				break
			}
		}
	}
	return oneLine(text)
}
