// The keys of a terminal and the line editor. Rules kept here:
//
//   - Bytes become keys as they come: a sequence that is cut is waited for, but
//     not for ever; one that is not known is left out whole.
//   - The text holds nothing that the screen does not show: what is put in is
//     cleaned first. The cursor is always between two characters as a person
//     sees them.
//   - What was deleted can be had back.
package main

import (
	"bytes"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// key is one key, or one pasted text. Its name is that of the extension
// protocol ("up", "enter", "rune"), behind "ctrl+", "alt+" or "shift+" where
// these were held, or "paste". A key that is not known has none.
type key struct{ name, text string }

const (
	escTime   = 40 * time.Millisecond // an Esc that stands alone so long is the key
	pasteTime = 5 * time.Second       // a paste that stands still so long is all that comes
)

// keyReader makes keys of what a terminal sends.
type keyReader struct {
	buf  []byte    // what is not a whole key yet
	last time.Time // when bytes came
}

// read takes bytes and returns the keys that are complete.
func (d *keyReader) read(b []byte) (keys []key) {
	from := max(0, len(d.buf)-len(pasteEnd)) // of which a part may be there
	d.buf, d.last = append(d.buf, b...), time.Now()
	if bytes.HasPrefix(d.buf, pasteStart) && !bytes.Contains(d.buf[from:], pasteEnd) {
		return nil // what came before is not searched again
	}
	for len(d.buf) > 0 {
		k, n := parseKey(d.buf)
		if n == 0 {
			break
		}
		if d.buf = d.buf[n:]; k.name != "" {
			keys = append(keys, k)
		}
	}
	return keys
}

// due is when a key that has begun is taken without the rest; zero: none has.
func (d *keyReader) due() (at time.Time) {
	switch {
	case bytes.HasPrefix(d.buf, pasteStart):
		return d.last.Add(pasteTime)
	case len(d.buf) > 0 && d.buf[0] == 0x1b:
		return d.last.Add(escTime)
	}
	return at
}

// flush takes a key without the rest when that is due.
func (d *keyReader) flush() (keys []key) {
	if at := d.due(); at.IsZero() || time.Now().Before(at) {
		return nil
	}
	keys = []key{{name: "esc"}}
	if text, isPaste := bytes.CutPrefix(d.buf, pasteStart); isPaste {
		keys[0] = key{"paste", string(text)}
	}
	d.buf = nil
	return keys
}

var pasteStart, pasteEnd = []byte("\x1b[200~"), []byte("\x1b[201~")

var byteKeys = map[byte]string{'\r': "enter", '\t': "tab", 0x7f: "backspace", 8: "backspace"}

var finalKeys = map[byte]string{'A': "up", 'B': "down", 'C': "right", 'D': "left", 'H': "home", 'F': "end", 'M': "enter"}

var numberKeys = map[int]string{1: "home", 3: "delete", 4: "end", 5: "pageup", 6: "pagedown", 7: "home", 8: "end"}

// parseKey reads the first key of b and its length, 0 if it is not complete.
func parseKey(b []byte) (k key, n int) {
	switch c := b[0]; {
	case c == 0x1b && len(b) == 1:
		return k, 0
	case bytes.HasPrefix(b, []byte("\x1b[[")): // F1 to F5 of the Linux console
		if len(b) > 3 {
			n = 4
		}
		return k, n
	case c == 0x1b && (b[1] == '[' || b[1] == 'O'):
		end := 2
		for end < len(b) && b[end] < '@' {
			end++
		}
		if end == len(b) {
			return k, 0
		}
		if bytes.HasPrefix(b, pasteStart) {
			text, _, found := bytes.Cut(b[len(pasteStart):], pasteEnd)
			if !found {
				return k, 0
			}
			return key{"paste", string(text)}, len(pasteStart) + len(text) + len(pasteEnd)
		}
		first, second, _ := strings.Cut(string(b[2:end]), ";")
		number, _ := strconv.Atoi(first)
		held, _ := strconv.Atoi(second)
		switch b[end] {
		case '~':
			k.name = numberKeys[number]
		case 'u': // the keyboard protocol of some terminals
			k, _ = parseKey(utf8.AppendRune(nil, rune(number)))
			if number == 0x1b {
				k.name = "esc"
			}
		default:
			k.name = finalKeys[b[end]]
		}
		if k.name != "" && k.name != "rune" && held > 1 {
			for i, modifier := range []string{"shift+", "alt+", "ctrl+"} {
				if (held-1)>>i&1 == 1 {
					k.name = modifier + k.name
				}
			}
		}
		return k, end + 1
	case c == 0x1b && b[1] == 0x1b:
		return key{name: "esc"}, 1
	case c == 0x1b:
		if k, n = parseKey(b[1:]); n > 0 {
			if k.name == "rune" {
				k.name = k.text
			}
			k.name, n = "alt+"+k.name, n+1
		}
		return k, n
	case byteKeys[c] != "":
		return key{name: byteKeys[c]}, 1
	case c < ' ':
		return key{name: "ctrl+" + strings.ToLower(string(rune('@'+c)))}, 1
	case !utf8.FullRune(b):
		return k, 0
	}
	r, n := utf8.DecodeRune(b)
	if r == utf8.RuneError || unicode.IsControl(r) {
		return k, n
	}
	return key{"rune", string(r)}, n
}

// editor is a text being written, of any number of lines.
type editor struct {
	text    string
	at      int // the cursor, in bytes
	undos   []edit
	typing  bool // the last change was typed: the next goes with it
	killed  string
	history []string // what was entered, the oldest first
	back    int      // how far back in it we are; 0: at the text itself
	draft   string   // the text itself, while back > 0
}

const maxUndos = 100

// edit is a text before a change.
type edit struct {
	text string
	at   int
}

// clean makes text that may be put in.
func clean(text string) string {
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(strings.ToValidUTF8(text, "\ufffd"))
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && r != zwj && unicode.In(r, unicode.Cc, unicode.Cf) {
			return -1
		}
		return r
	}, text)
}

