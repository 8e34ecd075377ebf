package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"
)

// Events of an Anthropic answer, for doubles.
const (
	sseStart = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":\"x\",\"stop_reason\":null,\"usage\":{\"input_tokens\":10,\"output_tokens\":1}}}\n\n" +
		"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"
	sseEnd = "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n" +
		"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":5}}\n\n" +
		"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
)

func sseText(s string) string {
	return "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":" +
		string(appendString(nil, s)) + "}}\n\n"
}

// sseCall is an answer that is one tool call.
func sseCall(id, name, args string) string {
	return "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"role\":\"assistant\",\"content\":[],\"usage\":{\"input_tokens\":10,\"output_tokens\":1}}}\n\n" +
		fmt.Sprintf("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"id\":%q,\"name\":%q,\"input\":{}}}\n\n", id, name) +
		"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":" + string(encode(args)) + "}}\n\n" +
		strings.Replace(sseEnd, "end_turn", "tool_use", 1)
}

func textAnswer(s string) answer { return answer{body: sseStart + sseText(s) + sseEnd} }

// anthropicFlags point zot at a double.
func anthropicFlags(mode string, d *double, more ...string) []string {
	return append([]string{mode, "--provider", "anthropic", "--model", "claude-sonnet-4-5", "--api-key", "sk-secret", "--base-url", d.URL}, more...)
}

// script writes a script file and returns its name.
func script(t testing.TB, dir, text string) string {
	t.Helper()
	name := filepath.Join(dir, "test.script")
	if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return name
}

func scripted(t testing.TB, text string, more ...string) *proc {
	dir := t.TempDir()
	return startZot(t, dir, nil, append([]string{"rpc", "--provider", "script", "--model", script(t, dir, text)}, more...)...)
}

func TestLineLimit(t *testing.T) {
	p := startZot(t, t.TempDir(), nil, "rpc", "--provider", "script")
	big := strings.Repeat("x", 5<<20)
	p.send(`{"id":1,"type":"prompt","message":"` + big + `"}`)
	frames := p.until("type", "done")
	if got := frames[1]["content"].([]any)[0].(map[string]any)["text"]; got != big {
		t.Error("a prompt of 5 MiB did not come back whole")
	}
	// exactly the limit is read; one byte more is refused by size
	head, tail := `{"id":2,"type":"ping","x":"`, `"}`
	line := head + strings.Repeat("x", maxLine-len(head)-len(tail)) + tail
	p.send(line)
	if f := p.frame(); f["success"] != true || f["id"] != 2.0 {
		t.Errorf("a line of the limit: %v", f)
	}
	p.send(strings.Replace(line, `"x"`, `"xy"`, 1))
	f := p.frame()
	if f["success"] != false || f["error"] != fmt.Sprintf("the line has %d bytes; the limit is %d (64 MiB)", maxLine+1, maxLine) {
		t.Errorf("a line over the limit: %v", f)
	}
	p.send(`{"id":3,"type":"ping"}`)
	if f := p.frame(); f["id"] != 3.0 || f["success"] != true {
		t.Errorf("the line behind it: %v", f)
	}
}

func TestImagePrompt(t *testing.T) {
	d := newDouble(t, textAnswer("A picture."))
	p := startZot(t, t.TempDir(), nil, anthropicFlags("rpc", d)...)
	png := base64PNG(t)
	noise := base64.StdEncoding.EncodeToString(make([]byte, 9<<20)) // 12 MiB of base64 that is no image
	p.send(`{"id":1,"type":"prompt","message":"look","images":[{"mime_type":"image/png","data":"` + png + `"},{"mime_type":"image/jpeg","data":"` + noise + `"}]}`)
	frames := p.until("type", "done")
	content := frames[1]["content"].([]any)
	size := float64(len(testPNG(t, 40, 30)))
	if img := content[1].(map[string]any); img["type"] != "image" || img["mime_type"] != "image/png" || img["bytes"] != size {
		t.Errorf("the image came back as %v", img)
	}
	if note := content[2].(map[string]any); !strings.HasPrefix(fmt.Sprint(note["text"]), "[image 2 was left out: ") {
		t.Errorf("the noise came back as %v", note)
	}
	if body := string(d.sent(0)["messages"]); !strings.Contains(body, png) || strings.Contains(body, noise[:1000]) {
		t.Error("the model did not get the image, or got the noise")
	}
}

