// The built-in tools that work on files: read, write and edit. Rules kept here:
//
//   - What read shows, edit can match: both hide a byte order mark and take
//     CRLF for LF.
//   - Lines that an edit does not change keep every byte, line ends included.
//   - A file is replaced as a whole or not at all where its directory allows
//     that, and keeps its mode and owner. Symbolic links are followed.
//   - Only regular files are opened: nothing waits for a FIFO or a device.
//   - Wrong arguments are refused by name; none is guessed.
//   - Texts that clients know from other agents are kept word by word.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"
)

const (
	maxLines = 2000     // of text in one result
	maxBytes = 50 << 10 // of text in one result

	imageMax   = 64 << 20 // bytes of an image file
	editMax    = 16 << 20 // bytes of a file to edit
	diffMax    = 50 << 10
	countAhead = 8 << 20 // bytes behind what read shows that it reads to count lines
	utf8BOM    = "\xef\xbb\xbf"
)

var lf, crlf = []byte("\n"), []byte("\r\n")

// toolEnv is what the built-in tools need to know.
type toolEnv struct {
	cwd      string   // absolute
	spillDir string   // for the full outputs of commands; "": that for temporary files
	dropEnv  []string // patterns of variables that commands must not see, see childEnv
}

// builtinTools returns read, write, edit and bash.
func builtinTools(e *toolEnv) []*tool {
	const path = `"path":{"type":"string","description":"Relative to the working directory, or absolute"}`
	read := newTool("read", "Read a text file, or look at an image (PNG, JPEG, GIF, WebP). Shows at most 2000 lines or 50 KiB; use offset and limit for more.",
		`{"type":"object","properties":{`+path+`,"offset":{"type":"integer","minimum":1,"description":"Line to start at (the first is 1)"},"limit":{"type":"integer","minimum":1,"description":"Number of lines to read"}},"required":["path"]}`,
		e.read)
	read.readOnly = true
	write := newTool("write", "Create a file or replace all of its content. Missing directories are made. To change a part of a file use edit.",
		`{"type":"object","properties":{`+path+`,"content":{"type":"string","description":"The whole content of the file"}},"required":["path","content"]}`,
		e.write)
	edit := newTool("edit", "Replace pieces of a text file. Each oldText must occur exactly once in the file as it is now, whitespace included, and the pieces must not overlap. Keep oldText as short as is unique.",
		`{"type":"object","properties":{`+path+`,"edits":{"type":"array","minItems":1,"description":"Replacements, all matched against the original file","items":{"type":"object","properties":{"oldText":{"type":"string","description":"The text to replace"},"newText":{"type":"string","description":"The text to put in its place"}},"required":["oldText","newText"]}}},"required":["path","edits"]}`,
		e.edit)
	bash := newTool("bash", "Run a shell command in the working directory. Returns stdout and stderr together, at most the last 2000 lines or 50 KiB; the full output is then in a file that the result names. There is no input and no terminal. Processes left in the background live until zot exits.",
		`{"type":"object","properties":{"command":{"type":"string","description":"The command"},"timeout":{"type":"number","description":"Limit in seconds: 120 if absent, at most 3600"}},"required":["command"]}`,
		e.bash)
	return []*tool{read, write, edit, bash}
}

// newTool makes a tool of a function that gets decoded arguments. An error, or
// a problem with the arguments, becomes the result's text.
func newTool(name, description, schema string, run func(ctx context.Context, a *arguments, progress func(string)) (toolResult, error)) *tool {
	t := &tool{name: name, description: description, schema: json.RawMessage(schema)}
	t.run = func(ctx context.Context, c *toolCall) toolResult {
		o, err := parseObject(c.args)
		a := &arguments{o, err}
		r, err := run(ctx, a, c.progress)
		if a.err != nil {
			err = fmt.Errorf("Validation failed for tool %q: %w", name, a.err)
		}
		if err != nil {
			return errorResult(err.Error())
		}
		return r
	}
	return t
}

func textResult(format string, values ...any) toolResult {
	return toolResult{content: []Block{{Type: "text", Text: fmt.Sprintf(format, values...)}}}
}

