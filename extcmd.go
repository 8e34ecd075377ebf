// zot ext: lists, checks, installs, switches and removes extensions. Rules kept
// here:
//
//   - A name never leads out of the extensions directory.
//   - An installation is there whole or not at all.
//   - doctor sees what the extension host sees: it starts the extensions as zot
//     does, watches, and ends them as zot does.
//   - What others wrote reaches the terminal without control characters.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
	"unicode"
)

// extVerb is a command of zot ext: how many words it takes, and the spellings
// of its one switch.
type extVerb struct {
	name, args, help string
	min, max         int
	flags            []string
	run              func(words []string, on bool) error
}

var extVerbs = []extVerb{
	{"list", "[--json]", "list installed extensions and their state", 0, 0, []string{"--json"}, extList},
	{"doctor", "[<dir>] [--json]", "start all extensions, or the one in a directory, and tell what is wrong", 0, 1, []string{"--json"}, extDoctor},
	{"install", "<path|git-url>", "copy or clone an extension into $ZOT_HOME/extensions", 1, 1, nil, extInstall},
	{"remove", "<name>", "delete an installed extension and its data", 1, 1, nil, extRemove},
	{"enable", "<name>", "switch an installed extension on", 1, 1, nil, func(words []string, _ bool) error { return extSwitch(words[0], true) }},
	{"disable", "<name>", "switch it off without removing it", 1, 1, nil, func(words []string, _ bool) error { return extSwitch(words[0], false) }},
	{"logs", "<name> [-f]", "print its log; -f goes on as it grows", 1, 1, []string{"-f", "--follow"}, extLogs},
}

// extMain is zot ext. It returns the exit code.
func extMain(args []string) int {
	if len(args) == 0 {
		extHelp(os.Stderr)
		return exitUsage
	}
	if slices.Contains([]string{"help", "--help", "-h"}, args[0]) {
		extHelp(os.Stdout)
		return exitDone
	}
	i := slices.IndexFunc(extVerbs, func(v extVerb) bool { return v.name == args[0] })
	if i < 0 {
		fmt.Fprintf(os.Stderr, "zot: unknown command %q: zot ext help lists them\n", args[0])
		return exitUsage
	}
	v := extVerbs[i]
	given := len(args) - 1
	words := slices.DeleteFunc(args[1:], func(a string) bool { return slices.Contains(v.flags, a) })
	isFlag := func(a string) bool { return strings.HasPrefix(a, "-") }
	if len(words) < v.min || len(words) > v.max || slices.ContainsFunc(words, isFlag) {
		fmt.Fprintf(os.Stderr, "usage: zot ext %s %s\n", v.name, v.args)
		return exitUsage
	}
	err := v.run(words, len(words) < given)
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, syscall.EPIPE):
		return exitNoPipe
	}
	fmt.Fprintln(os.Stderr, "zot: "+printable(err.Error()))
	return exitFailed
}

func extHelp(w io.Writer) {
	fmt.Fprint(w, "zot ext manages extensions.\n\n")
	for _, v := range extVerbs {
		fmt.Fprintf(w, "  zot ext %-24s %s\n", v.name+" "+v.args, v.help)
	}
	fmt.Fprint(w, "\nExit codes: 0 all is well, 1 it failed or doctor found a problem, 2 bad usage.\n")
}

// printable is a text as one line, without control and format characters.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp):
			return -1
		}
		return r
	}, s)
}

func printJSON(reports []*extReport) error {
	_, err := fmt.Println(printable(string(encode(map[string]any{"extensions": reports}))))
	return err
}

func newTable() *tabwriter.Writer { return tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0) }

func row(t *tabwriter.Writer, cells ...string) {
	for i, c := range cells {
		cells[i] = printable(c)
	}
	fmt.Fprintln(t, strings.Join(cells, "\t"))
}

