package codemode

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/loglimit"
	"github.com/glovebox-dev/glovebox/mcpkit"
)

// An image is one that a tool returned to the program of a run.
type image struct {
	mime string // one of imageTypes, as the server says
	data []byte
}

// Run makes the calls of one run. It is a client.Host. Its methods may be called
// concurrently.
type Run struct {
	b    *Broker
	who  Identity
	used [3]*usage // of the run, of its box and of its owner

	refused     *loglimit.Limit
	imageMemory *reservation
	changes     changes
	uncalled    uncalled

	mu      sync.Mutex
	images  []image // guarded by mu
	release func()  // guarded by mu: of the servers; nil before the first call
	ended   bool    // guarded by mu
}

// Begin returns a run that makes calls for an owner's box. The caller must call End.
func (b *Broker) Begin(who Identity) *Run {
	b.mu.Lock()
	defer b.mu.Unlock()
	box, ok := b.boxes.Get(who)
	if !ok {
		box = newUsage(b.o.BoxBudget, "box", time.Hour)
		b.boxes.Add(who, box)
	}
	owner, ok := b.owners.Get(who.Owner)
	if !ok {
		owner = &ownerUse{newUsage(b.o.OwnerBudget, "user", time.Hour), loglimit.New(refusalBurst)}
		b.owners.Add(who.Owner, owner)
	}
	return &Run{
		b: b, who: who, used: [3]*usage{newUsage(b.o.RunBudget, "run", 0), box, owner.usage}, refused: owner.refused,
		imageMemory: b.o.Memory.newReservation(who.Owner),
	}
}

// End drops the images, and lets the servers end. The run makes no calls any more.
func (r *Run) End() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.images, r.ended = nil, true
	r.imageMemory.end()
	if r.release != nil {
		r.release()
		r.release = nil
	}
}

// hold keeps the servers until End.
func (r *Run) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.release == nil && !r.ended {
		r.release = r.b.o.Servers.Hold()
	}
}

// Displays returns the images that the calls so far have returned, within the limits.
func (r *Run) Displays() (all []protocol.Display) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, img := range r.images {
		all = append(all, protocol.Display{Data: map[string]string{
			"text/plain": "<image of a tool>", img.mime: base64.StdEncoding.EncodeToString(img.data),
		}})
	}
	return all
}

// answer is what a program gets.
type answer struct {
	Value any    `json:"value,omitempty"`
	Error *Error `json:"error,omitempty"`
}

// Call answers a call of the program: method "tool", "catalog", "search", "describe" or
// "stubs". Failures are in the answer, so that the program can catch them.
//
// Memory is accounted for the answer until ctx ends.
func (r *Run) Call(ctx context.Context, method string, args []byte) ([]byte, error) {
	m := r.b.o.Memory
	own := m.newReservation(r.who.Owner)
	context.AfterFunc(ctx, own.end)
	value, err := r.count(func() (any, error) {
		if err := own.take(ctx, argumentCopies*len(args)); err != nil {
			return nil, m.errorFor(err, Exhausted, "nothing was called")
		}
		return r.dispatch(ctx, own, method, args)
	})
	a := answer{Value: value}
	if err != nil {
		a = answer{Error: asError(ctx, err)}
	}
	b, err := json.Marshal(a)
	if err == nil && !own.resize(len(b)) {
		b, err = json.Marshal(answer{Error: asError(ctx, m.errorFor(errNoMemory, TooLarge, "the answer was dropped; if it is of a tool, the tool ran"))})
	}
	if err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	return b, nil
}

// argumentCopies is the number of copies of its arguments that a call has while it waits for
// approval: as they came, decoded, and canonical.
const argumentCopies = 3

// count answers a request within the budget of requests.
func (r *Run) count(answer func() (any, error)) (any, error) {
	for _, u := range r.used {
		if err := u.request(); err != nil {
			return nil, err
		}
	}
	return answer()
}

// dispatch answers a request. own is its memory, to which the answer's may be moved.
func (r *Run) dispatch(ctx context.Context, own *reservation, method string, args []byte) (any, error) {
	if err := checkJSON(args); err != nil {
		return nil, &Error{Code: InvalidArguments, Message: err.Error()}
	}
	if method == "tool" {
		r.hold()
		return decoded(args, func(in toolCall) (any, error) { return r.call(ctx, own, in) })
	}
	left, err := r.beginUse(0, 0)
	if err != nil {
		return nil, err
	}
	defer r.endUse()
	ctx, cancel := context.WithTimeoutCause(ctx, left, errBudgetTime)
	defer cancel()
	switch method {
	case "catalog":
		return decoded(args, func(in catalogQuery) (any, error) { return r.catalog(ctx, in) })
	case "search":
		return decoded(args, func(in searchQuery) (any, error) { return r.search(ctx, in) })
	case "describe":
		return decoded(args, func(in describeQuery) (any, error) { return r.describe(ctx, in) })
	case "stubs":
		return decoded(args, func(in searchQuery) (any, error) { return r.b.Stubs(ctx, LanguageOf(in.Language)), nil })
	}
	return nil, &Error{Code: InvalidArguments, Message: fmt.Sprintf("unknown method %.40q", method)}
}

func decoded[T any](args []byte, f func(T) (any, error)) (any, error) {
	var in T
	if err := json.Unmarshal(args, &in); err != nil {
		return nil, &Error{Code: InvalidArguments, Message: malformed(err)}
	}
	return f(in)
}

