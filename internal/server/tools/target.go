package tools

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/nearest"
)

// A model has one computer in mind, whichever tool it uses. So all tools that run
// code or move files accept the ids of sessions and of contexts.

// openOptions describes the box that a call needs.
type openOptions struct {
	id       string   // of a session or a context; "" a new session
	language string   // of a new session; "" python. A box that is there must have it.
	template string   // of a new session: named, or a language. A box that is there must have come from it.
	flavor   string   // of a new session; "" the server's default. A box that is there must have it.
	network  []string // of a new session, at most; nil: not given. A box that is there must have been made with it.
	existing bool     // fail rather than create a session
}

// A target is the box that a call works in.
type target struct {
	*box.Box
	box.Hold

	notes   []string // for the model, on how the box was found or created
	unnamed bool     // a new session whose id only the answer tells
}

// keep keeps the hold of a box until the call ends.
func (c *Call) keep(hold box.Hold) { c.holds = append(c.holds, hold) }

// release releases the boxes of a call. delivered says whether the client gets an answer
// with what their holds report; otherwise the next call reports it.
func (c *Call) release(delivered bool) {
	for _, hold := range c.holds {
		hold.Settle(delivered)
		hold.Release()
	}
	c.holds = nil
}

// open acquires the box that a call works in, until the call ends.
func (c *Call) open(ctx context.Context, w openOptions) (target, error) {
	interpreter, template, err := templateOf(w.language, w.template)
	if err != nil {
		return target{}, err
	}
	flavor, err := box.ParseFlavor(w.flavor)
	if err != nil {
		return target{}, err
	}
	kind, there := box.KindSession, false
	id, err := c.contextID(w.id)
	if err != nil {
		return target{}, err
	}
	if id != w.id {
		if k, err := c.Boxes.Find(c.Owner, id); err != nil {
			return target{}, err
		} else if k != "" {
			w.id = id
		}
	}
	if w.id != "" {
		if k, err := c.Boxes.Find(c.Owner, w.id); err != nil {
			return target{}, err
		} else if k != "" {
			kind, there = k, true
		} else if isContextID(w.id) {
			kind = box.KindContext // Manager.Context returns why it does not exist
		}
	}
	var b target
	if w.id != "" && !there && !w.existing && meansNone(w.id) {
		b.notes = append(b.notes, fmt.Sprintf("The session_id %q counts as none: this is a new session. Pass its id to continue in it.", w.id))
		w.id = ""
	}
	switch {
	case w.id != "" && !there && c.isCut(w.id):
		return target{}, c.noSession(w.id)
	case kind == box.KindContext:
		if b.Box, b.Hold, err = c.Boxes.Context(ctx, c.Owner, w.id); err != nil {
			return target{}, err
		}
		c.keep(b.Hold)
		if err := matches(b.Info(), interpreter, template, flavor); err != nil {
			return target{}, err
		}
		if err := b.MatchesNetwork(w.network); err != nil {
			return target{}, err
		}
	case w.existing && !there:
		return target{}, c.noSession(w.id)
	default:
		b.Box, b.Hold, err = c.Boxes.Session(ctx, c.Owner, box.SessionOptions{ID: w.id, Interpreter: interpreter, Template: template, Flavor: flavor, Network: w.network, Existing: w.existing})
		if err != nil {
			return target{}, c.suggest(w.id, err)
		}
		c.keep(b.Hold)
		b.unnamed = w.id == "" && b.Created
		if r := b.Rescued(); r != nil && b.Created && template != "" {
			b.notes = append(b.notes, fmt.Sprintf("The template %s could not be restored as it was built. %s", template, r.Explain()))
		}
		if b.Created && b.Lost == nil && w.id != "" {
			b.notes = append(b.notes, fmt.Sprintf("There was no session %s: this is a new one, without earlier variables and files.%s", w.id, c.didYouMean(w.id)))
		}
	}
	if note := networkNote(b.Box); note != "" && b.Created {
		b.notes = append(b.notes, note)
	}
	recordBox(ctx, b.Box)
	c.found = b
	return b, nil
}

// stopUnnamed stops a session that a failed call has created, if its client has no name for it:
// errors do not tell the id, so the session would only take room.
func (c *Call) stopUnnamed(ctx context.Context, b target) {
	if b.unnamed {
		// The client gets the error of its call. A session that does not stop ends when it is idle.
		_, _ = c.Boxes.Stop(ctx, c.Owner, box.KindSession, b.ID())
		c.found = target{}
	}
}

// templateOf reads the arguments language and template. template also takes a language or
// the name of a built-in template, as the argument language did under its earlier name.
func templateOf(language, template string) (interpreter box.Interpreter, named string, err error) {
	if interpreter, err = box.ParseInterpreter(language); err != nil || strings.TrimSpace(template) == "" || meansNone(template) {
		return interpreter, "", err
	}
	other, err := box.ParseInterpreter(template)
	switch {
	case err != nil:
		return interpreter, strings.TrimSpace(template), nil
	case interpreter != "" && interpreter != other:
		return "", "", invalid("template", "The template '%s' has the language '%s', not '%s'. Leave out one of them", clip(template), other.Language(), interpreter.Language())
	}
	return other, "", nil
}

// templateName returns the name of the template that a box came from.
func templateName(info box.Info) string { return cmp.Or(info.Template, string(info.Interpreter)) }