// extReport is what list and doctor tell of an extension. Times are in
// milliseconds.
type extReport struct {
	Name        string `json:"name"`
	Version     string `json:"version"`
	State       string `json:"state"` // enabled, disabled, shadowed, broken, bundle; after a start ready, auto-ready, failed
	Scope       string `json:"scope"`
	Description string `json:"description"`
	Dir         string `json:"dir"`
	Log         string `json:"log"`
	ShadowedBy  string `json:"shadowed_by,omitempty"`
	Error       string `json:"error,omitempty"`

	// Of doctor.
	Commands   []string `json:"commands,omitempty"`
	Tools      []string `json:"tools,omitempty"`
	Events     []string `json:"events,omitempty"`
	Intercepts []string `json:"intercepts,omitempty"`
	HelloMS    float64  `json:"hello_ms,omitempty"` // from the start
	ReadyMS    float64  `json:"ready_ms,omitempty"` // from the start
	EndMS      float64  `json:"end_ms,omitempty"`   // from shutdown until no process was left
	Ack        bool     `json:"shutdown_ack,omitempty"`
	Exit       string   `json:"exit,omitempty"`
	Problems   []string `json:"problems,omitempty"`
	Notes      []string `json:"notes,omitempty"` // no faults
}

func newReport(e *extension) *extReport {
	r := &extReport{Name: e.Name, Version: e.Version, State: "enabled", Scope: e.scope, Description: e.Description,
		Dir: e.dir, Log: e.log, ShadowedBy: e.shadow}
	switch {
	case e.err != nil:
		r.State, r.Error = "broken", e.err.Error()
	case e.shadow != "":
		r.State = "shadowed"
	case e.Enabled != nil && !*e.Enabled:
		r.State = "disabled"
	case e.Exec == "":
		r.State = "bundle"
	}
	return r
}

func (r *extReport) problem(format string, values ...any) { add(&r.Problems, format, values...) }
func (r *extReport) note(format string, values ...any)    { add(&r.Notes, format, values...) }

// add keeps the first twenty findings; the log has them all.
func add(list *[]string, format string, values ...any) {
	switch n := len(*list); {
	case n < 20:
		*list = append(*list, fmt.Sprintf(format, values...))
	case n == 20:
		*list = append(*list, "and more: see the log")
	}
}

func extList(_ []string, asJSON bool) error {
	cwd, err := os.Getwd()
	if err != nil {
		return err
	}
	reports := []*extReport{}
	t := newTable()
	row(t, "NAME", "VERSION", "SCOPE", "STATE", "DESCRIPTION")
	for _, e := range findExtensions(zotHome(), cwd, nil, false) {
		r := newReport(e)
		reports = append(reports, r)
		state, text := r.State, cmp.Or(r.Error, r.ShadowedBy, r.Description)
		switch state {
		case "broken":
			state = "broken:"
		case "shadowed":
			state = "shadowed by"
		}
		row(t, r.Name, r.Version, r.Scope, state, text)
	}
	switch {
	case asJSON:
		return printJSON(reports)
	case len(reports) == 0:
		fmt.Println("No extensions are installed. zot ext install <path|git-url> installs one.")
		return nil
	}
	return t.Flush()
}

// doctor watches extensions. It is the host of an agent that gets no work.
type doctor struct {
	ext     *extHost
	mu      sync.Mutex // guards what the reports contain; taken after ext's
	reports map[*extension]*extReport
}

func (*doctor) event(*Event)          {}
func (*doctor) flush(context.Context) {}
func (*doctor) behind() bool          { return false }

func milliseconds(since time.Time) float64 { return float64(time.Since(since).Microseconds()) / 1000 }

