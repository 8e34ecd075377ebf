// zot is a coding agent behind pipes: one binary that speaks JSON lines to the
// program that started it, calls a model, and runs the tools it asks for.
//
// This file is the way in: the flags, the modes (rpc, print, JSON), what they
// share, and how the process ends. Rules kept here:
//
//   - stdout carries the mode's output and nothing else.
//   - What is wrong with a start is one line on stderr and exit code 2; nothing
//     is replaced by a guess.
//   - The process ends through exit, which leaves no child behind.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Exit codes.
const (
	exitDone    = 0
	exitFailed  = 1 // the run failed, or was not answered
	exitUsage   = 2 // flags or configuration
	exitRefused = 3 // the token was missing or wrong
	exitNoPipe  = 141
)

// options are the command line.
type options struct {
	mode                      string // "rpc", "print", "json", "atomic", "atomic-json" or "": the terminal host
	provider, model           string
	apiKey, baseURL           string
	reasoning                 string
	cwd                       string
	systemPrompt              string
	appendPrompt              []string
	maxSteps                  int
	noTools                   bool
	tools                     []string
	noContextFiles            bool
	noSkill, withSkills       bool
	skillPaths, templatePaths []string
	noTemplates               bool
	excludeTools              []string
	sessionRef, sessionID     string
	sessionDir, sessionName   string
	noSession, resume, again  bool
	noYolo, yolo              bool
	confirmTimeout            time.Duration
	exts                      []string
	noExt, noThemes           bool
	approve                   *bool // use what the project brought along
	noAutoCompact             bool
	stdin                     bool
	listModels, help, version bool
	prompt                    string
}

// flag is one entry of the command line and of the help text.
type flag struct {
	name, short string
	value       string // name of the value in the help text; "" for a switch
	help        string
	to          any // where it goes: *bool, *string, *[]string or func(string) error
}

type flagGroup struct {
	title string
	flags []flag
}

// flagGroups is the command line, as it is read and as it is helped with.
func (o *options) flagGroups() []flagGroup {
	mode := func(name string) func(string) error {
		return func(string) error { return o.setMode(name) }
	}
	approve := func(yes bool) func(string) error {
		return func(string) error { o.approve = &yes; return nil }
	}
	return []flagGroup{
		{"Modes", []flag{
			{"print", "p", "", "answer one prompt: the text on stdout", mode("print")},
			{"json", "", "", "answer one prompt: the events on stdout, one JSON object a line", mode("json")},
			{"rpc", "", "", "the same as `zot rpc`", mode("rpc")},
			{"mode", "", "MODE", "rpc: serve a client of the Atomic protocol; json: its events for one prompt", o.setAtomic},
			{"list-models", "", "", "list every known model", &o.listModels},
			{"help", "h", "", "this text", &o.help},
			{"version", "v", "", "the version", &o.version},
		}},
		{"Model", []flag{
			{"provider", "", "NAME", "who answers; `script` needs no key and no network", &o.provider},
			{"model", "", "ID", "which model", &o.model},
			{"api-key", "", "KEY", "the key; other users can see it here, so better use the environment or auth.json", &o.apiKey},
			{"base-url", "", "URL", "another address of the provider's API", &o.baseURL},
			{"reasoning", "", "LEVEL", "off, minimum, low, medium, high, xhigh or max", o.setReasoning},
		}},
		{"Session", []flag{
			{"continue", "c", "", "go on with the newest session of this directory", &o.again},
			{"resume", "r", "", "choose a session to go on with", &o.resume},
			{"session", "", "FILE", "go on with this session: its file, its id or the beginning of it", &o.sessionRef},
			{"session-id", "", "ID", "the session with exactly this id, made if it is not there", &o.sessionID},
			{"session-dir", "", "DIR", "where sessions are kept (default: under $ZOT_HOME/sessions)", &o.sessionDir},
			{"name", "n", "NAME", "name the session", &o.sessionName},
			{"no-session", "", "", "keep nothing of the conversation", &o.noSession},
		}},
		{"Prompt", []flag{
			{"system-prompt", "", "TEXT", "replace the system prompt (also: $ZOT_HOME/SYSTEM.md)", &o.systemPrompt},
			{"append-system-prompt", "", "TEXT", "add to the system prompt; repeatable", &o.appendPrompt},
			{"no-context-files", "", "", "leave out AGENTS.md and CLAUDE.md", &o.noContextFiles},
			{"no-skill", "", "", "leave out all skills", &o.noSkill},
			{"skill", "", "PATH", "also load the skills there; repeatable", &o.skillPaths},
			{"prompt-template", "", "PATH", "also load the prompt templates there; repeatable", &o.templatePaths},
			{"no-prompt-templates", "", "", "leave out all prompt templates but those named", &o.noTemplates},
			{"with-skills", "", "", "also load the skills under $ZOT_HOME and the home directory", &o.withSkills},
			{"stdin", "", "", "with -p and --json: wait for piped input, however late it comes", &o.stdin},
		}},
		{"Work", []flag{
			{"cwd", "", "DIR", "the working directory", &o.cwd},
			{"tools", "", "LIST", "only these tools, separated by commas", list(&o.tools)},
			{"exclude-tools", "", "LIST", "not these tools", list(&o.excludeTools)},
			{"no-tools", "", "", "no tools", &o.noTools},
			{"max-steps", "", "N", "at most so many model calls a prompt (default 50)", o.setSteps},
			{"no-auto-compact", "", "", "never compact the conversation unasked", &o.noAutoCompact},
			{"no-yolo", "", "", "ask the client before each tool call; with -p and --json: refuse it", &o.noYolo},
			{"yolo", "", "", "never ask: overrides --no-yolo", &o.yolo},
			{"confirm-timeout", "", "TIME", "how long a client may take to allow a call (default 5m)", o.setConfirmTimeout},
		}},
		{"Extensions", []flag{
			{"ext", "e", "DIR", "load the extension in this directory, for this run; repeatable", &o.exts},
			{"no-ext", "", "", "load no installed extensions", &o.noExt},
			{"no-approve", "", "", "leave out the extensions in the project's .zot/extensions", approve(false)},
			{"approve", "", "", "load them, whatever config.json says", approve(true)},
			{"no-themes", "", "", "in the terminal: the plain colours, no theme", &o.noThemes},
		}},
	}
}

