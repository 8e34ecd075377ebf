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
	"syscall"
	"text/tabwriter"
	"time"
	"unicode"
)

// extVerbs are the commands of zot ext. Each takes one word at most, as args
// says, and one switch.
var extVerbs = []struct {
	name, args, flag, help string
	run                    func(word string, on bool) error
}{
	{"list", "", "[--json]", "list installed extensions and their state", extList},
	{"doctor", "[<dir|name>]", "[--json]", "start all extensions, or one, and tell what is wrong", extDoctor},
	{"install", "<path|git-url>", "", "copy or clone an extension into $ZOT_HOME/extensions", extInstall},
	{"remove", "<name>", "", "delete an installed extension and its data", extRemove},
	{"enable", "<name>", "", "switch an installed extension on", func(name string, _ bool) error { return extSwitch(name, true) }},
	{"disable", "<name>", "", "switch it off without removing it", func(name string, _ bool) error { return extSwitch(name, false) }},
	{"logs", "<name>", "[-f]", "print its log; -f goes on as it grows", extLogs},
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
	for _, v := range extVerbs {
		if v.name != args[0] {
			continue
		}
		var words []string
		on, bad, plain := false, false, false
		for _, a := range args[1:] {
			switch {
			case plain || !strings.HasPrefix(a, "-"):
				words = append(words, a)
			case a == "--": // the rest are words
				plain = true
			default:
				on, bad = true, bad || a != strings.Trim(v.flag, "[]")
			}
		}
		needs, takes := strings.HasPrefix(v.args, "<"), v.args != ""
		if bad || len(words) > 1 || len(words) == 0 && needs || len(words) == 1 && (!takes || words[0] == "") {
			fmt.Fprintf(os.Stderr, "usage: zot ext %s\n", strings.Join(strings.Fields(v.name+" "+v.args+" "+v.flag), " "))
			return exitUsage
		}
		err := v.run(strings.Join(words, ""), on)
		switch {
		case err == nil:
			return exitDone
		case errors.Is(err, syscall.EPIPE):
			return exitNoPipe
		}
		fmt.Fprintln(os.Stderr, "zot: "+printable(err.Error()))
		return exitFailed
	}
	fmt.Fprintf(os.Stderr, "zot: unknown command %q: zot ext help lists them\n", args[0])
	return exitUsage
}

