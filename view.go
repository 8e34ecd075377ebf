// What the terminal host shows in the live area: what goes on, above what has
// the focus (a question, a list, a panel or the editor), above the status row.
// It only looks at the state; each part is cut to what the terminal has room for.
package main

import (
	"fmt"
	"strings"
	"time"
)

// draw brings the screen up to date.
func (t *tui) draw() error {
	t.dirty, t.drawn = false, time.Now()
	rows, row, col := t.view()
	err := t.screen.paint(rows, row, col)
	if t.ask != nil && t.calm.IsZero() {
		t.calm = time.Now()
	}
	return err
}

var spinner = []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")

func (t *tui) spin() string {
	return string(spinner[int(time.Since(t.since)/spinTime)%len(spinner)])
}

// view is the live area. row and col are the cursor's.
func (t *tui) view() (rows []string, row, col int) {
	var focus []string
	switch {
	case t.asks():
		focus, row, col = t.viewAsk()
	case t.pick != nil:
		focus, row, col = t.pick.view(&t.screen, max(3, t.screen.height/2))
	case len(t.panels) > 0:
		focus, row, col = t.viewPanel(t.panels[len(t.panels)-1])
	default:
		focus, row, col = t.viewEditor()
	}
	focus = append(focus, t.status())
	above := t.above()
	if room := max(0, t.screen.height-len(focus)); len(above) > room {
		above = above[len(above)-room:]
	}
	if cut := len(focus) - t.screen.height; cut > 0 { // a very low terminal
		focus, row = focus[cut:], max(0, row-cut)
	}
	return append(above, focus...), len(above) + row, col
}

// above is what goes on: the line of the answer that is being written, running
// calls, notes, the queue.
func (t *tui) above() (rows []string) {
	s := &t.screen
	if t.rest != "" {
		md := t.md
		rows = append(rows, s.rows(md.line(t.rest))...)
	}
	if t.thinking != "" {
		lines := strings.Split(strings.TrimSpace(t.thinking), "\n")
		rows = append(rows, s.row("thinking: "+lines[len(lines)-1], asMuted))
	}
	for _, c := range t.calls {
		rows = append(rows, s.cut(t.callLine(t.spin()+" ", asAccent, c)))
		if text := strings.TrimRight(t.progress[c.ID], "\n"); text != "" {
			lines := strings.Split(text, "\n")
			for _, line := range lines[max(0, len(lines)-progressRows):] {
				rows = append(rows, s.row("  "+line, asMuted))
			}
		}
	}
	rows = append(rows, "")
	for _, f := range t.failures {
		rows = append(rows, s.lines("", f, asFailure)...)
	}
	for _, n := range t.notes {
		rows = append(rows, s.lines("", n.text, n.style)...)
	}
	for _, q := range t.queue {
		rows = append(rows, s.row("next: "+oneLine(q.text), asMuted))
	}
	if t.ask != nil {
		question := appendCells(nil, "Run "+t.ask.Call.Name+"? ", asWarning, 0)
		rows = append(rows, s.rows(appendCells(question, t.ask.Text, asPlain, 0), 2, true)...)
	}
	return rows
}

func (t *tui) viewEditor() (rows []string, row, col int) {
	rows, row, col = t.editorRows(&t.editor, max(1, t.screen.height/2))
	offers := t.offers
	if len(offers) == 0 {
		for _, c := range t.beginning(t.editor.text) {
			if c[0] != t.editor.text {
				offers = append(offers, fmt.Sprintf("%-16s %s", c[0], oneLine(c[1])))
			}
		}
	}
	const shown = 6
	first := max(0, min(t.offer-shown/2, len(offers)-shown))
	for i, o := range offers[min(first, len(offers)):] {
		if i == shown {
			rows = append(rows, t.screen.row(fmt.Sprintf("  … %d more", len(offers)-first-i), asMuted))
			break
		}
		st := asMuted
		if len(t.offers) > 0 && first+i == t.offer {
			st = asAccent
		}
		rows = append(rows, t.screen.row("  "+o, st))
	}
	return rows, row, col
}

// editorRows shows an editor behind its mark, at most limit rows of it.
func (t *tui) editorRows(e *editor, limit int) (rows []string, row, col int) {
	all, row, col := e.rows(t.screen.width - 2)
	first := max(0, min(row-limit/2, len(all)-limit))
	for _, r := range all[first:min(first+limit, len(all))] {
		mark := "  "
		if r.from == 0 {
			mark = "› "
		}
		rows = append(rows, t.screen.theme.row(append(appendCells(nil, mark, asAccent, 0), r.cells...), 0))
	}
	return rows, row - first, col + 2
}

func (t *tui) viewPanel(p *panel) (rows []string, row, col int) {
	rows = append(rows, t.screen.row(p.Title, asHeading))
	room := max(1, t.screen.height-4)
	for _, line := range p.Lines[:min(len(p.Lines), room)] {
		rows = append(rows, t.screen.row(line, asPlain))
	}
	if p.Footer != "" {
		rows = append(rows, t.screen.row(p.Footer, asMuted))
	}
	return rows, len(rows), 0 // on the status row
}

func (t *tui) viewAsk() (rows []string, row, col int) {
	if t.reason != nil {
		rows = append(rows, t.screen.lines("", "Why not? The model is told. enter: no", asMuted)...)
		editor, row, col := t.editorRows(t.reason, 3)
		return append(rows, editor...), len(rows) + row, col
	}
	rows = append(rows, t.screen.lines("", "y yes   t always "+t.ask.Call.Name+"   a always   n no   esc stop", asMuted)...)
	return rows, len(rows), 0
}

// status is the last row.
func (t *tui) status() string {
	a := t.agent
	a.mu.Lock()
	chosen, yolo, cost := a.chosen(), a.approval.allowed["*"], a.usage.Cost.Total
	a.mu.Unlock()
	model := chosen.model
	parts := []string{model.ID}
	if level := levelName(model, chosen.reasoning); level != "off" {
		parts = append(parts, level)
	}
	if model.ContextWindow > 0 {
		parts = append(parts, fmt.Sprintf("%d%% of %dk", t.context*100/model.ContextWindow, model.ContextWindow/1000))
	}
	parts = append(parts, fmt.Sprintf("$%.4f", cost))
	if !yolo {
		parts = append(parts, "asks")
	}
	var cells []cell
	if t.busy {
		cells = appendCells(nil, fmt.Sprintf("%s %ds ", t.spin(), int(time.Since(t.since).Seconds())), asAccent, 0)
	}
	return t.screen.cut(appendCells(cells, strings.Join(parts, " · "), asMuted, 0))
}
