// Sessions: append-only files of JSON lines in the version 3 format that pi and
// Atomic read and write. Line 1 is the header; every other line is an entry that
// names its parent, so a file is a tree, and the branch from the root to the
// leaf is the conversation. Rules kept here:
//
//   - Reading never writes. What a file holds is never changed: only a record
//     that was cut off at its end is put aside before the next is written.
//   - One process writes a file. A record is one write; one that fails leaves
//     nothing behind, neither in the file nor in memory.
//   - What cannot be understood costs itself only, is told, and stays.
//   - A parent comes before its children in the file, so there are no cycles.
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
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// session is one conversation. Its methods may be called at any time.
type session struct {
	header
	dir, path string // path "": kept in memory only

	// writing is held while a record is made and written, so that each knows its
	// parent. What it guards is touched by nothing else.
	writing sync.Mutex
	file    *os.File // nil until there is something worth a file
	tail    []byte   // what the file held behind its last LF when it was opened

	mu      sync.Mutex // guards what follows; never held across I/O
	entries []*entry   // in file order; only ever appended to
	byID    map[string]*entry
	leaf    *entry   // nil before everything
	title   string   // the display name; "": none was given
	pending []*entry // queued messages that were neither delivered nor cleared
}

// entry is one record of a session.
type entry struct {
	kind, id, parent string          // parent "" is null
	raw              json.RawMessage // the whole line
	body             []byte          // the message in it; nil where there is none
	above            *entry          // the parent; nil for a root, and where the parent is missing
}

const (
	sessionVersion = 3
	isoTime        = "2006-01-02T15:04:05.000Z"
	queueType      = "zot.queue" // customType of the entries that hold the queue
)

var errLocked = errors.New("another process has it open")

// sessionsDir is where the sessions of a working directory are kept unless the
// user says otherwise.
func sessionsDir(home, cwd string) string {
	name := strings.NewReplacer("/", "-", `\`, "-", ":", "-").Replace(strings.TrimLeft(cwd, `/\`))
	return filepath.Join(home, "sessions", "--"+name+"--")
}

// newSession begins a session, in memory only if dir is "". An empty id stands
// for a new one. Its file is made with the first entry that is worth one.
func newSession(dir, cwd, id, parentSession string) (*session, error) {
	if id != "" {
		if err := checkSessionID(id); err != nil {
			return nil, err
		}
	}
	now := time.Now().UTC()
	s := &session{header: header{id: cmp.Or(id, newUUID(now)), cwd: cwd, parentSession: parentSession, created: now}, dir: dir, byID: map[string]*entry{}}
	if dir != "" {
		stamp := strings.NewReplacer(":", "-", ".", "-").Replace(now.Format(isoTime))
		s.path = filepath.Join(dir, stamp+"_"+s.id+".jsonl")
	}
	return s, nil
}

// checkSessionID: ids become parts of file names.
func checkSessionID(id string) error {
	if !sessionID().MatchString(id) {
		return fmt.Errorf("session id %q: an id is made of letters, digits, '.', '_' and '-', begins and ends with a letter or digit and has at most 128 characters", id)
	}
	return nil
}

var sessionID = lazyRegexp(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?$`)

// newUUID makes a UUID of version 7: such ids sort by time.
func newUUID(now time.Time) string {
	ms, r, q := now.UnixMilli(), rand.Uint64(), rand.Uint64()
	return fmt.Sprintf("%08x-%04x-7%03x-%x%03x-%012x", ms>>16, ms&0xffff, r&0xfff, 8|r>>62, r>>12&0xfff, q>>16)
}

// openSession loads a session and takes the lock of its writer. An empty file
// becomes a new session, whose cwd the caller sets. The notes tell the user
// what is wrong with the file.
func openSession(path string) (s *session, notes []string, err error) {
	if err := checkRegular(path); err != nil {
		return nil, nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("session: %w", err)
	}
	if err = lockFile(f); err == nil {
		s, notes, err = loadSession(f, path)
	}
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("session %s: %w", path, err)
	}
	return s, notes, nil
}

