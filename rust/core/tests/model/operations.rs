//! What a history is made of. Numbers are taken modulo whatever there is when the step runs, so
//! that a shorter history that fails is still a history.

use kvferry::{Config, KeyHashing, PolicyKind};
use proptest::prelude::*;

use crate::common::numbered_key;
use crate::reference::{Key, Settings};

/// Numbers of keys of the universe.
type Names = Vec<u8>;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Advance(u16),
    BeginRequest {
        gpu_hit: u8,
    },
    SetPositions {
        request: u8,
        keys: Names,
        positions: Vec<u8>,
    },
    FinishRequest {
        request: u8,
    },
    DropRequest {
        request: u8,
    },
    PrepareStore {
        request: Option<u8>,
        keys: Names,
    },
    CompleteStore {
        ticket: u8,
        success: bool,
    },
    CompleteStoreKeys {
        keys: Names,
        success: bool,
    },
    CancelStore {
        ticket: u8,
    },
    ExpirePending {
        after: u16,
    },
    Touch {
        keys: Names,
    },
    DropKeys {
        keys: Names,
    },
    /// Drops what a load holds.
    DropLoaded {
        ticket: u8,
    },
    PrepareLoad {
        request: Option<u8>,
        keys: Names,
        /// Only those that can be loaded, as after a lookup.
        found: bool,
    },
    /// A load of one key that is one pin too many.
    PinTooOften {
        key: u8,
    },
    CompleteLoad {
        ticket: u8,
    },
    CompleteLoadKeys {
        keys: Names,
    },
    ReaderPin {
        key: u8,
    },
    /// Leaves room for a few pins only.
    ReaderPinsMany {
        key: u8,
        left: u8,
    },
    ReaderUnpin {
        pin: u8,
    },
    ReaderTouch {
        keys: Names,
    },
    TakeEvents,
    Reset {
        fenced: bool,
    },
    Rebuild,
    /// A key that no engine can hold, given to any verb at any place of the call.
    BadKey {
        verb: u8,
        keys: Names,
        at: u8,
        long: bool,
    },
    /// An access, ticket or pin of another engine.
    Foreign {
        what: u8,
    },
}

/// Few keys, many keys, runs of a prefix, with repetitions.
fn names() -> impl Strategy<Value = Names> {
    let some = |len| prop::collection::vec(any::<u8>(), len);
    let run = (any::<u8>(), 1..24u8)
        .prop_map(|(start, len)| (0..len).map(|i| u8::wrapping_add(start, i)).collect());
    prop_oneof![3 => some(0..5), 1 => some(5..30), 4 => run]
}

fn request() -> impl Strategy<Value = Option<u8>> {
    prop_oneof![1 => Just(None), 3 => any::<u8>().prop_map(Some)]
}

fn step() -> impl Strategy<Value = Step> {
    use Step::*;
    let number = any::<u8>;
    prop_oneof![
        2 => any::<u16>().prop_map(Advance),
        4 => number().prop_map(|gpu_hit| BeginRequest { gpu_hit }),
        3 => (number(), names(), prop::collection::vec(number(), 30))
            .prop_map(|(request, keys, positions)| SetPositions { request, keys, positions }),
        4 => number().prop_map(|request| FinishRequest { request }),
        1 => number().prop_map(|request| DropRequest { request }),
        16 => (request(), names()).prop_map(|(request, keys)| PrepareStore { request, keys }),
        10 => (number(), prop::bool::weighted(0.8))
            .prop_map(|(ticket, success)| CompleteStore { ticket, success }),
        3 => (names(), prop::bool::weighted(0.8))
            .prop_map(|(keys, success)| CompleteStoreKeys { keys, success }),
        2 => number().prop_map(|ticket| CancelStore { ticket }),
        2 => any::<u16>().prop_map(|after| ExpirePending { after }),
        4 => names().prop_map(|keys| Touch { keys }),
        3 => names().prop_map(|keys| DropKeys { keys }),
        1 => number().prop_map(|ticket| DropLoaded { ticket }),
        10 => (request(), names(), prop::bool::weighted(0.7))
            .prop_map(|(request, keys, found)| PrepareLoad { request, keys, found }),
        1 => number().prop_map(|key| PinTooOften { key }),
        6 => number().prop_map(|ticket| CompleteLoad { ticket }),
        2 => names().prop_map(|keys| CompleteLoadKeys { keys }),
        4 => number().prop_map(|key| ReaderPin { key }),
        1 => (number(), 0..3u8).prop_map(|(key, left)| ReaderPinsMany { key, left }),
        4 => number().prop_map(|pin| ReaderUnpin { pin }),
        3 => names().prop_map(|keys| ReaderTouch { keys }),
        2 => Just(TakeEvents),
        1 => any::<bool>().prop_map(|fenced| Reset { fenced }),
        1 => Just(Rebuild),
        1 => (number(), names(), number(), any::<bool>())
            .prop_map(|(verb, keys, at, long)| BadKey { verb, keys, at, long }),
        1 => number().prop_map(|what| Foreign { what }),
    ]
}

