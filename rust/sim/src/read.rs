//! Reads trace files: finds out what a file is from its content, and streams it line by line.
//!
//! 1. Memory is bounded by what the trace holds, never by what a line or a number in it claims: a
//!    line has at most [`MAX_LINE_BYTES`], a request at most [`MAX_BLOCKS_PER_REQUEST`], a trace at
//!    most [`MAX_BLOCKS`] unique blocks.
//! 2. Whatever the bytes are, the outcome is a trace or an error with file and line, never a panic.
//!
//! The formats are described in the [crate's documentation](crate).

mod collector;
mod kvtrace;
mod lines;
mod mooncake;
mod source;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::num::NonZeroU32;
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::error::{Fault, TraceError};
use crate::progress::{Observer, Progress};
use crate::trace::Trace;
use collector::Collector;
use lines::Lines;
use source::{Source, decompressed};

/// Longest line that is read, in bytes: two million block ids of seven digits.
pub const MAX_LINE_BYTES: usize = 16 << 20;

/// Most blocks in one request: a prompt of 256 million tokens in blocks of 16.
pub const MAX_BLOCKS_PER_REQUEST: u64 = 1 << 24;

/// Most unique blocks in one trace: 4 GiB of memory while it is read.
pub const MAX_BLOCKS: usize = 1 << 28;

/// Bytes parsed and blocks followed between two calls of the observer: some milliseconds.
const WORK_PER_REPORT: u64 = 1 << 18;

/// What a file does not say itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadOptions {
    /// Tokens behind each of a Mooncake trace's hash ids. A kvtrace-1 file states its own.
    pub mooncake_block_tokens: NonZeroU32,
}

impl Default for ReadOptions {
    /// 512, the block of the traces that Mooncake published.
    fn default() -> Self {
        const PUBLISHED: NonZeroU32 = NonZeroU32::new(512).expect("512 is not zero");
        Self {
            mooncake_block_tokens: PUBLISHED,
        }
    }
}

/// Reads a trace file, plain or zstd-compressed, in any of the known formats.
///
/// # Errors
///
/// If the file cannot be opened, is empty, is in no known format or has a faulty line, or if the
/// observer stops it.
pub fn read_trace(
    path: &Path,
    options: &ReadOptions,
    observer: &mut Observer<'_>,
) -> Result<Trace, TraceError> {
    let open_error = |source| TraceError::Open {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(open_error)?;
    let metadata = file.metadata().map_err(open_error)?;
    if metadata.is_dir() {
        return Err(open_error(io::ErrorKind::IsADirectory.into()));
    }
    let size = metadata.is_file().then_some(metadata.len());
    read(file, size, path.as_os_str(), options, observer)
}

/// Reads a trace from bytes; `name` stands for the file in errors.
///
/// # Errors
///
/// As [`read_trace`].
pub fn read_trace_from(
    input: impl Read,
    name: &str,
    options: &ReadOptions,
    observer: &mut Observer<'_>,
) -> Result<Trace, TraceError> {
    read(input, None, name.as_ref(), options, observer)
}

fn read(
    input: impl Read,
    size: Option<u64>,
    name: &OsStr,
    options: &ReadOptions,
    observer: &mut Observer<'_>,
) -> Result<Trace, TraceError> {
    let at = |line, fault| TraceError::Line {
        path: name.into(),
        line,
        fault,
    };
    let source = Source::new(input);
    let position = source.position();
    let text = decompressed(source).map_err(|fault| at(1, fault))?;
    let mut lines = Lines::new(text, MAX_LINE_BYTES);
    let mut collector = Collector::default();
    let mut format = None;
    let mut reported = 0;
    loop {
        let line = match lines.next() {
            Ok(Some(line)) => line,
            Ok(None) => break,
            Err(fault) => return Err(at(lines.number(), fault)),
        };
        let outcome = match &mut format {
            None => Format::detect(line, options, &mut collector).map(|found| format = Some(found)),
            Some(format) => format.request(line, &mut collector),
        };
        outcome.map_err(|fault| at(lines.number(), fault))?;
        let work = collector.blocks_followed() + lines.bytes();
        if work - reported >= WORK_PER_REPORT {
            reported = work;
            let bytes = position.get();
            if observer(Progress::Reading { bytes, of: size }).is_break() {
                return Err(TraceError::Interrupted);
            }
        }
    }
    let (Some(format), false) = (format, collector.is_empty()) else {
        return Err(TraceError::Empty { path: name.into() });
    };
    format
        .finish(&collector)
        .map_err(|fault| at(lines.number(), fault))?;
    let name = name.to_string_lossy().into_owned();
    Ok(collector.into_trace(name, format.block_tokens()))
}

/// A format with what it remembers between lines.
#[derive(Debug)]
enum Format {
    Mooncake(mooncake::Format),
    Kvtrace(kvtrace::Format),
}

impl Format {
    /// Takes the first line: a header, or the first request.
    fn detect(
        line: &[u8],
        options: &ReadOptions,
        collector: &mut Collector,
    ) -> Result<Self, Fault> {
        #[derive(Deserialize)]
        struct Probe {
            format: Option<String>,
            hash_ids: Option<IgnoredAny>,
            timestamp: Option<IgnoredAny>,
        }
        if line.trim_ascii_start().first() != Some(&b'{') {
            return Err(Fault::UnknownFormat);
        }
        let probe: Probe = serde_json::from_slice(line)?;
        if let Some(name) = probe.format {
            if name == kvtrace::NAME {
                return kvtrace::Format::from_header(line).map(Self::Kvtrace);
            }
            let name = name.chars().take(40).collect();
            return Err(Fault::UnknownFormatName { name });
        }
        if probe.hash_ids.is_none() && probe.timestamp.is_none() {
            return Err(Fault::UnknownFormat);
        }
        let mut format = mooncake::Format::new(options.mooncake_block_tokens);
        format.request(line, collector)?;
        Ok(Self::Mooncake(format))
    }

    fn request(&mut self, line: &[u8], collector: &mut Collector) -> Result<(), Fault> {
        match self {
            Self::Mooncake(format) => format.request(line, collector),
            Self::Kvtrace(format) => format.request(line, collector),
        }
    }

    /// Checks what can be known only at the end of the file.
    fn finish(&self, collector: &Collector) -> Result<(), Fault> {
        match self {
            Self::Mooncake(_) => Ok(()),
            Self::Kvtrace(format) => format.finish(collector),
        }
    }

    fn block_tokens(&self) -> u32 {
        match self {
            Self::Mooncake(format) => format.block_tokens(),
            Self::Kvtrace(format) => format.block_tokens(),
        }
    }
}
