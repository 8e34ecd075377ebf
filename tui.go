// The terminal host: what `zot` is in a terminal. It shows what an agent does,
// takes what a person types, and is the interactive host of the extension
// protocol (spec: zot extensions). Rules kept here:
//
//   - One goroutine, run, owns the screen and everything that is kept here.
//     Events of the agent come to it through the inbox, keys and what was done
//     in the background through channels.
//   - What the owner does never waits for a model, a tool or an extension.
//   - One job runs at a time; what is entered meanwhile waits here, in order.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	frameTime    = 16 * time.Millisecond // between two drawings, unless a key was pressed
	spinTime     = 100 * time.Millisecond
	calmTime     = time.Second / 2 // without a key, before keys answer a question
	leaveTime    = 2 * time.Second // between the two ctrl+c that leave
	reloadTime   = 5 * time.Second // that the outcome of a reload is shown
	foldedLines  = 6               // of a result
	foldedDiff   = 40
	progressRows = 3
	maxNotes     = 50
	shownPast    = 40 // messages of a session that is gone on with

	shellID = "!" // of the user's own command
)

// shellCall is the call of a user's own command, which is given as JSON.
func shellCall(command json.RawMessage) *Block {
	return &Block{ID: shellID, Name: "bash", Args: appendJSON(nil, `{"command":?}`, command)}
}

// inbox takes the agent's events to the owner. It is the agent's host. What is
// streamed is put together, so that it stays small while the owner draws.
type inbox struct {
	mu      sync.Mutex
	events  []Event
	size    int           // bytes of text in it
	wake    chan struct{} // capacity 1: there is something in it
	drained *sync.Cond    // it was emptied
}

func newInbox() *inbox {
	b := &inbox{wake: make(chan struct{}, 1)}
	b.drained = sync.NewCond(&b.mu)
	return b
}