// see takes what the extension host observes.
func (d *doctor) see(e *extension, frame object, problem string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.reports[e]
	switch typ := frame.text("type"); {
	case problem != "":
		r.problem("%s", problem)
	case typ == "hello" && r.HelloMS == 0:
		r.HelloMS = milliseconds(e.since)
	case typ == "ready" && r.HelloMS > 0 && r.ReadyMS == 0:
		r.ReadyMS = milliseconds(e.since)
	case typ == "shutdown_ack":
		r.Ack = true
	case typ == "notify":
		r.note("it notified (%s): %s", frame.text("level"), frame.text("message"))
	}
}

// extDoctor starts all extensions, or the one in a directory, ends them, and
// tells what it saw.
func extDoctor(dirs []string, asJSON bool) error {
	s, err := newSetup(&options{exts: dirs, noExt: len(dirs) > 0, noSkill: true})
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() { // ends with the process
		sig := <-signals
		killAllGroups(250 * time.Millisecond)
		os.Exit(128 + int(sig.(syscall.Signal)))
	}()
	d := &doctor{reports: map[*extension]*extReport{}}
	reports := []*extReport{}
	for _, e := range s.exts {
		d.reports[e] = newReport(e)
		reports = append(reports, d.reports[e])
	}
	s.observe = d.see
	a, err := s.agent(context.Background(), d)
	if err != nil {
		return err
	}
	d.ext = a.ext
	d.ext.wait(context.Background())
	time.Sleep(readyQuiet) // for what comes right behind ready
	d.ext.commit()
	offered := d.ext.allTools()
	for _, e := range s.exts {
		d.examine(e, offered)
	}
	d.end(s.exts)
	killAllGroups(time.Second)

	d.mu.Lock()
	defer d.mu.Unlock()
	if asJSON {
		err = printJSON(reports)
	} else {
		err = printReports(reports)
	}
	if ill := slices.DeleteFunc(reports, func(r *extReport) bool { return r.Problems == nil }); err == nil && len(ill) > 0 {
		err = fmt.Errorf("extensions with problems: %d of %d", len(ill), len(s.exts))
	}
	return err
}

// examine reports how the start went and what was registered.
func (d *doctor) examine(e *extension, offered []*tool) {
	d.ext.mu.Lock()
	commands, tools := slices.Clone(e.commands), slices.Clone(e.tools)
	events, guards := slices.Sorted(maps.Keys(e.observes)), slices.Sorted(maps.Keys(e.guards))
	d.ext.mu.Unlock()
	winners := d.ext.allCommands()

	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.reports[e]
	r.Events, r.Intercepts = events, guards
	for _, c := range commands {
		if slices.Contains(winners, c) { // otherwise the host told why not
			r.Commands = append(r.Commands, "/"+c.name)
		}
	}
	for _, t := range tools {
		if !slices.Contains(offered, t.offered) {
			continue // the host told why, or it comes too late
		}
		r.Tools = append(r.Tools, t.name)
		if name := t.offered.name; name != t.name {
			r.note("models know the tool %q as %s: a name has letters, digits, _ and -, a letter first, 64 at most", t.name, name)
		}
	}
	for _, path := range e.Skills {
		if _, err := os.Stat(filepath.Join(e.dir, path)); err != nil {
			r.problem(`"skills" in extension.json: %v`, err)
		}
	}
	switch {
	case r.State == "broken":
		r.problem("%s", r.Error)
	case r.State != "enabled":
	case e.err != nil:
		r.State, r.Error = "failed", e.err.Error()
		r.problem("%s", r.Error)
		r.note("%s", startAdvice(e.err))
	case r.ReadyMS > 0:
		r.State = "ready"
	default:
		r.State = "auto-ready"
		r.note(`it did not say that it is ready, so each start waits up to %v for silence: send {"type":"ready"} behind the last registration`, readyWait)
	}
}

// startAdvice is what mostly helps against a failed start.
func startAdvice(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return `the program that "exec" names must be executable: chmod +x`
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound):
		return `build the program that "exec" names or correct that; of a script, the interpreter in the first line may be missing`
	case errors.Is(err, syscall.ENOEXEC):
		return "the program is not for this system; a script needs a first line like #!/usr/bin/env bash"
	}
	return fmt.Sprintf(`within %v the first line on stdout must be {"type":"hello","name":...}; flush it: most languages hold back what they write to a pipe`, helloWait)
}

