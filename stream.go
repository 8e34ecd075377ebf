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
	"bytes"
	"cmp"
	"context"
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

// wireFormat is one vendor API. Its methods keep no state between calls.
type wireFormat interface {
	// endpoint is the URL of a call and sets the headers that carry the key.
	endpoint(base, key string, r *request, h http.Header) string
	// body encodes a request. Messages keep their encoding in Message.wire.
	body(r *request) []byte
	// parser reads the events of one answer into a.
	parser(r *request, a *assembler) streamParser
}

// streamParser turns events into an assembled message.
type streamParser interface {
	// event takes one event. name is "json" for a body that was plain JSON.
	// data is valid during the call. meaningful is false for keep-alives.
	event(name string, data []byte) (meaningful bool, err error)
	// end is called when the stream has ended (or the parser said io.EOF): it
	// sets the message's Stop, or says what is missing.
	end() error
}

// httpProvider makes the calls of one wire format.
type httpProvider struct {
	wire   wireFormat
	key    func() (string, error) // fails when there is no key
	limits timeouts
	client *http.Client
}

func newHTTPProvider(m *Model, key func() (string, error), limits timeouts) *httpProvider {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableCompression = true // a compressed stream comes in lumps
	t.ReadBufferSize = 64 << 10
	p := &httpProvider{key: key, limits: limits, client: &http.Client{Transport: t, CheckRedirect: sameHost}}
	switch m.API {
	case "anthropic-messages":
		p.wire = anthropicWire{}
	case "openai-responses":
		p.wire = responsesWire{}
	default:
		p.wire = chatWire{}
	}
	return p
}

// sameHost lets a redirect pass only to where the key may go.
func sameHost(r *http.Request, via []*http.Request) error {
	first := via[0].URL
	if r.URL.Host != first.Host || r.URL.Scheme != first.Scheme || r.Method != "POST" || len(via) > 5 {
		return fmt.Errorf("%s redirects to %s, which does not get the key: set --base-url to the right address", first.Host, r.URL.Redacted())
	}
	return nil
}

var (
	errHeaders    = errors.New("no answer from the server")
	errFirstEvent = errors.New("the server accepted the request but sent nothing")
	errGap        = errors.New("the server stopped sending")
)

// call makes one attempt.
func (p *httpProvider) call(ctx context.Context, r *request, on func(delta)) (*Message, error) {
	a := &assembler{on: on, msg: &Message{Role: "assistant", Time: time.Now(), Provider: r.model.Provider, Model: r.model.ID}}
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
	return a.msg, pe
}

func (p *httpProvider) attempt(ctx context.Context, key string, r *request, a *assembler) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	body := p.wire.body(r)
	req, err := http.NewRequestWithContext(ctx, "POST", "", bytes.NewReader(body))
	if err != nil {
		return err
	}
	address := p.wire.endpoint(r.model.BaseURL, key, r, req.Header)
	if req.URL, err = url.Parse(address); err != nil || req.URL.Host == "" {
		return &providerError{message: fmt.Sprintf("the base URL %q is not a URL: set --base-url", r.model.BaseURL)}
	}
	req.Host = req.URL.Host
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("User-Agent", "zot/"+version())

	limits := p.limits
	if isLoopback(r.model.BaseURL) { // a local model may take its time
		limits.Headers, limits.FirstEvent = 0, 0
	}
	guard := &guard{cancel: cancel, pause: r.pause}
	defer guard.stop()
	guard.expect(errHeaders, limits.Headers)
	resp, err := p.client.Do(req)
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return httpError(resp.StatusCode, resp.Header, text)
	}
	guard.expect(errFirstEvent, limits.FirstEvent)
	guard.body = resp.Body
	if err := p.read(guard, p.wire.parser(r, a), limits.Gap); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	return nil
}