// malformed says what is wrong with a call that cannot be decoded.
func malformed(err error) string {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return "parse call: it is not valid JSON"
	}
	want := "an object"
	switch wrong.Type.Kind() {
	case reflect.String:
		want = "a string"
	case reflect.Int:
		want = "an integer"
	case reflect.Slice:
		want = "a list"
	}
	if wrong.Field == "" {
		return fmt.Sprintf("parse call: expected %s, got a JSON %s", want, wrong.Value)
	}
	return fmt.Sprintf("parse call: %s: expected %s, got a JSON %s", wrong.Field, want, wrong.Value)
}

// toolCall names a tool by Name ("server.tool"), or by Server and Tool.
type toolCall struct {
	Name      string            `json:"name"`
	Server    string            `json:"server"`
	Tool      string            `json:"tool"`
	Arguments json.RawMessage   `json:"arguments"`
	Words     map[string]string `json:"words"`    // arguments as text, see convertWord
	Language  string            `json:"language"` // of the signature in an error
}

// call makes one call. It moves the memory of the value to own.
func (r *Run) call(ctx context.Context, own *reservation, in toolCall) (value any, err error) {
	begun := time.Now()
	l := LanguageOf(in.Language)
	var t Tool
	made := false
	defer func() {
		if !made && ctx.Err() != nil {
			r.uncalled.add(t, in)
		}
		r.record(t, made, err, time.Since(begun))
	}()
	if t, err = r.b.resolve(ctx, in); err != nil {
		return nil, err
	}
	arguments, err := r.b.arguments(t, in)
	if err != nil {
		return nil, r.b.withTool(err, t, l)
	}
	if arguments, err = r.b.permit(ctx, r.who, t, arguments); err != nil {
		return nil, r.b.withTool(err, t, l)
	}
	left, err := r.beginUse(1, len(arguments))
	if err != nil {
		return nil, r.b.withTool(err, t, l)
	}
	made = true
	reached, called := r.uncalled.begin(t), r.changes.begin(t)
	run := ctx
	if r.b.o.Called != nil {
		r.b.o.Called(ctx, t)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, left, errBudgetTime)
	defer cancel()
	result := own.memory.newReservation(own.owner)
	defer result.end()
	admit := func(ctx context.Context, bytes int) error {
		result.resize(0)
		return result.memory.errorFor(result.take(ctx, bytes), TooLarge, "the tool ran, but its result was dropped")
	}
	res, err := r.b.o.Servers.Call(mcpkit.WithAdmission(ctx, admit), t, arguments)
	called(err)
	reached(err, run.Err() != nil)
	r.endUse()
	if err != nil {
		return nil, r.b.withTool(asError(ctx, err), t, l)
	}
	value, images, err := resultValue(res)
	if err != nil {
		return nil, r.b.withTool(r.b.hintFor(t, arguments, err), t, l)
	}
	encoded, err := encode(value)
	if err == nil {
		err = r.deliver(len(encoded) + sizeOfImages(images))
	}
	if err != nil {
		return nil, r.b.withTool(err, t, l)
	}
	r.keepImages(images, result)
	result.move(own, len(encoded))
	if value == nil {
		return nil, nil
	}
	return encoded, nil // not value: its memory is given back
}

// beginUse counts calls, 0 or 1, and the bytes of arguments, and returns the time that the
// request may take.
func (r *Run) beginUse(calls, bytes int) (left time.Duration, err error) {
	left = time.Duration(1<<63 - 1)
	var periods [len(r.used)]time.Time
	for i, u := range r.used {
		l, period, err := u.begin(calls, bytes)
		if err != nil {
			for j, before := range r.used[:i] {
				before.undo(calls, bytes, periods[j])
			}
			return 0, err
		}
		left, periods[i] = min(left, l), period
	}
	return left, nil
}

// endUse ends what beginUse counted.
func (r *Run) endUse() {
	for _, u := range r.used {
		u.end()
	}
}

// deliver counts the bytes of a result, which is not delivered if they are too many.
func (r *Run) deliver(bytes int) error {
	for _, u := range r.used {
		if err := u.add(bytes); err != nil {
			return err
		}
	}
	return nil
}

// keepImages keeps the images for the result of the run, and the part of a reservation that is
// for them.
func (r *Run) keepImages(images []image, of *reservation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, img := range images {
		if len(r.images) < r.b.o.MaxImages && len(img.data) <= r.b.o.MaxImageSize {
			r.images = append(r.images, img)
			of.move(r.imageMemory, len(img.data))
		}
	}
}

// record logs a call. made reports that a server may have received it. t is empty if there
// is no such tool: the name comes from the box.
func (r *Run) record(t Tool, made bool, err error, took time.Duration) {
	omitted := int64(0)
	if !made {
		var ok bool
		if omitted, ok = r.refused.Allow(); !ok {
			return
		}
	}
	outcome, code, server := "ok", Code(""), t.Server
	if err != nil {
		e, ok := errors.AsType[*Error](err)
		if ok {
			server = cmp.Or(server, e.Server) // one of the configured servers
		}
		switch {
		case !ok:
			outcome = "error"
		case e.Code == ToolFailed:
			outcome, code = "failed", e.Code
		case e.Code.refused():
			outcome, code = "refused", e.Code
		case e.Code == Interrupted && !e.broken:
			outcome, code = "cancelled", e.Code
		default:
			outcome, code = "error", e.Code
		}
	}
	name := ""
	if t.Tool != nil {
		name = t.Name
	}
	line := []any{logkey.Who, cmp.Or(r.who.Owner, "local"), logkey.Box, r.who.Box, logkey.Server, server, logkey.Tool, name,
		logkey.Outcome, outcome, logkey.Code, string(code), logkey.DurationMS, took.Milliseconds()}
	if omitted > 0 {
		line = append(line, logkey.Omitted, omitted)
	}
	r.b.log.Info("call of a tool by code", line...)
}
