// The Atomic protocol (spec: Atomic RPC) on the server that both protocols
// share. Rules kept here:
//
//   - Ordinary commands run one after another in the lane. What interrupts
//     (abort, abort_bash, answers to questions, ...), get_state and bash never
//     wait behind them.
//   - What was accepted is in the session before it is answered.
//   - A change of the session ends the running job first, with its terminal
//     events.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
)

// atomicServer answers the commands of the Atomic protocol.
type atomicServer struct {
	agent    *Agent
	view     *atomicView
	setup    *setup
	token    string
	lane     lane
	work     sync.WaitGroup  // commands that run beside the lane
	pending  []queuedMessage // what a dead process left, until it is recovered; guarded by agent.mu
	recovery json.RawMessage // the report of start_pending_recovery; guarded by agent.mu

	mu     sync.Mutex
	shells map[*command]context.CancelFunc // running bash commands
	notes  []*Message                      // bash results that the session does not hold yet
}

func newAtomicServer(a *Agent, view *atomicView, s *setup, token string) *atomicServer {
	return &atomicServer{agent: a, view: view, setup: s, token: token, pending: s.restored.pending, shells: map[*command]context.CancelFunc{}}
}

// lane runs tasks one after another, each when the one before has ended.
type lane struct {
	mu      sync.Mutex
	tasks   []func()
	running bool
	work    sync.WaitGroup
}

func (l *lane) add(task func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tasks = append(l.tasks, task)
	if !l.running {
		l.running = true
		l.work.Go(l.run) // ends when there is no task left
	}
}

func (l *lane) run() {
	for {
		l.mu.Lock()
		if len(l.tasks) == 0 {
			l.running = false
			l.mu.Unlock()
			return
		}
		task := l.tasks[0]
		l.tasks = l.tasks[1:]
		l.mu.Unlock()
		task()
	}
}

// handler answers a command; errAnswered: it did so itself.
type handler func(*atomicServer, *command) (data any, err error)

var errAnswered = errors.New("answered")

// atomicCommands is what the lane runs; atomicInterrupts is what the reader does
// itself, and must therefore not wait.
var atomicCommands, atomicInterrupts map[string]handler

func init() { // the handlers refer to the tables
	atomicInterrupts = map[string]handler{
		"abort": (*atomicServer).abort, "abort_compaction": (*atomicServer).abortCompaction, "abort_retry": (*atomicServer).abortRetry,
		"bash": (*atomicServer).bash, "abort_bash": (*atomicServer).abortBash, "clear_queue": (*atomicServer).clearQueue,
		"get_state": (*atomicServer).getState, "extension_ui_response": (*atomicServer).uiResponse,
		"panel_key": (*atomicServer).panelCommand, "panel_close": (*atomicServer).panelCommand,
		"start_pending_recovery": (*atomicServer).startRecovery,
	}
	atomicCommands = map[string]handler{
		"hello": (*atomicServer).hello, "prompt": (*atomicServer).prompt, "steer": (*atomicServer).steer, "follow_up": (*atomicServer).steer,
		"get_messages": (*atomicServer).getMessages, "get_last_assistant_text": (*atomicServer).lastText,
		"set_model": (*atomicServer).setModel, "cycle_model": (*atomicServer).cycleModel, "get_available_models": (*atomicServer).availableModels,
		"refresh_models": (*atomicServer).availableModels, "logout_provider": (*atomicServer).logout,
		"set_thinking_level": (*atomicServer).setThinking, "cycle_thinking_level": (*atomicServer).cycleThinking,
		"get_available_thinking_levels": (*atomicServer).thinkingLevels,
		"set_steering_mode":             (*atomicServer).setQueueMode, "set_follow_up_mode": (*atomicServer).setQueueMode,
		"set_auto_compaction": (*atomicServer).setSwitch, "set_auto_retry": (*atomicServer).setSwitch, "compact": (*atomicServer).compact,
		"get_session_stats": (*atomicServer).stats, "get_tools": (*atomicServer).tools, "export_html": (*atomicServer).exportHTML,
		"new_session": (*atomicServer).newSession, "switch_session": (*atomicServer).switchSession, "import_session": (*atomicServer).importSession,
		"delete_session": (*atomicServer).deleteSession, "fork": (*atomicServer).fork, "clone": (*atomicServer).fork,
		"get_fork_messages": (*atomicServer).forkMessages, "get_entries": (*atomicServer).entries, "get_tree": (*atomicServer).tree,
		"navigate_tree": (*atomicServer).navigate, "set_label": (*atomicServer).setLabel, "set_session_name": (*atomicServer).setName,
		"get_session_summary": (*atomicServer).summary, "list_sessions": (*atomicServer).list,
		"list_workflow_runs": (*atomicServer).workflowRuns, "get_workflow_run_summary": (*atomicServer).workflowRun,
		"get_commands": (*atomicServer).commands, "reload": (*atomicServer).reload,
	}
}

// run serves until the input ends. It reports whether the client was refused.
func (s *atomicServer) run(in io.Reader) (refused bool) {
	admitted := s.token == ""
	serve(in, s.agent.start, func(c *command, err error) (stop bool) {
		s.view.wait(s.agent.ctx, maxBacklog)
		switch {
		case !admitted && (err != nil || !c.knows(s.token)):
			refused = true
			s.respond(c, nil, errUnauthorized)
		case err != nil:
			s.respond(c, nil, err)
		case atomicInterrupts[c.name] != nil:
			s.answer(c, atomicInterrupts[c.name])
		case atomicCommands[c.name] != nil:
			s.lane.add(func() { s.answer(c, atomicCommands[c.name]); s.agent.start() })
		default:
			s.respond(c, nil, fmt.Errorf("Unknown command: %s", c.name))
		}
		admitted = admitted || !refused
		return refused
	})
	return refused
}