// end stops the extensions and reports how they took it.
func (d *doctor) end(exts []*extension) {
	var all sync.WaitGroup
	var running []*extReport
	begin := time.Now()
	for _, e := range exts {
		switch r := d.reports[e]; {
		case e.group == nil || e.err != nil:
		case e.group.alive():
			running = append(running, r)
			all.Go(func() { d.watchEnd(e, r, begin) })
		default:
			d.mu.Lock()
			r.Exit = exitText(e.group.state)
			r.problem("it ended by itself (%s): an extension runs until it gets shutdown or the end of its stdin", r.Exit)
			d.mu.Unlock()
		}
	}
	d.ext.stop()
	all.Wait()
	procs.Lock()
	strays := len(orphans(procs.groups))
	procs.Unlock()
	if strays > 0 && len(running) == 1 { // of several, whose they are is unknown
		d.mu.Lock()
		running[0].problem("%d of its processes left its session and still run: end them at shutdown", strays)
		d.mu.Unlock()
	}
}

// watchEnd follows an extension to its end.
func (d *doctor) watchEnd(e *extension, r *extReport, begin time.Time) {
	const limit = shutdownWait + 2*time.Second // the host gives up earlier
	alone := time.Duration(0)                  // when its first process had ended
	for e.group.alive() && time.Since(begin) < limit {
		if alone == 0 && isClosed(e.group.exited) {
			alone = time.Since(begin)
		}
		time.Sleep(time.Millisecond)
	}
	took, endMS := time.Since(begin), milliseconds(begin)
	select {
	case <-e.gone:
	case <-time.After(time.Second): // it can not be killed
	}
	e.host.mu.Lock()
	held := e.held
	e.host.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	r.EndMS = endMS
	if isClosed(e.group.exited) {
		r.Exit = exitText(e.group.state)
	}
	switch {
	case took >= limit:
		r.problem("it could not be killed")
	case took >= shutdownWait && alone > 0 && alone < shutdownWait:
		r.problem("it ended, but other processes that it had started were killed %v after shutdown: end them, too", shutdownWait)
	case took >= shutdownWait:
		r.problem("it was killed %v after shutdown (%s): end when shutdown comes or stdin ends", shutdownWait, r.Exit)
	case !r.Ack:
		r.note(`it ended without answering shutdown: send {"type":"shutdown_ack"} first`)
	}
	if held {
		r.problem("a process that outlives it holds its stdout: give what it starts in the background another")
	}
}

