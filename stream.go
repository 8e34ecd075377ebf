// One streamed model call over HTTP: the request, its time limits, the
// server-sent events, the message being assembled, and what went wrong. The
// rules kept here:
//
//   - A key goes to the host it was meant for: redirects to others are refused.
//   - Events are the same however the bytes are cut. No line is too long below
//     maxEvent.
//   - Waiting for our own reader never counts against the server.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// timeouts limit the silence of a provider; 0 is no limit.
type timeouts struct {
	Headers    float64 `json:"headers_s"`
	FirstEvent float64 `json:"first_event_s"`
	Gap        float64 `json:"gap_s"`
}

var defaultTimeouts = timeouts{Headers: 60, FirstEvent: 300, Gap: 120}

// wireFormat is one vendor API.
type wireFormat struct {
	path string // of a call, behind the base URL
	// header sets what authorizes a call, and what else it needs.
	header func(h http.Header, key string, r *request)
	// body encodes a request, in pieces: what is kept is not copied. Messages keep their encoding in Message.wire.
	body func(r *request) [][]byte
	// parser reads the events of one answer into a.
	parser func(a *assembler) streamParser
}

// bearer is how most vendors take a key; local servers have none.
func bearer(h http.Header, key string, _ *request) {
	if key != "" {
		h.Set("Authorization", "Bearer "+key)
	}
}

// streamParser turns events into an assembled message.
type streamParser interface {
	// event takes one event that looks like a JSON object; errNotJSON says that
	// it is none, io.EOF that the answer is over, errComplete that it is whole
	// although the server has not said that it is over. name is "json" for a body that
	// was plain JSON. data is valid during the call. meaningful is false for
	// keep-alives.
	event(name string, data []byte) (meaningful bool, err error)
	// end is called when the stream has ended: it sets the message's Stop, or
	// says what is missing. done: the server said that this is the end.
	end(done bool) error
}

var (
	errNotJSON  = errors.New("not JSON")
	errComplete = errors.New("complete")
)

// afterComplete is how many seconds a server may take to end a whole answer.
const afterComplete = 5

// httpProvider makes the calls of one wire format.
type httpProvider struct {
	wire   wireFormat
	key    func() (string, error) // fails when there is no key
	limits timeouts
	client func() *http.Client
}

func newHTTPProvider(m *Model, key func() (string, error), limits timeouts) *httpProvider {
	wire := map[string]wireFormat{"anthropic-messages": anthropicWire, "openai-completions": chatWire, "openai-responses": responsesWire}[m.API]
	return &httpProvider{wire, key, limits, httpClient}
}

// httpClient is one for all models: they share its connections.
var httpClient = sync.OnceValue(func() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableCompression = true // a compressed stream comes in lumps
	t.ReadBufferSize = 64 << 10
	return &http.Client{Transport: t, CheckRedirect: sameHost}
})

// sameHost lets a redirect pass only to where the key may go.
func sameHost(r *http.Request, via []*http.Request) error {
	first := via[0].URL
	if r.URL.Host != first.Host || r.URL.Scheme != first.Scheme || r.Method != "POST" || len(via) > 5 {
		return fmt.Errorf("%s redirects to %s, which does not get the key: set --base-url to the right address", first.Host, r.URL.Redacted())
	}
	return nil
}

// call makes one attempt.
func (p *httpProvider) call(ctx context.Context, r *request, on func(delta)) (*Message, error) {
	a := newAnswer(r, on)
	key, err := p.key()
	if err != nil {
		return a.msg, &providerError{message: err.Error()}
	}
	err = p.attempt(ctx, key, r, a)
	a.finish()
	if err == nil {
		return a.msg, nil
	}
	if ctx.Err() != nil {
		return a.msg, context.Cause(ctx)
	}
	var pe *providerError
	if !errors.As(err, &pe) {
		pe = networkError(err)
	}
	if len(key) >= 8 { // a server may repeat it; a shorter one is no secret
		pe.message = strings.ReplaceAll(pe.message, key, "[key]")
	}
	pe.message = shorten(pe.message, 1000) // only now: a cut key would not be found
	return a.msg, pe
}