// arguments are the arguments of one call. The first error is kept, so that a
// tool asks for all its parameters and then looks once.
type arguments struct {
	object
	err error
}

func (a *arguments) fail(format string, values ...any) {
	if a.err == nil {
		a.err = fmt.Errorf(format, values...)
	}
}

func (a *arguments) str(key string) string {
	if !a.has(key) {
		a.fail("%q is missing, it must be a string; given are %q", key, slices.Sorted(maps.Keys(a.object)))
	}
	s, err := a.object.str(key)
	if err != nil {
		a.fail("%w", err)
	}
	return s
}

// number returns a number, also one that was sent as a string.
func (a *arguments) number(key string, absent float64) (n float64) {
	if !a.has(key) {
		return absent
	}
	if json.Unmarshal(bytes.Trim(a.object[key], `" `), &n) != nil {
		a.fail("%q must be a number, not %s", key, a.object[key])
	}
	return n
}

// count returns a whole number of at least 1.
func (a *arguments) count(key string, absent int) int {
	n := a.number(key, float64(absent))
	if n < 1 || n > math.MaxInt32 || n != math.Trunc(n) {
		a.fail("%q must be a whole number of at least 1, not %s", key, a.object[key])
	}
	return int(n)
}

// path returns the path of a file as it was given and made absolute.
func (a *arguments) path(cwd string) (path, full string) {
	path = a.str("path")
	full = path
	if path == "" {
		a.fail("the path is empty")
	}
	if strings.HasPrefix(path, "~/") {
		home, err := os.UserHomeDir()
		if err != nil {
			a.fail("cannot expand ~: %w", err)
		}
		full = home + path[1:]
	}
	if !filepath.IsAbs(full) {
		full = filepath.Join(cwd, full)
	}
	return path, full
}

// replacement is one element of edit's edits.
type replacement struct{ oldText, newText string }

// replacements returns edit's edits; one may stand at the top.
func (a *arguments) replacements() (list []replacement) {
	take := func(a *arguments) {
		r := replacement{a.str("oldText"), a.str("newText")}
		if r.oldText == "" {
			a.fail(`"oldText" must not be empty; to create a file use write`)
		}
		list = append(list, r)
	}
	var items []json.RawMessage
	if a.has("edits") && json.Unmarshal(a.object["edits"], &items) != nil {
		a.fail(`"edits" must be an array of {oldText, newText}, not %s`, kindOf(a.object["edits"]))
	}
	for i, item := range items {
		o, err := parseObject(item)
		element := &arguments{o, err}
		take(element)
		if element.err != nil {
			a.fail("edits[%d]: %w", i, element.err)
		}
	}
	if a.has("oldText") || a.has("newText") {
		take(a)
	}
	if len(list) == 0 {
		a.fail(`"edits" must be an array of {oldText, newText} with at least one element; given are %q`, slices.Sorted(maps.Keys(a.object)))
	}
	return list
}

// regular returns what is known of a regular file and refuses all else.
func regular(path string) (fs.FileInfo, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("ENOENT: %w: %s", errors.Unwrap(err), path)
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("%s is a directory; to list it use bash with ls", path)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file but a pipe, socket or device (mode %v)", path, info.Mode())
	}
	return info, nil
}

func (e *toolEnv) read(ctx context.Context, a *arguments, _ func(string)) (r toolResult, err error) {
	path, full := a.path(e.cwd)
	offset, limit := a.count("offset", 1), a.count("limit", maxLines)
	if a.err != nil {
		return r, nil
	}
	info, err := regular(full)
	if err != nil {
		return r, err
	}
	f, err := os.Open(full)
	if err != nil {
		return r, err
	}
	defer f.Close()
	defer context.AfterFunc(ctx, func() { f.Close() })() // an abort ends the reading
	in := bufio.NewReaderSize(f, 64<<10)
	head, err := in.Peek(8 << 10)
	switch {
	case err != nil && err != io.EOF:
		return r, err
	case imageKind(head) != "":
		return readImage(in, path, info.Size())
	case bytes.IndexByte(head, 0) >= 0:
		return textResult("[Binary file, not shown: %d bytes, %s. To look at it use bash with file, xxd or strings]", info.Size(), http.DetectContentType(head)), nil
	case bytes.HasPrefix(head, []byte(utf8BOM)):
		in.Discard(len(utf8BOM))
	}
	x, err := readLines(in, offset, min(limit, maxLines))
	if err != nil {
		return r, err
	}
	return x.result(path, offset, limit, info.Size())
}

