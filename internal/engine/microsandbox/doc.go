// Package microsandbox is an engine whose guests are microVMs that the msb program of
// microsandbox runs. The engine starts msb once for each operation and parses its output;
// it links none of it.
//
// The engine has an MSB_HOME of its own below its state directory, so that it neither sees
// nor changes the user's sandboxes. A sandbox's name consists of the owner's and a random
// number, and nothing that a client chose: see name.go. Labels tell people, and
// Engine.sweep, which sandboxes are guests.
//
// The stream to the agent is the standard input and output of one "msb exec --stream",
// which runs the agent. It ends with this process, so guests cannot be recovered: their
// sandboxes are removed by the next engine that finds their owner's lock free.
//
// A root directory becomes an image with one layer, loaded into msb once for each
// Root.Key. Its binds, the agent and volumes are shared with the guest by virtiofs.
package microsandbox
