package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func say(role string, blocks ...Block) *Message { return &Message{Role: role, Content: blocks} }

func says(text string) Block { return Block{Type: "text", Text: text} }

// compaction is the message that a compaction leaves.
func compaction(text string, tail ...*Message) *Message {
	m := say("user", says(compactedMessage(text, nil, tail, time.Time{}).text()))
	m.raw = json.RawMessage(`{"role":"custom","customType":"compaction","display":false}`)
	return m
}

// A transcript as text, every kind of section once.
func TestSerializeLines(t *testing.T) {
	lines, protected := serializeLines([]*Message{
		compaction("[User]: before\n(filtered 7 lines)\n[Assistant]: done"),
		say("user", says("look at\nthis"), Block{Type: "image", Data: "x"}),
		say("assistant",
			Block{Type: "thinking", Text: "hm"},
			Block{Type: "thinking", Redacted: true, Signature: "secret"},
			says("I look."),
			Block{Type: "tool_call", Name: "read", Args: json.RawMessage(`{"path":"a\nb, c","limit":1.0,"q":{"x":[1]}}`)},
			Block{Type: "tool_call", Name: "list", Args: json.RawMessage(`{}`)},
			Block{Type: "opaque", Signature: "secret"}),
		say("tool", says("äöüß\r"), Block{Type: "image"}),
		say("tool", says("012345678901234567")),
		say("tool"),
		say("assistant", says("")),
	}, 14)
	want := `[User]: before
(filtered 7 lines)
[Assistant]: done

[User]: look at
this
[image]

[Assistant thinking]: hm

[Assistant]: I look.

[Assistant tool calls]: read(path="a\nb, c", limit=1.0, q={"x":[1]}); list()

[Tool result]: äöüß` + "\r" + `
[image]

[Tool result]: 01234567890123

[... 4 more characters truncated]`
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if slices.Contains(protected, true) {
		t.Error("protected without a tag")
	}
	if lines, _ := serializeLines([]*Message{say("tool", says(strings.Repeat("x", 99)))}, 0); lines[0] != "[Tool result]: "+strings.Repeat("x", 99) {
		t.Errorf("cut without a limit: %s", lines)
	}
	if lines, protected := serializeLines(nil, 0); len(lines)+len(protected) > 0 {
		t.Errorf("lines of nothing: %q", lines)
	}
}

// Protected lines are written with a * here.
func TestKeepContext(t *testing.T) {
	show := func(messages ...*Message) string {
		lines, protected := serializeLines(messages, 0)
		for i, line := range lines {
			if protected[i] {
				lines[i] = "*" + line
			}
		}
		return strings.Join(lines, "\n")
	}
	for _, test := range []struct{ name, got, want string }{
		{"a span with its tags",
			show(say("user", says("a\n<keepContext>\nb\n</keepContext>\nc"))),
			"[User]: a\n*<keepContext>\n*b\n*</keepContext>\nc"},
		{"behind a header, in any case, blanks around it",
			show(say("user", says("<KEEPcontext> \nb\n\t</KeepContext>\nc"))),
			"*[User]: <KEEPcontext> \n*b\n*\t</KeepContext>\nc"},
		{"on one line",
			show(say("assistant", says("a\n<keepContext>b</keepContext>\nc"))),
			"[Assistant]: a\n*<keepContext>b</keepContext>\nc"},
		{"the tag must be the whole line",
			show(say("user", says("a <keepContext>\nb\n<keepContext> c\n</keepContext>"))),
			"[User]: a <keepContext>\nb\n<keepContext> c\n</keepContext>"},
		{"not closed: to the end of the message, not further",
			show(say("assistant", says("<keepContext>\nb"), Block{Type: "tool_call", Name: "ls", Args: json.RawMessage(`{}`)}), say("user", says("c"))),
			"*[Assistant]: <keepContext>\n*b\n*\n*[Assistant tool calls]: ls()\n\n[User]: c"},
		{"not in tool results",
			show(say("tool", says("<keepContext>\nb\n</keepContext>"))),
			"[Tool result]: <keepContext>\nb\n</keepContext>"},
		{"the same in what a compaction left",
			show(compaction("[Assistant]: <keepContext>\nb\n\n[Assistant tool calls]: ls()\n\n[Tool result]: <keepContext>\nc\n\n[User]: d\n<keepContext>\ne\n</keepContext>\nf")),
			"*[Assistant]: <keepContext>\n*b\n*\n*[Assistant tool calls]: ls()\n*\n[Tool result]: <keepContext>\nc\n\n[User]: d\n*<keepContext>\n*e\n*</keepContext>\nf"},
		{"a marker may hide a header",
			show(compaction("[User]: <keepContext>\na\n(filtered 9 lines)\nb\n\n[Tool result]: c\n(filtered 9 lines)\n<keepContext>\nd")),
			"*[User]: <keepContext>\n*a\n(filtered 9 lines)\nb\n\n[Tool result]: c\n(filtered 9 lines)\n*<keepContext>\n*d"},
	} {
		if test.got != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", test.name, test.got, test.want)
		}
	}
}

