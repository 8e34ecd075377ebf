// The bash tool. Rules kept here:
//
//   - The end of the output matters most and is kept; all of it goes to a file
//     once it is more than a result holds. Memory is constant, whatever a
//     command prints, and a command never waits for our reader.
//   - The command ends with its shell. What that left in the background may
//     hold the pipe as long as it likes: it is drained to nowhere, told in the
//     result and ended with us.
//   - Whatever ends a command, its output so far is returned.
//   - Nothing can ask: no input, no terminal, no editor, no pager.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	bashTimeout    = 120.0  // seconds
	bashTimeoutMax = 3600.0 // seconds

	tailKeep     = 256 << 10 // of raw output, to take the end from: room for escape sequences
	spillMax     = 64 << 20
	progressKeep = 8 << 10
	progressGap  = 100 * time.Millisecond

	killGrace  = time.Second // with killWait and a short drain below two seconds
	drainPoll  = 10 * time.Millisecond
	drainQuiet = 25  // polls without output that end the drain
	drainMax   = 100 // polls
)

// quietEnv keeps programs from asking.
var quietEnv = []string{
	"GIT_TERMINAL_PROMPT=0", "PAGER=cat", "GIT_PAGER=cat", "TERM=dumb", "DEBIAN_FRONTEND=noninteractive",
	"EDITOR=true", "VISUAL=true", "GIT_EDITOR=true",
	"GIT_SEQUENCE_EDITOR=false", // with "true" an interactive rebase would rewrite history unseen
}

// quiet adds quietEnv to env, but leaves what cannot ask either.
func quiet(env []string) []string {
	for _, v := range quietEnv {
		name, _, _ := strings.Cut(v, "=")
		set := slices.ContainsFunc([]string{"true", "false", ":", "cat"}, func(value string) bool {
			return slices.Contains(env, name+"="+value)
		})
		if !set {
			env = append(env, v) // of two values the last counts
		}
	}
	return env
}

type bashDetails struct {
	Truncation     *truncation `json:"truncation"`
	FullOutputPath *string     `json:"fullOutputPath"`
}

// truncation tells what of the output a result's text is.
type truncation struct {
	Truncated   bool   `json:"truncated"`
	TruncatedBy string `json:"truncatedBy"` // "lines" or "bytes"
	TotalLines  int    `json:"totalLines"`
	TotalBytes  int64  `json:"totalBytes"`
	OutputLines int    `json:"outputLines"`
	OutputBytes int    `json:"outputBytes"`
}

func (e *toolEnv) bash(ctx context.Context, a *arguments, progress func(string)) (result toolResult, err error) {
	command, seconds := a.str("command"), a.number("timeout", bashTimeout)
	if a.problem != "" {
		return result, nil
	}
	asked := seconds
	if seconds <= 0 {
		seconds = bashTimeout
	}
	seconds = min(seconds, bashTimeoutMax)
	r, err := runShell(ctx, e, command, max(1, time.Duration(seconds*float64(time.Second))), progress)
	if err != nil {
		return result, err
	}

	parts := append([]string{r.output}, r.notes...)
	if strings.TrimSpace(r.output) == "" {
		parts[0] = "(no output)"
	}
	if asked > seconds {
		parts = append(parts, fmt.Sprintf("[timeout %g is above the maximum, the limit was %g seconds]", asked, seconds))
	}
	result.isError = true
	switch {
	case r.aborted:
		parts = append(parts, "[It was stopped while it ran: side effects may have happened]", "Command aborted")
	case r.timedOut:
		parts = append(parts, fmt.Sprintf("Command timed out after %g seconds", seconds))
	case r.state == nil:
		parts = append(parts, "Command ended in an unknown way")
	case r.state.ExitCode() < 0:
		parts = append(parts, "Command ended by "+r.state.String())
	case r.state.ExitCode() > 0:
		parts = append(parts, fmt.Sprintf("Command exited with code %d", r.state.ExitCode()))
	default:
		result.isError = false
	}
	if len(parts) > 1 {
		parts[0] = strings.TrimRight(parts[0], "\n")
	}
	result.content = []Block{{Type: "text", Text: strings.Join(parts, "\n\n")}}
	result.details = bashDetails{r.truncation, r.fullOutput}
	return result, nil
}