// checkRegular: opening a FIFO would wait for ever, and a device may have no end.
func checkRegular(path string) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("session: %s is not a regular file", path)
	}
	return nil
}

// sameFile reports whether two paths name one file.
func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	y, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(x, y)
}

func loadSession(f *os.File, path string) (s *session, notes []string, err error) {
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	data := make([]byte, info.Size())
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, nil, err
	}
	s, _ = newSession("", "", "", "")
	s.dir, s.path, s.file = filepath.Dir(path), path, f
	if len(data) == 0 {
		return s, []string{path + " is empty: a new session begins there"}, nil
	}
	line, rest, _ := bytes.Cut(data, lf)
	h, err := parseHeader(line)
	if err != nil {
		return nil, nil, err
	}
	s.header = h
	s.tail = data[bytes.LastIndexByte(data, '\n')+1:]
	if s.torn() {
		rest = bytes.TrimSuffix(rest, s.tail)
		notes = append(notes, fmt.Sprintf("%s: its last line is a piece of a record (%d bytes); it is moved to %s when the next record is written",
			path, len(s.tail), filepath.Base(path)+tornSuffix))
	}
	n := bytes.Count(rest, lf) + 1
	s.entries, s.byID = make([]*entry, 0, n), make(map[string]*entry, n)
	lines := map[string][]int{} // by what is wrong with them
	for n := 2; len(rest) > 0; n++ {
		line, rest, _ = bytes.Cut(rest, lf)
		if line = bytes.Trim(line, " \t\r\x00"); len(line) == 0 { // a crash may leave zeros
			continue
		}
		if flaw := s.take(line, h.version); flaw != "" {
			lines[flaw] = append(lines[flaw], n)
		}
	}
	for _, flaw := range []string{flawSyntax, flawNoID, flawTwice, flawParent} {
		if n := lines[flaw]; len(n) > 0 {
			notes = append(notes, fmt.Sprintf("%s: %s: %d, the first is line %d", path, flaw, len(n), n[0]))
		}
	}
	return s, notes, nil
}

// What can be wrong with a line.
const (
	flawSyntax = "lines that are no entries and are passed over"
	flawNoID   = "entries without an id, which follow the entry before them"
	flawTwice  = "entries with the id of an earlier one"
	flawParent = "entries whose parent is not before them in the file, which begin a tree of their own"
)

// header is the first line of a session file.
type header struct {
	id, cwd, parentSession string // parentSession: path of the session that this one was made from
	version                int    // of the file; we write sessionVersion
	created                time.Time
}

func parseHeader(line []byte) (h header, err error) {
	v, whole := pick(line, "type", "id", "version", "timestamp", "cwd", "parentSession")
	if h.id = textOf(v[1]); !whole || textOf(v[0]) != "session" || h.id == "" {
		return h, errors.New("the file does not begin with the header of a session")
	}
	if h.version = max(1, count(v[2])); h.version > sessionVersion {
		return h, fmt.Errorf("version %d of the format is newer than version %d, the newest that this zot reads", h.version, sessionVersion)
	}
	h.cwd, h.parentSession, h.created = textOf(v[4]), textOf(v[5]), parseTime(v[3])
	return h, checkSessionID(h.id)
}

