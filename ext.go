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
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
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
	drainWait    = 250 * time.Millisecond // for the last frames of one that ended
	maxToolWait  = 24 * time.Hour
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

	host    *extHost
	since   time.Time     // of the start
	hello   chan struct{} // closed by its first hello
	said    chan struct{} // closed by its first ready
	gone    chan struct{} // closed when it has ended and its last frames were read
	ready   chan struct{} // closed when its start-up is over, well or not
	logFrom int64         // where this run begins in the log

	// Guarded by the host's lock.
	group     *group // nil when it was not started
	out       *writer
	helloName string
	commands  []*extCommand
	tools     []*extTool
	observes  map[string]bool
	guards    map[string]bool
	pending   map[string]chan object // by type and id of the reply
	activity  time.Time              // of the last registration
	noise     int                    // lines that were no frames
	unread    bool                   // its frames wait for a client that does not read
	dead      string                 // how it ended; "" while it runs
	stopped   bool                   // we ended it
	held      bool                   // another process holds its stdout after its end
}

// extCommand is a registered command, in the spelling of its extension.
type extCommand struct {
	ext               *extension
	name, description string
	committed         bool // looked at by commit
}

// extTool is a registered tool; name is what the extension calls it.
type extTool struct {
	ext       *extension
	name      string
	offered   *tool // nil when it was refused
	wait      time.Duration
	committed bool // looked at by commit
}

// extHost runs the extensions of a process.
type extHost struct {
	home, cwd string
	explicit  []string // --ext
	only      bool     // --no-ext: no others
	ack       func(e *extension) map[string]any
	tell      func(*Event) // hands an event to the client
	flush     func()       // waits until the client has caught up
	builtin   func(name string) bool
	// observe, for doctor, gets each frame that came and each problem that was
	// logged. It may be nil, and must not block.
	observe func(e *extension, frame object, problem string)
	ctx     context.Context // ends when the process must

	mu       sync.Mutex
	exts     []*extension
	commands []*extCommand // committed, in that order: those that can be called
	tools    []*extTool    // the same
	panels   map[string]*extension
	started  chan struct{} // closed when start-up is over
	nextID   int
	work     sync.WaitGroup // reloading, and what waits for start-up
}

