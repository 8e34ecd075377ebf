// zot is a coding agent behind pipes: one binary that speaks JSON lines to the
// program that started it, calls a model, and runs the tools it asks for.
//
// This file is the way in: the modes (rpc, print, JSON, terminal) and how the
// process ends. Rules kept here:
//
//   - stdout carries the mode's output and nothing else.
//   - What is wrong with a start is told on stderr, with exit code 2.
//   - The process ends through exit or stop, which leave no child behind.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const helpHead = `zot runs a coding agent, in a terminal or behind pipes.

  zot -p "fix the failing test"        answer one prompt as text
  zot --json "fix the failing test"    ... as events, one JSON object a line
  zot rpc                              serve a client: commands on stdin, events on stdout
  zot ext help                         install, check and remove extensions
`

const helpTail = `
To look around without a key:

  zot -p --provider script "run: ls"

Keys come from --api-key, the provider's environment variable (for example
ANTHROPIC_API_KEY) or $ZOT_HOME/auth.json. Defaults for provider, model and
reasoning come from $ZOT_HOME/config.json.
`

// Exit codes.
const (
	exitDone    = 0
	exitFailed  = 1 // the run failed, or was not answered
	exitUsage   = 2 // flags or configuration
	exitRefused = 3 // the token was missing or wrong
	exitNoPipe  = 141
)

func main() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE, sigFileSize) // a write that fails is an error, not the end
	debug.SetGCPercent(50)                                               // small matters more here than the last per cent of speed
	if len(os.Args) > 1 && os.Args[1] == "ext" {
		os.Exit(extMain(os.Args[2:]))
	}
	o, err := parseArgs(os.Args[1:])
	if err != nil {
		fail(err)
	}
	switch {
	case o.help:
		printHelp(os.Stdout)
	case o.version:
		fmt.Println("zot", version())
	case o.listModels:
		all, err := loadCatalog(zotHome())
		if err != nil {
			fail(err)
		}
		listModels(os.Stdout, all)
	default:
		token := os.Getenv("ZOTCORE_RPC_TOKEN")
		os.Unsetenv("ZOTCORE_RPC_TOKEN") // no child gets it
		run(o, token)
	}
}

// fail ends a start that can not go on.
func fail(err error) {
	fmt.Fprintln(os.Stderr, "zot: "+err.Error())
	os.Exit(exitUsage)
}

// warn tells what was not as it should be, and does not prevent the start.
func warn(warnings []string) {
	for _, w := range warnings {
		fmt.Fprintln(os.Stderr, "zot: "+w)
	}
}

// listModels prints the catalog; * marks a provider's default model.
func listModels(w io.Writer, all catalog) {
	out := bufio.NewWriter(w)
	defer out.Flush()
	for _, p := range all {
		for _, m := range p.models() {
			levels := slices.DeleteFunc(slices.Clone(reasoningLevels), func(l string) bool { _, ok := m.Levels[l]; return !ok })
			mark := " "
			if m.ID == p.Default {
				mark = "*"
			}
			fmt.Fprintf(out, "%-12s %s %-44s context %8d  output %7d  %s\n", p.Name, mark, m.ID, m.ContextWindow, m.MaxOutput, strings.Join(zotLevels(levels), ","))
		}
		if p.AnyModel && p.API != "script" {
			fmt.Fprintf(out, "%-12s   any model id\n", p.Name)
		}
	}
}

// process is what must be ended before the program may.
type process struct {
	agent  *Agent
	out    *writer
	leave  func() // gives the terminal back
	cancel context.CancelCauseFunc
	once   sync.Once
}

var errShutdown = errors.New("zot was told to stop")

// run starts the mode and does not return.
func run(o *options, token string) {
	if o.mode == "" && (o.stdin || !isTerminal(os.Stdin) || !isTerminal(os.Stdout) || os.Getenv("TERM") == "dumb") {
		if o.mode = "print"; o.prompt == "" {
			fail(errors.New(`this is no terminal to talk in: zot -p "prompt" answers a prompt, zot rpc serves a client, zot --help tells more`))
		}
	}
	s, err := newSetup(o)
	if err == nil && o.mode == "" && s.approve == nil {
		err = s.askAboutProject(os.Stdin, os.Stdout)
	}
	if err != nil {
		fail(err)
	}
	stdout, err := claimStdout()
	if err != nil {
		fail(fmt.Errorf("stdout can not be used: %w", err))
	}
	signals := make(chan os.Signal, 1) // from before the first child is started
	signal.Notify(signals, endSignals...)
	ctx, cancel := context.WithCancelCause(context.Background())
	p := &process{cancel: cancel, leave: func() {}}
	p.out = newWriter(stdout, func() { p.stop(exitNoPipe) })
	view, atomic := &zotView{writer: p.out, opened: o.mode == "json"}, newAtomicView(p.out)
	print := &printHost{writer: p.out, errs: newWriter(os.Stderr, func() {})}
	var h host = print
	var terminal *tui
	switch o.mode {
	case "rpc", "json":
		h = view
	case "atomic", "atomic-json":
		h = atomic
	case "":
		if terminal, err = newTUI(s, os.Stdin, stdout); err != nil {
			fail(fmt.Errorf("the terminal can not be used: %w", err))
		}
		h, p.leave = terminal.inbox, terminal.close
	}
	if p.agent, err = s.agent(ctx, h); err != nil {
		p.leave()
		fail(err)
	}
	go func() { p.stop(128 + int((<-signals).(syscall.Signal))) }()
	go watchReader(stdout, func() { p.stop(exitNoPipe) })
	if terminal != nil {
		terminal.run(p.agent)
		p.exit(exitDone)
	}
	warn(s.warnings)
	switch o.mode {
	case "rpc":
		server := &zotServer{agent: p.agent, view: view, setup: s, token: token}
		p.exit(p.serve(server.run, func() {}))
	case "json":
		p.exit(p.answer(s, func() bool { return view.failed }))
	case "atomic":
		server := newAtomicServer(p.agent, atomic, s, token)
		p.exit(p.serve(server.run, server.finish))
	case "atomic-json":
		atomic.frame(true, s.session.appendHeader)
		p.exit(p.answer(s, func() bool { return atomic.failed }))
	default:
		p.exit(p.answer(s, print.finish))
	}
}

// serve serves a client until its input ends, finishes what it left, and
// returns the exit code.
func (p *process) serve(run func(io.Reader) (refused bool), finish func()) int {
	if run(os.Stdin) {
		return exitRefused
	}
	p.agent.nobodyAnswers("--no-yolo asks before each tool call, and the client has closed its end")
	p.agent.ext.endOfInput()
	finish()
	return exitDone
}

// answer runs the prompt of the command line to its end, and returns the exit
// code. failed is asked when it has ended.
func (p *process) answer(s *setup, failed func() bool) int {
	prompt, err := withStdin(s.options, os.Stdin)
	if err == nil && strings.TrimSpace(prompt) == "" {
		err = errors.New("there is no prompt: give one as an argument or on standard input")
	}
	if err == nil {
		prompt, err = expand(prompt, *s.skills.Load(), s.templates)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "zot: "+err.Error())
		return exitUsage
	}
	p.agent.ext.endOfInput() // nobody is there to answer an extension
	p.agent.submit(nil, p.agent.prompt(prompt, nil), func(bool) {})
	p.agent.start()
	p.agent.worker.Wait()
	if failed() {
		return exitFailed
	}
	return exitDone
}

// printHost keeps the last answer; everything else that a person should know
// goes to stderr.
type printHost struct {
	*writer
	errs   *writer // stderr: event is called under a lock, so it must not block
	text   string
	asked  bool // the model was asked
	silent bool // ... and has not answered in this turn
	failed bool
}

func (h *printHost) event(e *Event) {
	switch e.Type {
	case "turn_start":
		h.asked, h.silent = true, true
	case "assistant_message":
		h.silent = false
		h.text = cmp.Or(e.Message.text(), h.text)
	case "ext_display":
		h.text = e.Text
	case "error":
		h.failed = true
		h.note("zot: %s", e.Text)
	case "notice":
		h.note("%s: %s", cmp.Or(e.Extension, "zot"), e.Text)
	case "ext_insert", "ext_panel_open":
		h.note("%s: this mode has no input line and no panels", e.Extension)
	case "retry":
		h.note("zot: %s; trying again in %v", e.Text, e.Delay.Round(time.Second))
	case "turn_end":
		if e.Stop == "length" {
			h.note("zot: the answer was cut off at the model's output limit")
		}
		if h.silent { // kept back by a guard: what was said before is no answer
			h.text = ""
		}
	}
}

func (h *printHost) note(format string, values ...any) {
	h.errs.frame(true, func(dst []byte) []byte { return fmt.Appendf(dst, format, values...) })
}

// finish prints the answer and reports whether there was none.
func (h *printHost) finish() (failed bool) {
	if h.text != "" {
		text := strings.TrimSuffix(h.text, "\n")
		if f, ok := h.out.(*os.File); ok && isTerminal(f) { // which must not obey the model
			text = visible(text)
		}
		h.frame(true, func(dst []byte) []byte { return append(dst, text...) })
	} else if h.asked && !h.failed {
		h.failed = true
		h.note("zot: the model gave no answer")
	}
	h.errs.close(time.Second)
	return h.failed
}

// stdinPatience is how long an open pipe on stdin may stay silent before the
// prompt is run without it.
const stdinPatience = 500 * time.Millisecond

// withStdin is the prompt with what was piped in.
func withStdin(o *options, in *os.File) (string, error) {
	info, err := in.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice != 0 {
		return o.prompt, nil
	}
	type input struct {
		data []byte
		err  error
	}
	first, all := make(chan struct{}), make(chan input, 1)
	go func() { // ends with the input, or with the process
		r := bufio.NewReader(in)
		r.Peek(1)
		close(first)
		data, err := io.ReadAll(r)
		all <- input{data, err}
	}()
	if !o.stdin && !info.Mode().IsRegular() && o.prompt != "" {
		select {
		case <-first:
		case <-time.After(stdinPatience):
			warn([]string{"standard input is open but silent: going on without it (--stdin waits for it)"})
			return o.prompt, nil
		}
	}
	got := <-all
	if got.err != nil {
		return "", fmt.Errorf("reading standard input: %w", got.err)
	}
	return strings.TrimSpace(o.prompt + "\n\n" + strings.ToValidUTF8(string(got.data), "\ufffd")), nil
}

// endSignals end the process, and what it started with it. SIGQUIT is not among
// them: by it the runtime tells what all goroutines do.
var endSignals = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}

// exit ends the process after its work: accepted jobs finish, and what was
// written reaches a slow reader.
func (p *process) exit(code int) {
	p.agent.worker.Wait()
	p.agent.stopSummary()
	p.agent.ext.work.Wait()
	p.agent.ext.stop()
	killAllGroups(time.Second)
	if err := p.out.close(30 * time.Second); err != nil {
		code = exitNoPipe
	}
	cleanupSpill()
	p.once.Do(func() { os.Exit(code) })
	select {} // stop was quicker
}

// stop ends the process now: the running job is aborted and told so, and within
// 800 ms nothing of ours is left.
func (p *process) stop(code int) {
	p.once.Do(func() {
		p.cancel(errShutdown)
		left, killed, idle := make(chan struct{}), make(chan struct{}), make(chan struct{})
		go func() { p.leave(); close(left) }()
		go func() { killAllGroups(250 * time.Millisecond); close(killed) }()
		go func() { p.agent.worker.Wait(); close(idle) }()
		limit, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		for _, done := range []chan struct{}{left, idle} {
			select {
			case <-done:
			case <-limit.Done():
			}
		}
		<-killed
		p.out.close(150 * time.Millisecond)
		cleanupSpill()
		os.Exit(code)
	})
}

// version is the module's version, else the commit that it was built from.
var version = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return strings.TrimPrefix(v, "v")
	}
	commit, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = "-" + s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	return "devel" + commit + dirty
})
