package mcpjson

import (
	"errors"
	"fmt"
	"strings"
)

// maxEnvFile bounds a file of variables; the kernel passes no more to a process.
const maxEnvFile = 1 << 20

// readEnvFile parses KEY=value lines like common tools: comments, "export ", single
// quotes without escapes and double quotes with them. References to other variables are
// not expanded.
func readEnvFile(name string) ([][2]string, error) {
	b, err := readRegular(name, maxEnvFile)
	if err != nil {
		return nil, err
	}
	return parseEnv(string(b))
}

func parseEnv(text string) ([][2]string, error) {
	var out [][2]string
	rest := strings.TrimPrefix(text, "\ufeff")
	for line := 1; rest != ""; line++ {
		var one string
		one, rest, _ = strings.Cut(rest, "\n")
		one = strings.TrimSpace(one)
		if one == "" || strings.HasPrefix(one, "#") {
			continue
		}
		key, value, ok := strings.Cut(strings.TrimPrefix(one, "export "), "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok || key == "" || strings.ContainsAny(key, " \t\x00\"'") {
			return nil, fmt.Errorf("line %d is not KEY=value", line)
		}
		value, err := unquoteEnv(value)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		out = append(out, [2]string{key, value})
	}
	return out, nil
}

func unquoteEnv(v string) (string, error) {
	if v == "" || v[0] != '"' && v[0] != '\'' {
		if i := strings.Index(v, " #"); i >= 0 {
			v = strings.TrimSpace(v[:i])
		}
		return v, nil
	}
	quote := v[0]
	var b strings.Builder
	for i := 1; i < len(v); i++ {
		switch c := v[i]; {
		case c == quote:
			if tail := strings.TrimSpace(v[i+1:]); tail != "" && tail[0] != '#' {
				return "", errors.New("unexpected text after the closing quote")
			}
			return b.String(), nil
		case c == '\\' && quote == '"' && i+1 < len(v):
			i++
			switch v[i] {
			case 'n':
				b.WriteByte('\n')
			case 'r':
				b.WriteByte('\r')
			case 't':
				b.WriteByte('\t')
			case '"', '\\', '$':
				b.WriteByte(v[i])
			default:
				b.WriteByte('\\')
				b.WriteByte(v[i])
			}
		default:
			b.WriteByte(c)
		}
	}
	return "", errors.New("the closing quote is missing")
}