// finish ends what the input's end leaves: shells are cancelled, everything
// else that was accepted is done.
func (s *atomicServer) finish() {
	s.lane.work.Wait()
	s.mu.Lock()
	for _, cancel := range s.shells {
		cancel()
	}
	s.mu.Unlock()
	s.work.Wait()
	s.lane.work.Wait()
	s.agent.start()
}

func (s *atomicServer) answer(c *command, h handler) {
	if data, err := h(s, c); err != errAnswered {
		s.respond(c, data, err)
	}
}

// respond answers a command, in order with the agent's events.
func (s *atomicServer) respond(c *command, data any, err error) {
	s.agent.mu.Lock()
	defer s.agent.mu.Unlock()
	s.respondLocked(c, data, err)
}

func (s *atomicServer) respondLocked(c *command, data any, err error) {
	s.view.frame(true, func(dst []byte) []byte { return c.response(dst, data, err) })
}

// say writes a frame in order with the agent's events.
func (s *atomicServer) say(template string, values ...any) {
	s.agent.mu.Lock()
	defer s.agent.mu.Unlock()
	s.view.say(template, values...)
}

// oneOf reads an optional string that may be one of few.
func (c *command) oneOf(key string, words ...string) (string, error) {
	v, err := c.str(key)
	if err == nil && !slices.Contains(words, v) && (v != "" || c.has(key)) {
		err = fmt.Errorf("%s: %q must be one of %s, not %q", c.name, key, strings.Join(words, ", "), v)
	}
	return v, err
}

// flag reads a boolean.
func (c *command) flag(key string, required bool) (bool, error) {
	switch v := string(c.object[key]); {
	case v == "true" || v == "false":
		return v == "true", nil
	case v == "" && !required:
		return false, nil
	}
	return false, fmt.Errorf("%s needs %q (true or false)", c.name, key)
}

func (s *atomicServer) hello(c *command) (any, error) {
	return map[string]any{"protocol": "atomic", "version": version()}, nil
}

// Prompting.

func (s *atomicServer) prompt(c *command) (any, error) {
	a := s.agent
	text, images, err := c.promptContent()
	if err != nil {
		return nil, err
	}
	behavior, err := c.oneOf("streamingBehavior", "steer", "followUp")
	if err != nil {
		return nil, err
	}
	disposition := "started"
	if r, args := s.extensionCommand(text); r != nil {
		if text = r.invoke(a.ctx, args); strings.TrimSpace(text) == "" {
			return json.RawMessage(`{"disposition":"handled"}`), nil
		}
		behavior = cmp.Or(behavior, "followUp")
	}
	m, err := s.message(text, images)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	busy := len(a.jobs) > 0
	a.mu.Unlock()
	switch {
	case busy && behavior == "":
		return nil, errors.New("Agent is already processing. Specify streamingBehavior ('steer' or 'followUp') to queue the message.")
	case busy:
		return s.enqueue(c, slices.Index(queueNames[:], behavior), m)
	}
	s.takeNotes()
	if err := a.session.addMessage(m, ""); err != nil {
		return nil, fmt.Errorf("the prompt could not be kept: %w", err)
	}
	a.submit(nil, func(j *job) *Event { return a.answer(j, m) }, func(bool) {
		s.respondLocked(c, appendJSON(nil, `{"disposition":?}`, disposition), nil)
	})
	return nil, errAnswered
}

// extensionCommand finds the extension command that a text calls.
func (s *atomicServer) extensionCommand(text string) (r *registration, args string) {
	if !strings.HasPrefix(text, "/") {
		return nil, ""
	}
	s.agent.ext.wait(s.agent.ctx)
	end := strings.IndexFunc(text+" ", unicode.IsSpace)
	return s.agent.ext.command(text[1:end]), strings.TrimSpace(text[end:])
}

// message is a user message made from what a client sent.
func (s *atomicServer) message(text string, images [][]byte) (*Message, error) {
	text, err := expand(text, *s.setup.skills.Load(), s.setup.templates)
	return &Message{Role: "user", Content: promptBlocks(s.agent.ctx, text, images), Time: time.Now()}, err
}

// steer is also follow_up.
func (s *atomicServer) steer(c *command) (any, error) {
	text, images, err := c.promptContent()
	if err != nil {
		return nil, err
	}
	if r, _ := s.extensionCommand(text); r != nil {
		return nil, fmt.Errorf("extension command %q cannot be queued: use prompt, which runs it at once", "/"+r.name)
	}
	m, err := s.message(text, images)
	if err != nil {
		return nil, err
	}
	kind := steering
	if c.name == "follow_up" {
		kind = followUp
	}
	return s.enqueue(c, kind, m)
}

func (s *atomicServer) enqueue(c *command, kind int, m *Message) (any, error) {
	err := s.agent.enqueue(kind, m, func() { s.respondLocked(c, json.RawMessage(`{"disposition":"queued"}`), nil) })
	if err == nil {
		err = errAnswered
	}
	return nil, err
}

// abort is answered when the job has ended; then what is queued goes on.
func (s *atomicServer) abort(c *command) (any, error) {
	s.agent.mu.Lock()
	s.agent.abort()
	s.agent.mu.Unlock()
	s.work.Go(func() {
		a := s.agent
		aborted := s.quiet(nil)
		defer a.start()
		a.mu.Lock()
		defer a.mu.Unlock()
		s.respondLocked(c, nil, nil)
		if aborted && a.pending() > 0 {
			a.held = false
			a.carryOn()
		}
	})
	return nil, errAnswered
}

