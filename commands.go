// What a person can ask the terminal host for: the slash commands, choosing
// from a list, completion, and what was entered before.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// slashCommand is one of our own; they run at once, whatever else runs.
type slashCommand struct {
	name, args, help string
	run              func(args string)
}

func (t *tui) commands() []slashCommand {
	return []slashCommand{
		{"help", "", "this list, and the keys", func(string) { t.help() }},
		{"model", "[ID]", "choose the model", t.chooseModel},
		{"reasoning", "[LEVEL]", "how much the model thinks", t.chooseReasoning},
		{"compact", "", "replace the older part of the conversation by a summary", func(string) {
			t.enqueue("/compact", func() { t.start(t.agent.compactJob) })
		}},
		{"clear", "", "begin anew, in a new session", func(string) { t.clear() }},
		{"new", "", "the same as /clear", func(string) { t.clear() }},
		{"resume", "", "go on with another session", func(string) { t.chooseSession() }},
		{"fork", "", "go back before a message, in a session of its own", func(string) { t.fork() }},
		{"name", "[NAME]", "name the session", t.name},
		{"export", "[FILE]", "write the conversation as an HTML page", t.export},
		{"skills", "", "list the skills", func(string) { t.listSkills() }},
		{"tools", "", "list the tools", func(string) { t.listTools() }},
		{"reload-ext", "", "start the extensions anew", func(string) { t.reload() }},
		{"yolo", "", "ask before tool calls, or no longer", func(string) { t.toggleYolo() }},
		{"cost", "", "tokens and dollars so far", func(string) { t.cost() }},
		{"exit", "", "leave", func(string) { t.leave = true }},
	}
}

// called lists everything that can be called by /NAME, with what it does.
func (t *tui) called() (list [][2]string) {
	for _, c := range t.commands() {
		list = append(list, [2]string{"/" + c.name, c.help})
	}
	for _, c := range t.agent.ext.allCommands() {
		list = append(list, [2]string{"/" + c.name, c.description + " [" + c.ext.Name + "]"})
	}
	for _, f := range t.templates {
		list = append(list, [2]string{"/" + f.name, f.description})
	}
	for _, f := range *t.skills.Load() {
		list = append(list, [2]string{"/skill:" + f.name, f.description})
	}
	return list
}

// meant is the command that a name almost is; "" when it is one, or is like none:
// a prompt may begin with a path.
func (t *tui) meant(name string) string {
	var names []string
	for _, c := range t.called() {
		if c[0] == name {
			return ""
		}
		names = append(names, c[0])
	}
	return nearest(name, names)
}

const keyHelp = `enter         send; while something runs: queue
alt+enter     new line (also ctrl+j)
esc           stop what runs and take back the queue; clear notes
ctrl+c twice  leave (also ctrl+d on an empty line)
ctrl+o        show the last folded result whole
tab           complete a command, or a file after @
up, down      what was entered before
ctrl+_        undo; ctrl+k, ctrl+u, ctrl+w delete, ctrl+y puts back
!COMMAND      run a shell command; the model sees it with the next prompt
@FILE         names a file; an image is attached`

func (t *tui) help() {
	t.gap()
	for _, c := range t.called() {
		t.printPair(c[0], c[1])
	}
	t.gap()
	t.print("", keyHelp, asPlain)
}

func (t *tui) printPair(name, text string) {
	cells := appendCells(nil, fmt.Sprintf("%-16s ", name), asAccent, 0)
	t.screen.print(appendCells(cells, strings.Join(strings.Fields(text), " "), asPlain, 0), 17, true)
}

// chooseModel changes the model: by its id, also behind "provider/", or from a
// list of those that can be used.
func (t *tui) chooseModel(ref string) {
	if ref != "" {
		t.useModel(ref)
		return
	}
	p := &picker{title: "Model"}
	for _, info := range t.catalog {
		key, err := credential(info, t.keyFor(info), t.home)
		if err != nil || key == "" && info.API != "script" && info.Name != t.provider.Name {
			continue
		}
		for _, m := range info.models() {
			ref := info.Name + "/" + m.ID
			p.items = append(p.items, item{ref, fmt.Sprintf("%dk", m.ContextWindow/1000), func() { t.useModel(ref) }})
		}
	}
	t.pick = p
}

// useModel has a model answer: PROVIDER/ID, or an ID that the provider in use or
// another one lists.
func (t *tui) useModel(ref string) {
	name, id, _ := strings.Cut(ref, "/")
	info, err := t.catalog.provider(name)
	if err != nil || id == "" {
		id = ref
		if info, err = t.catalog.provider(t.agent.currentChoice().model.Provider); err == nil && !slices.ContainsFunc(info.models(), func(m *Model) bool { return m.ID == id }) {
			info, err = t.catalog.provider(cmp.Or(owner(t.catalog, id), info.Name))
		}
	}
	var m *Model
	if err == nil {
		m, err = info.model(id)
	}
	var client provider
	if err == nil {
		m = t.configured(m)
		client, err = t.client(m)
	}
	if err == nil {
		t.agent.choose(func(c *choice) { c.model, c.provider = m, client })
		err = t.record("model_change", `"provider":?,"modelId":?`, m.Provider, m.ID)
	}
	if err != nil {
		t.fail(err)
		return
	}
	t.context = 0
	t.say("model: %s", m.ID)
}

