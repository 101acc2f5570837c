//! A trace in memory: timed requests, each a chain of chunks.
//!
//! 1. Times never decrease from one request to the next.
//! 2. A chunk's parent has a lower id than the chunk.
//! 3. A request's chain has exactly `chunks` chunks, and `tail` is the last of them.
//!
//! Chains are kept as parent links, so a trace costs 4 bytes per unique chunk and 48 per request,
//! whatever the number of chunk references.

use crate::chains::Chain;
use crate::error::ChunkSizeError;

/// Identity of a chunk within one trace, with everything before it: dense, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkId(u32);

/// Stands for "no chunk": the parent of a chain's first chunk, the tail of an empty chain.
pub(crate) const NONE: ChunkId = ChunkId(u32::MAX);

impl ChunkId {
    /// The id as a number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }

    pub(crate) fn index(self) -> Option<usize> {
        (self != NONE).then_some(self.0 as usize)
    }

    pub(crate) fn from_index(index: usize) -> Self {
        Self(u32::try_from(index).expect("the number of chunks of a trace is bounded"))
    }
}

/// One request of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// When it arrived, in microseconds.
    pub time_us: u64,
    /// Tokens of its prompt.
    pub input_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
    /// Which session it belongs to; 0 where the trace does not say.
    pub session: u64,
    /// Full chunks of its prompt.
    pub chunks: u32,
    tail: ChunkId,
}

impl Request {
    pub(crate) fn new(
        time_us: u64,
        tokens: (u64, u64),
        session: u64,
        Chain { tail, len }: Chain,
    ) -> Self {
        Self {
            time_us,
            input_tokens: tokens.0,
            output_tokens: tokens.1,
            session,
            chunks: len,
            tail,
        }
    }

    pub(crate) fn chain(&self) -> Chain {
        Chain {
            tail: self.tail,
            len: self.chunks,
        }
    }
}

/// Requests in the order of their times, and the chunks they are made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    name: String,
    seed: Option<u64>,
    chunk_tokens: u32,
    requests: Vec<Request>,
    parents: Vec<ChunkId>,
}

impl Trace {
    pub(crate) fn new(
        name: String,
        seed: Option<u64>,
        chunk_tokens: u32,
        requests: Vec<Request>,
        parents: Vec<ChunkId>,
    ) -> Self {
        Self {
            name,
            seed,
            chunk_tokens,
            requests,
            parents,
        }
    }

    /// Where the trace came from: the file as it was named, or the name of the generator.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The seed of a generated trace.
    #[must_use]
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// Tokens of one chunk.
    #[must_use]
    pub fn chunk_tokens(&self) -> u32 {
        self.chunk_tokens
    }

    /// The requests, in the order of their times.
    #[must_use]
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Number of different chunks: the footprint that capacities in percent refer to.
    #[must_use]
    pub fn unique_chunks(&self) -> u64 {
        self.parents.len() as u64
    }

    /// Number of chunks over all requests.
    #[must_use]
    pub fn chunk_refs(&self) -> u64 {
        self.requests.iter().map(|r| u64::from(r.chunks)).sum()
    }

    /// Replaces `out` by the chunks of a request of this trace, first chunk first.
    pub fn chain(&self, request: &Request, out: &mut Vec<ChunkId>) {
        out.clear();
        let mut at = request.tail;
        while let Some(index) = at.index() {
            out.push(at);
            at = self.parents[index];
        }
        out.reverse();
    }

    /// The same trace in chunks of `chunk_tokens`. A chunk is identified by the last of its blocks,
    /// and so by its whole prefix; the incomplete chunk at the end of a request is left out.
    ///
    /// # Errors
    ///
    /// If the size is no positive multiple of this trace's own, or no request is that long.
    pub fn coarsen(&self, chunk_tokens: u64) -> Result<Self, ChunkSizeError> {
        let block_tokens = self.chunk_tokens;
        let not_a_multiple = ChunkSizeError::NotAMultiple {
            chunk_tokens,
            block_tokens,
        };
        let chunk = u32::try_from(chunk_tokens).map_err(|_| not_a_multiple)?;
        if chunk == 0 || !chunk.is_multiple_of(block_tokens) {
            return Err(not_a_multiple);
        }
        let factor = chunk / block_tokens;
        let mut parents = Vec::new();
        // For each block: its length as a chain, and the last whole chunk of that chain.
        let mut whole: Vec<(u32, ChunkId)> = Vec::with_capacity(self.parents.len());
        for parent in &self.parents {
            let (len, chunk) = parent.index().map_or((0, NONE), |index| whole[index]);
            let len = len + 1;
            if len.is_multiple_of(factor) {
                whole.push((len, ChunkId::from_index(parents.len())));
                parents.push(chunk);
            } else {
                whole.push((len, chunk));
            }
        }
        if parents.is_empty() {
            return Err(ChunkSizeError::NoFullChunk { chunk_tokens });
        }
        let requests = self.requests.iter().map(|request| Request {
            chunks: request.chunks / factor,
            tail: request.tail.index().map_or(NONE, |index| whole[index].1),
            ..*request
        });
        Ok(Self {
            name: self.name.clone(),
            seed: self.seed,
            chunk_tokens: chunk,
            requests: requests.collect(),
            parents,
        })
    }
}
