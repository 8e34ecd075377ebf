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
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
	state  string // "enabled", "bundle" (not spawned), "disabled", "shadowed", "not approved" or "broken"
	shadow string // directory of the extension of the same name that counts
	err    error  // why it does not run: manifest, start, handshake

	host    *extHost
	logFile *os.File // from its start until we have stopped it
	logFrom int64    // where this run begins in it
	stdin   io.Closer
	ready   chan struct{} // closed when its start-up is over, well or not
	ended   chan struct{} // closed when it has ended and nothing more comes from it
	gone    chan struct{} // closed when that was told, too
	unread  atomic.Bool   // its frames wait for a client that does not read

	patience *time.Timer // when it fires, start-up is over

	// Guarded by the host's lock.
	group              *group // nil when it was not started
	out                *writer
	startedAt, helloAt time.Time
	readyAt            time.Time                  // zero until it says so
	ending             bool                       // we end it
	fresh              []*registration            // not committed yet
	subscribed         map[string]map[string]bool // by "events" or "intercept", by event
	pending            map[string]chan object     // by type and id of the reply
	problems           findings                   // what it did wrong
	acked              bool                       // it answered shutdown
}

// findings are the last things that were seen of an extension.
type findings struct {
	last  []string // 20 at most
	count int
}

func (f *findings) add(text string) {
	f.count++
	f.last = append(f.last[max(0, len(f.last)-19):], text)
}

// registration is a command or a tool that an extension offers.
type registration struct {
	ext               *extension
	name, description string // as the extension has them
	tool              *tool  // nil for a command
}

// key is what no two registrations may share: the name as models or, behind a
// slash, users write it.
func (r *registration) key() string {
	if r.tool != nil {
		return r.tool.name
	}
	return "/" + strings.ToLower(r.name)
}

// extHost runs the extensions of a process.
type extHost struct {
	extPlaces
	found   func(exts []*extension) // is called with what a reload found
	ack     func(e *extension) map[string]any
	tell    func(*Event) // hands an event to the client
	flush   func()       // waits until the client has caught up
	builtin func(name string) bool
	// interactive: there is a user who could have typed what is submitted.
	interactive bool
	ctx         context.Context // ends when the process must

	mu       sync.Mutex
	exts     []*extension
	offers   []*registration // committed, in that order: what can be called
	taken    map[string]*registration
	panels   map[string]*extension
	started  chan struct{} // closed when start-up is over, for which prompts wait
	userGone chan struct{} // closed when no user answers any more
	nextID   int
	work     sync.WaitGroup // reloading, and what waits for start-up
}

// extPlaces is where extensions are looked for. The directories are absolute.
type extPlaces struct {
	home, cwd string
	explicit  []string // --ext
	only      bool     // --no-ext: no others
	distrust  bool     // --no-approve: those of the project are listed but not used
}

// find reads the manifests: --ext paths, then the project's, then the user's.
// Every one is listed, with what is wrong with it. Nothing is started.
func (p extPlaces) find() (exts []*extension) {
	add := func(dir, scope string) {
		e := &extension{dir: dir, scope: scope, ready: make(chan struct{}), ended: make(chan struct{}), gone: make(chan struct{}),
			subscribed: map[string]map[string]bool{"events": {}, "intercept": {}}, pending: map[string]chan object{}}
		e.err = e.readManifest()
		e.log = filepath.Join(p.home, "logs", "ext-"+e.Name+".log")
		exts = append(exts, e)
	}
	for _, dir := range p.explicit {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(p.cwd, dir)
		}
		add(filepath.Clean(dir), "path")
	}
	addAll := func(place, scope string) {
		first := len(exts)
		entries, _ := os.ReadDir(place)
		for _, entry := range entries {
			dir := filepath.Join(place, entry.Name())
			if _, err := os.Stat(filepath.Join(dir, "extension.json")); err == nil {
				add(dir, scope)
			}
		}
		slices.SortStableFunc(exts[first:], func(a, b *extension) int { return cmp.Compare(a.Name, b.Name) })
	}
	if !p.only {
		addAll(filepath.Join(p.cwd, ".zot", "extensions"), "project")
		addAll(filepath.Join(p.home, "extensions"), "user")
	}
	used := map[string]string{}
	for _, e := range exts {
		switch first, ok := used[e.Name]; {
		case p.distrust && e.scope == "project":
			e.state, e.err = "not approved", nil
			continue
		case e.err != nil:
			e.state = "broken"
			continue
		case ok:
			e.state, e.shadow = "shadowed", first
			continue
		case e.Enabled != nil && !*e.Enabled:
			e.state = "disabled"
		case e.Exec == "":
			e.state = "bundle"
		default:
			e.state = "enabled"
		}
		used[e.Name] = e.dir
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
	case !extensionName().MatchString(name):
		return fmt.Errorf("%s: the name %q must be letters, digits, dot, underscore and hyphen, and must not start with a dot", path, name)
	case e.Exec == "" && len(e.Skills) == 0 && !e.has("theme.json") && !e.has("themes/theme.json"):
		return fmt.Errorf("%s: \"exec\" is missing (only bundles of skills or a theme need none)", path)
	}
	return nil
}

