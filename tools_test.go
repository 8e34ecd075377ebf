package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// callTool runs one built-in tool. args is JSON or a value that becomes JSON.
func callTool(t *testing.T, ctx context.Context, dir, name string, args any) toolResult {
	t.Helper()
	raw, ok := args.(string)
	if !ok {
		raw = string(encode(args))
	}
	for _, tool := range builtinTools(&toolEnv{cwd: dir}) {
		if tool.name == name {
			return tool.run(ctx, &toolCall{id: "c1", args: json.RawMessage(raw), progress: func(string) {}})
		}
	}
	t.Fatalf("no tool %q", name)
	return toolResult{}
}

func resultText(r toolResult) string {
	var parts []string
	for _, b := range r.content {
		if b.Type == "text" {
			parts = append(parts, b.Text)
		}
	}
	return strings.Join(parts, "\n")
}

// succeed and refuse run a tool and return its text.
func succeed(t *testing.T, dir, name string, args any) string {
	t.Helper()
	r := callTool(t, context.Background(), dir, name, args)
	if r.isError {
		t.Fatalf("%s %v: error result: %s", name, args, resultText(r))
	}
	return resultText(r)
}

func refuse(t *testing.T, dir, name string, args any) string {
	t.Helper()
	r := callTool(t, context.Background(), dir, name, args)
	if !r.isError {
		t.Fatalf("%s %v: no error but: %s", name, args, resultText(r))
	}
	return resultText(r)
}

func putFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func fileText(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func wantHas(t *testing.T, got string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(got, part) {
			t.Errorf("missing %q in %q", part, got)
		}
	}
}

// onlyFiles checks that nothing else, such as a temporary file, is left.
func onlyFiles(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, names) {
		t.Errorf("files in %s: %q, want %q", dir, got, names)
	}
}

type args map[string]any

func oneEdit(path, oldText, newText string) args {
	return args{"path": path, "edits": []args{{"oldText": oldText, "newText": newText}}}
}

func TestToolSchemas(t *testing.T) {
	var names []string
	for _, tool := range builtinTools(&toolEnv{cwd: t.TempDir()}) {
		names = append(names, tool.name)
		normal, err := normalize(tool.schema)
		if err != nil || !bytes.Equal(normal, tool.schema) {
			t.Errorf("%s: schema is not normalized JSON: %v\n%s", tool.name, err, tool.schema)
		}
		if tool.readOnly != (tool.name == "read") {
			t.Errorf("%s: readOnly is %v", tool.name, tool.readOnly)
		}
		if tool.description == "" || len(tool.description) > 400 {
			t.Errorf("%s: description of %d bytes", tool.name, len(tool.description))
		}
	}
	if want := []string{"read", "write", "edit", "bash"}; !slices.Equal(names, want) {
		t.Errorf("tools %q, want %q", names, want)
	}
}

