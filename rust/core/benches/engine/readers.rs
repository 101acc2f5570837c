//! What lookups and pins cost when several threads ask at once, beside the same work under a lock.
//!
//! `reader` is the engine's lock-free handle. The baselines are the engine itself behind a
//! `Mutex`, and a `HashMap` of `std` with a pin count a chunk behind a `Mutex`. Every thread does
//! as many operations as every other, on keys in random order; the figure is the time until the
//! last one is done, per operation of one thread, and the throughput counts all of them. With more
//! threads than cores it says how the ways suffer when a thread is interrupted.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::tier::{KEY_BYTES, Tier, group, key, keys, numbers, residents, sample, short};
use criterion::{BenchmarkId, Criterion, Throughput};
use kvferry::{Manager, PolicyKind, Reader, TryPin};

type Key = [u8; KEY_BYTES];

/// How far apart in the list of keys the threads begin.
const TURNS: u64 = 1 << 16;

/// A way to look chunks up and to pin them from several threads.
trait Way: Sync {
    /// What one thread works with.
    fn handle(&self) -> Box<dyn Handle + '_>;
}

trait Handle {
    fn lookup(&self, key: &Key);
    fn pin(&self, key: &Key);
}

impl Way for Reader {
    fn handle(&self) -> Box<dyn Handle + '_> {
        Box::new(self.clone())
    }
}

impl Handle for Reader {
    fn lookup(&self, key: &Key) {
        black_box(Self::lookup(self, key).ok());
    }

    fn pin(&self, key: &Key) {
        if let Ok(TryPin::Pinned(pin)) = self.try_pin(black_box(key)) {
            black_box(self.unpin(pin));
        }
    }
}

impl Way for Mutex<Manager> {
    fn handle(&self) -> Box<dyn Handle + '_> {
        Box::new(self)
    }
}

impl Handle for &Mutex<Manager> {
    fn lookup(&self, key: &Key) {
        black_box(self.lock().expect("no thread panics").lookup(key).ok());
    }

    fn pin(&self, key: &Key) {
        // The lock is free while the chunk is read, as it would be while it is copied.
        let ticket = {
            let mut manager = self.lock().expect("no thread panics");
            manager.prepare_load(keys(key), None)
        };
        if let Ok(ticket) = ticket {
            let mut manager = self.lock().expect("no thread panics");
            black_box(manager.complete_load(ticket));
        }
    }
}

/// Slot and pins by key.
type Map = Mutex<HashMap<Key, (u32, u32)>>;

impl Way for Map {
    fn handle(&self) -> Box<dyn Handle + '_> {
        Box::new(self)
    }
}

impl Handle for &Map {
    fn lookup(&self, key: &Key) {
        black_box(self.lock().expect("no thread panics").get(key).copied());
    }

    fn pin(&self, key: &Key) {
        for step in [1, u32::MAX] {
            let mut map = self.lock().expect("no thread panics");
            if let Some((slot, pins)) = map.get_mut(key) {
                *pins = pins.wrapping_add(step);
                black_box(*slot);
            }
        }
    }
}

pub(crate) fn bench(criterion: &mut Criterion) {
    for resident in residents() {
        let tier = Tier::warm(PolicyKind::Lru, resident, 0);
        let all = tier.recent();
        let map: Map = Mutex::new(all.clone().map(|n| (key(n), (0, 0))).collect());
        let keys: Vec<Key> = sample(&all, 4 * TURNS).map(key).collect();
        let reader = tier.manager.reader();
        let manager = Mutex::new(tier.manager);
        let ways: [(&str, &dyn Way); 3] = [
            ("reader", &reader),
            ("mutex_engine", &manager),
            ("mutex_std_hashmap", &map),
        ];
        for threads in numbers("KVFERRY_BENCH_THREADS", &[1, 2, 4]) {
            let mut group = group(criterion, &format!("threads_{threads}"));
            group.throughput(Throughput::Elements(threads));
            for (name, way) in ways {
                let id = BenchmarkId::new(format!("lookup/{name}"), short(resident));
                group.bench_function(id, |b| {
                    b.iter_custom(|rounds| {
                        together(threads, rounds, &keys, way, |h, k| h.lookup(k))
                    });
                });
                let id = BenchmarkId::new(format!("pin_unpin/{name}"), short(resident));
                group.bench_function(id, |b| {
                    b.iter_custom(|rounds| together(threads, rounds, &keys, way, |h, k| h.pin(k)));
                });
            }
        }
    }
}

/// Runs `rounds` operations on each of several threads, and returns how long it took from the
/// moment when all are ready until the last is done.
fn together(
    threads: u64,
    rounds: u64,
    keys: &[Key],
    way: &dyn Way,
    operation: fn(&dyn Handle, &Key),
) -> Duration {
    let ready = Barrier::new(usize::try_from(threads).expect("a few threads"));
    let work = |thread: u64| {
        let skip = usize::try_from(thread * TURNS % keys.len() as u64).expect("a place in a list");
        let turn = keys.iter().cycle().skip(skip);
        let handle = way.handle();
        ready.wait();
        let started = Instant::now();
        for (_, key) in (0..rounds).zip(turn) {
            operation(&*handle, key);
        }
        (started, Instant::now())
    };
    let times: Vec<(Instant, Instant)> = thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        spawned
            .into_iter()
            .map(|handle| handle.join().expect("no thread panics"))
            .collect()
    });
    let first = times.iter().map(|(started, _)| *started).min();
    let last = times.iter().map(|(_, ended)| *ended).max();
    first
        .zip(last)
        .map_or(Duration::ZERO, |(first, last)| last - first)
}
