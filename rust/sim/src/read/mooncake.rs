//! Mooncake's JSON lines: one request a line, one hash id for each block, the partial one at the
//! end included.

use std::num::NonZeroU32;

use serde::Deserialize;
use serde_json::Number;

use crate::chains::Chain;
use crate::error::Fault;
use crate::read::collector::{Collector, check_chain_length};

#[derive(Deserialize)]
struct Line {
    timestamp: Number,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

/// Reads lines of this format.
#[derive(Debug)]
pub(crate) struct Format {
    block_tokens: NonZeroU32,
}

impl Format {
    pub(crate) fn new(block_tokens: NonZeroU32) -> Self {
        Self { block_tokens }
    }

    pub(crate) fn block_tokens(&self) -> u32 {
        self.block_tokens.get()
    }

    pub(crate) fn request(&mut self, line: &[u8], collector: &mut Collector) -> Result<(), Fault> {
        let line: Line = serde_json::from_slice(line)?;
        let block_tokens = u64::from(self.block_tokens.get());
        let full = line.input_length / block_tokens;
        let listed = line.hash_ids.len() as u64;
        // Engines cache full blocks only, so the partial block at the end is left out. Some writers
        // list it, some do not.
        let expected = line.input_length.div_ceil(block_tokens);
        if listed != full && listed != expected {
            return Err(Fault::BlockCount {
                blocks: listed,
                block_tokens,
                input_tokens: line.input_length,
                expected,
            });
        }
        check_chain_length(full)?;
        let mut chain = Chain::EMPTY;
        for (&id, _) in line.hash_ids.iter().zip(0..full) {
            chain = collector.extend(chain, id)?;
        }
        let tokens = (line.input_length, line.output_length);
        collector.push(line.timestamp, tokens, 0, chain)
    }
}
