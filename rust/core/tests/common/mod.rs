//! What the tests of the public interface share: keys, engines, and everything that can be seen of
//! an engine.

// Each test binary uses a part of this.
#![expect(dead_code, reason = "each test binary uses a part of this module")]

use kvferry::{
    Config, DebugLists, KeyList, Keys, Manager, RequestAccess, Stats, StoreOutcome, StoreOutput,
};

/// A sequence of numbers that is the same in every run (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from((u128::from(self.next()) * n as u128) >> 64).unwrap_or(0)
    }
}

/// Owned keys, to borrow a call's [`Keys`] from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunks(pub(crate) Vec<Vec<u8>>);

impl Chunks {
    /// Keys as vLLM makes them: 32 bytes that look like a hash, then the group.
    pub(crate) fn numbered(numbers: impl IntoIterator<Item = u64>) -> Self {
        Self(numbers.into_iter().map(|n| numbered_key(n, 0)).collect())
    }

    pub(crate) fn of(keys: &[&[u8]]) -> Self {
        Self(keys.iter().map(|key| key.to_vec()).collect())
    }

    /// Calls `f` with the keys as slices.
    pub(crate) fn with<R>(&self, f: impl FnOnce(Keys<'_>) -> R) -> R {
        let slices: Vec<&[u8]> = self.0.iter().map(Vec::as_slice).collect();
        f(Keys::slices(&slices))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Key number `n` of a group.
pub(crate) fn numbered_key(n: u64, group: u32) -> Vec<u8> {
    let mut numbers = Numbers(n ^ 0x5bd1_e995_9e37_79b9);
    let mut key: Vec<u8> = (0..4).flat_map(|_| numbers.next().to_be_bytes()).collect();
    key.extend(group.to_be_bytes());
    key
}

pub(crate) fn engine(config: Config) -> Manager {
    Manager::new(config).expect("a small engine fits memory")
}

/// All that can be seen of an engine without changing it, but for its events.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) lists: DebugLists,
    pub(crate) stats: Stats,
}

pub(crate) fn look(manager: &Manager) -> Seen {
    manager.check_invariants().expect("invariants hold");
    Seen {
        lists: manager.debug_lists(),
        stats: manager.stats(),
    }
}

pub(crate) fn owned(keys: &KeyList) -> Vec<Vec<u8>> {
    keys.iter().map(<[u8]>::to_vec).collect()
}

/// Offers keys that can be held.
pub(crate) fn offer(
    manager: &mut Manager,
    chunks: &Chunks,
    access: Option<&mut RequestAccess>,
) -> StoreOutcome {
    chunks.with(|keys| manager.prepare_store(keys, access).expect("valid keys"))
}

/// Offers keys that fit.
pub(crate) fn begin_store(manager: &mut Manager, chunks: &Chunks) -> StoreOutput {
    offer(manager, chunks, None).stored().expect("it fits")
}

/// Stores keys that fit, and returns what left for them.
pub(crate) fn store(manager: &mut Manager, chunks: &Chunks) -> Vec<Vec<u8>> {
    let output = begin_store(manager, chunks);
    manager.complete_store(output.ticket, true);
    owned(&output.evicted)
}
