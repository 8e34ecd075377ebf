package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// puppet writes an extension that does what the script says (testdata/puppet)
// and returns the flags that load it.
func puppet(t testing.TB, dir, name, script string) []string {
	t.Helper()
	dir = filepath.Join(dir, name)
	write := func(file, text string) {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	write("extension.json", fmt.Sprintf(`{"name":%q,"exec":"puppet"}`, name))
	write("puppet.txt", script)
	return []string{"--ext", dir}
}

// hello, then what the lines say, then ready.
func greeting(lines ...string) string {
	return "say {\"type\":\"hello\",\"name\":\"x\"}\n" + strings.Join(lines, "\n") + "\non hello_ack {\"type\":\"ready\"}\n"
}

func onHello(frame string) string { return "on hello_ack " + frame }

func registers(tool string) string {
	return onHello(fmt.Sprintf(`{"type":"register_tool","name":%q,"description":""}`, tool))
}

// got returns the frames that a puppet was sent, as lines.
func got(t testing.TB, dir, name string) string {
	data, _ := os.ReadFile(filepath.Join(dir, name, "got.txt"))
	return string(data)
}

// awaitFrame waits until a puppet was sent a frame with the text.
func awaitFrame(t testing.TB, dir, name, text string) {
	t.Helper()
	await(t, func() bool { return strings.Contains(got(t, dir, name), text) })
}

// withScript starts zot rpc with a scripted model and more flags.
func withScript(t testing.TB, dir, text string, flags ...string) *proc {
	return startZot(t, dir, nil, append([]string{"rpc", "--provider", "script", "--model", script(t, dir, text)}, flags...)...)
}

// notices returns the messages of ext_notify frames.
func notices(frames []map[string]any) (list []string) {
	for _, f := range frames {
		if f["type"] == "ext_notify" {
			list = append(list, fmt.Sprint(f["level"], ": ", f["message"]))
		}
	}
	return list
}

// finished is what came up to the end of a job, and when that came.
type finished struct {
	frames []map[string]any
	at     time.Time
}

// later reads to the end of the running job in the background, so that tests
// which wait for a time limit can do so together. Its goroutine ends with the
// output at the latest.
func (p *proc) later() <-chan finished {
	done := make(chan finished, 1)
	go func() {
		var r finished
		for line := range p.out {
			var f map[string]any
			json.Unmarshal([]byte(line), &f)
			r.frames = append(r.frames, f)
			if f["type"] == "done" {
				break
			}
		}
		r.at = time.Now()
		done <- r
	}()
	return done
}

// TestHooksWithoutAnswer: who does not answer is not waited for longer than five
// seconds, and the client is told who and what it was.
func TestHooksWithoutAnswer(t *testing.T) {
	t.Parallel()
	type waiting struct {
		start time.Time
		end   <-chan finished
	}
	all := map[string]waiting{}
	for _, event := range subscriptions["intercept"] {
		dir := t.TempDir()
		text := "turn\ntext one\n"
		if event == "tool_call" {
			text += "call read {\"path\":\"mute/puppet.txt\"}\nturn\n"
		}
		p := withScript(t, dir, text, puppet(t, dir, "mute", greeting(onHello(`{"type":"subscribe","intercept":["`+event+`"]}`)))...)
		p.send(`{"type":"get_commands"}`)
		p.until("command", "get_commands") // it has started
		p.send(`{"id":1,"type":"prompt","message":"go"}`)
		all[event] = waiting{time.Now(), p.later()}
	}
	for event, w := range all {
		r := <-w.end
		if took := r.at.Sub(w.start); took < hookWait-100*time.Millisecond || took > hookWait+2*time.Second {
			t.Errorf("%s: took %v", event, took)
		}
		if n := notices(r.frames); len(n) != 1 || !strings.Contains(n[0], "extension mute did not answer within 5s") || !strings.Contains(n[0], event) {
			t.Errorf("%s: notices: %q", event, n)
		}
		if end := r.frames[len(r.frames)-2]; end["stop"] != "end_turn" {
			t.Errorf("%s: the run ended with %v", event, end)
		}
	}
}

// TestAbortOfWaits: an abort ends every wait for an extension at once.
func TestAbortOfWaits(t *testing.T) {
	subscribe := func(event string) string {
		return greeting(onHello(`{"type":"subscribe","intercept":["` + event + `"]}`))
	}
	call := "turn\ncall read {\"path\":\"x\"}\nturn\n"
	for name, c := range map[string]struct{ puppet, script, prompt, until string }{
		"start-up":           {"sleep 20s", "", "go", ""},
		"command at start":   {"sleep 20s", "", "/cmd", ""},
		"command":            {greeting(onHello(`{"type":"register_command","name":"cmd"}`)), "", "/cmd", "command_invoked"},
		"before_agent_start": {subscribe("before_agent_start"), "turn\ntext x\n", "go", "before_agent_start"},
		"turn_start":         {subscribe("turn_start"), "turn\ntext x\n", "go", "turn_start"},
		"assistant_message":  {subscribe("assistant_message"), "turn\ntext x\n", "go", "assistant_message"},
		"tool_call":          {subscribe("tool_call"), call, "go", "event_intercept"},
		"tool":               {greeting(registers("t")), strings.Replace(call, "read", "t", 1), "go", "tool_call"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p := withScript(t, dir, c.script, puppet(t, dir, "mute", c.puppet)...)
			p.send(`{"id":1,"type":"prompt","message":"` + c.prompt + `"}`)
			p.until("command", "prompt")
			if c.until != "" {
				awaitFrame(t, dir, "mute", c.until)
			}
			start := time.Now()
			p.send(`{"id":2,"type":"abort"}`)
			frames := p.until("type", "done")
			if took := time.Since(start); took > limit(2*time.Second) {
				t.Errorf("settled after %v", took)
			}
			if end := frames[len(frames)-2]; end["stop"] != "aborted" {
				t.Errorf("the run ended with %v", end)
			}
			for _, f := range frames {
				if f["type"] == "text_delta" {
					t.Error("text that no guard has seen")
				}
			}
		})
	}
}

