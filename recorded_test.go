// Recorded provider streams with their expected results, and the checks that
// all three wire formats share.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// recordedStream is one recorded response body and what it means according to
// an independent parser.
type recordedStream struct {
	name     string
	sse      []byte
	expected struct {
		Text, Thinking string
		Refusal        *string
		ToolCalls      []struct {
			Name, Kind string
			Args       any // nil when they were cut
		} `json:"tool_calls"`
		Stop       string
		StopAccept []string `json:"stop_accept"`
		Usage      struct {
			Input         *int
			InputUncached *int `json:"input_uncached"`
			Output        *int
		}
		Error any
	}
}

// recordedStreams reads the recordings of one api (as models.txt spells it)
// from $ZOT_STREAMS. They are not part of the repository: without them the
// test is skipped.
func recordedStreams(t *testing.T, api string) []recordedStream {
	t.Helper()
	dir := cmp.Or(os.Getenv("ZOT_STREAMS"), "../shared/streams")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("no recorded streams: %v (set ZOT_STREAMS)", err)
	}
	if api == "openai-completions" {
		api = "openai-chat"
	}
	var streams []recordedStream
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		name, isMeta := strings.CutSuffix(path, ".json")
		if err != nil || !isMeta {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		s := recordedStream{name: strings.TrimPrefix(name, dir+"/")}
		meta := struct {
			API      string
			Expected any
		}{Expected: &s.expected}
		if err := json.Unmarshal(raw, &meta); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if meta.API != api {
			return nil
		}
		s.sse, err = os.ReadFile(name + ".sse")
		streams = append(streams, s)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(streams) == 0 {
		t.Fatalf("no streams of %s in %s", api, dir)
	}
	return streams
}

// checkRecorded compares a decoded stream with what was expected of it.
func checkRecorded(t *testing.T, s recordedStream, msg *Message, err error) {
	t.Helper()
	e := s.expected
	stop := msg.Stop
	if err != nil {
		stop = "error"
	}
	if accepted := acceptedStops(s); !slices.Contains(accepted, stop) {
		t.Errorf("stop %q (%v), want one of %q", stop, err, accepted)
	}
	text := strings.TrimSpace(messageText(msg, "text"))
	refused := e.Refusal != nil && text == strings.TrimSpace(e.Text+*e.Refusal)
	if stop != "error" && text != strings.TrimSpace(e.Text) && !refused {
		t.Errorf("text %q, want %q", text, e.Text)
	}
	if e.Stop == "tool_use" {
		checkRecordedCalls(t, s, msg)
	} else if slices.Contains([]string{"length", "truncated", "error"}, e.Stop) && stop == "tool_use" {
		for _, b := range msg.Content {
			if b.Type == "tool_call" && b.BadArgs == "" {
				t.Errorf("the unfinished call of %s would run", b.Name)
			}
		}
	}
	if u := msg.Usage; u != nil && e.Usage.Input != nil && stop != "error" {
		in := []int{*e.Usage.Input}
		if n := e.Usage.InputUncached; n != nil {
			in = append(in, max(0, *n))
		}
		if !slices.Contains(in, u.Input) || e.Usage.Output == nil || u.Output != *e.Usage.Output {
			t.Errorf("usage %+v, want input %v and output as in %s", *u, in, encode(e.Usage))
		}
	}
}

// acceptedStops lists the values of Stop that are right for a recorded stream.
// "error" stands for a call that failed.
func acceptedStops(s recordedStream) (accepted []string) {
	ours := map[string][]string{
		"end":            {"end_turn"},
		"stop":           {"end_turn"},
		"stop_sequence":  {"end_turn"},
		"pause_turn":     {"end_turn", "tool_use", "pause_turn"},
		"refusal":        {"error", "end_turn"},
		"content_filter": {"error", "end_turn"},
		"truncated":      {"error"},
	}
	for _, stop := range append(s.expected.StopAccept, s.expected.Stop) {
		if our, ok := ours[stop]; ok {
			accepted = append(accepted, our...)
		} else {
			accepted = append(accepted, stop)
		}
	}
	return accepted
}

