package codemode

import (
	"context"
	"fmt"
	"strings"
)

// maxStubs bounds the declarations of tools, in bytes.
const maxStubs = 1 << 20

// Stubs returns the declarations of all tools, as in a .pyi or .d.ts file, with the first
// sentence about each.
func (b *Broker) Stubs(ctx context.Context, l Language) string {
	return b.declare(b.offered(ctx, ""), l, false, maxStubs, true)
}

// Declarations returns the declarations and documentation of the tools that names mean
// (SERVER.TOOL, or SERVER for all its tools) as in a .pyi or .d.ts file, and how many
// tools these are. It leaves out tools that do not fit and says how many. Notes and error
// are as of Describe.
func (b *Broker) Declarations(ctx context.Context, names []string, l Language) (text string, n int, notes []string, err error) {
	tools, notes, err := b.selected(ctx, names)
	if err != nil {
		return "", 0, nil, err
	}
	return b.declare(tools, l, true, maxDocumented, len(names) < len(tools)), len(tools), notes, nil
}

// declare returns a declaration of each tool, by server: with all documentation if it is
// to be full, else on one line each. Of tools that do not fit, it keeps the first. named says
// that servers were named, for all their tools.
func (b *Broker) declare(tools []Tool, l Language, full bool, most int, named bool) string {
	if l != JavaScript {
		l = Python
	}
	var servers []string // in the order of their first tools
	declared := make(map[string]*strings.Builder)
	ambiguous := make(map[string]bool) // servers
	size, left := 0, 0
	for i, t := range tools {
		var text strings.Builder
		if l == JavaScript {
			b.declareJavaScript(&text, t, full)
		} else {
			b.declarePython(&text, t, full)
		}
		if size += text.Len(); i > 0 && size > most {
			left = len(tools) - i
			break
		}
		if declared[t.Server] == nil {
			servers = append(servers, t.Server)
			declared[t.Server], ambiguous[t.Server] = new(strings.Builder), t.ambiguousServer
		}
		declared[t.Server].WriteString(text.String())
	}
	var out strings.Builder
	out.WriteString([2]string{"from typing import Any, Literal, NotRequired\n", "declare const tools: {\n"}[l])
	for _, server := range servers {
		if l == JavaScript {
			fmt.Fprintf(&out, "  %s: {\n%s  };\n", memberName(server, serverIdentifier(server), ambiguous[server]), declared[server])
		} else {
			fmt.Fprintf(&out, "\nclass %s:  # %s\n%s", serverIdentifier(server), serverPath(server, ambiguous[server]), declared[server])
		}
	}
	if l == JavaScript {
		out.WriteString("};\n")
	}
	if left > 0 {
		out.WriteString(l.comment() + moreTools(left, named) + "\n")
	}
	return out.String()
}

// memberName returns a name as a member of a JavaScript type.
func memberName(name, id string, ambiguous bool) string {
	if ambiguous {
		return quoted(name)
	}
	return id
}

// remark returns the first sentence about a tool, and whether code may call it.
func (b *Broker) remark(t Tool) string {
	text := firstSentence(t.Description, 200)
	return strings.TrimSpace(text + " " + b.mark(t))
}

// All text below comes from servers, and must not end the comment or string that it is in.

func (b *Broker) declarePython(out *strings.Builder, t Tool, full bool) {
	sign := signatureWriter{&b.declarations, Python}
	if t.ambiguousName {
		fmt.Fprintf(out, "    # %s\n", t.path())
	}
	fmt.Fprintf(out, "    @staticmethod\n    def %s(%s) -> %s:", identifier(t.Name), sign.parameterList(t), sign.returnType(t))
	note := others(b.declarations.of(t.Tool).parameters)
	if !full {
		if note != "" {
			note = " (" + note + ")"
		}
		fmt.Fprintf(out, " ...  # %s%s\n", b.remark(t), note)
		return
	}
	text := strings.Trim(b.explanation(t, Python)+"\n"+note, "\n")
	text = strings.NewReplacer(`\`, `\\`, `"""`, `\"\"\"`).Replace(text)
	if strings.HasSuffix(text, `"`) {
		text += " "
	}
	fmt.Fprintf(out, "\n        \"\"\"%s\"\"\"\n", strings.ReplaceAll(text, "\n", "\n        "))
}

func (b *Broker) declareJavaScript(out *strings.Builder, t Tool, full bool) {
	sign := signatureWriter{&b.declarations, JavaScript}
	args := sign.parameterList(t)
	if args != "" {
		args = "args: " + args
	}
	declaration := fmt.Sprintf("    %s(%s): Promise<%s>;", memberName(t.Name, identifier(t.Name), t.ambiguousName), args, sign.returnType(t))
	if !full {
		fmt.Fprintf(out, "%s // %s\n", declaration, b.remark(t))
		return
	}
	if text := strings.ReplaceAll(b.explanation(t, JavaScript), "*/", "* /"); text != "" {
		fmt.Fprintf(out, "    /** %s */\n", strings.ReplaceAll(text, "\n", "\n     *  "))
	}
	out.WriteString(declaration + "\n")
}
