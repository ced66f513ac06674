package attack

// servers are the servers that the trials of a run share.
type servers struct{ rig *rig }

// close ends the servers.
func (s *servers) close() error { return nil }
