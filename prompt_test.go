package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// tree writes files below a new directory. The name tells what is made: "a/"
// a directory, "a -> b" a symbolic link, anything else a file.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		name, target, link := strings.Cut(name, " -> ")
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch {
		case link:
			if err = os.Symlink(filepath.FromSlash(target), path); err != nil && runtime.GOOS == "windows" {
				t.Skip("no symbolic links here: ", err)
			}
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(path, 0o755)
		default:
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// noUserHome points the user's home directory at an empty one.
func noUserHome(t *testing.T) string {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("USERPROFILE", dir)
	return dir
}

func skillFile(name, description string) string {
	return "---\nname: " + name + "\ndescription: " + description + "\n---\nBody of " + name + "\n"
}

func wantWarnings(t *testing.T, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d warnings, want %d: %q", len(got), len(want), got)
	}
	for i, w := range want {
		if !strings.Contains(filepath.ToSlash(got[i]), w) {
			t.Errorf("warning %q does not have %q", got[i], w)
		}
	}
}

func TestZotHome(t *testing.T) {
	home := noUserHome(t)
	t.Setenv("LOCALAPPDATA", filepath.Join(home, "local"))
	platform := map[string]string{
		"darwin":  filepath.Join(home, "Library", "Application Support", "zot"),
		"windows": filepath.Join(home, "local", "zot"),
	}[runtime.GOOS]
	if platform == "" {
		platform = filepath.Join(home, ".local", "state", "zot")
	}
	for _, c := range []struct{ zot, xdg, want string }{
		{"", "", platform},
		{"", filepath.Join(home, "x"), filepath.Join(home, "x", "zot")},
		{filepath.Join(home, "z"), filepath.Join(home, "x"), filepath.Join(home, "z")},
	} {
		t.Setenv("ZOT_HOME", c.zot)
		t.Setenv("XDG_STATE_HOME", c.xdg)
		if got := zotHome(); got != c.want {
			t.Errorf("ZOT_HOME=%q XDG_STATE_HOME=%q: %s, want %s", c.zot, c.xdg, got, c.want)
		}
	}
	t.Chdir(home)
	t.Setenv("ZOT_HOME", "rel")
	if got := zotHome(); !filepath.IsAbs(got) || filepath.Base(got) != "rel" {
		t.Errorf("relative ZOT_HOME gave %s", got)
	}
	for _, name := range []string{"ZOT_HOME", "XDG_STATE_HOME", "LOCALAPPDATA", "HOME", "USERPROFILE"} {
		t.Setenv(name, "")
	}
	if got := zotHome(); !filepath.IsAbs(got) {
		t.Errorf("without any variable: %q is not absolute", got)
	}
}

func TestFrontMatter(t *testing.T) {
	for _, c := range []struct{ name, text, description, body string }{
		{"none", "just text\n---\n", "", "just text\n---"},
		{"plain", "---\nname: x\ndescription: does: this, and that\n---\n\nBody\n\nmore\n", "does: this, and that", "Body\n\nmore"},
		{"empty block", "---\n---\nBody", "", "Body"},
		{"fence with blanks", "---  \ndescription: d\n---\t\nB", "d", "B"},
		{"comment lines", "---\n# one: two\ndescription: a # b\n\n---\nB", "a # b", "B"},
		{"double quotes", `---` + "\n" + `description: "say \"hi\": \u00e9"` + "\n---\nB", "say \"hi\": é", "B"},
		{"single quotes", "---\ndescription: 'it''s \\n'\n---\nB", `it's \n`, "B"},
		{"quotes over lines", "---\ndescription: \"one\n  two\"\n---\nB", "one two", "B"},
		{"not well quoted", "---\ndescription: \"one\" or 'two'\n---\nB", `"one" or 'two'`, "B"},
		{"value below its key", "---\ndescription:\n  one\n  two: 2\nname: x\n---\nB", "one two: 2", "B"},
		{"folded", "---\ndescription: >-\n  one\n  two\nname: x\n---\nB", "one two", "B"},
		{"literal", "---\ndescription: |\n  one\n  ---\n  two\n---\nB", "one\n---\ntwo", "B"},
		{"nested and lists", "---\nmetadata:\n  description: no\ntools:\n- a\n- b\ndescription: yes it is\n---\nB", "yes it is", "B"},
		{"no header after >", "---\ndescription: >= 2 things\n---\nB", ">= 2 things", "B"},
		{"fence in the body", "---\ndescription: d\n---\nA\n---\nB", "d", "A\n---\nB"},
	} {
		fields, body, err := frontMatter(c.text)
		if got := unquote(fields["description"]); err != nil || got != c.description || body != c.body {
			t.Errorf("%s: description %q, body %q, err %v", c.name, got, body, err)
		}
	}
	for _, text := range []string{"---\nname: x\nBody", "---", "---\n"} {
		if _, _, err := frontMatter(text); err == nil || !strings.Contains(err.Error(), "no --- line") {
			t.Errorf("%q: error %v", text, err)
		}
	}
}

