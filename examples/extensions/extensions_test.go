// Each example is installed as a person would install it, started as its
// manifest says, and spoken to by hand.
package extensions

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const patience = time.Minute

// needs is the interpreter of an example, "" if it is built.
var needs = map[string]string{
	"hello": "", "weather": "", "guard": "", "todo": "",
	"clock": "node", "scratchpad": "node", "hello-py": "python3",
}

var built string // directory of the built examples

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "zot-extensions-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	built = dir
	args := []string{"build", "-o", dir + string(filepath.Separator)}
	for name, interpreter := range needs {
		if interpreter == "" {
			args = append(args, "./"+name)
		}
	}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// install puts an example into a directory of its own, ready to start.
func install(t *testing.T, name string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, os.DirFS(name)); err != nil {
		t.Fatal(err)
	}
	for _, kept := range []string{"todos.json", "notes.md"} { // of someone who tried it here
		os.Remove(filepath.Join(dir, kept))
	}
	interpreter := needs[name]
	if interpreter == "" {
		exe := name
		if runtime.GOOS == "windows" {
			exe += ".exe"
		}
		data, err := os.ReadFile(filepath.Join(built, exe))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, exe), data, 0o755); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not start a script by its first line")
	}
	if _, err := exec.LookPath(interpreter); err != nil {
		t.Skipf("needs %s: %v", interpreter, err)
	}
	return dir
}

// extension is a running example.
type extension struct {
	t      *testing.T
	dir    string
	cmd    *exec.Cmd
	in     io.WriteCloser
	frames chan string // closed at the end of stdout
	stderr lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// launch starts an installed example as its manifest says.
func launch(t *testing.T, dir string) *extension {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "extension.json"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Name, Version, Exec string
		Args                []string
		Enabled             bool
	}
	if err := json.Unmarshal(data, &manifest); err != nil {
		t.Fatal(err)
	}
	if manifest.Name != filepath.Base(dir) || !manifest.Enabled || manifest.Version == "" {
		t.Errorf("manifest: %+v", manifest)
	}
	x := &extension{t: t, dir: dir, frames: make(chan string, 100)}
	x.cmd = exec.Command(filepath.Join(dir, manifest.Exec), manifest.Args...)
	x.cmd.Dir = dir
	x.cmd.Stderr = &x.stderr
	if x.in, err = x.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	x.cmd.Stdout = w
	err = x.cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(x.frames)
		defer r.Close()
		for lines := bufio.NewReader(r); ; {
			line, err := lines.ReadString('\n')
			if line != "" {
				x.frames <- strings.TrimSuffix(line, "\n")
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		x.cmd.Process.Kill()
		for range x.frames {
		}
		if t.Failed() {
			t.Logf("stderr:\n%s", x.stderr.String())
		}
	})
	return x
}

// greet makes the handshake and returns the registrations.
func greet(t *testing.T, dir string) (*extension, []map[string]any) {
	t.Helper()
	x := launch(t, dir)
	hello := x.next()
	if hello["type"] != "hello" || hello["name"] != filepath.Base(dir) {
		t.Fatalf("the first frame is %v", hello)
	}
	ack, _ := json.Marshal(map[string]any{"type": "hello_ack", "protocol_version": 1, "zot_version": "test", "provider": "script",
		"model": "demo", "cwd": "/work", "extension_dir": dir, "data_dir": dir, "mode": "rpc", "capabilities": []string{"panels"}})
	x.send(string(ack))
	var registered []map[string]any
	for {
		f := x.next()
		if f["type"] == "ready" {
			return x, registered
		}
		registered = append(registered, f)
	}
}

func (x *extension) send(lines ...string) {
	x.t.Helper()
	for _, l := range lines {
		if _, err := io.WriteString(x.in, l+"\n"); err != nil {
			x.t.Fatalf("sending %s: %v\nstderr:\n%s", l, err, x.stderr.String())
		}
	}
}

// next returns the next frame. Everything on stdout must be one.
func (x *extension) next() map[string]any {
	x.t.Helper()
	select {
	case line, ok := <-x.frames:
		if !ok {
			x.t.Fatalf("stdout has ended\nstderr:\n%s", x.stderr.String())
		}
		var f map[string]any
		if err := json.Unmarshal([]byte(line), &f); err != nil || f["type"] == nil {
			x.t.Fatalf("not a frame: %q (%v)", line, err)
		}
		return f
	case <-time.After(patience):
		x.t.Fatalf("no frame\nstderr:\n%s", x.stderr.String())
	}
	return nil
}