// TestDeathInEachPhase: whenever an extension ends, the client is told once, and
// prompts run.
func TestDeathInEachPhase(t *testing.T) {
	all := []string{registers("t"), onHello(`{"type":"register_command","name":"cmd"}`),
		onHello(`{"type":"subscribe","events":["session_start","turn_start"],"intercept":["turn_start"]}`)}
	for name, c := range map[string]struct{ puppet, told string }{
		"at once":       {"exit 7", "ended before hello"},
		"hello":         {"say {\"type\":\"hello\"}\nexit 7", "ended before it was ready"},
		"hello_ack":     {greeting("on hello_ack exit 7"), "ended before it was ready"},
		"ready":         {greeting(all...) + "on hello_ack exit 7", "guard"},
		"session_start": {greeting(append(all, "on event:session_start exit 7")...), "no longer work"},
		"turn_start":    {greeting(append(all, "on event_intercept exit 7")...), "no longer work"},
		"silent":        {strings.Replace(greeting(all...), `{"type":"ready"}`, "exit 7", 1), "ended before it was ready"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.told == "guard" {
				c.told = "no longer work"
			}
			dir := t.TempDir()
			p := withScript(t, dir, "turn\ntext one\nturn\ntext two\n", puppet(t, dir, "frail", c.puppet)...)
			p.send(`{"id":1,"type":"prompt","message":"go"}`)
			frames := p.until("type", "done")
			p.send(`{"id":2,"type":"prompt","message":"go"}`)
			frames = append(frames, p.until("type", "done", "prompt_id", 2.0)...)
			if end := frames[len(frames)-2]; end["stop"] != "end_turn" {
				t.Errorf("the run ended with %v", end)
			}
			told := func() (list []string) {
				for _, n := range notices(frames) {
					if strings.Contains(n, "exit status 7") && !strings.Contains(n, "without its say") {
						list = append(list, n)
					}
				}
				return list
			}
			for len(told()) == 0 {
				frames = append(frames, p.frame())
			}
			p.in.Close()
			for f := p.frame(); f != nil; f = p.frame() {
				frames = append(frames, f)
			}
			p.exit(exitDone)
			if n := told(); len(n) != 1 || !strings.Contains(n[0], c.told) || !strings.Contains(n[0], "ext-frail.log") {
				t.Errorf("told: %q", n)
			}
		})
	}
}