// read feeds the events of a body to a parser until either ends.
func (p *httpProvider) read(g *guard, parser streamParser, gap float64) error {
	events := sseReader{r: g}
	for {
		name, data, err := events.next()
		if err == io.EOF {
			return parser.end()
		}
		if err != nil {
			return err
		}
		meaningful, err := parser.event(name, data)
		if err == io.EOF {
			return parser.end()
		}
		if err != nil {
			return err
		}
		if meaningful {
			g.expect(errGap, gap)
		}
	}
}

// guard is a response body with a limit on how long each wait may last. The
// limit runs across reads until something meaningful came, and stands still
// while our own side is the one that is waited for.
type guard struct {
	body   io.Reader
	cancel context.CancelCauseFunc
	pause  func()
	timer  *time.Timer
	reason error
	limit  time.Duration
	left   time.Duration // of the limit; -1: no limit
	fresh  bool          // something meaningful came since the last read
}

// expect starts a new limit in seconds (0 is none) with the error it ends in.
func (g *guard) expect(reason error, seconds float64) {
	g.reason, g.limit, g.fresh = reason, time.Duration(seconds*float64(time.Second)), true
	if g.body == nil { // before the first read: the wait has begun
		g.arm()
	}
}

func (g *guard) arm() {
	if g.fresh {
		g.left, g.fresh = g.limit, false
	}
	g.stop()
	if g.limit == 0 {
		return
	}
	reason := fmt.Errorf("%w for %v", g.reason, g.limit)
	g.timer = time.AfterFunc(g.left, func() { g.cancel(&providerError{message: reason.Error(), retry: true}) })
}

func (g *guard) stop() {
	if g.timer != nil {
		g.timer.Stop()
	}
}

func (g *guard) Read(b []byte) (int, error) {
	if g.pause != nil {
		g.stop()
		g.pause()
	}
	g.arm()
	start := time.Now()
	n, err := g.body.Read(b)
	g.stop() // what we do with the bytes is not the server's time either
	g.left -= time.Since(start)
	return n, err
}

// sseReader splits a body into server-sent events: LF, CRLF and CR end a line;
// several data lines are joined by LF; comments and unknown fields are
// skipped, except "error", which some servers send in place of an event. The
// last event needs no blank line. A body that is plain JSON is one event
// named "json".
type sseReader struct {
	r          io.Reader
	buf        []byte
	start, end int // the unread part of buf
	skipLF     bool
	eof        error
	joined     []byte // data of an event with several data lines
	name       string // of the last event that had one
	begun      bool   // the first line was seen
}

// maxEvent bounds one line, one event and one plain JSON body.
const maxEvent = 64 << 20

func (s *sseReader) next() (name string, data []byte, err error) {
	lines := 0
	for {
		line, err := s.line()
		if err != nil {
			if lines > 0 && err == io.EOF {
				return name, data, nil
			}
			return "", nil, err
		}
		if !s.begun && len(line) > 0 {
			s.begun = true
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
			if line[0] == '{' {
				return s.plain(line)
			}
		}
		if len(line) == 0 {
			if lines > 0 {
				return name, data, nil
			}
			name = ""
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			if s.name != string(value) {
				s.name = string(value) // most events have the name of the one before
			}
			name = s.name
			continue
		case "error":
			name = "error"
		case "data":
		default:
			continue
		}
		lines++
		if lines == 1 {
			// Valid until the next line is read; kept if there is one.
			s.joined = append(s.joined[:0], value...)
		} else {
			if len(s.joined)+len(value) > maxEvent {
				return "", nil, fmt.Errorf("the server sent an event of more than %d MiB", maxEvent>>20)
			}
			s.joined = append(append(s.joined, '\n'), value...)
		}
		data = s.joined
	}
}

// plain reads the rest of a body that is not an event stream.
func (s *sseReader) plain(line []byte) (string, []byte, error) {
	all := bytes.Clone(line)
	for len(all) <= maxEvent {
		line, err := s.line()
		if err == io.EOF {
			return "json", all, nil
		}
		if err != nil {
			return "", nil, err
		}
		all = append(append(all, '\n'), line...)
	}
	return "", nil, fmt.Errorf("the server sent a body of more than %d MiB", maxEvent>>20)
}