func TestReadText(t *testing.T) {
	dir := tree(t, map[string]string{
		"plain": "\ufeffa\r\nb\rc\xff\xfed\n",
		"exact": strings.Repeat("x", maxTextFile),
		"big":   strings.Repeat("x", maxTextFile+1),
	})
	if got, err := readText(filepath.Join(dir, "plain")); got != "a\nb\rc\ufffdd\n" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	if got, err := readText(filepath.Join(dir, "exact")); len(got) != maxTextFile || err != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	for name, want := range map[string]string{"big": "big is larger than 256 KiB", "": "not a regular file", "none": "none"} {
		if got, err := readText(filepath.Join(dir, name)); got != "" || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %d bytes, %v", name, len(got), err)
		}
	}
}

// A FIFO without a writer must not be opened: that would wait for ever.
func TestFIFOIsNotOpened(t *testing.T) {
	mkfifo, err := exec.LookPath("mkfifo")
	if err != nil || runtime.GOOS == "windows" {
		t.Skip("no mkfifo here")
	}
	noUserHome(t)
	dir := tree(t, map[string]string{".git/": "", ".zot/skills/s/": "", ".zot/prompts/": ""})
	for _, name := range []string{"CLAUDE.md", ".zot/skills/s/SKILL.md", ".zot/prompts/p.md"} {
		if out, err := exec.Command(mkfifo, filepath.Join(dir, name)).CombinedOutput(); err != nil {
			t.Skipf("mkfifo: %v %s", err, out)
		}
	}
	_, w := systemPrompt(promptParts{home: t.TempDir(), cwd: dir, contextFiles: true})
	wantWarnings(t, w, "CLAUDE.md is not a regular file")
	_, w = loadSkills(dir, t.TempDir(), false, nil)
	wantWarnings(t, w, "SKILL.md is not a regular file")
	_, w = loadTemplates(dir, t.TempDir(), nil)
	wantWarnings(t, w, "p.md is not a regular file")
}

