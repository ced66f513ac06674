package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

//go:generate go run ./docgen ../../docs/configuration.md

type groupTitle struct{ group, title string }

// groupTitles are the headings of the documentation, in order.
var groupTitles = []groupTitle{
	{"server", "Server"},
	{"security", "Security"},
	{"tools", "Tools"},
	{"boxes", "Boxes"},
	{"volumes", "Volumes"},
	{"host", "Host"},
	{"log", "Log and traces"},
}

// Markdown is docs/configuration.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`<!-- Generated from internal/config by "go generate ./internal/config"; edit there. -->

# Configuration

A setting is looked for in this order, and the first place that has it wins: flag, environment variable, file, default. Spaces around a value are dropped, and a blank variable counts as not set. A value that cannot be used ends the start with exit code 2 and a message that names it.

The file is JSON in which comments and trailing commas are allowed; ` + "`--config FILE` or `" + FileEnv + "`" + ` names it. Its keys are the flags' names without the dashes:

` + "```jsonc\n{\n\t\"port\": 9000,\n\t\"max-sessions\": 4, // a small machine\n\t\"volume\": [\"/srv/data:/shared/input:ro\"],\n}\n```" + `

Times are seconds (` + "`90`, `0.5`" + `) or have a unit (` + "`90s`, `30m`" + `). Booleans are ` + words(trueWords) + ` or ` + words(falseWords) + `.

On SIGHUP a server over HTTP reads the file again (variables and flags stay what they were at its start) and takes over the settings marked ↻, and files that settings name, such as certificates. The log says what has changed and what waits for a restart. With a value that cannot be used everything stays as it was. A log file is opened anew, so that it can be moved away.

A ` + "`.env`" + ` file is not read: MCP clients start servers in the directory that the agent works in, and a file that the agent can write must not decide what of the host is shared.
`)
	for _, g := range groupTitles {
		fmt.Fprintf(&b, "\n## %s\n\n| flag | environment | default | what |\n|---|---|---|---|\n", g.title)
		for _, k := range Keys() {
			if k.Group == g.group {
				fmt.Fprintf(&b, "| `--%s` | %s | %s | %s |\n", k.Name, codes(k.Env), code(k.Default), strings.ReplaceAll(k.sentence()+k.mark(), "|", "\\|"))
			}
		}
	}
	b.WriteString("\n## Accepted without effect\n\nVariables of servers that Glovebox takes the place of:\n\n| variable | why |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(ignored)) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, ignored[name])
	}
	return b.String()
}

// sentence is the help with the choices.
func (k Key) sentence() string {
	if len(k.Choices) == 0 {
		return k.Help
	}
	return k.Help + " (" + strings.Join(k.Choices, ", ") + ")"
}

// Describe returns all that the documentation says of the setting, in one
// paragraph.
func (k Key) Describe() string {
	text := k.Help
	if len(k.Choices) > 0 {
		text += " Choices: " + strings.Join(k.Choices, ", ") + "."
	}
	if def := k.shownDefault(); def != "" {
		text += " Default: " + def + "."
	}
	return text
}

// mark tells settings that need no restart.
func (k Key) mark() string {
	if k.Live {
		return " ↻"
	}
	return ""
}

func code(s string) string {
	if s == "" {
		return "–"
	}
	return "`" + s + "`"
}

func codes(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = "`" + s + "`"
	}
	return strings.Join(quoted, ", ")
}

func words(list []string) string { return codes(list) }
