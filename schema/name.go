package schema

import (
	"fmt"
	"hash/fnv"
	"regexp"
	"strings"
)

// MaxNameBytes bounds a relative resource name.
const MaxNameBytes = 512

// RingSize is the number of shards of a deployment's outstanding work.
const RingSize = 64

var (
	serviceGrammar    = regexp.MustCompile(`^[a-z]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$`)
	regionGrammar     = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	versionGrammar    = regexp.MustCompile(`^v[1-9][0-9]{0,5}((alpha|beta)[1-9][0-9]{0,5})?$`)
	kindGrammar       = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,62}$`)
	collectionGrammar = regexp.MustCompile(`^[a-z][A-Za-z0-9]{0,62}$`) // of patterns
)

// DeploymentID names one service in one region, written iam.example.com/us-west2.
type DeploymentID struct {
	Service string
	Region  string
}

func (d DeploymentID) String() string { return d.Service + "/" + d.Region }

// IsZero reports whether the id is the zero value.
func (d DeploymentID) IsZero() bool { return d == DeploymentID{} }

// ParseDeploymentID parses service/region.
func ParseDeploymentID(s string) (DeploymentID, error) {
	service, region, ok := strings.Cut(s, "/")
	if !ok {
		return DeploymentID{}, fmt.Errorf("deployment %q: want service/region, such as iam.example.com/us-west2",
			clip(s))
	}
	if err := CheckService(service); err != nil {
		return DeploymentID{}, err
	}
	if err := CheckRegion(region); err != nil {
		return DeploymentID{}, err
	}
	return DeploymentID{Service: service, Region: region}, nil
}

// CheckService accepts domain names of at least two labels in lower case.
func CheckService(s string) error {
	if len(s) > 253 || !serviceGrammar.MatchString(s) {
		return fmt.Errorf("service %q: want a domain name in lower case, such as iam.example.com", clip(s))
	}
	return nil
}

// CheckRegion accepts regions such as us-west2.
func CheckRegion(s string) error {
	if !regionGrammar.MatchString(s) {
		return fmt.Errorf("region %q: want lower-case letters, digits and hyphens, such as us-west2", clip(s))
	}
	return nil
}

// CheckVersion accepts versions such as v1 and v2beta1.
func CheckVersion(s string) error {
	if !versionGrammar.MatchString(s) {
		return fmt.Errorf("version %q: want a version such as v1, v2 or v2beta1", clip(s))
	}
	return nil
}

// KindID names a kind of a service, written iam.example.com/Project.
type KindID struct {
	Service string
	Kind    string
}

func (k KindID) String() string { return k.Service + "/" + k.Kind }

// ParseKindID parses service/Kind.
func ParseKindID(s string) (KindID, error) {
	service, kind, ok := strings.Cut(s, "/")
	if !ok {
		return KindID{}, fmt.Errorf("kind %q: want service/Kind, such as iam.example.com/Project", clip(s))
	}
	if err := CheckService(service); err != nil {
		return KindID{}, err
	}
	if err := CheckKind(kind); err != nil {
		return KindID{}, err
	}
	return KindID{Service: service, Kind: kind}, nil
}

// CheckKind accepts names in upper camel case.
func CheckKind(s string) error {
	if !kindGrammar.MatchString(s) {
		return fmt.Errorf("kind %q: want upper camel case, such as ServiceAccount", clip(s))
	}
	return nil
}

// FullName is the name of a resource in any deployment:
// //devices.example.com/us-west2/projects/acme/devices/d1.
type FullName struct {
	Deployment DeploymentID
	// Name is the relative name, such as projects/acme/devices/d1.
	Name string
}

func (n FullName) String() string {
	return "//" + n.Deployment.String() + "/" + n.Name
}

// ParseFullName parses //service/region/relative-name.
func ParseFullName(s string) (FullName, error) {
	rest, ok := strings.CutPrefix(s, "//")
	parts := strings.SplitN(rest, "/", 3)
	if !ok || len(parts) < 3 {
		return FullName{},
			fmt.Errorf("name %q: want //service/region/name, such as //iam.example.com/us-west2/projects/acme", clip(s))
	}
	d, err := ParseDeploymentID(parts[0] + "/" + parts[1])
	if err != nil {
		return FullName{}, fmt.Errorf("name %q: %w", clip(s), err)
	}
	if err := CheckName(parts[2]); err != nil {
		return FullName{}, err
	}
	return FullName{Deployment: d, Name: parts[2]}, nil
}

// CheckName accepts relative resource names: collections and ids in turn, at most MaxNameBytes.
func CheckName(s string) error {
	if s == "" {
		return fmt.Errorf("name is empty: want collections and ids in turn, such as projects/acme")
	}
	if len(s) > MaxNameBytes {
		return fmt.Errorf("name %q: %d bytes, at most %d are allowed", clip(s), len(s), MaxNameBytes)
	}
	if strings.Count(s, "/")%2 == 0 {
		return fmt.Errorf("name %q: want collections and ids in turn, such as projects/acme/devices/d1", clip(s))
	}
	for rest, more := s, true; more; {
		var collection, id string
		collection, rest, _ = strings.Cut(rest, "/")
		id, rest, more = strings.Cut(rest, "/")
		if !isCollection(collection) {
			return fmt.Errorf("name %q: collection %q: want lower camel case, such as serviceAccounts", clip(s),
				clip(collection))
		}
		if err := checkID(id); err != nil {
			return fmt.Errorf("name %q: %w", clip(s), err)
		}
	}
	return nil
}

// Shard returns the shard of a resource's outstanding work: FNV-1a of the name modulo RingSize.
func Shard(name string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return h.Sum32() % RingSize
}

// clip shortens untrusted text in messages.
func clip(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:77], "") + "..." // no half character
	}
	return s
}
