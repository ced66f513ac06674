package cli

import (
	"context"
	"crypto/tls"
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

func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.now.Load(), nil },
	}
}