// findExtensions reads the manifests: --ext paths, then the project's, then the
// user's. Every one is listed, with what is wrong with it.
func findExtensions(home, cwd string, explicit []string, only bool) (exts []*extension) {
	read := func(dir, scope string) *extension {
		e := &extension{dir: dir, scope: scope}
		e.err = e.readManifest()
		e.log = filepath.Join(home, "logs", "ext-"+e.Name+".log")
		return e
	}
	add := func(e *extension) {
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
		add(read(filepath.Clean(dir), "path"))
	}
	if only {
		return exts
	}
	for _, place := range []struct{ dir, scope string }{
		{filepath.Join(cwd, ".zot", "extensions"), "project"},
		{filepath.Join(home, "extensions"), "user"},
	} {
		var found []*extension
		entries, _ := os.ReadDir(place.dir)
		for _, entry := range entries {
			dir := filepath.Join(place.dir, entry.Name())
			if _, err := os.Stat(filepath.Join(dir, "extension.json")); err == nil {
				found = append(found, read(dir, place.scope))
			}
		}
		slices.SortStableFunc(found, func(a, b *extension) int { return cmp.Compare(a.Name, b.Name) })
		for _, e := range found {
			add(e)
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

// start starts all extensions at once and returns. When the last is ready or has
// failed, over is called and then started is closed, for which prompts wait.
func (h *extHost) start(exts []*extension, started chan struct{}, over func()) {
	h.mu.Lock()
	h.exts, h.commands, h.tools, h.panels = exts, nil, nil, map[string]*extension{}
	for _, e := range exts {
		e.host, e.since = h, time.Now()
		e.hello, e.said, e.gone, e.ready = make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
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
			if e.err != nil && !e.ours() {
				h.notice(e, "error", e.err.Error())
			}
		}
		h.notify("session_start", func(dst []byte) []byte { return dst })
		over()
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
// finds, each reload after the one before. It returns at once; answer is called
// when all are ready or have failed.
func (h *extHost) reload(answer func(reloaded)) {
	h.mu.Lock()
	before, started := h.started, make(chan struct{})
	h.started = started
	h.mu.Unlock()
	h.work.Go(func() {
		<-before
		r := reloaded{Stopped: h.stop(), Errors: []loadError{}}
		exts := findExtensions(h.home, h.cwd, h.explicit, h.only)
		h.start(exts, started, func() {
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
		<-started
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
	defer close(e.ready)
	if e.err = e.spawn(); e.err != nil {
		e.err = fmt.Errorf("extension %s could not be started: %w%s", e.Name, e.err, e.story())
		return
	}
	select {
	case <-e.hello:
	case <-e.gone:
	case <-time.After(helloWait):
	}
	switch {
	case isClosed(e.hello):
		e.err = e.awaitReady()
	case isClosed(e.gone):
		e.err = fmt.Errorf("extension %s ended before hello%s", e.Name, e.story())
	default:
		e.err = fmt.Errorf("extension %s sent no hello in %v and was ended%s", e.Name, helloWait, e.story())
		e.group.kill(0)
	}
}

// awaitReady waits for ready, or takes silence after the last registration for
// it. Who takes longer is not waited for; who ends meanwhile has failed.
func (e *extension) awaitReady() error {
	end := time.Now().Add(readyWait)
	for {
		e.host.mu.Lock()
		until, registered := end, len(e.commands)+len(e.tools)+len(e.observes)+len(e.guards) > 0
		if quiet := e.activity.Add(readyQuiet); registered && quiet.Before(end) {
			until = quiet
		}
		e.host.mu.Unlock()
		wait := time.Until(until)
		if wait <= 0 {
			if !until.Before(end) {
				e.host.notice(e, "warn", fmt.Sprintf("extension %s is not ready after %v: going on without waiting for it; see %s", e.Name, readyWait, e.log))
			}
			return nil
		}
		select {
		case <-e.said:
			return nil
		case <-e.gone:
			if isClosed(e.said) {
				return nil
			}
			return fmt.Errorf("extension %s ended before it was ready%s", e.Name, e.story())
		case <-time.After(min(wait, readyQuiet)): // a registration moves the end
		}
	}
}

// spawn starts the process, its reader and its watcher.
func (e *extension) spawn() error {
	log, err := e.openLog()
	if err != nil {
		return err
	}
	defer log.Close()
	program := filepath.Join(e.dir, e.Exec)
	if filepath.IsAbs(e.Exec) {
		program = e.Exec
	} else if _, err := os.Stat(program); err != nil && !strings.ContainsAny(e.Exec, `/\`) {
		program = e.Exec // a name: looked up in PATH
	}
	in, toChild, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	fromChild, out, err := os.Pipe()
	if err != nil {
		toChild.Close()
		return err
	}
	defer out.Close()
	cmd := exec.Command(program, e.Args...)
	cmd.Dir, cmd.Env = e.dir, childEnv(nil)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, log
	group, err := startGroup(cmd)
	if err != nil {
		toChild.Close()
		fromChild.Close()
		return err
	}
	e.host.mu.Lock()
	e.group, e.out = group, newWriter(toChild, func() {})
	e.host.mu.Unlock()
	go func() { // ends with the writer: the pipe is closed behind the last frame
		<-e.out.done
		toChild.Close()
	}()
	read := make(chan struct{})
	go func() { // ends with the pipe, which watch closes at the latest
		e.read(fromChild)
		close(read)
	}()
	go e.watch(read, toChild, fromChild)
	return nil
}

// openLog opens the extension's log, a new one if it has become large.
func (e *extension) openLog() (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(e.log), 0o700); err != nil {
		return nil, err
	}
	if info, err := os.Stat(e.log); err == nil && info.Size() > maxLog {
		os.Rename(e.log, e.log+".1")
	}
	log, err := os.OpenFile(e.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	if info, err := log.Stat(); err == nil {
		e.logFrom = info.Size()
	}
	return log, nil
}

// story tells how an extension ended, what it last said and where its log is.
func (e *extension) story() string {
	var s strings.Builder
	fmt.Fprintf(&s, " (command: %s)", strings.Join(append([]string{e.Exec}, e.Args...), " "))
	if e.group != nil && isClosed(e.group.exited) {
		fmt.Fprintf(&s, ": %s", exitText(e.group.state))
	}
	if last := logTail(e.log, e.logFrom, 20); last != "" {
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

// logTail returns the end of what a file holds from an offset on: up to n
// lines within 8 KiB.
func logTail(path string, from int64, n int) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	from = max(from, info.Size()-8<<10)
	data, _ := io.ReadAll(io.NewSectionReader(f, from, max(0, info.Size()-from)))
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(data), "\ufffd")), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// watch waits for the end of the process and tells all that wait for it. Frames
// that it sent before its end count; who holds the pipe longer is not waited
// for. Its goroutine ends with the process.
func (e *extension) watch(read <-chan struct{}, toChild, fromChild *os.File) {
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
	held := false
	select {
	case <-read:
	case <-time.After(drainWait):
		held = true
	}
	fromChild.Close()
	toChild.Close()
	h := e.host
	h.mu.Lock()
	e.dead = exitText(e.group.state)
	e.held = held
	pending := e.pending
	e.pending = nil // from here on nothing is sent to them
	var panels []string
	for id, owner := range h.panels {
		if owner == e {
			panels = append(panels, id)
			delete(h.panels, id)
		}
	}
	guard := e.guards["tool_call"]
	h.mu.Unlock()
	slices.Sort(panels)
	for _, id := range panels {
		h.tell(&Event{Type: "ext_panel_close", Extension: e.Name, Panel: &panel{ID: id}})
	}
	e.out.close(0)
	close(e.gone)
	<-e.ready
	if !e.ours() && e.err == nil { // else it is told with the start, or nothing to tell
		lost := "its tools and commands no longer work"
		if guard {
			lost += ", and its guard over tool calls is gone"
		}
		h.notice(e, "error", fmt.Sprintf("extension %s ended (%s): %s. log: %s", e.Name, e.dead, lost, e.log))
	}
	for _, replies := range pending {
		close(replies)
	}
}

// ours reports whether the end of the extension is our doing.
func (e *extension) ours() bool {
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	return e.stopped || e.host.ctx.Err() != nil
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

// read takes the frames of an extension until the pipe ends or is closed.
func (e *extension) read(from io.Reader) {
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
			e.logf("frame before hello skipped: %q", typ)
			return
		}
		e.greet(o)
		return
	}
	switch typ {
	case "register_command":
		e.addCommand(o)
	case "register_tool":
		e.addTool(o)
	case "subscribe":
		e.subscribe(o)
	case "ready":
		if !isClosed(e.said) {
			close(e.said)
		}
	case "tool_result", "event_intercept_response", "command_response", "tool_progress":
		e.reply(typ, o)
	case "shutdown_ack", "submit": // submit is for the interactive host
	default:
		e.show(typ, o)
	}
}

// show passes on what an extension wants to be shown. One that says more than
// the client reads waits here.
func (e *extension) show(typ string, o object) {
	switch typ {
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
	default:
		e.logf("unknown frame skipped: %q", typ)
		return
	}
	e.setUnread(true)
	e.host.flush()
	e.setUnread(false)
}

func (e *extension) setUnread(unread bool) {
	e.host.mu.Lock()
	e.unread = unread
	e.host.mu.Unlock()
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

// register notes a registration.
func (e *extension) register(change func()) {
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	e.activity = time.Now()
	change()
}

// addCommand keeps a registration; commit decides about its name.
func (e *extension) addCommand(o object) {
	name := strings.TrimPrefix(o.text("name"), "/")
	if name == "" || strings.ContainsFunc(name, unicode.IsSpace) {
		e.logf("register_command refused: %q is no command name", name)
		return
	}
	c := &extCommand{ext: e, name: name, description: o.text("description")}
	e.register(func() { e.commands = append(e.commands, c) })
}

// addTool keeps a registration; commit decides about its name.
func (e *extension) addTool(o object) {
	t := &extTool{ext: e, name: o.text("name"), wait: toolWait}
	var ms float64
	if o.has("timeout_ms") {
		if json.Unmarshal(o["timeout_ms"], &ms) == nil && ms > 0 {
			t.wait = time.Duration(min(ms, float64(maxToolWait/time.Millisecond)) * float64(time.Millisecond))
		} else {
			e.logf("the timeout_ms of tool %q is no number above 0; it gets %v", t.name, toolWait)
		}
	}
	if string(o["interactive"]) == "true" {
		t.wait = 0
	}
	schema, dropped, err := toolSchema(o["schema"])
	if len(dropped) > 0 {
		e.logf("the schema of tool %q lost %s at its root: providers refuse that there", t.name, strings.Join(dropped, ", "))
	}
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

// toolSchema makes a schema that every provider takes: its root is an object
// with properties and without combinators. dropped are the keys that it lost.
func toolSchema(raw json.RawMessage) (schema json.RawMessage, dropped []string, err error) {
	if len(raw) == 0 || string(raw) == "null" {
		return json.RawMessage(`{"type":"object","properties":{}}`), nil, nil
	}
	raw, err = normalize(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("its schema is no JSON: %w", err)
	}
	o, err := parseObject(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("its schema is %w", err)
	}
	var types []string
	json.Unmarshal(o["type"], &types) // ["object","null"]
	properties := string(o["properties"])
	switch {
	case o.has("$ref"):
		return nil, nil, errors.New("the root of its schema must be an object, not a $ref")
	case o.has("type") && o.text("type") != "object" && !slices.Contains(types, "object"):
		return nil, nil, fmt.Errorf("the root of its schema must be an object, not %s", o["type"])
	case properties == "" || properties == "null" || properties == "[]": // an empty object, as some languages write it
		properties = "{}"
	case properties[0] != '{':
		return nil, nil, fmt.Errorf("the properties of its schema must be an object, not %s", kindOf(o["properties"]))
	}
	if required := []string{}; o.has("required") && json.Unmarshal(o["required"], &required) != nil {
		return nil, nil, errors.New("what its schema calls required must be an array of strings")
	}
	dst := []byte(`{"type":"object","properties":` + properties)
	whole := walk(raw, func(key, value []byte) {
		switch k := string(key); {
		case k == "type", k == "properties", k == "required" && string(value) == "null":
		case slices.Contains([]string{"anyOf", "oneOf", "allOf", "not", "enum"}, k):
			dropped = append(dropped, k)
		default:
			dst = append(append(append(append(dst, `,"`...), key...), `":`...), value...)
		}
	})
	if !whole {
		return nil, nil, errors.New("its schema is nested too deeply")
	}
	return append(dst, '}'), dropped, nil
}

// What can be subscribed to (spec: subscribe).
var (
	extEvents     = []string{"session_start", "turn_start", "turn_end", "tool_call", "tool_confirmation_requested", "assistant_message"}
	extIntercepts = []string{"tool_call", "turn_start", "assistant_message", "before_agent_start"}
)

func (e *extension) subscribe(o object) {
	list := func(key string) (names []string) {
		if o.has(key) && json.Unmarshal(o[key], &names) != nil {
			e.logf("subscribe: %q must be an array of strings", key)
		}
		return names
	}
	events, intercepts := list("events"), list("intercept")
	if i := slices.Index(events, "before_agent_start"); i >= 0 { // some list it there
		events, intercepts = slices.Delete(events, i, i+1), append(intercepts, "before_agent_start")
	}
	add := func(set map[string]bool, names, known []string) {
		for _, name := range names {
			if slices.Contains(known, name) {
				e.register(func() { set[name] = true })
			} else {
				e.logf("subscribe: unknown event %q (known: %s)", name, strings.Join(known, ", "))
			}
		}
	}
	add(e.observes, events, extEvents)
	add(e.guards, intercepts, extIntercepts)
}

// commit takes what was registered since the last time, in the order of the
// extensions: a name belongs to who came first. Nothing is taken before
// start-up is over, so that who is quicker does not count.
func (h *extHost) commit() {
	var refused []func()
	h.mu.Lock()
	if isClosed(h.started) {
		for _, e := range h.exts {
			refused = append(append(refused, h.commitCommands(e)...), h.commitTools(e)...)
		}
	}
	h.mu.Unlock()
	for _, tell := range refused { // without the lock: telling takes the agent's
		tell()
	}
}

func (h *extHost) commitCommands(e *extension) (refused []func()) {
	var taken map[string]string // owner by name
	for _, c := range e.commands {
		if c.committed {
			continue
		}
		if c.committed = true; taken == nil {
			taken = map[string]string{}
			for _, o := range h.commands {
				taken[strings.ToLower(o.name)] = o.ext.Name
			}
		}
		name := strings.ToLower(c.name)
		if owner, ok := taken[name]; ok {
			refused = append(refused, func() { e.logf("the command /%s is shadowed: extension %s has it already", c.name, owner) })
			continue
		}
		taken[name] = e.Name
		h.commands = append(h.commands, c)
	}
	return refused
}

func (h *extHost) commitTools(e *extension) (refused []func()) {
	var taken map[string]string // owner by name
	for _, t := range e.tools {
		if t.committed || t.offered == nil {
			continue
		}
		if t.committed = true; taken == nil {
			taken = map[string]string{}
			for _, o := range h.tools {
				taken[o.offered.name] = o.ext.Name
			}
		}
		problem, name := "", t.offered.name
		switch owner, ok := taken[name]; {
		case name == "":
			problem = "a tool needs a name"
		case h.builtin(name):
			problem = "the name belongs to a built-in tool"
		case ok:
			problem = fmt.Sprintf("extension %s has the name %s already", owner, name)
		default:
			taken[name] = e.Name
			h.tools = append(h.tools, t)
			continue
		}
		refused = append(refused, func() { e.leftOut(t.name, problem) })
	}
	return refused
}

// allTools lists the tools that can be called.
func (h *extHost) allTools() (tools []*tool) {
	h.commit()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.tools {
		tools = append(tools, t.offered)
	}
	return tools
}

// allCommands lists the commands that can be called.
func (h *extHost) allCommands() []*extCommand {
	h.commit()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.commands
}

// command finds a command by its name in any spelling, nil if there is none.
func (h *extHost) command(name string) *extCommand {
	for _, c := range h.allCommands() {
		if strings.EqualFold(c.name, name) {
			return c
		}
	}
	return nil
}

// replyTypes says by what frame a request is answered.
var replyTypes = map[string]string{"tool_call": "tool_result", "command_invoked": "command_response", "event_intercept": "event_intercept_response"}

// request sends a frame with a new id and returns the channel of the replies,
// which is closed when the extension has ended, and nil when it had before.
func (e *extension) request(typ string, fields func(dst []byte) []byte) (key string, replies chan object) {
	h := e.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.pending == nil {
		return "", nil
	}
	h.nextID++
	id := strconv.Itoa(h.nextID)
	key, replies = replyTypes[typ]+" "+id, make(chan object, 16) // progress beyond that is dropped
	e.pending[key] = replies
	e.send(func(dst []byte) []byte {
		dst = appendString(append(dst, `{"type":`...), typ)
		dst = appendString(append(dst, `,"id":`...), id)
		return append(fields(dst), '}')
	})
	return key, replies
}

// reply hands a frame to who waits for it. Unknown and late ones are logged.
func (e *extension) reply(typ string, o object) {
	id, last := o.text("id"), typ != "tool_progress"
	key := typ + " " + id
	if !last {
		key = "tool_result " + id
	}
	e.host.mu.Lock()
	replies := e.pending[key]
	switch {
	case last && replies != nil:
		delete(e.pending, key)
		replies <- o // there is room: progress leaves one place free
	case len(replies) < cap(replies)-1:
		replies <- o
	}
	e.host.mu.Unlock()
	if replies == nil {
		e.logf("%s with the id %q answers nothing (too late, twice, or never asked)", typ, id)
	}
}

func (e *extension) forget(key string) {
	e.host.mu.Lock()
	delete(e.pending, key)
	e.host.mu.Unlock()
}

// ended is the error of a request to an extension that has ended, nil while it
// runs.
func (e *extension) ended() error {
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	if e.dead == "" {
		return nil
	}
	return fmt.Errorf("extension %s has ended (%s)", e.Name, e.dead)
}

// ask sends a request and waits for its reply: at most wait (0: no limit), and
// anew after each progress. Waiting for our own client does not count.
func (e *extension) ask(ctx context.Context, wait time.Duration, typ string, fields func(dst []byte) []byte, progress func(string)) (object, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	key, replies := e.request(typ, fields)
	if replies == nil {
		return nil, e.ended()
	}
	defer e.forget(key)
	var late <-chan time.Time
	for {
		if wait > 0 {
			late = time.After(wait)
		}
		select {
		case o, ok := <-replies:
			switch {
			case !ok:
				return nil, e.ended()
			case o.text("type") != "tool_progress":
				return o, nil
			case progress != nil:
				progress(o.text("text"))
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-late:
			e.host.mu.Lock()
			unread := e.unread
			e.host.mu.Unlock()
			if !unread {
				return nil, fmt.Errorf("extension %s did not answer within %v", e.Name, wait)
			}
		}
	}
}

// run is a tool call.
func (t *extTool) run(ctx context.Context, c *toolCall) toolResult {
	if err := t.ext.ended(); err != nil {
		return errorResult(fmt.Sprintf("Tool %s was not run: %v.", t.name, err))
	}
	o, err := t.ext.ask(ctx, t.wait, "tool_call", func(dst []byte) []byte {
		dst = appendString(append(dst, `,"name":`...), t.name)
		return append(append(dst, `,"args":`...), c.args...)
	}, c.progress)
	if err != nil {
		return errorResult(fmt.Sprintf("Tool %s failed: %v. Whether it had an effect is unknown.", t.name, err))
	}
	r := toolResult{isError: string(o["is_error"]) == "true", details: map[string]string{"extension": t.ext.Name}}
	var blocks []object
	if o.has("content") && json.Unmarshal(o["content"], &blocks) != nil {
		return errorResult(fmt.Sprintf("Tool %s failed: the content of the extension's result must be an array of text and image blocks.", t.name))
	}
	for _, b := range blocks {
		switch typ := b.text("type"); {
		case typ == "image":
			r.content = append(r.content, imageBlockOf(b.text("data")))
		case typ != "text":
			t.ext.logf("a block of type %q in a result of %s was left out: only text and image blocks can be used", typ, t.name)
		case b.text("text") != "":
			r.content = append(r.content, Block{Type: "text", Text: b.text("text")})
		}
	}
	if o.has("activate_tools") && json.Unmarshal(o["activate_tools"], &r.activate) != nil {
		t.ext.logf("activate_tools in a result of %s must be an array of strings", t.name)
	}
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
			h.notice(e, "warn", fmt.Sprintf("%v; %s went on without its say", err, event))
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
		case len(text) > maxPrompt:
			h.notice(by, "warn", fmt.Sprintf("%s: its system prompt has %d bytes, the limit is %d; the system prompt stays", by.Name, len(text), maxPrompt))
		case !utf8.Valid(o["system_prompt"]):
			h.notice(by, "warn", by.Name+": its system prompt is no valid UTF-8; the system prompt stays")
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

// openPanel opens a panel, or says why not.
func (e *extension) openPanel(raw json.RawMessage) {
	h, p, problem := e.host, panel{}, ""
	if json.Unmarshal(raw, &p) != nil || p.ID == "" {
		problem = "a panel needs an id, and lines that are strings"
	} else {
		h.mu.Lock()
		if owner := h.panels[p.ID]; owner != nil && owner != e {
			problem = fmt.Sprintf("extension %s has a panel %q open", owner.Name, p.ID)
		} else {
			h.panels[p.ID] = e
		}
		h.mu.Unlock()
	}
	if problem != "" {
		h.notice(e, "warn", fmt.Sprintf("extension %s could not open a panel: %s", e.Name, problem))
		return
	}
	p.Lines = append([]string{}, p.Lines...) // [] and not null
	h.tell(&Event{Type: "ext_panel_open", Extension: e.Name, Panel: &p})
}

func (e *extension) renderPanel(o object) {
	p := panel{ID: o.text("panel_id"), Title: o.text("title"), Footer: o.text("footer"), Lines: []string{}}
	if o.has("lines") && json.Unmarshal(o["lines"], &p.Lines) != nil {
		e.logf("panel_render refused: lines must be an array of strings")
		return
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
func (c *extCommand) invoke(ctx context.Context, args string) (prompt string) {
	e := c.ext
	o, err := e.ask(ctx, commandWait, "command_invoked", func(dst []byte) []byte {
		dst = appendString(append(dst, `,"name":`...), c.name)
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
		e.host.notice(e, "warn", fmt.Sprintf("/%s: unknown action %q", c.name, action))
	}
	return ""
}

// stop ends all extensions at once: shutdown, end of their input, two seconds,
// then signals. One that is not ready yet has nothing to finish, and what one
// that ended has left behind was not asked for: they get signals at once.
func (h *extHost) stop() (stopped int) {
	h.mu.Lock()
	var exts []*extension
	for _, e := range h.exts {
		if e.stopped = true; e.group != nil {
			exts = append(exts, e)
		}
	}
	h.mu.Unlock()
	var all sync.WaitGroup
	for _, e := range exts {
		if !e.group.alive() {
			continue
		}
		grace := time.Duration(0)
		if !isClosed(e.group.exited) {
			stopped++
			if isClosed(e.ready) {
				grace = shutdownWait
			}
		}
		all.Go(func() {
			e.send(func(dst []byte) []byte { return append(dst, `{"type":"shutdown"}`...) })
			e.out.close(100 * time.Millisecond)
			for end := time.Now().Add(grace); e.group.alive() && time.Now().Before(end); {
				time.Sleep(5 * time.Millisecond)
			}
			e.group.kill(500 * time.Millisecond)
			select { // its panels are closed then
			case <-e.gone:
			case <-time.After(2 * drainWait): // it can not be killed
			}
		})
	}
	all.Wait()
	return stopped
}