// TestAbortBehindPrompt sends both in one write: that prompt is aborted, and the
// one behind it always runs.
func TestAbortBehindPrompt(t *testing.T) {
	rounds := 200
	p := scripted(t, strings.Repeat("turn\ntext fast\n", 2*rounds))
	for i := range rounds {
		p.send(fmt.Sprintf(`{"id":"a%d","type":"prompt","message":"one"}`, i), `{"type":"abort"}`, fmt.Sprintf(`{"id":"b%d","type":"prompt","message":"two"}`, i))
		frames := p.until("type", "done", "prompt_id", fmt.Sprintf("b%d", i))
		var ends []string
		for _, f := range frames {
			if f["type"] == "turn_end" || f["type"] == "done" {
				ends = append(ends, fmt.Sprint(f["stop"], f["prompt_id"]))
			}
			if f["success"] == false {
				t.Fatalf("refused: %v", f)
			}
		}
		if got, want := fmt.Sprint(ends), fmt.Sprintf("[aborted<nil> <nil>a%d end_turn<nil> <nil>b%d]", i, i); got != want {
			t.Fatalf("round %d: %s, want %s", i, got, want)
		}
	}
}

// TestSlowReader streams to a client that does not read. The process stays
// responsive (it sees the abort), small, and loses nothing.
func TestSlowReader(t *testing.T) {
	closed := make(chan time.Time, 1)
	d := newDouble(t, answer{write: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, sseStart)
		for i := 0; r.Context().Err() == nil; i++ {
			if _, err := io.WriteString(w, sseText(strconv.Itoa(i)+" "+strings.Repeat("x", 100))); err != nil {
				break
			}
		}
		closed <- time.Now()
	}})
	dir := t.TempDir()
	cmd := exec.Command(zotBin, anthropicFlags("rpc", d)...)
	cmd.Env = cleanEnv(dir)
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	io.WriteString(in, `{"id":1,"type":"prompt","message":"go"}`+"\n")
	time.Sleep(2 * time.Second) // nothing is read meanwhile: this is the case to show
	before := rss(t, cmd.Process.Pid)
	time.Sleep(time.Second)
	if after := rss(t, cmd.Process.Pid); after > before+4<<20 && !raceDetector() {
		t.Errorf("memory grew from %d to %d KiB while nobody read", before>>10, after>>10)
	}
	aborted := time.Now()
	io.WriteString(in, `{"id":2,"type":"abort"}`+"\n")
	select {
	case at := <-closed:
		if at.Sub(aborted) > limit(2*time.Second) {
			t.Errorf("the connection was closed %v after the abort", at.Sub(aborted))
		}
	case <-time.After(patience):
		t.Fatal("the abort did not reach the model call")
	}
	in.Close()
	data, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	n := 0
	var last string
	for _, l := range lines {
		var f struct{ Type, Delta string }
		if err := json.Unmarshal([]byte(l), &f); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		if f.Type == "text_delta" {
			if !strings.HasPrefix(f.Delta, strconv.Itoa(n)+" ") {
				t.Fatalf("delta %d is %.20q", n, f.Delta)
			}
			n++
		}
		last = f.Type
	}
	if n == 0 || last != "done" {
		t.Errorf("%d deltas, last frame %s", n, last)
	}
}

// rss is the resident memory of a process in bytes; 0 where it can not be told.
func rss(t testing.TB, pid int) int {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); f[0] == "VmRSS:" {
			kb, _ := strconv.Atoi(f[1])
			return kb << 10
		}
	}
	return 0
}

// await polls until f returns something.
func await[T comparable](t testing.TB, f func() T) T {
	t.Helper()
	var zero T
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if v := f(); v != zero {
			return v
		}
	}
	t.Fatal("it did not happen")
	return zero
}

// TestSeparators: what a reader takes for the end of a line is escaped, in
// strings and in values that pass through.
func TestSeparators(t *testing.T) {
	d := newDouble(t, answer{body: sseCall("c1", "read", "{\"path\":\"a\u2028b\"}")}, textAnswer("x\u2028y\u2029z"))
	p := startZot(t, t.TempDir(), nil, anthropicFlags("rpc", d)...)
	p.send("{\"id\":\"i\u2028d\",\"type\":\"prompt\",\"message\":\"m\u2028n\"}")
	for {
		l := p.line()
		if strings.ContainsAny(l, "\u2028\u2029\u0085") || strings.ContainsFunc(l, unicode.IsControl) {
			t.Errorf("a raw separator: %q", l)
		}
		if strings.Contains(l, `"type":"done"`) {
			if !strings.Contains(l, `"prompt_id":"i\u2028d"`) {
				t.Errorf("the id came back as %s", l)
			}
			break
		}
	}
	if body := d.sent(1)["messages"]; bytes.Contains(body, []byte("\u2028")) || !bytes.Contains(body, []byte(`a\u2028b`)) {
		t.Errorf("the call went back as %s", body)
	}
}