// set takes the flag's value; a switch has none.
func (f flag) set(v string) error {
	switch to := f.to.(type) {
	case *bool:
		*to = true
	case *string:
		*to = v
	case *[]string:
		*to = append(*to, v)
	case func(string) error:
		return to(v)
	}
	return nil
}

// aliases are other spellings that programs pass.
var aliases = map[string]string{"no-skills": "no-skill", "with-skill": "with-skills", "extension": "ext", "no-extensions": "no-ext", "thinking": "reasoning"}

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

func (o *options) setMode(mode string) error {
	if o.mode != "" && o.mode != mode {
		return fmt.Errorf("--%s and --%s exclude each other", o.mode, mode)
	}
	o.mode = mode
	return nil
}

func (o *options) setReasoning(v string) (err error) {
	o.reasoning, err = parseReasoning(v)
	return err
}

func (o *options) setSteps(v string) error {
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		return fmt.Errorf("%q is not a number of steps", v)
	}
	o.maxSteps = n
	return nil
}

func (o *options) setConfirmTimeout(v string) (err error) {
	if n, nerr := strconv.Atoi(v); nerr == nil {
		v = fmt.Sprintf("%ds", n)
	}
	if o.confirmTimeout, err = time.ParseDuration(v); err == nil && o.confirmTimeout <= 0 {
		err = fmt.Errorf("%q is not a time", v)
	}
	return err
}

// list reads words that are separated by commas.
func list(to *[]string) func(string) error {
	return func(v string) error {
		for name := range strings.SplitSeq(v, ",") {
			if name = strings.TrimSpace(name); name != "" {
				*to = append(*to, name)
			}
		}
		if len(*to) == 0 {
			return errors.New("no tool is named: use --no-tools for none")
		}
		return nil
	}
}

func (o *options) setAtomic(v string) error {
	mode, ok := map[string]string{"rpc": "atomic", "json": "atomic-json", "text": "print"}[v]
	if !ok {
		return fmt.Errorf("%q is not rpc, json or text", v)
	}
	return o.setMode(mode)
}