// context acquires the box of run_code until the call ends: a context by its id or unique
// name, a session or, for "", "default" and words for a missing value, the client's default
// context, which own reports.
func (c *Call) context(ctx context.Context, id string) (b *box.Box, hold box.Hold, own bool, err error) {
	var kind box.Kind
	if id != "" {
		if kind, err = c.Boxes.Find(c.Owner, id); err != nil {
			return nil, box.Hold{}, false, err
		}
	}
	there := kind != ""
	if !there && meansNone(id) {
		id = ""
	}
	switch own = id == "" || id == box.DefaultContextID && !there; {
	case own:
		b, hold, err = c.Boxes.DefaultContext(ctx, c.Owner, c.Client)
	case kind == box.KindSession:
		b, hold, err = c.Boxes.Session(ctx, c.Owner, box.SessionOptions{ID: id})
	default:
		b, hold, err = c.Boxes.Context(ctx, c.Owner, id)
	}
	c.keep(hold)
	recordBox(ctx, b)
	return b, hold, own, err
}

// contextID returns the id of the client's default context for "default", unless a
// box has that id or name, and any other id as it is.
func (c *Call) contextID(id string) (string, error) {
	if id != box.DefaultContextID || c.Client == nil {
		return id, nil
	}
	if kind, err := c.Boxes.Find(c.Owner, id); kind != "" || err != nil {
		return id, err
	}
	return c.Client.ContextID(), nil
}

// meansNone reports whether id is a word for a missing value. Some models and clients
// write it into an optional argument, and mean no box of that name.
func meansNone(id string) bool {
	switch strings.ToLower(strings.TrimSpace(id)) {
	case "null", "none", "nil", "undefined":
		return true
	}
	return false
}

// isContextID reports whether id has the form of generated context ids.
func isContextID(id string) bool { return strings.HasPrefix(id, "ctx-") && len(id) == len("ctx-")+36 }

// matches returns an error if a context does not have the requested properties.
func matches(info box.Info, interpreter box.Interpreter, template string, flavor box.Flavor) error {
	switch {
	case template != "" && template != info.Template:
		return invalid("template", "Context %s came from the template '%s', not '%s'. Leave out the template, or use another context", info.ID, templateName(info), clip(template))
	case interpreter != "" && interpreter != info.Interpreter:
		return invalid("language", "Context %s has the language '%s', not '%s'. Leave out the language, or use another context", info.ID, info.Language, interpreter.Language())
	case flavor != "" && flavor != info.Flavor:
		return invalid("flavor", "Context %s has the flavor '%s', not '%s'. Leave out the flavor, or use another context", info.ID, info.Flavor, flavor)
	}
	return nil
}

// noSession is the error for an unknown id in a call that creates no session.
func (c *Call) noSession(id string) error {
	if id == "" {
		e := invalid("session_id", "Missing required parameter: session_id")
		e.Hint = "Pass the session_id of an earlier answer; execute_code makes a new session."
		return e
	}
	e := c.Boxes.NotFound("find session", c.Owner, box.KindSession, id)
	if e.Context["reason"] == "" {
		e.Hint = strings.TrimSpace(c.didYouMean(id) + " get_sessions lists the sessions.")
	}
	return e
}

// suggest adds the nearest known id to the error for an invalid one.
func (c *Call) suggest(id string, err error) error {
	if e, ok := err.(*box.Error); ok && e.Code == box.CodeInvalid && e.Context["field"] == "session_id" {
		e.Hint += c.didYouMean(id)
	}
	return err
}

// didYouMean returns a sentence, after a space, that names the box whose id is close
// to id, "" if there is none.
func (c *Call) didYouMean(id string) string {
	var ids []string
	boxes, _ := c.Boxes.List(c.Owner, "") // without a list there is no suggestion
	for _, info := range boxes {
		ids = append(ids, info.ID)
	}
	if near := nearestID(id, ids); near != "" {
		return " Did you mean " + near + "?"
	}
	return ""
}

// isCut reports whether id is the beginning of the id of one of the caller's boxes, as
// the status line shortens it, and not a new id that the caller chose: it ends with an
// ellipsis, or the box's id was generated.
func (c *Call) isCut(id string) bool {
	const shortest = 8 // shorter ids match generated ones by chance
	beginning := strings.TrimRight(id, ".…")
	if len(beginning) < shortest {
		return false
	}
	var whole []string
	boxes, _ := c.Boxes.List(c.Owner, "") // acquiring the box reports the error
	for _, info := range boxes {
		if strings.HasPrefix(info.ID, beginning) && info.ID != beginning {
			whole = append(whole, info.ID)
		}
	}
	return len(whole) == 1 && (beginning != id || isGenerated(whole[0]))
}

// isGenerated reports whether id has the form of the ids that this server generates.
func isGenerated(id string) bool {
	const form = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
	id = strings.TrimPrefix(id, "ctx-")
	if len(id) != len(form) {
		return false
	}
	for i, c := range []byte(id) {
		if dash := form[i] == '-'; dash != (c == '-') || !dash && !strings.ContainsRune("0123456789abcdef", rune(c)) {
			return false
		}
	}
	return true
}

// maxCompared bounds the ids, the newest ones, whose edit distance to an unknown id is
// computed. With the 10,000 boxes that may be on disk it would take seconds.
const maxCompared = 200

// nearestID returns the only id that has id as a prefix, which is how the status line
// shortens ids, or that id misspells; "" if there is none or several.
func nearestID(id string, ids []string) string {
	const shortest = 4 // shorter prefixes match by chance
	id = strings.TrimRight(id, ".…")
	others := slices.DeleteFunc(slices.Clone(ids), func(other string) bool { return other == id }) // the call may have created it
	found := slices.DeleteFunc(slices.Clone(others), func(other string) bool {
		return len(id) < shortest || !strings.HasPrefix(other, id)
	})
	if len(found) == 1 {
		return found[0]
	}
	return nearest.Of(id, others[:min(len(others), maxCompared)])
}
