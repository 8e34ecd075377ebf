//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// client drives one zot.
type client struct {
	protocol, dir string
	cmd           *exec.Cmd
	in            io.WriteCloser
	out           *os.File
	stderr        *os.File
	random        *rand.Rand
	ended         chan struct{} // closed when the output has ended
	background    bool          // commands leave processes behind

	prompts, aborts, reloads, asked int

	mu        sync.Mutex
	changed   chan struct{} // capacity 1: a frame came
	slow      time.Duration // how long the reader sleeps before the next frame
	frames    int
	responses map[string]frame // by id
	accepted  int              // prompts that must have a terminal event
	terminal  map[string]int   // zot: by prompt id
	finished  int              // terminal events
}

type frame map[string]any

// patience is how long anything may take on a machine that is busy.
const patience = time.Minute

func newClient(zot, dir, protocol, mark, url string, seed uint64) *client {
	c := &client{protocol: protocol, dir: dir, random: rand.New(rand.NewPCG(seed, 1)), ended: make(chan struct{}),
		changed: make(chan struct{}, 1), responses: map[string]frame{}, terminal: map[string]int{}}
	home, ext := filepath.Join(dir, "home"), filepath.Join(dir, "extension")
	self, err := os.Executable()
	check(err)
	for path, text := range map[string]string{
		filepath.Join(home, "settings.json"): `{"retry":{"baseDelayMs":20}}`,
		filepath.Join(ext, "extension.json"): fmt.Sprintf(`{"name":"mortal","exec":%q,"args":["extension"]}`, self),
	} {
		check(os.MkdirAll(filepath.Dir(path), 0o700))
		check(os.WriteFile(path, []byte(text), 0o600))
	}
	args := []string{"rpc"}
	if protocol == "atomic" {
		args = []string{"--mode", "rpc"}
	}
	c.cmd = exec.Command(zot, append(args, "--provider", "anthropic", "--model", "claude-sonnet-4-5", "--api-key", "sk-secret-key",
		"--base-url", url, "--ext", ext, "--cwd", dir)...)
	c.cmd.Env = append(os.Environ(), "ZOT_HOME="+home, mark)
	c.stderr, err = os.Create(filepath.Join(dir, "stderr"))
	check(err)
	c.cmd.Stderr = c.stderr
	c.in, err = c.cmd.StdinPipe()
	check(err)
	r, w, err := os.Pipe()
	check(err)
	c.out, c.cmd.Stdout = r, w
	check(c.cmd.Start())
	w.Close()
	go c.read() // ends with the output
	return c
}

// read takes every frame.
func (c *client) read() {
	defer close(c.ended)
	lines := bufio.NewReaderSize(c.out, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var f frame
		if err := json.Unmarshal(line, &f); err != nil {
			fail("not a frame: %.200q: %v", line, err)
		}
		c.mu.Lock()
		c.take(f)
		slow := c.slow
		c.slow = 0
		c.mu.Unlock()
		select {
		case c.changed <- struct{}{}:
		default:
		}
		time.Sleep(slow)
	}
}

// take counts a frame. c is locked.
func (c *client) take(f frame) {
	c.frames++
	switch id, _ := f["id"].(string); f["type"] {
	case "response":
		if c.responses[id] != nil {
			fail("two responses for %q: %v", id, f)
		}
		c.responses[id] = f
		if f["success"] == true && f["command"] == "prompt" {
			c.accepted++
		}
	case "done":
		prompt, _ := f["prompt_id"].(string)
		if c.terminal[prompt]++; c.terminal[prompt] > 1 {
			fail("a second terminal event of %q", prompt)
		}
		c.finished++
	case "agent_settled":
		if c.finished++; c.finished > c.accepted {
			fail("a terminal event of no prompt")
		}
	}
}

// send sends a command and returns its id.
func (c *client) send(kind, fields string) (id string) {
	c.asked++
	id = fmt.Sprintf("%s%d", kind, c.asked)
	if _, err := fmt.Fprintf(c.in, `{"id":%q,"type":%q%s}`+"\n", id, kind, fields); err != nil {
		c.fail("sending %s: %v", kind, err)
	}
	return id
}

// await waits until something holds, and reports whether it did so in time.
func (c *client) await(limit time.Duration, holds func() bool) bool {
	late := time.After(limit)
	for {
		c.mu.Lock()
		ok := holds()
		c.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-c.changed:
		case <-c.ended:
			c.fail("the output ended")
		case <-late:
			return false
		}
	}
}

