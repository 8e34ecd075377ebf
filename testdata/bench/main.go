// bench measures zot against plain programs in one run and prints a table.
//
//	go run ./testdata/bench
//
// Machines differ and are noisy, so what counts are the ratios. Everything is
// built first; servers listen on loopback only.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

func main() {
	dir, err := os.MkdirTemp("", "zot-bench-")
	check(err)
	defer os.RemoveAll(dir)
	for name, pkg := range map[string]string{"zot": ".", "answer": "./testdata/bench/answer", "loop": "./testdata/bench/loop", "puppet": "./testdata/puppet"} {
		out, err := build(filepath.Join(dir, name), pkg)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s", out)
			check(err)
		}
	}
	os.Setenv("ZOT_HOME", filepath.Join(dir, "home"))
	b := &bench{dir: dir}
	b.listen()
	fmt.Println("| what | zot | baseline | ratio |")
	fmt.Println("|---|---|---|---|")
	b.start()
	b.stream()
	b.firstDelta()
	b.history()
	b.output()
	b.extensions()
	b.extensionCalls()
	b.atomicStart()
	b.atomicStream()
	b.session()
}

// build builds a program as the README says: static.
func build(out, pkg string) ([]byte, error) {
	cmd := exec.Command("go", "build", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	return cmd.CombinedOutput()
}

type bench struct {
	dir      string
	url      string
	body     atomic.Pointer[[]byte]   // what the server answers
	received atomic.Pointer[received] // the last request
}

type received struct {
	size int
	at   time.Time
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func row(what, zot, baseline, ratio string) {
	fmt.Printf("| %s | %s | %s | %s |\n", what, zot, baseline, ratio)
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1000) }

func ratio(a, b time.Duration) string { return fmt.Sprintf("%.2f", float64(a)/float64(b)) }

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// listen starts the server that plays the provider.
func (b *bench) listen() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	b.url = "http://" + l.Addr().String()
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		b.received.Store(&received{int(n), time.Now()})
		w.Header().Set("Content-Type", "text/event-stream")
		w.Write(*b.body.Load())
	}))
}

func (b *bench) answer(deltas int, text string) {
	var s bytes.Buffer
	s.WriteString("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"role\":\"assistant\",\"content\":[],\"usage\":{\"input_tokens\":10,\"output_tokens\":1}}}\n\n" +
		"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n")
	for range deltas {
		s.WriteString("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"" + text + "\"}}\n\n")
	}
	s.WriteString("event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n" +
		"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":5}}\n\n" +
		"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n")
	body := s.Bytes()
	b.body.Store(&body)
}

// child is a program with its pipes.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (b *bench) run(name string, args ...string) *child {
	c := &child{cmd: exec.Command(filepath.Join(b.dir, name), args...)}
	c.start()
	return c
}

func (c *child) start() {
	var err error
	c.in, err = c.cmd.StdinPipe()
	check(err)
	out, err := c.cmd.StdoutPipe()
	check(err)
	c.out = bufio.NewReaderSize(out, 1<<20)
	c.cmd.Stderr = os.Stderr
	check(c.cmd.Start())
}

func (b *bench) zot(args ...string) *child { return b.serve("rpc", args...) }

// serve starts zot for a client of a protocol: rpc or --mode=rpc.
func (b *bench) serve(mode string, args ...string) *child {
	return b.run("zot", append([]string{mode, "--provider", "anthropic", "--model", "claude-sonnet-4-5", "--api-key", "x", "--base-url", b.url,
		"--cwd", b.dir, "--no-auto-compact"}, args...)...)
}

func (c *child) send(line string) {
	_, err := io.WriteString(c.in, line+"\n")
	check(err)
}

// until reads lines up to one with the prefix and returns their bytes.
func (c *child) until(prefix string) (n int) {
	for {
		line, err := c.out.ReadSlice('\n')
		n += len(line)
		if bytes.HasPrefix(line, []byte(prefix)) {
			for err == bufio.ErrBufferFull {
				line, err = c.out.ReadSlice('\n')
				n += len(line)
			}
			return n
		}
		if err != nil && err != bufio.ErrBufferFull {
			check(err)
		}
	}
}

func (c *child) end() {
	c.in.Close()
	c.cmd.Wait()
}

// memory reads a field of /proc/PID/status in KiB; 0 where there is none.
func (c *child) memory(field string) int {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); f[0] == field+":" {
			kb, _ := strconv.Atoi(f[1])
			return kb
		}
	}
	return 0
}

func mib(kib int) string { return fmt.Sprintf("%.1f MiB", float64(kib)/1024) }

const ping = `{"type":"ping"}`
const pong = `{"type":"response","command":"ping"`

