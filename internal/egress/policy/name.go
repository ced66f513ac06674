package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

const (
	maxName  = 253
	maxLabel = 63
)

// ParseHost returns the canonical form of a host that a program names: a DNS name in
// lower case without its trailing dot, or a literal address. Equal hosts have equal
// canonical forms, and a canonical form is its own. An IPv6 address has no brackets and
// no zone; an IPv4 address in IPv6 form becomes an IPv4 address.
//
// A name has at least two labels of letters, digits, "-" and "_", and does not end with a
// number, so that no spelling of an address counts as a name. International names are
// accepted in their ASCII form ("xn--…") only. Anything else is an error.
func ParseHost(s string) (string, error) {
	if addr, ok := parseLiteral(s); ok {
		return addr.String(), nil
	}
	return ParseName(s)
}

// parseLiteral parses an address, with or without brackets.
func parseLiteral(s string) (netip.Addr, bool) {
	inner, ok := strings.CutPrefix(s, "[")
	if ok {
		if inner, ok = strings.CutSuffix(inner, "]"); !ok || !strings.Contains(inner, ":") {
			return netip.Addr{}, false
		}
	}
	addr, err := netip.ParseAddr(inner)
	if err != nil || addr.Zone() != "" {
		return netip.Addr{}, false
	}
	return addr.Unmap(), true
}

// ParseName is [ParseHost] for names only.
func ParseName(s string) (string, error) {
	if len(s) > maxName+1 {
		return "", fmt.Errorf("the name has %d bytes, more than %d", len(s), maxName)
	}
	name := strings.TrimSuffix(s, ".")
	if len(name) > maxName {
		return "", fmt.Errorf("the name has %d bytes, more than %d", len(name), maxName)
	}
	labels, last := 0, ""
	for label := range strings.SplitSeq(name, ".") {
		if err := checkLabel(label); err != nil {
			return "", fmt.Errorf("%q is not a host name: %w", s, err)
		}
		labels, last = labels+1, label
	}
	if labels < 2 {
		return "", fmt.Errorf("%q is not a host name: it has no dot", s)
	}
	if isNumber(last) {
		return "", fmt.Errorf("%q is not a host name: it ends with a number", s)
	}
	return strings.ToLower(name), nil
}

func checkLabel(label string) error {
	switch {
	case label == "":
		return errors.New("it has an empty label")
	case len(label) > maxLabel:
		return fmt.Errorf("a label has %d bytes, more than %d", len(label), maxLabel)
	case label[0] == '-' || label[len(label)-1] == '-':
		return errors.New("a label begins or ends with a hyphen")
	}
	for i := range len(label) {
		switch c := label[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
		case c >= 0x80:
			return errors.New("write international names in ASCII (xn--…)")
		default:
			return fmt.Errorf("%q is not allowed", c)
		}
	}
	return nil
}

// isNumber reports whether some programs read the label as a part of an IPv4 address.
func isNumber(label string) bool {
	digits, hex := strings.CutPrefix(strings.ToLower(label), "0x")
	allowed := "0123456789"
	if hex {
		allowed += "abcdef"
	}
	return strings.Trim(digits, allowed) == ""
}