func TestTailStart(t *testing.T) {
	messages := []*Message{say("user", says("1")), say("assistant", says("2")), say("assistant"), say("tool", says("3"))}
	for preserve, want := range []int{4, 3, 1, 0, 0} {
		if got := tailStart(messages, preserve); got != want {
			t.Errorf("preserve %d: %d, want %d", preserve, got, want)
		}
	}
}

func TestPlanRequest(t *testing.T) {
	lines := strings.Split("[User]: fix\n<keepContext>\nx\n</keepContext>\n\n[Assistant]: ok\na\nb\nc", "\n")
	protected := make([]bool, len(lines))
	protect(lines, protected, false)
	user := planRequest(lines, protected, 0.5, "fix <it>")
	if !strings.Contains(planSystem, "120,164\n7,7\n") {
		t.Errorf("no example of a record:\n%s", planSystem)
	}
	for _, want := range []string{"<transcript>\n1→[User]: fix\n2→<keepContext>\n", "\n5→\n6→", "\n9→c\n</transcript>", "<query>\nfix <it>\n</query>",
		"has 9 lines. Keep about 5 of them: name ranges of about 4 lines", "those that you keep: 2,4\n"} {
		if !strings.Contains(user, want) {
			t.Errorf("no %q in\n%s", want, user)
		}
	}
	if user := planRequest(lines, make([]bool, len(lines)), 0.5, ""); strings.Contains(user, "protected") {
		t.Errorf("speaks of protected lines where there are none:\n%s", user)
	}
}

func TestParsePlan(t *testing.T) {
	for _, test := range []struct {
		text string
		cut  bool
		want []lineRange // nil: an error
	}{
		{"3,5\n9,9\n", false, []lineRange{{2, 5}, {8, 9}}},
		{"3,5\n9,9", false, []lineRange{{2, 5}, {8, 9}}},
		{"\n3,5\n\n", false, []lineRange{{2, 5}}},
		{"5,3", false, []lineRange{{2, 5}}},                                  // swapped
		{"0,2\n8,99999999999999999999", false, []lineRange{{0, 2}, {7, 10}}}, // clamped
		{"11,20\n1,1\n0,0", false, []lineRange{{0, 1}}},                      // of these nothing is left
		{"3,5\n7,8\n1", true, []lineRange{{2, 5}, {6, 8}}},                   // the last may have been 1,10
		{"3,5\n7,8", true, []lineRange{{2, 5}}},
		{"3,5", true, nil},
		{"3,5\nx\n7", true, nil},
		{"", false, nil},
		{"3,5\nthat is all", false, nil},
		{"```\n3,5\n```", false, nil},
		{"3, 5", false, nil},
		{"3-5", false, nil},
		{"03,5", false, nil},
		{"-3,5", false, nil},
		{"+3,5", false, nil},
		{"3,5\n\n7,8", false, nil},
		{"3,5\r\n7,8", false, nil},
		{"3,5,", false, nil},
		{"3,5.0", false, nil},
	} {
		got, err := parsePlan(test.text, 10, test.cut)
		if (err != nil) != (test.want == nil) || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%q, cut %t: %v, %v, want %v", test.text, test.cut, got, err, test.want)
		}
	}
	_, err := parsePlan("3,5\nSure! Here are the lines", 10, false)
	if err == nil || !strings.Contains(err.Error(), "Sure! Here") {
		t.Errorf("the error does not show the bad line: %v", err)
	}
}

