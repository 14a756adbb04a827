package dataplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

const (
	// outboxSize is how many messages wait for a stream that does not take them.
	outboxSize = 128
	// queueSize bounds the notices that wait for the next registration.
	queueSize = 1000
	// dialTimeout bounds one attempt to reach one address of the control plane.
	dialTimeout = 3 * time.Second
	// bufferSize keeps a thousand nodes in one process small, in bytes.
	bufferSize = 4 << 10
)

// session is one open stream to a control plane.
type session struct {
	ctx      context.Context // ends with the stream, however that ends
	cancel   context.CancelFunc
	conn     net.Conn
	client   *grpc.ClientConn
	stream   controllerpb.ControllerService_OpenControlChannelClient
	incoming chan received
	outbox   chan *controllerpb.ControlMessage
	tasks    sync.WaitGroup
}

// received is one message of a stream, or its end.
type received struct {
	message *controllerpb.ControlMessage
	err     error
}

// connect opens a stream and waits for its response headers, as nodes do before
// they send anything. Only a failing network connection is tried again, for
// ever; what fails after it is the caller's error. TLS is part of the connection.
func (ch *channel) connect() (*session, error) {
	conn, err := ch.dial()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ch.c.ctx)
	s := &session{
		ctx:      ctx,
		cancel:   cancel,
		conn:     conn,
		incoming: make(chan received),
		outbox:   make(chan *controllerpb.ControlMessage, outboxSize),
	}
	if err := s.open(ch.c.node.options.DialOptions); err != nil {
		s.close()
		return nil, err
	}
	s.tasks.Go(s.receive)
	return s, nil
}

// open makes a gRPC client of the one connection and opens the stream.
func (s *session) open(options []grpc.DialOption) error {
	once := make(chan net.Conn, 1)
	once <- s.conn
	client, err := grpc.NewClient("passthrough:///control-plane", append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), // TLS, if any, is done
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case conn := <-once:
				return conn, nil
			default:
				return nil, errors.New("the connection ended")
			}
		}),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithReadBufferSize(bufferSize),
		grpc.WithWriteBufferSize(bufferSize),
	}, options...)...)
	if err != nil {
		return err
	}
	s.client = client
	if s.stream, err = controllerpb.NewControllerServiceClient(client).OpenControlChannel(s.ctx); err != nil {
		return err
	}
	if header, err := s.stream.Header(); err != nil {
		return err
	} else if header == nil {
		// No headers and no error: the status came in their place.
		_, err := s.stream.Recv()
		return fmt.Errorf("no response headers: %w", err)
	}
	return nil
}

// dial reaches the first of the addresses that answers, and goes on trying for ever.
func (ch *channel) dial() (net.Conn, error) {
	for retry := uint64(1); ; retry++ {
		for _, address := range ch.server {
			conn, err := ch.dialAddress(address)
			if err == nil {
				return conn, nil
			}
			ch.c.node.logger.Trace("control plane not reached", "address", address, "error", err)
		}
		pause, _ := (Backoff{}).wait(retry)
		if !sleep(ch.c.ctx, pause) {
			return nil, ch.c.ctx.Err()
		}
	}
}

func (ch *channel) dialAddress(address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ch.c.ctx, dialTimeout)
	defer cancel()
	options := ch.c.node.options
	dialer := options.Dialer
	if dialer == nil {
		dialer = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	conn, err := dialer(ctx, address)
	if err != nil || options.TLS == nil {
		return conn, err
	}
	config := options.TLS.Clone()
	config.NextProtos = []string{"h2"}
	if host, _, err := net.SplitHostPort(address); err == nil && config.ServerName == "" {
		config.ServerName = host
	}
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		conn.Close() //nolint:errcheck // the handshake's error counts
		return nil, err
	}
	return secured, nil
}

// openSession makes the session the one that notices go to. What was queued
// follows right behind the registration.
func (ch *channel) openSession(s *session, registration *controllerpb.ControlMessage) {
	ch.c.mu.Lock()
	first := append([]*controllerpb.ControlMessage{registration}, ch.c.queue...)
	ch.c.queue = nil
	ch.session = s
	ch.c.mu.Unlock()
	s.tasks.Go(func() { s.transmit(first) })
}

// closeSession ends the current session, if any.
func (ch *channel) closeSession() {
	ch.c.mu.Lock()
	s := ch.session
	ch.session = nil
	ch.c.mu.Unlock()
	if s != nil {
		s.close()
	}
}

func (ch *channel) currentSession() *session {
	ch.c.mu.Lock()
	defer ch.c.mu.Unlock()
	return ch.session
}

// cut breaks the connection under the current session.
func (ch *channel) cut() {
	if s := ch.currentSession(); s != nil {
		s.conn.Close() //nolint:errcheck // nothing is expected of it any more
	}
}

// close ends the stream and waits for the session's goroutines.
func (s *session) close() {
	s.cancel()
	if s.client != nil {
		s.client.Close() //nolint:errcheck // the stream's end is all that is wanted
	}
	s.conn.Close() //nolint:errcheck // gRPC may not have taken it
	s.tasks.Wait()
}

// receive hands on what comes, up to and including the end of the stream.
func (s *session) receive() {
	for {
		message, err := s.stream.Recv()
		select {
		case s.incoming <- received{message, err}:
		case <-s.ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// transmit sends the first messages and then what is put into the outbox.
func (s *session) transmit(first []*controllerpb.ControlMessage) {
	ended := s.stream.Context().Done()
	for _, message := range first {
		if s.stream.Send(message) != nil {
			return
		}
	}
	for {
		select {
		case message := <-s.outbox:
			if s.stream.Send(message) != nil {
				return
			}
		case <-ended:
			return
		}
	}
}

// send waits for room in the outbox. A message to a stream that ended is lost.
func (s *session) send(message *controllerpb.ControlMessage) {
	select {
	case s.outbox <- message:
	case <-s.stream.Context().Done():
	}
}

// offer does not wait. It reports whether the message is on its way.
func (s *session) offer(message *controllerpb.ControlMessage) bool {
	if s.stream.Context().Err() != nil {
		return false
	}
	select {
	case s.outbox <- message:
		return true
	default:
		return false
	}
}