// TestStderrFlood: what an extension writes to standard error never blocks it nor
// fills our memory; a large log is rotated at the next start.
func TestStderrFlood(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ext := puppet(t, dir, "loud", "flood 50 MB\n"+greeting(registers("t"), "on tool_call flood 10 MB",
		`on tool_call {"type":"tool_result","id":"$id","content":[{"type":"text","text":"ok"}]}`))
	p := withScript(t, dir, "turn\ncall t {}\nturn\n", ext...)
	p.send(`{"id":1,"type":"prompt","message":"go"}`)
	p.until("type", "tool_result", "is_error", false)
	p.until("type", "done")
	if n := rss(t, p.cmd.Process.Pid); n > 40<<20 && !raceDetector() {
		t.Errorf("%d MiB resident", n>>20)
	}
	p.in.Close()
	p.exit(exitDone)
	log := filepath.Join(dir, "zot-home", "logs", "ext-loud.log")
	size := func(name string) int64 {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	if n := size(log); n < 60<<20 {
		t.Errorf("the log has %d bytes", n)
	}
	puppet(t, dir, "loud", "exit 5")
	p = withScript(t, dir, "turn\n", ext...)
	p.send(`{"id":1,"type":"prompt","message":"go"}`)
	if n := notices(p.until("type", "done")); len(n) != 1 || strings.Contains(n[0], "===") {
		t.Errorf("notices: %.300q", n)
	}
	if old, now := size(log+".1"), size(log); old < 60<<20 || now > 1<<10 {
		t.Errorf("after rotation: %d and %d bytes", old, now)
	}
}

// TestLastOutput: a failure is told with the last output of this run, not of one
// before.
func TestLastOutput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ext := puppet(t, dir, "bad", "repeat 30 stderr line %n\nexit 1")
	for _, want := range []string{"; its last output:\nline 11\n", "; log: "} {
		p := withScript(t, dir, "turn\n", ext...)
		p.send(`{"id":1,"type":"prompt","message":"go"}`)
		if n := notices(p.until("type", "done")); len(n) != 1 || !strings.Contains(n[0], want) {
			t.Errorf("notices: %q", n)
		}
		puppet(t, dir, "bad", "exit 1")
	}
}

// TestNotifyFlood: an extension that says more than the client reads waits.
func TestNotifyFlood(t *testing.T) {
	t.Parallel()
	n, size := 20_000, 2000
	if raceDetector() {
		n = 5000
	}
	dir := t.TempDir()
	p := withScript(t, dir, "turn\n", puppet(t, dir, "chatty", greeting(onHello(`{"type":"register_command","name":"flood"}`),
		fmt.Sprintf(`on command_invoked repeat %d say {"type":"notify","message":"%s"}`, n, strings.Repeat("x", size)),
		`on command_invoked {"type":"command_response","id":"$id","action":"noop"}`))...)
	p.send(`{"id":1,"type":"prompt","message":"/flood"}`)
	p.until("command", "prompt")
	before, after := -1, rss(t, p.cmd.Process.Pid)
	for before != after { // until nothing moves any more
		before = after
		time.Sleep(200 * time.Millisecond)
		after = rss(t, p.cmd.Process.Pid)
	}
	if after > 30<<20 && !raceDetector() {
		t.Errorf("%d MiB resident", after>>20)
	}
	if frames := p.until("type", "done"); len(frames) != n+1 {
		t.Errorf("%d frames of %d", len(frames)-1, n)
	}
}

// TestEarlyFlood: what comes before the client has asked anything is held, but not
// without end.
func TestEarlyFlood(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := withScript(t, dir, "turn\n", puppet(t, dir, "chatty", greeting(`on hello_ack repeat 1500 say {"type":"notify","message":"m"}`,
		onHello(`{"type":"subscribe","events":["session_start"]}`)))...)
	awaitFrame(t, dir, "chatty", "session_start")
	p.send(`{"id":1,"type":"ping"}`, `{"id":2,"type":"clear"}`)
	frames := p.until("command", "clear")
	if frames[0]["command"] != "ping" || len(frames) != maxHeld+3 || !strings.Contains(fmt.Sprint(frames[maxHeld+1]["message"]), "500 more notices") {
		t.Errorf("%d frames, the first is %v, the last but one %v", len(frames), frames[0], frames[len(frames)-2])
	}
}

// TestSlowClient: what an extension answers in time counts, even if it waits for
// the client to read what was said before.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ext := puppet(t, dir, "chatty", greeting(onHello(`{"type":"register_tool","name":"t","timeout_ms":6000}`),
		`on tool_call repeat 2000 say {"type":"notify","message":"`+strings.Repeat("x", 1000)+`"}`,
		`on tool_call {"type":"tool_result","id":"$id","content":[]}`))
	p := withScript(t, dir, "turn\ncall t {}\nturn\ntext x\n", ext...)
	p.send(`{"type":"prompt","message":"go"}`)
	awaitFrame(t, dir, "chatty", "tool_call")
	time.Sleep(7 * time.Second) // nothing is read meanwhile: this is the case to show
	frames := p.until("type", "tool_result")
	if n := len(notices(frames)); n != 2000 || frames[len(frames)-1]["is_error"] != false {
		t.Errorf("%d notices, %v", n, frames[len(frames)-1])
	}
}

