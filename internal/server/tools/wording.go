package tools

import (
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A wording is a part of a description that is true of most servers, and what the others
// say in its place.
type wording struct {
	where       func(Offer) bool // whether the offer is of one of the others
	text, other string
}

// reworded returns a description in the words of an offer.
func reworded(description string, list []wording, o Offer) string {
	for _, w := range list {
		if w.where(o) {
			description = strings.Replace(description, w.text, w.other, 1)
		}
	}
	return description
}

// Parts of descriptions that tell where Python's libraries come from.
const (
	ownLibraries   = "Python has the libraries of this machine, usually numpy, pandas and matplotlib."
	imageLibraries = "The sandbox has the interpreters and libraries of its container image."
)

var librariesWording = wording{func(o Offer) bool { return o.Image }, ownLibraries, imageLibraries}

// commandsOnly begins the descriptions of tools for code where the image of boxes has no
// interpreter.
const commandsOnly = "Fails here, unless you name a template with an interpreter: the image of this server has neither Python nor Node.js. Use execute_command. "

// ForCommandsOnly returns the definition of a tool for a server whose boxes have no
// interpreter, or def itself if the tool needs none. def is not modified.
func ForCommandsOnly(def *mcp.Tool) *mcp.Tool {
	switch def.Name {
	case "execute_code", "run_code", "create_context":
		changed := *def
		changed.Description = commandsOnly + def.Description
		return &changed
	}
	return def
}

// Parts of descriptions that tell what becomes of idle boxes.
const (
	idleKept  = "Idle sessions are kept on disk by themselves and need not be stopped."
	idleEnded = "A session that is idle for long ends by itself, with its variables and files."

	wakes     = "A paused or hibernated one wakes with its variables and files when it is called."
	pausedOne = "A paused one wakes with its variables and files when it is called."

	contextsWake   = "All can be used: a paused or hibernated one wakes with its variables and files when it is called."
	contextsPaused = "All can be used: a paused one wakes with its variables and files when it is called."
)

func noHibernation(o Offer) bool { return o.NoHibernation }
