//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// provider plays an Anthropic server that answers, or fails, at random. It
// checks each request.
type provider struct {
	mu       sync.Mutex
	random   source
	requests int
	did      map[string]int
	problem  string // with the first request that was wrong
}

// source is a source of choices. Its owner locks it.
type source struct{ *rand.Rand }

func (s *source) seed(n uint64) { s.Rand = rand.New(rand.NewPCG(n, 2)) }

// behaviours of the provider, and how often of a hundred times.
var behaviours = []struct {
	percent int
	name    string
}{{35, "text"}, {30, "tools"}, {5, "large"}, {6, "overloaded"}, {4, "limited"}, {3, "refused"}, {4, "cut"}, {4, "reset"}, {3, "hang"}, {3, "silent"}, {3, "garbage"}}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var body struct {
		System   json.RawMessage
		Messages []any
	}
	problem := ""
	if err := json.Unmarshal(raw, &body); err != nil {
		problem = err.Error()
	} else if problem = checkTranscript(body.Messages); problem == "" && strings.Count(string(raw), `"cache_control"`) > 4 {
		problem = "more than four cache marks"
	}
	last, _ := json.Marshal(body.Messages[max(0, len(body.Messages)-1):])
	p.mu.Lock()
	if problem != "" && p.problem == "" {
		p.problem = problem
	}
	p.requests++
	name, n := "", p.random.IntN(100)
	for _, b := range behaviours {
		if n -= b.percent; n < 0 {
			name = b.name
			break
		}
	}
	switch {
	case strings.Contains(string(last), "a long answer"):
		name = "endless"
	case strings.Contains(string(last), "leave a process"):
		name = "background"
	}
	if p.did == nil {
		p.did = map[string]int{}
	}
	p.did[name]++
	calls := p.calls(name)
	p.mu.Unlock()
	p.answer(w, r, name, calls)
}

// calls makes tool calls. p is locked.
func (p *provider) calls(name string) (calls []string) {
	if name == "background" {
		return []string{call("bash", `{"command":"sleep 300 & setsid sleep 300 & echo left"}`, p.requests, 0)}
	}
	for i := 0; name == "tools" && i <= p.random.IntN(3); i++ {
		c := [...][2]string{
			{"bash", `{"command":"echo hi"}`}, {"bash", `{"command":"sleep 5"}`}, {"bash", `{"command":"kill -9 $$"}`},
			{"bash", `{"command":"seq 1 3000; exit 3"}`}, {"bash", `{"command":"trap '' TERM; sleep 0.2"}`},
			{"read", `{"path":"stderr"}`}, {"write", `{"path":"f","content":"x\n"}`}, {"edit", `{"path":"f","oldText":"x","newText":"y"}`},
			{"mortal", `{"n":1}`}, {"mortal", `{"n":2}`}, {"mortal", `{"n":3}`}, {"missing", `{}`}, {"read", `{"path":`},
		}[p.random.IntN(13)]
		calls = append(calls, call(c[0], c[1], p.requests, i))
	}
	return calls
}

// call is the events of a tool call, with the index 1+i.
func call(name, args string, request, i int) string {
	quoted, _ := json.Marshal(args)
	return fmt.Sprintf("data: {\"type\":\"content_block_start\",\"index\":%[1]d,\"content_block\":{\"type\":\"tool_use\",\"id\":\"c%[2]d_%[1]d\",\"name\":%[3]q,\"input\":{}}}\n\n"+
		"data: {\"type\":\"content_block_delta\",\"index\":%[1]d,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":%[4]s}}\n\n"+
		"data: {\"type\":\"content_block_stop\",\"index\":%[1]d}\n\n", 1+i, request, name, quoted)
}

const (
	begin = "data: {\"type\":\"message_start\",\"message\":{\"role\":\"assistant\",\"content\":[],\"usage\":{\"input_tokens\":10,\"output_tokens\":1}}}\n\n" +
		"data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"
	piece = "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"some words \"}}\n\n"
	stop  = "data: {\"type\":\"content_block_stop\",\"index\":0}\n\n"
	end   = "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":%q},\"usage\":{\"output_tokens\":5}}\n\ndata: {\"type\":\"message_stop\"}\n\n"
)

// answer does what the name says.
func (p *provider) answer(w http.ResponseWriter, r *http.Request, name string, calls []string) {
	say := func(text string) {
		io.WriteString(w, text)
		w.(http.Flusher).Flush()
	}
	status := func(code int, kind string) {
		w.Header().Set("Retry-After-Ms", "5")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"type":"error","error":{"type":%q,"message":"as the double likes"}}`, kind)
	}
	switch name {
	case "text":
		say(begin + piece)
		say(piece + stop + fmt.Sprintf(end, "end_turn"))
	case "tools", "background":
		say(begin + piece + stop)
		say(strings.Join(calls, "") + fmt.Sprintf(end, "tool_use"))
	case "large":
		say(begin + strings.Repeat(piece, 5000) + stop + fmt.Sprintf(end, "end_turn"))
	case "endless":
		for say(begin); r.Context().Err() == nil; time.Sleep(time.Millisecond) {
			say(piece)
		}
	case "overloaded":
		status(529, "overloaded_error")
	case "limited":
		status(429, "rate_limit_error")
	case "refused":
		status(401, "authentication_error")
	case "cut": // the stream ends without its last events
		say(begin + piece)
	case "reset":
		say(begin + piece)
		panic(http.ErrAbortHandler)
	case "hang":
		say(begin + piece)
		<-r.Context().Done()
	case "silent":
		<-r.Context().Done()
	case "garbage":
		say("data: {{{\n\ndata: \x00\xff\n\n<html>")
	}
}

// served lists what was answered how often.
func (p *provider) served() string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(p.did)) {
		list = append(list, fmt.Sprintf("%s %d", name, p.did[name]))
	}
	return strings.Join(list, ", ")
}

// extension is the extension that dies, falls silent and prints noise.
func extension() {
	fmt.Println(`{"type":"hello","name":"mortal"}`)
	fmt.Println(`{"type":"register_tool","name":"mortal","description":"May fail.","schema":{"type":"object"}}`)
	fmt.Println(`{"type":"subscribe","events":["turn_start","turn_end","tool_call","assistant_message"]}`)
	fmt.Println(`{"type":"ready"}`)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var f struct{ Type, ID string }
		json.Unmarshal(lines.Bytes(), &f)
		switch n := rand.IntN(20); {
		case f.Type == "shutdown":
			fmt.Println(`{"type":"shutdown_ack"}`)
			return
		case f.Type != "tool_call":
		case n == 0:
			os.Exit(3)
		case n == 1:
			os.Stdout.WriteString("half a li")
			panic("killed by itself")
		case n == 2: // no answer
		case n == 3:
			fmt.Printf("noise\n\n[]\n{\"type\":\"tool_result\",\"id\":\"no such\"}\n{\"type\":\"notify\",\"message\":\"words\"}\n")
			fallthrough
		default:
			fmt.Printf(`{"type":"tool_result","id":%q,"content":[{"type":"text","text":"alive"}]}`+"\n", f.ID)
		}
	}
}
