package telemetry

import (
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
)

// The names of operations, which begin those of their spans.
const (
	opAgent   = "invoke_agent"
	opTool    = "execute_tool"
	opChat    = "chat"
	opPlan    = "plan"
	opReflect = "reflect"
	// The waits for people.
	opApproval = "wait approval"
	opUser     = "wait user"
)

// The attributes of spans. Those of the GenAI conventions have their names from there.
const (
	attrOperation     = semconv.GenAIOperationNameKey
	attrConversation  = semconv.GenAIConversationIDKey
	attrAgent         = semconv.GenAIAgentNameKey
	attrAgentVersion  = semconv.GenAIAgentVersionKey
	attrProvider      = semconv.GenAIProviderNameKey
	attrRequestModel  = semconv.GenAIRequestModelKey
	attrResponseModel = semconv.GenAIResponseModelKey
	attrFinish        = semconv.GenAIResponseFinishReasonsKey
	attrInputTokens   = semconv.GenAIUsageInputTokensKey
	attrOutputTokens  = semconv.GenAIUsageOutputTokensKey
	attrCachedTokens  = semconv.GenAIUsageCacheReadInputTokensKey
	attrToolName      = semconv.GenAIToolNameKey
	attrToolCall      = semconv.GenAIToolCallIDKey
	attrToolType      = semconv.GenAIToolTypeKey
	attrError         = semconv.ErrorTypeKey

	// Content, only if it is asked for.
	attrInput     = semconv.GenAIInputMessagesKey
	attrOutput    = semconv.GenAIOutputMessagesKey
	attrArguments = semconv.GenAIToolCallArgumentsKey
	attrResult    = semconv.GenAIToolCallResultKey

	// What the conventions have no name for. Receivers read the cost under this one.
	attrCost      = attribute.Key("gen_ai.usage.cost")
	attrNamespace = attribute.Key("moorebus.namespace")
	attrRun       = attribute.Key("moorebus.run")
	attrEvent     = attribute.Key("moorebus.event")
	attrState     = attribute.Key("moorebus.state")
	attrStep      = attribute.Key("moorebus.step")
	attrMode      = attribute.Key("moorebus.mode")
	attrPool      = attribute.Key("moorebus.pool")
	attrSubrun    = attribute.Key("moorebus.subrun")
	attrForkedAt  = attribute.Key("moorebus.forked_at")
	attrDecision  = attribute.Key("moorebus.decision")
	attrTools     = attribute.Key("moorebus.tools")
	attrLink      = attribute.Key("moorebus.link")
)

// The evaluation of a reply by the model itself, as an event of its span.
const (
	eventEvaluation = "gen_ai.evaluation.result"
	attrEvalName    = semconv.GenAIEvaluationNameKey
	attrEvalScore   = semconv.GenAIEvaluationScoreValueKey
	attrEvalLabel   = semconv.GenAIEvaluationScoreLabelKey
	evalConfidence  = "confidence"
	labelLow        = "low"
)

// What links lead to.
const (
	linkFork    = "forked_from"
	linkHandoff = "handed_off_from"
)
