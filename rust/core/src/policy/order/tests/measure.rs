//! Prints what the order costs; asserts nothing. To run it in release mode:
//!
//! ```text
//! cargo test --release -p kvferry --lib -- --ignored --nocapture prints_the_cost_of_the_order
//! ```

use std::time::Instant;

use super::*;

const SLOTS: u32 = 1_000_000;
const ROUNDS: usize = 5;

/// Nanoseconds per item of `work`, over several rounds: least, median, most.
fn time(items: &[u32], mut work: impl FnMut(u32)) -> [f64; 3] {
    let count = f64::from(u32::try_from(items.len()).expect("a short list"));
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            items.iter().for_each(|&item| work(item));
            start.elapsed().as_secs_f64() * 1e9 / count
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    [rounds[0], rounds[ROUNDS / 2], rounds[ROUNDS - 1]]
}

#[test]
#[ignore = "a measurement, for release mode on a quiet machine"]
fn prints_the_cost_of_the_order() {
    let random: Vec<u32> = sequence(77).map(|it| it % SLOTS).take(1 << 21).collect();
    let runs: Vec<u32> = random
        .iter()
        .step_by(16)
        .flat_map(|&it| it / 16 * 16..it / 16 * 16 + 16)
        .collect();
    eprintln!("ns per operation at {SLOTS} slots: least / median / most of {ROUNDS} rounds");
    for pinned in [0, 250_000, 999_000] {
        let mut order = TouchOrder::new(SLOTS, 2).expect("1 M slots fit memory");
        (0..SLOTS).for_each(|slot| order.insert(slot, 0, slot >= pinned));
        let report = |what: &str, times: [f64; 3]| {
            let [least, median, most] = times;
            eprintln!("{pinned:>7} pinned  {what:<24} {least:6.1} {median:6.1} {most:6.1}");
        };
        report(
            "evict oldest and insert",
            time(&random, |_| {
                if let Some(victim) = order.oldest_evictable(0) {
                    order.remove(victim);
                    order.insert(victim, 0, true);
                }
            }),
        );
        report(
            "flip, random slot",
            time(&random, |slot| {
                order.set_evictable(slot, !order.is_evictable(slot));
            }),
        );
        (0..SLOTS).for_each(|slot| order.set_evictable(slot, slot >= pinned));
        report(
            "touch, random slot",
            time(&random, |slot| order.touch(slot, 0)),
        );
        report(
            "touch, runs of 16",
            time(&runs, |slot| order.touch(slot, 0)),
        );
        report(
            "remove and insert, random",
            time(&random, |slot| {
                let evictable = order.is_evictable(slot);
                order.remove(slot);
                order.insert(slot, 0, evictable);
            }),
        );
    }
}