// record notes something in the session, if there is one.
func (t *tui) record(kind, template string, values ...any) (err error) {
	if s := t.agent.currentSession(); s != nil {
		_, err = s.append(kind, template, values...)
	}
	return err
}

// chooseReasoning sets how much the model thinks: by name, or from a list.
func (t *tui) chooseReasoning(word string) {
	m := t.agent.currentChoice().model
	if word == "" {
		t.pick = &picker{title: "Reasoning"}
		for _, level := range zotLevels(levels(m)) {
			t.pick.items = append(t.pick.items, item{level, "", func() { t.chooseReasoning(level) }})
		}
		return
	}
	level, err := parseReasoning(word)
	if err == nil {
		t.agent.choose(func(c *choice) { c.reasoning = level })
		err = t.record("thinking_level_change", `"thinkingLevel":?`, levelName(m, level))
	}
	if err != nil {
		t.fail(err)
		return
	}
	t.say("reasoning: %s", word)
}

// open goes on with another session in the place of the open one. It is not
// made while something runs: that belongs to the open one.
func (t *tui) open(another func() (*session, []string, error)) bool {
	if t.busy {
		t.fail(errBusy)
		return false
	}
	next, notes, err := another()
	if err != nil {
		t.fail(err)
		return false
	}
	r, change := t.reopen(t.agent, next)
	old := t.agent.currentSession()
	if err := t.agent.whenIdle(func() error { change(); return nil }); err != nil {
		next.close()
		t.fail(err)
		return false
	}
	if old != nil {
		old.close()
	}
	t.notes, t.folded, t.context = nil, nil, 0
	for _, n := range notes {
		t.addNote(note{text: n, style: asWarning})
	}
	t.showPast(r)
	return true
}

// showPast prints the end of a conversation that is gone on with. What waited
// in it is in the editor.
func (t *tui) showPast(r restored) {
	if more := len(r.messages) - shownPast; more > 0 {
		t.gap()
		t.print("", fmt.Sprintf("… %d earlier messages", more), asMuted)
		r.messages = r.messages[more:]
	}
	for _, m := range r.messages {
		t.printMessage(m)
	}
	var ids, texts []string
	for _, q := range slices.Concat(r.pending[steering], r.pending[followUp]) {
		ids, texts = append(ids, q.id), append(texts, q.message.text())
	}
	if len(ids) > 0 {
		t.giveBack(texts...)
		if err := t.agent.currentSession().unqueue(ids); err != nil {
			t.fail(err)
		}
	}
}

func (t *tui) chooseSession() {
	infos, err := listSessions(t.sessions)
	if err != nil {
		t.fail(err)
		return
	}
	p := &picker{title: "Session"}
	for _, n := range infos {
		if s := t.agent.currentSession(); s != nil && s.path == n.path {
			continue
		}
		p.items = append(p.items, item{oneLine(cmp.Or(n.name, n.summary, n.firstMessage, n.id)), fmt.Sprintf("%s, %d messages", n.modified.Local().Format("2006-01-02 15:04"), n.messages),
			func() { t.open(func() (*session, []string, error) { return openSession(n.path) }) }})
	}
	if len(p.items) == 0 {
		t.say("there is no other session of this directory")
		return
	}
	t.pick = p
}

// fork goes back before one of the user's messages, in a session of its own.
func (t *tui) fork() {
	s := t.agent.currentSession()
	if s == nil {
		t.fail(errNoSession)
		return
	}
	p := &picker{title: "Fork before"}
	for _, point := range slices.Backward(s.forkPoints()) {
		p.items = append(p.items, item{oneLine(point.message().text()), "", func() {
			text := ""
			if t.open(func() (next *session, _ []string, err error) {
				next, text, err = s.fork(point.id)
				return next, nil, err
			}) {
				t.editor.set(text)
			}
		}})
	}
	if len(p.items) == 0 {
		t.say("there is no message to go back before")
		return
	}
	t.pick = p
}

var errNoSession = errors.New("this conversation is kept in no session")

func (t *tui) name(name string) {
	s := t.agent.currentSession()
	if s == nil {
		t.fail(errNoSession)
		return
	}
	if name != "" {
		if _, err := s.append("session_info", `"name":?`, name); err != nil {
			t.fail(err)
			return
		}
	}
	t.say("the name is %q", s.name())
}

