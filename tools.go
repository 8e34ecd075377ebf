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
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"
)

const (
	maxLines = 2000     // of text in one result
	maxBytes = 50 << 10 // of text in one result

	fileMax    = 64 << 20 // of an image, or of a file to edit
	diffMax    = 50 << 10
	countAhead = 8 << 20 // bytes behind what read shows that it reads to count lines
	utf8BOM    = "\xef\xbb\xbf"
)

var lf, crlf = []byte("\n"), []byte("\r\n")

// toolEnv is what the built-in tools need to know.
type toolEnv struct {
	cwd     string   // absolute
	dropEnv []string // patterns of variables that commands must not see, see childEnv
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
		if ctx.Err() != nil {
			return errorResult("Aborted before it started")
		}
		o, err := parseObject(c.args)
		if err != nil {
			return errorResult(fmt.Sprintf("Validation failed for tool %q: the arguments are %v", name, err))
		}
		a := &arguments{object: o}
		r, err := run(ctx, a, c.progress)
		switch {
		case a.problem != "":
			return errorResult(fmt.Sprintf("Validation failed for tool %q: %s%s", name, a.problem, a.unknown()))
		case err != nil:
			r = errorResult(err.Error())
		}
		if ignored := a.unknown(); ignored != "" {
			r.content = append(r.content, Block{Type: "text", Text: "[Ignored" + ignored + "]"})
		}
		return r
	}
	return t
}

func textResult(format string, values ...any) toolResult {
	return toolResult{content: []Block{{Type: "text", Text: fmt.Sprintf(format, values...)}}}
}

// arguments are the arguments of one call. The first problem is kept, so that
// a tool asks for all its parameters and then looks once.
type arguments struct {
	object
	asked   []string // the tool's parameters
	problem string
}

func (a *arguments) fail(format string, values ...any) {
	if a.problem == "" {
		a.problem = fmt.Sprintf(format, values...)
	}
}