func (p *httpProvider) attempt(ctx context.Context, key string, r *request, a *assembler) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	header := http.Header{"Content-Type": {"application/json"}, "Accept": {"text/event-stream"}, "User-Agent": {"zot/" + version()}}
	p.wire.header(header, key, r)
	base := strings.TrimRight(r.model.BaseURL, "/")
	if strings.HasPrefix(p.wire.path, "/v1/") {
		base = strings.TrimSuffix(base, "/v1") // some give it, some do not
	}
	req, err := http.NewRequestWithContext(ctx, "POST", base+p.wire.path, nil)
	if err != nil || req.URL.Host == "" {
		return &providerError{message: fmt.Sprintf("the base URL %q is not a URL: set --base-url", r.model.BaseURL)}
	}
	req.Header = header
	pieces := p.wire.body(r)
	for _, piece := range pieces {
		req.ContentLength += int64(len(piece))
	}
	req.GetBody = func() (io.ReadCloser, error) { // again after a redirect
		rest := net.Buffers(slices.Clone(pieces))
		return io.NopCloser(&rest), nil
	}
	req.Body, _ = req.GetBody()

	limits := p.limits
	if isLoopback(r.model.BaseURL) { // a local model may take its time
		limits.Headers, limits.FirstEvent = 0, 0
	}
	g := &guard{cancel: cancel, pause: r.pause}
	g.expect("no answer from the server", limits.Headers)
	var resp *http.Response
	g.wait(func() { resp, err = p.client().Do(req) })
	if err == nil {
		defer resp.Body.Close()
		g.body = resp.Body
		err = p.answer(g, resp, a, limits)
	}
	if _, told := err.(*providerError); err != nil && !told {
		return cmp.Or(context.Cause(ctx), err)
	}
	return err
}

// answer reads a response: an error, or events.
func (p *httpProvider) answer(g *guard, resp *http.Response, a *assembler, limits timeouts) error {
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(g, maxError))
		pe := httpError(resp.StatusCode, resp.Header, text)
		if resp.StatusCode == http.StatusNotFound {
			pe.message += " (" + resp.Request.URL.Redacted() + ")"
		}
		return pe
	}
	if kind := resp.Header.Get("Content-Type"); strings.HasPrefix(kind, "text/html") {
		return &providerError{message: fmt.Sprintf("%s answered with a web page, not with events: is the base URL right?", resp.Request.URL.Redacted())}
	}
	g.expect("the server accepted the request but sent nothing", limits.FirstEvent)
	return read(g, p.wire.parser(a), limits.Gap)
}

// read feeds the events of a body to a parser until either ends.
func read(g *guard, parser streamParser, gap float64) error {
	events := newSSEReader(g)
	var broken error // the last event was not JSON
	for {
		name, data, err := events.next()
		switch {
		case err == io.EOF: // a broken event at the end is where the connection was cut
			return parser.end(false)
		case err != nil:
			if parser.end(false) == nil {
				return nil // it was complete before the connection failed
			}
			return err
		case broken != nil:
			return broken
		}
		switch data = bytes.TrimSpace(data); {
		case name == "error":
			return streamError(data)
		case string(data) == "[DONE]":
			return parser.end(true)
		case len(data) == 0 || data[0] != '{': // some servers' idea of a keep-alive
			continue
		}
		meaningful, err := parser.event(name, data)
		switch {
		case err == errNotJSON:
			broken = &providerError{message: fmt.Sprintf("the server sent an event that is not JSON: %.200q", data), retry: true}
		case err == io.EOF, name == "json" && (err == nil || err == errComplete):
			return parser.end(true)
		case err == errComplete:
			g.expect("the server has not ended its answer", afterComplete)
		case err != nil:
			return err
		case meaningful:
			g.expect("the server stopped sending", gap)
		}
	}
}