func (t *tui) export(path string) {
	path, err := t.agent.export(t.cwd, path)
	if err != nil {
		t.fail(err)
		return
	}
	t.say("exported to %s", path)
}

// clear begins anew. The session begins anew, too: what is forgotten must not
// come back with it.
func (t *tui) clear() {
	if t.open(func() (*session, []string, error) {
		next, err := newSession(t.sessions, t.cwd, "", "")
		if err == nil {
			err = t.agent.begin(next)
		}
		return next, nil, err
	}) {
		t.failures = nil
		t.gap()
		t.print("", "The conversation begins anew.", asMuted)
	}
}

func (t *tui) listSkills() {
	t.gap()
	for _, s := range *t.skills.Load() {
		t.printPair(s.name, s.description)
	}
	if len(*t.skills.Load()) == 0 {
		t.print("", "There are no skills here.", asMuted)
	}
}

func (t *tui) listTools() {
	t.gap()
	for _, tool := range append(t.ownTools(), t.agent.ext.allTools()...) {
		if t.allows(tool.name) {
			line, _, _ := strings.Cut(tool.description, "\n")
			t.printPair(tool.name, line)
		}
	}
}

func (t *tui) reload() {
	err := t.agent.whenIdle(func() error {
		t.agent.prepared = false // before_agent_start is asked again
		t.agent.ext.reload(func(r reloaded) { t.post(func() { t.reloaded(r) }) })
		return nil
	})
	if err != nil {
		t.fail(err)
		return
	}
	t.say("reloading the extensions")
}

func (t *tui) reloaded(r reloaded) {
	until := time.Now().Add(reloadTime)
	t.notes, t.failures = nil, nil
	t.addNote(note{text: fmt.Sprintf("extensions: %d stopped, %d started, %d ready", r.Stopped, r.Loaded, r.Ready), style: asSuccess, until: until})
	for _, e := range r.Errors {
		t.failures = append(t.failures, e.Message)
		t.addNote(note{text: e.Extension + ": " + e.Message, style: asFailure, until: until})
	}
}

func (t *tui) toggleYolo() {
	allowed := t.agent.approval.allowed
	t.agent.mu.Lock()
	allowed["*"] = !allowed["*"]
	yolo := allowed["*"]
	t.agent.mu.Unlock()
	if yolo {
		t.say("tools run without being asked about")
	} else {
		t.say("tool calls are asked about")
	}
}

func (t *tui) cost() {
	t.agent.mu.Lock()
	u := t.agent.usage
	t.agent.mu.Unlock()
	t.gap()
	t.print("", fmt.Sprintf("input %d, output %d, cache read %d, cache write %d tokens: $%.4f", u.Input, u.Output, u.CacheRead, u.CacheWrite, u.Cost.Total), asPlain)
}

// picker is a list to choose from; what is typed filters it.
type picker struct {
	title  string
	items  []item
	filter editor
	at     int // in what the filter leaves
}

type item struct {
	text, detail string
	run          func()
}

func (p *picker) left() (items []item) {
	for _, i := range p.items {
		if strings.Contains(strings.ToLower(i.text+" "+i.detail), strings.ToLower(p.filter.text)) {
			items = append(items, i)
		}
	}
	return items
}

// press reports whether the choice is over.
func (p *picker) press(k key) (over bool) {
	items := p.left()
	switch k.name {
	case "up", "ctrl+p":
		p.at--
	case "down", "ctrl+n":
		p.at++
	case "pageup":
		p.at -= 10
	case "pagedown":
		p.at += 10
	case "esc", "ctrl+c":
		return true
	case "enter":
		if p.at < len(items) {
			items[p.at].run()
			return true
		}
	default:
		p.filter.press(k, 1000)
		p.at = 0
	}
	p.at = max(0, min(p.at, len(p.left())-1))
	return false
}

func (p *picker) view(s *screen, room int) (rows []string, row, col int) {
	cells := appendCells(nil, p.title+": ", asHeading, 0)
	cells = appendCells(cells, p.filter.text, asPlain, 0)
	col = min(widthOf(cells), s.width-1)
	rows = append(rows, s.cut(cells))
	items := p.left()
	first := max(0, min(p.at-room/2, len(items)-room))
	for i := first; i < min(first+room, len(items)); i++ {
		mark, st := "  ", asPlain
		if i == p.at {
			mark, st = "› ", asAccent
		}
		rows = append(rows, s.cut(appendCells(appendCells(nil, mark+items[i].text+"  ", st, 0), items[i].detail, asMuted, 0)))
	}
	if len(items) == 0 {
		rows = append(rows, s.row("  nothing matches", asMuted))
	}
	return rows, 0, col
}