// TestStartUp: nothing but prompts waits for an extension that takes long, and
// they no longer than five seconds.
func TestStartUp(t *testing.T) {
	t.Parallel()
	type waiting struct {
		told  string
		start time.Time
		end   <-chan finished
	}
	all := map[string]waiting{}
	for script, told := range map[string]string{
		"sleep 20s":                          "error: extension slow sent no hello in 5s and was ended",
		greeting("on hello_ack sleep 20s"):   "warn: extension slow is not ready after 5s: going on without waiting for it",
		greeting("on hello_ack chatter 20s"): "warn: extension slow is not ready after 5s: going on without waiting for it",
	} {
		dir := t.TempDir()
		start := time.Now()
		p := withScript(t, dir, "turn\ntext one\n", puppet(t, dir, "slow", script)...)
		p.send(`{"type":"ping"}`)
		p.until("command", "ping")
		if took := time.Since(start); took > limit(200*time.Millisecond) && !raceDetector() {
			t.Errorf("ping took %v with the start of the process", took)
		}
		p.send(`{"id":2,"type":"prompt","message":"go"}`, `{"id":3,"type":"get_state"}`)
		state := p.until("command", "get_state")
		if got := fmt.Sprint(state[len(state)-1]["data"].(map[string]any)["starting"]); got != "[slow]" {
			t.Errorf("starting: %s", got)
		}
		asked := time.Now()
		p.send(`{"id":4,"type":"ping"}`)
		p.until("command", "ping")
		if took := time.Since(asked); took > limit(200*time.Millisecond) && !raceDetector() {
			t.Errorf("ping took %v", took)
		}
		all[script] = waiting{told, start, p.later()}
	}
	for script, w := range all {
		r := <-w.end
		if took := r.at.Sub(w.start); took < helloWait || took > helloWait+2*time.Second {
			t.Errorf("%q: took %v", script, took)
		}
		if n := notices(r.frames); len(n) != 1 || !strings.HasPrefix(n[0], w.told) {
			t.Errorf("%q: notices: %q", script, n)
		}
	}
}

// TestEndWhileStarting: with nothing to do, an extension that is still starting
// does not keep the process.
func TestEndWhileStarting(t *testing.T) {
	for name, script := range map[string]string{
		"before hello":  "sleep 20s",
		"before ready":  greeting("on hello_ack sleep 20s"),
		"ignores TERM":  "ignore-term\nsleep 20s",
		"keeps talking": greeting("on hello_ack ignore-term", "on hello_ack repeat 100000000 say {\"type\":\"notify\"}"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p := withScript(t, dir, "turn\n", puppet(t, dir, "slow", script)...)
			await(t, func() bool { _, err := os.Stat(filepath.Join(dir, "slow", "pid")); return err == nil })
			p.send(`{"type":"ping"}`)
			p.until("command", "ping")
			start := time.Now()
			p.in.Close()
			for line := p.line(); line != ""; line = p.line() {
				if strings.Contains(line, `"level":"error"`) {
					t.Errorf("an expected end was told: %s", line)
				}
			}
			p.exit(exitDone)
			if took := time.Since(start); took > limit(1500*time.Millisecond) && !raceDetector() {
				t.Errorf("exited after %v", took)
			}
		})
	}
}

// TestEndAtOnce: an extension that we end at any moment of its start-up has not
// failed.
func TestEndAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var flags []string
	for name, script := range map[string]string{"silent": "sleep 20s", "leaves": greeting("on hello_ack sleep 20s"), "ready": greeting()} {
		flags = append(flags, puppet(t, dir, name, script)...)
	}
	for i := range 20 {
		p := withScript(t, dir, "turn\n", flags...)
		p.send(`{"type":"ping"}`)
		time.Sleep(time.Duration(i) * time.Millisecond) // each run meets another moment
		p.in.Close()
		p.until("command", "ping")
		for f := p.frame(); f != nil; f = p.frame() {
			t.Errorf("run %d: told: %v", i, f)
		}
		p.exit(exitDone)
	}
}