// shellResult is how a command ended.
type shellResult struct {
	output            string // the end of what it printed, as plain text
	notes             []string
	aborted, timedOut bool             // one at most
	state             *os.ProcessState // nil if the shell could not be ended
	truncation        *truncation      // nil if output is all
	fullOutput        *string          // the file that has all
}

// runShell runs a command until its shell exits, ctx ends or timeout (0: none)
// is over, and returns within two seconds from then. Only runShell calls
// progress, which may be nil and must not block, with new output as plain text.
func runShell(ctx context.Context, e *toolEnv, command string, timeout time.Duration, progress func(string)) (*shellResult, error) {
	cmd, err := shellCommand(command)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("could not make a pipe for the command: %w", err)
	}
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = e.cwd, quiet(childEnv(e.dropEnv)), w, w
	g, err := startGroup(cmd)
	w.Close()
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("could not start the command: %w", err)
	}
	out := &output{fresh: make(chan struct{}, 1)}
	go out.drain(r)

	var over <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		over = timer.C
	}
	if progress == nil {
		progress = func(string) {}
	}
	res := &shellResult{}
	fresh, gap := out.fresh, (<-chan time.Time)(nil)
	for running := true; running; {
		select {
		case <-fresh:
			out.flush(progress)
			fresh, gap = nil, time.After(progressGap)
		case <-gap:
			fresh, gap = out.fresh, nil
		case <-g.exited:
			running = false
		case <-ctx.Done():
			res.aborted, running = true, false
		case <-over:
			res.timedOut, running = true, false
		}
	}
	polls := drainMax
	if res.aborted || res.timedOut {
		g.kill(killGrace)
		polls = drainQuiet
	}
	left := out.settle(g, polls)
	out.flush(progress)
	out.finish(res)
	switch {
	case g.alive():
		res.notes = append(res.notes, fmt.Sprintf("[A background process is still running, in process group %d. It is ended when zot exits; to end it now: kill -- -%[1]d]", g.pgid))
	case left:
		res.notes = append(res.notes, "[A background process that left the command's process group still holds the output]")
	}
	select {
	case <-g.exited:
		res.state = g.state
	default: // it cannot be killed
	}
	return res, nil
}

func shellCommand(command string) (*exec.Cmd, error) {
	for _, shell := range []string{"bash", "sh"} {
		if path, err := exec.LookPath(shell); err == nil {
			return exec.Command(path, "-c", command), nil
		}
	}
	if runtime.GOOS == "windows" {
		return exec.Command("cmd", "/C", command), nil
	}
	return nil, errors.New("there is neither bash nor sh in PATH")
}

// output collects what a command prints. drain alone writes to it.
type output struct {
	fresh chan struct{} // holds a token while there is output that flush has not seen
	seq   byte          // flush's place in an escape sequence

	mu      sync.Mutex
	tail    []byte // the end of the output: all, or at least tailKeep bytes
	total   int64  // bytes
	lines   int    // line ends
	pending []byte // what flush has not seen, its end
	skipped int    // bytes that flush will not see
	ended   bool   // nobody can print any more
	closed  bool   // the result is made, the rest is not for it

	file    *os.File // has all output, once that is more than a result holds
	fileErr error    // why it does not
}

// drain reads until nobody holds the other end of the pipe: neither the
// command nor what it left in the background.
func (o *output) drain(r *os.File) {
	defer r.Close()
	buf := make([]byte, 64<<10)
	for open := true; open; {
		n, err := r.Read(buf)
		o.save(buf[:n]) // first: the file must not be behind the result
		open = o.add(buf[:n], err != nil)
	}
	if o.file != nil {
		o.file.Close()
	}
	io.Copy(io.Discard, r)
}