// take adds a record, which is never changed afterwards, and makes it the leaf.
// It says what is wrong with it. Records of older versions are converted: those
// of version 1 have no ids and one after another is a chain; in version 2 the
// role "custom" was "hookMessage".
func (s *session) take(line []byte, version int) (flaw string) {
	if !utf8.Valid(line) || bytes.Contains(line, []byte("\u2028")) || bytes.Contains(line, []byte("\u2029")) || bytes.IndexByte(line, '\r') >= 0 {
		line, _ = normalize(line) // it goes to clients as it is
	}
	v, whole := pick(line, "type", "id", "parentId", "customType", "data", "queued", "firstKeptEntryIndex", "message")
	kind := textOf(v[0])
	if !whole || kind == "" || !strictJSON(line) {
		return flawSyntax
	}
	e := &entry{kind: kind, id: textOf(v[1]), parent: textOf(v[2]), body: v[7]}
	if e.id == "" {
		// the same at every load, so that later entries can name it
		e.id = fmt.Sprintf("%08x", len(s.entries)+1)
		if s.leaf != nil {
			e.parent = s.leaf.id
		}
		line = appendJSON(slices.Clone(line[:len(line)-1]), `,"id":?,"parentId":?}`, e.id, orNull(e.parent))
		if v[6] != nil { // counts the header
			line = appendJSON(line[:len(line)-1], `,"firstKeptEntryId":?}`, fmt.Sprintf("%08x", count(v[6])))
		}
		if version > 1 {
			flaw = flawNoID
		}
	}
	if version < 3 && textOf(get(e.body, "role")) == "hookMessage" {
		line = bytes.Replace(line, []byte(`"hookMessage"`), []byte(`"custom"`), 1)
		e.body = get(line, "message")
	}
	e.raw = line
	if e.parent != "" {
		if e.above = s.byID[e.parent]; e.above == nil {
			flaw = flawParent
		}
	}
	if s.byID[e.id] != nil {
		flaw = flawTwice
	}
	switch {
	case v[5] != nil:
		s.drop(textOf(v[5]))
	case textOf(v[3]) == queueType && get(v[4], "message") != nil:
		s.pending = append(s.pending, e)
	case textOf(v[3]) == queueType:
		walk(get(v[4], "cleared"), func(_, id []byte) { s.drop(textOf(id)) })
	}
	if kind == "session_info" {
		s.title = strings.TrimSpace(textOf(get(line, "name")))
	}
	s.entries, s.byID[e.id], s.leaf = append(s.entries, e), e, e
	return flaw
}

// drop takes a message out of the queue.
func (s *session) drop(id string) {
	s.pending = slices.DeleteFunc(s.pending, func(e *entry) bool { return e.id == id })
}

// strictJSON checks what walk takes on trust, in a text that walk found whole:
// strings and literals.
func strictJSON(line []byte) bool {
	for i := 0; i < len(line); {
		switch c := line[i]; {
		case c == '"':
			for i++; line[i] != '"'; i++ {
				if line[i] < ' ' {
					return false
				}
				if line[i] != '\\' {
					continue
				}
				i++
				switch line[i] {
				case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
				case 'u':
					for _, h := range line[i+1 : min(i+5, len(line))] {
						if !strings.ContainsRune("0123456789abcdefABCDEF", rune(h)) {
							return false
						}
					}
				default:
					return false
				}
			}
			i++
		case isLiteral(c):
			start, digits := i, true
			for ; i < len(line) && isLiteral(line[i]); i++ {
				digits = digits && line[i] >= '0' && line[i] <= '9'
			}
			if plain := digits && (c != '0' || i == start+1); !plain && !json.Valid(line[start:i]) {
				return false
			}
		default:
			i++
		}
	}
	return true
}

// orNull is an id as JSON.
func orNull(id string) []byte {
	if id == "" {
		return []byte("null")
	}
	return appendString(nil, id)
}

// parseTime reads a time as JSON: RFC 3339, or milliseconds since 1970.
func parseTime(v []byte) time.Time {
	if text := textOf(v); text != "" {
		if t, err := time.Parse(time.RFC3339, text); err == nil {
			return t
		}
	}
	return time.UnixMilli(int64(count(v)))
}

