//! A seeded generator of agentic and chat traffic, the workload of a replay without a trace.
//!
//! **Agents** work in sessions. A session starts from the prompt and the tools of its project,
//! which all sessions of the project share, and grows by the user's messages, the model's answers
//! and the results of tools. One turn of the user is a loop of requests, each the whole context so
//! far, with a tool call of seconds between them; minutes pass between turns. A session may start
//! **sub-agents** that run side by side from a prefix of their own while it waits, **rewind** to
//! before its last turn and go on differently, and **compact** a context that has become too long
//! into a summary. **Chats** start from the system prompt of one of a few applications. Many are
//! one request and never come back, the others grow slowly, with the user's reading time in
//! between; some answers are asked for again.
//!
//! 1. A seed gives the same trace on every machine: the random numbers are ChaCha8's with one
//!    stream for each session, and all arithmetic on them is on integers.
//! 2. Sessions start evenly over the window and the time before it, and requests outside the window
//!    are cut, so the cache meets sessions in all stages at once.
//! 3. Only chunks that a request of the window has are in the trace.
//!
//! The shapes are those of published coding-agent and chat traces; the numbers are round ones and
//! fitted to none.

mod agent;
mod chat;
mod dice;
mod plan;

pub use dice::Spread;

use crate::trace::Trace;
use plan::Plan;

/// Parameters of the generated traffic; [`Workload::default`] is the built-in workload.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Workload {
    /// What the random numbers start from.
    pub seed: u64,
    /// Length of the window, in seconds.
    pub seconds: u32,
    /// Tokens of a block: the finest chunk that the trace can be cut into.
    pub block_tokens: u32,
    /// Milliseconds from a request's arrival to its first output token.
    pub first_token_ms: u32,
    /// Milliseconds for every output token.
    pub output_token_ms: u32,
    /// The agents.
    pub agents: Agents,
    /// The chats.
    pub chats: Chats,
}

/// Parameters of agentic sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Agents {
    /// Sessions that start in the window or in as much time before it.
    pub sessions: u32,
    /// Different projects; the n-th is chosen with weight 1/n.
    pub projects: u32,
    /// Tokens of a project's prompt and tools.
    pub prefix_tokens: Spread,
    /// Tokens of the prompt and tools of a project's sub-agents.
    pub subagent_prefix_tokens: Spread,
    /// Turns of the user in a session.
    pub turns: Spread,
    /// Tokens of a user's message.
    pub message_tokens: Spread,
    /// Requests in one turn: tool calls and the answer.
    pub steps: Spread,
    /// Output tokens of a request.
    pub output_tokens: Spread,
    /// Tokens of a tool's result.
    pub result_tokens: Spread,
    /// Milliseconds that a tool takes.
    pub tool_ms: Spread,
    /// Milliseconds between an answer and the user's next message.
    pub think_ms: Spread,
    /// Tool calls that start sub-agents instead, in thousandths.
    pub delegate_permille: u32,
    /// Sub-agents started at once.
    pub subagents: Spread,
    /// Requests of a sub-agent.
    pub subagent_steps: Spread,
    /// Turns that are undone and made again differently, in thousandths.
    pub rewind_permille: u32,
    /// Context length at which a session compacts, in tokens.
    pub compact_at_tokens: u32,
    /// Tokens of the summary that replaces a compacted context.
    pub summary_tokens: Spread,
}

/// Parameters of chats.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chats {
    /// Chats that start in the window or in as much time before it.
    pub sessions: u32,
    /// Different applications; the n-th is chosen with weight 1/n.
    pub applications: u32,
    /// Tokens of an application's system prompt.
    pub prefix_tokens: Spread,
    /// Chats of one request, in thousandths.
    pub one_shot_permille: u32,
    /// Tokens of what a chat starts with: a question, a document.
    pub opening_tokens: Spread,
    /// Turns of a chat that is not of one request.
    pub turns: Spread,
    /// Tokens of the user's later messages.
    pub message_tokens: Spread,
    /// Output tokens of an answer.
    pub output_tokens: Spread,
    /// Milliseconds between an answer and the user's next message.
    pub think_ms: Spread,
    /// Answers that are asked for once more, in thousandths.
    pub again_permille: u32,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            seed: 0,
            seconds: 3600,
            block_tokens: 64,
            first_token_ms: 400,
            output_token_ms: 20,
            agents: Agents::default(),
            chats: Chats::default(),
        }
    }
}

impl Default for Agents {
    fn default() -> Self {
        Self {
            sessions: 100,
            projects: 24,
            prefix_tokens: Spread([6_000, 11_000, 16_000, 22_000, 30_000, 40_000]),
            subagent_prefix_tokens: Spread([2_000, 4_000, 6_000, 9_000, 12_000, 16_000]),
            turns: Spread([1, 2, 5, 10, 25, 60]),
            message_tokens: Spread([10, 60, 200, 700, 4_000, 20_000]),
            steps: Spread([1, 2, 5, 12, 30, 80]),
            output_tokens: Spread([20, 80, 160, 350, 1_500, 8_000]),
            result_tokens: Spread([10, 120, 500, 1_600, 6_000, 20_000]),
            tool_ms: Spread([50, 300, 1_500, 8_000, 60_000, 400_000]),
            think_ms: Spread([3_000, 20_000, 60_000, 200_000, 900_000, 2_400_000]),
            delegate_permille: 25,
            subagents: Spread([1, 1, 1, 2, 3, 4]),
            subagent_steps: Spread([2, 4, 8, 15, 25, 40]),
            rewind_permille: 80,
            compact_at_tokens: 160_000,
            summary_tokens: Spread([1_000, 2_000, 4_000, 6_000, 9_000, 12_000]),
        }
    }
}

impl Default for Chats {
    fn default() -> Self {
        Self {
            sessions: 3_000,
            applications: 10,
            prefix_tokens: Spread([200, 600, 1_200, 2_400, 4_000, 6_000]),
            one_shot_permille: 450,
            opening_tokens: Spread([20, 120, 600, 3_000, 14_000, 60_000]),
            turns: Spread([2, 2, 4, 7, 15, 40]),
            message_tokens: Spread([5, 30, 80, 250, 1_200, 6_000]),
            output_tokens: Spread([5, 120, 320, 600, 1_200, 3_000]),
            think_ms: Spread([3_000, 20_000, 50_000, 120_000, 500_000, 1_500_000]),
            again_permille: 60,
        }
    }
}

impl Workload {
    /// The built-in workload with another seed.
    #[must_use]
    pub fn with_seed(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// Generates the trace, in chunks of one block.
    #[must_use]
    pub fn generate(&self) -> Trace {
        let mut plan = Plan::new(self);
        agent::plan(self, &mut plan);
        chat::plan(self, &mut plan);
        plan.into_trace()
    }
}

#[cfg(test)]
mod tests;
