//! A second opinion on the replay: LRU and vLLM's ARC written down naively, on ordered maps, for
//! serial replay only (nothing is ever pinned or pending when a victim is picked).

use std::collections::{BTreeMap, HashMap, HashSet};

use kvferry_sim::{ChunkId, Trace};

/// Hit chunks of a whole replay.
pub(crate) fn hit_chunks(trace: &Trace, policy: &str, capacity: usize) -> u64 {
    let mut cache: Box<dyn Cache> = match policy {
        "lru" => Box::new(Lru::default()),
        "arc" => Box::new(Arc::default()),
        other => panic!("the oracle does not know {other}"),
    };
    let mut chain = Vec::new();
    let mut hits = 0;
    for request in trace.requests() {
        trace.chain(request, &mut chain);
        chain.truncate(capacity);
        let leading = chain.iter().take_while(|&&c| cache.contains(c)).count();
        hits += leading as u64;
        cache.store_and_finish(&chain, capacity);
    }
    hits
}

trait Cache {
    fn contains(&self, chunk: ChunkId) -> bool;
    /// Offers the chain, evicting what is needed, then ends the request.
    fn store_and_finish(&mut self, chain: &[ChunkId], capacity: usize);
}

/// Chunks by recency: oldest first.
#[derive(Default)]
struct List {
    order: BTreeMap<u64, ChunkId>,
    stamps: HashMap<ChunkId, u64>,
    clock: u64,
}

impl List {
    fn contains(&self, chunk: ChunkId) -> bool {
        self.stamps.contains_key(&chunk)
    }

    fn len(&self) -> usize {
        self.order.len()
    }

    fn renew(&mut self, chunk: ChunkId) {
        self.remove(chunk);
        self.clock += 1;
        self.stamps.insert(chunk, self.clock);
        self.order.insert(self.clock, chunk);
    }

    fn remove(&mut self, chunk: ChunkId) -> bool {
        match self.stamps.remove(&chunk) {
            Some(stamp) => self.order.remove(&stamp).is_some(),
            None => false,
        }
    }

    fn trim(&mut self, len: usize) {
        while self.len() > len {
            let (_, chunk) = self.order.pop_first().expect("it is longer than `len`");
            self.stamps.remove(&chunk);
        }
    }
}

#[derive(Default)]
struct Lru(List);

impl Cache for Lru {
    fn contains(&self, chunk: ChunkId) -> bool {
        self.0.contains(chunk)
    }

    fn store_and_finish(&mut self, chain: &[ChunkId], capacity: usize) {
        // The chain becomes the newest part of the order, head newest, and what no longer fits is
        // the oldest.
        for &chunk in chain.iter().rev() {
            self.0.renew(chunk);
        }
        self.0.trim(capacity);
    }
}

#[derive(Default)]
struct Arc {
    t1: List,
    t2: List,
    b1: List,
    b2: List,
    target_t1_size: f64,
}

impl Arc {
    fn see_miss(&mut self, chunk: ChunkId, capacity: usize) {
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if self.b1.contains(chunk) {
            self.target_t1_size = (self.target_t1_size + (b2 / b1).max(1.0)).min(capacity as f64);
            self.b1.renew(chunk);
        } else if self.b2.contains(chunk) {
            self.target_t1_size = (self.target_t1_size - (b1 / b2).max(1.0)).max(0.0);
            self.b2.renew(chunk);
        }
    }

    fn evict(&mut self, count: usize, spared: &HashSet<ChunkId>, capacity: usize) {
        let evictable = |list: &List| -> Vec<ChunkId> {
            let free = list.order.values().filter(|c| !spared.contains(c));
            free.copied().take(count).collect()
        };
        let (from_t1, from_t2) = (evictable(&self.t1), evictable(&self.t2));
        let (mut from_t1, mut from_t2) = (from_t1.into_iter(), from_t2.into_iter());
        let mut t1_size = self.t1.len();
        for _ in 0..count {
            let preferred = if t1_size as f64 >= self.target_t1_size.floor() {
                from_t1.next()
            } else {
                None
            };
            let from_t2_or_t1 = || {
                from_t2
                    .next()
                    .map(|c| (c, false))
                    .or_else(|| from_t1.next().map(|c| (c, true)))
            };
            let (victim, was_t1) = preferred
                .map(|c| (c, true))
                .or_else(from_t2_or_t1)
                .expect("a call's own chunks are at most the capacity");
            if was_t1 {
                t1_size -= 1;
                self.t1.remove(victim);
                self.b1.renew(victim);
            } else {
                self.t2.remove(victim);
                self.b2.renew(victim);
            }
        }
        self.b1.trim(capacity);
        self.b2.trim(capacity);
    }
}

impl Cache for Arc {
    fn contains(&self, chunk: ChunkId) -> bool {
        self.t1.contains(chunk) || self.t2.contains(chunk)
    }

    fn store_and_finish(&mut self, chain: &[ChunkId], capacity: usize) {
        let (reused, missing): (Vec<_>, Vec<_>) = chain.iter().partition(|&&c| self.contains(c));
        for &chunk in missing.iter().rev() {
            self.see_miss(chunk, capacity);
        }
        let free = capacity - self.t1.len() - self.t2.len();
        let spared = chain.iter().copied().collect();
        self.evict(missing.len().saturating_sub(free), &spared, capacity);
        for &chunk in &missing {
            self.b1.remove(chunk);
            self.b2.remove(chunk);
            self.t1.renew(chunk);
        }
        let reused: HashSet<_> = reused.into_iter().collect();
        for &chunk in chain.iter().rev() {
            if reused.contains(&chunk) {
                self.t1.remove(chunk);
                self.t2.renew(chunk);
            } else {
                self.t1.renew(chunk);
            }
        }
    }
}