// event implements host.
func (b *inbox) event(e *Event) {
	own := *e
	if own.Type == "delta" {
		if own.Delta.phase != "delta" || own.Delta.block.Type != "text" && own.Delta.block.Type != "thinking" {
			return
		}
		own.Type, own.Text, own.Delta = own.Delta.block.Type, string(own.Delta.text), delta{}
	}
	size := len(own.Text)
	if own.Panel != nil {
		for _, line := range own.Panel.Lines {
			size += len(line)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var last *Event
	if n := len(b.events); n > 0 && b.events[n-1].Type == own.Type {
		last = &b.events[n-1]
	}
	switch {
	case last != nil && (own.Type == "text" || own.Type == "thinking" || own.Type == "tool_progress" && own.CallID == last.CallID):
		last.Text += own.Text
	case last != nil && own.Type == "ext_panel_render" && own.Panel.ID == last.Panel.ID:
		*last, size = own, 0
	default:
		b.events = append(b.events, own)
		size += 64
	}
	b.size += size
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take empties the inbox.
func (b *inbox) take() []Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	events := b.events
	b.events, b.size = nil, 0
	b.drained.Broadcast()
	return events
}

func (b *inbox) flush(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	waitCond(ctx, b.drained, func() bool { return b.size < backlog })
}

func (b *inbox) behind() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.size >= backlog
}

// note is something to know that is shown until the next prompt.
type note struct {
	extension, text string
	style           style
	until           time.Time // zero: no longer than others
}

// entered is something that was entered and waits for its turn.
type entered struct {
	text string
	run  func()
}

// tui is the state of the terminal host.
type tui struct {
	*setup
	inbox   *inbox
	agent   *Agent
	in, out *os.File
	restore func()        // undoes raw mode
	ended   chan struct{} // closed when the owner has left the terminal
	posted  chan func()   // what background work wants done by the owner

	screen screen
	editor editor
	keys   keyReader
	dirty  bool
	drawn  time.Time // the last drawing
	leave  bool
	ctrlC  time.Time // the first of the two

	queue   []entered
	busy    bool
	since   time.Time               // when it became busy
	cancel  context.CancelCauseFunc // of a shell command; nil: a job of the agent runs
	context int                     // tokens, as the provider last said

	md       markdown
	rest     string // of the answer: the line that is not complete
	speaking bool   // the answer has begun
	thinking string
	calls    []*Block          // that have no result yet
	progress map[string]string // by call id: the end of the output
	folded   *Block            // the last call whose result was folded, with the result as its text

	notes    []note
	failures []string  // of extensions to start; they stay until a good reload
	panels   []*panel  // the last one has the focus
	ask      *Event    // the call that waits for approval
	calm     time.Time // when ask was drawn with no key since; zero: not yet
	reason   *editor   // why it is denied, while that is written
	pick     *picker
	offers   []string // completions that were offered
	offer    int      // the one that was put in last; -1: none
}

// newTUI makes the host of a terminal; run runs it.
func newTUI(s *setup, in, out *os.File) (*tui, error) {
	t := &tui{setup: s, in: in, out: out, ended: make(chan struct{}), posted: make(chan func(), 16), progress: map[string]string{}, inbox: newInbox()}
	t.screen.out = out
	t.screen.width, t.screen.height = terminalSize(out)
	if os.Getenv("NO_COLOR") == "" {
		t.loadTheme()
	}
	t.editor.history = loadHistory(t.historyFile())
	restore, err := makeRaw(in, out)
	if err != nil {
		return nil, err
	}
	stderr := os.Stderr
	t.showStderr()
	t.restore = sync.OnceFunc(func() { restore(); os.Stderr = stderr })
	return t, nil
}

// loadTheme takes the colours of $ZOT_HOME/theme.json, else of the first
// extension that brings some.
func (t *tui) loadTheme() {
	t.screen.theme = defaultTheme
	if t.noThemes {
		return
	}
	paths := []string{filepath.Join(t.home, "theme.json")}
	for _, e := range t.exts {
		if e.inUse() {
			paths = append(paths, filepath.Join(e.dir, "theme.json"), filepath.Join(e.dir, "themes", "theme.json"))
		}
	}
	for _, path := range paths {
		if _, err := os.Stat(path); err == nil {
			if err := t.screen.theme.load(path); err != nil {
				t.warnings = append(t.warnings, err.Error())
			}
			return
		}
	}
}

// run is the owner. It returns when the user leaves or the process must end;
// what runs is stopped then.
func (t *tui) run(a *Agent) {
	t.agent = a
	defer t.close()
	defer close(t.ended)
	defer t.screen.leave()
	defer t.stop()
	typed, resized := make(chan []byte), make(chan os.Signal, 1)
	go t.readKeys(typed)
	watchSize(resized)
	t.out.WriteString(enterModes)
	t.welcome()
	timer := time.NewTimer(0)
	for !t.leave {
		if t.dirty && time.Since(t.drawn) >= frameTime && t.draw() != nil {
			return // the terminal has gone
		}
		wait := time.Hour
		if t.busy || slices.ContainsFunc(t.notes, func(n note) bool { return !n.until.IsZero() }) {
			wait = spinTime
		}
		if at := t.keys.due(); !at.IsZero() {
			wait = min(wait, time.Until(at))
		}
		if t.dirty {
			wait = min(wait, time.Until(t.drawn.Add(frameTime)))
		}
		timer.Reset(wait)
		select {
		case b, open := <-typed:
			if !open {
				return
			}
			t.press(t.keys.read(b))
		case <-t.inbox.wake:
			for _, e := range t.inbox.take() {
				t.show(&e)
			}
			t.dirty = true
		case <-resized:
			if w, h := terminalSize(t.out); w != t.screen.width || h != t.screen.height {
				t.screen.resize(w, h)
				t.dirty = true
			}
		case do := <-t.posted:
			do()
			t.dirty = true
		case <-timer.C:
			t.press(t.keys.flush())
			t.notes = slices.DeleteFunc(t.notes, func(n note) bool { return !n.until.IsZero() && time.Now().After(n.until) })
			t.dirty = true
		case <-t.agent.ctx.Done():
			return
		}
	}
}

// readKeys hands on what is typed. It ends with the input, or with the process.
func (t *tui) readKeys(to chan<- []byte) {
	defer close(to)
	for {
		b := make([]byte, 4096)
		n, err := t.in.Read(b)
		if err != nil {
			return
		}
		to <- b[:n]
	}
}

// close gives the terminal back as it was, without the owner if that does not
// answer in a moment. Any goroutine may call it. It does not return while the
// terminal takes nothing (ctrl+s, a connection that stands still).
func (t *tui) close() {
	select {
	case <-t.ended:
		t.restore()
	case <-time.After(150 * time.Millisecond):
		t.restore() // first: what follows may wait for ever
		t.out.WriteString(leaveModes + "\r\n")
	}
}

// post has something done by the owner.
func (t *tui) post(do func()) {
	select {
	case t.posted <- do:
	case <-t.ended:
	}
}

// showStderr makes notes of what is written to standard error: it would
// destroy the picture. It ends with the process.
func (t *tui) showStderr() {
	if !isTerminal(os.Stderr) {
		return
	}
	r, w, err := os.Pipe()
	if err != nil {
		return
	}
	os.Stderr = w
	go func() {
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			t.inbox.event(&Event{Type: "notice", Level: "warn", Text: strings.TrimPrefix(lines.Text(), "zot: ")})
		}
	}()
}