/// A history: a set-up, how its keys are hashed, and the steps. Half of the histories never lose all
/// that was learned, so that ghosts and target get somewhere.
pub(crate) fn history() -> impl Strategy<Value = (Settings, Option<u64>, Vec<Step>)> {
    let steps = prop_oneof![
        prop::collection::vec(step(), 1..120),
        prop::collection::vec(step(), 1..300).prop_map(|mut steps| {
            steps.retain(|step| !matches!(step, Step::Reset { .. } | Step::Rebuild));
            steps
        }),
    ];
    (settings(), steps).prop_map(|((settings, hashing), steps)| (settings, hashing, steps))
}

/// An engine's set-up, and how its keys are hashed.
fn settings() -> impl Strategy<Value = (Settings, Option<u64>)> {
    let capacity = prop_oneof![8 => 1..=20usize, 1 => 21..=70usize];
    let policy = prop::sample::select(PolicyKind::ALL.to_vec());
    let threshold = prop_oneof![3 => Just(1u32), 1 => Just(0), 2 => 2..=3u32];
    let timeout = prop_oneof![Just(None), (0..40_000u64).prop_map(Some)];
    let sizes = (capacity, threshold, 1..12usize, 0..40usize, 1..9usize);
    let rest = (
        policy,
        prop::sample::select(vec![0usize, 4]),
        any::<bool>(),
        timeout,
    );
    // Seeded, or by the keys' own bytes, where short keys collide.
    let hashing = prop_oneof![any::<u64>().prop_map(Some), Just(None)];
    (sizes, rest, hashing).prop_map(|(sizes, rest, hashing)| {
        let (capacity, store_threshold, max_tracker_size, max_event_keys, touch_log_capacity) =
            sizes;
        let (policy, group_bytes, events, pending_timeout_us) = rest;
        let settings = Settings {
            capacity,
            policy,
            group_bytes,
            store_threshold,
            max_tracker_size,
            events,
            max_event_keys,
            touch_log_capacity,
            pending_timeout_us,
        };
        (settings, hashing)
    })
}

pub(crate) fn config(settings: &Settings, hashing: Option<u64>) -> Config {
    Config::new(settings.capacity)
        .policy(settings.policy)
        .key_bytes(KEY_BYTES)
        .group_bytes(settings.group_bytes)
        .hashing(hashing.map_or(KeyHashing::Uniform, KeyHashing::Seeded))
        .store_threshold(settings.store_threshold)
        .max_tracker_size(settings.max_tracker_size)
        .events(settings.events)
        .max_event_keys(settings.max_event_keys)
        .touch_log_capacity(settings.touch_log_capacity)
        .pending_timeout_us(settings.pending_timeout_us)
}

/// More than a hash and its group, so that a record takes two lines.
pub(crate) const KEY_BYTES: usize = 44;

/// As many keys as make a tier of this capacity forget and meet again: most of them as vLLM's, some
/// of other lengths, among them one that is a prefix of another.
pub(crate) fn universe(capacity: usize) -> Vec<Key> {
    let n = u8::try_from(2 * capacity + 6).expect("a small tier");
    (0..n)
        .map(|n| match n % 8 {
            5 => vec![n],
            6 => vec![n - 1, 0],
            7 => vec![n; KEY_BYTES],
            _ => numbered_key(u64::from(n), u32::from(n % 3)),
        })
        .collect()
}