// line returns the next line without its end, valid until the next call.
func (s *sseReader) line() ([]byte, error) {
	scanned := 0
	for {
		if s.skipLF && s.start < s.end {
			if s.buf[s.start] == '\n' {
				s.start++
			}
			s.skipLF = false
		}
		rest := s.buf[s.start:s.end]
		if scanned > len(rest) {
			scanned = len(rest)
		}
		n := bytes.IndexByte(rest[scanned:], '\n')
		if n < 0 {
			n = len(rest)
		} else {
			n += scanned
		}
		if cr := bytes.IndexByte(rest[scanned:n], '\r'); cr >= 0 {
			s.start += scanned + cr + 1
			s.skipLF = true
			return rest[:scanned+cr], nil
		}
		if n < len(rest) {
			s.start += n + 1
			return rest[:n], nil
		}
		scanned = len(rest)
		if s.eof != nil {
			s.start = s.end
			if len(rest) > 0 && s.eof == io.EOF {
				return rest, nil
			}
			return nil, s.eof
		}
		s.fill()
		if len(s.buf) > maxEvent {
			return nil, fmt.Errorf("the server sent a line of more than %d MiB", maxEvent>>20)
		}
	}
}

// fill reads more bytes behind the unread ones.
func (s *sseReader) fill() {
	if s.start > 0 {
		s.end = copy(s.buf, s.buf[s.start:s.end])
		s.start = 0
	}
	if s.end == len(s.buf) {
		s.buf = slices.Grow(s.buf, max(64<<10, len(s.buf)))
		s.buf = s.buf[:cap(s.buf)]
	}
	n, err := s.r.Read(s.buf[s.end:])
	s.end += n
	s.eof = err
}

// assembler builds a message block by block and tells the agent of each step.
// Blocks may be open at the same time; they stand in the order they started.
type assembler struct {
	msg  *Message
	on   func(delta)
	text [][]byte // of each block so far; nil once it ended
}

// start opens a block and returns its index.
func (a *assembler) start(b Block) int {
	i := len(a.msg.Content)
	a.msg.Content = append(a.msg.Content, b)
	a.text = append(a.text, make([]byte, 0, 64))
	a.on(delta{phase: "start", index: i, block: &a.msg.Content[i]})
	return i
}

// add appends text, thinking or argument JSON to an open block.
func (a *assembler) add(i int, text []byte) {
	if len(text) > 0 {
		a.text[i] = append(a.text[i], text...)
		a.on(delta{phase: "delta", index: i, block: &a.msg.Content[i], text: text})
	}
}

// isOpen reports whether a block can still grow.
func (a *assembler) isOpen(i int) bool { return a.text[i] != nil }

// end completes a block.
func (a *assembler) end(i int) {
	if !a.isOpen(i) {
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
	a.on(delta{phase: "end", index: i, block: b})
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
	if len(raw) > 0 && raw[0] == '"' {
		if o, err := parseObject(slices.Concat([]byte(`{"s":`), raw, []byte("}"))); err == nil {
			s, _ := o.str("s")
			raw = bytes.TrimSpace([]byte(s))
		}
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

var lostText = lazyRegexp(`(?i)server closed idle connection|connection (lost|broken)|GOAWAY|stream error|TLS handshake timeout`)

// networkError is a call that got no HTTP answer, or lost it.
func networkError(err error) *providerError {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // the address is in the inner error; the method says nothing
	}
	pe := &providerError{message: "the model call failed: " + err.Error()}
	var op *net.OpError
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns): // inside of an OpError
		pe.retry = dns.IsTemporary || dns.IsTimeout
	case errors.As(err, &op), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		pe.retry = true
	default: // net/http does not export these
		pe.retry = lostText().MatchString(pe.message)
	}
	if pe.retry && strings.HasSuffix(pe.message, "EOF") {
		pe.message = "the server closed the connection before the answer was complete"
	}
	return pe
}

