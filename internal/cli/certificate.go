package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/glovebox-dev/glovebox/internal/filewatch"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// certificate is a server's certificate, as last read without an error.
type certificate struct {
	cert, key string
	log       *slog.Logger
	now       atomic.Pointer[tls.Certificate]

	end context.CancelFunc
	wg  sync.WaitGroup
}

// openCertificate reads the files and watches them. The caller closes it.
func openCertificate(cert, key string, log *slog.Logger) (*certificate, error) {
	c := &certificate{cert: cert, key: key, log: log}
	w := filewatch.New(cert, key)
	if err := c.load(); err != nil {
		return nil, err
	}
	var ctx context.Context
	ctx, c.end = context.WithCancel(context.Background())
	c.wg.Go(func() {
		w.Run(ctx, func() {
			if err := c.load(); err != nil {
				log.Error("certificate not reloaded, the previous one stays in use", logkey.Error, err)
				return
			}
			log.Info("certificate reloaded", logkey.File, cert)
		})
	})
	return c, nil
}

// load reads the files for new connections.
func (c *certificate) load() error {
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return fmt.Errorf("read certificate %s with key %s: %w", c.cert, c.key, err)
	}
	c.now.Store(&pair)
	return nil
}

// close stops watching.
func (c *certificate) close() {
	c.end()
	c.wg.Wait()
}

// others returns the configuration of connections to other servers, which have the same
// certificate: its names are those that clients use, and no addresses.
func (c *certificate) others() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{"http/1.1"},
		InsecureSkipVerify: true, // VerifyConnection is stricter
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 || !bytes.Equal(state.PeerCertificates[0].Raw, c.now.Load().Certificate[0]) {
				return errors.New("the other server has another certificate than this one")
			}
			return nil
		},
	}
}

func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.now.Load(), nil },
	}
}