// replace puts text in the place of what is between two offsets, with the
// cursor behind it.
func (e *editor) replace(from, to int, text string, typed bool) {
	if !typed || !e.typing {
		e.undos = append(e.undos[max(0, len(e.undos)-maxUndos):], edit{e.text, e.at})
	}
	e.typing = typed
	e.text = e.text[:from] + text + e.text[to:]
	e.at = from + len(text)
}

func (e *editor) insert(text string) { e.replace(e.at, e.at, clean(text), false) }

// set replaces the whole text.
func (e *editor) set(text string) { e.replace(0, len(e.text), clean(text), false) }

// take empties the editor and remembers what was in it.
func (e *editor) take() string {
	text := e.text
	if n := len(e.history); n == 0 || e.history[n-1] != text {
		e.history = append(e.history, text)
	}
	*e = editor{history: e.history, killed: e.killed}
	return text
}

func (e *editor) lineStart() int { return strings.LastIndexByte(e.text[:e.at], '\n') + 1 }

func (e *editor) lineEnd() int {
	if i := strings.IndexByte(e.text[e.at:], '\n'); i >= 0 {
		return e.at + i
	}
	return len(e.text)
}

// left and right are one character away.
func (e *editor) left() int {
	start := e.lineStart()
	if e.at == start {
		return max(start-1, 0)
	}
	start = max(start, e.boundary(e.at-longest))
	cells := appendCells(nil, e.text[start:e.at], asPlain, start)
	return cells[len(cells)-1].at
}

func (e *editor) right() int {
	end := min(e.lineEnd(), e.boundary(e.at+longest))
	for _, c := range appendCells(nil, e.text[e.at:end], asPlain, e.at) {
		if c.at > e.at {
			return c.at
		}
	}
	if end > e.at {
		return end
	}
	return min(e.at+1, len(e.text))
}

// boundary is the first place at or behind an offset that is not within a
// character.
func (e *editor) boundary(at int) int {
	for at = max(at, 0); at < len(e.text) && !utf8.RuneStart(e.text[at]); at++ {
	}
	return min(at, len(e.text))
}

// wordLeft and wordRight are at the next end of a word.
func (e *editor) wordLeft() int {
	before := strings.TrimRightFunc(e.text[:e.at], betweenWords)
	return len(strings.TrimRightFunc(before, inWord))
}

func (e *editor) wordRight() int {
	behind := strings.TrimLeftFunc(e.text[e.at:], betweenWords)
	return len(e.text) - len(strings.TrimLeftFunc(behind, inWord))
}

func inWord(r rune) bool       { return r == '_' || unicode.In(r, unicode.L, unicode.N, unicode.M) }
func betweenWords(r rune) bool { return !inWord(r) }

// editorRow is a row as the editor is shown.
type editorRow struct {
	cells    []cell
	from, to int // the bytes of the text
}

