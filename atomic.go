// The Atomic protocol (spec: Atomic RPC) on the server that both protocols
// share. Rules kept here:
//
//   - Ordinary commands run one after another in the lane. What interrupts
//     (abort_bash, answers to questions, ...), get_state and bash never wait
//     behind them; abort ends what those before it wait for, then takes its turn.
//   - What was accepted is in the session before it is answered.
//   - A change of the session ends the running job first, with its terminal
//     events.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// atomicServer answers the commands of the Atomic protocol.
type atomicServer struct {
	agent    *Agent
	view     *atomicView
	setup    *setup
	token    string
	lane     lane
	work     sync.WaitGroup     // commands that run beside the lane
	ahead    scope              // of the commands that are read, until an abort comes
	compacts scope              // of the compact commands among them, until an abort_compaction comes
	pending  [2][]queuedMessage // what a dead process left, until it is recovered; guarded by agent.mu
	recovery json.RawMessage    // the report of start_pending_recovery; guarded by agent.mu

	mu     sync.Mutex
	shells map[*atomicCommand]context.CancelFunc // running bash commands
}

func newAtomicServer(a *Agent, view *atomicView, setup *setup, token string) *atomicServer {
	s := &atomicServer{agent: a, view: view, setup: setup, token: token, pending: setup.restored.pending, shells: map[*atomicCommand]context.CancelFunc{}}
	s.ahead = newScope(a.ctx)
	s.compacts = newScope(s.ahead.ctx)
	return s
}

// scope is a context that an interrupt ends.
type scope struct {
	ctx   context.Context
	abort context.CancelCauseFunc
}

func newScope(parent context.Context) (s scope) {
	s.ctx, s.abort = context.WithCancelCause(parent)
	return s
}

// lane runs tasks one after another, each when the one before has ended.
type lane struct {
	mu   sync.Mutex
	last <-chan struct{} // closed when the task that was added last has ended; nil: there is none
}

// add returns what is closed when the task has ended.
func (l *lane) add(task func()) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, done := l.last, make(chan struct{})
	l.last = done
	go func() { // ends with the task
		if before != nil {
			<-before
		}
		task()
		close(done)
	}()
	return done
}

// atomicCommand is a command with its arguments. The first error of these is
// kept, so that a handler asks for all and then looks once; one that only reads
// need not look.
type atomicCommand struct {
	*command
	ctx context.Context // ends with an abort that comes behind it
	err error
}

// handler answers a command; errAnswered: it did so itself.
type handler func(*atomicCommand) (data any, err error)

var errAnswered = errors.New("answered")

// interrupts is what the reader does itself, and must therefore not wait.
func (s *atomicServer) interrupts() map[string]handler {
	return map[string]handler{
		"abort": s.abort, "abort_compaction": s.abortCompaction, "abort_retry": s.abortRetry,
		"bash": s.bash, "abort_bash": s.abortBash, "clear_queue": s.clearQueue,
		"get_state": s.getState, "extension_ui_response": s.uiResponse,
		"panel_key": s.panelCommand, "panel_close": s.panelCommand,
	}
}

// commands is what the lane runs.
func (s *atomicServer) commands() map[string]handler {
	return map[string]handler{
		"hello": s.hello, "prompt": s.prompt, "steer": s.steer, "follow_up": s.steer,
		"get_messages": s.getMessages, "get_last_assistant_text": s.lastText,
		"set_model": s.setModel, "cycle_model": s.cycleModel, "get_available_models": s.availableModels,
		"refresh_models": s.availableModels, "logout_provider": s.logout,
		"set_thinking_level": s.setThinking, "cycle_thinking_level": s.cycleThinking,
		"get_available_thinking_levels": s.thinkingLevels,
		"set_steering_mode":             s.setQueueMode, "set_follow_up_mode": s.setQueueMode,
		"set_auto_compaction": s.setSwitch, "set_auto_retry": s.setSwitch, "compact": s.compact,
		"get_session_stats": s.stats, "get_tools": s.tools, "export_html": s.exportHTML,
		"new_session": s.newSession, "switch_session": s.switchSession, "import_session": s.importSession,
		"delete_session": s.deleteSession, "fork": s.fork, "clone": s.fork,
		"get_fork_messages": s.forkMessages, "get_entries": s.entries, "get_tree": s.tree,
		"navigate_tree": s.navigate, "set_label": s.setLabel, "set_session_name": s.setName,
		"get_session_summary": s.summary, "list_sessions": s.list,
		"list_workflow_runs": s.workflowRuns, "get_workflow_run_summary": s.workflowRun,
		"get_commands": s.listCommands, "reload": s.reload, "start_pending_recovery": s.startRecovery,
	}
}

