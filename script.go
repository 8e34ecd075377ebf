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
//	repeat 1000 text x           a step many times, also another repeat
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
	"sync/atomic"
	"time"
)

// scriptProvider answers call after call with turn after turn.
type scriptProvider struct {
	path  string
	turns [][]step
	calls atomic.Int32 // a summary of the session may be made beside a run
}

// step does one line of a script to the answer in a.
type step func(ctx context.Context, r *request, a *assembler) error

// newScript reads a script file, or returns the built-in demo.
func newScript(model string) (provider, error) {
	if model == "demo" {
		return demo{}, nil
	}
	data, err := readRegular(model, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("the model of --provider script is \"demo\" or a script file: %w", err)
	}
	turns, err := parseScript(model, string(data))
	return &scriptProvider{path: model, turns: turns}, err
}

// parseScript returns the steps of each turn.
func parseScript(path, text string) (turns [][]step, err error) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
		case line == "turn":
			turns = append(turns, nil)
		case len(turns) == 0:
			return nil, fmt.Errorf("%s:%d: a script begins with \"turn\"", path, n)
		default:
			steps, err := parseStep(line)
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, n, err)
			}
			turns[len(turns)-1] = append(turns[len(turns)-1], steps...)
		}
	}
	return turns, nil
}

var stopReasons = []string{"end_turn", "tool_use", "length", "pause_turn"}

// parseStep reads a line: one step, or with repeat many.
func parseStep(line string) (steps []step, err error) {
	verb, arg, _ := strings.Cut(line, " ")
	arg = strings.TrimSpace(arg)
	var do step
	switch verb {
	case "text", "think":
		if strings.HasPrefix(arg, `"`) {
			err = json.Unmarshal([]byte(arg), &arg)
		}
		kind := map[string]string{"text": "text", "think": "thinking"}[verb]
		do = func(_ context.Context, _ *request, a *assembler) error { a.add(a.last(kind), []byte(arg)); return nil }
	case "call":
		name, args, _ := strings.Cut(arg, " ")
		id := ""
		if rest, ok := strings.CutPrefix(args, "id="); ok {
			id, args, _ = strings.Cut(rest, " ")
		}
		do = func(_ context.Context, r *request, a *assembler) error {
			// unique in the transcript, unless the script says otherwise
			i := a.start(Block{Type: "tool_call", ID: cmp.Or(id, fmt.Sprintf("call_%d_%d", len(r.messages), len(a.msg.Content))), Name: name})
			a.add(i, []byte(args))
			a.end(i)
			return nil
		}
	case "delay":
		var d time.Duration
		d, err = time.ParseDuration(arg)
		do = func(ctx context.Context, r *request, _ *assembler) error { r.pause(); return sleep(ctx, d) }
	case "hang":
		do = func(ctx context.Context, r *request, _ *assembler) error {
			r.pause()
			<-ctx.Done()
			return context.Cause(ctx)
		}
	case "usage":
		var u Usage
		u, err = parseUsage(arg)
		do = func(_ context.Context, _ *request, a *assembler) error { a.msg.Usage = new(u); return nil }
	case "stop":
		if !slices.Contains(stopReasons, arg) {
			err = fmt.Errorf("unknown reason %q (known: %s)", arg, strings.Join(stopReasons, ", "))
		}
		do = func(_ context.Context, _ *request, a *assembler) error { a.msg.Stop = arg; return nil }
	case "cut":
		do = func(context.Context, *request, *assembler) error { return truncated() }
	case "error":
		var pe *providerError
		pe, err = scriptError(arg)
		do = func(context.Context, *request, *assembler) error { return pe }
	case "repeat":
		const most = 10_000_000 // steps
		times, rest, _ := strings.Cut(arg, " ")
		if steps, err = parseStep(rest); err != nil {
			return nil, err
		}
		n, err := strconv.Atoi(times)
		if err != nil || n < 0 || n > most/max(1, len(steps)) {
			return nil, fmt.Errorf("repeat needs a number, not %q, and makes %d steps at the most", times, most)
		}
		return slices.Repeat(steps, n), nil
	default:
		return nil, fmt.Errorf("unknown step %q (known: turn, text, think, call, delay, hang, usage, stop, cut, error, repeat)", verb)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", verb, err)
	}
	return []step{do}, err
}