// TestTenThousandTools: an extension may register many tools; all can be called.
func TestTenThousandTools(t *testing.T) {
	t.Parallel()
	many := 10_000
	if raceDetector() { // it would take longer than an extension has to get ready
		many = 1000
	}
	last := fmt.Sprint("tool_", many)
	dir := t.TempDir()
	d := newDouble(t, answer{body: sseCall("c1", last, `{}`)}, textAnswer("ok"))
	ext := puppet(t, dir, "many", greeting(fmt.Sprintf(`on hello_ack repeat %d say {"type":"register_tool","name":"tool_%%n","description":"d","schema":{"type":"object"}}`, many),
		fmt.Sprintf(`on hello_ack repeat %d say {"type":"register_command","name":"cmd%%n"}`, many),
		`on tool_call {"type":"tool_result","id":"$id","content":[{"type":"text","text":"called $name"}]}`))
	p := startZot(t, dir, nil, anthropicFlags("rpc", d, ext...)...)
	start := time.Now()
	p.send(`{"id":1,"type":"prompt","message":"go"}`)
	p.until("type", "tool_result", "is_error", false)
	p.until("type", "done")
	p.send(`{"id":2,"type":"get_commands"}`)
	commands := p.until("command", "get_commands")
	if took := time.Since(start); took > limit(5*time.Second) && !raceDetector() {
		t.Errorf("took %v", took)
	}
	if n := len(commands[len(commands)-1]["data"].(map[string]any)["commands"].([]any)); n != many {
		t.Errorf("%d commands", n)
	}
	var tools []object
	if err := json.Unmarshal(d.sent(0)["tools"], &tools); err != nil || len(tools) != many+4 || tools[len(tools)-1].text("name") != last {
		t.Errorf("%d tools, %v", len(tools), err)
	}
}

// TestFixedWinner: ten extensions want one name; who is quicker does not count.
func TestFixedWinner(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range strings.Split("jihgfedcba", "") {
		puppet(t, filepath.Join(dir, ".zot", "extensions"), name, "random 40ms\n"+greeting("on hello_ack random 20ms",
			registers("who"), onHello(`{"type":"register_command","name":"who"}`),
			`on tool_call {"type":"tool_result","id":"$id","content":[{"type":"text","text":"`+name+`"}]}`))
	}
	for run := range 20 {
		p := withScript(t, dir, "turn\ncall who {}\nturn\n")
		p.send(`{"id":1,"type":"get_commands"}`)
		frames := p.until("command", "get_commands")
		p.send(`{"id":2,"type":"prompt","message":"go"}`)
		frames = append(frames, p.until("type", "done")...)
		all := fmt.Sprint(frames)
		if !strings.Contains(all, "map[description: extension:a name:who source:extension]") || !strings.Contains(all, "map[text:a type:text]") {
			t.Fatalf("run %d: %s", run, all)
		}
		var losers []string
		for _, f := range frames {
			if f["type"] == "ext_notify" {
				losers = append(losers, fmt.Sprint(f["extension"]))
			}
		}
		if got := strings.Join(losers, ""); got != "bcdefghij" {
			t.Fatalf("run %d: the losers are %s", run, got)
		}
		p.in.Close()
		p.exit(exitDone)
	}
}

// TestGuardOrder: two guards are asked in the same order, always.
func TestGuardOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var flags []string
	for _, name := range []string{"z", "a"} {
		flags = append(flags, puppet(t, dir, name, "random 20ms\n"+greeting(onHello(`{"type":"subscribe","intercept":["assistant_message"]}`),
			"on event_intercept random 2ms", `on event_intercept {"type":"event_intercept_response","id":"$id","replace_text":"$text `+name+`"}`))...)
	}
	p := withScript(t, dir, strings.Repeat("turn\ntext x\n", 100), flags...)
	for i := range 100 {
		p.send(fmt.Sprintf(`{"id":%d,"type":"prompt","message":"go"}`, i))
		if frames := p.until("type", "done"); !slices.ContainsFunc(frames, func(f map[string]any) bool { return f["delta"] == "x z a" }) {
			t.Fatalf("prompt %d: %v", i, frames)
		}
	}
}

// TestGuardedReads: calls that run side by side are put to a guard one by one, in
// their order.
func TestGuardedReads(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ext := puppet(t, dir, "guard", greeting(onHello(`{"type":"subscribe","intercept":["tool_call"]}`), `on event_intercept {"type":"event_intercept_response","id":"$id"}`))
	var calls, want strings.Builder
	for i := range 30 {
		fmt.Fprintf(&calls, "call read id=c%d {\"path\":\"guard/puppet.txt\"}\n", i)
		fmt.Fprintf(&want, "c%d ", i)
	}
	p := withScript(t, dir, "turn\n"+calls.String()+"turn\n", ext...)
	p.send(`{"id":1,"type":"prompt","message":"go"}`)
	p.until("type", "done")
	var asked strings.Builder
	for line := range strings.Lines(got(t, dir, "guard")) {
		if o, err := parseObject([]byte(line)); err == nil && o.text("type") == "event_intercept" {
			asked.WriteString(o.text("tool_id") + " ")
		}
	}
	if asked.String() != want.String() {
		t.Errorf("asked about %s", asked.String())
	}
}