// quiet ends the running job, waits for its terminal event, and makes a change
// while nothing runs. It reports whether there was a job.
func (s *atomicServer) quiet(change func()) (was bool) {
	a := s.agent
	a.start() // what was accepted ends by itself
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.jobs) > 0 && a.ctx.Err() == nil {
		was = true
		a.abort()
		a.settled.Wait()
	}
	if change != nil {
		change()
	}
	return was
}

func (s *atomicServer) abortCompaction(c *command) (any, error) {
	a := s.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.compacting {
		a.abort()
	}
	return nil, nil
}

func (s *atomicServer) abortRetry(c *command) (any, error) {
	s.agent.mu.Lock()
	cancel := s.agent.retry.cancel
	s.agent.mu.Unlock()
	cancel()
	return nil, nil
}

func (s *atomicServer) clearQueue(c *command) (any, error) {
	texts, err := s.agent.clearQueues()
	return appendJSON(nil, `{"steering":?,"followUp":?}`, encode(texts[steering]), encode(texts[followUp])), err
}

// startRecovery lets a run answer what a dead process left: queued messages,
// and a prompt without an answer. It is done once for a loaded session.
func (s *atomicServer) startRecovery(c *command) (any, error) {
	if _, err := c.oneOf("reason", "startup", "resume", "workflow_stage_resume"); err != nil {
		return nil, err
	}
	a := s.agent
	a.mu.Lock()
	replayed := len(s.pending)
	first := s.recovery == nil
	if first {
		for _, q := range s.pending {
			kind := slices.Index(queueNames[:], q.kind)
			a.queues[kind].messages = append(a.queues[kind].messages, q)
		}
		if n := len(a.messages); n > 0 && a.messages[n-1].Role == "user" && len(a.jobs) == 0 && a.messages[n-1].raw == nil {
			replayed++
		}
		s.pending = nil
		notices := []string{}
		for _, call := range openCalls(a.messages) {
			notices = append(notices, fmt.Sprintf("The call of %s has no result: the process ended while it ran. Whether it had an effect is unknown.", call.Name))
		}
		s.recovery = appendJSON(nil, `{"replayed":?,"dropped":0,"completions":0,"notices":?}`, replayed, encode(notices))
		if a.pending() > 0 {
			a.queueChanged()
		}
		if replayed > 0 {
			a.held = false
			if len(a.jobs) == 0 {
				a.jobs = append(a.jobs, a.newJob(nil, func(j *job) *Event { return a.answer(j, nil) }))
			}
		}
	}
	report := s.recovery
	a.mu.Unlock()
	a.start()
	s.work.Go(func() {
		a.mu.Lock()
		for first && replayed > 0 && len(a.jobs) > 0 && a.ctx.Err() == nil {
			a.settled.Wait()
		}
		s.respondLocked(c, report, nil)
		a.mu.Unlock()
	})
	return nil, errAnswered
}

// openCalls are the calls of the last answer that have no result.
func openCalls(messages []*Message) (calls []*Block) {
	answered := map[string]bool{}
	for _, m := range slices.Backward(messages) {
		if m.Role == "tool" {
			answered[m.CallID] = true
			continue
		}
		for i := range m.Content {
			if b := &m.Content[i]; b.Type == "tool_call" && !answered[b.ID] {
				calls = append(calls, b)
			}
		}
		break
	}
	return calls
}

// State.

func (s *atomicServer) getState(c *command) (any, error) {
	a := s.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	chosen := a.chosen()
	dst := appendModel([]byte(`{"model":`), chosen.model)
	dst = appendJSON(dst, `,"thinkingLevel":?,"isStreaming":?,"isCompacting":?,"steeringMode":?,"followUpMode":?`,
		levelName(chosen.model, chosen.reasoning), len(a.jobs) > 0, a.compacting, queueMode(a.queues[steering]), queueMode(a.queues[followUp]))
	if path := a.session.path; path != "" {
		dst = appendJSON(dst, `,"sessionLocation":?,"sessionFile":?`, path, path)
	}
	dst = appendJSON(dst, `,"sessionId":?`, a.session.id)
	if name := a.session.name(); name != "" {
		dst = appendJSON(dst, `,"sessionName":?`, name)
	}
	dst = appendJSON(dst, `,"autoCompactionEnabled":?,"messageCount":?,"pendingMessageCount":?,"version":?`, a.autoCompact, len(a.messages), a.pending(), version())
	if names := a.ext.starting(); len(names) > 0 {
		dst = appendJSON(dst, `,"starting":?`, encode(names))
	}
	s.respondLocked(c, json.RawMessage(append(dst, '}')), nil)
	return nil, errAnswered
}

func queueMode(q queue) string {
	if q.all {
		return "all"
	}
	return "one-at-a-time"
}

func (s *atomicServer) getMessages(c *command) (any, error) {
	s.agent.mu.Lock()
	messages := s.agent.messages
	s.agent.mu.Unlock()
	return func(dst []byte) []byte {
		return append(appendAgentMessages(append(dst, `{"messages":`...), messages), '}')
	}, nil
}

func (s *atomicServer) lastText(c *command) (any, error) {
	a := s.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range slices.Backward(a.messages) {
		if m.Role == "assistant" && (len(m.Content) > 0 || m.Stop != "aborted") {
			return appendJSON(nil, `{"text":?}`, strings.TrimSpace(m.text())), nil
		}
	}
	return json.RawMessage(`{"text":null}`), nil
}

// Model and thinking.

// appendModel appends a Model of the document.
func appendModel(dst []byte, m *Model) []byte {
	input := `["text"]`
	if m.Vision {
		input = `["text","image"]`
	}
	return appendJSON(dst, `{"id":?,"name":?,"api":?,"provider":?,"baseUrl":?,"reasoning":?,"input":?,"contextWindow":?,"maxTokens":?,"cost":{"input":?,"output":?,"cacheRead":?,"cacheWrite":?}}`,
		m.ID, cmp.Or(m.Name, m.ID), m.API, m.Provider, m.BaseURL, len(m.Levels) > 0, json.RawMessage(input), m.ContextWindow, m.MaxOutput,
		m.Price.Input, m.Price.Output, m.Price.CacheRead, m.Price.CacheWrite)
}