// call plays the next turn.
func (s *scriptProvider) call(ctx context.Context, r *request, on func(delta)) (*Message, error) {
	n := int(s.calls.Add(1))
	if n > len(s.turns) {
		return newAnswer(r, on).msg, &providerError{message: fmt.Sprintf("%s has no turn %d", s.path, n)}
	}
	return play(ctx, r, on, s.turns[n-1])
}

// play takes steps until one fails or ctx ends.
func play(ctx context.Context, r *request, on func(delta), steps []step) (*Message, error) {
	a := newAnswer(r, on)
	defer a.finish()
	for i, do := range steps {
		if i%256 == 255 {
			r.pause()
		}
		if ctx.Err() != nil {
			break
		}
		if err := do(ctx, r, a); err != nil {
			return a.msg, err
		}
	}
	if a.msg.Stop == "" {
		a.msg.Stop = "end_turn"
		if a.msg.has("tool_call") {
			a.msg.Stop = "tool_use"
		}
	}
	return a.msg, context.Cause(ctx)
}

func parseUsage(arg string) (u Usage, err error) {
	var reasoning int
	counts := map[string]*int{"input": &u.Input, "output": &u.Output, "reasoning": &reasoning, "cache_read": &u.CacheRead, "cache_write": &u.CacheWrite}
	for f := range strings.FieldsSeq(arg) {
		name, value, _ := strings.Cut(f, "=")
		n, err := strconv.Atoi(value)
		if err != nil || counts[name] == nil {
			return u, fmt.Errorf("%q is not a count=number (known: input, output, reasoning, cache_read, cache_write)", f)
		}
		*counts[name] = n
		if name == "reasoning" {
			u.Reasoning = &reasoning
		}
	}
	return u, nil
}

// scriptError is a failed call as a server of the status would make it.
func scriptError(arg string) (*providerError, error) {
	code, text, _ := strings.Cut(arg, " ")
	status, err := strconv.Atoi(code)
	if err != nil {
		return nil, fmt.Errorf("%q is no HTTP status", code)
	}
	var after time.Duration
	if rest, ok := strings.CutPrefix(text, "after="); ok {
		code, text, _ = strings.Cut(rest, " ")
		after, err = time.ParseDuration(code)
	}
	pe := classify(status, "", text)
	pe.retryAfter = after
	return pe, err
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
	last := r.messages[len(r.messages)-1]
	text := strings.TrimSpace(last.text())
	_, arg, _ := strings.Cut(text, ":")
	arg = strings.TrimSpace(arg)
	say, call := "This is zot's scripted provider: no model, no network. I can make real tool calls: send \"run: ls\" or \"read: go.mod\".", ""
	switch {
	case last.Role == "tool" && last.IsError:
		say = "The tool failed:\n\n" + shorten(text, 2000)
	case last.Role == "tool":
		say = "The tool returned:\n\n" + shorten(text, 2000)
	case strings.HasPrefix(text, "run:"):
		say, call = "I'll run that.", "call bash "+string(encode(map[string]string{"command": arg}))
	case strings.HasPrefix(text, "read:"):
		say, call = "I'll read that.", "call read "+string(encode(map[string]string{"path": arg}))
	case strings.HasPrefix(text, "<session>"):
		say = "## Goal\nLooking around with the scripted provider.\n\n## Next steps\nnone"
	}
	script := "turn\n"
	for _, word := range strings.SplitAfter(say, " ") {
		script += "text " + string(appendString(nil, word)) + "\ndelay 5ms\n"
	}
	input := len(r.system)
	for _, message := range r.messages {
		input += estimate(message) * charsPerToken
	}
	script += fmt.Sprintf("%s\nusage input=%d output=%d", call, input/charsPerToken, max(1, len(say)/charsPerToken))
	turns, err := parseScript("demo", script)
	if err != nil {
		return newAnswer(r, on).msg, err
	}
	return play(ctx, r, on, turns[0])
}