// guard is a response body with a limit on how long the server may be waited
// for. The limit runs across reads until the next one is set, and stands still
// while our own side is the one that is waited for.
type guard struct {
	body   io.Reader
	cancel context.CancelCauseFunc
	pause  func()
	reason string
	limit  time.Duration
	left   time.Duration // of the limit
}

// expect starts a new limit in seconds (0 is none) with what its end means.
func (g *guard) expect(reason string, seconds float64) {
	g.reason, g.limit = reason, time.Duration(seconds*float64(time.Second))
	g.left = g.limit
}

// wait lets f wait for the server.
func (g *guard) wait(f func()) {
	if g.limit > 0 {
		reason, limit := g.reason, g.limit
		timer := time.AfterFunc(g.left, func() {
			g.cancel(&providerError{message: fmt.Sprintf("%s for %v", reason, limit), retry: true})
		})
		defer timer.Stop()
	}
	start := time.Now()
	f()
	g.left -= time.Since(start)
}

func (g *guard) Read(b []byte) (n int, err error) {
	if g.pause != nil {
		g.pause()
	}
	g.wait(func() { n, err = g.body.Read(b) })
	return n, err
}

// sseReader splits a body into server-sent events: LF, CRLF and CR end a line;
// several data lines are joined by LF; comments and unknown fields are
// skipped, except "error", which some servers send in place of an event. The
// last event needs no blank line. A body that is plain JSON is one event
// named "json".
type sseReader struct {
	lines *bufio.Scanner
	data  []byte // of the event, an LF before each line
	name  string // of the last event that had one
	begun bool   // the first line was seen
	plain bool   // and began a body that is plain JSON
	cr    bool   // the last line ended in CR: an LF that follows belongs to it
	seen  int    // bytes of the next line that were searched for its end
}

// maxEvent bounds one line, one event and one plain JSON body.
const maxEvent = 64 << 20

var errTooLong = fmt.Errorf("the server sent more than %d MiB in one piece", maxEvent>>20)

func newSSEReader(r io.Reader) *sseReader {
	s := &sseReader{lines: bufio.NewScanner(r)}
	s.lines.Buffer(make([]byte, 64<<10), maxEvent)
	s.lines.Split(s.split)
	return s
}

