package resources

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// fileResource is a resource in a file, as get and list print it. Fields that no client can set are accepted
// and ignored, so that their output can be put again.
type fileResource struct {
	Name            string            `yaml:"name"`
	Deployment      string            `yaml:"deployment"`
	Kind            string            `yaml:"kind"`
	UID             string            `yaml:"uid"`
	Revision        string            `yaml:"revision"`
	Labels          map[string]string `yaml:"labels"`
	Body            map[string]any    `yaml:"body"`
	OwnerReferences []fileOwner       `yaml:"ownerReferences"`

	State         string         `yaml:"state"`
	BlockDeletion bool           `yaml:"blockDeletion"`
	Status        map[string]any `yaml:"status"`

	Generation any `yaml:"generation"`
	CreateTime any `yaml:"createTime"`
	UpdateTime any `yaml:"updateTime"`
	DeleteTime any `yaml:"deleteTime"`
	PurgeTime  any `yaml:"purgeTime"`
	Conditions any `yaml:"conditions"`
	Finalizers any `yaml:"finalizers"`

	StatusGeneration any `yaml:"statusGeneration"`
}

type fileOwner struct {
	Name                   string `yaml:"name"`
	Kind                   string `yaml:"kind"`
	UID                    string `yaml:"uid"`
	Controller             bool   `yaml:"controller"`
	RequiresOwnerReference bool   `yaml:"requiresOwnerReference"`
	UnsetOnDelete          bool   `yaml:"unsetOnDelete"`
	Version                any    `yaml:"version"`
}

// parseResources reads documents and arrays of resources, in JSON or YAML. It reports the first mistake of
// each resource.
func parseResources(file string, raw []byte) ([]givenResource, error) {
	var found []givenResource
	var wrong error
	documents := yaml.NewDecoder(bytes.NewReader(raw))
	for {
		var document yaml.Node
		err := documents.Decode(&document)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: neither JSON nor YAML: %w", file, err)
		}
		nodes := document.Content
		if len(nodes) == 1 && nodes[0].Kind == yaml.SequenceNode {
			nodes = nodes[0].Content
		}
		for _, node := range nodes {
			if node.Tag == "!!null" {
				continue // an empty document, as after a last ---
			}
			at := fmt.Sprintf("%s:%d", file, node.Line)
			r, err := parseResource(node)
			if err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("%s: %w", at, err))
				continue
			}
			r.at = at
			found = append(found, r)
		}
	}
	if wrong == nil && len(found) == 0 {
		wrong = fmt.Errorf("%s: there is no resource in it", file)
	}
	return found, wrong
}

func parseResource(node *yaml.Node) (g givenResource, err error) {
	var r fileResource
	if err := checkFields(node); err != nil {
		return g, err
	}
	if err := node.Decode(&r); err != nil {
		return g, err
	}
	revision, err := strconv.ParseInt(cmp.Or(r.Revision, "0"), 10, 64) // a string in the JSON of a message
	if err != nil {
		return g, fmt.Errorf("revision %q: want a number", r.Revision)
	}
	full := r.Name
	if !strings.HasPrefix(full, "//") && r.Deployment != "" {
		full = "//" + r.Deployment + "/" + full
	}
	name, err := schema.ParseFullName(full)
	if err != nil {
		return g, err
	}
	g.id = name.Deployment
	g.Resource = &resourcev1.Resource{
		Name: name.Name, Kind: r.Kind, Uid: r.UID, Revision: revision, Labels: r.Labels,
		BlockDeletion: r.BlockDeletion,
	}
	if strings.HasSuffix(r.State, "DELETING") {
		g.State = resourcev1.Resource_STATE_DELETING
	}
	for _, o := range r.OwnerReferences {
		g.OwnerReferences = append(g.OwnerReferences, &resourcev1.OwnerReference{
			Name: o.Name, Kind: o.Kind, Uid: o.UID, Controller: o.Controller,
			RequiresOwnerReference: o.RequiresOwnerReference, UnsetOnDelete: o.UnsetOnDelete,
		})
	}
	if r.Body != nil {
		if g.Body, err = toStruct("body", r.Body); err != nil {
			return g, err
		}
	}
	if r.Status != nil {
		g.Status, err = toStruct("status", r.Status)
	}
	return g, err
}

var fileFields = []string{
	"name", "deployment", "kind", "uid", "revision", "labels", "body", "ownerReferences",
	"generation", "state", "createTime", "updateTime", "deleteTime", "purgeTime", "conditions", "blockDeletion",
	"finalizers", "status", "statusGeneration",
}

// checkFields refuses a field that a resource does not have: a misspelt body would empty the resource.
func checkFields(node *yaml.Node) error {
	if node.Kind != yaml.MappingNode {
		return errors.New("want a resource with the fields name and body")
	}
	for i := 0; i < len(node.Content); i += 2 {
		if key := node.Content[i]; !slices.Contains(fileFields, key.Value) {
			return fmt.Errorf("line %d: unknown field %q%s", key.Line, key.Value, cli.DidYouMean(key.Value, fileFields))
		}
	}
	return nil
}
