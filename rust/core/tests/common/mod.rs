//! What the tests of the public interface share: keys, engines, and everything that can be seen of
//! an engine.

use kvferry::{
    Config, DebugLists, KeyList, Keys, LoadTicket, LookupResult, Manager, Pin, Reader,
    RequestAccess, Stats, StoreOutcome, StoreOutput, StoreTicket, TryPin,
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

    /// Short keys, written with spaces between them.
    pub(crate) fn named(names: &str) -> Self {
        let names = names.split_whitespace();
        Self(names.map(|name| name.as_bytes().to_vec()).collect())
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

/// Keys written with spaces between them.
pub(crate) fn names<'a>(keys: impl IntoIterator<Item = &'a Vec<u8>>) -> String {
    let names = keys.into_iter().map(|key| String::from_utf8_lossy(key));
    names.collect::<Vec<_>>().join(" ")
}

/// The keys of T1 and of T2, least recently used first.
pub(crate) fn lists(manager: &Manager) -> (String, String) {
    let lists = manager.debug_lists();
    (names(&lists.t1), names(&lists.t2))
}

/// Stores keys that fit, by their names, and returns the names of those that left.
pub(crate) fn put(manager: &mut Manager, keys: &str) -> String {
    names(&store(manager, &Chunks::named(keys)))
}

/// Offers keys by their names; the names of those that are to be stored, and of those that left.
pub(crate) fn offer_named(
    manager: &mut Manager,
    keys: &str,
    access: Option<&mut RequestAccess>,
) -> Option<(StoreTicket, String, String)> {
    let chunks = Chunks::named(keys);
    let output = offer(manager, &chunks, access).stored()?;
    let stored = output.indices.iter().map(|&i| &chunks.0[i]);
    let evicted = owned(&output.evicted);
    Some((output.ticket, names(stored), names(&evicted)))
}

/// Pins chunks that are there for a load.
pub(crate) fn pin(manager: &mut Manager, keys: &str) -> LoadTicket {
    let load = Chunks::named(keys).with(|keys| manager.prepare_load(keys, None));
    load.expect("they are ready")
}

pub(crate) fn touch(manager: &mut Manager, keys: &str) {
    let done = Chunks::named(keys).with(|keys| manager.touch(keys));
    done.expect("valid keys");
}

/// What a lookup says of each key: `.` a miss, `h` a hit, `p` pending.
pub(crate) fn seen(manager: &Manager, keys: &str) -> String {
    let result = |key: &Vec<u8>| match manager.lookup(key).expect("a valid key") {
        LookupResult::Miss => '.',
        LookupResult::Hit => 'h',
        LookupResult::HitPending => 'p',
    };
    Chunks::named(keys).0.iter().map(result).collect()
}

/// A pin by a reader of a chunk that is there.
pub(crate) fn reader_pin(reader: &Reader, key: &str) -> Pin {
    match reader.try_pin(key.as_bytes()).expect("a valid key") {
        TryPin::Pinned(pin) => pin,
        other => panic!("{key}: {other:?}"),
    }
}
