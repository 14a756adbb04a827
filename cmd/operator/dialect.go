package operator

// Dialect is the set of words and flags that a program speaks.
type Dialect int

const (
	// SlimCP is our own dialect: groups, -o for the output format.
	SlimCP Dialect = iota
	// Slimctl is the dialect of the upstream tool: domains, -o for the origin,
	// a configuration file and a token file of its own.
	Slimctl
)

// noun is what a command calls the sets that nodes belong to.
type noun struct {
	singular, title, heading, plural string
}

// vocabulary is what differs between the dialects.
type vocabulary struct {
	membership noun

	originFlag, originShorthand string
	targetFlag                  string
	outputShorthand             string

	environmentPrefix string
	// userAgent tells the control plane which words to answer in.
	userAgent string
	// configVariable names the client file in the environment. Empty: the
	// program has no client file. slim-cp must have none, for its config.yaml is
	// the server's.
	configVariable  string
	credentialsHint string
	// ownTables: headings, gaps and statuses say more than those of upstream's tables.
	ownTables bool
}

func (d Dialect) vocabulary() vocabulary {
	if d == Slimctl {
		return vocabulary{
			membership:        domainNoun(),
			originFlag:        "origin-node-id",
			originShorthand:   "o",
			targetFlag:        "target-node-id",
			environmentPrefix: "SLIMCTL_COMMON_OPTS_",
			userAgent:         "slimctl",
			configVariable:    "SLIMCTL_CONFIG",
			credentialsHint:   "give --basic-auth-creds, an auth block in the configuration file, or a valid token in ~/.slimctl/token",
		}
	}
	return vocabulary{
		membership:        groupNoun(),
		originFlag:        "origin",
		targetFlag:        "target",
		outputShorthand:   "o",
		environmentPrefix: "SLIM_CP_",
		userAgent:         "slim-cp",
		credentialsHint:   "give --basic-auth-creds",
		ownTables:         true,
	}
}

func groupNoun() noun {
	return noun{singular: "group", title: "Group", heading: "GROUP", plural: "GROUPS"}
}
func domainNoun() noun {
	return noun{singular: "domain", title: "Domain", heading: "DOMAIN", plural: "DOMAINS"}
}
