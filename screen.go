// What the terminal host draws with: cells and their widths, rows, light
// Markdown, colours, and the screen itself. Rules kept here:
//
//   - Nothing that is shown can do anything to the terminal: what is no visible
//     character is shown as a picture of itself or left out.
//   - What is finished is printed once and belongs to the terminal's scrollback.
//     Below it is the live area, which is never higher than the terminal; of it
//     only the rows that changed are written again.
//   - No row is wider than the terminal, and the terminal wraps nothing.
package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// cell is what takes one place on the screen: a character with the marks that
// belong to it.
type cell struct {
	text  string
	width int
	style style
	at    int // where it begins in its text
}

// wide are the characters that take two columns (Unicode: East Asian Width W
// and F, emoji presentation), as pairs of first and last.
var wide = []rune{
	0x1100, 0x115f, 0x231a, 0x231b, 0x2329, 0x232a, 0x23e9, 0x23ec, 0x23f0, 0x23f0, 0x23f3, 0x23f3, 0x25fd, 0x25fe, 0x2614, 0x2615,
	0x2648, 0x2653, 0x267f, 0x267f, 0x2693, 0x2693, 0x26a1, 0x26a1, 0x26aa, 0x26ab, 0x26bd, 0x26be, 0x26c4, 0x26c5, 0x26ce, 0x26ce,
	0x26d4, 0x26d4, 0x26ea, 0x26ea, 0x26f2, 0x26f3, 0x26f5, 0x26f5, 0x26fa, 0x26fa, 0x26fd, 0x26fd, 0x2705, 0x2705, 0x270a, 0x270b,
	0x2728, 0x2728, 0x274c, 0x274c, 0x274e, 0x274e, 0x2753, 0x2755, 0x2757, 0x2757, 0x2795, 0x2797, 0x27b0, 0x27b0, 0x27bf, 0x27bf,
	0x2b1b, 0x2b1c, 0x2b50, 0x2b50, 0x2b55, 0x2b55, 0x2e80, 0x303e, 0x3041, 0x4dbf, 0x4e00, 0xa4cf, 0xa960, 0xa97c, 0xac00, 0xd7a3,
	0xf900, 0xfaff, 0xfe10, 0xfe19, 0xfe30, 0xfe6f, 0xff01, 0xff60, 0xffe0, 0xffe6, 0x16fe0, 0x18cff, 0x18d00, 0x18d08, 0x1aff0, 0x1b2fb,
	0x1f004, 0x1f004, 0x1f0cf, 0x1f0cf, 0x1f18e, 0x1f18e, 0x1f191, 0x1f19a, 0x1f1e6, 0x1f320, 0x1f32d, 0x1f335, 0x1f337, 0x1f37c,
	0x1f37e, 0x1f393, 0x1f3a0, 0x1f3ca, 0x1f3cf, 0x1f3d3, 0x1f3e0, 0x1f3f0, 0x1f3f4, 0x1f3f4, 0x1f3f8, 0x1f43e, 0x1f440, 0x1f440,
	0x1f442, 0x1f4fc, 0x1f4ff, 0x1f53d, 0x1f54b, 0x1f54e, 0x1f550, 0x1f567, 0x1f57a, 0x1f57a, 0x1f595, 0x1f596, 0x1f5a4, 0x1f5a4,
	0x1f5fb, 0x1f64f, 0x1f680, 0x1f6c5, 0x1f6cc, 0x1f6cc, 0x1f6d0, 0x1f6d2, 0x1f6d5, 0x1f6d7, 0x1f6dc, 0x1f6df, 0x1f6eb, 0x1f6ec,
	0x1f6f4, 0x1f6fc, 0x1f7e0, 0x1f7eb, 0x1f7f0, 0x1f7f0, 0x1f90c, 0x1f93a, 0x1f93c, 0x1f945, 0x1f947, 0x1f9ff, 0x1fa70, 0x1faff,
	0x20000, 0x3fffd,
}

// runeWidth is the number of columns that a character takes.
func runeWidth(r rune) int {
	if r < 0x300 {
		return 1
	}
	if unicode.In(r, unicode.Mn, unicode.Me) || r == zwj || r >= 0x1160 && r <= 0x11ff { // the latter join Hangul syllables
		return 0
	}
	if i, found := slices.BinarySearch(wide, r); found || i%2 == 1 {
		return 2
	}
	return 1
}

const (
	zwj            = '\u200d'
	emojiSelector  = '\ufe0f'
	maxCell        = 40 // bytes; more marks on one character are left out
	tabWidth       = 4
	maxStreamedRow = 4 // of a paragraph that is not complete: rows above these are finished
)