func (b *bench) start() {
	var zot, plain []time.Duration
	resident, plainResident := 0, 0
	for range 41 {
		t := time.Now()
		c := b.run("zot", "rpc", "--provider", "anthropic", "--cwd", b.dir)
		c.send(ping)
		c.until(pong)
		zot = append(zot, time.Since(t))
		resident = c.memory("VmRSS")
		c.end()
		t = time.Now()
		c = b.run("answer")
		c.send(ping)
		c.until(pong)
		plain = append(plain, time.Since(t))
		plainResident = c.memory("VmRSS")
		c.end()
	}
	z, p := median(zot), median(plain)
	row("start to `ping` answered; baseline: a program that only answers", ms(z), ms(p), ratio(z, p))
	row("resident memory when idle", mib(resident), mib(plainResident), fmt.Sprintf("%.2f", float64(resident)/float64(plainResident)))
}

func (b *bench) stream() {
	const deltas = 200_000
	var zot, plain, zotCPU, plainCPU []time.Duration
	growth := 0
	for range 5 {
		c := b.zot("--no-tools")
		b.answer(1, "warm")
		c.send(`{"type":"prompt","message":"go"}`)
		c.until(`{"type":"done"`)
		before := c.memory("VmRSS")
		b.answer(deltas, " word")
		t := time.Now()
		c.send(`{"type":"prompt","message":"go"}`)
		c.until(`{"type":"done"`)
		zot = append(zot, time.Since(t))
		growth = max(growth, c.memory("VmHWM")-before)
		c.end()
		zotCPU = append(zotCPU, c.cmd.ProcessState.UserTime()+c.cmd.ProcessState.SystemTime())
		c = b.run("loop", b.url)
		t = time.Now()
		c.send("go")
		c.until(`{"type":"done"`)
		plain = append(plain, time.Since(t))
		c.end()
		plainCPU = append(plainCPU, c.cmd.ProcessState.UserTime()+c.cmd.ProcessState.SystemTime())
	}
	z, p := median(zot), median(plain)
	rate := func(d time.Duration) string { return fmt.Sprintf("%.0f deltas/s", deltas/d.Seconds()) }
	row("200,000 text deltas to the reader; baseline: Scanner and encoding/json", rate(z), rate(p), fmt.Sprintf("%.1f times", float64(p)/float64(z)))
	z, p = median(zotCPU), median(plainCPU)
	row("CPU time for them", ms(z), ms(p), ratio(z, p))
	row("memory growth meanwhile (peak)", mib(growth), "", "")
}

func (b *bench) firstDelta() {
	b.answer(1, "hi")
	var zot, plain []time.Duration
	c := b.zot("--no-tools")
	defer c.end()
	for range 101 {
		t := time.Now()
		c.send(`{"type":"prompt","message":"go"}`)
		c.until(`{"type":"text_delta"`)
		zot = append(zot, time.Since(t))
		c.until(`{"type":"done"`)
		t = time.Now()
		resp, err := http.Post(b.url, "application/json", strings.NewReader("{}"))
		check(err)
		lines := bufio.NewReader(resp.Body)
		for {
			line, err := lines.ReadString('\n')
			check(err)
			if strings.Contains(line, "text_delta") {
				break
			}
		}
		plain = append(plain, time.Since(t))
		io.Copy(io.Discard, lines)
		resp.Body.Close()
	}
	z, p := median(zot), median(plain)
	row("prompt to first `text_delta`; baseline: a plain HTTP client", ms(z), ms(p), "+"+ms(z-p))
}

func (b *bench) history() {
	b.answer(1, strings.Repeat("some words of an answer ", 40))
	c := b.zot()
	defer c.end()
	prompt := `{"type":"prompt","message":"` + strings.Repeat("some words of a question ", 40) + `"}`
	for range 1000 {
		c.send(prompt)
		c.until(`{"type":"done"`)
	}
	var zot, plain, list []time.Duration
	size := 0
	for range 21 {
		t := time.Now()
		c.send(prompt)
		c.until(`{"type":"assistant_start"`)
		r := b.received.Load()
		zot, size = append(zot, r.at.Sub(t)), r.size
		c.until(`{"type":"done"`)

		body := make([]byte, size)
		t = time.Now()
		resp, err := http.Post(b.url, "application/json", bytes.NewReader(body))
		check(err)
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		plain = append(plain, b.received.Load().at.Sub(t))

		t = time.Now()
		c.send(`{"type":"get_messages"}`)
		c.until(`{"type":"response","command":"get_messages"`)
		list = append(list, time.Since(t))
	}
	z, p := median(zot), median(plain)
	row(fmt.Sprintf("a turn on 2,000 messages (%.1f MB request) until it is sent; baseline: posting as many bytes", float64(size)/1e6), ms(z), ms(p), ratio(z, p))
	row("`get_messages` on 2,000 messages, to its last byte", ms(median(list)), "", "")
}

