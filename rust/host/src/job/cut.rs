//! Where a plan is cut: pieces of about equal length, whatever its ranges are.

use kvferry::transfer::CopyRange;

/// Ranges are cut at multiples of this many bytes from their start: whole pages, so that a cut
/// leaves no line to two threads and no page to two pieces where the range is aligned itself.
const GRAIN: u64 = 4096;

/// The pieces of a plan: piece `i` goes from cut `i` to cut `i + 1`.
#[derive(Debug)]
pub(super) struct Cuts {
    at: Vec<Cut>,
}

#[derive(Debug, Clone, Copy)]
struct Cut {
    range: usize,
    offset: u64,
}

impl Cuts {
    /// Cuts the first `bytes` bytes of all ranges. O(ranges + pieces).
    pub(super) fn new(ranges: &[CopyRange], bytes: u64, piece_bytes: u64) -> Self {
        let piece_bytes = piece_bytes.max(1);
        let mut at = vec![Cut {
            range: 0,
            offset: 0,
        }];
        let mut left = bytes;
        // Bytes between the last cut and here.
        let mut filled = 0;
        for (range, CopyRange { bytes, .. }) in ranges.iter().enumerate() {
            if left == 0 {
                break;
            }
            let end = left.min(*bytes);
            left -= end;
            let mut offset = 0;
            loop {
                let room = piece_bytes - filled;
                // A piece may be a quarter too long, lest a crumb be left.
                if end - offset <= room + piece_bytes / 4 {
                    break;
                }
                offset += room.next_multiple_of(GRAIN).min(end - offset);
                at.push(Cut { range, offset });
                filled = 0;
            }
            filled += end - offset;
            if filled >= piece_bytes || (left == 0 && filled > 0) {
                at.push(Cut { range, offset: end });
                filled = 0;
            }
        }
        Self { at }
    }

    /// How many pieces there are.
    pub(super) fn pieces(&self) -> usize {
        self.at.len() - 1
    }

    /// The parts of the ranges that belong to a piece.
    pub(super) fn spans<'a>(
        &self,
        ranges: &'a [CopyRange],
        piece: usize,
    ) -> impl Iterator<Item = CopyRange> + use<'a> {
        let (from, to) = (self.at[piece], self.at[piece + 1]);
        (from.range..=to.range).filter_map(move |i| {
            let range = ranges[i];
            let start = if i == from.range { from.offset } else { 0 };
            let end = if i == to.range {
                to.offset
            } else {
                range.bytes
            };
            (start < end).then_some(CopyRange {
                device: range.device + start,
                host: range.host + start,
                bytes: end - start,
            })
        })
    }
}