// parseArgs reads the command line. Flags and words may be mixed; the words are
// the prompt.
func parseArgs(args []string) (*options, error) {
	o := &options{maxSteps: 50, confirmTimeout: 5 * time.Minute}
	var words []string
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if arg == "--" {
			words = append(words, args...)
			break
		}
		if arg == "-" || !strings.HasPrefix(arg, "-") {
			words = append(words, arg)
			continue
		}
		name, value, hasValue := strings.Cut(arg, "=")
		f, err := o.findFlag(name)
		if err != nil {
			return nil, err
		}
		switch {
		case f.value == "" && hasValue:
			return nil, fmt.Errorf("--%s takes no value", f.name)
		case f.value != "" && !hasValue:
			if len(args) == 0 {
				return nil, fmt.Errorf("--%s needs a value: --%s %s", f.name, f.name, f.value)
			}
			value, args = args[0], args[1:]
		}
		if err := f.set(value); err != nil {
			return nil, fmt.Errorf("--%s: %w", f.name, err)
		}
	}
	if (o.mode == "" || o.mode == "rpc") && len(words) > 0 && words[0] == "rpc" {
		o.mode, words = "rpc", words[1:]
	}
	if (o.mode == "rpc" || o.mode == "atomic") && len(words) > 0 {
		return nil, fmt.Errorf("zot rpc takes no prompt, but got %q: prompts come in as commands on stdin", words[0])
	}
	o.prompt = strings.Join(words, " ")
	if o.mode == "" && len(words) == 1 && !strings.Contains(words[0], " ") {
		for _, word := range []string{"rpc", "ext", "help", "version", "list-models"} {
			if distance(words[0], word) <= len(word)/3 {
				return nil, fmt.Errorf("%q is no mode: see zot --help; as a prompt it needs -p", words[0])
			}
		}
	}
	return o, nil
}

// findFlag looks a flag up. The error names the nearest one that exists.
func (o *options) findFlag(arg string) (flag, error) {
	name := strings.TrimLeft(arg, "-")
	name = cmp.Or(aliases[name], name)
	long := strings.HasPrefix(arg, "--")
	nearest, best := "", min(4, len(name)/2+1) // the longer, the more slips
	for _, g := range o.flagGroups() {
		for _, f := range g.flags {
			if long && f.name == name || !long && f.short == name {
				return f, nil
			}
			if d := distance(name, f.name); d < best && len(name) > 1 {
				nearest, best = f.name, d
			}
		}
	}
	if nearest != "" {
		return flag{}, fmt.Errorf("unknown flag %s: did you mean --%s?", arg, nearest)
	}
	return flag{}, fmt.Errorf("unknown flag %s: zot --help lists them", arg)
}