// welcome prints what there is to know at the start.
func (t *tui) welcome() {
	t.print("", fmt.Sprintf("zot with %s in %s. /help tells what there is.", t.agent.model.ID, filepath.Base(t.cwd)), asMuted)
	if _, err := credential(t.provider, t.apiKey, t.home); err != nil {
		t.print("", err.Error(), asWarning)
		t.print("", "To look around without a key: /model script/demo", asWarning)
	}
	for _, w := range t.warnings {
		t.addNote(note{text: w, style: asWarning})
	}
	if t.session != nil {
		t.showPast(t.restored)
	}
	if t.resume {
		t.chooseSession()
	}
	if t.prompt != "" {
		t.enter(t.prompt)
	}
	t.dirty = true
}

// print prints a text as finished.
func (t *tui) print(mark, text string, st style) {
	t.screen.scroll = append(t.screen.scroll, t.screen.lines(mark, text, st)...)
}

// gap leaves a row free above what is printed next.
func (t *tui) gap() { t.screen.scroll = append(t.screen.scroll, "") }

// show shows what happened.
func (t *tui) show(e *Event) {
	switch e.Type {
	case "user_message":
		t.printUser(e.Message)
	case "text":
		t.thinking = ""
		t.speak(e.Text)
	case "thinking":
		t.thinking = lastOf(t.thinking+e.Text, 2000)
	case "assistant_message":
		t.endSpeech()
	case "tool_call":
		t.calls = append(t.calls, e.Call)
	case "tool_progress":
		t.progress[e.CallID] = lastOf(t.progress[e.CallID]+e.Text, 4000)
	case "tool_confirmation_requested":
		t.ask, t.calm = e, time.Time{}
	case "tool_result":
		t.printResult(e.Message)
	case "usage":
		t.measure(e.Usage)
	case "retry":
		t.addNote(note{text: fmt.Sprintf("%s; trying again in %v", e.Text, e.Delay.Round(time.Second)), style: asWarning})
	case "compact_done":
		t.compacted(e.Text)
	case "turn_end":
		t.endSpeech()
		switch e.Stop {
		case "aborted":
			t.print("", "stopped", asWarning)
		case "length":
			t.print("", "the answer was cut off at the model's output limit", asWarning)
		}
	case "error":
		t.gap()
		t.print("", "error: "+e.Text, asFailure)
	case "done":
		if e.Text != "" {
			t.compacted(e.Text)
		}
		t.idle()
	case "notice":
		n := note{extension: e.Extension, text: e.Text, style: map[string]style{"success": asSuccess, "warn": asWarning, "error": asFailure}[e.Level]}
		if e.Manifest != "" {
			n.extension = "" // the text says who
		}
		if e.Startup {
			t.failures = append(t.failures, e.Text)
		} else {
			t.addNote(n)
		}
	case "ext_display":
		t.addNote(note{extension: e.Extension, text: e.Text})
	case "ext_clear_notes":
		t.notes = slices.DeleteFunc(t.notes, func(n note) bool { return n.extension == e.Extension })
	case "ext_insert":
		t.editor.insert(e.Text)
	case "ext_submit":
		if strings.TrimSpace(e.Text) != "" {
			t.enqueue(e.Text, func() { t.submit(e.Text) })
		}
	case "ext_panel_open", "ext_panel_render", "ext_panel_close":
		same := func(p *panel) bool { return p.ID == e.Panel.ID }
		switch at := slices.IndexFunc(t.panels, same); {
		case e.Type == "ext_panel_render" && at >= 0: // else the user has closed it
			t.panels[at] = e.Panel
		case e.Type != "ext_panel_render":
			if t.panels = slices.DeleteFunc(t.panels, same); e.Type == "ext_panel_open" {
				t.panels = append(t.panels, e.Panel)
			}
		}
	}
}

