//! The requests of a workload while it is made: contexts that grow, and what is sent of them when.

use crate::chains::Chain;
use crate::read::MAX_BLOCKS_PER_REQUEST;
use crate::trace::{ChunkId, NONE, Request, Trace};
use crate::workload::Workload;
use crate::workload::dice::Dice;

const US_PER_MS: u64 = 1000;

/// A growing prompt. A copy of it is a branch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context {
    chain: Chain,
    pub(crate) tokens: u64,
}

impl Context {
    pub(crate) const EMPTY: Self = Self {
        chain: Chain::EMPTY,
        tokens: 0,
    };
}

/// Everything planned so far. Times count from the start of the sessions, in milliseconds.
#[derive(Debug)]
pub(crate) struct Plan {
    seed: u64,
    block_tokens: u32,
    first_token_ms: u64,
    output_token_ms: u64,
    /// The window: sessions start from 0 to its end.
    window_ms: std::ops::Range<u64>,
    parents: Vec<ChunkId>,
    requests: Vec<Request>,
    streams: u64,
}

impl Plan {
    pub(crate) fn new(workload: &Workload) -> Self {
        let window = u64::from(workload.seconds) * 1000;
        Self {
            seed: workload.seed,
            block_tokens: workload.block_tokens.max(1),
            first_token_ms: workload.first_token_ms.into(),
            output_token_ms: workload.output_token_ms.into(),
            window_ms: window..2 * window,
            parents: Vec::new(),
            requests: Vec::new(),
            streams: 0,
        }
    }

    /// Random numbers that nothing else gets.
    pub(crate) fn dice(&mut self) -> Dice {
        self.streams += 1;
        Dice::new(self.seed, self.streams)
    }

    /// A session's number, its random numbers and its start.
    pub(crate) fn session(&mut self) -> (u64, Dice, u64) {
        let mut dice = self.dice();
        let start_ms = dice.below(self.window_ms.end);
        (self.streams, dice, start_ms)
    }

    /// Whether nothing sent from now on is in the window.
    pub(crate) fn is_over(&self, now_ms: u64) -> bool {
        now_ms >= self.window_ms.end
    }

    /// `context` with `tokens` more, which nothing else continues it with. Stops at the longest
    /// request there is.
    pub(crate) fn grow(&mut self, mut context: Context, tokens: u64) -> Context {
        let longest = MAX_BLOCKS_PER_REQUEST * u64::from(self.block_tokens);
        context.tokens = context.tokens.saturating_add(tokens).min(longest);
        while u64::from(context.chain.len + 1) * u64::from(self.block_tokens) <= context.tokens {
            let tail = ChunkId::from_index(self.parents.len());
            self.parents.push(context.chain.tail);
            context.chain = Chain {
                tail,
                len: context.chain.len + 1,
            };
        }
        context
    }

    /// Sends `context` and answers when its last token is out.
    pub(crate) fn send(&mut self, now_ms: u64, session: u64, context: Context, output: u64) -> u64 {
        if self.window_ms.contains(&now_ms) {
            let time_us = (now_ms - self.window_ms.start) * US_PER_MS;
            let tokens = (context.tokens, output);
            self.requests
                .push(Request::new(time_us, tokens, session, context.chain));
        }
        let writing_ms = output.saturating_mul(self.output_token_ms);
        now_ms
            .saturating_add(self.first_token_ms)
            .saturating_add(writing_ms)
    }

    /// The requests in the order of their times, with chunks numbered in the order of first
    /// appearance.
    pub(crate) fn into_trace(mut self) -> Trace {
        // Stable, so that what a session sends at one instant stays in order.
        self.requests.sort_by_key(|r| (r.time_us, r.session));
        let mut numbers = vec![NONE; self.parents.len()];
        let mut parents = Vec::new();
        let mut unseen = Vec::new();
        for request in &mut self.requests {
            let Chain { mut tail, len } = request.chain();
            while let Some(index) = tail.index().filter(|&index| numbers[index] == NONE) {
                unseen.push(index);
                tail = self.parents[index];
            }
            for index in unseen.drain(..).rev() {
                let parent = self.parents[index].index();
                numbers[index] = ChunkId::from_index(parents.len());
                parents.push(parent.map_or(NONE, |parent| numbers[parent]));
            }
            let tail = request.chain().tail.index().map_or(NONE, |i| numbers[i]);
            let tokens = (request.input_tokens, request.output_tokens);
            *request = Request::new(
                request.time_us,
                tokens,
                request.session,
                Chain { tail, len },
            );
        }
        Trace::new(
            "built-in".to_owned(),
            Some(self.seed),
            self.block_tokens,
            self.requests,
            parents,
        )
    }
}
