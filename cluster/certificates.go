package cluster

import (
	"crypto/x509"
	"fmt"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/slim-cp/slim-cp/cluster/peer"
)

// IdentityMode says what becomes of a replica whose certificate does not bear its name.
type IdentityMode string

// Modes. The zero value is IdentityOff.
const (
	IdentityOff     IdentityMode = ""        // its certificate is not looked at
	IdentityWarn    IdentityMode = "warn"    // the log names it
	IdentityRequire IdentityMode = "require" // it is refused
)

// namePlaceholder stands for a replica's name in PeerIdentity.Names.
const namePlaceholder = "{name}"

// PeerIdentity binds a replica's certificate to the name in its id. Without it
// whoever has a certificate of the cluster's authority may speak for any replica.
type PeerIdentity struct {
	Mode IdentityMode
	// Names are DNS names or URIs of which a certificate has to hold one. {name} is
	// the name in the replica's id. They are compared as a whole, without regard to
	// case; the certificate's common name and wildcards do not count.
	Names []string
}

// bears returns nil if a certificate holds one of the names of a replica.
func (p PeerIdentity) bears(leaf *x509.Certificate, replicaID string) error {
	held := append([]string(nil), leaf.DNSNames...)
	for _, uri := range leaf.URIs {
		held = append(held, uri.String())
	}
	wanted := make([]string, len(p.Names))
	for i, name := range p.Names {
		wanted[i] = strings.ReplaceAll(name, namePlaceholder, ReplicaName(replicaID))
		for _, has := range held {
			if strings.EqualFold(has, wanted[i]) {
				return nil
			}
		}
	}
	return fmt.Errorf("%w: that of %s holds none of the names %s, but %s", peer.ErrCertificate,
		replicaID, strings.Join(wanted, ", "), listOr(held, "no DNS name and no URI"))
}

// listOr joins the first few of a list that another replica chose, or returns what
// stands for an empty one.
func listOr(list []string, none string) string {
	const shown, width = 4, 100
	if len(list) == 0 {
		return none
	}
	text := strings.Join(list[:min(len(list), shown)], ", ")
	if len(list) > shown || len(text) > width {
		text = text[:min(len(text), width)] + ", …"
	}
	return fmt.Sprintf("%q", text)
}

// certificates judges those of the other replicas, and of this one.
type certificates struct {
	identity PeerIdentity
	ownID    string
	logger   hclog.Logger

	mu   sync.Mutex
	told map[string]bool // what was logged, by replica
}

// judge is asked on each new connection. A replica is named in the log once.
func (c *certificates) judge(leaf *x509.Certificate, replicaID string) error {
	if c.identity.Mode == IdentityOff {
		return nil
	}
	err := c.identity.bears(leaf, replicaID)
	switch {
	case err == nil && replicaID != c.ownID && c.identity.bears(leaf, c.ownID) == nil:
		if c.first(replicaID) {
			c.logger.Warn("a certificate that several replicas share does not tell them apart", "replica", replicaID, "also_names", c.ownID)
		}
	case err != nil && c.identity.Mode == IdentityRequire:
		return err
	case err != nil && c.first(replicaID):
		c.logger.Warn("anybody with a certificate of the cluster's authority may speak for a replica whose certificate does not bear its name (cluster.tls.peer_identity)",
			"replica", replicaID, "reason", err)
	}
	return nil
}

func (c *certificates) first(replicaID string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told[replicaID] {
		return false
	}
	if c.told == nil || len(c.told) >= maxSeenPeers {
		c.told = map[string]bool{}
	}
	c.told[replicaID] = true
	return true
}

// checkOwn looks at this replica's own certificate before the others do. It may not
// have a valid one yet.
func (c *certificates) checkOwn(peers *Peers) error {
	if c.identity.Mode == IdentityOff || peers.ClientTLS == nil {
		return nil
	}
	settings := peers.ClientTLS()
	if settings == nil || len(settings.Certificates) == 0 {
		return nil
	}
	leaf, err := x509.ParseCertificate(settings.Certificates[0].Certificate[0])
	if err != nil {
		return fmt.Errorf("the certificate of the cluster port: %w", err)
	}
	if err := c.judge(leaf, c.ownID); err != nil {
		return fmt.Errorf("%w; give it one of these names, or let cluster.tls.peer_identity.mode be warn", err)
	}
	return nil
}