func appendModels(dst []byte, models []*Model) []byte {
	dst = append(dst, '[')
	for i, m := range models {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendModel(dst, m)
	}
	return append(dst, ']')
}

// levelName is the level that a model is asked with.
func levelName(m *Model, level string) string { return cmp.Or(m.clamp(level), "off") }

// levels are the levels that a model knows, in cycle order.
func levels(m *Model) []string {
	return slices.DeleteFunc(slices.Clone(reasoningLevels), func(l string) bool { _, ok := m.Levels[l]; return !ok && l != "off" })
}

func (s *atomicServer) setModel(c *command) (any, error) {
	provider, err := c.want("provider")
	if err != nil {
		return nil, err
	}
	id, err := c.want("modelId", "model", "model_id")
	if err != nil {
		return nil, err
	}
	persist, err := c.flag("persist", false)
	if err != nil {
		return nil, err
	}
	p, err := s.setup.catalog.provider(provider)
	if err != nil {
		return nil, fmt.Errorf("Model not found: %s/%s", provider, id)
	}
	m, err := p.model(id)
	if err != nil {
		return nil, fmt.Errorf("Model not found: %s/%s", provider, id)
	}
	if err := s.choose(s.setup.configured(m), "set", persist); err != nil {
		return nil, err
	}
	return json.RawMessage(appendModel(nil, m)), nil
}

// choose makes a model the one that answers from the next turn on.
func (s *atomicServer) choose(m *Model, source string, persist bool) error {
	client, err := s.setup.client(m)
	if err != nil {
		return err
	}
	a := s.agent
	a.mu.Lock()
	before := a.chosen()
	a.mu.Unlock()
	a.choose(func(c *choice) { c.model, c.provider = m, client })
	if _, err := a.session.append("model_change", `"provider":?,"modelId":?`, m.Provider, m.ID); err != nil {
		return err
	}
	if m != before.model {
		s.say(`{"type":"model_changed","model":?,"previousModel":?,"source":?}`, appendModel(nil, m), appendModel(nil, before.model), source)
	}
	if !persist {
		return nil
	}
	return s.setup.settings.save(map[string]any{"defaultProvider": m.Provider, "defaultModel": m.ID, "defaultThinkingLevel": levelName(m, before.reasoning)})
}

// available are the models of providers that have a key.
func (s *atomicServer) available() (models []*Model) {
	for _, p := range s.setup.catalog {
		if key, err := credential(p, s.setup.keyFor(p), s.setup.home); err == nil && (key != "" || p.Name == s.agent.model.Provider) {
			for _, m := range p.models() {
				models = append(models, s.setup.configured(m))
			}
		}
	}
	return models
}

func (s *atomicServer) cycleModel(c *command) (any, error) {
	persist, err := c.flag("persist", false)
	models := s.available()
	if err != nil || len(models) < 2 {
		return json.RawMessage("null"), err
	}
	s.agent.mu.Lock()
	now := s.agent.chosen()
	s.agent.mu.Unlock()
	at := slices.IndexFunc(models, func(m *Model) bool { return m.Provider == now.model.Provider && m.ID == now.model.ID })
	m := models[(at+1)%len(models)]
	if err := s.choose(m, "cycle", persist); err != nil {
		return nil, err
	}
	return appendJSON(nil, `{"model":?,"thinkingLevel":?,"isScoped":false}`, appendModel(nil, m), levelName(m, now.reasoning)), nil
}

func (s *atomicServer) availableModels(c *command) (any, error) {
	return appendJSON(nil, `{"models":?,"scopedModels":[],"oauthProviders":[],"customAuthProviders":[],"providerAuthStatuses":[]}`, appendModels(nil, s.available())), nil
}

func (s *atomicServer) logout(c *command) (any, error) {
	name, err := c.want("provider")
	if err != nil {
		return nil, err
	}
	p, err := s.setup.catalog.provider(name)
	if err != nil {
		return nil, err
	}
	if err := editJSONFile(filepath.Join(s.setup.home, "auth.json"), func(o object) { delete(o, name) }); err != nil {
		return nil, err
	}
	status := json.RawMessage(`{"configured":false}`)
	for _, key := range p.EnvKeys {
		if os.Getenv(key) != "" {
			status = appendJSON(nil, `{"configured":true,"source":"environment","label":?}`, key)
			break
		}
	}
	return appendJSON(nil, `{"provider":?,"authStatus":?,"models":?,"scopedModels":[]}`, name, status, appendModels(nil, s.available())), nil
}

func (s *atomicServer) setThinking(c *command) (any, error) {
	word, err := c.want("level")
	if err != nil {
		return nil, err
	}
	level, err := parseReasoning(word)
	if err != nil {
		return nil, err
	}
	persist, err := c.flag("persist", false)
	if err != nil {
		return nil, err
	}
	level, m, err := s.chooseLevel(level)
	if err == nil && persist {
		err = s.setup.settings.save(map[string]any{"defaultThinkingLevel": level})
	}
	return appendJSON(nil, `{"level":?,"provider":?,"modelId":?}`, level, m.Provider, m.ID), err
}

