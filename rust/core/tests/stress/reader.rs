//! A reader: looks, pins, verifies while it holds, touches, and lets go.

use std::sync::atomic::Ordering;
use std::thread;

use kvferry::{Keys, LookupResult, Pin, Reader, TryPin, Unpinned};

use crate::common::Numbers;
use crate::world::{Sabotage, World};

/// The most pins that a reader holds at a time.
const PINS: usize = 4;
/// Lookups of held keys in a row.
const LOOKS: u32 = 32;
/// How often a reader looks for a count that another thread has written already.
const VISIBLE: u32 = 10_000;

pub(crate) struct Reading<'a> {
    reader: Reader,
    world: &'a World,
    numbers: Numbers,
    pins: Vec<Held>,
    found: Vec<LookupResult>,
}

struct Held {
    pin: Pin,
    key: usize,
    /// The count of fenced resets before the pin was taken.
    fenced: u64,
    /// Whether the slot held the chunk whenever it was looked at.
    whole: bool,
}

impl<'a> Reading<'a> {
    pub(crate) fn new(reader: Reader, world: &'a World, n: u64) -> Self {
        Self {
            reader,
            world,
            numbers: Numbers(n),
            pins: Vec::new(),
            found: Vec::new(),
        }
    }

    pub(crate) fn read(mut self) {
        while !self.world.stopped() {
            match self.numbers.below(8) {
                0..3 => self.pin(),
                3 | 4 => self.verify(),
                5 => self.unpin(),
                6 => self.look(),
                _ => self.look_at_many(),
            }
            if self.pins.len() > PINS {
                self.unpin();
            }
        }
        while !self.pins.is_empty() {
            self.unpin();
        }
        if self.world.sabotage == Sabotage::KeptPin {
            while self.pins.is_empty() {
                self.pin();
            }
        }
    }

    fn key(&self, key: usize) -> &'a [u8] {
        &self.world.keys[key]
    }

    fn pin(&mut self) {
        let key = self.numbers.below(self.world.plan.keys);
        let epoch = self.epoch();
        let fenced = self.world.fenced.load(Ordering::Acquire);
        match self.reader.try_pin(self.key(key)).expect("a valid key") {
            TryPin::Pinned(pin) => {
                // Relaxed: a counter.
                self.world.pinned.fetch_add(1, Ordering::Relaxed);
                self.pins.push(Held {
                    pin,
                    key,
                    fenced,
                    whole: true,
                });
                self.verify();
            }
            TryPin::Pending | TryPin::Busy | TryPin::Miss => self.check(key, epoch, false),
        }
    }

    fn verify(&mut self) {
        for held in &mut self.pins {
            held.whole &= self.world.shadow.holds(held.pin.slot(), held.key);
        }
    }

    fn unpin(&mut self) {
        if self.pins.is_empty() {
            return;
        }
        self.verify();
        let held = self.pins.swap_remove(self.numbers.below(self.pins.len()));
        let slot = held.pin.slot();
        match self.reader.unpin(held.pin) {
            Unpinned::Released if held.whole => {}
            Unpinned::Released => self.world.violated(format!(
                "pinned slot {slot} does not hold its chunk, {}",
                held.key
            )),
            Unpinned::Stale => self.expect_reset(slot, held.fenced),
        }
    }

    /// Sees that a fenced reset has begun of those that had not ended when the count was `before`. It
    /// was counted before it made a pin stale, but the two may become visible in either order.
    fn expect_reset(&self, slot: u32, before: u64) {
        self.world.stale.fetch_add(1, Ordering::Relaxed);
        for _ in 0..VISIBLE {
            if self.world.fenced.load(Ordering::Acquire).div_ceil(2) > before / 2 {
                return;
            }
            thread::yield_now();
        }
        let what = format!("the pin of slot {slot} is stale without a reset");
        self.world.violated(what);
    }

    fn epoch(&self) -> u64 {
        self.world.epoch.load(Ordering::Acquire)
    }

    /// A key that the owner holds is there, unless a reset came between.
    fn check(&self, key: usize, epoch: u64, hit: bool) {
        let held = key < self.world.plan.held;
        if held && !hit && epoch.is_multiple_of(2) && self.epoch() == epoch {
            self.world.violated(format!("held key {key} is missed"));
        }
    }

    /// Held keys one by one, often: what they could be missed for lasts a moment.
    fn look(&mut self) {
        for _ in 0..LOOKS {
            let key = self.numbers.below(self.world.plan.held.max(1));
            let epoch = self.epoch();
            let found = self.reader.lookup(self.key(key)).expect("a valid key");
            self.check(key, epoch, found == LookupResult::Hit);
        }
    }

    /// A batch of any keys between two that are held, and a prefix of held ones.
    fn look_at_many(&mut self) {
        let plan = self.world.plan;
        let first = self.numbers.below(plan.held.max(1));
        let last = self.numbers.below(plan.held.max(1));
        let len = 1 + self.numbers.below(plan.call);
        let mut batch = vec![first];
        batch.extend((0..len).map(|_| self.numbers.below(plan.keys)));
        batch.push(last);
        let keys: Vec<&[u8]> = batch.iter().map(|&key| self.key(key)).collect();
        let keys = Keys::slices(&keys);
        let epoch = self.epoch();
        let looked = self.reader.lookup_each(keys, &mut self.found);
        looked.expect("valid keys");
        for (&key, &found) in batch.iter().zip(&self.found) {
            self.check(key, epoch, found == LookupResult::Hit);
        }
        let prefix: Vec<&[u8]> = self.world.keys[..plan.held]
            .iter()
            .take(len)
            .map(Vec::as_slice)
            .collect();
        let hits = self.reader.lookup_prefix(Keys::slices(&prefix));
        let ready = hits.expect("valid keys").ready;
        if ready < prefix.len() {
            self.check(ready, epoch, false);
        }
        self.reader.touch(keys).expect("valid keys");
    }
}
