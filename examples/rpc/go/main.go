// A zot client in Go. It sends one prompt, prints the answer on stdout, shows
// tool calls and usage on stderr, and fails when the run failed.
//
//	go run . "run: ls" --provider script      further arguments go to zot rpc
//
// ZOT names the zot binary; ZOTCORE_RPC_TOKEN, when set, is sent in a hello.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"time"
)

// frame is what this client reads of a response or an event.
type frame struct {
	Type       string          `json:"type"`
	ID         string          `json:"id"`
	Command    string          `json:"command"`
	Success    bool            `json:"success"`
	Error      string          `json:"error"`
	Delta      string          `json:"delta"`
	Text       string          `json:"text"`
	Extension  string          `json:"extension"`
	Message    string          `json:"message"`
	Name       string          `json:"name"`
	Args       json.RawMessage `json:"args"`
	Stop       string          `json:"stop"`
	Content    []block         `json:"content"`
	Cumulative struct {
		Input   int     `json:"input"`
		Output  int     `json:"output"`
		CostUSD float64 `json:"cost_usd"`
	} `json:"cumulative"`
}

type block struct {
	Type string `json:"type"`
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: client PROMPT [FLAGS OF zot rpc]")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(prompt string, flags []string) error {
	zot := cmp.Or(os.Getenv("ZOT"), "zot")
	cmd := exec.Command(zot, append([]string{"rpc"}, flags...)...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start %s: %w (ZOT names the zot binary)", zot, err)
	}
	err = converse(in, bufio.NewReader(out), prompt)
	in.Close() // the end of its input ends zot
	kill := time.AfterFunc(5*time.Second, func() { cmd.Process.Kill() })
	defer kill.Stop()
	if status := cmd.Wait(); errors.Is(err, io.EOF) {
		return fmt.Errorf("zot ended before the run was done (%v)", cmp.Or(status, errors.New("exit status 0")))
	}
	return err
}

// converse sends the prompt and follows the run to its end. The error is io.EOF
// when zot ended first.
func converse(in io.Writer, out *bufio.Reader, prompt string) error {
	// A failed write is a zot that has ended: what it said, or EOF, tells.
	send := json.NewEncoder(in).Encode
	sendPrompt := func() { send(map[string]string{"id": "1", "type": "prompt", "message": prompt}) }
	if token := os.Getenv("ZOTCORE_RPC_TOKEN"); token != "" {
		send(map[string]string{"id": "0", "type": "hello", "token": token}) // the prompt waits for the answer
	} else {
		sendPrompt()
	}
	var failure error
	for {
		line, err := out.ReadBytes('\n') // lines of any length, which end with \n and nothing else
		if err != nil {
			return err
		}
		var f frame
		if err := json.Unmarshal(line, &f); err != nil {
			fmt.Fprintf(os.Stderr, "not a frame: %.200s\n", line)
			continue
		}
		switch f.Type {
		case "response":
			if !f.Success {
				return fmt.Errorf("zot refused %s: %s", f.Command, f.Error)
			}
			if f.ID == "0" {
				sendPrompt()
			}
		case "text_delta":
			fmt.Print(f.Delta)
		case "assistant_message": // its text has come in deltas
			if slices.ContainsFunc(f.Content, func(b block) bool { return b.Type == "text" }) {
				fmt.Println()
			}
		case "ext_display":
			fmt.Println(f.Text)
		case "ext_notify":
			fmt.Fprintf(os.Stderr, "[%s] %s\n", f.Extension, f.Message)
		case "tool_call":
			fmt.Fprintf(os.Stderr, "> %s %s\n", f.Name, f.Args)
		case "usage":
			total := f.Cumulative
			fmt.Fprintf(os.Stderr, "tokens: %d in, %d out; $%.4f\n", total.Input, total.Output, total.CostUSD)
		case "turn_end":
			if f.Stop == "error" || f.Stop == "aborted" {
				failure = fmt.Errorf("the run failed: %s", cmp.Or(f.Error, f.Stop))
			}
		case "error":
			failure = fmt.Errorf("the run failed: %s", f.Message)
		case "done": // always comes, and is the last
			return failure
		}
	}
}