// chooseLevel changes the thinking level and returns the one it comes to.
func (s *atomicServer) chooseLevel(level string) (string, *Model, error) {
	a := s.agent
	a.mu.Lock()
	now := a.chosen()
	a.mu.Unlock()
	level = levelName(now.model, level)
	if level == levelName(now.model, now.reasoning) {
		return level, now.model, nil
	}
	a.choose(func(c *choice) { c.reasoning = level })
	_, err := a.session.append("thinking_level_change", `"thinkingLevel":?`, level)
	s.say(`{"type":"thinking_level_changed","level":?}`, level)
	return level, now.model, err
}

func (s *atomicServer) cycleThinking(c *command) (any, error) {
	s.agent.mu.Lock()
	now := s.agent.chosen()
	s.agent.mu.Unlock()
	if len(now.model.Levels) == 0 {
		return json.RawMessage("null"), nil
	}
	all := levels(now.model)
	next := all[(slices.Index(all, levelName(now.model, now.reasoning))+1)%len(all)]
	level, _, err := s.chooseLevel(next)
	return appendJSON(nil, `{"level":?}`, level), err
}

func (s *atomicServer) thinkingLevels(c *command) (any, error) {
	s.agent.mu.Lock()
	defer s.agent.mu.Unlock()
	return appendJSON(nil, `{"levels":?}`, encode(levels(s.agent.chosen().model))), nil
}

// Queue modes, compaction and retry.

func (s *atomicServer) setQueueMode(c *command) (any, error) {
	if _, err := c.want("mode"); err != nil {
		return nil, err
	}
	mode, err := c.oneOf("mode", "all", "one-at-a-time")
	if err != nil {
		return nil, err
	}
	kind := steering
	if c.name == "set_follow_up_mode" {
		kind = followUp
	}
	s.agent.mu.Lock()
	s.agent.queues[kind].all = mode == "all"
	s.agent.mu.Unlock()
	return nil, nil
}

func (s *atomicServer) setSwitch(c *command) (any, error) {
	on, err := c.flag("enabled", true)
	if err != nil {
		return nil, err
	}
	a := s.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case c.name == "set_auto_compaction":
		a.autoCompact = on
	case on:
		a.retry.max = s.setup.settings.Retry.MaxRetries
	default:
		a.retry.max = 0
	}
	return nil, nil
}

// compact ends what runs and waits for the compaction.
func (s *atomicServer) compact(c *command) (any, error) {
	o, err := s.setup.settings.order(c)
	if err != nil {
		return nil, err
	}
	s.takeNotes()
	var result json.RawMessage
	s.exclusively(func(j *job) (end *Event) {
		result, err, end = s.agent.compactLines(j, o)
		return end
	})
	return result, err
}

// exclusively ends the running job, and runs another to its end.
func (s *atomicServer) exclusively(run func(*job) *Event) {
	a := s.agent
	s.quiet(func() { a.jobs = append(a.jobs, a.newJob(nil, run)) })
	a.start()
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.jobs) > 0 && a.ctx.Err() == nil {
		a.settled.Wait()
	}
}

// Bash.

// bash runs a command of the client beside everything else. Its output goes to
// the client now, and to the model with the next prompt.
func (s *atomicServer) bash(c *command) (any, error) {
	text, err := c.want("command")
	if err != nil {
		return nil, err
	}
	private, err := c.flag("excludeFromContext", false)
	if err != nil {
		return nil, err
	}
	home := s.agent.currentSession()
	ctx, cancel := context.WithCancel(s.agent.ctx)
	s.mu.Lock()
	s.shells[c] = cancel
	s.mu.Unlock()
	id := cmp.Or(string(c.id), "null")
	s.work.Go(func() {
		defer cancel()
		r, err := runShell(ctx, &toolEnv{cwd: s.setup.cwd, dropEnv: s.setup.ToolEnvDrop}, text, 0, true, func(channel, delta string) {
			s.view.say(`{"type":"bash_execution_update","id":?,"channel":?,"delta":?}`, json.RawMessage(id), channel, delta)
		})
		s.mu.Lock()
		delete(s.shells, c)
		s.mu.Unlock()
		if err != nil {
			s.respond(c, nil, err)
			return
		}
		data := appendJSON(nil, `{"output":?`, r.output)
		if r.state != nil && r.state.ExitCode() >= 0 && !r.aborted {
			data = appendJSON(data, `,"exitCode":?`, r.state.ExitCode())
		}
		data = appendJSON(data, `,"cancelled":?,"truncated":?`, r.aborted, r.truncation != nil)
		if r.truncation != nil {
			data = appendJSON(data, `,"fullOutputPath":?`, encode(r.fullOutput))
		}
		note := appendJSON(nil, `{"role":"bashExecution","command":?,?`, text, data[1:])
		if private {
			note = append(note, `,"excludeFromContext":true`...)
		}
		m, err := parseAgentMessage(appendJSON(note, `,"timestamp":?}`, time.Now().UnixMilli()))
		if err == nil {
			err = s.keepNote(home, m)
		}
		s.respond(c, append(json.RawMessage(data), '}'), err)
	})
	return nil, errAnswered
}

// keepNote saves what a bash command printed in the session where it began. In
// the one that is open it must not come between the messages of a run.
func (s *atomicServer) keepNote(home *session, m *Message) error {
	if s.agent.currentSession() == home {
		s.mu.Lock()
		s.notes = append(s.notes, m)
		s.mu.Unlock()
		s.lane.add(s.takeNotes)
		return nil
	}
	if home.path == "" {
		return nil
	}
	other, _, err := openSession(home.path)
	if err != nil {
		return err
	}
	defer other.close()
	return other.addMessage(m, "")
}

// takeNotes puts bash results into the conversation, unless a job runs: then
// the next prompt does. Only the lane calls it.
func (s *atomicServer) takeNotes() {
	a := s.agent
	a.mu.Lock()
	idle := len(a.jobs) == 0
	a.mu.Unlock()
	if !idle {
		return
	}
	s.mu.Lock()
	notes := s.notes
	s.notes = nil
	s.mu.Unlock()
	for _, m := range notes {
		a.record(m, "")
		a.mu.Lock()
		a.messages = append(a.messages, m)
		a.mu.Unlock()
	}
}

