package natsbus

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/journal"
)

// TestWhoIs: what is said of a user is what is missing between it and the log.
func TestWhoIs(t *testing.T) {
	t.Parallel()
	check := func(allowed ...string) Finding {
		_, conn := guardedServer(t, append(allowed, userInfoSubject)...)
		id, err := WhoIs(t.Context(), conn, Options{Logger: quiet})
		require.NoError(t, err)
		require.Equal(t, "worker", id.User)
		require.True(t, id.Limited())
		require.False(t, id.MayPublish("anything"))
		return id.Check()
	}
	sameAccount := check("moore.*.*.acting.>")
	require.Equal(t, Warning, sameAccount.Level)
	require.Contains(t, sameAccount.What, "reply subject")
	makesConsumers := check("moore.*.*.acting.>", "$JS.API.CONSUMER.>")
	require.Equal(t, Warning, makesConsumers.Level)
	require.Contains(t, makesConsumers.What, "$JS.API.CONSUMER.CREATE")

	all, err := WhoIs(t.Context(), newBus(t, 1).Conn(), Options{Logger: quiet})
	require.NoError(t, err)
	require.False(t, all.Limited())
	require.Equal(t, Warning, all.Check().Level)
	require.Contains(t, all.Check().What, "no accounts")

	_, conn := guardedServer(t, "moore.*.*.acting.>")
	_, err = WhoIs(t.Context(), conn, Options{Logger: quiet, RequestTimeout: patience})
	require.ErrorIs(t, err, journal.ErrDenied)
	require.ErrorContains(t, err, userInfoSubject)
}

func TestMayPublish(t *testing.T) {
	t.Parallel()
	id := Identity{publish: &subjectRules{Allow: []string{"a.*.c", "b.>"}, Deny: []string{"b.x"}}}
	for subject, want := range map[string]bool{
		"a.b.c": true, "a.*.c": true, "a.b": false, "a.b.c.d": false, "b.c": true, "b.c.d": true, "b.>": true, "b": false, "b.x": false,
		"a.>": false, ">": false, "*.b.c": false,
	} {
		require.Equal(t, want, id.MayPublish(subject), subject)
	}
	require.True(t, id.Limited())
	require.False(t, Identity{publish: &subjectRules{Allow: []string{">"}}}.Limited())
	require.True(t, Identity{publish: &subjectRules{Deny: []string{"b"}}}.Limited())
	require.True(t, Identity{}.MayPublish("x"))
}
