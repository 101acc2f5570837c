//! The order against a plain vector per list, its preconditions and its bounds.

mod invariants;
mod measure;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// The order as one would write it down: slots with their evictable flag, oldest first.
#[derive(Debug)]
struct Model {
    lists: [Vec<(u32, bool)>; 2],
    /// Lists that are in use.
    used: u8,
}

impl Model {
    fn find(&self, slot: u32) -> Option<(List, usize)> {
        (0..2).find_map(|list| {
            let at = self.lists[usize::from(list)]
                .iter()
                .position(|&(it, _)| it == slot)?;
            Some((list, at))
        })
    }

    fn take(&mut self, slot: u32) -> Option<bool> {
        let (list, at) = self.find(slot)?;
        Some(self.lists[usize::from(list)].remove(at).1)
    }

    fn put(&mut self, slot: u32, list: List, evictable: bool) {
        self.lists[usize::from(list)].push((slot, evictable));
    }

    fn oldest_evictable(&self, list: List) -> Option<u32> {
        let evictable = self.lists[usize::from(list)]
            .iter()
            .find(|&&(_, evictable)| evictable);
        evictable.map(|&(slot, _)| slot)
    }
}

/// What a stretch of a history does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Everything at random.
    Mixed,
    /// Slot 0 is listed, pinned, and left alone.
    PinnedTail,
    /// Touches and list changes only.
    Touches,
    /// All that is listed is pinned and stays so.
    AllPinned,
    /// All that is listed is evictable and stays so.
    AllEvictable,
    /// The oldest leaves for each that comes.
    Churn,
    /// Only pins and unpins.
    Flips,
}

const PHASES: [Phase; 7] = [
    Phase::Mixed,
    Phase::PinnedTail,
    Phase::Touches,
    Phase::AllPinned,
    Phase::AllEvictable,
    Phase::Churn,
    Phase::Flips,
];

/// The structure and the model side by side.
struct Pair {
    order: TouchOrder,
    model: Model,
    capacity: u32,
}

impl Pair {
    fn new(capacity: u32, lists: u8) -> Self {
        let order = TouchOrder::new(capacity, lists).expect("a small order fits memory");
        let model = Model {
            lists: [Vec::new(), Vec::new()],
            used: lists,
        };
        Self {
            order,
            model,
            capacity,
        }
    }

    fn insert_or_touch(&mut self, slot: u32, list: List, evictable: bool) {
        if let Some(kept) = self.model.take(slot) {
            self.model.put(slot, list, kept);
            self.order.touch(slot, list);
        } else {
            self.model.put(slot, list, evictable);
            self.order.insert(slot, list, evictable);
        }
    }

    fn remove(&mut self, slot: u32) {
        if self.model.take(slot).is_some() {
            self.order.remove(slot);
        }
    }

    fn flip(&mut self, slot: u32, evictable: bool) {
        if let Some((list, at)) = self.model.find(slot) {
            self.model.lists[usize::from(list)][at].1 = evictable;
            self.order.set_evictable(slot, evictable);
        }
    }

    /// Brings about what `phase` promises.
    fn enter(&mut self, phase: Phase) {
        match phase {
            Phase::PinnedTail => {
                self.insert_or_touch(0, 0, false);
                self.flip(0, false);
            }
            Phase::Touches => {
                for slot in 0..self.capacity {
                    self.insert_or_touch(slot, 0, slot % 3 == 0);
                }
            }
            Phase::AllPinned | Phase::AllEvictable => {
                for slot in 0..self.capacity {
                    self.flip(slot, phase == Phase::AllEvictable);
                }
            }
            Phase::Mixed | Phase::Churn | Phase::Flips => {}
        }
    }

