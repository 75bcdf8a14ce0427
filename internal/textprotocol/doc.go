// Package textprotocol lets a model that only speaks text think, call tools and
// answer: it puts the protocol of SPEC B over any [llm.Caller].
//
// [Wrap] renders a request as plain messages – the prompts, the actions that
// there are, the conversation, working memory and the thinking log – and reads
// the one `<agent>` element of the reply:
//
//	<agent><next_state>thinking</next_state><thinking_log>…</thinking_log></agent>
//	<agent><action><type>calculator</type><expression>1+1</expression></action></agent>
//	<agent><action><type>answer</type><value>…</value></action></agent>
//
// These are an [llm.Thought], an [llm.ToolCalls] with one call, and an [llm.Text]
// (an [llm.Structured] where an output schema was asked for). What cannot be read
// is an [llm.Invalid] with the place and what was expected. What is tolerated is
// in docs/reference/text-protocol.md; each case of it stands in testdata/replies.txtar.
//
// What it promises: the reply depends on the request and the provider's text
// alone. Usage, model name, confidence and errors are the provider's. Nothing of
// the XML is streamed: after one empty chunk when the provider begins to answer,
// the words are told once they are known. A text cannot leave the element that it
// stands in, so a tool's result cannot pass for anything else. Reading takes time
// linear in the reply, and no recursion: an element has three levels, and markup
// within a value is text.
//
// The scanner is our own. What models write is XML only in spirit: encoding/xml
// stops at `a < b`, and drops the markup of a value that its writer forgot to
// escape.
package textprotocol