// appendCells appends the cells of a line; at is where it begins. Control
// characters become pictures (U+2400), colour sequences and characters that are
// invisible or turn the direction of writing are left out.
func appendCells(dst []cell, line string, st style, at int) []cell {
	first, joined := len(dst), false
	dst = slices.Grow(dst, len(line))
	for i := 0; i < len(line); {
		if c := line[i]; !joined && ' ' <= c && c < 0x7f { // nearly always
			dst = append(dst, cell{line[i : i+1], 1, st, at + i})
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(line[i:])
		text, start := line[i:i+n], at+i
		i += n
		switch {
		case r == 0x1b && line[i:] != "" && line[i] == '[':
			if end := strings.TrimLeft(line[i+1:], "0123456789;:"); strings.HasPrefix(end, "m") {
				i = len(line) - len(end) + 1
				continue
			}
			text = "␛"
		case r == '\t':
			for range tabWidth {
				dst = append(dst, cell{" ", 1, st, start})
			}
			continue
		case r < ' ':
			text = string(0x2400 + r)
		case r == 0x7f:
			text = "␡"
		case r == utf8.RuneError:
			text = "\ufffd"
		case r == '\u2028' || r == '\u2029':
			text = " "
		case r != zwj && unicode.In(r, unicode.Cc, unicode.Cf):
			continue
		}
		width := runeWidth(r)
		if len(dst) > first && (width == 0 || joined || joins(dst[len(dst)-1].text, r)) {
			c := &dst[len(dst)-1]
			if joined = r == zwj; r == emojiSelector {
				c.width = 2
			}
			if len(c.text)+n <= maxCell {
				c.text += text
			}
			continue
		}
		if joined = false; width == 0 {
			text, width = "◌"+text, 1 // a mark that stands on nothing
		}
		dst = append(dst, cell{text, width, st, start})
	}
	return dst
}

// joins reports whether a character with a width of its own belongs to what
// stands before it: a skin tone, or the second half of a flag.
func joins(before string, r rune) bool {
	last, n := utf8.DecodeLastRuneInString(before)
	isFlag := func(r rune) bool { return r >= 0x1f1e6 && r <= 0x1f1ff }
	return r >= 0x1f3fb && r <= 0x1f3ff && runeWidth(last) == 2 || isFlag(r) && isFlag(last) && n == len(before)
}

func widthOf(cells []cell) (n int) {
	for i := range cells {
		n += cells[i].width
	}
	return n
}

// wrap breaks cells into rows of at most width columns, with words at spaces
// where there are any. Rows after the first leave hang columns free.
func wrap(cells []cell, width, hang int, words bool) (rows [][]cell) {
	width = max(width, 2)
	if hang > width/2 {
		hang = 0
	}
	start, col, space := 0, 0, 0
	for i := range cells {
		c := &cells[i]
		if words && c.text == " " && col >= width { // hangs over the edge, unseen
			space = i + 1
			continue
		}
		for col+c.width > width && i > start {
			end := i
			if words && space > start {
				end = space
			}
			rows = append(rows, cells[start:end])
			if start == 0 {
				width -= hang
			}
			start, space = end, end
			col = widthOf(cells[start:i])
		}
		if col += c.width; c.text == " " && (start > 0 || col > hang) { // not within a mark
			space = i + 1
		}
	}
	return append(rows, cells[start:])
}

// style says what a cell is; the theme says how that looks.
type style uint8

const (
	asPlain style = iota
	asUser
	asHeading
	asBold
	asCode
	asLink
	asMuted
	asAccent
	asSuccess
	asWarning
	asFailure
	asAdded
	asRemoved
	styleCount
)

// themeNames are the names in a theme.json.
var themeNames = map[string]style{"user": asUser, "heading": asHeading, "code": asCode, "link": asLink, "muted": asMuted, "accent": asAccent,
	"success": asSuccess, "warn": asWarning, "error": asFailure, "added": asAdded, "removed": asRemoved}

// theme is the parameters of each style's colour sequence.
type theme [styleCount]string

// defaultTheme uses the terminal's own colours: they suit its background.
var defaultTheme = theme{asUser: "1;36", asHeading: "1;35", asBold: "1", asCode: "36", asLink: "4", asMuted: "2", asAccent: "36",
	asSuccess: "32", asWarning: "33", asFailure: "31", asAdded: "32", asRemoved: "31"}

var colorNames = []string{"black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"}

// loadTheme changes the theme as a theme.json says: an object of names and
// colours: black to white, "bright-" before them, a number of the 256 colours,
// "#rrggbb", or "default". A missing file changes nothing.
func (t *theme) load(path string) error {
	var colors map[string]any
	if err := readJSONFile(path, &colors); err != nil {
		return err
	}
	if inner, ok := colors["colors"].(map[string]any); ok {
		colors = inner
	}
	for _, name := range slices.Sorted(maps.Keys(colors)) {
		st, known := themeNames[name]
		if !known {
			continue // themes are shared with programs that have more names
		}
		word := fmt.Sprint(colors[name])
		bright := strings.TrimPrefix(word, "bright-")
		i := slices.Index(colorNames, bright)
		n, err := strconv.ParseUint(strings.TrimPrefix(word, "#"), 16, 32)
		index, err2 := strconv.ParseUint(word, 10, 8)
		switch {
		case word == "default" || word == "":
			t[st] = ""
		case i >= 0 && bright != word:
			t[st] = strconv.Itoa(90 + i)
		case i >= 0:
			t[st] = strconv.Itoa(30 + i)
		case len(word) == 7 && word[0] == '#' && err == nil:
			t[st] = fmt.Sprintf("38;2;%d;%d;%d", n>>16, n>>8&255, n&255)
		case err2 == nil:
			t[st] = fmt.Sprintf("38;5;%d", index)
		default:
			return fmt.Errorf("%s: %q is no colour for %s (known: %s, bright-..., 0 to 255, #rrggbb, default)", path, word, name, strings.Join(colorNames, ", "))
		}
	}
	return nil
}

// row is a row of the screen: cells behind hang columns, with colours.
func (t *theme) row(cells []cell, hang int) string {
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", hang))
	now := ""
	for len(cells) > 0 && cells[len(cells)-1].text == " " {
		cells = cells[:len(cells)-1]
	}
	for i := range cells {
		if sgr := t[cells[i].style]; sgr != now {
			if now != "" {
				b.WriteString("\x1b[m")
			}
			if now = sgr; now != "" {
				b.WriteString("\x1b[" + now + "m")
			}
		}
		b.WriteString(cells[i].text)
	}
	if now != "" {
		b.WriteString("\x1b[m")
	}
	return b.String()
}

// markdown is what must be known of the lines before one: the fence of the code
// block that it is in, "" outside.
type markdown struct{ fence string }

var (
	fenceLine   = lazyRegexp("^ {0,3}(```+|~~~+)")
	headingLine = lazyRegexp(`^#{1,6} +`)
	listLine    = lazyRegexp(`^\s*(?:[-*+]|\d{1,9}[.)]) +`)
	ruleLine    = lazyRegexp(`^ {0,3}(?:-{3,}|\*{3,}|_{3,}) *$`)
	inlineMark  = lazyRegexp("`([^`]+)`|\\*\\*(\\S(?:[^*]*[^\\s*])?)\\*\\*|\\[([^\\]]+)\\]\\(([^()\\s]+)\\)")
)

// line turns one line of Markdown into cells; hang is what wrap needs. A line
// that is not complete may be asked about again.
func (m *markdown) line(src string) (cells []cell, hang int, words bool) {
	src = strings.TrimSuffix(src, "\r")
	f := fenceLine().FindStringSubmatch(src)
	switch {
	case m.fence != "":
		if f != nil && strings.HasPrefix(f[1], m.fence) {
			m.fence = ""
			return appendCells(nil, src, asMuted, 0), 0, false
		}
		return appendCells(nil, src, asCode, 0), 0, false
	case f != nil:
		m.fence = f[1]
		return appendCells(nil, src, asMuted, 0), 0, false
	case ruleLine().MatchString(src):
		return appendCells(nil, "────────", asMuted, 0), 0, false
	}
	if mark := headingLine().FindString(src); mark != "" {
		return inline(nil, src[len(mark):], asHeading, len(mark)), 0, true
	}
	if quote := strings.TrimPrefix(src, ">"); quote != src {
		return inline(appendCells(nil, "│", asMuted, 0), quote, asMuted, 1), 2, true
	}
	if mark := listLine().FindString(src); mark != "" {
		shown := mark
		if strings.ContainsAny(mark, "-*+") {
			shown = strings.NewReplacer("-", "•", "*", "•", "+", "•").Replace(mark)
		}
		cells = appendCells(nil, shown, asMuted, 0)
		for i := range cells {
			cells[i].at = 0
		}
		return inline(cells, src[len(mark):], asPlain, len(mark)), len(cells), true
	}
	return inline(nil, src, asPlain, 0), 0, true
}

// inline appends the cells of text with code, bold and links.
func inline(dst []cell, src string, st style, at int) []cell {
	for {
		m := inlineMark().FindStringSubmatchIndex(src)
		if m == nil {
			return appendCells(dst, src, st, at)
		}
		dst = appendCells(dst, src[:m[0]], st, at)
		switch {
		case m[2] >= 0:
			dst = appendCells(dst, src[m[2]:m[3]], asCode, at+m[2])
		case m[4] >= 0:
			dst = inline(dst, src[m[4]:m[5]], asBold, at+m[4])
		default:
			text, url := src[m[6]:m[7]], src[m[8]:m[9]]
			if dst = appendCells(dst, text, asLink, at+m[6]); url != text {
				dst = appendCells(dst, " ("+url+")", asMuted, at+m[7])
			}
		}
		src, at = src[m[1]:], at+m[1]
	}
}

// screen is the terminal as far as it is ours. The host's goroutine owns it.
type screen struct {
	out           io.Writer
	width, height int
	theme         theme
	scroll        []string // rows that are finished and not printed yet
	live          []string // the live area as it was painted
	at, col       int      // where the cursor is in it
}

// print adds a line to what is finished.
func (s *screen) print(cells []cell, hang int, words bool) {
	s.scroll = append(s.scroll, s.rows(cells, hang, words)...)
}

// rows breaks a line into rows for the screen.
func (s *screen) rows(cells []cell, hang int, words bool) (rows []string) {
	for i, r := range wrap(cells, s.width, hang, words) {
		if i > 0 && hang <= max(s.width, 2)/2 {
			rows = append(rows, s.theme.row(r, hang))
		} else {
			rows = append(rows, s.theme.row(r, 0))
		}
	}
	return rows
}

// lines breaks a plain text into rows behind a mark.
func (s *screen) lines(mark, text string, st style) (rows []string) {
	for line := range strings.Lines(text) {
		cells := appendCells(nil, mark, st, 0)
		hang := widthOf(cells)
		rows = append(rows, s.rows(appendCells(cells, strings.TrimRight(line, "\r\n"), st, 0), hang, true)...)
		mark = strings.Repeat(" ", hang)
	}
	return rows
}

// cut shortens a line to one row.
func (s *screen) cut(cells []cell) string {
	if widthOf(cells) > s.width {
		rows := wrap(cells, max(s.width-1, 2), 0, false)
		cells = append(slices.Clone(rows[0]), cell{text: "…", width: 1, style: asMuted})
	}
	return s.theme.row(cells, 0)
}

// row is a text in one row.
func (s *screen) row(text string, st style) string { return s.cut(appendCells(nil, text, st, 0)) }

const (
	beginFrame = "\x1b[?2026h" // terminals that know it show the whole frame at once
	endFrame   = "\x1b[?2026l"
	enterModes = "\x1b[?2004h\x1b[?7l" // pasted text is marked; nothing wraps
	leaveModes = "\x1b[?2004l\x1b[?7h"
)

// paint prints what is finished and brings the live area to be these rows,
// with the cursor at row and col.
func (s *screen) paint(live []string, row, col int) error {
	at, old := s.at, s.live
	b := []byte(beginFrame)
	move := func(to int) { // a new row at the bottom scrolls, so down is LF
		if to < at {
			b = fmt.Appendf(b, "\x1b[%dA", at-to)
		}
		for ; at < to; at++ {
			b = append(b, '\n')
		}
		at = to
		b = append(b, '\r')
	}
	if len(s.scroll) > 0 {
		old = nil
	} else if slices.Equal(live, old) && row == s.at && col == s.col {
		return nil
	}
	rows := append(s.scroll, live...)
	shrinks := len(rows) < len(old) || old == nil
	for i, r := range rows {
		last := i == len(rows)-1
		if i < len(old) && old[i] == r && !(last && shrinks) {
			continue
		}
		move(i)
		if last && shrinks {
			b = append(b, "\x1b[J"...)
		} else {
			b = append(b, "\x1b[K"...)
		}
		b = append(b, r...)
	}
	move(len(s.scroll) + row)
	if col > 0 {
		b = fmt.Appendf(b, "\x1b[%dC", col)
	}
	s.scroll, s.live, s.at, s.col = nil, live, row, col
	return writeAll(s.out, append(b, endFrame...))
}

// resize takes a new size. Terminals break rows that have become too long, so
// the live area begins higher above the cursor than it did.
func (s *screen) resize(width, height int) {
	if width < s.width {
		up := s.col / width
		for _, r := range s.live[:min(s.at, len(s.live))] {
			up += max(0, widthOf(appendCells(nil, r, asPlain, 0))-1)/width + 1
		}
		s.at = up
	}
	s.width, s.height, s.live = width, height, nil
	s.at = min(s.at, height-1)
}

// leave ends the live area; what is printed next begins on a row of its own.
func (s *screen) leave() {
	s.paint([]string{""}, 0, 0)
	io.WriteString(s.out, leaveModes)
}