// append adds an entry at the leaf: its members besides the common ones are
// made from template (see appendJSON).
func (s *session) append(kind, template string, values ...any) (id string, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	for id == "" || s.byID[id] != nil {
		id = fmt.Sprintf("%08x", rand.Uint32())
	}
	parent := ""
	if s.leaf != nil {
		parent = s.leaf.id
	}
	s.mu.Unlock()
	record := appendJSON(nil, `{"type":?,"id":?,"parentId":?,"timestamp":?`, kind, id, orNull(parent), time.Now().UTC().Format(isoTime))
	if template != "" {
		record = appendJSON(append(record, ','), template, values...)
	}
	record = append(record, '}')
	if s.file != nil || worthAFile(kind) {
		if err := s.write(record); err != nil {
			return "", fmt.Errorf("the session could not be saved: %w", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.take(record, sessionVersion)
	return id, nil
}

// worthAFile reports whether an entry of a kind makes a session worth keeping:
// settings alone do not.
func worthAFile(kind string) bool {
	return kind != "model_change" && kind != "thinking_level_change"
}

const tornSuffix = ".torn"

// torn reports whether the file ended in a piece of a record when it was opened.
func (s *session) torn() bool { return len(s.tail) > 0 && !json.Valid(s.tail) }

// write appends a record to the file; to a new file all that is in memory
// first. s.writing is held, or nobody else has s yet.
func (s *session) write(record []byte) (err error) {
	if s.path == "" {
		return nil
	}
	if s.file == nil {
		if err := s.create(); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				s.file.Close()
				os.Remove(s.path)
				s.file = nil
			}
		}()
	}
	if s.torn() {
		if err := s.putTornAside(); err != nil {
			return err
		}
	}
	size, err := s.file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	var b []byte
	switch {
	case size == 0:
		b = append(s.appendHeader(b), '\n')
		for _, e := range s.entries {
			b = append(append(b, e.raw...), '\n')
		}
	case len(s.tail) > 0: // a whole record, but for its LF
		b = append(b, '\n')
	}
	if record != nil {
		b = append(append(b, record...), '\n')
	}
	if _, err := s.file.Write(b); err != nil {
		return errors.Join(err, s.file.Truncate(size))
	}
	s.tail = nil
	return nil
}

func (s *session) create() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := lockFile(f); err != nil {
		f.Close()
		return fmt.Errorf("%s: %w", s.path, err)
	}
	s.file = f
	return nil
}

func (s *session) appendHeader(dst []byte) []byte {
	dst = appendJSON(dst, `{"type":"session","version":?,"id":?,"timestamp":?,"cwd":?`, sessionVersion, s.id, s.created.UTC().Format(isoTime), s.cwd)
	if s.parentSession != "" {
		dst = appendJSON(dst, `,"parentSession":?`, s.parentSession)
	}
	return append(dst, '}')
}

// putTornAside moves the piece of a record at the end of the file to another.
func (s *session) putTornAside() error {
	f, err := os.OpenFile(s.path+tornSuffix, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(slices.Clone(s.tail), '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	size, err := s.file.Seek(0, io.SeekEnd)
	if err == nil {
		err = s.file.Truncate(size - int64(len(s.tail)))
	}
	if err == nil {
		s.tail = nil
	}
	return err
}

// close ends the writing; the lock goes with it.
func (s *session) close() {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.file != nil {
		s.file.Close()
	}
}

// addMessage appends a message. queued is the id of the queue entry that it
// delivers, or "".
func (s *session) addMessage(m *Message, queued string) (err error) {
	if queued != "" {
		m.entry, err = s.append("message", `"queued":?,"message":?`, queued, appendAgentMessage(nil, m))
	} else {
		m.entry, err = s.append("message", `"message":?`, appendAgentMessage(nil, m))
	}
	return err
}

// queuedMessage is one that waits for its turn; id is that of its entry.
type queuedMessage struct {
	id      string
	message *Message
}

// queue keeps a message that waits, so that it survives us.
func (s *session) queue(kind int, m *Message) (id string, err error) {
	return s.append("custom", `"customType":?,"data":{"kind":?,"message":?}`, queueType, queueNames[kind], appendAgentMessage(nil, m))
}

// unqueue gives up messages that wait.
func (s *session) unqueue(ids []string) error {
	_, err := s.append("custom", `"customType":?,"data":{"cleared":?}`, queueType, encode(ids))
	return err
}

func (s *session) leafID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaf == nil {
		return ""
	}
	return s.leaf.id
}

// navigate makes an entry the leaf; "" is before everything.
func (s *session) navigate(id string) error {
	s.writing.Lock() // not between an entry and its parent
	defer s.writing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[id]
	if id != "" && e == nil {
		return notFound(id)
	}
	s.leaf = e
	return nil
}

// entry returns the entry with an id, nil if there is none.
func (s *session) entry(id string) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id]
}

