//! Random layouts, random jobs in both directions at once, faults: every byte beside a model that
//! moves pages one by one.
//!
//! `KVFERRY_JOBS` sets the number of jobs, `KVFERRY_SEED` the seed, which is printed.
#![expect(
    clippy::cast_possible_truncation,
    reason = "the pools of these tests are small"
)]

mod model;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kvferry::transfer::{
    Direction, JobEngine, JobError, JobId, JobOptions, Priority, SubmitError, Transfer,
};
use kvferry_host::{FaultInjection, HostBackend, HostOptions, HostStream};
use model::{Dice, Job, Pools};

/// Jobs on one layout before the next one is drawn.
const JOBS_PER_LAYOUT: usize = 100;

/// Share of the jobs that fail, on every other layout.
const FAULT_RATE: f64 = 0.15;

/// Counts how many are alive.
struct Owner(Arc<AtomicUsize>);

impl Owner {
    fn new(alive: &Arc<AtomicUsize>) -> Box<Self> {
        alive.fetch_add(1, Ordering::SeqCst);
        Box::new(Self(Arc::clone(alive)))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Debug, Default)]
struct Totals {
    succeeded: usize,
    failed: usize,
    conflicts: usize,
    bytes: u64,
}

#[test]
fn random_jobs_put_every_byte_where_the_model_puts_it() {
    let number = |name: &str, default: u64| match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}: {text:?} is no number")),
        Err(_) => default,
    };
    let jobs = number("KVFERRY_JOBS", 20_000) as usize;
    let seed = number("KVFERRY_SEED", 1);
    let mut dice = Dice::new(seed);
    let mut totals = Totals::default();
    let mut layouts = 0;
    while totals.succeeded + totals.failed < jobs {
        layouts += 1;
        one_layout(&mut dice, layouts % 2 == 0, &mut totals);
    }
    println!("seed {seed}: {layouts} layouts, {totals:?}");
    assert!(totals.failed > jobs / 40, "{totals:?}");
    assert!(totals.conflicts > 0, "{totals:?}");
}

fn one_layout(dice: &mut Dice, faulty: bool, totals: &mut Totals) {
    let mut pools = Pools::draw(dice);
    let options = HostOptions {
        threads: NonZeroUsize::new(1 + dice.below(3)),
        faults: faulty.then(|| FaultInjection {
            rate: FAULT_RATE,
            seed: dice.next(),
            only: None,
        }),
        ..HostOptions::default()
    };
    let backend = HostBackend::new(pools.memory(), options).expect("the options fit");
    let engine = JobEngine::new(backend, pools.layout(), JobOptions::default());
    let engine = engine.expect("the layout lies within the memory");
    let alive = Arc::new(AtomicUsize::new(0));
    let mut in_flight: Vec<Job> = Vec::new();
    for number in 0..JOBS_PER_LAYOUT {
        let job = pools.draw_job(dice, JobId(number as u64));
        let transfer = Transfer {
            direction: job.direction,
            block_ids: &job.block_ids,
            group_sizes: &job.group_sizes,
            block_indices: &job.block_indices,
            slots: &job.slots,
        };
        let priority = if job.direction == Direction::Load && dice.below(4) == 0 {
            Priority::Expedited
        } else {
            Priority::Ordinary
        };
        let others: Vec<JobId> = in_flight
            .iter()
            .filter(|other| job.conflicts(other, &pools))
            .map(|other| other.id)
            .collect();
        let owner = Owner::new(&alive);
        match engine.submit(job.id, &transfer, HostStream, priority, Some(owner)) {
            Ok(()) if others.is_empty() => {
                pools.expect(&job);
                in_flight.push(job);
            }
            Ok(()) => {
                // The others have ended, and were not collected: what they left is the new job's.
                assert!(engine.drain(None));
                in_flight.push(job.clone());
                let doubtful = [&others[..], &[job.id]].concat();
                settle(&engine, &mut pools, &mut in_flight, totals, &doubtful);
            }
            Err(SubmitError::Conflict { with, .. }) => {
                totals.conflicts += 1;
                assert!(
                    others.contains(&with),
                    "{job:?} conflicts with {others:?}, not {with:?}"
                );
            }
            Err(error) => panic!("{job:?}: {error}"),
        }
        if dice.below(3) == 0 {
            settle(&engine, &mut pools, &mut in_flight, totals, &[]);
        }
        if dice.below(20) == 0 {
            assert!(engine.drain(None));
            settle(&engine, &mut pools, &mut in_flight, totals, &[]);
            assert!(in_flight.is_empty(), "{in_flight:?} never ended");
            pools.compare_all();
        }
    }
    let ids: Vec<JobId> = in_flight.iter().map(|job| job.id).collect();
    assert!(engine.wait(&ids, None));
    settle(&engine, &mut pools, &mut in_flight, totals, &[]);
    assert!(in_flight.is_empty(), "{in_flight:?} never ended");
    pools.compare_all();
    let stats = engine.stats();
    assert_eq!(
        (stats.in_flight, stats.uncollected, stats.quarantined),
        (0, 0, 0),
        "{stats:?}"
    );
    drop(engine);
    assert_eq!(alive.load(Ordering::SeqCst), 0, "an owner was kept");
}

/// Collects what has ended, and checks its bytes; of doubtful jobs, whose pages others may have
/// written since, it takes the bytes as they are.
fn settle(
    engine: &JobEngine<HostBackend>,
    pools: &mut Pools,
    in_flight: &mut Vec<Job>,
    totals: &mut Totals,
    doubtful: &[JobId],
) {
    for result in engine.poll_finished() {
        let at = in_flight.iter().position(|job| job.id == result.job);
        let job = in_flight.remove(at.expect("a result for each job, once"));
        assert_eq!(result.direction, job.direction);
        match result.outcome {
            Ok(copied) => {
                assert_eq!(copied.bytes(), job.bytes, "{job:?}");
                totals.succeeded += 1;
                totals.bytes += copied.bytes();
                if !doubtful.contains(&job.id) {
                    pools.compare(&job);
                }
            }
            Err(JobError::Backend(_)) => {
                totals.failed += 1;
                if !doubtful.contains(&job.id) {
                    pools.restore(&job);
                }
            }
            Err(error) => panic!("{job:?}: {error}"),
        }
        if doubtful.contains(&job.id) {
            pools.accept(&job);
        }
    }
}