func extHelp(w io.Writer) {
	fmt.Fprint(w, "zot ext manages extensions.\n\n")
	for _, v := range extVerbs {
		fmt.Fprintf(w, "  zot ext %-30s %s\n", strings.Join(strings.Fields(v.name+" "+v.args+" "+v.flag), " "), v.help)
	}
	fmt.Fprint(w, "\nBehind -- a word may begin with a hyphen. Exit codes: 0 all is well, 1 it failed or\ndoctor found a problem, 2 bad usage.\n")
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

// row writes a line of a table.
func row(t *tabwriter.Writer, cells ...string) {
	for i, c := range cells {
		cells[i] = printable(c)
	}
	fmt.Fprintln(t, strings.Join(cells, "\t"))
}

// extReport is what list and doctor tell of an extension.
type extReport struct {
	Name        string `json:"name"`
	Version     string `json:"version"`
	State       string `json:"state"` // see extension; after a start also ready, auto-ready, failed
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
	HelloMS    int64    `json:"hello_ms,omitempty"` // from the start
	ReadyMS    int64    `json:"ready_ms,omitempty"` // from the start
	Exit       string   `json:"exit,omitempty"`
	Ack        bool     `json:"shutdown_ack,omitempty"`
	Problems   []string `json:"problems,omitempty"`
	Notes      []string `json:"notes,omitempty"` // no faults
}

func newReport(e *extension) *extReport {
	r := &extReport{Name: e.Name, Version: e.Version, State: e.state, Scope: e.scope, Description: e.Description,
		Dir: e.dir, Log: e.log, ShadowedBy: e.shadow}
	if e.err != nil {
		r.Error = e.err.Error()
	}
	return r
}

// printReports prints reports as JSON or as a table.
func printReports(reports []*extReport, asJSON bool, table func(t *tabwriter.Writer, r *extReport)) error {
	if asJSON {
		_, err := fmt.Println(printable(string(encode(map[string]any{"extensions": reports}))))
		return err
	}
	if len(reports) == 0 {
		_, err := fmt.Println("No extensions are installed. zot ext install <path|git-url> installs one, zot ext doctor <dir> checks one that is not.")
		return err
	}
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, r := range reports {
		table(t, r)
	}
	return t.Flush()
}

// ourExtensions lists the extensions that a start in the working directory finds.
func ourExtensions() ([]*extension, error) {
	s := &setup{options: new(options), home: zotHome()}
	err := readJSONFile(filepath.Join(s.home, "config.json"), &s.config)
	if err == nil {
		s.cwd, err = os.Getwd()
	}
	return s.places().find(), err
}

func extList(_ string, asJSON bool) error {
	exts, err := ourExtensions()
	if err != nil {
		return err
	}
	reports := []*extReport{}
	for _, e := range exts {
		reports = append(reports, newReport(e))
	}
	return printReports(reports, asJSON, func(t *tabwriter.Writer, r *extReport) {
		if r == reports[0] {
			row(t, "NAME", "VERSION", "SCOPE", "STATE", "DESCRIPTION")
		}
		state := map[string]string{"broken": "broken:", "shadowed": "shadowed by"}[r.State]
		row(t, r.Name, r.Version, r.Scope, cmp.Or(state, r.State), cmp.Or(r.Error, r.ShadowedBy, r.Description))
	})
}

// printReport is a report of doctor.
func printReport(t *tabwriter.Writer, r *extReport) {
	list := func(names []string) string { return strings.Join(names, ", ") }
	after := func(ms int64) string {
		if ms == 0 {
			return ""
		}
		return fmt.Sprintf("after %d ms", ms)
	}
	lines := [][2]string{{"version", r.Version}, {"directory", r.Dir + " (" + r.Scope + ")"}, {"shadowed by", r.ShadowedBy}, {"log", r.Log},
		{"commands", list(r.Commands)}, {"tools", list(r.Tools)}, {"events", list(r.Events)}, {"intercepts", list(r.Intercepts)},
		{"hello", after(r.HelloMS)}, {"ready", after(r.ReadyMS)}, {"ended", r.Exit}}
	for _, text := range r.Problems {
		lines = append(lines, [2]string{"PROBLEM", text})
	}
	for _, text := range r.Notes {
		lines = append(lines, [2]string{"note", text})
	}
	row(t, r.Name+": "+r.State)
	for _, line := range lines {
		label, text := line[0], line[1]
		for s := range strings.SplitSeq(text, "\n") {
			if text != "" {
				row(t, "  "+label, s)
			}
			label = ""
		}
	}
}

// doctor is the host of an agent that gets no work: it hears what extensions tell
// the user, by their names. The agent's lock guards it.
type doctor map[string]*findings

func (d doctor) event(e *Event) {
	if e.Type == "notice" && e.Manifest == "" && e.Extension != "" {
		if d[e.Extension] == nil {
			d[e.Extension] = new(findings)
		}
		d[e.Extension].add(fmt.Sprintf("it notified (%s): %s", e.Level, e.Text))
	}
}

func (doctor) flush(context.Context) {}
func (doctor) behind() bool          { return false }

// extDoctor starts all extensions, or the one in a directory or of a name, ends
// them, and tells what it saw.
func extDoctor(which string, asJSON bool) error {
	o := &options{noSkill: true}
	if which != "" {
		exts, err := ourExtensions()
		if err != nil {
			return err
		}
		dir := which
		for _, e := range exts {
			if e.Name == which && e.state != "shadowed" && e.state != "not approved" && !(&extension{dir: which}).has("extension.json") {
				dir = e.dir
			}
		}
		o.exts, o.noExt = []string{dir}, true
	}
	s, err := newSetup(o)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, endSignals...)
	go func() { // ends with the process
		sig := <-signals
		killAllGroups(250 * time.Millisecond)
		os.Exit(128 + int(sig.(syscall.Signal)))
	}()
	reports, ill := []*extReport{}, 0
	for _, e := range s.exts {
		r := newReport(e)
		for _, path := range e.Skills {
			if _, err := os.Stat(filepath.Join(e.dir, path)); err != nil {
				r.Problems = append(r.Problems, `"skills" in extension.json: `+err.Error())
			}
		}
		reports = append(reports, r)
	}
	d := doctor{}
	a, err := s.agent(context.Background(), d)
	if err != nil {
		return err
	}
	a.ext.wait(context.Background())
	time.Sleep(readyQuiet) // for what comes right behind ready
	offers := a.ext.commit()
	a.ext.stop()
	procs.Lock()
	strays := len(orphans(procs.groups))
	procs.Unlock()
	killAllGroups(time.Second)

	a.mu.Lock()
	a.ext.mu.Lock()
	for i, r := range reports {
		r.Notes = d[r.Name].all()
		if r.fill(s.exts[i], offers); r.Problems != nil {
			ill++
		}
	}
	a.ext.mu.Unlock()
	a.mu.Unlock()
	err = printReports(reports, asJSON, printReport)
	if err == nil && strays > 0 { // of several extensions, whose they are is unknown
		err = fmt.Errorf("%d processes left their extension's session and still ran: end them at shutdown", strays)
	}
	if err == nil && ill > 0 {
		err = fmt.Errorf("extensions with problems: %d of %d", ill, len(s.exts))
	}
	return err
}

