package nodetest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/nodetest"
)

func TestPackagesAreThere(t *testing.T) {
	out, err := nodetest.Command(t, `
		import { HttpAgent } from "@ag-ui/client";
		import { EventSchemas } from "@ag-ui/core/schemas";
		import { ClientFactory } from "@a2a-js/sdk/client";
		import { Svcm } from "@nats-io/services";
		import { connect } from "@nats-io/transport-node";
		console.log([HttpAgent, EventSchemas, ClientFactory, Svcm, connect].every(Boolean));
	`).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "true\n", string(out))
}
