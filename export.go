// A session as one HTML file for people to read. Rules kept here:
//
//   - The file is complete in itself: no script, no request, and a policy that
//     forbids both, whatever text it holds.
//   - All text goes through visible and the escaping of package html. Attributes
//     that are not constants are times and checked images only.
//   - Nothing is hidden: characters that would change how the rest looks show
//     as symbols; what cannot be shown is named.
//
// html/template would do the escaping too, but adds 1.9 MB to the binary.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

//go:embed export.css
var exportCSS string

// exportInfo is what the head of the page says. Empty fields are left out.
type exportInfo struct {
	title, cwd, id, model string
	created               time.Time
	usage                 Usage
}

// page writes HTML. Errors of the writer are kept by it until the end.
type page struct {
	*bufio.Writer
	shown map[*Message]bool // results that stand with their calls
}

// put writes a piece of HTML in which each ? stands for the next text.
func (p page) put(markup string, texts ...string) {
	for _, text := range texts {
		before, after, _ := strings.Cut(markup, "?")
		p.WriteString(before)
		p.WriteString(html.EscapeString(visible(text)))
		markup = after
	}
	p.WriteString(markup)
}

// visible replaces characters that are not seen or change how others are seen.
func visible(s string) string {
	var out strings.Builder
	for _, r := range strings.ReplaceAll(s, "\r\n", "\n") {
		switch {
		case r == '\n' || r == '\t' || r == '\u200c' || r == '\u200d': // the joiners are part of words and emoji
			out.WriteRune(r)
		case r < ' ':
			out.WriteRune('␀' + r)
		case r == '\x7f':
			out.WriteRune('␡')
		case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) || r&0xfffe == 0xfffe:
			fmt.Fprintf(&out, "‹%U›", r)
		default:
			out.WriteRune(r)
		}
	}
	return out.String()
}

// exportHTML writes a session as one HTML file.
func exportHTML(w io.Writer, info exportInfo, messages []*Message) error {
	p := page{bufio.NewWriter(w), map[*Message]bool{}}
	p.head(info, messages)
	model := info.model
	for i, m := range messages {
		switch {
		case m.raw != nil:
			p.special(m)
		case m.Role == "user":
			p.put("<section class=\"user\">\n")
			p.at(m.Time)
			p.blocks(m, nil)
			p.put("</section>\n")
		case m.Role == "assistant":
			p.put("<section class=\"assistant\">\n")
			if m.Model != "" && m.Model != model {
				model = m.Model
				p.put("<p class=\"note\">?</p>\n", model)
			}
			results := messages[i+1:]
			if end := slices.IndexFunc(results, func(m *Message) bool { return m.Role != "tool" }); end >= 0 {
				results = results[:end]
			}
			p.blocks(m, results)
			p.put("</section>\n")
		case m.Role == "tool" && !p.shown[m]:
			p.put("<section class=\"assistant\">\n<p class=\"note\">result of ?</p>\n", m.ToolName)
			p.result(m)
			p.put("</section>\n")
		}
	}
	p.put("</main>\n</body>\n</html>\n")
	if err := p.Flush(); err != nil {
		return fmt.Errorf("could not write the HTML file: %w", err)
	}
	return nil
}

// export writes the conversation as a page: to a path, relative to cwd, or to
// one named after the session. It returns the absolute path.
func (a *Agent) export(cwd, path string) (string, error) {
	a.mu.Lock()
	session, messages := a.session, a.messages
	info := exportInfo{title: "zot session", cwd: cwd, model: a.chosen().model.ID, usage: a.usage}
	a.mu.Unlock()
	if len(messages) == 0 {
		return "", errors.New("Nothing to export yet - start a conversation first")
	}
	name := "zot-session.html"
	if session != nil {
		info.title, info.id, info.created = cmp.Or(session.name(), info.title), session.id, session.created
		info.cwd, name = session.cwd, "zot-session-"+session.id+".html"
	}
	if path = cmp.Or(path, name); !filepath.IsAbs(path) {
		path = filepath.Join(cwd, path)
	}
	var page bytes.Buffer
	if err := exportHTML(&page, info, messages); err != nil {
		return "", err
	}
	return path, replaceFile(path, page.Bytes())
}