func notFound(id string) error { return fmt.Errorf("Entry not found: %s", id) }

// branch returns the entries from the root to the leaf.
func (s *session) branch() []*entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaf.branch()
}

// branch returns the entries from the root to e.
func (e *entry) branch() (list []*entry) {
	for ; e != nil; e = e.above {
		list = append(list, e)
	}
	slices.Reverse(list)
	return list
}

// entriesSince returns the entries behind one, "" for all, as a JSON array.
func (s *session) entriesSince(id string) ([]byte, error) {
	s.mu.Lock()
	entries, e := s.entries, s.byID[id]
	s.mu.Unlock()
	if id != "" && e == nil {
		return nil, notFound(id)
	}
	return appendList(nil, entries[slices.Index(entries, e)+1:], func(dst []byte, e *entry) []byte { return append(dst, e.raw...) }), nil
}

// tree returns the session as a JSON array of its roots: {entry, children} with
// label and labelTimestamp where there is a label. Siblings are sorted by time.
func (s *session) tree() []byte {
	s.mu.Lock()
	entries := s.entries
	s.mu.Unlock()
	children, labels := map[*entry][]*entry{}, map[string]*entry{}
	for _, e := range entries {
		children[e.above] = append(children[e.above], e)
		if e.kind == "label" {
			labels[textOf(get(e.raw, "targetId"))] = e
		}
	}
	for _, list := range children {
		slices.SortStableFunc(list, func(a, b *entry) int { return a.time().Compare(b.time()) })
	}
	// The lists of siblings from the root down to where we are, without those
	// that are written: no recursion, for a tree may be as deep as it is long.
	dst, open := []byte{'['}, [][]*entry{children[nil]}
	for len(open) > 0 {
		list := &open[len(open)-1]
		if len(*list) == 0 {
			open = open[:len(open)-1]
			dst = append(dst, ']')
			if len(open) > 0 {
				dst = append(dst, '}')
			}
			continue
		}
		e := (*list)[0]
		*list = (*list)[1:]
		if dst[len(dst)-1] == '}' {
			dst = append(dst, ',')
		}
		dst = appendJSON(dst, `{"entry":?`, e.raw)
		if l := labels[e.id]; l != nil {
			if v, _ := pick(l.raw, "label", "timestamp"); textOf(v[0]) != "" {
				dst = appendJSON(dst, `,"label":?,"labelTimestamp":?`, v[0], orElse(v[1], "null"))
			}
		}
		dst = append(dst, `,"children":[`...)
		open = append(open, children[e])
	}
	return dst
}

func (e *entry) time() time.Time { return parseTime(get(e.raw, "timestamp")) }

// isUser reports whether an entry is a message of the user.
func (e *entry) isUser() bool {
	return e.kind == "message" && string(get(e.body, "role")) == `"user"`
}

// forkPoints returns the user's messages on the active branch, which a fork can
// replace.
func (s *session) forkPoints() []*entry {
	return slices.DeleteFunc(s.branch(), func(e *entry) bool { return !e.isUser() })
}

// fork makes a session of what came before a message of the user. It returns
// the text of that message.
func (s *session) fork(entryID string) (n *session, text string, err error) {
	e := s.entry(entryID)
	if e == nil || !e.isUser() {
		return nil, "", errors.New("Invalid entry ID for forking")
	}
	m := e.message()
	n, err = s.copy(e.above.branch())
	return n, m.text(), err
}

// clone makes a session of the active branch.
func (s *session) clone() (*session, error) {
	branch := s.branch()
	if !slices.ContainsFunc(branch, (*entry).worthAFile) {
		return nil, errors.New("This session has not been saved yet: there is nothing to clone")
	}
	return s.copy(branch)
}

func (e *entry) worthAFile() bool { return worthAFile(e.kind) }