// next returns an event's name and its data, which is valid until the next call.
func (s *sseReader) next() (name string, data []byte, err error) {
	s.data = s.data[:0]
	for s.lines.Scan() {
		line := s.lines.Bytes()
		if !s.begun && len(line) > 0 {
			s.begun = true
			line = bytes.TrimPrefix(line, []byte(utf8BOM))
			s.plain = bytes.HasPrefix(line, []byte("{"))
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		if s.plain {
			name, field, value = "json", []byte("data"), line
		}
		switch string(field) {
		case "event":
			if s.name != string(value) {
				s.name = string(value) // most events have the name of the one before
			}
			name = s.name
		case "error":
			name = "error"
			fallthrough
		case "data":
			if s.data = append(append(s.data, '\n'), value...); len(s.data) > maxEvent {
				return "", nil, errTooLong
			}
		case "": // a comment, or the end of an event
			if len(line) == 0 && len(s.data) > 0 {
				return name, s.data[1:], nil
			}
			if len(line) == 0 {
				name = ""
			}
		}
	}
	switch err := s.lines.Err(); {
	case err == bufio.ErrTooLong:
		return "", nil, errTooLong
	case err != nil:
		return "", nil, err
	case len(s.data) > 0:
		return name, s.data[1:], nil
	}
	return "", nil, io.EOF
}

// split is a bufio.SplitFunc. It does not wait for what follows a CR.
func (s *sseReader) split(data []byte, atEOF bool) (advance int, line []byte, err error) {
	start := 0
	if s.cr && bytes.HasPrefix(data, lf) {
		start = 1
	}
	from := max(start, s.seen)
	end := bytes.IndexByte(data[from:], '\n')
	if end < 0 {
		end = len(data) - from
	}
	if cr := bytes.IndexByte(data[from:from+end], '\r'); cr >= 0 {
		end = cr
	}
	end += from
	if end == len(data) && !atEOF {
		s.seen = end
		return 0, nil, nil
	}
	s.seen = 0
	switch {
	case end < len(data):
		s.cr = data[end] == '\r'
		return end + 1, data[start:end], nil
	case start < end: // the last line has no end
		line = data[start:]
	}
	return end, line, nil
}

// assembler builds a message block by block and tells the agent of each step.
// Blocks may be open at the same time; they stand in the order they started.
type assembler struct {
	msg  *Message
	on   func(delta)
	text [][]byte // of each block so far; nil once it ended
}

// newAnswer begins the answer to a request.
func newAnswer(r *request, on func(delta)) *assembler {
	return &assembler{on: on, msg: assistantMessage(r.model)}
}

// start opens a block and returns its index.
func (a *assembler) start(b Block) int {
	i := len(a.msg.Content)
	a.msg.Content = append(a.msg.Content, b)
	a.text = append(a.text, make([]byte, 0, 64))
	a.on(delta{phase: "start", index: i, block: &a.msg.Content[i], usage: a.msg.Usage})
	return i
}

// startCall opens a tool call. Its id is the server's unless that is missing or
// was used in this message; a made-up one is unique in the conversation.
func (a *assembler) startCall(id, name string) int {
	if id == "" || slices.ContainsFunc(a.msg.Content, func(b Block) bool { return b.ID == id }) {
		id = fmt.Sprintf("call_%d_%d", a.msg.Time.UnixMilli(), len(a.msg.Content)+1)
	}
	return a.start(Block{Type: "tool_call", ID: id, Name: name})
}

// last returns the index of the last block if that is of this type and open,
// else it starts one.
func (a *assembler) last(kind string) int {
	if i := len(a.msg.Content) - 1; i >= 0 && a.msg.Content[i].Type == kind && a.text[i] != nil {
		return i
	}
	a.endText()
	return a.start(Block{Type: kind})
}

// endText completes the last block if that is text or thinking.
func (a *assembler) endText() {
	if i := len(a.msg.Content) - 1; i >= 0 && a.msg.Content[i].Type != "tool_call" {
		a.end(i)
	}
}

// add appends text, thinking or argument JSON to an open block.
func (a *assembler) add(i int, text []byte) {
	a.grow(i, append(a.text[i], text...))
}

// addJSON appends a value as it stands in an event: what a string says, and in
// arguments also any other value, which some servers send.
func (a *assembler) addJSON(i int, v []byte) {
	if a.msg.Content[i].Type == "tool_call" && len(v) > 0 && v[0] != '"' {
		a.add(i, v)
	} else {
		a.grow(i, appendText(a.text[i], v))
	}
}

// grow sets the longer text of a block, unless that has ended.
func (a *assembler) grow(i int, text []byte) {
	if old := len(a.text[i]); a.text[i] != nil && len(text) > old {
		a.text[i] = text
		a.on(delta{phase: "delta", index: i, block: &a.msg.Content[i], text: text[old:], usage: a.msg.Usage})
	}
}

// end completes a block.
func (a *assembler) end(i int) {
	if a.text[i] == nil {
		return
	}
	b := &a.msg.Content[i]
	switch b.Type {
	case "text", "thinking":
		b.Text += string(a.text[i])
	case "tool_call":
		b.setArgs(a.text[i])
	}
	a.text[i] = nil
	a.on(delta{phase: "end", index: i, block: b, usage: a.msg.Usage})
}

// finish completes every open block.
func (a *assembler) finish() {
	for i := range a.text {
		a.end(i)
	}
}

// setArgs takes the arguments as the model sent them: nothing, null, an object,
// or a string that holds one of these. Anything else is kept as BadArgs.
func (b *Block) setArgs(raw []byte) {
	b.Args, b.BadArgs = []byte("{}"), ""
	raw = bytes.TrimSpace(raw)
	if len(raw) > 0 && raw[0] == '"' && json.Valid(raw) {
		raw = bytes.TrimSpace(appendText(nil, raw))
	}
	if len(raw) == 0 || string(raw) == "null" {
		return
	}
	args, err := normalize(raw)
	if err == nil && args[0] == '{' {
		b.Args = args
		return
	}
	b.BadArgs = strings.ToValidUTF8(string(raw), "\ufffd")
}

// has reports whether a message has a block of a type.
func (m *Message) has(kind string) bool {
	return slices.ContainsFunc(m.Content, func(b Block) bool { return b.Type == kind })
}

// permanentText matches the network errors that would come again. net/http
// exports few of its errors.
var permanentText = lazyRegexp(`(?i)no such host|certificate|redirects to |unsupported protocol|HTTP response to HTTPS|invalid header`)

// networkError is a call that got no HTTP answer, or lost it.
func networkError(err error) *providerError {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // the address is in the inner error; the method says nothing
	}
	text := err.Error()
	if strings.HasSuffix(text, "EOF") {
		return truncated()
	}
	return &providerError{message: "the model call failed: " + text, retry: err != errTooLong && !permanentText().MatchString(text)}
}