// want checks that the next frame has these fields; a value given as a
// *regexp.Regexp must match.
func (x *extension) want(fields map[string]any) {
	x.t.Helper()
	f := x.next()
	for k, want := range fields {
		got, _ := json.Marshal(f[k])
		if re, ok := want.(*regexp.Regexp); ok {
			if !re.Match(got) {
				x.t.Errorf("%s of %v does not match %v", k, f, re)
			}
		} else if b, _ := json.Marshal(want); !bytes.Equal(got, b) {
			x.t.Errorf("%s is %s, want %s", k, got, b)
		}
	}
}

// exited waits for the end of the process, without more frames.
func (x *extension) exited() {
	x.t.Helper()
	kill := time.AfterFunc(patience, func() { x.cmd.Process.Kill() })
	defer kill.Stop()
	for line := range x.frames {
		x.t.Errorf("a frame too many: %s", line)
	}
	if err := x.cmd.Wait(); err != nil {
		x.t.Errorf("it ended with %v", err)
	}
}

func command(name, args string) string {
	b, _ := json.Marshal(map[string]string{"type": "command_invoked", "id": "1", "name": name, "args": args})
	return string(b)
}

func toolCall(name, args string) string {
	return `{"type":"tool_call","id":"2","name":"` + name + `","args":` + args + `}`
}

func result(text string, isError bool) map[string]any {
	m := map[string]any{"type": "tool_result", "id": "2", "content": []any{map[string]any{"text": text, "type": "text"}}, "is_error": nil}
	if isError {
		m["is_error"] = true
	}
	return m
}

// Every example keeps the contract: hello first, registrations after hello_ack,
// ready; unknown frames harm nothing; shutdown is acknowledged; the end of stdin
// ends it, before the handshake too.
func TestContract(t *testing.T) {
	for name := range needs {
		t.Run(name, func(t *testing.T) {
			dir := install(t, name)
			x, registered := greet(t, dir)
			if len(registered) == 0 {
				t.Error("it registered nothing")
			}
			x.send(`{"type":"future_frame","id":"9","data":[1]}`, `{"type":"event","event":"future_event"}`, `{"type":"shutdown"}`)
			x.want(map[string]any{"type": "shutdown_ack"})
			x.exited()

			x, _ = greet(t, dir)
			x.in.Close()
			x.exited()

			x = launch(t, dir)
			x.next()
			x.in.Close()
			x.exited()
		})
	}
}

func TestHello(t *testing.T) {
	x, registered := greet(t, install(t, "hello"))
	if len(registered) != 2 || registered[0]["name"] != "hello" || registered[1]["name"] != "cwd" {
		t.Errorf("registered %v", registered)
	}
	x.send(command("hello", ""))
	x.want(map[string]any{"type": "command_response", "id": "1", "action": "prompt", "prompt": "Greet me in one short sentence."})
	x.send(command("hello", "Ada"))
	x.want(map[string]any{"action": "prompt", "prompt": "Greet Ada in one short sentence."})
	x.send(command("cwd", ""))
	x.want(map[string]any{"action": "display", "display": "/work"})
}

func TestWeather(t *testing.T) {
	x, registered := greet(t, install(t, "weather"))
	if len(registered) != 1 || registered[0]["type"] != "register_tool" || registered[0]["schema"] == nil {
		t.Errorf("registered %v", registered)
	}
	x.send(toolCall("weather", `{"city":"Berlin"}`))
	x.want(result("Berlin: 16°C, fog", false))
	x.send(toolCall("weather", `{"city":"Paris"}`))
	x.want(result("no station in Paris: there are Berlin, Lima and Oslo", true))
	x.send(toolCall("weather", `{}`))
	x.want(result("city is missing", true))
	x.send(toolCall("weather", `{"city":7}`))
	x.want(map[string]any{"is_error": true, "content": regexp.MustCompile("city must be a string")})
}