    fn step(&mut self, phase: Phase, entropy: u32) {
        let [kind, list, evictable, _] = entropy.to_le_bytes();
        let list = list % self.model.used;
        let slot = entropy / 256 % self.capacity;
        let evictable = match phase {
            Phase::AllPinned => false,
            Phase::AllEvictable => true,
            _ => evictable % 2 == 0,
        };
        match (phase, kind % 16) {
            (Phase::PinnedTail, _) if slot == 0 => {}
            (Phase::Touches, _) | (_, 0..=6) if phase != Phase::Flips => {
                self.insert_or_touch(slot, list, evictable);
            }
            (Phase::Churn, _) | (_, 7..=8) if phase != Phase::Flips => {
                if let Some(victim) = self.model.oldest_evictable(list) {
                    self.remove(victim);
                    if phase == Phase::Churn {
                        self.insert_or_touch(victim, list, evictable);
                    }
                }
            }
            (_, 9..=10) if phase != Phase::Flips => self.remove(slot),
            (Phase::Mixed, 11) if entropy % 4096 == 11 => {
                self.order.clear();
                self.model.lists = [Vec::new(), Vec::new()];
            }
            _ => self.flip(slot, evictable),
        }
    }

    /// Compares all that can be asked.
    fn compare(&self) -> Result<(), TestCaseError> {
        let Self { order, model, .. } = self;
        prop_assert_eq!(order.check_invariants(), Ok(()));
        for list in 0..2 {
            let expected = &model.lists[usize::from(list)];
            let evictable = expected.iter().filter(|&&(_, evictable)| evictable).count();
            prop_assert_eq!(order.len(list) as usize, expected.len());
            prop_assert_eq!(order.evictable(list) as usize, evictable);
            prop_assert_eq!(order.oldest_evictable(list), model.oldest_evictable(list));
            prop_assert!(order.iter(list).eq(expected.iter().map(|&(slot, _)| slot)));
            for &(slot, evictable) in expected {
                prop_assert_eq!(order.list_of(slot), Some(list));
                prop_assert_eq!(order.is_evictable(slot), evictable);
            }
        }
        for slot in (0..=self.capacity).filter(|&slot| model.find(slot).is_none()) {
            prop_assert_eq!(order.list_of(slot), None);
            prop_assert!(!order.is_evictable(slot));
        }
        Ok(())
    }
}

/// Runs `history` and compares after each step; returns how many compactions ended.
fn run(capacity: u32, lists: u8, history: &[(Phase, Vec<u32>)]) -> Result<u32, TestCaseError> {
    let mut pair = Pair::new(capacity, lists);
    let mut ended = 0;
    for (phase, steps) in history {
        pair.enter(*phase);
        pair.compare()?;
        for &entropy in steps {
            let before = pair.order.compacting;
            pair.step(*phase, entropy);
            ended += u32::from(before && !pair.order.compacting);
            pair.compare()?;
        }
    }
    Ok(ended)
}

fn history(
    phases: std::ops::Range<usize>,
    steps: std::ops::Range<usize>,
) -> impl Strategy<Value = Vec<(Phase, Vec<u32>)>> {
    let phase = proptest::sample::select(PHASES.as_slice());
    let steps = proptest::collection::vec(any::<u32>(), steps);
    proptest::collection::vec((phase, steps), phases)
}

proptest! {
    #[test]
    fn short_histories_agree_with_a_plain_vector(
        capacity in 1u32..=40,
        lists in 1u8..=2,
        history in history(1..6, 0..120),
    ) {
        run(capacity, lists, &history)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn long_histories_agree_with_a_plain_vector(
        capacity in 1u32..=40,
        lists in 1u8..=2,
        history in history(12..16, 1_000..1_400),
    ) {
        run(capacity, lists, &history)?;
    }
}

/// A fixed pseudo-random sequence (xorshift), so that a failure repeats.
fn sequence(seed: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(seed | 1), |&last| {
        let mut next = last ^ last << 13;
        next ^= next >> 17;
        Some(next ^ next << 5)
    })
}

