package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	hostile = "\"'><script>alert(1)</script><img src=x onerror=alert(1)></pre></details></title></style><!-- ]]> &lt;&#60; ? `\x1b[31m\x00\u202e\u2028\xff\r"
	pixel   = "R0lGODlhAQABAAAAACw="
)

// exported is a page taken apart by a strict parser, which accepts no
// unescaped character, no stray tag and no control character.
type exported struct {
	source, text string
	elements     []xml.StartElement
}

func export(t *testing.T, info exportInfo, messages ...*Message) exported {
	t.Helper()
	var b bytes.Buffer
	if err := exportHTML(&b, info, messages); err != nil {
		t.Fatal(err)
	}
	page := exported{source: b.String()}
	d := xml.NewDecoder(&b)
	for depth := 0; ; {
		token, err := d.Token()
		if err == io.EOF && depth == 0 {
			return page
		}
		if err != nil {
			t.Fatalf("%v at\n%.300s", err, page.source[max(0, int(d.InputOffset())-200):])
		}
		switch token := token.(type) {
		case xml.StartElement:
			depth++
			page.elements = append(page.elements, token.Copy())
		case xml.EndElement:
			depth--
		case xml.CharData:
			page.text += string(token)
		case xml.Comment, xml.ProcInst:
			t.Fatalf("a comment or instruction: %v", token)
		}
	}
}

// Text from a model, a tool, a client or a file makes no element and no
// attribute, wherever it stands.
func TestExportHostileText(t *testing.T) {
	n := 0
	evil := func() string { n++; return fmt.Sprintf("<%d>%s", n, hostile) }
	quoted := func() string { return string(encode(evil())) }
	raw := func(format string) json.RawMessage {
		parts := strings.Split(format, "EVIL")
		s := parts[0]
		for _, part := range parts[1:] {
			s += quoted() + part
		}
		return json.RawMessage(s)
	}
	info := exportInfo{title: evil(), cwd: evil(), id: evil(), model: evil()}
	page := export(t, info,
		&Message{Role: "user", Content: []Block{says(evil()), says("```" + evil() + "\n" + evil() + "\n```\n`" + evil()), {Type: "image", MimeType: evil(), Data: pixel}}},
		&Message{Role: "assistant", Model: evil(), Stop: evil(), Err: evil(), Content: []Block{
			says("a `" + evil() + "` b"),
			{Type: "thinking", Text: evil(), Signature: evil()},
			{Type: "tool_call", ID: evil(), Name: evil(), Args: raw(`{EVIL:EVIL,"edits":[{"oldText":EVIL,"newText":EVIL,EVIL:[EVIL]}],"x":{EVIL:{"a":{"b":{"c":EVIL}}}}}`)},
			{Type: "tool_call", ID: "1", Name: "bash", BadArgs: evil(), Args: json.RawMessage(`{}`)},
			{Type: evil(), Text: evil()},
		}},
		&Message{Role: "tool", CallID: "1", ToolName: evil(), IsError: true, Content: []Block{
			says(evil()), says("@@ -1 +1 @@\n+" + evil() + "\n-" + evil() + "\n@@" + evil()),
			{Type: "image", MimeType: "image/png", Data: evil()}, {Type: "image", MimeType: "image/svg+xml", Data: "PHN2Zy8+"}}},
		&Message{Role: "tool", CallID: evil(), ToolName: evil(), Content: []Block{says(evil())}},
		&Message{Role: "user", raw: raw(`{"role":"bashExecution","command":EVIL,"output":EVIL,"exitCode":EVIL}`)},
		&Message{Role: "user", raw: raw(`{"role":"custom","customType":EVIL}`), Content: []Block{says(evil())}},
		&Message{Role: "user", raw: raw(`{"role":EVIL}`), Content: []Block{says(evil())}},
		&Message{Role: evil(), Content: []Block{says(evil())}})

	allowed := strings.Fields("html head meta title style body main header h1 dl div dt dd section time p details summary b i code pre span small img")
	for _, e := range page.elements {
		if !slices.Contains(allowed, e.Name.Local) {
			t.Errorf("an element %s", e.Name.Local)
		}
		for _, a := range e.Attr {
			switch {
			case !slices.Contains(strings.Fields("lang charset http-equiv content name class datetime alt src"), a.Name.Local),
				strings.ContainsAny(a.Value, "<>\"&\x1b"), strings.Contains(a.Value, "alert"):
				t.Errorf("an attribute %s=%q of %s", a.Name.Local, a.Value, e.Name.Local)
			}
		}
		if e.Name.Local == "img" {
			t.Error("an image of a wrong type or with bad data")
		}
	}
	// All of it is there to read. Not shown are signatures, ids of calls, the
	// stop word and what is no known kind of block or message.
	seen := 0
	for i := range n {
		if strings.Contains(page.text, fmt.Sprintf("<%d>", i+1)) {
			seen++
		}
	}
	if seen != n-10 {
		t.Errorf("%d of %d texts are shown", seen, n)
	}
	if want := "'><script>alert(1)</script><img src=x onerror=alert(1)></pre></details></title></style><!-- ]]> &lt;&#60; ? `␛[31m␀‹U+202E›‹U+2028›\ufffd␍"; !strings.Contains(page.text, want) {
		t.Errorf("not as it was written:\n%s", page.text)
	}
}

