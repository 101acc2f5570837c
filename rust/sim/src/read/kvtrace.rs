//! kvtrace-1: a header line, then one request a line, each the prefix of an earlier one and runs of
//! ids.

use serde::Deserialize;
use serde_json::Number;

use crate::error::Fault;
use crate::read::collector::{Collector, check_chain_length};

/// The header's `format`.
pub(crate) const NAME: &str = "kvtrace-1";

#[derive(Deserialize)]
struct Header {
    block_size: u64,
    requests: Option<u64>,
}

#[derive(Deserialize)]
struct Line {
    t: Number,
    #[serde(rename = "in")]
    input: u64,
    out: u64,
    #[serde(default)]
    s: u64,
    p: (u64, u64),
    n: Vec<(u64, u64)>,
}

/// Reads lines of this format.
#[derive(Debug)]
pub(crate) struct Format {
    block_tokens: u32,
    requests: Option<u64>,
    /// The first id that no run has named.
    next: u64,
}

impl Format {
    pub(crate) fn from_header(line: &[u8]) -> Result<Self, Fault> {
        let header: Header = serde_json::from_slice(line)?;
        match u32::try_from(header.block_size) {
            Ok(block_tokens) if block_tokens > 0 => Ok(Self {
                block_tokens,
                requests: header.requests,
                next: 0,
            }),
            _ => Err(Fault::BlockSize {
                block_tokens: header.block_size,
            }),
        }
    }

    pub(crate) fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    pub(crate) fn request(&mut self, line: &[u8], collector: &mut Collector) -> Result<(), Fault> {
        let line: Line = serde_json::from_slice(line)?;
        if let Some(expected) = self.requests
            && collector.len() >= expected
        {
            return Err(Fault::Surplus { expected });
        }
        let (back, keep) = line.p;
        let blocks = line
            .n
            .iter()
            .fold(keep, |sum, &(_, len)| sum.saturating_add(len));
        check_chain_length(blocks)?;
        let block_tokens = u64::from(self.block_tokens);
        let expected = line.input / block_tokens;
        if blocks != expected {
            return Err(Fault::BlockCount {
                blocks,
                block_tokens,
                input_tokens: line.input,
                expected,
            });
        }
        let mut chain = collector.prefix_of(back, keep)?;
        for &(start, len) in &line.n {
            if start > self.next {
                return Err(Fault::SparseRun {
                    start,
                    len,
                    next: self.next,
                });
            }
            // No overflow: `start` is at most `next`, which grows by less than 2^24 a line.
            let end = start + len;
            for id in start..end {
                chain = collector.extend(chain, id)?;
            }
            self.next = self.next.max(end);
        }
        collector.push(line.t, (line.input, line.out), line.s, chain)
    }

    /// Whether the file holds as many requests as its header says: a plain file that was cut off
    /// ends at a line.
    pub(crate) fn finish(&self, collector: &Collector) -> Result<(), Fault> {
        match self.requests {
            Some(expected) if expected != collector.len() => Err(Fault::Incomplete {
                expected,
                found: collector.len(),
            }),
            _ => Ok(()),
        }
    }
}
