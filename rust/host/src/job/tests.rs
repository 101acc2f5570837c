use kvferry::transfer::CopyRange;
use proptest::prelude::*;

use super::cut::Cuts;
use super::pieces::Pieces;

/// Ranges of these lengths, apart from each other on both sides.
fn ranges(lengths: &[u64]) -> Vec<CopyRange> {
    let mut at = 1 << 40;
    let place = |&bytes: &u64| {
        at += bytes + 64;
        CopyRange {
            device: at,
            host: at << 1,
            bytes,
        }
    };
    lengths.iter().map(place).collect()
}

/// Joins neighbours that a cut has parted, up to `bytes` bytes in all.
fn whole(parts: impl Iterator<Item = CopyRange>) -> Vec<CopyRange> {
    let mut whole: Vec<CopyRange> = Vec::new();
    for part in parts {
        match whole.last_mut() {
            Some(last)
                if last.device + last.bytes == part.device
                    && last.host + last.bytes == part.host =>
            {
                last.bytes += part.bytes;
            }
            _ => whole.push(part),
        }
    }
    whole
}

/// The first `bytes` bytes of the ranges.
fn first(ranges: &[CopyRange], mut bytes: u64) -> Vec<CopyRange> {
    let mut first = Vec::new();
    for &range in ranges {
        let taken = range.bytes.min(bytes);
        bytes -= taken;
        if taken > 0 {
            first.push(CopyRange {
                bytes: taken,
                ..range
            });
        }
    }
    first
}

proptest! {
    #[test]
    fn pieces_are_all_bytes_once_and_in_order(
        lengths in prop::collection::vec(prop_oneof![1..64u64, 4000..4200u64, 1..3_000_000u64], 0..40),
        share in 0..=4u64,
        piece_bytes in prop_oneof![1..100u64, Just(4096), 65_536..1_048_577u64],
    ) {
        let ranges = ranges(&lengths);
        let bytes = lengths.iter().sum::<u64>() * share / 4;
        // A byte a piece, for megabytes, tells nothing more.
        let piece_bytes = piece_bytes.max(bytes / 1000);
        let cuts = Cuts::new(&ranges, bytes, piece_bytes);
        let pieces: Vec<Vec<CopyRange>> =
            (0..cuts.pieces()).map(|piece| cuts.spans(&ranges, piece).collect()).collect();
        prop_assert_eq!(whole(pieces.iter().flatten().copied()), first(&ranges, bytes));
        let most = piece_bytes + piece_bytes / 4 + 4096;
        for piece in pieces {
            let bytes = piece.iter().map(|range| range.bytes).sum::<u64>();
            prop_assert!(0 < bytes && bytes <= most, "{} of {}", bytes, piece_bytes);
        }
    }
}

#[test]
fn a_large_range_is_cut_at_whole_pages_of_it() {
    let ranges = ranges(&[100, 10 << 20]);
    let cuts = Cuts::new(&ranges, (10 << 20) + 100, 1 << 20);
    assert_eq!(cuts.pieces(), 10);
    for piece in 1..cuts.pieces() {
        let start = cuts.spans(&ranges, piece).next().unwrap();
        assert_eq!((start.device - ranges[1].device) % 4096, 0);
    }
}

#[test]
fn a_job_has_not_ended_while_its_last_piece_is_under_way() {
    let pieces = Pieces::new(2, 0);
    assert_eq!(
        (pieces.take(), pieces.take(), pieces.take()),
        (Some(0), Some(1), None)
    );
    assert!(pieces.are_taken() && !pieces.have_ended());
    assert!(!pieces.settle() && !pieces.have_ended());
    assert!(pieces.settle() && pieces.have_ended());
}