// unknown says which arguments are no parameters of the tool; "" if all are.
func (a *arguments) unknown() string {
	var names []string
	for name := range a.object {
		if !slices.Contains(a.asked, name) {
			names = append(names, strconv.Quote(name))
		}
	}
	if names == nil {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf(": there is no parameter %s, did you mean one of %s?", strings.Join(names, ", "), strings.Join(a.asked, ", "))
}

func (a *arguments) str(key string) string {
	a.asked = append(a.asked, key)
	if !a.has(key) {
		a.fail("%q is missing, it must be a string", key)
	}
	s, err := a.object.str(key)
	if err != nil {
		a.fail("%v", err)
	}
	return s
}

// number returns a number, also one that was sent as a string.
func (a *arguments) number(key string, absent float64) float64 {
	a.asked = append(a.asked, key)
	if !a.has(key) {
		return absent
	}
	text := string(a.object[key])
	if s, err := a.object.str(key); err == nil {
		text = strings.TrimSpace(s)
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		a.fail("%q must be a number, not %s", key, a.object[key])
	}
	return n
}

// count returns a whole number of at least 1.
func (a *arguments) count(key string, absent int) int {
	n := a.number(key, float64(absent))
	if n < 1 || n > 1<<53 || n != math.Trunc(n) {
		a.fail("%q must be a whole number of at least 1, not %s", key, a.object[key])
	}
	return int(n)
}

// replacement is one element of edit's edits.
type replacement struct{ oldText, newText string }

// replacements returns edit's edits; one may stand at the top.
func (a *arguments) replacements() (list []replacement) {
	add := func(a *arguments) {
		r := replacement{a.str("oldText"), a.str("newText")}
		if r.oldText == "" {
			a.fail(`"oldText" must not be empty; to create a file use write`)
		}
		list = append(list, r)
	}
	a.asked = append(a.asked, "edits")
	var items []json.RawMessage
	if a.has("edits") && json.Unmarshal(a.object["edits"], &items) != nil {
		a.fail(`"edits" must be an array of {oldText, newText}, not %s`, kindOf(a.object["edits"]))
	}
	for i, item := range items {
		o, err := parseObject(item)
		if err != nil {
			a.fail("edits[%d] is %v", i, err)
		}
		nested := &arguments{object: o}
		if add(nested); nested.problem != "" {
			a.fail("edits[%d]: %s%s", i, nested.problem, nested.unknown())
		}
	}
	if a.has("oldText") || a.has("newText") {
		add(a)
	}
	if len(list) == 0 {
		a.fail(`"edits" must be an array of {oldText, newText} with at least one element`)
	}
	return list
}

// resolve makes a path absolute.
func (e *toolEnv) resolve(path string) (string, error) {
	if path == "" {
		return "", errors.New("the path is empty")
	}
	if path == "~" || strings.HasPrefix(path, "~/") {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("cannot expand ~: %w", err)
		}
		path = home + path[1:]
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(e.cwd, path)
	}
	return path, nil
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
	path, offset, limit := a.str("path"), a.count("offset", 1), a.count("limit", maxLines)
	if a.problem != "" {
		return r, nil
	}
	full, err := e.resolve(path)
	if err != nil {
		return r, err
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
	in := bufio.NewReaderSize(ctxReader{ctx, f}, 64<<10)
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

// ctxReader ends with its context.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

func readImage(in io.Reader, path string, size int64) (r toolResult, err error) {
	if size > fileMax {
		return r, fmt.Errorf("%s: the image has %d bytes, the limit is %d", path, size, fileMax)
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
	text  []byte // line ends as LF
	last  int    // the number of the last line in text
	size  int    // of the line of which text is the beginning, else 0
	total int    // lines in the file; 0 when not all were counted
}

// readLines reads at most limit lines and maxBytes from line offset on, and a
// little further to count the lines.
func readLines(in *bufio.Reader, offset, limit int) (x excerpt, err error) {
	full, beyond := false, 0
	for n := 1; ; n++ {
		keep := maxBytes
		if n < offset || full {
			keep = 0
		}
		line, size, err := readLine(in, keep)
		if err == io.EOF {
			x.total = n - 1
			return x, nil
		}
		if err != nil {
			return x, err
		}
		if n < offset {
			continue
		}
		full = full || n-offset >= limit || n > offset && len(x.text)+size > maxBytes
		if full {
			if beyond += size; beyond > countAhead {
				return x, nil
			}
			continue
		}
		if size > maxBytes {
			line, x.size, full = wholeRunes(line), size, true
		} else if text, ok := bytes.CutSuffix(line, crlf); ok {
			line = append(text, '\n')
		}
		x.text, x.last = append(x.text, line...), n
	}
}

// readLine reads one line. It returns up to keep bytes of it and its size,
// both with the line end.
func readLine(in *bufio.Reader, keep int) (line []byte, size int, err error) {
	for {
		part, err := in.ReadSlice('\n')
		size += len(part)
		line = append(line, part[:min(len(part), keep-len(line))]...)
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
	for i := len(b) - 1; i >= max(0, len(b)-utf8.UTFMax); i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return b[:i]
			}
			break
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
	text := strings.ToValidUTF8(string(x.text), "\ufffd")
	var notes string
	note := func(format string, values ...any) {
		notes += fmt.Sprintf("\n["+format+"]", values...)
	}
	if text != string(x.text) {
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
	path, content := a.str("path"), a.str("content")
	if a.problem != "" {
		return r, nil
	}
	full, err := e.resolve(path)
	if err != nil {
		return r, err
	}
	if err := replaceFile(full, []byte(content)); err != nil {
		return r, fmt.Errorf("could not write %s: %w", path, err)
	}
	return textResult("Successfully wrote %d bytes to %s", len(content), path), nil
}

// replaceFile gives a file its new content or leaves it as it was. A new file
// gets the mode 0644 less the umask, and its directories.
func replaceFile(path string, data []byte) error {
	old, err := regular(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Readlink(path); err == nil {
			return errors.New("it is a symbolic link to a file that does not exist")
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
	case err != nil:
		return err
	case old.Mode()&0o222 == 0: // root could, but the mode says not to
		return fmt.Errorf("the file is read-only (mode %v)", old.Mode())
	default:
		// Rename asks for no right to the file itself.
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		f.Close()
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return err
		}
	}
	temp, err := createBeside(path, old)
	if err == nil {
		defer os.Remove(temp.Name()) // after the rename there is nothing to remove
		_, err := temp.Write(data)
		if err := errors.Join(err, temp.Sync(), temp.Close()); err != nil {
			return err
		}
		err = os.Rename(temp.Name(), path)
		if err == nil {
			return nil
		}
	}
	if old == nil || errors.Is(err, syscall.ENOSPC) {
		return err
	}
	// The directory takes no other file, or this one cannot be replaced or not
	// with the same owner.
	return overwrite(path, data)
}

// createBeside makes an empty file with a name of its own in the directory of
// path, with the mode and owner of old, which may be nil. (os.CreateTemp would
// keep the umask from deciding about a new file.)
func createBeside(path string, old fs.FileInfo) (*os.File, error) {
	perm := fs.FileMode(0o644)
	if old != nil {
		perm = 0o600
	}
	name := filepath.Join(filepath.Dir(path), fmt.Sprintf(".zot-%016x", rand.Uint64()))
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil || old == nil {
		return f, err
	}
	if err = keepOwner(f, old); err == nil {
		err = f.Chmod(old.Mode()) // after the owner, whose change clears bits
	}
	if err != nil {
		f.Close()
		os.Remove(name)
	}
	return f, err
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
	path, edits := a.str("path"), a.replacements()
	if a.problem != "" {
		return r, nil
	}
	full, err := e.resolve(path)
	if err != nil {
		return r, err
	}
	info, err := regular(full)
	if err != nil {
		return r, err
	}
	if info.Size() > fileMax {
		return r, fmt.Errorf("%s has %d bytes, the limit is %d; use bash with sed", path, info.Size(), fileMax)
	}
	raw, err := os.ReadFile(full)
	if err != nil {
		return r, err
	}
	body := bytes.TrimPrefix(raw, []byte(utf8BOM))
	changes, loose, err := planEdits(body, edits, path)
	if err != nil {
		return r, err
	}
	bom := raw[:len(raw)-len(body)]
	if err := replaceFile(full, slices.Concat(bom, splice(body, 0, len(body), changes))); err != nil {
		return r, fmt.Errorf("could not write %s: %w", path, err)
	}
	text := fmt.Sprintf("Successfully replaced %d block(s) in %s.", len(edits), path)
	if loose {
		text += " (Found by ignoring trailing blanks and the forms of quotes, dashes and spaces.)"
	}
	r = textResult("%s", text)
	r.details = editDetails{unifiedDiff(path, body, changes), lineAt(body, changes[0].start)}
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
		which := ""
		if len(edits) > 1 {
			which = fmt.Sprintf("edits[%d]: ", i)
		}
		view, old := exact, newView(e.oldText, false).text
		first, second, n := view.find(old)
		if n == 0 && strings.TrimSpace(old) != "" {
			loose = true
			view, old = newView(string(body), true), newView(e.oldText, true).text
			first, second, n = view.find(old)
		}
		if n == 0 {
			return nil, false, fmt.Errorf("%sCould not find the exact text in %s. %s", which, path, hint(body, e.oldText))
		}
		if n > 1 {
			return nil, false, fmt.Errorf("%sFound %d occurrences of the text in %s, the first two on lines %d and %d. It must be unique: give more of the lines around it",
				which, n, path, lineAt(body, view.raw(first)), lineAt(body, view.raw(second)))
		}
		changes = append(changes, change{view.raw(first), view.raw(first + len(old)), []byte(e.newText)})
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

// view is a text as it is searched: with LF for CRLF. In a loose view trailing
// blanks are hidden, too, and quotes, dashes and spaces have their plain form.
type view struct {
	text  string
	jumps []jump // where text and raw bytes drift apart, in order
}

type jump struct{ text, raw int } // offsets of the same place

var plain = strings.NewReplacer("‘", "'", "’", "'", "‚", "'", "‛", "'", "“", `"`, "”", `"`, "„", `"`, "‟", `"`,
	"‐", "-", "‑", "-", "‒", "-", "–", "-", "—", "-", "―", "-", "−", "-",
	"\u00a0", " ", "\u2002", " ", "\u2003", " ", "\u2009", " ", "\u202f", " ", "\u205f", " ", "\u3000", " ")

func newView(raw string, loose bool) view {
	var text strings.Builder
	jumps := []jump{{0, 0}}
	for i := 0; i < len(raw); {
		from, size := i, text.Len()
		blanks := 0
		if loose {
			blanks = len(raw) - i - len(strings.TrimLeft(raw[i:], " \t"))
		}
		_, n := utf8.DecodeRuneInString(raw[i:])
		switch behind := raw[i+blanks:]; {
		case strings.HasPrefix(behind, "\r\n"):
			text.WriteByte('\n')
			i += blanks + 2
		case strings.HasPrefix(behind, "\n"):
			text.WriteByte('\n')
			i += blanks + 1
		case behind == "":
			i += blanks
		case blanks > 0:
			text.WriteString(raw[i : i+blanks])
			i += blanks
		case loose && n > 1:
			plain.WriteString(&text, raw[i:i+n])
			i += n
		default:
			text.WriteString(raw[i : i+n])
			i += n
		}
		if text.Len() > size && text.Len()-size != i-from {
			jumps = append(jumps, jump{text.Len(), i})
		}
	}
	return view{text.String(), jumps}
}

// raw returns where an offset in the text is in the raw bytes. In front of
// something hidden it is in front of that there, too.
func (v view) raw(at int) int {
	after := sort.Search(len(v.jumps), func(i int) bool { return v.jumps[i].text > at })
	j := v.jumps[after-1]
	return j.raw + at - j.text
}

// find returns where the first two occurrences of old are, which may overlap,
// and how many there are.
func (v view) find(old string) (first, second, n int) {
	first = strings.Index(v.text, old)
	if first < 0 || old == "" {
		return 0, 0, 0
	}
	second = strings.Index(v.text[first+1:], old)
	if second < 0 {
		return first, 0, 1
	}
	return first, first + 1 + second, max(2, strings.Count(v.text, old))
}

// hint says what may help to find a text that is not there.
func hint(body []byte, text string) string {
	first, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	n := 0
	for line := range bytes.Lines(body) {
		if n++; first != "" && string(bytes.TrimSpace(line)) == strings.TrimSpace(first) {
			return fmt.Sprintf("Its first line is on line %d, but the rest or the whitespace differs: read the file from there", n)
		}
	}
	return "It must match exactly, whitespace and line ends included: read the file again, it may have changed"
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
	place := lineEnd(body, c.start)
	if body[place-1] != '\n' { // the last line has no end: look at the one before
		place = lineStart(body, c.start)
	}
	if bytes.HasSuffix(body[:place], crlf) {
		c.text = bytes.ReplaceAll(c.text, lf, crlf)
	}
	return c
}

// splice returns body[from:to] with the changes in it.
func splice(body []byte, from, to int, changes []change) []byte {
	var out []byte
	for _, c := range changes {
		out = append(append(out, body[from:c.start]...), c.text...)
		from = c.end
	}
	return append(out, body[from:to]...)
}

// unifiedDiff shows the changes byte for byte, with up to three lines around
// them. What lies between changes that are near each other is shown as
// replaced, too.
func unifiedDiff(path string, old []byte, changes []change) string {
	out := fmt.Appendf(nil, "--- %s\n+++ %s\n", path, path)
	grown := 0 // lines that the new text has more than the old one so far
	for len(changes) > 0 && len(out) < diffMax {
		start := lineStart(old, changes[0].start)
		end, after, n := start, start, 0
		for ; n < len(changes) && lineStart(old, changes[n].start) <= after; n++ {
			c := changes[n]
			end = c.end
			wholeText := len(c.text) == 0 || bytes.HasSuffix(c.text, lf)
			if !wholeText || lineStart(old, c.start) != c.start || lineStart(old, end) != end {
				end = lineEnd(old, end)
			}
			after = lineEnd(old, lineEnd(old, lineEnd(old, end)))
		}
		before := start
		for range 3 {
			before = lineStart(old, max(0, before-1))
		}
		text := splice(old, start, end, changes[:n])
		changes = changes[n:]

		around := countLines(old[before:start]) + countLines(old[end:after])
		removed, added := countLines(old[start:end]), countLines(text)
		line := lineAt(old, before)
		out = fmt.Appendf(out, "@@ -%d,%d +%d,%d @@\n", line, around+removed, line+grown, around+added)
		out = appendLines(out, ' ', old[before:start])
		out = appendLines(out, '-', old[start:end])
		out = appendLines(out, '+', text)
		out = appendLines(out, ' ', old[end:after])
		grown += added - removed
	}
	if len(out) > diffMax {
		out = append(wholeRunes(out[:diffMax]), "\n[The rest of the diff is not shown]\n"...)
	}
	return string(out)
}

// lineAt returns the number of the line that offset at is in.
func lineAt(b []byte, at int) int { return 1 + bytes.Count(b[:at], lf) }

// lineStart returns the offset of the beginning of the line that at is in.
func lineStart(b []byte, at int) int { return bytes.LastIndexByte(b[:at], '\n') + 1 }

// lineEnd returns the offset behind the line that at is in.
func lineEnd(b []byte, at int) int {
	if i := bytes.IndexByte(b[at:], '\n'); i >= 0 {
		return at + i + 1
	}
	return len(b)
}

func countLines(b []byte) int {
	n := bytes.Count(b, lf)
	if len(b) > 0 && b[len(b)-1] != '\n' {
		n++
	}
	return n
}

func appendLines(out []byte, sign byte, b []byte) []byte {
	for line := range bytes.Lines(b) {
		out = append(append(out, sign), line...)
		if line[len(line)-1] != '\n' {
			out = append(out, "\n\\ No newline at end of file\n"...)
		}
	}
	return out
}