// measure takes the size of the context from what the provider said.
func (t *tui) measure(u *Usage) {
	if u != nil {
		t.context = u.Input + u.CacheRead + u.CacheWrite + u.Output
	}
}

// lastOf keeps the end of a text, at characters.
func lastOf(text string, limit int) string {
	if len(text) > limit {
		text = strings.ToValidUTF8(text[len(text)-limit:], "")
	}
	return text
}

// speak shows a piece of the answer: its complete lines are finished, and so is
// all but the end of a long one.
func (t *tui) speak(text string) {
	if !t.speaking {
		if text = strings.TrimLeft(text, "\n"); text == "" {
			return
		}
		t.speaking = true
		t.gap()
	}
	t.rest += text
	for {
		line, rest, complete := strings.Cut(t.rest, "\n")
		if !complete {
			break
		}
		t.screen.print(t.md.line(line))
		t.rest = rest
	}
	md := t.md // the line may go on: nothing is learned from it
	if len(t.rest) > t.screen.width*maxStreamedRow {
		cells, hang, words := md.line(t.rest)
		rows := wrap(cells, t.screen.width, hang, words)
		if n := len(rows) - maxStreamedRow; n > 0 && len(rows[n]) > 0 {
			at := rows[n][0].at
			t.screen.print(cells[:slices.IndexFunc(cells, func(c cell) bool { return c.at >= at })], hang, words)
			t.rest = t.rest[at:]
		}
	}
}

// endSpeech finishes the answer.
func (t *tui) endSpeech() {
	if t.rest != "" {
		t.screen.print(t.md.line(t.rest))
	}
	t.rest, t.md, t.thinking, t.speaking = "", markdown{}, "", false
}

func (t *tui) printUser(m *Message) {
	t.gap()
	if text := m.text(); text != "" {
		t.fold(text, "› ", asUser, 30, false)
	}
	t.printImages(m)
}

func (t *tui) printImages(m *Message) {
	for _, b := range m.Content {
		if b.Type == "image" {
			size := base64.StdEncoding.DecodedLen(len(b.Data))
			t.print("  ", fmt.Sprintf("[%s, %.1f KiB]", b.MimeType, float64(size)/1024), asAccent)
		}
	}
}

// fold prints the first or the last lines of a text. It reports whether there
// are more.
func (t *tui) fold(text, mark string, st style, limit int, tail bool) (folded bool) {
	lines := strings.SplitAfter(strings.TrimRight(text, "\n"), "\n")
	more := len(lines) - limit
	if more <= 1 {
		t.print(mark, strings.Join(lines, ""), st)
		return false
	}
	rest, hint := strings.Repeat(" ", len([]rune(mark))), fmt.Sprintf("… %d more lines, ctrl+o shows all", more)
	if tail {
		t.print(rest, hint, asMuted)
		t.print(mark, strings.Join(lines[more:], ""), st)
	} else {
		t.print(mark, strings.Join(lines[:limit], ""), st)
		t.print(rest, hint, asMuted)
	}
	return true
}

// callLine is a call in one line.
func (t *tui) callLine(mark string, st style, c *Block) []cell {
	cells := appendCells(nil, mark+c.Name, st, 0)
	return appendCells(append(cells, cell{text: " ", width: 1}), preview(c.Args), asPlain, 0)
}

// printResult prints a call and its result, folded.
func (t *tui) printResult(m *Message) {
	t.endSpeech()
	if t.ask != nil && t.ask.Call.ID == m.CallID {
		t.ask, t.reason = nil, nil
	}
	call := &Block{Name: m.ToolName, ID: m.CallID}
	if at := slices.IndexFunc(t.calls, func(c *Block) bool { return c.ID == m.CallID }); at >= 0 {
		call = t.calls[at]
		t.calls = slices.Delete(t.calls, at, at+1)
	}
	delete(t.progress, m.CallID)
	st, text := asMuted, m.text()
	mark := asSuccess
	if m.IsError {
		st, mark = asFailure, asFailure
	}
	t.gap()
	t.screen.scroll = append(t.screen.scroll, t.screen.cut(t.callLine("● ", mark, call)))
	if d, ok := m.details.(editDetails); ok {
		t.printDiff(d.Diff, foldedDiff)
	} else if t.fold(text, "  ", st, foldedLines, call.Name == "bash") {
		t.folded = &Block{Name: call.Name, Args: call.Args, Text: text}
	}
	t.printImages(m)
}

