package costs

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// A few costly reads of one user run, some more wait, further ones are refused at once; other users are not
// affected.
func TestCostlyReadsOfOneIdentityAreBounded_I20(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []string
		c := New(func(what string, who identity.Identity) { told = append(told, what+" of "+who.String()) })
		end, underWay := make(chan struct{}), make(chan struct{}, 1000)
		call := func(ctx context.Context, name, method string) <-chan codes.Code {
			done := make(chan codes.Code, 1)
			go func() {
				ctx := identity.NewContext(ctx, identity.Identity{Role: identity.RoleUser, Name: name})
				_, err := c.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method},
					func(context.Context, any) (any, error) {
						underWay <- struct{}{}
						<-end
						return nil, nil
					})
				done <- status.Code(err)
			}()
			synctest.Wait()
			return done
		}
		const list = resourcev1.ResourceService_ListResources_FullMethodName
		var all []<-chan codes.Code
		for range maxCostly + maxCostlyWaiting {
			all = append(all, call(t.Context(), "hostile", list))
		}
		require.Len(t, underWay, maxCostly)
		for range 400 {
			require.Equal(t, codes.ResourceExhausted, <-call(t.Context(), "hostile", list), "at once")
		}
		require.Contains(t, told, "costly calls of user/hostile")
		others := []<-chan codes.Code{
			call(t.Context(), "other", list),
			call(t.Context(), "hostile", resourcev1.ResourceService_PutResource_FullMethodName),
		}
		require.Len(t, underWay, maxCostly+2, "neither other users nor other calls wait")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.Equal(t, codes.ResourceExhausted, <-call(ctx, "hostile", list))
		close(end)
		for _, done := range append(all, others...) {
			require.Equal(t, codes.OK, <-done)
		}
		require.Empty(t, c.uses, "identities without a call in progress are forgotten")
	})
}