// A key makes the rows around the cursor anew: not those of all the text.
const (
	nearby  = 8 << 10 // bytes: more than a terminal shows
	longest = 4 << 10 // bytes of what looks like one character
)

// rows breaks the text around the cursor into rows; row and col are the
// cursor's. A column stays free for the cursor.
func (e *editor) rows(width int) (rows []editorRow, row, col int) {
	// The beginning moves in large steps, so that the rows of a long line do not
	// change with every key.
	start := e.boundary((e.at/nearby - 2) * nearby)
	if n := strings.IndexByte(e.text[start:min(start+nearby, len(e.text))], '\n'); start > 0 && n >= 0 {
		start += n + 1
	}
	end := e.boundary(e.at + 2*nearby)
	for line := range strings.SplitSeq(e.text[start:end], "\n") {
		broken := wrap(appendCells(nil, line, asPlain, start), width-1, 0, false)
		for i, cells := range broken {
			r := editorRow{cells: cells, from: start, to: start + len(line)}
			if i > 0 {
				r.from = cells[0].at
			}
			if i < len(broken)-1 {
				r.to = broken[i+1][0].at
			}
			if r.from <= e.at && e.at <= r.to {
				row = len(rows)
			}
			rows = append(rows, r)
		}
		start += len(line) + 1
	}
	for _, c := range rows[row].cells {
		if c.at < e.at {
			col += c.width
		}
	}
	return rows, row, col
}

// vertical moves the cursor by a row, and reports whether there was one.
func (e *editor) vertical(by, width int) bool {
	rows, row, col := e.rows(width)
	if row += by; row < 0 || row >= len(rows) {
		return false
	}
	e.at = rows[row].to
	for _, c := range rows[row].cells {
		if col < c.width {
			e.at = c.at
			break
		}
		col -= c.width
	}
	return true
}

// recall shows another entry of the history.
func (e *editor) recall(by int) {
	back := e.back + by
	if back < 0 || back > len(e.history) {
		return
	}
	if e.back == 0 {
		e.draft = e.text
	}
	text := e.draft
	if back > 0 {
		text = e.history[len(e.history)-back]
	}
	e.set(text)
	e.back = back
}

// kill deletes what is between the cursor and another place and keeps it.
func (e *editor) kill(to int) {
	from, end := min(e.at, to), max(e.at, to)
	if e.killed = e.text[from:end]; from < end {
		e.replace(from, end, "", false)
	}
}

// press does what a key says, in rows of a width.
func (e *editor) press(k key, width int) {
	typing := e.typing
	e.typing = false
	switch k.name {
	case "rune":
		e.typing = typing && k.text != " " // a word is undone at once
		e.replace(e.at, e.at, clean(k.text), true)
	case "paste":
		e.insert(k.text)
	case "alt+enter", "shift+enter", "ctrl+j":
		e.insert("\n")
	case "backspace", "ctrl+h":
		if e.at > 0 {
			e.replace(e.left(), e.at, "", false)
		}
	case "delete", "ctrl+d":
		if to := e.right(); to > e.at {
			e.replace(e.at, to, "", false)
		}
	case "left", "ctrl+b":
		e.at = e.left()
	case "right", "ctrl+f":
		e.at = e.right()
	case "alt+left", "ctrl+left", "alt+b":
		e.at = e.wordLeft()
	case "alt+right", "ctrl+right", "alt+f":
		e.at = e.wordRight()
	case "home", "ctrl+a":
		e.at = e.lineStart()
	case "end", "ctrl+e":
		e.at = e.lineEnd()
	case "ctrl+home":
		e.at = 0
	case "ctrl+end":
		e.at = len(e.text)
	case "up", "ctrl+p":
		if !e.vertical(-1, width) {
			e.recall(1)
		}
	case "down", "ctrl+n":
		if !e.vertical(1, width) {
			e.recall(-1)
		}
	case "ctrl+u":
		e.kill(e.lineStart())
	case "ctrl+k":
		e.kill(e.lineEnd())
	case "ctrl+w", "alt+backspace", "ctrl+backspace":
		e.kill(e.wordLeft())
	case "alt+d", "ctrl+delete":
		e.kill(e.wordRight())
	case "ctrl+y":
		e.insert(e.killed)
	case "ctrl+_", "ctrl+z":
		if n := len(e.undos); n > 0 {
			e.text, e.at, e.undos = e.undos[n-1].text, e.undos[n-1].at, e.undos[:n-1]
		}
	}
}