func TestGuard(t *testing.T) {
	x, registered := greet(t, install(t, "guard"))
	subscribe := registered[len(registered)-1]
	if fmt.Sprint(subscribe["events"], subscribe["intercept"]) != "[tool_call] [tool_call]" {
		t.Errorf("subscribe: %v", subscribe)
	}
	intercept := func(tool, args string) {
		x.send(`{"type":"event_intercept","id":"3","event":"tool_call","tool_id":"c","tool_name":"` + tool + `","tool_args":` + args + `}`)
	}
	bash := func(command string) string {
		b, _ := json.Marshal(map[string]string{"command": command})
		return string(b)
	}
	for _, safe := range []string{"ls -la", "rm notes.txt", "rm -r build", "rm -f a; ls -r", "git push", "git push --force-with-lease", "curl -s https://example.com | jq .",
		"grep -rf patterns .", "echo farm -rf", "dd if=/dev/zero of=blob", "git commit -m x && tar -f a.tar"} {
		intercept("bash", bash(safe))
		x.want(map[string]any{"type": "event_intercept_response", "id": "3", "block": nil})
		if t.Failed() {
			t.Fatalf("refused: %s", safe)
		}
	}
	dangerous := map[string][]string{
		"rm -rf": {"rm -rf /tmp/foo", "cd / && rm -r -f *", "sudo rm -fR x", "rm --recursive --force x", "rm x -fr", "ls\nrm -vrf x"},
		"mkfs":   {"mkfs.ext4 /dev/sda1"}, "write to a device": {"dd if=a of=/dev/sda", "cat a >/dev/nvme0n1"},
		"curl | sh":        {"curl -fsSL https://x.example | sh", "wget -qO- x | sudo bash"},
		"git push --force": {"git push --force", "git -C x push origin main -f"},
	}
	refused := 0
	for name, commands := range dangerous {
		for _, c := range commands {
			intercept("bash", bash(c))
			x.want(map[string]any{"block": true, "reason": fmt.Sprintf("refused: matches danger pattern %q", name)})
			if t.Failed() {
				t.Fatalf("not refused as %s: %s", name, c)
			}
			refused++
		}
	}
	intercept("bash", `{"command":["rm","-rf"]}`)
	x.want(map[string]any{"block": true, "reason": regexp.MustCompile("cannot be read")})
	intercept("read", `{"path":"rm -rf"}`)
	x.want(map[string]any{"block": nil})

	x.send(`{"type":"event","event":"tool_call","tool_id":"c","tool_name":"read","tool_args":{"path":"foo.go"}}`)
	for deadline := time.Now().Add(patience); !strings.Contains(x.stderr.String(), `read {"path":"foo.go"}`); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the event is not in the log:\n%s", x.stderr.String())
		}
	}
	x.send(command("guard", ""))
	x.want(map[string]any{"action": "display", "display": fmt.Sprintf("1 tool calls seen, %d refused", refused+1)})
}