#[test]
fn every_capacity_survives_long_phases_of_each_kind_with_many_compactions() {
    for capacity in 1..=40 {
        let mut ended = 0;
        for (phase, seed) in PHASES.into_iter().zip(1..) {
            let steps = sequence(seed * 1000 + capacity).take(2_000).collect();
            let history = [(Phase::Touches, vec![7; 30]), (phase, steps)];
            match run(capacity, 2, &history) {
                Ok(more) => ended += more,
                Err(error) => panic!("capacity {capacity}, {phase:?}: {error}"),
            }
        }
        // A single slot leaves no hole before it.
        assert!(
            ended >= 50 || capacity == 1,
            "capacity {capacity}: {ended} compactions"
        );
    }
}

#[test]
fn a_slot_left_alone_for_ever_keeps_its_place_and_costs_no_room() {
    let mut order = TouchOrder::new(10, 1).expect("a small order fits memory");
    for slot in 0..10 {
        order.insert(slot, 0, slot != 0);
    }
    let mut compactions = 0;
    for entropy in sequence(3).take(20_000) {
        let before = order.compacting;
        order.touch(1 + entropy % 9, 0);
        compactions += u32::from(before && !order.compacting);
        order.check_invariants().expect("the invariants hold");
        assert_eq!(order.iter(0).next(), Some(0));
    }
    assert!(compactions > 500, "{compactions} compactions");
    order.set_evictable(0, true);
    assert_eq!(order.oldest_evictable(0), Some(0));
}

#[test]
fn an_unpinned_slot_is_back_where_its_last_touch_put_it() {
    let mut order = TouchOrder::new(4, 1).expect("a small order fits memory");
    for slot in [2, 0, 3, 1] {
        order.insert(slot, 0, true);
    }
    order.set_evictable(2, false);
    order.set_evictable(0, false);
    assert_eq!(order.oldest_evictable(0), Some(3));
    order.touch(2, 0);
    order.set_evictable(0, true);
    assert_eq!(order.oldest_evictable(0), Some(0));
    order.set_evictable(2, true);
    assert!(order.iter(0).eq([0, 3, 1, 2]));
}

#[test]
fn insertions_after_evictions_of_the_oldest_never_compact() {
    let mut order = TouchOrder::new(100, 1).expect("a small order fits memory");
    (0..100).for_each(|slot| order.insert(slot, 0, true));
    for turn in 0..10_000 {
        let victim = order.oldest_evictable(0).expect("all are evictable");
        assert_eq!(victim, turn % 100);
        order.remove(victim);
        order.insert(victim, 0, true);
        assert!(!order.compacting);
    }
}

#[test]
fn a_compaction_reads_at_most_eight_positions_per_append() {
    let mut order = TouchOrder::new(1_000, 1).expect("a small order fits memory");
    (0..1_000).for_each(|slot| order.insert(slot, 0, true));
    let mut compacted = 0;
    for entropy in sequence(9).take(50_000) {
        let (before, read) = (order.compacting, order.read.at);
        order.touch(entropy % 1_000, 0);
        if before && order.compacting {
            compacted += 1;
            assert!(order.read.at <= read + u64::from(READS_PER_APPEND));
        }
    }
    assert!(compacted > 1_000, "{compacted} appends during compactions");
}

#[test]
fn the_bounds_keep_the_window_within_the_ring_for_every_capacity() {
    let powers = (0..=30).map(|shift| 1 << shift);
    for capacity in (0..=5_000)
        .chain(powers)
        .chain([MAX_CAPACITY - 1, MAX_CAPACITY])
    {
        let Bounds { ring, start } = Bounds::of(capacity);
        let appends = (start + 1).div_ceil(u64::from(READS_PER_APPEND) - 1);
        assert!(
            start + 1 + appends <= u64::from(ring),
            "capacity {capacity}"
        );
        assert!(
            u64::from(capacity) + appends <= start,
            "capacity {capacity}"
        );
    }
}

#[test]
fn memory_is_within_eighteen_bytes_a_slot() {
    for (lists, most) in [(1, 16.4), (2, 16.8)] {
        let order = TouchOrder::new(1 << 20, lists).expect("1 M slots fit memory");
        let bytes = f64::from(u32::try_from(order.memory_bytes()).expect("a small order"));
        assert!(bytes / f64::from(1 << 20) < most, "{bytes} bytes");
    }
}