// distance is how many characters must be put in, left out or changed to make
// a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for i := range row {
		row[i] = i
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for k := range len(b) {
			change := diagonal
			if a[i] != b[k] {
				change++
			}
			diagonal = row[k+1]
			row[k+1] = min(change, row[k]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

func printHelp(w io.Writer) {
	fmt.Fprint(w, helpHead)
	for _, g := range new(options).flagGroups() {
		fmt.Fprintf(w, "\n%s:\n", g.title)
		for _, f := range g.flags {
			name := "--" + f.name
			if f.short != "" {
				name = "-" + f.short + ", " + name
			}
			fmt.Fprintf(w, "  %-30s %s\n", strings.TrimSpace(name+" "+f.value), f.help)
		}
	}
	fmt.Fprint(w, helpTail)
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

// config is $ZOT_HOME/config.json. Nothing rewrites it.
type config struct {
	Provider    string   `json:"provider"`
	Model       string   `json:"model"`
	Reasoning   string   `json:"reasoning"`
	Timeouts    timeouts `json:"timeouts"`
	ToolEnvDrop []string `json:"tool_env_drop"`
	ProjectExts *bool    `json:"project_extensions"` // false: as with --no-approve
}

// atomic reports whether the Atomic protocol is spoken.
func (o *options) atomic() bool { return strings.HasPrefix(o.mode, "atomic") }

// keeps reports whether the conversation is kept in a session.
func (o *options) keeps() bool {
	asked := o.again || o.resume || o.sessionRef != "" || o.sessionID != "" || o.sessionDir != "" || o.sessionName != ""
	return !o.noSession && (asked || o.mode == "" || o.atomic())
}

// setup is what flags, configuration and surroundings amount to.
type setup struct {
	*options
	config
	home      string
	cwd       string
	settings  *settings
	catalog   catalog
	provider  *providerInfo // of the start
	model     *Model
	skills    atomic.Pointer[[]promptFile] // replaced by a reload of the extensions
	templates []promptFile
	env       *toolEnv
	builtins  []*tool // but for the one that loads skills
	exts      []*extension
	warnings  []string
	session   *session // nil: the conversation is not kept
	restored  restored
	sessions  string // the directory of sessions; "": they are in memory only
	flagLevel string // the reasoning level of the flags
}

func newSetup(o *options) (*setup, error) {
	s := &setup{options: o, home: zotHome(), config: config{Timeouts: defaultTimeouts}}
	if other := cmp.Or(os.Getenv("ATOMIC_CODING_AGENT_DIR"), os.Getenv("PI_CODING_AGENT_DIR")); o.atomic() && other != "" && os.Getenv("ZOT_HOME") == "" {
		s.home, _ = filepath.Abs(other)
	}
	if err := readJSONFile(filepath.Join(s.home, "config.json"), &s.config); err != nil {
		return nil, err
	}
	for _, seconds := range []float64{s.Timeouts.Headers, s.Timeouts.FirstEvent, s.Timeouts.Gap} {
		if seconds < 0 || seconds > 1e6 {
			return nil, fmt.Errorf("%s: \"timeouts\" are seconds from 0 (no limit) to 1000000, not %g", filepath.Join(s.home, "config.json"), seconds)
		}
	}
	s.flagLevel = o.reasoning
	if s.config.Reasoning != "" {
		level, err := parseReasoning(s.config.Reasoning)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(s.home, "config.json"), err)
		}
		o.reasoning = cmp.Or(o.reasoning, level)
	}
	var err error
	if s.settings, err = loadSettings(s.home); err != nil {
		return nil, err
	}
	if o.atomic() || o.mode == "" {
		s.config.Provider = cmp.Or(s.settings.DefaultProvider, s.config.Provider)
		s.config.Model = cmp.Or(s.settings.DefaultModel, s.config.Model)
		o.reasoning = cmp.Or(s.flagLevel, s.settings.DefaultThinkingLevel, o.reasoning)
	}
	if o.atomic() {
		o.reasoning = cmp.Or(o.reasoning, "medium")
	}
	if s.cwd, err = filepath.Abs(o.cwd); err != nil {
		return nil, err
	}
	if info, err := os.Stat(s.cwd); err != nil {
		return nil, fmt.Errorf("--cwd: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("--cwd: %s is not a directory", s.cwd)
	}
	if u, err := url.Parse(o.baseURL); o.baseURL != "" && (err != nil || u.Host == "" || !strings.HasPrefix(u.Scheme, "http")) {
		return nil, fmt.Errorf("--base-url: %q is not an http or https URL", o.baseURL)
	}
	if o.keeps() {
		if s.sessions, err = filepath.Abs(cmp.Or(o.sessionDir, sessionsDir(s.home, s.cwd))); err != nil {
			return nil, err
		}
	}
	if err := s.openSession(); err != nil {
		return nil, err
	}
	if err := s.chooseModel(); err != nil {
		return nil, err
	}
	for _, dir := range o.exts { // it may be a guard: nothing runs without it
		dir = s.absolute(dir)
		if _, err := os.Stat(filepath.Join(dir, "extension.json")); err != nil {
			return nil, fmt.Errorf("there is no extension.json in %s: name the directory of an extension", dir)
		}
	}
	s.exts = s.places().find()
	s.warnings = append(s.warnings, s.readSkills(s.exts)...)
	var warnings []string
	s.templates, warnings = loadTemplates(s.cwd, s.home, o.templatePaths)
	if o.noTemplates {
		s.templates = slices.DeleteFunc(s.templates, func(t promptFile) bool { return t.scope != "path" })
	}
	s.warnings = append(s.warnings, warnings...)
	return s, s.chooseTools()
}

// places is where extensions are looked for.
func (s *setup) places() extPlaces {
	approve := cmp.Or(s.approve, s.ProjectExts)
	return extPlaces{home: s.home, cwd: s.cwd, explicit: s.options.exts, only: s.noExt, distrust: approve != nil && !*approve}
}

// readSkills reads the skills, those of extensions among them.
func (s *setup) readSkills(exts []*extension) (warnings []string) {
	var skills []promptFile
	if !s.noSkill {
		user := s.withSkills || s.atomic() || s.mode == ""
		skills, warnings = loadSkills(s.cwd, s.home, user, append(skillPaths(exts), s.options.skillPaths...))
	}
	s.skills.Store(&skills)
	return warnings
}

// ownTools are the tools that are no extension's; skills may come and go.
func (s *setup) ownTools() []*tool {
	if skills := *s.skills.Load(); len(skills) > 0 {
		return append(slices.Clone(s.builtins), skillTool(skills))
	}
	return slices.Clone(s.builtins)
}

// chooseModel finds provider and model: the flags, config.json, who lists the
// model, the first provider that has a key.
func (s *setup) chooseModel() (err error) {
	if s.catalog, err = loadCatalog(s.home); err != nil {
		return err
	}
	all, o := s.catalog, s.options
	id, provider := o.model, o.provider
	if m := s.restoredModel(s.restored); m != nil {
		id, provider = m.ID, m.Provider
	}
	if before, level, found := strings.Cut(id, ":"); found && owner(all, id) == "" && slices.Contains(reasoningLevels, level) {
		id, o.reasoning, s.flagLevel = before, level, level
	}
	if before, after, found := strings.Cut(id, "/"); found && owner(all, id) == "" && provider == "" {
		provider, id = before, after
	}
	name := cmp.Or(provider, s.config.Provider, owner(all, cmp.Or(id, s.config.Model)), s.firstWithKey(all))
	if s.provider, err = all.provider(name); err != nil {
		if provider == "" {
			return s.inDefaults(err)
		}
		return err
	}
	isDefault := id == "" && s.config.Model != "" && (name == s.config.Provider || name == owner(all, s.config.Model))
	if isDefault {
		id = s.config.Model
	}
	id = cmp.Or(id, s.provider.Default)
	m, err := s.provider.model(id)
	if err != nil {
		if isDefault {
			return s.inDefaults(err)
		}
		if p := owner(all, id); p != "" {
			return fmt.Errorf("model %s belongs to provider %s: add --provider %[2]s", id, p)
		}
		return err
	}
	s.model = s.configured(m)
	if s.flagLevel == "" {
		level := ""
		if o.atomic() || o.mode == "" {
			level = s.settings.ModelThinkingLevels[m.ref()]
		}
		o.reasoning = cmp.Or(s.restored.level, level, o.reasoning)
	}
	return nil
}

// inDefaults says of an error where what is wrong stands: nobody typed it.
func (s *setup) inDefaults(err error) error {
	return fmt.Errorf("the defaults in %s (config.json, settings.json): %w", s.home, err)
}

// restoredModel is the model that a session was left with; nil when the flags
// name another or it can not be used here.
func (s *setup) restoredModel(r restored) *Model {
	p, err := s.catalog.provider(r.provider)
	if err != nil || s.options.model != "" || s.options.provider != "" {
		return nil
	}
	if _, err := credential(p, s.keyFor(p), s.home); err != nil {
		return nil
	}
	m, err := p.model(r.model)
	if err != nil {
		return nil
	}
	return m
}

// reopen prepares to go on with another session, with the model and the level
// that it was left with unless the flags name others. What it reads it reads
// now; change makes it so, when the agent is locked and idle.
func (s *setup) reopen(a *Agent, next *session) (r restored, change func()) {
	r = next.restore()
	m := s.restoredModel(r)
	var client provider
	if m != nil {
		var err error
		m = s.configured(m)
		if client, err = s.client(m); err != nil {
			m = nil
		}
	}
	return r, func() {
		a.resume(next, r)
		if s.flagLevel == "" {
			a.reasoning = cmp.Or(r.level, a.reasoning)
		}
		if m != nil {
			a.setModel(m, client)
		}
	}
}

// openSession opens the session that the flags name, or makes one.
func (s *setup) openSession() (err error) {
	o, path := s.options, ""
	switch {
	case s.sessions == "" && !o.atomic():
		return nil
	case s.sessions == "":
	case o.sessionRef != "":
		path, err = s.findSession(o.sessionRef)
	case o.sessionID != "":
		if path, err = findSession(s.sessions, o.sessionID); errors.Is(err, fs.ErrNotExist) {
			path, err = "", nil
		}
	case o.again:
		path, err = newestSession(s.sessions)
	case o.resume && o.mode != "": // else the terminal host asks
		infos, err := listSessions(s.sessions)
		if err != nil {
			return err
		}
		return chooseSession(infos)
	}
	if err != nil {
		return err
	}
	if path == "" {
		if s.session, err = newSession(s.sessions, s.cwd, o.sessionID, ""); err != nil {
			return err
		}
		if s.sessions != "" {
			if err := checkWritable(s.sessions); err != nil {
				return fmt.Errorf("sessions can not be kept (--no-session keeps none): %w", err)
			}
		}
	} else {
		var notes []string
		if s.session, notes, err = openSession(path); err != nil {
			return err
		}
		s.session.cwd = cmp.Or(s.session.cwd, s.cwd) // an empty file says none
		s.warnings = append(s.warnings, notes...)
	}
	if o.sessionName != "" {
		if _, err := s.session.append("session_info", `"name":?`, o.sessionName); err != nil {
			return err
		}
	}
	s.restored = s.session.restore()
	return nil
}

// checkWritable reports why nothing can be written in a directory, which is
// made if it is not there.
func checkWritable(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".zot-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// findSession finds a session by its file, its id or the beginning of its id.
func (s *setup) findSession(ref string) (string, error) {
	if strings.ContainsAny(ref, `/\`) || strings.HasSuffix(ref, ".jsonl") {
		return s.absolute(ref), nil
	}
	return findSession(s.sessions, ref)
}

// absolute is a path that a client or a flag gave; "" stays "".
func (s *setup) absolute(path string) string {
	if path != "" && !filepath.IsAbs(path) {
		path = filepath.Join(s.cwd, path)
	}
	return path
}

// chooseSession says which sessions there are, where nobody can be asked.
func chooseSession(infos []sessionInfo) error {
	text := "--resume lets you choose in the terminal; here name one: --session ID"
	for _, n := range infos[:min(len(infos), 10)] {
		text += fmt.Sprintf("\n  %s  %s  %s", n.id, n.modified.Format(time.DateTime), shorten(cmp.Or(n.name, n.firstMessage), 60))
	}
	return errors.New(text)
}

// owner is the first provider that lists a model; "" if none does.
func owner(all catalog, id string) string {
	for _, p := range all {
		if id != "" && slices.ContainsFunc(p.models(), func(m *Model) bool { return m.ID == id }) {
			return p.Name
		}
	}
	return ""
}

// firstWithKey is the first provider of the catalog that has a key.
func (s *setup) firstWithKey(all catalog) string {
	for _, p := range all {
		if key, err := credential(p, "", s.home); err == nil && key != "" {
			return p.Name
		}
	}
	return all[0].Name
}

// keyFor is the flags' key, which is for the provider that was started with.
func (s *setup) keyFor(p *providerInfo) string {
	if s.provider != nil && p.Name != s.provider.Name {
		return ""
	}
	return s.apiKey
}

// configured is a model with the flags' base URL, if it is for its provider.
func (s *setup) configured(m *Model) *Model {
	if s.baseURL == "" || m.Provider != s.provider.Name {
		return m
	}
	own := *m
	own.BaseURL = s.baseURL
	return &own
}

// client makes the provider of a model.
func (s *setup) client(m *Model) (provider, error) {
	if m.API == "script" {
		return newScript(m.ID)
	}
	p, err := s.catalog.provider(m.Provider)
	if err != nil {
		return nil, err
	}
	info := *p
	info.BaseURL = m.BaseURL
	return newHTTPProvider(m, func() (string, error) { return credential(&info, s.keyFor(&info), s.home) }, s.Timeouts), nil
}

// chooseTools makes the built-in tools and checks what the flags say of tools.
func (s *setup) chooseTools() error {
	s.env = &toolEnv{cwd: s.cwd, dropEnv: s.ToolEnvDrop}
	all := builtinTools(s.env)
	if s.model.API == "script" && s.model.ID != "demo" {
		all = append(all, panicTool())
	}
	s.builtins = all
	if s.noTools {
		return nil
	}
	known := toolNames(s.ownTools())
	for _, name := range s.options.tools {
		if !slices.Contains(append(known, "skill"), name) && !slices.ContainsFunc(s.exts, (*extension).runs) {
			return fmt.Errorf("--tools: unknown tool %q (known: %s)", name, strings.Join(known, ", "))
		}
	}
	return nil
}

// allows reports whether the flags leave a tool.
func (s *setup) allows(name string) bool {
	return !s.noTools && (len(s.options.tools) == 0 || slices.Contains(s.options.tools, name)) && !slices.Contains(s.excludeTools, name)
}

// agent makes the agent that works for h.
func (s *setup) agent(ctx context.Context, h host) (*Agent, error) {
	p, err := s.client(s.model)
	if err != nil {
		return nil, err
	}
	a := &Agent{host: h, model: s.model, provider: p, reasoning: s.reasoning, allows: s.allows,
		maxSteps: s.maxSteps, autoCompact: !s.noAutoCompact && s.settings.Compaction.Enabled, ctx: ctx, atomic: s.atomic(),
		summaries: s.settings.SessionSummary.Enabled && (s.mode == "" || s.mode == "atomic"), stopSummary: func() {},
		retry: retrySettings{base: time.Duration(s.settings.Retry.BaseDelayMs) * time.Millisecond, cancel: func() {}},
		lines: compactOrder{ratio: s.settings.Compaction.CompressionRatio, preserve: s.settings.Compaction.PreserveRecent}}
	if s.settings.Retry.Enabled {
		a.retry.max = s.settings.Retry.MaxRetries
	}
	a.queues[steering].all, a.queues[followUp].all = s.settings.SteeringMode == "all", s.settings.FollowUpMode == "all"
	if s.session != nil {
		a.resume(s.session, s.restored)
		if err := a.begin(s.session); err != nil {
			return nil, err
		}
	}
	a.settled = sync.NewCond(&a.mu)
	a.builtin = func() []*tool {
		return slices.DeleteFunc(s.ownTools(), func(t *tool) bool { return !s.allows(t.name) })
	}
	a.prepare = func() string { return s.systemText(a.tools) }
	if s.noYolo && !s.yolo {
		a.approval = approval{timeout: s.confirmTimeout, allowed: map[string]bool{}, waiting: map[string]chan decision{}}
		if s.mode == "print" || s.mode == "json" || s.mode == "atomic-json" {
			a.nobodyAnswers("--no-yolo asks before each tool call, and in this mode nobody can be asked. Start without it, or with --yolo.")
		}
	}
	if s.mode == "" { // a person may be away for long, and may change their mind
		a.approval = approval{timeout: 24 * time.Hour, allowed: map[string]bool{"*": !s.noYolo || s.yolo}, waiting: map[string]chan decision{}}
	}
	names := toolNames(s.builtins)
	a.ext = &extHost{extPlaces: s.places(), ctx: ctx, tell: a.tell, flush: func() { h.flush(ctx) },
		started: make(chan struct{}), userGone: make(chan struct{}), interactive: s.mode == "",
		found: func(exts []*extension) {
			for _, w := range s.readSkills(exts) {
				a.tell(&Event{Type: "notice", Level: "warn", Text: w})
			}
		},
		builtin: func(name string) bool {
			return slices.Contains(names, name) || slices.Contains([]string{"read", "write", "edit", "bash", "skill"}, name)
		},
		ack: func(e *extension) map[string]any {
			a.mu.Lock()
			defer a.mu.Unlock()
			return map[string]any{"type": "hello_ack", "protocol_version": 1, "zot_version": version(), "provider": a.model.Provider,
				"model": a.model.ID, "cwd": s.cwd, "extension_dir": e.dir, "data_dir": e.dir, "mode": cmp.Or(s.mode, "interactive"),
				"capabilities": s.capabilities()}
		}}
	a.ext.start(s.exts, a.ext.started, func() {})
	return a, nil
}

// capabilities is what the host can show of what an extension sends.
func (s *setup) capabilities() []string {
	switch s.mode {
	case "rpc", "atomic":
		return []string{"notify", "display", "insert", "panels", "confirm"}
	case "json":
		return []string{"notify", "display", "insert"}
	case "":
		return []string{"notify", "display", "insert", "panels", "confirm", "submit"}
	}
	return []string{"notify", "display"}
}

// systemText assembles the system prompt; a problem with it goes to stderr.
func (s *setup) systemText(tools []*tool) string {
	text, warnings := systemPrompt(promptParts{home: s.home, cwd: s.cwd, replace: s.systemPrompt, add: s.appendPrompt,
		contextFiles: !s.noContextFiles, tools: tools, skills: *s.skills.Load(), now: time.Now()})
	warn(warnings)
	return text
}

func warn(warnings []string) {
	for _, w := range warnings {
		fmt.Fprintln(os.Stderr, "zot: "+w)
	}
}

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
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
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
		h, p.leave = &terminal.inbox, terminal.close
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

// exit ends the process after its work: accepted jobs finish, and what was
// written reaches a slow reader.
func (p *process) exit(code int) {
	p.agent.worker.Wait()
	p.agent.stopSummary()
	p.agent.ext.work.Wait()
	p.agent.ext.stop()
	killAllGroups(time.Second)
	p.out.close(30 * time.Second)
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
