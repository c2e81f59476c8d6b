// Package approval has the decisions that two operators take together. The first one signs the requests with
// the key of the certificate; the second one sends them, with these signatures. A server carries out a
// request that another operator has signed: it compares the request with the signed one, and stores nothing.
package approval

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/db-controller/db-controller/internal/identity"
)

// Lifetime is how long a signed request can be sent.
const Lifetime = 24 * time.Hour

// skew is how far the clock of the operator who signs may be ahead of the server's.
const skew = 5 * time.Minute

// kind is the type of the signatures: a signature for another purpose approves nothing.
const kind = "db-controller-approval"

// The servers of a request, beside a deployment's name.
const (
	Registry       = "registry"
	AllDeployments = "deployments" // each of them
)

// Request is a request that has a field for an approval.
type Request interface {
	proto.Message
	GetApproval() string
}

// Proposal is a request that an operator has signed.
type Proposal struct {
	By identity.Identity
	At time.Time
	// Server is Registry, AllDeployments, or the name of a deployment.
	Server  string
	Request proto.Message // its approval is empty
}

// Until is when the proposal ends.
func (p Proposal) Until() time.Time { return p.At.Add(Lifetime) }

// signed is the signed text.
type signed struct {
	Server  string          `json:"server"`
	Time    time.Time       `json:"time"`
	Request json.RawMessage `json:"request"` // google.protobuf.Any as JSON
}

// Sign signs a request to a server.
func Sign(by *identity.Credentials, server string, req Request, now time.Time) (string, error) {
	wrapped, err := anypb.New(req)
	if err != nil {
		return "", fmt.Errorf("sign a request: %w", err)
	}
	text, err := protojson.Marshal(wrapped)
	if err != nil {
		return "", fmt.Errorf("sign a request: %w", err)
	}
	raw, err := json.Marshal(signed{server, now.UTC().Truncate(time.Second), text})
	if err != nil {
		return "", fmt.Errorf("sign a request: %w", err)
	}
	return by.Sign(kind, raw)
}

// Open returns the proposal in a text of Sign, whose certificate must be trusted now. It fails when the time
// of the proposal is over.
func Open(trusted *identity.Credentials, text string, now time.Time) (p Proposal, err error) {
	raw, by, err := trusted.Signed(kind, text)
	if err != nil {
		return p, err
	}
	var s signed
	if err := json.Unmarshal(raw, &s); err != nil {
		return p, fmt.Errorf("the signed text: %w", err)
	}
	var wrapped anypb.Any
	if err := protojson.Unmarshal(s.Request, &wrapped); err != nil {
		return p, fmt.Errorf("the signed request: %w", err)
	}
	p = Proposal{By: by, At: s.Time, Server: s.Server}
	if p.Request, err = wrapped.UnmarshalNew(); err != nil {
		return p, fmt.Errorf("the signed request: %w", err)
	}
	switch {
	case p.By.Role != identity.RoleOperator:
		return p, fmt.Errorf("%s has signed it, who is no operator", p.By)
	case now.After(p.Until()):
		return p, fmt.Errorf("%s has signed it at %s, and it ended after %s: sign it again", p.By,
			p.At.Format(time.RFC3339), Lifetime)
	case p.At.After(now.Add(skew)):
		return p, fmt.Errorf("%s has signed it at %s, which is in the future: compare the clocks", p.By,
			p.At.Format(time.RFC3339))
	}
	return p, nil
}

// errOther is the error of an approval for another request.
var errOther = errors.New("another request was signed, or one for another server")

// Covers returns an error unless the proposal is for this request to this server.
func (p Proposal) Covers(server string, req Request) error {
	if p.Server != server && (p.Server != AllDeployments || server == Registry) {
		return errOther
	}
	bare := proto.Clone(req)
	r := bare.ProtoReflect()
	r.Clear(r.Descriptor().Fields().ByName("approval"))
	if !proto.Equal(p.Request, bare) {
		return errOther
	}
	return nil
}

// Verify returns the operator who has signed a request that another one sends. Without an approval in the
// request it returns the zero identity.
func Verify(trusted *identity.Credentials, server string, sender identity.Identity, req Request,
	now time.Time,
) (identity.Identity, error) {
	if req.GetApproval() == "" {
		return identity.Identity{}, nil
	}
	if trusted == nil {
		return identity.Identity{}, errors.New("this server has no authorities to verify it by")
	}
	p, err := Open(trusted, req.GetApproval(), now)
	switch {
	case err != nil:
		return identity.Identity{}, err
	case p.By == sender:
		return identity.Identity{}, fmt.Errorf("%s has signed it, and sends it: another operator has to send it",
			sender)
	}
	return p.By, p.Covers(server, req)
}