// save puts new output into the file as soon as the result might not hold all
// (bytes that are not UTF-8 take three there).
func (o *output) save(b []byte) {
	if o.fileErr != nil || o.file == nil && o.total+int64(len(b)) <= maxBytes/3 && o.lines+bytes.Count(b, lf) <= maxLines {
		return
	}
	file, err := o.file, error(nil)
	if file == nil {
		if file, err = createSpill(); err == nil {
			_, err = file.Write(o.tail)
		}
	}
	if room := spillMax - o.total; err == nil {
		if _, err = file.Write(b[:min(int64(len(b)), room)]); err == nil && int64(len(b)) > room {
			err = fmt.Errorf("cut after %d MiB", spillMax>>20)
		}
	}
	o.mu.Lock()
	o.file, o.fileErr = file, err
	o.mu.Unlock()
}

// add reports whether more can be added.
func (o *output) add(b []byte, last bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended = last; o.closed {
		return false
	}
	o.total += int64(len(b))
	o.lines += bytes.Count(b, lf)
	if o.tail = append(o.tail, b...); len(o.tail) > 2*tailKeep {
		o.tail = o.tail[:copy(o.tail, o.tail[len(o.tail)-tailKeep:])]
	}
	o.pending = append(o.pending, b...)
	if n := len(o.pending) - progressKeep; n > 0 {
		o.pending = o.pending[:copy(o.pending, o.pending[n:])]
		o.skipped += n
	}
	select {
	case o.fresh <- struct{}{}:
	default:
	}
	return !last
}

// flush hands on what is new, or of very much the end, in whole characters.
func (o *output) flush(progress func(string)) {
	o.mu.Lock()
	b, skipped := bytes.Clone(o.pending), o.skipped
	if !o.ended {
		b = wholeRunes(b)
	}
	o.pending, o.skipped = o.pending[:copy(o.pending, o.pending[len(b):])], 0
	o.mu.Unlock()
	var text []byte
	if skipped > 0 {
		whole := dropPartial(b)
		text = fmt.Appendf(nil, "[... %d bytes skipped ...]\n", skipped+len(b)-len(whole))
		b, o.seq = whole, 0
	}
	if text = appendPlain(text, b, &o.seq); len(text) > 0 {
		progress(string(text))
	}
}

// settle waits, after the shell's exit, for what is still to come: until
// nobody can print any more, nothing has come for a while, or polls are used
// up. Polls are counted, not time: a machine that stood still loses no output.
// It reports whether somebody can print.
func (o *output) settle(g *group, polls int) bool {
	var seen int64
	for quiet := 0; ; quiet++ {
		o.mu.Lock()
		total, ended := o.total, o.ended
		o.mu.Unlock()
		if ended && !g.alive() {
			return false
		}
		if total != seen {
			seen, quiet = total, 0
		}
		if polls--; polls < 0 || quiet == drainQuiet {
			return !ended
		}
		time.Sleep(drainPoll)
	}
}

// finish closes the output. It puts its end, and what there is to say about
// the rest, into res.
func (o *output) finish(res *shellResult) {
	o.mu.Lock()
	o.closed = true // from now on nothing of o changes but ended and file
	file, fileErr := o.file, o.fileErr
	o.mu.Unlock()

	raw := o.tail
	cut := o.total > int64(len(raw))
	if cut {
		raw = dropPartial(raw)
	}
	text := string(appendPlain(nil, raw, new(byte)))
	shown, by := tailOf(text)
	res.output = shown
	if !cut && by == "" {
		if file != nil {
			os.Remove(file.Name())
		}
		return
	}

	lines, n := o.lines, strings.Count(shown, "\n")
	if !strings.HasSuffix(shown, "\n") {
		lines, n = lines+1, n+1
	}
	if by == "" {
		by = "bytes"
	}
	res.truncation = &truncation{true, by, lines, o.total, n, len(shown)}
	note := fmt.Sprintf("Showing lines %d-%d of %d.", lines-n+1, lines, lines)
	if n == 1 {
		note = fmt.Sprintf("Showing the last %d bytes of line %d of %[2]d.", len(shown), lines)
	}
	if file == nil {
		note += fmt.Sprintf(" The full output was not kept: %v", fileErr)
	} else {
		name := file.Name()
		res.fullOutput = &name
		nameSpill(name)
		if note += " Full output: " + name; fileErr != nil {
			note += fmt.Sprintf(" (%v)", fileErr)
		}
	}
	res.notes = append(res.notes, "["+note+"]")
}