// truncated is a stream that ended without saying that it was complete.
func truncated() *providerError {
	return &providerError{message: "the server closed the connection before the answer was complete", retry: true}
}

// maxError is how much of an error is looked at, which takes time.
const maxError = 64 << 10

// streamError is an error that a server reports with status 200.
func streamError(data []byte) *providerError {
	return httpError(0, nil, data[:min(len(data), maxError)])
}

// httpError is an error that a server reports: by an answer with a status other
// than 200, or (status 0) inside of a stream.
func httpError(status int, h http.Header, body []byte) *providerError {
	kind, message, code := vendorError(body)
	if message == "" {
		message = cmp.Or(textOf(body), strings.TrimSpace(string(body)))
	}
	pe := classify(cmp.Or(status, code), kind, message)
	if id := cmp.Or(h.Get("request-id"), h.Get("x-request-id"), textOf(get(body, "request_id"))); id != "" {
		pe.message += " (request " + id + ")"
	}
	pe.retryAfter = cmp.Or(retryAfter(h), pe.retryAfter)
	return pe
}

// vendorError finds type, text and status in an error body or event of any
// vendor: {"error":{"type","code","message"}}, {"error":"text"}, or the same
// unnested. kind holds type and code if they differ.
func vendorError(data []byte) (kind, message string, status int) {
	for data = bytes.TrimSpace(data); len(data) > 1 && data[0] == '['; { // Google wraps errors in an array
		data = bytes.TrimSpace(data[1 : len(data)-1])
	}
	v, _ := pick(data, "error", "type", "code", "status", "message", "detail", "status_code")
	if nested := v[0]; len(nested) > 0 && nested[0] == '{' {
		return vendorError(nested)
	}
	for _, word := range v[1:4] {
		if s := textOf(word); s != "" && s != "error" && s != kind {
			kind = strings.TrimPrefix(kind+", "+s, ", ")
		}
	}
	message = cmp.Or(textOf(v[0]), textOf(v[4]), textOf(v[5]))
	if n := max(count(v[2]), count(v[6])); n >= 400 && n < 600 { // OpenRouter, Google, Groq
		status = n
	}
	if raw := textOf(get(data, "metadata", "raw")); raw != "" { // OpenRouter: what the vendor behind it said
		_, inner, _ := vendorError([]byte(raw))
		message += ": " + cmp.Or(inner, strings.ToValidUTF8(raw, ""))
	}
	return kind, message, status
}

