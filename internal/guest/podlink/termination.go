package podlink

// Termination is the termination message of a box's container, as JSON: the helper tells
// the engine in it why the container has ended. A guest's root can forge it, which changes
// only what the engine tells about the guest.
type Termination struct {
	// Exited is the exit code of the agent; nil if it did not end on its own.
	Exited *int `json:"exited,omitempty"`
	// Stopped says that the container was asked to end.
	Stopped bool `json:"stopped,omitempty"`
	// Error says why the helper could not run the agent.
	Error string `json:"error,omitempty"`
}