func readImage(in io.Reader, path string, size int64) (r toolResult, err error) {
	if size > imageMax {
		return r, fmt.Errorf("%s: the image has %d bytes, the limit is %d", path, size, imageMax)
	}
	data, err := io.ReadAll(in)
	if err != nil {
		return r, err
	}
	block, err := prepareImage(data)
	if err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	r = textResult("Read image file [%s]", block.MimeType)
	if shown, _ := base64.StdEncoding.DecodeString(block.Data); !bytes.Equal(shown, data) {
		_, w, h, _ := imageHeader(data)
		_, sw, sh, _ := imageHeader(shown)
		r = textResult("Read image file [%s], made smaller: %dx%d pixels are shown as %dx%d", block.MimeType, w, h, sw, sh)
	}
	r.content = append(r.content, block)
	return r, nil
}

// excerpt is some lines of a file or, if the first alone is too long, the
// beginning of that line.
type excerpt struct {
	text  []byte
	last  int // the number of the last line in text
	size  int // of the line of which text is the beginning, else 0
	total int // lines in the file; 0 when not all were counted
}

// readLines reads at most limit lines and maxBytes from line offset on, and a
// little further to count the lines.
func readLines(in *bufio.Reader, offset, limit int) (x excerpt, err error) {
	var line []byte
	var size int
	full := false
	for n, ahead := 1, countAhead; ahead > 0; n++ {
		line, size, err = readLine(in, line[:0])
		switch {
		case err == io.EOF:
			x.total = n - 1
			return x, nil
		case err != nil:
			return x, err
		case n < offset:
		case full || n-offset >= limit || n > offset && len(x.text)+size > maxBytes:
			full = true
			ahead -= size
		default:
			x.text, x.last = append(x.text, line...), n
			if size > maxBytes {
				x.text, x.size, full = wholeRunes(x.text), size, true
			}
		}
	}
	return x, nil
}

// readLine reads one line with its end. It appends up to maxBytes of it to line,
// which is empty, and returns its size.
func readLine(in *bufio.Reader, line []byte) (_ []byte, size int, err error) {
	for {
		part, err := in.ReadSlice('\n')
		size += len(part)
		line = append(line, part[:min(len(part), maxBytes-len(line))]...)
		if err == io.EOF && size > 0 {
			err = nil
		}
		if err != bufio.ErrBufferFull {
			return line, size, err
		}
	}
}

// wholeRunes cuts the beginning of a character off the end of a text.
func wholeRunes(b []byte) []byte {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if !utf8.FullRune(b[len(b)-n:]) {
			return b[:len(b)-n]
		}
	}
	return b
}

// result words an excerpt, and how to read on, for the model.
func (x *excerpt) result(path string, offset, limit int, fileSize int64) (r toolResult, err error) {
	if x.last == 0 && offset == 1 {
		return textResult("[The file is empty]"), nil
	}
	if x.last == 0 {
		return r, fmt.Errorf("Offset %d is beyond end of file (%d lines total)", offset, x.total)
	}
	raw := strings.ReplaceAll(string(x.text), "\r\n", "\n")
	text := strings.ToValidUTF8(raw, "\ufffd")
	var notes string
	note := func(format string, values ...any) {
		notes += fmt.Sprintf("\n["+format+"]", values...)
	}
	if text != raw {
		note("The file is not UTF-8: bytes shown as U+FFFD cannot be matched by edit.")
	}
	if x.size > 0 {
		quoted := "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
		note("Line %d has %d bytes, shown are the first %d. To read on use bash: sed -n %dp %s | cut -b %d-%d",
			x.last, x.size, len(x.text), x.last, quoted, len(x.text)+1, len(x.text)+maxBytes)
	}
	switch next := x.last + 1; {
	case x.last == x.total:
	case x.total == 0:
		note("Showing lines %d-%d of a file of %d bytes. Use offset=%d to continue.", offset, x.last, fileSize, next)
	case limit < maxLines && next == offset+limit:
		note("%d more lines in file. Use offset=%d to continue.", x.total-x.last, next)
	default:
		note("Showing lines %d-%d of %d. Use offset=%d to continue.", offset, x.last, x.total, next)
	}
	if notes != "" {
		text = strings.TrimSuffix(text, "\n") + "\n"
	}
	return textResult("%s%s", text, notes), nil
}