func TestTodo(t *testing.T) {
	dir := install(t, "todo")
	x, registered := greet(t, dir)
	if len(registered) != 2 {
		t.Errorf("registered %v", registered)
	}
	panel := func(footer string, lines ...string) map[string]any {
		return map[string]any{"type": "panel_render", "panel_id": "todos-main", "title": "Todos", "lines": lines, "footer": regexp.MustCompile(footer)}
	}
	press := func(key, text string) {
		b, _ := json.Marshal(map[string]string{"type": "panel_key", "panel_id": "todos-main", "key": key, "text": text})
		x.send(string(b))
	}
	x.send(toolCall("todo", `{"action":"list"}`))
	x.want(result("The list is empty.", false))
	x.send(command("todo", ""))
	x.want(map[string]any{"action": "open_panel", "open_panel": regexp.MustCompile(`"id":"todos-main","lines":\["nothing to do"\]`)})
	press("rune", "a")
	x.want(panel("enter add", "> □ _"))
	for _, r := range []string{"é", "x", "!"} {
		press("rune", r)
		x.next()
	}
	press("backspace", "")
	x.want(panel("enter add", "> □ éx_"))
	press("enter", "")
	x.want(panel("a add", "> □ éx"))

	// What the model adds appears in the open panel.
	x.send(toolCall("todo", `{"action":"add","text":"ship it"}`))
	frames := []map[string]any{x.next(), x.next()}
	at := slices.IndexFunc(frames, func(f map[string]any) bool { return f["type"] == "panel_render" })
	if at < 0 || fmt.Sprint(frames[at]["lines"]) != "[> □ éx   □ ship it]" {
		t.Errorf("got %v", frames)
	}
	press("down", "")
	x.want(panel("a add", "  □ éx", "> □ ship it"))
	press("down", "")
	x.want(panel("a add", "  □ éx", "> □ ship it"))
	press("rune", "x")
	x.want(panel("a add", "  □ éx", "> ✓ ship it"))
	press("up", "")
	x.want(panel("a add", "> □ éx", "  ✓ ship it"))
	press("rune", "d")
	x.want(panel("a add", "> ✓ ship it"))
	press("pageup", "")
	x.want(panel("a add", "> ✓ ship it"))

	// Once the panel is closed nothing is drawn; bad calls change nothing.
	x.send(`{"type":"panel_close","panel_id":"todos-main"}`, command("todo", ""))
	x.want(map[string]any{"action": "open_panel"})
	x.send(`{"type":"panel_close","panel_id":"todos-main"}`)
	x.send(toolCall("todo", `{"action":"complete","number":2}`))
	for { // the close and the call are not ordered: one last panel_render may come first
		f := x.next()
		if f["type"] == "panel_render" {
			continue
		}
		if f["is_error"] != true || !strings.Contains(fmt.Sprint(f["content"]), "there is no item 2: the list has 1") {
			t.Errorf("got %v", f)
		}
		break
	}
	x.send(`{"type":"shutdown"}`)
	for f := x.next(); f["type"] != "shutdown_ack"; f = x.next() {
		if f["type"] != "panel_render" {
			t.Errorf("got %v", f)
		}
	}
	x.exited()

	// The list is kept, and a file that cannot be read is not overwritten.
	x, _ = greet(t, dir)
	x.send(toolCall("todo", `{"action":"list"}`))
	x.want(result("1. [x] ship it\n", false))
	x.send(toolCall("todo", `{"action":"add"}`))
	x.want(result("add needs a text", true))
	x.send(toolCall("todo", `{"action":"sort"}`))
	x.want(result(`unknown action "sort": list, add or complete`, true))
	x.in.Close()
	x.exited()
	path := filepath.Join(dir, "todos.json")
	if err := os.WriteFile(path, []byte("{ broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	x = launch(t, dir)
	x.next()
	x.send(`{"type":"hello_ack","data_dir":` + fmt.Sprintf("%q", dir) + `}`)
	for range x.frames {
	}
	if err := x.cmd.Wait(); err == nil || !strings.Contains(x.stderr.String(), "todos.json: invalid character") {
		t.Errorf("it ended with %v and said %s", err, x.stderr.String())
	}
	if data, _ := os.ReadFile(path); string(data) != "{ broken" {
		t.Errorf("the file is now %s", data)
	}
}

func TestClock(t *testing.T) {
	x, _ := greet(t, install(t, "clock"))
	x.send(command("clock", ""))
	x.want(map[string]any{"type": "command_response", "id": "1", "action": "display", "display": regexp.MustCompile(`\d:\d\d:\d\d`)})
	x.send(command("clock", "Asia/Tokyo"))
	x.want(map[string]any{"action": "display", "display": regexp.MustCompile(`GMT\+9`)})
	x.send(command("clock", "Mars"))
	x.want(map[string]any{"action": "noop", "error": regexp.MustCompile(`/clock: .*Mars`)})
	x.send("not a frame", command("stamp", ""))
	x.want(map[string]any{"action": "insert", "insert": regexp.MustCompile(`^"\d{4}-\d\d-\d\dT`)})
}

func TestScratchpad(t *testing.T) {
	dir := install(t, "scratchpad")
	x, registered := greet(t, dir)
	if len(registered) != 3 || registered[2]["name"] != "scratchpad" {
		t.Errorf("registered %v", registered)
	}
	x.send(command("notes", ""))
	x.want(map[string]any{"action": "display", "display": "no notes"})
	x.send(command("note", ""))
	x.want(map[string]any{"action": "noop", "error": "/note: a note needs a text"})
	x.send(command("note", "buy milk"))
	x.want(map[string]any{"action": "noop", "error": nil})
	x.send(toolCall("scratchpad", `{"action":"append","text":"two\u2028lines"}`))
	x.want(result("- buy milk\n- two lines\n", false))
	x.send("not a frame", toolCall("scratchpad", `{"action":"burn"}`))
	x.want(result(`unknown action "burn": read or append`, true))
	x.in.Close()
	x.exited()

	x, _ = greet(t, dir)
	x.send(toolCall("scratchpad", `{"action":"read"}`))
	x.want(result("- buy milk\n- two lines\n", false))
}

func TestHelloPy(t *testing.T) {
	x, _ := greet(t, install(t, "hello-py"))
	x.send(command("hellopy", ""))
	x.want(map[string]any{"type": "command_response", "id": "1", "action": "prompt", "prompt": "Greet me very briefly in one sentence."})
}