func (b *bench) output() {
	script := filepath.Join(b.dir, "yes.script")
	check(os.WriteFile(script, []byte("turn\ncall bash {\"command\":\"yes | head -c 2G\"}\nturn\n"), 0o666))
	c := b.run("zot", "rpc", "--provider", "script", "--model", script, "--cwd", b.dir)
	defer c.end()
	t := time.Now()
	c.send(`{"type":"prompt","message":"go"}`)
	c.until(`{"type":"done"`)
	z := time.Since(t)
	t = time.Now()
	plain := exec.Command("bash", "-c", "yes | head -c 2G | cat >/dev/null")
	check(plain.Run())
	p := time.Since(t)
	row("`yes \\| head -c 2G` through the bash tool; baseline: through `cat`", fmt.Sprintf("%.2f s, %s resident at most", z.Seconds(), mib(c.memory("VmHWM"))), fmt.Sprintf("%.2f s", p.Seconds()), ratio(z, p))
}

// extension writes an extension that does what the script says.
func (b *bench) extension(name, script string) string {
	dir := filepath.Join(b.dir, "ext", name)
	check(os.MkdirAll(dir, 0o777))
	check(os.WriteFile(filepath.Join(dir, "extension.json"), []byte(`{"name":"`+name+`","exec":"`+filepath.ToSlash(filepath.Join(b.dir, "puppet"))+`"}`), 0o666))
	check(os.WriteFile(filepath.Join(dir, "puppet.txt"), []byte(script), 0o666))
	return dir
}

const echo = `say {"type":"hello","name":"echo"}
on hello_ack {"type":"register_tool","name":"echo","description":""}
on hello_ack {"type":"ready"}
on tool_call {"type":"tool_result","id":"$id","content":[{"type":"text","text":"ok"}]}
`

// puppet starts an extension without zot and brings it to its first frame.
func (b *bench) puppet(dir string) *child {
	c := &child{cmd: exec.Command(filepath.Join(b.dir, "puppet"))}
	c.cmd.Dir = dir
	c.start()
	c.until(`{"type":"hello"`)
	return c
}

// extensions compares the start with ten extensions to that with one, until the
// commands are known, for which all must be ready; and what ten cost to what
// they cost when a program does nothing but start them.
func (b *bench) extensions() {
	var flags, dirs []string
	for i := range 10 {
		dirs = append(dirs, b.extension(fmt.Sprintf("e%d", i), strings.ReplaceAll(echo, "echo", fmt.Sprintf("e%d", i))))
		flags = append(flags, "--ext", dirs[i])
	}
	bare := func() time.Duration {
		var all sync.WaitGroup
		t := time.Now()
		for _, dir := range dirs {
			all.Go(func() {
				c := b.puppet(dir)
				c.send(`{"type":"hello_ack"}`)
				c.until(`{"type":"ready"`)
				go c.end()
			})
		}
		all.Wait()
		return time.Since(t)
	}
	start := func(flags ...string) time.Duration {
		t := time.Now()
		c := b.run("zot", append([]string{"rpc", "--provider", "script", "--cwd", b.dir}, flags...)...)
		c.send(`{"type":"get_commands"}`)
		c.until(`{"type":"response","command":"get_commands"`)
		d := time.Since(t)
		c.end()
		return d
	}
	var ten, one, none, plain []time.Duration
	for range 41 {
		plain = append(plain, bare())
		ten = append(ten, start(flags...))
		one = append(one, start(flags[:2]...))
		none = append(none, start())
	}
	z, p, n := median(ten), median(one), median(none)
	row("start until ten Go extensions are ready; baseline: one", ms(z), ms(p), ratio(z, p))
	row("what the ten add; baseline: a program that does nothing but start them side by side", ms(z-n), ms(median(plain)), ratio(z-n, median(plain)))
}

// extensionCalls compares a tool call through an extension, from one result to
// the next, to a round trip over bare pipes to the same program.
func (b *bench) extensionCalls() {
	const calls = 2000
	dir := b.extension("echo", echo)
	script := filepath.Join(b.dir, "calls.script")
	check(os.WriteFile(script, fmt.Appendf(nil, "turn\nrepeat %d call echo {}\nturn\n", calls), 0o666))
	var zot, plain []time.Duration
	for range 5 {
		c := b.run("zot", "rpc", "--provider", "script", "--model", script, "--cwd", b.dir, "--ext", dir)
		c.send(`{"type":"prompt","message":"go"}`)
		c.until(`{"type":"tool_result"`)
		t := time.Now()
		for range calls - 1 {
			c.until(`{"type":"tool_result"`)
		}
		zot = append(zot, time.Since(t)/(calls-1))
		c.until(`{"type":"done"`)
		c.end()

		c = b.puppet(dir)
		t = time.Now()
		for i := range calls {
			c.send(`{"type":"tool_call","id":"` + strconv.Itoa(i) + `","name":"echo","args":{}}`)
			c.until(`{"type":"tool_result"`)
		}
		plain = append(plain, time.Since(t)/calls)
		c.end()
	}
	z, p := median(zot), median(plain)
	row("a tool call through an extension, result to result; baseline: a round trip to it over bare pipes", us(z), us(p), "+"+us(z-p))
}