// has reports whether a file or directory belongs to the extension.
func (e *extension) has(path string) bool {
	_, err := os.Stat(filepath.Join(e.dir, path))
	return err == nil
}

// inUse reports whether what the extension brings counts.
func (e *extension) inUse() bool { return e.state == "enabled" || e.state == "bundle" }

// runs reports whether the extension is to be started.
func (e *extension) runs() bool { return e.state == "enabled" }

// skillPaths are the skills of the extensions that are in use.
func skillPaths(exts []*extension) (paths []string) {
	for _, e := range exts {
		if e.inUse() {
			for _, s := range e.Skills {
				paths = append(paths, filepath.Join(e.dir, s))
			}
		}
	}
	return paths
}

// start starts all extensions at once. wait returns when the last is ready or has
// failed, and that was told.
func (h *extHost) start(exts []*extension) (wait func()) {
	h.mu.Lock()
	h.exts, h.offers, h.taken, h.panels = exts, nil, map[string]*registration{}, map[string]*extension{}
	h.mu.Unlock()
	for _, e := range exts {
		if e.host, e.startedAt = h, time.Now(); e.runs() {
			go e.live()
		} else {
			close(e.ready)
		}
	}
	return func() {
		for _, e := range exts {
			if <-e.ready; e.err != nil {
				h.tell(&Event{Type: "notice", Extension: e.Name, Level: "error", Manifest: filepath.Join(e.dir, "extension.json"), Text: e.err.Error(), Startup: true})
			}
		}
		h.notify("session_start", "")
	}
}

// hasStarted reports whether start-up is over: what is offered then is known.
func (h *extHost) hasStarted() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return isClosed(h.started)
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
		exts := h.find()
		h.found(exts)
		h.start(exts)()
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
		close(started)
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

// live is the life of an extension, from its start until everybody was told of
// its end.
func (e *extension) live() {
	defer close(e.gone)
	e.err = e.start()
	close(e.ready)
	if e.group == nil {
		e.logFile.Close()
		return
	}
	defer func() {
		if !e.group.alive() { // else stop has more to say
			e.logFile.Close()
		}
	}()
	if e.err != nil {
		e.group.kill(0) // also what is left of one whose first process has ended
	}
	<-e.ended
	h := e.host
	h.mu.Lock()
	panels, guards := maps.Clone(h.panels), e.subscribed["intercept"]["tool_call"]
	h.mu.Unlock()
	for id, owner := range panels {
		if owner == e {
			e.panel("ext_panel_close", id, nil)
		}
	}
	expected := e.expected()
	e.out.close(0)
	if expected || e.err != nil { // e.err is told with the start
		return
	}
	lost := "its tools and commands no longer work"
	if guards {
		lost += ", and its guard over tool calls is gone"
	}
	e.logf("it ended by itself (%s): an extension runs until it gets shutdown or the end of its stdin", e.exit())
	e.notice("error", "extension %s ended (%s): %s. log: %s", e.Name, e.exit(), lost, e.log)
}

// start spawns the extension and returns when it is ready or has failed. Silence
// after the last registration is taken for ready, and who takes longer is not
// waited for.
func (e *extension) start() error {
	e.patience = time.NewTimer(helloWait)
	err := e.spawn()
	if err == nil {
		select {
		case <-e.patience.C:
		case <-e.ended:
		}
	}
	e.host.mu.Lock()
	hello, ready := !e.helloAt.IsZero(), !e.readyAt.IsZero()
	e.host.mu.Unlock()
	var failure string
	switch ended := isClosed(e.ended); {
	case ready, (err != nil || ended) && e.expected():
		return nil
	case err != nil:
		failure = "could not be started: " + err.Error()
	case ended && !hello:
		failure = "ended before hello"
	case ended:
		failure = "ended before it was ready"
	case !hello:
		failure = fmt.Sprintf("sent no hello in %v and was ended (most languages hold back what they write to a pipe: flush it)", helloWait)
	default:
		if time.Since(e.helloAt) >= readyWait {
			e.notice("warn", "extension %s is not ready after %v: going on without waiting for it; see %s", e.Name, readyWait, e.log)
		}
		return nil
	}
	return fmt.Errorf("extension %s %s%s", e.Name, failure, e.story())
}

// expected reports whether the end of an extension is our doing.
func (e *extension) expected() bool {
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	return e.ending || e.host.ctx.Err() != nil
}

