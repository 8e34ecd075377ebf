package main

import (
	"strings"
	"testing"
)

// A script that cannot be played is refused with the line and the reason.
func TestScriptErrors(t *testing.T) {
	for line, want := range map[string]string{
		"say hi":                      `unknown step "say" (known: turn, text, `,
		`text "half`:                  "text: ",
		"delay soon":                  "delay: ",
		"usage input=many":            `usage: "input=many" is not a count=number`,
		"usage tokens=1":              `usage: "tokens=1" is not a count=number`,
		"stop now":                    `stop: unknown reason "now" (known: end_turn, `,
		"error busy":                  `error: "busy" is no HTTP status`,
		"error 429 after=soon x":      "error: ",
		"repeat many text x":          `repeat needs a number, not "many"`,
		"repeat -1 text x":            `repeat needs a number, not "-1"`,
		"repeat 99999999999 text x":   "10000000 steps at the most",
		"repeat 9999 repeat 9999 cut": "10000000 steps at the most",
		"repeat 2 say hi":             `unknown step "say"`,
	} {
		if _, err := parseScript("a.script", "# a comment\nturn\n"+line+"\n"); err == nil || !strings.HasPrefix(err.Error(), "a.script:3: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	if _, err := parseScript("a.script", "text hi\n"); err == nil || err.Error() != `a.script:1: a script begins with "turn"` {
		t.Errorf("no turn: %v", err)
	}
	turns, err := parseScript("a.script", "turn\nrepeat 3 repeat 2 text x\ncut\nturn\n")
	if err != nil || len(turns) != 2 || len(turns[0]) != 7 || len(turns[1]) != 0 {
		t.Errorf("%d turns, %v", len(turns), err)
	}
}
