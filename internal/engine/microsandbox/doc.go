// Package microsandbox is an engine whose guests are microVMs that the msb program of
// microsandbox runs. The engine starts msb once for each operation and parses its output;
// it links none of it.
//
// The engine has an MSB_HOME of its own below its state directory, so that it neither sees
// nor changes the user's sandboxes. A sandbox's name is a random number, and nothing that a
// client chose: see name.go. A label tells which sandboxes are guests, and a file in the
// guest's directory which engine holds it: see hold.go.
//
// The agent is run in the background by the helper of internal/guest/pod, in namespaces of its
// own. The stream to it is a session of internal/guest/podlink over "msb exec", which runs the
// helper's part "link": an exec can end while the box lives, as when its output is read too
// slowly, and the session survives that, and bounds what is unread. Another "msb exec" waits
// for the end of the helper. Neither is part of the guest's life, so guests can be recovered.
//
// A root directory becomes an image with one layer, loaded into msb once for each
// Root.Key. Its binds, the agent and volumes are shared with the guest by virtiofs.
package microsandbox