func TestExport(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	call := func(id, name, args string) Block {
		return Block{Type: "tool_call", ID: id, Name: name, Args: json.RawMessage(args)}
	}
	page := export(t,
		exportInfo{cwd: "/src/app", id: "0199", model: "model-a", created: at, usage: Usage{Input: 1234567, Output: 89, CacheRead: 1000, Cost: Cost{Total: 0.12345}}},
		&Message{Role: "user", Time: at, Content: []Block{says("Make it <fast>\nplease"), {Type: "image", MimeType: "image/gif", Data: pixel}}},
		&Message{Role: "assistant", Model: "model-a", Content: []Block{
			{Type: "thinking", Text: "let me see"},
			says("I run `make`:\n```sh\n  make `x`\n```\ndone"),
			call("1", "bash", `{"command":"make\nmake install","timeout":60}`),
			call("2", "edit", `{"path":"a.go","edits":[{"oldText":"x := 1","newText":"x := 2"}]}`),
			call("3", "read", `{"path":"b.go"}`),
		}},
		&Message{Role: "tool", CallID: "1", ToolName: "bash", IsError: true, Content: []Block{says("\nno rule")}},
		&Message{Role: "tool", CallID: "2", ToolName: "edit", Content: []Block{says("--- a\n+++ b\n@@ -1 +1 @@\n-x := 1\n+x := 2\n \n")}},
		&Message{Role: "tool", CallID: "2", ToolName: "stray", Content: []Block{says("once more")}},
		&Message{Role: "user", raw: json.RawMessage(`{"role":"bashExecution","command":"ls","output":"a.go\n","exitCode":2}`)},
		&Message{Role: "user", raw: json.RawMessage(`{"role":"custom","customType":"compaction"}`), Content: []Block{says("earlier")}},
		&Message{Role: "assistant", Model: "model-b", Stop: "aborted", Content: []Block{says("half")}})
	for _, want := range []string{
		"<title>Make it &lt;fast&gt;</title>",
		"<dt>started</dt><dd>4 March 2026, 05:06 UTC</dd>",
		"<dt>directory</dt><dd>/src/app</dd>",
		"<dd>1,234,567 in, 89 out, 1,000 read from and 0 written to the cache</dd>",
		"<dd>$0.1235</dd>",
		`<time datetime="2026-03-04T05:06:07Z">4 Mar 05:06</time>`,
		`<img alt="" src="data:image/gif;base64,` + pixel + `"/>`,
		"<summary>Thinking</summary>\n<div class=\"text\">let me see</div>",
		"I run <code>make</code>:\n<small>sh</small><pre>\n  make `x`\n</pre>done",
		"<details class=\"call failed\"><summary><b>bash</b> <code>make</code> <i>failed</i></summary>",
		"<span>command</span><pre class=\"\">\nmake\nmake install</pre>",
		"<span>timeout</span><pre class=\"\">\n60</pre>",
		"<pre class=\"output\">\n\nno rule</pre>\n</details>",
		"<span>edits.oldText</span><pre class=\"minus\">\nx := 1</pre>",
		"<span class=\"minus\">--- a\n</span><span class=\"plus\">+++ b\n</span><span class=\"hunk\">@@ -1 +1 @@\n</span><span class=\"minus\">-x := 1\n</span>",
		"<b>read</b> <code>b.go</code> <i>no result</i>",
		"<p class=\"note\">result of stray</p>\n<pre class=\"output\">\nonce more</pre>",
		"<b>!</b> <code>ls</code> <i>exit code 2</i></summary>\n<pre>\nls</pre>\n<pre class=\"output\">\na.go\n</pre>",
		"<summary>compaction</summary>\n<div class=\"text\">earlier</div>",
		"<p class=\"note\">model-b</p>\n<div class=\"text\">half</div>\n<p class=\"error\">aborted</p>",
	} {
		if !strings.Contains(page.source, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Count(page.source, "model-a") != 1 {
		t.Error("the model is named again although it did not change")
	}
	if t.Failed() {
		t.Log(page.source)
	}
}

// The policy forbids everything but the style of the page itself.
func TestExportPolicy(t *testing.T) {
	page := export(t, exportInfo{})
	for _, e := range page.elements {
		if e.Name.Local == "meta" && e.Attr[0].Value == "Content-Security-Policy" {
			if policy := e.Attr[1].Value; !strings.HasPrefix(policy, "default-src 'none'; img-src data:; style-src 'sha256-") || strings.Contains(policy, "unsafe") {
				t.Errorf("policy: %s", policy)
			}
			return
		}
	}
	t.Error("no policy")
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestExportTellsThatTheDiskIsFull(t *testing.T) {
	err := exportHTML(fullDisk{}, exportInfo{}, []*Message{say("user", says(strings.Repeat("x", 100_000)))})
	if err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("%v", err)
	}
}