// fill adds what the extension host, which is locked, knows of an extension.
func (r *extReport) fill(e *extension, offers []*registration) {
	for _, o := range offers {
		switch {
		case o.ext != e:
		case o.tool == nil:
			r.Commands = append(r.Commands, "/"+o.name)
		case o.tool.name != o.name:
			r.Tools = append(r.Tools, o.name+" (for models "+o.tool.name+")")
		default:
			r.Tools = append(r.Tools, o.name)
		}
	}
	r.Events = slices.Sorted(maps.Keys(e.subscribed["events"]))
	r.Intercepts = slices.Sorted(maps.Keys(e.subscribed["intercept"]))
	r.HelloMS = max(0, e.helloAt.Sub(e.startedAt).Milliseconds())
	r.ReadyMS = max(0, e.readyAt.Sub(e.startedAt).Milliseconds())
	r.Ack, r.Problems = e.acked, append(r.Problems, e.problems.all()...)
	if e.group != nil && isClosed(e.group.exited) {
		r.Exit = exitText(e.group.state)
	}
	if r.State == "enabled" {
		switch {
		case e.err != nil:
			r.State, r.Error = "failed", e.err.Error()
		case !e.readyAt.IsZero():
			r.State = "ready"
		default:
			r.State = "auto-ready"
			r.Notes = append(r.Notes, fmt.Sprintf(`it did not say that it is ready, so each start waits up to %v for silence: send {"type":"ready"} behind the last registration`, readyWait))
		}
	}
	if r.Error != "" {
		r.Problems = append(r.Problems, r.Error)
	}
	if !r.Ack && r.Exit != "" && r.Problems == nil {
		r.Notes = append(r.Notes, `it ended without answering shutdown: send {"type":"shutdown_ack"} first`)
	}
}

// all lists the findings, with a hint at those that were not kept.
func (f *findings) all() []string {
	if f == nil {
		return nil
	}
	if n := f.count - len(f.last); n > 0 {
		return append([]string{fmt.Sprintf("%d more: see the log", n)}, f.last...)
	}
	return f.last
}

// installedDir finds an extension in $ZOT_HOME/extensions by its name or, as
// one without a manifest must be removable too, by that of its directory. also
// tells of the one that the project has by this name, which is left alone.
func installedDir(name string) (dir, also string, err error) {
	exts, err := ourExtensions()
	if err != nil {
		return "", "", err
	}
	broken := true
	for _, e := range exts {
		switch {
		case e.Name != name:
		case e.scope == "project":
			also = "; the project's own, in " + e.dir + ", stays as it is"
		case dir == "" || broken && e.err == nil: // the one that runs, not its broken twin
			dir, broken = e.dir, e.err != nil
		}
	}
	home := filepath.Join(zotHome(), "extensions")
	if dir == "" && extensionName().MatchString(name) {
		dir = filepath.Join(home, name)
		if info, err := os.Lstat(dir); err != nil || info.Mode().IsRegular() {
			dir = ""
		}
	}
	if dir == "" {
		err = fmt.Errorf("there is no extension %q in %s%s", name, home, also)
	}
	return dir, also, err
}

