package outbound

import (
	"errors"
	"fmt"
)

// ErrRefused matches every [*Refusal] in [errors.Is].
var ErrRefused = errors.New("refused by the outbound policy")

// A Reason is the rule that refused a connection. The set is closed.
type Reason string

// The reasons.
const (
	NotHTTP     Reason = "not_http"
	Credentials Reason = "credentials"
	Unencrypted Reason = "unencrypted"
	NotListed   Reason = "not_listed"
	Localhost   Reason = "localhost"
	Private     Reason = "private"
	Metadata    Reason = "metadata"
	Unresolved  Reason = "unresolved"
	Redirected  Reason = "redirected"
)

// texts describes, for each reason, what was refused and what would allow it.
var texts = map[Reason][2]string{
	NotHTTP:     {"a url that is not http or https", "give an https url"},
	Credentials: {"a url with credentials in it", "send them in a header, and trust the server"},
	Unencrypted: {"a url that is not https", "use https, or allow http"},
	NotListed:   {"a host that is not in the list of allowed hosts", "add it to the list"},
	Localhost:   {"this machine", "allow localhost, or trust the server"},
	Private:     {"an address that is not on the public Internet", "allow private addresses, or trust the server"},
	Metadata:    {"the metadata service of a cloud, which gives out credentials", "trust the server"},
	Unresolved:  {"a host whose addresses cannot be looked up", "check the name and the network"},
	Redirected:  {"a redirect to another origin", "configure the url that it leads to"},
}

// A Refusal reports a connection that a [Policy] does not allow. It names the server
// and the host, and never credentials, path or query.
type Refusal struct {
	Server string
	Reason Reason
	Target string // scheme and host, or an address
	Cause  error  // for Unresolved; otherwise nil
}

// Error describes what was refused, why, and what would allow it.
func (r *Refusal) Error() string {
	text := texts[r.Reason]
	cause := ""
	if r.Cause != nil {
		cause = ": " + r.Cause.Error()
	}
	return fmt.Sprintf("refusing to connect mcp server %q to %s, %s%s (%s)", r.Server, r.Target, text[0], cause, text[1])
}

// Why returns a description of the target that explains the refusal, such as "this
// machine".
func (r *Refusal) Why() string { return texts[r.Reason][0] }

// Unwrap returns ErrRefused and the cause.
func (r *Refusal) Unwrap() []error {
	if r.Cause != nil {
		return []error{ErrRefused, r.Cause}
	}
	return []error{ErrRefused}
}
