package egress

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/egress/policy"
)

// A Refusal is a destination that was refused, for a note to the model, or one that is noted for
// another Reason, such as a name that is allowed but could not be resolved.
type Refusal struct {
	Host   string // in canonical form; empty if it has none
	Port   int    // 0: a lookup of the name
	Rule   string // the text of the rule that refused it; may be empty
	Reason string
	// Text is the text of the first refusal, as the program was told.
	Text string
	// Count is how often it was refused.
	Count int
}

// Refused reports whether the destination was refused, and not just noted.
func (r Refusal) Refused() bool { return slices.Contains(Reasons(), policy.Reason(r.Reason)) }

// noted is what a Network remembers of a Refusal.
type noted struct {
	text  string
	count int
}

// maxNoted bounds the destinations that a Network remembers between two calls of Take.
const maxNoted = 64

// A refusal is the answer to a program: why a connection or request is not served.
type refusal struct {
	door   string
	host   string // as decided on; may not be canonical
	port   uint16
	reason policy.Reason // empty: not refused but failed
	closed bool          // failed: the server refuses connections
	rule   string
	policy string // version
	text   string // one sentence or more, of visible ASCII characters
	status int    // of HTTP
}

func (r *refusal) Error() string { return r.text }

const (
	statusRefused = http.StatusForbidden
	statusLimit   = http.StatusTooManyRequests
	statusFailed  = http.StatusBadGateway
	statusBad     = http.StatusBadRequest
)

const (
	maxShown  = 80  // of a host in a text
	maxReason = 200 // bytes of a reason phrase
	maxListed = 5   // entries of the policy in a text
)

// shown returns a destination for a text: at most maxShown visible characters of the
// host, and the port unless it is 0.
func shown(host string, port uint16) string {
	host = strings.Map(func(c rune) rune {
		if c <= ' ' || c >= 0x7f {
			return '?'
		}
		return c
	}, host)
	if len(host) > maxShown {
		host = host[:maxShown/2] + "..." + host[len(host)-maxShown/2:]
	}
	if port == 0 {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// refuseVerdict refuses a destination that the policy does not allow.
func (n *Network) refuseVerdict(door, host string, port uint16, v policy.Verdict) *refusal {
	target := shown(host, port)
	var text string
	if never := neverReached(host); never != "" && v.Reason != policy.Denied {
		text = fmt.Sprintf("Glovebox refused %s: it is %s, which boxes never reach. %s", target, never, pinRemedy(host))
		return n.refuse(refusal{door: door, host: host, port: port, reason: Floor, status: statusRefused, text: text}, v)
	}
	switch v.Reason {
	case policy.Off:
		text = fmt.Sprintf("Glovebox refused %s: this box has no network. Do not retry; %s", target, n.allowOff(host, port))
	case policy.Name:
		text = "Glovebox refused " + target + ": it is not a valid host name."
	case policy.Denied:
		text = fmt.Sprintf("Glovebox refused %s: the policy of the %s denies %s. Do not retry or work around it.", target, v.Layer, shown(v.Rule, 0))
	case policy.Method:
		text = fmt.Sprintf("Glovebox refused %s: the policy of the %s allows other methods or paths only. Do not retry or work around it.", target, v.Layer)
	default:
		text = fmt.Sprintf("Glovebox refused %s: %s. %s", target, n.noRule(host, port), n.remedy(host, port, v))
	}
	reason := v.Reason
	if n.narrowed(v) {
		reason, text = Narrowed, n.narrowedText(target, v)
	}
	return n.refuse(refusal{door: door, host: host, port: port, reason: reason, status: statusRefused, text: text}, v)
}

// listed is a short list of what a version of the policy allows.
type listed struct{ version, text string }

// allowed returns a short list of what the policy allows. It computes the list once for
// each version of the policy: programs cause refusals by the thousand, and the list of a
// long policy takes a while.
func (n *Network) allowed() string {
	set := n.policies()
	version := set.Version()
	if l := n.listed.Load(); l != nil && l.version == version {
		return l.text
	}
	l := &listed{version, shortList(set.Allowed())}
	n.listed.Store(l)
	return l.text
}

func shortList(all []string) string {
	list := all[:min(len(all), maxListed)]
	for i := range list {
		list[i] = shown(list[i], 0)
	}
	text := strings.Join(list, ", ")
	if more := len(all) - len(list); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return cmp.Or(text, "nothing")
}

// refuse counts, notes and records a refusal.
func (n *Network) refuse(r refusal, v policy.Verdict) *refusal {
	r.rule, r.policy = v.Rule, v.Version
	n.gate.count.refused(r.reason)
	n.note(&r)
	if omitted, ok := n.recordable(r.reason); ok {
		rec := Record{Box: n.box, Door: r.door, Port: r.port, Rule: r.rule, Policy: r.policy, Outcome: Refused, Reason: r.reason, Omitted: omitted}
		if v.OK {
			rec.Host = r.host
		} else if r.host != "" {
			rec.Site, rec.Hash = redacted(r.host)
		}
		n.gate.opts.Record(rec)
	}
	return &r
}

// note remembers a refusal for Take.
func (n *Network) note(r *refusal) {
	host, err := policy.ParseHost(r.host)
	if err != nil {
		host = ""
	}
	key := Refusal{Host: host, Port: int(r.port), Rule: r.rule, Reason: string(r.reason)}
	n.mu.Lock()
	defer n.mu.Unlock()
	if seen := n.refusals[key]; seen != nil {
		seen.count++
	} else if len(n.refusals) < maxNoted {
		n.refusals[key] = &noted{r.text, 1}
	}
}

// Take returns the destinations that were refused since the last call, at most 64, the
// most frequent first.
func (n *Network) Take() []Refusal {
	n.mu.Lock()
	all := n.refusals
	n.refusals = make(map[Refusal]*noted)
	n.mu.Unlock()
	list := make([]Refusal, 0, len(all))
	for r, seen := range all {
		r.Text, r.Count = seen.text, seen.count
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b Refusal) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Reason, b.Reason))
	})
	return list
}