// printMessage prints a message of the past.
func (t *tui) printMessage(m *Message) {
	switch {
	case textOf(get(m.raw, "role")) == "bashExecution":
		v, _ := pick(m.raw, "command", "output", "exitCode")
		text := strings.TrimRight(textOf(v[1]), "\n")
		failed := v[2] != nil && string(v[2]) != "0"
		if failed {
			text += "\n\nCommand exited with code " + string(v[2])
		} else if v[2] == nil {
			text, failed = text+"\n\n(command cancelled)", true
		}
		t.calls = []*Block{shellCall(v[0])}
		t.printResult(&Message{CallID: shellID, ToolName: "bash", IsError: failed, Content: []Block{{Type: "text", Text: strings.TrimSpace(text)}}})
	case m.Role == "user":
		t.printUser(m)
	case m.Role == "assistant":
		t.measure(m.Usage)
		t.speak(m.text())
		t.endSpeech()
		for i := range m.Content {
			if m.Content[i].Type == "tool_call" {
				t.calls = append(t.calls, &m.Content[i])
			}
		}
	default:
		t.printResult(m)
	}
}

// printDiff prints a unified diff in colours.
func (t *tui) printDiff(diff string, limit int) {
	lines := strings.Split(strings.TrimRight(diff, "\n"), "\n")
	for i, line := range lines[min(2, len(lines)):] { // the first two name the file
		if i == limit {
			t.print("  ", fmt.Sprintf("… %d more lines", len(lines)-2-limit), asMuted)
			return
		}
		st := map[byte]style{'+': asAdded, '-': asRemoved, '@': asMuted}[(line + " ")[0]]
		t.print("  ", line, st)
	}
}

func (t *tui) compacted(summary string) {
	t.gap()
	t.print("", "The conversation was compacted to:", asMuted)
	if t.fold(summary, "  ", asMuted, foldedLines, false) {
		t.folded = &Block{Name: "compact", Text: summary}
	}
	t.context = 0
}

// unfold prints the last folded result whole.
func (t *tui) unfold() {
	if t.folded == nil {
		t.say("nothing is folded")
		return
	}
	t.gap()
	t.screen.scroll = append(t.screen.scroll, t.screen.cut(t.callLine("● ", asMuted, t.folded)))
	t.print("  ", t.folded.Text, asPlain)
	t.folded = nil
}

// addNote shows a note, in the live area if it is small.
func (t *tui) addNote(n note) {
	if n.extension != "" {
		n.text = "[" + n.extension + "] " + n.text
	}
	if strings.Count(n.text, "\n") > t.screen.height/3 {
		t.gap()
		t.print("", n.text, n.style)
		return
	}
	t.notes = append(t.notes, n)
	t.notes = t.notes[max(0, len(t.notes)-maxNotes):]
}

// say shows a note of our own, fail one of an error.
func (t *tui) say(format string, values ...any) {
	t.addNote(note{text: fmt.Sprintf(format, values...), style: asAccent})
}

func (t *tui) fail(err error) { t.addNote(note{text: err.Error(), style: asFailure}) }

// enter takes what the user entered: a slash command at once, all else in its
// turn.
func (t *tui) enter(text string) {
	t.notes = nil
	if name, args, _ := strings.Cut(text, " "); strings.HasPrefix(text, "/") {
		for _, c := range t.commands() {
			if "/"+c.name == name {
				c.run(strings.TrimSpace(args))
				return
			}
		}
		// An extension that is still starting may have it.
		if meant := t.meant(name); meant != "" && t.agent.ext.hasStarted() {
			t.refuse(text, fmt.Errorf("there is no command %s: did you mean %s?", name, meant))
			return
		}
		if skill, isSkill := strings.CutPrefix(name, "/skill:"); isSkill && !slices.ContainsFunc(t.called(), func(c [2]string) bool { return c[0] == name }) {
			t.refuse(text, fmt.Errorf("there is no skill %s: /skills lists them", skill))
			return
		}
	}
	if command, isShell := strings.CutPrefix(text, "!"); isShell {
		if command = strings.TrimSpace(command); command == "" {
			t.refuse(text, errors.New("!COMMAND runs a shell command; the model sees it with the next prompt"))
			return
		}
		t.enqueue(text, func() { t.shell(command) })
		return
	}
	t.enqueue(text, func() { t.submit(text) })
}