// TestSameToolsInAllModes: the model is offered the same tools, byte for byte, in
// every mode and in every process.
func TestSameToolsInAllModes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := newDouble(t, textAnswer("ok"))
	var flags []string
	for _, name := range []string{"b", "a"} {
		flags = append(flags, puppet(t, dir, name, "random 30ms\n"+greeting(
			onHello(`{"type":"register_tool","name":"`+name+`2","description":"two","schema":{"type":"object","required":["z"],"properties":{"z":{"type":"string"},"y":{"type":"number","maximum":1.50}}}}`),
			registers(name+"1")))...)
	}
	for _, mode := range []string{"rpc", "-p", "--json", "rpc"} {
		args := anthropicFlags(mode, d, flags...)
		if mode != "rpc" {
			args = append(args, "go")
		}
		p := startZot(t, dir, nil, args...)
		if mode == "rpc" {
			p.send(`{"id":1,"type":"prompt","message":"go"}`)
			p.until("type", "done")
		}
		p.in.Close()
		for p.line() != "" {
		}
		p.exit(exitDone)
	}
	first := d.sent(0)
	if !strings.Contains(string(first["tools"]), `{"type":"object","properties":{"z":{"type":"string"},"y":{"type":"number","maximum":1.50}},"required":["z"]}`) {
		t.Errorf("tools: %s", first["tools"])
	}
	var names []string
	var tools []object
	json.Unmarshal(first["tools"], &tools)
	for _, o := range tools {
		names = append(names, o.text("name"))
	}
	if got := fmt.Sprint(names); got != "[read write edit bash b2 b1 a2 a1]" {
		t.Errorf("tools: %s", got)
	}
	for n := 1; n < d.count(); n++ {
		for _, key := range []string{"tools", "system", "messages"} {
			if !bytes.Equal(first[key], d.sent(n)[key]) {
				t.Errorf("request %d: %s is\n%s, not\n%s", n, key, d.sent(n)[key], first[key])
			}
		}
	}
}

// TestSystemPromptRequests: what goes to the model with before_agent_start.
func TestSystemPromptRequests(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ask := onHello(`{"type":"subscribe","intercept":["before_agent_start"]}`)
	reply := `on event_intercept {"type":"event_intercept_response","id":"$id","system_prompt":`
	var flags []string
	for name, text := range map[string]string{
		"a": `"$system_prompt MARK1"`, "b": `"` + strings.Repeat("x", maxPrompt+1) + `"`, "c": "\"not \xff UTF-8\"", "d": `"$system_prompt MARK2"`} {
		flags = append(flags, puppet(t, dir, name, greeting(ask, reply+text+"}"))...)
	}
	slices.Sort(flags) // "--ext" sorts before paths
	flags = []string{"-e", flags[4], "-e", flags[5], "-e", flags[6], "-e", flags[7]}
	d := newDouble(t, answer{body: sseCall("c1", "read", `{"path":"x"}`)}, textAnswer("ok"))
	p := startZot(t, dir, nil, anthropicFlags("rpc", d, flags...)...)
	prompt := func(id int) []map[string]any {
		p.send(fmt.Sprintf(`{"id":%d,"type":"prompt","message":"go"}`, id))
		return p.until("type", "done")
	}
	n := notices(prompt(1))
	if len(n) != 2 || !strings.Contains(n[0], "b: its system prompt has 1048577 bytes") || !strings.Contains(n[1], "c: its system prompt is no valid UTF-8") {
		t.Errorf("notices: %q", n)
	}
	prompt(2)
	p.send(`{"id":3,"type":"clear"}`)
	prompt(4)
	p.send(`{"id":5,"type":"set_model","model":"claude-sonnet-4-5"}`)
	prompt(6)
	if d.count() != 5 {
		t.Errorf("%d requests", d.count())
	}
	for i := range d.count() {
		if s := string(d.sent(i)["system"]); !strings.Contains(s, "You are zot") || !strings.Contains(s, " MARK1 MARK2") || strings.Contains(s, "MARK2 MARK") {
			t.Errorf("request %d: %.300s", i, s)
		}
	}
	if n := strings.Count(got(t, dir, "a"), "before_agent_start"); n != 3 {
		t.Errorf("asked %d times: once, after clear and after set_model were right", n)
	}
}