func (s *atomicServer) abortBash(c *command) (any, error) {
	target := c.object["requestId"]
	if c.has("requestId") {
		var err error
		if target, err = normalize(target); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for shell, cancel := range s.shells {
		if target == nil || string(shell.id) == string(target) {
			cancel()
		}
	}
	return nil, nil
}

// Sessions.

// replace puts another session in the place of the open one, after the running
// job.
func (s *atomicServer) replace(c *command, next *session, notes []string, data json.RawMessage) (any, error) {
	s.takeNotes()
	r := next.restore()
	var old *session
	s.quiet(func() {
		old = s.agent.session
		s.open(next, r)
		for _, n := range notes {
			s.view.note("warning", "zot", n)
		}
		s.respondLocked(c, data, nil)
	})
	old.close()
	return nil, errAnswered
}

// open makes a session the agent's, with the model and the level that it was
// left with, unless the flags name one. The agent is locked and idle.
func (s *atomicServer) open(next *session, r restored) {
	a := s.agent
	a.resume(next, r)
	s.pending, s.recovery = r.pending, nil
	if s.setup.flagLevel == "" {
		a.reasoning = cmp.Or(r.level, a.reasoning)
	}
	if m := s.setup.restoredModel(r); m != nil {
		if client, err := s.setup.client(m); err == nil {
			a.setModel(m, client)
		}
	}
}

const notCancelled = `{"cancelled":false}`

func (s *atomicServer) newSession(c *command) (any, error) {
	parent, err := c.str("parentSession")
	if err != nil {
		return nil, err
	}
	next, err := newSession(s.setup.sessions, s.setup.cwd, "", parent)
	if err == nil {
		err = s.agent.begin(next)
	}
	if err != nil {
		return nil, err
	}
	return s.replace(c, next, nil, json.RawMessage(notCancelled))
}

func (s *atomicServer) switchSession(c *command) (any, error) {
	path, err := c.str("sessionPath")
	if err != nil {
		return nil, err
	}
	if path == "" {
		id, err := c.want("sessionId")
		if err != nil {
			return nil, err
		}
		dir, err := c.str("sessionDirectory")
		if err != nil {
			return nil, err
		}
		if path, err = findSession(cmp.Or(dir, s.setup.sessions), id); err != nil {
			return nil, err
		}
	}
	if path == s.agent.currentSession().path {
		return json.RawMessage(notCancelled), nil
	}
	next, notes, err := openSession(path)
	if err != nil {
		return nil, err
	}
	return s.replace(c, next, notes, json.RawMessage(notCancelled))
}

// importSession copies a session file into our directory and opens it.
func (s *atomicServer) importSession(c *command) (any, error) {
	path, err := c.want("inputPath", "path", "sessionPath")
	if err != nil {
		return nil, err
	}
	next, notes, err := importSession(path, s.setup.sessions)
	if err != nil {
		return nil, err
	}
	return s.replace(c, next, notes, json.RawMessage(notCancelled))
}

func (s *atomicServer) deleteSession(c *command) (any, error) {
	id, err := c.str("sessionId")
	if err == nil && id == "" {
		if id, err = c.str("id"); err != nil || id == "" {
			err = errors.New("delete_session requires sessionId")
		}
	}
	if err != nil {
		return nil, err
	}
	if id == s.agent.currentSession().id {
		return nil, fmt.Errorf("Cannot delete the session that is currently open: %s", id)
	}
	return nil, deleteSession(s.setup.sessions, id)
}

// fork is also clone.
func (s *atomicServer) fork(c *command) (any, error) {
	data := json.RawMessage(notCancelled)
	var next *session
	var err error
	if c.name == "clone" {
		next, err = s.agent.currentSession().clone()
	} else {
		var id, text string
		if id, err = c.want("entryId"); err == nil {
			next, text, err = s.agent.currentSession().fork(id)
			data = appendJSON(nil, `{"text":?,"cancelled":false}`, text)
		}
	}
	if err != nil {
		return nil, err
	}
	return s.replace(c, next, nil, data)
}

func (s *atomicServer) forkMessages(c *command) (any, error) {
	dst := []byte(`{"messages":[`)
	for i, p := range s.agent.currentSession().forkPoints() {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendJSON(dst, `{"entryId":?,"text":?}`, p.entryID, p.text)
	}
	return json.RawMessage(append(dst, "]}"...)), nil
}

func (s *atomicServer) entries(c *command) (any, error) {
	since, err := c.str("since")
	if err != nil {
		return nil, err
	}
	session := s.agent.currentSession()
	list, err := session.entriesSince(since)
	return appendJSON(nil, `{"entries":?,"leafId":?}`, list, orNull(session.leafID())), err
}

func (s *atomicServer) tree(c *command) (any, error) {
	session := s.agent.currentSession()
	return appendJSON(nil, `{"tree":?,"leafId":?}`, session.tree(), orNull(session.leafID())), nil
}

// navigate moves to another place of the tree. Before a message of the user it
// gives that text back, to be written anew.
func (s *atomicServer) navigate(c *command) (any, error) {
	id, err := c.want("targetId", "entryId")
	if err != nil {
		return nil, err
	}
	session := s.agent.currentSession()
	data := json.RawMessage(notCancelled)
	for _, p := range session.forkPoints() {
		if p.entryID == id {
			data = appendJSON(nil, `{"editorText":?,"cancelled":false}`, p.text)
		}
	}
	summarize, err := c.flag("summarize", false)
	if err != nil {
		return nil, err
	}
	from, before := session.leafID(), session.branch()
	if err := session.navigate(id); err != nil {
		return nil, err
	}
	if left := leftBehind(before, session.branch()); summarize && len(left) > 0 {
		var text string
		s.exclusively(func(j *job) *Event {
			text, err = s.agent.summarize(j, serialize(left), summaryChars)
			return &Event{Type: "branch_summary"}
		})
		if err == nil {
			_, err = session.append("branch_summary", `"fromId":?,"summary":?`, from, text)
		}
		if err != nil {
			return nil, errors.Join(err, session.navigate(from))
		}
	}
	r := session.restore()
	s.quiet(func() { s.open(session, r) })
	return data, nil
}

// leftBehind are the messages of a branch that another does not have.
func leftBehind(before, after []*entry) (left []*Message) {
	for _, e := range before {
		if m := e.message(); m != nil && !slices.Contains(after, e) {
			left = append(left, m)
		}
	}
	return left
}

func (s *atomicServer) setLabel(c *command) (any, error) {
	id, err := c.want("entryId", "targetId")
	if err != nil {
		return nil, err
	}
	label, err := c.str("label")
	if err != nil {
		return nil, err
	}
	session := s.agent.currentSession()
	if _, err := session.entriesSince(id); err != nil {
		return nil, err
	}
	_, err = session.append("label", `"targetId":?,"label":?`, id, label)
	return nil, err
}

func (s *atomicServer) setName(c *command) (any, error) {
	name, err := c.want("name")
	if err != nil {
		return nil, err
	}
	if name = strings.TrimSpace(name); name == "" {
		return nil, errors.New("Session name cannot be empty")
	}
	if _, err := s.agent.currentSession().append("session_info", `"name":?`, name); err != nil {
		return nil, err
	}
	s.say(`{"type":"session_info_changed","name":?}`, name)
	return nil, nil
}

func (s *atomicServer) list(c *command) (any, error) {
	infos, err := listSessions(s.setup.sessions)
	dst := []byte(`{"sessions":[`)
	for i, n := range infos {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendJSON(dst, `{"path":?,"id":?,"cwd":?,"created":?,"modified":?,"messageCount":?,"firstMessage":?`,
			n.path, n.id, n.cwd, n.created.UTC().Format(isoTime), n.modified.UTC().Format(isoTime), n.messages, n.firstMessage)
		for _, f := range [][2]string{{"name", n.name}, {"parentSessionPath", n.parentSession}, {"summary", n.summary}, {"summarizedThroughId", n.summarizedThrough}} {
			if f[1] != "" {
				dst = appendJSON(dst, `,?:?`, f[0], f[1])
			}
		}
		dst = append(dst, '}')
	}
	return json.RawMessage(append(dst, "]}"...)), err
}

func (s *atomicServer) summary(c *command) (any, error) {
	for _, e := range slices.Backward(s.agent.currentSession().branch()) {
		if e.kind == "session_summary" {
			return appendJSON(nil, `{"summary":?}`, e.raw), nil
		}
	}
	return json.RawMessage(`{"summary":null}`), nil
}

// stats counts what the session holds, also what compactions took away.
func (s *atomicServer) stats(c *command) (any, error) {
	a := s.agent
	session := a.currentSession()
	counts := map[string]int{}
	var total Usage
	var latest *Usage
	for _, e := range session.branch() {
		if e.kind != "message" {
			continue
		}
		m, err := parseAgentMessage(get(e.raw, "message"))
		if err != nil {
			continue
		}
		counts[m.Role]++
		for i := range m.Content {
			counts[m.Content[i].Type]++
		}
		if m.Role == "assistant" {
			latest = cmp.Or(m.Usage, &Usage{})
			total.add(latest)
		}
	}
	dst := []byte("{")
	if session.path != "" {
		dst = appendJSON(dst, `"sessionFile":?,`, session.path)
	}
	dst = appendJSON(dst, `"sessionId":?,"userMessages":?,"assistantMessages":?,"toolCalls":?,"toolResults":?,"totalMessages":?,"tokens":{"input":?,"output":?,"cacheRead":?,"cacheWrite":?,"total":?},"cost":?`,
		session.id, counts["user"], counts["assistant"], counts["tool_call"], counts["tool"], counts["user"]+counts["assistant"]+counts["tool"],
		total.Input, total.Output, total.CacheRead, total.CacheWrite, total.Input+total.Output+total.CacheRead+total.CacheWrite, total.Cost.Total)
	a.mu.Lock()
	window, tokens, fresh := a.chosen().model.ContextWindow, a.contextTokens(), len(a.messages) > 0 && compactedNow(a.messages)
	a.mu.Unlock()
	if window > 0 {
		dst = appendJSON(dst, `,"contextUsage":{"contextWindow":?,`, window)
		if fresh {
			dst = append(dst, `"tokens":null,"percent":null}`...)
		} else {
			dst = appendJSON(dst, `"tokens":?,"percent":?}`, tokens, 100*float64(tokens)/float64(window))
		}
	}
	if latest != nil {
		dst = appendAgentUsage(append(dst, `,"latestAssistantUsage":`...), latest)
	}
	return json.RawMessage(append(dst, '}')), nil
}

// compactedNow reports whether no answer came since the last compaction.
func compactedNow(messages []*Message) bool {
	if messages[0].raw == nil {
		return false
	}
	return !slices.ContainsFunc(messages, func(m *Message) bool { return m.Role == "assistant" && m.Usage != nil })
}

func (s *atomicServer) exportHTML(c *command) (any, error) {
	session := s.agent.currentSession()
	path, err := c.str("outputPath")
	if err != nil {
		return nil, err
	}
	s.agent.mu.Lock()
	messages, usage, model := s.agent.messages, s.agent.usage, s.agent.model.ID
	s.agent.mu.Unlock()
	if len(messages) == 0 {
		return nil, errors.New("Nothing to export yet - start a conversation first")
	}
	path = filepath.Join(s.setup.cwd, cmp.Or(path, "zot-session-"+session.id+".html"))
	if p, _ := c.str("outputPath"); filepath.IsAbs(p) {
		path = p
	}
	var page bytes.Buffer
	if err := exportHTML(&page, exportInfo{title: cmp.Or(session.name(), "zot session"), cwd: session.cwd, id: session.id, model: model, created: session.created, usage: usage}, messages); err != nil {
		return nil, err
	}
	return appendJSON(nil, `{"path":?}`, path), replaceFile(path, page.Bytes())
}

// Tools, workflows and commands.

// tools waits for the extensions, as the document says.
func (s *atomicServer) tools(c *command) (any, error) {
	a := s.agent
	a.ext.wait(a.ctx)
	list := []map[string]any{}
	add := func(t *tool, source, path string) {
		entry := map[string]any{"name": t.name, "active": a.allows(t.name), "exposure": "direct", "source": source, "sourcePath": path, "summary": t.description}
		if !a.allows(t.name) {
			entry["inactiveReason"] = "not selected by --tools, or excluded"
		} else if t.deferred {
			entry["active"], entry["inactiveReason"] = false, "deferred: a result of its extension makes it available"
		}
		list = append(list, entry)
	}
	for _, t := range s.setup.ownTools() {
		add(t, "built-in", "<builtin:"+t.name+">")
	}
	for _, t := range a.ext.allTools() {
		add(t, "extension", "extension")
	}
	slices.SortStableFunc(list, func(x, y map[string]any) int {
		return cmp.Compare(fmt.Sprint(y["active"]), fmt.Sprint(x["active"])) // true first
	})
	selection, names := "built-in-defaults", []string{}
	switch {
	case s.setup.noTools:
		selection = "no-tools"
	case len(s.setup.options.tools) > 0:
		selection, names = "tools-allowlist", s.setup.options.tools
	}
	missing := []map[string]string{}
	for _, name := range names {
		if !slices.ContainsFunc(list, func(t map[string]any) bool { return t["name"] == name }) {
			missing = append(missing, map[string]string{"name": name, "reason": "selected by --tools, but neither built in nor registered by an extension"})
		}
	}
	if len(names) == 0 && !s.setup.noTools {
		for _, t := range list {
			names = append(names, t["name"].(string))
		}
	}
	excluded := append([]string{}, s.setup.excludeTools...)
	return map[string]any{"selection": map[string]any{"source": selection, "description": selection, "names": names, "modifiers": []string{}},
		"tools": list, "missing": missing, "excluded": excluded}, nil
}

func (s *atomicServer) workflowRuns(c *command) (any, error) {
	status, err := c.str("status")
	if err != nil {
		return nil, err
	}
	runs := []json.RawMessage{}
	for _, r := range loadWorkflows(s.setup.home, s.setup.cwd) {
		if status == "" || status == r.text("status") {
			runs = append(runs, r.summary())
		}
	}
	return appendJSON(nil, `{"runs":?}`, encode(runs)), nil
}

func (s *atomicServer) workflowRun(c *command) (any, error) {
	id, err := c.want("runId")
	if err != nil {
		return nil, err
	}
	for _, r := range loadWorkflows(s.setup.home, s.setup.cwd) {
		if r.text("runId") == id {
			return r.encode(), nil
		}
	}
	return nil, fmt.Errorf("Workflow run not found: %s", id)
}

func (s *atomicServer) commands(c *command) (any, error) {
	a := s.agent
	a.ext.wait(a.ctx)
	list := []map[string]any{}
	for _, r := range a.ext.allCommands() {
		list = append(list, map[string]any{"name": r.name, "description": r.description, "source": "extension", "path": r.ext.dir,
			"sourceInfo": map[string]string{"path": r.ext.dir, "source": "auto", "scope": "user"}})
	}
	add := func(f promptFile, name, source string) {
		list = append(list, map[string]any{"name": name, "description": f.description, "source": source, "location": f.scope, "path": f.path,
			"sourceInfo": map[string]string{"path": f.path, "source": "auto", "scope": f.scope}})
	}
	for _, t := range s.setup.templates {
		add(t, t.name, "prompt")
	}
	for _, k := range *s.setup.skills.Load() {
		add(k, "skill:"+k.name, "skill")
	}
	return map[string]any{"commands": list}, nil
}

// reload starts the extensions anew.
func (s *atomicServer) reload(c *command) (any, error) {
	done := make(chan reloaded, 1)
	s.quiet(func() {
		s.agent.prepared = false
		s.agent.ext.reload(func(r reloaded) { done <- r })
	})
	return <-done, nil
}

// Extensions.

// uiResponse answers a question that an extension_ui_request asked.
func (s *atomicServer) uiResponse(c *command) (any, error) {
	id, err := c.str("id")
	if err != nil {
		return nil, err
	}
	yes, err := c.flag("confirmed", false)
	if err != nil {
		return nil, err
	}
	d := decision{"deny", ""}
	if yes {
		d.word = "allow"
	}
	s.agent.mu.Lock()
	defer s.agent.mu.Unlock()
	if err := s.agent.decide(id, d); err != nil {
		s.respondLocked(c, nil, err)
	}
	return nil, errAnswered // peers send no response
}

func (s *atomicServer) panelCommand(c *command) (any, error) {
	s.agent.mu.Lock() // what comes of it follows the response
	defer s.agent.mu.Unlock()
	s.respondLocked(c, nil, s.agent.panelCommand(c))
	return nil, errAnswered
}
