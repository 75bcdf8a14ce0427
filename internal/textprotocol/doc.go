// Package textprotocol lets a model without tool calls think, call tools and answer
// in plain text. It puts the protocol of SPEC B over any [llm.Caller].
//
// [Wrap] renders a request as plain messages: the prompts, the available actions, the
// conversation, working memory and the thinking log. It reads the one `<agent>`
// element of the reply:
//
//	<agent><next_state>thinking</next_state><thinking_log>…</thinking_log></agent>
//	<agent><action><type>calculator</type><expression>1+1</expression></action></agent>
//	<agent><action><type>answer</type><value>…</value></action></agent>
//
// These are an [llm.Thought], an [llm.ToolCalls] with one call, and an [llm.Text]
// (an [llm.Structured] if the request has an output schema). An unreadable reply is
// an [llm.Invalid] with the place and what was expected there.
// docs/reference/text-protocol.md lists what is tolerated, and testdata/replies.txtar
// has a case for each.
//
// What it promises: the reply depends on the request and the provider's text only.
// Usage, model name, confidence and errors are the provider's. The XML is not
// streamed: there is one empty chunk when the provider begins to answer, and the
// words follow once they are known. A text cannot leave its element, so a tool's
// result cannot pass for anything else. Reading takes time linear in the reply and
// does not recurse: an element has three levels, and markup within a value is text.
//
// The package has a scanner of its own, since models write XML only approximately:
// encoding/xml stops at `a < b`, and drops unescaped markup in a value.
package textprotocol
