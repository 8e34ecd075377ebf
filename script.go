// The scripted provider: a model that says what a script file says, without a
// network and a key. Client authors test their clients with it, and so do our
// own tests. A script is lines; `turn` begins the answer to the next model call:
//
//	# a comment
//	turn
//	text Hello                   text; a JSON string for exact characters
//	think Let me see.            reasoning text
//	delay 50ms                   a pause
//	call read {"path":"go.mod"}  a tool call; "call bash id=x1 {...}" sets its id;
//	                             what follows the name is sent as it is
//	usage input=10 output=5 reasoning=3 cache_read=2 cache_write=1
//	stop length                  the stop reason; otherwise tool_use or end_turn
//	error 529 Overloaded         the call fails with this HTTP status
//	error 429 after=3s Slow down ... and asks to wait
//	cut                          the connection breaks
//	hang                         nothing more comes until the run is aborted
//	repeat 1000 text x           a step many times
//
// The model id is the path of a script, or "demo".
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

func scriptCatalog() *providerInfo {
	return &providerInfo{Name: "script", API: "script", Default: "demo", AnyModel: true,
		list: []*Model{{Provider: "script", ID: "demo", Name: "demo", API: "script", ContextWindow: 200_000, MaxOutput: 8192, Vision: true,
			Levels: map[string]string{"off": "off", "minimal": "minimal", "low": "low", "medium": "medium", "high": "high"}}}}
}

// scriptProvider answers call after call with turn after turn.
type scriptProvider struct {
	path  string
	turns [][]step
	mu    sync.Mutex
	next  int
}

// step is one line of a script.
type step struct {
	verb, arg string
	times     int
}

var scriptVerbs = []string{"text", "think", "delay", "call", "usage", "stop", "error", "cut", "hang"}

// newScript reads a script file, or returns the built-in demo.
func newScript(model string) (provider, error) {
	if model == "demo" {
		return demo{}, nil
	}
	data, err := os.ReadFile(model)
	if err != nil {
		return nil, fmt.Errorf("the model of --provider script is \"demo\" or a script file: %w", err)
	}
	s := &scriptProvider{path: model}
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if line == "turn" {
			s.turns = append(s.turns, nil)
			continue
		}
		st, err := parseStep(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", model, n, err)
		}
		if len(s.turns) == 0 {
			s.turns = append(s.turns, nil)
		}
		last := len(s.turns) - 1
		s.turns[last] = append(s.turns[last], st)
	}
	return s, nil
}

func parseStep(line string) (step, error) {
	st := step{times: 1}
	st.verb, st.arg, _ = strings.Cut(line, " ")
	st.arg = strings.TrimSpace(st.arg)
	if st.verb == "repeat" {
		times, rest, _ := strings.Cut(st.arg, " ")
		n, err := strconv.Atoi(times)
		if err != nil || n < 0 {
			return st, fmt.Errorf("repeat needs a number, not %q", times)
		}
		st, err = parseStep(rest)
		st.times *= n
		return st, err
	}
	if !slices.Contains(scriptVerbs, st.verb) {
		return st, fmt.Errorf("unknown step %q (known: turn, repeat, %s)", st.verb, strings.Join(scriptVerbs, ", "))
	}
	var err error
	switch {
	case strings.HasPrefix(st.arg, `"`) && (st.verb == "text" || st.verb == "think"):
		err = json.Unmarshal([]byte(st.arg), &st.arg)
	case st.verb == "delay":
		_, err = time.ParseDuration(st.arg)
	case st.verb == "usage":
		_, err = parseUsage(st.arg)
	case st.verb == "error":
		_, err = scriptError(st.arg)
	}
	if err != nil {
		return st, fmt.Errorf("%s: %w", st.verb, err)
	}
	return st, nil
}

// call plays the next turn.
func (s *scriptProvider) call(ctx context.Context, r *request, on func(delta)) (*Message, error) {
	s.mu.Lock()
	n := s.next
	s.next++
	s.mu.Unlock()
	m := &Message{Role: "assistant", Time: time.Now(), Provider: r.model.Provider, Model: r.model.ID}
	if n >= len(s.turns) {
		return m, &providerError{message: fmt.Sprintf("%s has no turn %d", s.path, n+1)}
	}
	a := &assembler{msg: m, on: on}
	defer a.finish()
	for _, st := range s.turns[n] {
		for range st.times {
			if err := a.play(ctx, r, st); err != nil {
				return m, err
			}
		}
	}
	a.finish()
	if m.Stop == "" {
		m.Stop = "end_turn"
		if slices.ContainsFunc(m.Content, func(b Block) bool { return b.Type == "tool_call" }) {
			m.Stop = "tool_use"
		}
	}
	return m, context.Cause(ctx)
}

