// The bash tool. Rules kept here:
//
//   - The end of the output matters most and is kept; all of it goes to a file
//     when a result does not hold it. Memory is constant, whatever a command
//     prints, and a command never waits for our reader.
//   - The command ends with its shell. What that left in the background may
//     hold the pipe as long as it likes: it is drained to nowhere, told in the
//     result and ended with us.
//   - Whatever ends a command, its output so far is returned.
//   - Nothing can ask: no input, no terminal, no editor, no pager.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
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

	killGrace = time.Second // with killWait and settleKilled less than toolGrace

	settleTick   = 10 * time.Millisecond
	settleQuiet  = 25  // ticks without output that end the wait for more
	settleMax    = 100 // ticks
	settleKilled = 15  // ticks, after a kill
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
		if !slices.Contains([]string{"true", "false", ":", "cat"}, os.Getenv(name)) {
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
	if a.err != nil {
		return result, nil
	}
	asked := seconds
	if seconds <= 0 {
		seconds = bashTimeout
	}
	seconds = min(seconds, bashTimeoutMax)
	r, err := runShell(ctx, e, command, max(1, time.Duration(seconds*float64(time.Second))), false, func(_, text string) { progress(text) })
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

// appendFields appends the fields that a bashExecution message and the response
// to a bash command share.
func (r *shellResult) appendFields(dst []byte) []byte {
	dst = appendJSON(dst, `"output":?`, r.output)
	if r.state != nil && r.state.ExitCode() >= 0 && !r.aborted {
		dst = appendJSON(dst, `,"exitCode":?`, r.state.ExitCode())
	}
	dst = appendJSON(dst, `,"cancelled":?,"truncated":?`, r.aborted, r.truncation != nil)
	if r.truncation != nil {
		dst = appendJSON(dst, `,"fullOutputPath":?`, encode(r.fullOutput))
	}
	return dst
}

// message is a user's own command as the conversation holds it; a private one
// is not for the model.
func (r *shellResult) message(command string, private bool) (*Message, error) {
	m := r.appendFields(appendJSON(nil, `{"role":"bashExecution","command":?,`, command))
	if private {
		m = append(m, `,"excludeFromContext":true`...)
	}
	return parseAgentMessage(appendJSON(m, `,"timestamp":?}`, time.Now().UnixMilli()))
}

// runShell runs a command until its shell exits, ctx ends or timeout (0: none)
// is over, and returns within two seconds from then. It calls progress, which
// may block until ctx ends, with new output as plain text. Output is in the order
// in which it was written; with split progress is also told by which channel,
// and what comes by both at the same moment may change places.
func runShell(ctx context.Context, e *toolEnv, command string, timeout time.Duration, split bool, progress func(channel, text string)) (*shellResult, error) {
	shell, err := findShell()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(shell, "-c", command)
	cmd.Dir, cmd.Env = e.cwd, quiet(childEnv(e.dropEnv))
	var reads, writes []*os.File
	pipes := 1
	if split {
		pipes = 2
	}
	for range pipes {
		r, w, perr := os.Pipe()
		if perr != nil {
			closeFiles(slices.Concat(reads, writes))
			return nil, fmt.Errorf("could not make a pipe for the command: %w", perr)
		}
		reads, writes = append(reads, r), append(writes, w)
	}
	cmd.Stdout, cmd.Stderr = writes[0], writes[len(writes)-1]
	g, err := startGroup(cmd)
	closeFiles(writes)
	if err != nil {
		closeFiles(reads)
		return nil, fmt.Errorf("could not start the command: %w", err)
	}
	chunks, done := make(chan chunk), make(chan struct{})
	defer close(done)
	var readers sync.WaitGroup
	for i, f := range reads {
		readers.Go(func() { drain(f, channels[i], chunks, done) })
	}
	go func() { readers.Wait(); close(chunks) }() // ends with the last reader
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}

	res := &shellResult{}
	out := &output{chunks: chunks, progress: progress, spillDir: e.spillDir}
	out.collect(g.exited, ctx.Done())
	ticks := settleMax
	select {
	case <-g.exited:
	default:
		res.timedOut = ctx.Err() == context.DeadlineExceeded
		res.aborted = !res.timedOut
		killed := make(chan struct{})
		go func() { g.kill(killGrace); close(killed) }() // in its own goroutine: dying may need to print
		out.collect(killed, nil)
		ticks = settleKilled
	}
	out.settle(g, ticks)
	out.finish(res)
	switch {
	case g.alive():
		res.notes = append(res.notes, fmt.Sprintf("[A background process is still running, in process group %d. It is ended when zot exits; to end it now: kill -- -%[1]d]", g.pgid))
	case out.chunks != nil:
		res.notes = append(res.notes, "[A background process that left the command's process group still holds the output]")
	}
	select {
	case <-g.exited:
		res.state = g.state
	default: // it cannot be killed
	}
	return res, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

func findShell() (path string, err error) {
	for _, name := range []string{"bash", "sh"} {
		if path, err = exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("there is neither bash nor sh: %w", err)
}

// chunk is a piece of output. It is valid until the next of its channel is
// received.
type chunk struct {
	channel string
	data    []byte
}

var channels = [2]string{"stdout", "stderr"}

// drain reads until nobody holds the other end of the pipe, neither the command
// nor what it left in the background. Once done is closed, output goes nowhere.
func drain(r *os.File, channel string, chunks chan<- chunk, done <-chan struct{}) {
	defer r.Close()
	var buffers [2][64 << 10]byte // one is filled while the receiver has the other
	for i := 0; ; i ^= 1 {
		n, err := r.Read(buffers[i][:])
		if err != nil {
			return
		}
		select {
		case chunks <- chunk{channel, buffers[i][:n]}:
		case <-done:
			io.Copy(io.Discard, r)
			return
		}
	}
}

// output is what a command printed. runShell's goroutine owns it.
type output struct {
	chunks <-chan chunk // nil when nobody can print any more
	tail   []byte       // the end: all, or at least tailKeep bytes
	total  int64        // bytes
	lines  int          // line ends

	spillDir string
	file     *os.File // has what is no longer in tail; at the end all, if a result does not
	saved    int      // bytes in file
	fileErr  error    // why not all is in file

	progress func(channel, text string)
	channel  string           // of what is fresh
	fresh    int64            // bytes that progress has not got, the last ones
	due      <-chan time.Time // when it gets them; nil when there are none
}

// collect takes output until one of the two channels, which may be nil, is
// closed.
func (o *output) collect(stop, stopToo <-chan struct{}) {
	for {
		select {
		case c, open := <-o.chunks:
			o.add(c, open)
		case <-o.due:
			o.flush()
		case <-stop:
			return
		case <-stopToo:
			return
		}
	}
}

// settle takes, after the shell's end, what is still to come: until nobody can
// print any more, nothing has come for a while, or ticks are used up. Ticks are
// counted, not time: a machine that stood still loses no output.
func (o *output) settle(g *group, ticks int) {
	tick := time.Tick(settleTick)
	for quiet := 0; ticks > 0 && quiet < settleQuiet && (o.chunks != nil || g.alive()); {
		select {
		case c, open := <-o.chunks:
			o.add(c, open)
			quiet = 0
		case <-tick:
			quiet++
			ticks--
		}
	}
}

func (o *output) add(c chunk, open bool) {
	if !open {
		o.chunks = nil
		return
	}
	if o.fresh > 0 && c.channel != o.channel {
		o.flush()
	}
	b := c.data
	o.channel = c.channel
	o.total += int64(len(b))
	o.lines += bytes.Count(b, lf)
	if o.tail = append(o.tail, b...); len(o.tail) >= 2*tailKeep {
		old := o.tail[:len(o.tail)-tailKeep]
		o.save(old)
		o.tail = o.tail[:copy(o.tail, o.tail[len(old):])]
	}
	if o.fresh += int64(len(b)); o.due == nil {
		o.due = time.After(progressGap)
	}
}

// save appends to the file of the full output.
func (o *output) save(b []byte) {
	if o.file == nil && o.fileErr == nil {
		o.file, o.fileErr = createSpill(o.spillDir)
	}
	if o.fileErr != nil {
		return
	}
	n := min(len(b), spillMax-o.saved)
	o.saved += n
	if _, o.fileErr = o.file.Write(b[:n]); o.fileErr == nil && n < len(b) {
		o.fileErr = fmt.Errorf("cut after %d MiB", spillMax>>20)
	}
}

// flush hands on what is new, or of very much the end. What may be the
// beginning of a character or an escape sequence waits for its end.
func (o *output) flush() {
	o.due = nil
	b, skipped := o.tail[len(o.tail)-int(min(o.fresh, progressKeep)):], ""
	if o.fresh > progressKeep {
		b = dropPartial(b)
		skipped = fmt.Sprintf("[... %d bytes skipped ...]\n", o.fresh-int64(len(b)))
	}
	o.fresh = 0
	if o.chunks != nil {
		whole := wholeText(b)
		o.fresh = int64(len(b) - len(whole))
		b = whole
	}
	if text := skipped + string(plainText(b)); text != "" {
		o.progress(o.channel, text)
	}
}

// finish puts the end of the output, and what there is to say about the rest,
// into res.
func (o *output) finish(res *shellResult) {
	o.flush()
	raw, cut := o.tail, o.total > int64(len(o.tail))
	if cut {
		raw = dropPartial(raw)
	}
	shown, by := lastLines(plainText(raw))
	res.output = string(shown)
	if by == "" && !cut {
		return
	}
	if by == "" {
		by = "bytes"
	}
	lines, n := o.lines, bytes.Count(shown, lf)
	if !bytes.HasSuffix(shown, lf) {
		lines, n = lines+1, n+1
	}
	res.truncation = &truncation{true, by, lines, o.total, n, len(shown)}
	note := fmt.Sprintf("Showing lines %d-%d of %d.", lines-n+1, lines, lines)
	if n == 1 {
		note = fmt.Sprintf("Showing the last %d bytes of line %d of %[2]d.", len(shown), lines)
	}
	if o.save(o.tail); o.file == nil {
		note += fmt.Sprintf(" The full output was not kept: %v", o.fileErr)
	} else {
		o.file.Close()
		name := o.file.Name()
		unnamedSpills.Delete(name)
		res.fullOutput = &name
		if note += " Full output: " + name; o.fileErr != nil {
			note += fmt.Sprintf(" (%v)", o.fileErr)
		}
	}
	res.notes = append(res.notes, "["+note+"]")
}

// lastLines returns the last lines that fit into a result, or the end of the
// last line if that alone does not fit, and the limit that keeps out the rest:
// "lines", "bytes" or, if nothing is out, "".
func lastLines(text []byte) (tail []byte, limit string) {
	start := len(text)
	for n := 0; n < maxLines && start > 0; n++ {
		start = bytes.LastIndexByte(text[:start-1], '\n') + 1
	}
	switch {
	case len(text)-start > maxBytes:
		return dropPartial(text[len(text)-maxBytes:]), "bytes"
	case start > 0:
		return text[start:], "lines"
	}
	return text, ""
}

// dropPartial takes the rest of a line, or at least of a character, off the
// front of a text whose beginning is missing.
func dropPartial(b []byte) []byte {
	if i := bytes.IndexByte(b, '\n'); i >= 0 && i+1 < len(b) {
		return b[i+1:]
	}
	for len(b) > 0 && !utf8.RuneStart(b[0]) {
		b = b[1:]
	}
	return b
}

// escape matches an escape sequence (ECMA-48), complete or as far as it goes:
// a control sequence, a string, or anything short. None is longer than a line.
// openEscape matches one that may go on.
var (
	escape     = regexp.MustCompile(`\x1b(?:\[[ -?]*[@-~]?|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\|\x1b$)?|[ -/]*[0-~]?)`)
	openEscape = regexp.MustCompile(`(?:` + escape.String() + `)$`)
)

// plainText makes valid UTF-8 without escape sequences, carriage returns and
// other control characters.
func plainText(b []byte) []byte {
	return bytes.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, escape.ReplaceAll(b, nil))
}

// wholeText takes what may go on, a character or an escape sequence, off the
// end of a text.
func wholeText(b []byte) []byte {
	b = wholeRunes(b)
	if at := openEscape.FindIndex(b); at != nil {
		return b[:at[0]]
	}
	return b
}

// unnamedSpills holds the names of the files of full outputs that no result
// names yet.
var unnamedSpills sync.Map

// createSpill makes a file, mode 0600, in a directory that is only the user's;
// "" is the one for temporary files.
func createSpill(dir string) (*os.File, error) {
	if dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	f, err := os.CreateTemp(dir, "zot-bash-*.log")
	if err == nil {
		unnamedSpills.Store(f.Name(), nil)
	}
	return f, err
}

// cleanupSpill removes, at the end of the process, the files that no result
// names.
func cleanupSpill() {
	unnamedSpills.Range(func(name, _ any) bool {
		os.Remove(name.(string))
		return true
	})
}
