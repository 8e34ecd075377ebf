// guard watches every tool call and refuses shell commands that look dangerous.
// It is a seat belt, not a sandbox: a list of patterns stops slips, not intent.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"regexp"
	"strings"
	"sync/atomic"

	"zot/packages/agent/ext"
)

// dangers are what commands must not match; the name is what the model is told.
var dangers = []struct {
	name    string
	matches func(command string) bool
}{
	{"rm -rf", removesAll},
	{"mkfs", regexp.MustCompile(`\bmkfs\b`).MatchString},
	{"write to a device", regexp.MustCompile(`(\bof=|>\s*)/dev/(sd|hd|vd|nvme|disk|mmcblk)`).MatchString},
	{"curl | sh", regexp.MustCompile(`\b(curl|wget)\b[^;&]*\|\s*(sudo\s+)?(ba|da|z)?sh\b`).MatchString},
	{"git push --force", regexp.MustCompile(`\bgit\b[^;&|]*\bpush\b[^;&|]*\s(--force|-f)(\s|$)`).MatchString},
}

var rm = regexp.MustCompile(`\brm\s[^;&|\n]*`)

// removesAll finds an rm that is both recursive and forced, however it is spelt.
func removesAll(command string) bool {
	for _, call := range rm.FindAllString(command, -1) {
		recursive, force := false, false
		for _, word := range strings.Fields(call) {
			short := strings.HasPrefix(word, "-") && !strings.HasPrefix(word, "--")
			recursive = recursive || word == "--recursive" || short && strings.ContainsAny(word, "rR")
			force = force || word == "--force" || short && strings.Contains(word, "f")
		}
		if recursive && force {
			return true
		}
	}
	return false
}

func main() {
	var seen, refused atomic.Int64
	e := ext.New("guard", "1.0.0")

	// Observing does not hold up the agent.
	e.On("tool_call", func(v ext.Event) {
		seen.Add(1)
		e.Logf("%s %s", v.ToolName, v.ToolArgs)
	})

	// Intercepting does: the call waits for this word.
	e.InterceptToolCall(func(tool string, args json.RawMessage) (bool, string) {
		reason := danger(tool, args)
		if reason == "" {
			return true, ""
		}
		refused.Add(1)
		e.Logf("refused %s %s: %s", tool, args, reason)
		return false, reason
	})

	e.Command("guard", "what the guard has seen", func(string) ext.Response {
		return ext.Display(fmt.Sprintf("%d tool calls seen, %d refused", seen.Load(), refused.Load()))
	})

	if err := e.Run(); err != nil {
		log.Fatal(err)
	}
}

// danger returns why a call must not run, "" if it may. What it cannot read it
// does not let pass.
func danger(tool string, args json.RawMessage) string {
	if tool != "bash" {
		return ""
	}
	var in struct{ Command string }
	if err := json.Unmarshal(args, &in); err != nil {
		return fmt.Sprintf("refused: the command cannot be read: %v", err)
	}
	for _, d := range dangers {
		if d.matches(in.Command) {
			return fmt.Sprintf("refused: matches danger pattern %q", d.name)
		}
	}
	return ""
}