func (e *toolEnv) write(_ context.Context, a *arguments, _ func(string)) (r toolResult, err error) {
	path, full := a.path(e.cwd)
	content := a.str("content")
	if a.err != nil {
		return r, nil
	}
	if err := replaceFile(full, []byte(content)); err != nil {
		return r, fmt.Errorf("could not write %s: %w", path, err)
	}
	return textResult("Successfully wrote %d bytes to %s", len(content), path), nil
}

// replaceFile gives a file its new content or leaves it as it was. A new file
// gets the mode 0644 less the umask, and its directories.
func replaceFile(path string, data []byte) error {
	if os.IsPathSeparator(path[len(path)-1]) {
		return errors.New("the path ends in a separator: it names a directory")
	}
	old, err := regular(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(path); err == nil {
			return errors.New("it is a symbolic link to a file that does not exist")
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return renameOver(path, nil, data)
	case err != nil:
		return err
	case old.Mode()&0o222 == 0: // root could, but the mode says not to
		return fmt.Errorf("the file is read-only (mode %v)", old.Mode())
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0) // rename asks for no right to the file itself
	if err != nil {
		return err
	}
	f.Close()
	target, err := filepath.EvalSymlinks(path)
	if err == nil {
		err = renameOver(target, old, data)
	}
	if err == nil || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return err
	}
	// The directory takes no other file, or this one cannot be replaced or not
	// with the same owner.
	return overwrite(path, data)
}