// checkRecordedCalls compares the tool calls that are the client's to run.
func checkRecordedCalls(t *testing.T, s recordedStream, msg *Message) {
	t.Helper()
	var got, want []string
	for _, b := range msg.Content {
		if b.Type == "tool_call" && b.BadArgs != "" {
			got = append(got, b.Name+" cut")
		} else if b.Type == "tool_call" {
			var args any
			if err := json.Unmarshal(b.Args, &args); err != nil {
				t.Errorf("arguments of %s: %v", b.Name, err)
			}
			got = append(got, b.Name+" "+string(encode(args)))
		}
	}
	for _, c := range s.expected.ToolCalls {
		if c.Kind != "function" && c.Kind != "" {
			continue
		}
		if c.Args == nil {
			want = append(want, c.Name+" cut")
		} else {
			want = append(want, c.Name+" "+string(encode(c.Args)))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
}

// messageText joins the text of all blocks of one type.
func messageText(m *Message, typ string) string {
	var text strings.Builder
	for _, b := range m.Content {
		if b.Type == typ {
			text.WriteString(b.Text)
		}
	}
	return text.String()
}

// decodeStream reads a response body as httpProvider does, and checks that the
// deltas tell the same as the message: each block starts once and ends once,
// and its deltas add up to it.
func decodeStream(t *testing.T, w wireFormat, r *request, body io.Reader) (*Message, error) {
	t.Helper()
	type seen struct {
		text  bytes.Buffer
		ended bool
	}
	var blocks []*seen
	a := &assembler{msg: &Message{Role: "assistant", Time: time.UnixMilli(3), Provider: r.model.Provider, Model: r.model.ID}}
	a.on = func(d delta) {
		if d.phase == "start" {
			blocks = append(blocks, &seen{})
			if d.index != len(blocks)-1 {
				t.Errorf("block %d starts as number %d", len(blocks)-1, d.index)
			}
			return
		}
		b := blocks[d.index]
		if b.ended {
			t.Errorf("%q of block %d after its end", d.phase, d.index)
		}
		b.text.Write(d.text)
		b.ended = d.phase == "end"
	}
	err := read(&guard{body: body}, w.parser(a), 0)
	a.finish()
	var pe *providerError
	if err != nil && !errors.As(err, &pe) {
		err = networkError(err)
	}
	// An answer that the server began anew leaves its first blocks behind.
	if blocks = blocks[max(0, len(blocks)-len(a.msg.Content)):]; len(blocks) < len(a.msg.Content) {
		t.Fatalf("%d blocks were announced, the message has %d", len(blocks), len(a.msg.Content))
	}
	for i, b := range a.msg.Content {
		if !blocks[i].ended {
			t.Errorf("block %d has no end", i)
		}
		if got := blocks[i].text.String(); (b.Type == "text" || b.Type == "thinking") && got != b.Text {
			t.Errorf("block %d: the deltas say %q, the message %q", i, got, b.Text)
		}
	}
	return a.msg, err
}

// sameMessage reports whether two decodings of a stream agree.
func sameMessage(a, b *Message) bool {
	return a.Stop == b.Stop && a.RawStop == b.RawStop &&
		reflect.DeepEqual(a.Usage, b.Usage) && reflect.DeepEqual(a.Content, b.Content)
}

// TestReplay runs the recorded streams through the built binary with the tool
// that lies beside them, whole and in small pieces.
func TestReplay(t *testing.T) {
	const known = "_synthetic/openai/vercel-ai--openai-shell-container.1" // its deltas contradict its final text
	tool := filepath.Join("..", "shared", "tools", "replay.py")
	if _, err := os.Stat(tool); err != nil {
		t.Skip("the recorded streams are not here")
	}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed")
	}
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	for _, chunk := range []string{"0", "7"} {
		t.Run("chunk "+chunk, func(t *testing.T) {
			t.Parallel()
			out, _ := exec.Command("python3", tool, zotBin, filepath.Join("..", "shared", "streams"), "--chunk", chunk).CombinedOutput()
			for line := range strings.Lines(string(out)) {
				if !strings.HasPrefix(line, known) && !strings.Contains(line, "recorded streams right") {
					t.Error(line)
				}
			}
			if !strings.Contains(string(out), "recorded streams right") {
				t.Errorf("it did not finish: %s", out)
			}
		})
	}
}
