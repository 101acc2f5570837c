//! What an engine occupies: by its own word, and by the word of the system. In a binary of its own,
//! since nothing else may allocate meanwhile.

#![cfg(feature = "testing")]

#[expect(dead_code, reason = "another test binary uses the rest")]
mod common;

use kvferry::{Config, Keys, Manager, PolicyKind};

use crate::common::engine;

const CHUNKS: usize = 1 << 20;

/// The resident pages of this process, in bytes.
fn resident() -> Option<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split(' ').nth(1)?.parse().ok()?;
    // A page is 4 KiB on every system that these tests run on; the comparison below would tell.
    Some(pages * 4096)
}

fn row(number: usize) -> [u8; 36] {
    let mut row = [0; 36];
    for (i, word) in row.chunks_mut(8).enumerate() {
        let mixed = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 + 2 * i as u64);
        word.copy_from_slice(&mixed.to_le_bytes()[..word.len()]);
    }
    row
}

/// Stores chunks in calls of 1,024 and completes them.
fn fill(manager: &mut Manager, numbers: std::ops::Range<usize>) {
    for start in numbers.step_by(1024) {
        let rows: Vec<u8> = (start..start + 1024).flat_map(row).collect();
        let keys = Keys::rows(&rows, 36).expect("whole rows");
        let outcome = manager.prepare_store(keys, None).expect("valid");
        let output = outcome.stored().expect("it fits");
        assert_eq!(manager.complete_store(output.ticket, true).applied, 1024);
    }
}

#[test]
fn a_chunk_costs_at_most_112_bytes_and_176_with_the_ghosts_of_arc() {
    for (policy, most) in [(PolicyKind::Lru, 112.0), (PolicyKind::Arc, 176.0)] {
        let before = resident();
        let mut manager = engine(Config::new(CHUNKS).policy(policy));
        fill(&mut manager, 0..CHUNKS);
        let told = manager.memory_bytes();
        let each = told as f64 / CHUNKS as f64;
        assert!(each <= most, "{policy}: {each:.1} bytes a chunk");

        // Three times the capacity goes through, so that the ghosts are there too.
        fill(&mut manager, CHUNKS..3 * CHUNKS);
        assert_eq!(
            manager.memory_bytes(),
            told,
            "it does not grow while it runs"
        );
        let (Some(before), Some(after)) = (before, resident()) else {
            eprintln!("not compared with the system: no /proc/self/statm");
            continue;
        };
        let seen = after.saturating_sub(before) as f64;
        let ratio = seen / told as f64;
        // The rest is scratch space of the largest call and the allocator's own.
        assert!(
            (0.98..1.03).contains(&ratio),
            "{policy}: {ratio:.3} of what it told"
        );

        let steady = resident().expect("as before");
        fill(&mut manager, 3 * CHUNKS..4 * CHUNKS);
        let grown = resident().expect("as before").saturating_sub(steady);
        assert!(
            grown < 1 << 20,
            "{policy}: {grown} bytes more after a million chunks"
        );
    }
}