func TestToolArguments(t *testing.T) {
	dir := t.TempDir()
	putFile(t, filepath.Join(dir, "a.txt"), "one\ntwo\nthree\n")
	for _, c := range []struct {
		tool, args string
		want       []string
	}{
		{"read", `{}`, []string{`Validation failed for tool "read": "path" is missing, it must be a string`}},
		{"read", `{"path":null}`, []string{`"path" is missing`}},
		{"read", `{"path":7}`, []string{`"path" must be a string, not a number`}},
		{"read", `{"file_path":"a.txt"}`, []string{`"path" is missing`, `given are ["file_path"]`}},
		{"read", `{"Path":"a.txt"}`, []string{`"path" is missing`, `given are ["Path"]`}},
		{"read", `{"path":"a.txt","offset":"two"}`, []string{`"offset" must be a number, not "two"`}},
		{"read", `{"path":"a.txt","offset":[1]}`, []string{`"offset" must be a number, not [1]`}},
		{"read", `{"path":"a.txt","offset":true}`, []string{`"offset" must be a number, not true`}},
		{"read", `{"path":"a.txt","offset":0}`, []string{`"offset" must be a whole number of at least 1, not 0`}},
		{"read", `{"path":"a.txt","limit":1.5}`, []string{`"limit" must be a whole number`}},
		{"read", `{"path":"a.txt","limit":1e300}`, []string{`"limit" must be a whole number`}},
		{"read", `{"path":"a.txt","limit":"NaN"}`, []string{`"limit" must be a number`}},
		{"read", `[1]`, []string{"not a JSON object but an array"}},
		{"read", `{"path":""}`, []string{"path is empty"}},
		{"write", `{"path":"b.txt"}`, []string{`"content" is missing`}},
		{"write", `{"path":"b.txt","content":{}}`, []string{`"content" must be a string, not an object`}},
		{"edit", `{"path":"a.txt"}`, []string{`"edits" must be an array of {oldText, newText} with at least one element`}},
		{"edit", `{"path":"a.txt","edits":[]}`, []string{`with at least one element`}},
		{"edit", `{"path":"a.txt","edits":"x"}`, []string{`"edits" must be an array of {oldText, newText}, not a string`}},
		{"edit", `{"path":"a.txt","edits":[3]}`, []string{`edits[0]: not a JSON object but a number`}},
		{"edit", `{"path":"a.txt","edits":[{"old_string":"a","new_string":"b"}]}`, []string{`edits[0]: "oldText" is missing`, `given are ["new_string" "old_string"]`}},
		{"edit", `{"path":"a.txt","edits":[{"oldText":"","newText":"b"}]}`, []string{`edits[0]: "oldText" must not be empty`}},
		{"edit", `{"path":"a.txt","oldText":"one"}`, []string{`"newText" is missing`}},
		{"bash", `{"cmd":"ls"}`, []string{`"command" is missing`, `given are ["cmd"]`}},
		{"bash", `{"command":"ls","timeout":"soon"}`, []string{`"timeout" must be a number`}},
	} {
		wantHas(t, refuse(t, dir, c.tool, c.args), append(c.want, fmt.Sprintf(`Validation failed for tool %q`, c.tool))[:len(c.want)]...)
	}
	onlyFiles(t, dir, "a.txt")

	if got := succeed(t, dir, "read", `{"path":"a.txt","offset":"2","limit":" 1 "}`); !strings.HasPrefix(got, "two\n") {
		t.Errorf("numbers in strings: %q", got)
	}
}

func TestToolPaths(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("USERPROFILE", dir)
	other := t.TempDir()
	succeed(t, other, "write", args{"path": "~/x/y.txt", "content": "hello"})
	if got := fileText(t, filepath.Join(dir, "x", "y.txt")); got != "hello" {
		t.Errorf("~/: %q", got)
	}
	if got := succeed(t, filepath.Join(dir, "x"), "read", args{"path": "y.txt"}); got != "hello" {
		t.Errorf("relative: %q", got)
	}
	if got := succeed(t, other, "read", args{"path": filepath.Join(dir, "x", "y.txt")}); got != "hello" {
		t.Errorf("absolute: %q", got)
	}
}