// TestLoneSurrogate: half a character from the model does not poison the
// transcript.
func TestLoneSurrogate(t *testing.T) {
	d := newDouble(t, answer{body: sseCall("c1", "read", `{"path":"\ud99c"}`)}, textAnswer("ok"))
	p := startZot(t, t.TempDir(), nil, anthropicFlags("rpc", d)...)
	p.send(`{"id":1,"type":"prompt","message":"\ud83d half"}`)
	p.until("type", "done")
	body := d.sent(1)["messages"]
	if strings.Contains(strings.ToLower(string(body)), `\ud`) || !strings.Contains(string(body), "\ufffd") {
		t.Errorf("sent: %s", body)
	}
}

// TestLinearOutput: 20,000 deltas cost a line each, no more.
func TestLinearOutput(t *testing.T) {
	p := scripted(t, "turn\nrepeat 20000 text \"word \"\n")
	p.send(`{"id":1,"type":"prompt","message":"go"}`)
	bytes := 0
	for l := p.line(); !strings.Contains(l, `"done"`); l = p.line() {
		bytes += len(l)
	}
	if bytes > 2<<20 {
		t.Errorf("%d bytes for 100,000 characters in 20,000 deltas", bytes)
	}
}

// TestTerminalEvents: however a run ends, it ends once, and the next one works.
func TestTerminalEvents(t *testing.T) {
	refused := newDouble(t, answer{})
	refused.Close() // nobody listens there now
	for name, a := range map[string]answer{
		"401":     {status: 401, body: `{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}`},
		"garbage": {body: "data: {{{\n\ndata: \x00\xff\n\n"},
		"html":    {body: "<html>nope</html>"},
		"empty":   {body: ""},
		"half":    {body: sseStart + sseText("half an")},
		"error":   {body: sseStart + sseText("half an") + "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n"},
		"reset": {write: func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, sseStart+sseText("half an"))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}},
		"refused": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDouble(t, a, textAnswer("fine"))
			if name == "empty" || name == "html" || name == "garbage" {
				// nothing arrived, so these are tried again; show the first failure only
				d.answers = []answer{a, {status: 400, body: "{}"}, textAnswer("fine")}
			}
			url := d.URL
			if name == "refused" {
				url = refused.URL
			}
			p := startZot(t, t.TempDir(), nil, "rpc", "--provider", "anthropic", "--model", "claude-sonnet-4-5", "--api-key", "sk-secret", "--base-url", url)
			p.send(`{"id":1,"type":"prompt","message":"one"}`)
			if name == "refused" {
				p.until("type", "retry")
				p.send(`{"id":"x","type":"abort"}`)
			}
			frames := p.until("type", "done")
			p.send(`{"id":2,"type":"get_state"}`)
			frames = append(frames, p.until("command", "get_state")...)
			counts := map[string]int{}
			for _, f := range frames {
				counts[fmt.Sprint(f["type"])]++
				if strings.Contains(fmt.Sprint(f), "sk-secret") {
					t.Errorf("the key: %v", f)
				}
				if f["command"] == "get_state" && f["data"].(map[string]any)["busy"] != false {
					t.Error("busy after done")
				}
			}
			wantErrors := 1
			if name == "refused" {
				wantErrors = 0
			}
			if counts["done"] != 1 || counts["error"] != wantErrors || counts["turn_end"] != 1 || counts["response"] < 2 {
				t.Errorf("%v", counts)
			}
			if name == "refused" {
				return
			}
			p.send(`{"id":3,"type":"prompt","message":"two"}`)
			frames = p.until("type", "done", "prompt_id", 3.0)
			if end := frames[len(frames)-2]; end["stop"] != "end_turn" {
				t.Errorf("the next prompt: %v", end)
			}
		})
	}
}

// TestSilentServer: abort settles although the server never answers.
func TestSilentServer(t *testing.T) {
	for name, write := range map[string]func(w http.ResponseWriter, r *http.Request){
		"no headers": func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"no events": func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"goes on after the abort": func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, sseStart+sseText("x"))
			for range 50 {
				io.WriteString(w, sseText("late"))
				w.(http.Flusher).Flush()
				time.Sleep(10 * time.Millisecond)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Bool
			d := newDouble(t, answer{write: func(w http.ResponseWriter, r *http.Request) {
				asked.Store(true)
				w.Header().Set("Content-Type", "text/event-stream")
				write(w, r)
			}}, textAnswer("fine"))
			p := startZot(t, t.TempDir(), nil, anthropicFlags("rpc", d)...)
			p.send(`{"id":1,"type":"prompt","message":"one"}`)
			await(t, asked.Load)
			start := time.Now()
			p.send(`{"id":2,"type":"abort"}`, `{"id":3,"type":"prompt","message":"two"}`)
			p.until("type", "done", "prompt_id", 1.0)
			if took := time.Since(start); took > limit(2*time.Second) {
				t.Errorf("settled after %v", took)
			}
			for _, f := range p.until("type", "done", "prompt_id", 3.0) {
				if f["delta"] == "late" {
					t.Error("text of the aborted run behind its end")
				}
			}
		})
	}
}