// beginning lists the commands, with what they do, that begin with a text.
func (t *tui) beginning(text string) (list [][2]string) {
	if !strings.HasPrefix(text, "/") {
		return nil
	}
	return slices.DeleteFunc(t.called(), func(c [2]string) bool { return !strings.HasPrefix(c[0], text) })
}

// complete completes the word before the cursor: a command, or a file after @.
// Pressed again it goes through what there is.
func (t *tui) complete() {
	e := &t.editor
	start := strings.LastIndexAny(e.text[:e.at], " \t\n") + 1
	if t.offers == nil {
		word := e.text[start:e.at]
		if path, isFile := strings.CutPrefix(word, "@"); isFile {
			t.offers = t.files(path)
		} else if start == 0 {
			for _, c := range t.beginning(word) {
				t.offers = append(t.offers, c[0])
			}
		}
		if len(t.offers) == 0 {
			return
		}
		t.offer = -1
		if common := commonPrefix(t.offers); len(common) > len(word) && len(t.offers) > 1 {
			e.replace(start, e.at, common, false)
			return
		}
	}
	t.offer = (t.offer + 1) % len(t.offers)
	end := t.offers[t.offer]
	if len(t.offers) == 1 {
		if t.offers = nil; !strings.HasSuffix(end, "/") {
			end += " "
		}
	}
	e.replace(start, e.at, end, false)
}

// files lists the files that a path may become, behind @.
func (t *tui) files(path string) (list []string) {
	dir, name := filepath.Split(path)
	place := t.absolute(cmp.Or(dir, "."))
	entries, _ := os.ReadDir(place)
	for _, entry := range entries {
		hidden := strings.HasPrefix(entry.Name(), ".") && !strings.HasPrefix(name, ".")
		if strings.HasPrefix(entry.Name(), name) && !hidden && entry.Name() == clean(entry.Name()) {
			full := "@" + dir + entry.Name()
			if isDir(filepath.Join(place, entry.Name())) {
				full += "/"
			}
			list = append(list, full)
		}
	}
	return list
}

func commonPrefix(list []string) string {
	common := list[0]
	for _, s := range list {
		for !strings.HasPrefix(s, common) {
			common = common[:len(common)-1]
		}
	}
	return strings.ToValidUTF8(common, "")
}

const maxHistory = 1000 // entries; twice as many are made so many

// historyFile holds what was entered, in all sessions: JSON strings, one a line.
func (t *tui) historyFile() string { return filepath.Join(t.home, "history.jsonl") }

// loadHistory reads the newest entries. Without them, or a place to keep them,
// nothing is lost but the memory.
func loadHistory(path string) (list []string) {
	if _, err := regular(path); err != nil { // a pipe would be waited for
		return nil
	}
	data, _ := os.ReadFile(path)
	var lines [][]byte
	for line := range bytes.Lines(data) {
		var text string
		if json.Unmarshal(line, &text) == nil && text != "" {
			list, lines = append(list, text), append(lines, line)
		}
	}
	old := max(0, len(list)-maxHistory)
	if old >= maxHistory {
		replaceFile(path, bytes.Join(lines[old:], nil))
	}
	return list[old:]
}

func saveHistory(path, text string) {
	if _, err := regular(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return
	}
	os.MkdirAll(filepath.Dir(path), 0o700)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return
	}
	f.Write(append(appendString(nil, text), '\n'))
	f.Close()
}

// askAboutProject asks whether to start the extensions that a project brought
// along. The answer holds for these extensions of this directory; it is kept in
// $ZOT_HOME/projects.json.
func (s *setup) askAboutProject(in io.Reader, out io.Writer) error {
	var names []string
	for _, e := range s.exts {
		if e.scope == "project" && e.runs() {
			names = append(names, e.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	path := filepath.Join(s.home, "projects.json")
	var known map[string]struct {
		Extensions []string `json:"extensions"`
		Start      bool     `json:"start"`
	}
	if err := readJSONFile(path, &known); err != nil {
		return err
	}
	answer := known[s.cwd]
	if !slices.Equal(answer.Extensions, names) {
		fmt.Fprintf(out, "Extensions in .zot/extensions here: %s.\nThey are programs, with all your rights. Start them, now and later? y or n › ", strings.Join(names, ", "))
		line, err := bufio.NewReader(in).ReadString('\n')
		if err != nil {
			return fmt.Errorf("no answer about the extensions of this directory (--approve and --no-approve answer, too): %w", err)
		}
		line = strings.ToLower(strings.TrimSpace(line))
		answer.Extensions, answer.Start = names, line == "y" || line == "yes"
		if err := editJSONFile(path, func(o object) { o[s.cwd] = encode(answer) }); err != nil {
			return err
		}
	}
	if s.approve = &answer.Start; !answer.Start {
		s.exts = s.places().find()
		s.warnings = append(s.warnings, s.readSkills(s.exts)...)
	}
	return nil
}