// What git may get: https, ssh, git and file URLs, and host:path.
var (
	gitURL  = lazyRegexp(`^(https|ssh|git|file)://[^-]`)
	scpLike = lazyRegexp(`^([A-Za-z0-9][A-Za-z0-9._-]*@)?[A-Za-z0-9][A-Za-z0-9.-]+:([^:/]|/[^/])`)
)

func extInstall(source string, _ bool) error {
	ctx, cancel := signal.NotifyContext(context.Background(), endSignals...)
	defer cancel()
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
	if dir, _, err := installedDir(e.Name); err == nil {
		return fmt.Errorf("%s is installed already, in %s: zot ext remove %s removes it with its data", e.Name, dir, e.Name)
	}
	tree, target := filepath.Join(temp, "tree"), filepath.Join(home, e.Name)
	if err := copyTree(ctx, source, tree); err != nil {
		return fmt.Errorf("nothing was installed: %w", err)
	}
	if err := os.Rename(tree, target); err != nil {
		return err
	}
	if _, err = fmt.Println(printable("installed " + e.Name + " in " + target + "; zot ext doctor checks it")); err != nil {
		return err
	}
	e.dir = target
	if _, err := exec.LookPath(e.program()); err != nil && e.Exec != "" {
		warn([]string{printable(fmt.Sprintf("its exec %s cannot be run yet (%v)%s", e.Exec, errors.Unwrap(err), e.buildHint(source, local)))})
	}
	return nil
}

// buildHint says how to make the program of an installed extension in Go: from
// where it was written, as it may need what is around it there.
func (e *extension) buildHint(source string, local bool) string {
	if !local {
		source = e.dir
	}
	if files, _ := filepath.Glob(filepath.Join(source, "*.go")); files == nil {
		return ""
	}
	return fmt.Sprintf("; make it: go build -C %q -o %q .", source, e.program())
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
	root, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
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
		return copyEntry(ctx, root, name, entry, filepath.Join(to, name))
	})
}

func copyEntry(ctx context.Context, root *os.Root, name string, entry fs.DirEntry, to string) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	switch mode := info.Mode(); mode.Type() {
	case 0:
		in, err := root.Open(name)
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		defer context.AfterFunc(ctx, func() { in.Close() })() // ends the copy
		_, err = io.Copy(struct{ io.Writer }{out}, in)        // in pieces: the kernel takes 2 GiB at once
		return cmp.Or(context.Cause(ctx), err, out.Chmod(mode.Perm()), out.Close())
	case fs.ModeDir:
		return cmp.Or(os.Mkdir(to, 0o700), os.Chmod(to, mode.Perm()|0o700)) // it must be filled now and removed one day
	case fs.ModeSymlink:
		target, err := root.Readlink(name)
		if err != nil {
			return err
		}
		if _, err := root.Stat(name); err != nil { // for one, it leaves the root
			return fmt.Errorf("the link %s to %s must lead to something in the extension, by a relative path: %w", name, target, err)
		}
		return os.Symlink(target, to)
	default:
		return fmt.Errorf("%s is no file, directory or link (mode %v)", name, mode)
	}
}

// extRemove deletes an extension; of a link, only the link.
func extRemove(name string, _ bool) error {
	dir, also, err := installedDir(name)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	_, err = fmt.Println(printable("removed " + dir + also))
	return err
}

// extSwitch sets "enabled" in the manifest of an installed extension.
func extSwitch(name string, on bool) error {
	dir, also, err := installedDir(name)
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
	_, err = fmt.Println(printable(name + map[bool]string{true: " is enabled", false: " is disabled"}[on] + also))
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
func extLogs(name string, follow bool) error {
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
	for seen := int64(0); ; {
		n, err := io.Copy(os.Stdout, f)
		if err != nil || !follow {
			return err
		}
		seen += n
		time.Sleep(100 * time.Millisecond)
		old, _ := f.Stat()
		now, err := os.Stat(path)
		if err != nil || os.SameFile(old, now) && now.Size() >= seen {
			continue
		}
		if _, err := io.Copy(os.Stdout, f); err != nil { // what the old one got last
			return err
		}
		if next, err := os.Open(path); err == nil {
			f.Close()
			f, seen = next, 0
		}
	}
}