// TestPrintModes: the text alone on stdout, errors on stderr, honest exit codes.
func TestPrintModes(t *testing.T) {
	dir := t.TempDir()
	run := func(stdin io.Reader, args ...string) (string, string, int) {
		cmd := exec.Command(zotBin, args...)
		cmd.Dir, cmd.Env, cmd.Stdin = dir, cleanEnv(dir), stdin
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		cmd.Run()
		return out.String(), errs.String(), cmd.ProcessState.ExitCode()
	}
	ok := script(t, dir, "turn\ntext \"Hello,\\n\"\ntext world\n")
	if out, errs, code := run(nil, "-p", "--provider", "script", "--model", ok, "hi"); out != "Hello,\nworld\n" || errs != "" || code != 0 {
		t.Errorf("%q %q %d", out, errs, code)
	}
	if out, errs, code := run(nil, "-p", "hi", "--provider", "anthropic"); out != "" || code != exitFailed || !strings.Contains(errs, "ANTHROPIC_API_KEY") {
		t.Errorf("without a key: %q %q %d", out, errs, code)
	}
	if out, errs, code := run(strings.NewReader(""), "-p", "--provider", "script"); out != "" || code != exitUsage || !strings.Contains(errs, "no prompt") {
		t.Errorf("without a prompt: %q %q %d", out, errs, code)
	}
	out, _, code := run(strings.NewReader("piped text"), "--json", "--provider", "script", "--model", ok, "the prompt")
	if code != 0 || !strings.Contains(out, `"text":"the prompt\n\npiped text"`) || !strings.HasSuffix(out, `{"type":"done"}`+"\n") || strings.Contains(out, "response") {
		t.Errorf("--json: %d %s", code, out)
	}
	out, _, code = run(nil, "--json", "--provider", "anthropic", "x")
	if code != exitFailed || !strings.HasSuffix(out, `{"type":"done"}`+"\n") {
		t.Errorf("--json without a key: %d %s", code, out)
	}
	silent, w, _ := os.Pipe() // open, and nothing comes
	defer w.Close()
	start := time.Now()
	if out, errs, code := run(silent, "-p", "--provider", "script", "--model", ok, "hi"); out != "Hello,\nworld\n" || code != 0 || !strings.Contains(errs, "--stdin") {
		t.Errorf("with a silent pipe: %q %q %d", out, errs, code)
	}
	if took := time.Since(start); took > limit(5*time.Second) {
		t.Errorf("waited %v on a silent pipe", took)
	}
	for _, flag := range []string{"--help", "-h"} {
		if out, errs, code := run(nil, flag); code != 0 || errs != "" || !strings.Contains(out, "--append-system-prompt TEXT") {
			t.Errorf("%s: %d %q", flag, code, errs)
		}
	}
	if out, _, code := run(nil, "--version"); code != 0 || !strings.HasPrefix(out, "zot ") {
		t.Errorf("--version: %d %q", code, out)
	}
	if out, _, code := run(nil, "--list-models"); code != 0 || !strings.Contains(out, "claude-sonnet-5") || !strings.Contains(out, "openrouter     any model id") {
		t.Errorf("--list-models: %d %.300q", code, out)
	}
}

// TestMisspeltConfig: a key that is nearly one of ours is told; those of other
// programs are not.
func TestMisspeltConfig(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "zot-home", "config.json")
	put(t, path, `{"Provider":"script","theme":"dark","modle":"demo","resoning":"low","toolEnvDrop":[],"timeouts":{"gapS":1,"headers_s":2},"mcpServers":{"provder":1}}`, 0o600)
	cmd := exec.Command(zotBin, "rpc")
	cmd.Env = cleanEnv(dir)
	out, err := cmd.CombinedOutput()
	want := ""
	for _, keys := range [][2]string{{"modle", "model"}, {"resoning", "reasoning"}, {"gapS", "gap_s"}, {"toolEnvDrop", "tool_env_drop"}} {
		want += fmt.Sprintf("zot: %s: %q has no effect: did you mean %q?\n", path, keys[0], keys[1])
	}
	if err != nil || string(out) != want {
		t.Errorf("%v:\n%swant:\n%s", err, out, want)
	}
}

func testPNG(t testing.TB, width, height int) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, width, height))); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func base64PNG(t testing.TB) string {
	return base64.StdEncoding.EncodeToString(testPNG(t, 40, 30))
}