// copy makes a session of a branch. Messages that wait there stay with s alone.
func (s *session) copy(branch []*entry) (*session, error) {
	n, err := newSession(s.dir, s.cwd, "", s.path)
	if err != nil {
		return nil, err
	}
	for _, e := range branch {
		n.take(e.raw, sessionVersion)
	}
	if slices.ContainsFunc(branch, (*entry).worthAFile) {
		err = n.write(nil)
	}
	if err == nil && len(n.pending) > 0 {
		var ids []string
		for _, e := range n.pending {
			ids = append(ids, e.id)
		}
		err = n.unqueue(ids)
	}
	if err != nil {
		n.close()
		return nil, fmt.Errorf("the new session could not be saved: %w", err)
	}
	return n, nil
}

// restored is what a session says about the conversation at its leaf.
type restored struct {
	messages               []*Message
	provider, model, level string
	pending                [2][]queuedMessage // by queue
}

// restore returns the context at the leaf. A compaction stands for what lies
// before its firstKeptEntryId.
func (s *session) restore() (r restored) {
	s.mu.Lock()
	branch, pending := s.leaf.branch(), slices.Clone(s.pending)
	s.mu.Unlock()
	for _, e := range pending {
		v, _ := pick(get(e.raw, "data"), "kind", "message")
		if m, err := parseAgentMessage(v[1]); err == nil {
			kind := max(slices.Index(queueNames[:], textOf(v[0])), steering)
			r.pending[kind] = append(r.pending[kind], queuedMessage{e.id, m})
		}
	}
	last := -1 // compaction
	for i, e := range branch {
		switch e.kind {
		case "model_change":
			v, _ := pick(e.raw, "provider", "modelId")
			r.provider, r.model = textOf(v[0]), textOf(v[1])
		case "thinking_level_change":
			r.level = textOf(get(e.raw, "thinkingLevel"))
		case "compaction":
			last = i
		}
	}
	r.messages = messagesOf(branch[last+1:])
	if last >= 0 {
		kept := last
		if id := textOf(get(branch[last].raw, "firstKeptEntryId")); id != "" {
			if at := slices.IndexFunc(branch[:last], func(e *entry) bool { return e.id == id }); at >= 0 {
				kept = at
			}
		}
		tail := messagesOf(branch[kept:last])
		v, _ := pick(branch[last].raw, "summary", "details", "tokensBefore")
		if textOf(get(v[1], "strategy")) == "verbatim-lines" {
			tail = []*Message{compactedMessage(textOf(v[0]), nil, tail, branch[last].time())}
		} else if head := branch[last].message(); head != nil {
			tail = append([]*Message{head}, tail...)
		}
		if len(tail) > 0 { // tools that were made available stay so
			replaced := slices.DeleteFunc(branch[:kept:kept], func(e *entry) bool { return !bytes.Contains(e.raw, []byte(`"activate":`)) })
			tail[0].Activate = append(tail[0].Activate, activated(messagesOf(replaced))...)
		}
		r.messages = append(tail, r.messages...)
	}
	if r.model == "" { // no entry says which: who answered last
		for _, m := range r.messages {
			r.provider, r.model = cmp.Or(m.Provider, r.provider), cmp.Or(m.Model, r.model)
		}
	}
	return r
}

// messagesOf are the messages of entries, as the agent keeps them: an attempt
// that failed and was made again is no part of the conversation.
func messagesOf(entries []*entry) (messages []*Message) {
	read := make([]*Message, len(entries))
	part := len(entries)/runtime.NumCPU() + 1
	var work sync.WaitGroup
	for from := 0; from < len(entries); from += part {
		work.Go(func() { // ends with its part
			for i := from; i < min(from+part, len(entries)); i++ {
				read[i] = entries[i].message()
			}
		})
	}
	work.Wait()
	for i, m := range read {
		if m == nil || entries[i].kind == "compaction" {
			continue
		}
		if n := len(messages) - 1; m.Role == "assistant" && n >= 0 && messages[n].Role == "assistant" && messages[n].Stop == "error" {
			messages = messages[:n]
		}
		if m.Stop == "error" || m.Stop == "aborted" {
			m.Content = slices.DeleteFunc(m.Content, func(b Block) bool { return b.Type != "text" || blank(b.Text) })
		}
		messages = append(messages, m)
	}
	return messages
}