// body returns the body of an answer, and its type.
func (r *refusal) body(accept string) (contentType string, body []byte) {
	if !strings.Contains(accept, "application/json") {
		return "text/plain; charset=utf-8", []byte(r.text + "\n")
	}
	body, err := json.Marshal(map[string]any{"error": r.text, "host": shown(r.host, 0), "port": r.port, "why": r.reason, "rule": r.rule, "policy": r.policy})
	if err != nil {
		panic(err) // strings and numbers
	}
	return "application/json", append(body, '\n')
}

func (r *refusal) header(h http.Header) {
	h.Set("Cache-Control", "no-store")
	if r.reason != "" {
		h.Set("X-Glovebox-Rule", cmp.Or(shown(r.rule, 0), "none"))
	}
	if r.policy != "" {
		h.Set("X-Glovebox-Policy", r.policy)
	}
}

// write answers a request. The connection ends, so that the limit of new connections also
// limits refusals.
func (r *refusal) write(w http.ResponseWriter, accept string) {
	contentType, body := r.body(accept)
	w.Header().Set("Connection", "close")
	r.header(w.Header())
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(r.status)
	_, _ = w.Write(body) // the program may have left
}

// writeRaw answers a CONNECT request, with the text as the reason phrase: pip, urllib
// and others show nothing else of an answer to CONNECT.
func (r *refusal) writeRaw(c io.Writer, accept string) {
	contentType, body := r.body(accept)
	h := http.Header{"Connection": {"close"}, "Content-Type": {contentType}, "Content-Length": {strconv.Itoa(len(body))}}
	r.header(h)
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", r.status, reasonPhrase(r.text))
	_ = h.Write(&b) // a strings.Builder does not fail
	b.WriteString("\r\n")
	b.Write(body)
	_, _ = io.WriteString(c, b.String()) // the program may have left
}

// reasonPhrase returns the text, or the beginning of a long one. It ends before a space, so that
// it has no part of a host name, which programs would take for another host.
func reasonPhrase(text string) string {
	const mark = "..."
	if len(text) <= maxReason {
		return text
	}
	end := strings.LastIndexByte(text[:maxReason-len(mark)], ' ')
	if end < 0 {
		end = maxReason - len(mark)
	} else {
		end++
	}
	return text[:end] + mark
}

// Alerts of TLS: fatal, and a description.
var (
	alertUnrecognizedName = []byte{0x15, 3, 3, 0, 2, 2, 112}
	alertAccessDenied     = []byte{0x15, 3, 3, 0, 2, 2, 49}
	alertInternalError    = []byte{0x15, 3, 3, 0, 2, 2, 80}
)