func printReports(reports []*extReport) error {
	if len(reports) == 0 {
		fmt.Println("No extensions are installed. zot ext doctor <dir> checks one that is not.")
	}
	for _, r := range reports {
		t := newTable()
		line := func(label string, texts ...string) {
			text := strings.Join(texts, ", ")
			for s := range strings.SplitSeq(text, "\n") {
				if text != "" {
					row(t, label, s)
				}
				label = ""
			}
		}
		row(t, r.Name+": "+r.State)
		line("  version", r.Version)
		line("  directory", r.Dir+" ("+r.Scope+")")
		line("  shadowed by", r.ShadowedBy)
		line("  log", r.Log)
		line("  commands", r.Commands...)
		line("  tools", r.Tools...)
		line("  events", r.Events...)
		line("  intercepts", r.Intercepts...)
		if r.HelloMS > 0 {
			line("  hello", fmt.Sprintf("after %.0f ms", r.HelloMS))
		}
		if r.ReadyMS > 0 {
			line("  ready", fmt.Sprintf("after %.0f ms", r.ReadyMS))
		}
		if r.EndMS > 0 {
			line("  end", fmt.Sprintf("%.0f ms after shutdown (%s)", r.EndMS, r.Exit))
		}
		for _, s := range r.Problems {
			line("  PROBLEM", s)
		}
		for _, s := range r.Notes {
			line("  note", s)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// installedDir finds an extension in $ZOT_HOME/extensions by its name or, as
// one without a manifest must be removable too, by that of its directory.
func installedDir(name string) (string, error) {
	home := zotHome()
	for _, e := range findExtensions(home, "", nil, false) {
		if e.Name == name && e.scope == "user" {
			return e.dir, nil
		}
	}
	dir := filepath.Join(home, "extensions", name)
	if info, err := os.Lstat(dir); err == nil && !info.Mode().IsRegular() && extensionName().MatchString(name) {
		return dir, nil
	}
	return "", fmt.Errorf("there is no extension %q in %s", name, filepath.Join(home, "extensions"))
}

// What git may get: https, ssh, git and file URLs, and host:path.
var (
	gitURL  = lazyRegexp(`^(https|ssh|git|file)://[^-]`)
	scpLike = lazyRegexp(`^([A-Za-z0-9][A-Za-z0-9._-]*@)?[A-Za-z0-9][A-Za-z0-9.-]+:([^:/]|/[^/])`)
)

func extInstall(words []string, _ bool) error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	source := words[0]
	info, err := os.Stat(source)
	local := err == nil
	switch {
	case local && !info.IsDir():
		return fmt.Errorf("%s is a file: an extension is a directory with an extension.json", source)
	case !local && !gitURL().MatchString(source) && !scpLike().MatchString(source):
		return fmt.Errorf("neither a directory nor an https, ssh, git or file URL: %w", err)
	}
	home := filepath.Join(zotHome(), "extensions")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(home, ".install-") // on the same file system, so that a rename completes it
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	if !local {
		clone := filepath.Join(temp, "clone")
		if err := gitClone(ctx, source, clone); err != nil {
			return err
		}
		source = clone
	}
	e := &extension{dir: source}
	if err := e.readManifest(); err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), filepath.Join(temp, "clone"), "the repository"))
	}
	if dir, err := installedDir(e.Name); err == nil {
		return fmt.Errorf("%s is installed already, in %s: zot ext remove %s removes it with its data", e.Name, dir, e.Name)
	}
	tree, target := filepath.Join(temp, "tree"), filepath.Join(home, e.Name)
	if err := copyTree(ctx, source, tree); err != nil {
		return fmt.Errorf("nothing was installed: %w", err)
	}
	if err := os.Rename(tree, target); err != nil {
		return err
	}
	_, err = fmt.Println(printable("installed " + e.Name + " in " + target + "; zot ext doctor checks it"))
	return err
}

// gitClone runs git, which tells its errors itself and can ask nothing: it has
// no terminal.
func gitClone(ctx context.Context, url, dir string) error {
	cmd := exec.Command("git", "clone", "--depth", "1", "--", url, dir)
	cmd.Env = append(childEnv(nil), "GIT_TERMINAL_PROMPT=0")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	g, err := startGroup(cmd)
	if err != nil {
		return fmt.Errorf("git clone: %w", err)
	}
	select {
	case <-g.exited:
	case <-ctx.Done():
		g.kill(time.Second)
		return fmt.Errorf("git clone: %w", context.Cause(ctx))
	}
	if g.state == nil || !g.state.Success() {
		return fmt.Errorf("git clone failed (%s)", exitText(g.state))
	}
	return nil
}

// copyTree copies a directory without what belongs to git. Modes are kept,
// links stay links.
func copyTree(ctx context.Context, from, to string) error {
	src, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	dst, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer dst.Close()
	return fs.WalkDir(src.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || strings.HasPrefix(entry.Name(), ".install-")): // nor a copy of the copy
			return fs.SkipDir
		case entry.Name() == ".git": // in worktrees a file
			return nil
		}
		return copyEntry(src, dst, name, entry)
	})
}

