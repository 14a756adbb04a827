package load_test

import (
	"fmt"
	"os"
	"strings"

	"github.com/slim-cp/slim-cp/dataplane"
	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

func dump(r *replica, fleet *dataplane.Fleet) {
	defects := fleet.Network.Matrix().Complete(dataplane.Everything)
	kinds := map[string]int{}
	pairs := map[string]int{}
	for _, d := range defects {
		kinds[string(d.Kind)]++
		pairs[strings.Split(d.Sender, "/")[0]+" -> "+strings.Split(d.Node, "/")[0]]++
	}
	fmt.Fprintln(os.Stderr, "DEFECTS", len(defects), kinds, "pairs", len(pairs))
	n := 0
	for p, c := range pairs {
		if n++; n < 15 {
			fmt.Fprintln(os.Stderr, p, c)
		}
	}
	if len(defects) == 0 {
		return
	}
	// compare the view's routes with what nodes hold
	view := r.View()
	missing := map[string]int{}
	have := map[string]map[string]bool{}
	for _, nd := range fleet.Nodes() {
		m := map[string]bool{}
		for _, e := range nd.Table() {
			for _, c := range e.Connections {
				if c.Type == controllerpb.ConnectionType_CONNECTION_TYPE_REMOTE {
					m[dataplane.FormatName(e.Name)[:strings.LastIndex(dataplane.FormatName(e.Name), "/")]+"|"+c.LinkID] = true
				}
			}
		}
		have[nd.ID()] = m
	}
	for rt := range view.Routes(fsm.RouteFilter{}) {
		if rt.NodeID == "*" {
			continue
		}
		s := rt.Name.String()
		s = s[:strings.LastIndex(s, "/")]
		if !have[rt.NodeID][s+"|"+rt.LinkID] {
			missing[rt.NodeID+" link "+rt.LinkID]++
			if len(missing) == 1 && missing[rt.NodeID+" link "+rt.LinkID] == 1 {
				fmt.Fprintln(os.Stderr, "example", s, rt)
			}
		}
	}
	fmt.Fprintln(os.Stderr, "MISSING IN TABLES", missing)
	netlinks := map[string][]dataplane.Link{}
	for _, l := range fleet.Network.Links() {
		netlinks[l.ID] = append(netlinks[l.ID], l)
	}
	for l := range view.Links() {
		nl := netlinks[l.ID]
		if len(nl) != 1 || nl[0].Source != l.SourceNode || nl[0].Dest != l.DestNode {
			fmt.Fprintf(os.Stderr, "LINK DIFFERS %+v: %v\n", *l, nl)
		}
	}
}
