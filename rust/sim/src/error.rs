//! What can be wrong with a trace or a replay.
//!
//! A fault in a file names the file and the line, counted from 1 in the decompressed text, in the
//! form `file:line`.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::read::{MAX_BLOCKS, MAX_BLOCKS_PER_REQUEST};

/// Why a trace could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file could not be opened, or is not something that can be read.
    #[error("{}: {source}", path.display())]
    Open {
        /// The file as it was named by the caller.
        path: PathBuf,
        /// What the operating system answered.
        source: io::Error,
    },
    /// A line of the file is wrong.
    #[error("{}:{line}: {fault}", path.display())]
    Line {
        /// The file as it was named by the caller.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it.
        #[source]
        fault: Fault,
    },
    /// The file holds no request.
    #[error("{}: no request in it", path.display())]
    Empty {
        /// The file as it was named by the caller.
        path: PathBuf,
    },
    /// The observer asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// What is wrong with a line of a trace.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The line is no JSON, or not the JSON that the format asks for.
    #[error("malformed line: {}", without_position(.0))]
    Malformed(#[from] serde_json::Error),
    /// The first line belongs to no known format.
    #[error(
        "unknown format: the first line is neither a Mooncake request (`timestamp`, `input_length`, \
         `output_length`, `hash_ids`) nor the header of a kvtrace-1 file"
    )]
    UnknownFormat,
    /// The header names a format that this version does not know.
    #[error("unknown format {name:?}: expected \"kvtrace-1\"")]
    UnknownFormatName {
        /// The name in the header, cut to a readable length.
        name: String,
    },
    /// The file is compressed with something other than zstd.
    #[error("compressed with {with}: only zstd is read, decompress it first")]
    Compression {
        /// The compression that the first bytes announce.
        with: &'static str,
    },
    /// The zstd stream ends in the middle of a frame.
    #[error("the zstd stream is truncated")]
    Truncated,
    /// The bytes could not be read or decompressed.
    #[error("cannot read on: {0}")]
    Read(io::Error),
    /// The line has more bytes than any request needs.
    #[error("line longer than {limit} bytes")]
    LineTooLong {
        /// The longest line that is read, in bytes.
        limit: usize,
    },
    /// A request before time zero.
    #[error("negative time {time} ms")]
    NegativeTime {
        /// The time as written, in milliseconds.
        time: serde_json::Number,
    },
    /// A time that does not fit 64 bits of microseconds.
    #[error("time {time} ms is out of range")]
    TimeOutOfRange {
        /// The time as written, in milliseconds.
        time: serde_json::Number,
    },
    /// A request earlier than the one before it.
    #[error("time goes back: {time_us} µs after {previous_us} µs")]
    TimeGoesBack {
        /// The time of this request.
        time_us: u64,
        /// The time of the request before it.
        previous_us: u64,
    },
    /// The number of listed blocks does not belong to the number of input tokens.
    #[error(
        "{blocks} blocks of {block_tokens} tokens listed for {input_tokens} input tokens, expected {expected}"
    )]
    BlockCount {
        /// Blocks listed.
        blocks: u64,
        /// Tokens of one block.
        block_tokens: u64,
        /// Tokens of the request.
        input_tokens: u64,
        /// Blocks that so many tokens have.
        expected: u64,
    },
    /// The header's block size is no number of tokens.
    #[error(
        "block size {block_tokens} is out of range: expected 1 to {}",
        u32::MAX
    )]
    BlockSize {
        /// The size as written.
        block_tokens: u64,
    },
    /// A reference to a request before the first one.
    #[error("refers {back} requests back, but only {requests} came before")]
    BackTooFar {
        /// Requests back, as written.
        back: u64,
        /// Requests that came before this one.
        requests: u64,
    },
    /// A shared prefix longer than the request that it is taken from.
    #[error("keeps {keep} blocks of a request that has {blocks}")]
    KeepTooLong {
        /// Blocks to keep, as written.
        keep: u64,
        /// Blocks of the request referred to.
        blocks: u64,
    },
    /// A run of block ids that does not start at or before the next fresh id.
    #[error("run [{start}, {len}] leaves a gap: ids are dense, the next one is {next}")]
    SparseRun {
        /// First id of the run.
        start: u64,
        /// Length of the run.
        len: u64,
        /// The first id that no earlier run has named.
        next: u64,
    },
    /// More blocks in one request than the reader accepts.
    #[error("{blocks} blocks in one request: at most {MAX_BLOCKS_PER_REQUEST} are read")]
    ChainTooLong {
        /// Blocks of the request, saturating.
        blocks: u64,
    },
    /// More unique blocks in the trace than the reader accepts.
    #[error("more than {MAX_BLOCKS} unique blocks in the trace")]
    TooManyBlocks,
    /// The file ends before the number of requests that its header promises.
    #[error("the file ends after {found} requests, its header promises {expected}")]
    Incomplete {
        /// Requests in the header.
        expected: u64,
        /// Requests in the file.
        found: u64,
    },
    /// The file goes on after the number of requests that its header promises.
    #[error("more requests than the {expected} that the header promises")]
    Surplus {
        /// Requests in the header.
        expected: u64,
    },
}

/// serde_json's message with its column, without the line: every line is parsed on its own, so its
/// line is always 1.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((message, _)) => format!("{message} (column {})", error.column()),
        None => text,
    }
}

/// A chunk size that a trace cannot be cut into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChunkSizeError {
    /// Not a positive multiple of the trace's block.
    #[error(
        "chunks of {chunk_tokens} tokens cannot be made of the trace's blocks of {block_tokens}: \
         expected a positive multiple"
    )]
    NotAMultiple {
        /// The size asked for.
        chunk_tokens: u64,
        /// The block of the trace.
        block_tokens: u32,
    },
    /// No request is as long as one chunk.
    #[error("no request of the trace fills a chunk of {chunk_tokens} tokens")]
    NoFullChunk {
        /// The size asked for.
        chunk_tokens: u64,
    },
}
