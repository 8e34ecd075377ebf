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
//	stop length                  the stop reason (end_turn, tool_use, length, pause_turn);
//	                             otherwise tool_use or end_turn by what was said
//	error 529 Overloaded         the call fails with this HTTP status
//	error 429 after=3s Slow down ... and asks to wait
//	cut                          the connection breaks
//	hang                         nothing more comes until the run is aborted
//	repeat 1000 text x           a step many times
//
// The model id is the path of a script (relative to where zot was started), or
// "demo". A model call for which there is no turn fails. With a script there is a
// tool named panic, which fails inside.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
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
	next  int // used by the runner only
}

// step does one line of a script to the answer in a.
type step func(ctx context.Context, r *request, a *assembler) error

// do takes the step, unless ctx has ended.
func (st step) do(ctx context.Context, r *request, a *assembler) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return st(ctx, r, a)
}

// newScript reads a script file, or returns the built-in demo.
func newScript(model string) (provider, error) {
	if model == "demo" {
		return demo{}, nil
	}
	data, err := readRegular(model)
	if err != nil {
		return nil, fmt.Errorf("the model of --provider script is \"demo\" or a script file: %w", err)
	}
	s := &scriptProvider{path: model}
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
		case line == "turn":
			s.turns = append(s.turns, nil)
		case len(s.turns) == 0:
			return nil, fmt.Errorf("%s:%d: a script begins with \"turn\"", model, n)
		default:
			st, err := parseStep(line)
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", model, n, err)
			}
			last := len(s.turns) - 1
			s.turns[last] = append(s.turns[last], st)
		}
	}
	return s, nil
}

func parseStep(line string) (step, error) {
	verb, arg, _ := strings.Cut(line, " ")
	arg = strings.TrimSpace(arg)
	switch verb {
	case "text", "think":
		if strings.HasPrefix(arg, `"`) {
			if err := json.Unmarshal([]byte(arg), &arg); err != nil {
				return nil, fmt.Errorf("%s: %w", verb, err)
			}
		}
		kind := map[string]string{"text": "text", "think": "thinking"}[verb]
		return func(_ context.Context, _ *request, a *assembler) error { a.add(a.last(kind), []byte(arg)); return nil }, nil
	case "call":
		name, args, _ := strings.Cut(arg, " ")
		id := ""
		if rest, ok := strings.CutPrefix(args, "id="); ok {
			id, args, _ = strings.Cut(rest, " ")
		}
		return func(_ context.Context, r *request, a *assembler) error {
			// unique in the transcript, unless the script says otherwise
			i := a.start(Block{Type: "tool_call", ID: cmp.Or(id, fmt.Sprintf("call_%d_%d", len(r.messages), len(a.msg.Content))), Name: name})
			a.add(i, []byte(args))
			a.end(i)
			return nil
		}, nil
	case "delay":
		d, err := time.ParseDuration(arg)
		if err != nil {
			err = fmt.Errorf("delay: %w", err)
		}
		return func(ctx context.Context, r *request, _ *assembler) error { r.pause(); return sleep(ctx, d) }, err
	case "hang":
		return func(ctx context.Context, r *request, _ *assembler) error {
			r.pause()
			<-ctx.Done()
			return context.Cause(ctx)
		}, nil
	case "usage":
		u, err := parseUsage(arg)
		return func(_ context.Context, _ *request, a *assembler) error { own := u; a.msg.Usage = &own; return nil }, err
	case "stop":
		if !slices.Contains([]string{"end_turn", "tool_use", "length", "pause_turn"}, arg) {
			return nil, fmt.Errorf("unknown stop reason %q (known: end_turn, tool_use, length, pause_turn)", arg)
		}
		return func(_ context.Context, _ *request, a *assembler) error { a.msg.Stop = arg; return nil }, nil
	case "cut":
		return func(context.Context, *request, *assembler) error { return truncated() }, nil
	case "error":
		pe, err := scriptError(arg)
		return func(context.Context, *request, *assembler) error { return pe }, err
	case "repeat":
		times, rest, _ := strings.Cut(arg, " ")
		n, err := strconv.Atoi(times)
		if err != nil {
			return nil, fmt.Errorf("repeat needs a number, not %q", times)
		}
		st, err := parseStep(rest)
		return func(ctx context.Context, r *request, a *assembler) error {
			for i := range n {
				if i%256 == 255 {
					r.pause()
				}
				if err := st.do(ctx, r, a); err != nil {
					return err
				}
			}
			return nil
		}, err
	}
	return nil, fmt.Errorf("unknown step %q (known: turn, text, think, call, delay, hang, usage, stop, cut, error, repeat)", verb)
}

// call plays the next turn.
func (s *scriptProvider) call(ctx context.Context, r *request, on func(delta)) (*Message, error) {
	m := assistantMessage(r.model)
	n := s.next
	s.next++
	if n >= len(s.turns) {
		return m, &providerError{message: fmt.Sprintf("%s has no turn %d", s.path, n+1)}
	}
	a := &assembler{msg: m, on: on}
	defer a.finish()
	for _, st := range s.turns[n] {
		if err := st.do(ctx, r, a); err != nil {
			return m, err
		}
	}
	a.finish()
	if m.Stop == "" {
		m.Stop = "end_turn"
		if m.has("tool_call") {
			m.Stop = "tool_use"
		}
	}
	return m, context.Cause(ctx)
}

func parseUsage(arg string) (u Usage, err error) {
	for f := range strings.FieldsSeq(arg) {
		k, v, _ := strings.Cut(f, "=")
		n, err := strconv.Atoi(v)
		if err != nil {
			return u, fmt.Errorf("usage: %q is not name=number", f)
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
			return u, fmt.Errorf("usage: unknown count %q", k)
		}
	}
	return u, nil
}

// scriptError is a failed call as a server of the status would make it.
func scriptError(arg string) (*providerError, error) {
	code, text, _ := strings.Cut(arg, " ")
	status, err := strconv.Atoi(code)
	if err != nil {
		return nil, fmt.Errorf("error needs an HTTP status, not %q", code)
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
	m := assistantMessage(r.model)
	m.Stop = "end_turn"
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
		a.add(a.last("text"), []byte(word))
		r.pause()
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
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
