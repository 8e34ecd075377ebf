// What flags, configuration and surroundings amount to: the session, the model,
// the tools, the extensions, and the agent that works with them. What is wrong is
// one error that says where it stands; nothing is replaced by a guess.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// config is $ZOT_HOME/config.json. Nothing rewrites it.
type config struct {
	Provider    string   `json:"provider"`
	Model       string   `json:"model"`
	Reasoning   string   `json:"reasoning"`
	Timeouts    timeouts `json:"timeouts"`
	ToolEnvDrop []string `json:"tool_env_drop"`
	ProjectExts *bool    `json:"project_extensions"` // false: as with --no-approve
}

// misspelt warns of keys in a file of the user's that are nearly ones of ours.
// Other programs may keep theirs in it, so no other key is a mistake.
func misspelt(path string, file object, ours json.RawMessage) (warnings []string) {
	known, _ := parseObject(ours)
	names := slices.Sorted(maps.Keys(known))
	for _, key := range slices.Sorted(maps.Keys(file)) {
		if meant := nearest(strings.ToLower(key), names); meant != "" && !strings.EqualFold(meant, key) {
			warnings = append(warnings, fmt.Sprintf("%s: %q has no effect: did you mean %q?", path, key, meant))
		}
		if inner, err := parseObject(file[key]); err == nil && known.has(key) {
			warnings = append(warnings, misspelt(path, inner, known[key])...)
		}
	}
	return warnings
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
	path, file := filepath.Join(s.home, "config.json"), object{}
	if err := cmp.Or(readJSONFile(path, &s.config), readJSONFile(path, &file)); err != nil {
		return nil, err
	}
	s.warnings = misspelt(path, file, encode(s.config))
	for _, seconds := range []float64{s.Timeouts.Headers, s.Timeouts.FirstEvent, s.Timeouts.Gap} {
		if seconds < 0 || seconds > 1e6 {
			return nil, fmt.Errorf("%s: \"timeouts\" are seconds from 0 (no limit) to 1000000, not %g", path, seconds)
		}
	}
	s.flagLevel = o.reasoning
	if s.config.Reasoning != "" {
		level, err := parseReasoning(s.config.Reasoning)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
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
	wait, started := a.ext.start(s.exts), a.ext.started
	go func() { wait(); close(started) }() // ends with the last start
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