func numbers(from, to int) string {
	var b strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

func TestReadTool(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"long":    numbers(1, 5001),
		"four":    "1\n2\n3\n4\n",
		"wide":    strings.Repeat(strings.Repeat("x", 999)+"\n", 100),
		"crlf":    "\ufeffa\r\nb\r\n",
		"noeol":   "a\nb",
		"empty":   "",
		"latin1":  "caf\xe9\n",
		"binary":  "\x7fELF\x00\x00\x01",
		"percent": "100%d\n",
	} {
		putFile(t, filepath.Join(dir, name), content)
	}
	for _, c := range []struct {
		args args
		want string
	}{
		{args{"path": "four"}, "1\n2\n3\n4\n"},
		{args{"path": "four", "limit": 2}, "1\n2\n\n[2 more lines in file. Use offset=3 to continue.]"},
		{args{"path": "four", "offset": 4}, "4\n"},
		{args{"path": "long"}, numbers(1, 2000) + "\n[Showing lines 1-2000 of 5001. Use offset=2001 to continue.]"},
		{args{"path": "long", "offset": 3002, "limit": 9000}, numbers(3002, 5001)},
		{args{"path": "wide"}, strings.Repeat(strings.Repeat("x", 999)+"\n", 51) + "\n[Showing lines 1-51 of 100. Use offset=52 to continue.]"},
		{args{"path": "crlf"}, "a\nb\n"},
		{args{"path": "noeol"}, "a\nb"},
		{args{"path": "noeol", "offset": 2}, "b"},
		{args{"path": "empty"}, "[The file is empty]"},
		{args{"path": "latin1"}, "caf\ufffd\n\n[The file is not UTF-8: bytes shown as U+FFFD cannot be matched by edit.]"},
		{args{"path": "binary"}, "[Binary file, not shown: 7 bytes, application/octet-stream. To look at it use bash with file, xxd or strings]"},
		{args{"path": "percent"}, "100%d\n"},
	} {
		if got := succeed(t, dir, "read", c.args); got != c.want {
			t.Errorf("read %v:\n got %.300q\nwant %.300q", c.args, got, c.want)
		}
	}
	for _, c := range []struct {
		args args
		want string
	}{
		{args{"path": "four", "offset": 99}, "Offset 99 is beyond end of file (4 lines total)"},
		{args{"path": "four", "offset": 1_000_000_000}, "Offset 1000000000 is beyond end of file (4 lines total)"},
		{args{"path": "empty", "offset": 2}, "Offset 2 is beyond end of file (0 lines total)"},
		{args{"path": "none"}, "ENOENT: no such file or directory: " + filepath.Join(dir, "none")},
		{args{"path": "."}, "is a directory"},
	} {
		wantHas(t, refuse(t, dir, "read", c.args), c.want)
	}
}

func TestReadLongLine(t *testing.T) {
	dir := t.TempDir()
	line := strings.Repeat("é", 5<<20/2)
	putFile(t, filepath.Join(dir, "it's long"), "first\n"+line+"\nlast\n")
	got := succeed(t, dir, "read", args{"path": "it's long"})
	if got != "first\n\n[Showing lines 1-1 of 3. Use offset=2 to continue.]" {
		t.Errorf("before the long line: %.200q", got)
	}
	got = succeed(t, dir, "read", args{"path": "it's long", "offset": 2})
	if !strings.HasPrefix(got, line[:maxBytes]+"\n\n[Line 2 has 5242881 bytes, shown are the first 51200.") {
		t.Errorf("the long line: ...%.300q", got[min(len(got), maxBytes-10):])
	}
	wantHas(t, got, "Use offset=3 to continue")
	if got := succeed(t, dir, "read", args{"path": "it's long", "offset": 3}); got != "last\n" {
		t.Errorf("behind the long line: %q", got)
	}

	// The way to read on that the result names leads on.
	if _, err := exec.LookPath("sed"); err != nil {
		t.Skip("no sed")
	}
	_, command, _ := strings.Cut(got, "use bash: ")
	command, _, _ = strings.Cut(command, "]")
	r := callTool(t, context.Background(), dir, "bash", args{"command": command + " | tr -d '\\n'"})
	if text := resultText(r); text != line[maxBytes:2*maxBytes] {
		t.Errorf("%s: %d bytes, %.80q", command, len(text), text)
	}
}

func TestReadHugeFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "huge")
	putFile(t, path, "")
	size := int64(1 << 30)
	if runtime.GOOS == "linux" {
		size = 1 << 40 // to read it all takes minutes
	}
	if err := os.Truncate(path, size); err != nil { // a hole: one very long last line
		t.Fatal(err)
	}
	// The lines to read and some text behind them are text, not a hole.
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(bytes.Repeat([]byte("a line of text\n"), 1<<20), 0); err != nil {
		t.Fatal(err)
	}
	f.Close()
	start := time.Now()
	got := succeed(t, dir, "read", args{"path": "huge", "offset": 1, "limit": 5})
	if took := time.Since(start); took > limit(50*time.Millisecond) {
		t.Errorf("took %v", took)
	}
	if want := strings.Repeat("a line of text\n", 5) + fmt.Sprintf("\n[Showing lines 1-5 of a file of %d bytes. Use offset=6 to continue.]", size); got != want {
		t.Errorf("got %q", got)
	}
}