func copyEntry(src, dst *os.Root, name string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	switch mode := info.Mode(); mode.Type() {
	case 0:
		data, err := src.ReadFile(name)
		if err == nil {
			err = dst.WriteFile(name, data, 0o600)
		}
		if err == nil {
			err = dst.Chmod(name, mode.Perm())
		}
		return err
	case fs.ModeDir:
		if name != "." {
			err = dst.Mkdir(name, 0o700)
		}
		if err == nil {
			err = dst.Chmod(name, mode.Perm()|0o700) // it must be filled now and removed one day
		}
		return err
	case fs.ModeSymlink:
		target, err := src.Readlink(name)
		if err != nil {
			return err
		}
		if _, err := src.Stat(name); err != nil { // for one, it leaves the root
			return fmt.Errorf("the link %s to %s must lead to something in the extension, by a relative path: %w", name, target, err)
		}
		return dst.Symlink(target, name)
	default:
		return fmt.Errorf("%s is no file, directory or link (mode %v)", name, mode)
	}
}

// extRemove deletes an extension; of a link, only the link.
func extRemove(words []string, _ bool) error {
	dir, err := installedDir(words[0])
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	_, err = fmt.Println(printable("removed " + dir))
	return err
}

// extSwitch sets "enabled" in the manifest of an installed extension.
func extSwitch(name string, on bool) error {
	dir, err := installedDir(name)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "extension.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	changed, err := setEnabled(data, on)
	if err == nil && !bytes.Equal(changed, data) {
		err = replaceFile(path, changed)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	_, err = fmt.Println(name, map[bool]string{true: "is enabled", false: "is disabled"}[on])
	return err
}

// setEnabled changes the value of "enabled" in the text of a manifest, or adds
// it behind the last member when it must be false. All else stays as it is.
func setEnabled(data []byte, on bool) ([]byte, error) {
	if _, err := parseObject(data); err != nil {
		return nil, err
	}
	var out []byte
	done, end := 0, bytes.IndexByte(data, '{')+1 // what is in out; the end of the last member
	space, comma := data[end:skipSpace(data, end)], ""
	d := json.NewDecoder(bytes.NewReader(data)) // nothing fails below: it was parsed above
	d.Token()
	for d.More() {
		key, _ := d.Token()
		var value json.RawMessage
		d.Decode(&value)
		end, comma = int(d.InputOffset()), ","
		if strings.EqualFold(key.(string), "enabled") { // as encoding/json compares
			out = strconv.AppendBool(append(out, data[done:end-len(value)]...), on)
			done = end
		}
	}
	if done == 0 && !on {
		out = slices.Concat(data[:end], []byte(comma), space, []byte(`"enabled": false`))
		done = end
	}
	return append(out, data[done:]...), nil
}

// extLogs prints a log. With follow it goes on with what comes, also when the
// file is cut or replaced.
func extLogs(words []string, follow bool) error {
	name := words[0]
	if !extensionName().MatchString(name) {
		return fmt.Errorf("%q is no name of an extension", name)
	}
	path := filepath.Join(zotHome(), "logs", "ext-"+name+".log")
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%s has no log, which is made when it is started: %w", name, err)
	}
	if follow {
		go watchReader(os.Stdout, func() { os.Exit(exitNoPipe) })
	}
	for {
		if _, err := io.Copy(os.Stdout, f); err != nil || !follow {
			return err
		}
		time.Sleep(100 * time.Millisecond)
		at, _ := f.Seek(0, io.SeekCurrent)
		old, _ := f.Stat()
		now, err := os.Stat(path)
		if err != nil || os.SameFile(old, now) && now.Size() >= at {
			continue
		}
		if _, err := io.Copy(os.Stdout, f); err != nil { // what the old one got last
			return err
		}
		if next, err := os.Open(path); err == nil {
			f.Close()
			f = next
		}
	}
}