// run serves until the input ends. It reports whether the client was refused.
func (s *atomicServer) run(in io.Reader) (refused bool) {
	admitted := s.token == ""
	interrupts, commands := s.interrupts(), s.commands()
	start := func() { s.lane.add(s.agent.start) } // when all that came is there: an abort may follow a prompt
	serve(in, start, func(parsed *command, err error) (stop bool) {
		c := &atomicCommand{command: parsed, ctx: s.ahead.ctx}
		if c.name == "compact" {
			c.ctx = s.compacts.ctx
		}
		s.view.wait(s.agent.ctx, maxBacklog)
		switch {
		case !admitted && (err != nil || !c.knows(s.token)):
			refused = true
			s.respond(c, nil, errUnauthorized)
		case err != nil:
			s.respond(c, nil, err)
		case interrupts[c.name] != nil:
			s.answer(c, interrupts[c.name])
		case commands[c.name] != nil:
			s.lane.add(func() { s.answer(c, commands[c.name]) })
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
	<-s.lane.add(func() {})
	s.mu.Lock()
	for _, cancel := range s.shells {
		cancel()
	}
	s.mu.Unlock()
	s.work.Wait()
	<-s.lane.add(func() {}) // what the shells printed
	s.agent.worker.Wait()
}

func (s *atomicServer) answer(c *atomicCommand, h handler) {
	data, err := h(c)
	if c.err != nil {
		err = c.err
	}
	if err != errAnswered {
		s.respond(c, data, err)
	}
}

// respond answers a command, in order with the agent's events.
func (s *atomicServer) respond(c *atomicCommand, data any, err error) {
	s.agent.mu.Lock()
	defer s.agent.mu.Unlock()
	s.respondLocked(c, data, err)
}

func (s *atomicServer) respondLocked(c *atomicCommand, data any, err error) {
	s.view.frame(true, func(dst []byte) []byte { return c.response(dst, data, err) })
}

// say writes a frame in order with the agent's events.
func (s *atomicServer) say(template string, values ...any) {
	s.agent.mu.Lock()
	defer s.agent.mu.Unlock()
	s.view.say(template, values...)
}

func (c *atomicCommand) keep(err error) {
	if c.err == nil {
		c.err = err
	}
}

// need reads a required string, see want.
func (c *atomicCommand) need(key string, wrong ...string) string {
	v, err := c.want(key, wrong...)
	c.keep(err)
	return v
}

// opt reads an optional string.
func (c *atomicCommand) opt(key string) string {
	v, err := c.str(key)
	c.keep(err)
	return v
}

// oneOf reads a string that is one of few words; "" when an optional one is
// absent.
func (c *atomicCommand) oneOf(key string, required bool, words ...string) string {
	v, err := c.str(key)
	if (required || c.has(key)) && (err != nil || !slices.Contains(words, v)) {
		c.keep(c.wrong(key, "one of "+strings.Join(words, ", ")))
	}
	return v
}

// flag reads a boolean; false when an optional one is absent.
func (c *atomicCommand) flag(key string, required bool) bool {
	v := string(c.object[key])
	if (required || c.has(key)) && v != "true" && v != "false" {
		c.keep(c.wrong(key, "true or false"))
	}
	return v == "true"
}

// wrong is the error of an argument that is not what it must be.
func (c *command) wrong(key, what string) error {
	got := "nothing"
	if c.has(key) {
		got = shorten(string(c.object[key]), 100)
	}
	return fmt.Errorf("%s: %q must be %s, not %s", c.name, key, what, got)
}

func (s *atomicServer) hello(c *atomicCommand) (any, error) {
	return map[string]any{"protocol": "atomic", "version": version()}, nil
}

// Prompting.

func (s *atomicServer) prompt(c *atomicCommand) (any, error) {
	a := s.agent
	text, images, err := c.promptContent()
	c.keep(err)
	behavior := c.oneOf("streamingBehavior", false, "steer", "followUp")
	if c.err != nil {
		return nil, c.err
	}
	if r, args := s.agent.ext.called(c.ctx, text); r != nil {
		if text = r.invoke(c.ctx, args); strings.TrimSpace(text) == "" {
			return json.RawMessage(`{"disposition":"handled"}`), nil
		}
		behavior = cmp.Or(behavior, "followUp")
	}
	m, err := s.message(c.ctx, text, images)
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
	if err := a.session.addMessage(m, ""); err != nil {
		return nil, fmt.Errorf("the prompt could not be kept: %w", err)
	}
	a.submit(nil, func(j *job) *Event { return a.answer(j, m) }, func(bool) {
		s.respondLocked(c, json.RawMessage(`{"disposition":"started"}`), nil)
	})
	return nil, errAnswered
}

// message is a user message made from what a client sent.
func (s *atomicServer) message(ctx context.Context, text string, images [][]byte) (*Message, error) {
	text, err := expand(text, *s.setup.skills.Load(), s.setup.templates)
	return &Message{Role: "user", Content: promptBlocks(ctx, text, images), Time: time.Now()}, err
}

// steer is also follow_up.
func (s *atomicServer) steer(c *atomicCommand) (any, error) {
	text, images, err := c.promptContent()
	if err != nil {
		return nil, err
	}
	if r, _ := s.agent.ext.called(c.ctx, text); r != nil {
		return nil, fmt.Errorf("extension command %q cannot be queued: use prompt, which runs it at once", "/"+r.name)
	}
	m, err := s.message(c.ctx, text, images)
	if err != nil {
		return nil, err
	}
	kind := steering
	if c.name == "follow_up" {
		kind = followUp
	}
	return s.enqueue(c, kind, m)
}

func (s *atomicServer) enqueue(c *atomicCommand, kind int, m *Message) (any, error) {
	err := s.agent.enqueue(kind, m, func() { s.respondLocked(c, json.RawMessage(`{"disposition":"queued"}`), nil) })
	if err == nil {
		err = errAnswered
	}
	return nil, err
}

// abort is answered when the job has ended; then what is queued goes on.
func (s *atomicServer) abort(c *atomicCommand) (any, error) {
	a := s.agent
	a.mu.Lock()
	aborted := len(a.jobs) > 0
	a.abort()
	a.mu.Unlock()
	s.ahead.abort(errAborted)
	s.ahead = newScope(a.ctx)
	s.compacts = newScope(s.ahead.ctx)
	s.lane.add(func() {
		aborted = s.quiet(nil) || aborted
		defer a.start()
		a.mu.Lock()
		defer a.mu.Unlock()
		s.respondLocked(c, nil, nil)
		if aborted && a.pending() > 0 {
			a.held = nil
			a.carryOn()
		}
	})
	return nil, errAnswered
}

// quiet ends the running job, waits for its terminal event, and makes a change
// while nothing runs. It reports whether there was a job.
func (s *atomicServer) quiet(change func()) (was bool) {
	a := s.agent
	a.mu.Lock()
	a.abort()
	a.mu.Unlock()
	a.start() // it has not yet, perhaps
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

func (s *atomicServer) abortCompaction(c *atomicCommand) (any, error) {
	a := s.agent
	a.mu.Lock() // the end that it brings about follows the response
	defer a.mu.Unlock()
	s.compacts.abort(errAborted)
	s.compacts = newScope(s.ahead.ctx)
	if a.compacting != "" {
		a.abort()
	}
	s.respondLocked(c, nil, nil)
	return nil, errAnswered
}

func (s *atomicServer) abortRetry(c *atomicCommand) (any, error) {
	s.agent.mu.Lock()
	cancel := s.agent.retry.cancel
	s.agent.mu.Unlock()
	cancel()
	return nil, nil
}

func (s *atomicServer) clearQueue(c *atomicCommand) (any, error) {
	texts, err := s.agent.clearQueues()
	return appendJSON(nil, `{"steering":?,"followUp":?}`, encode(texts[steering]), encode(texts[followUp])), err
}

// startRecovery lets a run answer what a dead process left: queued messages,
// and a prompt without an answer. It is done once for a loaded session.
func (s *atomicServer) startRecovery(c *atomicCommand) (any, error) {
	if c.oneOf("reason", false, "startup", "resume", "workflow_stage_resume"); c.err != nil {
		return nil, c.err
	}
	a := s.agent
	a.mu.Lock()
	replayed, first := 0, s.recovery == nil
	if first {
		for kind, left := range s.pending {
			a.queues[kind].messages = append(a.queues[kind].messages, left...)
			replayed += len(left)
		}
		if unanswered(a.messages) && len(a.jobs) == 0 {
			replayed++
		}
		s.pending = [2][]queuedMessage{}
		notices := []string{}
		for _, call := range openCalls(a.messages) {
			notices = append(notices, fmt.Sprintf("The call of %s has no result: the process ended while it ran. Whether it had an effect is unknown.", call.Name))
		}
		s.recovery = appendJSON(nil, `{"replayed":?,"dropped":0,"completions":0,"notices":?}`, replayed, encode(notices))
		if a.pending() > 0 {
			a.queueChanged()
		}
		if replayed > 0 {
			a.held = nil
			if len(a.jobs) == 0 {
				a.addJob(nil, func(j *job) *Event { return a.answer(j, nil) })
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

func (s *atomicServer) getState(c *atomicCommand) (any, error) {
	a := s.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	chosen := a.chosen()
	dst := appendModel([]byte(`{"model":`), chosen.model)
	dst = appendJSON(dst, `,"thinkingLevel":?,"isStreaming":?,"isCompacting":?,"steeringMode":?,"followUpMode":?`,
		levelName(chosen.model, chosen.reasoning), len(a.jobs) > 0 && a.compacting != "manual", a.compacting != "", queueMode(a.queues[steering]), queueMode(a.queues[followUp]))
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

func (s *atomicServer) getMessages(c *atomicCommand) (any, error) {
	s.agent.mu.Lock()
	messages := s.agent.messages
	s.agent.mu.Unlock()
	return func(dst []byte) []byte {
		return append(appendAgentMessages(append(dst, `{"messages":`...), messages), '}')
	}, nil
}

func (s *atomicServer) lastText(c *atomicCommand) (any, error) {
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

// levelName is the level that a model is asked with.
func levelName(m *Model, level string) string { return cmp.Or(m.clamp(level), "off") }

// levels are the levels that a model knows, in cycle order.
func levels(m *Model) []string {
	return slices.DeleteFunc(slices.Clone(reasoningLevels), func(l string) bool { _, ok := m.Levels[l]; return !ok && l != "off" })
}

func (s *atomicServer) setModel(c *atomicCommand) (any, error) {
	provider, id, persist := c.need("provider"), c.need("modelId", "model", "model_id"), c.flag("persist", false)
	if c.err != nil {
		return nil, c.err
	}
	var m *Model
	p, err := s.setup.catalog.provider(provider)
	if err == nil {
		m, err = p.model(id)
	}
	if err != nil {
		return nil, fmt.Errorf("Model not found: %s/%s", provider, id)
	}
	m = s.setup.configured(m)
	return json.RawMessage(appendModel(nil, m)), s.chooseModel(m, "set", persist)
}

// chooseModel makes a model the one that answers from the next turn on.
func (s *atomicServer) chooseModel(m *Model, source string, persist bool) error {
	client, err := s.setup.client(m)
	if err != nil {
		return err
	}
	before := s.agent.currentChoice()
	wanted := cmp.Or(s.setup.settings.ModelThinkingLevels[m.ref()], before.reasoning)
	s.agent.choose(func(c *choice) { c.model, c.provider, c.reasoning = m, client, wanted })
	if _, err := s.agent.currentSession().append("model_change", `"provider":?,"modelId":?`, m.Provider, m.ID); err != nil {
		return err
	}
	if m != before.model {
		s.say(`{"type":"model_changed","model":?,"previousModel":?,"source":?}`, appendModel(nil, m), appendModel(nil, before.model), source)
	}
	level, err := s.levelChosen(m, wanted, before)
	if err != nil || !persist {
		return err
	}
	return s.setup.settings.save(map[string]any{"defaultProvider": m.Provider, "defaultModel": m.ID, "defaultThinkingLevel": level})
}

// chooseLevel makes a thinking level the one that is wanted from the next turn on.
func (s *atomicServer) chooseLevel(wanted string) (level string, err error) {
	before := s.agent.currentChoice()
	s.agent.choose(func(c *choice) { c.reasoning = wanted })
	return s.levelChosen(before.model, wanted, before)
}

// levelChosen returns what a wanted level comes to with a model. It keeps and
// tells that, when it is not what it was before.
func (s *atomicServer) levelChosen(m *Model, wanted string, before choice) (level string, err error) {
	if level = levelName(m, wanted); level == levelName(before.model, before.reasoning) {
		return level, nil
	}
	if _, err = s.agent.currentSession().append("thinking_level_change", `"thinkingLevel":?`, level); err == nil {
		s.say(`{"type":"thinking_level_changed","level":?}`, level)
	}
	return level, err
}

// available are the models of providers that have a key.
func (s *atomicServer) available() (models []*Model) {
	current := s.agent.currentChoice().model.Provider
	for _, p := range s.setup.catalog {
		if key, err := credential(p, s.setup.keyFor(p), s.setup.home); err == nil && (key != "" || p.Name == current) {
			for _, m := range p.models() {
				models = append(models, s.setup.configured(m))
			}
		}
	}
	return models
}

func (s *atomicServer) cycleModel(c *atomicCommand) (any, error) {
	persist, models := c.flag("persist", false), s.available()
	if c.err != nil || len(models) < 2 {
		return json.RawMessage("null"), nil
	}
	now := s.agent.currentChoice().model.ref()
	at := slices.IndexFunc(models, func(m *Model) bool { return m.ref() == now })
	m := models[(at+1)%len(models)]
	if err := s.chooseModel(m, "cycle", persist); err != nil {
		return nil, err
	}
	return appendJSON(nil, `{"model":?,"thinkingLevel":?,"isScoped":false}`, appendModel(nil, m), levelName(m, s.agent.currentChoice().reasoning)), nil
}

func (s *atomicServer) availableModels(c *atomicCommand) (any, error) {
	return appendJSON(nil, `{"models":?,"scopedModels":[],"oauthProviders":[],"customAuthProviders":[],"providerAuthStatuses":[]}`, appendList(nil, s.available(), appendModel)), nil
}

func (s *atomicServer) logout(c *atomicCommand) (any, error) {
	name := c.need("provider")
	p, err := s.setup.catalog.provider(name)
	if err != nil {
		return nil, err
	}
	if err := editJSONFile(filepath.Join(s.setup.home, "auth.json"), func(o object) { delete(o, name) }); err != nil {
		return nil, err
	}
	status := json.RawMessage(`{"configured":false}`)
	for key := range strings.SplitSeq(p.APIKeyEnv, ",") {
		if os.Getenv(key) != "" {
			status = appendJSON(nil, `{"configured":true,"source":"environment","label":?}`, key)
			break
		}
	}
	return appendJSON(nil, `{"provider":?,"authStatus":?,"models":?,"scopedModels":[]}`, name, status, appendList(nil, s.available(), appendModel)), nil
}

func (s *atomicServer) setThinking(c *atomicCommand) (any, error) {
	level, persist := c.oneOf("level", true, reasoningLevels...), c.flag("persist", false)
	if c.err != nil {
		return nil, c.err
	}
	now := s.agent.currentChoice()
	level, err := s.chooseLevel(level)
	if err == nil && persist {
		err = s.setup.settings.saveLevel(now.model, level)
	}
	return appendJSON(nil, `{"level":?,"provider":?,"modelId":?}`, level, now.model.Provider, now.model.ID), err
}

func (s *atomicServer) cycleThinking(c *atomicCommand) (any, error) {
	now := s.agent.currentChoice()
	if len(now.model.Levels) == 0 {
		return json.RawMessage("null"), nil
	}
	all, before := levels(now.model), levelName(now.model, now.reasoning)
	level, err := s.chooseLevel(all[(slices.Index(all, before)+1)%len(all)])
	return appendJSON(nil, `{"level":?}`, level), err
}

func (s *atomicServer) thinkingLevels(c *atomicCommand) (any, error) {
	return appendJSON(nil, `{"levels":?}`, encode(levels(s.agent.currentChoice().model))), nil
}

// Queue modes, compaction and retry.

func (s *atomicServer) setQueueMode(c *atomicCommand) (any, error) {
	mode := c.oneOf("mode", true, "all", "one-at-a-time")
	if c.err != nil {
		return nil, c.err
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

func (s *atomicServer) setSwitch(c *atomicCommand) (any, error) {
	on := c.flag("enabled", true)
	if c.err != nil {
		return nil, c.err
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
func (s *atomicServer) compact(c *atomicCommand) (any, error) {
	o, err := s.setup.settings.order(c.command)
	if err != nil {
		return nil, err
	}
	var result json.RawMessage
	s.exclusively(c, func(j *job) (end *Event) {
		result, err, end = s.agent.compactLines(j, o)
		return end
	})
	return result, err
}

// exclusively ends the running job, and runs another to its end.
func (s *atomicServer) exclusively(c *atomicCommand, run func(*job) *Event) {
	a, j := s.agent, (*job)(nil)
	s.quiet(func() { j = a.addJob(nil, run) })
	defer context.AfterFunc(c.ctx, func() { j.cancel(errAborted) })()
	if c.ctx.Err() != nil { // AfterFunc may be later than the job
		j.cancel(errAborted)
	}
	a.start()
	a.mu.Lock()
	defer a.mu.Unlock()
	for slices.Contains(a.jobs, j) {
		a.settled.Wait()
	}
}

// Bash.

// bash runs a command of the client beside everything else. Its output goes to
// the client now, and to the model with the next prompt.
func (s *atomicServer) bash(c *atomicCommand) (any, error) {
	text, private := c.need("command"), c.flag("excludeFromContext", false)
	if c.err != nil {
		return nil, c.err
	}
	s.agent.mu.Lock()
	home, env := s.agent.session, *s.setup.env
	s.agent.mu.Unlock()
	env.spillDir = filepath.Join(os.TempDir(), fmt.Sprintf("zot-%d", os.Getuid()), home.id)
	ctx, cancel := context.WithCancel(s.agent.ctx)
	s.mu.Lock()
	s.shells[c] = cancel
	s.mu.Unlock()
	id := []byte{}
	if c.id != nil {
		id = appendJSON(nil, `"id":?,`, c.id)
	}
	s.work.Go(func() {
		defer cancel()
		r, err := runShell(ctx, &env, text, 0, true, func(channel, delta string) {
			s.view.wait(ctx, backlog)
			s.view.say(`{"type":"bash_execution_update",?"channel":?,"delta":?}`, id, channel, delta)
		})
		s.mu.Lock()
		delete(s.shells, c)
		s.mu.Unlock()
		if err != nil {
			s.respond(c, nil, err)
			return
		}
		m, err := r.message(text, private)
		if err == nil {
			s.lane.add(func() { s.keepNote(home, m) })
		}
		s.respond(c, append(r.appendFields(json.RawMessage("{")), '}'), err)
	})
	return nil, errAnswered
}

// keepNote puts what a bash command printed into the session where it began: at
// once, or in the one that is open when the running job has ended. In the lane
// nobody begins one meanwhile.
func (s *atomicServer) keepNote(home *session, m *Message) {
	a := s.agent
	a.mu.Lock()
	here, busy := home == a.session || home.path != "" && home.path == a.session.path, len(a.jobs) > 0
	if here && busy {
		a.notes = append(a.notes, m)
	}
	a.mu.Unlock()
	switch {
	case here && !busy:
		a.add(nil, m, nil)
	case !here && home.path != "":
		if err := keepElsewhere(home, m); err != nil {
			a.tell(&Event{Type: "notice", Level: "error", Text: "what a bash command printed is not in its session: " + err.Error()})
		}
	}
}

// keepElsewhere adds a message to a session that is not open any more.
func keepElsewhere(s *session, m *Message) error {
	again, _, err := openSession(s.path)
	if errors.Is(err, fs.ErrNotExist) { // nothing was worth a file so far
		again, err = s, nil
	}
	if err != nil {
		return err
	}
	defer again.close()
	return again.addMessage(m, "")
}

func (s *atomicServer) abortBash(c *atomicCommand) (any, error) {
	var target json.RawMessage
	if c.has("requestId") {
		target, _ = normalize(c.object["requestId"])
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
// job. Its working directory becomes ours, if there is one.
func (s *atomicServer) replace(c *atomicCommand, next *session, notes []string, data json.RawMessage) (any, error) {
	open, moves := s.opening(next), isDir(next.cwd)
	var old *session
	s.quiet(func() {
		old = s.agent.session
		open()
		if moves {
			s.move(next.cwd)
		}
		for _, n := range notes {
			s.view.note("warning", "zot", n)
		}
		s.respondLocked(c, data, nil)
	})
	old.close()
	return nil, errAnswered
}

// move changes the working directory. The agent is locked and idle.
func (s *atomicServer) move(cwd string) { s.setup.cwd, s.setup.env.cwd = cwd, cwd }

// opening prepares to make a session the agent's, see reopen.
func (s *atomicServer) opening(next *session) (open func()) {
	r, change := s.setup.reopen(s.agent, next)
	return func() {
		queued := s.agent.pending()
		if change(); queued > 0 {
			s.agent.queueChanged()
		}
		s.pending, s.recovery = r.pending, nil
	}
}

const notCancelled = `{"cancelled":false}`

func (s *atomicServer) newSession(c *atomicCommand) (any, error) {
	parent := c.opt("parentSession")
	if c.err != nil {
		return nil, c.err
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

func (s *atomicServer) switchSession(c *atomicCommand) (any, error) {
	path, dir, cwd := s.setup.absolute(c.opt("sessionPath")), s.setup.absolute(c.opt("sessionDirectory")), s.setup.absolute(c.opt("cwdOverride"))
	if cwd != "" && !isDir(cwd) {
		c.keep(c.wrong("cwdOverride", "a directory"))
	}
	if path == "" {
		id := c.need("sessionId")
		found, err := sessionPath(cmp.Or(dir, s.setup.sessions), id)
		if path = found; err == nil && path == "" {
			err = fmt.Errorf("Session not found: %s", id)
		}
		c.keep(err)
	}
	if c.err != nil {
		return nil, c.err
	}
	if open := s.agent.currentSession().path; path == open || sameFile(path, open) {
		if cwd != "" {
			s.quiet(func() { s.move(cwd) })
		}
		return json.RawMessage(notCancelled), nil
	}
	next, notes, err := openSession(path)
	if err != nil {
		return nil, err
	}
	next.cwd = cmp.Or(cwd, next.cwd)
	return s.replace(c, next, notes, json.RawMessage(notCancelled))
}

// importSession copies a session file into our directory and opens it.
func (s *atomicServer) importSession(c *atomicCommand) (any, error) {
	path := s.setup.absolute(c.need("inputPath", "path", "sessionPath"))
	if c.err != nil {
		return nil, c.err
	}
	next, notes, err := importSession(path, s.setup.sessions)
	if err != nil {
		return nil, err
	}
	return s.replace(c, next, notes, json.RawMessage(notCancelled))
}

func (s *atomicServer) deleteSession(c *atomicCommand) (any, error) {
	id := c.opt("sessionId")
	if !c.has("sessionId") {
		id = c.opt("id")
	}
	if id == "" {
		c.keep(errors.New("delete_session requires sessionId"))
	}
	if c.err != nil {
		return nil, c.err
	}
	if id == s.agent.currentSession().id {
		return nil, fmt.Errorf("Cannot delete the session that is currently open: %s", id)
	}
	return nil, deleteSession(s.setup.sessions, id)
}

// fork is also clone.
func (s *atomicServer) fork(c *atomicCommand) (any, error) {
	data := json.RawMessage(notCancelled)
	var next *session
	var err error
	if c.name == "clone" {
		next, err = s.agent.currentSession().clone()
	} else {
		var text string
		next, text, err = s.agent.currentSession().fork(c.need("entryId"))
		data = appendJSON(nil, `{"text":?,"cancelled":false}`, text)
	}
	if err != nil {
		return nil, err
	}
	return s.replace(c, next, nil, data)
}

func (s *atomicServer) forkMessages(c *atomicCommand) (any, error) {
	return appendJSON(nil, `{"messages":?}`, appendList(nil, s.agent.currentSession().forkPoints(), func(dst []byte, e *entry) []byte {
		return appendJSON(dst, `{"entryId":?,"text":?}`, e.id, e.message().text())
	})), nil
}

func (s *atomicServer) entries(c *atomicCommand) (any, error) {
	session := s.agent.currentSession()
	list, err := session.entriesSince(c.opt("since"))
	return appendJSON(nil, `{"entries":?,"leafId":?}`, list, orNull(session.leafID())), err
}

func (s *atomicServer) tree(c *atomicCommand) (any, error) {
	session := s.agent.currentSession()
	return appendJSON(nil, `{"tree":?,"leafId":?}`, session.tree(), orNull(session.leafID())), nil
}

// navigate moves to another place of the tree. Before a message of the user it
// gives that text back, to be written anew.
func (s *atomicServer) navigate(c *atomicCommand) (any, error) {
	id, summarize := c.need("targetId", "entryId"), c.flag("summarize", false)
	session := s.agent.currentSession()
	to := session.entry(id)
	if to == nil {
		c.keep(notFound(id))
	}
	if c.err != nil {
		return nil, c.err
	}
	data := json.RawMessage(notCancelled)
	if to.isUser() {
		data = appendJSON(nil, `{"editorText":?,"cancelled":false}`, to.message().text())
		id = to.parent
	}
	s.quiet(nil)
	before := session.branch()
	var text string
	var err error
	if left := leftBehind(before, session.entry(id).branch()); summarize && len(left) > 0 {
		s.exclusively(c, func(j *job) *Event {
			s.agent.emit(j, &Event{Type: "branch_summary_start"})
			text, err = s.agent.summarize(j, serialize(left), summaryChars)
			return &Event{Type: "branch_summary_end"}
		})
		if err != nil {
			return nil, err
		}
	}
	if err := session.navigate(id); err != nil {
		return nil, err
	}
	if text != "" {
		if _, err := session.append("branch_summary", `"fromId":?,"summary":?`, before[len(before)-1].id, text); err != nil {
			return nil, err
		}
	}
	s.quiet(s.opening(session))
	return data, nil
}

// leftBehind are the messages of a branch that another does not have.
func leftBehind(before, after []*entry) []*Message {
	n := 0
	for n < min(len(before), len(after)) && before[n] == after[n] {
		n++
	}
	return messagesOf(before[n:])
}

func (s *atomicServer) setLabel(c *atomicCommand) (any, error) {
	id, label := c.need("entryId", "targetId"), c.opt("label")
	session := s.agent.currentSession()
	if session.entry(id) == nil {
		c.keep(notFound(id))
	}
	if c.err != nil {
		return nil, c.err
	}
	_, err := session.append("label", `"targetId":?,"label":?`, id, label)
	return nil, err
}

func (s *atomicServer) setName(c *atomicCommand) (any, error) {
	name := strings.TrimSpace(c.need("name"))
	if name == "" {
		c.keep(errors.New("Session name cannot be empty"))
	}
	if c.err != nil {
		return nil, c.err
	}
	if _, err := s.agent.currentSession().append("session_info", `"name":?`, name); err != nil {
		return nil, err
	}
	s.say(`{"type":"session_info_changed","name":?}`, name)
	return nil, nil
}

func (s *atomicServer) list(c *atomicCommand) (any, error) {
	infos, err := listSessions(s.setup.sessions)
	return appendJSON(nil, `{"sessions":?}`, appendList(nil, infos, func(dst []byte, n sessionInfo) []byte {
		dst = appendJSON(dst, `{"path":?,"id":?,"cwd":?,"created":?,"modified":?,"messageCount":?,"firstMessage":?`,
			n.path, n.id, n.cwd, n.created.UTC().Format(isoTime), n.modified.UTC().Format(isoTime), n.messages, n.firstMessage)
		for _, f := range [][2]string{{"name", n.name}, {"parentSessionPath", n.parentSession}, {"summary", n.summary}, {"summarizedThroughId", n.summarizedThrough}} {
			if f[1] != "" {
				dst = appendJSON(dst, `,?:?`, f[0], f[1])
			}
		}
		return append(dst, '}')
	})), err
}

func (s *atomicServer) summary(c *atomicCommand) (any, error) {
	for _, e := range slices.Backward(s.agent.currentSession().branch()) {
		if e.kind == "session_summary" {
			return appendJSON(nil, `{"summary":?}`, e.raw), nil
		}
	}
	return json.RawMessage(`{"summary":null}`), nil
}

// stats counts what the session holds, also what compactions took away.
func (s *atomicServer) stats(c *atomicCommand) (any, error) {
	a := s.agent
	session := a.currentSession()
	counts := map[string]int{}
	var total Usage
	var latest *Usage
	for _, e := range session.branch() {
		m := e.message()
		if m == nil || m.raw != nil { // none of the three kinds
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
	window, tokens, fresh := a.chosen().model.ContextWindow, a.contextTokens(), compactedNow(a.messages)
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
	if len(messages) == 0 {
		return false
	}
	_, compacted := compactedLines(messages[0])
	return compacted && !slices.ContainsFunc(messages, func(m *Message) bool { return m.Role == "assistant" && m.Usage != nil })
}

func (s *atomicServer) exportHTML(c *atomicCommand) (any, error) {
	path := c.opt("outputPath")
	if c.err != nil {
		return nil, c.err
	}
	path, err := s.agent.export(s.setup.cwd, path)
	if err != nil {
		return nil, err
	}
	return appendJSON(nil, `{"path":?}`, path), nil
}

// Tools, workflows and commands.

// tools waits for the extensions, as the document says.
func (s *atomicServer) tools(c *atomicCommand) (any, error) {
	a := s.agent
	a.ext.wait(c.ctx)
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
	for _, r := range a.ext.commit() {
		if r.tool != nil {
			add(r.tool, fmt.Sprintf("extension %q", r.ext.Name), filepath.Join(r.ext.dir, "extension.json"))
		}
	}
	slices.SortStableFunc(list, func(x, y map[string]any) int {
		return cmp.Compare(fmt.Sprint(y["active"]), fmt.Sprint(x["active"])) // true first
	})
	selection, description, names := "built-in-defaults", "all built-in tools and those of extensions", []string{}
	switch {
	case s.setup.noTools:
		selection, description = "no-tools", "no tools (--no-tools)"
	case len(s.setup.options.tools) > 0:
		selection, description, names = "tools-allowlist", "the tools of --tools", s.setup.options.tools
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
	excluded := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !slices.Contains(s.setup.excludeTools, name) })
	return map[string]any{"selection": map[string]any{"source": selection, "description": description, "names": names, "modifiers": []string{}},
		"tools": list, "missing": missing, "excluded": excluded}, nil
}

func (s *atomicServer) workflowRuns(c *atomicCommand) (any, error) {
	status := c.opt("status")
	runs := []json.RawMessage{}
	for _, r := range loadWorkflows(s.setup.home, s.setup.cwd) {
		if status == "" || status == r.text("status") {
			runs = append(runs, r.summary())
		}
	}
	return appendJSON(nil, `{"runs":?}`, encode(runs)), nil
}

func (s *atomicServer) workflowRun(c *atomicCommand) (any, error) {
	id := c.need("runId")
	for _, r := range loadWorkflows(s.setup.home, s.setup.cwd) {
		if r.text("runId") == id {
			return r.encode(), nil
		}
	}
	return nil, fmt.Errorf("Workflow run not found: %s", id)
}

func (s *atomicServer) listCommands(c *atomicCommand) (any, error) {
	a := s.agent
	a.ext.wait(c.ctx)
	list := []map[string]any{}
	for _, r := range a.ext.allCommands() {
		path := filepath.Join(r.ext.dir, "extension.json")
		list = append(list, map[string]any{"name": r.name, "description": r.description, "source": "extension", "path": path,
			"sourceInfo": map[string]string{"path": path, "source": "auto", "scope": r.ext.scope}})
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
func (s *atomicServer) reload(c *atomicCommand) (any, error) {
	done := make(chan reloaded, 1)
	s.quiet(func() {
		s.agent.prepared = false
		s.agent.ext.reload(func(r reloaded) { done <- r })
	})
	select {
	case r := <-done:
		return r, nil
	case <-c.ctx.Done():
		return nil, errors.New("aborted: the extensions go on starting")
	}
}

// Extensions.

// uiResponse answers a question that an extension_ui_request asked.
func (s *atomicServer) uiResponse(c *atomicCommand) (any, error) {
	d := decision{"deny", ""}
	if c.flag("confirmed", false) {
		d.word = "allow"
	}
	id := c.opt("id")
	if c.err != nil {
		return nil, c.err
	}
	s.agent.mu.Lock()
	defer s.agent.mu.Unlock()
	if err := s.agent.decide(id, d); err != nil {
		s.respondLocked(c, nil, err)
	}
	return nil, errAnswered // peers send no response
}

func (s *atomicServer) panelCommand(c *atomicCommand) (any, error) {
	s.agent.mu.Lock() // what comes of it follows the response
	defer s.agent.mu.Unlock()
	s.respondLocked(c, nil, s.agent.panelCommand(c.command))
	return nil, errAnswered
}