// advance notes a step of the start-up, and that after it as long a silence, but
// no more than readyWait since hello, is taken for ready.
func (e *extension) advance(silence time.Duration, note func()) {
	e.host.mu.Lock()
	note()
	if !e.readyAt.IsZero() {
		silence = 0
	}
	e.host.mu.Unlock()
	e.patience.Reset(min(silence, time.Until(e.helloAt.Add(readyWait))))
}

// program is the path of the executable, or a name that is looked up in PATH.
func (e *extension) program() string {
	if !filepath.IsAbs(e.Exec) && (e.has(e.Exec) || strings.ContainsAny(e.Exec, `/\`)) {
		return filepath.Join(e.dir, e.Exec)
	}
	return e.Exec
}

// spawn starts the process.
func (e *extension) spawn() error {
	err := os.MkdirAll(filepath.Dir(e.log), 0o700)
	if err != nil {
		return err
	}
	switch info, err := os.Stat(e.log); {
	case err == nil && info.Mode()&fs.ModeNamedPipe != 0: // to open it would wait for its other end
		return fmt.Errorf("the log %s is a pipe: remove it", e.log)
	case err == nil && info.Size() > maxLog:
		os.Rename(e.log, e.log+".1")
	}
	if e.logFile, err = os.OpenFile(e.log, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		return err
	}
	e.logFrom, _ = e.logFile.Seek(0, io.SeekEnd)
	cmd := exec.Command(e.program(), e.Args...)
	cmd.Dir, cmd.Stderr = e.dir, e.logFile
	stdin, err := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err := cmp.Or(err, err2); err != nil {
		return err
	}
	group, err := startGroup(cmd)
	if err != nil {
		return err
	}
	e.stdin = stdin
	e.host.mu.Lock()
	e.group, e.out = group, newWriter(stdin, func() {})
	e.host.mu.Unlock()
	go e.watch(stdout)
	return nil
}

// watch takes what an extension sends until it has ended: until its stdout is
// closed or nobody of its group is left. Its first process may well leave
// earlier, as launchers do. Who holds the pipe longer is not waited for.
func (e *extension) watch(stdout io.ReadCloser) {
	defer close(e.ended)
	read := make(chan struct{})
	go func() { // ends with the pipe, which is closed below
		e.readFrames(stdout)
		close(read)
	}()
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	exited := e.group.exited
	for runs := true; runs; {
		select {
		case <-read:
			runs = false
			select { // for how it ended
			case <-e.group.exited:
			case <-time.After(drainWait):
			}
		case <-exited:
			exited = nil
			tick.Reset(drainWait)
		case <-tick.C:
			if info, err := e.logFile.Stat(); err == nil && info.Size() > maxLiveLog {
				e.logFile.Truncate(0)
			}
			runs = e.group.alive() || e.unread.Load()
		}
	}
	if !isClosed(read) {
		e.logf("a process that outlives it holds its stdout: give what it starts in the background another")
	}
	stdout.Close()
	e.stdin.Close()
}

// exit says how an extension ended.
func (e *extension) exit() string {
	if !isClosed(e.group.exited) {
		return "it closed its stdout"
	}
	return exitText(e.group.state)
}

// story tells how an extension ended, the last that it wrote to its log in this
// run (20 lines within 8 KiB), and where that is.
func (e *extension) story() string {
	s := " (command: " + strings.Join(append([]string{e.Exec}, e.Args...), " ") + ")"
	if e.group != nil && isClosed(e.ended) {
		s += ": " + e.exit()
	}
	s += "; "
	size, _ := e.logFile.Seek(0, io.SeekEnd) // 0 if there is none
	from := max(e.logFrom, size-8<<10)
	data, _ := io.ReadAll(io.NewSectionReader(e.logFile, from, max(0, size-from)))
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(data), "\ufffd")), "\n")
	if last := strings.Join(lines[max(0, len(lines)-20):], "\n"); last != "" {
		s += "its last output:\n" + last + "\n"
	}
	return s + "log: " + e.log
}

func exitText(state *os.ProcessState) string {
	if state == nil {
		return "ended in an unknown way"
	}
	return state.String() // "exit status 3", "signal: killed"
}

// logf writes a line about a mistake of the extension to its log, and keeps the
// last ones. No lock may be held.
func (e *extension) logf(format string, values ...any) {
	problem := fmt.Sprintf(format, values...)
	e.host.mu.Lock()
	e.problems.add(problem)
	e.host.mu.Unlock()
	fmt.Fprintf(e.logFile, "[zot] %s\n", problem)
}

// notice tells the client something about the extension. No lock may be held.
func (e *extension) notice(level, format string, values ...any) {
	e.noticeIn("", level, format, values...)
}

// noticeIn tells of something that went wrong with the extension in an event, or
// in a command.
func (e *extension) noticeIn(event, level, format string, values ...any) {
	e.host.tell(&Event{Type: "notice", Extension: e.Name, Level: level, Manifest: filepath.Join(e.dir, "extension.json"), During: event, Text: fmt.Sprintf(format, values...)})
}

// readFrames takes the frames of an extension until the pipe ends or is closed.
func (e *extension) readFrames(from io.Reader) {
	r := bufio.NewReaderSize(from, 64<<10)
	for noise := 0; ; {
		line, err := inputLine(r)
		if line == nil && err == nil {
			return
		}
		var o object
		if err == nil {
			o, err = parseObject(line)
		}
		if err == nil {
			e.frame(o)
			continue
		}
		e.logf("stdout line skipped (%v; stdout is for frames, other output belongs on stderr): %s", err, shorten(strings.ToValidUTF8(string(line), "\ufffd"), 500))
		if noise++; noise == 1 {
			e.notice("warn", "extension %s printed something that is no frame on its stdout; see %s", e.Name, e.log)
		}
	}
}

// text reads a string of a frame; what is missing or no string is "".
func (o object) text(key string) string {
	s, _ := o.str(key)
	return s
}

func (o object) isTrue(key string) bool { return string(o[key]) == "true" }

// frame handles one frame (spec: Extension -> host).
func (e *extension) frame(o object) {
	typ := o.text("type")
	if e.helloAt.IsZero() { // only this goroutine sets it
		if typ != "hello" {
			e.logf("frame before hello skipped: %q", typ)
			return
		}
		e.advance(readyWait, func() { e.helloAt = time.Now() })
		if name := o.text("name"); name != e.Name {
			e.logf("hello says the name is %q; the manifest's %q is used (make them the same)", name, e.Name)
		}
		e.send("?", encode(e.host.ack(e)))
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
		e.advance(0, func() { e.readyAt = time.Now() })
	case "tool_result", "event_intercept_response", "command_response", "tool_progress":
		e.reply(typ, o)
	case "shutdown_ack":
		e.host.mu.Lock()
		e.acked = true
		e.host.mu.Unlock()
	case "submit":
		if e.host.interactive {
			e.host.tell(&Event{Type: "ext_submit", Extension: e.Name, Text: o.text("text")})
		}
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
		e.host.tell(&Event{Type: "notice", Extension: e.Name, Level: level, Text: o.text("message")})
	case "display":
		e.host.tell(&Event{Type: "ext_display", Extension: e.Name, Text: cmp.Or(o.text("display"), o.text("text"))})
	case "clear_notes":
		e.host.tell(&Event{Type: "ext_clear_notes", Extension: e.Name})
	case "open_panel":
		e.openPanel(o["panel"])
	case "panel_render":
		e.panel("ext_panel_render", o.text("panel_id"), o)
	case "panel_close":
		e.panel("ext_panel_close", o.text("panel_id"), o)
	default:
		e.logf("unknown frame skipped: %q", typ)
		return
	}
	e.unread.Store(true)
	e.host.flush()
	e.unread.Store(false)
}

// send puts a frame, see appendJSON, on the extension's stdin. It never blocks.
func (e *extension) send(template string, values ...any) {
	e.out.frame(true, func(dst []byte) []byte { return appendJSON(dst, template, values...) })
}

// add keeps a registration until commit decides about its name.
func (e *extension) add(r *registration) {
	r.ext = e
	e.advance(readyQuiet, func() { e.fresh = append(e.fresh, r) })
}

func (e *extension) addCommand(o object) {
	name := strings.TrimPrefix(o.text("name"), "/")
	if name == "" || strings.ContainsFunc(name, unicode.IsSpace) {
		e.logf("register_command refused: %q is no command name", name)
		return
	}
	e.add(&registration{name: name, description: o.text("description")})
}

func (e *extension) addTool(o object) {
	name, wait := o.text("name"), toolWait
	if o.has("timeout_ms") {
		if ms := count(o["timeout_ms"]); ms > 0 {
			wait = time.Duration(min(ms, int(maxToolWait/time.Millisecond))) * time.Millisecond
		} else {
			e.logf("the timeout_ms of tool %q is no number above 0; it gets %v", name, toolWait)
		}
	}
	if o.isTrue("interactive") {
		wait = 0
	}
	schema, dropped, err := toolSchema(o["schema"])
	if len(dropped) > 0 {
		e.logf("the schema of tool %q lost %s at its root: providers refuse that there", name, strings.Join(dropped, ", "))
	}
	if err != nil {
		e.toolLeftOut(name, err.Error())
		return
	}
	e.add(&registration{name: name, tool: &tool{name: modelName(name), description: o.text("description"), schema: schema,
		deferred: o.isTrue("deferred"), run: func(ctx context.Context, c *toolCall) toolResult { return e.call(ctx, name, wait, c) }}})
}

// toolLeftOut tells that a tool can not be used.
func (e *extension) toolLeftOut(name, why string) {
	problem := fmt.Sprintf("the tool %q is left out: %s", name, why)
	e.logf("%s", problem)
	e.notice("warn", "extension %s: %s", e.Name, problem)
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
		raw = json.RawMessage(`{}`)
	}
	if raw, err = normalize(raw); err != nil || raw[0] != '{' {
		return nil, nil, fmt.Errorf("its schema is not a JSON object but %s", kindOf(raw))
	}
	properties, rest := "{}", []byte(nil)
	whole := walk(raw, func(key, value []byte) {
		switch k, v := string(key), string(value); {
		case v == "null", k == "properties" && v == "[]": // an empty object, as some languages write it
		case k == "$ref":
			err = errors.New("the root of its schema must be an object, not a $ref")
		case k == "type":
			if !strings.Contains(v, `"object"`) { // alone or, with "null", in a list
				err = fmt.Errorf("the root of its schema must be an object, not %s", v)
			}
		case k == "properties":
			if properties = v; v[0] != '{' {
				err = fmt.Errorf("the properties of its schema must be an object, not %s", kindOf(value))
			}
			walk(value, func(name, property []byte) {
				if kind := kindOf(property); err == nil && kind != "an object" && kind != "a boolean" {
					err = fmt.Errorf("the property %q of its schema must be a schema, not %s", name, kind)
				}
			})
		case k == "required" && json.Unmarshal(value, new([]string)) != nil:
			err = errors.New("what its schema calls required must be an array of strings")
		case slices.Contains([]string{"anyOf", "oneOf", "allOf", "not", "enum"}, k):
			dropped = append(dropped, k)
		default:
			rest = append(append(append(append(rest, `,"`...), key...), `":`...), value...)
		}
	})
	if err == nil && !whole {
		err = errors.New("its schema is nested too deeply")
	}
	return appendJSON(nil, `{"type":"object","properties":??}`, []byte(properties), rest), dropped, err
}

// What can be subscribed to (spec: subscribe).
var subscriptions = map[string][]string{
	"events":    {"session_start", "turn_start", "turn_end", "tool_call", "tool_confirmation_requested", "assistant_message"},
	"intercept": {"tool_call", "turn_start", "assistant_message", "before_agent_start"},
}

func (e *extension) subscribe(o object) {
	for _, kind := range []string{"events", "intercept"} {
		var names []string
		known := subscriptions[kind]
		if o.has(kind) && json.Unmarshal(o[kind], &names) != nil {
			e.logf("subscribe: %q must be an array of strings", kind)
		}
		for _, name := range names {
			to := kind
			if name == "before_agent_start" { // some list it under events
				to = "intercept"
			} else if !slices.Contains(known, name) {
				e.logf("subscribe: unknown event %q (known: %s)", name, strings.Join(known, ", "))
				continue
			}
			e.advance(readyQuiet, func() { e.subscribed[to][name] = true })
		}
	}
}

// commit takes what was registered since the last time, in the order of the
// extensions: a name belongs to who came first. Nothing is taken before
// start-up is over, so that who is quicker does not count. It returns all that
// can be called.
func (h *extHost) commit() []*registration {
	var refuse []func() // without the lock
	h.mu.Lock()
	for _, e := range h.exts {
		if !isClosed(h.started) {
			break
		}
		for _, r := range e.fresh {
			key := r.key()
			why := ""
			switch owner := h.taken[key]; {
			case key == "":
				why = "a tool needs a name"
			case h.builtin(key):
				why = "the name belongs to a built-in tool"
			case owner != nil:
				why = fmt.Sprintf("extension %s has the name %s already", owner.ext.Name, key)
			default:
				h.taken[key] = r
				h.offers = append(h.offers, r)
				continue
			}
			refuse = append(refuse, func() { r.refuse(why) })
		}
		e.fresh = nil
	}
	offers := h.offers
	h.mu.Unlock()
	for _, tell := range refuse {
		tell()
	}
	return offers
}

// refuse tells that a tool or command can not be called.
func (r *registration) refuse(why string) {
	if r.tool != nil {
		r.ext.toolLeftOut(r.name, why)
	} else {
		r.ext.logf("the command /%s is left out: %s", r.name, why)
	}
}

// allTools lists the tools that can be called.
func (h *extHost) allTools() (tools []*tool) {
	for _, r := range h.commit() {
		if r.tool != nil {
			tools = append(tools, r.tool)
		}
	}
	return tools
}

// allCommands lists the commands that can be called.
func (h *extHost) allCommands() []*registration {
	return slices.DeleteFunc(slices.Clone(h.commit()), func(r *registration) bool { return r.tool != nil })
}

// called finds the command that a text calls by its name in any spelling, and
// its arguments. It waits for the start-up.
func (h *extHost) called(ctx context.Context, text string) (r *registration, args string) {
	if !strings.HasPrefix(text, "/") {
		return nil, ""
	}
	h.wait(ctx)
	end := strings.IndexFunc(text+" ", unicode.IsSpace)
	h.commit()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.taken[strings.ToLower(text[:end])], strings.TrimSpace(text[end:])
}

// replyTypes says by what frame a request is answered.
var replyTypes = map[string]string{"tool_call": "tool_result", "command_invoked": "command_response", "event_intercept": "event_intercept_response"}

// ask sends a request and waits for the reply: at most wait (0: no limit), and
// anew after each progress. What has no limit gets one when there is no user any
// more. fields are what stands behind the id, from a comma on.
func (e *extension) ask(ctx context.Context, wait time.Duration, progress func(string), typ string, fields []byte) (object, error) {
	h, replies := e.host, make(chan object, 1024) // progress beyond that is dropped
	h.mu.Lock()
	h.nextID++
	id := strconv.Itoa(h.nextID)
	key := replyTypes[typ] + " " + id
	e.pending[key] = replies
	before := e.problems.count
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(e.pending, key)
		h.mu.Unlock()
	}()
	if ctx.Err() == nil && !isClosed(e.gone) {
		e.send(`{"type":?,"id":??}`, typ, id, fields)
	}
	var late <-chan time.Time
	for {
		userGone := h.userGone
		if wait > 0 {
			late, userGone = time.After(wait), nil
		}
		select {
		case <-userGone:
			wait = toolWait
		case o := <-replies:
			if o.text("type") != "tool_progress" {
				return o, nil
			}
			progress(o.text("text"))
		case <-e.gone:
			if len(replies) == 0 { // what it sent before its end counts
				return nil, e.died()
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-late:
			if !e.unread.Load() {
				return nil, fmt.Errorf("extension %s did not answer within %v%s", e.Name, wait, e.since(before))
			}
		}
	}
}

// since tells of the last mistake of an extension, if it is newer than the first
// n: a reply that was misspelt, perhaps.
func (e *extension) since(n int) string {
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	if e.problems.count <= n {
		return ""
	}
	return fmt.Sprintf(" (meanwhile: %s)", e.problems.last[len(e.problems.last)-1])
}

// reply hands a frame to who waits for it. Unknown and late ones are logged.
func (e *extension) reply(typ string, o object) {
	id, room := o.text("id"), 1
	key := typ + " " + id
	if typ == "tool_progress" {
		key, room = "tool_result "+id, 2 // a place stays free for the result
	}
	e.host.mu.Lock()
	replies := e.pending[key]
	if cap(replies)-len(replies) >= room {
		replies <- o
	}
	if typ != "tool_progress" {
		delete(e.pending, key)
	}
	e.host.mu.Unlock()
	if replies == nil {
		e.logf("%s with the id %q answers nothing (too late, twice, or never asked)", typ, id)
	}
}

// died is the error of a request to an extension that has ended, nil while it
// runs.
func (e *extension) died() error {
	if !isClosed(e.gone) {
		return nil
	}
	return fmt.Errorf("extension %s has ended (%s)", e.Name, e.exit())
}

// call runs a tool.
func (e *extension) call(ctx context.Context, name string, wait time.Duration, c *toolCall) toolResult {
	if err := e.died(); err != nil {
		return errorResult(fmt.Sprintf("Tool %s was not run: %v.", name, err))
	}
	o, err := e.ask(ctx, wait, c.progress, "tool_call", appendJSON(nil, `,"name":?,"args":?`, name, c.args))
	if err != nil {
		return errorResult(fmt.Sprintf("Tool %s failed: %v. Whether it had an effect is unknown.", name, err))
	}
	r := toolResult{isError: o.isTrue("is_error"), details: map[string]string{"extension": e.Name}}
	var blocks []object
	if o.has("content") && json.Unmarshal(o["content"], &blocks) != nil {
		return errorResult(fmt.Sprintf("Tool %s failed: the content of the extension's result must be an array of text and image blocks.", name))
	}
	for _, b := range blocks {
		switch typ := b.text("type"); {
		case typ == "image":
			r.content = append(r.content, imageBlockOf(b.text("data")))
		case typ != "text":
			e.logf("a block of type %q in a result of %s was left out: only text and image blocks can be used", typ, name)
		case b.text("text") != "":
			r.content = append(r.content, Block{Type: "text", Text: b.text("text")})
		}
	}
	if o.has("activate_tools") && json.Unmarshal(o["activate_tools"], &r.activate) != nil {
		e.logf("activate_tools in a result of %s must be an array of strings", name)
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

// subscribers lists the living extensions that want an event, in their order.
func (h *extHost) subscribers(kind, event string) (list []*extension) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.exts {
		if e.subscribed[kind][event] && !isClosed(e.gone) {
			list = append(list, e)
		}
	}
	return list
}

// holdsText reports whether an extension wants to see answers before the user.
func (h *extHost) holdsText() bool { return len(h.subscribers("intercept", "assistant_message")) > 0 }

// notify tells of an event (spec: event); fields is a template of its fields.
func (h *extHost) notify(event, fields string, values ...any) {
	for _, e := range h.subscribers("events", event) {
		if !e.out.behind() { // else it does not read; requests to it will time out
			e.send(`{"type":"event","event":?`+fields+`}`, append([]any{event}, values...)...)
		}
	}
}

// event tells observers what happened, as the client is told. It is called
// under the agent's lock.
func (h *extHost) event(ev *Event) {
	switch ev.Type {
	case "turn_start":
		h.notify(ev.Type, `,"step":?`, ev.Step)
	case "assistant_message":
		h.notify(ev.Type, `,"text":?`, ev.Message.text())
	case "tool_call":
		h.notify(ev.Type, `?,"tool_args":?`, appendCall(nil, ev.Call), ev.Call.Args)
	case "tool_confirmation_requested":
		h.notify(ev.Type, `?,"tool_preview":?`, appendCall(nil, ev.Call), ev.Text)
	case "turn_end":
		if ev.Err == "" {
			h.notify(ev.Type, `,"stop":?`, ev.Stop)
		} else {
			h.notify(ev.Type, `,"stop":?,"error":?`, ev.Stop, ev.Err)
		}
	}
}

func appendCall(dst []byte, c *Block) []byte {
	return appendJSON(dst, `,"tool_id":?,"tool_name":?`, c.ID, c.Name)
}

// intercept asks the guards of an event one after another, until one blocks it:
// by is who, and reason what it says. value, which is told as the last field, is
// replaced by what an answer has as key. Who fails, allows.
func (h *extHost) intercept(ctx context.Context, event string, fields []byte, last string, value json.RawMessage, key string) (_ json.RawMessage, by *extension, reason string) {
	for _, e := range h.subscribers("intercept", event) {
		o, err := e.ask(ctx, hookWait, nil, "event_intercept", appendJSON(nil, `,"event":??,?:?`, event, fields, last, value))
		switch {
		case ctx.Err() != nil:
			return value, nil, ""
		case err != nil:
			e.noticeIn(event, "warn", "%v; %s went on without its say", err, event)
			continue
		case o.has("block") && kindOf(o["block"]) != "a boolean":
			e.noticeIn(event, "warn", "%s: block was ignored: it must be a boolean, not %s; %s went on", e.Name, kindOf(o["block"]), event)
			continue
		case o.isTrue("block") && event != "before_agent_start": // which can not be blocked
			return value, e, cmp.Or(o.text("reason"), "blocked by extension "+e.Name)
		case !o.has(key):
			continue
		}
		changed, err := normalize(o[key])
		switch isPrompt, size := key == "system_prompt", len(textOf(changed)); {
		case err != nil || kindOf(changed) != kindOf(value):
			e.noticeIn(event, "warn", "%s: %s was ignored: it must be %s", e.Name, key, kindOf(value))
		case isPrompt && size > maxPrompt:
			e.noticeIn(event, "warn", "%s: its system prompt has %d bytes, the limit is %d; the system prompt stays", e.Name, size, maxPrompt)
		case isPrompt && !utf8.Valid(o[key]):
			e.noticeIn(event, "warn", "%s: its system prompt is no valid UTF-8; the system prompt stays", e.Name)
		default:
			value = changed
		}
	}
	return value, nil, ""
}

// guardTurn asks about a turn: by whom and why it is blocked.
func (h *extHost) guardTurn(ctx context.Context, step int) (by *extension, reason string) {
	_, by, reason = h.intercept(ctx, "turn_start", nil, "step", strconv.AppendInt(nil, int64(step), 10), "")
	return by, reason
}

// guardText asks about the text of an answer: what is shown instead, or by
// whom it is kept back.
func (h *extHost) guardText(ctx context.Context, text string) (shown string, by *extension, reason string) {
	changed, by, reason := h.intercept(ctx, "assistant_message", nil, "text", appendString(nil, text), "replace_text")
	return textOf(changed), by, reason
}

// guardCall asks about a tool call: with what arguments it runs, or why not.
func (h *extHost) guardCall(ctx context.Context, c *Block) (args json.RawMessage, refusal string) {
	args, _, refusal = h.intercept(ctx, "tool_call", appendCall(nil, c), "tool_args", c.Args, "modified_args")
	return args, refusal
}

// guardPrompt lets extensions replace the system prompt.
func (h *extHost) guardPrompt(ctx context.Context, prompt string) string {
	changed, _, _ := h.intercept(ctx, "before_agent_start", nil, "system_prompt", appendString(nil, prompt), "system_prompt")
	return textOf(changed)
}

// panel is what an extension shows in a panel. Who opened one owns its id until
// it is closed.
type panel struct {
	ID, Title, Footer string
	Lines             []string
}

func (e *extension) openPanel(raw json.RawMessage) {
	o, _ := parseObject(raw)
	e.panel("ext_panel_open", o.text("id"), o)
}

// panel opens, draws or closes a panel for an extension, as the event says.
func (e *extension) panel(event, id string, o object) {
	h, p := e.host, &panel{ID: id, Title: o.text("title"), Footer: o.text("footer"), Lines: []string{}}
	opens, problem := event == "ext_panel_open", ""
	bad := o.has("lines") && json.Unmarshal(o["lines"], &p.Lines) != nil
	h.mu.Lock()
	switch owner := h.panels[id]; {
	case bad || id == "":
		problem = "a panel needs an id, and lines that are strings"
	case opens && owner != nil && owner != e:
		problem = fmt.Sprintf("extension %s has a panel %q open", owner.Name, id)
	case !opens && owner != e:
		problem = fmt.Sprintf("no panel %q is open", id)
	case opens:
		h.panels[id] = e
	case event == "ext_panel_close":
		delete(h.panels, id)
	}
	h.mu.Unlock()
	switch {
	case problem == "":
		h.tell(&Event{Type: event, Extension: e.Name, Panel: p})
	case opens:
		e.notice("warn", "extension %s could not open a panel: %s", e.Name, problem)
	default: // the user may just have closed it
		e.logf("%s refused: %s", strings.TrimPrefix(event, "ext_"), problem)
	}
}

// panelKey tells the owner of a panel what key the user pressed.
func (h *extHost) panelKey(id, key, text string) error {
	fields := appendJSON(nil, `,"key":?`, key)
	if text != "" {
		fields = appendJSON(fields, `,"text":?`, text)
	}
	return h.toPanel("panel_key", id, fields)
}

func (h *extHost) panelClosed(id string) error { return h.toPanel("panel_close", id, nil) }

// endOfInput tells extensions that no user answers any more.
func (h *extHost) endOfInput() {
	close(h.userGone)
	h.mu.Lock()
	open := maps.Clone(h.panels)
	h.mu.Unlock()
	for id, e := range open { // the client is told when they are gone with their owners
		e.send(`{"type":"panel_close","panel_id":?}`, id)
	}
}

func (h *extHost) toPanel(typ, id string, fields []byte) error {
	h.mu.Lock()
	e := h.panels[id]
	if typ == "panel_close" {
		delete(h.panels, id)
	}
	h.mu.Unlock()
	if e == nil {
		return fmt.Errorf("no panel %q is open", id)
	}
	e.send(`{"type":?,"panel_id":??}`, typ, id, fields)
	return nil
}

// invoke runs a command. prompt is what to run, when the answer is a prompt;
// everything else is told to the client here.
func (r *registration) invoke(ctx context.Context, args string) (prompt string) {
	e := r.ext
	o, err := e.ask(ctx, commandWait, nil, "command_invoked", appendJSON(nil, `,"name":?,"args":?`, r.name, args))
	if err == nil && o.text("error") != "" {
		err = errors.New(o.text("error"))
	}
	if err != nil {
		if ctx.Err() == nil {
			e.noticeIn("command", "error", "%v", err)
		}
		return ""
	}
	switch action := o.text("action"); action {
	case "prompt":
		return o.text("prompt")
	case "insert", "display":
		e.host.tell(&Event{Type: "ext_" + action, Extension: e.Name, Text: o.text(action)})
	case "open_panel":
		e.openPanel(o["open_panel"])
	case "noop", "":
	default:
		e.noticeIn("command", "warn", "/%s: unknown action %q", r.name, action)
	}
	return ""
}

// stop ends all extensions at once.
func (h *extHost) stop() (stopped int) {
	var all sync.WaitGroup
	h.mu.Lock()
	for _, e := range h.exts {
		if e.ending = true; e.group != nil && e.group.alive() {
			stopped++
			all.Go(e.stop)
		}
	}
	h.mu.Unlock()
	all.Wait()
	return stopped
}

// stop ends the extension: shutdown, end of its input, two seconds, then
// signals. One that is not ready yet has nothing to finish.
func (e *extension) stop() {
	grace := shutdownWait
	if !isClosed(e.ready) {
		grace = 100 * time.Millisecond
	}
	end := time.Now().Add(grace)
	e.send(`{"type":"shutdown"}`)
	e.out.close(grace)
	e.stdin.Close()
	for e.group.alive() && time.Now().Before(end) {
		time.Sleep(5 * time.Millisecond)
	}
	switch {
	case !e.group.alive():
	case isClosed(e.group.exited):
		e.logf("it ended, but other processes that it had started were killed %v after shutdown: end them, too", grace)
	default:
		e.logf("it was killed %v after shutdown: end when shutdown comes or stdin ends", grace)
	}
	e.group.kill(500 * time.Millisecond)
	select { // its panels are closed then
	case <-e.gone:
	case <-time.After(2 * drainWait): // it can not be killed
	}
	e.logFile.Close()
}