// ask sends a command and returns the data of its response.
func (c *client) ask(kind, fields string) (data frame) {
	id := c.send(kind, fields)
	if !c.await(patience, func() bool { return c.responses[id] != nil }) {
		c.fail("no response to %s", kind)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.responses[id]
	if r["success"] != true {
		fail("%s: %v", kind, r["error"])
	}
	data, _ = r["data"].(map[string]any)
	return data
}

// talk sends prompts and sees each to its end. Now and then the transcript is
// checked, the conversation begins anew, and the extension is revived.
func (c *client) talk(prompts int) {
	for end := c.prompts + prompts; c.prompts < end; {
		burst := 1 // the Atomic protocol queues messages, not runs
		if c.protocol == "zot" && c.random.IntN(4) == 0 {
			burst = min(1+c.random.IntN(4), end-c.prompts)
		}
		for range burst {
			c.send("prompt", c.prompt())
			c.prompts++
		}
		if c.random.IntN(20) == 0 { // a slow reader
			c.mu.Lock()
			c.slow = time.Duration(c.random.IntN(300)) * time.Millisecond
			c.mu.Unlock()
		}
		if c.random.IntN(3) == 0 {
			time.Sleep(time.Duration(c.random.IntN(40)) * time.Millisecond)
			c.abort()
		}
		// What hangs is aborted; what is queued behind it may hang, too.
		for tries := 0; !c.await(250*time.Millisecond, c.idle); tries++ {
			if tries == 200 {
				c.fail("prompts without a terminal event: %d of %d", c.accepted-c.finished, c.accepted)
			}
			c.abort()
		}
		if c.random.IntN(40) == 0 {
			c.renew()
		}
	}
	c.renew()
}

// idle reports whether every prompt was answered and has ended. c is locked.
func (c *client) idle() bool { return c.accepted == c.prompts && c.finished == c.accepted }

func (c *client) prompt() string {
	if c.background {
		return `,"message":"leave a process in the background"`
	}
	return fmt.Sprintf(`,"message":"prompt %d"`, c.prompts)
}

func (c *client) abort() {
	c.aborts++
	c.send("abort", "")
}

// renew checks the transcript, begins a new one and starts the extension anew.
func (c *client) renew() {
	if state := c.ask("get_state", ""); state["busy"] == true || state["isStreaming"] == true {
		c.fail("busy behind the terminal event: %v", state)
	}
	list, _ := c.ask("get_messages", "")["messages"].([]any)
	if problem := checkTranscript(list); problem != "" {
		c.fail("the transcript: %s", problem)
	}
	c.reloads++
	if c.protocol == "zot" {
		c.ask("clear", "")
		c.ask("reload_ext", "")
	} else {
		c.ask("new_session", "")
		c.ask("reload", "")
	}
	c.mu.Lock()
	for id, n := range c.terminal {
		if n != 1 || c.responses[id] == nil {
			fail("%d terminal events of %q", n, id)
		}
	}
	c.mu.Unlock()
}

// checkTranscript returns what is wrong with messages of either protocol: each
// tool call needs its result right behind its message.
func checkTranscript(messages []any) string {
	var open []string // calls without a result
	for n, m := range messages {
		message, _ := m.(map[string]any)
		blocks, _ := message["content"].([]any)
		var calls, results []string
		if id, ok := message["toolCallId"].(string); ok {
			results = append(results, id)
		}
		for _, b := range blocks {
			block, _ := b.(map[string]any)
			id, _ := block["id"].(string)
			switch block["type"] {
			case "tool_call", "toolCall", "tool_use":
				calls = append(calls, id)
			case "tool_result":
				for _, key := range []string{"call_id", "tool_use_id"} {
					if id, ok := block[key].(string); ok {
						results = append(results, id)
					}
				}
			case "text":
				if text, _ := block["text"].(string); strings.TrimSpace(text) == "" {
					return fmt.Sprintf("message %d has a blank text", n)
				}
			}
		}
		for _, id := range results {
			if len(open) == 0 || open[0] != id {
				return fmt.Sprintf("message %d has the result of %q, open are %q", n, id, open)
			}
			open = open[1:]
		}
		if len(results) == 0 && len(open) > 0 {
			return fmt.Sprintf("message %d comes before the results of %q", n, open)
		}
		open = append(open, calls...)
	}
	if len(open) > 0 {
		return fmt.Sprintf("no results of %q", open)
	}
	return ""
}

// measure looks at the process when it has come to rest.
func (c *client) measure() usage {
	time.Sleep(300 * time.Millisecond)
	return usageOf(c.cmd.Process.Pid)
}

var goroutine = regexp.MustCompile(`(?m)^goroutine \d+ `)

// dump ends the process by SIGQUIT and counts the goroutines that it had.
func (c *client) dump() int {
	time.Sleep(300 * time.Millisecond)
	c.cmd.Process.Signal(syscall.SIGQUIT)
	c.exit(2)
	text, err := os.ReadFile(c.stderr.Name())
	check(err)
	n := len(goroutine.FindAll(text, -1))
	if n == 0 {
		c.fail("SIGQUIT showed no goroutines")
	}
	return n
}

// leave stops reading for good in the middle of an answer.
func (c *client) leave() {
	c.send("prompt", `,"message":"a long answer"`)
	c.await(patience, func() bool { return c.frames > 10 })
	c.out.Close()
	select {
	case <-c.ended:
	case <-time.After(patience):
		c.fail("our own reader did not end")
	}
}

// exit waits for the end of the process.
func (c *client) exit(code int) {
	done := make(chan struct{})
	go func() { c.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		c.fail("it does not end")
	}
	if got := c.cmd.ProcessState.ExitCode(); got != code {
		c.fail("exit code %d, want %d", got, code)
	}
	c.in.Close()
	c.out.Close()
}

// fail ends it all with the last words of the process.
func (c *client) fail(format string, values ...any) {
	text, _ := os.ReadFile(c.stderr.Name())
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	c.cmd.Process.Signal(syscall.SIGTERM)
	fail("%s: %s\nstderr:\n%s", c.protocol, fmt.Sprintf(format, values...), strings.Join(slices.Compact(lines[max(0, len(lines)-40):]), "\n"))
}