// renameOver writes a file of its own in the directory of path, with the mode
// and owner of old, which may be nil, and then gives it the name path. (A file
// of os.CreateTemp would keep the umask from deciding about a new one.)
func renameOver(path string, old fs.FileInfo, data []byte) error {
	temp := filepath.Join(filepath.Dir(path), fmt.Sprintf(".zot-%016x", rand.Uint64()))
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer os.Remove(temp) // after the rename there is nothing to remove
	if old != nil {
		err = errors.Join(keepOwner(f, old), f.Chmod(old.Mode())) // in this order: chown clears bits
	}
	if err == nil {
		_, err = f.Write(data)
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// overwrite writes into a file in place, and puts the old content back if that
// fails.
func overwrite(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	old, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	put := func(data []byte) error {
		_, err := f.WriteAt(data, 0)
		return errors.Join(err, f.Truncate(int64(len(data))), f.Sync())
	}
	if err := put(data); err != nil {
		return errors.Join(err, put(old))
	}
	return nil
}

func (e *toolEnv) edit(_ context.Context, a *arguments, _ func(string)) (r toolResult, err error) {
	path, full := a.path(e.cwd)
	edits := a.replacements()
	if a.err != nil {
		return r, nil
	}
	info, err := regular(full)
	if err != nil {
		return r, err
	}
	if info.Size() > editMax {
		return r, fmt.Errorf("%s has %d bytes, the limit is %d; use bash with sed", path, info.Size(), editMax)
	}
	body, err := os.ReadFile(full)
	if err != nil {
		return r, err
	}
	changes, loose, err := planEdits(body, edits, path)
	if err != nil {
		return r, err
	}
	changed := splice(body, changes)
	if err := replaceFile(full, changed); err != nil {
		return r, fmt.Errorf("could not write %s: %w", path, err)
	}
	r = textResult("Successfully replaced %d block(s) in %s.", len(edits), path)
	if loose {
		r.content[0].Text += " (Found by ignoring trailing blanks and the forms of quotes, dashes and spaces.)"
	}
	r.details = editDetails{unifiedDiff(path, body, changed, changes), lineAt(body, changes[0].start)}
	return r, nil
}

type editDetails struct {
	Diff             string `json:"diff"`
	FirstChangedLine int    `json:"firstChangedLine"`
}

// change replaces the bytes from start to end.
type change struct {
	start, end int
	text       []byte
}

// planEdits finds what each edit changes in body. The changes come in order
// and do not overlap. loose tells that a text was not found as it stands.
func planEdits(body []byte, edits []replacement, path string) (changes []change, loose bool, err error) {
	exact := newView(string(body), false)
	for i, e := range edits {
		v, old := exact, newView(e.oldText, false).text
		if !strings.Contains(v.text, old) && strings.TrimSpace(old) != "" {
			v, old, loose = newView(string(body), true), newView(e.oldText, true).text, true
		}
		first, last := strings.Index(v.text, old), strings.LastIndex(v.text, old)
		if first < 0 || first < last {
			err = notUnique(v.text, old, path, first, last)
			if len(edits) > 1 {
				err = fmt.Errorf("edits[%d]: %w", i, err)
			}
			return nil, false, err
		}
		changes = append(changes, change{int(v.at[first]), int(v.at[first+len(old)]), []byte(e.newText)})
	}
	slices.SortFunc(changes, func(a, b change) int { return a.start - b.start })
	for i, c := range changes[1:] {
		if c.start < changes[i].end {
			return nil, false, fmt.Errorf("Two edits overlap in %s on line %d: make one of them", path, lineAt(body, c.start))
		}
	}
	for i, c := range changes {
		changes[i] = changedLines(body, c)
	}
	changes = slices.DeleteFunc(changes, func(c change) bool { return c.start == c.end && len(c.text) == 0 })
	if len(changes) == 0 {
		return nil, false, fmt.Errorf("No changes made to %s. The new text is the same as the old", path)
	}
	return changes, loose, nil
}

// notUnique is the error for an old text that was not found exactly once.
func notUnique(text, old, path string, first, last int) error {
	line := func(at int) int { return 1 + strings.Count(text[:at], "\n") }
	if first >= 0 {
		return fmt.Errorf("Found %d occurrences of the text in %s, the first on line %d, the last on line %d. It must be unique: give more of the lines around it",
			max(2, strings.Count(text, old)), path, line(first), line(last))
	}
	hint := "It must match exactly, whitespace included: read the file again, it may have changed"
	begin, _, _ := strings.Cut(strings.TrimSpace(old), "\n")
	if at := strings.Index(text, begin); at >= 0 && begin != "" {
		hint = fmt.Sprintf("Its first line is on line %d, but the rest or the whitespace differs: read the file from there", line(at))
	}
	return fmt.Errorf("Could not find the exact text in %s. %s", path, hint)
}

// view is a text as it is searched: without byte order mark and with LF for
// CRLF. In a loose view trailing blanks are hidden, too, and quotes, dashes and
// spaces have their plain form.
type view struct {
	text string
	at   []int32 // the raw offset of each byte of text, and of its end
}

var plainForm = strings.NewReplacer("‘", "'", "’", "'", "‚", "'", "‛", "'", "“", `"`, "”", `"`, "„", `"`, "‟", `"`,
	"‐", "-", "‑", "-", "‒", "-", "–", "-", "—", "-", "―", "-", "−", "-",
	"\u00a0", " ", "\u2002", " ", "\u2003", " ", "\u2009", " ", "\u202f", " ", "\u205f", " ", "\u3000", " ")

func newView(raw string, loose bool) view {
	var text strings.Builder
	at := make([]int32, 0, len(raw)+1)
	show := func(s string, from int) {
		text.WriteString(s)
		for k := range len(s) { // what is not shown as it is, is one byte
			at = append(at, int32(from+k))
		}
	}
	start := len(raw) - len(strings.TrimPrefix(raw, utf8BOM)) // of a line
	end := start                                              // of what is shown of it
	for line := range strings.Lines(raw[start:]) {
		s, ended := strings.CutSuffix(line, "\n")
		if ended {
			s = strings.TrimSuffix(s, "\r")
		}
		if loose {
			s = strings.TrimRight(s, " \t")
		}
		for end = start; end < start+len(s); {
			piece := s[end-start:]
			n := len(piece)
			if loose {
				_, n = utf8.DecodeRuneInString(piece)
				if piece = piece[:n]; n > 1 {
					piece = plainForm.Replace(piece)
				}
			}
			show(piece, end)
			end += n
		}
		if start += len(line); ended {
			show("\n", end)
			end = start
		}
	}
	return view{text.String(), append(at, int32(end))}
}

// changedLines takes the lines that stay the same off both ends of a change,
// and gives the others the line ends of the place.
func changedLines(body []byte, c change) change {
	fold := func(b []byte) []byte { return bytes.ReplaceAll(b, crlf, lf) }
	old, text := bytes.SplitAfter(body[c.start:c.end], lf), bytes.SplitAfter(fold(c.text), lf)
	for len(old) > 0 && len(text) > 0 && bytes.Equal(fold(old[0]), text[0]) {
		c.start += len(old[0])
		old, text = old[1:], text[1:]
	}
	for len(old) > 0 && len(text) > 0 && bytes.Equal(fold(old[len(old)-1]), text[len(text)-1]) {
		c.end -= len(old[len(old)-1])
		old, text = old[:len(old)-1], text[:len(text)-1]
	}
	c.text = bytes.Join(text, nil)
	end := bytes.IndexByte(body[c.start:], '\n') + c.start
	if end < c.start { // the last line has no end: look at the one before
		end = bytes.LastIndexByte(body[:c.start], '\n')
	}
	if end > 0 && body[end-1] == '\r' {
		c.text = bytes.ReplaceAll(c.text, lf, crlf)
	}
	return c
}

// splice returns body with the changes in it.
func splice(body []byte, changes []change) (out []byte) {
	from := 0
	for _, c := range changes {
		out = append(append(out, body[from:c.start]...), c.text...)
		from = c.end
	}
	return append(out, body[from:]...)
}

// unifiedDiff shows the changes from old to new byte for byte, with up to three
// lines around them. What lies between changes that are near each other is
// shown as replaced, too.
func unifiedDiff(path string, old, new []byte, changes []change) string {
	const around = 3
	a, b := slices.Collect(bytes.Lines(old)), slices.Collect(bytes.Lines(new))
	out := fmt.Appendf(nil, "--- %s\n+++ %[1]s\n", path)
	show := func(sign byte, lines [][]byte) {
		for _, line := range lines {
			out = append(append(out, sign), line...)
			if line[len(line)-1] != '\n' {
				out = append(out, "\n\\ No newline at end of file\n"...)
			}
		}
	}
	starts := func(at int) bool { return at == 0 || old[at-1] == '\n' }
	grown := 0 // lines that new has more than old up to here
	for len(changes) > 0 && len(out) < diffMax {
		// The next hunk: lines from to end of old are, later, those to newEnd of new.
		from, more, n := lineAt(old, changes[0].start)-1, grown, 0
		end := from
		for ; n < len(changes) && lineAt(old, changes[n].start)-1 <= end+2*around; n++ {
			c := changes[n]
			end = lineAt(old, c.end)
			if starts(c.start) && starts(c.end) && (len(c.text) == 0 || bytes.HasSuffix(c.text, lf)) {
				end-- // only whole lines
			}
			more += bytes.Count(c.text, lf) - bytes.Count(old[c.start:c.end], lf)
		}
		newEnd := min(end+more, len(b))
		end = min(end, len(a))
		first, last := max(0, from-around), min(end+around, len(a))
		out = fmt.Appendf(out, "@@ -%d,%d +%d,%d @@\n", first+1, last-first, first+1+grown, last-end+newEnd-first-grown)
		show(' ', a[first:from])
		show('-', a[from:end])
		show('+', b[from+grown:newEnd])
		show(' ', a[end:last])
		changes, grown = changes[n:], more
	}
	if len(out) > diffMax {
		out = append(wholeRunes(out[:diffMax]), "\n[The rest of the diff is not shown]\n"...)
	}
	return string(out)
}

// lineAt returns the number of the line that offset at is in.
func lineAt(b []byte, at int) int { return 1 + bytes.Count(b[:at], lf) }