// tailOf returns the last lines that fit into a result, and the limit that
// keeps out the rest: "lines", "bytes" or, if nothing is out, "". Of a last
// line that does not fit it returns the end.
func tailOf(text string) (tail, limit string) {
	start := len(text)
	for n := 0; start > 0; n++ {
		if n == maxLines {
			return text[start:], "lines"
		}
		line := strings.LastIndexByte(text[:start-1], '\n') + 1
		if len(text)-line > maxBytes {
			if n == 0 {
				start = len(text) - maxBytes
				for !utf8.RuneStart(text[start]) {
					start++
				}
			}
			return text[start:], "bytes"
		}
		start = line
	}
	return text, ""
}

// dropPartial takes the rest of a line, or at least of a character, off the
// front of a text whose beginning is missing.
func dropPartial(b []byte) []byte {
	if i := bytes.IndexByte(b, '\n'); i >= 0 && i+1 < len(b) {
		return b[i+1:]
	}
	for i := range min(len(b), utf8.UTFMax) {
		if utf8.RuneStart(b[i]) {
			return b[i:]
		}
	}
	return b
}

// appendPlain appends src to dst as plain text: valid UTF-8 without escape
// sequences, carriage returns and other control characters. seq is 0 or where
// src begins in an escape sequence, and is set to where it ends.
func appendPlain(dst, src []byte, seq *byte) []byte {
	for len(src) > 0 {
		r, n := rune(src[0]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRune(src)
		}
		src = src[n:]
		switch {
		case r == '\n':
			*seq = 0 // a stray escape hides the rest of its line at most
			dst = append(dst, '\n')
		case *seq != 0 || r == 0x1b:
			*seq = escape(*seq, r)
		case r == '\t' || !unicode.IsControl(r):
			dst = utf8.AppendRune(dst, r)
		}
	}
	return dst
}

// escape takes one character of an escape sequence (ECMA-48) and returns what
// state it leads to: 0 out of the sequence, ESC behind an ESC, '[' into a
// control sequence, ']' into a string, '\\' behind an ESC in a string.
func escape(state byte, r rune) byte {
	switch {
	case state == 0:
		return 0x1b
	case state == 0x1b && r == '[', state == '[' && r >= ' ' && r < '@':
		return '['
	case state == 0x1b && strings.ContainsRune("]PX^_", r):
		return ']'
	case state == 0x1b && r >= ' ' && r < '0': // as in ESC ( B
		return 0x1b
	case state == 0x1b, state == '[', r == 0x07, state == '\\' && r == '\\':
		return 0
	case r == 0x1b:
		return '\\'
	}
	return ']'
}

// spills are the files with full outputs.
var spills struct {
	sync.Mutex
	dir   string
	files map[string]bool // true: a result names it
}

// createSpill makes a file, mode 0600, in a directory of ours, mode 0700.
func createSpill() (*os.File, error) {
	spills.Lock()
	defer spills.Unlock()
	if spills.dir == "" {
		dir, err := os.MkdirTemp("", "zot-")
		if err != nil {
			return nil, err
		}
		spills.dir, spills.files = dir, map[string]bool{}
	}
	f, err := os.CreateTemp(spills.dir, "bash-*.log")
	if err != nil {
		return nil, err
	}
	spills.files[f.Name()] = false
	return f, nil
}

func nameSpill(name string) {
	spills.Lock()
	spills.files[name] = true
	spills.Unlock()
}

// cleanupSpill removes, at the end of the process, the files that no result
// names.
func cleanupSpill() {
	spills.Lock()
	defer spills.Unlock()
	for name, named := range spills.files {
		if !named {
			os.Remove(name)
		}
	}
	os.Remove(spills.dir) // fails while there are others in it
}