// TestSystemPromptAborted: a prompt that not all were asked about is not kept.
func TestSystemPromptAborted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := withScript(t, dir, "turn\ntext x\n", puppet(t, dir, "mute", greeting(onHello(`{"type":"subscribe","intercept":["before_agent_start"]}`)))...)
	for i := range 2 {
		p.send(`{"type":"prompt","message":"go"}`)
		await(t, func() bool { return strings.Count(got(t, dir, "mute"), "before_agent_start") == i+1 })
		p.send(`{"type":"abort"}`)
		p.until("type", "done")
	}
}

// TestDeferredRequests: a deferred tool is offered behind the others once it was
// activated, in follow-ups and after a compaction.
func TestDeferredRequests(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ext := puppet(t, dir, "lazy", greeting(onHello(`{"type":"register_tool","name":"later","description":"","deferred":true}`), registers("enable"),
		`on tool_call {"type":"tool_result","id":"$id","content":[],"activate_tools":["later","nosuch"]}`))
	d := newDouble(t, answer{body: sseCall("c1", "enable", `{}`)}, textAnswer("ok"))
	p := startZot(t, dir, nil, anthropicFlags("rpc", d, ext...)...)
	p.send(`{"type":"prompt","message":"go"}`, `{"type":"prompt","message":"go"}`, `{"type":"compact"}`, `{"type":"prompt","message":"go"}`)
	for range 4 {
		p.until("type", "done")
	}
	for i, want := range []string{"[read write edit bash enable]", "[read write edit bash enable later]", "[read write edit bash enable later]", "[]", "[read write edit bash enable later]"} {
		var tools []struct{ Name string }
		json.Unmarshal(d.sent(i)["tools"], &tools)
		if got := strings.NewReplacer("{", "", "}", "").Replace(fmt.Sprint(tools)); got != want {
			t.Errorf("request %d offers %s, want %s", i, got, want)
		}
	}
}

// TestToolSchema: schemas that providers refuse are mended or left out.
func TestToolSchema(t *testing.T) {
	for _, c := range []struct{ in, want, err string }{
		{``, `{"type":"object","properties":{}}`, ""},
		{`null`, `{"type":"object","properties":{}}`, ""},
		{`{}`, `{"type":"object","properties":{}}`, ""},
		{`{"type":"object","properties":[]}`, `{"type":"object","properties":{}}`, ""},
		{`{"type":["object","null"],"required":null}`, `{"type":"object","properties":{}}`, ""},
		{`{"properties":{"b":{"$ref":"#/$defs/x","description":"d"},"a":{}},"$defs":{"x":{"type":"string"}}}`,
			`{"type":"object","properties":{"b":{"$ref":"#/$defs/x","description":"d"},"a":{}},"$defs":{"x":{"type":"string"}}}`, ""},
		{`{"anyOf":[{"required":["a"]},{"required":["b"]}],"oneOf":[],"allOf":[],"not":{},"enum":[1],"properties":{"a":{"anyOf":[{"type":"string"}]}}}`,
			`{"type":"object","properties":{"a":{"anyOf":[{"type":"string"}]}}}`, ""},
		{"{\"type\": \"object\", \"description\": \"a\u2028b\", \"x\": 1.50}", `{"type":"object","properties":{},"description":"a\u2028b","x":1.50}`, ""},
		{`true`, "", "a boolean"},
		{`[]`, "", "an array"},
		{`{"type":"string"}`, "", `not "string"`},
		{`{"type":["string","null"]}`, "", "must be an object"},
		{`{"type":7}`, "", "must be an object"},
		{`{"type":"object","$ref":"#/$defs/x","$defs":{"x":{}}}`, "", "$ref"},
		{`{"properties":"a"}`, "", "a string"},
		{`{"properties":[1]}`, "", "an array"},
		{`{"required":"a"}`, "", "array of strings"},
		{`{"required":[1]}`, "", "array of strings"},
		{`{"x":` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + `}`, "", "too deeply"},
	} {
		schema, dropped, err := toolSchema(json.RawMessage(c.in))
		switch {
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%.80s: error %v, want %s", c.in, err, c.err)
		case c.err == "" && (err != nil || string(schema) != c.want || !json.Valid(schema)):
			t.Errorf("%.80s: %s, %v", c.in, schema, err)
		}
		if want := []string{"anyOf", "oneOf", "allOf", "not", "enum"}; strings.HasPrefix(c.in, `{"anyOf`) && !reflect.DeepEqual(dropped, want) {
			t.Errorf("dropped %v", dropped)
		}
	}
}

