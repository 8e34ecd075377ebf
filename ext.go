// The extension host: finds extensions, starts them as subprocesses, speaks
// JSON lines with them, and lets them have a say in what the agent does (spec:
// zot extensions). Rules kept here:
//
//   - No extension can stall anything: each wait has a deadline, ends with the
//     job, and ends at once when the extension dies.
//   - Who wins a name or is asked first never depends on timing: extensions
//     count in the order --ext, project, global, each by name.
//   - What an extension sends wrongly is logged in its own log and costs that
//     frame, tool or command only.
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	helloWait    = 5 * time.Second
	readyWait    = 5 * time.Second        // without a registration
	readyQuiet   = 250 * time.Millisecond // after the last one, without ready
	hookWait     = 5 * time.Second
	toolWait     = 60 * time.Second
	commandWait  = 60 * time.Second
	shutdownWait = 2 * time.Second
	maxLog       = 1 << 20  // a larger log is rotated at the start
	maxLiveLog   = 32 << 20 // a larger one is cut while running
	maxPrompt    = 1 << 20  // bytes of a replaced system prompt
)

// manifest is an extension.json.
type manifest struct {
	Name        string   `json:"name"`
	Version     string   `json:"version"`
	Exec        string   `json:"exec"`
	Args        []string `json:"args"`
	Language    string   `json:"language"`
	Description string   `json:"description"`
	Skills      []string `json:"skills"`
	Enabled     *bool    `json:"enabled"`
}