func TestLoadSkills(t *testing.T) {
	home := noUserHome(t)
	user := tree(t, map[string]string{"skills/shared/SKILL.md": skillFile("shared", "user"), "skills/u/SKILL.md": skillFile("u", "user")})
	if err := os.CopyFS(filepath.Join(home, ".claude"), os.DirFS(user)); err != nil { // the same names again
		t.Fatal(err)
	}
	root := tree(t, map[string]string{
		"repo/.git":                                  "gitdir: elsewhere", // a worktree
		"repo/.agents/skills/shared/SKILL.md":        skillFile("shared", "root"),
		"repo/.claude/skills/group/deep/SKILL.md":    "---\ndescription: named by its directory\n---\n",
		"repo/sub/.zot/skills/b/SKILL.md":            skillFile("b", "nearest"),
		"repo/sub/.zot/skills/a/SKILL.md":            skillFile("z.1", "first by path"),
		"repo/sub/.zot/skills/a/x/SKILL.md":          skillFile("inner", "below a skill"),
		"repo/sub/.zot/skills/node_modules/SKILL.md": skillFile("ignored", "n"),
		"repo/sub/.zot/skills/.git/SKILL.md":         skillFile("ignored", "g"),
		"repo/.zot/skills/b/SKILL.md":                skillFile("b", "farther"),
		".zot/skills/outside/SKILL.md":               skillFile("outside", "above the repository"),
		"extra/one/SKILL.md":                         skillFile("extra", "by directory"),
		"file/SKILL.md":                              skillFile("file", "by file"),
		"dup/SKILL.md":                               skillFile("b", "taken"),
	})
	cwd := filepath.Join(root, "repo", "sub")
	extra := []string{filepath.Join(root, "extra"), "../../file/SKILL.md", "../../dup", "nowhere", ".zot/skills/b/SKILL.md", ".zot/skills"}
	skills, warnings := loadSkills(cwd, user, true, extra)
	var got []string
	for _, s := range skills {
		if !filepath.IsAbs(s.path) || filepath.Base(s.path) != "SKILL.md" {
			t.Errorf("path of %s: %s", s.name, s.path)
		}
		got = append(got, s.scope+" "+s.name+": "+s.description)
	}
	want := []string{
		"project z.1: first by path", "project inner: below a skill", "project b: nearest",
		"project shared: root", "project deep: named by its directory",
		"user u: user", "path extra: by directory", "path file: by file",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	wantWarnings(t, warnings, "dup/SKILL.md: "+filepath.ToSlash(cwd)+"/.zot/skills/b/SKILL.md has the same name", "nowhere")

	if skills, _ = loadSkills(filepath.Join(root, "extra"), user, false, nil); len(skills) != 0 {
		t.Errorf("outside a repository only the directory itself counts: %+v", skills)
	}
}

func TestBadSkills(t *testing.T) {
	noUserHome(t)
	cwd := tree(t, map[string]string{
		".zot/skills/1/SKILL.md":         "no front matter",
		".zot/skills/2/SKILL.md":         "---\nname: x\n---\n",
		".zot/skills/3/SKILL.md":         skillFile("two words", "d"),
		".zot/skills/4/SKILL.md":         "---\nname: x\n",
		".zot/skills/5/SKILL.md":         strings.Repeat("long ", maxTextFile),
		".zot/skills/6 6/SKILL.md":       "---\ndescription: its directory's name is no name\n---\n",
		".zot/skills/7/SKILL.md -> none": "",
		".zot/skills/good/SKILL.md":      skillFile("good", "d"),
		".agents/skills":                 "a file",
	})
	skills, warnings := loadSkills(cwd, t.TempDir(), true, nil)
	if len(skills) != 1 || skills[0].name != "good" {
		t.Errorf("skills: %+v", skills)
	}
	wantWarnings(t, warnings, "1/SKILL.md: it has no description", "2/SKILL.md: it has no description",
		`3/SKILL.md: by the name "two words"`, "4/SKILL.md: no --- line", "5/SKILL.md is larger",
		`by the name "6 6"`, "7/SKILL.md: ", ".agents/skills: it has no description")
}

func TestSkillLinks(t *testing.T) {
	noUserHome(t)
	cwd := tree(t, map[string]string{
		"elsewhere/linked/SKILL.md":                    skillFile("linked", "d"),
		".zot/skills/a/SKILL.md":                       "---\ndescription: named by its directory\n---\n",
		".zot/skills/a/loop -> ..":                     "",
		".zot/skills/a/self -> self":                   "",
		".zot/skills/b -> ../../elsewhere":             "",
		".zot/skills/c -> a":                           "",
		".zot/skills/d -> gone":                        "",
		".claude/skills -> ../.zot/skills":             "",
		".agents/skills/e/SKILL.md -> ../f/instr.md":   "",
		".agents/skills/f/instr.md":                    skillFile("byfile", "d"),
		".agents/skills/f/node_modules -> ../../../..": "",
	})
	skills, warnings := loadSkills(cwd, t.TempDir(), false, nil)
	var got []string
	for _, s := range skills {
		got = append(got, s.name)
	}
	if want := []string{"a", "linked", "byfile"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	wantWarnings(t, warnings)
}

func TestSkillSearchIsBounded(t *testing.T) {
	noUserHome(t)
	cwd := t.TempDir()
	skills := filepath.Join(cwd, ".zot", "skills")
	for i := range maxSearchDirs + 10 {
		if err := os.MkdirAll(filepath.Join(skills, fmt.Sprint(i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	_, warnings := loadSkills(cwd, t.TempDir(), false, nil)
	wantWarnings(t, warnings, "the directory number 2000")
}

func TestSkillTool(t *testing.T) {
	noUserHome(t)
	cwd := tree(t, map[string]string{".zot/skills/s/SKILL.md": "\ufeff---\r\nname: s\r\ndescription: d\r\n---\r\n\r\n# Do\r\nit\r\n"})
	skills, warnings := loadSkills(cwd, t.TempDir(), false, nil)
	wantWarnings(t, warnings)
	tool := skillTool(skills)
	if s, err := normalize(tool.schema); err != nil || string(s) != string(tool.schema) || !tool.readOnly || tool.name != "skill" {
		t.Errorf("tool: %s %v %v", tool.schema, err, tool.readOnly)
	}
	for _, c := range []struct {
		args, want string
		isError    bool
	}{
		{`{"name":"s"}`, "References are relative to " + filepath.Join(cwd, ".zot", "skills", "s") + ".\n\n# Do\nit", false},
		{`{"name":"x"}`, `no skill is named "x"`, true},
		{`{}`, `Validation failed for tool "skill": "name" is missing`, true},
		{`{"name":7}`, `Validation failed for tool "skill": "name" must be a string, not a number`, true},
	} {
		r := tool.run(context.Background(), &toolCall{args: json.RawMessage(c.args)})
		if r.isError != c.isError || len(r.content) != 1 || !strings.HasPrefix(r.content[0].Text, c.want) {
			t.Errorf("%s: %+v, want %q", c.args, r, c.want)
		}
	}
}

func TestLoadTemplates(t *testing.T) {
	home := tree(t, map[string]string{"prompts/fix.md": "user", "prompts/user.md": "---\ndescription: said so\n---\nBody $1\n"})
	cwd := tree(t, map[string]string{
		".zot/prompts/fix.md":       "\r\n  \r\n" + strings.Repeat("é", 61) + "\r\nmore\r\n",
		".zot/prompts/note.txt":     "no template",
		".zot/prompts/sub/below.md": "not found: not recursive",
		".zot/prompts/empty.md":     "\n",
		".zot/prompts/bad.md":       "---\nname: x\n",
		".zot/prompts/two words.md": "x",
		"more/extra.md":             "by directory",
		"more/fix.md":               "taken",
		"one.md":                    "by file",
	})
	templates, warnings := loadTemplates(cwd, home, []string{"more", filepath.Join(cwd, "one.md"), "none.md", ".zot/prompts/fix.md"})
	var got []string
	for _, p := range templates {
		if !filepath.IsAbs(p.path) {
			t.Errorf("path of %s: %s", p.name, p.path)
		}
		got = append(got, p.scope+" "+p.name+": "+p.description+" | "+p.body)
	}
	want := []string{
		"project fix: " + strings.Repeat("é", 60) + " | " + strings.Repeat("é", 61) + "\nmore",
		"user user: said so | Body $1",
		"path extra: by directory | by directory",
		"path one: by file | by file",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	wantWarnings(t, warnings, "bad.md: no --- line", "empty.md: it has no description", "two words.md: by the name",
		"more/fix.md: ", "none.md")
}

func TestSplitArgs(t *testing.T) {
	for in, want := range map[string][]string{
		"":                         nil,
		" a\tb\nc ":                {"a", "b", "c"},
		`"a b" 'c "d"' e`:          {"a b", `c "d"`, "e"},
		`a"b c"d ''`:               {"ab cd", ""},
		`don't say "hi there" you`: {"don't", "say", "hi there", "you"},
		`\"a b\"`:                  {`\a b\`}, // no escapes
		`"open end`:                {`"open`, "end"},
		"é 'ü ö'":                  {"é", "ü ö"},
	} {
		if got := splitArgs(in); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestSubstitute(t *testing.T) {
	args := []string{"one", "two $1", "three", "", "5", "6", "7", "8", "9", "ten"}
	for in, want := range map[string]string{
		"$1-$2-$3":                        "one-two $1-three", // values are not expanded again
		"$10$11.":                         "ten.",
		"$@":                              "one two $1 three  5 6 7 8 9 ten",
		"x$ARGUMENTS":                     "xone two $1 three  5 6 7 8 9 ten",
		"${@:8}":                          "8 9 ten",
		"${@:2:2}":                        "two $1 three",
		"${@:0:1}|${@:1:0}|${@:11}":       "one||",
		"${@:9:99999999999999999999}":     "9 ten",
		"${@:99999999999999999999}":       "",
		"${1:-d}|${4:-d e}|${99:-$1}|":    "one|d e|$1|",
		"${@:-none}":                      "one two $1 three  5 6 7 8 9 ten",
		"$0 $ $$ ${1} ${x} $HOME ${@:x} ": "$0 $ $$ ${1} ${x} $HOME ${@:x} ",
		"$99999999999999999999.":          ".",
	} {
		if got := substitute(in, args); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
	if got := substitute("[$1|$@|${@:2}|${@:-none}|${1:-a}|${2:-}]", nil); got != "[|||none|a|]" {
		t.Errorf("no arguments: %q", got)
	}
}

func TestExpand(t *testing.T) {
	skills := []promptFile{{name: "s", path: "/a&b/SKILL.md", body: "Body of s"}}
	templates := []promptFile{{name: "fix", body: "Fix $1 for ${2:-me}.\n\nAll: $@"}, {name: "only", body: "$1"}}
	loaded := "<skill name=\"s\" location=\"/a&amp;b/SKILL.md\">\nBody of s\n</skill>"
	for _, c := range []struct {
		in, want string
	}{
		{"/skill:s", loaded},
		{"/skill:s  do \"it\"\nnow\n", loaded + "\n\ndo \"it\"\nnow"},
		{"/fix 'a b'", "Fix a b for me.\n\nAll: a b"},
		{"/fix\na $1", "Fix a for $1.\n\nAll: a $1"},
		{"/fixx a", "/fixx a"},
		{" /fix a", " /fix a"},
		{"/", "/"},
		{"", ""},
		{"/usr/bin/env is what?\n", "/usr/bin/env is what?\n"},
	} {
		out, err := expand(c.in, skills, templates)
		if out != c.want || err != nil {
			t.Errorf("%q: %q %v, want %q", c.in, out, err, c.want)
		}
	}
	if out, err := expand("/only", skills, templates); out != "/only" || err == nil || !strings.Contains(err.Error(), "without arguments") {
		t.Errorf("an empty text: %q %v", out, err)
	}
}

func TestSystemPrompt(t *testing.T) {
	noUserHome(t)
	home := tree(t, map[string]string{"AGENTS.md": "home rules\n"})
	root := tree(t, map[string]string{
		"AGENTS.md":            "outside",
		"repo/.git/":           "",
		"repo/AGENTS.md":       "\ufeffroot rules\r\n",
		"repo/CLAUDE.md":       "root rules\n", // the same but for the line end
		"repo/a/b/AGENTS.md":   "agents of b",
		"repo/a/b/CLAUDE.md":   "claude of b \xff",
		"repo/a/c/AGENTS.md":   "a directory beside",
		"repo/a/AGENTS.md":     "  \n",
		"repo/a/CLAUDE.md":     "claude of a",
		"repo/a/b/d/AGENTS.md": "below",
	})
	cwd := filepath.Join(root, "repo", "a", "b")
	p := promptParts{
		home: home, cwd: cwd, contextFiles: true, add: []string{"added 1", "added 2"},
		tools: []*tool{{name: "read", description: "Read a file.\nLong text."}, {name: "bash", description: "Run a command."},
			{name: "later", description: "Not yet.", deferred: true}, {name: "skill", description: "Load."}},
		skills: []promptFile{{name: "s", description: "a <b> & c", path: "/x/s/SKILL.md"}},
		now:    time.Date(2026, 8, 22, 23, 30, 0, 0, time.FixedZone("", -12*3600)),
	}
	date := "Date: " + p.now.Local().Format("2006-01-02") + "\nWorking directory: "
	text, warnings := systemPrompt(p)
	wantWarnings(t, warnings)
	want := []string{
		identity,
		"Your tools:\n- read: Read a file.\n- bash: Run a command.\n- skill: Load.\n\n",
		"How you work:\n",
		"<instructions file=\"" + filepath.Join(home, "AGENTS.md") + "\">\nhome rules\n</instructions>",
		"<instructions file=\"" + filepath.Join(root, "repo", "AGENTS.md") + "\">\nroot rules\n</instructions>",
		"<instructions file=\"" + filepath.Join(root, "repo", "a/CLAUDE.md") + "\">\nclaude of a\n</instructions>",
		"<instructions file=\"" + filepath.Join(root, "repo", "a/b/AGENTS.md") + "\">\nagents of b\n</instructions>",
		"<instructions file=\"" + filepath.Join(root, "repo", "a/b/CLAUDE.md") + "\">\nclaude of b \ufffd\n</instructions>",
		"with the skill tool",
		"<available_skills>\n<skill>\n<name>s</name>\n<description>a &lt;b&gt; &amp; c</description>\n<location>/x/s/SKILL.md</location>\n</skill>\n</available_skills>\n\n",
		"added 1\n\nadded 2\n\n",
		date + cwd,
	}
	wantInOrder(t, text, want...)
	if !strings.HasSuffix(text, cwd) || !utf8.ValidString(text) {
		t.Errorf("end: ...%q", text[len(text)-40:])
	}
	for _, absent := range []string{"outside", "directory beside", "below", "- later", "Long text", "with edit"} {
		if strings.Contains(text, absent) {
			t.Errorf("the prompt has %q", absent)
		}
	}
	if n := strings.Count(text, "root rules"); n != 1 {
		t.Errorf("root rules told %d times", n)
	}
	p.now = p.now.Add(time.Minute)
	if again, _ := systemPrompt(p); again != text {
		t.Error("the prompt changed within a day")
	}

	p.contextFiles, p.tools, p.skills, p.add = false, nil, nil, nil
	text, _ = systemPrompt(p)
	wantInOrder(t, text, identity, "\n\nHow you work:\n", "\n\n"+date)
	for _, absent := range []string{"rules", "Your tools", "bash", "skill", "added"} {
		if strings.Contains(text, absent) {
			t.Errorf("the bare prompt has %q", absent)
		}
	}
}

func wantInOrder(t *testing.T, text string, parts ...string) {
	t.Helper()
	rest := text
	for _, p := range parts {
		_, after, ok := strings.Cut(rest, p)
		if !ok {
			t.Fatalf("no %q, or not in its place, in:\n%s", p, text)
		}
		rest = after
	}
}

func TestReplacedPrompt(t *testing.T) {
	noUserHome(t)
	home := tree(t, map[string]string{"SYSTEM.md": "From the file.\n"})
	p := promptParts{
		home: home, cwd: tree(t, map[string]string{"CLAUDE.md": "context"}), contextFiles: true, add: []string{"added"},
		tools:  []*tool{{name: "read", description: "Read a file."}},
		skills: []promptFile{{name: "s", description: "d", path: "/p"}},
		now:    time.Now(),
	}
	text, warnings := systemPrompt(p)
	wantWarnings(t, warnings)
	wantInOrder(t, text, "From the file.", "CLAUDE.md\">\ncontext", "<name>s</name>", "added", "Date: ", "Working directory: ")
	p.replace = "From the flag \xff."
	text, _ = systemPrompt(p)
	wantInOrder(t, text, "From the flag \ufffd.", "context", "<name>s</name>", "added", "Date: ", "Working directory: ")
	for _, absent := range []string{identity, "From the file", "Your tools", "How you work"} {
		if strings.Contains(text, absent) {
			t.Errorf("the replaced prompt has %q", absent)
		}
	}
	p.replace, p.home = "", tree(t, map[string]string{"SYSTEM.md/": ""})
	text, warnings = systemPrompt(p)
	wantWarnings(t, warnings, "SYSTEM.md is not a regular file")
	wantInOrder(t, text, identity)
}

func TestContextFileTroubles(t *testing.T) {
	noUserHome(t)
	cwd := tree(t, map[string]string{
		".git/":                          "",
		"AGENTS.md":                      "told once",
		"CLAUDE.md -> AGENTS.md":         "",
		"a/AGENTS.md -> AGENTS.md":       "", // a link to itself
		"a/CLAUDE.md/":                   "",
		"a/b/AGENTS.md -> ../../none.md": "",
		"a/b/CLAUDE.md":                  "still here",
		"a/b/c/AGENTS.md":                strings.Repeat("long ", maxTextFile),
	})
	p := promptParts{home: cwd, cwd: filepath.Join(cwd, "a", "b", "c"), contextFiles: true} // $ZOT_HOME is the repository
	text, warnings := systemPrompt(p)
	wantWarnings(t, warnings, "a/AGENTS.md: too many", "a/CLAUDE.md is not a regular file", "c/AGENTS.md is larger than 256 KiB")
	wantInOrder(t, text, "AGENTS.md\">\ntold once", "CLAUDE.md\">\nstill here")
	if strings.Count(text, "<instructions ") != 2 {
		t.Error("a file is told twice")
	}
	if os.Getuid() > 0 {
		if err := os.Chmod(filepath.Join(cwd, "AGENTS.md"), 0); err != nil {
			t.Fatal(err)
		}
		_, warnings = systemPrompt(p)
		wantWarnings(t, warnings[:1], "permission denied")
	}
}
