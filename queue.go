// Messages that wait for their turn in a run: steering messages are delivered
// before the next model call, follow-ups when the model has nothing more to do.
// Rules kept here:
//
//   - A message is in the session before its acceptance is told, and leaves the
//     session's queue with the record that delivers or drops it.
//   - Each change of a queue is told (queue_update).
//   - After a run that failed or was aborted nothing is delivered unasked. Who
//     asks: a prompt, an abort command (what is queued goes on behind its
//     response), start_pending_recovery; after a failure also a new message.
package main

import "fmt"

// The queues.
const (
	steering = iota
	followUp
)

var queueNames = [2]string{"steer", "followUp"}

// queue holds messages of one kind.
type queue struct {
	messages []queuedMessage
	all      bool // deliver all at once, not one a turn
}

// enqueue accepts a message. With nothing running it starts a run, unless the
// conversation is empty or the last run was aborted.
func (a *Agent) enqueue(kind int, m *Message, accepted func()) error {
	q := queuedMessage{message: m}
	if a.session != nil {
		id, err := a.session.queue(kind, m)
		if err != nil {
			return fmt.Errorf("the message could not be kept: %w", err)
		}
		q.id = id
	}
	a.mu.Lock()
	a.queues[kind].messages = append(a.queues[kind].messages, q)
	a.queueChanged()
	accepted()
	if len(a.jobs) == 0 && a.held != errAborted {
		a.held = nil
	}
	a.carryOn()
	a.mu.Unlock()
	a.start()
	return nil
}

// carryOn starts a run for what is queued when none is there. The lock is held.
func (a *Agent) carryOn() {
	if len(a.jobs) == 0 && a.held == nil && len(a.messages) > 0 && a.pending() > 0 {
		a.addJob(nil, func(j *job) *Event { return a.answer(j, nil) })
	}
}

// pending counts the messages that wait. The lock is held.
func (a *Agent) pending() int {
	return len(a.queues[steering].messages) + len(a.queues[followUp].messages)
}

// hold keeps what is queued until a prompt, or somebody who asks for it.
func (a *Agent) hold(why error) {
	a.mu.Lock()
	a.held = why
	a.mu.Unlock()
}

func (a *Agent) waiting(kind int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.queues[kind].messages) > 0
}

// beginTurn tells of a new turn and delivers what is due of a queue. It reports
// whether there is something to answer: what a run was begun for may have been
// taken back.
func (a *Agent) beginTurn(j *job, step, kind int) bool {
	a.mu.Lock()
	if step == 1 && !unanswered(a.messages) {
		if a.pending() == 0 {
			a.mu.Unlock()
			return false
		}
		if len(a.queues[steering].messages) == 0 {
			kind = followUp // that is what this run is for
		}
	}
	a.adopt()
	e := &Event{Type: "turn_start", Step: step}
	a.host.event(e)
	a.ext.event(e)
	q := &a.queues[kind]
	n := min(len(q.messages), 1)
	if q.all {
		n = len(q.messages)
	}
	due := q.messages[:n:n]
	q.messages = q.messages[n:]
	if n > 0 {
		a.queueChanged()
	}
	a.mu.Unlock()
	for _, d := range due {
		a.record(d.message, d.id)
		a.add(j, d.message, &Event{Type: "user_message"})
	}
	return true
}

// clearQueues empties the queues and returns the texts of what was in them.
func (a *Agent) clearQueues() (texts [2][]string, err error) {
	a.mu.Lock()
	texts = a.queuedTexts()
	var ids []string
	for kind := range a.queues {
		for _, q := range a.queues[kind].messages {
			ids = append(ids, q.id)
		}
		a.queues[kind].messages = nil
	}
	a.queueChanged()
	session := a.session
	a.mu.Unlock()
	if session != nil && len(ids) > 0 {
		err = session.unqueue(ids)
	}
	return texts, err
}

// queueChanged tells what is queued now. The lock is held.
func (a *Agent) queueChanged() {
	a.host.event(&Event{Type: "queue_update", Queue: a.queuedTexts()})
}

func (a *Agent) queuedTexts() (texts [2][]string) {
	for kind, q := range a.queues {
		texts[kind] = []string{}
		for _, m := range q.messages {
			texts[kind] = append(texts[kind], m.message.text())
		}
	}
	return texts
}