#[test]
fn a_capacity_that_no_index_can_address_is_refused() {
    assert!(TouchOrder::new(MAX_CAPACITY + 1, 1).is_err());
    assert!(TouchOrder::new(u32::MAX, 2).is_err());
}

#[test]
fn an_order_without_slots_is_empty() {
    let mut order = TouchOrder::new(0, 2).expect("a small order fits memory");
    assert_eq!(
        (order.len(0), order.oldest_evictable(1), order.list_of(0)),
        (0, None, None)
    );
    order.clear();
    assert_eq!(order.check_invariants(), Ok(()));
}

#[test]
fn a_call_without_its_precondition_changes_nothing() {
    let calls: [fn(&mut TouchOrder); 11] = [
        |order| order.insert(1, 0, true),
        |order| order.insert(1, 1, false),
        |order| order.insert(0, 2, true),
        |order| order.insert(4, 0, true),
        |order| order.insert(u32::MAX, 0, true),
        |order| order.touch(0, 0),
        |order| order.touch(1, 2),
        |order| order.touch(4, 0),
        |order| order.remove(0),
        |order| order.remove(u32::MAX),
        |order| order.set_evictable(0, true),
    ];
    for (number, call) in calls.into_iter().enumerate() {
        let mut order = TouchOrder::new(4, 2).expect("a small order fits memory");
        order.insert(2, 1, false);
        order.insert(1, 0, true);
        let call = std::panic::AssertUnwindSafe(|| call(&mut order));
        assert_eq!(
            std::panic::catch_unwind(call).is_err(),
            cfg!(debug_assertions),
            "{number}"
        );
        assert_eq!(order.check_invariants(), Ok(()));
        assert!(order.iter(0).eq([1]) && order.iter(1).eq([2]));
        assert!(order.is_evictable(1) && !order.is_evictable(2));
    }
}

#[test]
fn every_victim_of_a_large_order_has_the_oldest_stamp() {
    // Large enough for three levels of bitmap; the model keeps a stamp per slot.
    const SLOTS: u32 = 3_000;
    let mut order = TouchOrder::new(SLOTS, 1).expect("a small order fits memory");
    let mut stamps = vec![0; SLOTS as usize];
    let mut evictable = BTreeMap::new();
    for slot in 0..SLOTS {
        order.insert(slot, 0, true);
        stamps[slot as usize] = slot;
        evictable.insert(slot, slot);
    }
    for (stamp, entropy) in (SLOTS..300_000).zip(sequence(21)) {
        let slot = entropy / 16 % SLOTS;
        // Long stretches in which most are pinned, and others in which few are.
        let pin = entropy % 16 > if stamp / 20_000 % 2 == 0 { 3 } else { 13 };
        let stamp_of = &mut stamps[slot as usize];
        match entropy % 3 {
            0 => {
                order.set_evictable(slot, !pin);
                evictable.remove(stamp_of);
                if !pin {
                    evictable.insert(*stamp_of, slot);
                }
            }
            1 => {
                order.touch(slot, 0);
                if evictable.remove(stamp_of).is_some() {
                    evictable.insert(stamp, slot);
                }
                *stamp_of = stamp;
            }
            _ => {
                if let Some((_, victim)) = evictable.pop_first() {
                    order.remove(victim);
                    order.insert(victim, 0, !pin);
                    stamps[victim as usize] = stamp;
                    if !pin {
                        evictable.insert(stamp, victim);
                    }
                }
            }
        }
        let victim = evictable.first_key_value().map(|(_, &slot)| slot);
        assert_eq!(order.oldest_evictable(0), victim);
        if stamp % 5_000 == 0 {
            order.check_invariants().expect("the invariants hold");
        }
    }
    let mut sorted: Vec<u32> = (0..SLOTS).collect();
    sorted.sort_by_key(|&slot| stamps[slot as usize]);
    assert!(order.iter(0).eq(sorted));
}