// message is what an entry adds to the context; nil for nothing.
func (e *entry) message() *Message {
	raw := e.body
	if e.kind != "message" {
		raw = e.special()
	}
	m, err := parseAgentMessage(raw)
	if err != nil {
		return nil
	}
	m.entry = e.id
	if m.Time.IsZero() {
		m.Time = e.time()
	}
	return m
}

// special is the message that an entry of another kind stands for, nil for none.
func (e *entry) special() (raw []byte) {
	v, _ := pick(e.raw, "summary", "fromId", "details", "tokensBefore", "customType", "content", "display")
	ms := e.time().UnixMilli()
	switch {
	case e.kind == "custom_message":
		raw = appendJSON(nil, `{"role":"custom","customType":?,"content":?,"display":?`, orElse(v[4], `""`), orElse(v[5], `""`), orElse(v[6], "true"))
		if v[2] != nil {
			raw = appendJSON(raw, `,"details":?`, v[2])
		}
		return appendJSON(raw, `,"timestamp":?}`, ms)
	case textOf(v[0]) == "":
	case e.kind == "branch_summary":
		return appendJSON(nil, `{"role":"branchSummary","summary":?,"fromId":?,"timestamp":?}`, v[0], orElse(v[1], `""`), ms)
	case e.kind == "compaction":
		return appendJSON(nil, `{"role":"compactionSummary","summary":?,"tokensBefore":?,"timestamp":?}`, v[0], orElse(v[3], "0"), ms)
	}
	return nil
}

// orElse is a JSON value, or another where there is none.
func orElse(v []byte, other string) []byte {
	if v == nil {
		return []byte(other)
	}
	return v
}

// sessionInfo is what a list of sessions says about one.
type sessionInfo struct {
	header
	path, name, firstMessage   string
	summary, summarizedThrough string // of the last session_summary
	modified                   time.Time
	messages                   int
}

// listSessions returns the sessions of a directory, newest first. What is no
// session is left out.
func listSessions(dir string) (list []sessionInfo, err error) {
	err = eachSession(dir, func(path string, h header) {
		if info, err := summarizeFile(path, h); err == nil {
			list = append(list, info)
		}
	})
	slices.SortStableFunc(list, func(a, b sessionInfo) int { return b.modified.Compare(a.modified) })
	return list, err
}

// newestSession is the session file that was written last; "" when there is
// none. Whether it can be read is seen when it is opened.
func newestSession(dir string) (path string, err error) {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	var newest time.Time
	for _, file := range files {
		info, err := file.Info()
		if err == nil && info.Mode().IsRegular() && filepath.Ext(file.Name()) == ".jsonl" && info.ModTime().After(newest) {
			path, newest = filepath.Join(dir, file.Name()), info.ModTime()
		}
	}
	return path, err
}

// eachSession calls f with the session files of a directory, oldest first.
func eachSession(dir string, f func(path string, h header)) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, file := range files {
		path := filepath.Join(dir, file.Name())
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || filepath.Ext(path) != ".jsonl" {
			continue
		}
		if h, err := readHeader(path); err == nil {
			f(path, h)
		}
	}
	return err
}

func readHeader(path string) (header, error) {
	f, err := os.Open(path)
	if err != nil {
		return header{}, err
	}
	defer f.Close()
	line, err := bufio.NewReader(f).ReadSlice('\n') // it has one path or two
	if err != nil && err != io.EOF {
		return header{}, err
	}
	return parseHeader(line)
}

