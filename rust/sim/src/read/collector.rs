//! What the readers of all formats gather, and the checks that they share.

use serde_json::Number;

use crate::chains::{Chain, ChainTree};
use crate::error::Fault;
use crate::read::MAX_BLOCKS_PER_REQUEST;
use crate::trace::{Request, Trace};

const US_PER_MS: u64 = 1000;

/// The requests read so far.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    tree: ChainTree,
    requests: Vec<Request>,
    blocks_followed: u64,
}

impl Collector {
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Number of requests so far.
    pub(crate) fn len(&self) -> u64 {
        self.requests.len() as u64
    }

    /// Blocks that all calls of `extend` and `prefix_of` went over: the measure of work done.
    pub(crate) fn blocks_followed(&self) -> u64 {
        self.blocks_followed
    }

    /// The first `keep` blocks of the request `back` before the next one; for 0 back, of no
    /// request.
    pub(crate) fn prefix_of(&mut self, back: u64, keep: u64) -> Result<Chain, Fault> {
        let requests = self.len();
        let chain = match requests.checked_sub(back) {
            Some(_) if back == 0 => Chain::EMPTY,
            Some(index) => usize::try_from(index)
                .ok()
                .and_then(|index| self.requests.get(index))
                .map_or(Chain::EMPTY, Request::chain),
            None => return Err(Fault::BackTooFar { back, requests }),
        };
        match u32::try_from(keep) {
            Ok(keep) if keep <= chain.len => {
                self.blocks_followed += u64::from(chain.len - keep);
                Ok(self.tree.prefix(chain, keep))
            }
            _ => Err(Fault::KeepTooLong {
                keep,
                blocks: u64::from(chain.len),
            }),
        }
    }

    /// `chain` with one more block.
    pub(crate) fn extend(&mut self, chain: Chain, label: u64) -> Result<Chain, Fault> {
        self.blocks_followed += 1;
        self.tree.step(chain, label)
    }

    /// Adds a request at `time` in milliseconds.
    pub(crate) fn push(
        &mut self,
        time: Number,
        tokens: (u64, u64),
        session: u64,
        chain: Chain,
    ) -> Result<(), Fault> {
        let time_us = microseconds(time)?;
        if let Some(previous) = self.requests.last()
            && previous.time_us > time_us
        {
            return Err(Fault::TimeGoesBack {
                time_us,
                previous_us: previous.time_us,
            });
        }
        self.requests
            .push(Request::new(time_us, tokens, session, chain));
        Ok(())
    }

    pub(crate) fn into_trace(self, name: String, block_tokens: u32) -> Trace {
        let parents = self.tree.into_parents();
        Trace::new(name, None, block_tokens, self.requests, parents)
    }
}

/// Refuses a request with more blocks than the reader accepts, before any of them is made.
pub(crate) fn check_chain_length(blocks: u64) -> Result<(), Fault> {
    if blocks > MAX_BLOCKS_PER_REQUEST {
        return Err(Fault::ChainTooLong { blocks });
    }
    Ok(())
}

/// Milliseconds, whole or not, as microseconds.
fn microseconds(time: Number) -> Result<u64, Fault> {
    if let Some(whole) = time.as_u64() {
        return whole
            .checked_mul(US_PER_MS)
            .ok_or(Fault::TimeOutOfRange { time });
    }
    match time.as_f64() {
        Some(ms) if ms < 0.0 => Err(Fault::NegativeTime { time }),
        Some(ms) => {
            float_to_u64((ms * US_PER_MS as f64).round()).ok_or(Fault::TimeOutOfRange { time })
        }
        None => Err(Fault::TimeOutOfRange { time }),
    }
}

/// A whole number below 2^64 as an integer.
fn float_to_u64(value: f64) -> Option<u64> {
    const TWO_TO_64: f64 = 18_446_744_073_709_551_616.0;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the range is checked, the value is whole"
    )]
    (0.0..TWO_TO_64).contains(&value).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Number {
        serde_json::from_str(text).expect("a number")
    }

    #[test]
    fn times_are_whole_or_fractional_milliseconds() {
        for (text, expected) in [
            ("0", 0),
            ("27482", 27_482_000),
            ("1.5", 1500),
            ("1e3", 1_000_000),
            ("-0", 0),
        ] {
            assert_eq!(microseconds(number(text)).ok(), Some(expected), "{text}");
        }
    }

    #[test]
    fn times_before_zero_and_beyond_the_range_are_refused() {
        for text in ["-1", "-0.001", "-1e300"] {
            let outcome = microseconds(number(text));
            assert!(matches!(outcome, Err(Fault::NegativeTime { .. })), "{text}");
        }
        for text in ["18446744073709551615", "1e300", "99999999999999999999999"] {
            let outcome = microseconds(number(text));
            assert!(
                matches!(outcome, Err(Fault::TimeOutOfRange { .. })),
                "{text}"
            );
        }
    }
}
