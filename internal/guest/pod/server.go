package pod

import (
	"io"
	"net"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/engine/stdiolink"
	"github.com/glovebox-dev/glovebox/internal/guest/podlink"
)

const (
	// helloWait bounds the wait for the first message of a connection.
	helloWait = 10 * time.Second
	// maxConns bounds the connections that have sent no hello yet, or are about to end.
	maxConns = 64
)

// server connects sessions with the agent's streams. One session at a time has them.
type server struct {
	agent *stdiolink.Stream
	slots chan struct{}

	mu      sync.Mutex
	id      podlink.SessionID // guarded by mu
	current *podlink.Session  // guarded by mu; nil before the first
}

func newServer(agent *stdiolink.Stream) *server {
	return &server{agent: agent, slots: make(chan struct{}, maxConns)}
}

// serve accepts connections until the listener is closed.
func (s *server) serve(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		select {
		case s.slots <- struct{}{}:
			go func() {
				defer func() { <-s.slots }()
				s.handle(conn)
			}()
		default:
			conn.Close()
		}
	}
}

// handle runs one connection to its end.
func (s *server) handle(conn net.Conn) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(helloWait))
	hello, err := podlink.ReadHello(conn)
	if err != nil {
		return
	}
	session, gen, err := s.begin(hello)
	reply := podlink.Reply{Superseded: err != nil, Received: gen.Received}
	if reply.Write(conn) != nil || err != nil {
		return
	}
	conn.SetDeadline(time.Time{})
	session.Run(gen, conn, hello.Received) // however it ends, the session waits for the next connection
}

// begin returns the session of a connection: the current one, or a new one, which ends
// the current one.
func (s *server) begin(hello podlink.Hello) (*podlink.Session, podlink.Generation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if hello.Resume {
		if s.current == nil || s.id != hello.Session {
			return nil, podlink.Generation{}, podlink.ErrSuperseded
		}
		gen, err := s.current.Begin()
		return s.current, gen, err
	}
	if s.current != nil {
		s.current.Close(podlink.ErrSuperseded)
	}
	streams, err := s.agent.Dial()
	if err != nil {
		return nil, podlink.Generation{}, err
	}
	session := podlink.NewSession()
	s.id, s.current = hello.Session, session
	go io.Copy(session, streams) // these end with the session or the agent
	go io.Copy(streams, session)
	gen, err := session.Begin()
	return session, gen, err
}
