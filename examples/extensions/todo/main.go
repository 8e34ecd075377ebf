// todo keeps a to-do list: /todo opens it in a panel for you, the tool todo
// opens it to the model. The list is a file in the extension's data directory.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"zot/packages/agent/ext"
)

const (
	panelID = "todos-main"
	browse  = "↑/↓ navigate - a add - x complete - d delete - esc close"
	adding  = "type the new item - enter add - backspace on nothing: back"
)

var schema = json.RawMessage(`{
	"type": "object",
	"properties": {
		"action": {"type": "string", "enum": ["list", "add", "complete"]},
		"text": {"type": "string", "description": "of add: the new item"},
		"number": {"type": "integer", "description": "of complete: which item, 1 is the first"}
	},
	"required": ["action"]
}`)

type item struct {
	Text string `json:"text"`
	Done bool   `json:"done"`
}

// list is the to-do list and what the panel shows of it. The tool and the panel
// keys come at the same time, so all is behind one lock.
type list struct {
	mu     sync.Mutex
	path   string
	items  []item
	open   bool
	cursor int
	input  *string // the item being typed, nil while browsing
}

func main() {
	e := ext.New("todo", "1.0.0")
	l := &list{}

	e.OnHello(func(host ext.HostInfo) {
		l.path = filepath.Join(host.DataDir, "todos.json")
		if err := l.load(); err != nil {
			log.Fatal(err) // a list that cannot be read must not be overwritten
		}
	})
	e.Command("todo", "show the to-do list", func(string) ext.Response {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open, l.input = true, nil
		lines, footer := l.view()
		return ext.OpenPanel(panelID, "Todos", lines, footer)
	})
	e.Tool("todo", "List the user's to-do items, add one, or mark one as done.", schema, func(args json.RawMessage) ext.ToolResult {
		result := l.call(args)
		l.show(e)
		return result
	})
	e.OnPanelKey(func(_, key, text string) {
		if err := l.key(key, text); err != nil {
			e.Notify("error", err.Error())
		}
		l.show(e)
	})
	e.OnPanelClose(func(string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open = false
	})

	if err := e.Run(); err != nil {
		log.Fatal(err)
	}
}

// load reads the list; a missing file is an empty one.
func (l *list) load() error {
	data, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &l.items); err != nil {
		return fmt.Errorf("%s: %w", l.path, err)
	}
	return nil
}

// replace makes items the list, on disk first: a list that could not be written
// stays as it was. The file is replaced as a whole.
func (l *list) replace(items []item) error {
	data, err := json.MarshalIndent(items, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(l.path+".new", append(data, '\n'), 0o600); err != nil {
		return err
	}
	if err := os.Rename(l.path+".new", l.path); err != nil {
		return err
	}
	l.items = items
	l.cursor = max(0, min(l.cursor, len(items)-1))
	return nil
}

// with is a copy of the items: replace takes a new list.
func (l *list) with(more ...item) []item {
	return append(append([]item{}, l.items...), more...)
}

// call makes one call of the tool.
func (l *list) call(args json.RawMessage) ext.ToolResult {
	var in struct {
		Action, Text string
		Number       int
	}
	if err := json.Unmarshal(args, &in); err != nil {
		return ext.TextErrorResult(err.Error())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	switch text := strings.TrimSpace(in.Text); {
	case in.Action == "list":
	case in.Action == "add" && text == "":
		err = errors.New("add needs a text")
	case in.Action == "add":
		err = l.replace(l.with(item{Text: text}))
	case in.Action == "complete" && (in.Number < 1 || in.Number > len(l.items)):
		err = fmt.Errorf("there is no item %d: the list has %d", in.Number, len(l.items))
	case in.Action == "complete":
		items := l.with()
		items[in.Number-1].Done = true
		err = l.replace(items)
	default:
		err = fmt.Errorf("unknown action %q: list, add or complete", in.Action)
	}
	if err != nil {
		return ext.TextErrorResult(err.Error())
	}
	if len(l.items) == 0 {
		return ext.TextResult("The list is empty.")
	}
	var b strings.Builder
	for i, it := range l.items {
		fmt.Fprintf(&b, "%d. [%s] %s\n", i+1, mark(it, "x", " "), it.Text)
	}
	return ext.TextResult(b.String())
}

func mark(it item, done, open string) string {
	if it.Done {
		return done
	}
	return open
}

// key does what one key means in the panel.
func (l *list) key(key, text string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.input != nil {
		return l.typed(key, text)
	}
	switch {
	case key == "up":
		l.cursor = max(0, l.cursor-1)
	case key == "down":
		l.cursor = max(0, min(l.cursor+1, len(l.items)-1))
	case text == "a":
		l.input = new(string)
	case text == "x" && len(l.items) > 0:
		items := l.with()
		items[l.cursor].Done = !items[l.cursor].Done
		return l.replace(items)
	case text == "d" && len(l.items) > 0:
		items := l.with()
		return l.replace(append(items[:l.cursor], items[l.cursor+1:]...))
	}
	return nil
}

// typed does what one key means while an item is typed.
func (l *list) typed(key, text string) error {
	switch key {
	case "rune":
		*l.input += text
	case "backspace":
		if *l.input == "" {
			l.input = nil
			break
		}
		runes := []rune(*l.input)
		*l.input = string(runes[:len(runes)-1])
	case "enter":
		added := strings.TrimSpace(*l.input)
		l.input = nil
		if added == "" {
			break
		}
		if err := l.replace(l.with(item{Text: added})); err != nil {
			return err
		}
		l.cursor = len(l.items) - 1
	}
	return nil
}

// view is what the panel shows.
func (l *list) view() (lines []string, footer string) {
	for i, it := range l.items {
		pointer := "  "
		if i == l.cursor && l.input == nil {
			pointer = "> "
		}
		lines = append(lines, pointer+mark(it, "✓ ", "□ ")+it.Text)
	}
	if l.input != nil {
		return append(lines, "> □ "+*l.input+"_"), adding
	}
	if len(lines) == 0 {
		lines = []string{"nothing to do"}
	}
	return lines, browse
}

// show brings an open panel up to date.
func (l *list) show(e *ext.Extension) {
	l.mu.Lock()
	open := l.open
	lines, footer := l.view()
	l.mu.Unlock()
	if open {
		e.RenderPanel(panelID, "Todos", lines, footer)
	}
}
