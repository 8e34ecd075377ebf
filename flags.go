// The command line: its flags, as they are read and as they are helped with. What
// can not be understood is an error that names the nearest thing that could;
// nothing is guessed.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
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
		if nearest(words[0], []string{"rpc", "ext", "help", "version", "list-models"}) != "" {
			return nil, fmt.Errorf("%q is no mode: see zot --help; as a prompt it needs -p", words[0])
		}
	}
	return o, nil
}

// findFlag looks a flag up. The error names the nearest one that exists.
func (o *options) findFlag(arg string) (flag, error) {
	name := strings.TrimLeft(arg, "-")
	name = cmp.Or(aliases[name], name)
	long := strings.HasPrefix(arg, "--")
	var names []string
	for _, g := range o.flagGroups() {
		for _, f := range g.flags {
			if long && f.name == name || !long && f.short == name {
				return f, nil
			}
			names = append(names, f.name)
		}
	}
	if meant := nearest(name, names); meant != "" {
		return flag{}, fmt.Errorf("unknown flag %s: did you mean --%s?", arg, meant)
	}
	return flag{}, fmt.Errorf("unknown flag %s: zot --help lists them", arg)
}

// distance is how many characters must be put in, left out, changed, or swapped
// with the next one, to make a into b.
func distance(a, b string) int {
	row, above, above2 := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for k := range row {
		row[k] = k
	}
	for i := range len(a) {
		row, above, above2 = above2, row, above
		row[0] = i + 1
		for k := range len(b) {
			change := above[k]
			if a[i] != b[k] {
				change++
			}
			row[k+1] = min(change, row[k]+1, above[k+1]+1)
			if i > 0 && k > 0 && a[i] == b[k-1] && a[i-1] == b[k] {
				row[k+1] = min(row[k+1], above2[k-1]+1)
			}
		}
	}
	return row[len(b)]
}

// nearest is the name that one was probably meant to be; "" if it is like none. The
// longer they are, the more slips there may be.
func nearest(name string, names []string) (found string) {
	best := len(name) // what shares no letter is not meant
	for _, n := range names {
		if d := distance(name, n); d < best && d <= max(len(name), len(n))/3 {
			found, best = n, d
		}
	}
	return found
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

// atomic reports whether the Atomic protocol is spoken.
func (o *options) atomic() bool { return strings.HasPrefix(o.mode, "atomic") }

// keeps reports whether the conversation is kept in a session.
func (o *options) keeps() bool {
	asked := o.again || o.resume || o.sessionRef != "" || o.sessionID != "" || o.sessionDir != "" || o.sessionName != ""
	return !o.noSession && (asked || o.mode == "" || o.atomic())
}