func TestReadStops(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs a file without end")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "huge")
	putFile(t, path, "text")
	os.Truncate(path, 1<<40)
	f, _ := os.OpenFile(path, os.O_WRONLY, 0)
	f.WriteAt(bytes.Repeat([]byte("text "), 2000), 0)
	f.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	r := callTool(t, ctx, dir, "read", args{"path": "huge", "offset": 2})
	if !r.isError || time.Since(start) > limit(2*time.Second) {
		t.Errorf("after %v: %s", time.Since(start), resultText(r))
	}
}

// Special files are refused by all tools at once, without being opened.
func TestSpecialFiles(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no FIFOs on Windows")
	}
	dir := t.TempDir()
	if out, err := exec.Command("mkfifo", filepath.Join(dir, "fifo")).CombinedOutput(); err != nil {
		t.Skipf("mkfifo: %v %s", err, out)
	}
	start := time.Now()
	for _, path := range []string{"fifo", "/dev/zero"} {
		for _, text := range []string{
			refuse(t, dir, "read", args{"path": path}),
			refuse(t, dir, "write", args{"path": path, "content": "x"}),
			refuse(t, dir, "edit", oneEdit(path, "a", "b")),
		} {
			wantHas(t, text, "is not a regular file")
		}
	}
	wantHas(t, refuse(t, dir, "write", args{"path": ".", "content": "x"}), "is a directory")
	wantHas(t, refuse(t, dir, "edit", oneEdit(".", "a", "b")), "is a directory")
	if took := time.Since(start); took > limit(time.Second) {
		t.Errorf("took %v", took)
	}
	onlyFiles(t, dir, "fifo")
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	if got := succeed(t, dir, "write", args{"path": "sub/deep/b.txt", "content": "hello world\n"}); got != "Successfully wrote 12 bytes to sub/deep/b.txt" {
		t.Errorf("%q", got)
	}
	path := filepath.Join(dir, "sub", "deep", "b.txt")
	if got := fileText(t, path); got != "hello world\n" {
		t.Errorf("content %q", got)
	}
	succeed(t, dir, "write", args{"path": "sub/deep/b.txt", "content": ""})
	if got := fileText(t, path); got != "" {
		t.Errorf("content %q, want none", got)
	}
	wantHas(t, refuse(t, dir, "write", args{"path": "sub/deep/b.txt/c", "content": ""}), "could not write")
	onlyFiles(t, filepath.Dir(path), "b.txt")
}

