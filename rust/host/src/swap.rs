//! Blocks of one tensor copied to blocks of another, by a mapping, at once.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::thread;

use thiserror::Error;

use crate::backend::INLINE_BYTES;
use crate::copy::{Copier, NonTemporal, Span};
use crate::memory::Extent;
use crate::options::default_threads;

/// Why blocks were not copied. None was.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SwapError {
    /// The blocks are of no size, or do not divide a tensor.
    #[error("block_size_in_bytes: {block_bytes} does not divide the {bytes} bytes of {side}")]
    BlockBytes {
        /// "src" or "dst".
        side: &'static str,
        /// The block's size.
        block_bytes: u64,
        /// The tensor's.
        bytes: u64,
    },
    /// A tensor has no such block.
    #[error("block_mapping[{row}]: block {id} is out of range, {side} has {blocks}")]
    OutOfRange {
        /// The row of the mapping.
        row: usize,
        /// "src" or "dst".
        side: &'static str,
        /// The block.
        id: i64,
        /// How many there are.
        blocks: u64,
    },
    /// Two rows write one block.
    #[error("block_mapping[{row}]: destination block {id} is there twice")]
    Twice {
        /// The second row.
        row: usize,
        /// The block.
        id: i64,
    },
    /// The tensors share memory, and a block that is written is also read.
    #[error("block_mapping[{row}]: destination block {id} overlaps a source block")]
    Overlap {
        /// The row that writes it.
        row: usize,
        /// The block.
        id: i64,
    },
}

/// From this many bytes on several threads copy: a thread takes some 50 µs to start.
const SEVERAL_THREADS: u64 = 8 << 20;

/// Rows that go on from each other are copied as one up to here, so that the threads get shares of
/// about the same size.
const LARGEST_SPAN: usize = 1 << 20;

/// Copies block `mapping[i][0]` of `source` to block `mapping[i][1]` of `destination`, for each row.
///
/// # Errors
///
/// If an id is out of range, a destination is there twice, or is also read; nothing is copied then.
///
/// # Safety
///
/// All bytes of `source` can be read, all bytes of `destination` can be written, their provenance is
/// exposed, and nobody else touches what is copied until the call returns.
pub unsafe fn swap_blocks(
    source: Extent,
    destination: Extent,
    block_bytes: u64,
    mapping: &[[i64; 2]],
) -> Result<(), SwapError> {
    let spans = spans(source, destination, block_bytes, mapping)?;
    let bytes = block_bytes * mapping.len() as u64;
    let threads = if bytes < SEVERAL_THREADS {
        1
    } else {
        default_threads()
            .min(NonZeroUsize::new(spans.len()).unwrap_or(NonZeroUsize::MIN))
            .get()
    };
    let copier = Copier::new(NonTemporal::Auto, bytes <= INLINE_BYTES);
    let share = spans.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        let mut shares = spans.chunks(share);
        let own = shares.next().unwrap_or_default();
        for share in shares {
            // SAFETY: as below.
            let copy = move || unsafe { copier.copy(share.iter().copied()) };
            // Without a thread to be had, this one does its share.
            if thread::Builder::new().spawn_scoped(scope, copy).is_err() {
                copy();
            }
        }
        // SAFETY: `spans` has checked that each lies within its extent, for which the caller
        // vouches, that no destination is there twice, and that none is a source.
        unsafe { copier.copy(own.iter().copied()) };
    });
    Ok(())
}

/// What to copy, checked; rows that go on from each other on both sides are one.
fn spans(
    source: Extent,
    destination: Extent,
    block_bytes: u64,
    mapping: &[[i64; 2]],
) -> Result<Vec<Span>, SwapError> {
    let blocks = |side, bytes: u64| match bytes.checked_rem(block_bytes) {
        Some(0) => Ok(bytes / block_bytes),
        _ => Err(SwapError::BlockBytes {
            side,
            block_bytes,
            bytes,
        }),
    };
    let sides = [
        ("src", source, blocks("src", source.bytes)?),
        ("dst", destination, blocks("dst", destination.bytes)?),
    ];
    let mut written = HashSet::with_capacity(mapping.len());
    let mut places = Vec::with_capacity(mapping.len());
    for (row, &ids) in mapping.iter().enumerate() {
        let mut place = [0; 2];
        for (at, &(side, extent, blocks)) in sides.iter().enumerate() {
            let id = ids[at];
            let index = u64::try_from(id).ok().filter(|&index| index < blocks);
            let index = index.ok_or(SwapError::OutOfRange {
                row,
                side,
                id,
                blocks,
            })?;
            place[at] = extent.address + index * block_bytes;
        }
        if !written.insert(place[1]) {
            return Err(SwapError::Twice { row, id: ids[1] });
        }
        places.push(place);
    }
    if source.address < destination.address + destination.bytes
        && destination.address < source.address + source.bytes
    {
        refuse_overlap(&places, mapping, block_bytes)?;
    }
    Ok(merged(&places, block_bytes))
}

/// Refuses a destination that any source overlaps.
fn refuse_overlap(
    places: &[[u64; 2]],
    mapping: &[[i64; 2]],
    block_bytes: u64,
) -> Result<(), SwapError> {
    let mut read: Vec<u64> = places.iter().map(|place| place[0]).collect();
    read.sort_unstable();
    for (row, &[_, to]) in places.iter().enumerate() {
        // The first source that ends after the destination begins.
        let at = read.partition_point(|&from| from + block_bytes <= to);
        if read.get(at).is_some_and(|&from| from < to + block_bytes) {
            let id = mapping[row][1];
            return Err(SwapError::Overlap { row, id });
        }
    }
    Ok(())
}

fn merged(places: &[[u64; 2]], block_bytes: u64) -> Vec<Span> {
    let word = |number: u64| {
        usize::try_from(number).expect("memory of this process has addresses of its word")
    };
    let mut spans: Vec<Span> = Vec::with_capacity(places.len());
    for &[from, to] in places {
        let (source, destination, bytes) = (word(from), word(to), word(block_bytes));
        match spans.last_mut() {
            Some(last)
                if last.bytes < LARGEST_SPAN
                    && last.source + last.bytes == source
                    && last.destination + last.bytes == destination =>
            {
                last.bytes += bytes;
            }
            _ => spans.push(Span {
                source,
                destination,
                bytes,
            }),
        }
    }
    spans
}
