package podlink

// Termination is the termination message of a box's container, as JSON: the helper tells
// the engine in it why the container has ended. A guest's root can forge it, which changes
// only what the engine tells about the guest.
type Termination struct {
	// Exited is the exit code of the agent; nil if it did not end on its own.
	Exited *int `json:"exited,omitempty"`
	// Stopped tells that the container was told to end.
	Stopped bool `json:"stopped,omitempty"`
	// Error tells why the helper could not run the agent.
	Error string `json:"error,omitempty"`
}