func TestDeletions(t *testing.T) {
	lines := strings.Split("a\nb\nc\n(filtered 4 lines)\ne\nf\ng\nh\n(filtered 2 lines)\nj", "\n")
	for _, test := range []struct {
		name      string
		protected []int
		head      int
		ranges    []lineRange
		ratio     float64
		want      []lineRange
	}{
		{"sorted, joined where they touch or overlap", nil, 0, []lineRange{{6, 8}, {5, 7}, {0, 1}, {1, 2}}, 0, []lineRange{{0, 2}, {5, 9}}},
		{"split around protected lines", []int{1, 6}, 0, []lineRange{{0, 3}, {5, 8}}, 0, []lineRange{{0, 1}, {2, 4}, {5, 6}, {7, 9}}},
		{"the marker between two is taken in", nil, 0, []lineRange{{2, 3}, {4, 5}}, 0, []lineRange{{2, 5}}},
		{"a protected one is not", []int{3}, 0, []lineRange{{2, 3}, {4, 5}}, 0, []lineRange{{2, 3}, {4, 5}}},
		{"a marker alone is no deletion", nil, 0, []lineRange{{3, 4}}, 0, nil},
		{"only protected lines", []int{0, 1}, 0, []lineRange{{0, 2}}, 0, nil},
		{"up to the target, the most deletable first", nil, 0, []lineRange{{5, 8}, {0, 3}, {4, 5}}, 0.5, []lineRange{{0, 4}, {5, 9}}},
		{"protected lines count as kept", []int{0, 1, 2}, 0, []lineRange{{0, 3}, {4, 5}, {5, 6}}, 0.9, []lineRange{{3, 5}}},
		{"nothing may go", nil, 0, []lineRange{{0, 3}}, 1, nil},
		{"the head that the planner did not see goes, the target is of the rest", []int{1}, 4, []lineRange{{1, 4}, {4, 6}}, 0.5, []lineRange{{0, 1}, {2, 4}, {5, 9}}},
		{"all without a plan", []int{4}, 10, nil, 0.5, []lineRange{{0, 4}, {5, 10}}},
	} {
		protected := make([]bool, len(lines))
		for _, i := range test.protected {
			protected[i] = true
		}
		if got := deletions(lines, protected, test.head, test.ranges, test.ratio); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

func TestRenderLines(t *testing.T) {
	lines := strings.Split("a\nb\n(filtered 4 lines)\nd\ne\nf", "\n")
	text, stats := render(lines, []lineRange{{1, 4}, {5, 6}})
	if want := "a\n(filtered 6 lines)\ne\n(filtered 1 lines)"; text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	stats.measure(1000, text, []*Message{say("user", says(strings.Repeat("x", 400)))})
	if want := (lineStats{linesBefore: 6, linesDeleted: 4, linesKept: 2, rangeCount: 2, tokensBefore: 1000, tokensAfter: 11 + 104, percentReduction: 88.5}); stats != want {
		t.Errorf("%+v, want %+v", stats, want)
	}
}

// Many conversations are compacted again and again with plans at random.
// Whatever is planned, the kept lines are those of the conversation, in order;
// the markers stand for all others; and what is protected stays.
func TestCompactLinesRepeatedly(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	words := []string{"", "x", "a b", "  indented\t", "(filtered)", "filtered 3 lines", "é\r", "<keepContext>", "<keepContext>", "</keepContext>", "<keepContext>1</keepContext>"}
	for range 2000 {
		serial := 0
		message := func() *Message {
			var text []string
			for range 1 + random.IntN(8) {
				line := words[random.IntN(len(words))]
				if !strings.Contains(line, "keepContext") { // then every line is another one
					line = fmt.Sprint(line, " ", serial)
					serial++
				}
				text = append(text, line)
			}
			role := []string{"user", "assistant", "assistant", "tool"}[random.IntN(4)]
			if i := random.IntN(len(text)); role == "assistant" && i > 0 {
				return say(role, Block{Type: "thinking", Text: strings.Join(text[:i], "\n")}, says(strings.Join(text[i:], "\n")))
			}
			return say(role, says(strings.Join(text, "\n")))
		}
		var history []*Message // as if nothing was ever deleted
		var messages []*Message
		var kept []string // lines that are protected by their message
		for range 1 + random.IntN(5) {
			for range 1 + random.IntN(6) {
				m := message()
				history, messages = append(history, m), append(messages, m)
				lines, protected := serializeLines([]*Message{m}, 0)
				for i, line := range lines {
					if protected[i] {
						kept = append(kept, line)
					}
				}
			}
			lines, protected := serializeLines(messages, 0)
			if text, stats := render(lines, nil); text != strings.Join(lines, "\n") || stats.linesKept != len(lines) {
				t.Fatal("rendering without a deletion changes something")
			}
			var ranges []lineRange
			head := random.IntN(2) * random.IntN(len(lines))
			for range random.IntN(6) {
				from := random.IntN(len(lines) - head)
				ranges = append(ranges, lineRange{from, from + 1 + random.IntN(len(lines)-head-from)})
			}
			del := deletions(lines, protected, head, ranges, random.Float64())
			text, _ := render(lines, del)
			messages = []*Message{compaction(text)}
		}

		all, _ := serializeLines(history, 0)
		left, _ := serializeLines(messages, 0)
		at := 0
		for i, line := range left {
			if n := filtered(line); n > 0 {
				if i > 0 && filtered(left[i-1]) > 0 {
					t.Fatalf("two markers in a row:\n%s", strings.Join(left, "\n"))
				}
				at += n
			} else if at < len(all) && all[at] == line {
				at++
			} else {
				t.Fatalf("line %d is none of the conversation or in the wrong place: %q\n%s", i+1, line, strings.Join(left, "\n"))
			}
		}
		if at != len(all) {
			t.Fatalf("the markers and lines stand for %d lines of %d", at, len(all))
		}
		for _, line := range kept {
			if !slices.Contains(left, line) {
				t.Fatalf("protected, but gone: %q\n%s", line, strings.Join(left, "\n"))
			}
		}
	}
}

// The tail that stays is in the message of the compaction, and the next one
// takes it up from there.
func TestCompactedText(t *testing.T) {
	call := say("assistant", Block{Type: "tool_call", Name: "ls", Args: json.RawMessage(`{}`)})
	result := say("tool", says(strings.Repeat("x", linesResult+1)))
	m := compaction("[User]: a\n(filtered 9 lines)", call, result)
	if text := m.text(); !strings.HasPrefix(text, linesHeader+"\n\n[User]: a\n(filtered 9 lines)\n\n[Assistant tool calls]: ls()\n\n[Tool result]: xxx") {
		t.Errorf("%.300s", text)
	}
	lines, _ := serializeLines([]*Message{m}, linesResult)
	if want := []string{"[User]: a", "(filtered 9 lines)", "", "[Assistant tool calls]: ls()", "", "[Tool result]: " + result.text()}; !slices.Equal(lines, want) {
		t.Errorf("%.300q", lines)
	}
	if m.text() != compactedMessage(strings.Join(lines, "\n"), nil, nil, time.Time{}).text() {
		t.Error("not the same when nothing was deleted")
	}
}