func TestModesAndLinks(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no mode bits on Windows")
	}
	dir := t.TempDir()
	mode := func(name string) fs.FileMode {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	for _, want := range []fs.FileMode{0o755, 0o640, 0o600, 0o666} {
		name := fmt.Sprintf("f%o", want)
		putFile(t, filepath.Join(dir, name), "old text")
		os.Chmod(filepath.Join(dir, name), want)
		succeed(t, dir, "edit", oneEdit(name, "old", "new"))
		if mode(name) != want {
			t.Errorf("edit: mode %o became %o", want, mode(name))
		}
		succeed(t, dir, "write", args{"path": name, "content": "x"})
		if mode(name) != want {
			t.Errorf("write: mode %o became %o", want, mode(name))
		}
	}

	// A new file gets what the umask leaves of 0644, as the shell's > does of 0666.
	shell := exec.Command("sh", "-c", "umask 027; exec \"$0\" -test.run=^TestHelperWrite$")
	shell.Args[0] = "sh"
	shell.Args = append(shell.Args, os.Args[0])
	shell.Env = append(os.Environ(), "ZOT_TEST_WRITE="+filepath.Join(dir, "masked"))
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("helper: %v\n%s", err, out)
	}
	if mode("masked") != 0o640 {
		t.Errorf("new file under umask 027: mode %o", mode("masked"))
	}

	putFile(t, filepath.Join(dir, "readonly"), "old")
	os.Chmod(filepath.Join(dir, "readonly"), 0o444)
	wantHas(t, refuse(t, dir, "write", args{"path": "readonly", "content": "new"}), "read-only")
	wantHas(t, refuse(t, dir, "edit", oneEdit("readonly", "old", "new")), "read-only")
	if got := fileText(t, filepath.Join(dir, "readonly")); got != "old" || mode("readonly") != 0o444 {
		t.Errorf("read-only file: %q, mode %o", got, mode("readonly"))
	}

	// A symbolic link stays one; its target is written.
	os.Mkdir(filepath.Join(dir, "real"), 0o755)
	putFile(t, filepath.Join(dir, "real", "target"), "old")
	os.Symlink("real/target", filepath.Join(dir, "link"))
	succeed(t, dir, "edit", oneEdit("link", "old", "new"))
	if info, err := os.Lstat(filepath.Join(dir, "link")); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v", err)
	}
	if got := fileText(t, filepath.Join(dir, "real", "target")); got != "new" {
		t.Errorf("target %q", got)
	}
	onlyFiles(t, filepath.Join(dir, "real"), "target")
	os.Symlink("nowhere", filepath.Join(dir, "dangling"))
	wantHas(t, refuse(t, dir, "write", args{"path": "dangling", "content": "x"}), "symbolic link")

	// In a setgid directory the group stays, and so does the bit.
	os.Chmod(filepath.Join(dir, "real"), 0o755|fs.ModeSetgid)
	succeed(t, dir, "write", args{"path": "real/target", "content": "x"})
	if info, _ := os.Stat(filepath.Join(dir, "real")); info.Mode()&fs.ModeSetgid == 0 {
		t.Error("the directory lost its setgid bit")
	}
}

func TestHelperWrite(t *testing.T) {
	path := os.Getenv("ZOT_TEST_WRITE")
	if path == "" {
		t.Skip("a helper of TestModesAndLinks")
	}
	succeed(t, "/", "write", args{"path": path, "content": "x"})
}