// refuse gives a text that can not be sent back to the editor.
func (t *tui) refuse(text string, err error) {
	t.giveBack(text)
	t.fail(err)
}

// giveBack puts texts before what is in the editor.
func (t *tui) giveBack(texts ...string) {
	t.editor.set(strings.TrimSpace(strings.Join(append(texts, t.editor.text), "\n\n")))
}

// enqueue runs something now, or when all before it is done.
func (t *tui) enqueue(text string, run func()) {
	t.queue = append(t.queue, entered{text, run})
	if !t.busy {
		t.next()
	}
}

// next runs what waits, until it is busy with it.
func (t *tui) next() {
	for !t.busy && len(t.queue) > 0 {
		first := t.queue[0]
		t.queue = t.queue[1:]
		first.run()
	}
}

func (t *tui) work() { t.busy, t.since = true, time.Now() }

func (t *tui) idle() {
	t.endSpeech()
	t.busy, t.cancel, t.ask, t.reason, t.calls = false, nil, nil, nil, nil
	t.next()
}

// submit has the agent answer a prompt.
func (t *tui) submit(text string) {
	prompt, err := expand(text, *t.skills.Load(), t.templates)
	var images [][]byte
	if err == nil {
		images, err = t.images(text)
	}
	if err != nil {
		t.refuse(text, err)
		return
	}
	t.notes = nil
	t.start(t.agent.prompt(prompt, images))
}

func (t *tui) start(run func(*job) *Event) {
	t.work()
	t.agent.submit(nil, run, func(bool) {})
	t.agent.start()
}

// images reads the image files that a prompt names with @.
func (t *tui) images(text string) (images [][]byte, err error) {
	for word := range strings.FieldsSeq(text) {
		path, ok := strings.CutPrefix(word, "@")
		if !ok || !slices.Contains([]string{".png", ".jpg", ".jpeg", ".gif", ".webp"}, strings.ToLower(filepath.Ext(path))) {
			continue
		}
		data, err := readRegular(t.absolute(path), imageMax)
		if err != nil {
			return nil, fmt.Errorf("%s can not be attached: %w", word, err)
		}
		images = append(images, data)
	}
	return images, nil
}

// shell runs a command of the user; the model sees it with the next prompt.
func (t *tui) shell(command string) {
	t.work()
	ctx, cancel := context.WithCancelCause(t.agent.ctx)
	t.cancel = cancel
	t.calls = []*Block{shellCall(appendString(nil, command))}
	go func() { // ends within two seconds of ctx
		r, err := runShell(ctx, &toolEnv{cwd: t.cwd, dropEnv: t.ToolEnvDrop}, command, 0, false, func(_, text string) {
			if !t.inbox.behind() {
				t.inbox.event(&Event{Type: "tool_progress", CallID: shellID, Text: text})
			}
		})
		cancel(nil)
		t.post(func() { t.shellDone(command, r, err) })
	}()
}

func (t *tui) shellDone(command string, r *shellResult, err error) {
	if err != nil {
		t.fail(err)
		t.idle()
		return
	}
	m, err := r.message(command, false)
	if err == nil {
		t.agent.record(m, "")
		err = t.agent.whenIdle(func() error { t.agent.messages = append(t.agent.messages, m); return nil })
	}
	if err != nil {
		t.fail(err)
	}
	t.printMessage(m)
	t.idle()
}

// stop ends what runs, and gives what waits back to the editor.
func (t *tui) stop() {
	if t.cancel != nil {
		t.cancel(errAborted)
	} else {
		t.agent.mu.Lock()
		t.agent.abort()
		t.agent.mu.Unlock()
	}
	var texts []string
	for _, q := range t.queue {
		texts = append(texts, q.text)
	}
	if t.queue = nil; len(texts) > 0 {
		t.giveBack(texts...)
	}
}

