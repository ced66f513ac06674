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
	{"code", "Code mode"},
	{"search", "Web search"},
	{"network", "Network"},
	{"boxes", "Boxes"},
	{"volumes", "Volumes"},
	{"host", "Host"},
	{"engine", "Engine"},
	{"log", "Log and traces"},
}

// Markdown returns the text of docs/configuration.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`<!-- Generated from internal/config by "go generate ./internal/config"; edit there. -->

# Configuration

The first source that has a setting wins: flag, environment variable, file, default. Spaces around a value are ignored, and an empty variable counts as unset. Glovebox refuses to start with an invalid value: it exits with code 2 and a message that names the setting.

The file is JSON with comments and trailing commas; ` + "`--config FILE` or `" + FileEnv + "`" + ` names it. Its keys are the names of the flags without the dashes:

` + "```jsonc\n{\n\t\"port\": 9000,\n\t\"max-sessions\": 4, // a small machine\n\t\"volume\": [\"/srv/data:/shared/input:ro\"],\n}\n```" + `

Times are seconds (` + "`90`, `0.5`" + `) or have a unit (` + "`90s`, `30m`" + `). Booleans are ` + words(trueWords) + ` or ` + words(falseWords) + `.

On SIGHUP, an HTTP server reads the configuration file again, but not flags and variables, and applies the settings marked ↻. It also reads files that settings name, such as certificates, and reopens its log file, so that you can move it. The log lists the changes, and which of them need a restart. If a value is invalid, nothing changes.

Glovebox reads no ` + "`.env`" + ` file: MCP clients start servers in the agent's working directory, and a file that the agent can write must not decide which host directories boxes see.
`)
	for _, g := range groupTitles {
		fmt.Fprintf(&b, "\n## %s\n\n| flag | environment | default | description |\n|---|---|---|---|\n", g.title)
		for _, k := range Keys() {
			if k.Group == g.group {
				flag := "file: `" + k.Name + "`"
				if k.HasFlag() {
					flag = "`--" + k.Name + "`"
				}
				fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", flag, codes(k.Env), code(k.Default), strings.ReplaceAll(k.sentence()+k.mark(), "|", "\\|"))
			}
		}
	}
	b.WriteString("\n## Accepted without effect\n\nVariables of the servers that Glovebox replaces:\n\n| variable | reason |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(ignored)) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, ignored[name])
	}
	return b.String()
}

// sentence returns the help with the choices.
func (k Key) sentence() string {
	if len(k.Choices) == 0 {
		return k.Help
	}
	return k.Help + " (" + strings.Join(k.Choices, ", ") + ")"
}

// Describe returns the help with choices and default, as one paragraph.
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

// mark returns the sign of settings that need no restart.
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