func TestEdit(t *testing.T) {
	type edits = []args
	for _, c := range []struct {
		name, old string
		edits     edits
		want      string
	}{
		{"mixed line ends", "a\r\nb\nc", edits{{"oldText": "c", "newText": "C"}}, "a\r\nb\nC"},
		{"first line of mixed", "a\r\nb\nc", edits{{"oldText": "a", "newText": "A"}}, "A\r\nb\nc"},
		{"across mixed line ends", "a\r\nb\nc\r\nd\n", edits{{"oldText": "a\nb\nc\nd", "newText": "a\nb\nC\nd"}}, "a\r\nb\nC\r\nd\n"},
		{"CR as data", "x\ry\rz\nend\n", edits{{"oldText": "end", "newText": "END"}}, "x\ry\rz\nEND\n"},
		{"CR as data, same line", "x\ry\rz\nend\n", edits{{"oldText": "z\nend", "newText": "Z\nend"}}, "x\ry\rZ\nend\n"},
		{"no final newline", "a\nb", edits{{"oldText": "a", "newText": "A"}}, "A\nb"},
		{"line added at the end without newline", "a\r\nb", edits{{"oldText": "b", "newText": "b\nc"}}, "a\r\nb\r\nc"},
		{"BOM and CRLF", "\ufeffone\r\ntwo\r\nthree\r\nfour\r\n", edits{{"oldText": "one\ntwo\nthree", "newText": "1\n2\n3\n3a"}}, "\ufeff1\r\n2\r\n3\r\n3a\r\nfour\r\n"},
		{"CRLF in the model's text, LF in the file", "a\nb\nc\n", edits{{"oldText": "a\r\nb", "newText": "a\r\nx\r\nb"}}, "a\nx\nb\nc\n"},
		{"line deleted with its CRLF", "a\r\nb\r\nc\r\n", edits{{"oldText": "b\n", "newText": ""}}, "a\r\nc\r\n"},
		{"begins at a line end", "a\r\nb\r\n", edits{{"oldText": "\nb", "newText": ""}}, "a\r\n"},
		{"two edits, in any order", "a b c d\n", edits{{"oldText": "c", "newText": "CC"}, {"oldText": "a", "newText": ""}}, " b CC d\n"},
		{"matched against the original", "a\nb\n", edits{{"oldText": "a", "newText": "b"}, {"oldText": "b", "newText": "a"}}, "b\na\n"},
		{"adjacent", "abcd", edits{{"oldText": "ab", "newText": "1"}, {"oldText": "cd", "newText": "2"}}, "12"},
		{"everything deleted", "abc", edits{{"oldText": "abc", "newText": ""}}, ""},
		{"bad bytes elsewhere", "caf\xe9\nend \xff\n", edits{{"oldText": "end", "newText": "END"}}, "caf\xe9\nEND \xff\n"},
		{"regexp characters", "a.b(c)[d]\nx", edits{{"oldText": "a.b(c)[d]", "newText": "$1 \\0"}}, "$1 \\0\nx"},
		{"trailing blanks", "if x {  \n\ty()\t\n}\n", edits{{"oldText": "if x {\n\ty()\n}", "newText": "if z {\n}"}}, "if z {\n}\n"},
		{"trailing blanks in the model's text", "a\nb\n", edits{{"oldText": "a  \nb", "newText": "A\nb"}}, "A\nb\n"},
		{"typographic characters", "say “hi” – it’s\u00a0ok\r\n", edits{{"oldText": "say \"hi\" - it's ok", "newText": "bye"}}, "bye\r\n"},
		{"typographic in the model's text", "say \"hi\"\n", edits{{"oldText": "say “hi”", "newText": "bye"}}, "bye\n"},
		{"exact before loose", "it’s\nit's\n", edits{{"oldText": "it's", "newText": "X"}}, "it’s\nX\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "a.txt")
			putFile(t, path, c.old)
			text := succeed(t, dir, "edit", args{"path": "a.txt", "edits": c.edits})
			wantHas(t, text, fmt.Sprintf("Successfully replaced %d block(s) in a.txt.", len(c.edits)))
			if got := fileText(t, path); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			onlyFiles(t, dir, "a.txt")
		})
	}
}

func TestEditAtTop(t *testing.T) {
	dir := t.TempDir()
	putFile(t, filepath.Join(dir, "a.txt"), "a b")
	succeed(t, dir, "edit", args{"path": "a.txt", "oldText": "a", "newText": "c"})
	if got := fileText(t, filepath.Join(dir, "a.txt")); got != "c b" {
		t.Errorf("%q", got)
	}
}

func TestEditRefusals(t *testing.T) {
	dir := t.TempDir()
	const content = "one\ntwo two\n  three\n  three b\naaa\ncaf\xe9\n"
	putFile(t, filepath.Join(dir, "a.txt"), content)
	for _, c := range []struct {
		args args
		want []string
	}{
		{oneEdit("a.txt", "nothing", "x"), []string{"Could not find the exact text in a.txt", "read the file again"}},
		{oneEdit("a.txt", "three\n\tthree b", "x"), []string{"Could not find the exact text in a.txt", "first line is on line 3"}},
		{oneEdit("a.txt", "two", "x"), []string{"Found 2 occurrences of the text in a.txt", "the first on line 2, the last on line 2", "must be unique"}},
		{oneEdit("a.txt", "aa", "x"), []string{"Found 2 occurrences"}},
		{oneEdit("a.txt", "one", "one"), []string{"No changes made to a.txt"}},
		{oneEdit("a.txt", "caf\ufffd", "x"), []string{"Could not find the exact text"}},
		{oneEdit("a.txt", "   \n", "x"), []string{"Could not find the exact text"}},
		{oneEdit("none.txt", "one", "x"), []string{"ENOENT: no such file or directory"}},
		{args{"path": "a.txt", "edits": []args{{"oldText": "one\ntwo", "newText": "x"}, {"oldText": "two two", "newText": "y"}}}, []string{"Two edits overlap in a.txt on line 2"}},
		{args{"path": "a.txt", "edits": []args{{"oldText": "one", "newText": "x"}, {"oldText": "gone", "newText": "y"}}}, []string{"edits[1]: Could not find the exact text in a.txt"}},
	} {
		wantHas(t, refuse(t, dir, "edit", c.args), c.want...)
	}
	if got := fileText(t, filepath.Join(dir, "a.txt")); got != content {
		t.Errorf("a refused edit changed the file: %q", got)
	}
	onlyFiles(t, dir, "a.txt")
}