// press does what keys say.
func (t *tui) press(keys []key) {
	for _, k := range keys {
		t.pressKey(k)
	}
	if len(keys) > 0 {
		t.dirty, t.drawn = true, time.Time{} // a key is answered at once
	}
}

func (t *tui) pressKey(k key) {
	if k.name != "tab" {
		t.offers = nil
	}
	asks := t.asks()
	if !asks {
		t.calm = time.Time{}
	}
	switch {
	case asks:
		t.answerAsk(k)
	case t.pick != nil:
		if t.pick.press(k) {
			t.pick = nil
		}
	case len(t.panels) > 0:
		t.pressPanel(k)
	default:
		t.pressEditor(k)
	}
}

// asks reports whether keys answer the question about a call: only once it was
// seen for a moment in which no key came. What is being typed decides nothing.
func (t *tui) asks() bool {
	return t.ask != nil && !t.calm.IsZero() && time.Since(t.calm) >= calmTime
}

// interrupt is ctrl+c: the first stops and clears, the second leaves.
func (t *tui) interrupt() {
	if time.Since(t.ctrlC) < leaveTime {
		t.leave = true
		return
	}
	t.ctrlC = time.Now()
	if t.busy {
		t.stop()
	} else {
		t.editor.set("")
	}
	t.addNote(note{text: "ctrl+c again leaves", style: asMuted, until: time.Now().Add(leaveTime)})
}

func (t *tui) pressEditor(k key) {
	if k.name == "ctrl+d" && t.editor.text == "" {
		t.leave = true
		return
	}
	switch k.name {
	case "ctrl+c":
		t.interrupt()
	case "enter":
		if strings.TrimSpace(t.editor.text) != "" {
			text := t.editor.take()
			saveHistory(t.historyFile(), text)
			t.enter(strings.TrimSpace(text))
		}
	case "tab":
		t.complete()
	case "esc":
		t.notes = nil
		if t.busy {
			t.stop()
		}
	case "ctrl+o":
		t.unfold()
	case "ctrl+l":
		t.screen.out.Write([]byte("\x1b[2J\x1b[H"))
		t.screen.live, t.screen.at = nil, 0
	default:
		t.editor.press(k, t.screen.width-2)
	}
}

// panelKeys are the keys that extensions know (spec: panel_key).
var panelKeys = []string{"up", "down", "left", "right", "enter", "tab", "pageup", "pagedown", "home", "end", "backspace", "delete", "rune"}

func (t *tui) pressPanel(k key) {
	p := t.panels[len(t.panels)-1]
	if k.name == "esc" || k.name == "ctrl+c" {
		t.agent.ext.panelClosed(p.ID)
		t.panels = t.panels[:len(t.panels)-1]
		return
	}
	if k.name == "paste" {
		for _, r := range clean(k.text) {
			t.agent.ext.panelKey(p.ID, "rune", string(r))
		}
	}
	if slices.Contains(panelKeys, k.name) {
		t.agent.ext.panelKey(p.ID, k.name, k.text)
	}
}

// answerAsk answers the question about a call.
func (t *tui) answerAsk(k key) {
	if t.reason != nil {
		switch k.name {
		case "enter":
			t.decide(decision{"deny", strings.TrimSpace(t.reason.text)})
		case "esc":
			t.reason = nil
		case "ctrl+c":
			t.interrupt()
		default:
			t.reason.press(k, t.screen.width-2)
		}
		return
	}
	word := map[string]string{"y": "allow", "t": "allow_tool", "a": "allow_all"}[strings.ToLower(k.text)]
	switch {
	case k.name == "esc":
		t.stop()
	case k.name == "ctrl+c":
		t.interrupt()
	case k.name != "rune": // what is pasted, or means something else with alt, allows nothing
	case word != "":
		t.decide(decision{word: word})
	case k.text == "n" || k.text == "N":
		t.reason = &editor{}
	}
}

func (t *tui) decide(d decision) {
	t.agent.mu.Lock()
	err := t.agent.decide(t.ask.Call.ID, d)
	t.agent.mu.Unlock()
	if t.ask, t.reason = nil, nil; err != nil {
		t.fail(err)
	}
}