var extensionName = lazyRegexp(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$`)

// extension is one extension that was found.
type extension struct {
	manifest
	dir    string // absolute
	scope  string // "path", "project" or "user"
	log    string // path of its stderr log
	err    error  // why it does not run: manifest, start, handshake
	shadow string // directory of the extension of the same name that is used

	host  *extHost
	group *group
	out   *writer
	since time.Time     // of the start
	hello chan struct{} // closed by its first hello
	ready chan struct{} // closed when its first registrations are complete
	ended chan struct{} // closed at the end of its output

	// Guarded by the host's lock.
	helloName string
	commands  []extCommand
	tools     []*extTool
	observes  map[string]bool
	guards    map[string]bool
	pending   map[string]chan object // replies by request id
	activity  time.Time              // of the last registration
	noise     int                    // lines that were no frames
	dead      string                 // how it ended; "" while it runs
}

type extCommand struct{ name, description string }

// extTool is a registered tool; name is what the extension calls it.
type extTool struct {
	ext       *extension
	name      string
	offered   *tool // nil when it was refused
	wait      time.Duration
	committed bool
}

// extHost runs the extensions of a process.
type extHost struct {
	home, cwd string
	explicit  []string // --ext
	only      bool     // --no-ext: no others
	ack       func(e *extension) map[string]any
	tell      func(*Event) // hands an event to the client
	builtin   func(name string) bool
	// observe, for doctor, gets each frame that came and each problem that was
	// logged. It may be nil, and must not block.
	observe func(e *extension, frame object, problem string)

	mu      sync.Mutex
	exts    []*extension
	tools   []*tool // committed, in that order
	panels  map[string]*extension
	started chan struct{} // closed when start-up is over
	nextID  int
	work    sync.WaitGroup // reloading
}

// findExtensions reads the manifests: --ext paths, then the project's, then the
// user's. Every one is listed, with what is wrong with it.
func findExtensions(home, cwd string, explicit []string, only bool) (exts []*extension) {
	add := func(dir, scope string) {
		e := &extension{dir: dir, scope: scope}
		e.err = e.readManifest()
		e.log = filepath.Join(home, "logs", "ext-"+e.Name+".log")
		for _, other := range exts {
			if other.Name == e.Name && other.err == nil && e.err == nil && other.shadow == "" {
				e.shadow = other.dir
			}
		}
		exts = append(exts, e)
	}
	for _, dir := range explicit {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(cwd, dir)
		}
		add(filepath.Clean(dir), "path")
	}
	if only {
		return exts
	}
	for _, place := range []struct{ dir, scope string }{
		{filepath.Join(cwd, ".zot", "extensions"), "project"},
		{filepath.Join(home, "extensions"), "user"},
	} {
		entries, _ := os.ReadDir(place.dir) // sorted by name
		for _, entry := range entries {
			dir := filepath.Join(place.dir, entry.Name())
			if _, err := os.Stat(filepath.Join(dir, "extension.json")); err == nil {
				add(dir, place.scope)
			}
		}
	}
	return exts
}

// readManifest reads and checks the extension.json.
func (e *extension) readManifest() error {
	path := filepath.Join(e.dir, "extension.json")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		e.Name = filepath.Base(e.dir)
		return fmt.Errorf("there is no extension.json in %s", e.dir)
	}
	err := readJSONFile(path, &e.manifest)
	name := e.Name
	if !extensionName().MatchString(name) { // it becomes part of paths
		e.Name = filepath.Base(e.dir)
	}
	switch {
	case err != nil:
		return err
	case name == "":
		return fmt.Errorf("%s: \"name\" is missing", path)
	case name != e.Name:
		return fmt.Errorf("%s: the name %q must be letters, digits, dot, underscore and hyphen, and must not start with a dot", path, name)
	case e.Exec == "" && len(e.Skills) == 0 && !e.hasTheme():
		return fmt.Errorf("%s: \"exec\" is missing (only bundles of skills or a theme need none)", path)
	}
	return nil
}

func (e *extension) hasTheme() bool {
	for _, name := range []string{"theme.json", filepath.Join("themes", "theme.json")} {
		if _, err := os.Stat(filepath.Join(e.dir, name)); err == nil {
			return true
		}
	}
	return false
}

// runs reports whether the extension is to be started.
func (e *extension) runs() bool {
	return e.err == nil && e.shadow == "" && e.Exec != "" && (e.Enabled == nil || *e.Enabled)
}

// skillPaths are the skills of the extensions that are in use.
func skillPaths(exts []*extension) (paths []string) {
	for _, e := range exts {
		if e.err == nil && e.shadow == "" && (e.Enabled == nil || *e.Enabled) {
			for _, s := range e.Skills {
				paths = append(paths, filepath.Join(e.dir, s))
			}
		}
	}
	return paths
}

// start starts all extensions at once and returns; started is closed when the
// last is ready or has failed.
func (h *extHost) start(exts []*extension) {
	h.mu.Lock()
	h.exts, h.tools, h.panels = exts, nil, map[string]*extension{}
	started := h.started
	for _, e := range exts {
		e.host, e.since = h, time.Now()
		e.hello, e.ready, e.ended = make(chan struct{}), make(chan struct{}), make(chan struct{})
		e.pending, e.observes, e.guards = map[string]chan object{}, map[string]bool{}, map[string]bool{}
	}
	h.mu.Unlock()
	var all sync.WaitGroup
	for _, e := range exts {
		if e.runs() {
			all.Go(e.start)
		} else {
			close(e.ready)
		}
	}
	go func() { // ends with the last start
		all.Wait()
		for _, e := range exts {
			if e.err != nil {
				h.notice(e, "error", e.err.Error())
			}
		}
		h.notify("session_start", func(dst []byte) []byte { return dst })
		close(started)
	}()
}

// reloaded is what a reload did.
type reloaded struct {
	Stopped int         `json:"stopped"`
	Loaded  int         `json:"loaded"`
	Ready   int         `json:"ready"`
	Errors  []loadError `json:"errors"`
}

type loadError struct {
	Extension string `json:"extension"`
	Message   string `json:"message"`
	Log       string `json:"log"`
}

// reload stops all extensions, reads the manifests anew and starts what it
// finds. It returns at once; answer is called when all are ready or have failed.
func (h *extHost) reload(answer func(reloaded)) {
	h.mu.Lock()
	h.started = make(chan struct{})
	started := h.started
	h.mu.Unlock()
	h.work.Go(func() {
		r := reloaded{Stopped: h.stop(), Errors: []loadError{}}
		exts := findExtensions(h.home, h.cwd, h.explicit, h.only)
		h.start(exts)
		<-started
		for _, e := range exts {
			switch {
			case e.err != nil:
				r.Errors = append(r.Errors, loadError{e.Name, e.err.Error(), e.log})
			case e.runs():
				r.Ready++
			}
			if e.group != nil {
				r.Loaded++
			}
		}
		answer(r)
	})
}

// wait returns when start-up is over or ctx has ended.
func (h *extHost) wait(ctx context.Context) {
	h.mu.Lock()
	started := h.started
	h.mu.Unlock()
	select {
	case <-started:
	case <-ctx.Done():
	}
}

// starting lists the extensions that are not ready yet.
func (h *extHost) starting() (names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.exts {
		if !isClosed(e.ready) {
			names = append(names, e.Name)
		}
	}
	return names
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// start spawns the extension and returns when it is ready or has failed.
func (e *extension) start() {
	defer e.setReady()
	if e.err = e.spawn(); e.err != nil {
		return
	}
	select {
	case <-e.hello:
	case <-e.group.exited:
		e.drain()
	case <-time.After(helloWait):
		e.err = fmt.Errorf("extension %s sent no hello in %v%s", e.Name, helloWait, e.story())
		e.group.kill(0)
		return
	}
	if !isClosed(e.hello) {
		e.err = fmt.Errorf("extension %s ended before hello%s", e.Name, e.story())
		return
	}
	e.awaitReady()
}

// setReady says that start-up of the extension is over.
func (e *extension) setReady() {
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	if !isClosed(e.ready) {
		close(e.ready)
	}
}

// awaitReady waits for ready, or takes silence after the last registration for
// it.
func (e *extension) awaitReady() {
	end := time.Now().Add(readyWait)
	for {
		e.host.mu.Lock()
		quiet := end
		if len(e.commands)+len(e.tools)+len(e.observes)+len(e.guards) > 0 {
			quiet = e.activity.Add(readyQuiet)
		}
		e.host.mu.Unlock()
		wait := time.Until(quiet)
		if wait <= 0 {
			return
		}
		select {
		case <-e.ready:
			return
		case <-e.group.exited:
			return
		case <-time.After(min(wait, 20*time.Millisecond)): // a registration shortens the wait
		}
	}
}

// spawn starts the process and its reader.
func (e *extension) spawn() error {
	if err := os.MkdirAll(filepath.Dir(e.log), 0o700); err != nil {
		return fmt.Errorf("extension %s: %w", e.Name, err)
	}
	if info, err := os.Stat(e.log); err == nil && info.Size() > maxLog {
		os.Rename(e.log, e.log+".1")
	}
	log, err := os.OpenFile(e.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("extension %s: %w", e.Name, err)
	}
	defer log.Close()
	program := filepath.Join(e.dir, e.Exec)
	if filepath.IsAbs(e.Exec) {
		program = e.Exec
	} else if _, err := os.Stat(program); err != nil && !strings.ContainsAny(e.Exec, `/\`) {
		program = e.Exec // a name: looked up in PATH
	}
	cmd := exec.Command(program, e.Args...)
	cmd.Dir, cmd.Env, cmd.Stderr = e.dir, childEnv(nil), log
	in, toChild, err := os.Pipe()
	if err != nil {
		return err
	}
	fromChild, out, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout = in, out
	e.group, err = startGroup(cmd)
	in.Close()
	out.Close()
	if err != nil {
		toChild.Close()
		fromChild.Close()
		return fmt.Errorf("extension %s could not be started: %w", e.Name, err)
	}
	e.out = newWriter(toChild, func() {})
	go func() { // ends with the writer: the pipe is closed behind the last frame
		<-e.out.done
		toChild.Close()
	}()
	go e.read(fromChild)
	go e.watch()
	return nil
}

// story tells how an extension ended, what it last said and where its log is.
func (e *extension) story() string {
	var s strings.Builder
	fmt.Fprintf(&s, " (command: %s)", strings.Join(append([]string{e.Exec}, e.Args...), " "))
	if e.group != nil && isClosed(e.group.exited) {
		fmt.Fprintf(&s, ": %s", exitText(e.group.state))
	}
	if last := logTail(e.log, 20); last != "" {
		s.WriteString("; its last output:\n" + last + "\n")
	} else {
		s.WriteString("; ")
	}
	return s.String() + "log: " + e.log
}

func exitText(state *os.ProcessState) string {
	if state == nil {
		return "ended in an unknown way"
	}
	return state.String() // "exit status 3", "signal: killed"
}

// logTail returns the end of a file.
func logTail(path string, n int) string {
	data, _ := os.ReadFile(path)
	data = data[max(0, len(data)-8<<10):]
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(data), "\ufffd")), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// watch waits for the end of the process. Its goroutine ends with it.
func (e *extension) watch() {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for running := true; running; {
		select {
		case <-e.group.exited:
			running = false
		case <-tick.C:
			if info, err := os.Stat(e.log); err == nil && info.Size() > maxLiveLog {
				os.Truncate(e.log, 0)
			}
		}
	}
	e.drain()
	h := e.host
	h.mu.Lock()
	e.dead = exitText(e.group.state)
	expected := e.out.closing()
	guard := e.guards["tool_call"]
	pending := e.pending
	e.pending = nil
	for id, owner := range h.panels {
		if owner == e {
			delete(h.panels, id)
		}
	}
	h.mu.Unlock()
	for _, reply := range pending {
		close(reply)
	}
	e.out.close(0)
	if !expected && isClosed(e.ready) {
		text := fmt.Sprintf("extension %s ended (%s); its tools and commands no longer work. log: %s", e.Name, e.dead, e.log)
		if guard {
			text = fmt.Sprintf("extension %s ended (%s): its guard over tool calls is gone. log: %s", e.Name, e.dead, e.log)
		}
		h.notice(e, "error", text)
	}
}

// drain waits until all that an extension sent before it ended was taken. If
// another process holds its stdout, that end is not to be seen.
func (e *extension) drain() {
	select {
	case <-e.ended:
	case <-time.After(500 * time.Millisecond):
	}
}

// logf writes a line to the extension's log.
func (e *extension) logf(format string, values ...any) {
	problem := fmt.Sprintf(format, values...)
	if e.host.observe != nil {
		e.host.observe(e, nil, problem)
	}
	f, err := os.OpenFile(e.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	fmt.Fprintf(f, "[zot] %s\n", problem)
}

// read takes the frames of an extension. Its goroutine ends when nobody holds
// the other end of the pipe.
func (e *extension) read(from *os.File) {
	defer close(e.ended)
	defer from.Close()
	r := bufio.NewReaderSize(from, 64<<10)
	for {
		line, err := inputLine(r)
		if line == nil && err == nil {
			return
		}
		var o object
		if err == nil {
			o, err = parseObject(line)
		}
		if err != nil {
			e.skip(line, err)
			continue
		}
		e.frame(o)
	}
}

// skip logs a line that is no frame; the first one is told.
func (e *extension) skip(line []byte, err error) {
	e.host.mu.Lock()
	e.noise++
	first := e.noise == 1
	e.host.mu.Unlock()
	e.logf("stdout line skipped (%v; stdout is for frames, other output belongs on stderr): %s", err, shorten(strings.ToValidUTF8(string(line), "\ufffd"), 500))
	if first {
		e.host.notice(e, "warn", fmt.Sprintf("extension %s printed something that is no frame on its stdout; see %s", e.Name, e.log))
	}
}

// text reads a string of a frame; what is missing or no string is "".
func (o object) text(key string) string {
	s, _ := o.str(key)
	return s
}

// frame handles one frame (spec: Extension -> host).
func (e *extension) frame(o object) {
	if e.host.observe != nil {
		e.host.observe(e, o, "")
	}
	typ := o.text("type")
	if !isClosed(e.hello) {
		if typ != "hello" {
			e.logf("frame before hello skipped: %q (hello comes first)", typ)
			return
		}
		e.greet(o)
		return
	}
	switch typ {
	case "register_command":
		e.register(func() { e.addCommand(o) })
	case "register_tool":
		e.addTool(o)
	case "subscribe":
		e.register(func() { e.subscribe(o) })
	case "ready":
		e.setReady()
	case "tool_result", "event_intercept_response", "command_response", "tool_progress":
		e.reply(o)
	case "notify":
		level := o.text("level")
		if !slices.Contains([]string{"info", "success", "warn", "error"}, level) {
			level = "info"
		}
		e.host.notice(e, level, o.text("message"))
	case "display":
		e.host.tell(&Event{Type: "ext_display", Extension: e.Name, Text: cmp.Or(o.text("display"), o.text("text"))})
	case "clear_notes":
		e.host.tell(&Event{Type: "ext_clear_notes", Extension: e.Name})
	case "open_panel":
		e.openPanel(o["panel"])
	case "panel_render":
		e.renderPanel(o)
	case "panel_close":
		e.closePanel(o.text("panel_id"))
	case "shutdown_ack", "submit": // submit is for the interactive host
	default:
		e.logf("unknown frame skipped: %q", typ)
	}
}

// greet answers hello.
func (e *extension) greet(o object) {
	e.host.mu.Lock()
	e.helloName = o.text("name")
	close(e.hello)
	e.activity = time.Now()
	e.host.mu.Unlock()
	if e.helloName != e.Name {
		e.logf("hello says the name is %q; the manifest's %q is used (make them the same)", e.helloName, e.Name)
	}
	e.send(func(dst []byte) []byte { return append(dst, encode(e.host.ack(e))...) })
}

// send puts a frame on the extension's stdin. It never blocks.
func (e *extension) send(build func(dst []byte) []byte) { e.out.frame(true, build) }

func (e *extension) register(change func()) {
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	e.activity = time.Now()
	change()
}

func (e *extension) addCommand(o object) {
	name := strings.TrimPrefix(o.text("name"), "/")
	if name == "" || strings.ContainsAny(name, " \t\n") {
		e.logf("register_command refused: %q is no command name (one word is)", name)
		return
	}
	e.commands = append(e.commands, extCommand{name, o.text("description")})
}

// addTool keeps a registration; commit decides about its name.
func (e *extension) addTool(o object) {
	t := &extTool{ext: e, name: o.text("name"), wait: toolWait}
	var ms float64
	if json.Unmarshal(o["timeout_ms"], &ms) == nil && ms > 0 {
		t.wait = time.Duration(ms * float64(time.Millisecond))
	}
	if string(o["interactive"]) == "true" {
		t.wait = 0
	}
	schema, err := toolSchema(o["schema"])
	if err != nil {
		e.leftOut(t.name, err.Error())
	} else {
		t.offered = &tool{name: modelName(t.name), description: o.text("description"), schema: schema,
			deferred: string(o["deferred"]) == "true", run: t.run}
	}
	e.register(func() { e.tools = append(e.tools, t) })
}

// leftOut tells that a tool can not be used.
func (e *extension) leftOut(name, problem string) {
	e.logf("the tool %q is left out: %s", name, problem)
	e.host.notice(e, "warn", fmt.Sprintf("extension %s: the tool %q is left out: %s", e.Name, name, problem))
}

var notToolName = lazyRegexp(`[^A-Za-z0-9_-]`)

// modelName is a tool's name as models may call it: ^[A-Za-z][A-Za-z0-9_-]{0,63}$
func modelName(name string) string {
	name = notToolName().ReplaceAllString(name, "_")
	if name != "" && (name[0] < 'A' || name[0] > 'z' || name[0] == '_') {
		name = "x_" + name
	}
	return name[:min(len(name), 64)]
}

// toolSchema makes a schema that every provider takes: its root is an object.
func toolSchema(raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return json.RawMessage(`{"type":"object","properties":{}}`), nil
	}
	raw, err := normalize(raw)
	if err != nil {
		return nil, fmt.Errorf("its schema is no JSON: %w", err)
	}
	o, err := parseObject(raw)
	if err != nil {
		return nil, fmt.Errorf("its schema is %w", err)
	}
	if typ := o.text("type"); typ != "object" && (o.has("type") || o.has("$ref")) {
		return nil, fmt.Errorf("the root of its schema must be an object, not %s", cmp.Or(typ, string(o["type"]), "a $ref"))
	}
	dst := []byte(`{"type":"object"`)
	walk(raw, func(key, value []byte) {
		switch string(key) {
		case "type", "anyOf", "oneOf", "allOf", "not", "enum": // providers refuse these at the root
		default:
			dst = append(append(append(append(dst, `,"`...), key...), `":`...), value...)
		}
	})
	if !o.has("properties") {
		dst = append(dst, `,"properties":{}`...)
	}
	return append(dst, '}'), nil
}

// The events that can be observed, and those that can be intercepted.
var (
	observable    = []string{"session_start", "turn_start", "turn_end", "tool_call", "tool_confirmation_requested", "assistant_message"}
	interceptable = []string{"tool_call", "turn_start", "assistant_message", "before_agent_start"}
)

func (e *extension) subscribe(o object) {
	for _, key := range []string{"events", "intercept"} {
		var names []string
		if o.has(key) && json.Unmarshal(o[key], &names) != nil {
			e.logf("subscribe: %q must be an array of strings", key)
		}
		for _, name := range names {
			set, known := e.observes, observable
			if key == "intercept" || name == "before_agent_start" {
				set, known = e.guards, interceptable
			}
			if !slices.Contains(known, name) {
				e.logf("subscribe: %q is none of the %s (%s)", name, key, strings.Join(known, ", "))
			}
			set[name] = true
		}
	}
}

// commit takes the tools that were registered since the last time, in the
// order of the extensions, and returns all.
func (h *extHost) commit() []*tool {
	h.mu.Lock()
	var refused []func()
	for _, e := range h.exts {
		for _, t := range e.tools {
			if t.committed || t.offered == nil {
				continue
			}
			t.committed = true
			problem := ""
			switch name := t.offered.name; {
			case name == "":
				problem = "a tool needs a name"
			case h.builtin(name):
				problem = "the name belongs to a built-in tool"
			case slices.ContainsFunc(h.tools, func(o *tool) bool { return o.name == name }):
				problem = "the name is already taken"
			}
			if problem == "" {
				h.tools = append(h.tools, t.offered)
			} else {
				refused = append(refused, func() { e.leftOut(t.name, problem) })
			}
		}
	}
	tools := h.tools
	h.mu.Unlock()
	for _, tell := range refused { // without the lock: telling takes the agent's
		tell()
	}
	return tools
}

// listedCommand is a command with its owner.
type listedCommand struct {
	extCommand
	extension string
}

// allCommands lists the commands that can be called.
func (h *extHost) allCommands() (list []listedCommand) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.exts {
		for _, c := range e.commands {
			taken := slices.ContainsFunc(list, func(o listedCommand) bool { return strings.EqualFold(o.name, c.name) })
			if !taken {
				list = append(list, listedCommand{c, e.Name})
			}
		}
	}
	return list
}

// command finds who owns a command.
func (h *extHost) command(name string) (*extension, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.exts {
		for _, c := range e.commands {
			if strings.EqualFold(c.name, name) {
				return e, c.name
			}
		}
	}
	return nil, ""
}

// request sends a frame with a new id and returns the channel of the replies.
// It is closed when the extension has died.
func (e *extension) request(typ string, fields func(dst []byte) []byte) (id string, replies chan object) {
	h := e.host
	h.mu.Lock()
	defer h.mu.Unlock()
	h.nextID++
	id = strconv.Itoa(h.nextID)
	replies = make(chan object, 16) // progress beyond that is dropped
	if e.pending == nil {
		close(replies)
		return id, replies
	}
	e.pending[id] = replies
	e.send(func(dst []byte) []byte {
		dst = appendString(append(dst, `{"type":`...), typ)
		dst = appendString(append(dst, `,"id":`...), id)
		return append(fields(dst), '}')
	})
	return id, replies
}

// reply hands a frame to who waits for it. Unknown and late ones are logged.
func (e *extension) reply(o object) {
	id := o.text("id")
	h := e.host
	h.mu.Lock()
	replies := e.pending[id]
	if o.text("type") != "tool_progress" {
		delete(e.pending, id)
	}
	h.mu.Unlock()
	if replies == nil {
		e.logf("%s with the id %q answers nothing (too late, twice, or never asked)", o.text("type"), id)
		return
	}
	select {
	case replies <- o:
	default:
	}
}

func (e *extension) forget(id string) {
	e.host.mu.Lock()
	delete(e.pending, id)
	e.host.mu.Unlock()
}

var errTooLate = errors.New("no answer in time")

// ask sends a request and waits for its reply: at most wait (0: no limit), and
// anew after each progress.
func (e *extension) ask(ctx context.Context, wait time.Duration, typ string, fields func(dst []byte) []byte, progress func(string)) (object, error) {
	id, replies := e.request(typ, fields)
	defer e.forget(id)
	for {
		var late <-chan time.Time
		if wait > 0 {
			timer := time.NewTimer(wait)
			defer timer.Stop()
			late = timer.C
		}
		select {
		case o, ok := <-replies:
			switch {
			case !ok:
				e.host.mu.Lock()
				defer e.host.mu.Unlock()
				return nil, fmt.Errorf("extension %s has ended (%s)", e.Name, e.dead)
			case o.text("type") != "tool_progress":
				return o, nil
			case progress != nil:
				progress(o.text("text"))
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-late:
			return nil, fmt.Errorf("extension %s: %w (%v)", e.Name, errTooLate, wait)
		}
	}
}

// run is a tool call.
func (t *extTool) run(ctx context.Context, c *toolCall) toolResult {
	o, err := t.ext.ask(ctx, t.wait, "tool_call", func(dst []byte) []byte {
		dst = appendString(append(dst, `,"name":`...), t.name)
		return append(append(dst, `,"args":`...), c.args...)
	}, c.progress)
	if err != nil {
		return errorResult(fmt.Sprintf("Tool %s failed: %v. Whether it had an effect is unknown.", t.name, err))
	}
	r := toolResult{isError: string(o["is_error"]) == "true"}
	var blocks []json.RawMessage
	if o.has("content") && json.Unmarshal(o["content"], &blocks) != nil {
		return errorResult(fmt.Sprintf("Tool %s failed: the extension's content is %s, not an array of blocks.", t.name, kindOf(o["content"])))
	}
	for _, raw := range blocks {
		b, err := parseObject(raw)
		if err != nil {
			continue
		}
		if b.text("type") == "image" {
			r.content = append(r.content, imageBlockOf(b.text("data")))
		} else if text := b.text("text"); text != "" {
			r.content = append(r.content, Block{Type: "text", Text: text})
		}
	}
	json.Unmarshal(o["activate_tools"], &r.activate)
	for i, name := range r.activate {
		r.activate[i] = modelName(name)
	}
	return r
}

// imageBlockOf checks an image in base64; one that cannot be used becomes a note.
func imageBlockOf(data string) Block {
	raw, err := base64.StdEncoding.DecodeString(data)
	if err == nil {
		var b Block
		if b, err = prepareImage(raw); err == nil {
			return b
		}
	}
	return Block{Type: "text", Text: fmt.Sprintf("[an image was left out: %v]", err)}
}

// observers lists the living extensions that want an event, in their order.
func (h *extHost) observers(event string, set func(*extension) map[string]bool) (list []*extension) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.exts {
		if e.dead == "" && set(e)[event] {
			list = append(list, e)
		}
	}
	return list
}

func observing(e *extension) map[string]bool { return e.observes }
func guarding(e *extension) map[string]bool  { return e.guards }

// notify tells the observers of an event (spec: event).
func (h *extHost) notify(event string, fields func(dst []byte) []byte) {
	for _, e := range h.observers(event, observing) {
		if e.out.behind() {
			continue // it does not read; requests to it will time out
		}
		e.send(func(dst []byte) []byte {
			dst = appendString(append(dst, `{"type":"event","event":`...), event)
			return append(fields(dst), '}')
		})
	}
}

// intercept asks the guards of an event one after another. use takes each
// answer and reports whether to ask no further. Who fails, allows.
func (h *extHost) intercept(ctx context.Context, event string, fields func(dst []byte) []byte, use func(e *extension, o object) (stop bool)) {
	for _, e := range h.observers(event, guarding) {
		o, err := e.ask(ctx, hookWait, "event_intercept", func(dst []byte) []byte {
			return fields(appendString(append(dst, `,"event":`...), event))
		}, nil)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			h.notice(e, "warn", fmt.Sprintf("%s: it did not say anything about %s, so that went on: %v", e.Name, event, err))
		case use(e, o):
			return
		}
	}
}

func blocks(o object) bool { return string(o["block"]) == "true" }

// guardTurn asks about a turn; reason is why not, "" to go on.
func (h *extHost) guardTurn(ctx context.Context, step int) (e *extension, reason string) {
	h.intercept(ctx, "turn_start", func(dst []byte) []byte {
		return strconv.AppendInt(append(dst, `,"step":`...), int64(step), 10)
	}, func(by *extension, o object) bool {
		if blocks(o) {
			e, reason = by, cmp.Or(o.text("reason"), "blocked by extension "+by.Name)
		}
		return blocks(o)
	})
	return e, reason
}

// guardText asks about the text of an answer: what is shown instead, or by
// whom it is kept back.
func (h *extHost) guardText(ctx context.Context, text string) (shown string, e *extension, reason string) {
	shown = text
	h.intercept(ctx, "assistant_message", func(dst []byte) []byte {
		return appendString(append(dst, `,"text":`...), shown)
	}, func(by *extension, o object) bool {
		if blocks(o) {
			e, reason = by, cmp.Or(o.text("reason"), "blocked by extension "+by.Name)
		} else if o.has("replace_text") {
			shown = o.text("replace_text")
		}
		return blocks(o)
	})
	return shown, e, reason
}

// guardCall asks about a tool call: with what arguments it runs, or why not.
func (h *extHost) guardCall(ctx context.Context, c *Block) (args json.RawMessage, refusal string) {
	args = c.Args
	h.intercept(ctx, "tool_call", func(dst []byte) []byte {
		return append(append(appendCall(dst, c), `,"tool_args":`...), args...)
	}, func(by *extension, o object) bool {
		if blocks(o) {
			refusal = cmp.Or(o.text("reason"), "refused by extension "+by.Name)
			return true
		}
		if o.has("modified_args") {
			modified, err := normalize(o["modified_args"])
			if err != nil || modified[0] != '{' {
				h.notice(by, "warn", by.Name+": modified_args is no JSON object and was ignored")
			} else {
				args = modified
			}
		}
		return false
	})
	return args, refusal
}

func appendCall(dst []byte, c *Block) []byte {
	dst = appendString(append(dst, `,"tool_id":`...), c.ID)
	return appendString(append(dst, `,"tool_name":`...), c.Name)
}

// guardPrompt lets extensions replace the system prompt (before_agent_start).
func (h *extHost) guardPrompt(ctx context.Context, prompt string) string {
	h.intercept(ctx, "before_agent_start", func(dst []byte) []byte {
		return appendString(append(dst, `,"system_prompt":`...), prompt)
	}, func(by *extension, o object) bool {
		if !o.has("system_prompt") {
			return false
		}
		text, err := o.str("system_prompt")
		switch {
		case err != nil:
			h.notice(by, "warn", fmt.Sprintf("%s: %v; the system prompt stays", by.Name, err))
		case len(text) > maxPrompt || !utf8.ValidString(text):
			h.notice(by, "warn", fmt.Sprintf("%s: its system prompt has %d bytes, the limit is %d; the prompt stays", by.Name, len(text), maxPrompt))
		default:
			prompt = text
		}
		return false
	})
	return prompt
}

// event tells observers what happened, as the client is told (spec: event).
// It is called under the agent's lock.
func (h *extHost) event(ev *Event) {
	switch ev.Type {
	case "turn_start":
		h.notify("turn_start", func(dst []byte) []byte { return strconv.AppendInt(append(dst, `,"step":`...), int64(ev.Step), 10) })
	case "assistant_message":
		h.notify(ev.Type, func(dst []byte) []byte { return appendString(append(dst, `,"text":`...), ev.Message.text()) })
	case "tool_call":
		h.notify(ev.Type, func(dst []byte) []byte {
			return append(append(appendCall(dst, ev.Call), `,"tool_args":`...), ev.Call.Args...)
		})
	case "tool_confirmation_requested":
		h.notify(ev.Type, func(dst []byte) []byte {
			return appendString(append(appendCall(dst, ev.Call), `,"tool_preview":`...), ev.Text)
		})
	case "turn_end":
		h.notify(ev.Type, func(dst []byte) []byte {
			dst = appendString(append(dst, `,"stop":`...), ev.Stop)
			if ev.Err != "" {
				dst = appendString(append(dst, `,"error":`...), ev.Err)
			}
			return dst
		})
	}
}

// holdsText reports whether an extension wants to see answers before the user.
func (h *extHost) holdsText() bool { return len(h.observers("assistant_message", guarding)) > 0 }

// notice tells the client something about an extension.
func (h *extHost) notice(e *extension, level, text string) {
	h.tell(&Event{Type: "notice", Extension: e.Name, Level: level, Text: text})
}

// panel is what an extension shows in a panel.
type panel struct {
	ID     string   `json:"id"`
	Title  string   `json:"title"`
	Lines  []string `json:"lines"`
	Footer string   `json:"footer"`
}

func (e *extension) openPanel(raw json.RawMessage) {
	p := panel{Lines: []string{}}
	if json.Unmarshal(raw, &p) != nil || p.ID == "" {
		e.logf("open_panel refused: a panel needs an id, and lines that are strings")
		return
	}
	e.host.mu.Lock()
	e.host.panels[p.ID] = e
	e.host.mu.Unlock()
	e.host.tell(&Event{Type: "ext_panel_open", Extension: e.Name, Panel: &p})
}

func (e *extension) renderPanel(o object) {
	p := panel{ID: o.text("panel_id"), Title: o.text("title"), Footer: o.text("footer"), Lines: []string{}}
	if err := json.Unmarshal(o["lines"], &p.Lines); o.has("lines") && err != nil {
		e.logf("panel_render: lines must be strings: %v", err)
	}
	if e.host.owner(p.ID) != e {
		e.logf("panel_render for %q, which is not open", p.ID)
		return
	}
	e.host.tell(&Event{Type: "ext_panel_render", Extension: e.Name, Panel: &p})
}

func (e *extension) closePanel(id string) {
	if e.host.owner(id) != e {
		e.logf("panel_close for %q, which is not open", id)
		return
	}
	e.host.mu.Lock()
	delete(e.host.panels, id)
	e.host.mu.Unlock()
	e.host.tell(&Event{Type: "ext_panel_close", Extension: e.Name, Panel: &panel{ID: id}})
}

func (h *extHost) owner(panelID string) *extension {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.panels[panelID]
}

// panelKey and panelClosed tell the owner of a panel what the user did.
func (h *extHost) panelKey(id, key, text string) error {
	e := h.owner(id)
	if e == nil {
		return fmt.Errorf("no panel %q is open", id)
	}
	e.send(func(dst []byte) []byte {
		dst = appendString(append(dst, `{"type":"panel_key","panel_id":`...), id)
		dst = appendString(append(dst, `,"key":`...), key)
		if text != "" {
			dst = appendString(append(dst, `,"text":`...), text)
		}
		return append(dst, '}')
	})
	return nil
}

func (h *extHost) panelClosed(id string) error {
	e := h.owner(id)
	if e == nil {
		return fmt.Errorf("no panel %q is open", id)
	}
	h.mu.Lock()
	delete(h.panels, id)
	h.mu.Unlock()
	e.send(func(dst []byte) []byte {
		return append(appendString(append(dst, `{"type":"panel_close","panel_id":`...), id), '}')
	})
	return nil
}

// invoke runs a command. prompt is what to run, when the answer is a prompt;
// everything else is told to the client here.
func (e *extension) invoke(ctx context.Context, name, args string) (prompt string) {
	o, err := e.ask(ctx, commandWait, "command_invoked", func(dst []byte) []byte {
		dst = appendString(append(dst, `,"name":`...), name)
		return appendString(append(dst, `,"args":`...), args)
	}, nil)
	if err == nil && o.text("error") != "" {
		err = errors.New(o.text("error"))
	}
	if err != nil {
		if ctx.Err() == nil {
			e.host.notice(e, "error", err.Error())
		}
		return ""
	}
	switch action := o.text("action"); action {
	case "prompt":
		return o.text("prompt")
	case "insert":
		e.host.tell(&Event{Type: "ext_insert", Extension: e.Name, Text: o.text("insert")})
	case "display":
		e.host.tell(&Event{Type: "ext_display", Extension: e.Name, Text: o.text("display")})
	case "open_panel":
		e.openPanel(o["open_panel"])
	case "noop", "":
	default:
		e.host.notice(e, "warn", fmt.Sprintf("/%s: unknown action %q", name, action))
	}
	return ""
}

// stop ends all extensions at once: shutdown, end of their input, two seconds,
// then signals.
func (h *extHost) stop() (stopped int) {
	h.mu.Lock()
	exts := h.exts
	h.mu.Unlock()
	var all sync.WaitGroup
	for _, e := range exts {
		if e.group == nil || !e.group.alive() {
			continue
		}
		stopped++
		all.Go(func() {
			e.send(func(dst []byte) []byte { return append(dst, `{"type":"shutdown"}`...) })
			e.out.close(100 * time.Millisecond)
			for end := time.Now().Add(shutdownWait); e.group.alive() && time.Now().Before(end); {
				time.Sleep(5 * time.Millisecond)
			}
			e.group.kill(500 * time.Millisecond)
		})
	}
	all.Wait()
	return stopped
}