func TestEditDiff(t *testing.T) {
	for _, c := range []struct {
		name, old string
		edits     []args
		line      int
		want      string
	}{
		{"one line", numbers(1, 9), []args{{"oldText": "5", "newText": "five"}}, 5,
			"@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n"},
		{"two places", numbers(1, 30), []args{{"oldText": "20\n", "newText": ""}, {"oldText": "2\n3\n", "newText": "2\n2a\n2b\n3\n"}}, 3,
			"@@ -1,5 +1,7 @@\n 1\n 2\n+2a\n+2b\n 3\n 4\n 5\n@@ -17,7 +19,6 @@\n 17\n 18\n 19\n-20\n 21\n 22\n 23\n"},
		{"near each other", "a\nb\nc\nd\n", []args{{"oldText": "a", "newText": "A"}, {"oldText": "c", "newText": "C"}}, 1,
			"@@ -1,4 +1,4 @@\n-a\n-b\n-c\n+A\n+b\n+C\n d\n"},
		{"five lines apart", numbers(1, 9), []args{{"oldText": "2", "newText": "two"}, {"oldText": "7", "newText": "seven"}}, 2,
			"@@ -1,9 +1,9 @@\n 1\n-2\n-3\n-4\n-5\n-6\n-7\n+two\n+3\n+4\n+5\n+6\n+seven\n 8\n 9\n"},
		{"one line twice", "a b\n", []args{{"oldText": "a", "newText": "A"}, {"oldText": "b", "newText": "B"}}, 1,
			"@@ -1,1 +1,1 @@\n-a b\n+A B\n"},
		{"raw bytes", "\ufeffa\r\nb", []args{{"oldText": "b", "newText": "c\n"}}, 2,
			"@@ -1,2 +1,2 @@\n \ufeffa\r\n-b\n\\ No newline at end of file\n+c\r\n"},
		{"lines joined", "a\nb\nc\n", []args{{"oldText": "a\nb", "newText": "a b"}}, 1,
			"@@ -1,3 +1,2 @@\n-a\n-b\n+a b\n c\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "a.txt")
			putFile(t, path, c.old)
			r := callTool(t, context.Background(), dir, "edit", args{"path": "a.txt", "edits": c.edits})
			d, ok := r.details.(editDetails)
			if !ok {
				t.Fatalf("no details: %s", resultText(r))
			}
			if want := "--- a.txt\n+++ a.txt\n" + c.want; d.Diff != want || d.FirstChangedLine != c.line {
				t.Errorf("line %d, diff:\n%q\nwant line %d:\n%q", d.FirstChangedLine, d.Diff, c.line, want)
			}
			// git agrees that the diff leads from the old to the new file.
			if _, err := exec.LookPath("git"); err != nil {
				return
			}
			changed := fileText(t, path)
			putFile(t, path, c.old)
			apply := exec.Command("git", "apply", "-p0", "-")
			apply.Dir, apply.Stdin = dir, strings.NewReader(d.Diff)
			if out, err := apply.CombinedOutput(); err != nil || fileText(t, path) != changed {
				t.Errorf("git apply: %v %s\ngot %q, want %q", err, out, fileText(t, path), changed)
			}
		})
	}
}

func TestEditLargeFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.txt")
	old := strings.Repeat("a line of text\r\n", 1<<18) // 4 MiB
	putFile(t, path, old+"needle\r\n")
	start := time.Now()
	succeed(t, dir, "edit", oneEdit("a.txt", "text\nneedle", "text\nthread"))
	if fileText(t, path) != old+"thread\r\n" {
		t.Error("wrong content")
	}
	wantHas(t, refuse(t, dir, "edit", oneEdit("a.txt", "line", "x")), fmt.Sprintf("Found %d occurrences", 1<<18))
	refuse(t, dir, "edit", oneEdit("a.txt", strings.Repeat("a line of text\n", 60_000)+"x", "x"))
	if took := time.Since(start); took > limit(3*time.Second) && !raceDetector() {
		t.Errorf("took %v", took)
	}
}

// A file on a full disk keeps its content, and no temporary file is left.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if runtime.GOOS != "linux" || exec.Command("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", dir).Run() != nil {
		t.Skip("cannot mount a small tmpfs here (needs Linux and root)")
	}
	defer exec.Command("umount", dir).Run()
	path := filepath.Join(dir, "a.txt")
	old := strings.Repeat("text", 5000)
	putFile(t, path, old)
	wantHas(t, refuse(t, dir, "write", args{"path": "a.txt", "content": strings.Repeat("x", 100_000)}), "no space left")
	wantHas(t, refuse(t, dir, "write", args{"path": "new.txt", "content": strings.Repeat("x", 100_000)}), "no space left")
	// In place, where the directory takes no temporary file, the old content is put back.
	if err := overwrite(path, bytes.Repeat([]byte("x"), 100_000)); err == nil {
		t.Error("overwrite reported success")
	}
	if got := fileText(t, path); got != old {
		t.Errorf("the old content is gone: %d bytes", len(got))
	}
	onlyFiles(t, dir, "a.txt")
}

// A directory that takes no other file: the file is written in place.
func TestWriteInPlace(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no directory modes on Windows")
	}
	dir := t.TempDir()
	putFile(t, filepath.Join(dir, "a.txt"), "old text")
	var err error
	if os.Getuid() == 0 { // root is not stopped by modes, but by a mount point
		putFile(t, filepath.Join(dir, "source"), "old text")
		err = exec.Command("mount", "--bind", filepath.Join(dir, "source"), filepath.Join(dir, "a.txt")).Run()
		defer exec.Command("umount", filepath.Join(dir, "a.txt")).Run()
	} else {
		err = os.Chmod(dir, 0o555)
		defer os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Skipf("cannot protect a file from being replaced here: %v", err)
	}
	succeed(t, dir, "edit", oneEdit("a.txt", "old", "new"))
	if got := fileText(t, filepath.Join(dir, "a.txt")); got != "new text" {
		t.Errorf("%q", got)
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".zot") {
			t.Errorf("temporary file left: %s", e.Name())
		}
	}
}

// Whenever a writer is killed, the file is the old or the new one.
func TestKilledWriter(t *testing.T) {
	dir := t.TempDir()
	if path := os.Getenv("ZOT_TEST_KILLED"); path != "" {
		for i := 0; ; i++ {
			succeed(t, "/", "write", args{"path": path, "content": strings.Repeat(string(rune('a'+i%26)), 200_000)})
		}
	}
	path := filepath.Join(dir, "a.txt")
	putFile(t, path, strings.Repeat("a", 200_000))
	for i := range 10 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledWriter$")
		cmd.Env = append(os.Environ(), "ZOT_TEST_KILLED="+path)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(30+i*3) * time.Millisecond) // any moment will do
		cmd.Process.Kill()
		cmd.Wait()
		got := fileText(t, path)
		if len(got) != 200_000 || strings.Trim(got, got[:1]) != "" {
			t.Fatalf("a torn file: %d bytes", len(got))
		}
	}
}
