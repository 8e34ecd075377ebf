package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"
)

// double plays a provider: it answers the n-th request with the n-th answer
// (the last one again when there are no more) and keeps what it was sent.
type double struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
	bodies   []object
	answers  []answer
}

// answer is a status, headers and a body; a status of 0 is 200 with an event
// stream. write, when set, sends the body itself.
type answer struct {
	status int
	header map[string]string
	body   string
	write  func(w http.ResponseWriter, r *http.Request)
}

func newDouble(t testing.TB, answers ...answer) *double {
	t.Helper()
	d := &double{answers: answers}
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		body, err := parseObject(raw)
		if err != nil {
			t.Errorf("the request is %v: %q", err, raw)
		}
		d.mu.Lock()
		d.requests = append(d.requests, r)
		d.bodies = append(d.bodies, body)
		a := d.answers[min(len(d.requests), len(d.answers))-1]
		d.mu.Unlock()
		for k, v := range a.header {
			w.Header().Set(k, v)
		}
		if a.write != nil {
			a.write(w, r)
			return
		}
		if a.status == 0 {
			if w.Header().Get("Content-Type") == "" {
				w.Header().Set("Content-Type", "text/event-stream")
			}
			a.status = http.StatusOK
		}
		w.WriteHeader(a.status)
		io.WriteString(w, a.body)
	}))
	t.Cleanup(d.Close)
	return d
}

// sent returns the n-th request's body.
func (d *double) sent(n int) object {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bodies[n]
}

func (d *double) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.requests)
}

// catalogModel is a copy of a built-in model that calls the double.
func catalogModel(t testing.TB, provider, id, baseURL string) *Model {
	t.Helper()
	c, err := loadCatalog(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.provider(provider)
	if err != nil {
		t.Fatal(err)
	}
	m, err := p.model(id)
	if err != nil {
		t.Fatal(err)
	}
	own := *m
	own.BaseURL = baseURL
	return &own
}

// callModel makes one call with a key and returns the message, the deltas as
// "phase index text" lines, and the error.
func callModel(t testing.TB, r *request) (*Message, []string, error) {
	t.Helper()
	p := newHTTPProvider(r.model, func() (string, error) { return "sk-secret", nil }, timeouts{})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var deltas []string
	msg, err := p.call(ctx, r, func(d delta) {
		deltas = append(deltas, fmt.Sprintf("%s %d %s", d.phase, d.index, d.text))
	})
	return msg, deltas, err
}

func userText(s string) *Message {
	return &Message{Role: "user", Content: []Block{{Type: "text", Text: s}}, Time: time.Now()}
}

func TestSSEHoweverItIsCut(t *testing.T) {
	want := []string{"a|1", "|2\n3", "é|x\u2028y", "error|{\"m\":1}", "last|9"}
	for _, eol := range []string{"\n", "\r\n", "\r"} {
		for _, space := range []string{"", " "} {
			for _, head := range []string{"", "\ufeff", ": comment\n", "\n\n"} {
				lines := []string{"event:_a", "data:_1", "", ":_ping", "id:_7", "retry:_5", "data:_2", "data:_3", "", "event:_dropped", "",
					"event:_é", "data:_x\u2028y", "", "error:_{\"m\":1}", "", "event:_last", "data:_9"}
				stream := strings.ReplaceAll(head, "\n", eol) + strings.ReplaceAll(strings.Join(lines, eol), ":_", ":"+space)
				for cut := 0; cut <= len(stream); cut++ {
					r := io.MultiReader(strings.NewReader(stream[:cut]), strings.NewReader(stream[cut:]))
					if got := readEvents(t, r); !slices.Equal(got, want) {
						t.Fatalf("%q cut at %d: %q", stream, cut, got)
					}
				}
				if got := readEvents(t, iotest.OneByteReader(strings.NewReader(stream))); !slices.Equal(got, want) {
					t.Fatalf("%q byte by byte: %q", stream, got)
				}
			}
		}
	}
}

func readEvents(t *testing.T, r io.Reader) (events []string) {
	s := newSSEReader(r)
	for {
		name, data, err := s.next()
		if err == io.EOF {
			return events
		}
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, name+"|"+string(data))
	}
}

func TestSSEPlainJSON(t *testing.T) {
	got := readEvents(t, strings.NewReader("\n{\n \"error\": 1\r\n}"))
	if want := []string{"json|{\n \"error\": 1\n}"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestSSELongLine(t *testing.T) {
	long := strings.Repeat("x", 16<<20)
	got := readEvents(t, strings.NewReader("data: "+long+"\n\n"))
	if len(got) != 1 || got[0] != "|"+long {
		t.Error("a line of 16 MiB was not read whole")
	}
	s := newSSEReader(io.MultiReader(strings.NewReader("data: "), &endless{}))
	if _, _, err := s.next(); err == nil || !strings.Contains(err.Error(), "64 MiB") {
		t.Errorf("an endless line: %v", err)
	}
}

type endless struct{}

func (*endless) Read(b []byte) (int, error) {
	copy(b, bytes.Repeat([]byte("x"), len(b)))
	return len(b), nil
}

// wireBody is a request's body in one piece.
func wireBody(w wireFormat, r *request) []byte { return bytes.Join(w.body(r), nil) }