// summarizeFile reads what a list says about a session.
func summarizeFile(path string, h header) (info sessionInfo, err error) {
	stat, err := os.Stat(path)
	if err != nil {
		return info, err
	}
	rest, err := os.ReadFile(path)
	info = sessionInfo{header: h, path: path, modified: stat.ModTime()}
	for line := []byte(nil); len(rest) > 0; {
		line, rest, _ = bytes.Cut(rest, lf)
		switch kindOfLine(line) {
		case "message":
			info.messages++
			if info.firstMessage == "" {
				if m, err := parseAgentMessage(get(line, "message")); err == nil && m.Role == "user" && m.raw == nil {
					info.firstMessage = m.text()
				}
			}
		case "session_info":
			info.name = strings.TrimSpace(textOf(get(line, "name")))
		case "session_summary":
			v, _ := pick(line, "summary", "summarizedThroughId")
			info.summary, info.summarizedThrough = textOf(v[0]), textOf(v[1])
		}
	}
	return info, err
}

// kindOfLine is the type of a record. Everybody writes it first, so that most
// of a line need not be read.
func kindOfLine(line []byte) string {
	if after, ok := bytes.CutPrefix(line, []byte(`{"type":"`)); ok {
		kind, _, _ := bytes.Cut(after, []byte(`"`))
		return string(kind)
	}
	return textOf(get(line, "type"))
}

// findSession returns the path of a session by its id or the unique beginning
// of one.
func findSession(dir, id string) (path string, err error) {
	if !sessionID().MatchString(id) {
		return "", fmt.Errorf("%q is not the id of a session", id)
	}
	var begun []string
	err = eachSession(dir, func(p string, h header) {
		if h.id == id {
			path = p
		} else if strings.HasPrefix(h.id, id) {
			begun = append(begun, p)
		}
	})
	switch {
	case err != nil || path != "":
		return path, err
	case len(begun) == 1:
		return begun[0], nil
	case len(begun) > 1:
		return "", fmt.Errorf("%d sessions in %s have ids that begin with %s: give more of it", len(begun), dir, id)
	}
	return "", fmt.Errorf("no session %s in %s: %w", id, dir, fs.ErrNotExist)
}

// sessionPath returns the file of the session with exactly this id, "" if there
// is none.
func sessionPath(dir, id string) (path string, err error) {
	err = eachSession(dir, func(p string, h header) {
		if h.id == id {
			path = p
		}
	})
	return path, err
}

// deleteSession removes a session with all that was kept beside its file. That
// there is none is no error.
func deleteSession(dir, id string) error {
	path, err := sessionPath(dir, id)
	if err != nil || path == "" {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = lockFile(f)
	f.Close() // Windows removes no file that is open
	if err != nil {
		return fmt.Errorf("session %s cannot be deleted: %w", id, err)
	}
	files, err := os.ReadDir(dir)
	for _, file := range files {
		if strings.HasPrefix(file.Name(), filepath.Base(path)) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, file.Name())))
		}
	}
	return err
}

// name is the display name, "" when none was given.
func (s *session) name() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.title
}

// backup copies the file beside itself and returns the copy's path, "" when
// there is no file yet.
func (s *session) backup(kind string) (path string, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.file == nil {
		return "", nil
	}
	path = fmt.Sprintf("%s.%s.%s.bak", s.path, strings.NewReplacer(":", "-", ".", "-").Replace(time.Now().UTC().Format(isoTime)), kind)
	return path, copyFile(s.path, path)
}

// importSession copies a session file into dir and opens the copy. What is no
// session is not copied.
func importSession(from, dir string) (s *session, notes []string, err error) {
	path := filepath.Join(dir, strings.TrimSuffix(filepath.Base(from), ".jsonl")+".jsonl")
	if dir == "" {
		return nil, nil, errors.New("there is no directory for sessions (--no-session)")
	}
	if !sameFile(path, from) {
		if err := checkRegular(from); err != nil {
			return nil, nil, err
		}
		if _, err := readHeader(from); err != nil {
			return nil, nil, fmt.Errorf("session %s: %w", from, err)
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, nil, err
		}
		if err := copyFile(from, path); err != nil {
			return nil, nil, err
		}
	}
	return openSession(path)
}

// copyFile makes a private copy; it replaces nothing.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		os.Remove(to)
	}
	return err
}
