package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/slim-cp/slim-cp/dataplane"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// shownDefects is how many defects of a matrix are put into words.
const shownDefects = 20

// controlServer lets slim-node ctl drive a fleet: HTTP and JSON over a unix
// socket.
type controlServer struct {
	fleet   *dataplane.Fleet
	allowed func(from, to string) bool
}

// nodeReport is one node as "ctl nodes" shows it.
type nodeReport struct {
	Node   string `json:"node"`
	Phase  string `json:"phase"`
	Names  int    `json:"names"`
	Links  int    `json:"links"`
	Routes int    `json:"routes"` // names reached over links
	GaveUp string `json:"gave_up,omitempty"`
}

// pairReport counts the deliveries from one group to the names of another.
type pairReport struct {
	From      string `json:"from"`
	To        string `json:"to"`
	Delivered int    `json:"delivered"`
	Expected  int    `json:"expected"`
}

// matrixReport is the delivery matrix as "ctl matrix" shows it.
type matrixReport struct {
	Complete bool         `json:"complete"`
	Groups   []string     `json:"groups"`
	Pairs    []pairReport `json:"pairs"`
	Defects  int          `json:"defects"`
	Examples []string     `json:"examples"` // the first defects, in words
	GaveUp   []string     `json:"gave_up"`
}

// errorReport is the body of every answer but 200.
type errorReport struct {
	Error string `json:"error"`
}

// serveControl serves the socket until the returned function is called.
func serveControl(path string, control *controlServer) (stop func(), err error) {
	listener, err := listenControl(path)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: control.handler(), ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // ends with ErrServerClosed
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			server.Close() //nolint:errcheck // the process ends
		}
		<-done
	}, nil
}

func (s *controlServer) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /nodes", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, s.nodes()) })
	mux.HandleFunc("GET /matrix", func(w http.ResponseWriter, r *http.Request) {
		senders := dataplane.EveryNode
		if r.FormValue("senders") == "one" {
			senders = dataplane.OneNode
		}
		reply(w, http.StatusOK, s.matrix(senders))
	})
	mux.HandleFunc("POST /kill", s.act(func(node *dataplane.Node, _ *dataplanepb.Name) error { node.Kill(); return nil }, false))
	mux.HandleFunc("POST /start", s.act(func(node *dataplane.Node, _ *dataplanepb.Name) error { return node.Start() }, false))
	mux.HandleFunc("POST /announce", s.act(func(node *dataplane.Node, name *dataplanepb.Name) error { node.Announce(name); return nil }, true))
	mux.HandleFunc("POST /withdraw", s.act(withdraw, true))
	return mux
}

func withdraw(node *dataplane.Node, name *dataplanepb.Name) error {
	if !node.Withdraw(name) {
		return fmt.Errorf("node %s has no application %s", node.ID(), dataplane.FormatName(name))
	}
	return nil
}

// act makes a handler of something done to one node.
func (s *controlServer) act(do func(*dataplane.Node, *dataplanepb.Name) error, named bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := r.FormValue("node")
		node := s.fleet.Node(id)
		if node == nil {
			reply(w, http.StatusNotFound, errorReport{fmt.Sprintf("no node %q: want GROUP/NODE, such as %s", id, s.fleet.Nodes()[0].ID())})
			return
		}
		var name *dataplanepb.Name
		if named {
			var err error
			if name, err = parseName(r.FormValue("name")); err != nil {
				reply(w, http.StatusBadRequest, errorReport{err.Error()})
				return
			}
		}
		if err := do(node, name); err != nil {
			reply(w, http.StatusConflict, errorReport{err.Error()})
			return
		}
		reply(w, http.StatusOK, struct{}{})
	}
}

// parseName reads a name. One without instance gets an id that depends on the
// name only, as the fleet's own names have it.
func parseName(text string) (*dataplanepb.Name, error) {
	name, err := dataplane.ParseName(text)
	if err != nil {
		return nil, err
	}
	if strings.Count(text, "/") == 2 {
		s := name.GetStrName()
		name = dataplane.InstanceName(s.GetStrComponent_0(), s.GetStrComponent_1(), s.GetStrComponent_2())
	}
	return name, nil
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}

func (s *controlServer) nodes() []nodeReport {
	reports := []nodeReport{}
	for _, node := range s.fleet.Nodes() {
		report := nodeReport{Node: node.ID(), Phase: string(node.Phase()), Names: len(node.Names())}
		if err := node.GaveUp(); err != nil {
			report.GaveUp = err.Error()
		}
		for _, connection := range node.Connections() {
			if connection.Type == controllerpb.ConnectionType_CONNECTION_TYPE_REMOTE {
				report.Links++
			}
		}
		for _, entry := range node.Table() {
			for _, connection := range entry.Connections {
				if connection.Type == controllerpb.ConnectionType_CONNECTION_TYPE_REMOTE {
					report.Routes++
					break
				}
			}
		}
		reports = append(reports, report)
	}
	return reports
}

func (s *controlServer) matrix(senders dataplane.Senders) matrixReport {
	matrix := s.fleet.Network.MatrixFrom(senders)
	defects := matrix.Complete(s.allowed)
	report := matrixReport{
		Groups:   matrix.Groups,
		Pairs:    countPairs(matrix, s.allowed),
		Defects:  len(defects),
		Examples: []string{},
		GaveUp:   []string{},
	}
	for _, defect := range defects[:min(len(defects), shownDefects)] {
		report.Examples = append(report.Examples, defect.String())
	}
	for _, node := range s.fleet.GaveUp() {
		report.GaveUp = append(report.GaveUp, fmt.Sprintf("%s: %v", node.ID(), node.GaveUp()))
	}
	report.Complete = report.Defects == 0 && len(report.GaveUp) == 0
	return report
}

// countPairs counts, per pair of groups, the announced names that are due and
// those that arrive exactly once.
func countPairs(matrix dataplane.Matrix, allowed func(from, to string) bool) []pairReport {
	type pair struct{ from, to string }
	counts := make(map[pair]*pairReport)
	pairs := []pairReport{}
	for _, from := range matrix.Groups {
		for _, to := range matrix.Groups {
			counts[pair{from, to}] = &pairReport{From: from, To: to}
		}
	}
	for _, cell := range matrix.Cells {
		for _, arrivals := range cell.Announcers {
			report := counts[pair{cell.From, arrivals.Group}]
			if report == nil {
				continue // started after the groups were counted
			}
			if cell.From == arrivals.Group || allowed(cell.From, arrivals.Group) {
				report.Expected++
			}
			if arrivals.Fewest == 1 && arrivals.Most == 1 {
				report.Delivered++
			}
		}
	}
	for _, from := range matrix.Groups {
		for _, to := range matrix.Groups {
			pairs = append(pairs, *counts[pair{from, to}])
		}
	}
	return pairs
}