func (p page) head(info exportInfo, messages []*Message) {
	title := cmp.Or(info.title, info.id, "Session")
	if i := slices.IndexFunc(messages, func(m *Message) bool { return m.Role == "user" && m.raw == nil }); i >= 0 {
		title = cmp.Or(info.title, gist(messages[i].text()), title)
	}
	sum := sha256.Sum256([]byte(exportCSS))
	p.put("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n")
	p.put(`<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'sha256-` +
		base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'\"/>\n")
	p.put("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>?</title>\n<style>", title)
	p.put(exportCSS + "</style>\n</head>\n<body>\n<main>\n<header>\n")
	p.put("<h1>?</h1>\n<dl>\n", title)
	fact := func(name, value string) {
		if value != "" {
			p.put("<div><dt>?</dt><dd>?</dd></div>\n", name, value)
		}
	}
	if !info.created.IsZero() {
		fact("started", info.created.Format("2 January 2006, 15:04 MST"))
	}
	fact("directory", info.cwd)
	fact("model", info.model)
	u := info.usage
	if u.Input+u.Output+u.CacheRead+u.CacheWrite > 0 {
		fact("tokens", fmt.Sprintf("%s in, %s out, %s read from and %s written to the cache",
			grouped(u.Input), grouped(u.Output), grouped(u.CacheRead), grouped(u.CacheWrite)))
	}
	if u.Cost.Total > 0 {
		fact("cost", fmt.Sprintf("$%.4f", u.Cost.Total))
	}
	fact("session", info.id)
	p.put("</dl>\n</header>\n")
}

// grouped writes a count with a comma at each thousand.
func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// gist is the first line of a text, not too long.
func gist(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	if r := []rune(s); len(r) > 100 {
		s = string(r[:99]) + "…"
	}
	return s
}

func (p page) at(t time.Time) {
	if !t.IsZero() {
		p.put("<time datetime=\"?\">?</time>\n", t.UTC().Format(time.RFC3339), t.Format("2 Jan 15:04"))
	}
}

// blocks writes what a message holds, each tool call with its result.
func (p page) blocks(m *Message, results []*Message) {
	for i := range m.Content {
		switch b := &m.Content[i]; b.Type {
		case "text":
			p.prose(b.Text)
		case "image":
			p.image(b)
		case "thinking":
			if b.Text != "" {
				p.put("<details class=\"thinking\"><summary>Thinking</summary>\n<div class=\"text\">?</div></details>\n", b.Text)
			}
		case "tool_call":
			at := slices.IndexFunc(results, func(r *Message) bool { return r.CallID == b.ID })
			class, state := "call", ""
			if at < 0 {
				state = "no result"
			} else if results[at].IsError {
				class, state = "call failed", "failed"
			}
			p.put("<details class=\""+class+"\"><summary><b>?</b> <code>?</code> <i>?</i></summary>\n", b.Name, gistOfCall(b), state)
			if b.BadArgs != "" {
				p.argument("arguments", encode(b.BadArgs), 0)
			}
			walk(b.Args, func(key, value []byte) { p.argument(unquoted(key), value, 0) })
			if at >= 0 {
				p.result(results[at])
				p.shown[results[at]] = true
			}
			p.put("</details>\n")
		}
	}
	switch {
	case m.Err != "":
		p.put("<p class=\"error\">?</p>\n", m.Err)
	case m.Stop == "aborted":
		p.put("<p class=\"error\">aborted</p>\n")
	case m.Stop == "length":
		p.put("<p class=\"error\">cut off at the output limit</p>\n")
	}
}

// gistOfCall is the first text among the arguments: a path, a command.
func gistOfCall(b *Block) (s string) {
	walk(b.Args, func(_, value []byte) { s = cmp.Or(s, gist(textOf(value))) })
	return s
}

// unquoted is the name of a member as walk gives it.
func unquoted(key []byte) string { return textOf(slices.Concat([]byte(`"`), key, []byte(`"`))) }

// argument writes one argument of a call. The objects in it, such as the edits
// of a file, are written member by member.
func (p page) argument(name string, value []byte, depth int) {
	class, text := "", string(value)
	switch {
	case value[0] == '"':
		text = textOf(value)
	case depth < 3 && (value[0] == '{' || value[0] == '[' && strings.HasPrefix(strings.TrimLeft(text[1:], " "), "{")):
		walk(value, func(key, member []byte) {
			inner := name
			if key != nil {
				inner += "." + unquoted(key)
			}
			p.argument(inner, member, depth+1)
		})
		return
	}
	switch name[strings.LastIndexByte(name, '.')+1:] {
	case "oldText":
		class = "minus"
	case "newText":
		class = "plus"
	}
	p.put("<div class=\"argument\"><span>?</span><pre class=\""+class+"\">\n?</pre></div>\n", name, text)
}

func (p page) result(m *Message) {
	for i := range m.Content {
		switch b := &m.Content[i]; b.Type {
		case "text":
			p.output(b.Text)
		case "image":
			p.image(b)
		}
	}
}

// output writes what a tool printed. In a unified diff the lines get colours.
func (p page) output(text string) {
	p.put("<pre class=\"output\">\n")
	if !strings.HasPrefix(text, "@@ -") && !strings.Contains(text, "\n@@ -") {
		p.put("?</pre>\n", text)
		return
	}
	classes := map[byte]string{'+': "plus", '-': "minus", '@': "hunk"}
	for line := range strings.Lines(text) {
		if class := classes[line[0]]; class != "" {
			p.put("<span class=\""+class+"\">?</span>", line)
		} else {
			p.put("?", line)
		}
	}
	p.put("</pre>\n")
}

// prose writes text as it is, but for fenced code and code in a line.
func (p page) prose(text string) {
	if strings.TrimSpace(text) == "" {
		return
	}
	p.put("<div class=\"text\">")
	fence := ""
	for line := range strings.Lines(strings.Trim(text, "\n")) {
		s := strings.TrimSpace(line)
		ticks := s[:len(s)-len(strings.TrimLeft(s, "`"))]
		switch {
		case fence == "" && len(ticks) >= 3 && !strings.Contains(s[len(ticks):], "`"):
			fence = ticks
			p.put("<small>?</small><pre>\n", s[len(ticks):])
		case fence != "" && ticks == s && len(ticks) >= len(fence):
			fence = ""
			p.put("</pre>")
		case fence != "":
			p.put("?", line)
		default:
			p.inline(line)
		}
	}
	if fence != "" {
		p.put("</pre>")
	}
	p.put("</div>\n")
}

// inline writes a line in which `this` is code.
func (p page) inline(line string) {
	for {
		before, rest, found := strings.Cut(line, "`")
		code, after, closed := strings.Cut(rest, "`")
		if !found || !closed || code == "" {
			p.put("?", line)
			return
		}
		p.put("?<code>?</code>", before, code)
		line = after
	}
}

func (p page) image(b *Block) {
	_, err := base64.StdEncoding.DecodeString(b.Data)
	if err != nil || !slices.Contains([]string{"image/png", "image/jpeg", "image/gif", "image/webp"}, b.MimeType) {
		p.put("<p class=\"note\">an image that cannot be shown here (?)</p>\n", b.MimeType)
		return
	}
	p.put("<img alt=\"\" src=\"data:?;base64,?\"/>\n", b.MimeType, strings.NewReplacer("\r", "", "\n", "").Replace(b.Data))
}

// special writes a message that is none of user, assistant and tool: a command
// of the user, or what an extension, a compaction or another branch left.
func (p page) special(m *Message) {
	role := textOf(get(m.raw, "role"))
	if role == "bashExecution" {
		command, state := textOf(get(m.raw, "command")), ""
		code := get(m.raw, "exitCode")
		switch {
		case string(get(m.raw, "cancelled")) == "true":
			state = "cancelled"
		case code != nil && string(code) != "0":
			state = "exit code " + string(code)
		}
		p.put("<section class=\"user\">\n")
		p.at(m.Time)
		p.put("<details class=\"call\"><summary><b>!</b> <code>?</code> <i>?</i></summary>\n", gist(command), state)
		p.put("<pre>\n?</pre>\n", command)
		p.output(textOf(get(m.raw, "output")))
		p.put("</details>\n</section>\n")
		return
	}
	p.put("<section class=\"special\">\n<details><summary>?</summary>\n", cmp.Or(textOf(get(m.raw, "customType")), role, "message"))
	p.blocks(m, nil)
	p.put("</details>\n</section>\n")
}