// overflowText matches how vendors say that the context is too large.
var overflowText = lazyRegexp(`(?i)(prompt|input) (is )?too long|request_too_large|request too large for|` +
	`exceed(s|ed|ing)? (the |this |your )?(model'?s? |maximum |available )?(context|input token|number of tokens|token limit)|prompt exceeds max length|` +
	`(exceed(s|ed|ing)?|longer than|larger than|greater than) .{0,40}context|maximum (context|prompt|model) length|` +
	`context[ _](length|window|size)[ _]?(is )?(exceed|limit|overflow)|context (the )?overflow|too many (input )?tokens|` +
	`token count .{0,40}exceed|current length is \d+ while limit|.inputs. tokens .{0,30} must be <=|` +
	`reduce the length of (the|your) (messages|prompt|input)|token limit exceeded|string too long.{0,60}maximum length \d{6}`)

// quotaText matches what waiting does not help against.
var quotaText = lazyRegexp(`(?i)insufficient_quota|current.quota|billing|credit balance|insufficient balance|must be reduced|payment`)

var rateText = lazyRegexp(`(?i)rate.?limit|tokens per min|requests per min|too many requests|throttl`)

var transientText = lazyRegexp(`(?i)overload|rate.?limit|too many requests|server.?error|internal.?error|unavailable|bad gateway|timeout|timed out|try again|capacity`)

// lazyRegexp compiles on first use: most processes never see an error.
func lazyRegexp(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// classify judges an error by status (0 inside a stream), the vendor's type
// and text.
func classify(status int, kind, message string) *providerError {
	pe := &providerError{status: status, retryAfter: hintedWait(message)}
	if status > 0 {
		pe.message = strings.TrimSpace(strconv.Itoa(status) + " " + http.StatusText(status))
	}
	for _, part := range []string{kind, message} {
		if part != "" {
			pe.message = strings.TrimPrefix(pe.message+": "+part, ": ")
		}
	}
	if pe.message == "" {
		pe.message = "the server reported an error without a text"
	}
	all := kind + " " + message
	rate := status == 429 || rateText().MatchString(all)
	switch {
	case status == 402:
	case status == 413 || !rate && overflowText().MatchString(all):
		pe.overflow = true
	case quotaText().MatchString(all) && pe.retryAfter == 0: // with a time to wait it is a rate limit
	case slices.Contains([]int{400, 404, 415, 422, 500, 501}, status) && strings.Contains(strings.ToLower(message), "image"):
		pe.badImage = true
	case slices.Contains([]int{408, 409, 429, 500, 502, 503, 504, 529}, status):
		pe.retry = true
	case status == 0:
		pe.retry = transientText().MatchString(all)
	}
	return pe
}

// retryAfter is how long the server asks to wait; 0 when it does not say.
func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("retry-after-ms"), 64); err == nil && ms > 0 {
		return seconds(ms / 1000)
	}
	after := h.Get("retry-after")
	if s, err := strconv.ParseFloat(after, 64); err == nil && s > 0 {
		return seconds(s)
	}
	if t, err := http.ParseTime(after); err == nil {
		return max(time.Until(t), time.Millisecond)
	}
	return 0
}

var (
	tryAgainIn = lazyRegexp(`(?:try again|retry) (?:in|after) ((?:[0-9.]+ ?(?:ms|milliseconds?|seconds?|s|minutes?|m|hours?|h) ?)+)`)
	goUnits    = strings.NewReplacer(" ", "", "milliseconds", "ms", "millisecond", "ms", "seconds", "s", "second", "s", "minutes", "m", "minute", "m", "hours", "h", "hour", "h")
)

// hintedWait is the time to wait that an error's text names: "try again in
// 1m2.5s", "retry after 20 seconds".
func hintedWait(message string) (wait time.Duration) {
	if m := tryAgainIn().FindStringSubmatch(strings.ToLower(message)); m != nil {
		wait, _ = time.ParseDuration(goUnits.Replace(m[1]))
	}
	return wait
}

func seconds(s float64) time.Duration { return time.Duration(min(s, 1e8) * float64(time.Second)) }