// truncated is a stream that ended without saying that it was complete.
func truncated() error {
	return &providerError{message: "the server closed the connection before the answer was complete", retry: true}
}

// httpError is an answer with a status other than 200.
func httpError(status int, h http.Header, body []byte) *providerError {
	kind, message := vendorError(body)
	if message == "" {
		message = strings.TrimSpace(string(body[:min(len(body), 500)]))
	}
	pe := classify(status, kind, message)
	if id := cmp.Or(h.Get("request-id"), h.Get("x-request-id")); id != "" {
		pe.message += " (request " + id + ")"
	}
	pe.retryAfter = cmp.Or(retryAfter(h, time.Now()), pe.retryAfter)
	return pe
}

// vendorError finds type and text in an error body or event of any vendor:
// {"error":{"type","code","message"}}, {"error":"text"}, or the same unnested.
// kind holds type and code if they differ.
func vendorError(data []byte) (kind, message string) {
	o, err := parseObject(data)
	if err != nil {
		if list := bytes.TrimSpace(data); len(list) > 1 && list[0] == '[' { // Google wraps errors in an array
			return vendorError(bytes.TrimSpace(list[1 : len(list)-1]))
		}
		return "", ""
	}
	if nested := o["error"]; len(nested) > 0 && nested[0] == '{' {
		return vendorError(nested)
	} else if len(nested) > 0 && nested[0] == '"' {
		message, _ = o.str("error")
	}
	for _, key := range []string{"type", "code", "status"} {
		s, err := o.str(key)
		if err == nil && s != "" && s != "error" && s != kind {
			kind = strings.TrimPrefix(kind+", "+s, ", ")
		}
	}
	for _, key := range []string{"message", "detail"} {
		if s, err := o.str(key); err == nil && message == "" {
			message = s
		}
	}
	if meta, err := parseObject(o["metadata"]); err == nil { // OpenRouter: what the vendor behind it said
		if raw, err := meta.str("raw"); err == nil && raw != "" {
			_, inner := vendorError([]byte(raw))
			message += ": " + cmp.Or(inner, strings.ToValidUTF8(raw[:min(len(raw), 500)], ""))
		}
	}
	return kind, message
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
	for _, part := range []string{statusText(status), kind, message} {
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

func statusText(status int) string {
	if status == 0 {
		return ""
	}
	return strings.TrimSpace(strconv.Itoa(status) + " " + http.StatusText(status))
}

// retryAfter is how long the server asks to wait; 0 when it does not say.
func retryAfter(h http.Header, now time.Time) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("retry-after-ms"), 64); err == nil && ms > 0 {
		return seconds(ms / 1000)
	}
	after := h.Get("retry-after")
	if s, err := strconv.ParseFloat(after, 64); err == nil && s > 0 {
		return seconds(s)
	}
	if t, err := http.ParseTime(after); err == nil {
		return max(t.Sub(now), time.Millisecond)
	}
	return 0
}

var (
	tryAgainIn = lazyRegexp(`(?i)(?:try again|retry) (?:in|after) ((?:[0-9.]+\s*(?:ms|milliseconds?|seconds?|s|minutes?|m|hours?|h)\s*)+)`)
	timePart   = lazyRegexp(`(?i)([0-9.]+)\s*(ms|milli|s|m|h)`)
)

// hintedWait is the time to wait that an error's text names: "try again in
// 1m2.5s", "retry after 20 seconds".
func hintedWait(message string) (wait time.Duration) {
	unit := map[string]float64{"ms": 0.001, "milli": 0.001, "s": 1, "m": 60, "h": 3600}
	if m := tryAgainIn().FindStringSubmatch(message); m != nil {
		for _, part := range timePart().FindAllStringSubmatch(m[1], -1) {
			n, _ := strconv.ParseFloat(part[1], 64)
			wait += seconds(n * unit[strings.ToLower(part[2])])
		}
	}
	return wait
}

func seconds(s float64) time.Duration { return time.Duration(min(s, 1e8) * float64(time.Second)) }