// TestBadSchemas: next to a tool that can not be used the others can.
func TestBadSchemas(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tool := func(name, schema string) string {
		return onHello(`{"type":"register_tool","name":"` + name + `","description":"","schema":` + schema + `}`)
	}
	ext := puppet(t, dir, "odd", greeting(tool("bad1", `{"type":"string"}`), tool("bad2", `"x"`), tool("mended", `{"oneOf":[{"type":"object"}]}`), tool("good", `{"type":"object","properties":{"a":{"type":"string"}}}`),
		`on tool_call {"type":"tool_result","id":"$id","content":[{"type":"text","text":"ok"}]}`))
	d := newDouble(t, answer{body: sseCall("c1", "good", `{"a":"b"}`)}, textAnswer("ok"))
	p := startZot(t, dir, nil, anthropicFlags("rpc", d, ext...)...)
	p.send(`{"type":"prompt","message":"go"}`)
	frames := p.until("type", "done")
	if n := notices(frames); len(n) != 2 || !strings.Contains(n[0], `extension odd: the tool "bad1" is left out: `) || !strings.Contains(n[1], "bad2") {
		t.Errorf("notices: %q", n)
	}
	if !slices.ContainsFunc(frames, func(f map[string]any) bool { return f["type"] == "tool_result" && f["is_error"] == false }) {
		t.Errorf("the good tool was not called: %v", frames)
	}
	if tools := string(d.sent(0)["tools"]); strings.Contains(tools, "bad") || !strings.Contains(tools, `"mended"`) || strings.Contains(tools, "oneOf") {
		t.Errorf("tools: %s", tools)
	}
}

// TestFailedStartLeavesNobody: a start that fails behind the start of the
// extensions ends them too.
func TestFailedStartLeavesNobody(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ext := puppet(t, dir, "slow", greeting())
	p := startZot(t, dir, nil, append([]string{"-p", "--provider", "script"}, ext...)...)
	awaitFrame(t, dir, "slow", "hello_ack")
	p.in.Close() // there is no prompt
	p.exit(exitUsage)
	if !strings.Contains(got(t, dir, "slow"), `"shutdown"`) {
		t.Error("the extension was not told")
	}
}

// TestInteractiveAtEnd: what waits for a user gets a limit when there is none any
// more, and its panel is closed.
func TestInteractiveAtEnd(t *testing.T) {
	t.Parallel()
	h := &extHost{userGone: make(chan struct{}), panels: map[string]*extension{}}
	e := &extension{host: h, gone: make(chan struct{}), pending: map[string]chan object{}}
	e.Name = "asks"
	sent := &lockedBuffer{}
	e.out = newWriter(sent, func() {})
	h.panels["p"] = e
	h.endOfInput()
	await(t, func() bool { return strings.Contains(sent.String(), `{"type":"panel_close","panel_id":"p"}`) })
	ctx, cancel := context.WithCancel(context.Background())
	asked := make(chan error, 1)
	go func() {
		_, err := e.ask(ctx, 0, nil, "tool_call", nil)
		asked <- err
	}()
	await(t, func() bool { return strings.Contains(sent.String(), `"type":"tool_call"`) })
	cancel()
	if err := <-asked; err == nil {
		t.Error("an aborted call was answered")
	}
	e.out.close(time.Second)
}

// TestBadToolSchema: what a provider would refuse costs the tool.
func TestBadToolSchema(t *testing.T) {
	for _, bad := range []string{`[]`, `"x"`, `{"type":"array"}`, `{"$ref":"#/x"}`, `{"properties":[1]}`, `{"properties":{"city":"string"}}`,
		`{"properties":{"a":null}}`, `{"properties":{"a":[]}}`, `{"required":"a"}`} {
		if got, _, err := toolSchema(json.RawMessage(bad)); err == nil {
			t.Errorf("%s became %s", bad, got)
		}
	}
	for in, want := range map[string]string{
		``: `{"type":"object","properties":{}}`,
		`{"properties":{"a":true,"b":{"type":"string"}},"required":["a"]}`: `{"type":"object","properties":{"a":true,"b":{"type":"string"}},"required":["a"]}`,
		`{"anyOf":[],"type":["object","null"]}`:                            `{"type":"object","properties":{}}`,
	} {
		if got, _, err := toolSchema(json.RawMessage(in)); err != nil || string(got) != want {
			t.Errorf("%s became %s, %v", in, got, err)
		}
	}
}