func us(d time.Duration) string { return fmt.Sprintf("%.1f µs", float64(d.Nanoseconds())/1000) }

func (b *bench) atomicStart() {
	var atomic, zot []time.Duration
	for range 41 {
		t := time.Now()
		c := b.serve("--mode=rpc")
		c.send(`{"type":"get_state"}`)
		c.until(`{"type":"response","command":"get_state"`)
		atomic = append(atomic, time.Since(t))
		c.end()
		t = time.Now()
		c = b.serve("rpc")
		c.send(ping)
		c.until(pong)
		zot = append(zot, time.Since(t))
		c.end()
	}
	a, z := median(atomic), median(zot)
	row("Atomic: start to `get_state` answered; baseline: `zot rpc`, start to `ping`", ms(a), ms(z), ratio(a, z))
}

func (b *bench) atomicStream() {
	const deltas = 50_000
	b.answer(deltas, " word")
	measure := func(mode, end string) time.Duration {
		var times []time.Duration
		for range 5 {
			c := b.serve(mode, "--no-tools")
			t := time.Now()
			c.send(`{"type":"prompt","message":"go"}`)
			c.until(end)
			times = append(times, time.Since(t))
			c.end()
		}
		return median(times)
	}
	a, z := measure("--mode=rpc", `{"type":"agent_settled"`), measure("rpc", `{"type":"done"`)
	rate := func(d time.Duration) string { return fmt.Sprintf("%.0f deltas/s", deltas/d.Seconds()) }
	row("Atomic: 50,000 deltas by `message_update`; baseline: `zot rpc`, by `text_delta`", rate(a), rate(z), fmt.Sprintf("%.2f times", float64(z)/float64(a)))
}

// session writes a session of 20,000 entries and measures what it costs to have
// it.
func (b *bench) session() {
	const entries = 20_000
	path := filepath.Join(b.dir, "long.jsonl")
	var s strings.Builder
	s.WriteString(`{"type":"session","version":3,"id":"long","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/"}` + "\n")
	text := strings.Repeat("some words of a message ", 25)
	parent := "null"
	for i := range entries {
		message := fmt.Sprintf(`{"role":"user","content":[{"type":"text","text":"%s"}],"timestamp":1}`, text)
		if i%2 == 1 {
			message = fmt.Sprintf(`{"role":"assistant","content":[{"type":"text","text":"%s"}],"api":"anthropic-messages","provider":"anthropic","model":"claude-sonnet-4-5","usage":{"input":1,"output":1,"cacheRead":0,"cacheWrite":0,"totalTokens":2,"cost":{"input":0,"output":0,"cacheRead":0,"cacheWrite":0,"total":0}},"stopReason":"stop","timestamp":1}`, text)
		}
		fmt.Fprintf(&s, `{"type":"message","id":"%08x","parentId":%s,"timestamp":"2026-01-01T00:00:00.000Z","message":%s}`+"\n", i+1, parent, message)
		parent = fmt.Sprintf(`"%08x"`, i+1)
	}
	check(os.WriteFile(path, []byte(s.String()), 0o600))
	var with, without, since []time.Duration
	for range 11 {
		for times, args := range map[*[]time.Duration][]string{&with: {"--session", path}, &without: nil} {
			t := time.Now()
			c := b.serve("--mode=rpc", args...)
			c.send(`{"type":"get_state"}`)
			c.until(`{"type":"response","command":"get_state"`)
			*times = append(*times, time.Since(t))
			if args != nil {
				t = time.Now()
				c.send(fmt.Sprintf(`{"type":"get_entries","since":"%08x"}`, entries-10))
				c.until(`{"type":"response","command":"get_entries"`)
				since = append(since, time.Since(t))
			}
			c.end()
		}
	}
	w, n := median(with), median(without)
	row(fmt.Sprintf("Atomic: start on a session of 20,000 entries (%.1f MB); baseline: on a new one", float64(s.Len())/1e6), ms(w), ms(n), "+"+ms(w-n))
	row("`get_entries` with `since` there", ms(median(since)), "", "")
}