// play takes one step of a script.
func (a *assembler) play(ctx context.Context, r *request, st step) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch st.verb {
	case "text":
		a.extend("text", st.arg)
	case "think":
		a.extend("thinking", st.arg)
	case "call":
		name, args, _ := strings.Cut(st.arg, " ")
		id := fmt.Sprintf("call_%d", len(a.msg.Content)+1)
		if rest, ok := strings.CutPrefix(args, "id="); ok {
			id, args, _ = strings.Cut(rest, " ")
		}
		i := a.start(Block{Type: "tool_call", ID: id, Name: name})
		a.add(i, []byte(args))
		a.end(i)
	case "delay":
		r.pause()
		d, _ := time.ParseDuration(st.arg)
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	case "hang":
		r.pause()
		<-ctx.Done()
	case "usage":
		a.msg.Usage, _ = parseUsage(st.arg)
	case "stop":
		a.msg.Stop = st.arg
	case "cut":
		return truncated()
	case "error":
		pe, _ := scriptError(st.arg)
		return pe
	}
	return context.Cause(ctx)
}

// extend adds to the last block if it is of this type, else begins one.
func (a *assembler) extend(kind, text string) {
	i := len(a.msg.Content) - 1
	if i < 0 || a.msg.Content[i].Type != kind {
		a.finish()
		i = a.start(Block{Type: kind})
	}
	a.add(i, []byte(text))
}

func parseUsage(arg string) (*Usage, error) {
	u := &Usage{}
	for f := range strings.FieldsSeq(arg) {
		k, v, _ := strings.Cut(f, "=")
		n, err := strconv.Atoi(v)
		if err != nil {
			return nil, fmt.Errorf("%q is not name=number", f)
		}
		switch k {
		case "input":
			u.Input = n
		case "output":
			u.Output = n
		case "reasoning":
			u.Reasoning = &n
		case "cache_read":
			u.CacheRead = n
		case "cache_write":
			u.CacheWrite = n
		default:
			return nil, fmt.Errorf("unknown count %q", k)
		}
	}
	return u, nil
}

// scriptError is a failed call as a server of the status would make it.
func scriptError(arg string) (*providerError, error) {
	code, text, _ := strings.Cut(arg, " ")
	status, err := strconv.Atoi(code)
	if err != nil {
		return nil, fmt.Errorf("needs an HTTP status, not %q", code)
	}
	var after time.Duration
	if rest, ok := strings.CutPrefix(text, "after="); ok {
		code, text, _ = strings.Cut(rest, " ")
		if after, err = time.ParseDuration(code); err != nil {
			return nil, err
		}
	}
	pe := classify(status, "", text)
	pe.retryAfter = after
	return pe, nil
}

// panicTool fails inside on purpose, so that a script can show what happens.
func panicTool() *tool {
	return &tool{name: "panic", description: "Fails inside.", schema: json.RawMessage(`{"type":"object"}`),
		run: func(context.Context, *toolCall) toolResult { panic("as the script asked") }}
}

// demo is a model to look around with: it makes a real tool call for
// "run: COMMAND" and "read: PATH", reports the result, and otherwise answers
// with a few words.
type demo struct{}

func (demo) call(ctx context.Context, r *request, on func(delta)) (*Message, error) {
	m := &Message{Role: "assistant", Time: time.Now(), Provider: r.model.Provider, Model: r.model.ID, Stop: "end_turn"}
	a := &assembler{msg: m, on: on}
	defer a.finish()
	last := r.messages[len(r.messages)-1]
	text := strings.TrimSpace(last.text())
	arg := func(prefix string) (string, bool) {
		s, ok := strings.CutPrefix(text, prefix)
		return strings.TrimSpace(s), ok && last.Role == "user"
	}
	say := "This is zot's scripted provider: no model, no network. I can make real tool calls: send \"run: ls\" or \"read: go.mod\"."
	command, isRun := arg("run:")
	path, isRead := arg("read:")
	switch {
	case isRun:
		say = "I'll run that."
	case isRead:
		say = "I'll read that."
	case last.Role == "tool" && last.IsError:
		say = "The tool failed:\n\n" + shorten(text, 2000)
	case last.Role == "tool":
		say = "The tool returned:\n\n" + shorten(text, 2000)
	case strings.HasPrefix(text, "<session>"):
		say = "## Goal\nLooking around with the scripted provider.\n\n## Next steps\nnone"
	}
	for _, word := range strings.SplitAfter(say, " ") {
		if err := a.play(ctx, r, step{verb: "text", arg: word}); err != nil {
			return m, err
		}
		if err := a.play(ctx, r, step{verb: "delay", arg: "5ms"}); err != nil {
			return m, err
		}
	}
	id := fmt.Sprintf("demo_%d", len(r.messages)) // unique in the transcript
	if isRun || isRead {
		name, args := "bash", map[string]string{"command": command}
		if isRead {
			name, args = "read", map[string]string{"path": path}
		}
		i := a.start(Block{Type: "tool_call", ID: id, Name: name})
		a.add(i, encode(args))
		m.Stop = "tool_use"
	}
	input := len(r.system)
	for _, message := range r.messages {
		input += estimate(message) * charsPerToken
	}
	m.Usage = &Usage{Input: input / charsPerToken, Output: cmp.Or(len(say)/charsPerToken, 1)}
	return m, nil
}
